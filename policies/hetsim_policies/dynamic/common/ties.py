"""Constraints that tie fractions of time in pairs: while job A shares devices with job B, B shares them with A.

In Gavel's program over pairs a fraction belongs to two jobs, and there is one for every two jobs that may share a type
of device.  The speed of a job in a pair depends only on the label of its partner (class, width, memory).  So here a
job has one fraction for each label that it may share devices with, and the sums must agree: the time that jobs of
label a share devices with jobs of label b equals the time that jobs of label b share them with jobs of label a.
Within one label, no job can be its own partner: its time there is at most that of all other jobs of the label.
That is the same program: times that agree can always be split into pairs of jobs (a transport problem; within a
label a symmetric one, which has a solution if no job has more than half of the sum).  It has jobs × labels columns
instead of jobs × jobs / 2.
One constraint is not in Gavel's program: when an odd number of jobs of one label pair with each other, one job is
always left over, on whatever types, so their times in such pairs sum to at most their number less one.
Weakness, as in Gavel's program: the same holds for any odd number of jobs of different labels, but is not enforced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, hstack, vstack


@dataclass(frozen=True)
class Ties:
    """Rows over the columns of the fractions, then of the sums by label: `equal` · x = 0 and `most` · x ≤ `limits`."""

    equal: csr_array
    most: csr_array
    limits: np.ndarray
    fractions: int
    sums: int

    def add_to(
        self, cost: np.ndarray, matrix: csr_array, limits: np.ndarray
    ) -> tuple[np.ndarray, csr_array, np.ndarray, csr_array, np.ndarray]:
        """A program with these rows, and the columns of the sums at its end: cost, rows, limits, equations, zeros."""
        between = len(cost) - self.fractions
        cost = np.concatenate([cost, np.zeros(self.sums)])
        matrix = hstack([csr_array(matrix), csr_array((len(limits), self.sums))])
        limits = np.concatenate([limits, self.limits])
        return (
            cost, csr_array(vstack([matrix, self._widened(self.most, between)])), limits,
            csr_array(self._widened(self.equal, between)), np.zeros(self.equal.shape[0]),
        )  # fmt: skip

    def _widened(self, rows: csr_array, between: int) -> csr_array:
        """The rows with zeros inserted for columns of the program that are not fractions."""
        gap = csr_array((rows.shape[0], between))
        return hstack([rows[:, : self.fractions], gap, rows[:, self.fractions :]])


def ties(own: np.ndarray | None, beside: np.ndarray | None, group: np.ndarray, count: np.ndarray) -> Ties | None:
    """The constraints for columns with these labels, each column weighted by the number of jobs in its group.

    own: label of the job; beside: label of its partner, -1: the job runs alone.  None if no job runs in a pair.
    """
    if own is None or beside is None or not (beside >= 0).any():
        return None
    paired = np.flatnonzero(beside >= 0)
    low, high = np.minimum(own, beside)[paired], np.maximum(own, beside)[paired]
    _, row = np.unique(low * (high.max() + 1) + high, return_inverse=True)
    same = low == high
    sign = np.where(own[paired] <= beside[paired], 1.0, -1.0)
    rows, columns, values = [row], [paired], [sign * count[group[paired]]]
    # Of one label: a column for the sum, and no job that is alone in its group has more than half of it.
    ring, number = np.unique(row[same], return_inverse=True)
    rows.append(ring)
    columns.append(len(own) + np.arange(len(ring)))
    values.append(-np.ones(len(ring)))
    width = len(own) + len(ring)
    entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
    equal = csr_array(entries, (int(row.max()) + 1, width))
    inside = paired[same]
    single = count[group[inside]] < 2
    mine, ours = inside[single], len(own) + number[single]
    lines = np.arange(len(mine))
    halves = (np.repeat([2.0, -1.0], len(mine)), (np.tile(lines, 2), np.concatenate([mine, ours])))
    odd, left = _odd(number, group[inside], count, len(ring))
    over = csr_array((np.ones(len(odd[0])), (odd[0], len(own) + odd[1])), (len(left), width))
    most = vstack([csr_array(halves, (len(mine), width)), over])
    return Ties(equal, most, np.concatenate([np.zeros(len(mine)), left]), len(own), len(ring))


def _odd(number: np.ndarray, group: np.ndarray, count: np.ndarray, rings: int) -> tuple[np.ndarray, np.ndarray]:
    """Odd-set constraints: index pairs (row, sum), and the limit of each row.

    A sum is the total fraction of time that the jobs of one label spend paired with each other.  With n jobs, n odd,
    one is always unpaired, so the sum is at most n - 1.  If several sums cover the same jobs (under labels that differ
    otherwise, such as by device type), one row bounds their total.
    """
    members: list[dict[int, None]] = [{} for _ in range(rings)]
    for ring, one in zip(number.tolist(), group.tolist(), strict=True):
        members[ring][one] = None
    rows: dict[tuple[int, ...], int] = {}
    entries: list[tuple[int, int]] = []
    for ring, some in enumerate(members):
        if count[list(some)].sum() % 2:
            entries.append((rows.setdefault(tuple(sorted(some)), len(rows)), ring))
    left = np.array([count[list(some)].sum() - 1 for some in rows])
    return np.array(entries, dtype=int).reshape(-1, 2).T, left
