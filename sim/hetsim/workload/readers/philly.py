"""Microsoft's Philly traces (`format: philly`): jobs (JSON or CSV) and nodes.

The native JSON is a list of jobs with status, vc, user, jobid, submitted_time and attempts, each with start_time,
end_time and detail: the machines (ip) and their GPUs.  The duration of a job is the sum of its attempts, on the GPUs of
the first attempt; attempts without both times are skipped and counted.  Failed attempts that were retried count as
work; `attempts: last` uses the last attempt only.  The recorded start is that of the first attempt, and the recorded
node is its machine if there was only one.  The flat form has the columns timestamp, duration, num_gpus, gpu_time,
cluster, with unordered rows; duplicate rows are skipped (`repeated: true` reads them too).

The virtual cluster is the column `vc`, the status `status`.  Dates are local time without a zone.  `cluster: {trace:
{format: philly_vc, path: ...}}` makes nodes from the list of virtual clusters (vc,node num), each virtual cluster a
partition; `partition: {column: vc}` in the entry restricts jobs to their virtual cluster.
Reference: Jeon, Venkataraman, Phanishayee, Qian, Xiao, Yang, Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN
Training Workloads (USENIX ATC 2019).
"""

from pathlib import Path
from typing import Any, Literal

from hetsim.model.units import ExistingFile, shown
from hetsim.workload.rows.job_log import Count, JobLog, LogCut, Named
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.json_rows import first_sign, members
from hetsim.workload.rows.text_rows import CsvTable, Flag

FLAT = ("timestamp", "duration", "num_gpus", "cluster")


@job_log
def read(log: JobLog, *, attempts: Literal["all", "last"] = "all", repeated: Flag = False) -> JobLog:
    """Jobs of Microsoft's Philly clusters: native JSON with attempts, or flat CSV."""
    log.dated = True
    if first_sign(log.path) == "[":
        for line, job in members(log.path):
            _native(log, line, job, attempts)
    else:
        log.unique = not repeated
        _flat(log)
    return log


def _flat(log: JobLog) -> None:
    table = CsvTable(log, FLAT)
    for line, cells in table:
        came = log.date(line, FLAT[0], cells[0])
        took = log.number(line, FLAT[1], cells[1])
        gpus = log.number(line, FLAT[2], cells[2])
        if came is None or took is None or gpus is None:
            continue
        if gpus % 1:
            log.wrong(line, FLAT[2], f"{shown(cells[2])} is not a whole number of GPUs")
        else:
            log.add(line, None, came, took, key=table.text, gpus=gpus, vc=cells[3])


def _native(log: JobLog, line: int, job: Any, which: str) -> None:
    if not isinstance(job, dict) or not isinstance(job.get("attempts"), list):
        log.wrong(line, "", "must be a job: an object with submitted_time and a list of attempts")
        return
    came = log.date(line, "submitted_time", _text(job.get("submitted_time")))
    spans: list[tuple[float, float]] = []
    gpus, nodes = 0, ""
    for attempt in job["attempts"]:
        if (parts := _attempt(log, line, attempt)) is None:
            return
        begin, end, gpu_count, machines = parts
        if begin is None or end is None:
            log.remark("have an attempt without its times, which is left out", line)
        elif end < begin:
            log.remark("have an attempt that ended before it began, which is left out", line)
        else:
            if not spans or which == "last":
                gpus, nodes = gpu_count, "|".join(machines)
            spans.append((begin, end))
    if came is None:
        return
    if not spans:
        log.leave_out("never started", line)
        return
    if not gpus:
        log.leave_out("the GPUs are unknown", line)
        return
    if spans[0][0] < came:
        log.leave_out("began before their submission", line)
        return
    if len(spans) > 1:
        log.remark("took more than one attempt", line)
    took = spans[-1][1] - spans[-1][0] if which == "last" else sum(end - begin for begin, end in spans)
    texts = {name: _text(job.get(name) or None) for name in ("user", "vc", "status")}
    log.add(line, _text(job.get("jobid")) or None, came, took, gpus=float(gpus), start=spans[0][0], **texts,
            recorded_node=nodes)  # fmt: skip


def _attempt(log: JobLog, line: int, attempt: Any) -> tuple[float | None, float | None, int, list[str]] | None:
    """Return start, end, GPUs and machines of an attempt; None after a problem."""
    detail = attempt.get("detail") if isinstance(attempt, dict) else None
    if not isinstance(attempt, dict) or not isinstance(detail or [], list):
        log.wrong(line, "attempts", "an attempt must be an object with start_time, end_time and detail")
        return None
    texts = {key: _text(attempt.get(key)) for key in ("start_time", "end_time")}
    begin, end = (None if text in ("", "None") else log.date(line, key, text) for key, text in texts.items())
    machines = [one for one in detail or [] if isinstance(one, dict)]
    gpu_count = sum(len(one["gpus"]) for one in machines if isinstance(one.get("gpus"), list))
    return begin, end, gpu_count, [str(one["ip"]) for one in machines if one.get("ip")]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def nodes(
    path: ExistingFile, *, gpus_per_node: Count = 8, cpus_per_node: Count = 24, gpu: Named = "gpu"
) -> list[dict[str, Any]]:
    """Nodes of Philly's virtual clusters, `vc,node num`, with 8 GPUs and 24 cores."""
    log = JobLog(Path(path), LogCut())
    result = []
    for line, (vc, count) in CsvTable(log, ("vc", "node num")):
        number = log.number(line, "node num", count)
        if number and number % 1:
            log.wrong(line, "node num", f"{shown(count)} is not a whole number of nodes")
        elif number:
            kind = {"type": gpu, "count": gpus_per_node}
            result.append({"name": f"{vc}-", "count": int(number), "rack": vc, "cpus": cpus_per_node, "gpus": kind,
                          "partitions": [vc]})  # fmt: skip
    log.require(result, "has no nodes")
    return result
