"""Find the smallest cluster that meets a target, by bisection over a whole number.

Each number is judged by replications.  It meets the target only if that is significant, by a one-sided t interval for
the expectation of a replication's value.  All tests of a search together err with at most the stated probability
(Bonferroni, over the sizes that a bisection can try and the repeated tests of each), so the verdict holds for the size
found. Bisection assumes that more is never worse; the sizes tried are checked for that, and a violation is reported.

If waits or responses must stay below a bound, numbers are skipped without a run if the queue of a service grows so long
by the end of its arrivals that the target is missed for certain.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Unpack

import pandas as pd

from hetsim.errors import ScenarioError, UsageError
from hetsim.experiment.options import SearchKeywords, StudyOptions, with_options
from hetsim.experiment.policies import PolicyLike
from hetsim.experiment.run import begun, prepare
from hetsim.experiment.sensitivity import sentences
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.work import Setup
from hetsim.model.units import shown
from hetsim.results.declared import in_set
from hetsim.results.formatting import json_number, metric_name, several, units_of
from hetsim.scenario.overrides import value_at
from hetsim.scenario.readers import SIZE, not_understood
from hetsim.scenario.scenario import Scenario
from hetsim.search.decide import Decision, decide
from hetsim.search.targets import MET, MISSED, NO_SIZES, UNDEFINED, Judge, Target

FIRST = 10  # replications of the first look at a size
MAX_SIZE = 4096  # largest number tried by default


@dataclass(frozen=True)
class SizeTrial:
    size: int
    replications: int
    mean: float
    half: float
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Sizing:
    """Result of a size search: the smallest `size` shown to meet the target, or None.

    `trials`: every size tried, ascending.  `confidence`: probability that all verdicts are right.
    """

    scenario: str
    key: str
    target: Target
    confidence: float
    size: int | None
    min_size: int
    max_size: int
    trials: tuple[SizeTrial, ...]
    overload: str = ""  # why numbers below `least` cannot serve the arriving requests, if overload determined `least`
    remarks: tuple[str, ...] = ()  # keys for which no number is excluded beforehand
    sensitivity: Mapping[str, Any] = field(default_factory=dict)  # of `size`, or else of the largest size that ran

    @property
    def met(self) -> bool:
        """Return True if a size meets the target significantly."""
        return self.size is not None

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table of sizes tried: replications, mean, half_width, verdict."""
        rows = [(t.size, t.replications, t.mean, t.half, t.verdict) for t in self.trials]
        return pd.DataFrame(rows, columns=["size", "replications", "mean", "half_width", "verdict"])

    @property
    def sentences(self) -> list[str]:
        if self.size is None:
            first, last = self.trials[0], self.trials[-1]
            said = [f"No {self.key} from {self.min_size} to {self.max_size} is shown to meet {self.target.text}: "
                    f"with {last.size} the {self._said(last)}."]  # fmt: skip
            if first.mean < last.mean if self.target.below else first.mean > last.mean:
                said.append(f"With {first.size} it is closer, {self._said(first)}: larger is not better here.")
            return [*said, *sentences(self.sensitivity), *self.remarks]
        by_size = {trial.size: trial for trial in self.trials}
        said = [f"{self.key} = {self.size} meets {self.target.text}: {self._said(by_size[self.size])} "
                f"(all verdicts together hold with {100 * self.confidence:g} % confidence)."]  # fmt: skip
        below = by_size.get(self.size - 1)
        if below is None and self.overload:
            fewer = f"{self.size - 1}{' and fewer' if self.size > 2 else ''}"
            said.append(f"{fewer} were not run ({self.overload}); --from {self.size - 1} runs them, too.")
        elif below is None:
            said.append(f"{self.size} is the smallest size allowed.")
        elif below.verdict == UNDEFINED:
            said.append(f"With {below.size} it is not defined in every replication.")
        elif below.verdict == MISSED:
            said.append(f"{below.size} does not: {self._said(below)}.")
        else:
            open_ = f"It is undecided whether {below.size} meets the target: {self._said(below)}"
            said.append(f"{open_}; use more replications.")
        odd = [str(trial.size) for trial in self.trials if trial.size > self.size and trial.verdict == MISSED]
        if odd:
            odd_text = f"{', '.join(odd)} miss the target although they are larger"
            said.append(f"Warning: {odd_text}; larger is not better here.")
        return [*said, *sentences(self.sensitivity), *self.remarks]

    def _said(self, trial: SizeTrial) -> str:
        if trial.reason:
            return f"it cannot run ({trial.reason})"
        value = several([trial.mean], units_of(self.target.metric), [trial.half])[0]
        return f"{metric_name(self.target.metric)} is {value}, n = {trial.replications}"

    def to_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario, "key": self.key, "target": self.target.text, "met": self.met,
            "size": self.size, "from": self.min_size, "to": self.max_size, "confidence": self.confidence,
            **({"overload": self.overload} if self.overload else {}),
            "trials": [
                {"size": t.size, "replications": t.replications, "mean": json_number(t.mean),
                 "half_width": json_number(t.half), "verdict": t.verdict, **({"reason": t.reason} if t.reason else {})}
                for t in self.trials
            ],
            **({"sensitivity": self.sensitivity} if self.sensitivity else {}),
            "sentences": self.sentences,
        }  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([f"<Sizing {self.scenario}>", *self.sentences])

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{escape(text)}</li>" for text in self.sentences)
        return f"<ul>{lines}</ul>{self.table.to_html(index=False)}"


