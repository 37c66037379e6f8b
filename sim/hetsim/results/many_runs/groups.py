"""Groups of tasks in several runs: their tables over replications and policies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.results.as_json import json_number
from hetsim.results.one_run.estimands import weight_of, weighted_contributions
from hetsim.results.one_run.groups import OTHERS, USUAL, Grouping, by_group, by_number, checked, groupings, kept_by
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import student_interval


class Several(Protocol):
    """The part of several runs that is read here; `Replications` have it."""

    @property
    def results(self) -> list[Result]: ...
    def _frame(self) -> pd.DataFrame: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Result]: ...


def group_values(outcome: Result | Several, by: str) -> dict[tuple[str, str], np.ndarray]:
    """(group, metric) -> the values, one a replication; NaN where it is not defined.  UsageError if not kept.

    With the numbers of tasks over which they are means, under their names, which begin with _.
    """

    if isinstance(outcome, Result):
        return {key: np.array([value]) for key, value in _values(outcome, by).items()}
    frame = outcome._frame()
    kept = kept_by((str(name) for name in frame.columns), by)
    if kept:
        return {key: frame[column].to_numpy(dtype=np.float64) for key, column in kept.items()}
    if outcome.results and len(outcome.results) == len(outcome):
        tables = [_values(result, by, outcome.results[0]) for result in outcome]
        keys = dict.fromkeys(key for table in tables for key in table)
        return {key: np.array([table.get(key, math.nan) for table in tables]) for key in keys}
    if outcome.results and not groupings(outcome.results[0].record.input, [by]):
        return {}
    raise UsageError(f'of the replications no groups by "{by}" were kept: ask for by=["{by}"] (--by {by}) with the run')


def group_contributions(
    values: Mapping[tuple[str, str], np.ndarray], chosen: np.ndarray | slice = slice(None)
) -> dict[tuple[str, str], np.ndarray]:
    """(group, metric) -> what these replications contribute to its estimate; see `group_values`."""
    found = {}
    for group, name in values:
        if not name.startswith("_"):
            own, counts = values[group, name][chosen], values.get((group, weight_of(name) or ""))
            found[group, name] = own if counts is None else weighted_contributions(own, counts[chosen])
    return found


def _values(result: Result, by: str, first: Result | None = None) -> dict[tuple[str, str], float]:
    found = groupings((first or result).record.input, [by]) or [Grouping(by)]
    table = by_group(result, found[0], weighted=True)
    return {(str(group), str(name)): float(value) for group, row in table.iterrows() for name, value in row.items()}


def table_of_groups(outcomes: Mapping[str, Result | Several], by: str, confidence: float = 0.95) -> pd.DataFrame:
    """What is told of each group under each policy: index (group, policy), columns (metric, mean | half_width | n).

    `half_width` is that of the interval (for what: `hetsim.results.one_run.estimands`); NaN of one run, and where all
    are the same.  A group that a policy's runs never had has no row.
    """
    values = {label: group_contributions(group_values(outcome, by)) for label, outcome in outcomes.items()}
    groups, names = groups_and_metrics(by, values)
    index, rows = [], []
    for group in groups:
        for label, of_policy in values.items():
            if not any((group, name) in of_policy for name in names):
                continue
            index.append((group, label))
            row: list[float] = []
            for name in names:
                found = student_interval(of_policy.get((group, name), np.array([math.nan])), confidence, name)
                same = getattr(outcomes[label], "identical", False)
                row += [found.mean, math.nan if same else found.half_width, found.n]
            rows.append(row)
    columns = pd.MultiIndex.from_product([names, ["mean", "half_width", "n"]], names=["metric", None])
    return pd.DataFrame(rows, pd.MultiIndex.from_tuples(index, names=[by, "policy"]) if index else None, columns)


def groups_and_metrics(
    by: str, values: Mapping[str, Mapping[tuple[str, str], np.ndarray]]
) -> tuple[list[str], list[str]]:
    """The groups in order, and the metrics, that any policy has."""
    known = dict.fromkeys(key for of_policy in values.values() for key in of_policy)
    return in_order(by, dict.fromkeys(group for group, _ in known)), list(dict.fromkeys(name for _, name in known))


def in_order(by: str, groups: Iterable[str]) -> list[str]:
    """Groups as the first run that has them stands; GPU counts by number, the other users last."""
    if by == "gpus":
        return sorted(groups, key=by_number)
    return sorted(groups, key=lambda group: group == OTHERS and by == "user")


def tables_of_groups(
    outcomes: Mapping[str, Result | Several], by: Iterable[str] = USUAL, confidence: float = 0.95
) -> dict[str, pd.DataFrame]:
    """A table for each of these of which the workload has several groups (`table_of_groups`)."""

    found = {}
    first = next(iter(outcomes.values()))
    runs = [first] if isinstance(first, Result) else first.results
    for name in checked(by):
        if runs and not groupings(runs[0].record.input, [name]):
            continue
        table = table_of_groups(outcomes, name, confidence)
        if table.index.get_level_values(0).nunique() > 1:
            found[name] = table
    return found


def metrics_in(table: pd.DataFrame) -> list[str]:
    """The metrics of a table of groups, in order."""
    return [str(name) for name in table.columns.get_level_values(0).unique()]


def telling(table: pd.DataFrame) -> list[str]:
    """The metrics of such a table that tell something: defined somewhere, and of fates and the like not all zero."""
    kept = []
    always = ("tasks",)
    for name in metrics_in(table):
        means = table[name, "mean"].to_numpy(dtype=np.float64)
        if name == "completed" or np.isnan(means).all() or (name not in always and not np.nan_to_num(means).any()):
            continue
        kept.append(str(name))
    return kept


def groups_json(tables: Mapping[str, pd.DataFrame], many: bool = True) -> dict[str, Any]:
    """{by: {policy: {group: {metric: {mean, half_width, n}}}}}; of single runs the value alone."""
    found: dict[str, Any] = {}
    for by, table in tables.items():
        rows = zip(*(table.index.get_level_values(level) for level in (0, 1)), table.to_numpy(dtype=float), strict=True)
        policies: dict[str, Any] = found.setdefault(by, {})
        for group, policy, row in rows:
            values: dict[str, Any] = {}
            for name, (mean, half, n) in zip(metrics_in(table), row.reshape(-1, 3), strict=True):
                values[name] = json_number(mean)
                if many:
                    values[name] = {"mean": json_number(mean), "half_width": json_number(half), "n": int(n)}
            policies.setdefault(str(policy), {})[str(group)] = values
    return found


def flat(table: pd.DataFrame) -> pd.DataFrame:
    """For a file of one header line: columns `metric` and, where there is more than one run, `metric_half_width`."""
    columns = {}
    for metric in metrics_in(table):
        columns[metric] = table[metric, "mean"]
        if not table[metric, "half_width"].isna().all():
            columns[f"{metric}_half_width"] = table[metric, "half_width"]
    return pd.DataFrame(columns)
