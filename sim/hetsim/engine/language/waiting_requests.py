"""Waiting requests of a language model as policies see them: lobby and lines.

A request waits as long as no replica has taken it in: before its first step, after it was preempted or lost its
replica, and, where prefill is apart, until a replica that decodes has room for it.  Nothing is kept for that: what
waits is what is there less what is in the replicas, and is sorted out when a policy looks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from hetsim.engine.core.policy_errors import illegal
from hetsim.engine.language.llm_service import Fleet
from hetsim.model.service import LanguageService
from hetsim.model.task import Task


class WaitingRequests:
    """See `hetsim.policy.request_queue.RequestQueue`; batches cannot be taken from it.

    Cost: linear in the requests that are there, of the number O(replicas).
    """

    def __init__(self, fleet: Fleet):
        self.fleet = fleet
        self.service: LanguageService = fleet.service
        self.wanted = 0
        self.bell: dict[Any, bool] = {}

    def __len__(self) -> int:
        return len(self.fleet.requests) - sum(replica.requests.size for replica in self.fleet.replicas.all)

    def _waiting(self) -> Iterator[Task]:
        """In no order."""
        taken_in: set[int] = set()
        for replica in self.fleet.replicas.all:
            taken_in.update(replica.requests.inside, replica.requests.loading)
        return (request.task for row, request in self.fleet.requests.items() if row not in taken_in)

    def tasks(self) -> Sequence[Task]:
        return sorted(self._waiting(), key=by_readiness)

    @property
    def head(self) -> Task:
        return min(self._waiting(), key=by_readiness)

    @property
    def oldest(self) -> float:
        return self.head.arrival

    def arrival(self, position: int) -> float:
        task = self.tasks()[position] if position else self.head
        return task.arrival + self.service.request_delay

    def deadline(self, position: int) -> float:
        return self.tasks()[position].deadline - self.service.response_delay

    @property
    def arrived(self) -> int:
        return self.fleet.coming.arrived

    @property
    def over(self) -> bool:
        return self.fleet.coming.over

    def recent(self, seconds: float) -> int:
        return self.fleet.coming.since(self.fleet.clock._now - seconds)

    # What there is of queues from which batches are taken ------------------------------------------------------

    def first(self, count: int, size: int | None = None) -> NoReturn:
        raise self._refused("takes requests")

    def chosen(self, tasks: Sequence[Task], size: int | None = None) -> NoReturn:
        raise self._refused("takes requests")

    def stages(self, size: int, placement: Any) -> NoReturn:
        raise self._refused("asks for the times of a batch")

    def want(self, count: int) -> None:
        if count:
            raise self._refused("waits for a number of requests")

    def _refused(self, what: str) -> Exception:
        text = f"{what} of {self.service}, a language model, whose replicas take requests in by themselves"
        return illegal(self.fleet.state, text)


def by_readiness(task: Task) -> tuple[float, int]:
    return task.ready, task.index
