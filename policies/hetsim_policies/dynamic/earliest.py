"""Assign each task once to a device queue: where it ends first, or by fixed rules."""

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import sqrt

from hetsim.model.cluster import Cluster, Node, NodeSpec
from hetsim.model.device_type import MILLI, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement, can_host
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy import Decision, Fetch, PlanProblem, View
from hetsim_policies.dynamic.common.lines import AssigningScheduler, DeviceLine, LineTask, refuse_gangs
from hetsim_policies.task_graphs import bottom_levels

NEAR = 16  # maximum number of nodes near a task's data whose devices are checked one by one


class Alike:
    """Queues of equal devices (type, node); the queue that is free earliest is first.

    Each change of a queue adds an entry to a heap; outdated entries are dropped when they reach the top.
    """

    def __init__(self, kind: DeviceType) -> None:
        self.type = kind
        self.lines: list[DeviceLine] = []
        self._heap: list[tuple[float, int, DeviceLine]] = []

    def add(self, line: DeviceLine) -> None:
        self.lines.append(line)
        line.changed = self.push
        self.push(line)

    def push(self, line: DeviceLine) -> None:
        heappush(self._heap, (line.first_end(), line.number, line))
        if len(self._heap) > 64 + 4 * len(self.lines):
            self._heap = [(other.first_end(), other.number, other) for other in self.lines]
            heapify(self._heap)

    def first(self) -> DeviceLine | None:
        """Return the device queue that is free first; None if all devices are down."""
        heap, aside = self._heap, []
        first = None
        while heap:
            end, _, line = heap[0]
            if end == line.first_end():
                if line.up:
                    first = line
                    break
                aside.append(heap[0])
            heappop(heap)
        for entry in aside:
            heappush(heap, entry)
        return first


