"""Comparisons of policies under the same arrivals, task sizes and faults."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from hetsim.errors import Problem, ScenarioError, UsageError
from hetsim.experiment.options import StudyKeywords, StudyOptions, with_options
from hetsim.experiment.policies import PolicyLike, named_policies
from hetsim.experiment.run import begun, prepare, run_cases, stop_at_part, tell_all, to_keep, whole_series
from hetsim.experiment.stopping import cut_warmup, select
from hetsim.experiment.study import Case
from hetsim.experiment.work import Setup
from hetsim.results.many_runs import selection
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.compare import compare as evaluate
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.selection import Selection
from hetsim.results.one_run.metrics import listed
from hetsim.results.one_run.result import Result
from hetsim.scenario.file.problems import MISSING
from hetsim.scenario.scenario import Scenario

Policies = Iterable[PolicyLike] | Mapping[str, PolicyLike]


@dataclass
class Refusals:
    """Policies that cannot run the scenario, with the errors that say why.

    `add` raises ScenarioError if the policy is the baseline; `require_others` raises it if too few others can run.
    """

    baseline: str | None = None
    errors: dict[str, ScenarioError] = field(default_factory=dict)

    def add(self, label: str, error: ScenarioError) -> None:
        if label == self.baseline:
            text = f'the baseline "{label}" cannot run the scenario, so nothing can be compared with it: choose another'
            raise ScenarioError([*error.problems, Problem(text)])
        self.errors[label] = error

    def require_others(self, count: int, least: int = 1) -> None:
        if count < least:
            raise ScenarioError(dict.fromkeys(one for error in self.errors.values() for one in error.problems))

    @property
    def reasons(self) -> dict[str, str]:
        """Error messages by policy, without the policy's name."""
        return {
            label: "; ".join(": ".join(filter(None, (one.key, one.message))) for one in error.problems)
            for label, error in self.errors.items()
        }


@with_options(StudyKeywords)
def compare(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    policies: Policies,
    *,
    metrics: str | Iterable[str] | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
    best: str | None = None,
    probability: float = 0.95,
    delta: float = 0.01,
    by: str | Iterable[str] = (),
    **options: Unpack[StudyKeywords],
) -> Comparison:
    """Compare policies: a table, paired differences, and the better one of each pair.

    A policy that cannot run the scenario is listed in `Comparison.refused` with the reason; the others are compared.

    Parameters:
        scenario: as for `run`.
        policies: names, mappings or classes as in `run`, or a mapping of labels to these.
        metrics: metrics to compare, or names of sets (usual, cluster, all), of which the metrics that apply here are
            compared; without it the usual ones.
        by: class, gpus or user: also keep the metrics of these groups of tasks, for `Comparison.by`.
        baseline: the label of the policy with which every other one is compared; without it every pair is.
        confidence: confidence level of the intervals.
        best: a metric by which the best policy is selected, with the stated `probability` if no other one is within
            `delta` of it.  As many replications are run as this needs (`hetsim.results.many_runs.selection`), at least
            the number requested (10 if none is given).  `Comparison.selection` has the result.
        probability, delta: parameters of the selection; delta is a share of the mean.
        options: those of every study.
    Returns: the comparison with the runs that it is made from.
    Raises:
        ScenarioError: the baseline or all policies cannot run the scenario, or a policy has an unknown parameter.
        RunError: a run failed, which ends the comparison.
    """
    names = None if metrics is None else listed(metrics)
    refusals, study_options = Refusals(baseline), StudyOptions(**options)
    runs: Mapping[str, Result | Replications]
    selection = None
    if best is None:
        runs = run_policies(scenario, policies, study_options, metrics=names or (), by=by, refusals=refusals)
        asked = asked_for(names, by)
    else:
        runs, selection = select_best(
            scenario, policies, study_options, best=best, probability=probability, delta=delta, metrics=names or (),
            by=by, refusals=refusals,
        )  # fmt: skip
        asked = asked_for(
            names, by, best=best, probability=probability, delta=delta, replications=study_options.replications
        )
    comparison = evaluate(
        runs, names, baseline=baseline, confidence=confidence, selection=selection, refused=refusals.reasons
    )
    comparison.asked = asked
    return comparison


