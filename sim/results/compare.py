"""Comparing policies that met the same load: paired differences over replications, with Holm's correction.

Replication r of every policy has the same arrivals, sizes and faults (common random numbers), so differences
are taken pair by pair.  Per metric all compared pairs are tested together; a policy is said to be above or
below another only where the corrected interval of their difference excludes zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from sim.errors import UnknownName, UsageError
from sim.results.metrics import HIGHER_IS_BETTER, NO_DIRECTION
from sim.results.replications import Replications
from sim.results.result import Result
from sim.results.statistics import paired_differences, student_interval

DEFAULT_METRICS = (
    "response_mean",
    "response_p95",
    "goodput_fraction",
    "rejected",
    "gpu_utilisation",
    "energy_j",
)


@dataclass
class Comparison:
    """What `compare` found.

    `table`: index policy; columns (metric, "mean") and (metric, "half_width"), the interval of each policy's
    own mean.  `pairs`: a row a metric and compared pair: metric, policy, other, difference (policy - other),
    half_width, p, significant, n.  `winners`: metric -> the policy that is better than all others, or None.
    `sentences`: the same for people.
    """

    table: pd.DataFrame
    pairs: pd.DataFrame
    winners: dict[str, str | None]
    sentences: list[str]
    confidence: float

    def __repr__(self) -> str:
        shown = pd.DataFrame(index=self.table.index)
        for name in self.table.columns.get_level_values(0).unique():
            part = self.table[name]
            texts = [_value(m, h) for m, h in zip(part["mean"], part["half_width"], strict=True)]
            shown[name] = [
                t + (" ◂" if p == self.winners[name] else "") for t, p in zip(texts, shown.index, strict=True)
            ]
        return "\n".join([shown.to_string(), "", *self.sentences])


def compare(
    runs: Mapping[str, Replications | Result],
    metrics: Iterable[str] | None = None,
    *,
    baseline: str | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """Compare policies (by name) on metrics over the replications they have in common.

    With a `baseline` every policy is compared with it, otherwise all pairs are.  Metrics that no policy
    defines here (deadlines without deadlines) are left out.  Energy is taken to one common end per
    replication.
    """
    if len(runs) < 2:
        raise UsageError("a comparison needs at least two policies")
    if baseline is not None and baseline not in runs:
        raise UnknownName("policy", baseline, runs)
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence lies between 0 and 1 (0.95, say), not {confidence:g}")
    sets = {name: Replications([run]) if isinstance(run, Result) else run for name, run in runs.items()}
    names = list(DEFAULT_METRICS if metrics is None else metrics)
    columns = {name: _columns(sets, name) for name in names}
    if metrics is None:
        columns = {name: frame for name, frame in columns.items() if frame.notna().any(axis=None)}
    policies = list(sets)
    pairs = [(p, baseline) for p in policies if p != baseline] if baseline else list(combinations(policies, 2))
    table, rows, winners, sentences = {}, [], {}, []
    for name, frame in columns.items():
        intervals = [student_interval(frame[policy].to_numpy(), confidence, name) for policy in policies]
        table[name, "mean"] = [interval.mean for interval in intervals]
        table[name, "half_width"] = [interval.half_width for interval in intervals]
        found = _pairs(name, frame, pairs, confidence)
        rows += found
        winners[name] = _winner(name, frame, found, policies)
        sentences += _sentences(name, frame, found, confidence, baseline)
    return Comparison(
        pd.DataFrame(table, index=pd.Index(policies, name="policy")),
        pd.DataFrame(rows),
        winners,
        sentences,
        confidence,
    )


def _columns(sets: Mapping[str, Replications], metric: str) -> pd.DataFrame:
    """The metric by replication (rows) and policy (columns), over the replications all have."""
    columns = {name: runs.column(metric) for name, runs in sets.items()}
    if metric in ("energy_j", "energy_idle_j"):
        ends = pd.concat([runs.ends for runs in sets.values()], axis=1).max(axis=1)
        columns = {name: runs.energy_until(ends)[metric] for name, runs in sets.items()}
    return pd.concat(columns, axis=1, join="inner")


def _pairs(metric: str, frame: pd.DataFrame, pairs: list[tuple[str, str]], confidence: float) -> list[dict]:
    differences = []
    for policy, other in pairs:
        both = frame[[policy, other]].to_numpy(dtype=np.float64)
        both = both[np.isfinite(both).all(axis=1)]
        differences.append(both[:, 0] - both[:, 1])
    return [
        {"metric": metric, "policy": policy, "other": other, "difference": d.mean, "half_width": d.half_width,
         "p": d.p, "significant": d.significant, "n": d.n}
        for (policy, other), d in zip(pairs, paired_differences(differences, confidence), strict=True)
    ]  # fmt: skip


def better(metric: str, difference: float) -> bool:
    """Is `difference` (policy - other) to the policy's credit?"""
    return difference > 0 if metric in HIGHER_IS_BETTER else difference < 0


