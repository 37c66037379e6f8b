"""Forecasts from a cluster's history: when jobs arrive and how long they run.

Run times    drawn from completed jobs of the same user and class (the partition, if the log has no class).  If there
             are fewer than `FEW` such jobs: from those of the user, else of the class, else from all jobs.  For a job
             with a time limit the ratio of run time to limit is drawn; for a running job, only longer times.
Arrivals     the jobs of the same hours of an earlier day, with drawn run times: the daily rhythm and bursts are
             preserved, weekdays are not.  If the log has fewer than three such days, a window of the same length is
             drawn that may begin at any time.

Reference: for run times by user Tsafrir, Etsion, Feitelson, Backfilling Using System-Generated Predictions Rather than
User Runtime Estimates (2007); the arrivals are a block bootstrap (Künsch, 1989).

Weakness: running jobs are not among the completed jobs, so that long jobs are drawn a little too rarely.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from hetsim.errors import file_error
from hetsim.workload.logs.recorded_log import LABELS
from hetsim.workload.logs.summary import durations, held_amounts
from hetsim.workload.traces import TaskTable

FEW = 10  # minimum number of jobs in a pool to draw from
ENOUGH = 20  # minimum number of jobs in a history
MAX_POOL = 500  # only the last jobs of a pool are drawn from
DAY = 86400.0


@dataclass
class JobHistory:
    """Jobs with a recorded start, sorted by submission; `limit` inf: no time limit."""

    source: str
    submit: np.ndarray
    start: np.ndarray
    runtime: np.ndarray
    limit: np.ndarray
    cpus: np.ndarray
    gpus: np.ndarray
    kind: np.ndarray
    labels: dict[str, np.ndarray]  # text labels by name: user, class, partition, account, qos; empty if a job has none
    # number of nodes with equal parts of a job; 0 if unknown
    nodes: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not len(self.nodes):
            self.nodes = np.zeros(len(self.submit))

    def __len__(self) -> int:
        return len(self.submit)

    @property
    def end(self) -> np.ndarray:
        return self.start + self.runtime

    def take(self, rows: np.ndarray) -> "JobHistory":
        names = ("submit", "start", "runtime", "limit", "cpus", "gpus", "kind", "nodes")
        labels = {name: values[rows] for name, values in self.labels.items()}
        return replace(self, labels=labels, **{name: getattr(self, name)[rows] for name in names})


def history_of(table: TaskTable, source: str) -> JobHistory:
    """Return the jobs of a log; ScenarioError without recorded starts or with too few."""
    start = table.extra.get("recorded_start")
    if start is None or table.requests:
        text = "must be a log of jobs with recorded starts, to learn arrivals and run times from"
        raise file_error(source, text)
    took = durations(table)
    gpus, cpus = held_amounts(table)
    rows = np.flatnonzero(np.isfinite(start) & np.isfinite(took) & ((gpus > 0) | (cpus > 0)))
    if len(rows) < ENOUGH:
        text = f"a model of arrivals and run times needs {ENOUGH} jobs with a recorded start; got {len(rows):,}"
        raise file_error(source, text)
    rows = rows[np.argsort(table.arrival[rows], kind="stable")]
    limit = table.extra.get("time_limit")
    limit = np.full(len(table), math.inf) if limit is None else np.where(limit > 0, limit, math.inf).astype(float)
    columns = {**{name: table.extra.get(name) for name in LABELS}, "user": table.user, "class": table.class_}
    labels = {name: _texts(columns.get(name), len(table)) for name in ("user", "class", "partition", "account", "qos")}
    if not any(labels["class"]):
        labels["class"] = labels["partition"]
    kind = _texts(table.devices, len(table))
    begun = np.maximum(start, table.arrival)
    counts = table.numbers.get("nodes")
    history = JobHistory(
        source, table.arrival, begun, runtime=took, limit=limit, cpus=cpus, gpus=gpus, kind=kind, labels=labels,
        nodes=np.zeros(len(table)) if counts is None else np.where(counts >= 1, counts, 0.0)
    )
    return history.take(rows)


def _texts(values: np.ndarray | None, count: int) -> np.ndarray:
    if values is None:
        return np.full(count, "", dtype=object)
    return np.array(["" if one is None or one != one else str(one) for one in values.tolist()], dtype=object)


class RunTimes:
    """A model of run times, learned from completed jobs."""

    def __init__(self, ended: JobHistory):
        if len(ended) < ENOUGH:
            text = f"a model of run times needs {ENOUGH} or more ended jobs; got {len(ended):,}"
            raise file_error(ended.source, text)
        order = np.argsort(ended.end, kind="stable")
        pools: dict[tuple[str, ...], list[int]] = {}
        users, classes = ended.labels["user"], ended.labels["class"]
        for row in order.tolist():
            for key in ((users[row], classes[row]), (users[row], "*"), ("*", classes[row]), ("*", "*")):
                pools.setdefault(key, []).append(row)
        self._pools = {key: self._pool(ended, rows[-MAX_POOL:]) for key, rows in pools.items() if len(rows) >= FEW}

    @staticmethod
    def _pool(ended: JobHistory, rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        runtime, limit = ended.runtime[rows], ended.limit[rows]
        limited = np.isfinite(limit)
        return runtime, np.minimum(runtime[limited] / limit[limited], 1.0)

    def draw(
        self, user: str, class_: str, limit: float, elapsed: float, count: int, random: np.random.Generator
    ) -> np.ndarray:
        """Draw a job's run times, given that it has run for `elapsed` seconds."""
        for key in ((user, class_), (user, "*"), ("*", class_), ("*", "*")):
            if key not in self._pools:
                continue
            runtime, ratio = self._pools[key]
            values = ratio * limit if math.isfinite(limit) and len(ratio) >= FEW else np.minimum(runtime, limit)
            longer = values[values > elapsed]
            if len(longer) >= (FEW if elapsed else 1):
                return random.choice(longer, count)
        if limit > elapsed and math.isfinite(limit):  # as long as none before it: any time until its limit
            return random.uniform(elapsed, limit, count)
        return elapsed * (1.0 + random.exponential(0.5, count)) + 1.0

    def median(self, user: str, class_: str, limit: float, elapsed: float = 0.0) -> float:
        """Return the median of 101 run times (s) drawn for this user, class and limit."""
        return float(
            np.median(self.draw(user, class_, limit, elapsed=elapsed, count=101, random=np.random.default_rng(0)))
        )


