"""Find the cheapest of many sizes, under several policies, that meets all targets.

Every combination of values and policies is a candidate; a larger cluster may be worse.  A candidate meets the targets
only if that is significant, each by a one-sided t interval; all tests together err with at most the stated probability
(Bonferroni, over candidates, targets and the repeated tests of each).

If the objective is known beforehand (the price of the cluster, the sum of the varied counts), candidates are tried in
its order and the first that meets the targets is the answer: all cheaper candidates are shown to miss the targets, or
remain undecided. If it is a metric, all candidates are tried, and the best candidate that meets the targets is found by
ranking and selection (Kim and Nelson, `hetsim.results.many_runs.selection`); tests and selection then share the error.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import ScenarioError, UsageError
from hetsim.experiment.options import StudyOptions
from hetsim.experiment.points import PointRow, check_all, rows
from hetsim.experiment.policies import PolicyLike
from hetsim.experiment.run import begun, stop_at_part
from hetsim.experiment.sensitivity import sentences
from hetsim.experiment.stopping import select
from hetsim.experiment.study import Case, Replicates
from hetsim.experiment.work import Setup
from hetsim.results.declared import has_direction, higher_is_better
from hetsim.results.formatting import json_number, metric_name, several, units_of
from hetsim.results.many_runs.selection import MAX_REPLICATIONS, Race
from hetsim.results.one_run.estimands import weight_of
from hetsim.results.one_run.metrics import metric
from hetsim.results.panels import Picture, drawn
from hetsim.scenario.building.cluster import build_cluster
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.sweep import Range, is_range, read_range
from hetsim.search.targets import MET, NO_SIZES, OPEN, UNDEFINED, Judge, Target, TargetsTrial

PRICE, TOTAL = "price", "total"  # objectives that are known before any run
MAX_CANDIDATES = 10_000


@dataclass(frozen=True)
class Candidate:
    """Tried values and policy, with test results and objective (NaN if unknown)."""

    number: int
    values: Mapping[str, Any]
    policy: str
    objective: float
    trial: TargetsTrial

    @property
    def label(self) -> str:
        parts = [f"{key}={value}" for key, value in self.values.items()]
        return ", ".join([*parts, *([self.policy] if self.policy else [])])


@dataclass(frozen=True)
class Decision:
    """The best candidate of a search, and all candidates tried.  Attributes:

    best        the candidate, or None if none is shown to meet all targets
    candidates  those tried, in the order of the combinations (of values and policy): all; or, if the objective is price
                or total and a candidate meets all targets, none that costs more than the best
    count       number of all combinations
    objective   what is optimized: price or total (minimized), or a metric (in its better direction)
    confidence  probability that all verdicts are right and that `best` is truly the best candidate (if the objective is
                a metric: the best, or within `delta` of the best)
    tied        candidates that are not significantly worse in the objective than the best
    """

    scenario: str
    keys: list[str]
    targets: list[Target]
    objective: str
    confidence: float
    delta: float
    best: Candidate | None
    candidates: list[Candidate]
    count: int
    policies: list[str] = field(default_factory=list)
    tied: list[Candidate] = field(default_factory=list)
    sensitivity: Mapping[str, Any] = field(default_factory=dict)  # of the best, or else of the nearest candidate

    @property
    def met(self) -> bool:
        return self.best is not None

    @property
    def needs_no_runs(self) -> bool:
        return self.objective in (PRICE, TOTAL)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Table of candidates: values, policy, objective, replications, verdict, reason.

        Each target adds the columns METRIC, METRIC_half_width (one-sided) and METRIC_verdict.
        """
        metrics = [target.metric for target in self.targets]  # a metric with two targets is numbered
        names = [name if metrics.count(name) == 1 else f"{name}_{number}" for number, name in enumerate(metrics)]
        rows = []
        for one in self.candidates:
            row: dict[str, Any] = {**one.values, "policy": one.policy, self.objective: one.objective}
            row |= {"replications": one.trial.replications, "verdict": one.trial.verdict, "reason": one.trial.reason}
            for name, finding in zip(names, one.trial.findings, strict=True):
                row |= {name: finding.mean, f"{name}_half_width": finding.half, f"{name}_verdict": finding.verdict}
            rows.append(row)
        return pd.DataFrame(rows)

    @property
    def front(self) -> list[Candidate]:
        """Candidates that no other candidate beats in both cost and the first target."""
        sign, front = 1.0 if self.targets[0].below else -1.0, list[Candidate]()
        rows = [(self._cost(one), sign * one.trial.findings[0].mean, one) for one in self.candidates]
        rows = [row for row in rows if not (math.isnan(row[0]) or math.isnan(row[1]))]
        for _, mean, one in sorted(rows, key=lambda row: row[:2]):
            if not front or mean < sign * front[-1].trial.findings[0].mean:
                front.append(one)
        return front

    @property
    def sentences(self) -> list[str]:
        texts = " and ".join(target.text for target in self.targets)
        tried = len(self.candidates)
        share = f"{tried:,} of {self.count:,} combinations tried" if tried < self.count else f"all {tried:,} tried"
        if self.best is None:
            none = f"No combination is shown to meet {texts} ({share})."
            return [none, *sentences(self.sensitivity), *self._open()]
        figures = [
            f"{metric_name(target.metric)} {several([finding.mean], units_of(target.metric), [finding.half])[0]}"
            for target, finding in zip(self.targets, self.best.trial.findings, strict=True)
        ]
        extreme = "highest" if higher_is_better(self.objective) else "lowest"
        said = [
            f"{self.best.label} meets {texts} with the {extreme} {self._objective(self.best)}: {', '.join(figures)}, "
            f"n = {self.best.trial.replications} ({100 * self.confidence:g} % confidence in all verdicts; {share})."
        ]
        if self.tied:
            tied = "; ".join(one.label for one in self.tied)
            said.append(f"No significant difference to it after {MAX_REPLICATIONS:,} replications: {tied}.")
        elif not self.needs_no_runs:
            said.append(f"It is the best of those that meet the targets, or within {100 * self.delta:g} % of the best.")
        return [*said, *sentences(self.sensitivity), *self._open()]

    def _open(self) -> list[str]:
        limit = math.inf if self.best is None else self._cost(self.best)
        open_ones = [one for one in self.candidates if one.trial.verdict == OPEN and not self._cost(one) >= limit]
        if not open_ones:
            return []
        few = "; ".join(one.label for one in open_ones[:3]) + ("; …" if len(open_ones) > 3 else "")
        return [f"Undecided whether a target is met: {few}. Use more replications."]

    def _cost(self, one: Candidate) -> float:
        return -one.objective if higher_is_better(self.objective) else one.objective

    def _objective(self, one: Candidate) -> str:
        if self.objective == PRICE:
            return f"price ({one.objective:.6g}/h)"
        if self.objective == TOTAL:
            return f"total ({one.objective:g})"
        return f"{metric_name(self.objective)} ({several([one.objective], units_of(self.objective))[0]})"

    def shown(self) -> list[list[str]]:
        """Return the title and the rows of the table, as text."""
        several_policies = len(set(self.policies)) > 1
        facts = ["policy"] if several_policies else []
        titles = [*self.keys, *facts, *(metric_name(t.metric) for t in self.targets)]
        titles += ["replications", self.objective, ""]
        rows = [titles]
        for one in self.candidates:
            cells = [str(one.values[key]) for key in self.keys] + ([one.policy] if several_policies else [])
            for target, finding in zip(self.targets, one.trial.findings, strict=True):
                cells += several([finding.mean], units_of(target.metric), [finding.half])
            cost = "" if math.isnan(one.objective) else f"{one.objective:.6g}"
            mark = " ◂" if self.best is not None and one.number == self.best.number else ""
            verdict = one.trial.verdict + (f" ({one.trial.reason})" if one.trial.reason else "") + mark
            rows.append([*cells, str(one.trial.replications), cost, verdict])
        return rows

    def to_json(self) -> dict[str, Any]:
        def candidate(one: Candidate) -> dict[str, Any]:
            return {
                "values": dict(one.values), "policy": one.policy, "objective": json_number(one.objective),
                "replications": one.trial.replications, "verdict": one.trial.verdict, "reason": one.trial.reason,
                "targets": [
                    {"mean": json_number(f.mean), "half_width": json_number(f.half), "verdict": f.verdict}
                    for f in one.trial.findings
                ],
            }  # fmt: skip

        return {"scenario": self.scenario, "keys": self.keys, "targets": [target.text for target in self.targets],
                "minimize": self.objective, "confidence": self.confidence, "met": self.met, "combinations": self.count,
                "best": None if self.best is None else candidate(self.best),
                "tied": [candidate(one) for one in self.tied],
                "candidates": [candidate(one) for one in self.candidates],
                **({"sensitivity": self.sensitivity} if self.sensitivity else {}),
                "sentences": self.sentences}  # fmt: skip

    def plot(self) -> Picture:
        """Draw the objective against the first target's metric."""
        return drawn("decision", self)

    def __repr__(self) -> str:
        return "\n".join([f"<Decision {self.scenario}>", *self.sentences])

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(text)}</li>" for text in self.sentences)
        return f"<ul>{lines}</ul>{self.table.to_html(index=False)}"


