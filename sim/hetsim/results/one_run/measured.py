"""The input of metrics: a run, and the tasks that are measured in it."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pandas as pd

from hetsim.model.record import COMPLETED, UNFINISHED, Record
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.rows import TableRows, is_retry, met_by_calls
from hetsim.results.one_run.usage import Usage

Metric = Callable[["Measured"], float]

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class Run(Protocol):
    """Protocol: the part of a `Result` that tables, metrics and pictures read."""

    name: str
    policy: str
    bound: float
    explained: Any

    @property
    def record(self) -> Record: ...
    @property
    def modes(self) -> ModeTable: ...
    @property
    def tasks(self) -> pd.DataFrame: ...
    @property
    def stages(self) -> pd.DataFrame: ...
    @property
    def launches(self) -> pd.DataFrame: ...
    @property
    def devices(self) -> pd.DataFrame: ...
    @property
    def steps(self) -> pd.DataFrame: ...
    @property
    def links(self) -> pd.DataFrame: ...
    @property
    def token_gaps(self) -> tuple[np.ndarray, np.ndarray]: ...
    @property
    def notes(self) -> dict[str, Any]: ...
    @property
    def planning(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def horizon(self) -> float: ...
    @property
    def window(self) -> tuple[float, float]: ...
    @property
    def usage(self) -> Usage: ...
    @property
    def rho(self) -> np.ndarray: ...
    @property
    def gpu_seconds(self) -> np.ndarray: ...
    @property
    def deadline_later(self) -> np.ndarray: ...
    @property
    def measured(self) -> "Measured": ...
    def metric(self, name: str) -> float:
        """Return the value of one metric."""


class Measured:
    """The measured tasks of a run: those at `rows`, or all that arrive in the window."""

    def __init__(self, result: Run, rows: np.ndarray | None = None):
        self.result = result
        self.low, self.high = result.window
        self._rows = rows
        self._columns: dict[str, np.ndarray] = {}

    @cached_property
    def rows(self) -> np.ndarray | None:
        """Positions of the measured tasks in the task table; None if all are measured."""
        if self._rows is not None:
            return self._rows
        frame, horizon = self.result.tasks, self.result.horizon
        if self.low <= 0 and (math.isinf(horizon) or not (frame["arrival"].to_numpy() >= horizon).any()):
            return None
        arrival = frame["arrival"].to_numpy()
        return np.flatnonzero((arrival >= self.low) & (arrival < horizon))

    @cached_property
    def tasks(self) -> pd.DataFrame:
        return self.result.tasks if self.rows is None else self.result.tasks.iloc[self.rows]

    @property
    def duration(self) -> float:
        return self.high - self.low

    @cached_property
    def status(self) -> np.ndarray:
        return self.series("status").cat.codes.to_numpy()

    @cached_property
    def is_retry(self) -> np.ndarray:
        return self.chosen(TableRows(self.result.record)(is_retry(self.result.record)))

    @property
    def completed(self) -> np.ndarray:
        """Mask of measured tasks that completed; retries count in the first attempt's row."""
        record = self.result.record
        if record.attempt_of is None:
            return self.status == COMPLETED
        rows = TableRows(record)
        return self.chosen(met_by_calls(rows, record.attempt_of, rows(record.status) == COMPLETED))

    def count(self, status: int) -> int:
        return int(np.count_nonzero(self.status == status))

    def series(self, name: str) -> pd.Series:
        all_tasks = self.result.tasks[name]
        return all_tasks if self.rows is None else all_tasks.iloc[self.rows]

    def column(self, name: str) -> np.ndarray:
        if name not in self._columns:
            self._columns[name] = self.result.tasks[name].to_numpy()  # of numbers no copy
        return self.chosen(self._columns[name])

    def chosen(self, values: np.ndarray) -> np.ndarray:
        """Select the measured tasks in an array over the task table."""
        return values if self.rows is None else values[self.rows]

    @cached_property
    def deadline_later(self) -> np.ndarray:
        return self.chosen(self.result.deadline_later)

    @cached_property
    def use(self) -> Usage:
        return self.result.usage

    def known_values(self, name: str) -> np.ndarray:
        """Values of a column for completed tasks (for `wait`: started tasks), without NaN."""
        values = self.column(name)
        missing = np.isnan(values)
        return values[~missing] if missing.any() else values

    def unknown(self, name: str) -> int:
        """Number of unfinished tasks without a value; percentiles count them as +inf."""
        return int(np.count_nonzero((self.status == UNFINISHED) & np.isnan(self.column(name))))

    def mean(self, name: str) -> float:
        values = self.known_values(name)
        return float(values.mean()) if len(values) else math.nan

    def maximum(self, name: str) -> float:
        if self.unknown(name):
            return math.inf
        values = self.known_values(name)
        return float(values.max()) if len(values) else math.nan

    def quantile(self, name: str, share: float) -> float:
        """Quantile of a column, interpolated; +inf if it depends on an unfinished task."""
        return quantile(self.known_values(name), share, self.unknown(name))


def quantile(values: np.ndarray, share: float, infinite: int = 0) -> float:
    """Return the quantile of `values` and `infinite` further values +inf; NaN if none."""
    if not (count := len(values) + infinite):
        return math.nan
    position = share * (count - 1)
    below = math.floor(position)
    above = below + (position > below)
    if above >= len(values):
        return math.inf
    low, high = np.partition(values, sorted({below, above}))[[below, above]]
    return float(low if low == high else low + (high - low) * (position - below))
