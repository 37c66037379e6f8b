"""The engine's implementation of `hetsim.policy.contract.View`."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import index
from typing import Any, Literal, SupportsIndex, cast

import numpy as np

from hetsim.engine.core.policy_errors import Questions, illegal
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.launch import STAGE_NAMES, Launch, Resident
from hetsim.engine.language.llm_service import Serving
from hetsim.engine.launching.attained import AttainedService
from hetsim.engine.launching.launches import Launches
from hetsim.engine.launching.stopping import Stops
from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import GpuState, Sketch
from hetsim.engine.resources.offers import Offers
from hetsim.engine.views.backlog import Backlog
from hetsim.engine.views.forecast import Forecast
from hetsim.engine.views.generated import Generated, WaitingRequests, by_readiness, end_in_replica
from hetsim.engine.views.placing import Placing, together
from hetsim.engine.views.shadow import Shadows
from hetsim.errors import suggestion
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.slices import Layout
from hetsim.model.task import Task
from hetsim.model.tasks import Item, Tasks
from hetsim.policy.batching import RequestQueue
from hetsim.policy.contract import Imagined, PlacementRule

KINDS = ("cpu", "gpu", "npu")  # kinds of devices, which policies may name like types


@dataclass(eq=False)
class Changes:
    """Counters of changes that a policy sees (`View.changes`)."""

    _state: RunState
    _capacity: Capacity

    @property
    def releases(self) -> int:
        return self._capacity.releases

    @property
    def launches(self) -> int:
        return self._state.last_launch

    @property
    def steady(self) -> bool:
        return self._state.steady


@dataclass(eq=False)
class LaunchSeen:
    """A task's launch as a policy sees it (`View.launch_of`)."""

    _forecast: Forecast
    _launch: Launch | None

    @property
    def placement(self) -> Placement | None:
        return None if self._launch is None else self._launch.placement

    @property
    def stage(self) -> str | None:
        if (launch := self._launch) is None:
            return None
        return "compute" if launch.table is None else STAGE_NAMES[launch.table.stage(self._forecast.now)]

    @property
    def tasks(self) -> tuple[Task, ...]:
        return () if self._launch is None else self._launch.tasks

    @property
    def finish(self) -> float:
        return math.inf if self._launch is None else self._forecast.finish_of(self._launch)


@dataclass(eq=False)
class RequestSeen(LaunchSeen):
    """View of one request on an LLM replica, with its own stage and expected finish."""

    _task: Task

    @property
    def stage(self) -> str:
        launch: Any = self._launch  # a `Resident`
        return "upload" if self._task.index in launch.holder.loading else "compute"

    @property
    def finish(self) -> float:
        return end_in_replica(self._launch, self._task)


@dataclass(eq=False)
class Victims:
    """Finds placements that become possible if some running tasks are stopped."""

    _capacity: Capacity
    _fleets: Mapping[Shape, Any]  # services by shape of which replicas take in the requests: no victims

    def make_room(self, task: Task, victims: Iterable[Task]) -> tuple[Placement, list[Task]] | None:
        """Return a placement for a task and the victims to stop; None if impossible.

        Victims are added in the given order until the task fits on a node.  Then victims that are not needed are
        removed, in the same order.
        """
        if self._fleets:
            if task.shape in self._fleets:
                return None
            victims = [victim for victim in victims if victim.shape not in self._fleets]
        modes = [task.shape.modes[position] for position in task.modes_by_speed()]
        capacity = self._capacity
        wanted = modes[0] if len(modes) == 1 and modes[0].gpus and capacity.countable(modes[0]) else None
        kind = capacity.types[modes[0].type]
        # accelerators that each node lacks; above 0, nothing fits there and the node need not be tried
        lacking: dict[int, int] = {}
        stopped: dict[int, list[Task]] = {}
        sketches: dict[int, Sketch] = {}
        seen: set[int] = set()
        for victim in victims:
            launch: Launch | None = victim._launch
            if launch is None or not victim.shape.preemptible or launch.number in seen:
                continue
            seen.add(launch.number)  # a batch has several tasks: it stops once
            placement = launch.placement
            if not stopped and placement.mode is modes[0]:
                # The first victim occupies exactly the wanted mode: no trial is needed.
                return placement, [victim]
            if wanted is not None:
                if capacity.countable(placement.mode):
                    number = placement.devices[0].node
                    if (lack := lacking.get(number)) is None:
                        lack = wanted.gpus - capacity.nodes[number].open[kind].bit_count()
                    if placement.mode.gpus and placement.mode.type is wanted.type:
                        lack -= placement.mode.gpus
                    lacking[number] = lack
                    if lack > 0:  # too few GPUs even without these victims: no need to try the node out
                        stopped.setdefault(number, []).append(victim)
                        continue
                else:
                    wanted = None  # counting GPUs says nothing about such a victim
            for number, _, _ in placement.hosts():
                stopped.setdefault(number, []).append(victim)
                if number in sketches:
                    sketches[number].release(placement, launch)
                else:
                    sketches[number] = self._released(number, stopped[number])
                for mode in modes:
                    if sketches[number].fits(mode) and self._allows(mode, number, stopped[number]):
                        return self._sparing(number, mode, stopped[number], sketches[number])
        return None

    def _sparing(self, number: int, mode: Mode, needed: list[Task], sketch: Sketch) -> tuple[Placement, list[Task]]:
        """Return a placement on a node and the victims it needs, omitting needless ones."""
        for spared in needed[:-1]:  # the last one is needed in any case
            fewer = [victim for victim in needed if victim is not spared]
            without = self._released(number, fewer)
            if without.fits(mode) and self._allows(mode, number, fewer):
                needed, sketch = fewer, without  # permanently spared: later trials do not stop it
        placement = sketch.place(mode)
        assert placement is not None
        return placement, needed

    def _allows(self, mode: Mode, number: int, victims: list[Task]) -> bool:
        if not mode.limited:
            return True
        budget = self._capacity.budget(mode).copy()
        for placement in (victim._launch.placement for victim in victims):
            if placement.mode.partition is mode.partition:
                budget.give(placement.mode, placement.devices)
        return budget.narrowed(mode, 1 << number) != 0

    def _released(self, number: int, victims: list[Task]) -> Sketch:
        sketch = Sketch(self._capacity.nodes[number])
        for victim in victims:
            sketch.release(victim._launch.placement, victim._launch)
        return sketch


