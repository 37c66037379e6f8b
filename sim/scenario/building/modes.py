"""Interned modes and shapes of one run, and whether a cluster can ever run them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.model.cluster import MILLI, WHOLE, Cluster, DeviceType, Node, NodeSpec, Partition, micro_share, millicores
from sim.model.curves import WorkCurve
from sim.model.exchange import Exchange
from sim.model.tasks import Mode, Shape, SpanSpeeds, StageTime, Stopping
from sim.scenario.schema.service import VariantSpec


class ModeBook:
    """All modes and shapes of a run: equal demands are the same object, in whichever stream they occur."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
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
        """One node of each kind that the mode may use, and how many there are."""
        partition = mode.partition
        if partition is None:
            return self._kinds
        if partition not in self._kinds_of:
            kinds = self._kinds_of[partition] = {}
            for node in self.cluster.nodes:
                if partition.mask >> node.index & 1:
                    self._count(node, kinds)
        return self._kinds_of[partition]

    def of_kind(self, kind: str) -> list[DeviceType]:
        """As `Cluster.of_kind`, which looks at every device."""
        if kind not in self._of_kind:
            self._of_kind[kind] = self.cluster.of_kind(kind)
        return self._of_kind[kind]

    def mode(
        self,
        device: DeviceType,
        gpus: float = 1.0,
        cpus: float | None = None,
        memory: int = 0,
        gpu_memory: int = 0,
        span_any: bool = False,
        span_speed: float = 1.0,
        span_speeds: SpanSpeeds | None = None,
        upload: float = 0.0,
        download: float = 0.0,
        name: str | None = None,
        partition: Partition | None = None,
        nodes: int = 1,
        curve: WorkCurve | None = None,
        exchange: Exchange | None = None,
    ) -> Mode:
        """The mode with these demands; `cpus` is 1 in a CPU mode and 0 in another unless given.

        `nodes` above 1: the job is on that number of nodes, and cores, GPUs and memory are those of each.
        `curve`: how the time depends on the layout and on what is done; modes of one curve are the same.
        """
        on_cpu = device.kind == "cpu"
        if on_cpu:
            count, share, gpu_memory, upload, download = 0, 0, 0, 0.0, 0.0
            cores = cpus or 1.0
            wide = cores > 1 and cores == int(cores)  # parts of cores stay on one node
        else:
            count, share = (int(gpus), WHOLE) if gpus >= 1 else (1, micro_share(gpus))
            cores = cpus or 0.0
            wide = count > 1
        label = _label(device, cores, count, share)
        if nodes > 1:
            label, span_any = f"{nodes}x({label})", True
        else:
            span_any = span_any and wide
        count, cores, memory = count * nodes, cores * nodes, memory * nodes
        span_speed = span_speed if span_any else 1.0
        span_speeds = span_speeds if count > 1 or span_any else None
        spans = (span_any, span_speed, span_speeds, nodes)
        demands = (count, share, nodes * millicores(cores / nodes), memory, gpu_memory, *spans, upload, download)
        key = (device.name, *demands, name, partition, curve, exchange and id(exchange))
        known = self._modes.get(key)
        if known is None:
            known = self._modes[key] = Mode(
                name or label,
                device,
                millicores=demands[2],
                gpus=count,
                share=share,
                memory=memory,
                gpu_memory=gpu_memory,
                span_any=span_any,
                span_speed=span_speed,
                span_speeds=span_speeds,
                upload=StageTime(fixed=upload),
                download=StageTime(fixed=download),
                partition=partition,
                node_count=nodes,
                curve=curve,
                exchange=exchange,
            )
        return known

    def served(
        self, device: DeviceType, way: VariantSpec, service: str, gpu_memory: int, batch_limit: int, several: bool
    ) -> Mode:
        """A mode of a service on a type of device: its own, never shared with another entry."""
        on_cpu = device.kind == "cpu"
        gpus = 0.0 if on_cpu else way.gpus or 1.0
        cores = (way.cpus or 1.0) if on_cpu else (way.cpus or 0.0)
        count, share = (0, 0) if on_cpu else (int(gpus), WHOLE) if gpus >= 1 else (1, micro_share(gpus))
        label = _label(device, cores, count, share)
        return Mode(
            f"{way.name}@{label}" if way.name and several else way.name or label,
            device,
            millicores=millicores(cores),
            gpus=count,
            share=share,
            memory=way.memory or 0,
            gpu_memory=0 if on_cpu else gpu_memory,
            fixed=way.compute.fixed if way.compute.measured is None else way.compute.measured.of(1),
            table=way.compute.measured,
            upload=way.upload.measured or StageTime(way.upload.fixed, way.upload.per_item),
            download=way.download.measured or StageTime(way.download.fixed, way.download.per_item),
            batch_limit=batch_limit,
        )

    def shape(self, modes: Sequence[Mode], stopping: Stopping, preemptible: bool) -> int:
        """The number of the shape with these modes in this order."""
        key = (tuple(id(mode) for mode in modes), stopping, preemptible)
        if key not in self._shapes:
            self._shapes[key] = len(self.shapes)
            self.shapes.append(Shape(modes, stopping, preemptible))
        return self._shapes[key]

    def fits(self, mode: Mode) -> bool:
        """Could the mode run if the whole cluster were free?"""
        known = self._fit.get(id(mode))
        if known is None:
            known = self._fit[id(mode)] = self._judge(mode)
        return known

    def _judge(self, mode: Mode) -> bool:
        device = mode.type
        if device.memory is not None and mode.gpu_memory > device.memory:
            return False
        if device.sharing.kind == "mig" and not mode.on_cpu:
            largest = max(micro_share(part) for layout in device.sharing.layouts for part in layout)
            if mode.share > largest:
                return False
        if mode.partition is not None and mode.gpu_share > (mode.partition.max_gpus or mode.gpu_share):
            return False
        if mode.partition is not None and mode.cpus > (mode.partition.max_cpus or math.inf):
            return False
        kinds = self._kinds_for(mode).values()
        bound = mode.partition
        if bound is not None and bound.max_nodes is not None and mode.node_count > bound.max_nodes:
            return False
        if mode.unit is not None:
            return sum(self._parts(node, mode) * count for node, count in kinds) >= _parts_of(mode)
        if mode.on_cpu or not mode.span_any:
            return any(self._room(node, mode) >= max(1, mode.gpus) for node, _ in kinds)
        return sum(self._room(node, mode) * count for node, count in kinds) >= mode.gpus

    def _parts(self, node: Node, mode: Mode) -> int:
        """Nodes (1 or 0) or cores that a gang could have of one empty node."""
        unit = mode.unit
        assert unit is not None
        if self._room(node, unit) < max(1, unit.gpus):
            return 0
        if mode.node_count > 1:
            return 1
        return node.cpus if not unit.memory or node.memory is None else min(node.cpus, node.memory // unit.memory)

    def _room(self, node: Node, mode: Mode) -> int:
        """Devices that the mode could take on an empty node, as far as its host allows (of a CPU mode: 1 or 0)."""
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

    def why_not(self, mode: Mode) -> str:
        """Why a mode that does not fit can never run, as part of a sentence."""
        device, kinds = mode.type, self._kinds_for(mode)
        bound = mode.partition
        within = "" if bound is None else f" of partition {bound}"
        if bound is not None and bound.max_gpus is not None and mode.gpu_share > bound.max_gpus:
            return f"{mode.gpu_share:g} GPUs are more than the {bound.max_gpus:g} that jobs{within} may hold"
        if bound is not None and bound.max_cpus is not None and mode.cpus > bound.max_cpus:
            return f"{mode.cpus:g} cores are more than the {bound.max_cpus:g} that jobs{within} may hold"
        if device.memory is not None and mode.gpu_memory > device.memory:
            most = _size(device.memory)
            return f"{_size(mode.gpu_memory)} of GPU memory are more than the {most} of a {device.name}"
        if mode.unit is not None:
            return self._why_no_gang(mode, mode.unit, within)
        if mode.on_cpu:
            cores = max((node.cpus for node, _ in kinds.values() if node.cpu.type is device), default=0)
            if mode.millicores > cores * 1000:
                driving = any(node.spec.drivers for node, _ in kinds.values() if node.cpu.type is device)
                rest = " besides those that drive accelerators" if driving else ""
                text = f"{mode.millicores / 1000:g} cores are more than the {cores} of any node{within}{rest}"
                total = sum(count * node.cpus for node, count in kinds.values() if node.cpu.type is device)
                spread = mode.millicores <= total * 1000
                return text + (" (nodes: N or span: any would use several nodes)" if spread else "")
            return f"{_size(mode.memory)} of memory are more than any node with enough cores has"
        present = [sum(d.type is device for d in node.accelerators) for node, _ in kinds.values()]
        if not mode.span_any and mode.gpus > max(present, default=0):
            return (
                f"{mode.gpus} × {device.name} are more than the {max(present, default=0)} of any node{within} "
                "(span: any would use several nodes)"
            )
        total = sum(count * sum(d.type is device for d in node.accelerators) for node, count in kinds.values())
        if mode.gpus > total:
            return f"{mode.gpus} × {device.name} are more than the {total} of {within[4:] or 'the cluster'}"
        if device.sharing.kind == "mig" and not any(
            mode.share <= micro_share(part) for layout in device.sharing.layouts for part in layout
        ):
            return f"a share of {mode.share / WHOLE:g} is larger than any slice in the layouts of {device.name}"
        held = [f"{mode.millicores / 1000:g} cores"] if mode.millicores else []
        held += [f"{_size(mode.memory)} of memory"] if mode.memory else []
        return f"no node with {mode.gpus} × {device.name} has {' and '.join(held)}"


    def _why_no_gang(self, mode: Mode, unit: Mode, within: str) -> str:
        """The same of a gang over a number of nodes, or of one of cores."""
        kinds = self._kinds_for(mode)
        bound = mode.partition
        if bound is not None and bound.max_nodes is not None and mode.node_count > bound.max_nodes:
            return f"{mode.node_count} nodes are more than the {bound.max_nodes} that jobs{within} may use"
        there = sum(self._parts(node, mode) * count for node, count in kinds.values())
        where = within[4:] or "the cluster"
        if mode.node_count == 1:
            memory = f" with {_size(unit.memory)} of memory each" if unit.memory else ""
            return f"{mode.cpus:g} cores{memory} are more than the {there} of {where}"
        held = [f"{unit.cpus:g} cores"] if unit.millicores else []
        held += [f"{unit.gpus} × {unit.type.name}"] if unit.gpus else []
        held += [f"{_size(unit.memory)} of memory"] if unit.memory else []
        listed = " and ".join(filter(None, [", ".join(held[:-1]), held[-1]]))
        return f"{mode.node_count} nodes with {listed} each are more than the {there} of {where}"


def _parts_of(mode: Mode) -> int:
    """Nodes or cores of a gang."""
    return mode.node_count if mode.node_count > 1 else mode.millicores // MILLI


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
