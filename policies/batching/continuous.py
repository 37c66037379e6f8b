"""Continuous batching: requests join and leave a running batch between any two steps of a language model.

Decides at each boundary who joins (in an order, as long as memory and sequences allow), what is prefilled, and who
gives way when the KV blocks run out: the sequence that joined last.
References: Yu, Jeong, Kim, Kim and Chun, Orca: A Distributed Serving System for Transformer-Based Generative Models
(OSDI 2022), joining between steps (`phases: mixed` with whole prompts); Kwon, Li, Zhuang, Sheng, Zheng, Yu, Gonzalez,
Zhang and Stoica, Efficient Memory Management for Large Language Model Serving with PagedAttention (SOSP 2023), blocks,
preemption of the last, prompts before tokens (`prefill_first`); Agrawal, Kedia, Panwar, Mohan, Kwatra, Gulavani,
Tumanov and Ramjee, Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve (OSDI 2024), chunks of
prompts beside the decodes (`mixed` with `prefill_chunk`).
Weakness: `prefill_first`, and whole prompts in general, halt every answer under way while a long prompt is read;
chunks bound that halt and delay first tokens.  `shortest_prompt` starves long prompts under load.
Cost: O(members that prefill) a boundary; O(log waiting) a request.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from sim.model.units import Fraction
from sim.policy import Generation, IterationPolicy, Replica, Step


def _share(value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"watermark is a share from 0 to below 1, not {value:g}")
    return value


class Continuous(IterationPolicy):
    """Join between steps, as long as KV blocks are free; last come, first to give way.

    order: who joins first: fcfs, shortest_prompt or priority (highest first).
    phases: mixed (a step decodes and prefills), prefill_first (while prompts are read, answers halt) or decode_first
        (no prompt is read before all answers under way have ended).
    max_prompt_tokens: a step begins no further prompt once it reads so many tokens (None: no limit).
    watermark: share of the KV blocks that a request leaves free by joining, against preemption right afterwards.
    """

    def __init__(
        self,
        order: Literal["fcfs", "shortest_prompt", "priority"] = "fcfs",
        phases: Literal["mixed", "prefill_first", "decode_first"] = "mixed",
        max_prompt_tokens: Annotated[int, Field(ge=1)] | None = None,
        watermark: Fraction = 0.01,
    ):
        self.order = order
        self.phases = phases
        self.max_prompt_tokens = max_prompt_tokens
        self.watermark = _share(watermark)

    def key(self, request: Generation) -> Any:
        if self.order == "priority":
            return (-request.priority, request.arrival)
        return request.left if self.order == "shortest_prompt" else request.arrival

    def admits(self, replica: Replica, request: Generation) -> bool:
        if self.phases == "decode_first" and replica.decoding:
            return False
        if not replica.size:
            return True
        return replica.free_blocks - replica.blocks_for(request) >= self.watermark * replica.service.blocks

    def step(self, replica: Replica) -> Step:
        prefilling = replica.prefilling
        if not prefilling:
            return Step()
        chunk = replica.service.chunk
        prefill: list[tuple[Any, int]] = []
        tokens = 0
        for request in prefilling:
            take = request.left if chunk is None else min(request.left, chunk - tokens)
            beyond = self.max_prompt_tokens is not None and tokens + take > self.max_prompt_tokens
            if not take or (prefill and beyond):
                break
            prefill.append((request, take))
            tokens += take
        return Step(prefill, self.phases == "mixed")

    def victim(self, replica: Replica) -> Generation:
        if self.order == "priority":
            return min(reversed(replica.members), key=lambda request: request.priority)
        return replica.members[-1]
