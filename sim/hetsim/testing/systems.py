"""Small test systems, each for one thing that a policy can get wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hetsim.model.cluster import Cluster, NodeSpec, Partition
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import WHOLE, DeviceType, Link, Power, Sharing, micro_share
from hetsim.model.mode import Mode, Shape
from hetsim.model.randomness import RandomTree
from hetsim.model.record import RunInput
from hetsim.model.slices import Slice
from hetsim.model.tasks import Item, Tasks
from hetsim.scenario.scenario import Scenario

GB = 10**9
CPU = DeviceType("cpu", kind="cpu", power=Power(idle=1, busy=10))


@dataclass(frozen=True)
class System:
    """A cluster with a load, for any policy; the run has no time limit."""

    name: str
    cluster: Cluster
    tasks: Tasks
    seed: int = 0

    def run_input(self, scheduler: Any, admission: Any = None) -> RunInput:
        name = type(scheduler).__name__
        random = RandomTree(self.seed)
        return RunInput(
            self.name, self.cluster, self.tasks, scheduler=scheduler, admission=admission, random=random, policy=name
        )

    def __repr__(self) -> str:
        return f"System({self.name!r}: {self.cluster.describe()}, {len(self.tasks)} tasks)"


def workload(rows: Sequence[Sequence[float]], shapes: Sequence[Shape], **columns: Any) -> Tasks:
    """Create tasks from rows (arrival, shape number, time in each mode, ...).

    `estimate`: rows with the times that policies see instead of the true ones; every other column as in `Tasks`.
    """
    estimate = columns.pop("estimate", None)
    times = _table([row[2:] for row in rows])
    return Tasks(
        np.array([row[0] for row in rows], dtype=float),
        np.array([row[1] for row in rows], dtype=np.int32),
        list(shapes),
        time=times,
        estimate=times if estimate is None else _table(estimate),
        **columns,
    )


def _table(rows: Sequence[Sequence[float]]) -> np.ndarray:
    table = np.full((len(rows), max(map(len, rows))), math.inf)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def node(**parts: Any) -> NodeSpec:
    """Return a node of the test cluster, with the type of cores of `cpu_mode`."""
    return NodeSpec(cpu_type=CPU, **parts)


def cpu_mode(cores: float = 1, **more: Any) -> Mode:
    return Mode(f"{cores:g} cores", CPU, millicores=round(cores * 1000), **more)


def gpu_mode(kind: DeviceType, gpus: float = 1, **more: Any) -> Mode:
    """Return a mode on whole GPUs, or on a fraction of one GPU."""
    if gpus < 1:
        return Mode(f"{gpus:g} {kind.name}", kind, gpus=1, share=micro_share(gpus), **more)
    return Mode(f"{gpus:g} {kind.name}", kind, gpus=int(gpus), share=WHOLE, **more)


def small_systems() -> list[System]:
    return [build() for build in _BUILDERS]


def one_core() -> System:
    shape = Shape([cpu_mode()])
    rows = [(0, 0, 3), (1, 0, 1), (1, 0, 2), (1.5, 0, 0.25), (4, 0, 4), (30, 0, 1)]
    return System("one core", Cluster([node(cpus=1)]), workload(rows, [shape]))


def cpu_or_gpu() -> System:
    gpu = DeviceType("g", power=Power(idle=50, busy=250))
    either = Shape([cpu_mode(), gpu_mode(gpu)])
    only_cpu = Shape([cpu_mode(2)])
    only_gpu = Shape([gpu_mode(gpu, millicores=1000)])
    rows = [(0, 0, 8, 1), (0, 0, 2, 3), (0.5, 2, 2), (1, 0, 12, 1), (1, 1, 1.5), (2, 0, 4, 1), (2, 0, 1, 6), (9, 1, 2)]
    cluster = Cluster([node(cpus=2, accelerators=((gpu, 1),))])
    return System("CPU or GPU", cluster, workload(rows, [either, only_cpu, only_gpu]))


def gangs() -> System:
    gpu = DeviceType("g")
    shapes = [Shape([gpu_mode(gpu, size, millicores=size * 500)]) for size in (1, 2, 4)]
    shapes.append(Shape([gpu_mode(gpu, 6, millicores=3000, span_any=True, span_speed=0.5)]))
    shapes.append(Shape([gpu_mode(gpu, 4), gpu_mode(gpu, 2), gpu_mode(gpu, 1)]))
    rows = [(0, 0, 5), (0, 0, 6), (0, 1, 4), (0, 2, 3), (1, 3, 2), (1, 0, 1), (2, 4, 2, 3, 5), (2, 1, 2), (3, 2, 1),
            (3, 3, 1), (3, 4, 1, 1.5, 2.5), (20, 0, 1), (20, 2, 2)]  # fmt: skip
    cluster = Cluster([node(cpus=4, accelerators=((gpu, 4),), count=3)])
    return System("gangs on several nodes", cluster, workload(rows, shapes))


def fractions() -> System:
    gpu = DeviceType("g")
    shapes = [Shape([gpu_mode(gpu, size)]) for size in (0.25, 0.5, 1 / 3, 1)]
    rows = [(0, 0, 2), (0, 1, 3), (0, 2, 1), (0, 2, 2), (0, 2, 3), (0.5, 3, 1), (1, 0, 2), (1, 1, 1), (1, 3, 2),
            (2, 2, 1), (2, 0, 4), (2, 1, 2)]  # fmt: skip
    cluster = Cluster([node(accelerators=((gpu, 2),), count=2)])
    return System("fractions of GPUs", cluster, workload(rows, shapes))


def memory() -> System:
    gpu = DeviceType("g", memory=16 * GB)
    shapes = [
        Shape([gpu_mode(gpu, 0.25, gpu_memory=10 * GB, memory=8 * GB)]),
        Shape([gpu_mode(gpu, 0.5, gpu_memory=6 * GB, memory=20 * GB)]),
        Shape([cpu_mode(1, memory=24 * GB), gpu_mode(gpu, 1, gpu_memory=16 * GB)]),
        Shape([cpu_mode(2, memory=30 * GB)]),
    ]
    rows = [(0, 0, 3), (0, 0, 2), (0, 1, 2), (0, 2, 6, 2), (1, 3, 1), (1, 1, 2), (1, 2, 4, 3), (2, 0, 1), (2, 3, 2)]
    cluster = Cluster([node(cpus=4, memory=32 * GB, accelerators=((gpu, 1),), count=2)])
    return System("memory of hosts and GPUs", cluster, workload(rows, shapes))


def several_types() -> System:
    slow, fast = DeviceType("slow", speed=1), DeviceType("fast", speed=3)
    any_type = Shape([gpu_mode(slow), gpu_mode(fast)])
    gang = Shape([gpu_mode(slow, 2), gpu_mode(fast, 1)])
    rows = [(i * 0.4, i % 3 == 2, 3 + i % 4, 1 + i % 3) for i in range(15)]
    estimate = [(row[2] * (0.5 + 0.2 * (i % 6)), row[3] * (1.4 - 0.2 * (i % 5))) for i, row in enumerate(rows)]
    cluster = Cluster([node(accelerators=((slow, 2),), count=2), node(cpus=2, accelerators=((slow, 1), (fast, 1)))])
    return System("several types of GPU, wrong estimates", cluster, workload(rows, [any_type, gang], estimate=estimate))


def _transfers(name: str, gpu: DeviceType, switch: int | None) -> System:
    shapes = [
        Shape([cpu_mode(), gpu_mode(gpu)]),
        Shape([gpu_mode(gpu, upload=StageTime(fixed=0.2, per_item=0.1), download=StageTime(fixed=0.3))]),
    ]
    rows = [(i * 0.5, i % 2, 2 + i % 3, 0.5 + 0.25 * (i % 4))[: 4 - i % 2] for i in range(12)]
    sizes = {"bytes_in": np.arange(12) % 5 * GB, "bytes_out": np.arange(12) % 3 * GB // 2}
    host = node(cpus=2, accelerators=((gpu, 2),), switch_size=switch, switch=Link(upload=3 * GB, download=3 * GB))
    return System(name, Cluster([host]), workload(rows, shapes, **sizes))


def transfers() -> System:
    link = Link(upload=2 * GB, download=4 * GB, latency=0.01, duplex="half")
    return _transfers("transfers, one stream", DeviceType("g", link=link), None)


def overlapped_transfers() -> System:
    gpu = DeviceType("g", streams=2, link=Link(upload=2 * GB, download=4 * GB))
    return _transfers("transfers behind a switch, two streams", gpu, 2)


def time_slices() -> System:
    gpu = DeviceType("g", streams=6, sharing=Sharing("timeslice", switch_cost=0.05))
    rows = [(0, 0, 4), (0, 0, 1), (0.5, 1, 2), (1, 0, 2), (1, 1, 3), (1, 0, 1), (5, 0, 1), (5, 1, 2)]
    shapes = [Shape([gpu_mode(gpu)]), Shape([gpu_mode(gpu, 0.5)])]
    return System("time slices", Cluster([node(accelerators=((gpu, 2),))]), workload(rows, shapes))


def multi_process() -> System:
    gpu = DeviceType("g", memory=8 * GB, sharing=Sharing("mps", interference=0.3))
    rows = [(0, 0, 2), (0, 0, 3), (0, 1, 2), (1, 1, 1), (1, 0, 2), (1, 2, 1), (2, 0, 1), (2, 1, 3)]
    shapes = [Shape([gpu_mode(gpu, share, gpu_memory=2 * GB)]) for share in (0.25, 0.5, 1)]
    return System("multi-process sharing", Cluster([node(accelerators=((gpu, 2),))]), workload(rows, shapes))


def instances() -> System:
    uneven = Slice(0.5, 2 * GB), Slice(0.25, 4 * GB), Slice(0.25, 2 * GB)
    sharing = Sharing("mig", layouts=((1.0,), (0.5, 0.5), uneven), reconfigure=0.5, recut="idle")
    gpu = DeviceType("g", memory=8 * GB, sharing=sharing)
    rows = [(0, 0, 2), (0, 0, 3), (0, 1, 2), (1, 1, 1), (1, 0, 2), (1, 2, 1), (2, 0, 1), (2, 1, 3)]
    shapes = [Shape([gpu_mode(gpu, share, gpu_memory=size * GB)]) for share, size in ((0.25, 3), (0.5, 1), (1, 0))]
    return System("GPU instances", Cluster([node(accelerators=((gpu, 2),))]), workload(rows, shapes))


def task_graph() -> System:
    """Return a system with a task graph: four layers of three tasks that pass items."""
    gpu = DeviceType("g", memory=4 * GB, link=Link(upload=4 * GB, download=4 * GB))
    shapes = [Shape([cpu_mode(), gpu_mode(gpu, gpu_memory=GB // 2)])]
    rows = [(0, 0, 2 + i % 3, 0.5 + 0.5 * (i % 2)) for i in range(12)]
    before: list[tuple[int, ...]] = [()] * 3
    before += [(layer * 3 + i, layer * 3 + (i + 1) % 3) for layer in range(3) for i in range(3)]
    items = [Item(f"x{i}", GB // 2) for i in range(12)] + [Item("weights", GB, home=0)]
    reads = [(*row, 12) if number % 2 else row for number, row in enumerate(before)]
    cluster = Cluster([node(cpus=1, accelerators=((gpu, 1),), count=2, network=Link(upload=GB, download=GB))])
    tasks = workload(rows, shapes, predecessors=before, reads=reads, writes=[(i,) for i in range(12)], items=items)
    return System("task graph with data", cluster, tasks)


def zero_lengths() -> System:
    shape = Shape([cpu_mode()])
    rows = [(0, 0, 0), (0, 0, 1), (0, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 2), (1, 0, 0), (5, 0, 0)]
    before: list[tuple[int, ...]] = [(), (), (0,), (), (3,), (), (4, 5), ()]
    return System("tasks of no length", Cluster([node(cpus=2)]), workload(rows, [shape], predecessors=before))


def simultaneous() -> System:
    """Return a system whose arrivals and finishes coincide, with two servers per type."""
    gpu = DeviceType("g")
    shapes = [Shape([cpu_mode()]), Shape([gpu_mode(gpu)]), Shape([gpu_mode(gpu), cpu_mode(2)])]
    rows = [(i // 4, i % 3, 1 + i % 2, 2) for i in range(20)]
    cluster = Cluster([node(cpus=2, accelerators=((gpu, 2),))])
    return System("simultaneous arrivals and finishes", cluster, workload(rows, shapes))


def people() -> System:
    """Return a system with users, priorities, weights, classes and deadlines."""
    count = 16
    rows = [(0.5 * (i // 2), 0, 1 + i % 5) for i in range(count)]
    deadline = np.array([row[0] + 8 + 2 * (i % 4) for i, row in enumerate(rows)])
    deadline[::5] = np.nan
    deadline[3] = 0.1
    tasks = workload(
        rows, [Shape([cpu_mode()])],
        id=np.array([f"job-{i}" for i in range(count)], dtype=object),
        priority=np.array([float(i % 3) for i in range(count)]), weight=np.array([1.0 + i % 2 for i in range(count)]),
        user_code=np.arange(count) % 3, users=["ada", "bob", "eve"],
        class_code=np.arange(count) % 2, classes=["short", "long"], deadline=deadline,
    )  # fmt: skip
    return System("users, priorities, deadlines", Cluster([node(cpus=2)]), tasks)


def costly_stops() -> System:
    gpu = DeviceType("g", link=Link(upload=2 * GB, download=2 * GB))
    shapes = [
        Shape([gpu_mode(gpu)], Stopping(save=0.25, restore=0.5)),
        Shape([gpu_mode(gpu)], Stopping(save=0.1, restore=0.1, state=GB)),
        Shape([gpu_mode(gpu)], preemptible=False),
        Shape([gpu_mode(gpu, 2)], Stopping(save=0.2)),
    ]
    rows = [(0, 0, 6), (0, 2, 5), (1, 1, 1), (1, 3, 2), (2, 0, 0.5), (2, 1, 3), (3, 2, 1), (4, 0, 1), (4, 3, 0.5)]
    priority = np.array([0.0, 0, 2, 1, 3, 1, 2, 3, 2])
    tasks = workload(rows, shapes, priority=priority, deadline=np.array([40.0, 40, 12, 12, 8, 30, 20, 15, 25]))
    return System("costly stops", Cluster([node(accelerators=((gpu, 2),))]), tasks)


def partitions() -> System:
    """Return a system with tasks bound to overlapping partitions with usage limits."""
    gpu = DeviceType("g")
    inside = [("left",), ("left", "right"), ("right",)]
    cluster = Cluster([node(cpus=2, accelerators=((gpu, 2),), partitions=names) for names in inside])
    left_part = cluster.partitions["left"] = Partition("left", 0b011, max_gpus=3)
    right = cluster.partitions["right"] = Partition("right", 0b110, max_nodes=1)
    shapes = [
        Shape([gpu_mode(gpu, partition=left_part)]),
        Shape([gpu_mode(gpu, 2, partition=left_part), gpu_mode(gpu, partition=left_part)]),
        Shape([cpu_mode(partition=right), gpu_mode(gpu, millicores=500, partition=right)]),
        Shape([gpu_mode(gpu, 2, partition=right)]),
        Shape([gpu_mode(gpu, 2)]),
    ]
    rows = [(0, 0, 3), (0, 0, 2), (0, 1, 2, 3), (0, 2, 6, 2), (0.5, 3, 2), (1, 4, 1), (1, 0, 1), (1, 2, 2, 5),
            (1, 1, 1, 2), (2, 3, 1), (2, 4, 2), (3, 0, 1), (3, 2, 1, 1), (9, 3, 1), (9, 1, 1, 1)]  # fmt: skip
    names = ["", "left", "right"]
    code = np.array([0 if row[1] == 4 else 1 if row[1] < 2 else 2 for row in rows], dtype=np.int32)
    return System("partitions", cluster, workload(rows, shapes, partition_code=code, partitions=names))


def all_at_once() -> System:
    rows = [(0, i % 2, 1 + i * 7 % 11, 1) for i in range(40)]
    shapes = [Shape([cpu_mode()]), Shape([cpu_mode(2)])]
    return System("all at once", Cluster([node(cpus=3)]), workload(rows, shapes))


_BUILDERS = (
    one_core, cpu_or_gpu, gangs, fractions, memory, several_types, transfers, overlapped_transfers, time_slices,
    multi_process, instances, task_graph, zero_lengths, simultaneous, people, costly_stops, all_at_once,
    partitions,
)  # fmt: skip


# Small systems with services: requests in batches, and language models.


SERVICE = {
    "upload": {"per_item": "2 ms"}, "compute": {"per_item": "10 ms", "fixed": "50 ms"}, "download": {"fixed": "1 ms"},
}  # fmt: skip
STEP = {"fixed": "10 ms", "per_sequence": "1 ms", "per_prompt_token": "0.1 ms"}


@dataclass(frozen=True)
class ServedScenario(System):
    """A scenario with services, for policies that serve requests."""

    scenario: Scenario | None = None

    def run_input(self, scheduler: Any, admission: Any = None) -> RunInput:
        """Build the run input; the batching policy comes from the scenario's services."""
        assert self.scenario is not None
        built = self.scenario.build(1)
        return replace(built, scheduler=scheduler, admission=admission, policy=type(scheduler).__name__)

    def __repr__(self) -> str:
        return f"Served({self.name!r}: {self.cluster.describe()}, {len(self.tasks)} tasks)"


