"""Job logs of GPU clusters, one row per job (`format: helios`, `acme`).

Helios was published by SenseTime, Acme by Shanghai AI Laboratory.

    job_id,user,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,...

Helios also has vc, the virtual cluster.  Acme (the clusters Seren and Kalos) has type, which becomes the class; Kalos
also has mem_per_pod_GB, and its product with the number of nodes is the memory.  Acme is implemented from the example
rows in its documentation.  Jobs without a GPU run on their cores.  The state becomes the column `status`.  Skipped and
counted: jobs without a start or an end.
References: Hu, Sun, Yan, Wen, Zhang, Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters (SC 2021); Hu, Ye, Wang, et al., Characterization of Large Language Model Development in the Datacenter
(NSDI 2024).
"""

from hetsim.model.units import shown
from hetsim.workload.rows.job_log import JobLog, number_or_text, out_of_order
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.text_rows import CsvTable

COLUMNS = ("job_id", "user", "gpu_num", "cpu_num", "state", "submit_time", "start_time", "end_time")
OF_ACME = ("type", "node_num", "mem_per_pod_GB")
BLANK = ("", "None", "NaN", "nan", "NaT", "Unknown")
GB = 1e9


@job_log
def helios(log: JobLog) -> JobLog:
    """Jobs of SenseTime's Helios clusters: GPUs, cores, users, virtual clusters."""
    log.dated = True
    for line, (*cells, vc) in CsvTable(log, (*COLUMNS, "vc")):
        _job(log, line, cells, vc=vc)
    return log


@job_log
def acme(log: JobLog) -> JobLog:
    """Jobs of the clusters Seren and Kalos: GPUs, cores, users, types, states."""
    log.dated = True
    for line, (*cells, kind, nodes, memory) in CsvTable(log, COLUMNS, OF_ACME):
        pods, size = log.number(line, "node_num", nodes, 1.0), log.number(line, "mem_per_pod_GB", memory, 0.0)
        _job(log, line, cells, **{"class": kind}, memory=pods * size * GB if pods and size else None)
    return log


def _job(log: JobLog, line: int, cells: list[str], **further: float | str | None) -> None:
    id_, user, gpu_cell, cpu_cell, state, *times = cells
    gpus, cpus = log.number(line, "gpu_num", gpu_cell), log.number(line, "cpu_num", cpu_cell, blank=0.0)
    came = log.date(line, "submit_time", times[0])
    if gpus is None or cpus is None or came is None:
        return
    if gpus % 1:
        log.wrong(line, "gpu_num", f"{shown(gpu_cell)} is not a whole number of GPUs")
        return
    for cell, reason, nothing in ((times[1], "never started", "no start"), (times[2], "no end", "no state")):
        if cell in BLANK:
            log.leave_out(f"{reason} ({state or nothing})", line)
            return
    began, ended = log.date(line, "start_time", times[1]), log.date(line, "end_time", times[2])
    if began is None or ended is None:
        return
    reason = out_of_order(came, began, ended) or ("" if gpus or cpus else "neither a GPU nor a core")
    if reason:
        log.leave_out(reason, line)
        return
    name = number_or_text(id_) or None  # some have no id, or 0
    log.add(line, name, came, ended - began, gpus=gpus, cpus=cpus, start=began, user=user, status=state, **further)
