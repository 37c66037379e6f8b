"""Accounting logs of PBS, LSF and Grid Engine; jobs and tasks of Ray.

    /var/spool/pbs/server_priv/accounting/2026*   PBS Professional, OpenPBS, Torque: records Q, S, E, R, A, D
    $LSB_SHAREDIR/cluster/logdir/lsb.acct         LSF, or the output of bacct -l (local times: set `zone`)
    $SGE_ROOT/default/common/accounting           Grid Engine
    ray list tasks --detail --format json         Ray, or the list of Ray's /api/jobs/

Cores, GPUs and nodes: PBS from exec_vnode, else from Resource_List and exec_host; LSF from the hosts, with ngpus and
the GPU requirements on each host; Grid Engine from slots and -l gpu=N, for the whole job; Ray from required_resources.
The time limit is Resource_List.walltime, -W, or h_rt.  Elements of arrays are separate jobs.

Requeued runs are separate jobs (`attempts: separate`), each arriving when the run before ended, or one job from the
first start to the last end (`attempts: restarts`).

Skipped and counted: jobs that never started, and those without an end.  Records of whole arrays and of parts of
parallel jobs are counted separately.
"""

import csv
import json
import re
from collections.abc import Iterator
from datetime import datetime

from hetsim.model.units import shown
from hetsim.workload.mapped.mapping import Attempts, Zone
from hetsim.workload.mapped.reader import Record, read_records
from hetsim.workload.rows.job_log import JobLog
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.json_rows import first_sign, members

Records = Iterator[tuple[int, Record]]


def _lines(log: JobLog) -> Iterator[tuple[int, str]]:
    for line, text in log.filled_lines():
        if not text.startswith("#"):
            yield line, text.rstrip("\r")


# PBS ------------------------------------------------------------------------------------------------------------


@job_log
def pbs(log: JobLog, *, attempts: Attempts = "separate") -> JobLog:
    """Jobs of PBS Pro, OpenPBS or Torque from their accounting records."""
    return read_records(log, _of_pbs(log), "epoch s", attempts=attempts)


def _of_pbs(log: JobLog) -> Records:
    began: dict[str, tuple[int, str]] = {}  # jobs with a known start but no end yet: line and second
    queued: dict[str, tuple[int, str]] = {}
    zone = 0.0  # seconds from the local dates of records to the instants in them
    for line, text in _lines(log):
        cells = text.split(";", 3)
        if len(cells) < 4 or len(cells[1]) != 1:
            example = "06/01/2026 08:00:00;E;12.server;user=ann ..."
            log.wrong(line, "", f"{shown(text[:60])} is not a record such as {example}")
            continue
        when, kind, name, message = cells
        fields = {key: value.strip('"') for key, value in re.findall(r'([\w.]+)=("[^"]*"|\S*)', message)}
        if "[]" in name:
            log.pass_over("arrays as a whole", line)
            continue
        stated = fields.get({"S": "start", "E": "end"}.get(kind, ""), "")
        if stated.isdecimal():
            zone = round((float(stated) - _clock(log, line, when)) / 900) * 900.0
        if kind == "Q":
            queued.setdefault(name, (line, ""))
        elif kind == "S":
            queued.pop(name, None)
            began[name] = line, fields.get("start", "")
        elif kind in "ERA" and (fields.get("start") or name in began):
            start = fields.get("start") or began[name][1]
            began.pop(name, None)
            queued.pop(name, None)
            yield line, {**_held_in_pbs(fields), "id": name.partition(".")[0], "arrival": fields.get("ctime") or start,
                         "start": start, "end": fields.get("end") or f"{_clock(log, line, when) + zone:.0f}",
                         "time_limit": fields.get("Resource_List.walltime"), "user": fields.get("user"),
                         "queue": fields.get("queue"), "account": fields.get("account") or fields.get("project"),
                         "status": fields.get("Exit_status") or kind}  # fmt: skip
        elif kind in "DA" and name in queued:
            log.leave_out("never started", queued.pop(name)[0])
    for reason, open_jobs in (("no end", began), ("never started", queued)):
        for line, _ in open_jobs.values():
            log.leave_out(reason, line)


