"""The smallest cluster that meets a target: bisection over a whole number of the scenario, each judged by replications.

A number is taken to meet the target only where that is shown: by a one-sided t interval for the expectation of a
replication's value.  All tests of a search together err with at most the stated probability (Bonferroni, over the
sizes that a bisection can try and two looks at each), so "meets" holds for the size that is named.  What bisection
supposes, that more is never worse, is looked at among the sizes tried, and told where it fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ScenarioError, UsageError
from sim.experiment.policies import PolicyLike
from sim.experiment.progress import Progress
from sim.experiment.run import Where, prepare
from sim.experiment.study import Case, Study
from sim.experiment.targets import MET, MISSED, NO_SIZES, UNDEFINED, Judge, Target
from sim.experiment.work import Setup
from sim.model.units import shown
from sim.results.formatting import metric_name, several, units_of
from sim.results.one_run.deadlines import JUDGED_BY_DEADLINE

if TYPE_CHECKING:
    import pandas as pd

    from sim.experiment.decide import Decision
    from sim.scenario.scenario import Overrides, Scenario

FIRST = 10
"""Replications of the first look at a size."""
MOST = 4096
"""The largest number that is tried unless told otherwise."""


@dataclass(frozen=True)
class SizeTrial:
    """One size and what its replications say; `half` is that of the one-sided test, `reason` why it cannot run."""

    size: int
    replications: int
    mean: float
    half: float
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Sizing:
    """The smallest number shown to meet a target: `size`, None (and `met` False) if none from `least` to `most` does.

    `trials`: every size tried, ascending.  `confidence`: that all verdicts met and missed are right.
    """

    scenario: str
    key: str
    target: Target
    confidence: float
    size: int | None
    least: int
    most: int
    trials: tuple[SizeTrial, ...]

    @property
    def met(self) -> bool:
        """Is there a size that is shown to meet the target?"""
        return self.size is not None

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row a size tried: size, replications, mean, half_width (one-sided), verdict."""
        import pandas as pd

        rows = [(t.size, t.replications, t.mean, t.half, t.verdict) for t in self.trials]
        return pd.DataFrame(rows, columns=["size", "replications", "mean", "half_width", "verdict"])

    @property
    def sentences(self) -> list[str]:
        level = f"{100 * self.confidence:g} %"
        if self.size is None:
            least, last = self.trials[0], self.trials[-1]
            said = [f"No {self.key} from {self.least} to {self.most} is shown to meet {self.target.text}: "
                    f"with {last.size} the {self._said(last)}."]  # fmt: skip
            if least.mean < last.mean if self.target.below else least.mean > last.mean:
                said.append(f"With {least.size} it is closer, {self._said(least)}: more is not better here.")
            return said
        by_size = {trial.size: trial for trial in self.trials}
        found = by_size[self.size]
        said = [
            f"{self.key} = {self.size} meets {self.target.text}: {self._said(found)} "
            f"(all verdicts together hold with {level} confidence)."
        ]
        below = by_size.get(self.size - 1)
        if below is None:
            said.append(f"{self.size} is the least that was allowed.")
        elif below.verdict == UNDEFINED:
            said.append(f"With {below.size} it is not defined in every replication.")
        elif below.verdict == MISSED:
            said.append(f"{below.size} does not: {self._said(below)}.")
        else:
            said.append(
                f"{below.size} is neither shown to meet it nor to miss it: {self._said(below)}; "
                "more replications would tell."
            )
        odd = [trial.size for trial in self.trials if trial.size > self.size and trial.verdict == MISSED]
        if odd:
            larger = ", ".join(map(str, odd))
            said.append(f"Beware: {larger} miss it although they are larger; more is not better here.")
        return said

    def _said(self, trial: SizeTrial) -> str:
        if trial.reason:
            return f"it cannot run ({trial.reason})"
        value = several([trial.mean], units_of(self.target.metric), [trial.half])[0]
        return f"{metric_name(self.target.metric)} is {value}, n = {trial.replications}"

    def to_json(self) -> dict[str, Any]:
        from sim.results.as_json import json_number

        return {
            "scenario": self.scenario, "key": self.key, "target": self.target.text, "met": self.met,
            "size": self.size, "from": self.least, "to": self.most, "confidence": self.confidence,
            "trials": [
                {"size": t.size, "replications": t.replications, "mean": json_number(t.mean),
                 "half_width": json_number(t.half), "verdict": t.verdict, **({"reason": t.reason} if t.reason else {})}
                for t in self.trials
            ],
            "sentences": self.sentences,
        }  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([f"<Sizing {self.scenario}>", *self.sentences])

    def _repr_html_(self) -> str:
        from html import escape

        lines = "".join(f"<li>{escape(text)}</li>" for text in self.sentences)
        return f"<ul>{lines}</ul>{self.table.to_html(index=False)}"


