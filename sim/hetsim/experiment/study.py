"""A study: cases (a scenario with its policy), each with replications.

A case is replicated until a stopping rule has enough replications.  Each command or function that makes runs is a
study: `run` of one case, `compare` and `sweep` of several, `tune` and `size` of cases that depend on earlier results.
Results depend neither on the workers nor on the order in which runs finish: a run depends only on scenario, seed and
replication, and a stopping rule sees the replications of a case only in their order.  Stored runs are not repeated.
"""

import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Any

from hetsim.errors import RunError, ScenarioError, UnknownInputs, UsageError
from hetsim.experiment.identity import Identity, differences, fingerprint
from hetsim.experiment.progress import POLL, Meter
from hetsim.experiment.store import Store
from hetsim.experiment.work import (
    OtherInputs,
    RunJob,
    RunOutcome,
    Setup,
    Shelf,
    outcome_of,
    outcome_or_error,
    simulate,
    work,
)
from hetsim.experiment.workers import Workers, packed
from hetsim.model.files import watching
from hetsim.results.many_runs.replications import Replications, replication_values
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Scenario

MAX_TASK = 256  # Maximum number of runs in one job of a worker.
LOST = "a worker process died in this run, and again in its second attempt; memory may be short"


@dataclass(frozen=True)
class Case:
    """A scenario with changed values (`overrides`); `digest`: of the changed scenario."""

    scenario: Scenario
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    digest: str = ""

    @property
    def own_seed(self) -> int:
        return self.scenario.model.seed if self.seed is None else self.seed

    @property
    def auto_warmup(self) -> bool:
        return self.scenario.model.warmup == "auto"


class Replicates:
    """The replications of one case.

    taken       outcomes in the order of replications; an outcome that comes early is added after its predecessors
    goal        number of replications that are needed in any case; a stopping rule may request more
    likely      number of replications that may turn out to be needed; idle workers run these ahead
    runs        metrics of the replications; None if neither the stopping rule nor the caller needs them
    whole       number of first replications that run in this process and are stored completely, in `results`
    strict      True if a failed run ends the study
    on_refusal  function called with the error if the scenario fails its checks before the first replication starts;
                the case then has no further replications
    begin       number of the first replication
    block       the block of runs of the store to which these runs belong (`hetsim.experiment.store`)
    """

    def __init__(
        self, case: Case, goal: int, *, most: int | None = None, rule: "Callable[[Replicates], None] | None" = None,
        warmup: float | None = None, pilot: bool = False, whole: int = 0, strict: bool = False,
        runs: Replications | None = None, begin: int = 0, on_refusal: Callable[[ScenarioError], None] | None = None,
        block: Hashable = None,
    ):  # fmt: skip
        self.begin, self.on_refusal, self.refused, self.block = begin, on_refusal, False, block
        self.case, self.goal, self.likely, self.rule = case, goal, goal, rule
        self.most = goal if most is None else most
        self.warmup, self.pilot, self.whole, self.strict, self.runs = warmup, pilot, whole, strict, runs
        self.taken: list[RunOutcome] = []
        self.results: list[Result] = []
        self.sent = 0  # replications below are made, or under way
        self._early: dict[int, tuple[RunOutcome, bool, bool]] = {}

    @property
    def done(self) -> bool:
        return len(self.taken) >= self.goal

    @property
    def failed(self) -> bool:
        return any(outcome.values is None for outcome in self.taken)

    def add(self, outcome: RunOutcome) -> None:
        number = len(self.taken)
        outcome = outcome.packed()
        self.taken.append(outcome)
        if self.runs is None or outcome.values is None:
            return
        first = self.results[number] if number < len(self.results) else None
        self.runs.add_values(outcome.values, first)
        if first is None and self.strict:
            self.runs.warnings += [f"replication {number}: {warning}" for warning in outcome.warnings]
        elif first is not None:
            self.runs.results.append(first)


Place = tuple[Replicates, int]  # A case and the number of one of its replications.


