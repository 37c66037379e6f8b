"""Tasks and the modes in which they can run.

Tasks are stored in columns (`Tasks`); a task in flight is a `hetsim.model.task.Task`.  Demands and stopping costs that
many tasks have in common are one shared `Shape`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.batch_times import StageTable
from hetsim.model.cluster import MILLI, NO_KEY, OPTIONAL, WHOLE, Device, DeviceType, Partition
from hetsim.model.curves import WorkCurve
from hetsim.model.exchange import Exchange
from hetsim.model.ragged import Ragged

if TYPE_CHECKING:
    from hetsim.model.units import Bytes, Name, Part, Seconds

Times = TypeVar("Times", float, np.ndarray)

CLOSE = 1e-9  # tolerance, in intervals, for a task that ends at a checkpoint

UNLIMITED_BATCH = 1 << 40  # batch limit if neither the service nor memory sets one


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of a transfer: `fixed` per launch plus `per_item` per task."""

    fixed: Seconds = 0.0
    """Time per batch."""
    per_item: Seconds = 0.0
    """Time for each request of the batch."""

    def seconds_for(self, count: int) -> float:
        """Return the seconds of a launch of `count` tasks."""
        return self.fixed + self.per_item * count


class BatchTimes(NamedTuple):
    """Seconds of the stages of a launch that is alone on links and engines."""

    upload: float
    compute: float
    download: float

    @property
    def total(self) -> float:
        return self.upload + self.compute + self.download


@dataclass(frozen=True, slots=True)
class SpanSpeeds:
    """Rates of a gang by the level (node, rack, ...) that contains all its devices.

    If several levels contain all devices, the fastest of their rates counts.  `island` and `switch` count only on nodes
    that have them (keys `island`, `pcie: {switch: ...}`), `rack` only if nodes have one.
    """

    island: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate of a gang within one NVLink island."""
    switch: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one PCIe switch; the rate of `island` unless given."""
    node: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one node; the rate of `switch` unless given."""
    rack: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one rack; the rate of `node` unless given."""
    cluster: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate across racks; the rate of `rack` unless given."""

    @classmethod
    def given(cls, **rates: float) -> SpanSpeeds:
        """Return the rates; a level without a rate gets that of the level before it."""
        if not rates:
            raise ValueError("span_speeds must have a rate for at least one of island, switch, node, rack and cluster")
        rate = 1.0
        return cls(*[rate := rates.get(level, rate) for level in cls.__slots__])

    def check(self) -> None:
        """Raise KeyProblem if a wider level has a higher rate than a level inside it."""
        for wide, narrow in (("node", "island"), ("node", "switch"), ("rack", "node"), ("cluster", "rack")):
            if getattr(self, wide) > getattr(self, narrow):
                raise KeyProblem(wide, f"a gang over one {wide} must not be faster than within one {narrow}")

    def rate_of(self, devices: Sequence[Device]) -> float:
        """Return the rate of a gang on these devices."""
        return max(getattr(self, level) for level in enclosures(devices))


def enclosures(devices: Sequence[Device]) -> list[str]:
    """Return the levels (node, rack, ...) that contain all devices, smallest first."""
    first = devices[0]
    narrowest_first = []
    if all(device.node == first.node for device in devices):
        if first.island is not None and all(device.island == first.island for device in devices):
            narrowest_first.append("island")
        if first.switch is not None and all(device.switch == first.switch for device in devices):
            narrowest_first.append("switch")
        narrowest_first.append("node")
    if first.rack is not None and all(device.rack == first.rack for device in devices):
        narrowest_first.append("rack")
    return [*narrowest_first, "cluster"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ComputeTime:
    """Compute seconds of a launch in addition to the sum of its tasks' own times."""

    fixed: Seconds = 0.0
    """Time per batch."""

    def base(self, count: int) -> float:
        """Return the seconds of a launch of `count` tasks without the tasks' own times."""
        return self.fixed


@dataclass(frozen=True, eq=False)
class Mode(ComputeTime):
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
            self.name,
            self.type,
            millicores=self.millicores // parts,
            gpus=self.gpus // parts,
            share=self.share,
            memory=-(-self.memory // parts),
            gpu_memory=self.gpu_memory,
            partition=self.partition,
            slice=self.slice,
            pinned=self.pinned,
        )

    def base(self, count: int) -> float:
        """Return the seconds of a launch of `count` tasks without the tasks' own times."""
        return super().base(count) if self.table is None else self.table.seconds_for(count)

    def computing(self, size: int, own: Times, left: float = 1.0) -> Times:
        """Return the compute seconds of a launch of `size` tasks.

        `own`: sum of the tasks' remaining times; `left`: the largest remaining fraction of a task.  This is the only
        formula of batch compute times: engine, forecasts, policies' estimates, capacities and theory all use it.
        """
        return self.base(size) * left + own

    def stages(self, size: int, own: float, left: float = 1.0) -> BatchTimes:
        """Return the stage seconds of a launch that transfers no bytes (see `computing`)."""
        if self.on_cpu:
            return BatchTimes(0.0, self.computing(size, own, left), 0.0)
        up, down = self.upload.seconds_for(size), self.download.seconds_for(size)
        return BatchTimes(up, self.computing(size, own, left), down)

    @property
    def min_base(self) -> float:
        """Minimum of `base` over all batch sizes."""
        return self.single if self.table is None else self.table.min_seconds(self.batch_limit)

    @property
    def min_share(self) -> float:
        """Minimum of `base(n) / n` over all batch sizes n."""
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


