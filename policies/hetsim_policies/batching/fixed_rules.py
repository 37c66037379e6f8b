"""Batching by fixed rules: all waiting requests, full batches, sizes and timeouts."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.demand import UNLIMITED_BATCH
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Batching, Delay, Discard, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import limit, occupied


class SerialGreedy(Batching):
    """Serial greedy: when the device is idle, all waiting requests form one batch.

    Decides only how many requests: all, at most `max_batch`.  One launch at a time is in flight on a device, so no
    upload overlaps a compute.
    Reference: the baseline of Zhang, Zha, Wan and Cheng, A GPU Inference System Scheduling Algorithm with Asynchronous
    Data Transfer (IPDPSW 2019); as a queue it is greedy batch service, M/D^[1,b]/1 (Neuts, A General Class of Bulk
    Queues with Poisson Input, 1967).
    Weakness: the compute engine idles during every upload and download.  With stage times a·n + b for n requests, the
    capacity is 1/Σa requests per second; with overlapped transfers it would be 1/max a.  Cost: O(1) per batch.

    max_batch: largest batch (the mode's own limit applies too).
    """

    queueing = "greedy batches"
    in_order = True
    rejects = False

    def __init__(self, max_batch: Annotated[int, Field(ge=1)] | None = None):
        self.max_batch = max_batch

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        if occupied(queue, placement, view):
            return Delay()
        return Take(min(len(queue), limit(placement, self.max_batch)))


class FixedSize(Batching):
    """Fixed size: a batch is launched when it is full, or at the end of the stream.

    Decides only when: the size is a parameter.  Batches overlap if the device has several streams.
    Reference: bulk service with a fixed batch, M/D^[b]/1; Bailey, On Queueing Processes with Bulk Service (1954).
    Weakness: an average request of a batch of b waits for (b - 1)/2 interarrival times, which at low rates is
    unbounded; in a closed loop with fewer clients than the size no batch ever starts.  Cost: O(1) per batch.

    size: requests per batch (at most the mode's own limit).
    """

    in_order = True
    rejects = False

    def __init__(self, size: Annotated[int, Field(ge=1)] = 8):
        self.max_batch: int = size

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        size, waiting = limit(placement, self.max_batch), len(queue)
        if waiting >= size or queue.over:
            return Take(min(waiting, size))
        return Delay(count=size)


class SizeOrTimeout(Batching):
    """Size or timeout: launch a full batch, or a partial one after a timeout.

    Decides when and how many requests; a batch may be padded to the next size of a list, and requests that arrive while
    `max_enqueued_batches` full batches wait are rejected.
    Reference: the batching of TensorFlow Serving (parameters max_batch_size, batch_timeout, allowed_batch_sizes,
    max_enqueued_batches; a device's streams are its batch threads); Olston et al., TensorFlow-Serving: Flexible,
    High-Performance ML Serving (2017).  Weakness: timeout and size are set by hand and suit one rate: at lower rates
    every batch waits for its timeout, at higher rates only the size matters.  Padding wastes computing.
    Cost: O(1) per batch; with max_enqueued_batches also O(1) per request.

    max_batch_size: requests of a full batch; default: the largest of allowed_batch_sizes, else the service's limit.
    batch_timeout: seconds that the first request of a batch waits for further ones while a stream of the device is
        free; 0: it does not wait.
    allowed_batch_sizes: increasing list that ends with max_batch_size, if given; a batch takes the time of the next
        larger size in the list.
    max_enqueued_batches: when this many full batches wait, arrivals are rejected.  Rejections are recorded when the
        device next has room.
    """

    def __init__(
        self,
        max_batch_size: Annotated[int, Field(ge=1)] | None = None,
        batch_timeout: Annotated[Seconds, Field(ge=0)] = 0.0,
        allowed_batch_sizes: list[Annotated[int, Field(ge=1)]] | None = None,
        max_enqueued_batches: Annotated[int, Field(ge=1)] | None = None,
    ):
        sizes = allowed_batch_sizes or []
        if any(one >= other for one, other in zip(sizes, sizes[1:], strict=False)):
            raise _refused(f"sizes must be increasing; got {sizes}")
        if sizes and max_batch_size is None:
            max_batch_size = sizes[-1]
        if sizes and sizes[-1] != max_batch_size:
            raise _refused(f"the last size must be max_batch_size ({max_batch_size}); got {sizes}")
        self.max_batch = max_batch_size
        self.batch_timeout = batch_timeout
        self.sizes = sizes
        self.max_enqueued_batches = max_enqueued_batches
        self.rejects = max_enqueued_batches is not None
        self.capacity: int | None = None  # requests that may wait; those that arrive beyond it are rejected

    def begin(self, queue: RequestQueue, view: View) -> None:
        min_limit = min(mode.batch_limit for mode in queue.service.shape.modes)
        if self.sizes and self.sizes[0] > min_limit:
            text = f"service {queue.service.name} allows batches of at most {min_limit}; add a smaller size"
            raise _refused(text, queue.service.policy_key)
        if self.max_enqueued_batches is not None:
            limits = [mode.batch_limit for mode in queue.service.shape.modes]
            full = max(limits) if self.max_batch is None else self.max_batch
            if full >= UNLIMITED_BATCH:
                text = f"service {queue.service.name} has no maximum batch size, so no batch is full; "
                raise _refused(f"{text}give max_batch_size", queue.service.policy_key, "max_enqueued_batches")
            self.capacity = self.max_enqueued_batches * full

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        waiting = len(queue)
        if self.capacity is not None and waiting > self.capacity:
            # No request has left since the queue was full, so those that came since stand behind its last place.
            return Discard(queue.tasks()[self.capacity :], "the queue is full", expired=False)
        max_size = limit(placement, self.max_batch)
        if self.sizes and self.sizes[-1] > max_size:
            max_size = self.sizes[bisect_right(self.sizes, max_size) - 1]
        if waiting < max_size:
            until = queue.arrival(0) + self.batch_timeout
            if view.now < until:
                return Delay(until, max_size)
        count = min(waiting, max_size)
        return Take(count, self.sizes[bisect_left(self.sizes, count)] if self.sizes else None)


def _refused(what: str, policy: str = "policy.batching", key: str = "allowed_batch_sizes") -> ScenarioError:
    return ScenarioError(Problem(what, key=f"{policy}.{key}"))


@dataclass(frozen=True)
class QueuePolicy:
    """Rules for one priority level of requests: how many may wait, and timeout (s).

    0: no limit, or no timeout.  timeout_action: whether a request expires at the timeout, or is delayed.
    """

    max_queue_size: Annotated[int, Field(ge=0)] = 0
    timeout: Annotated[Seconds, Field(ge=0)] = 0.0
    timeout_action: Literal["reject", "delay"] = "reject"


class PriorityLevel:
    """Requests of one priority level, in queues ordered by arrival."""

    def __init__(self, policy: QueuePolicy):
        self.policy = policy
        self.timely: deque[Task] = deque()
        self.delayed: deque[Task] = deque()

    def __len__(self) -> int:
        return len(self.timely) + len(self.delayed)

    def time_out(self, now: float) -> list[Task]:
        """Remove and return timed-out requests, or (action `delay`) move them to the end."""
        expired: list[Task] = []
        goes = self.delayed if self.policy.timeout_action == "delay" else expired
        while self.timely and self.next_timeout <= now:
            goes.append(self.timely.popleft())
        return expired

    @property
    def next_timeout(self) -> float:
        if not (self.policy.timeout and self.timely):
            return math.inf
        return self.timely[0].arrival + self.policy.timeout


class TritonDynamic(Batching):
    """Triton's dynamic batcher: preferred sizes, bounded delay, priority levels.

    Decides when and how many: the largest preferred size that can be filled is launched immediately; otherwise the
    waiting requests are launched when the oldest has waited for `max_queue_delay`, or immediately without a delay.
    Higher levels are served first.  A level refuses requests while `max_queue_size` of its requests wait; after its
    `timeout` a request expires, or is delayed: it then waits behind all other requests of its level.  Batches overlap
    if the device has several streams (Triton's model instances).
    Reference: NVIDIA Triton Inference Server, model configuration: dynamic batcher (2018-), with the same parameters.
    Weakness: sizes, delay and timeouts are set by hand; lower levels and delayed requests can starve; timeouts and
    limits are applied when a batch is formed, so a late request expires only then.
    Cost: O(1) per request and O(levels) per batch, in addition to the queue's bookkeeping.

    max_batch_size: largest batch; default: the service's limit.
    preferred_batch_size: sizes launched immediately; default: only the largest.
    max_queue_delay: seconds that the oldest request of a batch waits for others.
    priority_levels: level 1 is the most urgent.  A request of priority p has level `priority_levels` − p.
    max_queue_size, timeout, timeout_action: for every level that `priority_queue_policy` does not name.
    """

    def __init__(
        self,
        max_batch_size: Annotated[int, Field(ge=1)] | None = None,
        preferred_batch_size: list[Annotated[int, Field(ge=1)]] | None = None,
        max_queue_delay: Annotated[Seconds, Field(ge=0)] = 0.0,
        priority_levels: Annotated[int, Field(ge=1)] = 1,
        max_queue_size: Annotated[int, Field(ge=0)] = 0,
        timeout: Annotated[Seconds, Field(ge=0)] = 0.0,
        timeout_action: Literal["reject", "delay"] = "reject",
        priority_queue_policy: dict[int, QueuePolicy] | None = None,
    ):
        policies = priority_queue_policy or {}
        for number in policies:
            if not 1 <= number <= priority_levels:
                text = f"levels must be from 1 to {priority_levels}; got {number}"
                raise _refused(text, key="priority_queue_policy")
        preferred = sorted(preferred_batch_size or [])
        if max_batch_size is not None and preferred and preferred[-1] > max_batch_size:
            text = f"must be at most max_batch_size ({max_batch_size}); got {preferred[-1]}"
            raise _refused(text, key="preferred_batch_size")
        self.max_batch = max_batch_size
        self.preferred = preferred
        self.max_queue_delay = max_queue_delay
        default = QueuePolicy(max_queue_size, timeout, timeout_action)
        self.levels = [PriorityLevel(policies.get(number, default)) for number in range(1, priority_levels + 1)]
        self.bounded = any(level.policy.max_queue_size for level in self.levels)
        self.seen = 0  # requests that have joined the queue and been sorted into levels

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        now = view.now
        if surplus := self._sort_in(queue):
            return Discard(surplus, "the queue is full", expired=False)
        if late := [task for level in self.levels for task in level.time_out(now)]:
            return Discard(late, "timed out")
        max_size = limit(placement, self.max_batch)
        waiting = len(queue)
        pending = min(waiting, max_size)
        until = self._oldest(pending) + self.max_queue_delay
        overdue = self.max_queue_delay > 0.0 and until <= now
        preferred = [size for size in self.preferred if size <= max_size]
        filled = bisect_right(preferred, pending)
        if filled and not overdue:
            return Take(self._first(preferred[filled - 1]))
        if pending == max_size or until <= now:
            return Take(self._first(pending))
        until = min(until, *(level.next_timeout for level in self.levels))
        following = preferred[filled] if filled < len(preferred) else max_size
        return Delay(until, waiting + 1 if self.bounded else following)

    def _sort_in(self, queue: RequestQueue) -> list[Task]:
        """Add new requests to their levels; return those that exceed a level's limit."""
        new = queue.arrived - self.seen
        self.seen += new
        if not new and sum(map(len, self.levels)) == len(queue):
            return []
        tasks = queue.tasks()
        if sum(map(len, self.levels)) + new != len(queue):  # some have left or come back otherwise: begin again
            for level in self.levels:
                level.timely.clear()
                level.delayed.clear()
            new = len(tasks)
        surplus, last = [], len(self.levels) - 1
        for task in tasks[len(tasks) - new :]:
            level = self.levels[min(last, max(0, last - round(task.priority)))]
            if (max_waiting := level.policy.max_queue_size) and len(level) >= max_waiting:
                surplus.append(task)
            else:
                level.timely.append(task)
        return surplus

    def _lines(self) -> Iterator[deque[Task]]:
        for level in self.levels:
            yield level.timely
            yield level.delayed

    def _oldest(self, count: int) -> float:
        oldest = math.inf
        for line in self._lines():
            if line and count > 0:
                oldest = min(oldest, line[0].arrival)
                count -= len(line)
        return oldest

    def _first(self, count: int) -> list[Task]:
        """Remove the next `count` requests from their queues, and return them."""
        taken: list[Task] = []
        for line in self._lines():
            while line and len(taken) < count:
                task = line.popleft()
                if task.state == WAITING:
                    taken.append(task)
        return taken
