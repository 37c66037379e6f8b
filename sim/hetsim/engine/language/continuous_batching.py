"""Continuous batching by replicas of language models; many steps are one event.

While a replica only decodes, each step is longer than the one before by the same amount (the context grows by one token
per sequence), so the time of many steps has a closed form.  The engine jumps to the step in which a sequence ends or KV
blocks run out.  If a request arrives that may join, or if a device changes its speed, the jump ends with the current
step; a change of speed also changes the length of this step.  Simulating each step gives the same times up to rounding;
a test checks this.

A replica fails with any of its devices.  Its keys, values and prefixes are then lost, and its requests begin again on
other replicas, which prefill the prompt and the tokens that were already generated.

Cost: O(log joined requests) per request and per jump; if KV memory is short, also O(tokens per block).
"""

import math
from heapq import heappop

from hetsim.engine.core.policy_errors import call
from hetsim.engine.core.recorder import pack_steps
from hetsim.engine.kernel.clock import TIMER, Timer
from hetsim.engine.language.generation import DECODING, PREFILLING, Generation
from hetsim.engine.language.members import Members
from hetsim.errors import InvariantError
from hetsim.model.record import LAUNCH_COMPLETED, LAUNCH_LOST, LAUNCH_RUNNING
from hetsim.model.step_times import attended


