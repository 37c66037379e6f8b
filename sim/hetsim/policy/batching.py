"""Batching: number of waiting requests to launch, and which service asks next.

A batching policy is asked for one service and one device with room for a launch, whenever its last answer may no
longer hold: a batch of its own has ended, its `until` has come, as many requests wait as it asked to be told of, or,
where that is what it waits for, something has come free.  It may be asked more often.
It never sees the future: arrivals, deadlines and estimates only of requests that are here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from hetsim.errors import PolicyError
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import BatchTimes, Mode
from hetsim.policy.contract import Reject, Start, View
from hetsim.policy.request_queue import RequestQueue, Requests


class BatchReport(NamedTuple):
    """A finished batch: requests, launched size (with padding), and stages.

    Stages that it did not have are of no length.  `oldest` is the arrival of its first request.
    """

    count: int  # type: ignore[assignment]  # a tuple's own method of that name is of no use here
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
            self.upload_end - self.upload_start,
            self.compute_end - self.compute_start,
            self.end - self.download_start,
        )


@dataclass(eq=False, slots=True)
class Take:
    """Launch the oldest `count` requests, or these, as one batch of `size` (padding)."""

    which: int | Sequence[Task]
    size: int | None = None


@dataclass(eq=False, slots=True)
class Discard:
    """Drop the oldest `count` requests, or these; the policy is asked again at once.

    expired: their time ran out, as in `Reject`; False where they are refused for another reason.
    """

    which: int | Sequence[Task]
    reason: str = "too late"
    expired: bool = True


class Delay:
    """Ask again at `until`, when `count` requests wait, or when a batch has ended.

    released: also when anything has come free, so that another device may be offered; unless given, that is what is
    waited for where neither a time nor a count is named.
    """

    __slots__ = ("until", "count", "released")

    def __init__(self, until: float = math.inf, count: int | None = None, released: bool | None = None):
        self.until = until
        self.count = count
        self.released = (until == math.inf and count is None) if released is None else released


class Batching:
    """Base of batching policies.  There is one object for each service."""

    policy_kind: ClassVar[str] = "batching"

    queueing: ClassVar[str] = ""
    """The queueing model that it makes of a system, by its name in `hetsim.queueing`; empty: none that is known there.
    """

    in_order: bool = False
    """True if it serves all requests, oldest first.  `hetsim size` then skips sizes whose queue must grow too long."""

    rejects: bool = True
    """False if it answers no `Discard`: clients that retry on that alone are then refused."""

    max_batch: int | None = None
    """Largest batch that it forms by its own parameters; None: what the service allows.  A load for which that is too
    little is a warning of the run."""

    def remarks(self, modes: Sequence[Mode]) -> Sequence[str]:
        """Warnings about the policy on a service with these modes, without subject."""
        return ()

    def begin(self, queue: RequestQueue, view: View) -> None:
        """Hook: called once, before the first request."""

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        """Decide on requests to launch, where one waits and a launch could start."""
        raise NotImplementedError

    def ended(self, report: BatchReport, queue: RequestQueue) -> None:
        """Hook: a batch of this service has ended."""

    def urgency(self, queue: RequestQueue, placement: Placement, view: View) -> float | None:
        """Rank among services that want a device, lowest first; None: by order."""
        return None


class Counter:
    """A service as the dispatcher sees it: queue, policy, and last answer."""

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
        """Return True if the last answer may be outdated."""
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
    """Ask the service's policy about a device: a decision, or None."""
    queue = counter.queue
    answer = counter.batching.next_batch(queue, placement, view)
    if isinstance(answer, Take):
        return Start(_which(queue, answer.which, answer.size), placement)
    if isinstance(answer, Discard):
        return Reject(_which(queue, answer.which), answer.reason, answer.expired)
    if not isinstance(answer, Delay):
        name = type(counter.batching).__name__
        raise PolicyError(f"{name}.next_batch must answer Take, Discard or Delay; got {answer!r}")
    counter.until, counter.count, counter.released = answer.until, answer.count, answer.released
    return None


def _which(queue: RequestQueue, which: int | Sequence[Task], size: int | None = None) -> Requests:
    return queue.first(which, size) if isinstance(which, int) else queue.chosen(which, size)