def decide(
    scenario: Scenario, targets: Sequence[Target], over: Mapping[str, Any], options: StudyOptions, *,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None, minimize: str | None, confidence: float,
    delta: float, first: int, tell: Callable[[Any], None] | None,
) -> Decision:  # fmt: skip
    """Find the cheapest policy and values of the keys in `over` that meet all targets."""
    if not 0 < delta < 1:
        raise UsageError(f"delta must be a share of the mean above 0 and below 1, such as 1%; got {delta:g}")
    base = scenario.moved()
    values = {key: _numbers(key, given) for key, given in over.items()}
    if math.prod(map(len, values.values())) > MAX_CANDIDATES:
        raise UsageError(f"a search must have at most {MAX_CANDIDATES:,} combinations; got more")
    points = [dict(zip(values, one, strict=True)) for one in product(*values.values())]
    _, given = rows(base, points=points, policies=policies)
    cases, labels, prices = _cases(base, given, options.seed)
    objective = minimize or (PRICE if any(prices) else TOTAL)
    known_costs = _known(objective, prices, given)
    metrics = list(dict.fromkeys([*(t.metric for t in targets), *([] if known_costs else [objective])]))
    allowed = (1 - confidence) / (1 if known_costs else 2)
    with begun(options, Setup((base,), tuple(metrics), options.check, options.audit), first * len(cases)) as study:
        stop_at_part(options, study, [Replicates(case, first) for case in cases if not case.auto_warmup])
        judge = Judge(study, targets, first, allowed / (len(targets) * len(cases)))
        about = [(row.values, label) for row, label in zip(given, labels, strict=True)]
        search = _Search(judge, cases=cases, about=about, known=known_costs, tell=tell)
        best = search.cheapest() if known_costs else search.best(objective, 1 - allowed, delta)
        shown = search.tried.get(search.nearest() if best is None else best)  # none if no candidate ran
        name = "" if shown is None or best is not None else shown.label
        sensitive = {} if shown is None else judge.sensitivity(search.series[shown.number], shown.trial.findings, name)
    tried = [search.tried[number] for number in sorted(search.tried)]
    if all(one.trial.reason for one in tried):
        raise UsageError(f"no combination can run: {tried[-1].trial.reason}")
    if all(one.trial.verdict == UNDEFINED or one.trial.reason for one in tried):
        raise UsageError("a target's metric is not defined with any combination tried: choose another metric")
    return Decision(scenario=base.name, keys=list(values), targets=list(targets), objective=objective,
                    confidence=confidence, delta=delta, best=None if best is None else search.tried[best],
                    candidates=tried, count=len(cases), policies=labels,
                    tied=[search.tried[number] for number in search.tied], sensitivity=sensitive)  # fmt: skip


