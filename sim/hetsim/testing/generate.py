"""Random clusters with random tasks, for property tests."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import DeviceType, Link, Power, Sharing
from hetsim.model.mode import Mode, Shape
from hetsim.model.slices import Slice, full_layouts
from hetsim.model.tasks import Item, Tasks
from hetsim.testing.systems import CPU, GB, System, cpu_mode, gpu_mode

# optional features of a random system, besides nodes, cores, GPUs and tasks
FEATURES = (
    "gangs", "fractions", "memory", "transfers", "streams", "sharing", "items", "graph", "stops", "estimates",
    "people", "ties",
)  # fmt: skip

GPU_MEMORY = 8 * GB
HOST_MEMORY = 64 * GB
ITEM = GB // 4  # maximum bytes of an item: the items of a task fit next to its own memory


def random_system(seed: int, *, nodes: int = 3, tasks: int = 25, features: Collection[str] | None = None) -> System:
    """Create a random system in which every task can run, equal for equal arguments.

    Parameters: seed: seed of the random numbers; nodes, tasks: numbers of nodes and tasks; features: names (from
        FEATURES) that the system may have; without this argument each feature has probability one half.
    Returns: the cluster and its tasks.
    """
    random = np.random.default_rng(seed)
    if features is None:
        features = [feature for feature in FEATURES if random.random() < 0.5]
    maker = _Maker(random, features)
    cluster = maker.cluster(nodes)
    return System(f"random {seed}", cluster, maker.tasks(cluster, tasks), seed=seed)


def systems(max_tasks: int = 25, max_nodes: int = 4) -> Any:
    """Create a hypothesis strategy of random systems that shrinks towards small ones.

    Parameters: max_tasks, max_nodes: maximum size of a system.
    Returns: the strategy.
    """
    from hypothesis import strategies

    return strategies.builds(
        random_system,
        strategies.integers(0, 2**20),
        nodes=strategies.integers(1, max_nodes),
        tasks=strategies.integers(1, max_tasks),
        features=strategies.lists(strategies.sampled_from(FEATURES), unique=True).map(tuple),
    )


class _Maker:
    def __init__(self, random: np.random.Generator, features: Collection[str]):
        self.random = random
        self.features = features

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    # Clusters -------------------------------------------------------------------------------------------------

    def cluster(self, nodes: int) -> Cluster:
        types = [self.gpu(f"g{number}") for number in range(int(self.random.integers(1, 3)))]
        specs = []
        for _ in range(nodes):
            counts = [(kind, int(self.random.integers(0, 4))) for kind in types]
            specs.append(
                NodeSpec(
                    cpus=int(self.random.integers(1, 5)),
                    memory=HOST_MEMORY if "memory" in self.features else None,
                    accelerators=tuple((kind, count) for kind, count in counts if count),
                    cpu_type=CPU,
                    switch_size=self.one_of(None, 2) if "transfers" in self.features else None,
                    switch=Link(upload=6 * GB, download=6 * GB),
                    network=Link(upload=GB, download=GB, latency=0.01) if "items" in self.features else Link(),
                )
            )
        return Cluster(specs)

    def gpu(self, name: str) -> DeviceType:
        link = Link()
        if "transfers" in self.features:
            link = Link(4 * GB, 2 * GB, self.one_of(0.0, 0.01), self.one_of("full", "half"))
        streams = self.one_of(1, 2) if "streams" in self.features else 1
        sharing = Sharing()
        if "sharing" in self.features:
            sharing = self.one_of(
                sharing,
                Sharing("timeslice", switch_cost=0.1),
                Sharing("mps", interference=0.2),
                Sharing("mig", layouts=((1.0,), (0.5, 0.5), (0.25,) * 4), reconfigure=0.5),
            )
        if sharing.kind == "timeslice":
            streams = 4
        if sharing.kind == "mig":
            streams, uneven = 1, ((1.0,), (Slice(0.5, 2 * GB), Slice(0.25, 5 * GB), Slice(0.25, GB)))
            layouts = self.one_of(sharing.layouts, uneven, full_layouts("A100-40"))
            sharing = replace(sharing, layouts=layouts, recut=self.one_of("empty", "idle"))
        power = Power(idle=20, busy=200)
        return DeviceType(name, memory=GPU_MEMORY, streams=streams, link=link, sharing=sharing, power=power)

    # Tasks ----------------------------------------------------------------------------------------------------

    def tasks(self, cluster: Cluster, count: int) -> Tasks:
        random = self.random
        shapes = [self.shape(cluster) for _ in range(int(random.integers(1, 5)))]
        mode_count = max(len(shape.modes) for shape in shapes)
        number = random.integers(0, len(shapes), count).astype(np.int32)
        times = self.durations((count, mode_count))
        for row in range(count):
            times[row, len(shapes[number[row]].modes) :] = np.inf
        estimate = times
        if "estimates" in self.features:
            estimate = times * random.lognormal(0.0, 0.5, times.shape)
        columns: dict[str, Any] = {}
        if "transfers" in self.features:
            columns.update(bytes_in=random.integers(0, 4, count) * GB, bytes_out=random.integers(0, 3, count) * GB)
        if "people" in self.features:
            columns.update(self.people(count))
        if "graph" in self.features:
            columns["predecessors"] = self.graph(count)
        if "items" in self.features:
            columns.update(self.data(cluster, count, columns))
        return Tasks(self.arrivals(count), number, shapes, time=times, estimate=estimate, **columns)

    def arrivals(self, count: int) -> np.ndarray:
        kind = self.one_of("at once", "steady", "bursts")
        if kind == "at once":
            return np.zeros(count)
        gaps = self.random.exponential(0.5, count)
        if kind == "bursts":
            gaps *= self.random.random(count) < 0.3
        times = np.cumsum(gaps)
        return np.floor(times) if "ties" in self.features else times

    def durations(self, size: tuple[int, int]) -> np.ndarray:
        if "ties" in self.features:
            return self.random.integers(0, 5, size).astype(float)
        return self.random.exponential(2.0, size)

    def shape(self, cluster: Cluster) -> Shape:
        modes = []
        for _ in range(int(self.random.integers(1, 4))):
            mode = self.mode(cluster)
            if mode is not None:
                modes.append(mode)
        if not modes:
            modes.append(cpu_mode())  # every node has a core
        stopping, preemptible = Stopping(), True
        if "stops" in self.features:
            save, restore = self.one_of(0.0, 0.2), self.one_of(0.0, 0.3)
            stopping = Stopping(save, restore, self.one_of(0, GB), self.one_of(1.0, np.inf))
            preemptible = self.random.random() < 0.8
        return Shape(modes, stopping, preemptible)

    def mode(self, cluster: Cluster) -> Mode | None:
        devices = [device for node in cluster.nodes for device in node.accelerators]
        memory = int(self.random.integers(0, 40)) * GB if "memory" in self.features else 0
        if not devices or self.random.random() < 0.3:
            node = self.one_of(*cluster.nodes)
            return cpu_mode(int(self.random.integers(1, node.cpus + 1)), memory=memory)
        device = self.one_of(*devices)
        node = cluster.nodes[device.node]
        more: dict[str, Any] = {"memory": memory, "millicores": int(self.random.integers(0, node.cpus + 1)) * 1000}
        if "memory" in self.features:
            more["gpu_memory"] = int(self.random.integers(0, 6)) * GB
        if "transfers" in self.features and self.random.random() < 0.3:
            more.update(upload=StageTime(0.1, 0.1), download=StageTime(0.0, 0.2))
        if "fractions" in self.features and self.random.random() < 0.6:
            return gpu_mode(device.type, self.one_of(0.25, 0.5, 1 / 3), **more)
        count = 1
        if "gangs" in self.features:
            count = int(self.random.integers(1, sum(d.type is device.type for d in node.accelerators) + 1))
            if count > 1 and self.random.random() < 0.5:
                more.update(span_any=True, span_speed=0.5)
        return gpu_mode(device.type, count, **more)

    def people(self, count: int) -> dict[str, Any]:
        deadline = self.random.exponential(20.0, count)
        deadline[self.random.random(count) < 0.3] = np.nan
        return {
            "priority": self.random.integers(0, 3, count).astype(float),
            "weight": self.random.integers(1, 4, count).astype(float),
            "user_code": self.random.integers(0, 3, count), "users": ["ada", "bob", "eve"],
            "class_code": self.random.integers(0, 2, count), "classes": ["a", "b"], "deadline": deadline,
        }  # fmt: skip

    def graph(self, count: int) -> list[tuple[int, ...]]:
        before = []
        for row in range(count):
            near = np.arange(max(0, row - 6), row)
            chosen = self.random.choice(near, min(len(near), int(self.random.integers(0, 3))), replace=False)
            before.append(tuple(sorted(chosen.tolist())))
        return before

    def data(self, cluster: Cluster, count: int, columns: dict[str, Any]) -> dict[str, Any]:
        items = [Item("everywhere", ITEM), Item("at home", ITEM, home=int(self.random.integers(len(cluster.nodes))))]
        reads: list[tuple[int, ...]] = [tuple(i for i in (0, 1) if self.random.random() < 0.4) for _ in range(count)]
        writes: list[tuple[int, ...]] = [()] * count
        if (before := columns.get("predecessors")) is not None:
            items += [Item(f"made by {row}", int(self.random.integers(1, ITEM))) for row in range(count)]
            reads = [(*some, *(2 + row for row in rows)) for some, rows in zip(reads, before, strict=True)]
            writes = [(2 + row,) for row in range(count)]
        return {"items": items, "reads": reads, "writes": writes}
