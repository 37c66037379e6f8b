"""Lanes, their steps and expected ends: the data of `plan_and_repair`.

A *lane* is a core or an accelerator; it has the steps of the plan that are still to start there, in order.  All steps
together stand in one order too, that of the plan, in which every step comes after those it waits for.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from dataclasses import dataclass, field
from itertools import accumulate

from hetsim.model.cluster import MILLI, Device, Node
from hetsim.model.plan import Placement, can_host
from hetsim.model.task import Task
from hetsim.model.tasks import Mode

ENOUGH = 3
"""Tasks that were as late, for their mean to say something."""
LATE = 1e-9
"""A task that exceeds its estimate by less than this part of it is not late."""


class PlannedLane:
    """A core or an accelerator, with the steps to start there and those that run."""

    __slots__ = ("name", "number", "device", "node", "queue", "running", "arrived", "rows", "holds_until", "kind",
                 "group")  # fmt: skip

    def __init__(self, name: str, number: int, device: Device, node: Node):
        self.name = name
        self.number = number
        self.device = device
        self.node = node
        self.queue: dict[int, PlannedJob] = {}
        self.running: dict[int, PlannedJob] = {}
        self.kind = self.group = 0
        """Numbers that lanes of one type, and of one type and node, share."""
        self.arrived = 0
        """Steps of the queue with tasks that have arrived and wait."""
        self.rows: list[int] = []
        """The last forecast of this lane."""
        self.holds_until = math.inf
        """Until when it says the same, if nothing changes here."""

    def head(self) -> PlannedJob | None:
        return next(iter(self.queue.values()), None)

    def placed(self, mode: Mode) -> Placement | None:
        """A mode on this lane, if it needs just one."""
        if mode.type is not self.device.type or not can_host(self.node, mode):
            return None
        if not mode.on_cpu:
            return Placement(mode, (self.device,)) if mode.gpus == 1 and mode.whole else None
        core = int(self.name[len(self.device.name) :])
        return Placement(mode, (self.device,), (core,)) if mode.millicores == MILLI else None

    def __repr__(self) -> str:
        return self.name


class PlannedJob:
    """A step of the plan: a task, its placement, lanes and expected seconds.

    `task` is None until it waits.
    """

    __slots__ = ("row", "placement", "lanes", "seconds", "task", "fetched", "end", "overdue", "number")

    def __init__(
        self, row: int, placement: Placement, lanes: tuple[PlannedLane, ...], seconds: float, task: Task | None = None
    ):
        self.row = row
        self.placement = placement
        self.lanes = lanes
        self.seconds = seconds
        self.task = task
        self.fetched = False
        self.number = 0
        """Of its start, in the order of starts."""
        self.end: float | None = None
        """When it will end if it is not late, once that was asked for in a run in which it cannot change."""
        self.overdue = False
        """True if the view has said that it should have ended by now; in a steady run it says so until it ends."""

    @property
    def alone(self) -> bool:
        """Return True if it stands on one lane."""
        return len(self.lanes) == 1

    def __repr__(self) -> str:
        return f"job {self.row} on {'+'.join(lane.name for lane in self.lanes)}"


@dataclass
class LaneForecast:
    """When things happen if every lane keeps its order and estimates are right.

    `start` and `finish` by row, `lane` by the number of a lane: when its last step ends; lanes that have none and run
    nothing are left out.
    """

    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    lane: dict[int, float] = field(default_factory=dict)

    @property
    def end(self) -> float:
        """When all will be done."""
        return max(self.lane.values(), default=0.0)


class Experience:
    """Times of ended tasks as parts of their estimates, to judge those running late."""

    def __init__(self) -> None:
        self._ratios: list[float] = []
        self._sums: list[float] | None = None

    def add(self, estimate: float, took: float) -> None:
        if estimate > 0:
            insort(self._ratios, took / estimate)
            self._sums = None

    def ratio(self, least: float) -> float:
        """The expected ratio of a task that takes at least this part of its estimate.

        1 of a task that is not late; if fewer than ENOUGH were as late, late again by as much as it is by now.
        """
        if least < 1 + LATE:
            return least if least > 1.0 else 1.0
        longer = len(self._ratios) - bisect_right(self._ratios, least)
        if longer < ENOUGH:
            return 2 * least - 1
        if self._sums is None:
            self._sums = list(accumulate(reversed(self._ratios)))
        return max(least, self._sums[longer - 1] / longer)