class EarliestLine(AssigningScheduler):
    """Base of `eft`, `dmda`, `dmdas`: ready tasks join the queue where they end first.

    Each accelerator, and the cores of each node, have one queue (line).  Of equal queues (of one type, on equal nodes,
    equally far from the task's data) only the queue that is free first is considered.  `expected` returns begin and end
    of a task in a queue.
    """

    with_data = False  # True if data locations matter

    spreads = frozenset({"gpus"})

    def check(self, problem: PlanProblem) -> None:
        refuse_gangs(problem)

    def make_lines(self, cluster: Cluster) -> list[DeviceLine]:
        lines: list[DeviceLine] = []
        groups: dict[tuple[DeviceType, NodeSpec], Alike] = {}
        self._alike: dict[DeviceType, list[Alike]] = {}
        self._on_node: dict[tuple[int, DeviceType], list[DeviceLine]] = {}
        for node in cluster.nodes:
            devices = [(device, self.unit(device.type)) for device in node.accelerators]
            for device, lanes in [(node.cpu, node.cpus)] * bool(node.cpus) + devices:
                line = DeviceLine(len(lines), device.type, lanes, device)
                lines.append(line)
                self._on_node.setdefault((node.index, device.type), []).append(line)
                if (group := groups.get((device.type, node.spec))) is None:
                    group = groups[device.type, node.spec] = Alike(device.type)
                    self._alike.setdefault(device.type, []).append(group)
                group.add(line)
        return lines

    def expected(self, task: Task, placement: Placement, free: float, view: View) -> tuple[float, float]:
        """Return begin and end of a task on devices that are free at `free`."""
        raise NotImplementedError

    def assign(self, task: Task, view: View) -> LineTask | None:
        best = math.inf
        chosen: LineTask | None = None
        size = sum(view.items[item].size for item in dict.fromkeys((*task.reads, *task.writes)))
        near = self._nodes_near(task, view) if self.with_data and task.reads else []
        for mode in task.fastest_modes():
            need = self.need(mode)
            room = mode.type.memory is None or mode.gpu_memory + size <= mode.type.memory
            if not room and not mode.on_cpu:
                continue
            for lines in self._candidates(mode, need, near, view):
                placement = Placement(mode, tuple(line.device for line in lines if line.device is not None))
                free = max(line.free_at(need, view.now) for line in lines)
                begin, end = self.expected(task, placement, free, view)
                if chosen is None or end < best:
                    best = end
                    chosen = LineTask(task, mode, placement, lines=lines, need=need, begin=begin, length=end - begin)
        return chosen

    def _candidates(self, mode: Mode, need: int, near: list[int], view: View) -> Iterator[tuple[DeviceLine, ...]]:
        nodes = view.cluster.nodes
        for node in near:
            if mode.gpus <= 1:
                for line in self._on_node.get((node, mode.type), ()):
                    if line.up and can_host(nodes[node], mode):
                        yield (line,)
        for group in self._alike.get(mode.type, ()):
            device = group.lines[0].device
            assert device is not None
            if mode.gpus > 1 or not (mode.span_any or can_host(nodes[device.node], mode)):
                continue
            if need == 1:
                if (earliest := group.first()) is not None:
                    yield (earliest,)
            else:
                yield from ((line,) for line in group.lines if line.up)
        if mode.gpus > 1:
            yield from self._gangs(mode, view)

    def _gangs(self, mode: Mode, view: View) -> Iterator[tuple[DeviceLine, ...]]:
        """Yield sets of queues for a gang: per node the first that are free.

        If the gang may span nodes, the last set has the first free queues of all nodes.
        """
        need, now = self.need(mode), view.now
        everywhere: list[tuple[float, int, DeviceLine]] = []
        for node in view.cluster.nodes:
            lines = self._on_node.get((node.index, mode.type), [])
            here = sorted((line.free_at(need, now), line.number, line) for line in lines if line.up)
            if len(here) >= mode.gpus and can_host(node, mode):
                yield tuple(line for _, _, line in here[: mode.gpus])
            everywhere += here[: _share_of(node, mode)] if mode.allows(node.index) else []
        if mode.span_any and len(everywhere) >= mode.gpus:
            yield tuple(line for _, _, line in sorted(everywhere)[: mode.gpus])

    @staticmethod
    def _nodes_near(task: Task, view: View) -> list[int]:
        """Return nodes with copies of a task's data, nodes with device copies first."""
        nodes: dict[int, None] = {}
        hosts: dict[int, None] = {}
        for item in task.reads:
            places = view.holders(item)
            for place in places:
                if isinstance(place, int):
                    if len(places) <= NEAR:
                        hosts[place] = None
                else:
                    nodes[place.node] = None
        return list(nodes | hosts)[:NEAR]


