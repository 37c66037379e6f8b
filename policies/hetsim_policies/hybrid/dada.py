"""Distributed affinity dual approximation: tasks near their data, if balanced.

Decides the device of each task.  Tasks that become ready together are assigned together, behind the earlier work of the
devices.  For a guess λ of the time in which all of these tasks will be done:
1. Affinity.  Pairs of a task and a device with some of its data are visited, most bytes first: the task is assigned to
   that device while such tasks fill at most the share α of the device's time until λ.
2. Balance.  The other tasks are assigned by the greedy dual approximation: a task that takes longer than λ on one side
   (cores or accelerators) is assigned to the other side.  The remaining tasks, in descending order of acceleration, are
   assigned to the accelerator where each ends first while some accelerator is busy for less than λ, then to the cores.
   If a device then ends later than (2 + α)λ the guess was too small.
Bisection finds the smallest accepted guess; the end of the best assignment so far is tried as one more guess, since
affinity may use all the time until then.  The assignment that ends first is chosen, at ties the one that moves the
fewest bytes.  Then each device runs its queue in order.
Reference: Bleuse, Gautier, Lima, Mounié, Trystram, Scheduling Data Flow Program in XKaapi: A New Affinity Based
Algorithm for Heterogeneous Architectures (Euro-Par 2014).  In this paper an activation (independent tasks that become
ready together) ends within 2 + α times its optimum, without transfers; nothing is proven for a graph.  With `transfers`
the policy is the paper's DADA(α) + CP.
Weakness: a task is placed once, when it becomes ready; only the tasks that are ready now are considered, so no device
is reserved for the critical path, and α has to be chosen.  Gangs, fractions of GPUs and tasks that fit no device queue
are placed as by `dmda`.  Cost: for n tasks on L device queues O(n L) lookups, and about 12 guesses of O(n (log n + L)).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.mode import Mode
from hetsim.model.plan import Placement, can_host
from hetsim.model.task import WAITING, Task
from hetsim.policy import Decision, View
from hetsim_policies.dynamic.common.lines import DeviceLine, LineTask
from hetsim_policies.dynamic.earliest import Dmda

PRECISION = 0.05  # relative precision of the guess at which the bisection ends
MAX_GUESSES = 40
ROUNDING = 1e-9


@dataclass(frozen=True)
class Activation:
    """Tasks that became ready together, and the loads of the device queues (lines).

    `seconds[j, l]`: time of task j in queue l (inf: it cannot run there); `need[j, l]`: number of cores or GPUs that it
    uses; `local[j, l]`: bytes of its data in the queue's memory; `free[l]`: seconds until each core or GPU of the queue
    has served its earlier tasks; `on_cores[l]`: True if queue l is that of a node's cores.
    """

    seconds: np.ndarray
    need: np.ndarray
    local: np.ndarray
    free: list[list[float]]
    on_cores: np.ndarray


class Dada(Dmda):
    """Data affinity up to a share of each device's time, then dual approximation.

    alpha: share of a device's time up to which tasks are assigned by affinity alone; 0: only the dual approximation.
    transfers: include transfers in the time of a task.
    prefetch: transfer inputs of a GPU's next task while the task before it computes.
    """

    def __init__(
        self, alpha: Annotated[float, Field(ge=0, le=1)] = 0.25, transfers: bool = True, prefetch: bool = True
    ):
        super().__init__(prefetch)
        self.alpha = alpha
        self.transfers = transfers
        self._places: dict[int, tuple[DeviceLine, Mode, float]] = {}

    def schedule(self, view: View) -> Iterator[Decision]:
        if new := [task for task in self._new if task.state == WAITING]:
            self._deal(new, view)
        yield from super().schedule(view)

    def assign(self, task: Task, view: View) -> LineTask | None:
        if (place := self._places.pop(task.index, None)) is None:
            return super().assign(task, view)
        line, mode, seconds = place
        assert line.device is not None
        need = self.need(mode)
        return LineTask(
            task, mode, Placement(mode, (line.device,)), lines=(line,), need=need, begin=line.free_at(need, view.now),
            length=seconds
        )

    def _deal(self, tasks: Sequence[Task], view: View) -> None:
        lines = [line for line in self.lines if line.up and line.lanes]
        ways = [[self._way(task, line, view) for line in lines] for task in tasks]
        rows = [row for row, modes in enumerate(ways) if any(way is not None for way in modes)]
        if not rows:
            return
        seconds = np.full((len(rows), len(lines)), np.inf)
        need = np.ones(seconds.shape)
        local = np.zeros(seconds.shape)
        for j, row in enumerate(rows):
            by_memory = self._held(tasks[row], view)
            for number, (line, way) in enumerate(zip(lines, ways[row], strict=True)):
                if way is not None:
                    seconds[j, number], need[j, number] = way[1], self.need(way[0])
                    local[j, number] = by_memory.get(_memory(line), 0)
        free = [[max(0.0, end + line.shift - view.now) for end in line.ends] for line in lines]
        on_cores = np.array([line.type.kind == "cpu" for line in lines])
        chosen = dealt(Activation(seconds, need, local, free=free, on_cores=on_cores), self.alpha)
        for j, row in enumerate(rows):
            way = ways[row][chosen[j]]
            assert way is not None
            self._places[tasks[row].index] = lines[chosen[j]], *way

    def _way(self, task: Task, line: DeviceLine, view: View) -> tuple[Mode, float] | None:
        """Return a task's fastest mode in a queue and its seconds; None if none fits."""
        assert line.device is not None
        node = view.cluster.nodes[line.device.node]
        best: tuple[Mode, float] | None = None
        for mode in task.fastest_modes():
            one = mode.on_cpu or (mode.gpus == 1 and mode.whole_devices)
            if mode.type is not line.type or not one or not can_host(node, mode) or self.need(mode) > line.lanes:
                continue
            seconds = task.remaining_in(mode)
            if self.transfers:
                stages = view.stages((task,), Placement(mode, (line.device,)))
                seconds = max(stages.ready, stages.write_back) + stages.upload + stages.restore + stages.compute
                seconds += stages.download
            if math.isfinite(seconds) and (best is None or seconds < best[1]):
                best = mode, seconds
        return best

    def _held(self, task: Task, view: View) -> dict[tuple[int, int], int]:
        """Bytes of the items that a task reads or writes, by the memory that has them."""
        by_memory: dict[tuple[int, int], int] = {}
        for item in dict.fromkeys((*task.reads, *task.writes)):
            for holder in view.holders(item):
                memory = (holder, -1) if isinstance(holder, int) else (holder.node, holder.index)
                by_memory[memory] = by_memory.get(memory, 0) + view.items[item].size
        return by_memory


