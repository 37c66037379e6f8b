"""Jobs of a log with recorded starts: capacity used over time, and waits."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from hetsim.workload.logs.summary import durations, held_amounts
from hetsim.workload.rows.job_times import MOMENT, HeldOverTime
from hetsim.workload.traces import TaskTable

# The capacity of a cluster as a log of its jobs shows it, and excesses of it.
#
# The capacity of a node, or of a log that names none, is the highest level that is held for 1 % of the time in which
# anything is held: what is held for less is an accident of the log (clocks that jump, rows that repeat).  A node
# whose first job comes after the last one of another, where both together never hold more than one of them, is that
# node under another name.


FULL = 0.05  # fraction of the time for which an amount must be in use to be taken as the whole capacity
COVERED = 0.8  # fraction of a log that two names of one node cover together
FEW = 3


@dataclass
class NodeParts:
    """Jobs by node: a row per job and node; a job uses equal amounts on its nodes."""

    names: list[str]
    job: np.ndarray
    node: np.ndarray
    amount: np.ndarray
    alone: np.ndarray  # by job: True if it ran on one node

    def jobs_on(self, node: int) -> np.ndarray:
        return np.flatnonzero(self.node == node)


def node_parts(labels: np.ndarray | None, amount: np.ndarray, start: np.ndarray, end: np.ndarray) -> NodeParts | None:
    """Return jobs' nodes from `labels` such as "n1|n2"; None if any label is empty."""
    if labels is None or not len(labels) or not all(one == one and one for one in labels.tolist()):
        return None
    lists = [str(one).split("|") for one in labels.tolist()]
    codes: dict[str, int] = {}
    short = {name for names in lists for name in names if "." not in name}
    job = np.repeat(np.arange(len(lists)), [len(names) for names in lists])
    plain = [name.partition(".")[0] if name.partition(".")[0] in short else name for names in lists for name in names]
    node = np.array([codes.setdefault(name, len(codes)) for name in plain])
    count = np.array([len(names) for names in lists])
    parts = NodeParts(list(codes), job, node, amount=(amount / count)[job], alone=count == 1)
    _merge_renamed(parts, start[job], end[job])
    return parts


def _merge_renamed(parts: NodeParts, start: np.ndarray, end: np.ndarray) -> None:
    if len(parts.names) < 2 or len(parts.names) > 5_000:
        return
    begin, span = float(start.min()), float(end.max() - start.min())
    order = np.lexsort((start, parts.node))
    bounds = np.searchsorted(parts.node[order], np.arange(len(parts.names) + 1))
    rows = [order[low:high] for low, high in zip(bounds, bounds[1:], strict=False)]
    spans = [(float(start[one[0]]), float(start[one[-1]])) for one in rows]
    late = [node for node, (first, _) in enumerate(spans) if first > begin + 0.05 * span and len(rows[node]) >= FEW]
    gone = [node for node, (_, last) in enumerate(spans) if last < begin + 0.95 * span and len(rows[node]) >= FEW]
    for new in sorted(late, key=lambda node: spans[node]):
        for old in sorted(gone, key=lambda node: abs(spans[new][0] - spans[node][1])):
            gap, covered = spans[new][0] - spans[old][1], spans[new][1] - spans[old][0]
            if gap < 0 or gap > (1 - COVERED) / 2 * span or covered < COVERED * span:
                continue
            sets = (rows[old], rows[new], np.concatenate([rows[old], rows[new]]))
            levels = [HeldOverTime(start[one], end[one], parts.amount[one]).common() for one in sets]
            if levels[2] <= max(levels[:2]):
                parts.node[rows[new]] = old
                gone.remove(old)
                break


@dataclass
class Capacity:
    """The capacity of a cluster: stated, or inferred from the log."""

    amount: float
    stated: bool
    by_node: dict[str, float] = field(default_factory=dict)
    full: float = 0.0  # fraction of the busy time in which at least the whole capacity is in use
    # use above the capacity: node ("" = whole cluster), time, duration, amount, jobs
    beyond: list[tuple[str, float, float, float, list[int]]] = field(default_factory=list)


def capacity_of(
    start: np.ndarray, end: np.ndarray, amount: np.ndarray, parts: NodeParts | None, stated: float | None = None
) -> Capacity:
    """Return the capacity of a cluster: `stated`, or if None inferred from the jobs."""
    over_time = HeldOverTime(start, end, amount)
    by_node = {}
    for node, name in enumerate(parts.names if parts is not None else ()):
        rows = parts.jobs_on(node)  # type: ignore[union-attr]
        if len(rows):
            by_node[name] = level_of(*_spans(parts, rows, start, end))
    shown = math.ceil(sum(by_node.values()) - 1e-9) if by_node else level_of(start, end, amount)
    capacity = Capacity(float(shown if stated is None else stated), stated is not None, by_node)
    busy = max(float(over_time.length[over_time.level > 0].sum()), 1e-9)
    capacity.full = float(over_time.length[over_time.level >= capacity.amount - 1e-6].sum()) / busy
    if _exceeds(over_time, capacity.amount):
        capacity.beyond.append(("", *_beyond(start, end, over_time, most=capacity.amount, jobs=np.arange(len(start)))))
    elif parts is not None and stated is None:
        for node, name in enumerate(parts.names):
            rows = parts.jobs_on(node)
            if len(rows):
                began, ended, part = _spans(parts, rows, start, end)
                own = HeldOverTime(began, ended, part)
                if name in by_node and _exceeds(own, by_node[name]):
                    capacity.beyond.append(
                        (name, *_beyond(began, ended, own, most=by_node[name], jobs=parts.job[rows]))
                    )
    return capacity


