"""Metrics by group of tasks (such as users), over replications and policies."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from hetsim.errors import UnknownName, UsageError
from hetsim.results.declared import COMPLETED_COUNT, TASK_COUNT
from hetsim.results.formatting import PERCENT, finite, fitting, json_number, pair, units_of, with_unit
from hetsim.results.many_runs.findings import COLUMNS, paired_findings
from hetsim.results.one_run.estimands import weight_of, weighted_contributions
from hetsim.results.one_run.groups import OTHERS, USUAL, Grouping, by_group, by_number, checked, groupings, kept_by
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import student_interval

SHOWN_MARK = " *"  # Follows a difference whose confidence interval excludes zero.


class Several(Protocol):
    """Protocol: the part of `Replications` that this module reads."""

    @property
    def results(self) -> list[Result]: ...
    @property
    def values(self) -> pd.DataFrame: ...
    @property
    def identical(self) -> bool: ...
    def _frame(self) -> pd.DataFrame: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Result]: ...


def group_values(outcome: Result | Several, by: str) -> dict[tuple[str, str], np.ndarray]:
    """Return the values of each (group, metric) by replication; NaN if undefined.

    For a metric that is a mean, the key (group, `weight_of(metric)`) has the number of tasks or tokens in the mean.
    """

    if isinstance(outcome, Result):
        return {key: np.array([value]) for key, value in _values(outcome, by).items()}
    frame = outcome._frame()
    if kept := kept_by((str(name) for name in frame.columns), by):
        return {key: frame[column].to_numpy(dtype=np.float64) for key, column in kept.items()}
    if outcome.results and len(outcome.results) == len(outcome):
        tables = [_values(result, by, outcome.results[0]) for result in outcome]
        keys = dict.fromkeys(key for table in tables for key in table)
        return {key: np.array([table.get(key, math.nan) for table in tables]) for key in keys}
    if outcome.results and not groupings(outcome.results[0].record.input, [by]):
        return {}
    raise UsageError(f'the replications have no groups by "{by}": run them with by=["{by}"] (--by {by})')


def group_contributions(
    values: Mapping[tuple[str, str], np.ndarray], chosen: np.ndarray | slice = slice(None)
) -> dict[tuple[str, str], np.ndarray]:
    """Return values per replication by (group, metric); their mean is the estimate."""
    by_key = {}
    for group, name in values:
        if not name.startswith("_"):
            own, counts = values[group, name][chosen], values.get((group, weight_of(name) or ""))
            by_key[group, name] = own if counts is None else weighted_contributions(own, counts[chosen])
    return by_key


def _values(result: Result, by: str, first: Result | None = None) -> dict[tuple[str, str], float]:
    split = groupings((first or result).record.input, [by]) or [Grouping(by)]
    table = by_group(result, split[0], weighted=True)
    return {(str(group), str(name)): float(value) for group, row in table.iterrows() for name, value in row.items()}


def table_of_groups(outcomes: Mapping[str, Result | Several], by: str, confidence: float = 0.95) -> pd.DataFrame:
    """Return a table: rows (group, policy), columns (metric, mean | half_width | n).

    `half_width` is that of the confidence interval (`hetsim.results.one_run.estimands`); it is NaN for one run, and if
    all replications are identical.  The table has no row (group, policy) if no run of the policy has the group.
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
                mean_of = student_interval(of_policy.get((group, name), np.array([math.nan])), confidence, name)
                outcome = outcomes[label]
                same = not isinstance(outcome, Result) and outcome.identical
                row += [mean_of.mean, math.nan if same else mean_of.half_width, mean_of.n]
            rows.append(row)
    columns = pd.MultiIndex.from_product([names, ["mean", "half_width", "n"]], names=["metric", None])
    return pd.DataFrame(rows, pd.MultiIndex.from_tuples(index, names=[by, "policy"]) if index else None, columns)


