"""Batching: how many waiting requests to launch, and which service goes first.

A batching policy is called for one service and one device that has room for a launch.  It is called again when its last
answer may be outdated: when a batch of the service ends, or when the condition of its last `Delay` is met (a time, a
number of waiting requests, or released capacity).  It may be called more often.  It never sees the future, only
arrivals, deadlines and estimates of requests that have arrived.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from hetsim.errors import PolicyError
from hetsim.model.demand import BatchTimes
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.base import Policy
from hetsim.policy.contract import View
from hetsim.policy.decisions import Delay, Discard, Reject, Start, Take, as_number
from hetsim.policy.request_queue import RequestQueue, Requests


class BatchReport(NamedTuple):
    """A finished batch: number of requests, launched size (with padding), stage times.

    A stage that the batch does not have has length 0.  `oldest` is the arrival time of its first request.
    """

    count: int  # type: ignore[assignment]  # hides `tuple.count`
    size: int
    placement: Placement
    decided: float
    upload_start: float
    upload_end: float
    compute_start: float
    compute_end: float
    download_start: float
    end: float
    oldest: float

    @property
    def times(self) -> BatchTimes:
        return BatchTimes(
            self.upload_end - self.upload_start, self.compute_end - self.compute_start, self.end - self.download_start
        )


class Batching(Policy):
    """Base of batching policies; one object per service."""

    policy_kind: ClassVar[str] = "batching"

    queueing: ClassVar[str] = ""  # name in `hetsim.queueing` of the queueing model that the policy implies; empty: none

    in_order: bool = False  # True if it serves all requests, oldest first: `hetsim size` then skips unstable sizes

    # False if it never answers `Discard`: clients that retry only after a rejection are then refused
    rejects: bool = True

    # largest batch by its own parameters; None: no limit; the run warns if the load needs more
    max_batch: int | None = None

    def remarks(self, modes: Sequence[Mode]) -> Sequence[str]:
        """Return warnings about using the policy on a service with these modes."""
        return ()

    def begin(self, queue: RequestQueue, view: View) -> None:
        """Hook: called once, before the first request."""

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        """Decide which requests to launch; called if one waits and a launch could start."""
        raise NotImplementedError

    def ended(self, report: BatchReport, queue: RequestQueue) -> None:
        """Hook: a batch of this service has ended."""

    def urgency(self, queue: RequestQueue, placement: Placement, view: View) -> float | None:
        """Return the service's priority for a device: lowest first, None last."""
        return None


class Counter:
    """A service in the dispatcher: queue, batching policy, when to call it again."""

    __slots__ = ("queue", "batching", "until", "count", "released", "releases", "ended", "asked")

    def __init__(self, queue: RequestQueue, batching: Batching):
        self.queue = queue
        self.batching = batching
        self.until = math.inf
        self.count: int | None = 1
        self.released = True
        self.releases = -1
        self.ended = False
        self.asked = False

    def due(self, now: float, releases: int) -> bool:
        """Return True if the batching policy is due; releases: capacity releases so far."""
        queue = self.queue
        if not (waiting := len(queue)):
            self.until, self.count, self.asked = math.inf, 1, False
            return False
        if not self.asked or self.releases != releases or now >= self.until:
            return True
        if self.count is not None and waiting >= self.count:
            return True
        return not self.ended and queue.over


def ask(counter: Counter, placement: Placement, view: View) -> Start | Reject | None:
    """Call the service's batching policy for a device; return its decision, or None."""
    queue = counter.queue
    batching: Any = counter.batching  # any answer passes here: nonsense is named below
    answer, name = batching.next_batch(queue, placement, view), type(batching).__name__
    if isinstance(answer, Take):
        return Start(_which(queue, answer, answer.size, name), placement)
    if isinstance(answer, Discard):
        return Reject(_which(queue, answer, None, name), answer.reason, answer.expired)
    if not isinstance(answer, Delay):
        raise PolicyError(f"{name}.next_batch must answer Take, Discard or Delay; got {answer!r}")
    until, count = as_number(answer.until), None if answer.count is None else as_number(answer.count, int)
    if until is None or count is None is not answer.count:
        text = "`until` must be a time, and `count` a whole number or None"
        raise PolicyError(f"{name}.next_batch answered Delay({answer.until!r}, {answer.count!r}): {text}")
    counter.until, counter.count, counter.released = until, count, bool(answer.released)
    return None


def _which(queue: RequestQueue, answer: Take | Discard, size: Any, name: str) -> Requests:
    which: Any = answer.which
    count, padded = as_number(which, int), None if size is None else as_number(size, int)
    if padded is None is not size or (count is None and not _are_tasks(which)):
        text = "`which` must be a number of requests or a list of them, and `size` a whole number or None"
        raise PolicyError(f"{name}.next_batch answered {answer!r}: {text}")
    return queue.chosen(which, padded) if count is None else queue.first(count, padded)


def _are_tasks(given: Any) -> bool:
    return isinstance(given, Iterable) and all(isinstance(one, Task) for one in given)
