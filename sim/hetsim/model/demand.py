"""Demands of tasks: stage times, speeds of gangs by placement, costs of stopping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

from hetsim.errors import KeyProblem
from hetsim.model.device import Device
from hetsim.model.device_type import OPTIONAL

if TYPE_CHECKING:
    from hetsim.model.units import Bytes, Part, Seconds

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
    """Seconds of a launch's stages if no other launch uses its links or devices."""

    upload: float
    compute: float
    download: float

    @property
    def total(self) -> float:
        return self.upload + self.compute + self.download


@dataclass(frozen=True, slots=True)
class SpanSpeeds:
    """Rates of a gang (1: full speed) by the level that contains all its devices.

    Levels are island, switch, node, rack and cluster.  If several levels contain all devices, the fastest of their
    rates counts.  `island` and `switch` count only on nodes that have them (keys `island`, `pcie: {switch: ...}`),
    `rack` only if nodes have one.
    """

    island: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate of a gang within one NVLink island, relative to the mode's time."""
    switch: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one PCIe switch. Default: the rate of `island`."""
    node: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one node. Default: the rate of `switch`."""
    rack: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate within one rack. Default: the rate of `node`."""
    cluster: Part = field(default=1.0, metadata=OPTIONAL)
    """Rate of a gang across racks, relative to the mode's time. Default: the rate of `rack`."""

    @classmethod
    def given(cls, **rates: float) -> SpanSpeeds:
        """Return the speeds of gangs by span (island, switch, node, rack, cluster).

        A span that is not given has the speed of the next smaller one, the smallest 1.
        """
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
    """Constant compute time of a launch, which its tasks' own times are added to."""

    fixed: Seconds = 0.0
    """Time per batch."""

    def base(self, count: int) -> float:
        """Return the fixed seconds that a launch of `count` tasks adds to their own times."""
        return self.fixed


@dataclass(frozen=True, slots=True)
class Stopping:
    """Costs of stopping: seconds to save and restore, bytes of state, checkpoints.

    A task with `state` bytes also needs the time to move them between host and device.  A checkpoint is written at each
    multiple of `interval` (computed seconds at nominal rate).  A stop that keeps work saves the present state; a
    failure of a device loses the work since the last checkpoint (if `interval` is inf: since the last stop that saved
    the state).  The last `checkpoint` seconds of each interval are for writing; times of tasks include these seconds
    (`with_checkpoints`).

    `input`: "saved": the input of a task is part of the state that a stop saves; "again": it is uploaded again; None:
    saved if `state` is above 0.  After a failure it is always uploaded again.  `block`: on a device whose preemption is
    drain or flush (its blocks in progress end or are discarded), a kernel can be stopped only between blocks of this
    length (`hetsim.model.device_type.Preemption`); 0: anywhere.  `idempotent`: the kernel's blocks can be discarded and
    run again.
    """

    save: Seconds = 0.0
    """Time to save the state on a stop, in addition to moving its bytes."""
    restore: Seconds = 0.0
    """Time to restore the state on resuming, in addition to moving its bytes."""
    state: Bytes = 0
    """Bytes of state that are moved to the host and back."""
    interval: Seconds = math.inf
    """Computing time between checkpoints, from which tasks resume after a fault. Default: only a stop saves work."""
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
