"""Comparison of policies at every point of a sweep by paired differences.

Replication r of all policies of a point has the same arrivals, sizes and faults, so differences are taken pair by pair,
as in a comparison (`hetsim.results.many_runs.compare`).
"""

import math
from collections.abc import Mapping
from itertools import combinations, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from hetsim.errors import UnknownName, UsageError
from hetsim.model.units import quantity
from hetsim.results.declared import higher_is_better
from hetsim.results.many_runs.findings import COLUMNS, ROUNDING, Finding, clearly_best, paired_findings
from hetsim.results.one_run.estimands import contributions

MAX_SHOWN = 10

# Columns that are neither keys nor metrics.
FACTS = ("point", "policy", "seed", "replications", "replication", "warmup_cut", "status", "error", "warnings")


def differences(sweep: "Points", metric: str, base: str | None = None, confidence: float = 0.95) -> pd.DataFrame:
    """Return the differences policy - other at every point of a sweep.

    base: the policy with which every other policy is compared; None: all pairs are compared.  Half-widths and p are
    corrected by Holm's procedure over the pairs of all points together: if no policies differ, the probability that any
    difference is significant is at most 1 - confidence.  `n` is the number of pairs of common replications.  The
    interval is NaN if n < 2 or if the scenario is not random.  The difference is NaN, too, if the metric is infinite or
    undefined in some run.
    """
    by_point = findings_by_point(sweep, metric, base, confidence)
    rows = [(point, *finding.row[1:]) for point, findings in by_point.items() for finding in findings]
    return pd.DataFrame(rows, columns=["point", *COLUMNS[1:]])


def findings_by_point(
    sweep: "Points", metric: str, base: str | None = None, confidence: float = 0.95
) -> dict[int, list[Finding]]:
    """Return paired tests by point; p values are corrected over all pairs and points."""
    sweep._known(metric)
    if base is not None and base not in set(sweep.table["policy"]):
        raise UnknownName("policy", base, sweep.table["policy"].unique())
    sound = sweep.table[sweep.table["status"] == "done"]
    policies = {point: list(dict.fromkeys(mine["policy"])) for point, mine in _by_point(sound)}
    each = sweep.by_replication
    others = [name for name in each.columns if name not in (*FACTS, *sweep.keys)]
    pairs_of: dict[int, list[tuple[str, str, np.ndarray]]] = {}
    for point, mine in _by_point(each):
        there = policies.get(point, [])
        if len(there) < 2 or (base is not None and base not in there):
            continue
        pairs = list(combinations(there, 2)) if base is None else [(one, base) for one in there if one != base]
        pairs_of[point] = _pairs(mine, there, pairs, metric=metric, others=others)
    tested = iter(paired_findings(metric, [pair for pairs in pairs_of.values() for pair in pairs], confidence))
    return {point: list(islice(tested, len(pairs))) for point, pairs in pairs_of.items()}


def _by_point(frame: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    return [(int(mine["point"].iloc[0]), mine) for _, mine in frame.groupby("point", sort=False)]


def _pairs(
    frame: pd.DataFrame, policies: list[str], pairs: list[tuple[str, str]], metric: str, others: list[str]
) -> list[tuple[str, str, np.ndarray]]:
    once = frame.drop_duplicates(["policy", "replication"])
    runs = {policy: once[once["policy"] == policy].set_index("replication")[others] for policy in policies}
    common = sorted(set.intersection(*(set(one.index) for one in runs.values())))
    each = [one.loc[common].to_numpy(dtype=float) for one in runs.values()]
    if len(common) > 1 and all(np.array_equal(rows, rows[[0] * len(rows)], equal_nan=True) for rows in each):
        common = common[:1]  # the same number many times over is no evidence
    values = {policy: contributions(one.loc[common], metric).to_numpy(dtype=float) for policy, one in runs.items()}
    return [(one, other, np.column_stack([values[one], values[other]])) for one, other in pairs]


class Leads(NamedTuple):
    """Numbers of points at which each policy is best.

    alone: by policy, points where it has the only best mean; ties: by tied policies, points where they share the best
    mean; shown: by policy, points where it is significantly better than all others.
    """

    alone: dict[str, int]
    ties: dict[tuple[str, ...], int]
    shown: dict[str, int]
    points: int
    tested: bool  # True if some points have several replications, which can show significance


def leads(sweep: "Points", metric: str, findings: dict[int, list[Finding]] | None = None) -> Leads:
    counts = Leads(alone={}, ties={}, shown={}, points=0, tested=False)
    sound = sweep.table[sweep.table[metric].notna()]
    points, tested = 0, False
    for point, mine in _by_point(sound.drop_duplicates(["point", "policy"])):
        if len(mine) < 2:
            continue
        points += 1
        values, policies = mine[metric].to_numpy(dtype=float), mine["policy"].tolist()
        best = values.max() if higher_is_better(metric) else values.min()
        with np.errstate(invalid="ignore"):
            near = (values == best) | (np.abs(values - best) <= ROUNDING * np.abs(best))
        first = tuple(policy for policy, is_best in zip(policies, near, strict=True) if is_best)
        if len(first) == 1:
            counts.alone[first[0]] = counts.alone.get(first[0], 0) + 1
        else:
            counts.ties[first] = counts.ties.get(first, 0) + 1
        of_point = (findings or {}).get(point, [])
        tested |= any(finding.n > 1 for finding in of_point)
        if (clear := clearly_best(of_point, policies)) is not None:
            counts.shown[clear] = counts.shown.get(clear, 0) + 1
    return counts._replace(points=points, tested=tested)


class Points(Protocol):
    """Protocol: the part of a `Sweep` that this module reads."""

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
    """Return the rows of a sweep's frame in which columns have the values of `where`.

    A value of a key may be a number in base units, or a text as in a scenario: 24/h matches values swept as 24/h or as
    0.4/min.  Raises UsageError, which lists the existing values, if no row matches.
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
    if (number := _number(sweep, column, value)) is not None and pd.api.types.is_numeric_dtype(frame[column]):
        equal |= np.isclose(frame[column].to_numpy(dtype=float), number, rtol=1e-9, atol=0.0)
    return equal


def _number(sweep: Points, column: str, value: Any) -> float | None:
    try:
        parsed = quantity(value)
    except ValueError:
        return None
    if parsed is None or not math.isfinite(parsed[0]):
        return None
    number, dimension, _ = parsed
    swept = {one[1] for one in map(quantity, sweep.points[column]) if one is not None}
    return number if dimension < 0 or dimension in swept else None


def _written(sweep: Points, frame: pd.DataFrame, column: str) -> pd.Series:
    return pd.Series(sweep.points[column].astype(str).loc[frame["point"]].to_numpy(), index=frame.index)


def _known(sweep: Points, frame: pd.DataFrame, column: str) -> str:
    texts = _written(sweep, frame, column) if column in sweep.keys else frame[column].astype(str)
    values = list(dict.fromkeys(texts))
    more = f" and {len(values) - MAX_SHOWN:,} more" if len(values) > MAX_SHOWN else ""
    return ", ".join(values[:MAX_SHOWN]) + more
