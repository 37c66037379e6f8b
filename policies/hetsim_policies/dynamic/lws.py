"""Locality work stealing (`lws` of StarPU): idle workers take neighbors' tasks.

Decides where and when.  A task that becomes ready is put into the deque of the worker that ended the last of its
predecessors, where its data still are; tasks without predecessors are assigned to the workers in turn.  An idle worker
takes the newest task of its own deque, or else the oldest task that it can run from the nearest other deque: deques of
its node, then of other nodes, nearest first.  Within a deque the highest `priority` precedes.  A worker is an
accelerator, or the cores of a node.
Reference: Blumofe, Leiserson, Scheduling Multithreaded Computations by Work Stealing (1999): on P equal workers the
expected time of a fully strict computation is T1/P + O(T_inf), with random victims; stealing from the nearest deque is
that of StarPU (Augonnet et al., 2011).  Weakness: it uses no estimates, so a core may take a task that a GPU would
finish far sooner; no bound on unlike workers.  Gangs and tasks that need much memory start when an idle worker's node
has room for them; until then other tasks pass.  Cost: O(distinct demands + log n) for a task that starts at its own
worker; stealing, and finding another worker for a task, visit nodes, nearest first, until one suits.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from hetsim.model.device import Device
from hetsim.model.device_type import MILLI, WHOLE
from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, View
from hetsim_policies.dynamic.common.lines import refuse_gangs
from hetsim_policies.dynamic.common.two_ended import TwoEnded

OWN, STOLEN = 0, 1  # The ends of a deque: its worker takes the newest task, others steal the oldest

@dataclass(eq=False, slots=True)
class Worker:
    """An accelerator, or the cores of a node."""

    device: Device
    number: int
    room: int  # thousandths of cores, or millionths of GPUs, that may work at a time
    used: int = 0
    up: bool = True
    # Waiting tasks of this worker, by shape
    deques: defaultdict[Shape, TwoEnded] = field(default_factory=lambda: defaultdict(TwoEnded))

    def runs(self, shape: Shape) -> list[Mode]:
        return [mode for mode in shape.modes if mode.type is self.device.type]


class Lws(Scheduler):
    """Locality work stealing: an idle worker takes tasks from the nearest queues."""

    spreads = frozenset({"gpus"})

    def __init__(self) -> None:
        self._tickets = count()
        self._turn = 0
        self._before: Any = None
        self._last: tuple[int, Worker | None] = (-1, None)  # the task that ended last, and where
        self._running: dict[int, list[Worker]] = {}
        self._taken: dict[int, int] = {}  # room of each of its workers that a running task has
        self._new: list[tuple[Task, Worker]] = []
        self._freed: dict[int, None] = {}  # nodes where something has ended
        self._busy: list[int] = []  # nodes with a deque that is not known to be empty, in order
        self._open: list[int] = []  # nodes with a worker that is not known to be full, in order
        self._down: set[int] = set()

    def check(self, problem: PlanProblem) -> None:
        refuse_gangs(problem)

    def prepare(self, problem: PlanProblem) -> None:
        self._before = problem.tasks.predecessors

    def begin(self, view: View) -> None:
        self._nodes = view.cluster.nodes
        self.workers: list[Worker] = []
        self._on_node: list[list[Worker]] = []
        self._of_device: dict[int, Worker] = {}
        for node in self._nodes:
            here = []
            for device in [node.cpu] * bool(node.cpus) + list(node.accelerators):
                room = node.cpus * MILLI if device is node.cpu else WHOLE * device.type.streams
                worker = Worker(device, len(self.workers), room)
                self.workers.append(worker)
                self._of_device[device.index] = worker
                here.append(worker)
            self._on_node.append(here)
        self._open = list(range(len(self._nodes)))

    def ready(self, task: Task) -> None:
        self._ended(task)  # a device failed under it
        worker = self._home(task)
        number = next(self._tickets)
        worker.deques[task.shape].push(task, (-task.priority, -number), (-task.priority, number))
        _include(self._busy, worker.device.node)
        self._new.append((task, worker))

    def finished(self, task: Task) -> None:
        workers = self._ended(task)
        self._last = task.index, workers[0] if workers else None

    def gone(self, task: Task) -> None:
        self._ended(task)

    def device(self, device: Device, up: bool) -> None:
        """Record that a device is up or down; a node whose CPU is down is not used."""
        (self._down.discard if up else self._down.add)(device.index)
        host = self._nodes[device.node].cpu.index
        for worker in self._on_node[device.node]:
            worker.up = worker.device.index not in self._down and host not in self._down
        self._freed[device.node] = None
        _include(self._open, device.node)

    def _ended(self, task: Task) -> list[Worker]:
        workers = self._running.pop(task.index, [])
        taken = self._taken.pop(task.index, 0)
        for worker in workers:
            worker.used -= taken
            self._freed[worker.device.node] = None
            _include(self._open, worker.device.node)
        return workers

    def _home(self, task: Task) -> Worker:
        """Return the last predecessor's worker, or the next in turn that can run the task."""
        index, worker = self._last
        if worker is None or self._before is None or index not in self._before[task.index]:
            self._turn = (self._turn + 1) % len(self.workers)
            worker = self.workers[self._turn - 1]
        beside = self._on_node[worker.device.node]
        for other in chain([worker], beside, self.workers[worker.number :], self.workers[: worker.number]):
            if other.up and other.runs(task.shape):
                return other
        return worker

    def schedule(self, view: View) -> Iterator[Decision]:
        if not view.num_waiting(own=True):
            return  # workers that are free look for work once there is some
        freed, self._freed = self._freed, {}
        new, self._new = self._new, []
        if not self._running and view.num_waiting(own=True):
            freed = dict.fromkeys(range(len(self._nodes)))
        for node in freed:
            for worker in self._on_node[node]:
                yield from self._work(worker, view)
        for task, home in new:
            if task.state == WAITING and any(view.fits(mode) for mode in task.modes):
                yield from self._find_worker(task, home, view)

    def _work(self, worker: Worker, view: View) -> Iterator[Decision]:
        while worker.up and not self._full(worker):
            task = self._best(worker, worker, OWN, view) or self._steal(worker, view)
            if task is None:
                return
            yield self._start(*task)

    def _find_worker(self, task: Task, home: Worker, view: View) -> Iterator[Decision]:
        here = home.device.node
        if (yield from self._offer(task, here, home, view)):
            return
        full = []
        for node in _outwards(self._open, here):
            if all(self._full(worker) for worker in self._on_node[node]):
                full.append(node)
                continue
            if (yield from self._offer(task, node, home, view)):
                break
        for node in full:
            self._open.remove(node)

    def _offer(self, task: Task, node: int, home: Worker, view: View) -> Generator[Decision, None, bool]:
        for worker in sorted(self._on_node[node], key=lambda other: abs(other.number - home.number)):
            placement = self._placement(task, worker, view) if worker.up else None
            if placement is not None:
                yield self._start(task, placement)
                return True
        return False

    def _steal(self, thief: Worker, view: View) -> tuple[Task, Placement] | None:
        task, empty = None, []
        for node in _outwards(self._busy, thief.device.node):
            here = self._on_node[node]
            if not any(deque.head(OWN) for worker in here for deque in worker.deques.values()):
                empty.append(node)
                continue
            victims = [worker for worker in here if worker is not thief]
            victims.sort(key=lambda other: abs(other.number - thief.number))
            task = next(filter(None, (self._best(victim, thief, STOLEN, view) for victim in victims)), None)
            if task is not None:
                break
        for node in empty:
            self._busy.remove(node)
        return task

    def _best(self, owner: Worker, taker: Worker, end: int, view: View) -> tuple[Task, Placement] | None:
        heads = [deque.head(end) for shape, deque in owner.deques.items() if taker.runs(shape)]
        for _, _, task in sorted((head for head in heads if head is not None), key=lambda head: head[0]):
            if (placement := self._placement(task, taker, view)) is not None:
                return task, placement
        return None

    def _placement(self, task: Task, worker: Worker, view: View) -> Placement | None:
        for mode in task.fastest_modes():
            if mode.type is not worker.device.type or worker.used + _room(mode) > worker.room:
                continue
            placement: Placement | None = Placement(mode, (worker.device,))
            if mode.gpus > 1:
                placement = view.first(mode, task, node=worker.device.node)
            if placement is None and mode.span_any:
                placement = view.first(mode)
            if placement is not None and view.fits(mode, placement, (task,)):
                return placement
        return None

    def _full(self, worker: Worker) -> bool:
        return worker.used >= worker.room

    def _start(self, task: Task, placement: Placement) -> Start:
        workers = [self._of_device[device.index] for device in placement.devices]
        self._running[task.index] = workers
        self._taken[task.index] = room = _room(placement.mode)
        for other in workers:
            other.used += room
        return Start(task, placement)


def _room(mode: Mode) -> int:
    """Amount of a worker that a launch occupies: 1/1000 cores, or 1/1,000,000 GPUs."""
    return mode.millicores if mode.on_cpu else mode.share


def _include(nodes: list[int], node: int) -> None:
    place = bisect_left(nodes, node)
    if place == len(nodes) or nodes[place] != node:
        nodes.insert(place, node)


def _outwards(nodes: list[int], node: int) -> Iterator[int]:
    right = bisect_left(nodes, node)
    lower = right - 1
    while lower >= 0 or right < len(nodes):
        if lower < 0 or (right < len(nodes) and nodes[right] - node <= node - nodes[lower]):
            yield nodes[right]
            right += 1
        else:
            yield nodes[lower]
            lower -= 1
