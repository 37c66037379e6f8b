"""The jobs of a Slurm cluster at an instant: the text of `squeue`.

    squeue --all --format="%i|%P|%u|%a|%q|%T|%V|%S|%l|%C|%b|%m|%D|%N|%r|%Q"

Any columns in any order, separated by bars; required are JOBID, PARTITION, USER, STATE (or ST), SUBMIT_TIME,
START_TIME, TIME_LIMIT and CPUS.  START_TIME of a waiting job is the start that Slurm expects, if any.  TRES_PER_NODE
(or GRES) contains the GPUs per node, for NODES nodes; GPUs requested per job or per task (--gpus) appear only in
TRES_ALLOC (squeue -O tres-alloc), which has precedence.  Each task of a waiting array (12_[1-8%4]) is a job; if squeue
truncates the list (12_[1,3,5...]), each listed task is a job.  A job that waits in several partitions may have a line
for each, and the first line counts.  Jobs with devices (RUNNING, COMPLETING, SUSPENDED, ...) run and PENDING jobs
wait.  Jobs that a hold, a dependency or a begin time blocks (JobHeldUser, Dependency, BeginTime, ...) are skipped and
counted, since squeue does not print when they may start.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from hetsim.errors import suggestion
from hetsim.model.units import shown
from hetsim.workload.node_lists import hosts
from hetsim.workload.readers.slurm import NO_TIME, limit_of
from hetsim.workload.rows.job_log import JobLog, LogCut
from hetsim.workload.rows.text_rows import CsvTable

NEEDED = ("JOBID", "PARTITION", "USER", "SUBMIT_TIME", "START_TIME", "TIME_LIMIT", "CPUS")
OPTIONAL = ("STATE", "ST", "TRES_ALLOC", "TRES_PER_NODE", "GRES", "NODES", "NODELIST", "NODELIST(REASON)", "REASON",
            "ACCOUNT", "QOS", "PRIORITY")  # fmt: skip
# states in which a job uses devices, long and short names
RUNNING = {"RUNNING": "R", "COMPLETING": "CG", "CONFIGURING": "CF", "SUSPENDED": "S", "STOPPED": "ST",
           "STAGE_OUT": "SO", "RESIZING": "RS", "SIGNALING": "SI"}  # fmt: skip
WAITING = {"PENDING": "PD", "REQUEUED": "RQ", "REQUEUE_FED": "RF"}
# states of jobs that wait until they are released
KEPT = {"REQUEUE_HOLD": "RH", "SPECIAL_EXIT": "SE", "RESV_DEL_HOLD": "RD"}
OVER = {"COMPLETED": "CD", "CANCELLED": "CA", "FAILED": "F", "TIMEOUT": "TO", "NODE_FAIL": "NF", "PREEMPTED": "PR",
        "BOOT_FAIL": "BF", "DEADLINE": "DL", "OUT_OF_MEMORY": "OOM", "REVOKED": "RV"}  # fmt: skip
# substrings (lower case) of reasons for which a job waits for something other than resources
HELD = ("held", "hold", "dependency", "begintime", "reservation", "invalidqos", "invalidaccount", "badconstraints",
        "partitiondown", "partitioninactive", "partitionnodelimit", "partitiontimelimit")  # fmt: skip
FURTHER = ("flavors", "topology", "preemption")  # columns that the policy `kueue` reads
MAX_ARRAY = 10_000

_ARRAY = re.compile(r"(\d+)_\[([\d,:-]+)(\.\.\.)?(?:%\d+)?\]")
_PIECE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_GPUS = re.compile(r"(?:gres[:/])?gpu(?:[:=](.*))?")
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([KMG])")


@dataclass
class SnapshotJob:
    """A job of a snapshot: times in s since 1970, NaN if unknown; `limit` in s or inf."""

    id: str
    line: int
    user: str
    partition: str
    submit: float
    start: float
    limit: float
    cpus: float
    gpus: float = 0.0
    gpu_type: str = ""
    nodes: tuple[str, ...] = ()
    account: str = ""
    qos: str = ""
    priority: float = math.nan
    expected: float = math.nan
    class_: str = ""
    reason: str = ""  # why the job waits, from REASON
    count: float = 0.0  # number of nodes, with equal parts of the job's devices; 0: any
    more: dict[str, str] = field(default_factory=dict)  # columns of its task (`FURTHER`), its partition and its file

    @property
    def group(self) -> str:
        """Class or, without one, partition; run times are learned by user and this group."""
        return self.class_ or self.partition

    @property
    def runs(self) -> bool:
        return not math.isnan(self.start)


@dataclass
class Snapshot:
    """Jobs of a cluster, counts of skipped jobs, and the latest recorded time."""

    path: Path
    jobs: list[SnapshotJob]
    left_out: dict[str, int] = field(default_factory=dict)
    latest: float = -math.inf
    remarks: list[str] = field(default_factory=list)

    def leave_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    @property
    def notes(self) -> list[str]:
        out = [f"{self.path}: {count:,} jobs left out: {reason}" for reason, count in self.left_out.items()]
        return [*out, *(f"{self.path}: {remark}" for remark in self.remarks)]


def read(path: Path, nodes: dict[str, list[str]]) -> Snapshot:
    """Read the jobs of `squeue`; ScenarioError lists all problems with lines.

    nodes: the partitions of each node of the cluster.  A job on any other node, or in another partition than those of
    its node, is a problem.
    """
    log = JobLog(path, LogCut())
    table = CsvTable(log, NEEDED, OPTIONAL, "|")
    if not (table.has["STATE"] or table.has["ST"]):
        log.fail('no column "STATE" (or "ST")', 1)
    partitions = list(dict.fromkeys(name for inside in nodes.values() for name in inside))
    snapshot = Snapshot(path, [])
    if not (table.has["TRES_ALLOC"] or table.has["TRES_PER_NODE"] or table.has["GRES"]):
        snapshot.remarks.append("no column TRES_PER_NODE (%b), so no job uses GPUs")
    lines: dict[str, int] = {}
    for line, cells in table:
        _job(log, snapshot, line, cell=dict(zip((*NEEDED, *OPTIONAL), cells, strict=True)), nodes=nodes,
             partitions=partitions, lines=lines)  # fmt: skip
    log.require(snapshot.jobs, "has no running or waiting jobs")
    return snapshot


def _job(
    log: JobLog, found: Snapshot, line: int, cell: dict[str, str], nodes: dict[str, list[str]], partitions: list[str],
    lines: dict[str, int],
) -> None:  # fmt: skip
    if (runs := _runs(log, found, line, cell)) is None:
        return
    submit = log.date(line, "SUBMIT_TIME", cell["SUBMIT_TIME"])
    begun = _start(log, line, cell["START_TIME"], runs)
    limit = limit_of(log, line, cell["TIME_LIMIT"], "TIME_LIMIT")
    cpus = log.number(line, "CPUS", _plain(cell["CPUS"]))
    count = log.number(line, "NODES", _plain(cell["NODES"].partition("-")[0]), blank=0.0)
    if submit is None or limit is None or cpus is None or count is None:
        return
    gpus, kind = gpus_of(cell["TRES_ALLOC"] or cell["TRES_PER_NODE"] or cell["GRES"])
    all_gpus = gpus if cell["TRES_ALLOC"] else gpus * max(count, 1.0)
    places = hosts(cell["NODELIST"] or cell["NODELIST(REASON)"]) if runs else []
    for place in places:
        if place not in nodes:
            near = suggestion(place, nodes) or f"; it has {len(nodes):,} nodes"
            log.wrong(line, "NODELIST", f"the cluster has no node {shown(place)}{near}")
    inside = _partition(log, line, cell["PARTITION"], partitions)
    rank = log.number(line, "PRIORITY", cell["PRIORITY"], blank=math.nan) if cell["PRIORITY"] else math.nan
    found.latest = max(found.latest, submit, begun if runs and not math.isnan(begun) else -math.inf)
    for name in _ids(log, found, line, cell["JOBID"]):
        if name in lines:
            if runs:
                log.wrong(line, "JOBID", f"job {name} is also in line {lines[name]}")
            else:
                found.leave_out("they are listed before, in another partition")
            continue
        lines[name] = line
        start, expected = (begun, math.nan) if runs else (math.nan, begun)
        found.jobs.append(SnapshotJob(name, line, cell["USER"], partition=inside, submit=submit, start=start,
                                      limit=math.inf if math.isnan(limit) else limit, cpus=cpus, gpus=all_gpus,
                                      gpu_type=kind, nodes=tuple(places), account=cell["ACCOUNT"], qos=cell["QOS"],
                                      priority=_or_nan(rank), expected=expected,
                                      reason="" if runs else cell["REASON"] or cell["NODELIST(REASON)"].strip("()"),
                                      count=max(count, float(len(places)))))  # fmt: skip


def _runs(log: JobLog, found: Snapshot, line: int, cell: dict[str, str]) -> bool | None:
    """Return True if a job runs, False if it waits for resources, None if skipped."""
    state = (cell["STATE"] or cell["ST"]).upper()
    if _is(state, RUNNING):
        return True
    if _is(state, OVER):
        found.leave_out("already ended")
        return None
    if not _is(state, WAITING | KEPT):
        names = list((RUNNING | WAITING | KEPT | OVER).keys())
        log.wrong(line, "STATE", f"{shown(state)} is not a known state of a job{suggestion(state, names)}")
        return None
    reason = cell["REASON"] or cell["NODELIST(REASON)"].strip("()")
    if _is(state, KEPT) or any(part in reason.lower() for part in HELD):
        found.leave_out(f"they wait for another reason than capacity ({state if _is(state, KEPT) else reason})")
        return None
    return False


def _start(log: JobLog, line: int, cell: str, runs: bool) -> float:
    if cell not in NO_TIME:
        return _or_nan(log.date(line, "START_TIME", cell))
    if runs:
        log.wrong(line, "START_TIME", "a running job must have a start")
    return math.nan


def _partition(log: JobLog, line: int, cell: str, partitions: list[str]) -> str:
    if not partitions:
        return ""
    wanted = cell.split(",")
    for name in wanted:
        if name in partitions:
            return name
    near = suggestion(wanted[0], partitions) or f"; there are {', '.join(partitions)}"
    log.wrong(line, "PARTITION", f"the cluster has no partition {shown(cell)}{near}")
    return wanted[0]


def _is(state: str, names: dict[str, str]) -> bool:
    return state in names or state in names.values()


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def gpus_of(text: str) -> tuple[float, str]:
    """Return total GPUs in `gres:gpu:a100:2`, and their type ("": not exactly one)."""
    typed: dict[str, float] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        if match := _GPUS.fullmatch(part.strip()):
            kind, _, number = re.sub("=", ":", match[1] or "").rpartition(":")
            if not number.isdecimal():  # a type without a number
                kind, number = f"{kind}:{number}".strip(":"), "1"
            typed[kind] = typed.get(kind, 0.0) + float(number)
    untyped = typed.pop("", 0.0)  # beside types it counts them once more, as accounts do
    kinds = [kind for kind, count in typed.items() if count]
    return (untyped if untyped and not kinds else sum(typed.values()), kinds[0] if len(kinds) == 1 else "")


def _plain(text: str) -> str:
    match = _COUNT.fullmatch(text)
    return f"{float(match[1]) * 1024 ** ('KMG'.index(match[2]) + 1):.0f}" if match else text


def _ids(log: JobLog, found: Snapshot, line: int, text: str) -> list[str]:
    if "[" not in text:
        return [text]
    match = _ARRAY.fullmatch(text)
    pieces = match[2].split(",") if match else []
    if match and match[3]:
        pieces = pieces[:-1]  # empty, or cut itself
        found.remarks.append(f"the tasks of array {match[1]} are cut short, and those not shown are left out; "
                             "with SLURM_BITSTR_LEN=0 squeue shows all")  # fmt: skip
    bounds = [_PIECE.fullmatch(piece) for piece in pieces]
    if match is None or not all(bounds):
        log.wrong(line, "JOBID", f"{shown(text)} is not a job or array such as 12_[1-8,10%4]")
        return []
    numbers: list[int] = []
    for one in filter(None, bounds):
        numbers += range(int(one[1]), int(one[2] or one[1]) + 1, int(one[3] or 1) or 1)[: MAX_ARRAY - len(numbers)]
    if len(numbers) == MAX_ARRAY:
        found.remarks.append(f"only the first {MAX_ARRAY:,} tasks of array {match[1]} are read")
    return [f"{match[1]}_{number}" for number in numbers]
