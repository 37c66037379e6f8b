"""SenseTime's Helios traces (`format: helios`): job_id, user, vc, gpu_num, cpu_num, node_num, state, times, duration.

    1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0

Jobs without a GPU run on their cores.  The virtual cluster is the column `vc`, the state `status`.  Left out and
counted: jobs without a start or an end.
Reference: Hu, Sun, Yan, Wen, Zhang, Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU
Datacenters (SC 2021).
"""

from __future__ import annotations

from hetsim.workload.rows.accounts import AccountRow, account
from hetsim.workload.rows.csv_table import CsvTable
from hetsim.workload.rows.job_log import JobLog
from hetsim.workload.rows.job_reader import job_log

COLUMNS = ("job_id", "user", "vc", "gpu_num", "cpu_num", "state", "submit_time", "start_time", "end_time")


@job_log
def read(log: JobLog) -> JobLog:
    """Jobs of SenseTime's Helios clusters: GPUs, cores, users, virtual clusters."""
    log.dated = True
    for line, (name, user, vc, gpus, cpus, state, came, began, ended) in CsvTable(log, COLUMNS):
        account(
            log, line, AccountRow(name, user, gpus, cpus=cpus, state=state, came=came, began=began, ended=ended), vc=vc
        )
    return log