@with_options(SearchKeywords)
def size(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    target: str | Iterable[str],
    over: str | Mapping[str, Any],
    *,
    least: int | None = None,
    most: int | None = None,
    minimize: str | None = None,
    confidence: float = 0.95,
    delta: float = 0.01,
    policy: PolicyLike | None = None,
    policies: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    replications: int = FIRST,
    tell: Callable[[Any], None] | None = None,
    **options: Unpack[SearchKeywords],
) -> Sizing | Decision:
    """Find the smallest number, or the cheapest combination, that meets targets.

    Parameters:
        target: one or several, such as `response_p99 < 200 ms` or `slo_attainment > 99%`, estimated by replications.
        over: a path as in `--set`, such as `cluster.nodes.0.count`: its minimum is found by bisection, which assumes
            that more is never worse.  Or a mapping of paths to values (`[2, 4, 8]`, `"1..8"`): then all combinations
            are candidates without that assumption, and the result is a Decision; the same holds for several targets or
            policies, or with `minimize`.
        least, most: bounds of the search; without `most`, sizes are doubled until one meets the target, up to 4,096.
            Without `least`, a bisection for waits or responses below a bound begins at the smallest size that can carry
            the load; without `most`, it then adds an eighth of that size, and twice as much each time.
        minimize: objective among candidates that meet all targets: `price`, of the whole cluster per hour (the default
            with prices); `total`, the sum of the varied counts (the default without prices); or any metric, by ranking
            and selection: the best with probability `confidence`, or within `delta` (a share) of the best.
        confidence, delta: probability that all verdicts are right; indifference zone of a selection.
        policies: every combination is tried under each of these policies.
        replications: number per size.  A size is tested after 3 runs, after a third of this number and after all, until
            the verdict is certain; if it remains open, four times the number is run.
        tell: called with each finished trial.
        scenario, policy: as for `run`.
        shard: "2/8": compute only this part of the first tests of a Decision, for the cache, and raise ShardOver.
        options: the options that all studies have.
    Returns: the Sizing or the Decision, with every trial.
    Raises: UsageError: nothing to search, or no candidate can run or has the metric.
    """
    targets = [Target.parse(text) for text in ([target] if isinstance(target, str) else target)]
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must be between 0 and 1 (for example 0.95); got {confidence:g}")
    if replications < 2:
        raise UsageError(f"replications must be at least 2 (one run has no confidence interval); got {replications}")
    study_options = StudyOptions(**options)
    loaded = prepare(scenario, policy, study_options.overrides, study_options.program)
    top, bottom = MAX_SIZE if most is None else most, 1 if least is None else least
    if not 1 <= bottom <= top:
        raise UsageError(f"sizes must be a range of whole numbers of at least 1; got {bottom} to {top}")
    if not isinstance(over, str) or len(targets) != 1 or minimize is not None or policies is not None:
        values = {over: range(bottom, top + 1) if most is not None else None} if isinstance(over, str) else over
        return decide(loaded, targets, values, study_options, policies=policies, minimize=minimize,
                      confidence=confidence, delta=delta, first=replications, tell=tell)  # fmt: skip
    aim = targets[0]
    check_key(loaded, over, bottom)
    if study_options.shard is not None:
        raise UsageError("a bisection cannot be sharded: sizes depend on earlier ones; give values (KEY=1..64)")
    overload, seed = "", study_options.seed
    remarks: tuple[str, ...] = ()
    if least is None and aim.below and any(entry.service is not None for entry in loaded.model.workload):
        remarks = tuple(f"{one}; no size is excluded by its load" for one in not_understood(loaded, SIZE))
        if not remarks:
            bottom, overload = _first_sustained(loaded, aim, over, most=top, seed=seed)
    with begun(study_options, Setup((loaded,), (aim.metric,), study_options.check, study_options.audit)) as study:
        search = _Search(
            study, key=over, target=aim, confidence=confidence, seed=seed, first=replications, least=bottom, most=top,
            step=top if most is not None else max(1, bottom // 8) if overload else bottom, tell=tell,
        )  # fmt: skip
        smallest = search.smallest()
        search._expect(0)  # fewer sizes may have been tried than a bisection can take
        judged = smallest or max((number for number, one in search.series.items() if one is not None), default=0)
        findings, name = [search.trials.get(judged)], "" if smallest else f"{over} = {judged}"
        sensitive = search.judge.sensitivity(search.series.get(judged), findings, name)
    trials = tuple(search.trials[number] for number in sorted(search.trials))
    if all(trial.reason for trial in trials):
        raise UsageError(f"no {over} from {bottom} to {top} can run: {trials[-1].reason}")
    if all(trial.verdict == UNDEFINED or trial.reason for trial in trials):
        remedy = "make the horizon longer than the deadlines, or " if aim.metric in in_set("deadlines") else ""
        raise UsageError(f"{aim.metric} is not defined with any {over} tried: {remedy}choose another metric")
    return Sizing(scenario=loaded.name, key=over, target=aim, confidence=confidence, size=smallest, min_size=bottom,
                  max_size=top, trials=trials, overload=overload, remarks=remarks, sensitivity=sensitive)  # fmt: skip


def _first_sustained(scenario: Scenario, aim: Target, over: str, most: int, seed: int | None) -> tuple[int, str]:
    """Return the smallest `over` without certain overload, and why smaller ones fail."""
    def overload(number: int) -> str:
        try:
            made = scenario.with_overrides({over: number}).build(seed)
        except ScenarioError:  # which the search tells, as a size that cannot run
            return ""
        return next((text for text, *waits in made.overloads if aim.missed_by(waits, len(made.tasks))), "")

    low, high, text = 0, 1, ""
    while high < most and (reason := overload(high)):
        low, high, text = high, min(2 * high, most), reason
    while high - low > 1:
        middle = (low + high) // 2
        reason = overload(middle)
        low, high, text = (middle, high, reason) if reason else (low, middle, text)
    return high, text


def check_key(scenario: Scenario, over: str, least: int) -> None:
    if over in NO_SIZES:
        raise UsageError(f"--over {over}: {NO_SIZES[over]}, not a size; give a size, such as cluster.nodes.0.count")
    try:
        scenario.with_overrides({over: max(least, 1)})
    except ScenarioError as error:
        raise ScenarioError([replace(p, file=f"--over {over}") if p.file else p for p in error.problems]) from None
    value = value_at(scenario.raw, over)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(f"--over must be a key with a whole number; {over} is {shown(value)}")


class _Search:
    def __init__(
        self, study: Study, key: str, target: Target, confidence: float, seed: int | None, first: int, least: int,
        most: int, step: int, tell: Callable[[SizeTrial], None] | None,
    ):  # fmt: skip
        self.key, self.seed, self.tell = key, seed, tell
        self.min_size, self.max_size, self.step = least, most, step
        self.trials: dict[int, SizeTrial] = {}
        self.series: dict[int, Replicates | None] = {}
        doublings = math.ceil(math.log2((most - least) / step + 1))
        halvings = math.ceil(math.log2(max(1, min(step << max(0, doublings - 1), most - least))))
        # upper bound of the number of sizes tried
        self.steps = max(2 * (math.ceil(math.log2(most / least)) + 1) + 1, 1 + doublings + halvings)
        self.judge = Judge(study, [target], first, (1 - confidence) / self.steps)
        self._expect(1)

    def _expect(self, sizes: int) -> None:
        meter = self.judge.study.meter
        meter.expect(meter.done + sizes * self.judge.first - meter.runs)

    def smallest(self) -> int | None:
        low, high, step = self.min_size - 1, self.min_size, self.step  # low is not shown to meet it
        while not self.meets(high):
            if high == self.max_size:
                return None
            low, high, step = high, min(high + step, self.max_size), 2 * step
            self._expect(1 + math.ceil(math.log2(high - low)))
        while high - low > 1:
            self._expect(math.ceil(math.log2(high - low)))
            middle = (low + high) // 2
            low, high = (low, middle) if self.meets(middle) else (middle, high)
        return high

    def meets(self, number: int) -> bool:
        if number not in self.trials:
            self.trials[number] = self._try(number)
            if self.tell is not None:
                self.tell(self.trials[number])
        return self.trials[number].verdict == MET

    def _try(self, number: int) -> SizeTrial:
        case = Case(self.judge.study.setup.scenarios[0], {self.key: number}, self.seed)
        trial, self.series[number] = self.judge.try_(case, f"{self.key} = {number}")
        one = trial.findings[0]
        return SizeTrial(size=number, replications=trial.replications, mean=one.mean, half=one.half,
                         verdict=one.verdict, reason=trial.reason)  # fmt: skip
