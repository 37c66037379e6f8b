"""Occupancy of nodes by running tasks over time: the base of reservations.

Cost: a start changes one node; a node is recomputed if a task ended at another time than expected.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from heapq import heappop, heappush
from typing import NamedTuple

from hetsim.model.device import Device
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.dynamic.common.timelines import Timeline


class HeldRun(NamedTuple):
    """Resources of a running task: expected end, mode, and amounts by node."""

    end: float
    mode: Mode
    nodes: tuple[tuple[int, int], ...]


def amounts_of(placement: Placement) -> dict[int, int]:
    """Return how much a launch occupies on each node, by number of the node.

    The unit depends on the mode: accelerators, thousandths of cores, or 1 for each node of a gang with equal nodes.
    """
    mode = placement.mode
    if mode.node_count > 1:
        return dict.fromkeys((device.node for device in placement.devices), 1)
    if mode.unit is not None:
        return {node: cores for node, cores, _ in placement.hosts()}
    if not mode.span_any:
        return {placement.devices[0].node: mode.gpus}
    return Counter(device.node for device in placement.devices)


MAX_MODES = 256  # maximum number of modes with cached first times of nodes


class Occupancy:
    """Resources of each node that running tasks occupy, until their expected ends.

    The data persist between rounds: starts are added, tasks that end when expected change nothing, and a node is
    recomputed only if a task ended at another time or overran.  If expected ends may change, or launches start without
    notification (batches), all nodes are recomputed on every use.  Running tasks can only end, so the free capacity of
    a node grows over time (except with fractions of accelerators).  So for each mode and node one time is enough: when
    the node first has room (`by_first_time`).
    """

    def __init__(self, view: View):
        self._view = view
        self.timelines: list[Timeline] = []
        # Nodes on which tasks use fractions of accelerators: which accelerator a fraction is assumed to occupy depends
        # on the order of starts, so even the end of a task may reduce the room for a mode.
        self.shared: dict[int, None] = {}
        self.ending = False  # True if something runs that should have ended by then
        self.runs: dict[int, HeldRun] = {}  # by row, in the order of the starts
        self._down: dict[Device, None] = {}
        self._new: dict[int, Task] = {}  # started since the last update, in the order of the starts
        self._on: list[dict[int, None]] = [{} for _ in view.cluster.nodes]  # rows of running tasks, by node
        self._ends: list[tuple[float, int]] = []  # expected ends, as a heap; void where the task has ended
        self._overrun: dict[int, None] = {}
        # Partitions with a limit on GPUs
        self.limited = [one for one in view.cluster.partitions.values() if one.max_gpus is not None]
        self._wrong: dict[int, None] = {}  # nodes that have to be looked at again
        self._launches = -1  # `View.launches` when it was last made again or updated; -1: to be made again
        self._changes: list[int] = []  # nodes on which something changed, in order
        # By mode: first times of all nodes, nodes in that order, and the number of changes included
        self._first: dict[Mode, tuple[list[float], list[tuple[float, int]], int]] = {}

    def started(self, task: Task) -> None:
        self._new[task.index] = task

    def ended(self, task: Task) -> None:
        """Remove a task that completed, was stopped, left the system, or never ran."""
        row = task.index
        if self._new.pop(row, None) is not None:
            self._launches += self._launches >= 0  # a launch that has come and gone
            return
        if (run := self.runs.pop(row, None)) is None:
            return
        on_time = run.end == self._view.now and row not in self._overrun
        self._overrun.pop(row, None)
        for number, _ in run.nodes:
            del self._on[number][row]
            if not on_time:
                self._wrong[number] = None

    def device(self, device: Device, up: bool) -> None:
        if up:
            self._down.pop(device, None)
        else:
            self._down[device] = None
        self._launches = -1

    def update(self) -> None:
        """Update the occupancy before a profile is computed from it."""
        view = self._view
        complete = self._launches >= 0 and self._launches + len(self._new) == view.changes.launches
        if not complete or not view.changes.steady:
            self._rebuild()
        else:
            for task in self._new.values():
                self._add(task)
            self._new.clear()
            self._look_for_overruns()
            for number in self._wrong:
                self._renew(number)
            self._wrong.clear()
        self._launches = view.changes.launches
        self.ending = bool(self._overrun)
        if len(self._changes) > 10_000:
            self._changes.clear()
            self._first.clear()

    def _rebuild(self) -> None:
        view = self._view
        self.runs.clear()
        self._new.clear()
        self._ends.clear()
        self._overrun.clear()
        self._wrong.clear()
        self._changes.clear()
        self._first.clear()
        self.shared.clear()
        self._on = [{} for _ in view.cluster.nodes]
        self.timelines = [Timeline.empty(node, self._down, view.now) for node in view.cluster.nodes]
        for task in view.running("start", own=True):
            if view.launch_of(task).placement is not None and view.launch_of(task).tasks[0] is task:
                self._add(task)
        self._look_for_overruns()

    def _add(self, task: Task) -> None:
        row, launch = task.index, self._view.launch_of(task)
        if (placement := launch.placement) is None:
            return
        counts = amounts_of(placement)
        run = self.runs[row] = HeldRun(launch.finish, placement.mode, tuple(counts.items()))
        heappush(self._ends, (run.end, row))
        for number in counts:
            self._on[number][row] = None
            if number not in self._wrong:
                self._hold(run, number, counts[number])

    def _hold(self, run: HeldRun, number: int, count: int) -> None:
        now = self._view.now
        # One that overruns its estimate, or takes no time, ends at once, but not yet.
        timeline = self.timelines[number]
        timeline.forget(now)
        timeline.occupy(now, max(run.end, math.nextafter(now, math.inf)), run.mode, count)
        self._changes.append(number)
        if run.mode.gpus and not run.mode.whole_devices:
            self.shared[number] = None

    def _look_for_overruns(self) -> None:
        now, ends, runs = self._view.now, self._ends, self.runs
        while ends and ends[0][0] <= math.nextafter(now, math.inf):
            end, row = heappop(ends)
            if row in runs and runs[row].end == end:
                self._overrun[row] = None
        for row in self._overrun:
            self._wrong.update(dict.fromkeys(number for number, _ in runs[row].nodes))

    def _renew(self, number: int) -> None:
        self.timelines[number] = Timeline.empty(self._view.cluster.nodes[number], self._down, self._view.now)
        self.shared.pop(number, None)
        self._changes.append(number)
        for row in self._on[number]:
            run = self.runs[row]
            self._hold(run, number, dict(run.nodes)[number])

    def by_first_time(self, mode: Mode) -> list[tuple[float, int]]:
        """Return (time, node) pairs, ascending: the node has room for a mode from then on.

        A time may be in the past; inf means never, -inf unknown (as for nodes with fractions).
        """
        times, order, count = self._first.get(mode, ([], [], 0))
        changes, shared, now = self._changes, self.shared, self._view.now
        if not times or len(changes) - count > len(times):
            if len(self._first) >= MAX_MODES:
                self._first.clear()
            first = [timeline.first_time(mode, now) for timeline in self.timelines]
            times = [-math.inf if number in shared else time for number, time in enumerate(first)]
            order = sorted((time, number) for number, time in enumerate(times))
        elif count < len(changes):
            for number in dict.fromkeys(changes[count:]):
                time = -math.inf if number in shared else self.timelines[number].first_time(mode, now)
                if time != times[number]:
                    del order[bisect_left(order, (times[number], number))]
                    insort(order, (time, number))
                    times[number] = time
        else:
            return order
        self._first[mode] = times, order, len(changes)
        return order
