"""One tree of random streams: a seed, a replication, and a name for each source of randomness.

A stream depends on nothing but its path, so that two policies see the same load, adding a workload entry does
not disturb the others, and the number of worker processes does not matter.
"""

from __future__ import annotations

import zlib

import numpy as np


class RandomTree:
    """Streams by name: `RandomTree(7, replication=3).stream("arrivals", "training")`."""

    def __init__(self, seed: int, replication: int = 0):
        self.seed = seed
        self.replication = replication

    def sequence(self, *path: str) -> np.random.SeedSequence:
        # CRC-32 of each name: stable across processes and versions, unlike hash().
        keys = [zlib.crc32(part.encode()) for part in path]
        return np.random.SeedSequence(self.seed, spawn_key=(self.replication, *keys))

    def stream(self, *path: str) -> np.random.Generator:
        """A fresh generator at the start of the stream of that path."""
        return np.random.Generator(np.random.PCG64(self.sequence(*path)))
