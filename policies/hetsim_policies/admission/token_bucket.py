"""A token bucket: `rate` admissions a second on average, at most `burst` at once.

Decides: tokens drip into a bucket that holds `burst` of them; a task needs one.  Without one it is refused (policing),
or deferred until one is due (shaping), in order of arrival.  There may be a bucket for each class or user.
Reference: Turner, New Directions in Communications (or Which Way to the Information Age?), IEEE Communications
Magazine 24 (1986); refusals of Poisson arrivals are the loss of a M/D/1 queue with `burst` places, shaping with a
burst of 1 its waiting time.
Proven: in any interval of length t at most burst + rate · t are admitted.  Weakness: knows nothing of the load: idle
devices do not raise the rate, and a rate above capacity does not limit the queue.
Cost: O(1).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import PerSecond
from hetsim.policy import Accept, Admission, Defer, Reject, View

YES = Accept()
ROUNDING = 1e-9
"""Part of a token that is not argued about."""


class TokenBucket(Admission):
    """A rate of admissions, with bursts.

    rate: tokens a second.  burst: tokens that the bucket holds; it is full at the start.
    per: one bucket for all, or one for each class or user.
    excess: refuse a task that finds no token, or defer it until one is due.
    """

    queueing = "token bucket"

    def __init__(
        self,
        rate: Annotated[PerSecond, Field(gt=0)],
        burst: Annotated[float, Field(ge=1)] = 1,
        per: Literal["all", "class", "user"] = "all",
        excess: Literal["reject", "defer"] = "reject",
    ):
        self.rate = rate
        self.burst = float(burst)
        self.per = per
        self.excess = excess
        self._levels: dict[str, list[float]] = {}
        """Of each bucket the tokens in it, negative where some are promised, and when that was so."""
        self._promised: dict[int, None] = {}
        self._no = Reject(reason="no token left")

    def admit(self, task: Task, view: View) -> Accept | Reject | Defer:
        if self._promised and task.index in self._promised:
            del self._promised[task.index]
            return YES
        name = "" if self.per == "all" else task.class_ if self.per == "class" else task.user
        now = view.now
        level = self._levels.get(name)
        if level is None:
            level = self._levels[name] = [self.burst, now]
        tokens = min(self.burst, level[0] + (now - level[1]) * self.rate)
        level[1] = now
        if tokens >= 1.0 - ROUNDING:
            level[0] = tokens - 1.0
            return YES
        if self.excess == "reject":
            level[0] = tokens
            return self._no
        level[0] = tokens - 1.0
        self._promised[task.index] = None
        return Defer(now + (1.0 - tokens) / self.rate)
