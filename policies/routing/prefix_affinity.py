"""Prefix affinity: the replica that already holds most of the prompt, unless it is much busier than the others.

Decides which replica serves a request by the tokens that need not be prefilled there.
Reference: the cache-aware routing of Zheng et al., SGLang: Efficient Execution of Structured Language Model Programs
(NeurIPS 2024), and Qin et al., Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving (FAST 2025).
Weakness: popular prefixes overload the replica that holds them; `slack` bounds by how much.
Cost: O(replicas × blocks of the prefix) a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from sim.policy import Generation, Replica, Routing


class PrefixAffinity(Routing):
    """Most cached tokens among the replicas that are not overloaded; without any, the fewest requests.

    slack: a replica is overloaded if it has this many requests more than the one with the fewest.
    """

    def __init__(self, slack: Annotated[int, Field(ge=1)] = 8):
        self.slack = slack

    def choose(self, request: Generation, replicas: Sequence[Any], random: np.random.Generator) -> Replica:
        least = min(replica.outstanding for replica in replicas)
        able = [replica for replica in replicas if replica.outstanding < least + self.slack]
        return min(able, key=lambda replica: (-replica.cached(request), replica.outstanding))
