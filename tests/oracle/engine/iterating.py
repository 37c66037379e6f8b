"""Replicas of language models: requests join and leave at step boundaries, and equal steps are one event.

While a replica only decodes, each step is longer than the one before by the same amount (the context grows by a token
a sequence), so the time of many steps has a closed form.  The engine jumps to the step in which a sequence ends or KV
blocks run out; a request that arrives in between and may join cuts the jump at the end of the step under way.  The
same steps one by one give the same times up to rounding; a test says so.
Cost: O(log members) a request and jump, O(block) where memory is tight.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from oracle.engine.clock import FINISH, TIMER, Timer
from oracle.engine.links import Links
from oracle.engine.prefix import PrefixCache
from sim.model.plan import Placement
from sim.model.record import LAUNCH_COMPLETED
from sim.model.tasks import Task

if TYPE_CHECKING:
    from oracle.engine.fleet import Fleet

NAN = math.nan
QUEUED, LOADING, PREFILLING, DECODING, OVER = range(5)


class Generation:
    """A request on its way through the replicas of its service."""

    __slots__ = (
        "task", "row", "arrival", "priority", "prompt", "output", "hashes", "state", "replica", "made", "offset",
        "end", "left", "cached", "shared", "source", "swapped", "started", "paused", "paused_at", "seconds",
        "seconds_from", "period",
    )  # fmt: skip

    def __init__(self, task: Task, prompt: int, output: int, hashes: Sequence[Hashable]):
        self.task = task
        self.row = task.index
        self.arrival = task.arrival
        self.priority = task.priority
        self.prompt = prompt
        self.output = output
        self.hashes = hashes
        self.state = QUEUED
        self.replica: Replica | None = None
        self.made = 0
        """Tokens produced, as long as it does not decode."""
        self.offset = 0
        """While it decodes: tokens produced less the steps of its replica."""
        self.end = -1
        """While it decodes: the step of its replica after which it is complete."""
        self.left = prompt
        self.cached: Sequence[Hashable] = ()
        """Names of its prefix's blocks that it uses and that others may use."""
        self.shared = 0
        """KV blocks behind these names."""
        self.source: Replica | None = None
        """The replica that prefilled it and still has its keys and values."""
        self.swapped = False
        self.started = False
        self.paused = 0.0
        """Seconds since its start in which it was in no step: gave way, or on its way between replicas."""
        self.paused_at = NAN
        self.seconds = 0.0
        """Its share of the seconds that its replicas computed."""
        self.seconds_from = 0.0
        self.period = -1

    @property
    def produced(self) -> int:
        if self.state == DECODING:
            return self.replica.steps + self.offset  # type: ignore[union-attr]
        return self.made

    @property
    def whole(self) -> int:
        """Tokens of the prompt and those produced."""
        return self.prompt + self.produced

    def __repr__(self) -> str:
        return repr(self.task)