def size(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    target: str | Iterable[str],
    over: str | Mapping[str, Any],
    *,
    least: int = 1,
    most: int | None = None,
    minimize: str | None = None,
    confidence: float = 0.95,
    delta: float = 0.01,
    policy: PolicyLike | None = None,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    seed: int | None = None,
    replications: int = FIRST,
    overrides: Overrides = (),
    workers: int = 1,
    dask: str | None = None,
    executor: Executor | None = None,
    cache: str | Path | None = None,
    fresh: bool = False,
    shard: str | None = None,
    tell: Callable[[Any], None] | None = None,
    progress: Progress | bool | None = None,
) -> Sizing | Decision:
    """The smallest value of a whole number, or the cheapest of many combinations, that meets targets.

    target: `response_p99 < 200 ms`, `slo_attainment > 99%`: of what replications estimate; one, or several.
    over: a path as in `--set`, such as `cluster.nodes.0.count`: found by bisection, which supposes that more is never
        worse.  Or a mapping of paths to values (`[2, 4, 8]`, `"1..8"`): then all combinations are candidates, nothing
        is supposed of them, and the answer is a Decision; so it is with several targets or policies, or `minimize`.
    least, most: where to look; without `most` sizes are doubled until one meets it, up to 4,096.
    minimize: of the candidates that meet all targets: `price`, that of the whole cluster for an hour (the default where
        it has prices); `total`, the sum of the numbers (the default elsewhere); or any metric, by ranking and
        selection: with probability `confidence` the best, or within `delta` (a share) of it.
    policies: a dimension too: every combination is tried under each.
    replications: of the first look at a size; where they leave it open, there are four times as many for the second.
    tell: called with each trial as it is done.
    The other parameters are those of `run`; a shard makes its part of the first looks (of a Decision only).
    """
    targets = [Target.parse(text) for text in ([target] if isinstance(target, str) else target)]
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence lies between 0 and 1 (0.95, say), not {confidence:g}")
    if replications < 2:
        raise UsageError(f"a verdict takes at least 2 replications, not {replications}: one run has no interval")
    loaded = prepare(scenario, policy, overrides)
    top = MOST if most is None else most
    if not 1 <= least <= top:
        raise UsageError(f"sizes are looked for from {least} to {top}: that is no range of whole numbers from 1 on")
    where = Where(workers, dask, executor, cache, fresh, shard)
    if not isinstance(over, str) or len(targets) != 1 or minimize is not None or policies is not None:
        from sim.experiment.decide import decide

        values = {over: range(least, top + 1) if most is not None else None} if isinstance(over, str) else over
        return decide(
            loaded, targets, values, minimize, confidence, delta, policies, seed, replications, where, tell, progress
        )
    aim = targets[0]
    check_key(loaded, over, least)
    if shard is not None:
        raise UsageError("a bisection has no parts: each size follows from those before; give values (KEY=1..64)")
    with where.study(Setup((loaded,), (aim.metric,)), progress) as study:
        search = _Search(study, over, aim, confidence, seed, replications, least, top, tell)
        found = search.smallest(doubling=most is None)
    trials = tuple(search.trials[number] for number in sorted(search.trials))
    if all(trial.reason for trial in trials):
        raise UsageError(f"no {over} from {least} to {top} can run: {trials[-1].reason}")
    if all(trial.verdict == UNDEFINED or trial.reason for trial in trials):
        remedy = "make the horizon longer than the deadlines, or " if aim.metric in JUDGED_BY_DEADLINE else ""
        raise UsageError(f"{aim.metric} is not defined with any {over} tried: {remedy}choose another metric")
    return Sizing(loaded.name, over, aim, confidence, found, least, top, trials)


def check_key(scenario: Scenario, over: str, least: int) -> None:
    from sim.scenario.overrides import value_at

    if over in NO_SIZES:
        raise UsageError(
            f"--over {over}: {NO_SIZES[over]}, not how large anything is; name a size, such as cluster.nodes.0.count"
        )
    try:
        scenario.with_overrides({over: max(least, 1)})
    except ScenarioError as error:
        raise ScenarioError([replace(p, file=f"--over {over}") if p.file else p for p in error.problems]) from None
    value = value_at(scenario.raw, over)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"--over {over}: it is {shown(value)}, not a whole number that can be searched over")


class _Search:
    """Bisection, and the replications of each size."""

    def __init__(
        self, study: Study, key: str, target: Target, confidence: float, seed: int | None, first: int, least: int,
        most: int, tell: Callable[[SizeTrial], None] | None,
    ):  # fmt: skip
        self.key, self.seed, self.tell = key, seed, tell
        self.least, self.most = least, most
        self.trials: dict[int, SizeTrial] = {}
        self.steps = 2 * (math.ceil(math.log2(most / least)) + 1) + 1
        """Sizes that are tried at most: doublings and halvings."""
        self.judge = Judge(study, [target], first, (1 - confidence) / (2 * self.steps))
        self._expect(1)

    def _expect(self, sizes: int) -> None:
        """So many sizes are still to be tried, with a first look each."""
        meter = self.judge.study.meter
        meter.expect(meter.done + sizes * self.judge.first - meter.runs)

    def smallest(self, doubling: bool) -> int | None:
        """The least size that is shown to meet the target, if more is never worse."""
        low, high = self.least - 1, self.least  # low is not shown to meet it
        while not self.meets(high):
            if high == self.most:
                return None
            low, high = high, min(2 * high, self.most) if doubling else self.most
            self._expect(1 + math.ceil(math.log2(high - low)))
        while high - low > 1:
            self._expect(math.ceil(math.log2(high - low)))
            middle = (low + high) // 2
            if self.meets(middle):
                high = middle
            else:
                low = middle
        return high

    def meets(self, number: int) -> bool:
        if number not in self.trials:
            self.trials[number] = self._try(number)
            if self.tell is not None:
                self.tell(self.trials[number])
        return self.trials[number].verdict == MET

    def _try(self, number: int) -> SizeTrial:
        case = Case(self.judge.study.setup.scenarios[0], {self.key: number}, self.seed)
        found, _ = self.judge.try_(case, f"{self.key} = {number}")
        one = found.findings[0]
        return SizeTrial(number, found.replications, one.mean, one.half, one.verdict, found.reason)
