"""Find the best parameters of a policy, by successive halving.

All settings use the same replications (common random numbers).  After the first few, the better third continues with
three times as many, and so on until one setting is left (Jamieson and Talwalkar, Non-stochastic best arm identification
and hyperparameter optimization, AISTATS 2016): most runs are spent on settings that may be the best.

The best of many estimates looks better than it is, because chance helped to choose it (the winner's curse).  So the
winner and the present setting are run again in further replications, which had no part in the choice; the confidence
intervals are from these replications alone.

With `warmup: auto` all settings are measured over the same tasks: those after the warm-up found for the present
setting, which does not depend on the other settings.  The last replications use the longer of the warm-ups found for
the winner and for the present setting.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from hetsim import registry
from hetsim.errors import ScenarioError, UsageError, suggestion
from hetsim.experiment.identity import Identity
from hetsim.experiment.options import SearchKeywords, StudyOptions, with_options
from hetsim.experiment.points import PointRow, check_all, is_sampled, rows
from hetsim.experiment.policies import PolicyLike
from hetsim.experiment.run import begun, prepare, stop_at_part
from hetsim.experiment.stopping import cut_warmup
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.work import Setup
from hetsim.results.declared import DEFAULT_METRIC, has_direction, higher_is_better
from hetsim.results.formatting import formatter, gap, json_number, json_values, metric_name, several, units_of
from hetsim.results.many_runs.warmup import PILOT
from hetsim.results.one_run.estimands import ratio_contributions, weight_of
from hetsim.results.one_run.metrics import metric as known
from hetsim.results.statistics import Interval, PairedDifference, paired_differences, student_interval
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.policy import PARTS, Policies, PolicySpec, policy_parameters
from hetsim.scenario.schema.whole import ScenarioModel

SETTINGS = 27
FIRST = 3
SHARE = 3
FINAL = 20


@dataclass(frozen=True)
class Setting:
    """Parameter values (empty: the present ones) and results of one setting."""

    values: dict[str, Any]
    stage: int  # the last stage in which it ran
    seen: tuple[float, ...]  # value of the metric by replication
    error: str = ""  # that of a failed replication

    @property
    def label(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.values.items()) or "present setting"


@dataclass(frozen=True)
class Tuning:
    """The outcome of `hetsim.tune`.  Attributes:

    settings       all settings tried, the present one last; `best` is the index of the winner
    ours, present  a value per further replication, whose mean estimates the metric, under the winner and under the
                   present setting; these replications, numbered from `used`, had no part in the choice
    policy         the winner as a scenario writes it under `policy:`
    remarks        notes on the results, such as a warm-up that was found; `warnings`: the serious remarks
    """

    metric: str
    confidence: float
    settings: list[Setting]
    best: int
    ours: tuple[float, ...]
    present: tuple[float, ...]
    used: int
    policy: Mapping[str, Any]
    name: str = ""
    seed: int = 0
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The best parameter values; empty if the present setting is best."""
        return dict(self.settings[self.best].values)

    @property
    def keeps(self) -> bool:
        """Return True if the present setting is the best one tried."""
        return self.best == len(self.settings) - 1

    @cached_property
    def interval(self) -> Interval:
        """Confidence interval of the winner, from replications not used for the choice."""
        return self._interval(self.ours)

    @cached_property
    def interval_before(self) -> Interval:
        """Confidence interval of the metric under the present setting, on the same loads."""
        return self._interval(self.present)

    def _interval(self, values: tuple[float, ...]) -> Interval:
        interval = student_interval(values, self.confidence, self.metric)
        is_constant = len(set(values)) == 1 and len(values) > 1  # nothing is random
        return replace(interval, low=math.nan, high=math.nan) if is_constant else interval

    @cached_property
    def difference(self) -> PairedDifference:
        """Difference in `metric`, winner minus present setting, paired by replication."""
        return paired_differences([np.asarray(self.ours) - np.asarray(self.present)], self.confidence)[0]

    @property
    def flattered(self) -> float:
        """The winner's mean in the search, biased because it was chosen for this mean."""
        return float(np.mean(self.settings[self.best].seen))

    @property
    def table(self) -> pd.DataFrame:
        """The table of settings, best first: values, stage, mean, error."""
        up = higher_is_better(self.metric)
        keys = list(self.settings[0].values)
        rows = [{**{key: one.values.get(key) for key in keys}, "present": number == len(self.settings) - 1,
                 "stage": one.stage, "replications": len(one.seen), self.metric: float(np.mean(one.seen)),
                 "error": one.error} for number, one in enumerate(self.settings)]  # fmt: skip
        frame = pd.DataFrame(rows)
        for key in keys:  # whole numbers stay whole beside the present setting, which has none
            frame[key] = pd.Series([row[key] for row in rows], dtype=object)
        return frame.sort_values(["stage", self.metric], ascending=[False, not up], kind="stable", na_position="last")

    @property
    def sentences(self) -> list[str]:
        """Sentences that state the outcome."""
        what, seen = metric_name(self.metric), formatter(self.metric)
        level = f"{100 * self.confidence:g} %"
        if self.keeps:
            said = [f"Best of {len(self.settings)} settings: the present one, {what} {self._text(self.interval)}."]
        else:
            said = [f"Best of {len(self.settings)} settings: {self.settings[self.best].label}."]
            said.append(f"{what}: {self._text(self.interval)}, {self._before()}.")
        said.append(
            f"From {len(self.ours)} replications not used for the choice ({level} intervals). The {self.used} "
            f"used for the choice give {seen(self.flattered)}, which is biased by the selection."
        )
        return [*said, *self.remarks]

    def _text(self, found: Interval) -> str:
        return several([found.mean], units_of(self.metric), [found.half_width])[0]

    def _before(self) -> str:
        difference, error = self.difference, self.settings[-1].error
        if error:
            return f"where the present setting fails ({error})"
        if math.isnan(difference.mean):
            return "which under the present setting is undefined in some replication"
        return f"before {self._text(self.interval_before)}: {self._gain(difference)}"

    def _gain(self, found: PairedDifference) -> str:
        amount = gap(self.metric, found.mean, found.half_width)
        if not found.significant:
            return f"a difference of {amount}, not significant"
        better = (found.mean > 0) == (higher_is_better(self.metric))
        return f"{'better' if better else 'worse'} by {amount} (paired)"

    def to_json(self) -> dict[str, Any]:
        """Return {"scenario", "seed", "metric", "best", "policy", "interval", ...}."""

        def interval(found: Interval) -> dict[str, Any]:
            return {**json_values({"mean": found.mean, "ci_low": found.low, "ci_high": found.high}), "n": found.n}

        rows = self.table.drop(columns=["error"]).astype(object).to_dict("records")
        return {
            "scenario": self.name, "seed": self.seed, "metric": self.metric, "best": self.values,
            "policy": dict(self.policy), "interval": interval(self.interval), "before": interval(self.interval_before),
            "difference": {**json_values({"mean": self.difference.mean, "half_width": self.difference.half_width}),
                           "significant": self.difference.significant},
            "used_for_choice": self.used, **({"remarks": list(self.remarks)} if self.remarks else {}),
            "settings": [{**row, self.metric: json_number(row[self.metric])} for row in rows],
        }  # fmt: skip

    def shown(self, rows: int = 10) -> pd.DataFrame:
        """Return the table of the best settings, formatted for display."""
        frame = self.table.head(rows)
        cells = frame.drop(columns=["error", "present"]).astype(object)
        cells[self.metric] = frame[self.metric].map(formatter(self.metric))
        cells.loc[frame["present"], list(self.settings[0].values)] = "present"
        return cells.rename(columns={self.metric: metric_name(self.metric)})

    def __repr__(self) -> str:
        return "\n".join(["<Tuning>", *self.sentences, "", self.shown().to_string(index=False)])

    def _repr_html_(self) -> str:
        said = "".join(f"<div>{escape(text)}</div>" for text in self.sentences)
        return said + self.shown().to_html(index=False)