def _cases(base: Scenario, given: Sequence[PointRow], seed: int | None) -> tuple[list[Case], list[str], list[float]]:
    """Return the case of each combination, its policy, and the price of its cluster."""
    cases, labels, prices = [], [], []
    for row in given:
        cases.append(Case(base, row.overrides, seed))
        try:
            one = base.with_overrides(row.overrides)
        except ScenarioError:
            check_all(base, [row], lambda _: None, lambda *_: None)  # which says what is wrong with the point
            raise
        labels.append(row.policy or one.policies.label)
        prices.append(_price(one))
    return cases, labels, prices


def _known(objective: str, prices: list[float], given: Sequence[PointRow]) -> list[float]:
    """Return the rows' costs if they need no run; empty if the objective is a metric."""
    if objective == PRICE:
        if not any(prices):
            raise UsageError("minimizing the price needs prices of the cluster (cluster.prices)")
        return prices
    if objective == TOTAL:
        return [float(sum(row.values.values())) for row in given]
    metric(objective)
    if not has_direction(objective):
        raise UsageError(f"{metric_name(objective)}: neither more nor less is always better; minimize another metric")
    return []


def _numbers(key: str, given: Any) -> list[int]:
    if key in NO_SIZES:
        raise UsageError(f"{key}: {NO_SIZES[key]}, not a size; give a key such as cluster.nodes.0.count")
    if given is None:
        raise UsageError(f"{key} needs numbers to try: {key}=1..8, or {key}=2,4,8")
    if not isinstance(given, Range) and is_range(given):
        try:
            given = read_range(given)
        except ValueError as error:
            raise UsageError(f"{key}: {error}") from None
    if isinstance(given, Range):
        given = given.grid() if given.steps is not None else range(math.ceil(given.low), math.floor(given.high) + 1)
    values = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not values or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in values):
        raise UsageError(f"{key} must be whole numbers, such as 1..8 or 2,4,8")
    return list(dict.fromkeys(values))


