"""Busy periods of a replica; each one is a row of the table of launches."""

from dataclasses import dataclass
from typing import Any

from hetsim.engine.language.generation import NAN, Generation
from hetsim.engine.language.steps import Steps
from hetsim.model.record import LAUNCH_COMPLETED


@dataclass(slots=True, eq=False)
class Periods:
    """Writes one row for each busy period, with the idle time before it."""

    replica: Any
    steps: Steps
    since: float  # time from which the devices are occupied without a row that records it
    load: tuple[float, float] | None = None  # start and end of loading the model, if no row records them yet
    number: int = 0
    launch: int = -1  # number of the current or last busy period in the launches table
    busy: bool = False
    busy_from: float = NAN
    served: int = 0
    leader: int = -1  # row of the first request that took part in the period; -1 if none has

    def begin(self) -> None:
        self.launch = self.replica.fleet.number_launch()
        self.busy, self.busy_from = True, self.replica.clock._now
        self.steps.copied = 0.0

    def count(self, request: Generation) -> None:
        if request.period != self.number:
            request.period = self.number
            self.served += 1
            if self.leader < 0:
                self.leader = request.row

    def end(self, outcome: int, end: float) -> None:
        """Write the row of a replica's busy period, with the idle time before it."""
        steps, replica, busy, load = self.steps, self.replica, self.busy, self.load or (NAN, NAN)
        if not busy and end <= self.since and self.load is None:
            return
        seconds = (end - self.busy_from - steps.copied) * steps.width if busy else 0.0
        start = self.busy_from if self.load is None else load[0]
        computed = end if busy and outcome == LAUNCH_COMPLETED else NAN
        recorder = replica.fleet.recorder
        recorder.period(
            self.launch if busy else replica.fleet.number_launch(),
            self.leader if self.leader >= 0 else int(replica.service.rows[0]), self.served, mode=replica.kind.position,
            place=recorder.place_code(replica.placement, 0), outcome=outcome,
            times=(self.since, start, *load, self.busy_from, computed, NAN, end), busy=seconds,
            energy=(seconds + steps.surplus) * replica.kind.watts
        )  # fmt: skip
        self.since, self.load, self.busy, self.busy_from = end, None, False, NAN
        self.served, self.leader, steps.surplus = 0, -1, 0.0
        self.number += 1  # by which a request counts once in each period
