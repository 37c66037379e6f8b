"""Backfilling: reservations for the head, for all waiting tasks, or for gangs.

Reservations of many tasks are made in the order of arrival.  As long as tasks end when expected, they do not change,
and a new task gets a reservation that delays none of them.  When a task ends at another time, or overruns, all
reservations are made again, in the same order.
"""

import math
from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Annotated

from pydantic import Field

from hetsim.model.device import Device
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.policy import Backfilling, PlacementRule, PlanProblem, View
from hetsim.policy.decisions import WAIT_FOR_CHANGE, WAIT_FOR_READY, Annotate, Decision, Start
from hetsim_policies.dynamic.common.occupancy import Occupancy
from hetsim_policies.dynamic.common.reservations import FreeProfile, Reservation

# Seconds that a waiting task with a reservation adds to a round if estimates are wrong (docs/speed.md)
ROUND_COST = 1e-6


class EasyBackfill(Backfilling):
    """EASY backfilling: the head has a reservation; tasks that cannot delay it pass.

    Decides when.  Tasks start in the order of arrival until one, the head, does not fit.  The head's shadow is the
    earliest time, and the node, at which it could start if running tasks ended as estimated.  Tasks behind the head
    start, in order of arrival, if they end by this time, run on other nodes, or leave enough resources for the head on
    its node.
    Reference: Lifka, The ANL/IBM SP Scheduling System (1995); Mu'alem and Feitelson, Utilization, Predictability,
    Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling (2001).  With exact estimates a
    head never starts after the shadow that was computed when it became head.  Only the head has a guarantee.  With
    wrong estimates: a task that ends early moves the shadow forward, since it is computed again after every release; a
    task that overruns counts as ending immediately, and keeps its resources.
    Weakness: a wide task far down the queue can be passed by any number of tasks; if estimates are too long, gaps seem
    too short and are not filled.  Cost: O(log n) per task; in each round, a check of every task that may fit among the
    first `depth` waiting tasks; and one shadow per round in which a task fits.

    depth: number of tasks behind the head, in each partition, that are considered; None: all.  0 is fcfs.
    """

    def __init__(self, placement: PlacementRule | None = None, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(placement, depth)

    def backfill(self, heads: list[Task], view: View) -> Iterator[Decision]:
        for task, placement in self.fitting(heads, view):
            place = self.beside(heads, task, placement, view)
            yield Annotate(task, "reservation") if place is None else Start(task, place)


class ConservativeBackfill(Backfilling):
    """Conservative backfilling: waiting tasks have reservations that are not delayed.

    Decides when and where: a task gets the earliest start that delays no earlier reservation.
    Reference: Mu'alem and Feitelson, Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling
    the IBM SP2 with Backfilling (2001).  With exact estimates a task starts at its reservation, which is never later
    than under fcfs if all servers are equal (one pool).  With wrong estimates: when a task ends early or overruns, all
    reservations are made again in order of arrival and may move in both directions.  A task that overruns counts as
    ending immediately.  Weakness: fewer holes are filled than under EASY, since every wide task far down the queue has
    a reservation; on several nodes a task that starts early may occupy a part of a node that fcfs would have left free.
    Cost: O(nodes × spans) per reservation, where a span is an interval of constant free resources; with wrong estimates
    a reservation for each of the first `depth` waiting tasks at every release.

    depth: number of tasks behind the head, in each partition, that have reservations; None: all.
    """

    def __init__(self, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(None, depth)
        self._profile: FreeProfile | None = None  # None where no task waits, or nothing is as was expected
        self._promised: dict[int, Reservation] = {}
        self._expected: dict[int, float] = {}  # expected ends of running tasks, by row; and the same as a heap
        self._ends: list[tuple[float, int]] = []
        self._ended: list[int] = []
        self._standing = 0  # tasks of the window that were looked at
        self._overrun: dict[int, None] = {}  # running tasks that have passed their estimates

    def round_cost(self, problem: PlanProblem) -> float:
        return ROUND_COST if self.window.size == math.inf else 0.0

    def begin(self, view: View) -> None:
        self._occupancy = Occupancy(view)

    def promises(self, task: Task) -> bool:
        """Return True if the task gets a reservation when it cannot start now."""
        return True

    def gone(self, task: Task) -> None:
        window = self.window
        kept = [one for one in window.tasks[: self._standing] if one is not task]
        stands = window.changed >= self._standing
        super().gone(task)
        self._occupancy.ended(task)
        if self._promised.pop(task.index, None) is not None:
            self._profile = None
        elif stands and task.state != WAITING and window.tasks[: len(kept)] == kept:
            # It was promised nothing and takes nothing: what others were promised stands.  (One that still waits is
            # about to be started by another scheduler.)
            window.changed = self._standing = len(kept)
        if self._expected.pop(task.index, None) is not None:
            self._profile = None

    def finished(self, task: Task) -> None:
        self._ended.append(task.index)
        self._occupancy.ended(task)

    def ready(self, task: Task) -> None:
        super().ready(task)
        self._occupancy.ended(task)
        if self._expected.pop(task.index, None) is not None:  # it was stopped
            self._profile = None

    def device(self, device: Device, up: bool) -> None:
        self._profile = None
        self._occupancy.device(device, up)

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        self._compare(view)
        if not self._promised:
            launches = view.changes.launches
            heads = self._same_head(view) or (yield from self.start_heads(view))
            if not heads or view.changes.launches != launches:
                self._profile = None  # it does not know of what has just started
            if not heads:
                yield WAIT_FOR_READY
                return
        window = self.window
        if self._profile is None or window.changed < self._standing:
            self._rebuild(view)
        yield from self._walk(view)
        yield WAIT_FOR_CHANGE

    def starting(self, task: Task, placement: Placement, view: View) -> None:
        self._started(task, view.now + view.duration(task, placement))

    def _started(self, task: Task, end: float) -> None:
        self._expected[task.index] = end
        heappush(self._ends, (end, task.index))
        self._occupancy.started(task)

    def _compare(self, view: View) -> None:
        """Discard the reservations if tasks ended at other times than expected."""
        now = view.now
        if self._ended and self._profile is not None and self._occupancy.ending:
            self._profile = None
        for row in self._ended:
            if self._expected.pop(row, now) != now:
                self._profile = None
        self._ended.clear()
        ends, expected = self._ends, self._expected
        while ends and (ends[0][0] <= now or expected.get(ends[0][1]) != ends[0][0]):
            end, row = heappop(ends)
            if expected.get(row) == end:
                expected[row] = math.inf
                self._overrun[row] = None
        if self._overrun:  # ends at once, as always since its estimate passed
            self._overrun = {row: None for row in self._overrun if expected.get(row) == math.inf}
            self._profile = None

    def _rebuild(self, view: View) -> None:
        self._occupancy.update()
        self._profile = FreeProfile(self._occupancy, view)
        self._promised.clear()
        self.window.changed = 0

    def _walk(self, view: View) -> Iterator[Decision]:
        window, profile = self.window, self._profile
        assert profile is not None
        position = 0
        while position < len(window.tasks):
            task = window.tasks[position]
            if (reservation := self._promised.get(task.index)) is None:
                if (reservation := profile.find(task, view)) is None:
                    position += 1
                    continue
                due = reservation.time <= view.now
                if due or self.promises(task):
                    profile.occupy(reservation)
                    self._promised[task.index] = reservation
                if not due and view.fit(task) is not None:
                    yield Annotate(task, "reservation")
            due = reservation.time <= view.now
            placement = reservation.placement(task, view) if due else None
            if due and placement is None:
                # What the profile does not know of (data, links) is in the way: the head takes what there is.
                placement = view.fit(task) if position == 0 else None
                self._profile = None
            if due and placement is not None:
                self._promised.pop(task.index, None)
                window.take(position)
                self._started(task, reservation.end)
                yield Start(task, placement)
            else:
                position += 1
        window.changed = self._standing = len(window.tasks)


class GangBackfill(ConservativeBackfill):
    """Gang backfilling: gangs of whole nodes have reservations, other tasks fill in.

    Decides when and where.  Tasks are considered in the order of arrival.  A gang is a task that needs every
    accelerator of a node or spans nodes; it gets, and keeps, a reservation at the earliest time at which enough whole
    nodes are free.  A smaller task has no reservation; it starts only if it fits now and delays no reservation of a
    gang.
    Reference: Feitelson and Jette, Improved Utilization and Responsiveness with Gang Scheduling (1997), for gangs on
    whole nodes; reservations as in Mu'alem and Feitelson (2001).  Without reservations wide gangs starve, since smaller
    tasks occupy each node as it becomes free.
    Weakness: small tasks may be passed by other small tasks; devices are idle before each wide gang.  Cost: O(nodes ×
    spans of constant free resources) per reservation of a gang; a pass over the first `depth` waiting tasks after every
    release.

    depth: number of tasks behind the head, in each partition, that are considered; None: all.
    """

    def __init__(self, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(depth)
        self._widest: dict[str, int] = {}  # by accelerator type: the most on any node

    def begin(self, view: View) -> None:
        super().begin(view)
        for node in view.cluster.nodes:
            for name, count in Counter(device.type.name for device in node.accelerators).items():
                self._widest[name] = max(count, self._widest.get(name, 0))

    def promises(self, task: Task) -> bool:
        return all(mode.whole_devices and mode.gpus >= self._widest.get(mode.type.name, 1) for mode in task.modes)
