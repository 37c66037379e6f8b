"""The waiting requests of a service, as policies see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hetsim.model.plan import Placement
from hetsim.model.service import Service
from hetsim.model.task import Task
from hetsim.model.tasks import BatchTimes


@dataclass(repr=False, eq=False, slots=True)
class Requests:
    """Some waiting requests of a service: the oldest `count`, or those named.

    Made by the queue (`first`, `chosen`).  `size` is the number as which they are launched: more than `count` where
    batches are padded.  `tasks` is None where the oldest are meant.
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
    bell: dict[Any, bool]
    """For all services: queues with changes, and whether their policies must be asked again."""

    def __len__(self) -> int:
        """Number of requests that wait now."""

    @property
    def over(self) -> bool:
        """Return True if the last request of the stream has arrived."""

    @property
    def arrived(self) -> int:
        """Number of requests that have joined the queue so far."""

    def arrival(self, position: int) -> float:
        """Arrival time of the request at a position."""

    def deadline(self, position: int) -> float:
        """Latest end of a batch for the request's deadline; inf without."""

    def recent(self, seconds: float) -> int:
        """Number of requests that joined in the last `seconds`."""

    def stages(self, size: int, placement: Placement) -> BatchTimes:
        """Estimated stage times of a batch of this size at a placement."""

    def first(self, count: int, size: int | None = None) -> Requests:
        """The oldest `count` requests, launched at `size` (padding)."""

    def tasks(self) -> Sequence[Task]:
        """The requests as objects, made when first used; linear."""

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> Requests:
        """The requests of these tasks, out of `tasks()`."""

    @property
    def head(self) -> Task:
        """The oldest request, by which services are ordered."""

    @property
    def oldest(self) -> float:
        """Arrival time of the oldest request at the front end."""

    def want(self, count: int) -> None:
        """Ask the policy again when `count` wait or the stream has ended; 0: do not."""
