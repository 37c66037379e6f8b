"""A twin of a live cluster: simulates its present jobs and those expected.

One scenario contains the nodes, the partitions, the jobs of the snapshot and jobs drawn from the history; each sample
is a run of it with different run times and arrivals.  Running jobs start at time 0 with their remaining time, each
bound to its nodes; waiting jobs arrive a moment later, in the order of their priority.  As on the cluster, the
scheduler knows only the time limits of jobs.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from hetsim.engine.resources.partition_limits import Budget
from hetsim.engine.simulation import Simulation
from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Partition
from hetsim.model.mode import Shape
from hetsim.model.record import LAUNCH_RUNNING, RunInput
from hetsim.policy.contract import Scheduler
from hetsim.policy.remaining import rows_of
from hetsim.scenario import overrides as setting
from hetsim.scenario.file import document as documents
from hetsim.scenario.readers import TWIN, not_understood
from hetsim.scenario.scenario import Overrides, assignments, from_document
from hetsim.twin.rules import LIMIT, Rules, usage_of
from hetsim.twin.widening import SHARES, Widening
from hetsim.workload.logs.history import ArrivalTimes, JobHistory, RunTimes
from hetsim.workload.logs.recorded_log import HeldOverTime
from hetsim.workload.readers.snapshot import FURTHER, SnapshotJob

POLICY = "easy_backfill"
BEHIND = 1e-3  # seconds after the snapshot at which waiting jobs arrive, a millionth apart
STEPS = 96  # number of instants within the horizon with a forecast occupancy
LABELS = ("user", "class", "partition", "account", "qos", *FURTHER)
COLUMNS = ("id", "arrival", *LABELS, "cpu_time", "gpu_time", "nodes", "cpus", "gpus", "devices", "recorded_node")


@dataclass
class SnapshotCluster:
    """A cluster for a forecast: nodes as in a scenario, and keys such as `site`."""

    nodes: list[dict[str, Any]]
    more: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""  # file of the jobs, unless they name it


@dataclass
class TwinForecast:
    """Simulated futures of a snapshot's jobs; times are in s after the snapshot."""

    jobs: list[SnapshotJob]  # waiting jobs, in the order in which they are scheduled
    horizon: float
    starts: np.ndarray  # s, by sample and job; inf: not within the horizon
    by_limits: np.ndarray  # by job: start if all jobs ran to their limits and none arrived, as schedulers predict
    times: np.ndarray
    occupied: np.ndarray  # by sample and instant of `times`: GPUs in use (cores, if there are no GPUs)
    capacity: float
    unit: str
    free: dict[str, np.ndarray]  # by node, and "all": end of the present jobs, if nothing else starts
    came: np.ndarray  # by sample: number of jobs that arrived within the horizon
    notes: list[str] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)
    widening: Widening | None = None  # learned from earlier forecasts; None: intervals are those of the samples

    def quantiles(self, job: int, shares: Sequence[float]) -> list[float]:
        """Return quantiles of a job's start, widened by past errors; inf: after horizon."""
        if self.widening is None:
            return self.drawn(job, shares)
        moved = self.widening.moved(self.ends(job), self.horizon, self.group(job)).tolist()
        by_share = dict(zip(SHARES, (value if value < self.horizon else math.inf for value in moved), strict=True))
        return [by_share[share] if share in by_share else self.drawn(job, [share])[0] for share in shares]

    def group(self, job: int) -> str:
        """Return the job's group in error statistics: "limit" if limit-blocked, else ""."""
        return "limit" if LIMIT.search(self.jobs[job].reason) else ""

    def drawn(self, job: int, shares: Sequence[float]) -> list[float]:
        """Return quantiles of a job's sampled starts, rounded away from the median."""
        ordered = np.sort(self.starts[:, job])
        ranks = [(math.ceil if share > 0.5 else math.floor)(round(share * (len(ordered) + 1), 9)) for share in shares]
        return ordered[np.clip(ranks, 1, len(ordered)) - 1].tolist()

    def ends(self, job: int) -> list[float]:
        """Return interval bounds (quantiles `SHARES`) of a job's start, before widening.

        An interval whose upper bound is the horizon contains every later start, so it can only miss at the lower bound.
        That bound is then the quantile with the error probability of both bounds.
        """
        values = self.drawn(job, SHARES)
        return [self.drawn(job, [2 * share])[0] if share < 0.5 and other >= self.horizon else value
                for share, value, other in zip(SHARES, values, values[::-1], strict=True)]  # fmt: skip

    def within(self, job: int) -> float:
        """Return the share of samples in which a job starts within the horizon."""
        return float(np.isfinite(self.starts[:, job]).mean())


