"""The common part of accounts of clusters (Helios, Acme): one row a job."""

from __future__ import annotations

from typing import NamedTuple

from hetsim.model.units import shown
from hetsim.workload.rows.job_log import JobLog, out_of_order

BLANK = ("", "None", "NaN", "nan", "NaT", "Unknown")


class AccountRow(NamedTuple):
    """The cells of a row."""

    id: str
    user: str
    gpus: str
    cpus: str
    state: str
    came: str
    began: str
    ended: str


def account(log: JobLog, line: int, row: AccountRow, **further: float | str) -> None:
    """Take a row: a job if it started and ended, else one that is left out."""
    gpus = log.number(line, "gpu_num", row.gpus)
    cpus = log.number(line, "cpu_num", row.cpus, blank=0.0)
    came = log.date(line, "submit_time", row.came)
    if gpus is None or cpus is None or came is None:
        return
    if gpus % 1:
        log.wrong(line, "gpu_num", f"{shown(row.gpus)} is not a whole number of GPUs")
        return
    if row.began in BLANK:
        log.leave_out(f"never started ({row.state or 'no start'})", line)
        return
    if row.ended in BLANK:
        log.leave_out(f"no end ({row.state or 'no state'})", line)
        return
    began, ended = log.date(line, "start_time", row.began), log.date(line, "end_time", row.ended)
    if began is None or ended is None:
        return
    reason = out_of_order(came, began, ended) or ("" if gpus or cpus else "neither a GPU nor a core")
    if reason:
        log.leave_out(reason, line)
        return
    labels = {"user": row.user, "status": row.state}
    texts = {name: value for name, value in labels.items() if value}
    log.add(line, _id(row.id), came, ended - began, gpus=gpus, cpus=cpus, start=began, **texts, **further)


def _id(text: str) -> int | str | None:
    """The id as a number where it is one; None where there is none, or 0."""
    if text.isdecimal() and len(text) < 16 and str(int(text)) == text:
        return int(text) or None
    return text or None
