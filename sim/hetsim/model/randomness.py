"""Random streams by path: purpose of the loads, seed, replication, source.

A stream depends only on its path.  So all policies see the same load, adding a workload entry does not change the
streams of other entries, and the number of worker processes does not matter.  The loads of `run`, `compare` and all
other evaluations are `JUDGED`, those from which agents learn are `TRAINING`, and those by which networks are selected
during training are `VALIDATION`.  Two purposes never have the same streams, whatever their seeds are (`root`).
"""

import zlib

import numpy as np

JUDGED, TRAINING, VALIDATION = "judged", "training", "validation"
SPAN = 1_000_000
# seeds below `SPAN` of these loads are offset by these numbers, which no other loads use
FIRST = {TRAINING: SPAN, VALIDATION: 2 * SPAN}
APART = 2**32 - 1  # first key of branches other than the main one; no replication has this number


def root(seed: int, loads: str = JUDGED) -> tuple[int, tuple[int, ...]]:
    """Return the entropy and first spawn keys of a seed's streams for purpose `loads`."""
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
        """Return a new generator at the start of the stream of that path."""
        return np.random.Generator(np.random.PCG64(self.sequence(*path)))
