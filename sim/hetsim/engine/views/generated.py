"""Views of requests to language models, which wait for replicas and run in them.

A request waits while it is in no replica's batch: before its first step, after a preemption or the loss of its replica,
and, with separate prefill replicas, until a decode replica has room for it.  There is no list of waiting requests: they
are all requests minus those in batches, computed when a policy queries them.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from hetsim.engine.core.policy_errors import illegal
from hetsim.engine.core.state import RunState
from hetsim.engine.language.llm_service import Fleet, Serving
from hetsim.model.mode import Shape
from hetsim.model.service import LanguageService
from hetsim.model.task import Task


class Generated:
    """Requests to all language models of a run; task objects are created when queried."""

    def __init__(self, state: RunState, serving: Serving):
        self.state = state
        self.fleets: dict[Shape, Fleet] = serving.fleets
        self.queues = {shape: WaitingRequests(fleet) for shape, fleet in serving.fleets.items()}

    # How much ------------------------------------------------------------------------------------------------

    def remaining(self, task: Task) -> float:
        """Return a request's estimated seconds alone on a replica, less those it has run."""
        launch = task._launch
        estimate = task.shortest_estimate if launch is None else task.estimates[launch.holder.kind.position]
        # A request that has exceeded its estimate has 0 s left.
        fleet, now = self.fleets[task.shape], self.state.clock._now
        return max(0.0, estimate - fleet.in_steps(fleet.requests.get(task.index), now))

    def attained_by(self, user: str) -> float:
        """Return the device-seconds of a user's requests; cost: linear in all requests."""
        tasks = self.state.tasks
        if not self.fleets or user not in tasks.users:
            return 0.0
        code = tasks.users.index(user)
        return math.fsum(
            fleet.received_by(row) for fleet in self.fleets.values() for row in fleet.service.rows.tolist()
            if tasks.user_code is None or tasks.user_code[row] == code
        )  # fmt: skip


def end_in_replica(launch: Any, task: Task) -> float:
    """Return the estimated time at which a request will leave its replica."""
    return launch.holder.foresee().ends.get(task.index, math.inf)


class WaitingRequests:
    """A read-only `RequestQueue` of the requests that wait for replicas.

    Cost: linear in the unfinished requests; `len`: O(replicas).
    """

    by_readiness = True  # as in `hetsim.engine.queues.queue.Queue`
    uniform = False

    def __init__(self, fleet: Fleet):
        self.fleet = fleet
        self.service: LanguageService = fleet.service
        self.wanted = 0
        self.bell: dict[Any, bool] = {}

    def __len__(self) -> int:
        return len(self.fleet.requests) - sum(replica.size for replica in self.fleet.all)

    def _waiting(self) -> Iterator[Task]:
        taken_in: set[int] = set()
        for replica in self.fleet.all:
            taken_in.update(replica.inside, replica.loading)
        return (request.task for row, request in self.fleet.requests.items() if row not in taken_in)

    def look(self, count: int | None = None) -> list[Task]:
        return sorted(self._waiting(), key=by_readiness)[:count]

    def tasks(self) -> Sequence[Task]:
        return self.look()

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

    def _refuses(self, *_: Any, **named: Any) -> NoReturn:
        text = f"forms batches of {self.service}, a language model, whose replicas admit requests themselves"
        raise illegal(self.fleet.state, text)

    first = chosen = stages = _refuses

    def want(self, count: int) -> None:
        if count:
            self._refuses()


def by_readiness(task: Task) -> tuple[float, int]:
    return task.ready, task.index