@with_options(SearchKeywords)
def tune(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    policy: PolicyLike | None = None,
    *,
    over: Mapping[str, Any],
    metric: str = DEFAULT_METRIC,
    n: int | None = None,
    sample: str | None = None,
    sample_seed: int = 0,
    first: int = FIRST,
    final: int = FINAL,
    confidence: float = 0.95,
    **options: Unpack[SearchKeywords],
) -> Tuning:
    """Find the best setting of a policy, and its gain over the present one.

    Parameters:
        scenario, policy: as for `run`.
        over: parameter -> list of values or range, as for `sweep`.  A parameter is given by its name (`limit`) if only
            one part of the policy has it, or by its path (`policy.admission.limit`).
        metric: the metric to optimize; its definition states whether more or less is better.
        n, sample, sample_seed: number and kind of drawn settings ("sobol", "latin_hypercube", "random"); or "grid".
            Default: all combinations if there are only lists and ranges with steps, else 27 from a Sobol sequence.
        first: replications of every setting in the first stage.
        final: replications of the winner and of the present setting for their intervals, not used for the choice.
        confidence: level of the intervals.
        cache: a folder for finished runs; the same command continues from it after an interruption.
        options: the options that all studies have.
    Returns: the winner as a scenario writes it, and every setting tried.
    Raises: UsageError: nothing to tune, too few replications, or a metric without a better direction.
    """
    known(metric)
    if not has_direction(metric):
        raise UsageError(f"{metric}: neither more nor less is always better; choose another metric")
    if first < 2 or final < 3:
        raise UsageError(f"first must be at least 2 and final at least 3 replications; got {first} and {final}")
    if not 0 < confidence < 1:
        raise UsageError(f"confidence must be between 0 and 1 (for example 0.95); got {confidence:g}")
    if not over:
        raise UsageError("there is nothing to tune: give parameters and their values (over, --over)")
    study_options = StudyOptions(**options)
    base = prepare(scenario, policy, study_options.overrides, study_options.program).moved()
    names = {parameter_path(base, key): key for key in over}
    paths = {path: over[key] for path, key in names.items()}
    sample = sample or ("sobol" if n is not None or is_sampled(paths) else "grid")
    n = SETTINGS if n is None and sample != "grid" else n
    _, given = rows(base, over=paths, sample=sample, n=n, sample_seed=sample_seed)
    given = _different(base, given)  # whole numbers may be drawn twice
    given.append(PointRow(len(given), {}, None, {}))  # what is there now
    seed, identity = study_options.seed, Identity(study_options.check)
    cases: list[Case] = []
    check_all(base, given, identity.scenario, lambda row, _, one: cases.append(Case(base, row.overrides, seed, one)))
    setup = Setup((base,), (metric,), study_options.check, study_options.audit)
    runs = sum((after - before) * remaining for remaining, before, after in _stages(len(given), first)) + 2 * final
    with begun(study_options, setup, runs, identity) as study:
        (warmup,), remarks, warnings = cut_warmup(study, cases[-1:], [PILOT])
        race = _Race(study, cases, metric, warmup)
        stop_at_part(study_options, study, race.begun(first))
        best = race.run(first)
        used = max(len(series.taken) for series in race.series)
        last = sorted({best, len(given) - 1})
        warmup, *_ = cut_warmup(study, [cases[number] for number in last], [PILOT] * len(last))[0]
        ours, present = (race.further(number, used, final, warmup) for number in (best, len(given) - 1))
    settings = [Setting({names[path]: value for path, value in row.values.items()}, race.stages[number],
                        race.seen(number), race.errors.get(number, ""))
                for number, row in enumerate(given)]  # fmt: skip
    return Tuning(metric=metric, confidence=confidence, settings=settings, best=best, ours=ours, present=present,
                  used=used, policy=base.with_overrides(given[best].overrides).raw["policy"], name=base.name,
                  seed=base.model.seed if seed is None else seed, remarks=tuple(remarks),
                  warnings=tuple(warnings))  # fmt: skip


