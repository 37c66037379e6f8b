"""Services: requests of one kind, many of which can be launched together as one batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sim.model.tasks import Shape


@dataclass(frozen=True, eq=False)
class Service:
    """A stream of requests that are served in batches.

    `rows` are its rows of `Tasks`, in order of arrival; they alone have the service's shape.  A batch of n in mode j
    computes for `shape.modes[j].fixed` plus the sum of its requests' own times, which for most services are all
    `per_item[j]`; uploads and downloads are those of the mode.  `slo` is the relative deadline of each request.
    `noise` is the relative standard deviation of every stage time of a batch (normal, cut off at a tenth).
    """

    name: str
    shape: Shape
    rows: np.ndarray
    per_item: tuple[float, ...]
    slo: float = math.inf
    noise: float = 0.0
    alike: bool = True
    """Do all requests take `per_item` exactly?"""
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    """Private data of a request, on average."""
    about: dict[str, object] = field(default_factory=dict)
    """What else its scenario entry says that policies may want to know (tokens, cache, ...)."""

    def __repr__(self) -> str:
        return self.name
