"""A fluid simulator that replays a log of decisions and shares no line with the engine.

Between two instants everything proceeds at a constant rate: a transfer at the max-min fair share of the links that it
crosses, a computation at the speed of its slowest device.  At every instant all rates are computed from the whole
state, and the next instant is the earliest completion.  There is no event list and nothing is updated in place, so
that a mistake in what the engine does for speed has no counterpart here.

It knows GPUs alone: gangs, fractions, time slices, MPS, links of a GPU and of a switch, full or half duplex, with
latency; stops with and without keeping the work, frequencies, slowdowns and failures.  Placements are legal: nothing
here checks capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

UPLOAD, READY, COMPUTE, DOWNLOAD = "upload", "ready", "compute", "download"
ASKED, LATENCY, FLOWING, DONE = "asked", "latency", "flowing", "done"
TINY_BYTES, TINY_SECONDS = 1.0, 1e-10
"""What rounding leaves of a transfer and of a computation."""


@dataclass(frozen=True)
class Wire:
    """A link, in bytes per second; half duplex: one pipe of the upload's rate for both directions."""

    upload: float = math.inf
    download: float = math.inf
    half_duplex: bool = False

    def pipe(self, name: tuple, stage: str) -> tuple[tuple, float]:
        if self.half_duplex:
            return (*name, "both"), self.upload
        return (*name, stage), self.upload if stage == UPLOAD else self.download


@dataclass(eq=False)
class Gpu:
    index: int
    wire: Wire = Wire()
    latency: float = 0.0
    switch: tuple[tuple, Wire] | None = None
    """The switch that it hangs on, by name, and that switch's link to the host."""
    sharing: str = "exclusive"
    switch_cost: float = 0.0
    interference: float = 0.0
    frequency: float = 1.0
    slowdown: float = 1.0

    def pipes(self, stage: str) -> list[tuple[tuple, float]]:
        """The links that bound a transfer, by name, and their rates."""
        crossed = [self.wire.pipe(("gpu", self.index), stage)]
        if self.switch is not None:
            name, wire = self.switch
            crossed.append(wire.pipe(("switch", *name), stage))
        return [(name, rate) for name, rate in crossed if rate < math.inf]


@dataclass(eq=False)
class Work:
    """A task: seconds by mode, bytes in and out, and what stops have left of it."""

    seconds: list[float]
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    done: float | None = None
    """The fraction that is computed, once a stop has kept it."""
    saved: float | None = None
    """The fraction that a failure leaves."""
    parts_on: list[int] = field(default_factory=list)
    """The GPUs that computed last: each has an equal part of the result, until one of them fails."""
    finish: float | None = None


@dataclass(eq=False)
class Transfer:
    gpu: Gpu
    remaining: float
    state: str = ASKED
    until: float = math.nan
    rate: float = 0.0


@dataclass(eq=False)
class Flight:
    number: int
    row: int
    work: Work
    gpus: list[Gpu]
    share: float
    total: float
    remaining: float
    up: list[Transfer]
    down: list[Transfer]
    stage: str = UPLOAD
    rate: float = 0.0

    @property
    def moving(self) -> list[Transfer]:
        return self.up if self.stage == UPLOAD else self.down if self.stage == DOWNLOAD else []


