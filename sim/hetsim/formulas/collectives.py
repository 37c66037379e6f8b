"""Times of collectives and messages on idle links: the alpha-beta model.

`ranks` take part with `size` bytes each; `rate` is the bus bandwidth of a rank's slowest hop in one direction, bytes
a second; `latency` seconds a hop.
Reference: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH (2005).
"""

from typing import Literal

from hetsim.model.bandwidth import BandwidthCurve

Rate = float | BandwidthCurve
"""Bytes per second of a link, or what was measured of it for each size."""
Pattern = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "ring"]
WAYS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
"""Ring collectives: how often each byte but one part in N goes around N ranks."""


def rate_at(rate: Rate, size: float) -> float:
    """Bytes per second of a collective at this size."""
    return rate if isinstance(rate, float | int) else rate.rate(size)


def capped(rate: Rate, limit: float) -> Rate:
    """A rate or measured curve, limited by a slower hop on the path."""
    if isinstance(rate, BandwidthCurve):
        return BandwidthCurve(rate.sizes, tuple(min(one, limit) for one in rate.rates))
    return min(rate, limit)


def message(size: float, rate: float, latency: float = 0.0) -> float:
    """Seconds of a message from one rank to another."""
    return latency + size / rate


def ring_over_nodes(
    ways: int, nodes: int, each: int, size: float, inside: Rate, latency: float = 0.0, latency_inside: float = 0.0
) -> tuple[float, float, float]:
    """Needs of a ring collective among `each` ranks on each of some nodes.

    Bytes that a node sends to the next, seconds of the links within nodes at the same time, and seconds of latencies.

    ways: 2 for an all-reduce, 1 for a reduce-scatter or an all-gather.  The ring goes through all ranks, over all
    cards of a node at once (as in NCCL), so that its bus bandwidth is the lower one of `inside` and of the cards.
    """
    ranks = max(1, nodes * each)
    moved = ways * (ranks - 1) / ranks * size
    latencies = ways * ((each - 1) * latency_inside + (nodes - 1) * latency)
    return moved if nodes > 1 else 0.0, moved / rate_at(inside, size) if each > 1 else 0.0, latencies
