"""The conformance suite: find the rules of the contract that a policy breaks.

Rules: `legal` (no decision is refused, no hook raises, no endless loop, no startable task is left waiting), `ends`
(every task ends, as completed unless the policy may reject), `capacity` (no resource is oversubscribed, by a recount),
`hooks` (the engine calls hooks in a legal order), `changes` (the policy changes neither tasks nor view),
`refusals` (a task that admission rejects has a reason and never starts), `repeats` (equal inputs give equal runs to the
last bit, whatever the memory addresses of objects), `hash seed` (equal runs in another process and hash seed).
"""

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hetsim.engine.simulation import Simulation
from hetsim.errors import InvariantError, RunError, ScenarioError
from hetsim.model.device import Device
from hetsim.model.plan import Placement
from hetsim.model.record import (
    COMPLETED,
    EXPIRED,
    FAILED,
    NOT_ARRIVED,
    REJECTED,
    STAGE_SPANS,
    STATUS_NAMES,
    Record,
    RunInput,
)
from hetsim.model.task import RUNNING, WAITING, Task
from hetsim.policy.contract import PlanProblem, Scheduler, View
from hetsim.policy.decisions import Decision, Start, Stop
from hetsim.policy.relay import Relay
from hetsim.policy.request_queue import Requests
from hetsim.policy.routing import WantedReplica
from hetsim.testing.audit import audit
from hetsim.testing.systems import ServedScenario, System, served_systems, small_systems

MakeFor = Callable[[System], Any]
ROUND_LIMIT = 20_000  # maximum rounds on a small system; a policy with more is reported as making no progress


@dataclass(frozen=True)
class ContractBreach:
    """A rule that the policy broke on one system."""

    rule: str
    system: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: on the system '{self.system}': {self.text}"


def check_policy(
    factory: Callable[[], Any],
    systems: Iterable[System] | None = None,
    *,
    may_reject: bool = False,
    hash_seed: bool = True,
    admission: Callable[[], Any] | None = None,
) -> None:
    """Run a policy on small systems and report every rule that it breaks.

    Parameters:
        factory: returns a new policy.
        systems: systems to run; default: those of the conformance suite.
        may_reject: True if the policy may reject tasks; otherwise every task must complete.
        admission: returns an admission policy that runs before the policy; tasks may then be rejected.
        hash_seed: compare with a run in another process under another hash seed (about a second; skipped if the factory
            cannot be pickled, as a lambda cannot).
    Raises: AssertionError: a sentence for every broken rule.
    """
    systems = all_systems() if systems is None else list(systems)
    gate = None if admission is None else lambda _: admission()
    breaches = [
        breach
        for system in systems
        for breach in examine(lambda _: factory(), system, may_reject=may_reject, admission=gate)
    ]
    if hash_seed and not breaches and _picklable(factory):
        breaches += other_hash_seed([factory], systems)
    _raise(breaches)


class PolicyTestCase:
    """Base class of policy tests: a subclass defines `make`; one test per rule.

    Set `may_reject` to True if the policy may reject tasks.  Override `make_for` if the policy depends on the system
    (a plan), and `systems` to run other systems.
    """

    may_reject: ClassVar[bool] = False
    _found: ClassVar[list[ContractBreach] | None] = None

    def make(self) -> Any:
        """Return a new policy; every subclass must define this method."""
        raise NotImplementedError("the test class must have a method `make` that returns a new policy")

    def make_for(self, system: System) -> Any:
        """Return a policy for one system (default: `make()`)."""
        return self.make()

    def systems(self) -> Sequence[System]:
        return all_systems()

    def test_decisions_are_legal_and_the_run_ends(self) -> None:
        self._require("legal")

    def test_every_task_ends(self) -> None:
        self._require("ends")

    def test_nothing_is_oversubscribed(self) -> None:
        self._require("capacity")

    def test_hooks_are_called_in_order(self) -> None:
        self._require("hooks")

    def test_tasks_and_view_are_left_alone(self) -> None:
        self._require("changes")

    def test_equal_runs_are_equal(self) -> None:
        self._require("repeats")

    def test_hash_seed_does_not_matter(self) -> None:
        if _picklable(type(self)):
            _raise(other_hash_seed([type(self)], self.systems()))

    def _require(self, rule: str) -> None:
        kind = type(self)
        if "_found" not in vars(kind):  # one pass over the systems answers all tests of a class
            kind._found = [c for s in self.systems() for c in examine(self.make_for, s, may_reject=self.may_reject)]
        _raise([breach for breach in kind._found or () if breach.rule == rule])


