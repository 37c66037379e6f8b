"""Least outstanding: the replica with the fewest requests that have not ended.

Decides which replica serves a request: join the shortest queue, counting those in service.
Reference: Winston, Optimality of the Shortest Line Discipline (1977), for equal exponential servers.
Weakness: counts requests, not tokens: one long answer weighs as much as a short one.
Cost: O(replicas) a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.policy import Generation, Replica, Routing


class LeastOutstanding(Routing):
    """The replica with the fewest requests; among equals the first."""

    def choose(self, request: Generation, replicas: Sequence[Any], random: np.random.Generator) -> Replica:
        return min(replicas, key=lambda replica: replica.outstanding)
