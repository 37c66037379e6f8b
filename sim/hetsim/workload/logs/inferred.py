"""Infers limits, lost capacity and priorities of classes from recorded starts."""

from dataclasses import dataclass

import numpy as np

from hetsim.workload.logs.recorded_log import LABELS, MAX_JOBS, SHORT, SLACK, HeldOverTime, HeldSteps, Jobs, chosen_of

PROMPT = 120.0  # seconds; an earlier start after an end of the same group is taken as caused by that end
FEW = 3  # minimum number of starts that show a limit
BINS = 60
MIN_BIN = 3600.0  # seconds; minimum length of a stretch of time for which a capacity is inferred
PRESSED = 0.5  # fraction of a stretch in which fitting jobs wait, from which its capacity is inferred
NEAR = 0.9  # fraction of the capacity; lower maxima of use are taken as reduced capacity
MAX_OF_GROUP = 500  # maximum number of jobs per user, queue, ... that are examined for a limit, evenly chosen
MAX_CLASSES = 24
SURE = 0.01
SELDOM = 0.2  # fraction of starts that may exceed an inferred limit


@dataclass
class Limits:
    """Limits of the groups of one label (such as user or queue), inferred from waits."""

    kind: str
    max_held: dict[str, float]
    starts: int  # starts right after an end of the same group, though the cluster had room before


@dataclass
class Order:
    """Pairs of classes of which the first has priority, as inferred from a log.

    A pair: (first, second, number of waiting jobs of second that first's jobs overtook, number the other way round).
    """

    kind: str
    pairs: list[tuple[str, str, int, int]]


# Limits ---------------------------------------------------------------------------------------------------------


def limits_of(jobs: Jobs, steps: HeldSteps, capacity: float, warm: float) -> Limits | None:
    """Return limits on groups of jobs that a log shows; None if no group has one.

    A group is all jobs with one value of a label, such as one user.  It has a limit in two cases.  While its jobs wait
    although the cluster has room, it uses one constant amount most of the time, and rarely more.  Or its waiting jobs
    start right after another job of the group ends, far more often than by chance.  If several labels have limits,
    those of the label that explains most waiting are returned.  steps: occupancy over time; warm: time (s) at which the
    log first has its usual occupancy.
    """
    best: tuple[float, Limits] | None = None
    for kind in LABELS:
        if kind not in jobs.labels:
            continue
        limits_by_name, explained, starts = {}, 0.0, 0
        for code, name in enumerate(jobs.names[kind]):
            rows = np.flatnonzero(jobs.labels[kind] == code)
            if (limit := _limit(jobs, steps, rows, capacity=capacity, warm=warm)) is not None:
                limits_by_name[name], seconds, count = limit
                explained, starts = explained + seconds, starts + count
        if limits_by_name and (best is None or explained > best[0]):
            best = explained, Limits(kind, limits_by_name, starts)
    return None if best is None else best[1]


def _limit(
    jobs: Jobs, steps: HeldSteps, rows: np.ndarray, capacity: float, warm: float
) -> tuple[float, float, int] | None:
    """Infer a group's limit, seconds it blocks jobs, starts at job ends; or None."""
    waited = rows[(jobs.wait[rows] > SHORT) & (jobs.start[rows] > warm) & jobs.evidence[rows]]
    if len(waited) < FEW:
        return None
    waited = waited[np.unique(np.linspace(0, len(waited) - 1, min(len(waited), MAX_OF_GROUP)).astype(int))]
    own = HeldOverTime(jobs.start[rows], jobs.end[rows], jobs.amount[rows])
    ends = np.sort(jobs.end[rows])
    at = own.at(steps.times)
    kept = np.zeros(len(steps.times), dtype=bool)  # time steps in which a fitting job of the group waits
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
    limit = _plateau(at[kept], steps.length[kept])
    if limit is not None and float((own.at(jobs.start[waited]) > limit + SLACK).mean()) > SELDOM:
        limit = None
    if limit is None:
        if not _beyond_chance(prompt, roomy, ends, steps.times[-1]):
            return None
        limit = own.peak()
    smallest = float(jobs.amount[waited].min())
    seconds = float(steps.length[kept & (at + smallest > limit + SLACK)].sum())
    return (limit, seconds, prompt) if seconds else None


def _beyond_chance(prompt: int, roomy: int, ends: np.ndarray, last: float) -> bool:
    """Return True if `prompt` of `roomy` starts follow job ends, more than by chance."""
    from scipy.stats import binom

    gaps = np.minimum(np.diff(np.append(ends, max(last, ends[-1]))), PROMPT)
    chance = min(1.0, float(gaps.sum()) / max(last - float(ends[0]), SLACK))
    return prompt >= max(FEW, roomy / 2) and float(binom.sf(prompt - 1, roomy, chance)) < SURE


def _plateau(level: np.ndarray, length: np.ndarray) -> float | None:
    """Return the level above 0 that lasts over half of the time; None: no such level."""
    if not length.sum():
        return None
    values, place = np.unique(level, return_inverse=True)
    time = np.bincount(place, length)
    longest = int(np.argmax(time))
    return float(values[longest]) if values[longest] > 0 and time[longest] > length.sum() / 2 else None


def at_limit_of(jobs: Jobs, steps: HeldSteps, limits: Limits | None) -> dict[int, tuple[HeldOverTime, float]]:
    """Map rows of jobs under a group limit to (use of the group over time, its limit)."""
    if limits is None:
        return {}
    at_limit: dict[int, tuple[HeldOverTime, float]] = {}
    for code, name in enumerate(jobs.names[limits.kind]):
        if name in limits.max_held:
            rows = np.flatnonzero(jobs.labels[limits.kind] == code)
            own = HeldOverTime(jobs.start[rows], jobs.end[rows], jobs.amount[rows])
            at_limit |= dict.fromkeys(rows.tolist(), (own, limits.max_held[name]))
    return at_limit