@dataclass(frozen=True, slots=True)
class Stopping:
    """Costs of stopping: seconds to save and restore, bytes of state, checkpoints.

    A task with `state` bytes also needs the time to move them between host and device.  A checkpoint is written at each
    multiple of `interval` (computed seconds at nominal rate).  A stop that keeps work saves the present state; a
    failure of a device loses the work since the last checkpoint (if `interval` is inf: since the last stop that saved
    the state).  The last `checkpoint` seconds of each interval are for writing; times of tasks include them
    (`with_checkpoints`).

    `input`: "saved": the input of a task is part of the state that a stop saves; "again": it is uploaded again; None:
    saved if `state` is above 0.  After a failure it is always uploaded again.  `block`: with a device that drains or
    flushes, a kernel can be stopped only between blocks of this length (`hetsim.model.cluster.Preemption`); 0:
    anywhere.  `idempotent`: the kernel's blocks can be discarded and run again.
    """

    save: Seconds = 0.0
    """Time to save the state on a stop, in addition to moving its bytes."""
    restore: Seconds = 0.0
    """Time to restore the state on resuming, in addition to moving its bytes."""
    state: Bytes = 0
    """Bytes of state that are moved to the host and back."""
    interval: Seconds = math.inf
    """Computed time between checkpoints, from which tasks resume after a fault; unless given, only stops save work."""
    block: Seconds = 0.0
    """Length of a kernel's blocks: drain and flush stop a kernel only between two blocks; anywhere unless given."""
    idempotent: bool = False
    """True if the blocks of a kernel can be discarded and run again."""
    checkpoint: Seconds = 0.0
    """Time that each checkpoint takes, in which nothing is computed."""
    input: Literal["saved", "again"] | None = None
    """saved: the input (`bytes_in`, `upload`) is part of the state that a stop saves; again: it is uploaded again.
    Unless given, saved if `state` is above 0, else again; after a failure always again."""

    @classmethod
    def given(cls, interval: float = math.inf, checkpoint: float = 0.0, **others: Any) -> Stopping:
        """Return stopping costs; `interval` is the compute time between checkpoints."""
        return cls(interval=interval + checkpoint, checkpoint=checkpoint, **others)

    def check(self) -> None:
        """Raise KeyProblem or ValueError for intervals and checkpoints that contradict."""
        if self.interval <= self.checkpoint:
            raise KeyProblem("interval", "interval (between two checkpoints) must be above 0")
        if self.checkpoint and self.interval == math.inf:
            raise ValueError("checkpoint (the duration) needs interval (the time between two checkpoints)")

    @property
    def input_saved(self) -> bool:
        return self.state > 0 if self.input is None else self.input == "saved"

    def with_checkpoints(self, seconds: np.ndarray) -> np.ndarray:
        """Return compute times plus the time for writing checkpoints.

        An interval includes its write, so a checkpoint follows every `interval - checkpoint` seconds of computing.  No
        checkpoint is written at the very end of a task.
        """
        if not self.checkpoint:
            return seconds
        between = self.interval - self.checkpoint
        return seconds + self.checkpoint * np.maximum(np.ceil(seconds / between - CLOSE) - 1, 0)


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


@dataclass(frozen=True, slots=True)
class Item:
    """A named piece of data; `home`: first node with it, None if every host has it.

    A `lasting` item (such as a model's weights) is state of the device rather than input of a task: the time to load it
    is not part of the task's own time.  If a task of the run writes an item without a home, the item is created where
    that task runs; an item with a home has a first version there.
    """

    name: Name
    """Name of the item, for reads and writes."""
    size: Bytes
    """Size of the item in bytes."""
    home: int | None = field(default=None, metadata=NO_KEY)
    lasting: bool = field(default=False, metadata=NO_KEY)


