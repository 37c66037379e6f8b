"""The smallest cluster that meets a target: bisection over a whole number of the scenario, each judged by replications.

A number is taken to meet the target only where that is shown: by a one-sided t interval for the expectation of a
replication's value.  All tests of a search together err with at most the stated probability (Bonferroni, over the
sizes that a bisection can try and two looks at each), so "meets" holds for the size that is named.  What bisection
supposes, that more is never worse, is looked at among the sizes tried, and told where it fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import ScenarioError, UsageError
from sim.experiment.policies import PolicyLike
from sim.experiment.progress import Meter, Progress
from sim.experiment.run import prepare, whole_series
from sim.experiment.stopping import cut_warmup
from sim.experiment.study import Case, Replicates, Study
from sim.experiment.work import Setup
from sim.experiment.workers import Workers
from sim.model.units import RATE, TIME, is_number, parse, parse_fraction, shown
from sim.results.deadlines import JUDGED_BY_DEADLINE
from sim.results.statistics import half_width, is_congested
from sim.results.wording import JOULES, PER_TIME, PERCENT, SECONDS, metric_name, several, units_of

if TYPE_CHECKING:
    import pandas as pd

    from sim.scenario.scenario import Overrides, Scenario

FIRST = 10
"""Replications of the first look at a size."""
MORE = 4
"""So many times as many at the second look, where the first leaves it open."""
MOST = 4096
"""The largest number that is tried unless told otherwise."""

MET, MISSED, OPEN, UNDEFINED = "met", "missed", "open", "not defined"
"""Verdicts on a size.  The last: in some replication the metric has no value, as where nothing came to its end."""

NO_SIZES = {
    "seed": "it says which random numbers are drawn",
    "replications": "it says how often the scenario is run",
    "replications.max": "it says how often the scenario is run",
}
"""Whole numbers of a scenario that make nothing larger."""

_TARGET = re.compile(r"\s*([a-z][\w.]*)\s*(<=|>=|<|>|≤|≥)\s*(.+?)\s*$")


@dataclass(frozen=True)
class Target:
    """`metric < value`, or another relation: what the estimate of a metric has to be.

    `strict`: the value itself does not do (< and >).
    """

    metric: str
    below: bool
    value: float
    text: str
    strict: bool = True

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read `response_p99 < 200 ms`; UsageError with a sentence if it is not a target."""
        from sim.results.metrics import metric

        match = _TARGET.match(text)
        if not match:
            raise UsageError(f"a target is written METRIC < VALUE (or with >, <= or >=), not {shown(text)}")
        name, sign, written = match.groups()
        metric(name)
        try:
            value = _value(written, name)
        except ValueError as error:
            raise UsageError(f"--target {shown(text)}: {error}") from None
        below = sign in ("<", "<=", "≤")
        return cls(name, below, value, f"{name} {sign} {written}", strict=sign in ("<", ">"))

    def judge(self, mean: float, half: float) -> str:
        """met, missed, or open, by a one-sided half-width."""
        if math.isinf(mean):
            return MET if (mean < 0) == self.below else MISSED
        gap = (self.value - mean) if self.below else (mean - self.value)
        if gap == 0 == half:  # no spread, on the value itself
            return MISSED if self.strict else MET
        return MET if gap >= half else MISSED if gap <= -half else OPEN


def _value(text: str, name: str) -> float:
    units = units_of(name)
    if units == SECONDS:
        return parse(text, TIME, "200 ms")
    if units == PER_TIME:
        return parse(text, RATE, "40/h")
    if units == JOULES:
        return parse(text, {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9}, "5 kWh")
    if units == PERCENT and text.endswith("%"):
        return parse_fraction(text)
    try:
        value = float(text)
    except ValueError:
        example = "95% or 0.95" if units == PERCENT else "3.5"
        raise ValueError(f"{shown(text)} is not a number such as {example}") from None
    if not is_number(value):
        raise ValueError(f"{shown(text)} is not a finite number")
    return value


