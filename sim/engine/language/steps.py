"""Steps of a replica: how long they take, and how many equal ones are one event.

While a replica only decodes, each step is longer than the one before by the same amount (the context grows by a token
a sequence), so the time of many steps has a closed form.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from heapq import heappop
from typing import TYPE_CHECKING

from sim.engine.core.figures import pack_steps
from sim.engine.kernel.clock import FINISH
from sim.engine.language.generation import DECODING, NAN, PREFILLING, Generation
from sim.engine.language.members import Members
from sim.model.service import LanguageService
from sim.model.step_times import attended

if TYPE_CHECKING:
    from sim.model.plan import Placement


class Steps(Members):
    """The steps under way and those done."""

    code: int
    rows: bytearray

    def _stand_still(self, service: LanguageService, placement: Placement) -> None:
        self.width = placement.mode.width
        self.times = service.step
        self.changes: bool = self.policy.changes
        self.stepping = False
        self.began = 0.0
        """When the steps under way began; `lag` seconds of copying come before the first."""
        self.lag = 0.0
        self.count = 0
        """Steps under way."""
        self.ends_at = NAN
        """When the steps under way are over."""
        self.last = False
        """Is the step under way the last of them, and its end its own?"""
        self.rate = self.power = 1.0
        """Speed of the slowest device, and power of all of them, of what they are at nominal frequency."""
        self.worked = 0.0
        """Seconds of the steps under way at that power, up to `worked_until`; counted where speeds change."""
        self.worked_until = NAN
        self.surplus = 0.0
        """Device-seconds that the period has drawn beyond those it computed, at nominal power."""
        self.prefill: list[tuple[Generation, int]] = []
        self.decodes = False
        self.share = 0.0
        """Seconds computed by a member that has decoded all the time: each step is divided evenly among its members."""
        self.copied = 0.0
        self.reading = 0
        """Prompt tokens of the step under way."""

    def _cut(self) -> None:
        """End the jump with the step under way."""
        if self.last:
            return
        elapsed = (self.clock._now - self.began - self.lag) * self.rate
        steps = max(1, min(self.times.steps_in(elapsed, self.decoding, self.context), self.count))
        while steps > 1 and self._after(steps - 1) >= self.clock._now:
            steps -= 1
        while steps < self.count:
            end = self._after(steps)
            if end >= self.clock._now:
                self.count, self.ends_at = steps, end
                self.clock.again(end, FINISH, self)
                return
            steps += 1

    def _after(self, steps: int) -> float:
        """The time at which this number of the steps under way are over."""
        return self.began + (self.lag + self.times.decoding(steps, self.decoding, self.context) / self.rate)

    def _end_at(self, time: float) -> None:
        self.ends_at = time
        if self.last:
            self.last, self.worked, self.worked_until = False, 0.0, NAN
        self.clock.at(time, FINISH, self)

    def run_at(self, rate: float, power: float) -> None:
        """The speed or the power of its devices has changed: the step under way ends earlier or later."""
        now = self.clock._now
        if (rate, power) == (self.rate, self.power):
            return
        if self.stepping:
            if self.count > 1:
                self._cut()
            begun = self.began + self.lag
            self.worked += max(0.0, now - (begun if math.isnan(self.worked_until) else self.worked_until)) * self.power
            self.worked_until = max(now, begun)
            self.ends_at = self.worked_until + (self.ends_at - self.worked_until) * (self.rate / rate)
            self.last = True
            self.clock.again(self.ends_at, FINISH, self)
        self.rate, self.power = rate, power

    def _powered(self, computed: float, end: float) -> float:
        """Seconds computed in the steps that end now, at nominal power; what they draw beyond that is noted."""
        if math.isnan(self.worked_until):
            powered = computed * self.power
        else:
            powered = self.worked + max(0.0, end - self.worked_until) * self.power
        self.surplus += (powered - computed) * self.width
        return powered

    def _settle(self) -> None:
        """The steps under way are over: count their tokens."""
        self.stepping = False
        computed = self.clock._now - self.began - self.lag
        if self.last or self.power != 1.0:  # most steps by far are nominal
            computed = self._powered(computed, self.clock._now)
        part = computed / (len(self.prefill) + (self.decoding if self.decodes else 0))
        growth = self._row(self.clock._now)
        if self.decodes:
            self.share += part
            steps = self.count
            self._take(growth)
            self.context += self.decoding * steps
            self.steps += steps
            ends = self.ends
            while ends and ends[0][0] <= self.steps:
                end, _, request = heappop(ends)
                if request.end == end and request.replica is self:
                    self._leave_decoding(request)
                    self._finish(request)
        for request, tokens in self.prefill:
            request.seconds += part
            request.left -= tokens
            if not request.left and not request.leaves:
                self.prefilling.remove(request)
                self._prefilled(request)
        self.prefill = []
        self.reading = 0

    def _row(self, end: float) -> int:
        """A row for the steps that end now, before their tokens are counted; the KV blocks that these take."""
        sequences = growth = fresh = cached = 0
        if self.decodes:
            sequences = self.decoding
            growth = self._growth(self.count)
            if self.fresh:
                fresh = self._fresh_gaps(end)
            self.decoded_at = end
        if self.cache is not None:
            cached = len(self.cache.idle) * self.cache.each
        running = len(self._members) + len(self._loading) if self._loading else len(self._members)
        self.rows.extend(pack_steps(
            self.began, end, self.code, self.count, sequences, self.reading, self.context, self.free, growth, cached,
            running, self.outstanding - running, fresh,
        ))  # fmt: skip
        return growth

    def _fresh_gaps(self, end: float) -> int:
        """Record the token gaps of sequences that began to decode since the last decoding step; their number."""
        first = self._after(1) if self.count > 1 and not self.last else self.began + (end - self.began) / self.count
        for token_at in self.fresh.values():
            self.fleet.recorder.token_gap(first, token_at)
        fresh = len(self.fresh)
        self.fresh.clear()
        return fresh

    def _cut_row(self, end: float) -> None:
        """A row for the steps under way that were over when the run ended; none where their speed changed meanwhile."""
        if not self.decodes or self.count < 2 or self.last:
            return
        self.count = bisect_left(range(1, self.count), end, key=self._after)
        if self.count:
            self._row(self._after(self.count))

    def _jump(self, gave_way: bool) -> None:
        """Decode until a sequence ends, blocks run out, or the policy may let the first waiting request join.

        gave_way: a sequence was preempted at this boundary, so the policy was not asked whether a request may join.
        """
        ends = self.ends
        while ends[0][2].end != ends[0][0] or ends[0][2].replica is not self:
            heappop(ends)
        self.decodes = True
        count = self._until_full(ends[0][0] - self.steps)
        if count > 1 and self.changes and self.outstanding > len(self._members):
            count = 1 if gave_way else self._steady(count)
        self.count = count
        self._end_at(self._after(self.count))

    def _steady(self, count: int) -> int:
        """The number of `count` steps that pass before the policy is asked about the first waiting request again."""
        if self.head is None:
            return count
        steps: int = self.fleet.call(self.policy.steady, self, self.head, count)
        if steps < 1:
            raise self.fleet.illegal(f"wants to be asked after {steps} steps; at least one has to pass")
        return min(count, steps)

    def _checked(self) -> int:
        """The prompt tokens of the step the policy wants; PolicyError if it cannot be done."""
        total = 0
        seen: dict[int, None] = {}
        for request, tokens in self.prefill:
            if request.replica is not self or request.state != PREFILLING or request.row in seen:
                raise self.fleet.illegal(f"prefills {request}, which does not wait for that here")
            if not 1 <= tokens <= request.left:
                raise self.fleet.illegal(f"prefills {tokens} tokens of {request}, which has {request.left} left")
            seen[request.row] = None
            total += tokens
        budget, decoding = self.service.budget, self.decoding if self.decodes else 0
        if budget is not None and total + decoding > budget:
            text = f"prefills {total} tokens and decodes {decoding} in one step"
            raise self.fleet.illegal(f"{text}; a step takes {budget} (max_num_batched_tokens)")
        if not total and not self.decodes:
            raise self.fleet.illegal("answered with a step that does nothing")
        return total

    def _attended(self) -> int:
        """Pairs of the prompt tokens of the step with the tokens up to themselves."""
        return sum(attended(tokens, one.prompt + one.made - one.left) for one, tokens in self.prefill)

    def _count_part(self, end: float) -> None:
        """Steps that the end of the run cuts off have been computed in part."""
        computed = self._powered(max(0.0, end - self.began - self.lag), end)
        self.copied -= max(0.0, self.lag - (end - self.began))
        part = computed / (len(self.prefill) + (self.decoding if self.decodes else 0))
        for request, _ in self.prefill:
            request.seconds += part
        if self.decodes:
            self.share += part

    def part_of(self, request: Generation) -> float:
        """Seconds computed for a member up to now."""
        return request.seconds + (self.share - request.seconds_from if request.state == DECODING else 0.0)
