"""The queues of a run: requests of all services are rows, or all are objects; both answer the same in a round."""

from __future__ import annotations

from typing import Any

from sim.engine.flight.links import Links
from sim.engine.kernel.clock import Clock
from sim.engine.queues.sliced import Sliced
from sim.engine.queues.taskwise import Taskwise
from sim.model.record import RunInput


def make_queues(run: RunInput, clock: Clock, links: Links, sliced: bool) -> list[Sliced | Taskwise]:
    """A queue for each service of the run."""
    kind = Sliced if sliced else Taskwise
    bell: dict[Any, bool] = {}
    return [
        kind(number, service, run.tasks, clock, run.random, links, bell)
        for number, service in enumerate(run.services)
    ]