class Study:
    """Context manager that runs replications (here or on workers) or loads them."""

    def __init__(
        self, setup: Setup, workers: Workers, *, store: Store | None = None, meter: Meter | None = None,
        identity: Identity | None = None,
    ):  # fmt: skip
        self.setup, self.workers = setup, workers
        self.store = Store(None) if store is None else store
        self.meter = Meter(None) if meter is None else meter
        self.identity = Identity(setup.check) if identity is None else identity
        self.found = 0  # replications that the store had
        self._told_unknown: set[str] = set()
        self._shelf = Shelf()
        self._shelf.identities[setup.check] = self.identity
        self._source: Iterator[Replicates | None] = iter(())
        self._ready: deque[Replicates] = deque()
        self._open: dict[int, Replicates] = {}
        self._local: deque[Place] = deque()
        # cases in the order of their request, from the first that is not done
        self._untold: deque[Replicates] = deque()

    def __enter__(self) -> "Study":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.workers.close(at_once=kind is not None)
        self.store.close(complete=kind is None)
        if self.setup.audit:
            watching.discard("audit")

    # What is needed ---------------------------------------------------------------------------------------------

    def make(self, wanted: Iterable[Replicates | None]) -> None:
        """Run all replications that these cases need.

        Cases are drawn from the iterable one by one, when workers are free; None means that running cases must finish
        first. UsageError if an input of a run has changed since the study began, here or on a worker's machine.
        """
        try:
            self._make(wanted)
        except OtherInputs as refused:
            raise UsageError(self._refusal(refused)) from None

    def _make(self, wanted: Iterable[Replicates | None]) -> None:
        self._source = iter(wanted)
        first: deque[Place] = deque()
        if self.workers.remote or self.workers.workers > 1:  # which a single run need not start
            while len(first) < 2 and (place := self._next()) is not None:
                (self._local if place[1] < place[0].whole else first).append(place)
        if self.workers.open(len(first), self.meter.runs - self.meter.done):
            self._spread(first)
            return
        todo = deque([*self._local, *first])
        self._local.clear()
        while (here := todo.popleft() if todo else self._next()) is not None:
            self._land(*here, self._here(*here))

    def more(self, series: Replicates, goal: int, likely: int = 0) -> None:
        """Set how many replications a case shall have (`goal`); called by stopping rules.

        likely: the number that it will probably need in the end; these are begun when a worker has nothing else to do.
        """
        if goal > series.most:
            self.meter.expect(goal - series.most)
            series.most = goal
        series.goal, series.likely = goal, max(goal, likely)
        if not series.done:
            self._open[id(series)] = series
            self._ready.appendleft(series)
            self._untold.extend([] if series in self._untold else [series])

    def outstanding(self, wanted: Iterable[Replicates | None]) -> list[Place]:
        """Return the replications still to run; add stored replications to their cases."""
        self._source = iter(wanted)
        return list(iter(self._next, None))

    def _next(self) -> Place | None:
        while True:
            while self._ready:
                series = self._ready[0]
                if series.done or series.sent >= series.goal:
                    self._ready.popleft()
                elif (job := self._hand_out(series)) is not None:
                    return job
            if (new := next(self._source, None)) is None:
                return None
            if not new.done:
                self._open[id(new)] = new
                self._ready.append(new)
                self._untold.append(new)

    def _ahead(self) -> Place | None:
        going = [series for series in self._open.values() if series.sent < series.likely]
        while going:
            series = min(going, key=lambda one: one.sent - len(one.taken))
            if (job := self._hand_out(series)) is not None:
                return job
            going = [series for series in going if not series.done and series.sent < series.likely]
        return None

    def _hand_out(self, series: Replicates) -> Place | None:
        """Return the next replication to run, or count its stored result and return None."""
        number = series.sent
        series.sent += 1
        outcome = None
        if self.store.folder is not None and not series.pilot and number >= series.whole:
            outcome = self.store.get(self.key(series, number), self.setup.metrics, series.block, bool(self.setup.keep))
        if outcome is None:
            return series, number
        self.found += 1
        self._count(series, number, outcome.only(self.setup.keep), stored=True)
        return None

    def _land(self, series: Replicates, number: int, outcome: RunOutcome) -> None:
        if number < len(series.taken) or (series.done and number >= series.goal):
            return  # it was made ahead for nothing
        needed = number < series.goal
        if needed:
            self._put(series, number, outcome)  # on disk before it counts
        self._count(series, number, outcome, stored=needed, made=True)

    def _put(self, series: Replicates, number: int, outcome: RunOutcome) -> None:
        if self.store.folder is not None and not series.pilot:
            unknown = outcome.unknown or self.identity.unknown.get(self.digest(series.case), "")
            self.store.put(self.key(series, number), outcome, unknown, series.block)

    def _count(self, series: Replicates, number: int, outcome: RunOutcome, *, stored: bool, made: bool = False) -> None:
        series._early[number] = (outcome, made, stored)
        while not series.done and len(series.taken) in series._early:
            number = len(series.taken)
            outcome, made, stored = series._early.pop(number)
            if not stored:
                self._put(series, number, outcome)
            if outcome.values is None and series.strict and not series.refused:
                if outcome.error == LOST:
                    raise RunError(f"{LOST}; try fewer workers")
                outcome = self._here(series, number)  # which raises, with the tables up to the failure
            series.add(outcome)
            if outcome.unknown and series.runs is None and outcome.unknown not in self._told_unknown:
                self._told_unknown.add(outcome.unknown)
                warnings.warn(f"{outcome.unknown}; such runs have unknown inputs", UnknownInputs, stacklevel=2)
            if series.refused:
                series.goal = series.likely = len(series.taken)
            if made:
                self.meter.finished()
            else:
                self.meter.expect(-1)
            if series.rule is not None:
                series.rule(series)
        if series.done:
            self._open.pop(id(series), None)
            series._early.clear()
            self.meter.expect(len(series.taken) - series.most)
            series.most = len(series.taken)
            self._tell_cases()

    def _tell_cases(self) -> None:
        while self._untold and self._untold[0].done:
            series = self._untold.popleft()
            if self.meter.tell_case is not None and not series.pilot:
                failed = next((outcome.error for outcome in series.taken if outcome.values is None), None)
                text = f"n = {len(series.taken):,}" if failed is None else failed.splitlines()[0]
                self.meter.tell_case(f"{self._label(series.case)}: {text}")

    def _label(self, case: Case) -> str:
        scenario = _scenario(case)
        parts = [f"{key}={value}" for key, value in case.overrides.items() if key.partition(".")[0] != "policy"]
        return ", ".join([*parts, scenario.policies.label])

    def key(self, series: Replicates, number: int) -> str:
        """Digest under which a replication is stored."""
        warmup = "" if series.warmup is None else f" warmup {series.warmup!r}"
        return self.identity.run(self.digest(series.case) + warmup, series.case.own_seed, series.begin + number)

    def digest(self, case: Case) -> str:
        """Digest of a case's scenario; warns about inputs that it does not cover."""
        if not case.digest:
            object.__setattr__(case, "digest", self.identity.scenario(_scenario(case)))
        if self.identity.unknown:
            self._warn_of_unknown(self.identity.unknown.get(case.digest, ""))
        return case.digest

    def _warn_of_unknown(self, why: str) -> None:
        if why and why not in self._told_unknown and self.store.folder is not None:
            self._told_unknown.add(why)
            kept = "they are saved, but repeated by every call without trust (--trust)"
            if self.store.trust:
                kept = "saved runs are reused nevertheless, because of trust (--trust)"
            said = f"not all inputs of these runs are known ({why}): {kept}. If its version decides them, give the "
            said += 'policy an attribute identity = "version 1", and change the text with each version'
            warnings.warn(said, UnknownInputs, stacklevel=2)

    # Making it --------------------------------------------------------------------------------------------------

    def job(self, series: Replicates, number: int) -> RunJob:
        case = series.case
        which = next(index for index, one in enumerate(self.setup.scenarios) if one is case.scenario)
        verified = self.store.folder is not None or self.workers.pool is not None  # else made here, and not kept
        return RunJob(
            scenario=which, overrides=case.overrides, seed=case.own_seed, replication=series.begin + number,
            warmup=series.warmup, pilot=series.pilot, digest=self.digest(case) if verified else "",
        )  # fmt: skip

    def _refusal(self, refused: OtherInputs) -> str:
        where = "this machine" if self.workers.pool is None else f"a worker on {refused.host}"
        if refused.problem:
            return f"{where} cannot load the scenario: {refused.problem}"
        scenario = self.setup.scenarios[refused.job.scenario].with_overrides(refused.job.overrides)
        names = ("now", "when the study began") if self.workers.pool is None else ("there", "here")
        parts = self.identity.at_first(scenario)
        texts = differences(parts, refused.parts, names) or "they changed twice, back to the first state"
        return (
            f"{where} has other inputs than this study ({texts}); no run was made with them. Make them the same, then "
            "give the same command again"
        )

    def _here(self, series: Replicates, number: int) -> RunOutcome:
        job = self.job(series, number)
        if not series.strict:
            return outcome_or_error(self.setup, self._shelf, "", job=job, meter=self.meter)
        try:
            return self._strictly(series, number, job)
        except ScenarioError as error:
            if number or series.on_refusal is None:
                raise
            series.refused = True
            series.on_refusal(error)
            return RunOutcome(None, error=str(error), refused=True)

    def _strictly(self, series: Replicates, number: int, job: RunJob) -> RunOutcome:
        scenario = self._shelf.scenario(self.setup, "", job)
        if series.pilot:
            return outcome_of(self.setup, scenario, job, self.meter)
        is_kept = number < series.whole
        result = simulate(scenario, job, check=self.setup.check, meter=self.meter, described=is_kept)
        if is_kept:
            series.results.append(result)
        if series.runs is None:
            return RunOutcome({})
        values = replication_values(result, self.setup.metrics)
        return RunOutcome(values, result.warnings, unknown=result.undeclared)

    def _spread(self, first: deque[Place]) -> None:
        """Run replications on the workers; run those to be kept in full in this process."""
        pool = self.workers.pool
        assert pool is not None
        flight = _Flight(self, pool, first)
        while True:
            intact = flight.submit()
            if not self._open:
                break
            if self._local:
                place = self._local.popleft()
                self._land(*place, self._here(*place))
                continue
            lost = flight.land()
            if lost or not intact:
                pool.renew()
                flight.try_again(lost)
        pool.unwanted = flight.cancel()


