"""Memory of a replica for keys and values: which KV blocks its sequences hold, and when they need more."""

from __future__ import annotations

from sim.engine.kernel.clock import Timer
from sim.engine.language.generation import PREFILLING, Generation
from sim.engine.language.prefix import PrefixCache
from sim.model.service import LanguageService


class KVMemory(Timer):
    """Blocks of `block` tokens.  A sequence that decodes takes its next block in the step that fills the last."""

    service: LanguageService
    steps: int
    decoding: int

    def _empty_memory(self, service: LanguageService) -> None:
        self.block = service.block
        self.free = service.blocks
        """KV blocks that no request holds; idle ones of the prefix cache count as free."""
        self.cache = PrefixCache(service.prefix_block, service.block) if service.prefix_block else None
        self.residues = [0] * service.block
        """Sequences that decode, by (tokens - steps) modulo the block size: how many need a new block at which step."""

    @property
    def free_blocks(self) -> int:
        return self.free

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def _stored(self, request: Generation) -> int:
        """Tokens of which a member holds keys and values: of what it produced all but the last."""
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

    def _idle_of(self, request: Generation) -> int:
        """Free blocks that are so no longer once the request uses what lies in them."""
        cache = self.cache
        assert cache is not None
        if not request.left:
            return 0
        return cache.each * sum(name in cache.idle for name in request.hashes[: self._found(request)])

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
        """Additional KV blocks that the decoding sequences need for so many steps."""
        block, residues, now = self.block, self.residues, self.steps
        if steps == 1:
            return residues[(1 - now) % block]
        rounds, rest = divmod(steps, block)
        need = rounds * self.decoding
        for step in range(now, now + rest):
            need += residues[(1 - step) % block]
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
