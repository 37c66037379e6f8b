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

from policies.dynamic.backfilling import Backfilling, Demand, demand_fits_nowhere, fits_nowhere
from sim.model.plan import Placement
from sim.model.tasks import Task
from sim.policy import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Hold, PlacementRule, Shadow, Start, View, nodes_of


class EasyBackfill(Backfilling):
    """EASY backfilling.

    depth: how many tasks behind the head are looked at, of each partition; None: all.  0 is fcfs.
    """

    def __init__(self, placement: PlacementRule | None = None, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(placement, depth)
        self._heads: list[Task] = []
        self._releases = -1
        self._due: dict[int, float] = {}
        """By row: when heads could start, as it looked last."""
        self._soonest = math.inf
        """The least of these."""
        self._full: dict[Demand, None] = {}
        """Demands that fit nowhere since the last release."""

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        heads = yield from self.start_heads(view)
        if not heads:
            yield WAIT_FOR_READY
            return
        yield from self._backfill(heads, view)
        yield WAIT_FOR_CHANGE  # a newcomer may pass

    def _backfill(self, heads: list[Task], view: View) -> Iterator[Decision]:
        window, full = self.window, self._full
        if view.releases != self._releases or heads != self._heads:
            self._releases, self._heads = view.releases, heads
            window.changed = 0
            full.clear()
            self._due.clear()
            self._soonest = math.inf
            if self.placement is None:  # a rule is asked task by task, since it may draw lots
                full.update((demand, None) for demand in window.demands if demand_fits_nowhere(demand, view))
        if view.now > self._soonest:
            window.changed = 0  # somebody overran: at the new shadow more may be free beside the head
        if window.demands.keys() <= full.keys():
            window.changed = len(window.tasks)
            return
        tasks = window.tasks
        position = max(1, window.changed)
        shadows: dict[int, Shadow] = {}
        while True:
            while position < len(tasks):
                task = tasks[position]  # most are passed over here: no call of `demand_of` (4 % of a run)
                demand = task.shape if task.allowed is None else (task.shape, task.allowed)
                if demand not in full:
                    break
                position += 1
            else:
                break
            placement = None if task in heads else self.place(task, view)
            if placement is None:
                if fits_nowhere(task, view):
                    full[demand] = None
                    if window.demands.keys() <= full.keys():
                        break
                position += 1
                continue
            # Nobody stands behind a head with which he shares no node.
            ahead = [self._shadow_of(head, shadows, view) for head in heads if nodes_of(head) & nodes_of(task)]
            allowed = placement if survive(ahead, task, placement) else self._elsewhere(task, ahead, view)
            if allowed is None:
                yield Hold(task, "reservation")
                position += 1
            else:
                window.take(position)
                yield Start(task, allowed)
        window.changed = len(tasks)  # those behind were not tried yet

    def _shadow_of(self, head: Task, shadows: dict[int, Shadow], view: View) -> Shadow:
        """Of this round: found when it is first asked for."""
        shadow = shadows.get(head.index)
        if shadow is None:
            shadow = shadows[head.index] = view.earliest_fit(head)
            self._due[head.index] = shadow.time
            self._soonest = min(self._due.values())
        return shadow

    def _elsewhere(self, task: Task, ahead: list[Shadow], view: View) -> Placement | None:
        """Without a placement rule: the first place off the heads' nodes, or beside what they need there."""
        if self.placement is not None or any(shadow.anywhere or shadow.placement is None for shadow in ahead):
            return None
        reserved = {device.node for shadow in ahead if shadow.placement for device in shadow.placement.devices}
        for position in task.modes_by_speed():
            mode = task.modes[position]
            for node in view.nodes_fitting(mode):
                if node in reserved:
                    continue
                placement = view.on_node(mode, node, task)
                if placement is not None and survive(ahead, task, placement):
                    return placement
        return None


def survive(shadows: list[Shadow], task: Task, placement: Placement) -> bool:
    """Can the task start there without delaying any of them?  Each that says so counts on it; if a later one says no,
    the earlier ones count too much, which may cost a task its place in this round, but delays no head."""
    return all(shadow.survives(task, placement) for shadow in shadows)
