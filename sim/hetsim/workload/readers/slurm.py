"""Slurm's accounting (`format: slurm`, `sacct --parsable2`) and `slurm_nodes`.

    sacct --allusers --parsable2 --starttime=2026-01-01 --state=CD,F,TO,CA,OOM,NF
          --format=JobID,User,Account,Partition,Submit,Start,End,State,Timelimit,ReqTRES,AllocTRES,NodeList,QOS
    scontrol show node > nodes.txt

Any columns in any order; required are JobID, Submit, Start, End and one of AllocTRES, ReqTRES.  Cores, memory and GPUs
are those allocated, or requested if the allocation is unknown; gres/gpu:TYPE restricts a job to that type.  Timelimit
is the estimate that policies see and the column `time_limit`.  `recorded_node` lists the nodes of a job, separated by
bars.  With `node_counts: true` a job uses as many nodes as it had (node= of AllocTRES, or NodeList), with equal parts
of its cores, memory and GPUs on each.  The columns `account`, `partition`, `qos` and `status` are read too.  A requeued
job that appears again (sacct -D) is a separate job, which arrives when the run before ended; `attempts: restarts`
merges the runs into one job.  Duplicate rows count once, and the parts of a heterogeneous job (12+0, 12+1) are one job.

Skipped and counted: jobs that never started, that still run, or that use no resources.  Steps of jobs (12.batch, 12.0)
are counted separately.  Times are local to the machine that printed them; `zone` names its time zone, which accounts
for daylight saving time.  Nodes are those of `scontrol show node`, on one or several lines per node; nodes that are
down are skipped unless `down: true`.  Nodes have their partitions, so that jobs run only on the nodes of their
partition (see docs/sites.md).
"""

import math
import re
from pathlib import Path
from typing import Any

from hetsim.errors import suggestion
from hetsim.model.units import ExistingFile, shown
from hetsim.workload.mapped.cells import clock, zone_of
from hetsim.workload.mapped.mapping import Attempts, Zone
from hetsim.workload.node_lists import hosts
from hetsim.workload.rows.job_log import JobLog, LogCut, TypeNames
from hetsim.workload.rows.job_tables import job_log
from hetsim.workload.rows.job_times import JobTimes
from hetsim.workload.rows.rows_of_a_job import JobRows, gang, restarts
from hetsim.workload.rows.text_rows import LONGEST_LINE, CsvTable, Flag, numbered_lines

NEEDED = ("JobID", "Submit", "Start", "End")
OPTIONAL = ("State", "Timelimit", "AllocTRES", "ReqTRES", "NodeList", "Priority", "User", "Partition", "Account", "QOS")
NO_TIME = ("", "None", "Unknown", "N/A")
NO_LIMIT = ("", "UNLIMITED", "Partition_Limit", "INVALID", "None", "Unknown", "NOT_SET")
# States of nodes that accept no jobs
DOWN = frozenset(("DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVAL", "INVALID_REG",
                  "MAINT", "MAINTENANCE", "NOT_RESPONDING", "NO_RESPOND", "POWER_DRAIN", "REBOOT", "REBOOT_ISSUED",
                  "UNKNOWN"))  # fmt: skip
# All other states; a node that is powered down wakes up for a job
TAKES_JOBS = frozenset(("ALLOC", "ALLOCATED", "BLOCKED", "CLOUD", "COMP", "COMPLETING", "DYNAMIC_FUTURE",
                        "DYNAMIC_NORM", "EXTERNAL", "IDLE", "MIXED", "PERFCTRS", "PLANNED", "POWERED_DOWN",
                        "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "REBOOT_REQUESTED", "RESERVED",
                        "RESUME", "UNDRAIN"))  # fmt: skip

_SIZE = re.compile(r"([0-9.]+)([KMGTP]?)B?[nc]?")
_FACTOR = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


