"""Explains why jobs of a log waited: capacity, limits, order, and unknown causes.

A log with recorded starts shows at every instant what was in use and which jobs waited.  Each waiting second of each
job is attributed to the first of these reasons that applies:

    no room         the job did not fit into the free capacity of the whole cluster
    nodes down      it did not fit into the free part of the capacity that was up then (`capacity_curve`)
    before the log  the time is before `warm_end`, when jobs may have run that are not in the log
    limit           its user, queue or other group had reached its limit (`limits_of`)
    priority        a job of a class with priority over its own (`order_of`) waited for room
    order           a job that arrived earlier waited for room
    fragmented      it fitted into the free capacity of the cluster, but on no single node
    held back       it fitted, and nothing in the log explains why it did not start

Capacity is one pool of GPUs, or of cores if no job uses a GPU.  If all rows name their nodes, a job that ran on one
node also waits for room while it fits on no single node.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.workload.logs.inferred import Limits, Order, at_limit_of, capacity_curve, limited, limits_of, order_of
from hetsim.workload.logs.recorded_log import SLACK, Capacity, HeldSteps, Jobs, chosen_of, jobs_of, level_of
from hetsim.workload.rows.job_times import HeldOverTime
from hetsim.workload.traces import TaskTable

REASONS = ("no room", "nodes down", "before the log", "limit", "priority", "order", "fragmented", "held back")


@dataclass
class Explained:
    """Recorded waits of a log by reason, and the inferred limits, order and capacity."""

    jobs: Jobs
    site: Capacity
    curve: list[tuple[float, float]]  # times, and the available capacity from each time on
    warm_end: float
    limits: Limits | None
    order: Order | None
    shares: dict[str, float]  # of all waiting seconds, by reason
    looked_at: int

    @property
    def capacity(self) -> float:
        """Number of GPUs of the cluster, or of cores if no job uses a GPU."""
        return self.site.amount

    @property
    def mean_wait(self) -> float:
        return float(self.jobs.wait.mean())


def explain(
    table: TaskTable, capacity: float | None = None, cut: bool = False, part: int | None = None
) -> Explained | None:
    """Explain the recorded waits of a log; None without starts or waits.

    `capacity`: number of GPUs (or cores) of the cluster (None: inferred from the log).  `cut`: True if the log has all
    jobs that ran or waited at its beginning (a warm start), so that no running job is missing.  `part`: infer limits
    and capacity from the waits of one half of the jobs only (`half_of`).
    """
    jobs = jobs_of(table)
    if jobs is None or not (jobs.wait > 0).any():
        return None
    site = jobs.capacity(capacity)
    amount = site.amount
    if part is not None:
        jobs.used = half_of(jobs.arrival) == part
    steps = HeldSteps(jobs)
    warm = float(jobs.arrival[0]) if cut else warm_end(jobs, steps)
    limits = limits_of(jobs, steps, amount, warm)
    at_limit = at_limit_of(jobs, steps, limits)
    curve = capacity_curve(jobs, steps, amount, warm=warm, at_limit=at_limit)
    order = order_of(jobs)
    shares, looked_at = _attributed(jobs, steps, amount, curve=curve, warm=warm, at_limit=at_limit, order=order)
    points = [(float(steps.times[0]), float(curve[0]))]
    points += [(float(steps.times[k]), float(curve[k])) for k in (np.flatnonzero(np.diff(curve)) + 1).tolist()]
    return Explained(jobs, site, points, warm_end=warm, limits=limits, order=order, shares=shares, looked_at=looked_at)


def half_of(arrival: np.ndarray) -> np.ndarray:
    """Divide jobs by a hash into halves 0 (to infer rules) and 1 (to judge the rules)."""
    keys = np.rint(arrival * 1000).astype(np.int64).astype(np.uint64)
    return ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)) & np.uint64(1)


# The head of the log --------------------------------------------------------------------------------------------


def warm_end(jobs: Jobs, steps: HeldSteps) -> float:
    """Return the time at which the log first reaches its median occupancy.

    Until then the occupancy rises from 0, because jobs ran that are not in the log.
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


# Reasons --------------------------------------------------------------------------------------------------------


def _attributed(
    jobs: Jobs, steps: HeldSteps, capacity: float, curve: np.ndarray, warm: float, at_limit: dict[int, Any],
    order: Order | None,
) -> tuple[dict[str, float], int]:  # fmt: skip
    """Return the share of waiting time by reason, and the number of jobs examined."""
    rows = chosen_of(jobs, steps)
    earliest = np.full(len(steps.times), math.inf)  # by step: arrival of the first job that waits for room
    codes = None if order is None else jobs.labels[order.kind]
    before = {} if order is None else _before(order, jobs.names[order.kind])
    lacking: dict[int, np.ndarray] = {}  # by class: steps in which a job waits for room
    widest = _widest(jobs, steps)
    for row, part in steps.waiting(jobs, rows):
        short = (curve[part] - steps.held[part] < jobs.amount[row] - SLACK) | _split(jobs, row, part, widest)
        earliest[part] = np.where(short, np.minimum(earliest[part], jobs.arrival[row]), earliest[part])
        if codes is not None and codes[row] >= 0:
            steps_lacking = lacking.setdefault(int(codes[row]), np.zeros(len(steps.times), dtype=bool))
            steps_lacking[part] |= short
    seconds_by_reason = dict.fromkeys(REASONS, 0.0)
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
            limited(jobs, steps, row, part=part, at_limit=at_limit),
            first,
            earliest[part] < jobs.arrival[row],
            _split(jobs, row, part, widest),
            np.ones(len(length), dtype=bool),
        )
        unexplained = np.ones(len(length), dtype=bool)
        for reason, here in zip(REASONS, holds, strict=True):
            seconds_by_reason[reason] += float(length[unexplained & here].sum())
            unexplained &= ~here
    total = math.fsum(seconds_by_reason.values())
    return {reason: value / total for reason, value in seconds_by_reason.items()}, len(rows)


def _widest(jobs: Jobs, steps: HeldSteps) -> np.ndarray | None:
    """Return, by step, the most free GPUs (or cores) on one node; None without nodes."""
    if (parts := jobs.nodes) is None:
        return None
    widest_free = np.zeros(len(steps.times))
    for node in range(len(parts.names)):
        if len(rows := parts.jobs_on(node)):
            start, end, amount = jobs.start[parts.job[rows]], jobs.end[parts.job[rows]], parts.amount[rows]
            size = level_of(start, end, amount)
            widest_free = np.maximum(widest_free, size - HeldOverTime(start, end, amount).at(steps.times))
    return widest_free


def _split(jobs: Jobs, row: int, part: slice, widest: np.ndarray | None) -> np.ndarray:
    """Return a mask: steps in which no single node has room for one-node job `row`."""
    if widest is None or jobs.nodes is None or not jobs.nodes.alone[row]:
        return np.zeros(part.stop - part.start, dtype=bool)
    return widest[part] < jobs.amount[row] - SLACK


def _before(order: Order, names: list[str]) -> dict[int, set[int]]:
    """Return, by class, all classes with priority over it, directly or through others."""
    direct: dict[int, set[int]] = {}
    for first, second, *_ in order.pairs:
        direct.setdefault(names.index(second), set()).add(names.index(first))
    classes_before: dict[int, set[int]] = {}
    for code in direct:
        seen: set[int] = set()
        ahead = list(direct[code])
        while ahead:
            one = ahead.pop()
            if one not in seen and one != code:
                seen.add(one)
                ahead += direct.get(one, ())
        classes_before[code] = seen
    return classes_before
