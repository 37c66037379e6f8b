"""The waiting requests of a service, as seen by policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hetsim.model.demand import BatchTimes
from hetsim.model.plan import Placement
from hetsim.model.service import Service
from hetsim.model.task import Task


@dataclass(repr=False, eq=False, slots=True)
class Requests:
    """Some waiting requests of a service: the oldest `count`, or those in `tasks`.

    Created by the queue (`first`, `chosen`).  `size` is the launched batch size: more than `count` if the batch is
    padded.
    """

    queue: Any
    count: int
    size: int
    tasks: tuple[Task, ...] | None = None

    def __repr__(self) -> str:
        return f"{self.count} requests of {self.queue.service.name}"


class RequestQueue(Protocol):
    """The waiting requests of a service by arrival; position 0 is the oldest."""

    service: Service
    wanted: int
    holder: Any  # the replica that serves it on devices of its own; None: all devices of the service do
    # shared by all services: queues with changes, and whether their policies must be called again
    bell: dict[Any, bool]

    def __len__(self) -> int:
        """Return the number of requests that wait now."""

    @property
    def over(self) -> bool:
        """True if no further request will arrive."""

    @property
    def arrived(self) -> int:
        """Number of requests that have joined the queue so far."""

    def arrival(self, position: int) -> float:
        """Return the arrival time of the request at a position."""

    def deadline(self, position: int) -> float:
        """Return when a batch must end to meet the deadline of the request; or inf."""

    def recent(self, seconds: float) -> int:
        """Return the number of requests that joined in the last `seconds`."""

    def stages(self, size: int, placement: Placement) -> BatchTimes:
        """Return the estimated stage times of a batch of this size at a placement."""

    def first(self, count: int, size: int | None = None) -> Requests:
        """Return the oldest `count` requests as a batch; size: its padded size, if larger."""

    def tasks(self) -> Sequence[Task]:
        """Return the requests as task objects, created on first use; linear."""

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> Requests:
        """Return these tasks (some of `tasks()`) as requests, to be launched as one batch."""

    @property
    def head(self) -> Task:
        """The oldest waiting request; a scheduler's order of tasks ranks services by it."""

    @property
    def oldest(self) -> float:
        """Time at which the oldest waiting request arrived at the front end."""

    def want(self, count: int) -> None:
        """Call the policy when `count` requests wait or arrivals end; 0: never."""
