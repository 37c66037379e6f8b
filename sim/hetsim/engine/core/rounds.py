"""Decision rounds: when the policy is called, and when a run is over."""

import math
from typing import Any

from hetsim.engine.core.policy_errors import deadlock, illegal
from hetsim.engine.core.state import RunState
from hetsim.engine.kernel.clock import TIMER, Timer
from hetsim.policy.decisions import Wait, as_number

INF = math.inf

LOOP_LIMIT = 10_000  # rounds or decisions at one instant without a task's end; more are reported as a policy's loop


class Rounds:
    """Decision rounds: which events cause one, and whether a policy loops."""

    def __init__(self, state: RunState):
        self.state = state
        self.clock = state.clock
        self._wake = Timer(self.wake)
        self._cycle = Timer(self._cycled)
        self._idle_wakes = 0

    def advance(self) -> bool:
        """Advance to the next round, in which the policy is called; False at the end."""
        state, clock = self.state, self.clock
        if not clock.advance():
            return False
        while state.pacing is not None and (at := state.pacing.next_time(clock._now, self._waiting())) > clock._now:
            clock.round_due = False  # the timer of the cycle makes it due again
            clock.again(at, TIMER, self._cycle)
            if not clock.advance():
                return False
        clock.round_due = False  # decisions in this round may make the next one due
        state.rounds += 1
        state.wake_on = "change"  # a Wait is valid for one round
        wake = self._wake
        if wake.entry >= 0:
            clock.cancel(wake)  # the policy is called before its timer fired
        if state.wanting:
            state.serving.offer()  # replicas are placed before the policy is called
        return True

    def _cycled(self, _: Timer) -> None:
        self.clock.round_due = True

    def _waiting(self) -> int:
        return len(self.state.waiting) + sum(len(queue) for queue in self.state.queues if queue.fleet is None)

    def changed(self, cause: str) -> None:
        """Make a round due unless the policy ignores this cause (change, release, ready)."""
        wake_on = self.state.wake_on
        if wake_on == "change" or wake_on == "fit" or cause == wake_on or cause == "change":
            self.clock.round_due = True

    def wait(self, decision: Wait) -> None:
        """Carry out a policy's Wait: no round until a time or an event."""
        state = self.state
        state.wake_on = decision.on
        state.certain = decision.certain  # later arrivals that fit nowhere need no round until then
        if state.capacity.budgets and (state.waiting or state.requests_left):
            state.wake_on = "change"  # a task held back by a partition limit waits, even if the policy has no queue
        if state.wanting:
            state.wake_on = "change"  # a released device may be for a replica
        until: Any = decision.until
        if until == INF:
            if self._wake.entry >= 0:
                self.clock.cancel(self._wake)
            return
        if (until := as_number(until)) is None or until <= self.clock._now:
            raise illegal(state, f"must wait until a time after now; got t = {decision.until} s")
        # A run with a horizon lasts until then, and its devices draw power: a policy may still put them to sleep.
        if self._goes_on():
            self.clock.again(until, TIMER, self._wake)

    def wake(self, _: Timer | None = None) -> None:
        """Make a round due; raise an error after 10,000 rounds that only timers caused."""
        state = self.state
        self.clock.round_due = True
        waits = state.waiting or any(len(queue) for queue in state.queues)
        to_come = state.sources.to_come or not all(queue.over for queue in state.queues)
        if state.running or to_come or state.iterating or not waits:
            self._idle_wakes = 0
            return
        self._idle_wakes += 1  # timers that wake a policy for nothing would never end
        if self._idle_wakes > LOOP_LIMIT:
            raise deadlock(state)

    def look_for_loop(self) -> None:
        """Raise PolicyError if a policy decides many times at one instant without effect."""
        state = self.state
        before, state.settled_at = state.settled_at, (self.clock._now, state.ended)
        if before != state.settled_at:
            state.settled = state.decisions  # time passed, or a task ended: counted from here
        made = state.decisions - state.settled
        # A policy may well decide several things about each task at one instant.
        if made > LOOP_LIMIT + 10 * (len(state.waiting) + len(state.running)):
            raise illegal(state, f"made {made:,} decisions at one instant, and no task ended: it loops")

    def look_whether_drained(self) -> None:
        """End a run without a horizon as soon as no task waits, runs or is to arrive."""
        if not self._goes_on():
            self.clock.end = math.nextafter(self.clock._now, math.inf)  # what is due at this very instant still happens

    def _goes_on(self) -> bool:
        state = self.state
        # Until a horizon devices still idle, sleep, fail and draw power.
        here = state.input.horizon < INF or state.running or state.waiting or state.deferred or state.requests_left
        return bool(here or state.iterating or state.sources.to_come)