class ArrivalTimes:
    """Draws arrival times and jobs: those of a random time window of the log."""

    def __init__(self, submitted: JobHistory, horizon: float, now: float):
        self.submit = submitted.submit
        self.horizon = horizon
        first, last = float(self.submit[0]), float(self.submit[-1])
        last = now if now - last < DAY else last  # a log that ends on the day before goes up to now
        if last - first < horizon:
            before, ahead = (last - first) / 3600, horizon / 3600
            text = f"{before:.3g} h of log before the snapshot are too short for a forecast of {ahead:.3g} h"
            raise file_error(submitted.source, f"{text}; use fewer --hours or a longer log")
        days = np.arange(math.ceil(max(0.0, now + horizon - last) / DAY - 1e-9), int((now - first) / DAY) + 1)
        # start times of the windows of earlier days
        self.begins = now - DAY * days[days > 0] if (days > 0).any() else None
        self.bounds = first, last - horizon

    def draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw a part of the log; return ascending arrivals (s, below horizon) and rows."""
        if self.begins is not None and len(self.begins) >= 3:
            begin = float(random.choice(self.begins))
        else:
            begin = float(random.uniform(*self.bounds))
        rows = np.flatnonzero((self.submit >= begin) & (self.submit < begin + self.horizon))
        return self.submit[rows] - begin, rows


def forecast_errors(history: JobHistory, horizon: float) -> dict[str, float]:
    """Return the errors of forecasts on the last third of the log.

    `run_time_median_error`: median of |predicted median - actual| / actual.  `run_time_inside_90`: fraction of jobs
    whose run time is inside the central 90 % of the drawn times.  `arrivals_error`: mean absolute error of the number
    of arrivals in windows of `horizon` s, divided by its mean.  `arrivals_inside_90`: fraction of windows whose number
    is inside the central 90 % of the drawn numbers.  A value is NaN if the log is too short for it.
    """
    random = np.random.default_rng(0)
    rows = np.arange(2 * len(history) // 3, len(history))
    rows = rows[np.linspace(0, len(rows) - 1, min(200, len(rows))).astype(int)]
    errors, inside = [], []
    users, classes = history.labels["user"], history.labels["class"]
    model, made = None, -1
    for number, row in enumerate(rows.tolist()):
        if model is None or number - made >= 20:
            ended = history.take(np.flatnonzero(history.end < history.submit[row]))
            if len(ended) < ENOUGH:
                continue
            model, made = RunTimes(ended), number
        drawn = model.draw(users[row], classes[row], float(history.limit[row]), elapsed=0.0, count=200, random=random)
        actual = float(history.runtime[row])
        errors.append(abs(float(np.median(drawn)) - actual) / max(actual, 1.0))
        inside.append(bool(np.quantile(drawn, 0.05) <= actual <= np.quantile(drawn, 0.95)))
    counts, forecasts = [], []
    begin = float(np.quantile(history.submit, 2 / 3))
    for now in np.linspace(begin, float(history.submit[-1]), 11)[:-1].tolist():
        past = history.take(np.flatnonzero(history.submit < now))
        if now + horizon > history.submit[-1] or len(past) < ENOUGH or now - past.submit[0] < horizon:
            continue
        model_ = ArrivalTimes(past, horizon, now)
        drawn_counts = np.array([len(model_.draw(random)[1]) for _ in range(50)])
        counts.append(int(((history.submit >= now) & (history.submit < now + horizon)).sum()))
        forecasts.append((drawn_counts.mean(), *np.quantile(drawn_counts, [0.05, 0.95])))
    drawn = np.array(forecasts).reshape(-1, 3)
    came = np.array(counts, dtype=float)
    return {
        "run_time_median_error": float(np.median(errors)) if errors else math.nan,
        "run_time_inside_90": float(np.mean(inside)) if inside else math.nan,
        "arrivals_error": float(np.abs(drawn[:, 0] - came).mean() / max(came.mean(), 1e-9)) if len(came) else math.nan,
        "arrivals_inside_90": float(((drawn[:, 1] <= came) & (came <= drawn[:, 2])).mean()) if len(came) else math.nan,
    }