@dataclass(frozen=True)
class KernelWork:
    """Work of kernels by row and mode, for fused launches (`hetsim.model.fusion`).

    Seconds for launching (`overhead`), for the operations alone, and for the memory traffic alone: a kernel takes the
    overhead plus the larger of the last two.  `bytes`: memory traffic.  NaN if the work is not known.
    """

    overhead: np.ndarray
    operations: np.ndarray
    traffic: np.ndarray
    bytes: np.ndarray

    def alone(self, row: int, position: int) -> float:
        """Return the seconds of a task by itself; NaN if its work is unknown."""
        return float(self.overhead[row, position]) + float(
            max(self.operations[row, position], self.traffic[row, position])
        )

    @classmethod
    def unknown(cls, count: int, modes: int) -> KernelWork:
        """Return writable columns for a number of rows and modes, filled with NaN."""
        return cls(*(np.full((count, modes), math.nan) for _ in range(4)))

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The columns, in the order of the arguments of `KernelWork`."""
        return self.overhead, self.operations, self.traffic, self.bytes

    def take(self, rows: np.ndarray) -> KernelWork:
        return KernelWork(*(column[rows] for column in self.columns))


@dataclass
class StagedRequests:
    """Requests with several stages, one task for each; results count them once.

    Columns have a row for each task of the run.  Tasks of one request arrive together, in consecutive rows, and have
    one class, user, weight and deadline; admission decides on the first task, and this decision applies to all tasks of
    the request.
    """

    first: np.ndarray  # row of the first task of the request; a task that is not a stage is its own request
    stage: np.ndarray  # index of the stage in `stages`; -1 for a task that is not a stage
    stages: list[str]  # names of the stages of all streams
    id: np.ndarray  # id of the request
    alone: np.ndarray  # seconds that the request takes alone (T*); NaN for a task that is not a stage

    @property
    def count(self) -> int:
        """Number of requests; a task that belongs to no staged request counts as one."""
        return int(np.count_nonzero(self.first == np.arange(len(self.first))))

    @property
    def last(self) -> np.ndarray:
        """True for the last task of each request; only these are counted as requests."""
        return np.append(self.first[1:] != self.first[:-1], True)[: len(self.first)]


@dataclass
class Tasks:
    """Columns of a workload, one row per task, sorted by arrival (stable).

    `time[i, j]` is the true compute time of task i in mode j of its shape, `estimate[i, j]` the time that policies may
    know (the same array if estimates are exact).  Optional columns are None if no task has them; NaN in `deadline` and
    inf in `expires` mean none.
    """

    arrival: np.ndarray
    shape: np.ndarray
    shapes: list[Shape]
    time: np.ndarray
    estimate: np.ndarray
    id: np.ndarray | None = None
    class_code: np.ndarray | None = None
    classes: list[str] = field(default_factory=lambda: [""])
    user_code: np.ndarray | None = None
    users: list[str] = field(default_factory=lambda: [""])
    priority: np.ndarray | None = None
    weight: np.ndarray | None = None
    deadline: np.ndarray | None = None
    expires: np.ndarray | None = None
    bytes_in: np.ndarray | None = None
    bytes_out: np.ndarray | None = None
    predecessors: list[tuple[int, ...]] | None = None
    reads: list[tuple[int, ...]] | None = None
    writes: list[tuple[int, ...]] | None = None
    items: list[Item] = field(default_factory=list)
    work: KernelWork | None = None
    # names of the blocks of each request's prompt; equal first names are a common prefix
    hash_ids: Ragged | None = None
    # seconds that a task may occupy its devices; inf: no limit.  See `RunInput.grace`
    time_limit: np.ndarray | None = None
    partition_code: np.ndarray | None = None
    partitions: list[str] = field(default_factory=lambda: [""])  # partitions to which tasks are bound; empty: none
    # by row: why a task is rejected on arrival, whatever the policies say
    refused: dict[int, str] = field(default_factory=dict)
    staged: StagedRequests | None = None  # which tasks are stages of requests; None if none is
    # further columns of the source (tokens, recorded starts, ...), by name; copied to the result
    extra: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, shape in enumerate(self.shapes):
            shape.index = index

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def request_count(self) -> int:
        """Number of tasks as results count them: the stages of a request are one."""
        return len(self) if self.staged is None else self.staged.count

    def computing(self, times: np.ndarray) -> np.ndarray:
        """Return compute seconds of single tasks by mode; inf for modes that a task lacks."""
        single = np.full((len(self.shapes), times.shape[1]), math.inf)
        for row, shape in zip(single, self.shapes, strict=True):
            row[: len(shape.modes)] = [mode.single for mode in shape.modes[: len(row)]]
        return times + single[self.shape]

    def name(self, index: int) -> Any:
        """Return the id of a row as in its source; the row number if it has none."""
        if self.id is None:
            return index
        value = self.id[index]
        return value.item() if isinstance(value, np.generic) else value

    @property
    def modes(self) -> list[Mode]:
        """Modes of all shapes; a shared mode appears several times."""
        return [mode for shape in self.shapes for mode in shape.modes]

    @property
    def plain(self) -> bool:
        """True if no task transfers data, has predecessors, or reads or writes items."""
        return (
            self.bytes_in is None
            and self.bytes_out is None
            and self.predecessors is None
            and self.reads is None
            and self.writes is None
        )