class Twin:
    """A cluster at an instant, ready to simulate; ScenarioError if its parts conflict.

    now: the instant, on the clock of jobs and history; later events are ignored.
    rules: the rules of the site's scheduler; usage and the age of jobs are those of this instant.
    """

    def __init__(
        self,
        jobs: Sequence[SnapshotJob],
        now: float,
        history: JobHistory,
        cluster: SnapshotCluster,
        horizon: float = 86400.0,
        policy: Any = POLICY,
        overrides: Overrides = (),
        rules: Rules | None = None,
    ):
        self.now, self.horizon, self.rules = now, horizon, Rules() if rules is None else rules
        self.refused: dict[str, str] = {}  # waiting jobs that the policy rejects, and why
        self._source = cluster.source
        self._late: list[str] = []  # running jobs that do not start at once
        self.history = history.take(np.flatnonzero(history.submit < now))
        self.run_times = RunTimes(self.history.take(np.flatnonzero(self.history.end <= now)))
        self.arrivals = ArrivalTimes(self.history, horizon, now)
        names = {str(node.get("name", "")) for node in cluster.nodes}
        gone = sum(job.runs and not names.issuperset(job.nodes) for job in jobs)
        self._again = [f"{gone:,} jobs run on nodes that the cluster lacks; these jobs start again"] if gone else []
        jobs = [replace(job, start=math.nan, nodes=()) if job.runs and not names.issuperset(job.nodes) else job
                for job in jobs]  # fmt: skip
        self.running = [job for job in jobs if job.runs]  # the widest first of those whose nodes are unknown: all fit
        self.running.sort(key=lambda job: (0, 0, 0) if job.nodes else (1, -job.gpus, -job.cpus))
        rank = [math.inf if math.isnan(job.priority) else -job.priority for job in jobs]
        order = sorted(range(len(jobs)), key=lambda k: (rank[k], jobs[k].submit))
        self.waiting = [jobs[k] for k in order if not jobs[k].runs]
        self._build(cluster, policy, overrides)

    # The scenario ---------------------------------------------------------------------------------------------

    def _build(self, cluster: SnapshotCluster, policy: Any, overrides: Overrides) -> None:
        document: dict[str, Any] = {**cluster.more, "name": "twin", "policy": self._with_rules(policy)}
        pinned = {f"of {job.id}": {"nodes": list(job.nodes)} for job in self.running if job.nodes}
        with TemporaryDirectory() as folder:
            path = Path(folder) / "jobs.csv"
            self._write(path, set(pinned))
            document["cluster"] = {"nodes": cluster.nodes}
            document["workload"] = [{"name": "jobs", "span": "recorded", "unfit": "leave_out",
                                     "trace": {"format": "tasks", "path": str(path)}}]  # fmt: skip
            described = documents.from_mapping(document)
            setting.apply(described, assignments(overrides))
            _pin(described, pinned)  # after all that may replace the site
            try:
                loaded = from_document(described, Path())
                if unknown := not_understood(loaded, TWIN):
                    text = "a forecast defines jobs, times, arrivals and horizon; leave this key out"
                    raise ScenarioError([replace(one, message=f"{one.message}; {text}") for one in unknown])
                self.run: RunInput = loaded.build()
            except ScenarioError as error:
                raise ScenarioError([self._at_job(one, str(path)) for one in error.problems]) from None
            self._policy = loaded.policies.scheduler
        if type(self.run.scheduler).prepare is not Scheduler.prepare:
            text = f"{self._policy.name} plans all tasks in advance, the sampled ones too; choose a dynamic policy"
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        row = {name: number for number, name in enumerate(map(str, self.run.tasks.id))}  # type: ignore[arg-type]
        self._rows = {kind: [row.get(f"{kind}:{k}", -1) for k in range(count)] for kind, count in
                      (("r", len(self.running)), ("w", len(self.waiting)), ("h", len(self.history)))}  # fmt: skip
        self.notes = self._again + self._left_out()
        self._count_in_partitions(set(pinned))
        gpus = sum(device.type.kind != "cpu" for device in self.run.cluster.devices)
        self.unit = "GPUs" if gpus else "cores"
        self.capacity = float(gpus or sum(node.cpus for node in self.run.cluster.nodes))

    def _at_job(self, problem: Problem, path: str) -> Problem:
        """Translate a problem in the generated jobs table to the user's file and line."""
        jobs, row = [*self.running, *self.waiting], (problem.line or 0) - 2
        if problem.file != path or row < 0:
            return problem
        text = problem.message.removeprefix(f"row {row + 1}, ")
        if row >= len(jobs):
            return replace(problem, file=self.history.source, line=None, message=f"an ended job: {text}")
        file, line = jobs[row].more.get("file", self._source), jobs[row].line or None
        return replace(problem, file=file, line=line, message=f"job {jobs[row].id}: {text}")

    def _with_rules(self, policy: Any) -> Any:
        """Return `policy` with the site's rules; store the jobs' own priorities in `_own`."""
        log, rules, self._own = self.history, self.rules, dict[str, Sequence[float]]()
        if not rules:
            return policy
        scheduler, weights = rules.scheduler(policy["scheduler"]), rules.weights
        if weights is not None:
            ended = log.take(np.flatnonzero(log.end <= self.now))
            usage = usage_of(self.running + self.waiting, self.now, ended, weights.half_life)
            own = weights.of_waiting(self.waiting, self.now, usage)
            new = list(map(weights.constant, log.labels["partition"], log.labels["qos"], log.gpus))
            top = max([*own, *new, 1.0])  # the first jobs have it, since own priorities are relative to the highest
            self._own = {"r": [top] * len(self.running), "w": own, "h": new}
            scheduler |= {"priority": top, **weights.parameters(usage)}
        return {**policy, "scheduler": scheduler}

    def _left_out(self) -> list[str]:
        missing = [job.id for job, row in zip(self.waiting, self._rows["w"], strict=True) if row < 0]
        lost = [job.id for job, row in zip(self.running, self._rows["r"], strict=True) if row < 0]
        notes = []
        for ids, what in ((missing, "wait"), (lost, "run")):
            if ids:
                notes.append(f"{len(ids):,} jobs that {what} are left out, because they fit on no node: {_some(ids)}")
        for kind, jobs in (("w", self.waiting), ("r", self.running)):
            kept = [(job, row) for job, row in zip(jobs, self._rows[kind], strict=True) if row >= 0]
            self._rows[kind] = [row for _, row in kept]
            jobs[:] = [job for job, _ in kept]
        return notes

    def _count_in_partitions(self, pinned: set[str]) -> None:
        """Make running jobs count in the limits of their partitions.

        If more jobs run than a limit allows, only the jobs whose time limits end last count; no other job can then
        start in the partition until some of these end.
        """
        tasks, cluster = self.run.tasks, self.run.cluster
        default = next((one for one in cluster.partitions.values() if one.default), None)
        cpus = {node.name: node.cpu for node in cluster.nodes}
        shapes, counted, beyond = list(tasks.shapes), dict[Partition, Budget](), dict[str, int]()
        rows = dict(zip((job.id for job in self.running), self._rows["r"], strict=True))
        for job in sorted(self.running, key=lambda job: -self._told(job, self.now - job.start)):
            partition = cluster.partitions.get(job.partition, default)
            if partition is None or not partition.limited or f"of {job.id}" not in pinned:
                continue
            code = tasks.shape[rows[job.id]]
            shape = shapes[code]
            budget = counted.setdefault(partition, Budget(partition))
            devices = [cpus[name] for name in job.nodes]
            if budget.refusal(shape.modes[0], devices) is not None:
                beyond[partition.name] = beyond.get(partition.name, 0) + 1
                continue
            budget.take(shape.modes[0], devices)
            modes = [replace(mode, partition=partition, pinned=mode.nodes) for mode in shape.modes]
            shapes[code] = Shape(modes, shape.stopping, shape.preemptible)
        self.run = replace(self.run, tasks=replace(tasks, shapes=shapes))
        self.notes += [f"partition {name} runs more than its limits allow: {count:,} jobs exceed the limits"
                       for name, count in beyond.items()]  # fmt: skip

    def _write(self, path: Path, pinned: set[str]) -> None:
        log = self.history
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow((*COLUMNS, "priority") if self._own else COLUMNS)
            for kind, jobs in (("r", self.running), ("w", self.waiting)):
                for number, job in enumerate(jobs):
                    inside = f"of {job.id}" if f"of {job.id}" in pinned else job.more.get("partition", job.partition)
                    more = (job.more.get(name, "") for name in FURTHER)
                    labels = (job.user, job.group, inside, job.account, job.qos, *more)
                    cells = _cells(f"{kind}:{number}", labels, job.count, cpus=job.cpus, gpus=job.gpus,
                                   kind=job.gpu_type)  # fmt: skip
                    table.writerow((*cells, *self._own.get(kind, ())[number : number + 1]))
            labeled = [log.labels.get(name, [""] * len(log)) for name in LABELS]
            for row in range(len(log)):
                labels = tuple(column[row] for column in labeled)
                cpus, gpus, kind = log.cpus[row], log.gpus[row], log.kind[row]
                cells = _cells(f"h:{row}", labels, log.nodes[row], cpus=cpus, gpus=gpus, kind=kind)
                table.writerow((*cells, *self._own.get("h", ())[row : row + 1]))

    # Samples --------------------------------------------------------------------------------------------------

    def forecast(self, samples: int = 100, seed: int = 0) -> TwinForecast:
        """Simulate the future; the same seed gives the same forecast."""
        streams = np.random.SeedSequence(seed).spawn(samples)
        times = np.linspace(0.0, self.horizon, STEPS + 1)
        starts = np.full((samples, len(self.waiting)), math.inf)
        occupied = np.zeros((samples, len(times)))
        came = np.zeros(samples)
        ends = np.zeros((samples, len(self.running)))
        so_far = [max(0.0, self.now - job.start) for job in self.running]
        for number, stream in enumerate(streams):
            random = np.random.default_rng(stream)
            ends[number] = [max(self._drawn(job, random, elapsed) - elapsed, BEHIND)
                            for job, elapsed in zip(self.running, so_far, strict=True)]  # fmt: skip
            lengths = [self._drawn(job, random) for job in self.waiting]
            at, rows = self.arrivals.draw(random)
            played = self._play(ends[number], lengths, at, like=rows, random=random, times=times)
            starts[number], occupied[number] = played
            came[number] = len(rows)
        at_limit = [self._told(job, self.now - job.start) for job in self.running]
        limits = [self._told(job) for job in self.waiting]
        nothing = np.empty(0), np.empty(0, dtype=int)
        by_limits, _ = self._play(np.array(at_limit), limits, *nothing, np.random.default_rng(0), times)
        refused = [f"{name} never starts: {text}" for name, text in self.refused.items()]
        if self._late:
            text = f"{len(self._late):,} jobs that run do not fit next to the others, and start later or never"
            refused.append(f"{text}: {_some(self._late)}")
        return TwinForecast(jobs=self.waiting, horizon=self.horizon, starts=starts, by_limits=by_limits, times=times,
                            occupied=occupied, capacity=self.capacity, unit=self.unit, free=self._free(ends), came=came,
                            notes=self.notes + refused, rules=self.rules)  # fmt: skip

    def _drawn(self, job: SnapshotJob, random: np.random.Generator, elapsed: float = 0.0) -> float:
        return float(self.run_times.draw(job.user, job.group, job.limit, elapsed=elapsed, count=1, random=random)[0])

    def _told(self, job: SnapshotJob, elapsed: float = 0.0) -> float:
        """Return the remaining time by the job's limit; without one, by the median time."""
        total = job.limit
        if not math.isfinite(total):
            total = self.run_times.median(job.user, job.group, job.limit, elapsed)
        return max(total - elapsed, 1.0)

    def _play(
        self, ends: np.ndarray, lengths: Sequence[float], at: np.ndarray, like: np.ndarray, random: np.random.Generator,
        times: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Simulate one run; return starts of waiting jobs, and occupancy at `times`.

        ends: ends of the running jobs (s).  lengths: run times of the waiting jobs (s).  at: arrival times of new jobs
        (s); like: the row of the history that each new job copies.
        """
        log, tasks = self.history, self.run.tasks
        users, classes = log.labels["user"], log.labels["class"]
        fitting = [(t, k) for t, k in zip(at.tolist(), like.tolist(), strict=True) if self._rows["h"][k] >= 0]
        rows = [*self._rows["r"], *self._rows["w"], *(self._rows["h"][k] for _, k in fitting)]
        first, count = len(self.running), len(self.running) + len(self.waiting)
        moments = BEHIND + BEHIND * BEHIND * np.arange(len(self.waiting))
        placed = np.cumsum([not job.nodes for job in self.running]) * BEHIND**3  # one after the other
        arrival = np.concatenate([placed, moments, [max(t, 2 * BEHIND) for t, _ in fitting]])
        new = [(users[k], classes[k], float(log.limit[k])) for _, k in fitting]
        drawn = [float(self.run_times.draw(*one, 0.0, 1, random)[0]) for one in new]
        new_limits = [one[2] if math.isfinite(one[2]) else length for one, length in zip(new, drawn, strict=True)]
        length = np.array([*ends, *lengths, *drawn])
        limits = np.array([*(self._told(job, self.now - job.start) for job in self.running),
                           *map(self._told, self.waiting), *new_limits])  # fmt: skip
        chosen = rows_of(tasks, rows, np.maximum.accumulate(arrival))
        able = np.isfinite(chosen.time)
        time = np.where(able, length[:, None], math.inf)
        estimate = np.where(able, limits[:, None], math.inf)
        labels = {name: column[rows] for name, column in tasks.extra.items() if name in LABELS}  # of caps and shares
        chosen = replace(chosen, time=time, estimate=estimate, id=None, time_limit=None, extra=labels)
        run = replace(self.run, tasks=chosen, scheduler=self._policy.make(), horizon=self.horizon, grace=None)
        record = Simulation(run).run()
        start = np.where(np.isnan(record.start), math.inf, record.start)
        late = start[:first] > start[:first].min(initial=math.inf) + BEHIND
        self._late = [self.running[row].id for row in np.flatnonzero(late)]
        none, every = np.zeros(len(start)), np.arange(len(start))
        plain = {"task": every, "start": record.start, "end": record.finish, "outcome": none}
        launches = record.launches or plain  # a stop ends a launch, so that preempted jobs hold nothing
        launches = {name: launches[name][~np.isnan(launches["start"])] for name in plain}
        ended = ~np.isnan(launches["end"]) & (launches["outcome"] != LAUNCH_RUNNING)
        end = np.where(ended, launches["end"], 2 * self.horizon)
        self.refused |= {self.waiting[row - first].id: text for row, text in record.reasons.items()
                         if first <= row < count}  # fmt: skip
        modes = [shape.modes[0] for shape in tasks.shapes]
        cores = [mode.millicores / 1000 for mode in modes]
        amounts = [0.0 if mode.on_cpu else mode.gpu_share for mode in modes] if self.unit == "GPUs" else cores
        amount = np.array(amounts)[chosen.shape[launches["task"]]]
        begin = launches["start"] * (launches["start"] >= BEHIND)  # running jobs start at once
        occupied = HeldOverTime(begin, end, amount).at(times) if len(end) else np.zeros(len(times))
        return start[first:count], occupied

    def _free(self, ends: np.ndarray) -> dict[str, np.ndarray]:
        """Return when the last running job ends, by node and overall ("all"), in each run."""
        free = {"all": ends.max(axis=1) if ends.shape[1] else np.zeros(len(ends))}
        for name in dict.fromkeys(node for job in self.running for node in job.nodes):
            here = [k for k, job in enumerate(self.running) if name in job.nodes]
            free[name] = ends[:, here].max(axis=1)
        return free


def _pin(described: documents.Document, pinned: Mapping[str, Any]) -> None:
    site = described.data.get("site")
    site = {} if site is None else site
    if pinned and isinstance(site, dict):
        partitions = site.get("partitions")
        partitions = {} if partitions is None else partitions
        if isinstance(partitions, dict):
            described.data["site"] = {**site, "partitions": {**partitions, **pinned}}


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")


def _cells(name: str, labels: tuple[str, ...], nodes: float, cpus: float, gpus: float, kind: str) -> tuple[Any, ...]:
    times, place = ("", 1) if gpus else (1, ""), "one" if nodes == 1 else "any|" if gpus else ""
    if nodes > 1 and cpus % nodes == 0 and gpus % nodes == 0:
        return (name, 0, *labels, *times, int(nodes), cpus / nodes, gpus / nodes, kind if gpus else "", place)
    return (name, 0, *labels, *times, "", float(cpus), float(gpus), kind if gpus else "", place)
