"""Rows of a sweep by the values of its columns, written as in a scenario (`24/h`) or in base units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.model.units import quantity

MAX_SHOWN = 10

FACTS = ("point", "policy", "seed", "replications", "replication", "warmup_cut", "status", "error", "warnings")
"""Columns that are neither keys nor metrics."""


class Points(Protocol):
    """What is read of a sweep here and in `hetsim.results.many_runs.point_differences`; a `Sweep` has it."""

    points: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame: ...
    @property
    def keys(self) -> list[str]: ...
    @property
    def by_replication(self) -> pd.DataFrame: ...
    def _known(self, metric: str) -> None: ...
    def _column(self, name: str) -> None: ...


def rows_where(sweep: Points, frame: pd.DataFrame, where: Mapping[str, Any] | None) -> pd.DataFrame:
    """The rows of a frame of the sweep with these values in these columns.

    A value of a key may be a number in base units, or the text that a scenario would have: 24/h finds what was swept as
    24/h or as 0.4/min.  UsageError, with the values that there are, where no row has one.
    """
    for column, value in (where or {}).items():
        sweep._column(column)
        chosen = frame[_same(sweep, frame, column, value)]
        if chosen.empty:
            raise UsageError(f"no row has {column} = {value!r}; there are {_known(sweep, frame, column)}")
        frame = chosen
    return frame


def _same(sweep: Points, frame: pd.DataFrame, column: str, value: Any) -> np.ndarray:
    equal = (frame[column] == value).to_numpy(dtype=bool, copy=True)
    if column not in sweep.keys:
        return equal
    if isinstance(value, bool):  # which is no number here
        return np.array([one is value for one in sweep.points[column].loc[frame["point"]]], dtype=bool)
    equal |= (_written(sweep, frame, column) == str(value)).to_numpy(dtype=bool)
    number = _number(sweep, column, value)
    if number is not None and pd.api.types.is_numeric_dtype(frame[column]):
        equal |= np.isclose(frame[column].to_numpy(dtype=float), number, rtol=1e-9, atol=0.0)
    return equal


def _number(sweep: Points, column: str, value: Any) -> float | None:
    """A number, or a text with a unit of the key's dimension, in base units."""
    try:
        found = quantity(value)
    except ValueError:
        return None
    if found is None or not math.isfinite(found[0]):
        return None
    number, dimension, _ = found
    swept = {one[1] for one in map(quantity, sweep.points[column]) if one is not None}
    return number if dimension < 0 or dimension in swept else None


def _written(sweep: Points, frame: pd.DataFrame, column: str) -> pd.Series:
    """The values of a key as texts, as they were swept."""
    texts = sweep.points[column].astype(str)
    return pd.Series(texts.loc[frame["point"]].to_numpy(), index=frame.index)


def _known(sweep: Points, frame: pd.DataFrame, column: str) -> str:
    texts = _written(sweep, frame, column) if column in sweep.keys else frame[column].astype(str)
    values = list(dict.fromkeys(texts))
    more = f" and {len(values) - MAX_SHOWN:,} more" if len(values) > MAX_SHOWN else ""
    return ", ".join(values[:MAX_SHOWN]) + more
