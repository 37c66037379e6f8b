"""Eviction: the choice of the model that makes room for another on a node."""

from collections.abc import Sequence

from hetsim.policy import Eviction, KeptModel


class Lru(Eviction):
    """Least recently used: evict the model whose last use is longest ago.

    Reference: Belady, A Study of Replacement Algorithms for a Virtual-Storage Computer (IBM Systems Journal, 1966);
    Sleator and Tarjan (1985): with room for k equal models at most k times as many loads as the optimal choice.
    Weakness: if models are requested cyclically and one more than fits, each is evicted before its next request.
    Cost: linear in the models on the node.
    """

    def victim(self, kept: Sequence[KeptModel], now: float) -> KeptModel:
        return min(kept, key=lambda one: one.used)
