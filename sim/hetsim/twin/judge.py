"""The quality of predicted starts: a log is stopped, forecast and compared.

At each instant the twin knows what a snapshot would show: running jobs with their starts, waiting jobs, and the history
up to the instant.  For each waiting job it forecasts intervals of its remaining wait, widened by the errors of earlier
snapshots (`hetsim.twin.widening`).  For comparison:

    drawn    the intervals of the samples, not widened
    limits   the start (no interval) if every job ran to its time limit and no job arrived, as schedulers predict
    user     an interval: the waits of the user's last jobs (of all users, if they are few) minus the job's wait so far
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.scenario.scenario import Overrides
from hetsim.twin.forecast import POLICY, SnapshotCluster, Twin, TwinForecast
from hetsim.twin.rules import Rules
from hetsim.twin.widening import SHARES as TOLD
from hetsim.twin.widening import Past, widening
from hetsim.workload.logs.history import ENOUGH, FEW, JobHistory
from hetsim.workload.logs.inferred import limits_of
from hetsim.workload.logs.recorded_log import HeldSteps, Jobs, jobs_of
from hetsim.workload.logs.waits import warm_end
from hetsim.workload.readers.snapshot import SnapshotJob
from hetsim.workload.traces import TaskTable

SHARES = (0.5, 0.9)  # coverage of the judged intervals
EARLIER = 10  # snapshots in the first half of a log from which the first widening is learned
LAST = 50  # number of a user's latest jobs whose waits are used


@dataclass
class Method:
    """One method's medians and intervals of job starts, in seconds after the forecast."""

    median: list[float] = field(default_factory=list)
    intervals: dict[float, list[tuple[float, float]]] = field(default_factory=lambda: {share: [] for share in SHARES})


@dataclass
class JudgedForecasts:
    """Predictions and actual starts of jobs that waited at any of the judged instants."""

    instants: list[float]
    horizon: float
    actual: np.ndarray  # seconds from the instant to the recorded start, at most the horizon
    beyond: np.ndarray  # the job started after the horizon
    methods: dict[str, Method]

    def table(self) -> list[dict[str, Any]]:
        """Return a row per method: coverage and width of its intervals, errors of medians.

        Times beyond the horizon, predicted or recorded, count as the horizon.
        """
        rows = []
        for name, method in self.methods.items():
            error = np.abs(np.minimum(np.array(method.median), self.horizon) - self.actual)
            row: dict[str, Any] = {"method": name, "jobs": len(self.actual)}
            for share, pairs in method.intervals.items():
                key = f"{100 * share:.0f}"
                row[f"coverage_{key}"] = row[f"width_{key}"] = None
                if pairs:
                    low, high = np.minimum(np.array(pairs, dtype=float), self.horizon).T
                    row[f"coverage_{key}"] = float(((low <= self.actual) & (self.actual <= high)).mean())
                    row[f"width_{key}"] = float((high - low).mean())
            row |= {"error_median": float(np.median(error)), "error_mean": float(error.mean())}
            rows.append(row)
        return rows


def judge(
    history: JobHistory,
    cluster: SnapshotCluster,
    instants: int = 10,
    horizon: float = 86400.0,
    samples: int = 50,
    policy: Any = POLICY,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
    overrides: Overrides = (),
) -> JudgedForecasts:
    """Judge forecasts that are made at instants in the second half of a log.

    ScenarioError if no job waits at any of these instants, or if the log is too short.
    """
    low, high = float(history.submit[0]), float(history.submit[-1])
    begin = first_instant(history, horizon)
    if high <= begin:
        text = f"a log of {(high - low) / 3600:.3g} h is too short to judge forecasts of {horizon / 3600:.3g} h"
        raise ScenarioError(Problem(text, file=history.source))
    points = np.linspace(begin, high, instants + 1)[:-1].tolist()
    methods = {name: Method() for name in ("twin", "drawn", "time limits", "waits of the user")}
    actual: list[float] = []
    used = []
    early = earlier_instants(low, begin, horizon, EARLIER)
    pasts = look_back(history, cluster, early, horizon=horizon, samples=samples, policy=policy, seed=seed + instants,
                      progress=progress, overrides=overrides)  # fmt: skip
    for number, now in enumerate(points):
        jobs, rows = snapshot_of(history, now)
        if not any(not job.runs for job in jobs) or (history.end <= now).sum() < ENOUGH:
            continue
        progress(f"instant {number + 1} of {len(points)}: {sum(not job.runs for job in jobs)} jobs wait")
        twin = Twin(jobs, now, history, cluster, horizon=horizon, policy=policy, overrides=overrides)
        made = twin.forecast(samples, seed + number)
        made.widening = widening(pasts, now)
        pasts.append(_past(made, rows, history, now))
        past = history.take(np.flatnonzero(history.start <= now))
        used.append(now)
        for place, job in enumerate(made.jobs):
            actual.append(float(history.start[rows[job.id]]) - now)
            waits = _waits(past, job.user, now - job.submit)
            drawn, moved = made.drawn(place, TOLD), made.quantiles(place, TOLD)
            usual = np.quantile(waits, TOLD).tolist()
            methods["time limits"].median.append(float(made.by_limits[place]))
            for name, values in (("twin", moved), ("drawn", drawn), ("waits of the user", usual)):
                methods[name].median.append(values[2])
                methods[name].intervals[0.5].append((values[1], values[3]))
                methods[name].intervals[0.9].append((values[0], values[4]))
    if not actual:
        text = "no job waits at any of the instants, so no start can be judged"
        raise ScenarioError(Problem(text, file=history.source))
    values = np.array(actual)
    return JudgedForecasts(instants=used, horizon=horizon, actual=np.minimum(values, horizon), beyond=values > horizon,
                           methods=methods)  # fmt: skip


