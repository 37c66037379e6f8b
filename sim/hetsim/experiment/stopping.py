"""Stopping rules: when a case has enough replications, where its warm-up ends."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.errors import ScenarioError, UsageError
from hetsim.experiment.study import Case, Replicates, Study
from hetsim.experiment.work import RunOutcome
from hetsim.results.declared import TASK_COUNT
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.selection import Race
from hetsim.results.many_runs.warmup import MIN_REPLICATIONS, PILOT, WarmupCut, WarmupSeries
from hetsim.results.one_run.estimands import weight_of
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.whole import MIN_FOR_PRECISION, Precision

TOO_FEW = (
    "auto needs at least {} replications, since it averages over them: use more (replications: 10, or "
    "--replications 10), or give the warm-up as a time (warmup: 1 h, or --set warmup='1 h')"
)

# How many ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Amount:
    """Number of replications: `maximum`, or fewer if `metric` reaches the `precision`."""

    maximum: int
    precision: float | None = None
    metric: str = ""
    confidence: float = 0.95

    def enough(self, runs: Replications) -> bool:
        """Return True if the precision is reached; False while there is no interval."""
        if self.precision is None or len(runs) < MIN_FOR_PRECISION:
            return False
        return runs.identical or runs.relative_half_width(self.metric, self.confidence) <= self.precision

    def remark(self, runs: Replications) -> tuple[str, bool]:
        """Return a sentence on the requested precision, and whether it is a warning."""
        assert self.precision is not None
        wanted = f"± {100 * self.precision:g} %"
        level = f"{100 * self.confidence:g} % interval of {self.metric}"
        half_width = runs.relative_half_width(self.metric, self.confidence)
        if runs.identical:
            return f"precision undefined: {self.metric} is the same in all {len(runs)} replications", True
        if half_width <= self.precision:
            said = f"precision: {level} is ± {100 * half_width:.2g} % after {len(runs)} replications"
            return f"{said} ({wanted} asked for)", False
        if not math.isfinite(half_width):
            said = f"precision not reached after {len(runs)} replications ({wanted} asked for)"
            return f"{said}: the {level} is not defined", True
        needed = math.ceil(len(runs) * (half_width / self.precision) ** 2)
        return (
            f"precision not reached: {level} is ± {100 * half_width:.2g} % after {len(runs)} replications, the maximum "
            f"({wanted} asked for); use about {needed:,} replications, or longer runs"
        ), True

    @property
    def first(self) -> int:
        """Number of replications before precision is first checked; all if it is not set."""
        return self.maximum if self.precision is None else min(MIN_FOR_PRECISION, self.maximum)

    def rule(self, study: Study) -> Callable[[Replicates], None] | None:
        """Return a rule that requests replications up to the precision; None without one."""
        if (precision := self.precision) is None:
            return None

        def look(series: Replicates) -> None:
            count = len(series.taken)
            assert series.runs is not None
            if count < series.goal or count == self.maximum or series.failed or self.enough(series.runs):
                return
            wanted = count * (series.runs.relative_half_width(self.metric, self.confidence) / precision) ** 2
            likely = min(math.ceil(wanted), 2 * count, self.maximum) if math.isfinite(wanted) else 0
            study.more(series, count + 1, likely)

        return look


def amount_of(scenario: Scenario, replications: int | Mapping[str, Any] | None) -> Amount:
    """Return the number of replications, as `replications` or else the scenario says."""
    wanted: Any = scenario.model.replications if replications is None else replications
    if isinstance(wanted, Mapping):
        from pydantic import ValidationError

        try:
            wanted = Precision.model_validate(dict(wanted))
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"replications: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if isinstance(wanted, Precision):
        from hetsim.results.one_run.metrics import metric

        metric(wanted.metric)  # an unknown name is said before the first run, not after
        return Amount(wanted.max, wanted.precision, wanted.metric, wanted.confidence)
    return Amount(wanted)


def checked_amount(scenario: Scenario, replications: int | Mapping[str, Any] | None) -> Amount:
    """Return the number of replications; ScenarioError if too few for `warmup: auto`."""
    amount = amount_of(scenario, replications)
    if replications is None and scenario.model.warmup == "auto" and amount.maximum < MIN_REPLICATIONS:
        raise ScenarioError(scenario.document.problem(("warmup",), TOO_FEW.format(MIN_REPLICATIONS)))
    return amount


def select(study: Study, race: Race, series: Mapping[str, Replicates], first: int, most: int) -> None:
    """Run as many replications of each case as are needed to find the best case.

    first, most: number of replications of the first stage, and maximum number, of each case.  Replications are examined
    in the order of their numbers, so that the selection depends neither on the workers nor on runs made before.
    """
    entered = 0

    def look(_: Replicates | None = None) -> None:
        nonlocal entered
        while not (entered and race.over) and entered < most:
            wanted = entered + 1 if entered else first
            if min(len(series[label].taken) for label in race.left) < wanted:
                break
            for number in range(entered, wanted):
                for label in race.left:
                    values = series[label].taken[number].values
                    assert values is not None
                    customers = values.get(weight_of(race.metric) or "", 1.0)  # over which the value is a mean
                    race.add(label, values.get(race.metric, math.nan), customers)
            if not entered:
                race.start()
            entered = wanted
            race.screen()
            study.meter.ahead = race.ahead(most) - len(race.left)
            if race.over or entered >= most:
                study.meter.ahead = 0
                break
            for label in reversed(race.left):
                if len(series[label].taken) == entered:
                    study.more(series[label], entered + 1, min(most, entered + 1 + study.workers.workers))

    for one in series.values():
        one.rule = look
    if all(one.done for one in series.values()):
        look()
    study.make([one for one in series.values() if not one.done])


# Where the warm-up ends -------------------------------------------------------------------------------------------


def pilot_size(most: int) -> int:
    """Return the number of pilot replications; `most`: maximum number of replications."""
    if most < MIN_REPLICATIONS:
        raise UsageError(f"warmup: {TOO_FEW.format(MIN_REPLICATIONS)}")
    return min(PILOT, most)


Refusal = Callable[[ScenarioError], None]


class Pilot(Replicates):
    """First replications of a case with `warmup: auto`; they determine the warm-up."""

    def __init__(self, case: Case, size: int, *, strict: bool = False, on_refusal: Refusal | None = None):
        super().__init__(case, size, pilot=True, strict=strict, on_refusal=on_refusal)
        self.size = size
        self.cut: WarmupCut | None = None
        self.error: RunOutcome | None = None
        self.too_short: UsageError | None = None  # why no cut was found in the runs, where that is the error
        self._mean = WarmupSeries()

    def key(self, study: Study) -> str:
        return study.identity.run(f"{study.digest(self.case)} warmup", self.case.own_seed, self.size)

    def look(self) -> None:
        outcome = self.taken[-1]
        if outcome.series is None:
            number = len(self.taken) - 1
            error = f"replication {number}, in the pilot that finds the warm-up: {outcome.error}"
            self.error = RunOutcome(None, error=error, lasting=outcome.lasting, refused=outcome.refused)
            self.goal = len(self.taken)
            return
        self.taken[-1] = RunOutcome({})
        self._mean.add(*outcome.series)
        if self.done:
            try:
                self.cut = self._mean.cut
            except UsageError as error:
                if self.strict:
                    raise
                self.error, self.too_short = RunOutcome(None, error=str(error)), error

    def restore(self, kept: RunOutcome) -> None:
        if kept.values is None:
            self.error = kept
        else:
            values = kept.values
            self.cut = WarmupCut(values["time"], int(values[TASK_COUNT]), int(values["of"]), int(values["runs"]))

    @property
    def outcome(self) -> RunOutcome:
        if self.cut is None:
            assert self.error is not None
            return self.error
        cut = self.cut
        return RunOutcome({"time": cut.time, TASK_COUNT: cut.tasks, "of": cut.arrivals, "runs": cut.runs})


def missing(study: Study, pilots: Sequence[Pilot]) -> list[Pilot]:
    """Load stored warm-up times; return the pilots without one, which must be run.

    A pilot is the first replications of a case, from which the end of its warm-up (the cut) is found.
    """
    to_make = []
    for pilot in pilots:
        kept = study.store.get(pilot.key(study)) if study.store.folder is not None else None
        if kept is None:
            to_make.append(pilot)
        else:
            pilot.restore(kept)
            study.meter.expect(-pilot.size)
    return to_make


def find_cuts(study: Study, pilots: Sequence[Pilot]) -> None:
    def look(pilot: Any) -> None:
        pilot.look()
        if pilot.done and study.store.folder is not None:
            study.store.put(pilot.key(study), pilot.outcome)

    todo = missing(study, pilots)
    for pilot in todo:
        pilot.rule = look
    study.make(todo)


@dataclass(frozen=True)
class Warmup:
    """The warm-up shared by a sweep point's cases, or the error of a failed pilot."""

    cut: WarmupCut | None
    lasting: RunOutcome | None = None

    def error_of(self, pilot: Pilot) -> str:
        """Return why a case has no replications after its pilot runs; "" if it has."""
        if pilot.error is not None:
            return pilot.error.error
        return "" if self.lasting is None else f"the warm-up of the point cannot be found: {self.lasting.error}"


