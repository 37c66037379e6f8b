"""Selection of the best of k policies with a stated probability (Kim and Nelson).

S.-H. Kim and B. L. Nelson, "A fully sequential procedure for indifference-zone selection in simulation", 2001, with its
constant c = 1.  After a first stage of n0 replications of every policy, all remaining policies are replicated once more
in each round r, and a policy is eliminated when its mean is worse than another's by more than
W(r) = max(0, (h² S² / δ² - r) δ / 2r).  Here δ is the smallest difference that matters, 1 - α the stated probability,
S² the variance of the paired difference in the first stage, h² = 2 η (n0 - 1) and
η = ((2 α / (k - 1))^(-2 / (n0 - 1)) - 1) / 2.

Proven for normal replications: if the best policy is better than all others by at least δ, it is selected with
probability 1 - α or more; common random numbers are allowed, and save replications as they reduce S².  If others are
within δ of the best, one of these may be selected.  The guarantee is approximate here, because δ is not fixed
beforehand: it is a share of the best mean of the first stage.  Cost: replications grow as (S / δ)².
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hetsim.errors import UsageError
from hetsim.results.declared import has_direction, higher_is_better
from hetsim.results.formatting import gap, listed, metric_name
from hetsim.results.one_run import metrics

FIRST = 10  # Number of replications in the first stage.
MAX_REPLICATIONS = 1_000
PROBABILITY, DELTA = 0.95, 0.01


@dataclass(frozen=True)
class Selection:
    """Result of a selection: the best policy, or those left at the replication limit.

    `dropped`: policy -> number of replications after which it was eliminated, in the order of elimination.
    """

    metric: str
    probability: float
    delta: float
    best: str | None
    remaining: tuple[str, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    tied: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        name, runs = metric_name(self.metric), max(self.runs.values())
        within = gap(self.metric, self.delta)
        if self.best is None:
            first = (
                f"No best policy in {name} after {runs:,} replications: {listed(self.remaining)} do not differ "
                f"to {within} with a probability of {100 * self.probability:g} %; allow a larger delta, or longer runs."
            )
        else:
            first = (
                f"Best in {name}: {self.best}, with a probability of at least {100 * self.probability:g} % the best "
                f"or within {within} of it (Kim and Nelson's selection; {sum(self.runs.values()):,} runs in all)."
            )
        out = [f"{policy} after {number:,}" for policy, number in self.dropped.items()]
        second = [f"Eliminated: {', '.join(out)} replications."] if out else []
        same = [f"{listed(self.tied)} had the same mean; the first of them is named."] if self.tied else []
        return [first, *second, *same]


class Race:
    """Elimination of worse policies: `add` values, `start` once, `screen` each round."""

    def __init__(self, policies: Sequence[str], metric: str, probability: float = PROBABILITY, delta: float = DELTA):
        metrics.metric(metric)
        if not has_direction(metric):
            raise UsageError(f"{metric}: neither more nor less is always better, so no policy can be selected by it")
        if len(policies) < 2:
            raise UsageError("a selection needs at least two policies")
        if not 1 / len(policies) < probability < 1:
            raise UsageError(
                f"probability must be above chance (1/{len(policies)}, of {len(policies)} policies) "
                f"and below 1; got {probability:g}"
            )
        if not 0 < delta < 1:
            raise UsageError(f"delta must be a share of the mean above 0 and below 1, such as 1%; got {delta:g}")
        self.metric, self.probability, self.share = metric, probability, delta
        self.sign = 1.0 if higher_is_better(metric) else -1.0
        self.left = list(policies)
        self.values: dict[str, list[float]] = {policy: [] for policy in policies}
        self.counts: dict[str, list[float]] = {policy: [] for policy in policies}
        self._first: dict[str, tuple[float, float]] = {}
        self.dropped: dict[str, int] = {}
        self.delta = math.nan
        self._limit: dict[tuple[str, str], float] = {}

    def add(self, policy: str, value: float, count: float = 1.0) -> None:
        """Add the value of a policy's next replication, a mean over `count` customers."""
        if not math.isfinite(value):
            number, what = len(self.values[policy]), "undefined" if math.isnan(value) else "infinite"
            raise UsageError(f"{self.metric} is {what} in replication {number} of {policy}: select by another metric")
        self.values[policy].append(value)
        self.counts[policy].append(count)

    def withdraw(self, policy: str) -> None:
        """Remove a policy that cannot run, before it has any result."""
        self.left.remove(policy)
        del self.values[policy], self.counts[policy]

    def _contributions(self, policy: str) -> np.ndarray:
        """Return a value per replication, whose mean estimates the mean of all customers.

        The value is m + (mean of the replication - m) × customers / n.  m (the mean of all customers) and n (the mean
        number of customers per replication) are those of the first stage only: so replications remain independent and
        earlier values do not change, as the procedure requires.
        """
        values, (ratio, count) = np.array(self.values[policy]), self._first[policy]
        return ratio + (values - ratio) * (np.array(self.counts[policy]) / count)

    def start(self) -> None:
        """Set the smallest relevant difference δ and each policy pair's replication limit."""
        first, count = len(next(iter(self.values.values()))), len(self.values)
        if first < 3:
            raise UsageError(f"the first stage of a selection must have at least 3 replications; got {first}")
        if all(np.ptp(values) == 0 for values in self.values.values()):
            raise UsageError(
                f"{self.metric} is the same in all {first} replications of each policy: the scenario is not random, "
                "so that no selection is needed; compare one run of each policy"
            )
        for policy, values in self.values.items():
            counts = np.array(self.counts[policy])
            self._first[policy] = float((np.array(values) * counts).sum() / counts.sum()), float(counts.mean())
        contributions = {policy: self._contributions(policy) for policy in self.values}
        self.delta = self.share * abs(max(self.sign * values.mean() for values in contributions.values()))
        if self.delta == 0:
            raise UsageError(f"the best mean of {self.metric} is 0, so delta is undefined: select by another metric")
        eta = ((2 * (1 - self.probability) / (count - 1)) ** (-2 / (first - 1)) - 1) / 2
        squared = 2 * eta * (first - 1)
        for i, one in enumerate(self.left):
            for other in self.left[i + 1 :]:
                limit = squared * float((contributions[one] - contributions[other]).var(ddof=1)) / self.delta**2
                self._limit[one, other] = self._limit[other, one] = limit

    def screen(self) -> list[str]:
        """After one more replication of each policy, eliminate and return the worse ones."""
        r = len(self.values[self.left[0]])
        mean = {policy: self.sign * float(self._contributions(policy).mean()) for policy in self.left}
        out = [
            one for one in self.left
            if any(mean[one] < mean[other] - self._margin(one, other, r) for other in self.left if other != one)
        ]  # fmt: skip
        for policy in out:
            self.left.remove(policy)
            self.dropped[policy] = r
        return out

    def ahead(self, most: int) -> int:
        """Return an upper bound of the total further replications of remaining policies.

        `most` is the maximum number of replications of one policy.
        """
        r, max_needed = len(self.values[self.left[0]]), 0
        for one in self.left:
            limits = [self._limit[one, other] for other in self.left if other != one]
            max_needed += max(0, min(most, math.floor(max(limits)) + 1) - r) if limits else 0
        return max_needed

    def _margin(self, one: str, other: str, r: int) -> float:
        return max(0.0, (self._limit[one, other] - r) * self.delta / (2 * r))

    @property
    def over(self) -> bool:
        """Return True if one policy is left, or all that are left are tied."""
        if len(self.left) == 1:
            return True
        r = len(self.values[self.left[0]])
        return all(self._margin(a, b, r) == 0 for a in self.left for b in self.left if a != b)

    def outcome(self) -> Selection:
        tied = tuple(self.left) if self.over and len(self.left) > 1 else ()
        return Selection(
            metric=self.metric, probability=self.probability, delta=self.delta,
            best=self.left[0] if self.over else None, remaining=tuple(self.left), dropped=dict(self.dropped),
            runs={policy: len(values) for policy, values in self.values.items()}, tied=tied,
        )  # fmt: skip