class Replica(Timer):
    """One copy of the model on the devices of a placement, which it keeps until it is given up."""

    def __init__(self, fleet: Fleet, number: int, placement: Placement, prefills_only: bool = False):
        super().__init__(self._fired)
        self.fleet = fleet
        self.service = service = fleet.service
        self.policy = fleet.batching
        self.clock = fleet.clock
        self.number = number
        self.placement = placement
        self.prefills_only = prefills_only
        self.width = placement.mode.width
        self.times = service.step
        self.block = service.block
        self.free = service.blocks
        """KV blocks that nobody holds; idle ones of the prefix cache count as free."""
        self.cache = PrefixCache(service.prefix_block, service.block) if service.prefix_block else None
        self.loaded = True
        self.draining = False
        self.outstanding = 0
        self.waiting: list[tuple[Any, int, Generation]] = []
        self._members: dict[int, Generation] = {}
        self._loading: dict[int, Generation] = {}
        self.held: dict[int, Generation] = {}
        """Prefilled here, not yet fetched by the replica that will decode them."""
        self.here: list[Generation] = []
        """Of those on their way, whose keys and values have come."""
        self.prefilling: list[Generation] = []
        self.decoding = 0
        self.context = 0
        """Tokens of the sequences that decode, those of the next step's input included."""
        self.residues = [0] * service.block
        """Sequences that decode, by (tokens - steps) modulo the block size: who needs a new block, and when."""
        self.ends: list[tuple[int, int, Generation]] = []
        self.steps = 0
        self.stepping = False
        self.began = 0.0
        """When the steps under way began; `lag` seconds of copying come before the first."""
        self.lag = 0.0
        self.count = 0
        """Steps under way."""
        self.prefill: list[tuple[Generation, int]] = []
        self.decodes = False
        self.share = 0.0
        """Seconds computed by a member that has decoded all the time: each step is divided evenly among its members."""
        self.since = self.clock._now
        """From when on the devices are held without a row that tells so."""
        self.load: tuple[float, float] | None = None
        self.period = 0
        self.launch = -1
        self.served = 0
        self.leader = -1
        self.busy_from = NAN
        self.copied = 0.0

    @property
    def now(self) -> float:
        return self.clock._now

    @property
    def size(self) -> int:
        return len(self._members) + len(self._loading)

    @property
    def members(self) -> list[Generation]:
        return list(self._members.values())

    @property
    def free_blocks(self) -> int:
        return self.free

    @property
    def idle(self) -> bool:
        """Is nothing here and nothing on its way?"""
        return not (self.outstanding or self.held or self._loading)

    # Requests come -------------------------------------------------------------------------------------------

    def enqueue(self, request: Generation) -> None:
        request.replica = self
        request.state = QUEUED
        request.period = -1
        self.outstanding += 1
        self._queue(request)
        if not self.stepping:
            self.wake()
        elif self.count > 1 and self.waiting[0][2] is request and self.size < self.service.max_sequences:
            self._cut()

    def _queue(self, request: Generation) -> None:
        key = self.fleet.call(self.policy.key, request)
        heappush(self.waiting, (key, request.row, request))

    def wake(self) -> None:
        """Something has come while no step is under way: a boundary at this instant, after all of its arrivals."""
        if self.stepping:
            if self.count > 1:
                self._cut()
        elif self.entry < 0 and self.loaded:
            self.clock.at(self.clock._now, TIMER, self)

    def _cut(self) -> None:
        """End the jump with the step under way."""
        times, sequences = self.times, self.decoding
        elapsed = self.clock._now - self.began - self.lag
        first = times.of(0, sequences, self.context)
        growth = times.per_context_token * sequences
        if growth > 0 and elapsed > 0:
            base = first - growth / 2
            steps = int((math.sqrt(base * base + 2 * growth * elapsed) - base) / growth)
        else:
            steps = int(max(elapsed, 0.0) / first) if first > 0 else 0
        steps = max(1, min(steps, self.count))
        while steps > 1 and self._after(steps - 1) >= self.clock._now:
            steps -= 1
        while steps < self.count and self._after(steps) < self.clock._now:
            steps += 1
        if steps < self.count:
            self.count = steps
            self.clock.again(self._after(steps), FINISH, self)

    def _after(self, steps: int) -> float:
        """When so many of the steps under way are over."""
        return self.began + (self.lag + self.times.decoding(steps, self.decoding, self.context))

    def forget(self, request: Generation) -> None:
        """A waiting request has gone; its entry in the queue is thrown out when it comes up."""
        request.state = OVER
        self.outstanding -= 1
        self.wake()

    # Boundaries ----------------------------------------------------------------------------------------------

    def _fired(self, _: Timer) -> None:
        if self.stepping:
            self._settle()
            self.fleet.boundary()
            clock = self.clock
            head = clock._heap[0] if clock._heap else None
            if clock.feed_time == clock._now or (head is not None and head[0] == clock._now and head[1] < TIMER):
                clock.at(clock._now, TIMER, self)  # what else happens at this instant comes first
                return
        self._decide()

    def _settle(self) -> None:
        """The steps under way are over: count their tokens."""
        self.stepping = False
        computed = self.clock._now - self.began - self.lag
        part = computed / (len(self.prefill) + (self.decoding if self.decodes else 0))
        if self.decodes:
            self.share += part
            steps = self.count
            self._take(self._growth(steps))
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
            if not request.left:
                self.prefilling.remove(request)
                self._prefilled(request)
        self.prefill = []

    def _prefilled(self, request: Generation) -> None:
        """The step that read the last of its prompt gave one token as well."""
        if self.cache is not None and request.hashes:
            self._share_prefix(request)
        request.made += 1
        if request.made == 1:
            self.fleet.first_token(request)
        if request.made == request.output:
            self._finish(request)
        elif self.prefills_only:
            del self._members[request.row]
            self.held[request.row] = request
            request.source = self
            request.left = 0
            request.paused_at = self.clock._now
            self.outstanding -= 1
            self.fleet.hand_over(request)
        else:
            self._start_decoding(request)

    def _start_decoding(self, request: Generation) -> None:
        tokens = request.prompt + request.made
        request.state = DECODING
        request.offset = request.made - self.steps
        request.end = self.steps + request.output - request.made
        request.seconds_from = self.share
        self.decoding += 1
        self.context += tokens
        self.residues[(tokens - self.steps) % self.block] += 1
        heappush(self.ends, (request.end, request.row, request))

    def _leave_decoding(self, request: Generation) -> None:
        request.made = request.produced
        tokens = request.prompt + request.made
        request.state = OVER
        request.end = -1
        request.seconds += self.share - request.seconds_from
        self.decoding -= 1
        self.context -= tokens
        self.residues[(tokens - self.steps) % self.block] -= 1

    def _finish(self, request: Generation) -> None:
        request.state = OVER
        del self._members[request.row]
        self._give_back(request)
        self.outstanding -= 1
        self.fleet.finished(request, self)

    # Memory --------------------------------------------------------------------------------------------------

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def _stored(self, request: Generation) -> int:
        """Tokens whose keys and values a member holds: of what it produced all but the last."""
        return request.prompt + max(request.made - 1, 0)

    def blocks_for(self, request: Generation) -> int:
        """With the block for its next token, where it need not be prefilled."""
        blocks = -(-(request.prompt + request.made) // self.block)
        if self.cache is None or not request.left:
            return blocks
        return blocks - self._found(request) * self.cache.each

    def cached(self, request: Generation) -> int:
        return 0 if self.cache is None else self._found(request) * self.cache.tokens

    def _found(self, request: Generation) -> int:
        assert self.cache is not None
        return self.cache.found(request.hashes, request.prompt // self.cache.tokens)

    def _take(self, blocks: int) -> None:
        self.free -= blocks
        if self.cache is not None:
            self.cache.fit(self.free)

    def _give_back(self, request: Generation) -> None:
        """Blocks of a member that leaves; its own count is that of `_stored` tokens."""
        tokens = request.prompt + request.made if request.state == PREFILLING else self._stored(request)
        self.free += -(-tokens // self.block) - request.shared
        if self.cache is not None and request.cached:
            self.free += self.cache.release(request.cached) * self.cache.each
            request.cached, request.shared = (), 0

    def _hold_prefix(self, request: Generation) -> int:
        """Use what is here of the prompt's beginning; the tokens that need not be prefilled."""
        cache = self.cache
        assert cache is not None
        found = self._found(request)
        request.cached = request.hashes[:found]
        request.shared = found * cache.each
        self._take(cache.hold(request.cached) * cache.each)
        return found * cache.tokens

    def _share_prefix(self, request: Generation) -> None:
        """The whole blocks of its prompt may be used by others from now on; they are no longer its own."""
        cache = self.cache
        assert cache is not None
        names = request.hashes[len(request.cached) : request.prompt // cache.tokens]
        new = cache.keep(names)
        request.cached = [*request.cached, *new]
        request.shared += len(new) * cache.each

    def _growth(self, steps: int) -> int:
        """KV blocks that so many steps of those who decode need in addition."""
        rounds, rest = divmod(steps, self.block)
        need = rounds * self.decoding
        for step in range(self.steps, self.steps + rest):
            need += self.residues[(1 - step) % self.block]
        return need

    def _until_full(self, most: int) -> int:
        """How many steps, `most` at most, the free blocks allow."""
        free, sequences = self.free, self.decoding
        if free >= sequences * (most // self.block + 1):
            return most
        rounds = free // sequences
        free -= rounds * sequences
        steps = rounds * self.block
        while steps < most:
            free -= self.residues[(1 - self.steps - steps) % self.block]
            if free < 0:
                break
            steps += 1
        return min(steps, most)

    # Decisions -----------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """Who gives way, who joins, what the next step does."""
        lag = 0.0
        gave_way = False
        if self.here:
            self._take_up()
        while self.decoding and self.residues[(1 - self.steps) % self.block] > self.free:
            lag += self._preempt()
            gave_way = True
        if self.waiting and not (gave_way and self._members):
            lag += self._join()
        if not self._members:
            self._rest()
            return
        if math.isnan(self.busy_from):
            self._awake()
        self.began, self.lag = self.clock._now, lag
        self.copied += lag
        self.stepping = True
        if not self.prefilling:
            self._jump()
            return
        plan = self.fleet.call(self.policy.step, self)
        self.prefill = list(plan.prefill)
        self.decodes = bool(plan.decode and self.decoding)
        tokens = self._checked()
        if not self.prefill:
            self._jump()
            return
        self.count = 1
        seconds = self.times.of(tokens, *((self.decoding, self.context) if self.decodes else (0, 0)))
        self.clock.at(self.began + (lag + seconds), FINISH, self)

    def _jump(self) -> None:
        """Decode until a sequence ends or blocks run out."""
        ends = self.ends
        while ends[0][2].end != ends[0][0] or ends[0][2].replica is not self:
            heappop(ends)
        self.decodes = True
        self.count = self._until_full(ends[0][0] - self.steps)
        self.clock.at(self._after(self.count), FINISH, self)

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
        if self.service.budget is not None and total > self.service.budget:
            raise self.fleet.illegal(f"prefills {total} tokens in one step; the budget is {self.service.budget}")
        if not total and not self.decodes:
            raise self.fleet.illegal("answered with a step that does nothing")
        return total

    def _join(self) -> float:
        """Let the head join as long as it may; seconds of copying that this takes."""
        waiting, service = self.waiting, self.service
        lag = 0.0
        while waiting:
            request = waiting[0][2]
            if request.state != QUEUED or request.replica is not self:
                heappop(waiting)
                continue
            if self.size >= service.max_sequences:
                break
            growth = self.residues[(1 - self.steps) % self.block]
            room = self.free if self.cache is None else self.free - self._idle_of(request)
            if self.blocks_for(request) + growth > room:
                break
            if not self.fleet.call(self.policy.admits, self, request):
                break
            heappop(waiting)
            lag += self._enter(request)
        return lag

    def _idle_of(self, request: Generation) -> int:
        """Free blocks that are so no longer once the request uses what lies in them."""
        cache = self.cache
        assert cache is not None
        if not request.left:
            return 0
        return cache.each * sum(name in cache.idle for name in request.hashes[: self._found(request)])

    def _enter(self, request: Generation) -> float:
        self.fleet.joined(request, self)
        if request.source is not None:
            self._take(self.blocks_of(self._stored(request)))
            request.state = LOADING
            self._loading[request.row] = request
            self.fleet.fetch(request, self)
            return 0.0
        self._begin(request)
        request.paused += 0.0 if math.isnan(request.paused_at) else self.clock._now - request.paused_at
        request.paused_at = NAN
        if request.swapped:
            request.swapped = False
            blocks = self.blocks_of(self._stored(request))
            self._take(blocks)
            self._start_decoding(request)
            return self._copying(blocks, up=True)
        tokens = request.prompt + request.made
        known = 0 if self.cache is None else self._hold_prefix(request)
        self._take(-(-tokens // self.block) - request.shared)
        request.left = max(1, tokens - known)
        request.state = PREFILLING
        self.prefilling.append(request)
        return 0.0

    def _begin(self, request: Generation) -> None:
        """It takes part in steps from now on."""
        self._members[request.row] = request
        if request.period != self.period:
            request.period = self.period
            self.served += 1
            if self.leader < 0:
                self.leader = request.row

    def fetched(self, request: Generation) -> None:
        """The keys and values of a request have come from where it was prefilled."""
        self.here.append(request)
        self.wake()

    def _take_up(self) -> None:
        """Those whose keys and values are here decode from this boundary on."""
        for request in self.here:
            del self._loading[request.row]
            request.paused += self.clock._now - request.paused_at
            request.paused_at = NAN
            self._begin(request)
            self._start_decoding(request)
        self.here = []

    def let_go(self, request: Generation) -> None:
        """A request prefilled here has been fetched."""
        del self.held[request.row]
        self._give_back(request)
        request.source = None
        self.wake()
        self.fleet.rested(self)

    def _preempt(self) -> float:
        """One member gives way; seconds of copying that this takes."""
        request: Generation = self.fleet.call(self.policy.victim, self)
        if request not in self._members.values():
            raise self.fleet.illegal(f"lets {request} give way, which is no member")
        lag = 0.0
        if request.state == DECODING:
            self._leave_decoding(request)
            request.left = request.prompt + request.made
            if self.service.swap:
                request.swapped, request.left = True, 0
                lag = self._copying(self.blocks_of(self._stored(request)), up=False)
            self._give_back(request)
        else:
            self.prefilling.remove(request)
            self._give_back(request)
            request.left = request.prompt + request.made
        del self._members[request.row]
        request.state = QUEUED
        request.paused_at = self.clock._now
        self.fleet.gave_way(request)
        self._queue(request)
        return lag

    def _copying(self, blocks: int, up: bool) -> float:
        """Seconds to copy KV blocks between host and devices, each device its part, alone on its link."""
        size = blocks * self.block * self.service.token_bytes / len(self.placement.devices)
        if not size:
            return 0.0
        links = self.fleet.links
        return max(
            Links.alone(links.up(device) if up else links.down(device), size) for device in self.placement.devices
        )

    # Rows of the launches table --------------------------------------------------------------------------------

    def _awake(self) -> None:
        self.launch = self.fleet.number_launch()
        self.busy_from = self.clock._now
        self.copied = 0.0

    def _rest(self) -> None:
        """Nothing to do: the busy period is over."""
        if not math.isnan(self.busy_from):
            self._write(LAUNCH_COMPLETED, self.clock._now)
        self.fleet.rested(self)

    def _write(self, outcome: int, end: float) -> None:
        """A row for the period that ends: held since the end of the one before, busy from its first step on."""
        busy = (end - self.busy_from - self.copied) * self.width
        load = self.load or (NAN, NAN)
        start = self.busy_from if self.load is None else load[0]
        times = (self.since, start, *load, self.busy_from, end if outcome == LAUNCH_COMPLETED else NAN, NAN, end)
        self.fleet.write(self, self.launch, self.leader, self.served, outcome, times, busy)
        self.since, self.load, self.busy_from = end, None, NAN
        self.served, self.leader = 0, -1
        self.period += 1

    def close(self, end: float, outcome: int) -> None:
        """The last row: the devices are given back, or the run is over."""
        if not math.isnan(self.busy_from):
            if self.stepping:
                self._count_part(end)
            self._write(outcome, end)
        elif end > self.since or self.load is not None:
            load = self.load or (NAN, NAN)
            times = (self.since, load[0], *load, NAN, NAN, NAN, end)
            self.fleet.write(self, self.fleet.number_launch(), -1, 0, outcome, times, 0.0)

    def _count_part(self, end: float) -> None:
        """Steps that the end of the run cuts off have been computed in part."""
        computed = max(0.0, end - self.began - self.lag)
        self.copied -= max(0.0, self.lag - (end - self.began))
        part = computed / (len(self.prefill) + (self.decoding if self.decodes else 0))
        for request, _ in self.prefill:
            request.seconds += part
        if self.decodes:
            self.share += part

    def part_of(self, request: Generation) -> float:
        """Seconds computed for a member up to now."""
        return request.seconds + (self.share - request.seconds_from if request.state == DECODING else 0.0)
