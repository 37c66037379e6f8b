"""Replicas of language models: requests join and leave at step boundaries, and equal steps are one event.

While a replica only decodes, each step is longer than the one before by the same amount (the context grows by a token
a sequence), so the time of many steps has a closed form.  The engine jumps to the step in which a sequence ends or KV
blocks run out; a request that arrives in between and may join cuts the jump at the end of the step under way, and so
does a change of speed, which stretches that step.  The same steps one by one give the same times up to rounding; a
test says so.
A replica fails with any of its devices: keys, values and prefixes are lost, and its requests begin elsewhere, with the
tokens that they have produced as part of what is read anew.
Cost: O(log members) a request and jump, O(block) where memory is tight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sim.engine.flight.links import Flow
from sim.engine.kernel.clock import TIMER, Timer
from sim.engine.language.generation import DECODING, NAN, OVER, QUEUED, Generation
from sim.engine.language.service_calls import ServiceCalls
from sim.engine.language.steps import Steps
from sim.model.plan import Placement
from sim.model.record import LAUNCH_COMPLETED, LAUNCH_LOST, LAUNCH_RUNNING


class Replica(Steps):
    """One copy of the model on the devices of a placement, which it keeps until it is given up."""

    def __init__(self, fleet: ServiceCalls, number: int, placement: Placement, prefills_only: bool = False):
        super().__init__(self._fired)
        self.fleet = fleet
        self.service = service = fleet.service
        self.policy = fleet.batching
        self.clock = fleet.clock
        self.code = fleet.recorder.replica(service.name, number, service.blocks, placement)
        self.rows = fleet.recorder.steps
        self.number = number
        self.placement = placement
        self.prefills_only = prefills_only
        self._empty_memory(service)
        self._nobody()
        self._stand_still(service, placement)
        self.loaded = True
        self.draining = False
        self.since = self.clock._now
        """Since when the devices are held without a row that records it."""
        self.load: tuple[float, float] | None = None
        self.loading_from = NAN
        self.flows: list[Flow] = []
        """The model on its way to the devices."""
        self.period = 0
        self.launch = -1
        self.busy_from = NAN

    @property
    def now(self) -> float:
        return self.clock._now

    @property
    def heads(self) -> Mapping[str, Generation]:
        return self.line.heads

    def enqueue(self, request: Generation) -> None:
        request.replica = self
        request.state = QUEUED
        request.period = -1
        self.outstanding += 1
        if self.by_client and self.stepping:
            self.coming.append(request)
            self.wake()
            return
        self._queue(request)
        if not self.stepping:
            self.wake()
        elif self.count > 1 and self.size < self.service.max_sequences and self.line.head() is request:
            self._cut()

    def wake(self) -> None:
        """Something has come while no step is under way: a boundary at this instant, after all of its arrivals."""
        if self.stepping:
            if self.count > 1:
                self._cut()
        elif self.entry < 0 and self.loaded:
            self.clock.at(self.clock._now, TIMER, self)

    def forget(self, request: Generation) -> None:
        """A waiting request has gone; its entry in the queue is thrown out when it comes up."""
        request.state = OVER
        self.line.gone(request)
        self.outstanding -= 1
        self.wake()

    def _fired(self, _: Timer) -> None:
        if self.stepping:
            self._settle()
            self.fleet.boundary()
            clock = self.clock
            head = clock._heap[0] if clock._heap else None
            if clock.feed_time == clock._now or (head is not None and head[0] == clock._now and head[1] < TIMER):
                clock.at(clock._now, TIMER, self)  # what else happens at this instant comes first
                return
        self._decide()

    def _decide(self) -> None:
        """Decide which members are preempted, which requests join, and what the next step does."""
        lag = 0.0
        gave_way = False
        if self.leaving:
            self._abort()
        if self.coming:
            self._line_up()
        if self.here:
            self._take_up()
        while self.decoding and self.residues[(1 - self.steps) % self.block] > self.free:
            lag += self._preempt()
            gave_way = True
        self.head = None
        if self.outstanding > len(self._members) and not (gave_way and self._members):
            lag += self._join()
        if not self._members:
            self._rest()
            return
        if math.isnan(self.busy_from):
            self._awake()
        self.began, self.lag = self.clock._now, lag
        self.copied += lag
        self.stepping = True
        if not self.prefilling:
            self._jump(gave_way)
            return
        plan = self.fleet.call(self.policy.step, self)
        self.prefill = list(plan.prefill)
        self.decodes = bool(plan.decode and self.decoding)
        self.reading = self._checked()
        if not self.prefill:
            self._jump(gave_way)
            return
        self.count = 1
        sequences, context = (self.decoding, self.context) if self.decodes else (0, 0)
        times = self.times
        if times.attends:
            seconds = times.of(self.reading, sequences, context, self._attended())
        else:
            seconds = times.of(self.reading, sequences, context)
        self._end_at(self.began + (lag + seconds / self.rate))

    def _awake(self) -> None:
        self.launch = self.fleet.number_launch()
        self.busy_from = self.clock._now
        self.copied = 0.0

    def _rest(self) -> None:
        """Nothing to do: the busy period is over."""
        if not math.isnan(self.busy_from):
            self._write(LAUNCH_COMPLETED, self.clock._now)
        self.fleet.rested(self)

    def _write(self, outcome: int, end: float) -> None:
        """A row for the period that ends: held since the end of the one before, busy from its first step on."""
        busy = (end - self.busy_from - self.copied) * self.width
        load = self.load or (NAN, NAN)
        start = self.busy_from if self.load is None else load[0]
        times = (self.since, start, *load, self.busy_from, end if outcome == LAUNCH_COMPLETED else NAN, NAN, end)
        self.fleet.write(self, self.launch, self.leader, self.served, outcome, times, busy, busy + self.surplus)
        self.since, self.load, self.busy_from = end, None, NAN
        self.served, self.leader, self.surplus = 0, -1, 0.0
        self.period += 1

    def close(self, end: float, outcome: int) -> None:
        """The last row: the devices are given back, or the run is over."""
        if not math.isnan(self.busy_from):
            if self.stepping:
                self._count_part(end)
                if outcome == LAUNCH_RUNNING:
                    self._cut_row(end)
            self._write(outcome, end)
        elif end > self.since or self.load is not None:
            load = self.load or (NAN, NAN)
            times = (self.since, load[0], *load, NAN, NAN, NAN, end)
            self.fleet.write(self, self.fleet.number_launch(), -1, 0, outcome, times, 0.0, 0.0)

    def fail(self) -> list[Generation]:
        """A device has failed: what the replica had is lost; its requests, which begin anew elsewhere."""
        now = self.clock._now
        if self.stepping and self.decodes and self.count > 1:
            self._cut()
            self.count -= 1  # all but the step under way gave their tokens
            if self.count:
                self._row(self._after(self.count))
                self.steps += self.count
        self.close(now, LAUNCH_LOST)
        self.clock.cancel(self)
        self.stepping = False
        for flow in self.flows:
            self.fleet.links.cancel(flow)
        self._line_up()
        waiting = self.line.everyone()
        for request in self._members.values():
            self._told_left(request, False)
            if request.state == DECODING:
                self._leave_decoding(request)
            self.fleet.gave_way(request, "failure")
        for request in self._loading.values():
            self._told_left(request, False)
            for flow in request.flows:
                self.fleet.links.cancel(flow)
            if request.source is not None and request.row in request.source.held:  # else that has failed before
                request.source.let_go(request)
        inside = [*self._members.values(), *self._loading.values()]
        for request in [*inside, *(one for one in waiting if one.source is None)]:
            request.begin_anew(now)
        for request in waiting:
            request.replica = None
        self._members, self._loading, self.held, self.here = {}, {}, {}, []
        self.line.clear()
        self.loaded = False  # nothing wakes it any more
        return [*inside, *waiting]

    def lose_source(self, request: Generation) -> None:
        """The replica from which a request that waits or loads here would have fetched its keys and values is gone:
        it is read here from its beginning."""
        loading = self._loading.pop(request.row, None)
        if loading is not None:
            self._told_left(request, False)
            for flow in request.flows:
                self.fleet.links.cancel(flow)
            self.free += self.blocks_of(self._stored(request))
        request.begin_anew(self.clock._now)
        request.replica = self
        if loading is not None:
            self._queue(request)
        self.wake()
