"""Round robin: the replicas take turns.

Decides which replica serves a request: the next in turn, whatever they have to do.
Reference: none; the yardstick of load balancing.
Weakness: requests of uneven length pile up on some replicas while others idle; the lower bound on the mean wait is
that of cyclic splitting, well above one common queue's.
Cost: O(1) a request.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import Generation, OpenReplicas, Replica, Routing


class RoundRobinRouting(Routing):
    """The next replica in turn."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        """The replica with the next higher number, cyclically; replicas may come and go."""
        following = [replica for replica in replicas if replica.number > self._last]
        chosen = min(following or replicas, key=lambda replica: replica.number)
        self._last = chosen.number
        return chosen
