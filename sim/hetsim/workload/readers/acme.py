"""Shanghai AI Laboratory's Acme traces (`format: acme`), of the clusters Seren and Kalos: jobs around language models.

    job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time

Kalos has mem_per_pod_GB besides, which times the nodes is the memory.  The type of job is its class, the state the
column `status`.  Known here from the rows that its documentation prints.
Reference: Hu, Ye, Wang, et al., Characterization of Large Language Model Development in the Datacenter (NSDI 2024).
"""

from __future__ import annotations

from hetsim.workload.rows.accounts import AccountRow, account
from hetsim.workload.rows.csv_table import CsvTable
from hetsim.workload.rows.job_log import JobLog
from hetsim.workload.rows.job_reader import job_log

COLUMNS = ("job_id", "user", "gpu_num", "cpu_num", "state", "submit_time", "start_time", "end_time")
OPTIONAL = ("type", "node_num", "mem_per_pod_GB")
GB = 1e9


@job_log
def read(log: JobLog) -> JobLog:
    """Jobs of the clusters Seren and Kalos: GPUs, cores, users, kinds, states."""
    log.dated = True
    for line, (name, user, gpus, cpus, state, came, began, ended, kind, nodes, memory) in CsvTable(
        log, COLUMNS, OPTIONAL
    ):
        further: dict[str, float | str] = {"class": kind} if kind else {}
        pods, size = log.number(line, "node_num", nodes, 1.0), log.number(line, "mem_per_pod_GB", memory, 0.0)
        if pods and size:
            further["memory"] = pods * size * GB
        account(
            log, line, AccountRow(name, user, gpus, cpus=cpus, state=state, came=came, began=began, ended=ended),
            **further
        )
    return log
