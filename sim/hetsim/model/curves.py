"""Work whose speed depends on its devices' layout and changes as it proceeds."""

from collections.abc import Sequence
from typing import Protocol

from hetsim.model.cluster import Device

Layout = tuple[int, ...]
"""How many accelerators a launch has on each of its nodes, in the order of its devices."""


class WorkCurve(Protocol):
    """The remaining work of a job, by layout and by how much of it is done.

    All times are in units of the mode's time: the whole job on `packed`, the layout over the fewest nodes, takes 1.
    The engine asks `left` when a launch starts and `reached` when it is stopped; policies may ask all.
    """

    @property
    def packed(self) -> Layout: ...

    def seconds_left(self, layout: Layout, done: float) -> float:
        """Seconds from the fraction `done` to the end; inf if impossible."""

    def reached(self, layout: Layout, done: float, time: float) -> float:
        """The fraction done after this time on a layout, starting from `done`."""

    def rate(self, layout: Layout, done: float) -> float:
        """Fraction of the work done in a unit of time on a layout at `done`."""

    def section(self, done: float) -> tuple[float, float]:
        """Begin and end of the epoch around `done`, in which rates are constant."""


def layout_of(devices: Sequence[Device]) -> Layout:
    """The number of these devices on each node, in node order."""
    counts: dict[int, int] = {}
    for device in devices:
        counts[device.node] = counts.get(device.node, 0) + 1
    return tuple(counts.values())
