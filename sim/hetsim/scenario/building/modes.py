"""Modes of a run, each one built once, and checks that they fit the cluster."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hetsim.model.cluster import Cluster, Node, NodeSpec, Partition
from hetsim.model.curves import WorkCurve
from hetsim.model.demand import StageTime, Stopping
from hetsim.model.device_type import MILLI, WHOLE, DeviceType, micro_share, millicores
from hetsim.model.exchange import Exchange
from hetsim.model.mode import Mode, Shape
from hetsim.scenario.schema.demand import Demand, TaskMode
from hetsim.scenario.schema.service import VariantSpec


class ModeBook:
    """All modes and shapes (alternative modes of a task) of a run, without duplicates."""

    def __init__(self, cluster: Cluster, spreads: Collection[str] = ("gpus", "cores", "nodes")):
        self.cluster = cluster
        self.spreads = spreads  # `Scheduler.spreads` of the run's scheduler
        self.shapes: list[Shape] = []
        self._modes: dict[tuple[Any, ...], Mode] = {}
        self._shapes: dict[tuple[Any, ...], int] = {}
        self._fit: dict[int, bool] = {}
        self._of_kind: dict[str, list[DeviceType]] = {}
        # Nodes of one spec are alike: judging one of each keeps large clusters cheap.
        self._kinds: dict[NodeSpec, tuple[Node, int]] = {}
        self._kinds_of: dict[Partition, dict[NodeSpec, tuple[Node, int]]] = {}
        self._alike: dict[int, NodeSpec] = {}  # lists of nodes have a spec, and a name, for each
        for node in cluster.nodes:
            self._count(node, self._kinds)

    def _count(self, node: Node, kinds: dict[NodeSpec, tuple[Node, int]]) -> None:
        kind = self._alike.get(id(node.spec)) or self._alike.setdefault(
            id(node.spec), replace(node.spec, name=None, count=1, rack=None, first=None, partitions=())
        )
        first, count = kinds.get(kind, (node, 0))
        kinds[kind] = (first, count + 1)

    def _kinds_for(self, mode: Mode) -> dict[NodeSpec, tuple[Node, int]]:
        if (partition := mode.partition) is None:
            return self._kinds
        if partition not in self._kinds_of:
            kinds = self._kinds_of[partition] = {}
            for node in self.cluster.nodes:
                if partition.mask >> node.index & 1:
                    self._count(node, kinds)
        return self._kinds_of[partition]

    def of_kind(self, kind: str) -> list[DeviceType]:
        if kind not in self._of_kind:
            self._of_kind[kind] = self.cluster.of_kind(kind)
        return self._of_kind[kind]

    def mode(
        self, device: DeviceType, demand: Demand | TaskMode, span_any: bool | None = None, name: str | None = None,
        partition: Partition | None = None, curve: WorkCurve | None = None, exchange: Exchange | None = None,
    ) -> Mode:  # fmt: skip
        """Return the mode of a demand, by default of 1 core or 1 GPU.

        `span_any`: the mode may use several nodes; if None, the demand's `span` decides.  `curve`: how the time depends
        on layout and work.  `exchange`: compute time and traffic of a training step.  Equal demands with the same curve
        and exchange share one Mode object.
        """
        on_cpu = device.kind == "cpu"
        slice, nodes, memory = demand.slice, demand.used("nodes"), demand.used("memory")
        if on_cpu:
            slice, count, share, gpu_memory, upload, download = None, 0, 0, 0, 0.0, 0.0
            cores = demand.cpus or 1.0
            wide = cores > 1 and cores == int(cores)  # parts of cores stay on one node
        else:
            gpus = device.sharing.share_of(slice) or demand.used("gpus")
            count, share = (int(gpus), WHOLE) if gpus >= 1 else (1, micro_share(gpus))
            gpu_memory, upload, download = demand.gpu_memory or 0, demand.used("upload"), demand.used("download")
            cores = demand.cpus or 0.0
            wide = count > 1
        label = f"{slice} of {device.name}" if slice else _label(device, cores, count, share)
        if nodes > 1:
            label, span_any = f"{nodes}x({label})", True
        else:
            span_any = wide and (demand.span == "any" if span_any is None else span_any)
        count, cores, memory = count * nodes, cores * nodes, memory * nodes
        span_speed = demand.used("span_speed") if span_any else 1.0
        span_speeds = demand.span_speeds if count > 1 or span_any else None
        spans = (span_any, span_speed, span_speeds, nodes)
        demands = (count, share, nodes * millicores(cores / nodes), memory, gpu_memory, *spans, upload, download)
        key = (device.name, *demands, name, partition, curve, slice, exchange and id(exchange))
        if (interned := self._modes.get(key)) is None:
            interned = self._modes[key] = Mode(
                name or label, device, millicores=demands[2], gpus=count, share=share, memory=memory,
                gpu_memory=gpu_memory, span_any=span_any, span_speed=span_speed, span_speeds=span_speeds,
                upload=StageTime(fixed=upload), download=StageTime(fixed=download), partition=partition,
                node_count=nodes, curve=curve, exchange=exchange, slice=slice or "",
            )  # fmt: skip
        return interned

    def served(self, device: DeviceType, way: VariantSpec, gpu_memory: int, batch_limit: int, several: bool) -> Mode:
        """Return a new mode of variant `way`; `several`: add the device to its name."""
        on_cpu = device.kind == "cpu"
        gpus = 0.0 if on_cpu else way.used("gpus")
        cores = (way.cpus or 1.0) if on_cpu else (way.cpus or 0.0)
        count, share = (0, 0) if on_cpu else (int(gpus), WHOLE) if gpus >= 1 else (1, micro_share(gpus))
        label = _label(device, cores, count, share)
        return Mode(
            f"{way.name}@{label}" if way.name and several else way.name or label, device, millicores=millicores(cores),
            gpus=count, share=share, memory=way.used("memory"), gpu_memory=0 if on_cpu else gpu_memory,
            **way.compute.given, table=way.compute.measured, upload=way.upload.measured or way.upload.made(),
            download=way.download.measured or way.download.made(), batch_limit=batch_limit,
        )  # fmt: skip

    def shape(self, modes: Sequence[Mode], stopping: Stopping, preemptible: bool) -> int:
        """Return the index of a shape (alternative modes of a task); add it if it is new."""
        key = (tuple(id(mode) for mode in modes), stopping, preemptible)
        if key not in self._shapes:
            self._shapes[key] = len(self.shapes)
            self.shapes.append(Shape(modes, stopping, preemptible))
        return self._shapes[key]

    def fits(self, mode: Mode) -> bool:
        """Return True if the mode can run on the empty cluster."""
        if (verdict := self._fit.get(id(mode))) is None:
            verdict = self._fit[id(mode)] = self._judge(mode)
        return verdict

    def _judge(self, mode: Mode) -> bool:
        if self._over_bounds(mode) or self._over_slices(mode):
            return False
        kinds = self._kinds_for(mode).values()
        if mode.unit is not None:
            return sum(self._parts(node, mode) * count for node, count in kinds) >= (
                mode.node_count if mode.node_count > 1 else mode.millicores // MILLI
            )
        if mode.on_cpu or not mode.span_any:
            return any(self._room(node, mode) >= max(1, mode.gpus) for node, _ in kinds)
        return sum(self._room(node, mode) * count for node, count in kinds) >= mode.gpus

    def _over_bounds(self, mode: Mode) -> str:
        bound, memory = mode.partition, mode.type.memory
        within = _within(bound)
        if bound is not None:
            for needed, limit, unit in ((mode.gpu_share, bound.max_gpus, "GPUs"), (mode.cpus, bound.max_cpus, "cores")):
                if limit is not None and needed > limit:
                    return f"{needed:g} {unit} exceed the {limit:g} that jobs{within} may use"
        if memory is not None and mode.gpu_memory > memory:
            max_memory = _size(memory)
            return f"{_size(mode.gpu_memory)} of GPU memory exceed the {max_memory} of one {mode.type.name}"
        if bound is not None and bound.max_nodes is not None and mode.node_count > bound.max_nodes:
            return f"{mode.node_count} nodes exceed the {bound.max_nodes} that jobs{within} may use"
        return ""

    def _over_slices(self, mode: Mode) -> str:
        kind = mode.type
        if mode.slice and kind.sharing.share_of(mode.slice) is None:
            names = ", ".join(dict.fromkeys(one.profile for one in kind.sharing.slices if one.profile))
            return f"{kind.name} has no slice {mode.slice}{names and f'; its profiles are {names}'}"
        share, within = f"a share of {mode.share / WHOLE:g}", f"any slice in the layouts of {kind.name}"
        if kind.sharing.kind != "mig" or mode.on_cpu or kind.slices_for(mode.share, mode.gpu_memory, mode.slice):
            return ""
        if not kind.slices_for(mode.share):
            return f"{share} is larger than {within}"
        return f"{_size(mode.gpu_memory)} of GPU memory for {mode.slice or share} exceed the memory of {within}"

    def _parts(self, node: Node, mode: Mode) -> int:
        """Return how many cores (or node parts: 0 or 1) of a mode an empty node can run."""
        unit = mode.unit
        assert unit is not None
        if self._room(node, unit) < max(1, unit.gpus):
            return 0
        if mode.node_count > 1:
            return 1
        return node.cpus if not unit.memory or node.memory is None else min(node.cpus, node.memory // unit.memory)

    def _room(self, node: Node, mode: Mode) -> int:
        """Return how many devices of a mode fit on an empty node (mode on cores: 0 or 1)."""
        if mode.on_cpu:
            fits = node.cpu.type is mode.type and mode.millicores <= node.cpus * 1000
            return int(fits and (node.memory is None or mode.memory <= node.memory))
        room = sum(device.type is mode.type for device in node.accelerators)
        # A gang across nodes holds cores and memory in proportion to its devices there.
        if mode.millicores:
            room = min(room, int(node.cpus * 1000 * mode.gpus / mode.millicores + 1e-9))
        if mode.memory and node.memory is not None:
            room = min(room, int(node.memory * mode.gpus / mode.memory + 1e-9))
        return room

    def why_not(self, mode: Mode, nodes_by: str = "nodes: N") -> str:
        """Return why a mode can never run; nodes_by: the key that allows several nodes."""
        if over := self._over_bounds(mode):
            return over
        if mode.unit is not None:
            return self._why_no_gang(mode, mode.unit)
        spreads = self.spreads if nodes_by else ()
        if not mode.on_cpu:
            return self._why_no_gpus(mode, "span: any" if "gpus" in spreads else "")
        ways = {"nodes": nodes_by, "cores": "span: any"}
        return self._why_no_cores(mode, " or ".join(way for task, way in ways.items() if task in spreads))

    def _why_no_cores(self, mode: Mode, nodes_by: str) -> str:
        device = mode.type
        kinds = [(node, count) for node, count in self._kinds_for(mode).values() if node.cpu.type is device]
        cores = max((node.cpus for node, _ in kinds), default=0)
        if mode.millicores <= cores * 1000:
            return f"{_size(mode.memory)} of memory exceed the memory of every node with enough cores"
        rest = " that do not drive accelerators" if any(node.spec.drivers for node, _ in kinds) else ""
        limit_text = f"the {cores} of any node{_within(mode.partition)}{rest}"
        spread = mode.millicores <= sum(count * node.cpus for node, count in kinds) * 1000
        way_out = f" ({nodes_by} would use several nodes)" if spread and nodes_by else ""
        return f"{mode.millicores / 1000:g} cores exceed {limit_text}{way_out}"

    def _why_no_gpus(self, mode: Mode, nodes_by: str) -> str:
        device, kinds = mode.type, self._kinds_for(mode).values()
        within, wanted = _within(mode.partition), f"{mode.gpus} × {mode.type.name}"
        present = [(sum(one.type is device for one in node.accelerators), count) for node, count in kinds]
        max_there = max((there for there, _ in present), default=0)
        total = sum(there * count for there, count in present)
        if not mode.span_any and mode.gpus > max_there:
            way_out = f" ({nodes_by} would use several nodes)" if nodes_by and mode.gpus <= total else ""
            return f"{wanted} exceed the {max_there} of any node{within}{way_out}"
        if mode.gpus > total:
            return f"{wanted} exceed the {total} of {within[4:] or 'the cluster'}"
        if too_large := self._over_slices(mode):
            return too_large
        needs = [f"{mode.millicores / 1000:g} cores"] if mode.millicores else []
        needs += [f"{_size(mode.memory)} of memory"] if mode.memory else []
        return f"no node with {wanted} has {' and '.join(needs)}"

    def _why_no_gang(self, mode: Mode, unit: Mode) -> str:
        there = sum(self._parts(node, mode) * count for node, count in self._kinds_for(mode).values())
        where = _within(mode.partition)[4:] or "the cluster"
        if mode.node_count == 1:
            memory = f" with {_size(unit.memory)} of memory each" if unit.memory else ""
            return f"{mode.cpus:g} cores{memory} exceed the {there} of {where}"
        needs = [f"{unit.cpus:g} cores"] if unit.millicores else []
        needs += [f"{unit.gpus} × {unit.type.name}"] if unit.gpus else []
        needs += [f"{_size(unit.memory)} of memory"] if unit.memory else []
        listed = " and ".join(filter(None, [", ".join(needs[:-1]), needs[-1]]))
        if not there:
            return f"no node of {where} has the {listed} that the job needs on each of {mode.node_count} nodes"
        return f"{mode.node_count} nodes with {listed} each exceed the {there} of {where}"


def _within(bound: Partition | None) -> str:
    return "" if bound is None else f" of partition {bound}"


def _label(device: DeviceType, cores: float, count: int, share: int) -> str:
    if device.kind == "cpu":
        return device.name if cores == 1 else f"{cores:g}x{device.name}"
    if share < WHOLE:
        return f"{share / WHOLE:.3g}x{device.name}"
    return device.name if count == 1 else f"{count}x{device.name}"


def _size(size: int) -> str:
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"