class _Flight:
    """The replications that are running on the workers of a pool.

    A worker gets several short runs at a time.  If it dies, these runs are tried again.  A run whose second worker
    dies, too, is tried with no other run at the same time; if that worker dies, the outcome is an error.
    """

    def __init__(self, study: Study, pool: Any, first: deque[Place]):
        self.study, self.pool = study, pool
        self.setup = packed((study.setup, fingerprint() if pool.elsewhere else None))
        self.again = first  # to be submitted before anything else
        self.suspects = deque[Place]()  # jobs whose workers died twice: they are tried alone
        self.deaths: dict[tuple[int, int], int] = {}
        self.tasks: dict[Future, list[Place]] = {}
        self.size = 1  # runs that a worker is sent: twice as many as long as they take less than its span
        self.alone = False  # True if the jobs under way were submitted as suspects

    def submit(self) -> bool:
        if self.alone and self.tasks:
            return True
        self.alone = bool(self.suspects) and not self.tasks
        if self.suspects:
            return self._fill(lambda: self.suspects.popleft() if self.suspects else None, 1)
        return self._fill(self._needed, self.pool.room) and self._fill(self.study._ahead, self.pool.workers)

    def _fill(self, take: Callable[[], Place | None], room: int) -> bool:
        while len(self.tasks) < room and (place := take()) is not None:
            places = [place]
            while len(places) < self.size and not self._died(places[-1]) and (more := take()) is not None:
                places.append(more)
            if len(places) > 1 and self._died(places[-1]):
                self.again.appendleft(places.pop())
            try:
                self.tasks[self.pool.submit(work, self.setup, [self.study.job(*one) for one in places])] = places
            except BrokenExecutor:
                self.again.extendleft(reversed(places))
                return False
        return True

    def _died(self, place: Place) -> bool:
        return bool(self.deaths) and (id(place[0]), place[1]) in self.deaths

    def _needed(self) -> Place | None:
        while (place := self.again.popleft() if self.again else self.study._next()) is not None:
            if place[1] >= place[0].whole:
                return place
            self.study._local.append(place)
        return None

    def land(self) -> list[Place]:
        done, _ = wait(self.tasks, timeout=POLL, return_when=FIRST_COMPLETED)
        lost: list[Place] = []
        while done:
            for future in done:
                places = self.tasks.pop(future)
                if (outcomes := _outcomes(future, len(places))) is None:
                    lost += places
                    continue
                self.size = min(2 * self.size, MAX_TASK) if len(outcomes) == self.size else max(1, len(outcomes))
                if not outcomes:  # an executor lost them: each is tried by itself
                    self._count_deaths(places)
                self.again.extendleft(reversed(places[len(outcomes) :]))
                for place, outcome in zip(places, outcomes, strict=False):
                    self.study._land(*place, outcome)
            # When one worker has died none is left, and all futures are about to say so.
            done = set(self.tasks) if lost else set()
        return lost

    def _count_deaths(self, places: Iterable[Place]) -> None:
        for series, number in places:
            self.deaths[id(series), number] = self.deaths.get((id(series), number), 0) + 1

    def try_again(self, lost: list[Place]) -> None:
        if self.alone and lost:
            self.study._land(*lost.pop(), RunOutcome(None, error=LOST, lasting=False))
        self.alone = False
        self._count_deaths(lost)
        for series, number in lost:
            first = self.deaths[id(series), number] == 1
            (self.again.appendleft if first else self.suspects.append)((series, number))

    def cancel(self) -> bool:
        for future in self.tasks:
            future.cancel()
        return bool(self.tasks)


def _scenario(case: Case) -> Scenario:
    return case.scenario.with_overrides(case.overrides) if case.overrides else case.scenario


def _outcomes(future: Future, sent: int) -> list[RunOutcome] | None:
    try:
        return future.result()
    except BrokenExecutor:
        return None
    except (UsageError, OtherInputs):  # a worker that is not like this machine
        raise
    except CancelledError:
        raise RunError("the connection to the workers' scheduler is lost") from None
    except Exception as error:  # what the executor says of a worker that it lost
        said = " ".join(str(error).split())
        return [] if sent > 1 else [RunOutcome(None, error=f"{type(error).__name__}: {said}", lasting=False)]
