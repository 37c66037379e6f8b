"""The time that the scheduler itself takes, on the simulated clock."""

from dataclasses import dataclass

from hetsim.errors import KeyProblem
from hetsim.model.units import Count, Seconds


@dataclass(frozen=True, slots=True)
class DecisionTime:
    """How long the scheduler takes to decide and to start.

    A cycle begins when something has changed since the last one and the scheduler is free.  It takes `per_cycle` and
    `per_waiting` for each waiting task; then the scheduler decides, on the state at that moment.  Its starts take their
    devices at once, and begin one after another, `per_start` apart.
    """

    cycle: Seconds = 0.0
    """Cycles begin at multiples of this time; as soon as something has changed unless given."""
    per_cycle: Seconds = 0.0
    """Time that each cycle takes before the scheduler decides."""
    per_waiting: Seconds = 0.0
    """Time that each task which waits when the cycle begins adds to it."""
    per_start: Seconds = 0.0
    """Time that each start takes to come into effect, one after another."""
    max_starts: Count | None = None
    """Starts of one cycle at most; what else could start is left to the next cycle."""
    overlap: bool = False
    """True if a cycle may begin before the starts of the last one take effect, as with asynchronous binding."""

    def check(self) -> None:
        """Raise ValueError or KeyProblem where these keys have no effect."""
        if self == DecisionTime():
            raise ValueError("says of no step how long it takes; give cycle, per_cycle, per_waiting or per_start")
        if self.overlap and not self.per_start:
            raise KeyProblem("overlap", "no start takes any time that could overlap; give per_start, or leave it out")

    @property
    def shortest_cycle(self) -> float:
        """The minimum number of seconds between two cycles."""
        return max(self.cycle, self.per_cycle)
