"""Replicas of services that form batches, each with a queue and a batching policy.

Each replica has its own devices.  A request is in two queues: the queue of its service, which all parts of the engine
query, and the queue of the replica to which it is routed.  A replica calls its policy after all other events of an
instant, and starts batches itself, concurrently on its own devices: the scheduler is not involved.
"""

import math
from collections.abc import Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from hetsim.engine.control.decisions import Decisions
from hetsim.engine.core.policy_errors import call
from hetsim.engine.flight.launch import Launch
from hetsim.engine.kernel.clock import LAST, Timer
from hetsim.engine.queues.queue import Queue
from hetsim.engine.residents.holder import Holder, HolderType
from hetsim.engine.residents.replica_set import ReplicaSet
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.batching import Counter
from hetsim.policy.decisions import Decision
from hetsim.policy.dispatch import Dispatcher


class BatchReplica(Holder):
    """A replica with its own devices, queue and batching policy."""

    fleet: "BatchFleet"

    def __init__(self, fleet: "BatchFleet", *given: Any, **named: Any):
        super().__init__(fleet, *given, **named)
        self.of, modes = fleet.state.capacity.of, fleet.service.shape.modes
        self.inside = Placement(modes[self.kind.position], self.placement.devices)
        self.queue, self.batching = fleet.queue.apart_for(self), deepcopy(fleet.batching)
        self.counter = Counter(self.queue, self.batching)
        self.dispatcher = Dispatcher(id, [self.counter])  # of one queue no order matters
        self.view: Any = copy(fleet.decisions.view)  # of the cluster it sees its own devices
        free_at = fleet.decisions.view.free_at
        self.view.first, self.view.load, self.view.free_at = self.first, self.in_flight, partial(free_at, lent=True)
        call(fleet.state, self.batching.begin, self.queue, self.view)

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def kv_used(self) -> float:
        return math.nan  # no request leaves anything in its memory

    def drain(self) -> None:
        super().drain()
        self.wake()

    def enqueue(self, request: Task) -> None:
        """Add a request to the queue: a new one, or one of a stopped batch."""
        self.fleet.requests[request.index] = self  # to which it was sent last
        (self.queue.join if request._history is None else self.queue.push)(request)
        self.add(1)
        self.queue.came()

    def in_flight(self, device: Device) -> float:
        """Return the number of batches in flight on one of the replica's devices."""
        return -self.of[device.index].free / WHOLE

    def first(self, mode: Mode, *_: Any, **by: Any) -> Placement | None:
        """Return the replica's placement if a further batch in this mode fits, else None."""
        states, share = [self.of[one.index] for one in self.inside.devices], mode.share - self.kind.mode.share
        fits = all(one.up and one.free >= share and one.room >= mode.gpu_memory for one in states)
        return self.inside if fits and mode is self.inside.mode else None

    def wake(self) -> None:
        """Schedule a call of the batching policy after all other events of this instant."""
        if self.loaded:
            self.clock.again(self.clock._now, LAST, self.launch)

    def _fired(self, timer: Timer) -> None:
        steps, state = self.dispatcher.schedule(self.view), self.fleet.state
        while (decision := call(state, next_batch, steps)) is not None:
            self.fleet.decisions.apply(decision)
        if (until := self.counter.until) <= self.clock._now:
            raise self.fleet.illegal(f"waits until t = {until:g} s, which is not later than now")
        if until < math.inf and self.launch.entry < 0:
            self.clock.at(until, LAST, self.launch)

    def close(self, end: float) -> None:
        """Record when the replica occupied its devices, and when it loaded its model."""
        recorder, times = self.fleet.state.recorder, (self.launch.decided, end, self.loading_from, self.loaded_at)
        place = recorder.place_code(self.placement, self.launch.cores)
        recorder.occupied.append((self.service.shape.index, self.kind.position, place, *times))

    def give_up(self, outcome: int) -> list[Task]:
        self.close(self.clock._now)
        self.fleet.decisions.completion.lose([one for one in self.fleet.state.lent.values() if one.within is self])
        return self.queue.look()

    def defects(self) -> list[str]:
        """Return the errors in the replica's counts of requests as messages (for --check)."""
        counted = sum(one.count for one in self.fleet.state.lent.values() if one.within is self) + len(self.queue)
        right = counted == self.outstanding and all(map(self.fleet.queue.waits, self.queue.waiting_rows()))
        return [] if right else [f"{self!r}: {self.outstanding} requests are outstanding, {counted} are there"]


@dataclass(eq=False)
class BatchFleet(ReplicaSet):
    """One service that forms batches, its requests and replicas.

    Each replica has a copy of `batching`.
    """

    decisions: Decisions
    queue: Queue

    def __post_init__(self) -> None:
        self.coming, self.kinds, service = self.queue.coming, [], self.service
        for given, mode, seconds in zip(service.kinds, service.shape.modes, service.per_item, strict=True):
            self.kinds.append(kind := HolderType(len(self.kinds), given.mode, given))
            size = min(mode.batch_limit, 1_000_000)
            kind.speed = size / mode.stages(size, size * seconds).total  # requests in a second, in full batches
        super().__post_init__()

    def arrived(self, task: Task) -> None:
        """Route a request that has just arrived to a replica."""
        self.enter(task.index, task)

    def again(self, task: Task) -> None:
        """Requeue a request of a stopped batch, at another replica if its own is lost."""
        replica = self.requests[task.index]
        replica.add(-1)
        up = all(self.state.capacity.of[one.index].up for one in replica.placement.devices)
        if up and replica in self.replicas:
            replica.enqueue(task)
        else:
            self.lobby[task.index] = task  # its replica is about to be lost, which sends it on

    def gone(self, row: int) -> None:
        replica = self.requests.pop(row)
        if self.lobby.pop(row, None) is None:
            replica.queue.remove(row)
            replica.wake()
            self._ended(replica, 1)

    def served(self, launch: Launch) -> None:
        for row in launch.terms.rows:  # type: ignore[union-attr]
            del self.requests[row]
        self._ended(launch.within, launch.count)

    def _ended(self, replica: BatchReplica, count: int) -> None:
        replica.add(-count)
        self.rested(replica)
        self.scale()


def next_batch(steps: Iterator[Decision]) -> Decision | None:
    """Return the next decision of a replica's batching policy; None if there is none."""
    return next(steps, None)
