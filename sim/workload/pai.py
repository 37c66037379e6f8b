"""Alibaba's PAI trace of 2020 (`format: pai`): the tables of jobs, tasks and instances, joined.

    task:      job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type
    job:       job_name,inst_id,user,status,start_time,end_time
    instance:  job_name,task_name,inst_name,worker_name,inst_id,status,start_time,end_time,machine

`path` is the task table, the options `jobs` and `instances` name the others; the files have no header (one that is
there is skipped).  Each task holds its plan (hundredths of cores and GPUs, GB) times its instances: whole GPUs as one
gang, fractions of a GPU as a task for each instance.  It came when its job began, or itself where the job table is not
given, started with its first instance and ran until the last ended, or as the task table says.  `gpu_type` keeps it to
that type, MISC to none.  User and status are those of job and task.  Times are seconds.

Left out and counted: tasks without a start or an end, and those that planned neither cores nor GPUs.
Known here from the rows that its documentation prints.
Reference: Weng, Xiao, Yu, Wang, Wang, He, Li, Li, Lin, Ding, MLaaS in the Wild: Workload Analysis and Scheduling in
Large-Scale Heterogeneous GPU Clusters (NSDI 2022).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sim.model.paths import ExistingFile
from sim.model.units import shown
from sim.workload.job_rows import Cut, JobLog, Table, job_log
from sim.workload.traces import TaskTable

TASK = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
JOB = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
INSTANCE = (
    "job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time", "machine",
)  # fmt: skip
GB = 1e9
MOST_INSTANCES = 100_000


class Span(NamedTuple):
    """First start, last end and machine of the instances of a task; the machine is empty if there are several."""

    start: float
    end: float
    machine: str


@job_log
def read(log: JobLog, *, jobs: ExistingFile | None = None, instances: ExistingFile | None = None) -> TaskTable:
    """Tasks of Alibaba's PAI trace of 2020, joined with its job and instance tables: gangs and fractions of GPUs."""
    owners = {} if jobs is None else _jobs(Path(jobs))
    spans = {} if instances is None else _instances(Path(instances))
    for line, cells in _rows(log, TASK):
        _task(log, line, cells, owners, spans)
    return log.table()


def _rows(log: JobLog, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    for line, cells in Table(log, columns, header=columns):
        if cells[0] != columns[0]:
            yield line, cells


def _jobs(path: Path) -> dict[str, tuple[str, float]]:
    """User and start of each job."""
    log = JobLog(path, Cut())
    found = {}
    for line, cells in _rows(log, JOB):
        start = log.number(line, "start_time", cells[4], blank=math.nan)
        if start is not None:
            found[cells[0]] = cells[2], start
    log.complaints.fail_if_any()
    return found


def _instances(path: Path) -> dict[tuple[str, str], Span]:
    log = JobLog(path, Cut())
    found: dict[tuple[str, str], Span] = {}
    for line, cells in _rows(log, INSTANCE):
        start, end = (log.number(line, INSTANCE[n], cells[n], blank=math.nan) for n in (6, 7))
        if start is None or end is None or math.isnan(start) or math.isnan(end):
            continue
        key = cells[0], cells[1]
        known = found.get(key)
        one = Span(start, end, cells[8])
        if known is not None:
            machine = known.machine if known.machine == one.machine else ""
            one = Span(min(known.start, start), max(known.end, end), machine)
        found[key] = one
    log.complaints.fail_if_any()
    return found


def _task(
    log: JobLog, line: int, cells: list[str], owners: dict[str, tuple[str, float]], spans: dict[tuple[str, str], Span]
) -> None:
    count, start, end, cpu, memory, gpu = (
        log.number(line, TASK[n], cells[n], blank=math.nan if n in (4, 5) else 1.0 if n == 2 else 0.0)
        for n in (2, 4, 5, 6, 7, 8)
    )
    if count is None or start is None or end is None or cpu is None or memory is None or gpu is None:
        return
    if count % 1 or not 1 <= count <= MOST_INSTANCES or (gpu > 100 and gpu % 100):
        message = f"{shown(cells[2])} instances of {shown(cells[8])} hundredths of a GPU are no share of GPUs"
        log.wrong(line, "inst_num, plan_gpu", message)
        return
    user, came = owners.get(cells[0], ("", math.nan))
    span = spans.get((cells[0], cells[1]))
    if span is not None:
        start, end = span.start, span.end
    came = start if math.isnan(came) else min(came, start)
    if math.isnan(start) or math.isnan(end):
        log.leave_out(f"no start or no end ({cells[3] or 'no status'})", line)
    elif end < start:
        log.leave_out("ended before they began", line)
    elif not cpu and not gpu:
        log.leave_out("planned neither cores nor GPUs", line)
    else:
        kind = cells[9] if gpu and cells[9] not in ("", "MISC", "CPU") else ""
        labels = {"user": user, "class": cells[1], "status": cells[3], "devices": kind}
        labels["recorded_node"] = span.machine if span is not None else ""
        texts = {name: value for name, value in labels.items() if value}
        whole = gpu % 100 == 0 and gpu > 0
        times, each = (1, count) if whole else (int(count), 1.0)
        for number in range(times):
            name = f"{cells[0]}/{cells[1]}" + (f"/{number}" if times > 1 else "")
            log.add(
                line, name, came, end - start, key=cells[0],
                cpus=cpu / 100 * each, gpus=gpu / 100 * each, memory=memory * GB * each, start=start, **texts,
            )  # fmt: skip
