"""Transfers under way: data, and the rates at which they share their pipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.engine.kernel.clock import Timer


@dataclass(slots=True, eq=False)
class Pipe:
    """One direction of a link (or both, half duplex): bytes per second, shared fairly."""

    name: str
    rate: float
    group: FlowGroup | None = None
    booked: Flow | None = None
    """The last transfer that was booked on it; over if its time has come."""


class Flow(Timer):
    """A transfer under way; `done(flow)` is called when its last byte has arrived."""

    __slots__ = (
        "pipes", "left", "rate", "most", "done", "owner", "group", "ended", "since", "until", "turn", "called",
        "bookable",
    )  # fmt: skip

    def __init__(self, pipes: Sequence[Pipe], size: float, done: Callable[[Flow], None], owner: Any):
        self.entry = -1
        self.then = None
        self.pipes = pipes
        self.left = size
        self.rate = 0.0
        rate = math.inf
        for pipe in pipes:
            if pipe.rate < rate:
                rate = pipe.rate
        self.most = rate
        """Its rate if it is alone on its pipes."""
        self.done = done
        self.owner = owner
        self.group: FlowGroup | None = None
        self.ended = False
        self.since = 0.0
        """When it begins to flow, if it is booked."""
        self.turn = self.called = math.inf
        """The place of its beginning among what happens at that instant, and when that was decided."""
        self.until = math.inf
        """When the last byte of one that is booked arrives, if no other comes to its pipes before."""
        self.bookable = False
        """May it be booked once it is alone?"""

    def there(self, now: float, called: float) -> bool:
        """Return True if a booked transfer is under way for one `called` to begin now."""
        return self.until > now or (self.until == now and called < self.since and self.owner is not None)


class FlowGroup(Timer):
    """Coupled flows and their one pending event."""

    __slots__ = ("flows", "updated", "next")

    def __init__(self, then: Callable[[Any], None], now: float):
        self.entry = -1
        self.then = then
        self.flows: list[Flow] = []
        self.updated = now
        self.next: list[Flow] = []


def fair_rates(flows: Sequence[Flow]) -> None:
    """Max-min fair rates by progressive filling: the tightest pipe fixes its flows.

    Reference: Bertsekas, Gallager, Data Networks (1992), ch. 6.5.2.  Cost: O(pipes × flows).
    """
    if len(flows) == 2:
        one, two = flows
        joint_rate = 2.0 * (one.most if one.most > two.most else two.most)
        for pipe in one.pipes:
            if pipe.rate < joint_rate and pipe in two.pipes:
                break
        else:  # neither delays the other, as half of each pipe they share is enough for it
            one.rate, two.rate = one.most, two.most
            return
    users: dict[Pipe, list[Flow]] = {}
    for flow in flows:
        flow.rate = -1.0
        for pipe in flow.pipes:
            if pipe in users:
                users[pipe].append(flow)
            else:
                users[pipe] = [flow]
    if len(users) == 1:
        ((pipe, _),) = users.items()
        share = pipe.rate / len(flows)
        for flow in flows:
            flow.rate = share
        return
    free_rate = {pipe: pipe.rate for pipe in users}
    count = {pipe: len(on) for pipe, on in users.items()}
    todo = len(flows)
    while todo:
        tightest, share = None, math.inf
        for pipe, number in count.items():
            if number and free_rate[pipe] / number < share:
                tightest, share = pipe, free_rate[pipe] / number
        assert tightest is not None
        # Its flows that have no rate yet get equal shares, and take these from the other pipes on their way.
        for flow in users[tightest]:
            if flow.rate < 0:
                flow.rate = share
                todo -= 1
                for pipe in flow.pipes:
                    rest = free_rate[pipe] - share
                    free_rate[pipe] = rest if rest > 0.0 else 0.0
                    count[pipe] -= 1
