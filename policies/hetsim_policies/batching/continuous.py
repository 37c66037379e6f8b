"""Continuous batching: requests join and leave a running batch between any two steps of a language model.

Decides at each boundary which requests join (in an order, as long as memory and sequences allow), what is prefilled,
and which sequence is preempted when the KV blocks run out: the one that joined last.
References: Yu, Jeong, Kim, Kim and Chun, Orca: A Distributed Serving System for Transformer-Based Generative Models
(OSDI 2022), joining between steps (`phases: mixed` with whole prompts); Kwon, Li, Zhuang, Sheng, Zheng, Yu, Gonzalez,
Zhang and Stoica, Efficient Memory Management for Large Language Model Serving with PagedAttention (SOSP 2023), blocks,
preemption of the last, prompts before tokens (`prefill_first`); Agrawal, Kedia, Panwar, Mohan, Kwatra, Gulavani,
Tumanov and Ramjee, Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve (OSDI 2024), chunks of
prompts beside the decodes (`mixed` with `max_num_batched_tokens`); Gong et al., Past-Future Scheduler for LLM Serving
under SLA Guarantees (ASPLOS 2025), and LightLLM before it, the peak of the memory that a batch may come to need
(`reserve: peak`); virtual token counters as in `virtual_tokens`.
Weakness: `prefill_first`, and whole prompts in general, halt every answer under way while a long prompt is read;
chunks bound that halt and delay first tokens.  `shortest_prompt` starves long prompts under load.
`reserve: whole` never has to preempt a sequence and leaves much memory unused; `peak` uses it.
Cost: O(members that prefill) a boundary; O(log waiting) a request; with `reserve` O(members) a request that is looked
at, and with `peak` as much for every step or so in which the head may come to fit.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.model.units import Fraction
from hetsim.policy import BatchStep, Generation, IterationPolicy, Replica
from hetsim_policies.batching.common.virtual_tokens import Counters

WATERMARK = 0.01
Growth = tuple[int, int]
"""Less the step at which a sequence ends, and the tokens that it holds less the steps so far."""


def _share(value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"watermark is a share from 0 to below 1, not {value:g}")
    return value


def _weight(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is the price of a token, a number above 0, not {value:g}")
    return value


class Continuous(IterationPolicy):
    """Join between steps while KV blocks are free; last to join, first preempted.

    order: which request joins first: fcfs, shortest_prompt, priority (highest first) or vtc (fair among clients:
        virtual tokens).
    phases: mixed (a step decodes and then reads prompts, in chunks where max_num_batched_tokens ends it), prefill_first
        (while prompts are read, answers halt) or decode_first (no prompt is read before all answers under way have
        ended).  The latter two read whole prompts, as many as max_num_batched_tokens allows and at least one.
    watermark: share of the KV blocks that a request leaves free by joining, against preemption right afterwards; 1 %
        unless given, and none with reserve.
    reserve: none, whole (the prompts and longest answers of all members fit together) or peak (they fit at any time, if
        each answer becomes as long as announced: those that end early make room for the rest).
    min_decode_steps: steps that decode between two that read prompts; 0: none need.
    input_weight: price of a prompt token, for vtc.
    output_weight: price of a token that is decoded, for vtc.
    """

    def __init__(
        self,
        order: Literal["fcfs", "shortest_prompt", "priority", "vtc"] = "fcfs",
        phases: Literal["mixed", "prefill_first", "decode_first"] = "mixed",
        watermark: Fraction | None = None,
        reserve: Literal["none", "whole", "peak"] = "none",
        min_decode_steps: Annotated[int, Field(ge=0)] = 0,
        input_weight: float = 1.0,
        output_weight: float = 2.0,
    ):
        self.order = order
        self.phases = phases
        self.reserve = reserve
        self.watermark = _share((0.0 if reserve != "none" else WATERMARK) if watermark is None else watermark)
        self.min_decode_steps = min_decode_steps
        self.input_weight = _weight("input_weight", input_weight)
        self.output_weight = _weight("output_weight", output_weight)
        self.reserves = reserve != "none"
        self.by_client = order == "vtc"
        self.follows = self.by_client or self.reserves
        self.changes = self.by_client or reserve == "peak" or min_decode_steps > 0
        self._counters = Counters(self.input_weight, self.output_weight)
        self._reserved: dict[int, Reservations] = defaultdict(lambda: Reservations(reserve == "whole"))
        self._coming: dict[int, dict[Generation, None]] = defaultdict(dict)
        """Members of each replica that do not decode yet."""
        self._read_at: dict[int, int] = {}
        """Steps that each replica had decoded when it read a prompt last."""

    # Joining -----------------------------------------------------------------------------------------------------

    def key(self, request: Generation) -> Any:
        if self.order == "priority":
            return (-request.priority, request.arrival)
        return request.left if self.order == "shortest_prompt" else request.arrival

    def admits(self, replica: Replica, request: Generation) -> bool:
        if self.phases == "decode_first" and replica.decoding:
            return False
        if not replica.size:
            return True
        if self.min_decode_steps and self._pause(replica) > 0:
            return False
        limit = replica.service.max_num_batched_tokens
        if limit is not None and not self._fits_step(replica, request, limit):
            return False
        if self.reserves and self._excess(replica, request, 0) > 0:
            return False
        if not self.watermark:
            return True
        return replica.free_blocks - replica.blocks_for(request) >= self.watermark * replica.blocks

    def _pause(self, replica: Replica) -> int:
        """Steps to decode before a prompt may be read again."""
        if not replica.decoding:
            return 0
        return self._read_at.get(replica.number, -self.min_decode_steps) + self.min_decode_steps - replica.steps

    def _fits_step(self, replica: Replica, request: Generation, limit: int) -> bool:
        """Has the next step room for tokens of it?"""
        prefilling = replica.prefilling
        reading = sum([other.left for other in prefilling]) if prefilling else 0
        if self.phases == "mixed":
            return replica.decoding + reading < limit
        if not reading:
            return True
        more = max(1, request.left - replica.cached(request)) if request.left else 0
        return reading + more <= limit

    def _excess(self, replica: Replica, request: Generation, steps: int) -> int:
        """Excess tokens if it joins after `steps` decodes and answers end as announced."""
        block = replica.service.block
        coming = [self._to_hold(other, block) for other in (*self._coming[replica.number], request)]
        need = self._reserved[replica.number].need(replica.steps + steps, coming)
        return need - replica.blocks * block

    def _to_hold(self, request: Generation, block: int) -> tuple[int, int]:
        """Tokens yet to hold after its next one, and those it holds then.

        All but the last of its tokens are held, n of them in at most n + block - 1 tokens' worth of blocks.  The step
        that reads what is left of its prompt gives a token, which the next one holds.
        """
        produced = request.produced + (request.left > 0)
        more = request.longest - produced - 1
        there = request.prompt + produced + block - 1
        return (more, there) if more >= 0 else (0, there - 1)

    def steady(self, replica: Replica, request: Generation, steps: int) -> int:
        if self.phases == "decode_first":
            return steps  # no request joins before an answer ends
        pause = self._pause(replica) if self.min_decode_steps else 0
        if pause > 0:
            return min(steps, pause)
        if self.by_client:
            steps = self._counters[replica.number].steps_until_turn(request.client, replica.heads, replica.steps, steps)
        if self.reserve != "peak":
            return steps
        step = 1
        while step < steps and (excess := self._excess(replica, request, step)) > 0:
            step += max(1, excess // (replica.size + 1))  # a step changes the need by a token a sequence at most
        return min(step, steps)

    # Members and clients -----------------------------------------------------------------------------------------

    def turn(self, replica: Replica) -> str:
        return self._counters[replica.number].turn(replica.heads, replica.steps)

    def queued(self, replica: Replica, request: Generation) -> None:
        self._counters[replica.number].queued(request, replica.heads, replica.steps)

    def joined(self, replica: Replica, request: Generation) -> None:
        if self.by_client:
            self._counters[replica.number].joined(request)
        if self.reserves:
            self._coming[replica.number][request] = None

    def decodes(self, replica: Replica, request: Generation) -> None:
        if self.by_client:
            self._counters[replica.number].decodes(request, replica.steps)
        if self.reserves:
            self._coming[replica.number].pop(request)
            to_hold = self._to_hold(request, replica.service.block)
            self._reserved[replica.number].decodes(request, to_hold, replica.steps)

    def left(self, replica: Replica, request: Generation, over: bool) -> None:
        if self.by_client:
            self._counters[replica.number].left(request, over, replica.steps)
        if self.reserves:
            self._coming[replica.number].pop(request, None)
            self._reserved[replica.number].left(request)

    # Steps -------------------------------------------------------------------------------------------------------

    def step(self, replica: Replica) -> BatchStep:
        prefilling = replica.prefilling
        if not prefilling:
            return BatchStep()
        if self.min_decode_steps:
            self._read_at[replica.number] = replica.steps
        mixed, limit = self.phases == "mixed", replica.service.max_num_batched_tokens
        if limit is None:
            return BatchStep([(request, request.left) for request in prefilling], mixed)
        room = limit - replica.decoding if mixed else limit
        prefill: list[tuple[Any, int]] = []
        for request in prefilling:
            take = request.left
            if take > room:
                if not room or (prefill and not mixed):
                    break
                take = room
            prefill.append((request, take))
            room -= take
        return BatchStep(prefill, mixed)

    def victim(self, replica: Replica) -> Generation:
        if self.order == "priority":
            return min(reversed(replica.members), key=lambda request: request.priority)
        return replica.members[-1]


class Reservations:
    """Tokens that the requests in a replica may come to hold, if each answer becomes as long as announced.

    A sequence that decodes holds a token more after every step until it ends, so the step at which it ends and what it
    holds less the steps so far are constant: they are kept in order, and a look at a waiting request counts from there.
    When one ends, those with more to come have grown by as much; the peak is the maximum over these ends.
    Cost: O(sequences) a look, O(log sequences) to find a place.
    """

    def __init__(self, whole: bool):
        self.whole = whole
        """Reserve for all at once, not for the peak."""
        self.decoding: list[Growth] = []
        """The last to end first."""
        self.of: dict[Any, Growth] = {}
        self.total = 0
        """Tokens that all of them hold at their ends."""

    def decodes(self, request: Any, to_hold: tuple[int, int], steps: int) -> None:
        """A sequence decodes from now on; to_hold: tokens yet to hold after its next one, and those it holds then."""
        more, there = to_hold
        self.of[request] = growth = (-steps - more, there - steps)
        insort(self.decoding, growth)
        self.total += growth[1] - growth[0]

    def left(self, request: Any) -> None:
        growth = self.of.pop(request, None)
        if growth is not None:
            del self.decoding[bisect_left(self.decoding, growth)]
            self.total -= growth[1] - growth[0]

    def need(self, steps: int, coming: list[tuple[int, int]]) -> int:
        """Tokens to hold for the sequences that decode and those of which each (to hold, there) is known."""
        if self.whole:
            return self.total + sum([more + there for more, there in coming])
        growths = self.decoding + [(-steps - more, there - steps) for more, there in coming]
        growths.sort()
        most = held = 0
        for count, (end, base) in enumerate(growths, start=1):
            held += base
            if held - count * end > most:
                most = held - count * end
        return most