@dataclass(frozen=True)
class Trial:
    """One size and what its replications say; `half` is that of the one-sided test."""

    size: int
    replications: int
    mean: float
    half: float
    verdict: str


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
    trials: tuple[Trial, ...]

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

    def _said(self, trial: Trial) -> str:
        value = several([trial.mean], units_of(self.target.metric), [trial.half])[0]
        return f"{metric_name(self.target.metric)} is {value}, n = {trial.replications}"

    def to_json(self) -> dict[str, Any]:
        from sim.results.result import json_number

        return {
            "scenario": self.scenario, "key": self.key, "target": self.target.text, "met": self.met,
            "size": self.size, "from": self.least, "to": self.most, "confidence": self.confidence,
            "trials": [
                {"size": t.size, "replications": t.replications, "mean": json_number(t.mean),
                 "half_width": json_number(t.half), "verdict": t.verdict}
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
    target: str,
    over: str,
    *,
    least: int = 1,
    most: int | None = None,
    confidence: float = 0.95,
    policy: PolicyLike | None = None,
    seed: int | None = None,
    replications: int = FIRST,
    overrides: Overrides = (),
    workers: int = 1,
    progress: Progress | bool | None = None,
) -> Sizing:
    """The smallest value of the key `over`, a whole number, with which a scenario meets a target.

    target: `response_p99 < 200 ms`, `slo_attainment > 99%`: of what replications estimate.
    over: a path as in `--set`, such as `cluster.nodes.0.count`.
    least, most: where to look; without `most` sizes are doubled until one meets it, up to 4,096.
    replications: of the first look at a size; where they leave it open, there are four times as many for the second.
    The other parameters are those of `run`.
    """
    aim = Target.parse(target)
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence lies between 0 and 1 (0.95, say), not {confidence:g}")
    if replications < 2:
        raise UsageError(f"a verdict takes at least 2 replications, not {replications}: one run has no interval")
    loaded = prepare(scenario, policy, overrides)
    _check_key(loaded, over, least)
    top = MOST if most is None else most
    if not 1 <= least <= top:
        raise UsageError(f"sizes are looked for from {least} to {top}: that is no range of whole numbers from 1 on")
    pool, setup = Workers(workers), Setup((loaded,), (aim.metric,))
    with Meter(progress) as meter, Study(setup, pool, meter=meter) as study:
        search = _Search(study, over, aim, confidence, seed, replications, least, top)
        found = search.smallest(doubling=most is None)
    trials = tuple(search.trials[number] for number in sorted(search.trials))
    if all(trial.verdict == UNDEFINED for trial in trials):
        remedy = "make the horizon longer than the deadlines, or " if aim.metric in JUDGED_BY_DEADLINE else ""
        raise UsageError(f"{aim.metric} is not defined with any {over} tried: {remedy}choose another metric")
    return Sizing(loaded.name, over, aim, confidence, found, least, top, trials)


def _check_key(scenario: Scenario, over: str, least: int) -> None:
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
        most: int,
    ):  # fmt: skip
        self.study, self.key, self.target, self.seed, self.first = study, key, target, seed, first
        self.least, self.most = least, most
        self.trials: dict[int, Trial] = {}
        self.steps = 2 * (math.ceil(math.log2(most / least)) + 1) + 1
        """Sizes that are tried at most: doublings and halvings."""
        self.error = (1 - confidence) / (2 * self.steps)
        self._expect(1)

    def _expect(self, sizes: int) -> None:
        """So many sizes are still to be tried, with ten replications each."""
        meter = self.study.meter
        meter.expect(meter.done + sizes * self.first - meter.runs)

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
        return self.trials[number].verdict == MET

    def _try(self, number: int) -> Trial:
        study, most = self.study, MORE * self.first
        case = Case(study.setup.scenarios[0], {self.key: number}, self.seed)
        (warmup,), *_ = cut_warmup(study, [case], [most])
        series = whole_series(case, self.first, warmup=warmup)
        study.make([series])
        trial = self._look(number, series)
        if trial.verdict == OPEN:  # the second look goes on where the first ended
            study.more(series, most)
            study.make([])
            trial = self._look(number, series)
        return trial

    def _look(self, number: int, series: Replicates) -> Trial:
        """What the replications say of a size."""
        assert series.runs is not None
        values = series.runs.column(self.target.metric)
        if values.notna().all():
            values = series.runs.contributions(self.target.metric)
        return self._judge(number, values.to_numpy(dtype=float))

    def _judge(self, number: int, values: Any) -> Trial:
        import numpy as np

        if np.isnan(values).any():
            return Trial(number, len(values), math.nan, math.nan, UNDEFINED)
        if np.isfinite(values[0]) and (values == values[0]).all():  # exactly, where a sum would be rounded
            mean, half = float(values[0]), 0.0
            return Trial(number, len(values), mean, half, self.target.judge(mean, half))
        mean, half = float(values.mean()), math.nan
        if np.isfinite(values).all():
            half = half_width(values, mean if is_congested(self.target.metric) else math.inf, 1 - self.error)
        return Trial(number, len(values), mean, half, self.target.judge(mean, half))
