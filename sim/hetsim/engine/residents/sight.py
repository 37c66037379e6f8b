"""Replicas as the router of a service sees them, where signals have an age.

With `refresh` all signals are read at multiples of it, before anything else happens at that instant, and are what the
router sees until the next reading.  With `delay` a reading is seen so much later; without `refresh` numbers of requests
are read whenever one changes.  A new replica looks idle until it has been read.  There are readings only while some
replica has anything to do: the last one has found all of them idle.
"""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from hetsim.engine.kernel.clock import READING, Later
from hetsim.policy.routing import OpenReplicas, Routing


class SeenReplica:
    """A replica with the signals of an earlier time."""

    def __init__(self, replica: Any):
        self.replica = replica
        self.number, self.speed, self.blocks = replica.number, replica.speed, getattr(replica, "blocks", 0)
        self.outstanding, self.waiting, self.kv_used, self.prefixes = 0, 0, 0.0, frozenset[Any]()

    def cached(self, request: Any) -> int:
        """Tokens at the beginning of a prompt that were in its prefix cache."""
        size = self.replica.service.prefix_block
        names = request.hashes[: request.prompt // size] if size else ()
        return size * next((count for count, name in enumerate(names) if name not in self.prefixes), len(names))


class Sight:
    """The replicas of a service as its router sees them; `replicas` is their set."""

    def __init__(self, replicas: Any, routing: Routing):
        self.replicas, self.clock = replicas, replicas.clock
        self.refresh, self.delay, self.prefixes = routing.refresh, routing.delay, "prefix" in routing.signals
        self.seen: dict[Any, SeenReplica] = {}
        self.coming: deque[tuple[float, SeenReplica, tuple[Any, ...]]] = deque()  # readings, and when they are seen
        self.timer = Later(self._read_all)

    def open_to(self, replicas: OpenReplicas) -> OpenReplicas:
        """Those replicas as they are seen."""
        for replica in replicas if not self.refresh else ():
            replica.loads, replica.place = self, replica  # where it notes each change
        return OpenReplicas([self.seen.setdefault(replica, SeenReplica(replica)) for replica in replicas])

    def __setitem__(self, replica: Any, load: float) -> None:
        self._read([replica])

    def look(self, replicas: OpenReplicas) -> None:
        """Bring those replicas, as they are seen, to what is seen now."""
        while self.coming and self.coming[0][0] <= self.clock._now:
            _, seen, values = self.coming.popleft()
            seen.outstanding, seen.waiting, seen.kv_used, seen.prefixes = values
        replicas.loads[:] = [(seen.outstanding + 1) / seen.speed for seen in replicas]

    def _read(self, replicas: Iterable[Any]) -> None:
        for one in replicas:
            signals = one.outstanding, one.waiting, one.kv_used, one.prefixes() if self.prefixes else frozenset()
            self.coming.append((self.clock._now + self.delay, self.seen[one], signals))

    def await_reading(self) -> None:
        """Go on reading at multiples of `refresh`, as a replica has something to do."""
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
