"""Assembly of all components of one run; only this module knows all of them."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

from hetsim.engine.control.arrivals import Arrivals
from hetsim.engine.control.batch_replicas import BatchFleet, BatchReplica
from hetsim.engine.control.checks import Checker
from hetsim.engine.control.clients import Clients
from hetsim.engine.control.completion import Completion, inert
from hetsim.engine.control.decisions import Decisions
from hetsim.engine.control.devices import Devices
from hetsim.engine.control.faults import FaultInjector
from hetsim.engine.control.starts import Starts, all_steady, compute_only
from hetsim.engine.core.pacing import Pacing
from hetsim.engine.core.policy_errors import call, illegal
from hetsim.engine.core.recorder import Recorder
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.data_locations import Places
from hetsim.engine.flight.links import Links
from hetsim.engine.kernel.clock import Clock
from hetsim.engine.language.continuous_batching import Replica
from hetsim.engine.language.llm_service import Serving
from hetsim.engine.launching.attained import AttainedService
from hetsim.engine.launching.launches import Launches
from hetsim.engine.launching.stopping import Stops, TimeLimits
from hetsim.engine.queues.patience import Deadlines
from hetsim.engine.queues.queue import Queue, sent_late
from hetsim.engine.queues.sources import Graph, Sources, with_own_columns
from hetsim.engine.residents.loading import Loading
from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.views.view import EngineView
from hetsim.errors import Problem, ScenarioError
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.record import RunInput
from hetsim.policy.batching import Counter
from hetsim.policy.contract import PlanProblem, Scheduler
from hetsim.policy.routing import WantedReplica

Progress = Callable[[float, int, int], None]


class Parts:
    """All components of a run (queues, launches, views and others), and their state."""

    def __init__(self, run: RunInput, check: bool, progress: Progress | None):
        run = with_own_columns(run)
        self.state = state = _state_of(run)
        self.signals = signals = Signals()
        self.rounds = Rounds(state)
        paced = state.pacing is not None
        quick: frozenset[Mode] = frozenset() if paced else compute_only(state.tasks)
        state.steady = all_steady(state.tasks, quick)
        received = AttainedService(state)
        self.launches = Launches(state, signals, received)
        stops = Stops(self.launches)
        limited = run.grace is not None and run.tasks.time_limit is not None
        limits = TimeLimits(state, signals, run.grace or 0.0) if limited else None
        self.serving = state.serving = Serving(state, self.rounds, signals, checked=check, replicas=Replica)
        self.view = EngineView(state, signals, received, launches=self.launches, stops=stops, serving=self.serving)
        graph = run.tasks.predecessors is not None
        linked = graph or bool(run.closed) or bool(run.tasks.items) or run.calls is not None
        asked = graph or bool(run.admission or run.tasks.items or run.tasks.refused)
        bell: dict[Any, bool] = {}
        state.queues = [
            Queue(
                number, service, run, clock=state.clock, links=state.links, bell=bell,
                # Arrivals are events if something is decided about each request, a cache answers, or a client waits.
                by_clock=not (asked or service.cache is not None or service.kinds or sent_late(service, run))
            )
            for number, service in enumerate(run.services)
        ]
        state.queue_of = {queue.service.shape: queue for queue in state.queues}
        state.requests_left = sum(queue.total for queue in state.queues if queue.column is not None)
        self.arrivals = arrivals = Arrivals(state, self.rounds, signals, view=self.view, linked=linked)
        self.completion = completion = Completion(
            state, self.rounds, arrivals, received=received, stops=stops, limits=limits, linked=linked
        )  # fmt: skip
        self.devices = Devices(state, self.rounds, self.launches, completion=completion)
        self.starts = Starts(
            state, signals, self.launches, arrivals=arrivals, limits=limits, finish_quick=completion.finish_quick,
            quick=quick
        )  # fmt: skip
        self.decisions = Decisions(
            state, self.rounds, self.starts, launches=self.launches, completion=completion, devices=self.devices,
            view=self.view
        )  # fmt: skip
        for queue, batching, (routing, scaling) in zip(state.queues, run.batching, run.replica_policies, strict=False):
            if queue.service.kinds:
                queue.fleet = BatchFleet(
                    state, self.rounds, signals, service=queue.service, batching=batching, routing=routing,
                    scaling=scaling, holder_type=BatchReplica, decisions=self.decisions, queue=queue
                )  # fmt: skip
                self.serving.sets.append(queue.fleet)
        self.serving.sets.sort(key=lambda one: one.service.shape.index)
        signals.launch_completed = completion.launch_completed
        signals.task_completed = completion.completed
        signals.task_ended = completion.end_task
        signals.generated = completion.generated
        signals.kill = completion.kill
        signals.place = self._place
        deliver = arrivals.admit if asked or run.tasks.expires is not None else arrivals.make_ready
        if run.calls is not None:
            state.clients = clients = Clients(state, signals, arrivals, calls=run.calls, forward=deliver)
            deliver = clients.deliver
            state.patience = Deadlines(state.clock, clients.due, clients.awaits)
        elif run.tasks.expires is not None:
            state.patience = Deadlines(state.clock, arrivals.expire, arrivals.may_expire if state.queues else None)
        arrivals.expect_expiry()
        self.checker = Checker(state) if check else None
        self.hooks()
        state.sources = Sources(
            run, state.clock, state.recorder.status, deliver=deliver, progress=progress, each_block=state.capacity.tidy,
            absent=[queue.service.rows for queue in state.queues if queue.column is not None]
        )  # fmt: skip

    def hooks(self) -> None:
        """Determine which policy hooks are overridden, since only these are called."""
        self.arrivals.hooks()
        self.completion.hooks()
        self.decisions.hooks()
        self.signals.drops = self.decisions.dropped if self.decisions.asks else None

    def bind(self, problem_of: Callable[[], PlanProblem]) -> None:
        """Pass the problem (to planners) and the view to the policies; start the faults."""
        state = self.state
        run, scheduler = state.input, state.scheduler
        if scheduler.looks_ahead and run.language:
            what = f"{run.policy} simulates the future of the run, but no policy knows the lengths of answers of "
            text = what + "language models; choose another policy"
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        if type(scheduler).prepare is not Scheduler.prepare:
            if self.serving.sets:
                what = f"{run.policy} plans all tasks in advance, and requests to replicas cannot be planned"
                raise ScenarioError(Problem(f"{what}; name a dynamic policy", key="policy.scheduler"))
            begun = perf_counter()
            call(state, scheduler.prepare, problem_of())
            state.planning = perf_counter() - begun
        if state.queues:
            self.show_queues(scheduler)
            for queue, policy in zip(state.queues, run.batching, strict=True):
                if queue.fleet is None:
                    call(state, policy.begin, queue, self.view)
        call(state, scheduler.begin, self.view)
        if run.admission is not None and not inert(run.admission, "begin"):
            call(state, run.admission.begin, self.view)
        for one in self.serving.sets:
            one.begin()
        if run.faults:
            FaultInjector(state, self.rounds, self.devices, faults=run.faults)

    def _place(self, wanted: WantedReplica) -> Placement | None:
        state = self.state
        placement: Placement | None = call(state, state.scheduler.replica, wanted, self.view)
        if placement is None:
            return None
        what = f"starts a replica on {placement}"
        if placement.mode not in wanted.modes:
            raise illegal(state, f"{what}, in mode {placement.mode}, which is not one of the replica's modes")
        if (refusal := state.capacity.refusal(placement)) is not None:
            raise illegal(state, f"{what}, but {refusal}")
        return placement

    def show_queues(self, scheduler: Scheduler) -> None:
        """Pass the queues of services, with their batching policies, to a scheduler."""
        state = self.state
        pairs = zip(state.queues, state.input.batching, strict=True)
        counters = [Counter(*pair) for pair in pairs if pair[0].fleet is None]
        served = sum(queue.total for queue in state.queues)
        if counters:
            call(state, scheduler.serve, counters, served == len(state.tasks))


def _state_of(run: RunInput) -> RunState:
    clock = Clock()
    clock.end = run.horizon
    clock.round_due = True  # one round before anything happens, for policies that prepare
    capacity = Capacity(run.cluster, clock)
    links = Links(run.cluster, clock, run.tasks.modes, bool(run.tasks.items))
    places = Places(run.cluster, capacity, links, run.tasks)
    pacing = None if run.decisions is None else Pacing(run.decisions)
    state = RunState(
        run, run.tasks, run.scheduler, clock=clock, capacity=capacity, links=links, places=places,
        recorder=Recorder(run), graph=Graph(run.tasks.predecessors or ()), steady=False, pacing=pacing
    )  # fmt: skip
    state.loading = Loading(state)
    return state
