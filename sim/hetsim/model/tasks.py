"""Tasks and the modes in which they can run.

Tasks live in columns (`Tasks`); one that is in flight is a `hetsim.model.task.Task`.
What many tasks have in common, their demands and the cost of stopping them, is one interned `Shape`.
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

CLOSE = 1e-9
"""Intervals by which a time may miss a checkpoint and still end with it."""

UNLIMITED_BATCH = 1 << 40
"""Requests in a batch where neither the service nor memory sets a limit."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of a transfer: `fixed` per launch plus `per_item` per task."""

    fixed: Seconds = 0.0
    """Time once a batch."""
    per_item: Seconds = 0.0
    """Time for each request of the batch."""

    def seconds_for(self, count: int) -> float:
        """Seconds for a launch of a number of tasks."""
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
    """Rates of a gang by the smallest part of the cluster that contains it.

    If several parts hold it, the fastest rate counts.  `island` and `switch` count where the nodes have them
    (`island`, `pcie: {switch: ...}`), `rack` where nodes have one.
    """

    island: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate of a gang within one NVLink island."""
    switch: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one PCIe switch; that of the level before unless given."""
    node: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one node; that of the level before unless given."""
    rack: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one rack; that of the level before unless given."""
    cluster: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate across racks; that of the level before unless given."""

    @classmethod
    def given(cls, **rates: float) -> SpanSpeeds:
        """Fill in all five rates from those given."""
        if not rates:
            raise ValueError("span_speeds must have a rate for at least one of island, switch, node, rack and cluster")
        rate = 1.0
        return cls(*[rate := rates.get(level, rate) for level in cls.__slots__])

    def check(self) -> None:
        """Raise KeyProblem for a rate that rises with distance."""
        for wide, narrow in (("node", "island"), ("node", "switch"), ("rack", "node"), ("cluster", "rack")):
            if getattr(self, wide) > getattr(self, narrow):
                raise KeyProblem(wide, f"a gang over one {wide} must not be faster than within one {narrow}")

    def rate_of(self, devices: Sequence[Device]) -> float:
        """Rate of a gang on these devices."""
        return max(getattr(self, level) for level in enclosures(devices))


def enclosures(devices: Sequence[Device]) -> list[str]:
    """Levels at which one part of the cluster has all devices, smallest first."""
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
    """Compute seconds of a launch beyond its tasks' own, by the number of tasks."""

    fixed: Seconds = 0.0
    """Time once a batch."""

    def base(self, count: int) -> float:
        """Seconds for a number of tasks: they rise, at most in proportion."""
        return self.fixed


