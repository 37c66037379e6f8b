"""The network between nodes: racks, and slowdowns of jobs that share a link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Fabric:
    """Rates of racks' uplinks (bytes/s each way), and how phases of jobs meet."""

    uplinks: dict[str, float] = field(default_factory=dict)
    contention: Literal["random", "aligned", "interleaved", "none"] = "random"