class EngineView:
    """Implementation of `hetsim.policy.contract.View`; changes nothing in the run."""

    def __init__(
        self, state: RunState, signals: Signals, received: AttainedService, launches: Launches, stops: Stops,
        serving: Serving,
    ):  # fmt: skip
        self._state = state
        self._signals = signals
        self._received = received
        self._capacity = state.capacity
        self._places = state.places
        self._clock = state.clock
        self._questions = questions = Questions(state)
        self._backlog: Backlog | None = None  # work ahead by kind, from the first question on
        self.cluster: Cluster = state.input.cluster
        self.items: Sequence[Item] = state.tasks.items
        self.random = state.input.random.stream("policy")
        self.changes = Changes(state, state.capacity)
        self._generated = generated = Generated(state, serving)
        fleets = generated.fleets
        self._placing = placing = Placing(state, launches.transfers, fleets)
        self._forecast = forecast = Forecast(state, launches.transfers, generated)
        self._first = None if fleets or self.items else state.capacity.first
        self.nodes = placing.nodes  # Direct references to the answering objects: these queries are the most frequent.
        self.first, self.holds, self.options = placing.first, placing.holds, placing.options
        self.fits, self.over_limit, self.load = placing.fits, placing.over_limit, placing.load
        self.duration, self.stages, self.remaining = forecast.duration, forecast.stages, forecast.remaining
        self.free_at = forecast.free_at
        self.earliest_fit = Shadows(state, forecast, placing, stops=stops, questions=questions, fleets=fleets).shadow_of
        self.make_room = Victims(state.capacity, fleets).make_room

    def slices(self, device: Device, idle: bool = False) -> Layout:
        if (slices := self._capacity.of[device.index].slices) is None:
            return ()
        return tuple(sorted(one for one, _ in slices.idle)) if idle else slices.layout

    def crowding(self, placement: Placement) -> tuple[float, float]:
        if (network := self._state.network) is None or placement.mode.exchange is None:
            return 1.0, 0.0
        return network.foresee(placement)

    @property
    def now(self) -> float:
        return self._clock._now

    @property
    def offers(self) -> Offers:
        return self._placing.offers

    # Where does it fit? -------------------------------------------------------------------------------------

    def fit(self, task: Task, rule: PlacementRule | None = None) -> Placement | None:
        if rule is not None:
            return rule(task, self)
        modes, first = task.shape.modes, self._first  # the most frequent query by far: saves a call
        return self._placing.fit(task) if first is None or len(modes) > 1 else first(modes[0])

    def together(self, rows: Sequence[int]) -> tuple[Task, ...] | None:
        return together(self._state, rows)

    def launch_of(self, task: Task) -> LaunchSeen:
        launch = task._launch
        if isinstance(launch, Resident):
            return RequestSeen(self._forecast, launch, task)
        return LaunchSeen(self._forecast, launch)

    # Tasks --------------------------------------------------------------------------------------------------

    def running(
        self, by: Literal["finish", "start"] = "finish", device: Device | None = None, own: bool = False
    ) -> list[Task]:
        self._questions.count()
        state = self._state
        launches = list(state.running.values())
        if state.lent and not own:
            launches = sorted([*launches, *state.lent.values()], key=lambda launch: launch.number)
        if mixed := bool(self._generated.fleets) and not own:
            launches = sorted([*state.residents.values(), *launches], key=lambda launch: launch.decided)
        if device is not None:
            launches = [launch for launch in launches if device in launch.placement.devices]
        if by == "finish" and not mixed:
            launches.sort(key=self._forecast.finish_of)
        tasks = [task for launch in launches for task in launch.tasks]
        if by == "finish" and mixed:  # each request of a replica has an end of its own
            tasks.sort(key=lambda task: self.launch_of(task).finish)
        return tasks

    def waiting(self, count: SupportsIndex | None = None, own: bool = False) -> list[Task]:
        queues = self._queues(own)
        waiting = self._state.waiting.values()
        if count is None:
            self._questions.count()
        elif not queues:
            return list(islice(waiting, index(count)))
        tasks = list(waiting)
        requests: list[Task] = []  # to language models
        for queue in queues:
            seen = queue.look(count if queue.by_readiness else None)
            if isinstance(queue, WaitingRequests):
                requests += seen
            else:
                tasks = sorted([*tasks, *seen], key=by_readiness)  # stable: equals stay in the order of their lists
        if requests:  # without sorting the tasks, as without such requests
            tasks = list(merge(tasks, sorted(requests, key=by_readiness), key=by_readiness))
        return tasks[:count]

    def num_waiting(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> int:
        queues = self._queues(own)
        if kind is None and class_ is None:
            return len(self._state.waiting) + (sum(map(len, queues)) if queues else 0)
        self._known(kind, class_)
        return self._work_ahead().count(kind, class_, self._state.queues if own else queues)

    def _queues(self, own: bool) -> list[Any]:
        """Return the queues of requests; `own`: only those of services without replicas."""
        queues = self._state.queues
        if own:
            return [queue for queue in queues if queue.fleet is None]
        return [*queues, *self._generated.queues.values()]

    def queue_of(self, task: Task) -> RequestQueue | None:
        queue: RequestQueue | None = self._state.queue_of.get(task.shape)
        # Not `or`: an empty queue is one, too.
        return queue if queue is not None else cast(RequestQueue | None, self._generated.queues.get(task.shape))

    def free(self, kind: str, node: SupportsIndex | None = None) -> float:
        self._known(kind)
        if node is None:
            return sum(self.free(kind, one.index) for one in self._capacity.nodes)
        state = self._capacity.nodes[node]
        if not state.up:
            return 0.0
        of_kind = [gpu for gpu in state.gpus if kind in (gpu.device.type.kind, gpu.device.type.name)]
        cores = state.cpu_free / 1000 if kind in ("cpu", state.device.type.name) else 0.0
        return cores + sum(min(WHOLE, max(0, gpu.free)) / WHOLE for gpu in of_kind if gpu.up and not gpu.asleep)

    def backlog(self, kind: str | None = None, class_: str | None = None, own: bool = False) -> float:
        self._known(kind, class_)
        state = self._state
        queues, residents = (state.queues, ()) if own else (self._queues(own), state.residents.values())
        return self._work_ahead().seconds(kind, class_, queues, residents)

    def _known(self, kind: str | None, class_: str | None = None) -> None:
        types, classes = self.cluster.types, self._state.tasks.classes
        if kind is not None and kind not in KINDS and kind not in types:
            text = f'queries devices of type "{kind}", which the cluster lacks{suggestion(kind, [*KINDS, *types])}'
            raise illegal(self._state, text)
        if class_ is not None and class_ not in classes:
            text = f'queries tasks of class "{class_}", which the workload lacks{suggestion(class_, classes)}'
            raise illegal(self._state, text)

    def request_mix(self) -> dict[Shape, int]:
        tasks = self._state.tasks
        # Of the whole input, not of what has arrived.
        counts = np.bincount(tasks.shape, minlength=len(tasks.shapes)).tolist()
        return {shape: count for shape, count in zip(tasks.shapes, counts, strict=True) if count}

    def _work_ahead(self) -> Backlog:
        if self._backlog is None:
            self._backlog = Backlog(self._state, self._forecast)
            self._signals.materialized = self._backlog.materialized  # only from now on does anything listen
        return self._backlog

    def attained(self, of: Task | str) -> float:
        generated = self._generated
        if isinstance(of, Task):
            fleet = generated.fleets.get(of.shape)
            return self._received.task(of) if fleet is None else fleet.received_by(of.index)
        return self._received.user(of) + generated.attained_by(of)

    def holders(self, item: SupportsIndex) -> list[Device | int]:
        devices = self.cluster.devices
        return [devices[place] if place >= 0 else -1 - place for place in self._places.where[item]]

    def room(self, device: Device) -> float:
        state = self._capacity.of[device.index]
        usable = isinstance(state, GpuState) and state.up and not state.asleep and state.node.up
        return state.room if usable else 0.0

    def in_use(self, item: SupportsIndex, device: Device) -> bool:
        return item in self._places.on(device).pins

    # What if? -------------------------------------------------------------------------------------------------

    def fork(
        self, scheduler: Any, decisions: Any = (), seed: int = 0,
        coming: Sequence[tuple[float, Task]] = (), ratios: Sequence[float] = (),
        expected: Callable[[Tasks], np.ndarray] | None = None,
    ) -> Imagined:  # fmt: skip
        return self._signals.imagine(scheduler, decisions, seed, coming=coming, ratios=ratios, expected=expected)