def _winner(metric: str, frame: pd.DataFrame, found: list[dict], policies: list[str]) -> str | None:
    """The policy that every comparison shows to be better than each other one; None where that is open."""
    if metric in NO_DIRECTION or np.isinf(frame.to_numpy(dtype=np.float64)).any():
        return None
    for policy in policies:
        beaten = set()
        for row in found:
            if row["significant"] and policy in (row["policy"], row["other"]):
                sign = 1 if row["policy"] == policy else -1
                if better(metric, sign * row["difference"]):
                    beaten.add(row["other"] if sign == 1 else row["policy"])
        if len(beaten) == len(policies) - 1:
            return policy
    return None


def _sentences(
    metric: str, frame: pd.DataFrame, found: list[dict], confidence: float, baseline: str | None
) -> list[str]:
    """One sentence a pair with a baseline; otherwise the best policy against each other one."""
    means = frame.mean()
    lead = means.idxmax() if metric in HIGHER_IS_BETTER else means.idxmin() if means.notna().any() else None
    sentences = []
    for row in found:
        if baseline is None and lead not in (row["policy"], row["other"]):
            continue
        first, second, difference = row["policy"], row["other"], row["difference"]
        if baseline is None and second == lead:
            first, second, difference = second, first, -difference
        sentences.append(_sentence(metric, first, second, difference, row, confidence))
    return sentences


def _sentence(metric: str, first: str, second: str, difference: float, row: dict, confidence: float) -> str:
    unit = _unit(metric)
    where = "above" if difference > 0 else "below"
    level = f"{confidence * 100:g} %"
    if math.isnan(difference):
        return f"{first} and {second}: {metric} cannot be compared: undefined or infinite in every pair of runs"
    if row["n"] < 2:
        gap = f"{abs(difference):.4g}{unit} {where}" if difference else "the same as"
        return f"{first}: {metric} {gap} {second} in the one run of each; one run says nothing about chance"
    half = row["half_width"]
    method = f"(paired, {level}, Holm, n = {row['n']})"
    if not row["significant"]:
        gap = f"{difference:+.3g} ± {half:.2g}{unit}"
        return f"{first} and {second}: no difference in {metric} shown, {gap} {method}"
    return f"{first}: {metric} {_rounded(abs(difference), half)}{unit} {where} {second} {method}"


def _rounded(value: float, half: float) -> str:
    """The value to the digits that its half-width leaves: 12 ± 3, 0.16 ± 0.02."""
    if not half > 0:
        return f"{value:.4g} ± 0"
    digits = max(0, -math.floor(math.log10(half)))
    return f"{value:.{digits}f} ± {half:.{digits}f}"


def _value(mean: float, half: float) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.6g}" if math.isnan(half) else f"{mean:.6g} ± {half:.2g}"


def _unit(metric: str) -> str:
    if metric.endswith("_j"):
        return " J"
    seconds = metric == "makespan" or metric.startswith(("response_", "wait_"))
    return " s" if seconds else "/s" if metric in ("throughput", "goodput") else ""