def _share_of(node: Node, mode: Mode) -> int:
    """Maximum number of a gang's devices for which the node has cores and memory."""
    share = mode.gpus
    if mode.millicores:
        share = min(share, MILLI * node.cpus * mode.gpus // mode.millicores)
    if mode.memory and node.memory is not None:
        share = min(share, node.memory * mode.gpus // mode.memory)
    return share


class Eft(EarliestLine):
    """Earliest finish time, online: each task to the device where it would end first.

    Decides where, by the estimated times of all tasks already assigned to each device; it ignores data locations.
    Assigned tasks start in the order in which they became ready.
    Reference: the online list scheduling of Graham, Bounds for Certain Multiprocessing Anomalies (1966), on unrelated
    machines; compared in Amaris, Lucarelli, Mommessin, Trystram, Generic Algorithms for Scheduling Applications on
    Hybrid Multi-core Machines (2017).  Known as `dm` in StarPU.  On m unrelated devices the makespan of independent
    tasks is at most m times the minimum (Aspnes, Azar, Fiat, Plotkin, Waarts, On-line Routing of Virtual Circuits,
    1997: greedy).  Weakness: greedy; a task with little gain occupies the device that the next task needs; tasks may
    run far from their data (see `dmda`).  Cost: O(kinds of node × device types + log devices) per task; linear in the
    devices of a type for gangs, tasks of several cores and fractions.
    """

    def expected(self, task: Task, placement: Placement, free: float, view: View) -> tuple[float, float]:
        mode = placement.mode
        return free, free + task.remaining_in(mode) / mode.span_rate(placement.devices)


class Dmda(EarliestLine):
    """Deque model data aware (`dmda` of StarPU): the worker that ends a task first.

    Decides where, as `eft`, but with transfer times.  These are the times of `bytes_in` and `bytes_out`, and of items
    that the task reads and the worker lacks, from where they are when the task becomes ready.  A worker is an
    accelerator, or the cores of a node; its tasks start in order of assignment.
    Reference: Augonnet, Thibault, Namyst, Wacrenier, StarPU: A Unified Platform for Task Scheduling on Heterogeneous
    Multicore Architectures (2011); Augonnet, Clet-Ortega, Thibault, Namyst, Data-Aware Task Scheduling on
    Multi-Accelerator Based Platforms (2010).  In StarPU each GPU occupies a core that drives it; to model this, set
    `driver_cores: 1` of the nodes.  With `prefetch`, the default as in StarPU, inputs of the next task in each device
    queue are transferred while the task before it computes.  Weakness: no ratio is proven; links are assumed idle; data
    that earlier tasks of the queue will transfer count as missing.
    Cost: O(copies of inputs + kinds of node × device types + log devices) per task; linear in the devices of a type for
    gangs, tasks of several cores and fractions.  For data on many nodes only the first nodes found are considered.

    prefetch: transfer inputs of a GPU's next task while the task before it computes.
    """

    with_data = True

    def __init__(self, prefetch: bool = True):
        super().__init__()
        self.prefetch = prefetch

    def expected(self, task: Task, placement: Placement, free: float, view: View) -> tuple[float, float]:
        """Return begin and end of a task on devices that are free at `free`.

        With several streams or `prefetch`, the upload may end before the devices are free.
        """
        stages = view.stages((task,), placement)
        kind = placement.mode.type
        bring = max(stages.ready, stages.write_back) + stages.upload
        hidden = kind.streams > 1 or (self.prefetch and not task.bytes_in and not placement.mode.on_cpu)
        uploaded = max(free, view.now + bring) if hidden else free + bring
        return free, uploaded + stages.restore + stages.compute + stages.download

    def after_starts(self, lines: Sequence[DeviceLine], view: View) -> Iterator[Decision]:
        if not self.prefetch:
            return
        for line in lines:
            job = line.head()
            if job is None or job.fetched or line.device is None or job.mode.on_cpu or len(job.lines) > 1:
                continue
            assert job.placement is not None
            if not line.up or not view.holds(job.task, job.placement):
                continue
            job.fetched = True
            for item in dict.fromkeys(job.task.reads):
                if (holders := view.holders(item)) and line.device not in holders:
                    yield Fetch(item, line.device)


class Dmdas(Dmda):
    """Deque model data aware sorted (`dmdas` of StarPU): `dmda`, queues by priority.

    Decides where, and in which order the tasks of a worker start: the highest `priority` first, at ties the task
    farthest from the end of the task graph (by the path of best estimated times), then in order of assignment.  The
    expected start of a new task is after all tasks of the worker, although the new task may overtake them.
    Reference: Augonnet, Thibault, Namyst, Wacrenier, StarPU (2011); with priorities by distance from the end it is the
    dynamic counterpart of HEFT, as in Agullo, Beaumont, Eyraud-Dubois, Kumar, Are Static Schedules So Bad? (2016).
    Weakness: that of `dmda` (no ratio; links assumed idle); also, a steady flow of urgent tasks starves all other
    tasks.  Cost: that of `dmda` per task; the distances once per run, O(n + edges).
    """

    def study(self, tasks: Tasks) -> None:
        super().study(tasks)
        self._levels = bottom_levels(tasks)

    def key(self, task: Task) -> tuple[float, float]:
        return -task.priority, -self._levels[task.index] if self._levels else 0.0


class ErLs(AssigningScheduler):
    """ER-LS: online list scheduling; each task is assigned once to CPUs or GPUs.

    Decides whether a task runs on a core or a GPU, when it becomes ready.  There are m cores and k GPUs; the task takes
    time p on a core and q on a GPU.  (1) If p is at least the time at which a GPU will be free plus q, the task is
    assigned to the GPUs.  (2) Otherwise it is assigned to the cores if p/sqrt(m) <= q/sqrt(k), else to the GPUs.  On
    each side the next task starts on the device that is free first.  Times count from the instant at which the system
    was last empty.
    Reference: Amaris, Lucarelli, Mommessin, Trystram, Generic Algorithms for Scheduling Applications on Hybrid
    Multi-core Machines (2017): at most 4 sqrt(m/k) times the minimum makespan for m >= k, also for task graphs that are
    revealed over time; no online algorithm has a ratio below sqrt(m/k) (Canon, Marchal, Simon, Vivien, Online
    Scheduling of Task Graphs on Heterogeneous Platforms, 2020).  If a task needs several devices, m and k are the
    numbers of tasks of its size that each side can run simultaneously.  With several accelerator types, the type that
    would complete the task first is used.  Weakness: rule (2) does not consider the load, so a side can be idle; a task
    that does not fit yet (several devices, memory) blocks the tasks behind it on its side.
    Cost: O(log devices) per task; for tasks of several devices, O(devices of their type).
    """

    def make_lines(self, cluster: Cluster) -> list[DeviceLine]:
        lanes: dict[DeviceType, int] = {}
        for node in cluster.nodes:
            if node.cpus:
                lanes[node.cpu.type] = lanes.get(node.cpu.type, 0) + node.cpus
            for device in node.accelerators:
                lanes[device.type] = lanes.get(device.type, 0) + self.unit(device.type)
        self._since = 0.0
        self._line = {kind: DeviceLine(number, kind, count) for number, (kind, count) in enumerate(lanes.items())}
        self._hosts = {
            kind: [n for n in cluster.nodes if n.cpu.type is kind or any(d.type is kind for d in n.accelerators)]
            for kind in lanes
        }
        self._can: dict[Mode, bool] = {}
        return list(self._line.values())

    def ready(self, task: Task) -> None:
        if not self.jobs and not self.waiting:
            self._since = self._view.now
        super().ready(task)

    def assign(self, task: Task, view: View) -> LineTask | None:
        jobs = [self._job(task, mode, view) for mode in task.fastest_modes() if mode.type in self._line]
        possible = [job for job in jobs if self._possible(job, view)] or jobs
        cpu = min((job for job in possible if job.mode.on_cpu), key=_end, default=None)
        gpu = min((job for job in possible if not job.mode.on_cpu), key=_end, default=None)
        if cpu is None or gpu is None:
            return cpu or gpu
        m, k = (max(1, job.lines[0].lanes // job.need) for job in (cpu, gpu))
        faster = cpu.length >= gpu.begin - self._since + gpu.length or cpu.length / sqrt(m) > gpu.length / sqrt(k)
        return gpu if faster else cpu

    def _job(self, task: Task, mode: Mode, view: View) -> LineTask:
        line = self._line[mode.type]
        need = self.need(mode) * max(1, mode.gpus)
        seconds = task.remaining_in(mode)
        return LineTask(task, mode, None, lines=(line,), need=need, begin=line.free_at(need, view.now), length=seconds)

    def _possible(self, job: LineTask, view: View) -> bool:
        mode = job.mode
        if mode not in self._can:
            self._can[mode] = mode.span_any or any(can_host(node, mode) for node in self._hosts[mode.type])
        data = sum(view.items[item].size for item in dict.fromkeys((*job.task.reads, *job.task.writes)))
        room = mode.on_cpu or mode.type.memory is None or mode.gpu_memory + data <= mode.type.memory
        return self._can[mode] and room


def _end(job: LineTask) -> float:
    return job.begin + job.length
