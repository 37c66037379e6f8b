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
from hetsim.model.cluster import NO_KEY, OPTIONAL
from hetsim.model.device import Device
from hetsim.model.ragged import Ragged

if TYPE_CHECKING:
    from hetsim.model.mode import Mode, Shape
    from hetsim.model.units import Bytes, Name, Part, Seconds

Times = TypeVar("Times", float, np.ndarray)

CLOSE = 1e-9  # tolerance, in intervals, for a task that ends at a checkpoint

UNLIMITED_BATCH = 1 << 40  # batch limit if neither the service nor memory sets one


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of a stage of a batch (a transfer, ...): `fixed` + `per_item` per task."""

    fixed: Seconds = 0.0
    """Time per batch."""
    per_item: Seconds = 0.0
    """Time for each task of the batch."""

    def seconds_for(self, count: int) -> float:
        """Return the seconds of a batch of `count` tasks."""
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
    """Rates (1: full) of a gang by the level (node, rack, ...) with all its devices.

    If several levels contain all devices, the fastest of their rates counts.  `island` and `switch` count only on nodes
    that have them (keys `island`, `pcie: {switch: ...}`), `rack` only if nodes have one.
    """

    island: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate of a gang within one NVLink island."""
    switch: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one PCIe switch. Default: the rate of `island`."""
    node: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one node. Default: the rate of `switch`."""
    rack: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one rack. Default: the rate of `node`."""
    cluster: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate across racks. Default: the rate of `rack`."""

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
    """Computed time between checkpoints, from which tasks resume after a fault. Default: only stops save work."""
    block: Seconds = 0.0
    """Length of a kernel's blocks: drain and flush stop a kernel only between two blocks. Default: at any time."""
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
        """True if no task has bytes to transfer, predecessors, or items to read or write."""
        return (
            self.bytes_in is None
            and self.bytes_out is None
            and self.predecessors is None
            and self.reads is None
            and self.writes is None
        )