def _different(base: Scenario, given: Iterable[PointRow]) -> list[PointRow]:
    rows: dict[str, PointRow] = {}
    for row in given:
        try:
            meant = _meaning(base.with_overrides(row.overrides))
        except ScenarioError:  # which is told later, with the row's number
            meant = repr(row.overrides)
        rows.setdefault(meant, row)
    now = _meaning(base)
    return [row for meant, row in rows.items() if meant != now] or list(rows.values())


def _meaning(scenario: Scenario) -> str:
    """Return a text that two scenarios share if all their keys and policies are equal."""
    rest = {key: value for key, value in scenario.raw.items() if key != "policy"}
    return repr((rest, _whole(scenario.policies)))


def _whole(value: Any) -> Any:
    if isinstance(value, PolicySpec):
        signature = policy_parameters(value.kind, registry.policy(value.kind, value.name))
        parameters = {key: value.parameters.get(key, one.default) for key, one in signature.items()}
        return value.kind, value.name, {key: _whole(one) for key, one in parameters.items()}
    if isinstance(value, Policies):
        return [_whole(one) for one in vars(value).values()]
    if isinstance(value, Mapping):
        return {key: _whole(one) for key, one in value.items()}
    return value


def _stages(settings: int, first: int) -> Iterable[tuple[int, int, int]]:
    """Yield per stage of halving: settings, and replications of each before and after."""
    remaining, before, after = settings, 0, first
    while remaining > 1:
        yield remaining, before, after
        remaining, before, after = math.ceil(remaining / SHARE), after, after * SHARE


