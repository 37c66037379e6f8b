"""Times of collectives and messages on idle links: the latency and bandwidth (alpha-beta) model.

`ranks` take part with `size` bytes each; `rate` is the bus bandwidth of a rank's slowest hop in one direction, bytes
a second; `latency` seconds a hop.
Reference: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH (2005).
"""

from __future__ import annotations

from typing import Literal

from sim.model.bandwidth import BandwidthCurve

Rate = float | BandwidthCurve
"""Bytes per second of a link, or what was measured of it for each size."""
Pattern = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "ring"]


def rate_at(rate: Rate, size: float) -> float:
    """Bytes per second of a collective of this size."""
    return rate if isinstance(rate, float | int) else rate.rate(size)


def at_most(rate: Rate, limit: float) -> Rate:
    """A rate, or a measured curve, that a slower hop on the way limits."""
    if isinstance(rate, BandwidthCurve):
        return BandwidthCurve(rate.sizes, tuple(min(one, limit) for one in rate.rates))
    return min(rate, limit)


def all_reduce(ranks: int, size: float, rate: float, latency: float = 0.0) -> float:
    """Seconds of a ring all-reduce: twice a reduce-scatter."""
    return 2 * reduce_scatter(ranks, size, rate, latency)


def reduce_scatter(ranks: int, size: float, rate: float, latency: float = 0.0) -> float:
    """Seconds of a ring reduce-scatter; of an all-gather as well."""
    if ranks < 2:
        return 0.0
    return (ranks - 1) * latency + (ranks - 1) / ranks * size / rate


def message(size: float, rate: float, latency: float = 0.0) -> float:
    """Seconds of a message from one rank to another."""
    return latency + size / rate


def all_reduce_over_nodes(
    nodes: int, each: int, size: float, inside: Rate, card: float, cards: int, latency: float = 0.0,
    latency_inside: float = 0.0,
) -> float:  # fmt: skip
    """Seconds of a hierarchical all-reduce of `each` ranks on each of some nodes.

    A reduce-scatter within each node at the rate `inside`, an all-reduce of the parts over the `cards` of each node
    at the rate `card`, and an all-gather within.
    """
    within = all_reduce(each, size, rate_at(inside, size), latency_inside)
    if nodes < 2:
        return within
    share = card * min(cards, each) / each
    return within + all_reduce(nodes, size / each, share, latency)


def over_nodes(
    pattern: Pattern, nodes: int, each: int, size: float, inside: Rate, card: float, cards: int,
    latency: float = 0.0, latency_inside: float = 0.0,
) -> float:  # fmt: skip
    """Seconds of a pattern among `each` ranks on each of some nodes, with `size` bytes of each rank.

    ring: every rank sends its bytes to the next.
    """
    ranks, share = nodes * each, card * min(cards, each) / each
    if ranks < 2:
        return 0.0
    if pattern == "all_to_all":
        within = (each - 1) * latency_inside + (each - 1) / ranks * size / rate_at(inside, size)
        beyond = (nodes - 1) * each * latency + (ranks - each) / ranks * size / share
        return within + (beyond if nodes > 1 else 0.0)
    if pattern == "ring":  # one rank of each node sends to another node, over a card of its own
        return message(size, card, latency) if nodes > 1 else message(size, rate_at(inside, size), latency_inside)
    whole = all_reduce_over_nodes(nodes, each, size, inside, card, cards, latency, latency_inside)
    return whole if pattern == "all_reduce" else whole / 2


def measured_excess(
    nodes: int, each: int, size: float, curve: BandwidthCurve, used: float = 1.0, ways: int = 2, groups: float = 1.0
) -> float:
    """Seconds of measured ring collectives over nodes beyond those that their bytes need at the curve's highest rate.

    `groups` of them at once, among `each` ranks on each of some nodes, with the share `used` of a node's cards.
    `ways`: 2 for an all-reduce, 1 for a reduce-scatter or an all-gather.  A measured collective takes
    ways (n - 1) / n of its bytes at the bus bandwidth, steps within the nodes included; between the nodes it moves
    ways (N - 1) / N of them.
    """
    ranks = nodes * each
    whole, between = (ranks - 1) / ranks / curve.rate(size), (nodes - 1) / nodes / curve.top
    return ways * groups * size * (whole - between) / used if size else 0.0
