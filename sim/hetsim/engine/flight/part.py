"""Parts of a launch's uploads and downloads: one part for each accelerator."""

import math
from collections.abc import Sequence
from typing import Any

from hetsim.engine.flight.links import Flow, LinkPath
from hetsim.model.device import Device

INF = math.inf


class Part:
    """One accelerator's part of an upload or download.

    The part requests a copy engine at the time `ask`, gets it at `at`, and its transfer is done at `until`; each is inf
    while it is not known.  A transfer on a private path (`alone`) takes `delay` + `span` seconds.  Any other transfer
    passes its `legs` (the links of its route) one by one, by events; its end is not known in advance.
    """

    # Defaults stand in the class: most parts need few of them (measured: a third of what setting all costs).
    size = 0.0
    seconds = 0.0
    span = 0.0
    alone = False
    ask: float = INF
    at: float = INF
    until: float = INF
    delay: float = INF
    begun = False  # True once a transfer on a shared path has had its turn
    settled = False  # True if its bytes cannot change before its turn
    moved = True  # False if nothing had to be moved when its turn came
    legs: Sequence[Any] = ()
    flow: Any = None

    def __init__(
        self, owner: Any, lane: Any | None, device: Device, line: LinkPath | None = None, size: float = 0.0,
        seconds: float = 0.0,
    ):  # fmt: skip
        """Create a part: `size` bytes and `seconds` more on path `line` (None: set later)."""
        self.owner = owner
        self.lane = lane
        self.device = device
        if line is None:
            return
        self.size, self.seconds = size, seconds
        rate, latency, private = line
        if not private:
            self.settled = True
            return
        self.alone = True
        delay = latency if size else 0.0  # As `Links.send` calculates it.
        if rate == INF:
            delay += seconds  # nothing can be shared: a plain delay
        else:
            if seconds:
                size += seconds * rate
            self.span = size / rate  # without latency, since `serve` adds both
        self.delay = delay  # separate from `span`, so that `serve` adds them in its order

    def sent(self, flow: Flow) -> None:
        """Store the flow over links that moves these bytes, unless it has ended already."""
        self.begun = True
        if flow.until == INF and not flow.ended:  # else it is over
            self.flow = flow
            flow.owner = self  # its end now calls this part instead of a sketch


def insert_part(parts: list[Part], part: Part) -> None:
    """Insert a part into a list that is in the start order of launches."""
    parts.append(part)
    if len(parts) > 1 and parts[-2].owner.number > part.owner.number:
        parts.sort(key=lambda one: one.owner.number)  # an earlier launch may come late: after evictions, or expanded
