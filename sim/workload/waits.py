"""Why jobs of a log waited, as far as the log itself tells: capacity, limits, order, and what cannot be told.

A log with recorded starts says at every instant what was held and who waited.  Each waiting second of each job gets the
first of these reasons that holds:

    no room         the job did not fit into what was free of the whole cluster
    nodes down      it did not fit into what was free of the capacity that was up then (`capacity_curve`)
    before the log  the head of the log, in which jobs ran that the log does not know (`warm_end`)
    limit           its user, queue, ... held as much as it ever did (`limits_of`)
    priority        a job of a class that goes before its own (`order_of`) waited for room
    order           a job that came earlier waited for room
    held back       it fitted, and nothing in the log says why it did not start

Capacity is one pool of GPUs, or of cores where no job holds a GPU: how jobs lie on nodes does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.workload.summary import durations, held
from sim.workload.traces import TaskTable

REASONS = ("no room", "nodes down", "before the log", "limit", "priority", "order", "held back")
LABELS = ("user", "queue", "partition", "vc", "account", "group", "qos", "class")
"""By which limits and orders are looked for."""
SLACK = 1e-9
SHORT = 60.0
"""Waits of less than a minute are the pace of a scheduler, no sign of a limit."""
MOMENT = 60.0
PROMPT = 120.0
"""A start so soon after an end of the same group is taken to be let in by it."""
FEW = 3
"""Starts that show a limit, at least."""
BINS = 60
LEAST_BIN = 3600.0
"""Stretches of time for which a capacity is inferred: so many, at least an hour each."""
PRESSED = 0.5
"""The share of a stretch of time in which jobs must wait that would fit, for its capacity to be in doubt."""
NEAR = 0.9
"""Of the whole capacity: what is held at most by so much of it was up."""
MAX_JOBS = 5_000
"""Jobs whose waits are looked at second by second; of larger logs evenly chosen ones."""
MAX_CLASSES = 24
SURE = 0.01
SELDOM = 0.2
"""Starts that may lead above what is taken for a limit."""


@dataclass
class Jobs:
    """Columns of the jobs with a recorded start, by arrival."""

    unit: str
    arrival: np.ndarray
    start: np.ndarray
    end: np.ndarray
    amount: np.ndarray
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    """Codes by kind of label; -1 where a job has none."""
    names: dict[str, list[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def wait(self) -> np.ndarray:
        return self.start - self.arrival

    def peak(self) -> float:
        """The most that was held, but for moments."""
        found = Occupancy(self.start, self.end, self.amount).peak()
        return max(found, float(self.amount.max(initial=0.0)))


@dataclass
class Occupancy:
    """What is held over time, as steps: `level[k]` from `times[k]` on."""

    def __init__(self, start: np.ndarray, end: np.ndarray, amount: np.ndarray):
        times = np.concatenate([start, end])
        change = np.concatenate([amount, -amount])
        order = np.lexsort((change, times))  # ends before starts at one instant
        self.times, first = np.unique(times[order], return_index=True)
        total = np.cumsum(change[order])
        self.level = np.append(total[first[1:] - 1], total[-1:]) if len(total) else total
        self.level = np.where(np.abs(self.level) < 1e-6, 0.0, self.level)

    def peak(self) -> float:
        """The highest level, but for `MOMENT` seconds: a log that rounds its times shows jobs that overlap."""
        length = np.append(np.diff(self.times), 0.0)
        order = np.argsort(-self.level, kind="stable")
        above = np.searchsorted(np.cumsum(length[order]), min(MOMENT, length.sum() / 2), side="right")
        return float(self.level[order][min(above, len(order) - 1)]) if len(order) else 0.0

    def at(self, times: np.ndarray) -> np.ndarray:
        """The level at each of these times (right after what happens then)."""
        place = np.searchsorted(self.times, times, side="right") - 1
        return np.where(place >= 0, self.level[np.maximum(place, 0)], 0.0)


@dataclass
class Limits:
    """What the jobs of one kind of label hold at most, where the log shows that more were kept waiting."""

    kind: str
    most: dict[str, float]
    starts: int
    """Starts that followed an end of their own group at once, though there had been room before."""


@dataclass
class Order:
    """Classes of one kind of label of which one passes the other: first, second, jobs passed, jobs passed back."""

    kind: str
    pairs: list[tuple[str, str, int, int]]


@dataclass
class Explained:
    """The recorded waits of a log by reason, and what was inferred for that."""

    jobs: Jobs
    capacity: float
    curve: list[tuple[float, float]]
    """Times, and the capacity that was up from each of them on."""
    warm_end: float
    limits: Limits | None
    order: Order | None
    shares: dict[str, float]
    """Of all waiting seconds, by reason."""
    looked_at: int

    @property
    def mean_wait(self) -> float:
        return float(self.jobs.wait.mean())


def jobs_of(table: TaskTable) -> Jobs | None:
    """The jobs of a table that have a recorded start; None where none has."""
    start = table.extra.get("recorded_start")
    if start is None or table.requests:
        return None
    gpus, cores = held(table)
    took = durations(table)
    amount = gpus if gpus.any() else cores
    rows = np.flatnonzero(np.isfinite(start) & np.isfinite(took) & (amount > 0))
    if not len(rows):
        return None
    rows = rows[np.argsort(table.arrival[rows], kind="stable")]
    begun = np.maximum(start[rows], table.arrival[rows])
    jobs = Jobs("GPUs" if gpus.any() else "cores", table.arrival[rows], begun, begun + took[rows], amount[rows])
    for kind in LABELS:
        values = {"user": table.user, "class": table.class_}.get(kind, table.extra.get(kind))
        if values is not None:
            _label(jobs, kind, values[rows])
    return jobs


def _label(jobs: Jobs, kind: str, values: np.ndarray) -> None:
    import pandas as pd

    texts = np.array(["" if value != value or value is None else str(value) for value in values.tolist()], dtype=object)
    codes, names = pd.factorize(np.where(texts == "", None, texts))  # type: ignore[call-overload]
    if len(names):
        jobs.labels[kind], jobs.names[kind] = codes, [str(name) for name in names]


class Steps:
    """The log as steps of time between all its events, with what is held, and the steps in which each job waits."""

    def __init__(self, jobs: Jobs):
        self.times = np.unique(np.concatenate([jobs.arrival, jobs.start, jobs.end]))
        self.length = np.append(np.diff(self.times), 0.0)
        self.held = Occupancy(jobs.start, jobs.end, jobs.amount).at(self.times)
        self.first = np.searchsorted(self.times, jobs.arrival)
        self.last = np.searchsorted(self.times, jobs.start)

    def waiting(self, jobs: Jobs, chosen: np.ndarray | None = None) -> Iterator[tuple[int, slice]]:
        """Each job that waits, and its steps."""
        rows = np.flatnonzero(self.last > self.first) if chosen is None else chosen
        for row in rows.tolist():
            yield row, slice(int(self.first[row]), int(self.last[row]))


def explain(table: TaskTable, capacity: float | None = None, cut: bool = False) -> Explained | None:
    """The recorded waits of a log by reason; None where it has no recorded starts, or nothing waits.

    `capacity`: of the cluster, in GPUs or cores; the most that was ever held unless given.  `cut`: the log begins with
    what was in the cluster then (a warm start), so that nothing unknown runs in its head.
    """
    jobs = jobs_of(table)
    if jobs is None or not (jobs.wait > 0).any():
        return None
    whole = max(jobs.peak(), capacity or 0.0)
    steps = Steps(jobs)
    warm = float(jobs.arrival[0]) if cut else warm_end(jobs, steps)
    limits = limits_of(jobs, steps, whole, warm)
    at_limit = _at_limit(jobs, steps, limits)
    curve = capacity_curve(jobs, steps, whole, warm, at_limit)
    order = order_of(jobs)
    shares, looked_at = _attributed(jobs, steps, whole, curve, warm, at_limit, order)
    points = [(float(steps.times[0]), float(curve[0]))]
    points += [(float(steps.times[k]), float(curve[k])) for k in (np.flatnonzero(np.diff(curve)) + 1).tolist()]
    return Explained(jobs, whole, points, warm, limits, order, shares, looked_at)


# The head of the log --------------------------------------------------------------------------------------------


def warm_end(jobs: Jobs, steps: Steps) -> float:
    """When the log first holds what it holds in the median of its time between first and last submission.

    Before that its occupancy rises from nothing, which no cluster in use does: jobs ran that it does not know.
    """
    low, high = jobs.arrival[0], jobs.arrival[-1]
    inside = (steps.times >= low) & (steps.times < high)
    level, length = steps.held[inside], steps.length[inside]
    if not length.sum():
        return float(low)
    order = np.argsort(level)
    middle = level[order][np.searchsorted(np.cumsum(length[order]), length.sum() / 2)]
    reached = np.flatnonzero(inside & (steps.held >= middle))
    return float(steps.times[reached[0]]) if len(reached) else float(low)


# Limits ---------------------------------------------------------------------------------------------------------


def limits_of(jobs: Jobs, steps: Steps, capacity: float, warm: float) -> Limits | None:
    """The kind of label whose limits explain the most waiting, if any does.

    A group has a limit where most of the time in which its jobs wait although there is room it holds one and the same
    amount, and seldom more; or where such jobs start right after one of its own ended, far more often than by chance.
    """
    best: tuple[float, Limits] | None = None
    for kind in LABELS:
        if kind not in jobs.labels:
            continue
        found, explained, starts = {}, 0.0, 0
        for code, name in enumerate(jobs.names[kind]):
            rows = np.flatnonzero(jobs.labels[kind] == code)
            told = _limit(jobs, steps, rows, capacity, warm)
            if told is not None:
                found[name], seconds, count = told
                explained, starts = explained + seconds, starts + count
        if found and (best is None or explained > best[0]):
            best = explained, Limits(kind, found, starts)
    return None if best is None else best[1]


def _limit(
    jobs: Jobs, steps: Steps, rows: np.ndarray, capacity: float, warm: float
) -> tuple[float, float, int] | None:
    """The most that these jobs hold, how long others of them waited for that, and how many starts show it."""
    waited = rows[(jobs.wait[rows] > SHORT) & (jobs.start[rows] > warm)]
    if len(waited) < FEW:
        return None
    own = Occupancy(jobs.start[rows], jobs.end[rows], jobs.amount[rows])
    ends = np.sort(jobs.end[rows])
    at = own.at(steps.times)
    kept = np.zeros(len(steps.times), dtype=bool)
    """Steps in which a job of the group waits that would fit."""
    roomy = prompt = 0
    for row in waited.tolist():
        part = slice(int(steps.first[row]), int(steps.last[row]))
        fits = capacity - steps.held[part] >= jobs.amount[row] - SLACK
        kept[part] |= fits
        if fits[-1] and float(steps.length[part][fits].sum()) > SHORT:
            roomy += 1
            before = np.searchsorted(ends, jobs.start[row], side="right") - 1
            prompt += bool(before >= 0 and jobs.start[row] - ends[before] <= PROMPT)
    if roomy < FEW:
        return None
    most = _plateau(at[kept], steps.length[kept])
    if most is not None and float((own.at(jobs.start[waited]) > most + SLACK).mean()) > SELDOM:
        most = None
    if most is None:
        if not _beyond_chance(prompt, roomy, ends, steps.times[-1]):
            return None
        most = own.peak()
    least = float(jobs.amount[waited].min())
    seconds = float(steps.length[kept & (at + least > most + SLACK)].sum())
    return (most, seconds, prompt) if seconds else None


def _beyond_chance(prompt: int, roomy: int, ends: np.ndarray, last: float) -> bool:
    """Do more starts follow an end at once than would if they fell anywhere?"""
    from scipy.stats import binom

    gaps = np.minimum(np.diff(np.append(ends, max(last, ends[-1]))), PROMPT)
    chance = min(1.0, float(gaps.sum()) / max(last - float(ends[0]), SLACK))
    return prompt >= max(FEW, roomy / 2) and float(binom.sf(prompt - 1, roomy, chance)) < SURE


def _plateau(level: np.ndarray, length: np.ndarray) -> float | None:
    """The level that is held for more than half of the time, if there is one and it is not 0."""
    if not length.sum():
        return None
    values, place = np.unique(level, return_inverse=True)
    time = np.bincount(place, length)
    most = int(np.argmax(time))
    return float(values[most]) if values[most] > 0 and time[most] > length.sum() / 2 else None


def _at_limit(jobs: Jobs, steps: Steps, limits: Limits | None) -> dict[int, tuple[Occupancy, float]]:
    """By job: what its group holds, and the most that it may; only jobs of groups with a limit."""
    if limits is None:
        return {}
    found: dict[int, tuple[Occupancy, float]] = {}
    for code, name in enumerate(jobs.names[limits.kind]):
        if name in limits.most:
            rows = np.flatnonzero(jobs.labels[limits.kind] == code)
            own = Occupancy(jobs.start[rows], jobs.end[rows], jobs.amount[rows])
            found |= dict.fromkeys(rows.tolist(), (own, limits.most[name]))
    return found


def _limited(jobs: Jobs, steps: Steps, row: int, part: slice, at_limit: dict[int, Any]) -> np.ndarray:
    """In which of its steps a job is kept waiting by the limit of its group."""
    if row not in at_limit:
        return np.zeros(part.stop - part.start, dtype=bool)
    own, most = at_limit[row]
    kept: np.ndarray = own.at(steps.times[part]) + jobs.amount[row] > most + SLACK
    return kept


# Capacity -------------------------------------------------------------------------------------------------------


def capacity_curve(
    jobs: Jobs, steps: Steps, capacity: float, warm: float, at_limit: dict[int, tuple[Occupancy, float]]
) -> np.ndarray:
    """The capacity that was up in each step.

    In a stretch of time in half of which jobs wait that would fit into the whole cluster and are at no limit, what was
    held there at most (and in the stretches next to it) is what was up; elsewhere the whole cluster.
    """
    low, high = float(jobs.arrival[0]), float(jobs.arrival[-1])  # behind the last submission a log drains
    curve = np.full(len(steps.times), capacity)
    bins = min(BINS, int((high - low) / LEAST_BIN))
    if bins < 2:
        return np.maximum(curve, steps.held)
    edges = np.linspace(low, high, bins + 1)
    bin_of = np.clip(np.searchsorted(edges, steps.times, side="right") - 1, 0, bins - 1)
    pressed = np.zeros(len(steps.times), dtype=bool)
    for row, part in steps.waiting(jobs, _chosen(jobs, steps)):
        fits = capacity - steps.held[part] >= jobs.amount[row] - SLACK
        pressed[part] |= fits & ~_limited(jobs, steps, row, part, at_limit)
    time = np.bincount(bin_of, steps.length, bins)
    share = np.bincount(bin_of, steps.length * pressed, bins) / np.maximum(time, SLACK)
    most = np.zeros(bins)
    np.maximum.at(most, bin_of, steps.held)
    around = np.maximum(most, np.maximum(np.append(most[1:], 0.0), np.append(0.0, most[:-1])))
    doubtful = (share > PRESSED) & (around < NEAR * capacity) & (edges[:-1] >= warm)
    levels = np.where(doubtful, around, capacity)
    inside = (steps.times >= low) & (steps.times < high)
    curve[inside] = levels[bin_of[inside]]
    return np.maximum(curve, steps.held)


# Order ----------------------------------------------------------------------------------------------------------


def order_of(jobs: Jobs) -> Order | None:
    """The kind of label by which jobs pass each other one way only, as a partial order; None where none does.

    A job passes one that came before it, waits, and asks for no more than it does.  One class goes before another where
    of the other's waiting jobs a larger share is passed by its own than the other way round (Fisher's exact test, 1 %
    for all pairs together); pairs that follow from others are left out.
    """
    best: tuple[int, Order] | None = None
    for kind in LABELS[1:]:
        if kind not in jobs.labels or not 2 <= len(jobs.names[kind]) <= MAX_CLASSES:
            continue
        passes, waiting = _passes(jobs, jobs.labels[kind], len(jobs.names[kind]))
        pairs = _surely(passes, waiting)
        if pairs:
            names = jobs.names[kind]
            told = [(names[a], names[b], int(passes[a, b]), int(passes[b, a])) for a, b in _reduced(pairs)]
            count = sum(one[2] for one in told)
            if best is None or count > best[0]:
                best = count, Order(kind, sorted(told, key=lambda one: -one[2]))
    return None if best is None else best[1]


def _passes(jobs: Jobs, codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """How many waiting jobs of one class (column) were passed by any of another (row), and how many waited."""
    found, waiting = np.zeros((count, count), dtype=int), np.zeros(count, dtype=int)
    chosen = np.flatnonzero(jobs.wait > SHORT)
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), MAX_JOBS)).astype(int)] if len(chosen) else chosen
    for row in chosen.tolist():
        if codes[row] < 0:
            continue
        later = slice(row + 1, int(np.searchsorted(jobs.arrival, jobs.start[row])))
        passed = (jobs.start[later] < jobs.start[row]) & (jobs.amount[later] >= jobs.amount[row]) & (codes[later] >= 0)
        found[np.unique(codes[later][passed]), codes[row]] += 1
        waiting[codes[row]] += 1
    return found, waiting


def _surely(passes: np.ndarray, waiting: np.ndarray) -> set[tuple[int, int]]:
    from scipy.stats import fisher_exact

    found = set()
    pairs = [(a, b) for a in range(len(passes)) for b in range(len(passes)) if a != b and passes[a, b]]
    for a, b in pairs:
        table = [[passes[a, b], waiting[b] - passes[a, b]], [passes[b, a], waiting[a] - passes[b, a]]]
        if float(fisher_exact(table, alternative="greater")[1]) < SURE / len(pairs):
            found.add((a, b))
    return found


def _reduced(pairs: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs that do not follow from two others; of a circle nothing follows."""
    classes = {one for pair in pairs for one in pair}
    return sorted((a, b) for a, b in pairs if not any((a, c) in pairs and (c, b) in pairs for c in classes))