@dataclass(frozen=True, eq=False)
class Mode(ComputeTime):
    """A device type and the resources of a launch there. Compared by identity.

    `gpus` counts the accelerators of a launch and `share` is what it takes of each (millionths; WHOLE unless
    fractional); both are 0 in a CPU mode.  `millicores` and `memory` are held on the host, of a gang across nodes in
    proportion to its accelerators there, or else to its cores; `gpu_memory` on each accelerator.
    `span_any`: its devices may lie on several nodes.
    A launch of n tasks computes for `base(n)` plus the sum of its tasks' own times.
    """

    name: str
    type: DeviceType
    millicores: int = 0
    gpus: int = 0
    share: int = 0
    memory: int = 0
    gpu_memory: int = 0
    span_any: bool = False
    span_speed: float = 1.0
    """Rate of a gang with devices on more than one node."""
    span_speeds: SpanSpeeds | None = None
    """Rates of a gang by level; given, it stands for `span_speed`."""
    node_count: int = 1
    """Number of nodes of a launch, above 1: as many different nodes, each with an equal part of everything."""
    exchange: Exchange | None = None
    """Traffic among its nodes, and the step that this is part of, if known."""
    table: StageTable | None = None
    """Measured seconds by batch size, in place of those of `ComputeTime`."""
    upload: StageTime | StageTable = field(default_factory=StageTime)
    download: StageTime | StageTable = field(default_factory=StageTime)
    batch_limit: int = 1
    """Most tasks in one launch; UNLIMITED_BATCH where nothing limits them."""
    partition: Partition | None = None
    """The partition to which its tasks are bound."""
    curve: WorkCurve | None = None
    """How its time depends on the layout of its devices and on what is done; the tasks' times are then those of the
    packed layout."""
    parts: tuple[Mode, ...] = ()
    """For a fused launch (`hetsim.model.fusion`): the mode of each of its tasks."""
    slice: str = ""
    """The profile of the MIG slice that it asks for by name; empty: any slice that is large enough."""
    pinned: int | None = None
    """Bitmask of nodes that take the place of those of its partition, whose limits still count it."""

    nodes: int | None = field(init=False)
    """Bitmask of the nodes that it may use; None: all."""
    limited: bool = field(init=False)
    """True if its partition limits what runs there in total."""
    scattered: bool = field(init=False)
    """True if any of its stages is drawn from measured times that vary."""
    unit: Mode | None = field(init=False)
    """The part of a gang, as a mode of one node: the part of each of `node_count` nodes, or one core of a gang of
    cores that may use any number of nodes.  None in all other modes."""
    bare: bool = field(init=False)
    """One whole accelerator of any node and nothing else, neither host nor its memory: the commonest demand by far."""
    single: float = field(init=False)
    """`base(1)`: what a launch of one task computes besides the task's own time."""

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
        """Compute seconds of a launch beyond its tasks' own, by the number of tasks."""
        return super().base(count) if self.table is None else self.table.seconds_for(count)

    def computing(self, size: int, own: Times, left: float = 1.0) -> Times:
        """Compute seconds of a launch of a number of tasks.

        `own`: of its tasks, what is left of each; `left`: the largest part left of one of them.  The one place that
        says how batches compute: engine, forecasts, policies' estimates, capacities and theory all ask here.
        """
        return self.base(size) * left + own

    def stages(self, size: int, own: float, left: float = 1.0) -> BatchTimes:
        """Seconds of the stages of a launch without bytes; no transfers on cores."""
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
        """GPUs occupied in all, as a number: 8.0 for a gang, 0.25 for a quarter."""
        return self.gpus * self.share / WHOLE

    @property
    def width(self) -> float:
        """Number of devices busy while a launch computes: GPUs, or cores."""
        return self.gpus * self.share / WHOLE if self.gpus else self.cpus

    def allows(self, node: int) -> bool:
        """Return True if the mode is allowed to use this node."""
        return self.nodes is None or bool(self.nodes >> node & 1)

    def span_rate(self, devices: Sequence[Device]) -> float:
        """Rate of a launch by the locality of its devices; 1 unless a gang."""
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

    A task with `state` bytes also needs the time to move them between host and device.  With `interval` work is
    safe only at multiples of it (computed seconds at nominal rate): a stop that keeps saves the state at once, a
    fault falls back to the last multiple.  inf: only saved stops keep work when a device fails.
    `checkpoint` seconds of each interval, its last, go into writing; times of tasks contain them (`with_checkpoints`).
    `input` ("saved" or "again"): is the input of a task part of the state that a stop saves, or does it come to the
    device again?  None: it is saved where there are `state` bytes.  After a failure it always comes again.
    `block`: a kernel can be left only between blocks of this length, where the device drains or flushes
    (`hetsim.model.cluster.Preemption`); 0: anywhere.  `idempotent`: its blocks can be thrown away and run again.
    """

    save: Seconds = 0.0
    """Time to save the state on a stop, besides moving its bytes."""
    restore: Seconds = 0.0
    """Time to restore the state on resuming, besides moving its bytes."""
    state: Bytes = 0
    """Bytes of state that are moved to the host and back."""
    interval: Seconds = math.inf
    """Computed time between checkpoints, to which a fault falls back; only saved stops count unless given."""
    block: Seconds = 0.0
    """Length of a block of the kernel, between which drain and flush can leave it; anywhere unless given."""
    idempotent: bool = False
    """True if blocks can be discarded and run again."""
    checkpoint: Seconds = 0.0
    """Time that each of those checkpoints takes, in which nothing is computed."""
    input: Literal["saved", "again"] | None = None
    """Whether the input (`bytes_in`, `upload`) is part of the state that a stop saves, or uploaded again: saved
    where state is above 0, else again; after a failure always again."""

    @classmethod
    def given(cls, interval: float = math.inf, checkpoint: float = 0.0, **others: Any) -> Stopping:
        """Make it from `interval`, the compute time between two checkpoints."""
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
        """Compute times plus the time for writing checkpoints.

        An interval includes its write, so a checkpoint follows every `interval - checkpoint` seconds of computing.
        None is written at the very end of a task.
        """
        if not self.checkpoint:
            return seconds
        between = self.interval - self.checkpoint
        return seconds + self.checkpoint * np.maximum(np.ceil(seconds / between - CLOSE) - 1, 0)


class Shape:
    """The modes of interchangeable tasks; equal ones are one object."""

    __slots__ = ("index", "modes", "position", "preemptible", "stopping")

    def __init__(self, modes: Sequence[Mode], stopping: Stopping = Stopping(), preemptible: bool = True):  # noqa: B008
        if not modes:
            raise ValueError("a shape must have at least one mode")
        self.index = -1  # given by the Tasks that holds it
        self.modes = tuple(modes)
        self.position = {mode: i for i, mode in enumerate(self.modes)}
        self.stopping = stopping
        self.preemptible = preemptible


@dataclass(frozen=True, slots=True)
class Item:
    """A named piece of data; `home` is the first node with it, None: every host.

    A `lasting` one (a model's weights) is state of the device rather than input of a task: loading it is not counted
    in the task's own time.
    An item without a home that a task of the run writes comes into being where that task ran; one with a home
    has a first version there.
    """

    name: Name
    """Name of the item, for reads and writes."""
    size: Bytes
    """Bytes of it."""
    home: int | None = field(default=None, metadata=NO_KEY)
    lasting: bool = field(default=False, metadata=NO_KEY)


@dataclass(frozen=True)
class KernelWork:
    """Work of kernels by row and mode, for fused launches (`hetsim.model.fusion`).

    Seconds of launching (`overhead`), of the operations alone and of the memory traffic alone: a kernel takes the
    overhead and the greater of the other two.  `bytes`: that traffic.  NaN where the work is not known.
    """

    overhead: np.ndarray
    operations: np.ndarray
    traffic: np.ndarray
    bytes: np.ndarray

    def alone(self, row: int, position: int) -> float:
        """Seconds of a task by itself; NaN if its work is unknown."""
        return float(self.overhead[row, position]) + float(
            max(self.operations[row, position], self.traffic[row, position])
        )

    @classmethod
    def unknown(cls, count: int, modes: int) -> KernelWork:
        """Writable columns for a number of rows and modes, filled with NaN."""
        return cls(*(np.full((count, modes), math.nan) for _ in range(4)))

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The columns in the order in which `KernelWork` takes them."""
        return self.overhead, self.operations, self.traffic, self.bytes

    def take(self, rows: np.ndarray) -> KernelWork:
        return KernelWork(*(column[rows] for column in self.columns))


@dataclass
class StagedRequests:
    """Requests with several stages, a task each; results count them once.

    Columns have a row for each task of the run.  Tasks of one request arrive together, in rows next to each other, and
    have one class, user, weight and deadline; admission is asked for the first of them, and the answer is that of all.
    """

    first: np.ndarray
    """The row of the first task of the request; a task that is no stage is a request of its own."""
    stage: np.ndarray
    """The stage, as an index of `stages`; -1 of a task that is none."""
    stages: list[str]
    """Names of the stages of all streams."""
    id: np.ndarray
    """The id of the request."""
    alone: np.ndarray
    """Seconds that the request takes alone (T*); NaN of a task that is no stage."""

    @property
    def count(self) -> int:
        """Number of requests; tasks without stages count too."""
        return int(np.count_nonzero(self.first == np.arange(len(self.first))))

    @property
    def last(self) -> np.ndarray:
        """Mask of the last task of each request, by which requests are counted."""
        return np.append(self.first[1:] != self.first[:-1], True)[: len(self.first)]


@dataclass
class Tasks:
    """Columns of a workload, a row a task, sorted by arrival (stable).

    `time[i, j]` is the true compute time of task i in mode j of its shape, `estimate` what policies may know
    (the same array where estimates are exact).  Optional columns are None where no task has them; NaN in
    `deadline` and inf in `expires` mean none.
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
    hash_ids: Ragged | None = None
    """Names of the blocks of each request's prompt; requests with the same first names have a common prefix."""
    time_limit: np.ndarray | None = None
    """Seconds that a task may hold its devices; inf where there is no limit.  See `RunInput.grace`."""
    partition_code: np.ndarray | None = None
    partitions: list[str] = field(default_factory=lambda: [""])
    """Partitions to which tasks are bound; empty: none."""
    refused: dict[int, str] = field(default_factory=dict)
    """By row: why a task is rejected as it comes, whatever the policies say."""
    staged: StagedRequests | None = None
    """Which tasks are stages of requests; None where none is."""
    extra: dict[str, np.ndarray] = field(default_factory=dict)
    """Further columns of the source (tokens, recorded starts, ...), by name; carried into the result."""

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
        """Compute seconds by task and mode, from `time` or `estimate`; else inf."""
        single = np.full((len(self.shapes), times.shape[1]), math.inf)
        for row, shape in zip(single, self.shapes, strict=True):
            row[: len(shape.modes)] = [mode.single for mode in shape.modes[: len(row)]]
        return times + single[self.shape]

    def name(self, index: int) -> Any:
        """The id of a row: the source's own, or the row number."""
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
        """True without transfers, task graph or expiry: a launch only computes."""
        return (
            self.bytes_in is None
            and self.bytes_out is None
            and self.predecessors is None
            and self.reads is None
            and self.writes is None
        )