class _Race:
    def __init__(self, study: Study, cases: Sequence[Case], metric: str, warmup: float | None):
        self.study, self.metric = study, metric
        self.series = [Replicates(case, 0, warmup=warmup) for case in cases]
        self.stages = [0] * len(cases)
        self.errors: dict[int, str] = {}

    def begun(self, first: int) -> list[Replicates]:
        return [Replicates(series.case, first, warmup=series.warmup) for series in self.series]

    def run(self, first: int) -> int:
        remaining = list(range(len(self.series)))
        for stage, (_, _, after) in enumerate(_stages(len(remaining), first), 1):
            for number in remaining:
                self.series[number].goal = self.series[number].most = after
            self.study.make([self.series[number] for number in remaining])
            for number in remaining:
                self._note(number, self.series[number])
                self.stages[number] = stage
            remaining.sort(key=self._score)  # stable: of equals the first
            remaining = remaining[: math.ceil(len(remaining) / SHARE)]
        best = remaining[0]
        if math.isinf(self._score(best)) and math.isnan(float(np.mean(self.seen(best)))):
            said = f": {self.errors[best]}" if best in self.errors else ""
            raise UsageError(f"{self.metric} is not defined under any setting{said}")
        return best

    def _note(self, number: int, series: Replicates) -> None:
        for outcome in series.taken:
            if outcome.values is None:
                self.errors.setdefault(number, outcome.error)

    def seen(self, number: int) -> tuple[float, ...]:
        return self._contributions(self.series[number])

    def _contributions(self, series: Replicates) -> tuple[float, ...]:
        """Return a value per replication; the mean of the values estimates the metric."""
        nothing, weight = {self.metric: math.nan}, weight_of(self.metric) or ""
        values = [outcome.values or nothing for outcome in series.taken]
        figures, counts = ([float(one.get(key, 1.0)) for one in values] for key in (self.metric, weight))
        return tuple(ratio_contributions(np.array(figures), np.array(counts)).tolist())

    def _score(self, number: int) -> float:
        """Score of a setting, lower is better; infinite if it fails or is undefined."""
        mean = float(np.mean(self.seen(number)))
        if math.isnan(mean):
            return math.inf
        return -mean if higher_is_better(self.metric) else mean

    def further(self, number: int, begin: int, count: int, warmup: float | None) -> tuple[float, ...]:
        series = Replicates(self.series[number].case, count, begin=begin, warmup=warmup)
        self.study.make([series])
        self._note(number, series)
        return self._contributions(series)


# Names of parameters ----------------------------------------------------------------------------------------------


def parameter_path(base: Scenario, key: str) -> str:
    """Return a parameter's full path; raise UsageError unless exactly one matches."""
    if key.partition(".")[0] in ScenarioModel.model_fields and "." in key:
        return key
    having, parameters = [], []
    for part in PARTS:
        given = base.raw["policy"].get(part)
        if isinstance(given, Mapping):
            names = policy_parameters(part, registry.policy(part, given["name"]))
            parameters += list(names)
            if key.partition(".")[0] in names:
                having.append(f"policy.{part}.{key}")
    if len(having) == 1:
        return having[0]
    if having:
        raise UsageError(f'several parts of the policy have the parameter "{key}": write {" or ".join(having)}')
    listed = f"; there are {', '.join(dict.fromkeys(parameters))}" if parameters else "; it has no parameters"
    raise UsageError(f'{base.policies.label} has no parameter "{key}"{suggestion(key, parameters) or listed}')
