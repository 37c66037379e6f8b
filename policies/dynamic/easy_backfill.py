"""EASY backfilling: the head of the queue has a reservation, and whoever cannot delay it may pass.

Decides when.  Tasks start in the order of arrival until one, the head, does not fit.  Its shadow is the earliest
time, and the node, at which it could start if running tasks ended as estimated.  Tasks behind it start, in order of
arrival, if they end by then, run elsewhere, or leave there what the head needs.
Reference: Lifka, The ANL/IBM SP Scheduling System (1995); Mu'alem and Feitelson, Utilization, Predictability,
Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling (2001).  With exact estimates a head
never starts after the shadow it had when it became head.  Nobody but the head is promised anything.
Estimates wrong in both directions: who ends early lets the shadow come nearer, since it is found anew after every
release; who overruns counts as ending at once, and keeps what it has.
Weakness: a wide task far down the queue can be passed by any number of others; overestimates hide holes.
Cost: O(log n) a task, the tasks of the window that may fit, and one shadow a round in which one does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from policies.dynamic.backfilling import Backfilling, Demand, demand_of, fits_nowhere
from sim.model.plan import Placement
from sim.model.tasks import Task
from sim.policy import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Hold, PlacementRule, Shadow, Start, View


class EasyBackfill(Backfilling):
    """EASY backfilling.

    depth: how many tasks behind the head are looked at; None: all.  0 is fcfs.
    """

    def __init__(self, placement: PlacementRule | None = None, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(placement, depth)
        self._head: Task | None = None
        self._releases = -1
        self._shadow = math.inf
        """When the head could start, as it looked last."""
        self._full: dict[Demand, None] = {}
        """Demands that fit nowhere since the last release."""

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        head = yield from self.start_heads(view)
        if head is None:
            yield WAIT_FOR_READY
            return
        yield from self._backfill(head, view)
        yield WAIT_FOR_CHANGE  # a newcomer may pass

    def _backfill(self, head: Task, view: View) -> Iterator[Decision]:
        window, full = self.window, self._full
        if view.releases != self._releases or head is not self._head:
            self._releases, self._head, self._shadow = view.releases, head, math.inf
            window.changed = 0
            full.clear()
        if view.now > self._shadow:
            window.changed = 0  # somebody overran: at the new shadow more may be free beside the head
        if len(full) >= len(window.demands) and all(demand in full for demand in window.demands):
            window.changed = len(window.tasks)
            return
        tasks = window.tasks
        position = max(1, window.changed)
        shadow: Shadow | None = None
        while position < len(tasks):
            task = tasks[position]
            demand = demand_of(task)
            placement = None if demand in full else self.place(task, view)
            if placement is None:
                if demand not in full and fits_nowhere(task, view):
                    full[demand] = None
                    if len(full) >= len(window.demands) and all(other in full for other in window.demands):
                        break
                position += 1
                continue
            if shadow is None:
                shadow = view.earliest_fit(head)
                self._shadow = shadow.time
            allowed = placement if shadow.survives(task, placement) else self._elsewhere(task, shadow, view)
            if allowed is None:
                yield Hold(task, "reservation")
                position += 1
            else:
                window.take(position)
                yield Start(task, allowed)
        window.changed = len(tasks)  # those behind were not tried yet

    def _elsewhere(self, task: Task, shadow: Shadow, view: View) -> Placement | None:
        """Without a placement rule: the first place off the head's nodes, or beside what it needs there."""
        if self.placement is not None or shadow.placement is None:
            return None
        reserved = {device.node for device in shadow.placement.devices}
        for position in task.modes_by_speed():
            mode = task.modes[position]
            for node in view.nodes_fitting(mode):
                if node in reserved:
                    continue
                placement = view.on_node(mode, node, task)
                if placement is not None and shadow.survives(task, placement):
                    return placement
        return None
