"""What the router of a service sees of its replicas, where signals have an age.

With `refresh` all signals are read at multiples of it, before anything else happens at that instant, and are what the
router sees until the next reading.  With `delay` a reading is seen so much later; without `refresh` the numbers of
requests are followed and each change is seen so much later.  A new replica looks idle until it has been read.
There are readings only while some replica has anything to do: the last one has found all of them idle.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.engine.kernel.clock import READING, Clock, Later
from hetsim.policy.routing import OpenReplicas


class SeenReplica:
    """A replica with the signals of an earlier time."""

    def __init__(self, replica: Any):
        self.replica = replica
        self.number, self.speed, self.service = replica.number, replica.speed, replica.service
        self.blocks = getattr(replica, "blocks", 0)
        self.outstanding, self.waiting, self.kv_used = 0, 0, 0.0
        self.names: frozenset[Any] = frozenset()  # prefixes in its cache
        self.coming: deque[tuple[float, int]] = deque()  # numbers of requests, and when they will be seen

    def cached(self, request: Any) -> int:
        """Tokens at the beginning of a prompt that were in its prefix cache."""
        count, size = 0, self.service.prefix_block
        for name in request.hashes[: request.prompt // size] if size else ():
            if name not in self.names:
                break
            count += 1
        return count * size

    def __repr__(self) -> str:
        return repr(self.replica)


@dataclass(eq=False)
class Followed:
    """Where replicas note their loads, of which each change is seen later."""

    loads: np.ndarray
    seen: list[SeenReplica]
    clock: Clock
    delay: float

    def __setitem__(self, place: int, load: float) -> None:
        self.loads[place] = load
        seen = self.seen[place]
        seen.coming.append((self.clock._now + self.delay, seen.replica.outstanding))


@dataclass(eq=False)
class Sight:
    """The replicas of a service as its router sees them."""

    of: Any
    """The set of replicas."""
    clock: Clock
    refresh: float
    delay: float
    prefixes: bool
    """True if the router looks at the prefixes that are cached."""
    seen: dict[int, SeenReplica] = field(default_factory=dict)
    coming: deque[tuple[float, list[tuple[SeenReplica, tuple[Any, ...]]]]] = field(default_factory=deque)
    """Readings that are not seen yet, and when they will be."""

    def __post_init__(self) -> None:
        self.timer = Later(self._read)

    def open_to(self, replicas: OpenReplicas) -> OpenReplicas:
        """Those replicas as they are seen."""
        seen = [self.seen.setdefault(replica.number, SeenReplica(replica)) for replica in replicas]
        if not self.refresh:
            for replica in replicas:
                replica.loads = Followed(replicas.loads, seen, self.clock, self.delay)
        return OpenReplicas(seen)

    def look(self, replicas: OpenReplicas) -> None:
        """Bring those replicas, as they are seen, to what is seen now."""
        now = self.clock._now
        while self.coming and self.coming[0][0] <= now:
            for seen, values in self.coming.popleft()[1]:
                seen.outstanding, seen.waiting, seen.kv_used, seen.names = values
        for place, seen in enumerate(replicas):
            while seen.coming and seen.coming[0][0] <= now:
                seen.outstanding = seen.coming.popleft()[1]
            replicas.loads[place] = (seen.outstanding + 1) / seen.speed

    def sent(self) -> None:
        """Go on reading, as a replica has something to do."""
        if self.refresh and self.timer.entry < 0:
            count = math.floor(self.clock._now / self.refresh)
            while count * self.refresh <= self.clock._now:
                count += 1
            self.clock.at(count * self.refresh, READING, self.timer)

    def _read(self) -> None:
        replicas = self.of.all
        names = frozenset[Any]()
        values = [
            (self.seen[one.number], (one.outstanding, one.waiting, one.kv_used, one.prefixes() if self.prefixes else names))
            for one in replicas if one.number in self.seen
        ]  # fmt: skip
        self.coming.append((self.clock._now + self.delay, values))
        if not all(one.idle for one in replicas):
            self.sent()
