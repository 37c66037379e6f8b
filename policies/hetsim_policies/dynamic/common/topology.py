"""Topology-aware placement: the racks, blocks or nodes that get pods.

If one domain (rack, block or node) has room for all pods, the one with the least room is chosen (best fit).  Otherwise
those with the most room are filled, and best fit places the rest.  Unconstrained pods use the fullest domains first.
Reference: Kueue, KEP-2724.  Cost: O(n²).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Topology = Literal["required", "preferred", "unconstrained"]


@dataclass(eq=False)
class Domain:
    """A domain (such as a rack): path of names, number of pods that fit, subdomains."""

    names: tuple[str, ...]
    room: int
    inside: list["Domain"] = field(default_factory=list)


def place(levels: Sequence[Sequence[Domain]], count: int, level: int, topology: Topology) -> dict[Domain, int] | None:
    """Return the number of pods in each lowest domain; None if they do not fit.

    levels: the domains by level, highest first.  level: with topology "required", all pods must be in one domain of
    this level; with "preferred", they may also be in one of a higher level, or else in several of the highest level.
    """
    chosen = _fill(levels[level], count, topology == "unconstrained")
    while topology == "preferred" and level and (len(chosen) > 1 or sum(chosen.values()) < count):
        level -= 1
        chosen = _fill(levels[level], count)
    if (topology == "required" and len(chosen) > 1) or sum(chosen.values()) < count:
        return None
    for _ in levels[level + 1 :]:
        chosen = _fill([domain for one in chosen for domain in one.inside], count)
    return chosen


def _fill(domains: Sequence[Domain], count: int, least: bool = False) -> dict[Domain, int]:
    """Return up to `count` pods by domain; `least`: domains with the least room first."""
    rest, chosen = [one for one in domains if one.room], dict[Domain, int]()
    rest.sort(key=lambda one: (one.room if least else -one.room, one.names))
    while rest and count:
        fits = [one for one in rest if one.room >= count and not (least and chosen)]
        best = min(fits, key=lambda one: one.room, default=rest[0])
        rest.remove(best)
        chosen[best] = min(best.room, count)
        count -= chosen[best]
    return chosen
