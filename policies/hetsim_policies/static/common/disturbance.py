"""Delays that a timetable does not model: shared links, memory, cores, sharing."""

from __future__ import annotations

import numpy as np

from hetsim.model.stages import download_rate
from hetsim_policies.static.common.instance import Instance


def undisturbed(instance: Instance) -> bool:
    """Return True if nothing can delay a task with private data."""
    return not shared_links(instance) and not memory_binds(instance) and not cores_bind(instance) and alone(instance)


def shared_links(instance: Instance) -> bool:
    """Return True if private data moves over a link that others can use."""
    moved = (instance.up + instance.down).any(axis=0)
    for kind, there in zip(instance.types, moved, strict=True):
        if not there or kind.kind == "cpu":
            continue
        if kind.link.duplex == "half" and kind.streams > 1 and np.isfinite(kind.link.upload):
            return True
        for node in instance.problem.cluster.nodes:
            mine = [one for one in node.accelerators if one.type is kind and one.switch is not None]
            finite = np.isfinite(min(node.spec.switch.upload, download_rate(node.spec.switch)))
            if finite and any([other.switch for other in node.accelerators].count(one.switch) > 1 for one in mine):
                return True
            if finite and mine and kind.streams > 1 and node.spec.switch.duplex == "half":
                return True
    return False


def memory_binds(instance: Instance) -> bool:
    """Return True if tasks may wait for memory, or items be evicted."""
    tasks, cluster = instance.problem.tasks, instance.problem.cluster
    used = [mode for mode in tasks.modes if mode.type in instance.types]
    items = sum(item.size for item in tasks.items)
    for kind in instance.types:
        if kind.memory is not None:
            demand = max((mode.gpu_memory for mode in used if mode.type is kind), default=0)
            if kind.streams * demand + items > kind.memory and (kind.streams > 1 or items):
                return True
    host = {kind: max((mode.memory for mode in used if mode.type is kind), default=0) for kind in instance.types}
    for node in cluster.nodes:
        if node.memory is not None:
            demand = node.cpus * host.get(node.cpu.type, 0)
            demand += sum(one.type.streams * host.get(one.type, 0) for one in node.accelerators)
            if demand > node.memory:
                return True
    return False


def cores_bind(instance: Instance) -> bool:
    """Return True if tasks on accelerators take host cores that others could need."""
    tasks = instance.problem.tasks
    return any(mode.cpus for mode in tasks.modes if mode.gpus and mode.type in instance.types)


def alone(instance: Instance) -> bool:
    """Return True if an accelerator computes one task at a time, at full rate."""
    return all(kind.streams == 1 or kind.sharing.kind == "exclusive" for kind in instance.types)
