"""KV memory of a replica: blocks in use, free blocks, and the prefix cache."""

from collections.abc import Hashable, Sequence

from hetsim.engine.language.generation import PREFILLING, Generation


class PrefixCache:
    """Cached keys and values of prompt prefixes, named by hash; evicts by LRU.

    A name stands for a block of `tokens` tokens and all tokens before it, so equal names mean equal prefixes.  Names
    that a request uses occupy their KV blocks; unused names remain cached in free blocks until these blocks are needed.
    Results of methods count names; only `free` of `fit` counts KV blocks, of which one name needs `each`.
    """

    __slots__ = ("tokens", "each", "users", "idle")

    def __init__(self, tokens: int, block: int):
        self.tokens = tokens
        self.each = tokens // block
        self.users: dict[Hashable, int] = {}  # names in use, and by how many requests
        self.idle: dict[Hashable, None] = {}  # names that no request uses, the least recently used first

    def hits(self, request: Generation) -> int:
        """Return how many leading prefixes of a request's prompt (`hashes`) are cached."""
        count = 0
        for name in request.hashes[: request.prompt // self.tokens]:
            if name not in self.users and name not in self.idle:
                break
            count += 1
        return count

    def hold(self, names: Sequence[Hashable]) -> int:
        """Add a request as a user of cached prefixes; return how many had no user before."""
        woken = 0
        for name in names:
            if name in self.idle:
                del self.idle[name]
                self.users[name] = 1
                woken += 1
            else:
                self.users[name] += 1
        return woken

    def keep(self, names: Sequence[Hashable]) -> list[Hashable]:
        """Store those prefixes (`names`) that have no user, with one user; return them."""
        new = [name for name in dict.fromkeys(names) if name not in self.users]
        for name in new:
            self.idle.pop(name, None)  # the same was left here in the meantime: one copy is enough
            self.users[name] = 1
        return new

    def release(self, names: Sequence[Hashable]) -> int:
        """Remove a request as user of prefixes; return how many have no user any more."""
        freed = 0
        for name in reversed(names):  # a prefix is of use only with all before it: its end goes first
            self.users[name] -= 1
            if not self.users[name]:
                del self.users[name]
                self.idle[name] = None  # the most recently used: behind the others
                freed += 1
        return freed

    def fit(self, free: int) -> None:
        """Evict idle prefixes until the remaining ones occupy at most `free` KV blocks."""
        while len(self.idle) * self.each > free:
            del self.idle[next(iter(self.idle))]


class KVMemory:
    """KV memory in blocks of `block` tokens, which sequences allocate as they grow."""

    __slots__ = ("block", "total", "free", "cache")

    def __init__(self, blocks: int, block: int, prefix: int):
        """Create blocks of `block` tokens; `prefix`: tokens per cached prefix (0: none)."""
        self.block = block
        self.total = self.free = blocks  # `free`: blocks that no request uses, including those with idle prefixes
        self.cache = PrefixCache(prefix, block) if prefix else None

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block)

    def blocks_for(self, request: Generation) -> int:
        """Return the number of free blocks that a request needs to join.

        Cached prefixes in use need none; unused cached prefixes occupy free blocks, so their blocks are counted.
        """
        blocks = -(-(request.prompt + request.made) // self.block)
        if self.cache is None or not request.to_prefill:
            return blocks
        users, names = self.cache.users, request.hashes[: self.cache.hits(request)]
        return blocks - self.cache.each * sum([name in users for name in names])

    def cached(self, request: Generation) -> int:
        """Return the number of leading tokens of the request's prompt that are cached."""
        return 0 if self.cache is None else self.cache.hits(request) * self.cache.tokens

    @property
    def cached_blocks(self) -> int:
        """Number of free blocks that store idle prefixes."""
        return 0 if self.cache is None else len(self.cache.idle) * self.cache.each

    def take(self, blocks: int) -> None:
        self.free -= blocks
        if self.cache is not None:
            self.cache.fit(self.free)  # what is taken may have held idle prefixes

    def enter(self, request: Generation) -> int:
        """Allocate blocks to a request that joins; return its number of cached tokens."""
        cached_tokens, cache = 0, self.cache
        if cache is not None:
            cached = cache.hits(request)
            request.cached = request.hashes[:cached]
            request.shared = cached * cache.each
            self.take(cache.hold(request.cached) * cache.each)
            cached_tokens = cached * cache.tokens
        self.take(-(-(request.prompt + request.made) // self.block) - request.shared)
        return cached_tokens

    def enter_with(self, request: Generation) -> int:
        """Allocate blocks to a request that joins with its KV data; return their number."""
        blocks = -(-request.stored // self.block)
        self.take(blocks)
        return blocks

    def give_back(self, request: Generation) -> None:
        """Free the blocks of a request that leaves; its prefixes remain cached."""
        tokens = request.prompt + request.made if request.state == PREFILLING else request.stored
        self.free += -(-tokens // self.block) - request.shared
        if self.cache is not None and request.cached:
            self.free += self.cache.release(request.cached) * self.cache.each
            request.cached, request.shared = (), 0

    def share_prefix(self, request: Generation) -> None:
        """Share the full blocks of the request's prompt with later requests."""
        cache = self.cache
        if cache is None or not request.hashes:
            return
        names = request.hashes[len(request.cached) : request.prompt // cache.tokens]
        new = cache.keep(names)
        request.cached = [*request.cached, *new]
        request.shared += len(new) * cache.each  # they belong to the cache now, not to the request alone
