"""Rows of the task table: one per task, or one per request with all its stages.

In results a request with several stages, which are tasks of the engine (`hetsim.model.tasks.StagedRequests`), is one
row.  This module computes the values of the table's columns.
"""

from functools import cached_property

import numpy as np

from hetsim.model.record import COMPLETED, NOT_ARRIVED, UNFINISHED, Record


def is_retry(record: Record) -> np.ndarray:
    if record.attempt_of is None:
        return np.zeros(len(record.status), bool)
    return (record.attempt_of >= 0) & (record.attempt_of != np.arange(len(record.status)))


def met_by_calls(rows: "TableRows", attempt_of: np.ndarray, met: np.ndarray) -> np.ndarray:
    """Mask of rows that met a limit; a call's attempts count in the row of the first."""
    first = rows(attempt_of)
    by_call = np.zeros(len(attempt_of), bool)
    by_call[first[met & (first >= 0)]] = True
    return np.where(first >= 0, rows(by_call), met)


class TableRows:
    """The rows of the task table, in workload order."""

    def __init__(self, record: Record, apart: bool = False):
        """`apart`: each stage of a request has its own row; else each request has a row."""
        self.record = record
        self.staged = None if apart else record.input.tasks.staged
        there = record.status != NOT_ARRIVED
        if self.staged is not None:
            there &= self.staged.first == np.arange(len(there))
        # task (or first stage) of each row; None: each task has its row
        self.chosen = None if there.all() else np.flatnonzero(there)
        self.count = len(record.status) if self.chosen is None else len(self.chosen)

    def __call__(self, column: np.ndarray) -> np.ndarray:
        """Value of each row's task; for a request, the value of its first stage."""
        return column if self.chosen is None else column[self.chosen]

    def copy(self, column: np.ndarray) -> np.ndarray:
        return column.copy() if self.chosen is None else column[self.chosen]

    def total(self, column: np.ndarray) -> np.ndarray:
        if self.staged is None:
            return self(column)
        return np.bincount(self.owner, weights=column[self.members], minlength=self.count).astype(column.dtype)

    @cached_property
    def members(self) -> np.ndarray:
        """The tasks behind all rows (a row may have several), by row, then workload order."""
        assert self.staged is not None
        arrived = np.flatnonzero(self.record.status != NOT_ARRIVED)
        return arrived[np.argsort(self.staged.first[arrived], kind="stable")]

    @cached_property
    def owner(self) -> np.ndarray:
        """For each task of `self.members` (the tasks of all rows), the index of its row."""
        assert self.staged is not None
        first = self.staged.first[self.members]
        return np.searchsorted(first if self.chosen is None else self.chosen, first)

    @cached_property
    def begin(self) -> np.ndarray:
        """For each row, the index of its first task in `members` (tasks sorted by row)."""
        return np.searchsorted(self.owner, np.arange(self.count))

    @cached_property
    def size(self) -> np.ndarray:
        if self.staged is None:
            return np.ones(self.count, np.int64)
        return np.diff(np.append(self.begin, len(self.members)))

    @cached_property
    def streaming(self) -> np.ndarray:
        """Mask of requests with several items that can be in different stages at one time."""
        assert self.staged is not None
        before = self.record.input.tasks.predecessors or ()
        chained = np.fromiter((one == (row - 1,) for row, one in enumerate(before)), bool, len(before))
        chained |= self.staged.first == np.arange(len(before))
        return np.bincount(self.owner[~chained[self.members]], minlength=self.count) > 0

    @cached_property
    def deciding(self) -> np.ndarray:
        """Return for each request (row) the stage whose status is that of the request.

        That is the first stage that failed (or was rejected, ...), else the first unfinished one, else the last one.
        """
        record = self.record
        if self.staged is None:
            return np.arange(self.count) if self.chosen is None else self.chosen
        status, finish = record.status[self.members], record.finish[self.members]
        rank = np.where(status == COMPLETED, 2, np.where(status == UNFINISHED, 1, 0))
        # Of what ended badly the earliest, which doomed the others; of what completed the last.
        when = np.where(rank == 0, finish, np.where(rank == 2, -finish, 0.0))
        return self.members[np.lexsort((self.members, when, rank, self.owner))[self.begin]]

    def minimum(self, column: np.ndarray) -> np.ndarray:
        """Minimum over the tasks of each row that have a value; NaN if none has."""
        values = np.where(np.isnan(column), np.inf, column)[self.members]
        minima = np.minimum.reduceat(values, self.begin) if self.count else values
        return np.where(np.isinf(minima), np.nan, minima)
