"""Keys and values of prompts' beginnings that a replica keeps: blocks named by hashes, the least recent evicted first.

A name stands for `tokens` tokens and everything before them, so equal names mean equal prefixes.  What a request uses
is held and counts as taken; unused names stay in free blocks until those are needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence


class PrefixCache:
    """Named blocks of one replica.  All counts are of names; each takes `each` KV blocks."""

    __slots__ = ("tokens", "each", "users", "idle")

    def __init__(self, tokens: int, block: int):
        self.tokens = tokens
        self.each = tokens // block
        self.users: dict[Hashable, int] = {}
        """Names in use, and by how many requests."""
        self.idle: dict[Hashable, None] = {}
        """Names that no request uses, the least recently used first."""

    def found(self, names: Sequence[Hashable], most: int) -> int:
        """How many names from the first on, `most` at most, are here."""
        count = 0
        for name in names[:most]:
            if name not in self.users and name not in self.idle:
                break
            count += 1
        return count

    def hold(self, names: Sequence[Hashable]) -> int:
        """Use names that are here; how many of them lay idle till now."""
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
        """Add the names that were not here, each used by the one request that brings it; returns them."""
        new = [name for name in dict.fromkeys(names) if name not in self.users]
        for name in new:
            self.idle.pop(name, None)  # the same was left here in the meantime: one copy is enough
            self.users[name] = 1
        return new

    def release(self, names: Sequence[Hashable]) -> int:
        """A request uses these no longer; how many lie idle now.  Of a prefix the end is evicted first."""
        freed = 0
        for name in reversed(names):
            self.users[name] -= 1
            if not self.users[name]:
                del self.users[name]
                self.idle[name] = None
                freed += 1
        return freed

    def fit(self, free: int) -> None:
        """Evict until what lies idle fits into so many free KV blocks."""
        while len(self.idle) * self.each > free:
            del self.idle[next(iter(self.idle))]