def all_systems() -> list[System]:
    """Return the systems on which policies are tested by default."""
    return [*small_systems(), *served_systems()]


def _raise(breaches: Sequence[ContractBreach]) -> None:
    if breaches:
        raise AssertionError("the policy breaks the contract:\n" + "\n".join(f"  {c}" for c in breaches))


# One system ---------------------------------------------------------------------------------------------------


def examine(
    make_for: MakeFor, system: System, *, may_reject: bool = False, admission: MakeFor | None = None
) -> list[ContractBreach]:
    """Return all rules that the policy `make_for(system)` breaks in runs of `system`."""
    def run_input(scheduler: Any) -> Any:
        return system.run_input(scheduler, None if admission is None else admission(system))

    def breaches(rule: str, texts: Iterable[str]) -> list[ContractBreach]:
        return [ContractBreach(rule, system.name, text) for text in texts]

    before = _digest(_columns(system.tasks))
    watched = watch(make_for(system))
    try:
        record = watched.run(run_input(watched))
    except ScenarioError:
        if isinstance(system, ServedScenario):
            return []  # it serves no requests, and says so
        raise
    except InvariantError as error:
        return breaches("capacity", [str(error)])
    except RunError as error:
        sentence = str(error).replace(f'"{type(watched).__name__}"', f'"{watched.name}"')
        # The first change is usually what made it go wrong.
        return breaches("changes", watched.changes[:1]) + breaches("legal", [sentence])
    problems = [ContractBreach(rule, system.name, text) for rule, text in watched.breaches(record)]
    if _digest(_columns(system.tasks)) != before:
        problems += breaches("changes", ["the table of tasks was changed"])
    problems += breaches("capacity", audit(record))
    problems += breaches("ends", _unfinished(record, may_reject or admission is not None))
    if admission is not None:
        problems += breaches("refusals", _refused(record))
    return problems + breaches("repeats", _unrepeated(record, lambda: run_input(make_for(system))))


def _unrepeated(record: Record, inputs: Callable[[], Any]) -> list[str]:
    for attempt in range(2):
        _scatter(attempt)
        try:
            again = Simulation(inputs()).run()
        except RunError as error:
            return [f"a second run of the same system failed: {error}"]
        if fingerprint(again) != fingerprint(record):
            return [_difference(record, again)]
    return []


def _unfinished(record: Record, may_reject: bool) -> Iterator[str]:
    # A task fails if its predecessor was rejected.
    accepted = (COMPLETED, REJECTED, EXPIRED, FAILED) if may_reject else (COMPLETED,)
    for row, status in enumerate(record.status.tolist()):
        if status not in accepted:
            name = record.input.tasks.name(row)
            how = "never arrived" if status == NOT_ARRIVED else f"is {STATUS_NAMES.get(status, 'nowhere')}"
            yield f"task {name} {how} at the end (t = {record.end:g} s), although there is no horizon"


def _refused(record: Record) -> Iterator[str]:
    for row in np.flatnonzero(np.isin(record.status, (REJECTED, EXPIRED))).tolist():
        subject = f"task {record.input.tasks.name(row)} is {STATUS_NAMES[int(record.status[row])]}"
        if not record.reasons.get(row):
            yield f"{subject} without a reason"
        stopped = record.preemptions is not None and record.preemptions[row] > 0
        if record.start[row] == record.start[row] and not stopped:
            yield f"{subject} although it had started at t = {record.start[row]:g} s"


def _difference(one: Record, two: Record) -> str:
    name = one.input.tasks.name
    order = np.argsort(np.where(np.isnan(one.start), np.inf, one.start), kind="stable").tolist()
    for column, verb in (("start", "started at t ="), ("place", "ran on place number"), ("finish", "finished at t =")):
        first, second = getattr(one, column), getattr(two, column)
        for row in order:
            if not (first[row] == second[row] or (first[row] != first[row] and second[row] != second[row])):
                values = f"{first[row]:g} in one run and {second[row]:g} in the other"
                return f"two equal runs differ: task {name(row)} {verb} {values}"
    return "two equal runs differ in their launches"


def _scatter(seed: int) -> None:
    """Shuffle free memory, so that decisions by `id()` or set order differ next time."""
    junk: list[Any] = [Task.__new__(Task) for _ in range(500)]
    junk = [junk[place] for place in np.random.default_rng(seed).permutation(500).tolist()]
    del junk[::2]
    junk.clear()


