"""Launches that stay on their devices: replicas of language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetsim.engine.flight.launch import Launch
from hetsim.model.plan import Placement
from hetsim.model.task import Task


class Resident(Launch):
    """A launch without an end of its own, such as a replica of a language model.

    It keeps its devices until it is given up or one of them fails; its entry is the next boundary of what it does
    there.

    It stands in `RunState.residents`, and what befalls its devices reaches it as any launch; what is to be done then is
    up to `holder`.  Its number is negative: not it, but each of its busy periods is a row of the table of launches.
    """

    __slots__ = ("holder",)
    resident = True

    def __init__(self, then: Callable[[Any], None], number: int, placement: Placement, now: float, holder: Any):
        super().__init__(then, number, (), placement=placement, now=now)
        self.holder = holder
        self.cores = 0
        self.position = 0

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Requests that it has taken in."""
        return tuple(request.task for request in self.holder.requests.taken_in)