def _price(scenario: Scenario) -> float:
    """Price of the cluster per hour; 0 if it has no prices or cannot be built."""
    if not scenario.model.cluster.prices and "price" not in repr(scenario.raw["cluster"]):
        return 0.0
    try:
        cluster = build_cluster(scenario.model.cluster, scenario.document)
    except ScenarioError:
        return 0.0
    paid = zip(cluster.prices, cluster.powered_units, strict=True)
    return 3600.0 * sum(price.up * count for price, count in paid)


class _Search:
    def __init__(
        self, judge: Judge, cases: Sequence[Case], about: Sequence[tuple[Mapping[str, Any], str]],
        known: Sequence[float], tell: Callable[[Any], None] | None,
    ):  # fmt: skip
        self.judge, self.cases, self.about, self.known, self.say = judge, cases, about, known, tell
        self.tried: dict[int, Candidate] = {}
        self.series: dict[int, Replicates] = {}
        self.tied: list[int] = []

    def cheapest(self) -> int | None:
        for number in sorted(range(len(self.cases)), key=lambda number: self.known[number]):
            if self._try(number).trial.verdict == MET:
                return number
        return None

    def nearest(self) -> int:
        """Return the candidate whose worst miss of a target is the smallest; -1 if none."""
        def worst(number: int) -> float:  # the smallest distance inside a target, as a share of its value
            pairs = zip(self.judge.targets, self.tried[number].trial.findings, strict=True)
            return min(target.gap(one.mean) / (abs(target.value) or 1.0) for target, one in pairs)

        return max((one for one in self.series if not math.isnan(worst(one))), key=worst, default=-1)

    def best(self, objective: str, probability: float, delta: float) -> int | None:
        remaining = [number for number in range(len(self.cases)) if self._try(number).trial.verdict == MET]
        values = {number: self._values(number, objective) for number in remaining}
        for number in self.tried:
            if number in self.series:
                mean = float(np.mean([value for value, _ in self._values(number, objective)]))
                self._put(number, self.tried[number].trial, mean)
        sound = [number for number in remaining if all(math.isfinite(value) for value, _ in values[number])]
        if not sound:
            return None
        sign = -1.0 if higher_is_better(objective) else 1.0
        by_mean = sorted(sound, key=lambda number: sign * self.tried[number].objective)
        if len(sound) == 1 or all(len(set(values[number])) == 1 for number in sound):
            return by_mean[0]  # nothing random to decide by
        # Ranking and selection: further replications of those that may be the best.
        race = Race([str(number) for number in sound], objective, probability, delta)
        series = {str(number): self.series[number] for number in sound}
        select(self.judge.study, race, series, first=max(self.judge.looks[-2], 3), most=MAX_REPLICATIONS)
        first, *self.tied = (int(label) for label in race.left)
        return first

    def _values(self, number: int, objective: str) -> list[tuple[float, float]]:
        taken = [outcome.values or {} for outcome in self.series[number].taken] if number in self.series else []
        weight = weight_of(objective) or ""
        return [(values.get(objective, math.nan), values.get(weight, 1.0)) for values in taken]

    def _try(self, number: int) -> Candidate:
        values, policy = self.about[number]
        where = ", ".join([*(f"{key} = {value}" for key, value in values.items()), policy])
        trial, series = self.judge.try_(self.cases[number], where)
        if series is not None:
            self.series[number] = series
        self._put(number, trial, self.known[number] if self.known else math.nan)
        if self.say is not None:
            self.say(self.tried[number])
        return self.tried[number]

    def _put(self, number: int, trial: TargetsTrial, objective: float) -> None:
        values, policy = self.about[number]
        self.tried[number] = Candidate(number=number, values=values, policy=policy, objective=objective, trial=trial)
