"""Alibaba's GPU trace, 2023 (`openb`, `openb_nodes`): pods with fractions, nodes.

Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, qos, pod_phase, creation_time, deletion_time,
scheduled_time.  A pod with one GPU uses gpu_milli thousandths of it; a pod with several uses them whole.  `gpu_spec`
names the types that a pod may run on, separated by |.  A pod ran from `scheduled_time` to `deletion_time`; for a pod
that still ran, `deletion_time` is the end of the trace.  Times are seconds.

Skipped and counted: pods that never started, and those that ended before they began.  `qos` becomes the class, the
phase the column `status`.  Most pods arrive after day 115: `since: 9961302 s` skips earlier pods.  A list of pods
without the three times is read with `duration`: the pods arrive in the order of the file, one per second, and run for
this time.  Nodes: sn, cpu_milli, memory_mib, gpu, model.
Reference: Weng, Yang, Yu, Wang, Tang, Yang, Zhang, Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent (USENIX ATC 2023).
"""

import math
from pathlib import Path
from typing import Any

from hetsim.model.units import ExistingFile, Seconds, shown
from hetsim.workload.rows.job_log import JobLog, LogCut, TypeNames, out_of_order
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.text_rows import LONGEST_LINE, CsvTable, numbered_lines

NEEDED = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
TIMES = ("creation_time", "deletion_time", "scheduled_time")
OPTIONAL = ("gpu_spec", "qos", "pod_phase")
NODES = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
MIB = 2**20


@job_log
def read(log: JobLog, *, duration: Seconds | None = None) -> JobLog:
    """Pods of Alibaba's GPU trace of 2023: fractions of GPUs, alternative types."""
    needed = NEEDED if duration is not None and not _has_times(log.path) else (*NEEDED, *TIMES)
    if duration is not None and needed is not NEEDED:
        log.fail("has durations of its jobs; leave out the option duration")
    for line, cells in CsvTable(log, needed, (*(() if needed is not NEEDED else TIMES), *OPTIONAL)):
        if duration is not None:
            cells[5:8] = f"{log.seen}", f"{log.seen + duration!r}", f"{log.seen}"
        _pod(log, line, cells)
    return log


def _pod(log: JobLog, line: int, cells: list[str]) -> None:
    demands = log.numbers(line, NEEDED[1:5], cells[1:5])
    created = log.number(line, "creation_time", cells[5])
    times = log.numbers(line, TIMES[1:], cells[6:8], blank=math.nan)
    if demands is None or created is None or times is None:
        return
    cores, memory, count, milli = demands
    deleted, started = times
    if count != int(count) or (count == 1 and not 0 < milli <= 1000):
        log.wrong(line, "num_gpu, gpu_milli", f"{count:g} GPUs of {milli:g} thousandths are not a share of GPUs")
        return
    reason = "no deletion_time" if math.isnan(deleted) else out_of_order(created, started, deleted)
    if math.isnan(started):
        reason = f"never started ({cells[10] or 'no scheduled_time'})"
    if reason:
        log.leave_out(reason, line)
        return
    if cells[10] == "Running":
        log.remark("are in phase Running; the deletion of their rows is taken as their end", line)
    gpus = milli / 1000 if count == 1 else count
    log.add(
        line, cells[0], created, deleted - started, cpus=cores / 1000, gpus=gpus, memory=memory * MIB, start=started,
        **{"class": cells[9]}, status=cells[10], devices=cells[8],
    )  # fmt: skip


def _has_times(path: Path) -> bool:
    header = next((text for _, text in numbered_lines(path, LONGEST_LINE) if text.strip()), "").casefold()
    return any(name in header for name in TIMES)


def nodes(path: ExistingFile, *, types: TypeNames | None = None) -> list[dict[str, Any]]:
    """The nodes of Alibaba's GPU trace of 2023: cores, memory, GPUs and their model."""
    log = JobLog(Path(path), LogCut())
    result = []
    for line, cells in CsvTable(log, NODES):
        if (numbers := log.numbers(line, NODES[1:4], cells[1:4])) is None:
            continue
        cores, memory, gpus = numbers
        if cores % 1000 or gpus % 1:
            log.wrong(line, "cpu_milli, gpu", "a node must have whole cores and whole GPUs")
            continue
        if gpus and not cells[4]:
            log.wrong(line, "model", f"the GPUs of node {shown(cells[0])} must have a model")
            continue
        node: dict[str, Any] = {"name": cells[0], "cpus": int(cores // 1000), "memory": f"{memory:.0f} MiB"}
        if gpus:
            node["gpus"] = {"type": (types or {}).get(cells[4], cells[4]), "count": int(gpus)}
        result.append(node)
    log.require(result, "has no nodes")
    return result
