"""Power of two choices: the less loaded of two replicas drawn at random.

Decides which replica serves a request without looking at all of them; requests count for the speed of their replica.
Reference: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001): the longest queue falls from
about log n / log log n (random) to log log n / log 2.
Weakness: worse than looking at all, where that costs nothing.
Cost: O(1) a request.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import Generation, OpenReplicas, Replica, Routing


class PowerOfTwo(Routing):
    """The less loaded of two different replicas drawn at random."""

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        count = len(replicas)
        if count == 1:
            return replicas[0]
        first = int(random.integers(count))
        second = int(random.integers(count - 1))
        one, other = replicas[first], replicas[second + (second >= first)]
        fewer = (other.outstanding + 1) / other.speed < (one.outstanding + 1) / one.speed
        return other if fewer else one
