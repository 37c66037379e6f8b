"""Functions that run a scenario once, or in independent replications."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from hetsim.errors import ScenarioError, UsageError
from hetsim.experiment.identity import Identity
from hetsim.experiment.options import RunKeywords, StudyKeywords, StudyOptions, with_options
from hetsim.experiment.policies import PolicyLike, named_policy
from hetsim.experiment.progress import Meter
from hetsim.experiment.shard import ShardOver, make_part, part_of
from hetsim.experiment.stopping import Refusal, checked_amount, cut_warmup
from hetsim.experiment.store import Store, open_cache
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.work import Setup
from hetsim.experiment.workers import Workers
from hetsim.model.record import RunInput
from hetsim.policy.external import ExternalProgram
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.groups import checked, groupings
from hetsim.results.one_run.metrics import expanded, listed
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Overrides, Scenario, load


@with_options(RunKeywords)
def run(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    policy: PolicyLike | None = None,
    **options: Unpack[RunKeywords],
) -> Result:
    """Run a scenario once.

    If the scenario asks for replications, only the first is run, and the result has a warning about it.

    Parameters:
        scenario: a file, the name of a shipped scenario, a mapping, or a Scenario.
        policy: replaces the scenario's whole policy: a name (`"sjf"`, `"sjf + best_fit"`), a mapping as under
            `policy:`, or your own scheduler class or order key.
        options: those of every study.
    Returns: the tables, metrics and warnings of the run.
    Raises:
        ScenarioError: the scenario is invalid; the error lists all problems.
        RunError: the run failed; its `result` has the tables up to the failure.
    """
    study_options = StudyOptions(**options)
    loaded = prepare(scenario, policy, study_options.overrides, study_options.program)
    count = checked_amount(loaded, None).maximum
    result = one_run(loaded, study_options, count)
    if count > 1:
        asked = f"the scenario has {count:,} replications, but this result is only the first"
        result.record.input.warnings.append(f"{asked}: hetsim.replicate runs all and gives confidence intervals")
    return result


@with_options(StudyKeywords)
def replicate(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    *,
    policy: PolicyLike | None = None,
    metrics: str | Iterable[str] = (),
    by: str | Iterable[str] = (),
    keep: bool = False,
    **options: Unpack[StudyKeywords],
) -> Replications:
    """Run a scenario several times with independent randomness.

    Parameters:
        scenario, policy: as for `run`.
        metrics: metrics (or sets of them: cluster, all) to keep of every replication in addition to the summary.
        by: class, gpus or user: also keep the metrics of these groups of tasks, for `Replications.by`.
        keep: keep the complete runs of all replications, not only their metrics (one worker only).
        options: those of every study.
    Returns: metrics of every replication, means with confidence intervals, and the complete first run.
    Raises:
        ScenarioError: the scenario is invalid; the error lists all problems.
        RunError: a run failed; its `result` has the tables up to the failure.
        UsageError: options conflict, or `replications` is not a valid number.
        ShardOver: the requested shard is finished; its `report` has the counts.
    """
    study_options = StudyOptions(**options)
    loaded = prepare(scenario, policy, study_options.overrides, study_options.program)
    kept = to_keep(loaded, metrics, by, study_options)
    replications = run_cases([Case(loaded, seed=study_options.seed)], study_options, kept, keep, several=True)[0]
    assert isinstance(replications, Replications)
    if study_options.replications is None and len(replications) < 2:
        replications.warnings.append("one replication gives no confidence interval: use replications=10, or hetsim.run")
    return replications


def one_run(scenario: Scenario, options: StudyOptions | None = None, most: int = 1) -> Result:
    """Run the first replication; up to `most` replications determine `warmup: auto`."""
    options = options or StudyOptions()
    case = Case(scenario, seed=options.seed)
    with begun(options, Setup((scenario,), (), options.check, options.audit), 1) as study:
        (warmup,), _, warnings = cut_warmup(study, [case], [most])
        series = whole_series(case, 1, warmup=warmup)
        study.make([series])
    (result,) = series.results
    result.record.input.warnings.extend(warnings)
    return result


@contextmanager
def begun(options: StudyOptions, setup: Setup, runs: int = 0, identity: Identity | None = None) -> Iterator[Study]:
    """Open a study with these options; `runs` is the expected number of runs."""
    pool = Workers(options.workers, options.dask, options.executor)
    if part_of(options) is not None and options.cache is None:
        raise UsageError("a shard needs a shared folder: give cache (--cache DIR)")
    store = Store(open_cache(options.cache), options.fresh, options.trust)
    with (
        Meter(options.progress, runs) as meter,
        Study(setup, pool, store=store, meter=meter, identity=identity) as study,
    ):
        yield study
    store.tell()


def stop_at_part(options: StudyOptions, study: Study, series: Iterable[Replicates]) -> None:
    """If a shard is asked for, run its share of the cases and raise ShardOver."""
    if (part := part_of(options)) is not None:
        raise ShardOver(make_part(study, series, part))


def run_cases(
    cases: list[Case], options: StudyOptions, metrics: str | Iterable[str] = (), keep: bool = False,
    on_refusal: Sequence[Refusal] | None = None, several: bool = False,
) -> list[Result | Replications]:  # fmt: skip
    """Run the cases; return a Result or Replications for each.

    on_refusal: a function for each case, called with the error if the scenario's checks refuse the case before its
    clock starts; such a case has no result.
    several: return Replications even for a single run.
    """
    if keep and (options.workers != 1 or options.dask or options.executor):
        raise UsageError("keep=True stores whole runs in the process that makes them: use one worker")
    amounts = [checked_amount(case.scenario, options.replications) for case in cases]
    kept = [*metrics, *(amount.metric for amount in amounts if amount.precision is not None)]
    setup = Setup(tuple(case.scenario for case in cases), tuple(dict.fromkeys(kept)), options.check, options.audit)
    with begun(options, setup, sum(amount.maximum for amount in amounts)) as study:
        warmups, remarks, warnings = cut_warmup(study, cases, [amount.maximum for amount in amounts], on_refusal)
        series = [
            whole_series(
                case, amount.first, keep=keep, most=amount.maximum, rule=amount.rule(study), warmup=warmup,
                on_refusal=None if on_refusal is None else on_refusal[number], several=several,
            )
            for number, (case, amount, warmup) in enumerate(zip(cases, amounts, warmups, strict=True))
        ]  # fmt: skip
        stop_at_part(options, study, series)
        study.make(series)
    for one, amount in zip(series, amounts, strict=True):
        if one.runs is not None and amount.precision is not None and not one.refused:
            text, warns = amount.remark(one.runs)
            (one.runs.warnings if warns else one.runs.remarks).append(text)
    tell_all(series, remarks, warnings)
    return [one.results[0] if one.runs is None else one.runs for one in series if not one.refused]


def whole_series(
    case: Case, goal: int, *, keep: bool = False, most: int = 0, several: bool = False, **more: Any
) -> Replicates:
    """Return the object that makes `goal` replications of a case, or more on request.

    most: number of replications to plan for if above `goal`.  keep: keep the full results of all runs, not only of the
    first.  several: collect metrics in `Replications` even of one run.
    """
    maximum = max(goal, most)
    runs = Replications() if several or maximum > 1 else None
    return Replicates(case, goal, most=maximum, whole=maximum if keep else 1, strict=True, runs=runs, **more)


def tell_all(found: Iterable[Replicates], remarks: list[str], warnings: list[str]) -> None:
    for series in found:
        if series.runs is not None:
            series.runs.remarks[:0] = remarks
            series.runs.warnings += warnings


def rehearse(scenario: Scenario) -> RunInput:
    """Do all that `run` does before the clock starts; return the run's input."""
    checked_amount(scenario, None)
    return scenario.begin().input


