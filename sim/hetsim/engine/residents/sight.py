"""Replicas as the router of a service sees them if its signals are outdated.

With `refresh`, all replicas are read at multiples of `refresh` seconds, before any other event at that instant; without
it, a replica is read whenever its number of requests changes.  With `delay`, the router sees each reading that many
seconds later.  A new replica looks idle until its first reading becomes visible.  Readings stop once they find all
replicas idle.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from hetsim.engine.kernel.clock import READING, Later
from hetsim.policy.routing import OpenReplicas, Routing


class SeenReplica:
    """A replica with its load and cached prefixes as read at an earlier time."""

    def __init__(self, replica: Any):
        self.replica = replica
        self.number, self.speed, self.blocks = replica.number, replica.speed, getattr(replica, "blocks", 0)
        self.outstanding, self.waiting, self.kv_used, self.prefixes = 0, 0, 0.0, frozenset[Any]()

    def cached(self, request: Any) -> int:
        """Return how many leading prompt tokens were cached when the router last looked."""
        size = self.replica.service.prefix_block
        names = request.hashes[: request.prompt // size] if size else ()
        return size * next((count for count, name in enumerate(names) if name not in self.prefixes), len(names))


class Sight:
    """The replicas of a service as its router sees them; `replicas`: the `ReplicaSet`."""

    def __init__(self, replicas: Any, routing: Routing):
        self.replicas, self.clock = replicas, replicas.clock
        self.refresh, self.delay, self.prefixes = routing.refresh, routing.delay, "prefix" in routing.signals
        self.seen: dict[Any, SeenReplica] = {}
        self.coming: deque[tuple[float, SeenReplica, tuple[Any, ...]]] = deque()  # readings, and when they are seen
        self.timer = Later(self._read_all)

    def open_to(self, replicas: OpenReplicas) -> OpenReplicas:
        """Return these replicas as the router sees them, with possibly outdated signals."""
        for replica in replicas if not self.refresh else ():
            replica.loads, replica.place = self, replica  # where it notes each change
        return OpenReplicas([self.seen.setdefault(replica, SeenReplica(replica)) for replica in replicas])

    def __setitem__(self, replica: Any, load: float) -> None:
        self._read([replica])

    def look(self, replicas: OpenReplicas) -> None:
        """Update the router's signals of replicas from readings that are visible by now."""
        while self.coming and self.coming[0][0] <= self.clock._now:
            _, seen, values = self.coming.popleft()
            seen.outstanding, seen.waiting, seen.kv_used, seen.prefixes = values
        replicas.loads[:] = [(seen.outstanding + 1) / seen.speed for seen in replicas]

    def _read(self, replicas: Iterable[Any]) -> None:
        for one in replicas:
            signals = one.outstanding, one.waiting, one.kv_used, one.prefixes() if self.prefixes else frozenset()
            self.coming.append((self.clock._now + self.delay, self.seen[one], signals))

    def await_reading(self) -> None:
        """Schedule the next reading of all replicas' signals, at a multiple of `refresh`."""
        if self.refresh and self.timer.entry < 0:
            count = math.floor(self.clock._now / self.refresh)
            while count * self.refresh <= self.clock._now:  # rounding: the next must not be now
                count += 1
            self.clock.at(count * self.refresh, READING, self.timer)

    def _read_all(self) -> None:
        there = self.replicas.all
        self.seen = {replica: self.seen[replica] for replica in there if replica in self.seen}
        self._read(self.seen)
        if not all(replica.idle for replica in there):
            self.await_reading()
