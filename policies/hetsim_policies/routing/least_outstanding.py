"""Least outstanding: the replica with the fewest requests that have not ended.

Decides which replica serves a request: join the shortest queue, counting those in service; of replicas on unlike
devices the one with the fewest, the newcomer included, for the tokens per second that it gives (shortest expected
delay).
Reference: Winston, Optimality of the Shortest Line Discipline (1977), for equal exponential servers; for unlike ones
Banawan and Zahorjan, Load Sharing in Heterogeneous Queueing Systems (INFOCOM 1989).
Weakness: counts requests, not tokens: one long answer weighs as much as a short one.
Cost: one look at an array of loads a request.
"""

from __future__ import annotations

import numpy as np

from hetsim.policy import Generation, OpenReplicas, Replica, Routing


class LeastOutstanding(Routing):
    """The replica with the fewest requests for its speed; among equals the first."""

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        chosen: Replica = replicas.least_loaded()
        return chosen