def groups_and_metrics(
    by: str, values: Mapping[str, Mapping[tuple[str, str], np.ndarray]]
) -> tuple[list[str], list[str]]:
    keys = dict.fromkeys(key for of_policy in values.values() for key in of_policy)
    return in_order(by, dict.fromkeys(group for group, _ in keys)), list(dict.fromkeys(name for _, name in keys))


def in_order(by: str, groups: Iterable[str]) -> list[str]:
    """Sort groups by number if `by` is gpus, else as given, with "other users" last."""
    if by == "gpus":
        return sorted(groups, key=by_number)
    return sorted(groups, key=lambda group: group == OTHERS and by == "user")


def tables_of_groups(outcomes: Mapping[str, Result | Several], by: Iterable[str] = USUAL) -> dict[str, pd.DataFrame]:
    """Return a table for each grouping in `by` that has more than one group."""

    tables = {}
    first = next(iter(outcomes.values()))
    runs = [first] if isinstance(first, Result) else first.results
    for name in checked(by):
        if runs and not groupings(runs[0].record.input, [name]):
            continue
        table = table_of_groups(outcomes, name)
        if table.index.get_level_values(0).nunique() > 1:
            tables[name] = table
    return tables


def metrics_in(table: pd.DataFrame) -> list[str]:
    return [str(name) for name in table.columns.get_level_values(0).unique()]


def telling(table: pd.DataFrame) -> list[str]:
    """Return the metrics to show: those whose mean is defined and not 0 in some row.

    The number of tasks is shown even if it is 0, the number of completed tasks never.
    """
    means = {name: table[name, "mean"].to_numpy(dtype=np.float64) for name in metrics_in(table)}
    defined = {name: values for name, values in means.items() if not np.isnan(values).all()}
    return [name for name, values in defined.items()
            if name == TASK_COUNT or (name != COMPLETED_COUNT and np.nan_to_num(values).any())]  # fmt: skip


def groups_json(tables: Mapping[str, pd.DataFrame], many: bool = True) -> dict[str, Any]:
    """Return {by: {policy: {group: {metric: {mean, half_width, n}}}}} for JSON.

    With `many=False` (one run of each policy), a metric maps to its value alone.
    """
    by_grouping: dict[str, Any] = {}
    for by, table in tables.items():
        rows = zip(*(table.index.get_level_values(level) for level in (0, 1)), table.to_numpy(dtype=float), strict=True)
        policies: dict[str, Any] = by_grouping.setdefault(by, {})
        for group, policy, row in rows:
            values: dict[str, Any] = {}
            for name, (mean, half, n) in zip(metrics_in(table), row.reshape(-1, 3), strict=True):
                values[name] = json_number(mean)
                if many:
                    values[name] = {"mean": json_number(mean), "half_width": json_number(half), "n": int(n)}
            policies.setdefault(str(policy), {})[str(group)] = values
    return by_grouping


