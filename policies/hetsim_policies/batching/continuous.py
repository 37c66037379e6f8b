"""Continuous batching: requests join and leave between steps of a language model.

Decides at each step boundary which requests join (in an order, while memory and the maximum number of sequences allow),
which prompts are prefilled, and which sequence is preempted when KV blocks run out: the last to join.
References: Yu, Jeong, Kim, Kim and Chun, Orca: A Distributed Serving System for Transformer-Based Generative Models
(OSDI 2022), for joining between steps (`phases: mixed` with whole prompts); Kwon, Li, Zhuang, Sheng, Zheng, Yu,
Gonzalez, Zhang and Stoica, Efficient Memory Management for Large Language Model Serving with PagedAttention (SOSP
2023), for blocks, preemption of the last sequence and prompts before tokens (`prefill_first`); Agrawal, Kedia, Panwar,
Mohan, Kwatra, Gulavani, Tumanov and Ramjee, Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve
(OSDI 2024), for chunks of prompts next to the decodes (`mixed` with `max_num_batched_tokens`); Gong et al., Past-Future
Scheduler for LLM Serving under SLA Guarantees (ASPLOS 2025), and LightLLM before it, for the peak of a batch's future
memory need (`reserve: peak`); Sheng, Cao, Li, Zhu, Li, Zhuo, Gonzalez and Stoica, Fairness in Serving Large Language
Models (OSDI 2024), for `order: vtc`.
Weakness: `prefill_first`, and whole prompts in general, halt every running answer while a long prompt is read; chunks
limit this halt, but delay first tokens.  `shortest_prompt` starves long prompts under load.
`reserve: whole` never preempts a sequence, but much memory remains unused; `peak` uses more of it.
Cost: O(prefilling sequences) per boundary; O(log waiting) per request; with `reserve`, O(sequences) per request
considered; with `peak`, also O(sequences) for nearly every step at which the head may fit.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace
from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.model.units import Fraction
from hetsim.policy import BatchStep, Generation, IterationPolicy, Replica

WATERMARK = 0.01
Growth = tuple[int, int]  # (minus the step at which a sequence ends, its stored tokens minus the steps so far)
Bound = tuple[float, float, str]  # (counter and arrival of a client's first request, or lower bounds, and the client)


def _share(value: float) -> float:
    if not 0 <= value < 1:
        raise ValueError(f"watermark must be at least 0 and below 1; got {value:g}")
    return value


def _weight(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} (the price of a token) must be above 0; got {value:g}")
    return value


class Continuous(IterationPolicy):
    """Requests join between steps; if memory runs out, the last to join is preempted.

    order: order in which requests join: fcfs, shortest_prompt, priority (highest first) or vtc (fair among clients:
        virtual tokens).
    phases: mixed (each step decodes and also reads prompts, which max_num_batched_tokens divides into chunks),
        prefill_first (answers halt while prompts are read) or decode_first (no prompt is read before all running
        answers have ended).  The last two read whole prompts: at least one, and as many as max_num_batched_tokens
        allows.
    watermark: share of the KV blocks that must remain free when a request joins, to avoid early preemption; default: 1
        %, and 0 with reserve.
    reserve: when a request may join: none (no reservation), whole (if the prompts and longest answers of all sequences
        fit together) or peak (if all sequences fit at every step, where each answer has its announced length and a
        sequence releases its memory at its end).
    min_decode_steps: minimum number of decoding steps between two steps that read prompts.
    input_weight: price of a prompt token, for vtc.
    output_weight: price of a decoded token, for vtc.
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
        # Token counters of each replica, by its number
        self._counters: dict[int, VirtualTokens] = defaultdict(lambda: VirtualTokens(input_weight, output_weight))
        self._reserved: dict[int, Reservations] = defaultdict(lambda: Reservations(reserve == "whole"))
        # Members of each replica that do not decode yet
        self._coming: dict[int, dict[Generation, None]] = defaultdict(dict)
        self._read_at: dict[int, int] = {}  # steps that each replica had decoded when it read a prompt last

    def key(self, request: Generation) -> Any:
        if self.order == "priority":
            return (-request.priority, request.arrival)
        return request.to_prefill if self.order == "shortest_prompt" else request.arrival

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
        if not replica.decoding:
            return 0
        return self._read_at.get(replica.number, -self.min_decode_steps) + self.min_decode_steps - replica.steps

    def _fits_step(self, replica: Replica, request: Generation, limit: int) -> bool:
        prefilling = replica.prefilling
        reading = sum([other.to_prefill for other in prefilling]) if prefilling else 0
        if self.phases == "mixed":
            return replica.decoding + reading < limit
        if not reading:
            return True
        more = max(1, request.to_prefill - replica.cached(request)) if request.to_prefill else 0
        return reading + more <= limit

    def _excess(self, replica: Replica, request: Generation, steps: int) -> int:
        """Return peak token need minus capacity if a request joins `steps` steps from now."""
        block = replica.service.block
        coming = [self._to_hold(other, block) for other in (*self._coming[replica.number], request)]
        need = self._reserved[replica.number].need(replica.steps + steps, coming)
        return need - replica.blocks * block

    def _to_hold(self, request: Generation, block: int) -> tuple[int, int]:
        """Return the numbers of tokens that a request will still store and has stored.

        Both are counted after the request's next decoding step.  The first are the tokens still to be stored until the
        answer ends (its last token is never stored).  The second are the tokens stored up to that step, plus block - 1,
        since n tokens may occupy blocks of n + block - 1 tokens.
        """
        produced = request.produced + (request.to_prefill > 0)
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

    def request_left(self, replica: Replica, request: Generation, over: bool) -> None:
        if self.by_client:
            self._counters[replica.number].leave(request, over, replica.steps)
        if self.reserves:
            self._coming[replica.number].pop(request, None)
            self._reserved[replica.number].leave(request)

    def step(self, replica: Replica) -> BatchStep:
        if not (prefilling := replica.prefilling):
            return BatchStep()
        if self.min_decode_steps:
            self._read_at[replica.number] = replica.steps
        mixed, limit = self.phases == "mixed", replica.service.max_num_batched_tokens
        if limit is None:
            return BatchStep([(request, request.to_prefill) for request in prefilling], mixed)
        room = limit - replica.decoding if mixed else limit
        prefill: list[tuple[Any, int]] = []
        for request in prefilling:
            if (take := request.to_prefill) > room:
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
    """Tokens that requests of a replica will store, by the announced answer lengths.

    A decoding sequence stores one more token per step.  So for each sequence two numbers are constant: the number of
    its last step, and its stored tokens minus the number of the present step.  Sequences are sorted by last step.
    Memory use grows until a sequence ends and releases its tokens, so the peak is the maximum over the ends of
    sequences.
    Cost: O(sequences) per check, O(log sequences) per insertion.
    """

    def __init__(self, whole: bool):
        self.whole_answers = whole  # reserve for all at once, not for the peak
        self.decoding: list[Growth] = []  # the last to end first
        self.growth: dict[Any, Growth] = {}
        self.total = 0  # tokens that all of them hold at their ends

    def decodes(self, request: Any, to_hold: tuple[int, int], steps: int) -> None:
        """Record that a sequence has begun to decode.

        to_hold: number of tokens that it will still store after its next decoding step, and number that it has stored
        by then.  steps: decoding steps of the replica so far.
        """
        more, there = to_hold
        self.growth[request] = growth = (-steps - more, there - steps)
        insort(self.decoding, growth)
        self.total += growth[1] - growth[0]

    def leave(self, request: Any) -> None:
        if (growth := self.growth.pop(request, None)) is not None:
            del self.decoding[bisect_left(self.decoding, growth)]
            self.total -= growth[1] - growth[0]

    def need(self, steps: int, coming: list[tuple[int, int]]) -> int:
        """Return the peak number of tokens stored from now on, if sequences join.

        steps: decoding steps of the replica so far.  coming: for each joining sequence, the number of tokens that it
        will still store after its next decoding step, and the number that it has stored by then.
        """
        if self.whole_answers:
            return self.total + sum([more + there for more, there in coming])
        growths = self.decoding + [(-steps - more, there - steps) for more, there in coming]
        growths.sort()
        peak = total = 0
        for count, (end, base) in enumerate(growths, start=1):
            total += base
            if total - count * end > peak:
                peak = total - count * end
        return peak


