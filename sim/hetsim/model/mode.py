"""Modes: devices and resources with which a task can run, and stage times there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.model.batch_times import StageTable
from hetsim.model.cluster import Partition
from hetsim.model.curves import WorkCurve
from hetsim.model.demand import BatchTimes, SpanSpeeds, StageTime, Stopping, Times
from hetsim.model.device import Device
from hetsim.model.device_type import MILLI, WHOLE, DeviceType
from hetsim.model.exchange import Exchange


@dataclass(frozen=True, eq=False)
class Mode:
    """A device type and the resources that a launch occupies there.

    Modes are compared by identity.  `gpus` is the number of accelerators of a launch, and `share` the share that it
    occupies of each (millionths; WHOLE for whole accelerators); both are 0 in a CPU mode.  `millicores` and `memory`
    are occupied on the host; a gang on several nodes divides them in proportion to its accelerators (without
    accelerators: cores) on each node.  `gpu_memory` is occupied on each accelerator.  With `span_any` its devices may
    be on several nodes.  A launch of n tasks computes for `base(n)` plus the sum of its tasks' own times.
    """

    name: str
    type: DeviceType
    millicores: int = 0
    gpus: int = 0
    share: int = 0
    memory: int = 0
    gpu_memory: int = 0
    span_any: bool = False
    span_speed: float = 1.0  # rate of a gang with devices on more than one node
    span_speeds: SpanSpeeds | None = None  # rates of a gang by level; replace `span_speed` if given
    node_count: int = 1  # number of nodes of a launch; if above 1, each node has an equal part of everything
    exchange: Exchange | None = None  # traffic among its nodes and its training step, if known
    table: StageTable | None = None  # measured seconds by batch size, instead of those of `ComputeTime`
    upload: StageTime | StageTable = field(default_factory=StageTime)
    download: StageTime | StageTable = field(default_factory=StageTime)
    batch_limit: int = 1  # maximum number of tasks in one launch; UNLIMITED_BATCH: no limit
    partition: Partition | None = None  # the partition to which its tasks are bound
    # time by layout of the devices and finished fraction; tasks' times are those of the packed layout
    curve: WorkCurve | None = None
    parts: tuple[Mode, ...] = ()  # for a fused launch (`hetsim.model.fusion`): the mode of each of its tasks
    slice: str = ""  # profile of the MIG slice that it requires by name; empty: any slice that is large enough
    pinned: int | None = None  # bitmask of nodes that replace those of its partition, whose limits still count it
    fixed: float = 0.0  # compute seconds of a launch in addition to the sum of its tasks' own times

    nodes: int | None = field(init=False)  # bitmask of the nodes that it may use; None: all
    limited: bool = field(init=False)  # True if its partition limits what runs there in total
    scattered: bool = field(init=False)  # True if any of its stages is drawn from measured times that vary
    unit: Mode | None = field(init=False)
    """The part of a gang on one node, as a mode.  With `node_count` above 1: an equal part of everything; for a gang of
    cores on any nodes: one core; for any other mode: None."""
    # one whole accelerator of any node and nothing else, neither host nor GPU memory (most common)
    bare: bool = field(init=False)
    # `base(1)`: compute seconds of a one-task launch in addition to the task's own time
    single: float = field(init=False)

    def __post_init__(self) -> None:
        bound = self.partition
        inside = None if bound is None else bound.mask
        object.__setattr__(self, "nodes", inside if self.pinned is None else self.pinned)
        object.__setattr__(self, "limited", bound is not None and bound.limited)
        stages = (self.upload, self.table, self.download)
        scattered = any(isinstance(stage, StageTable) and bool(stage.spread) for stage in stages)
        object.__setattr__(self, "scattered", scattered)
        object.__setattr__(self, "unit", self._made_of())
        nothing_else = not (self.millicores or self.memory or self.gpu_memory) and bound is None
        object.__setattr__(self, "bare", self.gpus == 1 and self.share == WHOLE and nothing_else)
        object.__setattr__(self, "single", self.base(1))

    def _made_of(self) -> Mode | None:
        parts = self.node_count if self.node_count > 1 else self.millicores // MILLI
        if self.node_count == 1 and (self.gpus or not self.span_any):
            return None
        return Mode(
            self.name, self.type, millicores=self.millicores // parts, gpus=self.gpus // parts, share=self.share,
            memory=-(-self.memory // parts), gpu_memory=self.gpu_memory, partition=self.partition,
            slice=self.slice, pinned=self.pinned,
        )  # fmt: skip

    def base(self, count: int) -> float:
        """Return the seconds that a launch of `count` tasks adds to the tasks' own times."""
        return self.fixed if self.table is None else self.table.seconds_for(count)

    def computing(self, size: int, own: Times, left: float = 1.0) -> Times:
        """Return the compute seconds of a launch of `size` tasks.

        `own`: sum of the tasks' remaining times; `left`: the largest remaining fraction of a task.  This is the only
        formula of batch compute times: engine, forecasts, policies' estimates, capacities and theory all use it.
        """
        base: Any = self.base(size)  # whose product is added to a number or to an array
        return base * left + own

    def stages(self, size: int, own: float, left: float = 1.0) -> BatchTimes:
        """Return the seconds of upload, compute and download of a launch of `size` tasks.

        Upload and download include only the stated stage times, not the transfer of the tasks' bytes.  own: sum of the
        tasks' remaining compute seconds; left: largest remaining fraction of a task (1: nothing is done yet).
        """
        if self.on_cpu:
            return BatchTimes(0.0, self.computing(size, own, left), 0.0)
        up, down = self.upload.seconds_for(size), self.download.seconds_for(size)
        return BatchTimes(up, self.computing(size, own, left), down)

    @property
    def min_base(self) -> float:
        """Minimum, over batch sizes, of the seconds that a launch adds to tasks' times."""
        return self.single if self.table is None else self.table.min_seconds(self.batch_limit)

    @property
    def min_share(self) -> float:
        """Minimum fixed compute seconds per task of a batch, over all batch sizes."""
        if self.table is None:
            return self.base(self.batch_limit) / max(1, self.batch_limit)
        return self.table.min_per_item(self.batch_limit)

    @property
    def on_cpu(self) -> bool:
        return self.gpus == 0

    @property
    def whole_devices(self) -> bool:
        return self.share == WHOLE

    @property
    def cpus(self) -> float:
        """Cores occupied on the host."""
        return self.millicores / 1000

    @property
    def gpu_share(self) -> float:
        """GPUs occupied in total, as a number: 8.0 for a gang, 0.25 for a quarter."""
        return self.gpus * self.share / WHOLE

    @property
    def width(self) -> float:
        """Number of devices that are busy while a launch computes: GPUs, or cores."""
        return self.gpus * self.share / WHOLE if self.gpus else self.cpus

    def allows(self, node: int) -> bool:
        """Return True if the mode is allowed to use this node."""
        return self.nodes is None or bool(self.nodes >> node & 1)

    def span_rate(self, devices: Sequence[Device]) -> float:
        """Return a gang's rate factor by the distance of its devices; 1 for one device."""
        if len(devices) < 2:
            return 1.0
        if self.exchange is not None:
            return self.exchange.rate(devices)
        if self.span_speeds is not None:
            return self.span_speeds.rate_of(devices)
        if self.span_speed == 1.0 or all(device.node == devices[0].node for device in devices):
            return 1.0
        return self.span_speed

    def __repr__(self) -> str:
        return self.name


class Shape:
    """Modes and stopping costs of interchangeable tasks; equal shapes are one object."""

    __slots__ = ("index", "modes", "position", "preemptible", "stopping")

    def __init__(self, modes: Sequence[Mode], stopping: Stopping = Stopping(), preemptible: bool = True):  # noqa: B008
        if not modes:
            raise ValueError("a shape must have at least one mode")
        self.index = -1  # set by `Tasks`
        self.modes = tuple(modes)
        self.position = {mode: i for i, mode in enumerate(self.modes)}
        self.stopping = stopping
        self.preemptible = preemptible
