"""The waiting requests of a service, as policies see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hetsim.model.plan import Placement
from hetsim.model.service import Service
from hetsim.model.task import Task
from hetsim.model.tasks import BatchTimes


@dataclass(repr=False, eq=False, slots=True)
class Requests:
    """Waiting requests of a service: the oldest `count` of its queue, or those named.

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
    bell: dict[Any, bool]
    """Of all services: queues to which something has happened, and whether their policies must be asked again."""

    def __len__(self) -> int:
        """How many wait now."""
        ...

    @property
    def over(self) -> bool:
        """Return True if the last request of the stream has arrived."""
        ...

    @property
    def arrived(self) -> int:
        """Requests that have joined the queue so far."""
        ...

    def arrival(self, position: int) -> float:
        """When the request at a position arrived."""
        ...

    def deadline(self, position: int) -> float:
        """Time by which its batch must end for its deadline; inf without."""
        ...

    def recent(self, seconds: float) -> int:
        """The number of requests that joined the queue in the last `seconds`."""
        ...

    def stages(self, size: int, placement: Placement) -> BatchTimes:
        """Estimated stage times of a batch of this size there."""
        ...

    def first(self, count: int, size: int | None = None) -> Requests:
        """The oldest `count`, to be launched as if they were `size` (padding)."""
        ...

    def tasks(self) -> Sequence[Task]:
        """The requests as objects, made when first used; linear."""
        ...

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> Requests:
        """Some of `tasks()`."""
        ...

    @property
    def head(self) -> Task:
        """The oldest request, for orders among services."""
        ...

    @property
    def oldest(self) -> float:
        """When it arrived at the front end."""
        ...

    def want(self, count: int) -> None:
        """Ask the policy again when `count` wait or the stream has ended; 0: do not."""
        ...
