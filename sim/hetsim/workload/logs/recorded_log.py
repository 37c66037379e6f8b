"""Jobs of a log with recorded starts: what they held over time, and their waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hetsim.workload.logs.capacity import Capacity, NodeParts, capacity_of, node_parts
from hetsim.workload.logs.summary import durations, held_amounts
from hetsim.workload.rows.held import HeldOverTime
from hetsim.workload.traces import TaskTable

LABELS = ("user", "queue", "partition", "vc", "account", "group", "qos", "class")
"""By which limits and orders are looked for."""
SLACK = 1e-9
SHORT = 60.0
"""Waits of less than a minute are the pace of a scheduler, no sign of a limit."""
MAX_JOBS = 5_000
"""Maximum number of jobs with waits looked at second by second; of larger logs evenly chosen ones."""


@dataclass
class Jobs:
    """Columns of the jobs with a recorded start, by arrival."""

    unit: str
    arrival: np.ndarray
    start: np.ndarray
    end: np.ndarray
    amount: np.ndarray
    estimate: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """The time that a scheduler is told."""
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    """Codes by kind of label; -1 where a job has none."""
    names: dict[str, list[str]] = field(default_factory=dict)
    line: Callable[[int], int] = lambda job: job + 1  # noqa: E731
    """Where a job stands in the file: its line, or where that is not known its number."""
    nodes: NodeParts | None = None
    used: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def wait(self) -> np.ndarray:
        return self.start - self.arrival

    @property
    def evidence(self) -> np.ndarray:
        """Jobs whose waits something may be inferred from."""
        return np.ones(len(self), dtype=bool) if self.used is None else self.used

    def capacity(self, stated: float | None = None) -> Capacity:
        """The cluster's capacity as stated, or as these jobs show it."""
        return capacity_of(self.start, self.end, self.amount, parts=self.nodes, stated=stated)


def jobs_of(table: TaskTable) -> Jobs | None:
    """The jobs of a table that have a recorded start; None where none has."""
    start = table.extra.get("recorded_start")
    if start is None or table.requests:
        return None
    gpus, cores = held_amounts(table)
    took = durations(table)
    amount = gpus if gpus.any() else cores
    rows = np.flatnonzero(np.isfinite(start) & np.isfinite(took) & (amount > 0))
    if not len(rows):
        return None
    rows = rows[np.argsort(table.arrival[rows], kind="stable")]
    begun = np.maximum(start[rows], table.arrival[rows])
    jobs = Jobs(
        "GPUs" if gpus.any() else "cores", table.arrival[rows], begun, end=begun + took[rows], amount=amount[rows]
    )
    estimates = [table.estimates.get(name, time) for name, time in table.times.items()]
    jobs.estimate = np.min(estimates, axis=0)[rows]
    jobs.line = lambda job: table.line(int(rows[job])) or int(rows[job]) + 1
    labels = table.extra.get("recorded_node")
    jobs.nodes = node_parts(None if labels is None else labels[rows], jobs.amount, jobs.start, jobs.end)
    for kind in LABELS:
        values = {"user": table.user, "class": table.class_}.get(kind, table.extra.get(kind))
        if values is not None:
            _label(jobs, kind, values[rows])
    if table.devices is not None:
        _label(jobs, "devices", table.devices[rows])
    return jobs


def _label(jobs: Jobs, kind: str, values: np.ndarray) -> None:
    import pandas as pd

    texts = np.array(["" if value != value or value is None else str(value) for value in values.tolist()], dtype=object)
    codes, names = pd.factorize(np.where(texts == "", None, texts))  # type: ignore[call-overload]
    if len(names):
        jobs.labels[kind], jobs.names[kind] = codes, [str(name) for name in names]


class HeldSteps:
    """The log as steps of time: what is held, and the steps in which each job waits."""

    def __init__(self, jobs: Jobs):
        self.times = np.unique(np.concatenate([jobs.arrival, jobs.start, jobs.end]))
        self.length = np.append(np.diff(self.times), 0.0)
        self.held = HeldOverTime(jobs.start, jobs.end, jobs.amount).at(self.times)
        self.first = np.searchsorted(self.times, jobs.arrival)
        self.last = np.searchsorted(self.times, jobs.start)

    def waiting(self, jobs: Jobs, chosen: np.ndarray | None = None) -> Iterator[tuple[int, slice]]:
        """Each job that waits, and its steps."""
        rows = np.flatnonzero(self.last > self.first) if chosen is None else chosen
        for row in rows.tolist():
            yield row, slice(int(self.first[row]), int(self.last[row]))


def chosen_of(jobs: Jobs, steps: HeldSteps) -> np.ndarray:
    """Jobs that wait, of large logs evenly chosen ones."""
    rows = np.flatnonzero(steps.last > steps.first)
    if len(rows) <= MAX_JOBS:
        return rows
    return rows[np.linspace(0, len(rows) - 1, MAX_JOBS).astype(int)]


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's, which long waits decide; NaN where a column is constant."""
    if len(one) < 2 or one.std() == 0 or other.std() == 0:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation of two columns; NaN where one is constant."""
    from scipy.stats import rankdata

    return correlation(rankdata(one), rankdata(other))
