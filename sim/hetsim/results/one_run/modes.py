"""All modes of a workload as columns, for vectorized tables.

A shape is a list of modes that equal tasks share.  A mode has a *code*: `offset[shape] + position` in this list.  This
module also computes T*, the time that a task needs alone, which depends only on modes, links and the cluster.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from hetsim.model.cluster import Cluster, Node
from hetsim.model.device_type import MILLI, WHOLE
from hetsim.model.mode import Mode
from hetsim.model.stages import download_rate
from hetsim.model.tasks import Tasks


class ModeTable:
    """All modes of a workload, with their codes."""

    def __init__(self, tasks: Tasks, cluster: Cluster):
        self.tasks, self.cluster = tasks, cluster
        self.modes = tasks.modes
        sizes = [len(shape.modes) for shape in tasks.shapes]
        self.offset = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)[:-1]
        self.width = max(sizes, default=0)
        self._offered: dict[Mode, bool] = {}

    def codes(self, shape: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Return mode codes for numbers of shapes and positions in shapes; -1: no mode."""
        return position if len(self.offset) == 1 else np.where(position < 0, -1, self.offset[shape] + position)

    def column(self, value: Callable[[Mode], float], dtype: type = np.float64) -> np.ndarray:
        """One value per mode and a final 0, which index -1 (a task without mode) selects."""
        return np.array([*(value(mode) for mode in self.modes), 0], dtype=dtype)

    @cached_property
    def share(self) -> np.ndarray:
        """Share that the mode uses of each device (0.25, 1.0); 0 for a CPU mode."""
        return self.column(lambda mode: mode.share / WHOLE if mode.gpus else 0.0)

    @cached_property
    def cores(self) -> np.ndarray:
        return self.column(lambda mode: mode.millicores / MILLI)

    @cached_property
    def units(self) -> np.ndarray:
        """Units of a mode: GPUs in a GPU mode, cores in a CPU mode."""
        return self.column(units)

    @cached_property
    def dynamic_watts(self) -> np.ndarray:
        """Watts above idle of a launch that computes in this mode at nominal frequency."""
        return self.column(lambda mode: units(mode) * (mode.type.power.busy - mode.type.power.idle))

    @cached_property
    def on_cpu(self) -> np.ndarray:
        return self.column(lambda mode: mode.on_cpu, np.bool_)

    def offered(self, mode: Mode) -> bool:
        """Return True if the mode could run on the empty cluster; cached."""
        if mode not in self._offered:
            self._offered[mode] = offered(mode, self.cluster)
        return self._offered[mode]

    def by_shape(self, position: int, value: Callable[[Mode], float], missing: float) -> np.ndarray:
        """Return, by shape (set of modes), the value of mode `position`, or `missing`."""
        return np.array(
            [
                value(shape.modes[position])
                if position < len(shape.modes) and self.offered(shape.modes[position])
                else missing
                for shape in self.tasks.shapes
            ]
        )


def units(mode: Mode) -> float:
    """GPUs (with fractions) of a GPU mode, cores of a CPU mode."""
    return mode.millicores / MILLI if mode.on_cpu else mode.gpu_share


def capacity(mode: Mode, cluster: Cluster) -> float:
    """Number of units (GPUs or cores) of the mode's type in the whole cluster."""
    return float(cluster.count(mode.type.name))


def offered(mode: Mode, cluster: Cluster) -> bool:
    """Return True if the mode fits on the cluster while nothing else runs there."""
    if mode.unit is not None:
        return sum(_parts(mode, mode.unit, node) for node in cluster.nodes) >= (
            mode.node_count if mode.node_count > 1 else mode.millicores // MILLI
        )
    if mode.gpus and mode.span_any:
        return sum(_devices(mode, node) for node in cluster.nodes) >= mode.gpus
    seen = set()
    for node in cluster.nodes:
        if id(node.spec) in seen or (mode.on_cpu and node.cpu.type.name != mode.type.name):
            continue
        seen.add(id(node.spec))
        room = node.memory is None or mode.memory <= node.memory
        if room and mode.millicores <= node.cpus * MILLI and _devices(mode, node) >= mode.gpus:
            return True
    return False


