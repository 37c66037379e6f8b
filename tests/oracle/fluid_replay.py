"""A fluid simulator that replays a log of decisions and shares no line with the engine.

Between two instants everything proceeds at a constant rate: a transfer at the max-min fair share of the links that it
crosses, a computation at the speed of its slowest device.  At every instant all rates are computed from the whole
state, and the next instant is the earliest completion.  There is no event list and nothing is updated in place, so
that a mistake in what the engine does for speed has no counterpart here.

It knows GPUs alone: gangs, fractions, time slices, MPS, links of a GPU, of a switch and of a node, full or half duplex,
with latency; stops with and without keeping the work, states that are saved into the memory of GPUs or on their hosts,
frequencies, slowdowns and failures.  Placements are legal: nothing here checks capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

SAVING, UPLOAD, RESTORE, READY, COMPUTE, DOWNLOAD = "saving", "upload", "restore", "ready", "compute", "download"
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
    node: int = 0
    network: Wire = Wire()
    """The link of its node to all others: bytes that leave are its upload."""
    network_latency: float = 0.0
    saves_at: float | None = None
    """The rate at which it saves a state into its own memory; None: to its host."""
    saving_until: float = 0.0

    def pipes(self, stage: str) -> list[tuple[tuple, float]]:
        """The links that bound a transfer, by name, and their rates."""
        crossed = [self.wire.pipe(("gpu", self.index), stage)]
        if self.switch is not None:
            name, wire = self.switch
            crossed.append(wire.pipe(("switch", *name), stage))
        return [(name, rate) for name, rate in crossed if rate < math.inf]


@dataclass(eq=False)
class Work:
    """A task: seconds by mode, bytes in and out and of its state, and what stops have left of it."""

    seconds: list[float]
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    state: float = 0.0
    done: float | None = None
    """The fraction that is computed, once a stop has kept it."""
    saved: float | None = None
    """The fraction that a failure leaves."""
    last_on: list[int] = field(default_factory=list)
    """The GPUs that computed last.  Each, or its host, has an equal part of the state, each one of the result..."""
    lost: bool = True
    """... until one of them fails."""
    input_saved: bool = False
    saving_until: float = 0.0
    finish: float | None = None


@dataclass(frozen=True)
class Leg:
    """One hop of a transfer: the links that it crosses, by name, with their rates."""

    pipes: tuple[tuple[tuple, float], ...]
    latency: float
    size: float


@dataclass(eq=False)
class Transfer:
    """Hops one after the other, for which one GPU's copy engine is taken."""

    gpu: Gpu
    legs: list[Leg]
    state: str = ASKED
    until: float = math.nan
    rate: float = 0.0
    remaining: float = math.nan

    def next_leg(self, now: float) -> None:
        while self.legs and not (self.legs[0].pipes or self.legs[0].latency):
            self.legs.pop(0)
        if not self.legs:
            self.state = DONE
            return
        self.remaining = self.legs[0].size
        self.state = LATENCY if self.legs[0].latency else FLOWING
        self.until = now + self.legs[0].latency