def flat(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with one header row; columns METRIC and METRIC_half_width.

    The half-width is omitted if it is NaN in all rows.
    """
    columns = {}
    for metric in metrics_in(table):
        columns[metric] = table[metric, "mean"]
        if not table[metric, "half_width"].isna().all():
            columns[f"{metric}_half_width"] = table[metric, "half_width"]
    return pd.DataFrame(columns)


# Groups of tasks under several policies: paired differences to one of these, tested together.
#
# As in a comparison as a whole, replication r of every policy has the same tasks, so differences are taken pair by
# pair. Per metric the differences of all groups and policies are tested together by Holm's procedure: the more groups
# there are, the wider their intervals, so that one which excludes zero is no matter of having looked at many.


def differences_of_groups(
    outcomes: Mapping[str, Result | Several], by: str, base: str | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """Return the differences policy - base for each group, metric and policy.

    The columns are `by` and `COLUMNS`.  base: by default the first policy.  If each policy has one run or nothing is
    random, `half_width` is NaN and no difference is `significant`.  If the metric is infinite, or undefined for one
    policy, in any pair of runs, then `difference`, `half_width` and `p` are NaN, `significant` is False and `n` is 0.
    """
    other = next(iter(outcomes)) if base is None else base
    if other not in outcomes:
        raise UnknownName("policy", other, outcomes)
    values = _paired_values(outcomes, by)
    groups, metrics = groups_and_metrics(by, values)
    rows = []
    for metric in metrics:
        which, pairs = [], []
        for group in groups:
            for policy, of_policy in values.items():
                if policy != other and {(group, metric)} & (of_policy.keys() | values[other].keys()):
                    which.append(group)
                    pairs.append((policy, other, _both(of_policy, values[other], (group, metric))))
        findings = paired_findings(metric, pairs, confidence)
        rows += [(group, *finding.row) for group, finding in zip(which, findings, strict=True)]
    return pd.DataFrame(rows, columns=[by, *COLUMNS])


Values = Mapping[tuple[str, str], np.ndarray]


def _paired_values(outcomes: Mapping[str, Result | Several], by: str) -> dict[str, Values]:
    numbers = {label: _numbers(outcome) for label, outcome in outcomes.items()}
    common = sorted(set.intersection(*map(set, numbers.values())))
    if all(not isinstance(outcome, Result) and outcome.identical for outcome in outcomes.values()):
        common = common[:1]  # the same number many times over is no evidence
    places = {label: np.searchsorted(numbers[label], common) for label in outcomes}
    return {label: group_contributions(group_values(one, by), places[label]) for label, one in outcomes.items()}


def _numbers(outcome: Result | Several) -> list[int]:
    return [outcome.replication] if isinstance(outcome, Result) else [int(n) for n in outcome.values.index]


def _both(of_policy: Values, of_other: Values, key: tuple[str, str]) -> np.ndarray:
    there = of_policy[key] if key in of_policy else of_other[key]
    nowhere = np.full(len(there), math.nan)
    return np.column_stack([of_policy.get(key, nowhere), of_other.get(key, nowhere)])


# For people -------------------------------------------------------------------------------------------------------


def difference_cells(metric: str, differences: Sequence[float], halves: Sequence[float], shown: Sequence[bool]) -> list[
    str
]:  # fmt: skip
    """Format signed differences as `-63 ± 47 s *`; `shown`: True if significant (`*`)."""
    units, sizes = units_of(metric), [max(abs(d), finite(h)) for d, h in zip(differences, halves, strict=True)]
    factor, unit = (0.01, "points") if units == PERCENT else fitting(sizes, units)
    texts = []
    for difference, half, is_shown in zip(differences, halves, shown, strict=True):
        text = with_unit(pair(difference / factor, half / factor), unit)
        texts.append(("+" if difference > 0 else "") + text + (SHOWN_MARK if is_shown else ""))
    return texts


def difference_note(found: pd.DataFrame, confidence: float, identical: bool = False, single: bool = True) -> str:
    """Explain the ± and marks of a table of differences, or why intervals are missing."""
    if identical:
        return "The scenario is not random: all replications are equal, so differences have no intervals."
    numbers = sorted(set(found["n"]) - {0, 1})
    if not numbers and not found["n"].any():
        return "Nothing can be compared: these metrics are infinite, or not defined under both policies, in some run."
    if not numbers and not single:
        return "Metrics that are defined in only one run have no confidence intervals."
    if not numbers:
        return "One run of each policy gives no confidence intervals; use --replications 10."
    runs = " to ".join(f"{number}" for number in dict.fromkeys((numbers[0], numbers[-1])))
    return (
        f"± are {100 * confidence:g} % intervals of paired differences (Holm over all groups and policies of a metric, "
        f"{runs} replications);{SHOWN_MARK} where one excludes zero."
    )


def differences_json(found: pd.DataFrame) -> list[dict[str, object]]:
    return [
        {str(key): value if isinstance(value, str | bool) else json_number(value) for key, value in row.items()}
        for row in found.astype(object).to_dict("records")
    ]
