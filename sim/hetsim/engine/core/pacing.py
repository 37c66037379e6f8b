"""Decision cycles of a scheduler whose decisions take time (`policy.decisions`)."""

import math

from hetsim.model.record import DecisionTime


class Pacing:
    """State of the decision cycles of a scheduler, which runs one cycle at a time."""

    def __init__(self, time: DecisionTime):
        self.time = time
        self.asked = -1.0  # time from which a cycle is wanted; negative: no cycle is wanted
        self.begins_at = -1.0  # begin of the wanted cycle; negative: no cycle is wanted
        self.decides_at = -1.0  # end of the cycle in progress; negative: no cycle is in progress
        self.free_at = 0.0  # when the last cycle ended
        self.tick = -1  # the last multiple of `cycle` at which a cycle began
        self.bound_until = 0.0  # when the last start so far takes effect
        self.starts_left = math.inf
        self.cycles: list[tuple[float, float]] = []  # request time and decision time of each cycle, where they differ

    def next_time(self, now: float, waiting: int) -> float:
        """Return `now` if the scheduler may decide now, else when to call this again."""
        if not waiting and self.decides_at < 0:  # a cycle in progress ends even if no task waits any more
            self.starts_left = math.inf
            return now
        if self.begins_at < 0:  # the first round since the last cycle asks for the next one
            self.asked, self.begins_at = now, max(now, self.free_at if self.time.overlap else self.bound_until)
            if self.time.cycle:
                # At most one cycle begins at each multiple of `cycle`.
                self.tick = max(math.ceil(self.begins_at / self.time.cycle), self.tick + 1)
                # The product may be rounded to a time before `begins_at`.
                self.begins_at = max(self.begins_at, self.tick * self.time.cycle)
        if self.decides_at < 0:
            if now < self.begins_at:  # too early: the timer of the cycle asks again then
                return self.begins_at
            # Tasks that arrive later do not prolong the cycle.
            self.decides_at = now + self.time.per_cycle + self.time.per_waiting * waiting
        if now < self.decides_at:
            return self.decides_at
        if now > self.asked:  # a decision without a delay needs no row
            self.cycles.append((self.asked, now))
        self.begins_at = self.decides_at = -1.0
        self.free_at = now  # with `overlap` the next cycle may begin before its starts have taken effect
        self.starts_left = math.inf if self.time.max_starts is None else self.time.max_starts
        return now

    def effective(self, now: float) -> float:
        """Return the time at which a start that is decided now takes effect."""
        self.starts_left -= 1
        if self.time.per_start:
            self.bound_until = max(self.bound_until, now) + self.time.per_start  # starts take effect one by one
            return self.bound_until
        return now
