"""State of a language-model replica: waiting and admitted requests, memory, steps."""

import math
from heapq import heapify, heappop, heappush
from typing import Any

from hetsim.engine.core.policy_errors import call
from hetsim.engine.kernel.clock import TIMER
from hetsim.engine.language.generation import DECODING, LOADING, NAN, OVER, PREFILLING, QUEUED, Generation
from hetsim.engine.language.kv_memory import KVMemory
from hetsim.engine.language.llm_service import Fleet
from hetsim.engine.language.sequences import Sequences
from hetsim.engine.language.steps import Steps
from hetsim.engine.residents.holder import Holder, HolderType
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING
from hetsim.policy.iterating import Foreseen

Entry = tuple[Any, int, Generation]


class Members(Holder):
    """State and requests of a replica; the subclass `Replica` decides its steps.

    It consists of `memory` for keys and values, the `sequences` that decode, the requests (waiting in `lines`, joined
    in `inside`), and the current steps with their busy period (`stage`).  It has the attributes that policies see
    (`hetsim.policy.iterating.Replica`).
    """

    fleet: Fleet

    def __init__(self, fleet: Fleet, number: int, kind: HolderType, placement: Placement, prefills_only: bool):
        super().__init__(fleet, number, kind, placement=placement, prefills_only=prefills_only)
        service, self.policy = self.service, fleet.batching
        self.blocks, self.times = kind.given.blocks, kind.given.step
        self.code = fleet.recorder.replica(service.name, number, self.blocks, placement)
        self.rows: Any = fleet.recorder.steps  # a forecast writes none
        self.memory = KVMemory(self.blocks, service.block, service.prefix_block)
        self.sequences = Sequences(self, self.memory)
        self.stage = Steps(
            self.clock, self.launch, self.times, sequences=self.sequences, width=kind.width, recorded=self.clock._now
        )  # fmt: skip
        self.lines: dict[str, list[Entry]] = {}  # by client (all: ""); one that is empty stays for its next request
        self.heads: dict[str, Generation] = {}  # the first waiting request of each of these lines
        self.chosen = ""  # the client whose request may join next
        self.inside: dict[int, Generation] = {}
        self.loading: dict[int, Generation] = {}
        self.held: dict[int, Generation] = {}  # prefilled here, not yet fetched by the replica that will decode them
        self.here: list[Generation] = []  # requests of `loading` of which the keys and values have arrived
        self.prefilling: list[Generation] = []
        self.prefill: list[tuple[Generation, int]] = []  # prompt tokens that the step under way reads
        # if policies choose clients: arrivals during the current steps, queued after them
        self.coming: list[Generation] = []
        self.leaving: list[Generation] = []  # members that their clients have aborted in the step under way
        # the first waiting request, if it may not join although there is a place for it
        self.head: Generation | None = None
        # results that clients see after the next step (`async_scheduling`): what shows them, and of which request
        self.unseen: list[tuple[Any, Generation]] = []
        self.looked = 0  # number of decoding steps when the replica last read prompts, or was idle
        self.wait_ends = 0  # decoding steps after which waiting prompts are read (0: none wait for others)
        self.foreseen: Foreseen | None = None  # cached forecast of its requests; None after any event here

    # What policies see --------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self.clock._now

    @property
    def taken_in(self) -> list[Generation]:
        """Joined requests, and those whose keys and values are in transfer to the replica."""
        return [*self.inside.values(), *self.loading.values()]

    @property
    def waiting(self) -> int:
        return self.outstanding - self.size

    @property
    def kv_used(self) -> float:
        return 1.0 - self.free_blocks / self.blocks

    def prefixes(self) -> frozenset[Any]:
        """Return the names of the prefixes that are cached."""
        self.evict()
        return frozenset() if (cache := self.memory.cache) is None else frozenset([*cache.users, *cache.idle])

    @property
    def idle(self) -> bool:
        return not (self.outstanding or self.held or self.loading or self.stage.busy)

    @property
    def size(self) -> int:
        return len(self.inside) + len(self.loading)

    @property
    def members(self) -> list[Generation]:
        return list(self.inside.values())

    @property
    def decoding(self) -> int:
        return self.sequences.count

    @property
    def steps(self) -> int:
        stage, steps = self.stage, self.sequences.steps
        return steps + stage.over_by(self.clock._now) if stage.under_way and stage.count > 1 else steps

    @property
    def free_blocks(self) -> int:
        if self.stage.under_way and (done := self.steps - self.sequences.steps):
            return self.memory.free - self.sequences.growth(done)
        return self.memory.free

    def blocks_for(self, request: Generation) -> int:
        self.evict()
        return self.memory.blocks_for(request)

    def cached(self, request: Generation) -> int:
        self.evict()
        return self.memory.cached(request)

    def foresee(self, request: Generation | None = None) -> Foreseen:
        if request is not None:
            return self.fleet.foresee(self, request)
        forecast = self.foreseen
        if forecast is None or forecast.first_end < self.clock._now:  # one that should have ended by now takes longer
            forecast = self.foreseen = self.fleet.foresee(self, None)
            if self.loading or not self.loaded:
                self.foreseen = None  # the rates of transfers change without a word to replicas
        return forecast

    def evict(self) -> None:
        """Evict idle cached prefixes for which the sequences' KV data leave no room."""
        cache = self.memory.cache
        if cache is not None and cache.idle and self.stage.under_way:
            cache.fit(self.free_blocks)

    # Waiting ------------------------------------------------------------------------------------------------

    def enqueue(self, request: Generation) -> None:
        stage = self.stage
        self.foreseen = None
        request.replica = self
        request.state = QUEUED
        request.period = -1
        self.add(1)
        if self.policy.by_client and stage.under_way:
            self.coming.append(request)
            self.wake()
            return
        self.queue(request)
        if not stage.under_way:
            self.wake()
        elif stage.count > 1 and self.size < self.service.max_sequences and self.first() is request:
            stage.cut()

    def wake(self) -> None:
        """Schedule a step boundary: now if idle, else at the end of the step in progress."""
        self.foreseen = None
        if self.stage.under_way:
            if self.stage.count > 1:
                self.stage.cut()
        elif self.launch.entry < 0 and self.loaded:
            self.clock.at(self.clock._now, TIMER, self.launch)

    def queue(self, request: Generation) -> None:
        """Add a waiting request: by client, or in one line for all of them.

        Requests that no longer wait are skipped at the head.  Cost: O(log waiting requests), and that of the policy.
        """
        key = call(self.fleet.state, self.policy.key, request)
        client, heads = self._line_of(request), self.heads
        if self.policy.by_client:
            call(self.fleet.state, self.policy.queued, self, request)
        line = self.lines.setdefault(client, [])
        heappush(line, (key, request.row, request))
        if client not in heads or line[0][2] is request:
            heads[client] = request

    def _line_of(self, request: Generation) -> str:
        return request.client if self.policy.by_client else ""

    def _look(self, client: str) -> None:
        """Remove stale entries from a client's line, and store its first waiting request."""
        line = self.lines[client]
        while line:
            request = line[0][2]
            if request.state == QUEUED and request.replica is self:
                self.heads[client] = request
                return
            heappop(line)
        self.heads.pop(client, None)

    def first(self) -> Generation | None:
        """Return the next request to join (of the client the policy chooses), or None."""
        heads = self.heads
        if not self.policy.by_client or not heads:
            return heads.get("")
        if len(heads) == 1:
            self.chosen = next(iter(heads))
        else:
            self.chosen = client = call(self.fleet.state, self.policy.turn, self)
            if client not in heads:
                raise self.fleet.illegal(f"chose the client {client!r}, which has no waiting requests")
        return heads[self.chosen]

    def everyone(self) -> list[Generation]:
        """Return all waiting requests, client by client in queue order."""
        return [
            request for line in self.lines.values() for _, _, request in sorted(line, key=lambda entry: entry[:2])
            if request.state == QUEUED and request.replica is self
        ]  # fmt: skip

    def line_up(self) -> None:
        """Queue the requests that arrived during the last steps, in order of arrival."""
        coming, self.coming = self.coming, []
        for request in coming:
            if request.state == QUEUED and request.replica is self:
                self.queue(request)

    def forget(self, request: Generation) -> None:
        """Remove a waiting request; its queue entry becomes stale and is skipped."""
        request.state = OVER
        client = self._line_of(request)
        if self.heads.get(client) is request:
            self._look(client)
        self.add(-1)
        self.wake()

    # Joining ------------------------------------------------------------------------------------------------

    def join(self) -> float:
        """Add waiting requests while they fit; return seconds to copy their KV data back."""
        max_members, memory, inside, loading = self.service.max_sequences, self.memory, self.inside, self.loading
        lag = 0.0
        while len(inside) + len(loading) < max_members:
            request = self.head = self.first()
            if request is None or memory.blocks_for(request) + self.sequences.needed > memory.free:
                break
            if not call(self.fleet.state, self.policy.admits, self, request):
                break
            self.head = None
            if self.fleet.drops(request):
                self.clock.cancel(self.launch)  # woken by the end of the request, while it decides
                continue
            heappop(self.lines[self.chosen])
            self._look(self.chosen)
            lag += self._enter(request)  # copies follow each other over one link
        return lag

    def _enter(self, request: Generation) -> float:
        fleet, memory = self.fleet, self.memory
        if self.policy.follows:
            call(fleet.state, self.policy.joined, self, request)
        fleet.joined(request, self)
        if request.source is not None:
            memory.enter_with(request)
            request.state = LOADING
            self.loading[request.row] = request
            fleet.fetch(request, self)
            return 0.0
        self._begin(request)
        if request.swapped:
            request.swapped = False
            blocks = memory.enter_with(request)
            self._decode(request, request.token_at)
            return fleet.copying(self.placement, blocks * memory.block, up=True)
        cached_tokens = memory.enter(request)
        if memory.cache is not None:
            fleet.looked_up(request, cached_tokens)
        request.to_prefill = max(1, request.prompt + request.made - cached_tokens)
        request.state = PREFILLING
        self.prefilling.append(request)
        return 0.0

    def _begin(self, request: Generation) -> None:
        self.inside[request.row] = request
        self.stage.take_part(request)
        if not math.isnan(request.paused_at):
            request.paused += self.clock._now - request.paused_at
            request.paused_at = NAN

    def _decode(self, request: Generation, token_at: float) -> None:
        self.sequences.begin(request, token_at)
        if self.policy.follows:
            call(self.fleet.state, self.policy.decodes, self, request)

    def _out(self, request: Generation, over: bool) -> None:
        """Take a request out of the batch; unless it is `over`, it waits again."""
        self.inside.pop(request.row, None)
        request.task._launch, request.state = None, OVER if over else QUEUED
        if not over:
            request.task.state = WAITING

    def _leave_steps(self, request: Generation) -> None:
        if request.state == DECODING:
            self.sequences.leave(request)
        else:
            self.prefilling.remove(request)

    def take_up(self) -> None:
        """Start decoding the requests whose keys and values have arrived."""
        for request in self.here:
            del self.loading[request.row]
            self._begin(request)
            self._decode(request, request.token_at)
        self.here = []

    def fetched(self, request: Generation) -> None:
        """Record that the request's KV cache has arrived from the prefill replica."""
        self.here.append(request)  # it decodes from the next boundary on
        self.wake()

    # Further ------------------------------------------------------------------------------------------------

    def prefilled(self, request: Generation, tokens: int) -> None:
        """Record prompt tokens that a step has prefilled."""
        request.to_prefill -= tokens
        if request.to_prefill or request.leaves:
            return
        self.prefilling.remove(request)
        self.memory.share_prefix(request)
        fleet, now = self.fleet, self.clock._now
        request.made += 1  # the step that read the last of its prompt gave one token as well
        if request.made == 1:
            fleet.first_token(request)
        else:
            fleet.recorder.token_gap(now, request.token_at)
        if request.made == request.output:
            self.finish(request)
        elif self.prefills_only:
            self._told_left(request, False)
            request.token_at = request.paused_at = now
            self._out(request, False)
            self.held[request.row] = request  # its blocks stay taken until the other replica has them
            request.source = self
            request.to_prefill = 0
            self.add(-1)
            fleet.hand_over(request)  # last: it may be routed at once
        else:
            self._decode(request, now)

    # Leaving ------------------------------------------------------------------------------------------------

    def finish(self, request: Generation) -> None:
        """End a request that has its last token or whose client has aborted it."""
        self._told_left(request, True)
        if not request.leaves:
            request.state = OVER
        self.memory.give_back(request)
        self._out(request, True)
        self.add(-1)
        self.fleet.finished(request, self)

    def _told_left(self, request: Generation, over: bool) -> None:
        if self.policy.follows:
            call(self.fleet.state, self.policy.request_left, self, request, over)

    def abort(self, request: Generation) -> bool:
        """Abort a request; return True if it leaves only after the current step."""
        request.leaves = True
        if request.row in self.inside:
            self.leaving.append(request)
            self.wake()
            return True
        if request.state == LOADING:  # its keys and values are on their way here
            del self.loading[request.row]
            if request in self.here:
                self.here.remove(request)
            self._stop_loading(request, True)
            self._out(request, True)
            self.add(-1)
            self.wake()
        return False

    def let_leave(self) -> None:
        """Remove aborted requests after a step, unless the step completed them."""
        for request in self.leaving:
            if request.replica is self and request.row in self.inside:
                self._leave_steps(request)
                self.finish(request)
        self.leaving = []

    def _stop_loading(self, request: Generation, over: bool) -> None:
        """Cancel a request's KV transfer to this replica; over: True if the request ends."""
        self.evict()
        self._told_left(request, over)
        self.fleet.cancel_fetch(request)
        self.memory.free += self.memory.blocks_of(request.stored)  # as `enter_with` took them

    def preempt(self) -> float:
        """Preempt the request that the policy chooses.

        Returns the seconds to copy its keys and values to the host (0: they are computed again).
        """
        fleet = self.fleet
        request: Generation = call(fleet.state, self.policy.victim, self)
        if request not in self.inside.values():
            raise fleet.illegal(f"preempts {request}, which is not in the replica")
        self._told_left(request, False)
        lag = 0.0
        # Only what decodes is worth a copy on the host: of a prompt that is half read nothing is kept.
        swapped = request.state == DECODING and self.service.swap
        self._leave_steps(request)
        request.to_prefill = request.prompt + request.made
        if swapped:
            request.swapped, request.to_prefill = True, 0
            tokens = self.memory.blocks_of(request.stored) * self.memory.block
            lag = fleet.copying(self.placement, tokens, up=False)
        self.memory.give_back(request)
        self._out(request, False)
        request.paused_at = self.clock._now
        fleet.gave_way(request, "swap" if swapped else "recompute")
        self.queue(request)
        return lag

    def let_go(self, request: Generation) -> None:
        """Free the KV blocks of a prefilled request that this replica no longer needs."""
        del self.held[request.row]  # fetched, or not wanted any more
        self.memory.give_back(request)
        request.source = None
        self.wake()
        self.fleet.rested(self)

    # Failures -----------------------------------------------------------------------------------------------

    def lose(self, kind: str) -> list[Generation]:
        """Remove and return all requests of a lost replica, which others must serve.

        Requests that had joined begin again.  kind: cause under which their preemption is counted.
        """
        fleet, now = self.fleet, self.clock._now
        self.line_up()
        waiting = self.everyone()
        members = list(self.inside.values())
        for request in members:
            self._told_left(request, False)
            self._leave_steps(request)
            fleet.gave_way(request, kind)
            self._out(request, False)
        for request in self.loading.values():
            self._out(request, False)
            self._told_left(request, False)
            fleet.cancel_fetch(request)
            if request.source is not None and request.row in request.source.held:  # else it has failed before
                request.source.let_go(request)
        inside = [*members, *self.loading.values()]
        for request in [*inside, *(one for one in waiting if one.source is None)]:
            request.begin_anew(now)
        for request in waiting:
            request.replica = None
        self.loading, self.held, self.here = {}, {}, []  # with the replica all that it had is gone
        self.lines, self.heads = {}, {}
        return [*inside, *waiting]

    def lose_source(self, request: Generation) -> None:
        """Reset a request whose prefill replica was lost; this replica prefills it."""
        loading = self.loading.pop(request.row, None)
        if loading is not None:
            self._stop_loading(request, False)
            self._out(request, False)
        request.begin_anew(self.clock._now)
        request.replica = self
        if loading is not None:
            self.add(-1)
            self.enqueue(request)
        elif request not in self.coming:
            client = self._line_of(request)
            line = self.lines[client] = [entry for entry in self.lines[client] if entry[2] is not request]
            line.append((call(self.fleet.state, self.policy.key, request), request.row, request))
            heapify(line)  # its key has changed, in either direction
            self._look(client)
        self.wake()

    def defects(self) -> list[str]:
        """Return errors in counts of requests and KV blocks as messages (for --check)."""
        inside, memory, sequences = self.taken_in, self.memory, self.sequences
        texts = [
            f"{one} has produced {one.produced} of {one.output} tokens" for one in inside
            if not 0 <= one.produced <= one.output or one.state in (QUEUED, OVER)
        ]  # fmt: skip
        # All tokens but the last one, which has no keys and values before it has been read, occupy blocks.
        tokens = {one: one.context_tokens - (one.state != PREFILLING) for one in (*inside, *self.held.values())}
        # Prefixes are shared where they were read: not where the keys and values are being sent.
        own = sum(memory.blocks_of(n) - (one.source in (None, self)) * one.shared for one, n in tokens.items())
        if memory.cache is not None:
            own += len(memory.cache.users) * memory.cache.each
            if memory.cached_blocks > memory.free:
                texts.append("more prefixes are kept than fit")
        free = self.free_blocks
        if own + free != memory.total or free < 0:
            texts.append(f"KV blocks: {own} held and {free} free, there are {memory.total}")
        if len(inside) > self.service.max_sequences:
            texts.append(f"{len(inside)} sequences, at most {self.service.max_sequences} may be in a replica")
        context = [one.context_tokens - self.steps + sequences.steps for one in inside if one.state == DECODING]
        if len(context) != sequences.count or sum(context) != sequences.context:
            texts.append("the context of the sequences that decode does not add up")
        waiting = len(self.everyone()) + sum(r.state == QUEUED and r.replica is self for r in self.coming)
        if waiting + len(inside) != self.outstanding:
            texts.append(f"{self.outstanding} outstanding, {waiting} wait and {len(inside)} are in it")
        return [f"{self!r}: {text}" for text in texts]