def shared(pilots: Sequence[Pilot]) -> Warmup:
    """Return the longest warm-up cut, so that compared cases measure the same tasks.

    A case whose pilot runs failed for good is ignored.  If pilot runs failed by chance (full disk, ...), the returned
    object contains their error.
    """
    cuts = [pilot.cut for pilot in pilots if pilot.cut is not None]
    again = [pilot.error for pilot in pilots if pilot.error is not None and not pilot.error.lasting]
    return Warmup(max(cuts, key=lambda cut: cut.time, default=None), again[0] if again else None)


def cut_warmup(
    study: Study, cases: Sequence[Case], most: Sequence[int], on_refusal: Sequence[Refusal] | None = None
) -> tuple[list[float | None], list[str], list[str]]:
    """Return each case's warm-up (None unless `warmup: auto`), remarks and warnings."""
    auto = [number for number, case in enumerate(cases) if case.auto_warmup]
    if not auto:
        return [None] * len(cases), [], []
    pilots = [
        Pilot(
            cases[number], pilot_size(most[number]), strict=True,
            on_refusal=None if on_refusal is None else on_refusal[number],
        )
        for number in auto
    ]  # fmt: skip
    study.meter.expect(sum(pilot.size for pilot in pilots))
    find_cuts(study, pilots)
    longest = shared(pilots).cut
    if longest is None:  # all are refused, as their runs will say
        return [0.0 if number in auto else None for number in range(len(cases))], [], []
    remark = longest.sentence + (", the longest of the compared policies" if len(auto) > 1 and longest.tasks else "")
    warmups = [longest.time if number in auto else None for number in range(len(cases))]
    return warmups, [remark], [longest.warning] if longest.near_half else []