def served_systems() -> list[ServedScenario]:
    """Return the conformance suite's systems with services."""
    gpu = {"type": "g", "count": 2, "streams": 2}
    requests = _entry("web", 30, "30/s", {"service": SERVICE})
    jobs = _entry("jobs", 12, "4/s", {"gpu_time": {"distribution": "exponential", "mean": "0.4 s"}})
    distant = _entry("web", 20, "20/s", {"service": SERVICE | {"network": "5 ms"}})
    chat = _entry("chat", 12, "8/s", {"service": {"kind": "llm", "step": STEP}, "tokens": {"prompt": 50, "output": 6}})
    tight = {"kind": "llm", "step": STEP, "kv": {"tokens": 160, "block": 4}}
    crowded = _entry("chat", 14, "30/s", {"service": tight, "tokens": {"prompt": 40, "output": 30}})
    apart = {"kind": "llm", "step": STEP, "kv": {"per_token": "1 MB"}, "disaggregated": {"prefill": 1, "decode": 1}}
    handed = _entry("apart", 8, "8/s", {"service": apart, "tokens": {"prompt": 50, "output": 8}})
    scale = {"name": "target_requests", "max": 2, "target": 2}
    scaled = {"kind": "llm", "step": STEP, "model": "20 MB", "scale": scale}
    growing = _entry("chat", 12, "20/s", {"service": scaled, "tokens": {"prompt": 60, "output": 20}})
    several = gpu | {"streams": 1, "count": 5, "memory": "2 GB"}
    return [
        _served("requests in batches", gpu, [requests]),
        _served("requests and tasks", gpu, [requests, jobs]),
        _served("requests over a network", gpu | {"streams": 1}, [distant]),
        _served("a language model and tasks", gpu | {"streams": 1}, [chat, jobs]),
        _served("a language model short of memory", gpu | {"streams": 1}, [crowded, jobs]),
        _served("a language model by itself", gpu | {"streams": 1}, [crowded]),
        _served("two language models and requests", several, [handed, growing, requests]),
    ]


def _entry(name: str, count: int, rate: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "arrivals": {"process": "poisson", "rate": rate}, "count": count, **more}


def _served(name: str, gpu: dict[str, Any], workload: list[dict[str, Any]]) -> ServedScenario:
    from hetsim.scenario.scenario import load  # pydantic takes its time

    node = {"cpus": 4, "gpus": gpu, "pcie": {"upload": "5 GB/s"}}
    scenario = load({"name": "served", "seed": 1, "cluster": {"nodes": [node]}, "workload": workload})
    built = scenario.build(1)
    return ServedScenario(name, built.cluster, built.tasks, scenario=scenario)
