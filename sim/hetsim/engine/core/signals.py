"""The calls upward: events by name, in one table that the whole run fills in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hetsim.engine.flight.launch import Launch
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.iterating import WantedReplica


class Signals:
    """The handler of each event; everything else in the engine is called from above."""

    __slots__ = (
        "launch_completed", "task_completed", "task_ended", "generated", "kill", "materialized", "slowed", "paced",
        "offer", "place", "imagine", "foresee",
    )  # fmt: skip

    launch_completed: Callable[[Launch, tuple[float, ...]], None]
    """A launch with a timetable has ended well, at these times."""
    task_completed: Callable[[Task], None]
    """A task has been done without a launch of its own."""
    task_ended: Callable[[Task, int, str], None]
    """A task does not run (any more): with which status, and why."""
    generated: Callable[[Task], None]
    """A request to a language model has its last token."""
    kill: Callable[..., None]
    """A launch is to end now, for a reason, and its tasks as failed unless another status is given."""
    materialized: Callable[[Launch], None] | None
    """A launch that only computed so far has a timetable from now on."""
    slowed: Callable[[Launch], None] | None
    """A launch that only computed so far may end later than it was to."""
    paced: Callable[[Launch], None]
    """The devices of a launch that keeps them run at another speed."""
    offer: Callable[[], None]
    """A round begins, and language models lack replicas."""
    place: Callable[[WantedReplica], Placement | None]
    """Where the policy would have a replica start."""
    imagine: Callable[..., Any]
    """A policy wants to see what may come of the run (`View.fork`)."""
    foresee: Callable[..., Any]
    """A policy wants to know what becomes of the requests of a replica of a language model."""

    def __init__(self) -> None:
        self.materialized = self.slowed = None