def _memory(line: DeviceLine) -> tuple[int, int]:
    assert line.device is not None
    return line.device.node, -1 if line.type.kind == "cpu" else line.device.index


class LinesLayout:
    """A partial assignment of tasks to lines (device queues)."""

    def __init__(self, given: Activation) -> None:
        self.given = given
        self.line = [-1] * len(given.seconds)
        self.free = [list(times) for times in given.free]
        for times in self.free:
            heapify(times)
        self.end = max((max(times) for times in self.free), default=0.0)  # when the last lane will be done

    def finish(self, task: int, line: int) -> float:
        need, times = int(self.given.need[task, line]), self.free[line]
        return (times[0] if need == 1 else sorted(times)[need - 1]) + float(self.given.seconds[task, line])

    def put(self, task: int, line: int) -> None:
        end, times = self.finish(task, line), self.free[line]
        if (need := int(self.given.need[task, line])) == 1:
            heapreplace(times, end)
        else:
            self.free[line] = sorted(times)[need:] + [end] * need
            heapify(self.free[line])
        self.line[task] = line
        self.end = max(self.end, end)

    @property
    def missing(self) -> float:
        """Bytes of the tasks' data that are not in the memory of their assigned device."""
        local = self.given.local
        return float(sum(local[task].max() - local[task, line] for task, line in enumerate(self.line)))


