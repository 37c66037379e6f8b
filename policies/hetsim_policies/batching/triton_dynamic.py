"""Triton's dynamic batcher: preferred sizes, bounded delay, priority levels.

Decides when and how many: the largest preferred size that can be filled goes at once; else the waiting requests go when
its oldest has waited for `max_queue_delay`, or at once without a delay.  Higher levels go first.  A level refuses what
comes while `max_queue_size` of it wait; after its `timeout` a request expires, or is delayed: it then waits behind all
others of its level.  Batches overlap as far as the device has streams (Triton's model instances).
Reference: NVIDIA Triton Inference Server, model configuration: dynamic batcher (2018-), with the same parameters.
Weakness: sizes, delay and timeouts are set by hand; lower levels and delayed requests can starve; timeouts and limits
are applied when a batch is formed, so a late request expires only then.
Cost: each request is an object: O(1) for each, O(levels) a batch, and the queue's own bookkeeping.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Batching, Delay, Discard, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import limit


@dataclass(frozen=True)
class QueuePolicy:
    """A level's queue limit (0: none), timeout (0: none), and the action on timeout."""

    max_queue_size: Annotated[int, Field(ge=0)] = 0
    timeout: Annotated[Seconds, Field(ge=0)] = 0.0
    timeout_action: Literal["reject", "delay"] = "reject"


class PriorityLevel:
    """The requests of one priority level, each line in order of arrival."""

    def __init__(self, policy: QueuePolicy):
        self.policy = policy
        self.timely: deque[Task] = deque()
        self.delayed: deque[Task] = deque()

    def __len__(self) -> int:
        return len(self.timely) + len(self.delayed)

    def time_out(self, now: float) -> list[Task]:
        """Move requests that have timed out; returns those that expire."""
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
    """The dynamic batcher of Triton, with its parameters.

    max_batch_size: largest batch; that of the service unless given.
    preferred_batch_size: sizes that go at once; the largest alone unless given.
    max_queue_delay: how long the oldest request of a batch waits for others.
    priority_levels: level 1 is the most urgent.  A request of priority p is of level `priority_levels` − p.
    max_queue_size, timeout, timeout_action: of every level that `priority_queue_policy` does not name.
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
                raise _refused("priority_queue_policy", f"there is no level {number}; they are 1 to {priority_levels}")
        preferred = sorted(preferred_batch_size or [])
        if max_batch_size is not None and preferred and preferred[-1] > max_batch_size:
            raise _refused("preferred_batch_size", f"{preferred[-1]} is more than max_batch_size, {max_batch_size}")
        self.max_batch = max_batch_size
        self.preferred = preferred
        self.max_queue_delay = max_queue_delay
        default = QueuePolicy(max_queue_size, timeout, timeout_action)
        self.levels = [PriorityLevel(policies.get(number, default)) for number in range(1, priority_levels + 1)]
        self.bounded = any(level.policy.max_queue_size for level in self.levels)
        self.seen = 0
        """Requests that have joined the queue and been sorted into levels."""

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        now = view.now
        surplus = self._sort_in(queue)
        if surplus:
            return Discard(surplus, "the queue is full", expired=False)
        late = [task for level in self.levels for task in level.time_out(now)]
        if late:
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
        """Sort newcomers into their levels; those for which there is no room."""
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
        surplus = []
        for task in tasks[len(tasks) - new :]:
            level = self.levels[self._number(task)]
            max_waiting = level.policy.max_queue_size
            if max_waiting and len(level) >= max_waiting:
                surplus.append(task)
            else:
                level.timely.append(task)
        return surplus

    def _number(self, task: Task) -> int:
        """The position of a request's level."""
        last = len(self.levels) - 1
        return min(last, max(0, last - round(task.priority)))

    def _lines(self) -> Iterator[deque[Task]]:
        for level in self.levels:
            yield level.timely
            yield level.delayed

    def _oldest(self, count: int) -> float:
        """The earliest arrival among the next `count`."""
        oldest = math.inf
        for line in self._lines():
            if line and count > 0:
                oldest = min(oldest, line[0].arrival)
                count -= len(line)
        return oldest

    def _first(self, count: int) -> list[Task]:
        """Take the next `count` out of their lines."""
        taken: list[Task] = []
        for line in self._lines():
            while line and len(taken) < count:
                task = line.popleft()
                if task.state == WAITING:
                    taken.append(task)
        return taken


def _refused(key: str, what: str) -> ScenarioError:
    return ScenarioError(Problem(what, key=f"policy.batching.{key}"))