def shared_out(old: list[Gpu], new: list[Gpu]) -> dict[int, list[tuple[Gpu, Fraction]]]:
    """What each new GPU gets from which old one, where all old ones have equal parts and all new ones need equal parts.

    Every GPU keeps what it has, up to what it needs.  Stacks of what is over and of what is lacking, in order, are laid
    side by side: node by node at first, then what remains of all nodes.
    """
    names = {gpu.index for gpu in old} & {gpu.index for gpu in new}
    kept = {name: min(Fraction(1, len(old)), Fraction(1, len(new))) for name in names}
    over = [[gpu, Fraction(1, len(old)) - kept.get(gpu.index, 0)] for gpu in old]
    lacking = [[gpu, Fraction(1, len(new)) - kept.get(gpu.index, 0)] for gpu in new]
    gets: dict[int, list[tuple[Gpu, Fraction]]] = {gpu.index: [] for gpu in new}
    nodes = sorted({gpu.node for gpu in old})
    for there in [{node} for node in nodes] + [set(nodes) | {gpu.node for gpu in new}]:
        gives = [pile for pile in over if pile[0].node in there and pile[1]]
        takes = [pile for pile in lacking if pile[0].node in there and pile[1]]
        while gives and takes:
            part = min(gives[0][1], takes[0][1])
            gets[takes[0][0].index].append((gives[0][0], part))
            for piles in (gives, takes):
                piles[0][1] -= part
                if not piles[0][1]:
                    piles.pop(0)
    return gets


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
    until: float = 0.0
    """The end of the saving that it waits for, or of its restoring."""
    restore: float = 0.0
    fetched_from: frozenset[int] = frozenset()
    """GPUs whose memory it uploads from."""

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
        self.started += 1
        flight = Flight(self.started, row, work, there, share, total, total * (1 - done), [], [])
        taken: list[int] = []
        for place, gpu in enumerate(there):
            legs = self._brought(work, there, place, taken)
            if legs:
                flight.up.append(Transfer(gpu, legs))
            if work.bytes_out:
                flight.down.append(Transfer(gpu, [self._hop(gpu, DOWNLOAD, work.bytes_out / len(there))]))
        flight.fetched_from = frozenset(taken)
        stays = [gpu for gpu in there if gpu.index in work.last_on]
        if done and done < 1 and stays and self._in_memory(work):
            flight.restore = work.state / max(len(there), len(work.last_on)) / stays[0].saves_at
        flight.until = max([work.saving_until, *(gpu.saving_until for gpu in there)])
        flight.stage = SAVING if flight.until > self.now else UPLOAD
        self.flights.append(flight)
        self._settle()

    @staticmethod
    def _hop(gpu: Gpu, stage: str, size: float) -> Leg:
        """From the host of a GPU to its memory, or back."""
        return Leg(tuple(gpu.pipes(stage)), gpu.latency, size)

    @staticmethod
    def _across(one: Gpu, other: Gpu, size: float) -> list[Leg]:
        """From the host of one GPU to that of another."""
        if one.node == other.node:
            return []
        named = [one.network.pipe(("node", one.node), UPLOAD), other.network.pipe(("node", other.node), DOWNLOAD)]
        crossed = tuple((name, rate) for name, rate in named if rate < math.inf)
        return [Leg(crossed, one.network_latency + other.network_latency, size)]

    def _in_memory(self, work: Work) -> bool:
        """A state in the memory of the GPUs that computed last."""
        return not work.lost and self.gpus[work.last_on[0]].saves_at is not None

    def _brought(self, work: Work, there: list[Gpu], place: int, taken: list[int]) -> list[Leg]:
        """All hops of what one GPU lacks: first what its host has, then what is elsewhere."""
        gpu, count, done = there[place], len(there), work.done or 0.0
        old = [self.gpus[name] for name in work.last_on]
        near = any(one.node == gpu.node for one in old)
        away = None if near or not old else old[place * len(old) // count]  # whose host has the part of this one
        from_here, from_away = 0.0, 0.0
        memories: list[tuple[Gpu, float]] = []
        if done:
            needed = work.bytes_out if done >= 1 else work.state
            if not needed:
                pass
            elif self._in_memory(work) or (done >= 1 and not work.lost):
                memories = [(one, needed * float(part)) for one, part in shared_out(old, there)[gpu.index]]
            elif away is None:
                from_here += needed / count
            else:
                from_away += needed / count
        if done < 1:
            if not work.input_saved:
                from_here += work.bytes_in / count
            elif away is not None:
                from_away += work.bytes_in / count
        legs = [self._hop(gpu, UPLOAD, from_here)] if from_here else []
        for one, size in memories:
            taken.append(one.index)
            legs += [self._hop(one, DOWNLOAD, size), *self._across(one, gpu, size), self._hop(gpu, UPLOAD, size)]
        if from_away:
            legs += [*self._across(away, gpu, from_away), self._hop(gpu, UPLOAD, from_away)]
        return legs

    def stop(self, row: int, keep: bool) -> None:
        """A stop during an upload changes nothing but the upload; later, what is computed is kept or lost."""
        flight = next(flight for flight in self.flights if flight.row == row)
        work, done = flight.work, flight.work.done or 0.0
        self.flights.remove(flight)
        if not keep:
            work.done = work.saved = None
            work.lost, work.input_saved = True, False
        elif flight.stage in (COMPUTE, DOWNLOAD):
            computed = flight.total * (1 - done) - flight.remaining
            work.done = work.saved = done + computed / flight.total if flight.remaining else 1.0
            if work.done > done or flight.stage == DOWNLOAD:
                work.last_on, work.lost = [gpu.index for gpu in flight.gpus], False
                work.input_saved = work.state > 0
                self._save(work, flight.gpus)
        self._settle()

    def _save(self, work: Work, gpus: list[Gpu]) -> None:
        part, seconds = work.state / len(gpus), 0.0
        for gpu in gpus if part else ():
            rates = [rate for _, rate in gpu.pipes(DOWNLOAD)]
            alone = gpu.latency + (part / min(rates) if rates else 0.0)
            seconds = max(seconds, alone if gpu.saves_at is None else part / gpu.saves_at)
        work.saving_until = self.now + seconds
        for gpu in gpus:
            gpu.saving_until = max(gpu.saving_until, work.saving_until)

    def fail(self, gpu: int) -> None:
        """What runs there, or is still uploading from there, falls back to what its last stop kept.

        Nothing in the memory of that GPU can be used any more; what is on hosts can, and what is computed counts.
        """
        for flight in list(self.flights):
            if self.gpus[gpu] in flight.gpus or (flight.stage in (SAVING, UPLOAD) and gpu in flight.fetched_from):
                flight.work.done, flight.work.lost, flight.work.input_saved = flight.work.saved, True, False
                self.flights.remove(flight)
        for work in self.tasks:
            if gpu in work.last_on and not work.lost:
                work.input_saved = work.input_saved and not self._in_memory(work)
                work.lost = True
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
                    asked[0].next_leg(self.now)
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
            if flight.stage == SAVING and flight.until <= self.now:
                flight.stage = UPLOAD
            elif flight.stage == UPLOAD and all(one.state == DONE for one in flight.up):
                flight.stage, flight.until = RESTORE, self.now + flight.restore
            elif flight.stage == RESTORE and flight.until <= self.now:
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
        moving = [(one, one.legs[0].pipes)
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
            ends += [flight.until for flight in self.flights if flight.stage in (SAVING, RESTORE)]
            upcoming = min([time, *ends, *(one.until for one in delayed)])
            if upcoming == math.inf:
                return
            passed, self.now = upcoming - self.now, upcoming
            for one in moving:
                one.remaining -= one.remaining if one.rate == math.inf else one.rate * passed
                if one.remaining <= TINY_BYTES:
                    one.legs.pop(0)
                    one.next_leg(self.now)
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
