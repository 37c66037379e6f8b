"""Adaptive LIFO: oldest first, but newest first while the queue is long."""

import math
from collections import deque
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from hetsim.model.task import WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Reject, Scheduler, Start, View

Positive = Annotated[Seconds, Field(gt=0)]


class AdaptiveLifo(Scheduler):
    """Adaptive LIFO: oldest first, but newest first while the queue is long.

    Decides when: the queue counts as long if it has not been empty for `target` seconds.  With `timeout`, a task that
    arrives while the queue is long expires after waiting for `timeout`, any other task after `target` (CoDel-like
    timeouts).  A task starts in its fastest mode, on the first devices; no task passes a head that does not fit.  It is
    not for services, whose batches take the oldest requests.
    Reference: Maurer, Fail at Scale, ACM Queue 13(8) (2015): target 100 ms, timeout 5 ms.  It suits clients that time
    out, since under overload it serves requests whose clients still wait.  Weakness: while the queue is long its oldest
    tasks starve; without `timeout` they remain in the queue.
    Cost: O(1) per task; O(n log n) for a task that was stopped or deferred.

    target: seconds without an empty queue after which the queue counts as long.
    timeout: seconds after which tasks that arrive while the queue is long expire; default: never.
    """

    def __init__(self, target: Positive = 0.1, timeout: Positive | None = None):
        self.target = target
        self.timeout = timeout
        self.rejects = timeout is not None
        self._queue: deque[tuple[float, int, float, Task]] = deque()  # (arrival, row, expiry, task), oldest first
        self._empty_at = 0.0

    def begin(self, view: View) -> None:
        self.view = view

    def ready(self, task: Task) -> None:
        queue, now = self._queue, self.view.now
        if not self._trimmed():
            self._empty_at = now
        limit = math.inf if self.timeout is None else self.timeout if self._stands(now) else self.target
        queue.append((task.arrival, task.index, now + limit, task))
        if len(queue) > 1 and queue[-2][:2] > queue[-1][:2]:  # it was stopped or deferred
            self._queue = deque(sorted(queue, key=lambda entry: entry[:2]))

    def schedule(self, view: View) -> Iterator[Decision]:
        now = view.now
        while self._trimmed():
            end = -1 if self._stands(now) else 0
            # Those at the old end expire whichever end is served.
            if (late := next((one for one in (0, end) if self._queue[one][2] <= now), None)) is not None:
                yield Reject(self._take(late), "it waited longer than its time-out", expired=True)
            elif (placement := view.fit(self._queue[end][3])) is not None:
                yield Start(self._take(end), placement)
            else:
                yield WAIT_FOR_CHANGE
                return
        self._empty_at = now
        yield WAIT_FOR_READY

    def _stands(self, now: float) -> bool:
        return now - self._empty_at > self.target

    def _take(self, end: int) -> Task:
        return (self._queue.pop() if end else self._queue.popleft())[3]

    def _trimmed(self) -> bool:
        """Drop tasks at both ends that no longer wait; return False if none is left."""
        queue = self._queue
        while queue and queue[0][3].state != WAITING:
            queue.popleft()
        while queue and queue[-1][3].state != WAITING:
            queue.pop()
        return bool(queue)
