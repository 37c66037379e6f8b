"""Alibaba's trace of recommendation models, 2025 (`format: alibaba_dlrm`).

    instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,...,
    max_instance_per_node,creation_time,scheduled_time,deletion_time

Instances on CPU nodes (role CN) and on GPU nodes (role HN) use cores, GPUs and GiB of memory; limits equal requests.
The role is the class and the application is the user.  Times are seconds since the trace began.  A blank time lies
outside the trace: an instance without creation_time arrives at time 0, one without deletion_time runs until the trace
ends, which is its latest time unless `end` is given.  Blank times are counted.  These instances serve for weeks: their
durations are times of presence, not of work.

`rdma` (percent of a network card) and `max_per_node` (limit of instances of one application) are stored, but nothing
enforces them.  Skipped and counted: instances that never started, and those that ended before they began.

Reference: Yang, Wang, Yu, Weng, et al., GPU-Disaggregated Serving for Deep Learning Recommendation Models at Scale
(NSDI 2025).
"""

import math

from hetsim.model.units import Seconds, shown
from hetsim.workload.rows.job_log import JobLog, LogCut, out_of_order
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.text_rows import NUMBER, CsvTable

NUMBERS = ("cpu_request", "gpu_request", "memory_request")
TIMES = ("creation_time", "scheduled_time", "deletion_time")
NEEDED = ("instance_sn", *NUMBERS, *TIMES)
OPTIONAL = ("role", "app_name", "rdma_request", "max_instance_per_node")
GIB = 2**30
BLANK = ("", "NaN", "nan")


@job_log
def read(log: JobLog, *, end: Seconds | None = None) -> JobLog:
    """Instances of Alibaba's recommendation services: cores, GPUs, memory, roles."""
    latest = _latest(log) if end is None else end
    for line, cells in CsvTable(log, NEEDED, OPTIONAL):
        _instance(log, line, cells, latest)
    return log


def _latest(log: JobLog) -> float:
    rows = CsvTable(JobLog(log.path, LogCut()), TIMES)
    return max((float(cell) for _, cells in rows for cell in cells if NUMBER.fullmatch(cell)), default=0.0)


def _instance(log: JobLog, line: int, cells: list[str], latest: float) -> None:
    amounts = log.numbers(line, NUMBERS, cells[1:4])
    times = log.numbers(line, TIMES, ["" if cell in BLANK else cell for cell in cells[4:7]], blank=math.nan)
    rdma = log.number(line, OPTIONAL[2], cells[9], blank=math.nan)
    upper = log.number(line, OPTIONAL[3], cells[10], blank=-1.0, least=-1.0)
    if amounts is None or times is None or rdma is None or upper is None:
        return
    cores, gpus, memory = amounts
    came, began, ended = times
    if gpus > 1 and gpus % 1:
        log.wrong(line, NUMBERS[1], f"{shown(cells[2])} is not a share of GPUs")
        return
    if math.isnan(began) and not math.isnan(came):
        log.leave_out("never started", line)
        return
    early, late = math.isnan(came), math.isnan(ended)
    came = 0.0 if early else came
    began = 0.0 if math.isnan(began) else began
    ended = latest if late else ended
    if reason := out_of_order(came, began, ended) or ("" if cores or gpus else "neither a GPU nor a core"):
        log.leave_out(reason, line)
        return
    if early:
        log.remark("existed before the trace began; they arrive at time 0", line)
    if late:
        log.remark("existed when the trace ended; they run until then", line)
    log.add(line, cells[0] or None, came, ended - began, cpus=cores, gpus=gpus, memory=memory * GIB, rdma=rdma,
            start=began, user=cells[8], max_per_node=upper if upper > 0 else None, **{"class": cells[7]})  # fmt: skip