# What runs leave behind -----------------------------------------------------------------------------------


def fingerprint(record: Record) -> str:
    """Return a digest of all recorded columns; equal runs have equal digests."""
    columns: dict[str, Any] = {
        name: getattr(record, name)
        for name in ("end", "status", "ready", "start", "finish", "mode", "place", "places", "preemptions",
                     "migrations", "batch", "reasons", "device_log", "holds")
    }  # fmt: skip
    columns.update({name: record.stage(name) for name in STAGE_SPANS})
    if record.batch is None:  # else it follows from that of the launches, and is kept only once it has been asked for
        columns["energy"] = record.energy
    columns.update({f"launches.{name}": column for name, column in (record.launches or {}).items()})
    return _digest(columns)


def _columns(tasks: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(tasks).items() if name not in ("shapes", "extra")}


def _digest(columns: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(columns.items()):
        digest.update(name.encode())
        numeric = isinstance(value, np.ndarray) and value.dtype != object
        digest.update(value.tobytes() if numeric else repr(value).encode())
    return digest.hexdigest()


# Watching -------------------------------------------------------------------------------------------------


class WatchedScheduler(Relay):
    """A policy proxy that records illegal hook orders and changes to tasks or views."""

    def __init__(self, policy: Any):
        super().__init__(policy)
        self.name = type(policy).__name__
        self.changes: list[str] = []
        self.disorders: list[str] = []
        self._alive: dict[int, Task] = {}
        self._state: dict[int, str] = {}
        self._view: Any = None
        self._rounds = 0

    def run(self, inputs: RunInput) -> Record:
        """Simulate inputs whose scheduler is this proxy, with the engine's checks on."""
        return Simulation(inputs, check=True).run()

    def breaches(self, record: Record) -> Iterator[tuple[str, str]]:
        """Yield the name of each rule broken in the run, with a description."""
        yield from (("changes", text) for text in self.changes[:1])
        yield from (("hooks", text) for text in self.disorders[:3])

    def begin(self, view: View) -> None:
        self._view = view
        with self._untouched("begin"):
            super().begin(view)

    def ready(self, task: Task) -> None:
        self._expect(task, ("new", "stopped"), "ready", "waiting")
        if task.state != WAITING:
            self._disorder(f"ready({task}) was called although it does not wait")
        self._alive[task.index] = task
        with self._untouched("ready"):
            super().ready(task)

    def finished(self, task: Task) -> None:
        self._expect(task, ("running",), "finished", "ended")
        self._alive.pop(task.index, None)
        with self._untouched("finished"):
            super().finished(task)

    def gone(self, task: Task) -> None:
        self._expect(task, ("new", "waiting", "running", "stopped"), "gone", "ended")
        self._alive.pop(task.index, None)
        with self._untouched("gone"):
            super().gone(task)

    def device(self, device: Device, up: bool) -> None:
        with self._untouched("device"):
            super().device(device, up)

    def replica(self, wanted: WantedReplica, view: View) -> Placement | None:
        with self._untouched("replica"):
            place: Placement | None = super().replica(wanted, view)
        return place

    def schedule(self, view: View) -> Iterator[Decision]:
        self._rounds += 1
        if self._rounds > ROUND_LIMIT:
            raise RuntimeError(f"after {ROUND_LIMIT:,} rounds tasks have not ended; preemptions may undo all progress")
        decisions = iter(self.inner.schedule(view))
        while True:
            with self._untouched("schedule"):
                decision = next(decisions, None)
            if decision is None:
                return
            self._note(decision)
            yield decision

    def _note(self, decision: Decision) -> None:
        if isinstance(decision, Start) and not isinstance(decision.tasks, Requests):
            for task in (decision.tasks,) if isinstance(decision.tasks, Task) else decision.tasks:
                self._state[task.index] = "running"
        elif isinstance(decision, Stop) and isinstance(decision.task, Task) and decision.task.state == RUNNING:
            for task in decision.task._launch.tasks:
                self._state[task.index] = "stopped"

    def _expect(self, task: Task, states: tuple[str, ...], hook: str, then: str) -> None:
        state = self._state.get(task.index, "new")
        if state not in states and self._view.queue_of(task) is None:  # requests are their queue's until they end
            self._disorder(f"{hook}({task}) was called although the task was {state}")
        self._state[task.index] = then

    def _disorder(self, text: str) -> None:
        self.disorders.append(f"{text} (t = {self._view.now:g} s)")

    @contextmanager
    def _untouched(self, where: str) -> Iterator[None]:
        tasks, seen = {row: _facts(task) for row, task in self._alive.items()}, self._facts_of_view()
        try:
            yield
        finally:
            time = f"in {where} at t = {seen[0]:g} s"
            for row, before in tasks.items():
                task, after = self._alive[row], _facts(self._alive[row])
                if after != before:
                    what = next(name for name, old, new in zip(FACTS, before, after, strict=True) if old != new)
                    self.changes.append(f"{task}: the policy changed its {what} {time}")
            if self._facts_of_view() != seen:
                self.changes.append(f"the policy changed the view {time}")

    def _facts_of_view(self) -> tuple[Any, ...]:
        view = self._view
        return view.now, id(view.cluster), id(view.items), id(view.random)


class WatchedPlanner(WatchedScheduler):
    """Proxy that checks a policy which also plans before the run (`WatchedScheduler`)."""

    def prepare(self, problem: PlanProblem) -> None:
        self.inner.prepare(problem)


def watch(policy: Any) -> WatchedScheduler:
    """Wrap a policy in a proxy: a `WatchedPlanner` if it plans ahead."""
    plans = type(policy).prepare is not Scheduler.prepare
    watched = WatchedPlanner(policy) if plans else WatchedScheduler(policy)
    watched.looks_ahead = policy.looks_ahead  # type: ignore[misc]
    return watched


# what a policy must not change: all but its own `memo` and the queue's `ticket`
FACTS = ("index", "arrival", "ready time", "shape", "estimates", "true times", "state", "done fraction", "launch",
         "allowed modes")  # fmt: skip


def _facts(task: Task) -> tuple[Any, ...]:
    return (
        task.index, task.arrival, task.ready, id(task.shape), tuple(task.estimates), tuple(task._time), task.state,
        task.done, id(task._launch), task.allowed,
    )  # fmt: skip


# Another process --------------------------------------------------------------------------------------------


def other_hash_seed(factories: Sequence[Any], systems: Sequence[System] | None = None) -> list[ContractBreach]:
    """Compare runs of the policies with runs in a new process with another hash seed.

    A factory is a function without arguments or a subclass of PolicyTestCase; one process runs all of them.
    """
    chosen = all_systems() if systems is None else systems
    return differing_elsewhere([(factory, chosen) for factory in factories])


def differing_elsewhere(jobs: Sequence[tuple[Any, Sequence[System]]]) -> list[ContractBreach]:
    """Compare runs of (factory, systems) pairs with a process of another hash seed."""
    here = fingerprints(jobs)
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    job = pickle.dumps(sys.path) + pickle.dumps([(factory, list(systems)) for factory, systems in jobs])
    done = subprocess.run([sys.executable, "-c", _CHILD], input=job, capture_output=True, env=environment, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        return [ContractBreach("hash seed", "all", f"the run in a separate process failed: {lines[-1]}")]
    return [
        ContractBreach("hash seed", name, f"{getattr(factory, '__name__', None) or repr(factory)} decides differently "
                       "under another PYTHONHASHSEED")  # fmt: skip
        for (factory, _), mine, theirs in zip(jobs, here, pickle.loads(done.stdout), strict=True)
        for name, ours, its in zip(mine, mine.values(), theirs.values(), strict=True)
        if ours != its
    ]


_CHILD = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
jobs = pickle.load(sys.stdin.buffer)
from hetsim.testing.conformance import fingerprints
sys.stdout.buffer.write(pickle.dumps(fingerprints(jobs)))
"""


def fingerprints(jobs: Sequence[tuple[Any, Sequence[System]]]) -> list[dict[str, str]]:
    """Return, for each policy factory, digests of runs (or errors) by test system."""
    prints = []
    for factory, systems in jobs:
        case = factory() if isinstance(factory, type) and issubclass(factory, PolicyTestCase) else None
        digests = {}
        for system in systems:
            policy = factory() if case is None else case.make_for(system)
            try:
                digests[system.name] = fingerprint(Simulation(system.run_input(policy)).run())
            except (RunError, ScenarioError) as error:
                digests[system.name] = str(error)
        prints.append(digests)
    return prints


def _picklable(factory: Any) -> bool:
    try:
        return b"__main__" not in pickle.dumps(factory)
    except Exception:  # whatever pickle says: a lambda, a local class, an open file inside
        return False
