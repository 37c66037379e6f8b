"""Requests of a replica: which ones wait, join, decode, or are preempted."""

from __future__ import annotations

import math
from heapq import heappush
from typing import Any

from sim.engine.flight.links import Links
from sim.engine.kernel.clock import Clock
from sim.engine.language.generation import DECODING, LOADING, NAN, OVER, PREFILLING, QUEUED, Generation
from sim.engine.language.kv_memory import KVMemory
from sim.engine.language.lines import Line, Lines
from sim.engine.language.service_calls import ServiceCalls
from sim.model.plan import Placement


class Members(KVMemory):
    """Requests on their way through one replica: waiting, members, and those with keys and values in transfer."""

    fleet: ServiceCalls
    policy: Any
    clock: Clock
    placement: Placement
    prefills_only: bool
    share: float
    period: int

    def _nobody(self) -> None:
        self.outstanding = 0
        self.by_client: bool = self.policy.by_client
        self.follows: bool = self.policy.follows
        self.line: Line = (Lines if self.by_client else Line)(self)
        """Waiting requests."""
        self._members: dict[int, Generation] = {}
        self._loading: dict[int, Generation] = {}
        self.held: dict[int, Generation] = {}
        """Prefilled here, not yet fetched by the replica that will decode them."""
        self.here: list[Generation] = []
        """Requests of `_loading` of which the keys and values have arrived."""
        self.prefilling: list[Generation] = []
        self.decoding = 0
        self.context = 0
        """Tokens of the sequences that decode, those of the next step's input included."""
        self.ends: list[tuple[int, int, Generation]] = []
        self.steps = 0
        self.coming: list[Generation] = []
        """Under a policy by client: requests that came in the steps under way; they queue when these are over."""
        self.leaving: list[Generation] = []
        """Members that their clients have aborted in the step under way."""
        self.head: Generation | None = None
        """The first waiting request, if it may not join although the replica could take one more sequence."""
        self.decoded_at = NAN
        """When the last step that decoded was over, with a token for each sequence that decodes but the fresh ones."""
        self.fresh: dict[int, float] = {}
        """Sequences that have begun to decode since then: when their last tokens came, by row."""
        self.served = 0
        self.leader = -1

    def wake(self) -> None:
        """Something has come: a boundary as soon as there can be one."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        return len(self._members) + len(self._loading)

    @property
    def members(self) -> list[Generation]:
        return list(self._members.values())

    @property
    def idle(self) -> bool:
        """Is nothing here and nothing on its way?"""
        return not (self.outstanding or self.held or self._loading)

    def _queue(self, request: Generation) -> None:
        self.line.push(self.fleet.call(self.policy.key, request), request)

    def _line_up(self) -> None:
        """Queue those that came in the steps that are over, in order of arrival."""
        coming, self.coming = self.coming, []
        for request in coming:
            if request.state == QUEUED and request.replica is self:
                self._queue(request)

    def _join(self) -> float:
        """Let the head join as long as it may; seconds of copying that this takes."""
        line, most = self.line, self.service.max_sequences
        lag = 0.0
        while len(self._members) + len(self._loading) < most:
            request = self.head = line.head()
            if request is None:
                break
            growth = self.residues[(1 - self.steps) % self.block]
            room = self.free if self.cache is None else self.free - self._idle_of(request)
            if self.blocks_for(request) + growth > room:
                break
            if not self.fleet.call(self.policy.admits, self, request):
                break
            line.pop()
            self.head = None
            lag += self._enter(request)
        return lag

    def _enter(self, request: Generation) -> float:
        if self.follows:
            self.fleet.call(self.policy.joined, self, request)
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
            self._start_decoding(request, request.token_at)
            return self._copying(blocks, up=True)
        tokens = request.prompt + request.made
        known = 0 if self.cache is None else self._hold_prefix(request)
        if self.cache is not None:
            self.fleet.looked_up(request, known)
        self._take(-(-tokens // self.block) - request.shared)
        request.left = max(1, tokens - known)
        request.state = PREFILLING
        self.prefilling.append(request)
        return 0.0

    def _begin(self, request: Generation) -> None:
        """Let a request take part in steps from now on."""
        self._members[request.row] = request
        if request.period != self.period:
            request.period = self.period
            self.served += 1
            if self.leader < 0:
                self.leader = request.row

    def _prefilled(self, request: Generation) -> None:
        """The step that read the last of its prompt gave one token as well."""
        if self.cache is not None and request.hashes:
            self._share_prefix(request)
        request.made += 1
        if request.made == 1:
            self.fleet.first_token(request)
        else:
            self.fleet.recorder.token_gap(self.clock._now, request.token_at)
        if request.made == request.output:
            self._finish(request)
        elif self.prefills_only:
            self._told_left(request, False)
            request.token_at = self.clock._now
            del self._members[request.row]
            self.held[request.row] = request
            request.source = self
            request.left = 0
            request.paused_at = self.clock._now
            self.outstanding -= 1
            self.fleet.hand_over(request)
        else:
            self._start_decoding(request, self.clock._now)

    def _start_decoding(self, request: Generation, token_at: float) -> None:
        """Let a request take part in the next steps that decode; token_at: when its last token came."""
        if token_at != self.decoded_at:
            self.fresh[request.row] = token_at
        tokens = request.prompt + request.made
        request.state = DECODING
        request.offset = request.made - self.steps
        request.end = self.steps + request.output - request.made
        request.seconds_from = self.share
        self.decoding += 1
        self.context += tokens
        self.residues[(tokens - self.steps) % self.block] += 1
        heappush(self.ends, (request.end, request.row, request))
        if self.follows:
            self.fleet.call(self.policy.decodes, self, request)

    def _leave_decoding(self, request: Generation) -> None:
        request.made = request.produced
        request.token_at = self.fresh.pop(request.row, self.decoded_at) if self.fresh else self.decoded_at
        tokens = request.prompt + request.made
        request.state = OVER
        request.end = -1
        request.seconds += self.share - request.seconds_from
        self.decoding -= 1
        self.context -= tokens
        self.residues[(tokens - self.steps) % self.block] -= 1

    def _finish(self, request: Generation) -> None:
        """End a request that has its last token, or that its client has aborted."""
        if self.follows:
            self._told_left(request, True)
        if not request.leaves:
            request.state = OVER
        del self._members[request.row]
        self._give_back(request)
        request.state = OVER
        self.outstanding -= 1
        self.fleet.finished(request, self)

    def _told_left(self, request: Generation, over: bool) -> None:
        if self.follows:
            self.fleet.call(self.policy.left, self, request, over)

    def abort(self, request: Generation) -> None:
        """The client of a member is gone: it leaves when the step under way is over, and frees its blocks."""
        request.leaves = True
        self.leaving.append(request)
        self.wake()

    def _abort(self) -> None:
        """Members that were aborted in the step that is over leave, unless it was their last anyway."""
        for request in self.leaving:
            if request.replica is self and request.row in self._members:
                if request.state == DECODING:
                    self._leave_decoding(request)
                else:
                    self.prefilling.remove(request)
                self._finish(request)
        self.leaving = []

    def forget_loading(self, request: Generation) -> None:
        """Abort a request while its keys and values are on their way here."""
        del self._loading[request.row]
        if request in self.here:
            self.here.remove(request)
        for flow in request.flows:
            self.fleet.links.cancel(flow)
        request.flows = []
        self.free += self.blocks_of(self._stored(request))
        self._told_left(request, True)
        request.state = OVER
        self.outstanding -= 1
        self.wake()

    def _preempt(self) -> float:
        """Preempt one member, chosen by the policy; seconds of copying that this takes."""
        request: Generation = self.fleet.call(self.policy.victim, self)
        if request not in self._members.values():
            raise self.fleet.illegal(f"lets {request} give way, which is no member")
        self._told_left(request, False)
        lag = 0.0
        swapped = request.state == DECODING and self.service.swap
        if request.state == DECODING:
            self._leave_decoding(request)
            request.left = request.prompt + request.made
            if swapped:
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
        self.fleet.gave_way(request, "swap" if swapped else "recompute")
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

    def fetched(self, request: Generation) -> None:
        """The keys and values of a request have come from where it was prefilled."""
        self.here.append(request)
        self.wake()

    def _take_up(self) -> None:
        """Let requests decode from this boundary on if their keys and values have arrived."""
        for request in self.here:
            del self._loading[request.row]
            request.paused += self.clock._now - request.paused_at
            request.paused_at = NAN
            self._begin(request)
            self._start_decoding(request, request.token_at)
        self.here = []

    def let_go(self, request: Generation) -> None:
        """A request prefilled here has been fetched."""
        del self.held[request.row]
        self._give_back(request)
        request.source = None
        self.wake()
        self.fleet.rested(self)
