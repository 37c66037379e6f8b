"""Replicas as the router of a service sees them, where signals have an age.

With `refresh` all signals are read at multiples of it, before anything else happens at that instant, and are what the
router sees until the next reading.  With `delay` a reading is seen so much later; without `refresh` numbers of requests
are read whenever one changes.  A new replica looks idle until it has been read.  There are readings only while some
replica has anything to do: the last one has found all of them idle.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.engine.kernel.clock import READING, Later
from hetsim.policy.routing import OpenReplicas, Routing


class SeenReplica:
    """A replica with the signals of an earlier time."""

    def __init__(self, replica: Any):
        self.replica = replica
        self.number, self.speed, self.blocks = replica.number, replica.speed, getattr(replica, "blocks", 0)
        self.outstanding, self.waiting, self.kv_used = 0, 0, 0.0
        self.names: frozenset[Any] = frozenset()  # prefixes in its cache

    def cached(self, request: Any) -> int:
        """Tokens at the beginning of a prompt that were in its prefix cache."""
        size = self.replica.service.prefix_block
        names = request.hashes[: request.prompt // size] if size else ()
        return size * next((count for count, name in enumerate(names) if name not in self.names), len(names))


@dataclass(eq=False)
class Followed:
    """Where replicas note their loads, of which each change is read."""

    loads: np.ndarray
    seen: list[SeenReplica]
    sight: Any

    def __setitem__(self, place: int, load: float) -> None:
        self.loads[place] = load
        self.sight.read([self.seen[place]])


@dataclass(eq=False)
class Sight:
    """The replicas of a service as its router sees them."""

    replicas: Any
    """Their set."""
    routing: Routing

    def __post_init__(self) -> None:
        self.clock, self.refresh, self.delay = self.replicas.clock, self.routing.refresh, self.routing.delay
        self.seen: dict[Any, SeenReplica] = {}
        self.coming: deque[tuple[float, SeenReplica, tuple[Any, ...]]] = deque()  # readings, and when they are seen
        self.timer = Later(self._read_all)

    def open_to(self, replicas: OpenReplicas) -> OpenReplicas:
        """Those replicas as they are seen."""
        seen = [self.seen.setdefault(replica, SeenReplica(replica)) for replica in replicas]
        if not self.refresh:
            for replica in replicas:
                replica.loads = Followed(replicas.loads, seen, self)
        return OpenReplicas(seen)

    def look(self, replicas: OpenReplicas) -> None:
        """Bring those replicas, as they are seen, to what is seen now."""
        while self.coming and self.coming[0][0] <= self.clock._now:
            _, seen, values = self.coming.popleft()
            seen.outstanding, seen.waiting, seen.kv_used, seen.names = values
        replicas.loads[:] = [(seen.outstanding + 1) / seen.speed for seen in replicas]

    def read(self, replicas: list[SeenReplica]) -> None:
        """Read these replicas, to be seen later."""
        time, prefixes = self.clock._now + self.delay, "prefix" in self.routing.signals
        for seen in replicas:
            one = seen.replica
            names = one.prefixes() if prefixes else seen.names
            self.coming.append((time, seen, (one.outstanding, one.waiting, one.kv_used, names)))

    def await_reading(self) -> None:
        """Go on reading at multiples of `refresh`, as a replica has something to do."""
        if self.refresh and self.timer.entry < 0:
            count = math.floor(self.clock._now / self.refresh)
            while count * self.refresh <= self.clock._now:  # rounding: the next must not be now
                count += 1
            self.clock.at(count * self.refresh, READING, self.timer)

    def _read_all(self) -> None:
        self.seen = {replica: self.seen[replica] for replica in self.replicas.all if replica in self.seen}
        self.read(list(self.seen.values()))
        if not all(replica.idle for replica in self.replicas.all):
            self.await_reading()