@job_log
def read(
    log: JobLog, *, node_counts: Flag = False, attempts: Attempts = "separate", zone: Zone | None = None
) -> JobLog:
    """Jobs of a Slurm cluster as sacct --parsable2 prints them."""
    log.dated = log.unique = True
    log.zone = None if zone is None else zone_of(zone)
    table = CsvTable(log, NEEDED, OPTIONAL, "|")
    if not table.has["AllocTRES"] and not table.has["ReqTRES"]:
        log.fail("must have a column AllocTRES or ReqTRES, which has the cores and GPUs", 1)
    times = JobTimes(log)

    def job(line: int, row: dict[str, Any], whole: str | None) -> None:
        _job(log, times, line, row=row, whole=whole, node_counts=node_counts)

    def part(line: int, row: dict[str, Any], whole: str | None) -> None:
        name, plus, _ = str(row["id"]).partition("+")
        if plus:
            gangs.take(name, line, row, whole)
        else:
            job(line, row, whole)

    gangs, runs = JobRows(log, gang("the job id", {"nodes": "peak"}), job), JobRows(log, restarts(), part)
    for line, cells in table:
        row = _row(log, line, cells)
        if row is not None and attempts == "restarts":
            runs.take(str(row["id"]), line, row, table.text)
        elif row is not None:
            part(line, row, table.text)
    runs.finish()
    gangs.finish()
    times.finish(attempts == "separate")
    return log


def _row(log: JobLog, line: int, cells: list[str]) -> dict[str, Any] | None:
    cell = dict(zip((*NEEDED, *OPTIONAL), cells, strict=True))
    name, nodes = cell["JobID"], cell["NodeList"]
    if "." in name:
        log.pass_over("steps of jobs", line)
        return None
    if cell["Start"] in NO_TIME:
        log.leave_out(f"never started ({cell['State'].split(' ')[0] or 'no state'})", line)
        return None
    if cell["End"] in NO_TIME:
        log.leave_out("still running", line)
        return None
    came, began, ended = (log.date(line, column, cell[column]) for column in ("Submit", "Start", "End"))
    resources = _resources(log, line, cell["AllocTRES"] or cell["ReqTRES"])
    allowed = limit_of(log, line, cell["Timelimit"])
    if came is None or began is None or ended is None or resources is None or allowed is None:
        return None
    if not resources.get("cpus") and not resources.get("gpus"):
        log.leave_out("use neither cores nor GPUs", line)
        return None
    places = [] if "None" in nodes else hosts(nodes)
    further = _details(log, line, cell, places=places, allowed=allowed)
    resources["nodes"] = resources.pop("node", 0.0) or float(len(places) or 1)
    number = int(name) if name.isdecimal() and len(name) < 16 else name
    return {"id": number, "arrival": came, "start": began, "end": ended, **resources, **further}


def _job(log: JobLog, times: JobTimes, line: int, row: dict[str, Any], whole: str | None, node_counts: bool) -> None:
    settled = times.settle(line, row.pop("arrival"), row.pop("start"), end=row.pop("end"),
                           took=row.pop("duration", None))  # fmt: skip
    if settled is None or settled[1] is None or settled[2] is None:
        return
    came, began, took = settled[0], settled[1], settled[2]
    if row.get("time_limit", math.inf) < took:
        log.remark("ran longer than their time limit", line)
    count = row.pop("nodes")
    if node_counts:
        _divide(log, line, row, int(count))
    times.added(log.add(line, row.pop("id"), came, duration=took, whole=whole, start=began, **row))


def _details(log: JobLog, line: int, cell: dict[str, str], places: list[str], allowed: float) -> dict[str, float | str]:
    labels = {"status": cell["State"].split(" ")[0], "recorded_node": "|".join(places)}
    labels |= {column.lower(): cell[column] for column in ("User", "Partition", "Account", "QOS")}
    row: dict[str, float | str] = {key: value for key, value in labels.items() if value}
    if not math.isnan(allowed):
        row["estimate"] = row["time_limit"] = allowed
    if cell["Priority"] and (rank := log.number(line, "Priority", cell["Priority"])) is not None:
        row["slurm_priority"] = rank
    return row


def _divide(log: JobLog, line: int, held: dict[str, Any], nodes: int) -> None:
    if nodes > 1 and any(held[key] % nodes for key in ("cpus", "gpus")):
        log.remark("use unequal parts of their nodes, so they may use any number of nodes (span: any)", line)
        nodes = 1
    held["nodes"] = float(nodes)
    for key in ("cpus", "gpus"):
        held[key] /= nodes
    if "memory" in held:
        held["memory"] = float(math.ceil(held["memory"] / nodes))