# Reasons --------------------------------------------------------------------------------------------------------


def _chosen(jobs: Jobs, steps: Steps) -> np.ndarray:
    """Jobs that wait, of large logs evenly chosen ones."""
    rows = np.flatnonzero(steps.last > steps.first)
    if len(rows) <= MAX_JOBS:
        return rows
    return rows[np.linspace(0, len(rows) - 1, MAX_JOBS).astype(int)]


def _attributed(
    jobs: Jobs, steps: Steps, capacity: float, curve: np.ndarray, warm: float, at_limit: dict[int, Any],
    order: Order | None,
) -> tuple[dict[str, float], int]:  # fmt: skip
    """The share of all waiting seconds by reason, and how many jobs were looked at."""
    rows = _chosen(jobs, steps)
    earliest = np.full(len(steps.times), math.inf)
    """In each step the arrival of the first job that waits for room."""
    codes = None if order is None else jobs.labels[order.kind]
    before = {} if order is None else _before(order, jobs.names[order.kind])
    lacking: dict[int, np.ndarray] = {}
    """By class: in which steps one of its jobs waits for room."""
    for row, part in steps.waiting(jobs, rows):
        short = curve[part] - steps.held[part] < jobs.amount[row] - SLACK
        earliest[part] = np.where(short, np.minimum(earliest[part], jobs.arrival[row]), earliest[part])
        if codes is not None and codes[row] >= 0:
            known = lacking.setdefault(int(codes[row]), np.zeros(len(steps.times), dtype=bool))
            known[part] |= short
    found = dict.fromkeys(REASONS, 0.0)
    for row, part in steps.waiting(jobs, rows):
        amount, length = jobs.amount[row] - SLACK, steps.length[part]
        first = np.zeros(len(length), dtype=bool)
        if codes is not None:
            for code in before.get(int(codes[row]), ()):
                if code in lacking:
                    first |= lacking[code][part]
        holds = (
            capacity - steps.held[part] < amount,
            curve[part] - steps.held[part] < amount,
            steps.times[part] < warm,
            _limited(jobs, steps, row, part, at_limit),
            first,
            earliest[part] < jobs.arrival[row],
            np.ones(len(length), dtype=bool),
        )
        left = np.ones(len(length), dtype=bool)
        for reason, here in zip(REASONS, holds, strict=True):
            found[reason] += float(length[left & here].sum())
            left &= ~here
    total = math.fsum(found.values())
    return {reason: value / total for reason, value in found.items()}, len(rows)


def _before(order: Order, names: list[str]) -> dict[int, set[int]]:
    """By class: those that go before it, those that follow from others included."""
    direct: dict[int, set[int]] = {}
    for first, second, *_ in order.pairs:
        direct.setdefault(names.index(second), set()).add(names.index(first))
    found: dict[int, set[int]] = {}
    for code in direct:
        seen: set[int] = set()
        ahead = list(direct[code])
        while ahead:
            one = ahead.pop()
            if one not in seen and one != code:
                seen.add(one)
                ahead += direct.get(one, ())
        found[code] = seen
    return found
