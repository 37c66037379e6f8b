"""Work whose speed depends on its devices' layout and changes as it proceeds."""

from collections.abc import Sequence
from typing import Protocol

from hetsim.model.device import Device

Layout = tuple[int, ...]  # number of accelerators of a launch on each of its nodes, in the order of its devices


class WorkCurve(Protocol):
    """The remaining work of a job, by layout and by its finished fraction.

    One unit of time is the time of the whole job on `packed`, the layout on the fewest nodes.  The engine calls
    `seconds_left` when a launch starts and `reached` when it is stopped; policies may call all methods.
    """

    @property
    def packed(self) -> Layout: ...

    def seconds_left(self, layout: Layout, done: float) -> float:
        """Return the time on `layout` from fraction `done` to the end; inf: it cannot end."""

    def reached(self, layout: Layout, done: float, time: float) -> float:
        """Return the finished fraction after this time on a layout, starting from `done`."""

    def rate(self, layout: Layout, done: float) -> float:
        """Return the rate on a layout at `done`: fraction of the work per unit of time."""

    def section(self, done: float) -> tuple[float, float]:
        """Return the finished fractions around `done` between which the rate is constant."""


def layout_of(devices: Sequence[Device]) -> Layout:
    """Return the number of these devices on each node, in node order."""
    counts: dict[int, int] = {}
    for device in devices:
        counts[device.node] = counts.get(device.node, 0) + 1
    return tuple(counts.values())
