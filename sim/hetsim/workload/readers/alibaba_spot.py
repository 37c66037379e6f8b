"""Alibaba's trace of spot GPUs, 2026 (`format: alibaba_spot`): jobs of workers.

    job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type

A job occupies the demand of all its workers at once, on GPUs of its model; if one node is too small, the entry needs
`span: any`.  The organization is the user, the job type the class; HP has priority 1 and Spot 0.  Times are seconds.
Implemented from the example rows in its documentation.
"""

from hetsim.model.units import shown
from hetsim.workload.rows.job_log import JobLog
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.text_rows import CsvTable

COLUMNS = ("job_name", "organization", "gpu_model", "job_type", "cpu_request", "gpu_request", "worker_num",
           "submit_time", "duration")  # fmt: skip


@job_log
def read(log: JobLog) -> JobLog:
    """Jobs of Alibaba's spot GPUs: workers, GPU models, organizations, priority."""
    for line, (name, user, model, kind, *cells) in CsvTable(log, COLUMNS):
        if (numbers := log.numbers(line, COLUMNS[4:], cells)) is None:
            continue
        cpus, gpus, workers, came, took = numbers
        total = gpus * workers
        if workers < 1 or workers % 1 or (total > 1 and gpus % 1):
            message = f"{shown(cells[2])} workers of {shown(cells[1])} GPUs are not a gang of whole GPUs"
            log.wrong(line, "worker_num", message)
            continue
        log.add(line, name or None, came, took, gpus=total, cpus=cpus * workers, priority=float(kind.upper() == "HP"),
                user=user, devices=model if gpus else "", **{"class": kind})  # fmt: skip
    return log