# Virtual token counters: the service of each client of a language model, in weighted tokens.
#
# The next request is that of the waiting client with the lowest counter.  A counter grows by `input_weight` per prompt
# token when a request joins, and by `output_weight` per token that a step decodes (not the first token, which comes
# with the prompt), divided by the weight of the request.  A client that had no waiting request is raised to the lowest
# counter of the waiting clients, so idle time gives no credit.
# Reference: Sheng, Cao, Li, Zhu, Li, Zhuo, Gonzalez and Stoica, Fairness in Serving Large Language Models (OSDI 2024):
# while two clients both wait, their services differ by at most 2 max(input_weight × longest prompt, output_weight ×
# tokens in a batch).  Weakness: it is fair between clients only, and each replica has its own counters.
# Cost: O(log waiting clients) for each client with requests in the replica, or with changes since the last call.


class TokenAccount:
    """One client's counter of weighted tokens; it grows linearly with decoding steps."""

    __slots__ = ("charged", "decoding")

    def __init__(self) -> None:
        self.charged = 0.0  # tokens of requests that left, and of the prompts of those in the replica
        # By weight: number of the client's decoding requests, and the sum of the steps at which they began
        self.decoding: dict[float, list[int]] = {}


class VirtualTokens:
    """Counters of the weighted tokens that one replica has served, by client.

    In all methods, `steps` is the number of decoding steps of the replica so far, and `heads` the first waiting request
    of each client with waiting requests.
    """

    def __init__(self, input_weight: float, output_weight: float):
        self.input_weight = input_weight
        self.output_weight = output_weight
        self.accounts: dict[str, TokenAccount] = defaultdict(TokenAccount)  # by client
        self.begun: dict[Any, int] = {}  # requests that decode, and the step at which they began to
        # Lower bounds of the counters of waiting clients; as counters grow, a bound at the top is corrected.
        # Only a client's entry in `bounds` is valid, even while none of its requests waits.
        self.heap: list[Bound] = []
        self.bounds: dict[str, Bound] = {}

    def counter(self, client: str, steps: int) -> float:
        account = self.accounts[client]
        total = account.charged
        for weight, (count, begun) in account.decoding.items():
            total += self.output_weight * (count * steps - begun) / weight
        return total

    def _pace(self, client: str) -> float:
        decoding = self.accounts[client].decoding
        return sum([self.output_weight * count / weight for weight, (count, _) in decoding.items()])

    def queued(self, request: Any, heads: Mapping[str, Any], steps: int) -> None:
        """Record a waiting request.

        If it is its client's only one, the client's counter is raised to the lowest counter of the other waiting
        clients.
        """
        client, bounds = request.client, self.bounds
        if (bound := bounds.get(client)) is not None and request.arrival < bound[1]:
            self._bound(client, bound[0], request.arrival)
        if not heads:
            return  # a client that waits alone needs no bound
        if len(heads) == 1:
            only = next(iter(heads))
            if only not in bounds:
                self._bound(only, self.counter(only, steps), heads[only].arrival)
        if client not in heads:
            account = self.accounts[client]
            floor = self.counter(self.turn(heads, steps), steps)
            account.charged += max(0.0, floor - self.counter(client, steps))
            if client not in bounds:
                self._bound(client, self.counter(client, steps), request.arrival)

    def joined(self, request: Any) -> None:
        if not request.produced:
            self.accounts[request.client].charged += self._prompt(request)

    def decodes(self, request: Any, steps: int) -> None:
        """Record that a request now decodes one token in each step."""
        self.begun[request] = steps
        group = self.accounts[request.client].decoding.setdefault(request.weight, [0, 0])
        group[0] += 1
        group[1] += steps

    def leave(self, request: Any, over: bool, steps: int) -> None:
        """Record that a request leaves: it has ended (`over`), or was preempted.

        If it is preempted before its first token, the client is no longer charged for its prompt.
        """
        client, weight = request.client, request.weight
        account = self.accounts[client]
        if (begun := self.begun.pop(request, None)) is not None:
            account.charged += self.output_weight * (steps - begun) / weight
            group = account.decoding[weight]
            group[0] -= 1
            group[1] -= begun
            if not group[0]:
                del account.decoding[weight]
        if not over and not request.produced:
            account.charged -= self._prompt(request)
            if client in self.bounds:
                self._bound(client, self.counter(client, steps), self.bounds[client][1])

    def _prompt(self, request: Any) -> float:
        return self.input_weight * float(request.prompt) / float(request.weight)

    def _bound(self, client: str, counter: float, arrival: float) -> None:
        self.bounds[client] = bound = (counter, arrival, client)
        heappush(self.heap, bound)

    def turn(self, heads: Mapping[str, Any], steps: int) -> str:
        """Return the client with the lowest token counter; the oldest request breaks ties."""
        heap, bounds = self.heap, self.bounds
        while True:
            bound = heap[0]
            client = bound[2]
            if bounds.get(client) is not bound:
                heappop(heap)
                continue
            if (head := heads.get(client)) is None:
                heappop(heap)
                del bounds[client]
                continue
            now = (self.counter(client, steps), head.arrival, client)
            if now == bound:
                return client
            bounds[client] = now
            heapreplace(heap, now)

    def steps_until_turn(self, client: str, heads: Mapping[str, Any], steps: int, most: int) -> int:
        """Return after how many further decoding steps another client is served first.

        The result is at most `most`, and assumes that no prompt is prefilled in these steps.  heads: first waiting
        request of each client; steps: decoding steps of the replica so far.
        """
        own, pace = self.counter(client, steps), self._pace(client)
        if not pace:
            return most
        soonest: float = most
        heap, bounds = self.heap, self.bounds
        places = [0]
        while places and soonest > 1:
            if (place := places.pop()) >= len(heap):
                continue
            bound = heap[place]
            if bound[0] - own >= soonest * pace:  # nor does any that stands below it in the heap
                continue
            places += (2 * place + 1, 2 * place + 2)
            other = bound[2]
            if other == client or bounds.get(other) is not bound or other not in heads:
                continue
            if (faster := pace - self._pace(other)) > 0:
                soonest = min(soonest, (self.counter(other, steps) - own) / faster)
        return max(1, math.ceil(soonest - 1e-9))