def _resources(log: JobLog, line: int, cell: str) -> dict[str, Any] | None:
    """Return cores, bytes, GPUs and their type from `cpu=8,gres/gpu:a100=2,mem=64G`."""
    amounts: dict[str, Any] = {"cpus": 0.0, "gpus": 0.0}
    typed: dict[str, float] = {}
    for part in filter(None, cell.split(",")):
        key, _, value = part.partition("=")
        try:
            if key == "cpu":
                amounts["cpus"] = float(value)
            elif key == "node":
                amounts["node"] = float(int(value))
            elif key == "mem":
                amounts["memory"] = _bytes(value)
            elif key == "gres/gpu":
                amounts["gpus"] = float(int(value))
            elif key.startswith("gres/gpu:"):
                typed[key.partition(":")[2]] = float(int(value))
        except ValueError:
            log.wrong(line, "AllocTRES, ReqTRES", f"{shown(part)} is not a resource with an amount")
            return None
    if typed:
        amounts["gpus"] = amounts["gpus"] or sum(typed.values())
        amounts["devices"] = "|".join(kind for kind, count in typed.items() if count)
    if not amounts["gpus"] or not amounts.get("devices"):
        amounts.pop("devices", None)
    return amounts


def _bytes(text: str) -> float:
    if not (match := _SIZE.fullmatch(text)):
        raise ValueError(text)
    return float(math.floor(float(match[1]) * _FACTOR[match[2]]))


def limit_of(log: JobLog, line: int, cell: str, column: str = "Timelimit") -> float | None:
    """Return a time limit such as `1-02:03:04` in s (NaN: none); None after a problem."""
    if cell in NO_LIMIT:
        return math.nan
    seconds = 60.0 * int(cell) if cell.isdecimal() else clock(cell)
    if seconds is None:
        log.wrong(line, column, f"{shown(cell)} is not a time such as 1-12:00:00")
    return seconds


# Nodes ----------------------------------------------------------------------------------------------------------


def nodes(path: ExistingFile, *, types: TypeNames | None = None, down: Flag = False) -> list[dict[str, Any]]:
    """The nodes of a Slurm cluster as scontrol show node prints them."""
    log = JobLog(Path(path), LogCut())
    result = []
    lines: dict[str, int] = {}
    for line, words in _blocks(log):
        if words["NodeName"] in lines:
            before = f"node {shown(words['NodeName'])} is also in line {lines[words['NodeName']]}"
            log.wrong(line, "NodeName", before)
            continue
        lines[words["NodeName"]] = line
        if _is_down(log, line, words.get("State", "")) and not down:
            continue
        cores, memory = words.get("CPUTot", words.get("CPUs", "")), words.get("RealMemory", "")
        if not cores.isdecimal() or not (memory.isdecimal() or not memory):
            log.wrong(line, "CPUTot, RealMemory", f"node {shown(words['NodeName'])} needs a number of cores and of MiB")
            continue
        node: dict[str, Any] = {"name": words["NodeName"], "cpus": int(cores)}
        if memory:
            node["memory"] = f"{memory} MiB"
        if inside := [name for name in words.get("Partitions", "").split(",") if name not in ("", "(null)")]:
            node["partitions"] = inside
        if gpus := gpus_in(words.get("Gres", ""), types or {}):
            node["gpus"] = gpus
        result.append(node)
    log.require(result, "has no nodes (of scontrol show node)")
    return result


def _is_down(log: JobLog, line: int, text: str) -> bool:
    states = re.sub(r"[*~#%$@^!-]", "", text).upper().split("+") if text else []
    for state in states:
        if state not in DOWN and state not in TAKES_JOBS:
            log.wrong(line, "State", f"{shown(state)} is not a state of a node{suggestion(state, DOWN | TAKES_JOBS)}")
    return "*" in text or not DOWN.isdisjoint(states)


def _blocks(log: JobLog) -> Any:
    words: dict[str, str] = {}
    start = 0
    for line, text in numbered_lines(log.path, LONGEST_LINE):
        for word in text.split():
            key, sign, value = word.partition("=")
            if key == "NodeName" and sign:
                if words:
                    yield start, words
                words, start = {}, line
            if sign and (words or key == "NodeName"):
                words.setdefault(key, value)
    if words:
        yield start, words


def gpus_in(text: str, types: dict[str, str]) -> list[dict[str, Any]]:
    """Return the GPUs in a text such as `gpu:a100:4(S:0-1),gpu:2`, with their types."""
    amounts = []
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = part.split(":")
        if words[0] == "gpu" and (count := int(words[-1]) if words[-1].isdecimal() else 1):
            kind = words[1] if len(words) > 1 + words[-1].isdecimal() else "gpu"
            amounts.append({"type": types.get(kind, kind), "count": count})
    return amounts
