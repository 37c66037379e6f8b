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
from collections import defaultdict
from typing import Annotated, Any, Literal

from pydantic import Field

from policies.batching.common.reservations import Reservations
from policies.batching.common.virtual_tokens import Counters
from sim.model.units import Fraction
from sim.policy import BatchStep, Generation, IterationPolicy, Replica

WATERMARK = 0.01


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
        budget = replica.service.budget
        if budget is not None and not self._fits_step(replica, request, budget):
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

    def _fits_step(self, replica: Replica, request: Generation, budget: int) -> bool:
        """Has the next step room for tokens of it?"""
        prefilling = replica.prefilling
        reading = sum([other.left for other in prefilling]) if prefilling else 0
        if self.phases == "mixed":
            return replica.decoding + reading < budget
        return not reading or reading + request.left - replica.cached(request) <= budget

    def _excess(self, replica: Replica, request: Generation, steps: int) -> int:
        """Excess tokens if it joins after `steps` decodes and answers end as announced."""
        block = replica.service.block
        coming = [self._to_hold(other, block, steps) for other in replica.prefilling]
        coming.append(self._to_hold(request, block, 0))
        need = self._reserved[replica.number].need(replica.steps + steps, coming)
        return need - replica.blocks * block

    def _to_hold(self, request: Generation, block: int, steps: int) -> tuple[int, int]:
        """Tokens yet to hold after `steps` and its next one, and those it holds then.

        All but the last of its tokens are held, n of them in at most n + block - 1 tokens' worth of blocks.  The step
        that reads what is left of its prompt gives a token, which the next one holds.
        """
        produced = request.produced + steps + (request.left > 0)
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

    def decodes(self, replica: Replica, request: Generation) -> None:
        if self.by_client:
            self._counters[replica.number].decodes(request, replica.steps)
        if self.reserves:
            to_hold = self._to_hold(request, replica.service.block, 0)
            self._reserved[replica.number].decodes(request, to_hold, replica.steps)

    def left(self, replica: Replica, request: Generation, over: bool) -> None:
        if self.by_client:
            self._counters[replica.number].left(request, over, replica.steps)
        if self.reserves:
            self._reserved[replica.number].left(request)

    # Steps -------------------------------------------------------------------------------------------------------

    def step(self, replica: Replica) -> BatchStep:
        prefilling = replica.prefilling
        if not prefilling:
            return BatchStep()
        if self.min_decode_steps:
            self._read_at[replica.number] = replica.steps
        mixed, budget = self.phases == "mixed", replica.service.budget
        if budget is None:
            return BatchStep([(request, request.left) for request in prefilling], mixed)
        room = budget - replica.decoding if mixed else budget
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
