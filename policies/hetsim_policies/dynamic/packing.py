"""Schedulers for shared nodes: by demand, by similar jobs, or with migration."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetsim.model.cluster import Partition
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Demand, Discipline, ListScheduler, PlacementRule, TaskQueue, View, demand_of, partition_of
from hetsim.policy.decisions import WAIT_FOR_CHANGE, WAIT_FOR_READY, Decision, Move, Start, Wait
from hetsim_policies.common import place_of
from hetsim_policies.orders import fcfs
from hetsim_policies.placement_rules.common.choice import Totals, best_node, demand


class Tetris(ListScheduler):
    """Multi-resource packing: the task best aligned to free resources starts first.

    Decides when and where.  The alignment of a task with a node is the dot product of its demand and the node's free
    resources, over cores, host memory and GPUs, each as a fraction of the largest node.  Of all waiting tasks that fit,
    the next to start has the largest value of its alignment on its best node minus `shortness` × its remaining work,
    until no task fits.  Work is estimated time × demand, scaled so that mean work equals mean alignment over the tasks
    that fit.  Reference: Grandl, Ananthanarayanan, Kandula, Rao, Akella, Multi-Resource Packing for Cluster Schedulers
    (SIGCOMM 2014): Tetris.  With `shortness` 0 it is the packer that Mao et al., Resource Management with Deep
    Reinforcement Learning (HotNets 2016) use as a baseline.
    Weakness: no bound is known; with `shortness` 0 short tasks wait behind large tasks, and the slowdown grows with the
    load.  Cost: for each start, a few NumPy operations over the nodes for every distinct waiting demand.

    shortness: weight of the remaining work; 0 packs only.
    """

    def __init__(self, shortness: Annotated[float, Field(ge=0)] = 1.0):
        super().__init__(discipline="skip")
        self.shortness = shortness
        self._lines: defaultdict[Demand, TaskQueue] = defaultdict(TaskQueue)

    def begin(self, view: View) -> None:
        self._totals = Totals(view.cluster)
        largest = self._totals.all(np.arange(len(self._totals.cores))).max(axis=1)
        self._scale = np.where(largest > 0, largest, 1.0)

    def ready(self, task: Task) -> None:
        self._lines[demand_of(task)].push(task.shortest_estimate if self.shortness else task.arrival, task)

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        heads = {key: task for key, line in self._lines.items() if (task := line.head()) is not None}
        if not heads:
            yield WAIT_FOR_READY
            return
        while True:
            fitting: list[tuple[Demand, Task, Placement, float, float]] = []
            for key, task in list(heads.items()):
                placement = best_node(task, view, lambda mode, nodes: (-self._alignment(mode, nodes, view),))
                if placement is None:
                    del heads[key]  # starts free nothing: not again in this round
                    continue
                mode = placement.mode
                fits = self._alignment(mode, np.array([placement.devices[0].node]), view)[0]
                work = task.shortest_estimate * float((demand(mode) / self._scale).sum())
                fitting.append((key, task, placement, float(fits), work))
            if not fitting:
                yield WAIT_FOR_CHANGE
                return
            total = sum(work for *_, work in fitting)
            price = self.shortness * sum(fits for *_, fits, _ in fitting) / total if total else 0.0
            best = max(fitting, key=lambda one: (one[3] - price * one[4], -one[1].arrival, -one[1].index))
            key, task, placement = best[:3]
            yield Start(task, placement)
            if (following := self._lines[key].head()) is None:
                del heads[key]
            else:
                heads[key] = following

    def _alignment(self, mode: Mode, nodes: np.ndarray, view: View) -> np.ndarray:
        free = self._totals.free(nodes, view)
        return np.round((demand(mode) / self._scale) @ (free / self._scale[:, None]), 12)


class Similarity(ListScheduler):
    """Similarity: place jobs with similar profiles together, or apart.

    Decides where; tasks start in the order of arrival.  The similarity of two jobs is the cosine of their speeds by
    device type, and 1 for jobs of one class.  `together` chooses the node with the most similar running jobs, which
    suits shared data or caches; `apart` chooses the node with the least similar running jobs, since jobs of one model
    need the same part of a device at the same time.
    References: Gu, Chowdhury, Shin, Zhu, Jeon, Qian, Liu, Guo, Tiresias: A GPU Cluster Manager for Distributed Deep
    Learning (NSDI 2019), which places by profiles of models; Delimitrou, Kozyrakis, Paragon: QoS-Aware Scheduling for
    Heterogeneous Datacenters (ASPLOS 2013), for similar jobs apart.  The rule here is simpler than either: no training,
    no measurement.  Weakness: if neither data nor devices are shared, similarity is irrelevant.
    Cost: linear in the running tasks on each node where the task fits.

    prefer: together or apart.
    """

    def __init__(self, prefer: Literal["together", "apart"] = "apart", discipline: Discipline = "skip"):
        super().__init__(fcfs, self._beside, discipline)
        self.sign = -1.0 if prefer == "together" else 1.0
        self._on_node: dict[int, dict[int, Task]] = {}
        self._nodes: dict[int, tuple[int, ...]] = {}

    def ready(self, task: Task) -> None:
        self.finished(task)  # if it was stopped
        super().ready(task)

    def finished(self, task: Task) -> None:
        for node in self._nodes.pop(task.index, ()):
            del self._on_node[node][task.index]

    gone = finished

    def _beside(self, task: Task, view: View) -> Placement | None:
        for mode in task.fastest_modes():
            if options := view.options(task, mode):
                return self._noted(task, min(options, key=lambda option: self._placement_cost(task, option, view)))
        anywhere = view.fit(task)
        return None if anywhere is None else self._noted(task, anywhere)

    def _placement_cost(self, task: Task, placement: Placement, view: View) -> tuple[float, float]:
        """Cost of a placement: similarity to the jobs already there, then load.

        Jobs on the same node count once; for a task on part of a device, jobs on the same device count twice.
        """
        device = placement.devices[0]
        alike = sum(likeness(task, other) for other in self._on_node.get(device.node, {}).values())
        if not placement.mode.whole_devices and not placement.mode.on_cpu:
            alike += sum(likeness(task, other) for other in view.running("start", device))
        return self.sign * alike, view.load(device)

    def _noted(self, task: Task, placement: Placement) -> Placement:
        nodes = tuple(dict.fromkeys(device.node for device in placement.devices))
        self._nodes[task.index] = nodes
        for node in nodes:
            self._on_node.setdefault(node, {})[task.index] = task
        return placement


def likeness(one: Task, other: Task) -> float:
    """Similarity of two jobs: 1 for one class, else the cosine of their speeds."""
    if one.class_ and one.class_ == other.class_:
        return 1.0
    first, second = _speeds(one), _speeds(other)
    norm = math.hypot(*first.values()) * math.hypot(*second.values())
    return sum(value * second.get(name, 0.0) for name, value in first.items()) / norm if norm > 0 else 0.0


def _speeds(task: Task) -> dict[str, float]:
    best = task.shortest_estimate
    speeds: dict[str, float] = {}
    for mode in task.modes:
        seconds = task.estimate_in(mode)
        speeds[mode.type.name] = max(1.0 if seconds <= best else best / seconds, speeds.get(mode.type.name, 0.0))
    return speeds


Margin = Annotated[float, Field(ge=0)]
Moves = list[tuple[Task, int]]  # tasks and the nodes they move to


class Defragment(ListScheduler):
    """Defragmentation by migration: move running tasks so that the oldest task fits.

    Decides when, and which task moves where.  Tasks that fit start in order of arrival.  If the oldest waiting task
    then needs whole GPUs, and enough GPUs are free but on several nodes, the policy searches for the cheapest set of
    moves that frees enough GPUs of one node: smallest gangs first, each to the tightest node with room.  The moves are
    made if the saved wait (the estimated time until the task would fit otherwise) × the task's GPUs exceeds `margin` ×
    the pauses of the moved tasks × their GPUs.

    Reference: the migration of Xiao et al., Gandiva: Introspective Cluster Scheduling for Deep Learning (OSDI 2018).
    Weakness: greedy, one waiting task at a time; with wrong estimates it moves without need; fractions of GPUs are not
    moved.  Cost: one pass over the running tasks and the nodes for a task that waits although enough GPUs are free.

    margin: the saved GPU-seconds of waiting must exceed this factor × the GPU-seconds lost by pauses.
    minimum_run: minimum seconds between a task's start or last move and a move.
    max_moves: maximum number of moves for one waiting task.
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
        self._in_vain = -1.0  # the last instant at which moves did not let the intended task start

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
            # Moves for the oldest waiting task of each partition, and its start.
            heads = [(fcfs(head), head.index, head) for queue in self.queues() if (head := queue.head()) is not None]
            served: dict[Partition | None, None] = {}
            for _, _, task in sorted(heads, key=lambda entry: entry[:2]):
                if partition_of(task) not in served:
                    served[partition_of(task)] = None
                    yield from self._make_fit(task, view)
        yield last

    def _make_fit(self, task: Task, view: View) -> Iterator[Decision]:
        moves = self._worthwhile(task, view)
        for mover, node in moves:
            if (placement := view.first(place_of(mover, view).mode, mover, node=node)) is None:
                self._in_vain = view.now  # its data find no room there
                return
            yield Move(mover, placement)
            mover.memo = view.now
        if moves and (start := self.place(task, view)) is not None:
            yield Start(task, start)
            task.memo = view.now
        elif moves:
            self._in_vain = view.now

    def _worthwhile(self, task: Task, view: View) -> Moves:
        """Return the cheapest moves after which the task fits on a node; [] if too costly."""
        if view.over_limit(task):
            return []  # room would not help
        mode = task.fastest_modes()[0]
        plain = mode.gpus and mode.whole_devices and mode.type.streams == 1 and mode.type.sharing.kind == "exclusive"
        if not plain or view.free(mode.type.name) < mode.gpus or any(view.fits(other) for other in task.modes):
            return []
        nodes, movable = _Nodes(mode, view), self._movable(mode, view)
        cost, moves = _cheapest(nodes, mode, movable, max_moves=self.max_moves, view=view) or (math.inf, [])
        spared = (view.earliest_fit(task).time - view.now) * mode.gpus if moves else 0.0
        return moves if spared > self.margin * cost else []

    def _movable(self, mode: Mode, view: View) -> dict[int, list[Task]]:
        by_node: dict[int, list[Task]] = {}
        for task in view.running("start", own=True):
            if task.state != RUNNING or not task.shape.preemptible or len(view.launch_of(task).tasks) > 1:
                continue
            placement = place_of(task, view)
            here, stage = placement.mode, view.launch_of(task).stage
            if here.type is not mode.type or not here.whole_devices or here.gpu_memory or stage != "compute":
                continue
            on_one = len({device.node for device in placement.devices}) == 1
            if on_one and view.now - (task.memo or 0.0) >= self.minimum_run:
                by_node.setdefault(placement.devices[0].node, []).append(task)
        for tasks in by_node.values():
            tasks.sort(key=lambda task: (place_of(task, view).mode.gpus, task.index))
        return by_node


class _Nodes:
    """Free whole GPUs of a type, cores and memory of every node, to test moves."""

    def __init__(self, mode: Mode, view: View):
        view.nodes.refresh()
        single = view.nodes.accelerators
        self.gpus = ((single.kind == single.types.index(mode.type.name)) & (single.share == WHOLE)).sum(axis=1)
        self.cores = view.nodes.cores.copy()
        self.memory = view.nodes.memory.copy()

    def copy(self) -> "_Nodes":
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
    """Return (GPU-seconds lost, cheapest moves after which the mode fits), or None."""
    best: tuple[float, Moves] | None = None
    for node, tasks in movable.items():
        state, moves, cost = nodes.copy(), [], 0.0
        for task in tasks[:max_moves]:
            own = place_of(task, view).mode
            if (target := state.tightest(own, but=node)) is None:
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
    there = view.first(mode, task, node=node)
    longer = 0.0 if there is None else view.duration(task, there) - view.remaining(task)
    return max(0.0, longer) + task.shape.stopping.save
