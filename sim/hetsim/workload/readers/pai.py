"""Alibaba's PAI trace, 2020 (`format: pai`): jobs, tasks and instances, joined.

    task:      job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type
    job:       job_name,inst_id,user,status,start_time,end_time
    instance:  job_name,task_name,inst_name,worker_name,inst_id,status,start_time,end_time,machine

`path` is the task table, the options `jobs` and `instances` name the other tables; the files have no header (a header
is skipped).  Each task occupies its plan (hundredths of cores and GPUs, GB) times its instances: whole GPUs as one
gang, fractions of a GPU as one task per instance.  A task arrived when its job began, and ran from the start of its
first instance to the end of its last.  Without a job table it arrived when it began; without an instance table it ran
as the task table states.  `gpu_type` restricts a task to that type; MISC means any type.  User and status are those of
job and task.  Times are seconds.  The join stores the start and the user of each job (about 40 bytes), and the first
start, the last end and the machine of each task (about 60 bytes), whatever the number of instances.

Skipped and counted: tasks without a start or an end, and those that planned neither cores nor GPUs.  Implemented from
the example rows in its documentation.
Reference: Weng, Xiao, Yu, Wang, Wang, He, Li, Li, Lin, Ding, MLaaS in the Wild: Workload Analysis and Scheduling in
Large-Scale Heterogeneous GPU Clusters (NSDI 2022).
"""

import math
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from struct import unpack
from typing import Any, Literal, NamedTuple

import numpy as np

from hetsim.model.units import ExistingFile, shown
from hetsim.workload.rows.job_log import JobLog, LogCut
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.text_rows import CsvTable

MIN_ROWS = 2**16  # number of rows that are collected before they are merged

Merge = Literal["last", "least", "most"]


class Texts:
    """Table of texts, in which each distinct text has a number."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self._texts: list[str] = []

    def code(self, text: str) -> int:
        if (number := self.codes.get(text)) is None:
            number = self.codes[text] = len(self._texts)
            self._texts.append(text)
        return number

    def __getitem__(self, code: float) -> str:
        return self._texts[int(code)]


class Keyed:
    """Rows of numbers by key; rows with equal keys are merged.

    columns: by name, type code (d: float, i: integer) and merge rule: `last` uses the value added last, `least` the
    minimum, `most` the maximum.  A row needs 16 bytes for the hash of its key, 8 for each float and 4 for each whole
    number; while rows are added, 50 % more.
    """

    def __init__(self, **columns: tuple[Literal["d", "i"], Merge]):
        self.columns = columns
        # the two halves of the keys, by which rows are sorted, then the columns
        self._rows: list[np.ndarray] = [np.empty(0, kind) for kind in ("q", "q", *self._kinds())]
        self._most = MIN_ROWS
        self._start()

    def __len__(self) -> int:
        self._merge()
        return len(self._rows[0])

    def add(self, key: str, *values: float) -> None:
        self._keys += blake2b(key.encode(), digest_size=16).digest()
        for column, value in zip(self._added, values, strict=True):
            column.append(value)
        if len(self._keys) >= 16 * self._most:
            self._merge()

    def find(self, key: str) -> tuple[float, ...] | None:
        if self._keys:
            self._merge()
        high, low = unpack("=qq", blake2b(key.encode(), digest_size=16).digest())
        first, second, *columns = self._rows
        row = int(first.searchsorted(high))
        while row < len(first) and first.item(row) == high:
            if second.item(row) == low:
                return tuple([column.item(row) for column in columns])
            row += 1
        return None

    def _kinds(self) -> list[Literal["d", "i"]]:
        return [kind for kind, _ in self.columns.values()]

    def _start(self) -> None:
        self._keys = bytearray()
        self._added: list[array[Any]] = [array(kind) for kind in self._kinds()]

    def _merge(self) -> None:
        if not self._keys:
            return
        keys, added = np.frombuffer(self._keys, "q").reshape(-1, 2), self._added
        self._start()
        halves = [np.concatenate([self._rows[n], keys[:, n]]) for n in (0, 1)]
        del keys
        order = np.lexsort((halves[1], halves[0]))  # which leaves equal ones as they came
        halves = [half[order] for half in halves]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (halves[0][1:] != halves[0][:-1]) | (halves[1][1:] != halves[1][:-1])
        begins = np.flatnonzero(new)
        self._rows[:2] = [half[new] for half in halves]
        del halves
        self._most = max(MIN_ROWS, len(begins) // 2)
        ends = np.append(begins[1:], len(order)) - 1
        for n, (kind, merge) in enumerate(self.columns.values(), start=2):
            values = np.concatenate([self._rows[n], np.frombuffer(added[n - 2], kind)])[order]
            if merge == "last":
                self._rows[n] = values[ends]
            else:
                self._rows[n] = (np.minimum if merge == "least" else np.maximum).reduceat(values, begins)


TASK = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
        "gpu_type")  # fmt: skip
# numeric columns, and the meaning of a blank cell of each
BLANK = {2: 1.0, 4: math.nan, 5: math.nan, 6: 0.0, 7: 0.0, 8: 0.0}
NO_TYPE = ("", "MISC", "CPU")
JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
INSTANCE = ("job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time",
            "machine")  # fmt: skip
GB = 1e9
MAX_INSTANCES = 100_000


class Owner(NamedTuple):
    """User and start of a job; the start may be NaN."""

    user: str
    start: float


class InstanceSpan(NamedTuple):
    """First start, last end and machine of a task's instances; "" if several machines."""

    start: float
    end: float
    machine: str


