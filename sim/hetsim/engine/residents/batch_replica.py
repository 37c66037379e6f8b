"""Replicas of services that form batches: each has a queue and a batching policy on devices of its own.

A request that comes stands in the queue of the service, of which all parts of the engine ask, and in that of the
replica to which it is routed.  A replica asks its policy when everything else of an instant has happened, and starts
batches there itself: no scheduler sees them.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hetsim.engine.core.policy_errors import call
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.launch import Launch
from hetsim.engine.kernel.clock import LAST, Timer
from hetsim.engine.queues.queue import OneByOne, Queue
from hetsim.engine.residents.holder import Holder, HolderType, Owner
from hetsim.engine.residents.replica_set import ReplicaSet
from hetsim.model.cluster import WHOLE, Device
from hetsim.model.plan import Placement
from hetsim.model.service import ReplicaKind, Service
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy.batching import Counter
from hetsim.policy.contract import Decision
from hetsim.policy.dispatch import Dispatcher
from hetsim.policy.routing import OpenReplicas


class BatchType(HolderType):
    """A replica on one type of device, in one mode of its service."""

    __slots__ = ("serving",)

    def __init__(self, position: int, given: ReplicaKind, service: Service):
        assert given.mode is not None
        super().__init__(position, given.mode, given)
        self.serving = mode = service.shape.modes[position]
        size = min(mode.batch_limit, 1_000_000)
        self.speed = size / mode.stages(size, size * service.per_item[position]).total  # requests, in full batches


@dataclass(slots=True, eq=False)
class Request:
    """A request as a router sees it, from its arrival to the end of its batch."""

    task: Task
    row: int
    arrival: float
    replica: Any = None

    @property
    def priority(self) -> float:
        return self.task.priority

    @property
    def weight(self) -> float:
        return self.task.weight

    @property
    def client(self) -> str:
        return self.task.user


class Coming(OneByOne):
    """Arrivals at one replica; they are over with those of its service, or as it drains."""

    def __init__(self, holder: Any):
        super().__init__(0)
        self.holder = holder

    @property
    def over(self) -> bool:
        return self.holder.draining or self.holder.fleet.queue.over


@dataclass(eq=False)
class BatchFleet(Owner):
    """The replicas of one service that forms batches, and its requests."""

    state: RunState
    rounds: Rounds
    signals: Signals
    devices_free: Any
    queue: Queue
    batching: Any
    """Of which each replica has a copy."""
    routing: Any

    def __post_init__(self) -> None:
        state, self.service = self.state, self.queue.service
        self.clock = state.clock
        self.random = state.input.random.stream("routing", self.service.name)
        self.kinds = [BatchType(position, kind, self.service) for position, kind in enumerate(self.service.kinds)]
        self.requests: dict[int, Request] = {}
        self.replicas = ReplicaSet(self, state, self.rounds, signals=self.signals, devices_free=self.devices_free)

    def holder(self, number: int, kind: BatchType, placement: Placement, prefills_only: bool) -> "BatchReplica":
        return BatchReplica(self, number, kind, placement=placement, prefills_only=prefills_only)

    def able(self, request: Request, replicas: OpenReplicas) -> OpenReplicas:
        return replicas

    def arrived(self, task: Task) -> None:
        """Route a request that has come to the node."""
        self.requests[task.index] = request = Request(task, task.index, task.arrival)
        if self.replicas.missing:
            self.replicas.refill()
        self.resume(request)
        self.replicas.scale()

    def all_came(self) -> None:
        """Let no replica wait for further requests: none comes."""
        for replica in self.replicas.replicas:
            replica.queue.came()

    def again(self, task: Task) -> None:
        """Note a request of a stopped batch: it waits where it was, or for another replica."""
        request = self.requests[task.index]
        replica = request.replica
        replica.add(-1)
        if replica.loaded and all(self.state.capacity.of[one.index].up for one in replica.placement.devices):
            replica.enqueue(request)
        else:
            self.replicas.lobby[task.index] = request  # its replica is about to be lost, which sends it on

    def resume(self, request: Request) -> None:
        self.replicas.send(request, False)

    def gone(self, row: int) -> None:
        """Note the end of a request that waited."""
        request = self.requests.pop(row)
        if self.replicas.lobby.pop(row, None) is None:
            request.replica.queue.remove(row)
            request.replica.wake()
            request.replica.add(-1)
            self.replicas.rested(request.replica)
        self.replicas.scale()

    def served(self, launch: Launch) -> None:
        """Note the end of a batch."""
        replica, terms = launch.within, launch.terms
        assert terms is not None
        for row in terms.rows:
            del self.requests[row]
        replica.add(-terms.requests.count)
        self.replicas.rested(replica)
        self.replicas.scale()


@dataclass(frozen=True)
class OwnDevices:
    """The cluster as the batching policy of a replica sees it."""

    devices: tuple[Device, ...]

    def count(self, kind: str) -> int:
        return sum(kind in (device.type.name, device.type.kind) for device in self.devices)


def next_batch(steps: Iterator[Decision]) -> Decision | None:
    """The next decision of a replica at this instant."""
    return next(steps, None)


class BatchReplica(Holder):
    """A queue, and a batching policy, on devices of its own."""

    fleet: BatchFleet
    kind: BatchType
    outstanding = 0

    def __init__(self, fleet: BatchFleet, number: int, kind: BatchType, placement: Placement, prefills_only: bool):
        super().__init__(fleet, number, kind, placement=placement, prefills_only=prefills_only)
        self.inside = Placement(kind.serving, placement.devices)
        self.queue = fleet.queue.apart_for(self, Coming(self))
        self.batching = deepcopy(fleet.batching)
        self.view = fleet.signals.view_of(self)
        self.counter = Counter(self.queue, self.batching)
        self.dispatcher = Dispatcher(None, [self.counter])
        call(fleet.state, self.batching.begin, self.queue, self.view)

    def __repr__(self) -> str:
        return f"replica {self.number} of {self.fleet.service}"

    @property
    def service(self) -> Service:
        return self.fleet.service

    @property
    def idle(self) -> bool:
        return not self.outstanding

    def add(self, change: int) -> None:
        """Change the number of outstanding requests by this amount."""
        self.outstanding += change
        self.loads[self.place] = (self.outstanding + 1) / self.speed

    def start(self, after: float) -> None:
        super().start(after)
        self.wake()

    def drain(self) -> None:
        super().drain()
        self.wake()

    def enqueue(self, request: Request) -> None:
        """Take a request in: a new one, or one of a stopped batch."""
        request.replica, task = self, request.task
        if task._history is None:
            self.queue.join(task)
        else:
            self.queue.push(task)
        self.add(1)
        self.queue.came()

    def wake(self) -> None:
        """Ask the policy when all else of this instant has happened."""
        if self.loaded:
            self.fleet.clock.again(self.fleet.clock._now, LAST, self.launch)

    def load(self, device: Device) -> float:
        """Batches in flight on a device of its own."""
        return -self.fleet.state.capacity.of[device.index].free / WHOLE

    def first(self, mode: Mode, *_: Any, **by: Any) -> Placement | None:
        """Where one more batch may start: on its devices, if it fits next to those in flight."""
        if mode is not self.inside.mode:
            return None
        states, share = [self.fleet.state.capacity.of[one.index] for one in self.inside.devices], self.kind.mode.share
        fits = all(one.up and one.free + share >= mode.share and one.room >= mode.gpu_memory for one in states)
        return self.inside if fits else None

    def _fired(self, timer: Timer) -> None:
        fleet, steps = self.fleet, self.dispatcher.schedule(self.view)
        while (decision := call(fleet.state, next_batch, steps)) is not None:
            fleet.signals.decide(decision)
        until, now = self.counter.until, fleet.clock._now
        if until <= now:
            raise fleet.illegal(f"waits until t = {until:g} s, which is not later than now")
        if until < math.inf and self.launch.entry < 0 and self.loaded:
            fleet.clock.at(until, LAST, self.launch)

    def give_up(self, outcome: int) -> list[Request]:
        state = self.fleet.state
        self.loaded = False
        self.fleet.clock.cancel(self.launch)
        for flow in self.flows:
            state.links.cancel(flow)
        for launch in [one for one in state.lent.values() if one.within is self]:
            self.fleet.signals.stop(launch)
        return [self.fleet.requests[row] for row in self.queue.waiting_rows()]

    def defects(self) -> list[str]:
        """Everything that is inconsistent (for --check)."""
        counted = sum(one.count for one in self.fleet.state.lent.values() if one.within is self) + len(self.queue)
        lost = [row for row in self.queue.waiting_rows() if not self.fleet.queue.waits(row)]
        wrong = f"{self!r}: {self.outstanding} requests are outstanding, not {counted}; {len(lost)} are gone"
        return [wrong] if lost or counted != self.outstanding else []