def look_back(
    history: JobHistory, cluster: SnapshotCluster, instants: Sequence[float], horizon: float, samples: int = 50,
    policy: Any = POLICY, seed: int = 0, progress: Callable[[str], None] = lambda _: None, overrides: Overrides = (),
    rules: Rules | None = None,
) -> list[Past]:  # fmt: skip
    """Return forecasts made at earlier instants of a history, all under `rules`.

    Each forecast knows only the part of the history before its instant, and only jobs that are in the history.
    """
    errors = []
    for number, now in enumerate(instants):
        jobs, rows = snapshot_of(history, now)
        if not rows or (history.end <= now).sum() < ENOUGH:
            continue
        progress(f"earlier snapshot {number + 1} of {len(instants)}: {len(rows)} jobs wait")
        twin = Twin(jobs, now, history, cluster, horizon=horizon, policy=policy, overrides=overrides, rules=rules)
        errors.append(_past(twin.forecast(samples, seed + number), rows, history, now))
    return errors


def earlier_instants(first: float, now: float, horizon: float, count: int) -> list[float]:
    """Return instants, evenly spaced from first + horizon to now - horizon, or none."""
    begin, end = first + horizon, now - horizon
    return np.linspace(begin, end, count).tolist() if end > begin and count else []


def _past(told: TwinForecast, rows: dict[str, int], history: JobHistory, now: float) -> Past:
    actual = np.array([float(history.start[rows[job.id]]) - now for job in told.jobs])
    quantiles = np.array([told.ends(place) for place in range(len(told.jobs))]).reshape(-1, len(TOLD))
    groups = [told.group(place) for place in range(len(told.jobs))]
    return Past(now + told.horizon, np.minimum(quantiles, told.horizon), np.minimum(actual, told.horizon), groups)


def first_instant(history: JobHistory, horizon: float) -> float:
    """Return the first instant to judge: the log's middle, at least a horizon into it."""
    low, high = float(history.submit[0]), float(history.submit[-1])
    return max(low + horizon, (low + high) / 2)


def with_limits(
    history: JobHistory, cluster: SnapshotCluster, table: TaskTable, before: float
) -> tuple[JobHistory, SnapshotCluster]:
    """Return history and cluster with the limits per user that earlier jobs show.

    before: only jobs that started before this time are used.  Each limited user gets a partition of its own.  Both are
    unchanged if there are no such limits, or if the cluster has partitions.
    """
    jobs = jobs_of(table)
    partitioned = any(node.get("partitions") for node in cluster.nodes) or "site" in cluster.more
    if jobs is None or partitioned or "user" not in jobs.labels:
        return history, cluster
    rows = np.flatnonzero(jobs.start < before)
    past = Jobs(unit=jobs.unit, arrival=jobs.arrival[rows], start=jobs.start[rows],
                end=np.minimum(jobs.end[rows], before), amount=jobs.amount[rows],
                labels={"user": jobs.labels["user"][rows]}, names={"user": jobs.names["user"]})  # fmt: skip
    if len(past) < ENOUGH or not (past.wait > 0).any():
        return history, cluster
    steps = HeldSteps(past)
    limits = limits_of(past, steps, past.capacity().amount, warm_end(past, steps))
    if limits is None:
        return history, cluster
    key = "max_gpus" if jobs.unit == "GPUs" else "max_cpus"
    rules: dict[str, Any] = {f"user-{name}": {"nodes": "*", key: int(limit)} for name, limit in limits.max_held.items()}
    inside = [f"user-{user}" if user in limits.max_held else "others" for user in history.labels["user"].tolist()]
    changed = history.take(np.arange(len(history)))
    changed.labels["partition"] = np.array(inside, dtype=object)
    rules["others"] = {"nodes": "*", "default": True}
    return changed, SnapshotCluster(cluster.nodes, {**cluster.more, "site": {"partitions": rules}})


def snapshot_of(history: JobHistory, now: float) -> tuple[list[SnapshotJob], dict[str, int]]:
    """Return jobs that run or wait at an instant, and id -> row of the waiting jobs."""
    here = np.flatnonzero((history.submit <= now) & (history.end > now))
    jobs, rows = [], {}
    for row in here.tolist():
        runs = history.start[row] <= now
        jobs.append(SnapshotJob(id=str(row), line=0, user=str(history.labels["user"][row]),
                                partition=str(history.labels["partition"][row]), submit=float(history.submit[row]),
                                start=float(history.start[row]) if runs else math.nan, limit=float(history.limit[row]),
                                cpus=float(history.cpus[row]), gpus=float(history.gpus[row]),
                                gpu_type=str(history.kind[row]), count=float(history.nodes[row]),
                                account=str(history.labels["account"][row]), qos=str(history.labels["qos"][row]),
                                class_=str(history.labels["class"][row])))  # fmt: skip
        if not runs:
            rows[str(row)] = row
    return jobs, rows


def _waits(past: JobHistory, user: str, waited: float) -> np.ndarray:
    rows: Sequence[int] | np.ndarray = np.flatnonzero(past.labels["user"] == user)[-LAST:]
    if len(rows) < FEW:
        rows = np.arange(len(past))[-10 * LAST :]
    return np.maximum((past.start - past.submit)[rows] - waited, 0.0)
