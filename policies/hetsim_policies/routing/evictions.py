"""The model that makes room for another on a node."""

from collections.abc import Sequence

from hetsim.policy import Eviction, KeptModel


class Lru(Eviction):
    """Least recently used: the model that was not loaded from there for longest.

    Reference: Belady, A Study of Replacement Algorithms for a Virtual-Storage Computer (IBM Systems Journal, 1966);
    Sleator and Tarjan (1985): with room for k equal models at most k times the loads of the best choice.
    Weakness: models asked for in turn, one more than fit, are never found.
    Cost: linear in the models there.
    """

    def victim(self, kept: Sequence[KeptModel], now: float) -> KeptModel:
        return min(kept, key=lambda one: one.used)
