"""Paired tests of policies by a metric, corrected together by Holm's procedure."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from hetsim.results.declared import higher_is_better
from hetsim.results.formatting import gap, metric_name
from hetsim.results.statistics import paired_differences

ROUNDING = 1e-12  # Relative differences up to this value are rounding noise.

# Columns of findings in tables.
COLUMNS = ("metric", "policy", "other", "difference", "half_width", "p", "significant", "n")

Shown = Literal["different", "equal", "open", "one run", "undefined"]


@dataclass(frozen=True)
class Finding:
    """A test on a metric: mean difference policy - other, over n pairs of runs.

    `left_out`: number of pairs of runs in which the metric is infinite, or undefined for one policy; if there are any,
    no conclusion is drawn, since the difference would describe only the other pairs.
    """

    metric: str
    policy: str
    other: str
    difference: float
    half_width: float
    p: float
    significant: bool
    n: int
    left_out: int
    confidence: float
    identical: bool = False  # all replications of each policy are equal, so that one of each was compared

    @property
    def shown(self) -> Shown:
        if math.isnan(self.difference) or self.left_out:
            return "undefined"
        if self.n < 2:
            return "one run"
        if self.significant:
            return "different"
        return "equal" if self.half_width == 0 else "open"

    @property
    def row(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in COLUMNS)

    @property
    def gap(self) -> str:
        """The difference as text: `63 ± 47 s below fcfs`."""
        size = gap(self.metric, self.difference, self.half_width)
        return f"{size} {'above' if self.difference > 0 else 'below'} {self.other}"

    @property
    def sentence(self) -> str:
        name, both = metric_name(self.metric), f"{self.policy} and {self.other}"
        method = f"(paired, {self.confidence * 100:g} %, Holm, n = {self.n})"
        if self.shown == "undefined":
            where = "undefined" + (f" or infinite in {self.left_out} of the pairs of runs" if self.left_out else "")
            return f"{both}: {name} cannot be compared: {where}"
        if self.shown == "one run":
            text = f"{name} {self.gap}" if self.difference else f"{name} the same as {self.other}"
            if self.identical:
                return f"{self.policy}: {text} in every run; the scenario is not random, so there is no interval"
            return f"{self.policy}: {text} in one run of each; one run gives no confidence interval"
        if self.shown == "equal":
            return f"{both}: the same {name} in each of {self.n} runs"
        if self.shown == "open":
            return f"{both}: no significant difference in {name}: {self.policy} {self.gap} {method}"
        if self.half_width == 0:
            return f"{self.policy}: {name} {self.gap} in each of {self.n} runs"
        return f"{self.policy}: {name} {self.gap} {method}"

    def reversed(self) -> "Finding":
        """Return the same finding from the view of the other policy."""
        return Finding(**{**asdict(self), "policy": self.other, "other": self.policy, "difference": -self.difference})


def paired_findings(metric: str, pairs: list[tuple[str, str, np.ndarray]], confidence: float) -> list[Finding]:
    """Test the difference of each pair of policies, and correct all tests by Holm.

    pairs: (policy, other, values); a row of `values` has the policy's and the other's value in one replication.
    """
    differences, left_out = [], []
    for _, _, both in pairs:
        both = both[~np.isnan(both).all(axis=1)]  # undefined for both: nothing to compare in that replication
        finite = np.isfinite(both).all(axis=1)
        difference = both[finite, 0] - both[finite, 1]
        # What only the order of summation changed is no difference.
        difference[np.abs(difference) <= ROUNDING * np.abs(both[finite]).max(axis=1)] = 0.0
        differences.append(difference)
        left_out.append(len(both) - int(finite.sum()))
    # A pair that cannot be compared is not among those that Holm's procedure has to correct for.
    tests = iter(paired_differences([d for d, out in zip(differences, left_out, strict=True) if not out], confidence))
    findings = []
    for (policy, other, _), out in zip(pairs, left_out, strict=True):
        if out:
            figures = (math.nan, math.nan, math.nan, False, 0)
        else:
            d = next(tests)
            figures = (d.mean, d.half_width, d.p, d.significant, d.n)
        findings.append(Finding(metric, policy, other, *figures, out, confidence))
    return findings


def better(metric: str, difference: float) -> bool:
    """Return True if `difference` (policy - other) favors the policy."""
    return difference > 0 if higher_is_better(metric) else difference < 0


def clearly_best(findings: list[Finding], policies: list[str]) -> str | None:
    """Return the policy that is significantly better than all others, or None."""
    for policy in policies:
        seen = seen_from(findings, policy)
        beaten = {row.other for row in seen if row.significant and better(row.metric, row.difference)}
        if len(policies) > 1 and beaten >= set(policies) - {policy}:
            return policy
    return None


def seen_from(findings: list[Finding], policy: str) -> list[Finding]:
    """Return the findings about one policy, each as its difference to another policy."""
    return [row if row.policy == policy else row.reversed() for row in findings if policy in (row.policy, row.other)]
