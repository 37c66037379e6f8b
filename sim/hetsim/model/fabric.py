"""The network between nodes: racks, and what jobs that share a link make of each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Fabric:
    """The network between nodes: rates of the racks' uplinks (bytes per second in each direction), and how the phases
    of jobs that share a link meet (`hetsim.formulas.contention`)."""

    uplinks: dict[str, float] = field(default_factory=dict)
    contention: Literal["random", "aligned", "interleaved", "none"] = "random"
