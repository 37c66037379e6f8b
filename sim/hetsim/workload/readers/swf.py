"""The Standard Workload Format (`format: swf`) of the Parallel Workloads Archive.

18 numbers per line, -1 if unknown: job, submit, wait, run time, processors, average CPU time, memory used, requested
processors, requested time, requested memory, status, user, group, executable, queue, partition, preceding job, think
time.  Lines that begin with ; are the header: `; MaxProcs: 8192`.

Processors become `cpus` of one node, or with `processors: gpus` a gang of GPUs.  A cluster of one node with MaxProcs
cores is the single pool that the literature schedules on; `cluster: {trace: {format: swf_header, path: ...}}` makes it.
With `cores_per_node: 8` a job of more than 8 processors spans as many nodes as necessary, with an equal part on each
(a job of 12: 6 on each of 2; of 13: 7 on each, which is counted in the notes); `swf_header` with the same option makes
nodes of 8 cores.  `size: requested` uses the requested number of processors, or the used number if that is unknown;
`size: used` prefers the used number.  The requested time is the estimate that policies see and the column `time_limit`;
jobs without it are estimated exactly.  `since` and `until` may be dates (UTC) if the header contains UnixStartTime.
Memory is requested per processor, in KiB.

Skipped and counted: jobs of unknown run time or size, those canceled before they started (status 5), and the partial
lines of jobs that were checkpointed (status 2, 3, 4), since each whole job has a line of its own.
Reference: Feitelson, Tsafrir, Krakov, Experience with Using the Parallel Workloads Archive (2014).
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from hetsim.errors import file_error
from hetsim.model.units import ExistingFile, shown
from hetsim.workload.rows.job_log import Count, JobLog
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.text_rows import LONGEST_LINE, NUMBER, YEAR_10000, numbered_lines

FIELDS = ("job", "submit", "wait", "run time", "processors", "CPU time", "memory", "requested processors",
          "requested time", "requested memory", "status", "user", "group", "executable", "queue", "partition",
          "preceding job", "think time")  # fmt: skip
CANCELLED = 5
PARTIAL = (2, 3, 4)
UNKNOWN = -1


@job_log
def read(
    log: JobLog,
    *,
    size: Literal["requested", "used"] = "requested",
    processors: Literal["cpus", "gpus"] = "cpus",
    cores_per_node: Count | None = None,
) -> JobLog:
    """A log of the Parallel Workloads Archive: 18 numbers per job."""
    header: dict[str, str] = {}
    for line, text in log.filled_lines():
        row = text.strip()
        if row.startswith(";"):
            key, sign, value = row.lstrip("; ").partition(":")
            if sign:
                header.setdefault(key.strip(), value.strip())
                if key.strip() == "UnixStartTime" and value.strip().isdecimal() and 0 < float(value) < YEAR_10000:
                    log.origin = float(value)
        else:
            _job(log, line, row, size=size, processors=processors, cores_per_node=cores_per_node)
    facts = [f"{key} {header[key]}" for key in ("Computer", "MaxNodes", "MaxProcs", "UnixStartTime") if header.get(key)]
    if facts:
        log.notes.append(f"{log.path}: the header says {', '.join(facts)}")
    return log


def _job(log: JobLog, line: int, row: str, size: str, processors: str, cores_per_node: int | None) -> None:
    if (values := _numbers(log, line, row)) is None:
        return
    number, submit, wait, took, used, _, used_memory, asked, limit, memory, status = values[:11]
    if submit < 0:
        log.wrong(line, "submit", f"{submit:g} is negative")
        return
    if status in PARTIAL:
        log.pass_over("parts of jobs that were checkpointed (status 2 to 4)", line)
        return
    if reason := _why_left_out(took, max(asked, used), status):
        log.leave_out(reason, line)
        return
    if asked > 0 and used > 0 and asked != used:
        log.remark("used another number of processors than requested", line)
    if 0 < limit < took:
        log.remark("ran longer than requested", line)
    first, second = (asked, used) if size == "requested" else (used, asked)
    nodes, each = _divided(log, line, first if first > 0 else second, cores_per_node)
    labels = zip(("user", "group", "queue", "partition"), (*values[11:13], *values[14:16]), strict=True)
    texts = {name: f"{value:g}" for name, value in labels if value != UNKNOWN}
    allowed = limit if limit > 0 else None
    kilobytes = memory if memory > 0 else used_memory
    log.add(line, int(number), submit, took, **{processors: each}, **texts, estimate=allowed, time_limit=allowed,
            memory=math.floor(kilobytes * 1024 * each) if kilobytes > 0 and processors == "cpus" else None,
            start=submit + wait if wait >= 0 else math.nan,
            nodes=None if cores_per_node is None else nodes)  # fmt: skip


def _why_left_out(took: float, width: float, status: float) -> str:
    if status == CANCELLED and took <= 0:
        return "canceled before they started"
    if took < 0:
        return "the run time is unknown"
    return "" if width > 0 else "the size is unknown"


def _divided(log: JobLog, line: int, width: float, cores_per_node: int | None) -> tuple[int, float]:
    if cores_per_node is None or width <= cores_per_node:
        return 1, width
    nodes = math.ceil(width / cores_per_node)
    each = math.ceil(width / nodes)
    if nodes * each != width:
        log.remark("do not divide evenly over their nodes and use one core more on some", line)
    return nodes, each


def _numbers(log: JobLog, line: int, row: str) -> list[float] | None:
    cells = row.split()
    if len(cells) != len(FIELDS):
        hint = "; they are separated by white space" if len(cells) == 1 and len(row) > 18 else ""
        log.wrong(line, "", f"the line has {len(cells)} field{'s' * (len(cells) != 1)}; there must be 18{hint}")
        return None
    try:
        values = list(map(float, cells))
        total = sum(values)
        good = total == total and max(values) < 1e15 and min(values) > -1e15  # NaN makes the sum NaN
    except ValueError:
        good = False
    if not good:
        bad = next(n for n, cell in enumerate(cells) if not NUMBER.fullmatch(cell) or not abs(float(cell)) < 1e15)
        log.wrong(line, f"{bad + 1} ({FIELDS[bad]})", f"{shown(cells[bad])} is not a usable number")
        return None
    return values


def nodes(path: ExistingFile, *, cores_per_node: Count | None = None) -> list[dict[str, Any]]:
    """One node with all MaxProcs cores of an SWF log, or nodes of `cores_per_node`."""
    header = dict(_header(Path(path)))
    for key in ("MaxProcs", "MaxNodes"):
        if header.get(key, "").isdecimal() and int(header[key]):
            cores = int(header[key])
            if cores_per_node is None:
                return [{"name": "pool", "cpus": cores}]
            if cores % cores_per_node:
                text = f"{key} of the header must be a multiple of cores_per_node ({cores_per_node}); got {cores}"
                raise file_error(Path(path), text)
            return [{"name": "n", "count": cores // cores_per_node, "cpus": cores_per_node}]
    raise file_error(Path(path), "the header must have MaxProcs or MaxNodes; or list the machines under nodes")


def _header(path: Path) -> Iterator[tuple[str, str]]:
    for _, text in numbered_lines(path, LONGEST_LINE):
        if not text.startswith(";"):
            return
        key, _, value = text.lstrip("; ").partition(":")
        yield key.strip(), value.strip()
