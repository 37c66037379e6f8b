"""Decisions that a policy yields, and answers of admission and batching.

Their fields are not checked here, even in code compiled with mypyc: the engine checks them, and its message names the
task and the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hetsim.model.device import Device
from hetsim.model.plan import Placement
from hetsim.model.slices import Slice
from hetsim.model.task import Task
from hetsim.policy.request_queue import Requests


def as_number(value: Any, kind: Any = float) -> Any:
    """Return a number, of Python or NumPy, as a float or an int; None if it is none."""
    try:
        return made if (made := kind(value)) == value else None
    except (TypeError, ValueError, OverflowError):
        return None


class _Shown:
    __slots__: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names: Any = getattr(self, "__match_args__")  # noqa: B009  # which no declaration has
        return f"{type(self).__name__}({', '.join(str(getattr(self, name)) for name in names)})"


class Start(_Shown):
    """Launch one task, or several as one batch, on a placement.

    In a mode with `parts` (`hetsim.model.fusion.fused_mode`) several tasks are launched as one kernel, in this order,
    each in its own part of the mode.  Each task must be ready, or wait only for tasks before it in the launch
    (`View.together`).
    """

    # No dataclass, of which compiled code makes objects at a third of the speed.
    __slots__ = ("tasks", "placement")
    __match_args__ = ("tasks", "placement")

    def __init__(self, tasks: Task | Sequence[Task] | Requests, placement: Placement) -> None:
        self.tasks = tasks
        self.placement = placement


@dataclass(repr=False, eq=False, slots=True)
class Stop(_Shown):
    """Stop a running task's launch; the task waits again. `keep=False` loses its work.

    With a device: stop the replica of a language model on this device.  The requests of the replica wait again, and
    their tokens are prefilled again on other replicas; the service then lacks a replica (`Scheduler.replica`).
    """

    task: Task | Device
    keep: bool = True


@dataclass(repr=False, eq=False, slots=True)
class Move(_Shown):
    """Continue a running task elsewhere or in another mode; its state is transferred."""

    task: Task
    placement: Placement


@dataclass(repr=False, eq=False, slots=True)
class Reject(_Shown):
    """End a waiting task or requests for good; also an answer of admission policies.

    expired: True if the deadline or a timeout of the task has passed, or could not be met even if the task started now
    on an idle device.  The final status is then `expired`; with False it is `rejected`.
    """

    task: Task | Requests | None = None
    reason: str = "rejected"
    expired: bool = False


@dataclass(repr=False, eq=False, slots=True)
class Annotate(_Shown):
    """State why a waiting task that would fit is passed over (quota, ...).

    The decision does not change the run.  `hetsim explain` attributes the wait to this cause from now on, until the
    task starts or another cause is given.
    """

    task: Task
    cause: Literal["quota", "reservation", "topology", "choice"]


@dataclass(repr=False, eq=False, slots=True)
class Set(_Shown):
    """Set a device's frequency (1: nominal), put the device to sleep, or wake it.

    "off": the device sleeps; "on": it wakes up, and launches may be placed on it immediately and wait until it is
    awake; "wake": it wakes up, accepts no launch before it is awake, and the hook `device` is called when it is awake.
    """

    device: Device
    frequency: float | Literal["off", "on", "wake"] = 1.0


@dataclass(repr=False, eq=False, slots=True)
class Fetch(_Shown):
    """Copy a data item to a device (prefetch, load a model)."""

    item: int
    device: Device


@dataclass(repr=False, eq=False, slots=True)
class Drop(_Shown):
    """Remove a copy of a data item from a device: one not in use, and not the last."""

    item: int
    device: Device


@dataclass(repr=False, eq=False, slots=True)
class Partition(_Shown):
    """Set the layout of a MIG GPU, given as slices, shares or profiles.

    The GPU must be empty or, with `recut: idle`, the layout must contain its busy slices.  Starts do not change this
    layout; it remains until the policy sets another layout.  None: starts choose the layout again.
    """

    device: Device
    layout: Sequence[Slice | str | float] | None


class Wait:
    """End the round; the next round is at `until`, or as soon as something changes."""

    __slots__ = ("until",)

    on: str = "change"
    certain: float = -math.inf

    def __init__(self, until: float = math.inf):
        self.until = until

    def __repr__(self) -> str:
        return f"Wait({self.until})"


class Pause(Wait):
    """End the round as `Wait` does; `on` names the changes that start the next round.

    on="change": any change.  "fit": as "change", except that before the time `certain` the arrival of a task that fits
    nowhere starts no round.  "release": capacity is released (arrivals alone cannot help).  "ready": a task becomes
    ready (no task waits, so a release cannot help).
    """

    __slots__ = ("on", "certain")

    def __init__(
        self, on: Literal["change", "fit", "release", "ready"], until: float = math.inf, certain: float = math.inf
    ):
        self.until = until
        self.on = on
        self.certain = certain

    def __repr__(self) -> str:
        return f"Pause({self.on}, {self.certain})"


WAIT_FOR_CHANGE = Pause("change")
WAIT_FOR_FIT = Pause("fit")
WAIT_FOR_RELEASE = Pause("release")
WAIT_FOR_READY = Pause("ready")

Decision = Start | Stop | Move | Reject | Annotate | Set | Fetch | Drop | Partition | Wait


@dataclass(frozen=True)
class Accept:
    """Admission accepts the task; `modes`: positions of the modes that it may use."""

    modes: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Defer:
    """Admission decides again at `until`."""

    until: float


@dataclass(eq=False, slots=True)
class Take:
    """Launch requests as one batch, padded to `size` if given.

    which: a number (of the oldest requests), or these requests.
    """

    which: int | Sequence[Task]
    size: int | None = None


@dataclass(eq=False, slots=True)
class Discard:
    """Drop requests, and call the policy again.

    which: a number (of the oldest requests), or these requests.  expired: True if their time ran out, as in `Reject`;
    False if they are refused for another reason.
    """

    which: int | Sequence[Task]
    reason: str = "too late"
    expired: bool = True


class Delay:
    """Call the policy again at `until`, when `count` requests wait, or a batch ends.

    released: True to call the policy also when capacity was released, so that another device may be offered; default:
    True if neither a time nor a count is given.
    """

    __slots__ = ("until", "count", "released")

    def __init__(self, until: float = math.inf, count: int | None = None, released: bool | None = None):
        self.until = until
        self.count = count
        self.released = (until == math.inf and count is None) if released is None else released
