"""Clients of a language model that abort a request that takes too long, wherever it is."""

from __future__ import annotations

from heapq import heappop, heappush

from hetsim.engine.kernel.clock import TIMER, Timer
from hetsim.engine.language.generation import Generation
from hetsim.engine.language.service_calls import ServiceCalls


class Clients:
    """Clients of one service: one pending event for all of them."""

    def __init__(self, fleet: ServiceCalls):
        self.fleet = fleet
        self.clock = fleet.clock
        self.deadlines: list[tuple[float, int, Generation]] = []
        """When clients abort their requests: a heap."""
        self.timer = Timer(self._due)

    def watch(self, request: Generation) -> None:
        """Its client will not wait for ever."""
        heappush(self.deadlines, (request.arrival + self.fleet.service.timeout, request.row, request))
        if self.deadlines[0][2] is request:
            self.clock.again(max(self.deadlines[0][0], self.clock._now), TIMER, self.timer)

    def _due(self, _: Timer) -> None:
        deadlines, now, pending = self.deadlines, self.clock._now, self._pending
        while deadlines and (deadlines[0][0] <= now or not pending(deadlines[0][1])):
            request = heappop(deadlines)[2]
            if pending(request.row):
                self._abort(request)
        if deadlines:
            self.clock.again(deadlines[0][0], TIMER, self.timer)

    def _pending(self, row: int) -> bool:
        """Does a client wait for the last token of its request?"""
        return row in self.fleet.requests or row in self.fleet.answered

    def _abort(self, request: Generation) -> None:
        """A member leaves when the step under way is over; others are nowhere in a step and go at once."""
        if request.row in self.fleet.answered:
            self.fleet.aborted(request.task)
            return
        replica, request.leaves = request.replica, True
        if replica is not None and replica.requests.abort(request):
            return
        source = request.source
        if request.started:
            self.fleet.cut_off(request, self.clock._now)
        self.fleet.aborted(request.task)
        if source is not None and request.row in source.requests.held:
            source.requests.let_go(request)