class Owners:
    """Users and start times of the jobs in a job table, by name of the job."""

    def __init__(self, path: Path | None = None):
        self._users = Texts()
        self._jobs = Keyed(start=("d", "last"), user=("i", "last"))
        if path is None:
            return
        log = JobLog(path, LogCut())
        for line, cells in _rows(log, JOB):
            if (start := log.number(line, "start_time", cells[4], blank=math.nan)) is not None:
                self._jobs.add(cells[0], start, self._users.code(cells[2]))
        log.row_problems.fail_if_any()

    def owner(self, job: str) -> Owner:
        owner = self._jobs.find(job)
        return Owner("", math.nan) if owner is None else Owner(self._users[owner[1]], owner[0])


class AttemptSpans:
    """First start, last end and machine of each task, from the table of instances."""

    def __init__(self, path: Path | None = None):
        self._machines = Texts()
        self._tasks = Keyed(start=("d", "least"), end=("d", "most"), lowest=("i", "least"), highest=("i", "most"))
        if path is None:
            return
        log = JobLog(path, LogCut())
        for line, cells in _rows(log, INSTANCE):
            start, end = (log.number(line, INSTANCE[n], cells[n], blank=math.nan) for n in (6, 7))
            if start is not None and end is not None and not math.isnan(start) and not math.isnan(end):
                machine = self._machines.code(cells[8])
                self._tasks.add(f"{cells[0]}\n{cells[1]}", start, end, machine, machine)
        log.row_problems.fail_if_any()

    def instances(self, job: str, task: str) -> InstanceSpan | None:
        if (instances := self._tasks.find(f"{job}\n{task}")) is None:
            return None
        start, end, lowest, highest = instances
        return InstanceSpan(start, end, self._machines[lowest] if lowest == highest else "")


@job_log
def read(log: JobLog, *, jobs: ExistingFile | None = None, instances: ExistingFile | None = None) -> JobLog:
    """Tasks of Alibaba's PAI trace of 2020, with its job and instance tables."""
    owners = Owners(None if jobs is None else Path(jobs))
    spans = AttemptSpans(None if instances is None else Path(instances))
    for line, cells in _rows(log, TASK):
        _task(log, line, cells, owners=owners, spans=spans)
    return log


def _rows(log: JobLog, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    for line, cells in CsvTable(log, columns, header=columns):
        if cells[0] != columns[0]:
            yield line, cells


def _task(log: JobLog, line: int, cells: list[str], owners: Owners, spans: AttemptSpans) -> None:
    numbers = [log.number(line, TASK[n], cells[n], blank) for n, blank in BLANK.items()]
    if None in numbers:
        return
    count, start, end, cpu, memory, gpu = (float(value) for value in numbers if value is not None)
    if count % 1 or not 1 <= count <= MAX_INSTANCES or (gpu > 100 and gpu % 100):
        message = f"{shown(cells[2])} instances of {shown(cells[8])} hundredths of a GPU are not a share of GPUs"
        log.wrong(line, "inst_num, plan_gpu", message)
        return
    user, came = owners.owner(cells[0])
    if (span := spans.instances(cells[0], cells[1])) is not None:
        start, end = span.start, span.end
    came = start if math.isnan(came) else min(came, start)
    if reason := _why_left_out(start, end, cpu, gpu=gpu, status=cells[3]):
        log.leave_out(reason, line)
        return
    labels = {"user": user, "class": cells[1], "status": cells[3],
              "devices": cells[9] if gpu and cells[9] not in NO_TYPE else "",
              "recorded_node": span.machine if span is not None else ""}  # fmt: skip
    # Whole GPUs are a gang, one job; fractions of GPUs are a job for each instance.
    times, each = (1, count) if gpu % 100 == 0 and gpu > 0 else (int(count), 1.0)
    for number in range(times):
        name = f"{cells[0]}/{cells[1]}" + (f"/{number}" if times > 1 else "")
        log.add(line, name, came, end - start, key=cells[0], cpus=cpu / 100 * each, gpus=gpu / 100 * each,
                memory=memory * GB * each, start=start, **labels)  # fmt: skip


def _why_left_out(start: float, end: float, cpu: float, gpu: float, status: str) -> str:
    if math.isnan(start) or math.isnan(end):
        return f"no start or no end ({status or 'no status'})"
    if end < start:
        return "ended before they began"
    return "" if cpu or gpu else "planned neither cores nor GPUs"