def _parts(mode: Mode, unit: Mode, node: Node) -> int:
    if unit.on_cpu and node.cpu.type.name != unit.type.name:
        return 0
    room = node.cpus * MILLI // unit.millicores if unit.millicores else mode.node_count
    if unit.memory and node.memory is not None:
        room = min(room, node.memory // unit.memory)
    if unit.gpus:
        room = min(room, _devices(unit, node) // unit.gpus)
    return min(room, 1) if mode.node_count > 1 else room


def _devices(mode: Mode, node: Node) -> int:
    return sum(
        device.type.name == mode.type.name
        and (device.type.memory is None or mode.gpu_memory <= device.type.memory)
        and mode.share <= device.type.streams * WHOLE
        for device in node.accelerators
    )


@dataclass
class TaskTransfers:
    """Bytes that each task transfers when it runs alone; None if no task has any.

    Each device of a gang uploads from the host an equal part of the private input, and all of each item that the task
    reads.  The devices download equal parts of the private output and of written items that no task reads (an item with
    readers remains on the device).
    """

    private: np.ndarray | None
    items: np.ndarray | None
    output: np.ndarray | None


def transfers(tasks: Tasks) -> TaskTransfers:
    """Bytes that each task of a workload transfers when it runs alone."""
    if tasks.reads is None and tasks.writes is None:
        return TaskTransfers(tasks.bytes_in, None, tasks.bytes_out)
    sizes = np.array([item.size for item in tasks.items], dtype=np.float64)
    final = sizes.copy()
    final[np.fromiter(chain.from_iterable(tasks.reads or ()), np.int64)] = 0.0
    written = _sum_items(tasks.writes, final, len(tasks))
    output = tasks.bytes_out if written is None else written + (0 if tasks.bytes_out is None else tasks.bytes_out)
    sizes[[number for number, item in enumerate(tasks.items) if item.lasting]] = 0.0
    return TaskTransfers(tasks.bytes_in, _sum_items(tasks.reads, sizes, len(tasks)), output)


def _sum_items(lists: list[tuple[int, ...]] | None, sizes: np.ndarray, count: int) -> np.ndarray | None:
    if lists is None:
        return None
    rows = np.repeat(np.arange(count), np.fromiter(map(len, lists), np.int64, count))
    return np.bincount(rows, weights=sizes[np.fromiter(chain.from_iterable(lists), np.int64)], minlength=count)


def exclusive_time(table: ModeTable) -> np.ndarray:
    """T*: each task's true time alone in its fastest mode, in a batch of one.

    Includes upload and download (latency + bytes / link rate), except in CPU modes.  inf if no mode can run.
    """
    best = np.full(len(table.tasks), np.inf)
    moved = transfers(table.tasks)
    for position in range(table.width):
        np.fmin(best, mode_time(table, position, moved), out=best)
    return best


def mode_time(table: ModeTable, position: int, moved: TaskTransfers) -> np.ndarray:
    """True seconds of each task alone in one mode of its shape, transfers included.

    `position`: the number of the mode.  inf if the shape has no such mode, or the cluster cannot run it.
    """
    tasks = table.tasks

    def of_mode(value: Callable[[Mode], float], missing: float = 0.0) -> np.ndarray | float:
        return gather(table.by_shape(position, value, missing), tasks.shape)

    total = tasks.time[:, position] + of_mode(lambda mode: mode.stages(1, 0.0).total, math.inf)
    upload: np.ndarray | float = 0.0
    if moved.private is not None:
        upload = moved.private / of_mode(lambda mode: max(1, mode.gpus), 1.0)
    if moved.items is not None:
        upload = upload + moved.items
    output: np.ndarray | float = 0.0
    if moved.output is not None:
        output = moved.output / of_mode(lambda mode: max(1, mode.gpus), 1.0)
    for size, rate in (
        (upload, lambda mode: math.inf if mode.on_cpu else mode.type.link.upload),
        (output, lambda mode: math.inf if mode.on_cpu else download_rate(mode.type.link)),
    ):
        if isinstance(size, np.ndarray):
            latency = of_mode(lambda mode: 0.0 if mode.on_cpu else mode.type.link.latency)
            total += np.where(size > 0, latency + size / of_mode(rate, math.inf), 0.0)
    return total


def gather(values: np.ndarray, shape: np.ndarray) -> np.ndarray | float:
    return float(values[0]) if len(values) == 1 else values[shape]