@dataclass(eq=False)
class FluidReplay:
    """`to` lets time pass; what is decided or fails at that instant is told to it then, in order."""

    gpus: dict[int, Gpu]
    tasks: list[Work]
    now: float = 0.0
    flights: list[Flight] = field(default_factory=list)
    started: int = 0

    # Decisions --------------------------------------------------------------------------------------------------

    def start(self, row: int, gpus: list[int], mode: int, share: float) -> None:
        work, there = self.tasks[row], [self.gpus[one] for one in gpus]
        done, total = work.done or 0.0, work.seconds[mode]
        computed = done >= 1
        up = []
        for gpu in there:
            needed = (work.bytes_out if computed else work.bytes_in) / len(there)
            if computed and gpu.index in work.parts_on:
                needed -= work.bytes_out / len(work.parts_on)
            if needed > 0:
                up.append(Transfer(gpu, needed))
        down = [Transfer(gpu, work.bytes_out / len(there)) for gpu in there if work.bytes_out]
        self.started += 1
        self.flights.append(Flight(self.started, row, work, there, share, total, total * (1 - done), up, down))
        self._settle()

    def stop(self, row: int, keep: bool) -> None:
        """A stop during an upload changes nothing but the upload; later, what is computed is kept or lost."""
        flight = next(flight for flight in self.flights if flight.row == row)
        work, done = flight.work, flight.work.done or 0.0
        self.flights.remove(flight)
        if not keep:
            work.done = work.saved = None
        elif flight.stage != UPLOAD:
            computed = flight.total * (1 - done) - flight.remaining
            work.done = work.saved = done + computed / flight.total if flight.remaining else 1.0
            if work.done > done:
                work.parts_on = [gpu.index for gpu in flight.gpus]
        self._settle()

    def fail(self, gpu: int) -> None:
        """What runs there falls back to what its last stop kept."""
        for flight in [flight for flight in self.flights if self.gpus[gpu] in flight.gpus]:
            flight.work.done, flight.work.parts_on = flight.work.saved, []
            self.flights.remove(flight)
        self._settle()

    # What happens at an instant ---------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Stages end and begin until nothing more does at this instant.

        Transfers begin last: of launches that ask at one instant the one that started first goes first, and one that
        has nothing to compute asks at the instant at which it may.
        """
        while self._begin_computing() or self._end_stages() or self._begin_transfers():
            pass

    def _begin_transfers(self) -> bool:
        """Each GPU serves one launch at a time in each direction, in the order of their starts."""
        begun = False
        for gpu in self.gpus.values():
            for stage in (UPLOAD, DOWNLOAD):
                here = [one for flight in sorted(self.flights, key=lambda flight: flight.number)
                        if flight.stage == stage for one in flight.moving if one.gpu is gpu]  # fmt: skip
                asked = [one for one in here if one.state == ASKED]
                if asked and all(one.state in (ASKED, DONE) for one in here):
                    asked[0].state = LATENCY if gpu.latency else FLOWING
                    asked[0].until = self.now + gpu.latency
                    begun = True
        return begun

    def _begin_computing(self) -> bool:
        """In the order of starts: nothing passes a launch that lacks room on one of its GPUs.  Slices have room."""
        begun, blocked = False, []
        for flight in sorted(self.flights, key=lambda flight: flight.number):
            if flight.stage != READY:
                continue
            alone = [gpu for gpu in flight.gpus if gpu.sharing != "timeslice"]
            if all(gpu not in blocked and self._used(gpu) + flight.share <= 1 + 1e-9 for gpu in alone):
                flight.stage, begun = COMPUTE, True
            else:
                blocked += flight.gpus
        return begun

    def _used(self, gpu: Gpu, but: Flight | None = None) -> float:
        """The share of a GPU that computes."""
        return sum(one.share for one in self.flights if one.stage == COMPUTE and gpu in one.gpus and one is not but)

    def _end_stages(self) -> bool:
        ended = False
        for flight in list(self.flights):
            before = flight.stage
            if flight.stage == UPLOAD and all(one.state == DONE for one in flight.up):
                flight.stage = READY
            elif flight.stage == COMPUTE and flight.remaining <= 0:
                flight.stage = DOWNLOAD
            if flight.stage == DOWNLOAD and all(one.state == DONE for one in flight.down):
                self.flights.remove(flight)
                flight.work.finish = self.now
                ended = True
            ended = ended or flight.stage != before
        return ended

    # Rates, and time --------------------------------------------------------------------------------------------

    def _rate_transfers(self) -> list[Transfer]:
        """Max-min fair shares: the link with the smallest equal share fixes its transfers first."""
        moving = [(one, one.gpu.pipes(flight.stage))
                  for flight in self.flights for one in flight.moving if one.state == FLOWING]  # fmt: skip
        capacity = {name: rate for _, pipes in moving for name, rate in pipes}
        for one, pipes in moving:
            one.rate = math.inf if not pipes else math.nan
        while any(math.isnan(one.rate) for one, _ in moving):
            shares = {}
            for name, rate in capacity.items():
                here = [one for one, pipes in moving if any(pipe == name for pipe, _ in pipes)]
                fixed = [one.rate for one in here if not math.isnan(one.rate)]
                if len(fixed) < len(here):
                    shares[name] = (rate - sum(fixed)) / (len(here) - len(fixed))
            tight = min(shares, key=shares.__getitem__)
            for one, pipes in moving:
                if math.isnan(one.rate) and any(pipe == tight for pipe, _ in pipes):
                    one.rate = shares[tight]
        return [one for one, _ in moving]

    def _rate_computing(self) -> list[Flight]:
        """The slowest GPU sets the pace: frequency, slowdowns, time slices with the cost of switching, interference."""
        computing = [flight for flight in self.flights if flight.stage == COMPUTE]
        for flight in computing:
            flight.rate = math.inf
            for gpu in flight.gpus:
                others = self._used(gpu, flight)
                rate = gpu.frequency / gpu.slowdown
                if gpu.sharing == "timeslice" and others:
                    rate *= min(1.0, 1 / (flight.share + others)) * (1 - gpu.switch_cost)
                elif gpu.sharing == "mps":
                    rate /= 1 + gpu.interference * others
                flight.rate = min(flight.rate, rate)
        return computing

    def to(self, time: float) -> None:
        """Let time pass, up to and with what completes at that instant."""
        while True:
            moving, computing = self._rate_transfers(), self._rate_computing()
            delayed = [one for flight in self.flights for one in flight.moving if one.state == LATENCY]
            ends = [self.now + one.remaining / one.rate for one in moving]
            ends += [self.now + flight.remaining / flight.rate for flight in computing]
            upcoming = min([time, *ends, *(one.until for one in delayed)])
            if upcoming == math.inf:
                return
            passed, self.now = upcoming - self.now, upcoming
            for one in moving:
                one.remaining -= one.remaining if one.rate == math.inf else one.rate * passed
                if one.remaining <= TINY_BYTES:
                    one.state = DONE
            for flight in computing:
                flight.remaining -= flight.rate * passed
                if flight.remaining < TINY_SECONDS:
                    flight.remaining = 0.0
            for one in delayed:
                if one.until <= self.now:
                    one.state = FLOWING
            self._settle()
            if self.now >= time:
                return
