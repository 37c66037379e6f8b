"""Groups of tasks under several policies: paired differences to one of these, tested together.

As in a comparison as a whole, replication r of every policy has the same tasks, so differences are taken pair by pair.
Per metric the differences of all groups and policies are tested together by Holm's procedure: the more groups there
are, the wider their intervals, so that one which excludes zero is no matter of having looked at many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hetsim.errors import UnknownName
from hetsim.results.formatting import PERCENT, Unit, finite, fitting, pair, units_of, with_unit
from hetsim.results.many_runs.findings import COLUMNS, paired_findings
from hetsim.results.many_runs.groups import group_contributions, group_values, groups_and_metrics
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result

SHOWN_MARK = " *"
"""Behind a difference with a confidence interval that excludes zero."""


def differences_of_groups(
    outcomes: Mapping[str, Replications | Result], by: str, base: str | None = None, confidence: float = 0.95
) -> pd.DataFrame:
    """policy - base of every group, metric and other policy: a row each, columns `by` and `COLUMNS`.

    base: the first policy unless given.  `half_width` is NaN, and nothing `significant`, of one run each or where
    nothing is random; all are NaN where the metric is infinite or undefined for one of the two in some pair of runs.
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


def _paired_values(outcomes: Mapping[str, Replications | Result], by: str) -> dict[str, Values]:
    """(group, metric) -> contributions of the replications that all policies have; of one where all are the same."""
    numbers = {label: _numbers(outcome) for label, outcome in outcomes.items()}
    common = sorted(set.intersection(*map(set, numbers.values())))
    if all(isinstance(outcome, Replications) and outcome.identical for outcome in outcomes.values()):
        common = common[:1]  # the same number many times over is no evidence
    found: dict[str, Values] = {}
    for label, outcome in outcomes.items():
        places = np.searchsorted(numbers[label], common)
        found[label] = group_contributions(group_values(outcome, by), places)
    return found


def _numbers(outcome: Replications | Result) -> list[int]:
    """Of the replications, in the order of `group_values`."""
    return [outcome.replication] if isinstance(outcome, Result) else [int(n) for n in outcome.values.index]


def _both(of_policy: Values, of_other: Values, key: tuple[str, str]) -> np.ndarray:
    """A row a replication; NaN for a policy if its runs never had the group."""
    there = of_policy[key] if key in of_policy else of_other[key]
    nowhere = np.full(len(there), math.nan)
    return np.column_stack([of_policy.get(key, nowhere), of_other.get(key, nowhere)])


# For people -------------------------------------------------------------------------------------------------------


def difference_cells(metric: str, differences: Sequence[float], halves: Sequence[float], shown: Sequence[bool]) -> list[
    str
]:  # fmt: skip
    """Differences with their signs in one unit, `-63 ± 47 s *`; the mark where one is shown to be none of chance."""
    factor, unit = _unit(metric, differences, halves)
    texts = []
    for difference, half, is_shown in zip(differences, halves, shown, strict=True):
        text = with_unit(pair(difference / factor, half / factor), unit)
        texts.append(("+" if difference > 0 else "") + text + (SHOWN_MARK if is_shown else ""))
    return texts


def _unit(metric: str, differences: Sequence[float], halves: Sequence[float]) -> Unit:
    units = units_of(metric)
    if units == PERCENT:
        return 0.01, "points"
    return fitting([max(abs(d), finite(h)) for d, h in zip(differences, halves, strict=True)], units)


def difference_note(found: pd.DataFrame, confidence: float, identical: bool = False, single: bool = True) -> str:
    """What the figures behind ± and the marks of such a table mean; `single`: there is one run of each policy."""
    if identical:
        return "Nothing here is random: every replication is the same, so these are differences without intervals."
    numbers = sorted(set(found["n"]) - {0, 1})
    if not numbers and not found["n"].any():
        return "Nothing can be compared: these metrics are infinite, or not defined under both policies, in some run."
    if not numbers and not single:
        return "What is defined in one run only says nothing about chance."
    if not numbers:
        return "One run of each policy says nothing about chance; --replications 10 would."
    runs = " to ".join(f"{number}" for number in dict.fromkeys((numbers[0], numbers[-1])))
    return (
        f"± are {100 * confidence:g} % intervals of paired differences (Holm over all groups and policies of a metric, "
        f"{runs} replications);{SHOWN_MARK} where one excludes zero."
    )


def differences_json(found: pd.DataFrame) -> list[dict[str, object]]:
    """A mapping a row."""
    from hetsim.results.as_json import json_number

    return [
        {str(key): value if isinstance(value, str | bool) else json_number(value) for key, value in row.items()}
        for row in found.astype(object).to_dict("records")
    ]