def dealt(given: Activation, alpha: float) -> list[int]:
    """Return the number of a device queue for each task.

    A bisection searches for the earliest end of all tasks.  alpha: fraction of each device's time until that end that
    is first filled with tasks whose data are on the device.
    """
    best = by_finish(given)
    order = by_acceleration(given)
    pairs = by_affinity(given)
    shortest = given.seconds.min(axis=1)
    low, high = float(shortest.max()), max(best.end, float(shortest.max()))
    tried: list[LinesLayout] = []
    guess = low
    for _ in range(MAX_GUESSES):
        if (layout := laid_out(given, guess, alpha, order=order, pairs=pairs)) is None:
            low = max(low, guess)
        else:
            tried.append(layout)
            high = min(high, guess)
        if high <= low * (1 + PRECISION) or high <= 0:
            break
        guess = (low + high) / 2
    if not tried:
        return best.line
    # As much time as the best layout takes anyway may be given away by affinity.
    again = laid_out(given, min(layout.end for layout in tried), alpha, order=order, pairs=pairs)
    tried += [] if again is None else [again]
    return min(tried, key=lambda layout: (layout.end * (1 - ROUNDING), layout.missing)).line


def laid_out(
    given: Activation, guess: float, alpha: float, order: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> LinesLayout | None:
    """Assign tasks, first near their data, for a guessed makespan; None: too short."""
    layout = LinesLayout(given)
    _put_near_data(layout, guess, alpha, pairs)
    accelerators = np.flatnonzero(~given.on_cores).tolist()
    cores = np.flatnonzero(given.on_cores).tolist()
    limit = guess * (1 + ROUNDING)
    open_tasks = [task for task in order if layout.line[task] < 0]
    fast = {task: _shortest(given, task, accelerators) for task in open_tasks}
    slow = {task: _shortest(given, task, cores) for task in open_tasks}
    if any(min(fast[task], slow[task]) > limit for task in open_tasks):
        return None
    forced = [task for task in open_tasks if slow[task] > limit]
    for task in [*forced, *(task for task in open_tasks if slow[task] <= limit)]:
        best = None
        if fast[task] <= limit:
            open_ = [line for line in accelerators if layout.free[line][0] < guess or slow[task] > limit]
            best = _first(layout, task, open_)
        if best is None:
            best = _first(layout, task, cores)
        if best is None:
            return None
        layout.put(task, best)
    return layout if layout.end <= max(2 + alpha, 1.0) * limit else None


def _put_near_data(layout: LinesLayout, guess: float, alpha: float, pairs: Sequence[tuple[int, int]]) -> None:
    given = layout.given
    room = [alpha * sum(max(0.0, guess - free) for free in times) for times in given.free]
    for task, line in pairs:
        work = float(given.seconds[task, line] * given.need[task, line])
        if layout.line[task] < 0 and work <= room[line] * (1 + ROUNDING):
            room[line] -= work
            layout.put(task, line)


def _shortest(given: Activation, task: int, lines: Sequence[int]) -> float:
    return min((float(given.seconds[task, line]) for line in lines), default=math.inf)


def _first(layout: LinesLayout, task: int, lines: Sequence[int]) -> int | None:
    """Return the queue where a task ends first; at ties, that with most of its data."""
    usable = [line for line in lines if math.isfinite(layout.given.seconds[task, line])]
    local = layout.given.local[task]
    return min(usable, key=lambda line: (layout.finish(task, line), -local[line]), default=None)


def by_finish(given: Activation) -> LinesLayout:
    """Place each task, in order, where it ends first."""
    layout = LinesLayout(given)
    for task in range(len(given.seconds)):
        line = _first(layout, task, range(len(given.free)))
        assert line is not None
        layout.put(task, line)
    return layout


def by_acceleration(given: Activation) -> list[int]:
    """Return tasks by descending time on cores / time on accelerators, then as given."""
    fast = given.seconds[:, ~given.on_cores].min(axis=1, initial=np.inf)
    slow = given.seconds[:, given.on_cores].min(axis=1, initial=np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = slow / fast
    return np.argsort(-np.where(np.isnan(ratio), 1.0, ratio), kind="stable").tolist()


def by_affinity(given: Activation) -> list[tuple[int, int]]:
    """Return (task, queue) pairs whose device has data of the task, most bytes first."""
    tasks, lines = np.nonzero((given.local > 0) & np.isfinite(given.seconds))
    order = np.argsort(-given.local[tasks, lines], kind="stable")
    return list(zip(tasks[order].tolist(), lines[order].tolist(), strict=True))
