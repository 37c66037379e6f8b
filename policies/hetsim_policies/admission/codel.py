"""CoDel, controlled delay: refuse more and more often while the queue stays old.

The queue is old while its head has waited for longer than a target.

Decides: CoDel looks at packets as they leave the queue and drops the one at the head.  Admission is asked only as tasks
arrive, so the rule is applied there: the age of the task that has waited longest stands for the sojourn time, and the
newcomer is refused.  (Admitted tasks can be dropped by the scheduler's `Reject`; this policy does not.)  If that age
has been above `target` for a whole `interval`, one is refused, the next interval/√count later, and so on until it is
below.  A service has a queue of its own; tasks have one together.
Reference: Nichols and Jacobson, Controlling Queue Delay, ACM Queue 10(5) (2012); RFC 8289 for the control law.
For: closed loops, with clients that slow down when they are refused, and loads a little above capacity for long.
Weakness: open arrivals far above capacity need many intervals until refusals are frequent enough: under the load that
moves of docs/admission.md it earns -0.83 a task with phases of 300 s and -1.38 with 20 s, where rejecting all earns 0.
The answer comes a queueing delay late.  Where the order is not that of arrival, one starved task keeps the head old.
Cost: O(1).
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Accept, Admission, Reject, View

YES = Accept()


class Codel(Admission):
    """Controlled delay.

    target: the age of the head that is put up with.
    interval: for how long it may be above before the first is refused; about the longest usual response time.
    """

    def __init__(self, target: Annotated[Seconds, Field(gt=0)], interval: Annotated[Seconds, Field(gt=0)]):
        self.target = target
        self.interval = interval
        self._laws: dict[object, ControlLaw] = {}
        self._no = Reject(reason="the head of the queue has waited too long")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        queue = view.queue_of(task)
        law = self._laws.get(queue)
        if law is None:
            law = self._laws[queue] = ControlLaw(self.target, self.interval)
        now = view.now
        if queue is not None:
            age = now - queue.arrival(0) if len(queue) else 0.0
        else:
            oldest = view.waiting(1, own=True)
            age = now - oldest[0].ready if oldest else 0.0
        return self._no if law.refuses(now, age) else YES


class ControlLaw:
    """When to refuse, by the pseudocode of RFC 8289."""

    __slots__ = ("target", "interval", "above_since", "refusing", "count", "last_count", "next")

    def __init__(self, target: float, interval: float):
        self.target = target
        self.interval = interval
        self.above_since = math.inf
        """One interval after the age rose above the target; inf while it is below."""
        self.refusing = False
        self.count = self.last_count = 0
        self.next = 0.0

    def refuses(self, now: float, age: float) -> bool:
        if not self._persistent(now, age):
            self.refusing = False
            return False
        if not self.refusing:
            self.refusing = True
            # Soon after the last spell the rate that was needed then is a good guess.
            recent = self.count - self.last_count > 1 and now - self.next < 16 * self.interval
            self.count = self.count - self.last_count if recent else 1
            self.last_count = self.count
            self.next = now + self.interval / math.sqrt(self.count)
            return True
        if now < self.next:
            return False
        self.count += 1
        self.next += self.interval / math.sqrt(self.count)
        return True

    def _persistent(self, now: float, age: float) -> bool:
        """Return True if the age has been above the target for an interval."""
        if age < self.target:
            self.above_since = math.inf
            return False
        if self.above_since == math.inf:
            self.above_since = now + self.interval
        return now >= self.above_since
