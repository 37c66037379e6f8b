"""The share of each class on each device type, and the order of its turns.

A class's tasks are taken together: what counts is their number, their time on each type and the device-seconds that
they need there.  `by_program` splits classes freely: the linear program of `unrelated` on work that can be divided
gives the least T in which all is done.  `by_guess` puts whole parts of classes on cores or accelerators with
`dual_approximation`.  Where all is done within FILL of an epoch there is no haste: then every class is where it takes
least time, as far as the devices are not filled further.

`Turns` hands the tasks of a class to groups in these shares.  Reference: Tijdeman, The Chairman Assignment Problem
(Discrete Mathematics 32, 1980): after every n tasks a group has less than one task more or less than its share of n.
Cost: one or two linear programs of classes × types variables; a turn O(log groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

import numpy as np

Planner = Literal["lp", "dual_approximation"]

FILL = 0.8
"""Part of an epoch up to which devices are filled with what is fastest there; queues grow long beyond it."""
PARTS = 32
"""Parts of a class that the dual approximation places whole."""
SLACK = 1e-6
"""Relative slack of the second program over the value of the first."""


def shares(work: np.ndarray, lanes: np.ndarray, epoch: float, planner: Planner, fill: float = FILL) -> np.ndarray:
    """The share of each class (row) on each type (column); rows sum to 1 or 0.

    work: device-seconds of all tasks of a class on a type, inf where they cannot run; lanes: devices of a type.
    fill: part of an epoch within which there is no haste; 0: all is to end as early as possible, inf: everything is
        where it takes least time.
    """
    possible = np.where(lanes > 0, work, np.inf)
    share = np.zeros(work.shape)
    rows = np.flatnonzero(np.isfinite(possible).any(axis=1))
    if len(rows):
        plan = by_program if planner == "lp" else by_guess
        share[rows] = plan(possible[rows], lanes, fill * epoch)
    return share


def by_program(work: np.ndarray, lanes: np.ndarray, unhurried: float) -> np.ndarray:
    """Two linear programs: the minimum T, then the minimum work within that T."""
    from hetsim_policies.static.common.unrelated import split

    share = split(work, [int(count) for count in lanes], divisible=True).share
    longest = loads(share, work, lanes).max(initial=0.0)
    return min_work(work, lanes, max(longest * (1 + SLACK), unhurried), share)


def min_work(work: np.ndarray, lanes: np.ndarray, limit: float, otherwise: np.ndarray) -> np.ndarray:
    """The split of minimum work with no device above `limit`, or `otherwise`."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    fastest = np.zeros(work.shape)
    fastest[np.arange(len(work)), work.argmin(axis=1)] = 1.0
    if loads(fastest, work, lanes).max(initial=0.0) <= limit:
        return fastest
    row, column = np.nonzero(np.isfinite(work))
    number, scale = np.arange(len(row)), limit or 1.0
    area = work[row, column] / scale
    once = csr_array((np.ones(len(row)), (row, number)), shape=(len(work), len(row)))
    load = csr_array((area, (column, number)), shape=(work.shape[1], len(row)))
    solution = linprog(area, A_ub=load, b_ub=lanes * (limit / scale), A_eq=once, b_eq=np.ones(len(work)),
                    method="highs-ds")  # fmt: skip
    if solution.x is None:
        return otherwise
    share = np.zeros(work.shape)
    share[row, column] = np.maximum(0.0, solution.x)
    return share / share.sum(axis=1, keepdims=True)


def by_guess(work: np.ndarray, lanes: np.ndarray, unhurried: float) -> np.ndarray:
    """Dual approximation on two types: each side one machine, each class PARTS tasks.

    Where its guess comes out below `unhurried`, that is the guess: the second side is filled by speed-up as far as it
    gains (`greedy_dual.fill`).
    """
    from hetsim_policies.static.dual_approximation import solve
    from hetsim_policies.static.two_sides import by_speed_up, fill

    fastest = np.zeros(work.shape)
    fastest[np.arange(len(work)), work.argmin(axis=1)] = 1.0
    if work.shape[1] < 2 or loads(fastest, work, lanes).max(initial=0.0) <= unhurried:
        return fastest
    times = np.repeat(work / np.maximum(lanes, 1), PARTS, axis=0) / PARTS
    solution = solve(times[:, 0], times[:, 1], int(lanes[0] > 0), int(lanes[1] > 0), tolerance=0.01)
    second = solution.schedule.on_gpu
    if solution.makespan < unhurried:
        filled = fill(times, [1, 1], by_speed_up(times), unhurried)
        if filled is not None:
            filled &= times[:, 1] < times[:, 0]
            second = filled if float(times[~filled, 0].sum()) <= unhurried else second
    part = second.reshape(len(work), PARTS).mean(axis=1)
    return np.column_stack([1.0 - part, part])


def loads(share: np.ndarray, work: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """Seconds of work a device of each type has."""
    done = np.where(share > 0, share * np.where(np.isfinite(work), work, 0.0), 0.0)
    return np.asarray(done.sum(axis=0) / np.maximum(lanes, 1))


def apportion(count: int, share: Sequence[float]) -> list[int]:
    """Whole tasks by shares that sum to 1: the largest remainders round up."""
    exact = [count * part for part in share]
    counts = [int(value) for value in exact]
    behind = sorted(range(len(share)), key=lambda i: (counts[i] - exact[i], i))
    for i in behind[: count - sum(counts)]:
        counts[i] += 1
    return counts


class Turns:
    """Turns of groups that keep all to their shares at every moment (Tijdeman 1980).

    Of the groups that may have another task (it would be less than one ahead of its share), the one that must have it
    first goes; among equals the group number `first` or the next after it.
    """

    def __init__(self, share: dict[int, float], first: int = 0):
        self.share = {group: part for group, part in share.items() if part > 0}
        total = sum(self.share.values())
        self.share = {group: part / total for group, part in self.share.items()}
        self.taken = dict.fromkeys(self.share, 0)
        self.count = 0
        self._grace = 1 / (2 * len(self.share) - 2) if len(self.share) > 1 else 0.0
        order = sorted(self.share)
        self._rank = {group: (number - first) % len(order) for number, group in enumerate(order)}
        self._early = [(self._grace / part, self._rank[group], group) for group, part in self.share.items()]
        """When groups may have their next task, by the count of tasks."""
        heapify(self._early)
        self._due: list[tuple[float, int, int]] = []

    def next(self) -> int:
        """The group that gets the next task."""
        self.count += 1
        while self._early and (self._early[0][0] <= self.count or not self._due):
            group = heappop(self._early)[2]
            due = (self.taken[group] + 1 - self._grace) / self.share[group]
            heappush(self._due, (due, self._rank[group], group))
        group = heappop(self._due)[2]
        self.taken[group] += 1
        heappush(self._early, ((self.taken[group] + self._grace) / self.share[group], self._rank[group], group))
        return group
