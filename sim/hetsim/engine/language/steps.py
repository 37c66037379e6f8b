"""The steps of a replica under way: their end if nothing cuts or stretches them.

While a replica only decodes, each step is longer than the one before by the same amount (the context grows by a token
a sequence), so the time of many steps has a closed form: they are one event.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from hetsim.engine.kernel.clock import FINISH, Clock, Timer
from hetsim.engine.language.generation import NAN
from hetsim.engine.language.sequences import Sequences
from hetsim.model.step_times import StepTimes


@dataclass(slots=True, eq=False)
class Steps:
    """One step, or several decoding steps; `timer` has their end."""

    clock: Clock
    timer: Timer
    times: StepTimes
    sequences: Sequences
    width: float
    """Devices that compute them."""
    under_way: bool = False
    began: float = 0.0
    """When they began; `lag` seconds of copying come before the first."""
    lag: float = 0.0
    count: int = 0
    ends_at: float = NAN
    """When they are over."""
    last: bool = False
    """True if the step under way is the last of them, and its end its own."""
    rate: float = 1.0
    """Speed of the slowest device, and power of all of them, of what they are at nominal frequency."""
    power: float = 1.0
    worked: float = 0.0
    """Seconds at that power, up to `worked_until`; counted where speeds change."""
    worked_until: float = NAN
    decodes: bool = False
    reading: int = 0
    """Prompt tokens of the step."""
    surplus: float = 0.0
    """Device-seconds that the period has drawn beyond those it computed, at nominal power."""
    copied: float = 0.0
    """Seconds of the period in which keys and values were copied and nothing computed."""

    def begin(self, count: int, seconds: float, lag: float) -> None:
        """Begin steps of this nominal time, after `lag` seconds of copying."""
        clock = self.clock
        self.began, self.lag, self.count, self.under_way = clock._now, lag, count, True
        self.copied += lag  # nothing is computed meanwhile, but the devices are held
        self.ends_at = ends_at = self.began + (lag + seconds / self.rate)
        if self.last:
            self.last, self.worked, self.worked_until = False, 0.0, NAN
        clock.at(ends_at, FINISH, self.timer)

    def after(self, steps: int) -> float:
        """The time at which this number of the present steps are over."""
        sequences = self.sequences
        return self.began + (self.lag + self.times.decoding(steps, sequences.count, sequences.context) / self.rate)

    def cut(self) -> None:
        """End after the step under way."""
        if self.last:
            return
        now, after = self.clock._now, self.after
        elapsed = (now - self.began - self.lag) * self.rate
        steps = self.times.steps_in(elapsed, self.sequences.count, self.sequences.context)
        steps = max(1, min(steps, self.count))  # an estimate by the closed form: rounding is put right below
        while steps > 1 and after(steps - 1) >= now:  # the step under way is the first that ends from now on
            steps -= 1
        while steps < self.count:
            end = after(steps)
            if end >= now:
                self.count, self.ends_at = steps, end
                self.clock.again(end, FINISH, self.timer)
                return
            steps += 1

    def run_at(self, rate: float, power: float) -> None:
        """Move the end of the step under way, as devices changed speed or power."""
        now = self.clock._now
        if self.under_way:
            begun = self.began + self.lag
            self.worked += max(0.0, now - (begun if math.isnan(self.worked_until) else self.worked_until)) * self.power
            self.worked_until = max(now, begun)
            self.ends_at = self.worked_until + (self.ends_at - self.worked_until) * (self.rate / rate)
            self.last = True
            self.clock.again(self.ends_at, FINISH, self.timer)
        self.rate, self.power = rate, power  # after the work at the former ones has been counted

    def over(self) -> float:
        """End the steps; return their computed seconds, weighted by power."""
        self.under_way = False
        now = self.clock._now
        computed = now - self.began - self.lag
        if self.last or self.power != 1.0:  # most steps by far are nominal
            return self._powered(computed, now)
        return computed

    def in_part(self, end: float) -> float:
        """End the steps early; return computed seconds, weighted by power."""
        self.copied -= max(0.0, self.lag - (end - self.began))
        return self._powered(max(0.0, end - self.began - self.lag), end)

    def _powered(self, computed: float, end: float) -> float:
        """Seconds computed in ending steps at nominal power; what exceeds it is noted."""
        powered = self._weighted(computed, end)
        self.surplus += (powered - computed) * self.width
        return powered

    def _weighted(self, computed: float, end: float) -> float:
        """Seconds computed by a time, each counted by the power of the devices then."""
        if math.isnan(self.worked_until):  # one power from their begin on
            return computed * self.power
        return self.worked + max(0.0, end - self.worked_until) * self.power

    def so_far(self) -> float:
        """Seconds of the present steps up to now, weighted by power."""
        now = self.clock._now
        return self._weighted(max(0.0, now - self.began - self.lag), now)

    def over_by(self, end: float) -> int:
        """Number of steps over by a time, of several; the last is not counted."""
        return bisect_left(range(1, self.count), end, key=self.after)