def _exceeds(held: HeldOverTime, most: float) -> bool:
    return float(held.length[held.level > most + 1e-6].sum()) > MOMENT


def _spans(parts: NodeParts | None, rows: np.ndarray, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, ...]:
    assert parts is not None
    return start[parts.job[rows]], end[parts.job[rows]], parts.amount[rows]


def level_of(start: np.ndarray, end: np.ndarray, amount: np.ndarray) -> float:
    """Return the size of a pool of devices, inferred from the jobs that used it."""
    if not len(start):
        return 0.0
    return float(math.ceil(max(HeldOverTime(start, end, amount).common(), float(amount.max())) - 1e-9))


def _beyond(
    start: np.ndarray, end: np.ndarray, held: HeldOverTime, most: float, jobs: np.ndarray
) -> tuple[float, float, float, list[int]]:
    over = held.level > most + 1e-6
    first = float(held.times[int(np.argmax(over))])
    began = np.flatnonzero(held.at(start) > most + 1e-6)
    return first, float(held.length[over].sum()), float(held.level.max()), jobs[began].tolist()


# labels examined for limits and orders
LABELS = ("user", "queue", "partition", "vc", "account", "group", "qos", "class")
SLACK = 1e-9
SHORT = 60.0  # seconds; shorter waits are due to the scheduler's cycle, not to a limit
MAX_JOBS = 5_000  # maximum number of waiting jobs examined; evenly chosen from larger logs


@dataclass
class Jobs:
    """Jobs with a recorded start, as columns sorted by arrival."""

    unit: str
    arrival: np.ndarray
    start: np.ndarray
    end: np.ndarray
    amount: np.ndarray
    estimate: np.ndarray = field(default_factory=lambda: np.zeros(0))  # run time that the scheduler was given
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # codes by label; -1 if a job has none
    names: dict[str, list[str]] = field(default_factory=dict)
    # Line of a job in its file, or its number if lines are unknown
    line: Callable[[int], int] = lambda job: job + 1  # noqa: E731
    nodes: NodeParts | None = None
    used: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def wait(self) -> np.ndarray:
        return self.start - self.arrival

    @property
    def evidence(self) -> np.ndarray:
        """Mask of the jobs whose waits may serve to infer limits, capacity and order."""
        return np.ones(len(self), dtype=bool) if self.used is None else self.used

    def capacity(self, stated: float | None = None) -> Capacity:
        return capacity_of(self.start, self.end, self.amount, parts=self.nodes, stated=stated)


def jobs_of(table: TaskTable) -> Jobs | None:
    """Return the jobs of a table with a recorded start, or None without any."""
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
        if (values := {"user": table.user, "class": table.class_}.get(kind, table.extra.get(kind))) is not None:
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
    """A log as time steps: the amount in use, and the steps in which each job waits."""

    def __init__(self, jobs: Jobs):
        self.times = np.unique(np.concatenate([jobs.arrival, jobs.start, jobs.end]))
        self.length = np.append(np.diff(self.times), 0.0)
        self.held = HeldOverTime(jobs.start, jobs.end, jobs.amount).at(self.times)
        self.first = np.searchsorted(self.times, jobs.arrival)
        self.last = np.searchsorted(self.times, jobs.start)

    def waiting(self, jobs: Jobs, chosen: np.ndarray | None = None) -> Iterator[tuple[int, slice]]:
        """Yield each job that waited (of `chosen`, if given) and its slice of time steps."""
        rows = np.flatnonzero(self.last > self.first) if chosen is None else chosen
        for row in rows.tolist():
            yield row, slice(int(self.first[row]), int(self.last[row]))


def chosen_of(jobs: Jobs, steps: HeldSteps) -> np.ndarray:
    """Return the rows of jobs that waited; of many only `MAX_JOBS`, evenly spaced."""
    rows = np.flatnonzero(steps.last > steps.first)
    return rows if len(rows) <= MAX_JOBS else rows[np.linspace(0, len(rows) - 1, MAX_JOBS).astype(int)]


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Pearson's correlation of two columns; NaN if one is constant."""
    if len(one) < 2 or one.std() == 0 or other.std() == 0:
        return math.nan
    return float(np.corrcoef(one, other)[0, 1])


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return Spearman's rank correlation of two columns; NaN if one is constant."""
    from scipy.stats import rankdata

    return correlation(rankdata(one), rankdata(other))
