"""One tree of random streams: purpose of the loads, seed, replication, source.

A stream depends on nothing but its path, so that two policies see the same load, adding a workload entry does
not disturb the others, and the number of worker processes does not matter.

The loads of `run`, `compare` and every other verdict are `JUDGED`, those that agents learn from are `TRAINING`, and
those by which the networks on the way are chosen are `VALIDATION`.  `root` gives no two of them the same streams,
whatever their seeds are.
"""

import zlib

import numpy as np

JUDGED, TRAINING, VALIDATION = "judged", "training", "validation"
SPAN = 1_000_000
FIRST = {TRAINING: SPAN, VALIDATION: 2 * SPAN}
"""The seeds below `SPAN` of these loads become `SPAN` numbers from here on, which no other loads have."""
APART = 2**32 - 1
"""First key of the branches other than the main one: no replication has this number."""


def root(seed: int, loads: str = JUDGED) -> tuple[int, tuple[int, ...]]:
    """Entropy and first keys of the random streams of these loads."""
    if loads != JUDGED:
        return (FIRST[loads] + seed, ()) if seed < SPAN else (seed, (APART, _key(loads)))
    taken = any(first <= seed < first + SPAN for first in FIRST.values())
    return seed, (APART, _key(loads)) if taken else ()


def _key(name: str) -> int:
    return zlib.crc32(name.encode())  # stable across processes and versions, unlike hash()


class RandomTree:
    """Random streams by name, as `RandomTree(7, 3).stream("arrivals", "training")`."""

    def __init__(self, seed: int, replication: int = 0, loads: str = JUDGED):
        if not 0 <= replication < APART:
            raise ValueError(f"replication must be from 0 to {APART - 1:,}; got {replication}")
        self.seed = seed
        self.replication = replication
        self.loads = loads
        self._entropy, self._branch = root(seed, loads)

    def sequence(self, *path: str) -> np.random.SeedSequence:
        keys = [_key(part) for part in path]
        return np.random.SeedSequence(self._entropy, spawn_key=(*self._branch, self.replication, *keys))

    def stream(self, *path: str) -> np.random.Generator:
        """A fresh generator at the start of the stream of that path."""
        return np.random.Generator(np.random.PCG64(self.sequence(*path)))
