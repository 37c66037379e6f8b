"""Views of requests to language models, which wait for and run in replicas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter

from hetsim.engine.core.state import RunState, launches_on
from hetsim.engine.flight.launch import Launch, Resident
from hetsim.engine.language.llm_service import Fleet
from hetsim.engine.language.serving import Serving
from hetsim.engine.language.waiting_requests import WaitingRequests, by_readiness
from hetsim.engine.views.backlog import key_of, matching, wanted
from hetsim.model.cluster import Device
from hetsim.model.task import Task
from hetsim.model.tasks import Shape


class Generated:
    """Requests to all language models of a run; task objects are made on demand."""

    def __init__(self, state: RunState, serving: Serving):
        self.state = state
        self.fleets: dict[Shape, Fleet] = serving.fleets
        self.queues = {shape: WaitingRequests(fleet) for shape, fleet in serving.fleets.items()}

    def waiting(self) -> list[Task]:
        """Waiting requests in the order in which they became ready."""
        if len(self.queues) == 1:
            return [task for queue in self.queues.values() for task in queue.tasks()]
        return sorted((task for queue in self.queues.values() for task in queue.tasks()), key=by_readiness)

    def with_replicas(self, launches: list[Launch], device: Device | None) -> list[Launch]:
        """Launches by start, replicas included: all, or those on a device."""
        residents = self.state.residents.values()
        here = list(residents) if device is None else [one for one in launches_on(self.state, device) if one.resident]
        return sorted([*here, *launches], key=lambda launch: launch.decided)

    @staticmethod
    def by_finish(launches: Sequence[Launch], finish_of: Callable[[Launch], float]) -> list[Task]:
        """Tasks of these launches by end; requests of a replica one by one."""
        ends: list[tuple[float, Task]] = []
        for launch in launches:
            if launch.resident:
                ends += [(end_in_replica(launch, task), task) for task in launch.tasks]
            else:
                end = finish_of(launch)
                ends += [(end, task) for task in launch.tasks]
        return [task for _, task in sorted(ends, key=itemgetter(0))]

    # How many, how much ----------------------------------------------------------------------------------------

    def count(self, kind: str | None, class_: str | None) -> int:
        """Number of waiting requests, by type of their best mode and by class."""
        if kind is None and class_ is None:
            return sum(map(len, self.queues.values()))
        return sum(wanted(task, kind, class_) for task in self.waiting())

    def seconds(self, kind: str | None, class_: str | None) -> float:
        """Remaining seconds of requests, each as if it were alone."""
        waiting = [self.remaining(task) for task in self.waiting() if wanted(task, kind, class_)]
        return math.fsum(waiting) + math.fsum(
            self.remaining(task) for launch in self.state.residents.values() for task in launch.tasks
            if matching([key_of(launch.placement.mode.type, task.class_)], kind, class_)
        )  # fmt: skip

    def remaining(self, task: Task) -> float:
        """Estimated seconds alone on a replica, less those in steps; at least 0."""
        launch = task._launch
        estimate = task.shortest_estimate if launch is None else task.estimates[launch.holder.kind.position]
        # One that takes longer than alone has nothing left.
        return max(0.0, estimate - self.fleets[task.shape].in_steps(task.index))

    def attained(self, task: Task) -> float:
        return self.fleets[task.shape].received_by(task.index)

    def attained_by(self, user: str) -> float:
        """Device-seconds received by a user's requests; linear in the run's."""
        tasks = self.state.tasks
        if user not in tasks.users:
            return 0.0
        code = tasks.users.index(user)
        rows = [
            row for fleet in self.fleets.values() for row in fleet.service.rows.tolist()
            if tasks.user_code is None or tasks.user_code[row] == code
        ]  # fmt: skip
        return math.fsum(self.fleets[tasks.shapes[tasks.shape[row]]].received_by(row) for row in rows)


def end_in_replica(launch: Launch, task: Task) -> float:
    """When a request will leave its replica, by estimates."""
    assert isinstance(launch, Resident)
    return launch.holder.foresee().ends.get(task.index, math.inf)