def asked_for(
    metrics: Iterable[str] | None, by: str | Iterable[str], best: str | None = None, probability: float | None = None,
    delta: float | None = None, replications: int | Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Build `Comparison.asked`: the arguments that were given, by name."""
    asked: dict[str, Any] = {"metrics": list(metrics or ()), "by": [by] if isinstance(by, str) else list(by)}
    if best is not None:
        asked |= {"best": best, "probability": probability, "delta": delta, "replications": replications}
    return {name: value for name, value in asked.items() if value}


def select_best(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    policies: Policies,
    options: StudyOptions,
    best: str,
    probability: float = 0.95,
    delta: float = 0.01,
    *,
    metrics: str | Iterable[str] = (),
    by: str | Iterable[str] = (),
    refusals: Refusals | None = None,
) -> tuple[dict[str, Replications], Selection]:
    """Select the best policy by one metric; return all runs and the selection.

    `options.replications` is the number of replications in the first stage (see `compare`).  `refusals`: as in
    `run_policies`; at least two policies must be able to run.
    """
    replications = options.replications
    if isinstance(replications, Mapping):
        raise UsageError("with a selection, replications must be one number: that of the first stage")
    first = selection.FIRST if replications is None else replications
    if first < 3:
        raise UsageError(f"the first stage of a selection must have at least 3 replications; got {first}")
    cases = prepared(scenario, named_policies(policies), options, refusals)
    kept = groups_to_keep(cases, metrics, by, replace(options, replications=replications or {}))
    if refusals is not None and refusals.errors:
        refusals.require_others(len(cases), 2)
    race = selection.Race(list(cases), best, probability, delta)

    def withdraw(label: str, error: ScenarioError) -> None:
        if refusals is None:
            raise error
        refusals.add(label, error)
        if label in race.left:
            race.withdraw(label)
        refusals.require_others(len(race.left), 2)

    setup = Setup(tuple(case.scenario for case in cases.values()), tuple(dict.fromkeys([*kept, best])), options.check,
                  options.audit)  # fmt: skip
    maximum = max(selection.MAX_REPLICATIONS, first)
    on_refusal = [partial(withdraw, label) for label in cases]
    with begun(options, setup, first * len(cases)) as study:
        warmups, remarks, warnings = cut_warmup(study, [*cases.values()], [maximum] * len(cases), on_refusal)
        series = {
            label: whole_series(case, first, warmup=warmup, on_refusal=partial(withdraw, label))
            for (label, case), warmup in zip(cases.items(), warmups, strict=True)
            if label in race.left
        }
        stop_at_part(options, study, series.values())
        select(study, race, series, first=first, most=maximum)
    tell_all(series.values(), remarks, warnings)
    judged = {label: one.runs for label, one in series.items() if one.runs is not None and not one.refused}
    return judged, race.outcome()


def run_policies(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    policies: Policies,
    options: StudyOptions,
    *,
    metrics: str | Iterable[str] = (),
    by: str | Iterable[str] = (),
    refusals: Refusals | None = None,
) -> dict[str, Result | Replications]:
    """Run each policy and return the runs by label, which `compare` evaluates.

    With a precision instead of a number of replications, each policy is replicated until it reaches the precision; the
    comparison uses the replications that all policies have.
    refusals: collects the policies that cannot run the scenario; without it the first such policy raises ScenarioError.
    """
    values = named_policies(policies)
    if len(values) < 2:
        raise UsageError("a comparison needs at least two policies")
    cases = prepared(scenario, values, options, refusals)
    kept = groups_to_keep(cases, metrics, by, options)
    on_refusal = None if refusals is None else [partial(refusals.add, label) for label in cases]
    outcomes = run_cases([*cases.values()], options, kept, on_refusal=on_refusal)
    if refusals is not None:
        refusals.require_others(len(outcomes))
    running = [label for label in cases if refusals is None or label not in refusals.errors]
    return dict(zip(running, outcomes, strict=True))


def prepared(
    scenario: str | Path | Mapping[str, Any] | Scenario, values: Mapping[str, Any], options: StudyOptions,
    refusals: Refusals | None,
) -> dict[str, Case]:  # fmt: skip
    """Load the scenario under each policy; refuse those without a required parameter."""
    cases, mistakes = {}, dict[Problem | str, None]()
    for label, value in values.items():
        try:
            cases[label] = Case(prepare(scenario, value, options.overrides, options.program), seed=options.seed)
        except ScenarioError as error:
            if refusals is None:
                raise
            if all(one.message == MISSING and one.key.startswith("policy.") for one in error.problems):
                refusals.add(label, error)
            else:
                mistakes.update(dict.fromkeys(error.problems))
    if mistakes:
        raise ScenarioError(mistakes)
    if refusals is not None:
        refusals.require_others(len(cases))
    return cases


def groups_to_keep(
    cases: Mapping[str, Case], metrics: Iterable[str], by: str | Iterable[str], options: StudyOptions
) -> list[str]:
    """Return names of metrics, and of metrics by group, that replications must store."""
    refusal: ScenarioError | None = None
    for case in cases.values():
        try:
            return to_keep(case.scenario, metrics, by, options)
        except ScenarioError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal
