"""The steps of a replica that are under way, and its busy periods.

While a replica only decodes, each step is longer than the one before by the same amount (the context grows by one token
per sequence), so the time of many steps has a closed form, and the steps are one event.  Steps without a break form a
busy period, which is a row of the table of launches, with the idle time before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hetsim.engine.kernel.clock import FINISH, Clock, Timer
from hetsim.engine.language.generation import NAN, Generation
from hetsim.engine.language.sequences import Sequences
from hetsim.model.record import LAUNCH_COMPLETED
from hetsim.model.step_times import StepTimes


@dataclass(slots=True, eq=False)
class Steps:
    """One step, or several decoding steps as one event; `timer` fires at their end."""

    clock: Clock
    timer: Timer
    times: StepTimes
    sequences: Sequences
    width: float  # number of devices that compute the steps
    recorded: float  # time up to which rows record that the devices are occupied
    under_way: bool = False
    began: float = 0.0  # start time of the steps, or of copying before a single step
    since: float = 0.0  # time from which the computed seconds are not charged yet; not before copying ends
    count: int = 0
    ends_at: float = NAN  # end time of the last of these steps
    rate: float = 1.0  # speed of the slowest device; `power`: mean power; both relative to nominal
    power: float = 1.0
    decodes: bool = False
    reading: int = 0  # number of prompt tokens that the step prefills
    surplus: float = 0.0  # the period's energy in device-seconds at nominal power, minus its computed device-seconds
    copied: float = 0.0  # seconds of the period in which keys and values were copied and nothing was computed
    load: tuple[float, float] | None = None  # start and end of loading the model, if no row records them yet
    period: int = 0  # number of the busy period
    launch: int = -1  # number of the current or last busy period in the launches table
    busy: bool = False
    busy_from: float = NAN
    served: int = 0
    leader: int = -1  # row of the first request that took part in the period; -1 if none has

    def begin(self, count: int, seconds: float, lag: float) -> None:
        """Begin `count` steps of `seconds` in total; `lag`: seconds of copying before one."""
        clock = self.clock
        self.began, self.count, self.under_way = clock._now, count, True
        self.since = self.began + lag
        self.copied += lag  # nothing is computed meanwhile, but the devices are held
        self.ends_at = ends_at = self.began + (lag + seconds / self.rate)
        clock.at(ends_at, FINISH, self.timer)

    def after(self, steps: int) -> float:
        """Return the time at which the first `steps` of the current steps have ended."""
        sequences = self.sequences
        return self.began + self.times.decoding(steps, sequences.count, sequences.context) / self.rate

    def cut(self) -> None:
        """Stop after the step in progress; the later steps do not happen."""
        if (steps := self.over_by(self.clock._now) + 1) < self.count:
            self.count, self.ends_at = steps, self.after(steps)
            self.clock.again(self.ends_at, FINISH, self.timer)

    def run_at(self, prefill: Sequence[tuple[Generation, int]], rate: float, power: float) -> None:
        """Change the devices' relative speed and power; move the end of the current step."""
        if self.under_way:
            now = max(self.clock._now, self.since)
            self.charge(prefill, now)  # at the former power
            self.ends_at = now + (self.ends_at - now) * (self.rate / rate)
            self.clock.again(self.ends_at, FINISH, self.timer)
        self.rate, self.power = rate, power

    def charge(self, prefill: Sequence[tuple[Generation, int]], end: float) -> None:
        """Charge the seconds computed until `end` to the requests of these steps.

        Each request gets an equal part; seconds are weighted by power (nominal: 1).  `prefill`: requests of which the
        step reads prompt tokens.
        """
        computed, sequences = end - self.since, self.sequences
        self.since = end
        if computed < 0.0:  # the devices still copy
            self.copied += computed
            computed = 0.0
        part = computed * self.power
        self.surplus += (part - computed) * self.width
        part /= len(prefill) + (sequences.count if self.decodes else 0)
        for request, _ in prefill:
            request.seconds += part
        if self.decodes:
            sequences.share += part

    def so_far(self) -> float:
        """Return the computed seconds that are not charged yet, weighted by power."""
        return max(0.0, self.clock._now - self.since) * self.power

    def over_by(self, end: float) -> int:
        """Return how many of these steps, except the last one, have ended before `end`."""
        last, seconds = self.count - 1, self.ends_at - self.began
        # As if all took equally long: growing contexts put this off by a few.
        steps = max(0, min(last, int(self.count * (end - self.began) / seconds))) if seconds > 0.0 else 0
        while steps and self.after(steps) >= end:
            steps -= 1
        while steps < last and self.after(steps + 1) < end:
            steps += 1
        return steps

    # Busy periods -----------------------------------------------------------------------------------------------------

    def begin_period(self) -> None:
        self.launch = self.sequences.replica.fleet.number_launch()
        self.busy, self.busy_from, self.copied = True, self.clock._now, 0.0

    def take_part(self, request: Generation) -> None:
        """Count a request in the busy period, once."""
        if request.period != self.period:
            request.period = self.period
            self.served += 1
            if self.leader < 0:
                self.leader = request.row

    def end_period(self, outcome: int, end: float) -> None:
        """Write the row of a replica's busy period, with the idle time before it."""
        replica, busy, load = self.sequences.replica, self.busy, self.load or (NAN, NAN)
        if not busy and end <= self.recorded and self.load is None:
            return
        seconds = (end - self.busy_from - self.copied) * self.width if busy else 0.0
        start = self.busy_from if self.load is None else load[0]
        computed = end if busy and outcome == LAUNCH_COMPLETED else NAN
        recorder = replica.fleet.recorder
        recorder.period(
            self.launch if busy else replica.fleet.number_launch(),
            self.leader if self.leader >= 0 else int(replica.service.rows[0]), self.served, mode=replica.kind.position,
            place=recorder.place_code(replica.placement, 0), outcome=outcome,
            times=(self.recorded, start, *load, self.busy_from, computed, NAN, end), busy=seconds,
            energy=(seconds + self.surplus) * replica.kind.watts
        )  # fmt: skip
        self.recorded, self.load, self.busy, self.busy_from = end, None, False, NAN
        self.served, self.leader, self.surplus = 0, -1, 0.0
        self.period += 1  # by which a request counts once in each period
