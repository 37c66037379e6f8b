"""Prefix affinity: the replica with most of the prompt, unless it is overloaded.

Decides which replica serves a request by the tokens that need not be prefilled there.
Reference: the cache-aware routing of Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs
(NeurIPS 2024), and Qin et al., Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving (FAST 2025).
Weakness: popular prefixes overload the replica that holds them; `slack` bounds by how much.
Cost: O(replicas × blocks of the prefix) a request.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.policy import Generation, OpenReplicas, Replica, Routing


class PrefixAffinity(Routing):
    """Most cached tokens among replicas that are not overloaded, or fewest requests.

    slack: a replica is overloaded if it has this many requests more than the one with the fewest; on unlike devices
        they count as what the fastest replica would serve in the same time.
    """

    def __init__(self, slack: Annotated[int, Field(ge=1)] = 8):
        self.slack = slack

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        fastest = max(replica.speed for replica in replicas)
        loads = [(replica.outstanding + 1) * (fastest / replica.speed) for replica in replicas]
        bound = min(loads) + self.slack
        able = [(replica, load) for replica, load in zip(replicas, loads, strict=True) if load < bound]
        chosen: Replica = min(able, key=lambda one: (-one[0].cached(request), one[1]))[0]
        return chosen
