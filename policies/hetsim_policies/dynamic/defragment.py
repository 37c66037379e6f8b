"""Defragmentation by migration: move running tasks so that the oldest task fits.

Decides when, and which task moves where.  What fits starts, in order of arrival.  If then the oldest waiting task wants
whole GPUs and enough are free, but on several nodes, the cheapest set of moves is sought that empties enough of one
node: smallest gangs first, each to the tightest node that takes it.  It is carried out if it pays: the wait that it
spares (until the task would fit otherwise, by estimates) × its GPUs must exceed `margin` × the pauses of the moved ×
theirs.

Reference: the migration of Xiao et al., Gandiva: Introspective Cluster Scheduling for Deep Learning (OSDI 2018).
Weakness: greedy, one waiting task at a time; by wrong estimates it moves in vain; fractions of GPUs are not moved.
Cost: one pass over the running tasks and the nodes for a task that waits although enough is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.cluster import WHOLE, Partition
from hetsim.model.task import RUNNING, Task
from hetsim.model.tasks import Mode
from hetsim.model.units import Seconds
from hetsim.policy import (
    Decision,
    Discipline,
    ListScheduler,
    Move,
    PlacementRule,
    Start,
    TaskQueue,
    View,
    Wait,
    partition_of,
)
from hetsim_policies.orders import fcfs

Margin = Annotated[float, Field(ge=0)]
Moves = list[tuple[Task, int]]
"""Tasks and the nodes they move to."""


class Defragment(ListScheduler):
    """First come, first served, with moves for a task whose free GPUs are scattered.

    margin: the GPU-seconds of waiting that are spared must exceed this × those lost by pauses.
    minimum_run: a task is moved at the earliest so long after its start or last move.
    max_moves: moves for one waiting task.
    """

    def __init__(
        self,
        placement: PlacementRule | None = None,
        discipline: Discipline = "skip",
        margin: Margin = 1.0,
        minimum_run: Seconds = 0.0,
        max_moves: Annotated[int, Field(ge=1)] = 4,
    ):
        super().__init__(fcfs, placement, discipline)
        self.margin = margin
        self.minimum_run = minimum_run
        self.max_moves = max_moves
        self._in_vain = -1.0
        """The last instant at which moves did not let the intended task start."""

    def schedule(self, view: View) -> Iterator[Decision]:
        last: Decision = Wait()
        for decision in super().schedule(view):
            if isinstance(decision, Wait):
                last = decision
                continue
            yield decision
            if isinstance(decision, Start) and isinstance(decision.tasks, Task):
                decision.tasks.memo = view.now
        if self.dispatcher is None and self._in_vain != view.now:
            yield from self._make_some_fit(view)
        yield last

    def _make_some_fit(self, view: View) -> Iterator[Decision]:
        """Moves for the oldest waiting task of each partition, and its start."""
        heads = [(fcfs(head), head.index, head, queue) for queue in self.queues() if (head := queue.head()) is not None]
        heads.sort(key=lambda entry: entry[:2])
        served: dict[Partition | None, None] = {}
        for _, _, task, queue in heads:
            if partition_of(task) not in served:
                served[partition_of(task)] = None
                yield from self._make_fit(task, queue, view)

    def _make_fit(self, task: Task, queue: TaskQueue, view: View) -> Iterator[Decision]:
        moves = self._worthwhile(task, view)
        for mover, node in moves:
            placement = view.first(_mode_of(mover, view), mover, node=node)
            if placement is None:
                self._in_vain = view.now  # its data find no room there
                return
            yield Move(mover, placement)
            mover.memo = view.now
        if moves and (start := self.place(task, view)) is not None:
            queue.remove(task)
            yield Start(task, start)
            task.memo = view.now
        elif moves:
            self._in_vain = view.now

    def _worthwhile(self, task: Task, view: View) -> Moves:
        """The cheapest moves after which the task fits on one node, if they pay."""
        if view.over_limit(task):
            return []  # room would not help
        mode = task.modes[task.modes_by_speed()[0]]
        plain = mode.gpus and mode.whole and mode.type.streams == 1 and mode.type.sharing.kind == "exclusive"
        if not plain or view.free(mode.type.name) < mode.gpus or any(view.fits(other) for other in task.modes):
            return []
        cheapest = _cheapest(_Nodes(mode, view), mode, self._movable(mode, view), max_moves=self.max_moves, view=view)
        if cheapest is None:
            return []
        cost, moves = cheapest
        spared = (view.earliest_fit(task).time - view.now) * mode.gpus
        return moves if spared > self.margin * cost else []

    def _movable(self, mode: Mode, view: View) -> dict[int, list[Task]]:
        """Running tasks that may move, by node, the smallest first."""
        by_node: dict[int, list[Task]] = {}
        for task in view.running("start", own=True):
            if task.state != RUNNING or not task.shape.preemptible or len(view.launch_of(task).tasks) > 1:
                continue
            here = _mode_of(task, view)
            launch = view.launch_of(task)
            if here.type is not mode.type or not here.whole or here.gpu_memory or launch.stage != "compute":
                continue
            placement = launch.placement
            assert placement is not None
            on_one = len({device.node for device in placement.devices}) == 1
            if on_one and view.now - (task.memo or 0.0) >= self.minimum_run:
                by_node.setdefault(placement.devices[0].node, []).append(task)
        for tasks in by_node.values():
            tasks.sort(key=lambda task: (_mode_of(task, view).gpus, task.index))
        return by_node


class _Nodes:
    """Free whole GPUs of a type, cores and memory of every node, to try moves on."""

    def __init__(self, mode: Mode, view: View):
        view.nodes.refresh()
        single = view.nodes.accelerators
        of_type = single.kind == single.types.index(mode.type.name)
        self.gpus = (of_type & (single.share == WHOLE)).sum(axis=1)
        self.cores = view.nodes.cores.copy()
        self.memory = view.nodes.memory.copy()

    def copy(self) -> _Nodes:
        other = object.__new__(_Nodes)
        other.gpus, other.cores, other.memory = self.gpus.copy(), self.cores.copy(), self.memory.copy()
        return other

    def give(self, node: int, mode: Mode, sign: int = 1) -> None:
        self.gpus[node] += sign * mode.gpus
        self.cores[node] += sign * mode.millicores / 1000
        self.memory[node] += sign * mode.memory

    def takes(self, mode: Mode) -> np.ndarray:
        host = (self.cores + 1e-9 >= mode.millicores / 1000) & (self.memory >= mode.memory)
        takes: np.ndarray = (self.gpus >= mode.gpus) & host
        if mode.nodes is not None:
            takes &= np.array([mode.allows(node) for node in range(len(takes))])
        return takes

    def tightest(self, mode: Mode, but: int) -> int | None:
        takes = self.takes(mode)
        takes[but] = False
        nodes = np.flatnonzero(takes)
        return int(nodes[self.gpus[nodes].argmin()]) if len(nodes) else None


def _cheapest(
    nodes: _Nodes, mode: Mode, movable: dict[int, list[Task]], max_moves: int, view: View
) -> tuple[float, Moves] | None:
    """The least lost GPU-seconds, and the moves, after which the mode fits on a node."""
    best: tuple[float, Moves] | None = None
    for node, tasks in movable.items():
        state, moves, cost = nodes.copy(), [], 0.0
        for task in tasks[:max_moves]:
            own = _mode_of(task, view)
            target = state.tightest(own, but=node)
            if target is None:
                continue
            cost += _pause(task, own, target, view) * own.gpus
            if best is not None and cost >= best[0]:
                break
            state.give(node, own)
            state.give(target, own, -1)
            moves.append((task, target))
            if state.takes(mode)[node]:
                best = cost, moves
                break
    return best


def _pause(task: Task, mode: Mode, node: int, view: View) -> float:
    """Estimated seconds by which a move delays a running task."""
    there = view.first(mode, task, node=node)
    longer = 0.0 if there is None else view.duration(task, there) - view.remaining(task)
    return max(0.0, longer) + task.shape.stopping.save


def _mode_of(task: Task, view: View) -> Mode:
    placement = view.launch_of(task).placement
    assert placement is not None
    return placement.mode