def limited(
    jobs: Jobs, steps: HeldSteps, row: int, part: slice, at_limit: dict[int, tuple[HeldOverTime, float]]
) -> np.ndarray:
    """Return a mask of the steps in `part` in which a job waits for its group's limit."""
    if row not in at_limit:
        return np.zeros(part.stop - part.start, dtype=bool)
    own, limit = at_limit[row]
    return own.at(steps.times[part]) + jobs.amount[row] > limit + SLACK


# Capacity -------------------------------------------------------------------------------------------------------


def capacity_curve(
    jobs: Jobs, steps: HeldSteps, capacity: float, warm: float, at_limit: dict[int, tuple[HeldOverTime, float]]
) -> np.ndarray:
    """Return the capacity that was available in each time step.

    The log is divided into intervals.  If, for more than half of an interval, a job waits that would fit into the whole
    cluster and is not blocked by a limit, a part of the cluster is assumed to be down: the capacity is the maximum use
    in the interval and its neighbors.  Else it is that of the whole cluster.
    warm: time (s) before which the whole cluster is assumed to be up.  at_limit: as from `at_limit_of`.
    """
    low, high = float(jobs.arrival[0]), float(jobs.arrival[-1])  # behind the last submission a log drains
    curve = np.full(len(steps.times), capacity)
    bins = min(BINS, int((high - low) / MIN_BIN))
    if bins < 2:
        return np.maximum(curve, steps.held)
    edges = np.linspace(low, high, bins + 1)
    bin_of = np.clip(np.searchsorted(edges, steps.times, side="right") - 1, 0, bins - 1)
    pressed = np.zeros(len(steps.times), dtype=bool)
    chosen = chosen_of(jobs, steps)
    for row, part in steps.waiting(jobs, chosen[jobs.evidence[chosen]]):
        fits = capacity - steps.held[part] >= jobs.amount[row] - SLACK
        pressed[part] |= fits & ~limited(jobs, steps, row, part=part, at_limit=at_limit)
    time = np.bincount(bin_of, steps.length, bins)
    share = np.bincount(bin_of, steps.length * pressed, bins) / np.maximum(time, SLACK)
    max_held = np.zeros(bins)
    np.maximum.at(max_held, bin_of, steps.held)
    around = np.maximum(max_held, np.maximum(np.append(max_held[1:], 0.0), np.append(0.0, max_held[:-1])))
    doubtful = (share > PRESSED) & (around < NEAR * capacity) & (edges[:-1] >= warm)
    levels = np.where(doubtful, around, capacity)
    inside = (steps.times >= low) & (steps.times < high)
    curve[inside] = levels[bin_of[inside]]
    return np.minimum(np.maximum(curve, steps.held), capacity)


# Order ----------------------------------------------------------------------------------------------------------


def order_of(jobs: Jobs) -> Order | None:
    """Return the label by which some jobs overtake others; None if there is none.

    A waiting job is overtaken if a later job that requests at least as much starts before it.  Class A has priority
    over class B if A overtakes a larger share of B's waiting jobs than B of A's (Fisher's exact test, 1 % for all pairs
    together).  Pairs that follow from two other pairs are omitted.
    """
    best: tuple[int, Order] | None = None
    for kind in LABELS[1:]:
        if kind not in jobs.labels or not 2 <= len(jobs.names[kind]) <= MAX_CLASSES:
            continue
        passes, waiting = _passes(jobs, jobs.labels[kind], len(jobs.names[kind]))
        if pairs := _surely(passes, waiting):
            names = jobs.names[kind]
            passed = [(names[a], names[b], int(passes[a, b]), int(passes[b, a])) for a, b in _reduced(pairs)]
            count = sum(one[2] for one in passed)
            if best is None or count > best[0]:
                best = count, Order(kind, sorted(passed, key=lambda one: -one[2]))
    return None if best is None else best[1]


def _passes(jobs: Jobs, codes: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Count waiting jobs of class b: overtaken by class a, at [a, b]; in all, at [b]."""
    passing, waiting = np.zeros((count, count), dtype=int), np.zeros(count, dtype=int)
    chosen = np.flatnonzero((jobs.wait > SHORT) & jobs.evidence)
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), MAX_JOBS)).astype(int)] if len(chosen) else chosen
    for row in chosen.tolist():
        if codes[row] < 0:
            continue
        later = slice(row + 1, int(np.searchsorted(jobs.arrival, jobs.start[row])))
        passed = (jobs.start[later] < jobs.start[row]) & (jobs.amount[later] >= jobs.amount[row]) & (codes[later] >= 0)
        passing[np.unique(codes[later][passed]), codes[row]] += 1
        waiting[codes[row]] += 1
    return passing, waiting


def _surely(passes: np.ndarray, waiting: np.ndarray) -> set[tuple[int, int]]:
    from scipy.stats import fisher_exact

    pairs_in_order = set()
    pairs = [(a, b) for a in range(len(passes)) for b in range(len(passes)) if a != b and passes[a, b]]
    for a, b in pairs:
        table = [[passes[a, b], waiting[b] - passes[a, b]], [passes[b, a], waiting[a] - passes[b, a]]]
        if float(fisher_exact(table, alternative="greater")[1]) < SURE / len(pairs):
            pairs_in_order.add((a, b))
    return pairs_in_order


def _reduced(pairs: set[tuple[int, int]]) -> list[tuple[int, int]]:
    classes = {one for pair in pairs for one in pair}
    return sorted((a, b) for a, b in pairs if not any((a, c) in pairs and (c, b) in pairs for c in classes))
