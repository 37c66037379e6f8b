"""Tasks and the modes in which they can run.

Tasks are stored in columns (`Tasks`); a task in flight is a `hetsim.model.task.Task`.  Demands and stopping costs that
many tasks have in common are one shared `Shape`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.model.device_type import NO_KEY
from hetsim.model.mode import Mode, Shape
from hetsim.model.ragged import Ragged

if TYPE_CHECKING:
    from hetsim.model.units import Bytes, Name


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
        """Return the seconds of task `row` alone in mode `position`; NaN: work unknown."""
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

    def taken(self, rows: np.ndarray) -> dict[str, Any]:
        """Return the columns of some rows, by name: of all fields that are arrays."""
        columns = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {name: column[rows] for name, column in columns if isinstance(column, np.ndarray)}

    def computing(self, times: np.ndarray) -> np.ndarray:
        """Return compute seconds by task and mode: `times` + fixed seconds; inf: no mode."""
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