class Replica(Members):
    """One copy of the model, on devices that it occupies until it is stopped.

    It consists of `memory` for keys and values, the `sequences` that decode, and the steps in progress with their busy
    period (`stage`).  Between two steps it preempts and joins requests, and plans the next step.

    Policies see its attributes (`hetsim.policy.iterating.Replica`).
    """

    def start(self, after: float) -> None:
        super().start(after)
        if not math.isnan(after):
            self.stage.load = (after, self.clock._now)

    def run_at(self, rate: float, power: float) -> None:
        self.foreseen = None
        if (rate, power) != (self.stage.rate, self.stage.power):
            self.split()
            self.stage.run_at(self.prefill, rate, power)  # only the step under way is stretched

    # Boundaries ---------------------------------------------------------------------------------------------

    def _fired(self, timer: Timer) -> None:
        self.foreseen = None
        if self.stage.under_way:
            self._settle()
            clock = self.clock
            head = clock._heap[0] if clock._heap else None
            if clock.feed_time == clock._now or (head is not None and head[0] == clock._now and head[1] < TIMER):
                clock.at(clock._now, TIMER, timer)  # what else happens at this instant comes first
                return
        self._decide()
        self.foreseen = None
        if self.fleet.checked:  # what a replica does by itself needs no round: asking the policy could change the run
            for defect in self.defects():
                raise InvariantError(f"t = {self.clock._now:g} s: {defect}")

    def _decide(self) -> None:
        sequences, stage = self.sequences, self.stage
        lag = 0.0
        gave_way = False
        if self.leaving:
            self.let_leave()
        if self.coming:
            self.line_up()  # in order of arrival, before any of them may join
        if self.here:
            self.take_up()
        while sequences.count and sequences.needed > self.memory.free:
            lag += self.preempt()
            gave_way = True
        self.head = None
        if not self.inside:
            self.looked = sequences.steps
        if self.outstanding > len(self.inside) and not (gave_way and self.inside or self._until_look):
            lag += self.join()
        if not self.inside:
            self._show()
            if stage.busy:  # nothing to do: the busy period is over
                stage.end_period(LAUNCH_COMPLETED, self.clock._now)
            self.fleet.rested(self)
            return
        if not stage.busy:
            stage.begin_period()
        if (self.service.batch_wait_timeout_iters and self._waits()) or not self.prefilling:
            self._jump(gave_way, lag)
            return
        plan = call(self.fleet.state, self.policy.step, self)
        self.prefill = list(plan.prefill)
        stage.decodes = bool(plan.decode and sequences.count)
        stage.reading = self._checked()
        if not self.prefill:
            self._jump(gave_way, lag)
            return
        decoding, context = (sequences.count, sequences.context) if stage.decodes else (0, 0)
        attended_to: tuple[int, ...] = ()
        if self.times.attends:  # pairs of the prompt tokens of the step with the tokens up to themselves
            pairs = [attended(tokens, one.prompt + one.made - one.to_prefill) for one, tokens in self.prefill]
            attended_to = (sum(pairs),)
        stage.begin(1, self.times.seconds_for(stage.reading, decoding, context, *attended_to), lag)

    def _jump(self, gave_way: bool, lag: float) -> None:
        """Begin, as one event, all decoding steps until the batch may change.

        gave_way: a sequence was just preempted.  lag: seconds of copying before the first step.
        """
        sequences = self.sequences
        # a row of several steps has no copying, and ends before clients see results
        count = 1 if lag or self.unseen else sequences.until_full(sequences.until_end())
        if count > 1 and self.outstanding > len(self.inside):
            if gave_way:  # a sequence was preempted, so the policy was not asked whether a request may join
                head = self.first()
                fits = head is not None and self.memory.blocks_for(head) + sequences.growth(2) <= self.memory.free
                count = 1 if self.policy.changes or fits else count
            elif self.policy.changes and self.head is not None:
                steps: int = call(self.fleet.state, self.policy.steady, self, self.head, count)
                if steps < 1:
                    raise self.fleet.illegal(f"must answer a number of steps of at least 1; got {steps}")
                count = min(count, steps)
            if self.service.scheduler_recv_interval > 1:
                count = min(count, self._until_look or self.service.scheduler_recv_interval)
        if self.wait_ends:
            count = min(count, self.wait_ends - sequences.steps)
        self.stage.decodes = True
        self.stage.begin(count, self.times.decoding(count, sequences.count, sequences.context), lag)

    @property
    def _until_look(self) -> int:
        """Decoding steps until the replica looks for new requests; 0: now."""
        return (self.looked - self.sequences.steps) % self.service.scheduler_recv_interval

    def _waits(self) -> bool:
        """Return True if prompts wait for others, because a step has too few tokens."""
        service, sequences = self.service, self.sequences
        tokens = sum([one.to_prefill for one in self.prefilling])
        enough = service.batch_wait_max_tokens_ratio * (service.max_num_batched_tokens or 0)
        waits = bool(tokens and sequences.count) and tokens + sequences.count < enough
        ends = self.wait_ends or sequences.steps + service.batch_wait_timeout_iters
        self.wait_ends = ends if waits and ends > sequences.steps else 0
        return self.wait_ends > 0

    def _show(self) -> None:
        """Show clients the results of the step before."""
        seen, self.unseen = self.unseen, []
        for show, request in seen:
            show(request)

    def _checked(self) -> int:
        """Return the number of prompt tokens in the policy's step; raise if it is illegal."""
        total = 0
        seen: dict[int, None] = {}
        for request, tokens in self.prefill:
            if request.replica is not self or request.state != PREFILLING or request.row in seen:
                raise self.fleet.illegal(f"prefills {request}, which does not wait for prefill here")
            if not 1 <= tokens <= request.to_prefill:
                raise self.fleet.illegal(f"prefills {tokens} tokens of {request}, which has {request.to_prefill} left")
            seen[request.row] = None
            total += tokens
        decodes = self.stage.decodes
        limit, decoding = self.service.max_num_batched_tokens, self.sequences.count if decodes else 0
        if limit is not None and total + decoding > limit:
            text = f"prefills {total} tokens and decodes {decoding} in one step"
            raise self.fleet.illegal(f"{text}; a step has at most {limit} tokens (max_num_batched_tokens)")
        if not total and not decodes:
            raise self.fleet.illegal("answered with a step without tokens")
        return total

    def _settle(self) -> None:
        """Complete the current steps: count their tokens, and end the finished requests."""
        stage, sequences = self.stage, self.sequences
        stage.under_way = False
        stage.charge(self.prefill, self.clock._now)
        self._row(self.clock._now)
        if self.unseen:
            self._show()
        if stage.decodes:
            while sequences.count and sequences.ends[0][0] <= sequences.steps:
                if not sequences.until_end():  # the first entry is not that of a request that has left
                    request = heappop(sequences.ends)[2]
                    sequences.leave(request)
                    self.finish(request)
        if self.prefill:
            for request, tokens in self.prefill:
                self.prefilled(request, tokens)
            self.prefill = []
            self.looked = sequences.steps
        stage.reading = 0  # after `_row`, which writes it

    def split(self) -> None:
        """Record the ended steps of an event that covers several; keep the current step."""
        stage = self.stage
        if not stage.under_way or stage.count < 2:
            return
        stage.cut()
        stage.count -= 1  # those that are over get a row of their own
        if stage.count:
            boundary = stage.after(stage.count)
            stage.charge(self.prefill, boundary)
            self._row(boundary)
            stage.began = boundary
        stage.count = 1

    def _row(self, end: float) -> None:
        stage, sequences = self.stage, self.sequences
        decoding = growth = fresh = 0
        if stage.decodes:
            decoding = sequences.count
            growth = sequences.growth(stage.count)
            if sequences.fresh:
                # New since the last decoding step: they have a gap of their own to their first token here.
                first = stage.after(1) if stage.count > 1 else end
                for token_at in sequences.fresh.values():
                    self.fleet.recorder.token_gap(first, token_at)
                fresh = len(sequences.fresh)
                sequences.fresh.clear()
            sequences.decoded_at = end
        memory, cached = self.memory, 0
        if memory.cache is not None:
            memory.cache.fit(memory.free - growth)
            cached = memory.cached_blocks
        running = len(self.inside) + len(self.loading)
        self.rows.extend(pack_steps(
            stage.began, end, self.code, stage.count, decoding, stage.reading, sequences.context, memory.free, growth,
            cached, running, self.outstanding - running, fresh,
        ))  # fmt: skip
        memory.free -= growth  # after the row, which tells what was free before
        if decoding:
            sequences.context += decoding * stage.count
            sequences.steps += stage.count

    # The end ------------------------------------------------------------------------------------------------

    def close(self, end: float, outcome: int) -> None:
        """Write the row of the last busy or idle period when the replica or the run ends."""
        stage = self.stage
        if stage.under_way:
            stage.charge(self.prefill, end)  # steps that the end of the run cuts off have been computed in part
            if outcome == LAUNCH_RUNNING and stage.decodes and (done := stage.over_by(end)):
                stage.count = done
                self._row(stage.after(done))
        stage.end_period(outcome, end)

    def seconds_of(self, request: Generation) -> float:
        """Return this replica's compute seconds for a request, current steps included."""
        stage, sequences = self.stage, self.sequences
        seconds = sequences.part_of(request)
        decodes = stage.decodes and request.state == DECODING
        if stage.under_way and (decodes or any(request is one for one, _ in self.prefill)):
            seconds += stage.so_far() / (len(self.prefill) + (sequences.count if stage.decodes else 0))
        return seconds

    def give_up(self, outcome: int) -> list[Generation]:
        """Stop a failed or drained replica; return its requests, which others must serve."""
        stage = self.stage
        self.split()
        self._show()
        self.close(self.clock._now, outcome)
        stage.under_way = False
        return self.lose("failure" if outcome == LAUNCH_LOST else "recompute")
