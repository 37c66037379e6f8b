"""Decoding sequences of a replica: their tokens, KV blocks and next completion.

Each decoding step generates one token per sequence, so progress is counted in steps of the replica: a sequence stores
the number of the step at which it ends, and its length determines in which steps it needs a new KV block.
"""

from heapq import heappop, heappush
from typing import Any

from hetsim.engine.language.generation import DECODING, NAN, OVER, Generation
from hetsim.engine.language.kv_memory import KVMemory


class Sequences:
    """The decoding requests of a replica; cost: O(log sequences) per begin or end."""

    __slots__ = ("replica", "memory", "count", "context", "steps", "share", "ends", "residues", "decoded_at", "fresh")

    def __init__(self, replica: Any, memory: KVMemory):
        self.replica = replica
        self.memory = memory
        self.count = 0
        self.context = 0  # tokens of all of them, those of the next step's input included
        self.steps = 0  # steps so far that have decoded
        self.share = 0.0  # seconds charged to a request that took part in all decoding steps so far
        self.ends: list[tuple[int, int, Generation]] = []
        self.residues = [0] * memory.block
        """Number of sequences by residue: (tokens - steps) modulo the block size.  Tokens and steps both grow by 1 in
        each step, so a sequence keeps its residue; it determines in which steps the sequence needs a new block.
        """
        # end of the last decoding step, in which all sequences except the `fresh` ones got a token
        self.decoded_at = NAN
        self.fresh: dict[int, float] = {}  # by row of a request that has begun since then: when its last token came

    def begin(self, request: Generation, token_at: float) -> None:
        """Decode a request from the next step on; `token_at`: time of its last token."""
        if token_at != self.decoded_at:
            self.fresh[request.row] = token_at
        tokens = request.prompt + request.made
        request.state = DECODING
        request.offset = request.made - self.steps
        request.end = self.steps + request.output - request.made
        request.seconds_from = self.share
        self.count += 1
        self.context += tokens
        self.residues[(tokens - self.steps) % self.memory.block] += 1  # stays the same as both grow by one a step
        heappush(self.ends, (request.end, request.row, request))

    def leave(self, request: Generation) -> None:
        """Remove a complete, preempted or aborted request from the following steps."""
        request.made = self.steps + request.offset
        request.token_at = self.fresh.pop(request.row, self.decoded_at) if self.fresh else self.decoded_at
        tokens = request.prompt + request.made
        request.state = OVER
        request.end = -1  # its entry in `ends` is stale
        request.seconds += self.share - request.seconds_from
        self.count -= 1
        self.context -= tokens
        self.residues[(tokens - self.steps) % self.memory.block] -= 1

    def until_end(self) -> int:
        """Return the number of steps until the first sequence ends; there must be one."""
        ends = self.ends  # with entries of requests that have left, or have begun again
        while ends[0][2].end != ends[0][0] or ends[0][2].replica is not self.replica:
            heappop(ends)
        return ends[0][0] - self.steps

    @property
    def needed(self) -> int:
        """Number of additional KV blocks that the sequences need for the next step."""
        return self.residues[(1 - self.steps) % self.memory.block]

    def growth(self, steps: int) -> int:
        """Return the number of additional KV blocks that the next `steps` steps need."""
        block, residues, now = self.memory.block, self.residues, self.steps
        if steps == 1:
            return residues[(1 - now) % block]
        # In `block` steps each sequence fills one block, in the rest those of which the residue comes up.
        rounds, rest = divmod(steps, block)
        last = (1 - now) % block
        first = last - rest + 1  # of residues counted downward, from the last block round to the first
        wrapped = sum(residues[first:]) + sum(residues[: last + 1]) if first < 0 else sum(residues[first : last + 1])
        return rounds * self.count + wrapped

    def until_full(self, most: int) -> int:
        """Return how many steps (up to `most`) fit into the free KV blocks."""
        free, sequences, block = self.memory.free, self.count, self.memory.block
        rounds = free // sequences  # whole rounds: each sequence takes one block in each
        free -= rounds * sequences
        steps = rounds * block
        while steps < most:
            free -= self.residues[(1 - self.steps - steps) % block]
            if free < 0:
                break
            steps += 1
        return min(steps, most)

    def part_of(self, request: Generation) -> float:
        """Return a request's share (s) of the duration of all steps completed so far."""
        return request.seconds + (self.share - request.seconds_from if request.state == DECODING else 0.0)
