"""Tokens of keys and values that the requests in a replica may come to hold, if each answer becomes as long as
announced.

A sequence that decodes holds a token more after every step until it ends, so the step at which it ends and what it
holds less the steps so far are constant: they are kept in order, and a look at a waiting request counts from there.
When one ends, those with more to come have grown by as much; the peak is the maximum over these ends.
Cost: O(sequences) a look, O(log sequences) to find a place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

Growth = tuple[int, int]
"""Less the step at which a sequence ends, and the tokens that it holds less the steps so far."""


class Reservations:
    """Those of one replica."""

    def __init__(self, whole: bool):
        self.whole = whole
        """Reserve for all at once, not for the peak."""
        self.decoding: list[Growth] = []
        """The last to end first."""
        self.of: dict[Any, Growth] = {}
        self.total = 0
        """Tokens that all of them hold at their ends."""

    def decodes(self, request: Any, to_hold: tuple[int, int], steps: int) -> None:
        """A sequence decodes from now on; to_hold: tokens yet to hold after its next one, and those it holds then."""
        more, there = to_hold
        self.of[request] = growth = (-steps - more, there - steps)
        insort(self.decoding, growth)
        self.total += growth[1] - growth[0]

    def left(self, request: Any) -> None:
        growth = self.of.pop(request, None)
        if growth is not None:
            del self.decoding[bisect_left(self.decoding, growth)]
            self.total -= growth[1] - growth[0]

    def need(self, steps: int, coming: list[tuple[int, int]]) -> int:
        """Tokens to hold for the sequences that decode and those of which each (to hold, there) is known."""
        if self.whole:
            return self.total + sum([more + there for more, there in coming])
        growths = self.decoding + [(-steps - more, there - steps) for more, there in coming]
        growths.sort()
        most = held = 0
        for count, (end, base) in enumerate(growths, start=1):
            held += base
            if held - count * end > most:
                most = held - count * end
        return most