def to_keep(scenario: Scenario, metrics: Iterable[str], by: str | Iterable[str], options: StudyOptions) -> list[str]:
    """Return the names of metrics to store per run, including those by group (`by`)."""
    # The usual ones are kept anyway.
    names, wanted = expanded(name for name in listed(metrics) if name != "usual"), checked(by)
    number = scenario.model.replications if options.replications is None else options.replications
    if not wanted or number == 1:  # of one run everything is kept
        return names
    built = scenario.build(scenario.model.seed if options.seed is None else options.seed, 0)
    return names + [grouping.text for grouping in groupings(built, wanted, names)]


def prepare(
    scenario: str | Path | Mapping[str, Any] | Scenario, policy: PolicyLike | None = None, overrides: Overrides = (),
    program: ExternalProgram | None = None,
) -> Scenario:  # fmt: skip
    """Load the scenario with another policy, other values or an external program."""
    if program is not None:
        loaded = prepare(scenario, policy, overrides).with_overrides(())  # a copy
        loaded.document.program = program
        return loaded
    if policy is None:
        return load(scenario, overrides)
    value = named_policy(policy)[1]
    if not isinstance(overrides, Mapping):
        from hetsim.scenario.overrides import parse_assignment

        overrides = dict(parse_assignment(text) for text in overrides)
    named = {"--set policy": "--policy"} if "policy" not in overrides else {}
    try:
        # One pass for all: a scenario with a wrong policy of its own is still fine under another.
        loaded = load(scenario, {"policy": value, **overrides})
    except ScenarioError as error:
        raise ScenarioError([replace(p, file=named.get(p.file or "", p.file)) for p in error.problems]) from None
    set_by = loaded.document.set_by
    set_by.update({path: named.get(source, source) for path, source in set_by.items()})  # for what is found later
    return loaded