def _clock(log: JobLog, line: int, when: str) -> float:
    try:
        return (datetime.strptime(when, "%m/%d/%Y %H:%M:%S") - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        log.wrong(line, "", f"{shown(when)} is not a date such as 06/01/2026 08:00:00")
        return 0.0


def _held_in_pbs(known: dict[str, str]) -> Record:
    total = {"ncpus": 0.0, "ngpus": 0.0}
    size = re.fullmatch(r"(\d+)([kmgtp]?)([bw]?)", known.get("Resource_List.mem", "").lower())  # words have 8 bytes
    memory = int(size[1]) * 1024 ** " kmgtp".index(size[2] or " ") * (8 if size[3] == "w" else 1) if size else None
    names = re.findall(r"\(?([^:(+)]+)(?:[^+)]*)", known.get("exec_vnode", ""))
    for key, value in re.findall(r":(ncpus|ngpus)=(\d+)", known.get("exec_vnode", "")):
        total[key] += int(value)
    if not names:
        names = re.findall(r"(?:^|\+)([^/+]+)", known.get("exec_host", ""))
        total = {key: float(known.get(f"Resource_List.{key}", 0) or 0) for key in total}
        for chunk in known.get("Resource_List.nodes", "").split("+"):  # Torque: 2:ppn=8:gpus=4+n7:ppn=1
            count = int(chunk.partition(":")[0]) if chunk.partition(":")[0].isdecimal() else 1
            parts = dict(re.findall(r":(ppn|gpus)=(\d+)", chunk))
            total["ngpus"] += count * int(parts.get("gpus", 0)) * ("Resource_List.ngpus" not in known)
            total["ncpus"] += count * int(parts.get("ppn", 1)) * ("Resource_List.ncpus" not in known and bool(chunk))
    if not total["ncpus"]:  # n1/0*8, n1/0-7, or n1/0+n1/1
        slots = re.findall(r"/(\d+)(?:\*(\d+)|-(\d+))?", known.get("exec_host", ""))
        counts = (int(last) - int(one) + 1 if last else int(many or 1) for one, many, last in slots)
        total["ncpus"] = float(sum(counts))
    return {"cpus": total["ncpus"], "gpus": total["ngpus"], "memory": memory,
            "recorded_node": "|".join(dict.fromkeys(names))}  # fmt: skip


# LSF ------------------------------------------------------------------------------------------------------------

RUSAGE = 19  # numbers of resource usage between a job's command and its mail address


@job_log
def lsf(log: JobLog, *, attempts: Attempts = "separate", zone: Zone | None = None) -> JobLog:
    """Jobs of LSF (lsb.acct or bacct -l): slots, GPUs, hosts, queues, arrays."""
    if next((text for _, text in _lines(log)), "").startswith('"'):
        return read_records(log, _of_lsb_acct(log), "epoch s", attempts=attempts)
    return read_records(log, _of_bacct(log), BACCT_TIME, zone=zone, attempts=attempts)


def _of_lsb_acct(log: JobLog) -> Records:
    for line, text in _lines(log):
        cells = next(csv.reader([text], delimiter=" ", skipinitialspace=True))
        if cells[0] != "JOB_FINISH" and re.fullmatch(r"[A-Z_]+", cells[0]):
            log.pass_over(f"events {cells[0]}", line)
            continue
        try:
            at = 23 + int(cells[22])
            hosts = _counted(cells[at + 1 : at + 1 + int(cells[at])])
            after = at + 1 + int(cells[at])  # jStatus, hostFactor, jobName, command
            rest = cells[after + 4 + RUSAGE :] if int(cells[after]) >= 0 and float(cells[after + 1]) else []
            index, submitted, began = rest[6], cells[7], cells[10]
        except (ValueError, IndexError):
            log.wrong(line, "", "cannot be read as a JOB_FINISH record: its counts of hosts do not match its fields")
            continue
        if began == "0":
            log.leave_out("never started", line)
            continue
        yield line, {"id": cells[3] if index == "0" else f"{cells[3]}[{index}]", "arrival": submitted, "start": began,
                     "end": cells[2], "user": cells[11], "queue": cells[12], "account": rest[1],
                     "status": {"64": "DONE", "32": "EXIT"}.get(cells[after], cells[after]),
                     **_held_in_lsf(text.replace('""', '"'), hosts, float(cells[6]))}  # fmt: skip


def _counted(hosts: list[str]) -> list[str]:
    """Return hosts with one entry per slot: 4*n1 becomes n1, n1, n1, n1."""
    pairs = [host.rpartition("*") for host in hosts]
    return [name for count, _, name in pairs for _ in range(int(count) if count.isdecimal() else 1)]


def _held_in_lsf(text: str, hosts: list[str], slots: float) -> Record:
    nodes = list(dict.fromkeys(hosts))
    gpus = re.search(r"\bngpus\w*=(\d+)", text) or re.search(r"(?<![a-z])num=(\d+)", text)
    each = float(gpus[1]) if gpus else 0.0
    return {"cpus": float(len(hosts)) or slots, "gpus": each * max(1, len(nodes)), "recorded_node": "|".join(nodes)}


BACCT_TIME = "%a %b %d %H:%M:%S %Y"
_EVENT = re.compile(r"(\w{3} \w{3} +\d+ \d\d:\d\d:\d\d)(?: (\d{4}))?: *(?:\[\d+\] )?(Submitted|Dispatched|Completed)")


def _of_bacct(log: JobLog) -> Records:
    block: list[str] = []
    begin = 0
    for line, text in (*_lines(log), (0, "Job <")):
        if text.startswith("Job <"):
            if block and (row := _bacct_job(log, begin, block)) is not None:
                yield begin, row
            block, begin = [], line
        if begin:
            block.append(text)


def _bacct_job(log: JobLog, line: int, block: list[str]) -> Record | None:
    text = ""
    for part in block:
        text += part.strip() if part.startswith(" " * 10) else f"\n{part}"
    events: dict[str, str] = {}
    for date, year, what in _EVENT.findall(text):
        events[what] = f"{' '.join(date.split())} {year or _year_of(date)}"
    if "Submitted" not in events:
        log.wrong(line, "", "the job has no line with its time of submission")
        return None
    if "Dispatched" not in events or "Completed" not in events:
        log.leave_out("no end" if "Dispatched" in events else "never started", line)
        return None
    keys = dict(re.findall(r"(Job|User|Project|Status|Queue) <([^>]*)>", text))
    dispatched = next(part for part in text.split("\n") if "Dispatched" in part)
    hosts = _counted(re.findall(r"<([^>]*)>", re.split("Effective|Allocated", dispatched)[0]))
    slots = re.search(r"(\d+) (?:Task|Processors|Slot)", text)
    return {"id": keys["Job"], "arrival": events["Submitted"], "start": events["Dispatched"],
            "end": events["Completed"], "user": keys.get("User"), "queue": keys.get("Queue"),
            "account": keys.get("Project"), "status": keys.get("Status"),
            **_held_in_lsf(text, hosts, float(slots[1]) if slots else 1.0)}  # fmt: skip


def _year_of(date: str) -> int:
    day, month, number, _ = date.split()
    for year in range(2037, 1999, -1):
        try:
            if datetime.strptime(f"{month} {number} {year}", "%b %d %Y").strftime("%a") == day:
                return year
        except ValueError:
            continue
    return 2000


# Grid Engine, Ray -----------------------------------------------------------------------------------------------


@job_log
def sge(log: JobLog, *, attempts: Attempts = "separate") -> JobLog:
    """The accounting file of Grid Engine: slots, GPUs, hosts, queues, array tasks."""
    return read_records(log, _of_sge(log), "epoch s", attempts=attempts)


def _of_sge(log: JobLog) -> Records:
    for line, text in _lines(log):
        cells = text.split(":")
        if len(cells) < 42:
            log.wrong(line, "", f"the row has {len(cells)} cells separated by colons; there must be 42 or more")
            continue
        if cells[41] not in ("NONE", ""):
            log.pass_over("parts of parallel jobs", line)
            continue
        if cells[9] == "0":
            log.leave_out("never started", line)
            continue
        came, began, ended = (cell[:-3] if len(cell) > 12 else cell for cell in cells[8:11])  # some write ms
        asked = dict(re.findall(r"\b(gpus?|ngpus|h_rt)=([\d:]+)", cells[39]))
        gpus = next((value for key, value in asked.items() if key != "h_rt"), "0")
        yield line, {"id": cells[5] if cells[35] == "0" else f"{cells[5]}.{cells[35]}", "arrival": came, "start": began,
                     "end": ended, "cpus": cells[34], "gpus": gpus, "time_limit": asked.get("h_rt"), "user": cells[3],
                     "queue": cells[0], "account": cells[31], "recorded_node": cells[1],
                     "status": cells[12]}  # fmt: skip


@job_log
def ray(log: JobLog, *, attempts: Attempts = "separate") -> JobLog:
    """Reader of Ray's tasks (`ray list tasks --detail`) or jobs (/api/jobs/), as JSON."""
    return read_records(log, _of_ray(log), "epoch ms", attempts=attempts)


def _of_ray(log: JobLog) -> Records:
    listed = first_sign(log.path) == "["
    rows = members(log.path) if listed else ((line, json.loads(text)) for line, text in _lines(log))
    try:
        for line, row in rows:
            if not isinstance(row, dict):
                log.wrong(line, "", "is not an object with start_time_ms (of a task) or start_time (of a job)")
                continue
            asked = {key.upper(): value for key, value in (row.get("required_resources") or {}).items()}
            began, ended = (row.get(f"{key}_time_ms", row.get(f"{key}_time")) for key in ("start", "end"))
            if not began or not ended:
                log.leave_out("never started" if not began else "no end", line)
                continue
            names = ("task_id", "submission_id", "job_id")
            yield line, {"id": next((str(row[name]) for name in names if row.get(name)), None),
                         "arrival": row.get("creation_time_ms") or began, "start": began, "end": ended,
                         "cpus": asked.get("CPU", row.get("entrypoint_num_cpus")) or 0,
                         "gpus": asked.get("GPU", row.get("entrypoint_num_gpus")) or 0,
                         "recorded_node": row.get("node_id") or row.get("driver_node_id"), "class": row.get("name"),
                         "status": row.get("state") or row.get("status")}  # fmt: skip
    except json.JSONDecodeError as error:
        log.fail(f"is neither a JSON list nor JSON lines ({error.msg})")
