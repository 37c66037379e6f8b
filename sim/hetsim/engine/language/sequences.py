"""Decoding sequences of a replica: progress, tokens, and the next end of one.

Each of them gets a token in every step that decodes, so what belongs to all is counted in steps of the replica: a
sequence knows at which step it ends, and in which steps it needs a new KV block follows from its length.
"""

from heapq import heappop, heappush
from typing import Any

from hetsim.engine.language.generation import DECODING, NAN, OVER, Generation
from hetsim.engine.language.kv_memory import KVMemory


class Sequences:
    """The decoding requests of a replica; O(log sequences) per begin or end."""

    __slots__ = ("replica", "memory", "count", "context", "steps", "share", "ends", "residues", "decoded_at", "fresh")

    def __init__(self, replica: Any, memory: KVMemory):
        """`replica`: that which its requests name as theirs."""
        self.replica = replica
        self.memory = memory
        self.count = 0
        self.context = 0  # tokens of all of them, those of the next step's input included
        self.steps = 0  # steps so far that have decoded
        self.share = 0.0
        """Seconds computed by one that has decoded all the time: each step is divided evenly among its members."""
        self.ends: list[tuple[int, int, Generation]] = []
        self.residues = [0] * memory.block
        """Sequences by (tokens - steps) modulo the block size: how many need a new block at which step."""
        self.decoded_at = NAN
        """When the last step that decoded was over, with a token for each of them but the fresh ones."""
        self.fresh: dict[int, float] = {}  # by row of a request that has begun since then: when its last token came

    def begin(self, request: Generation, token_at: float) -> None:
        """Decode a request from the next step on; token_at: time of its last token."""
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
        """Remove a request from further steps: complete, or leaving early."""
        request.made = self.steps + request.offset
        request.token_at = self.fresh.pop(request.row, self.decoded_at) if self.fresh else self.decoded_at
        tokens = request.prompt + request.made
        request.state = OVER
        request.end = -1  # its entry in `ends` is stale
        request.seconds += self.share - request.seconds_from
        self.count -= 1
        self.context -= tokens
        self.residues[(tokens - self.steps) % self.memory.block] -= 1

    def pop_complete(self) -> Generation | None:
        ends = self.ends
        while ends and ends[0][0] <= self.steps:
            end, _, request = heappop(ends)
            if request.end == end and request.replica is self.replica:  # else it has left, or begun again
                return request
        return None

    def until_end(self) -> int:
        """Steps until the first sequence ends; at least one must be there."""
        ends = self.ends
        while ends[0][2].end != ends[0][0] or ends[0][2].replica is not self.replica:
            heappop(ends)
        return ends[0][0] - self.steps

    @property
    def needed(self) -> int:
        """KV blocks that the sequences need for the next step."""
        return self.residues[(1 - self.steps) % self.memory.block]

    def growth(self, steps: int) -> int:
        """Additional KV blocks that the sequences need for this number of steps."""
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
        """Steps that the free blocks allow, at most `most`."""
        free, sequences, block = self.memory.free, self.count, self.memory.block
        if free >= sequences * (most // block + 1):
            return most
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
        """Seconds computed for a request here up to now."""
        return request.seconds + (self.share - request.seconds_from if request.state == DECODING else 0.0)
