"""The linear model τ(n) = a·n + b of a stage, from its median times at some batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetsim.model.batch_times import nearest_line


@dataclass(frozen=True)
class FittedLine:
    """Seconds `per_item` and `fixed`, and how far each measured size is from the line (as a share of its time)."""

    per_item: float
    fixed: float
    residuals: tuple[float, ...]

    def of(self, n: int) -> float:
        return self.per_item * n + self.fixed

    @property
    def worst(self) -> float:
        """The largest residual."""
        return max(map(abs, self.residuals), default=0.0)


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> FittedLine:
    """The line nearest to these times (`nearest_line`); 0 where they are all 0."""
    n, tau = np.asarray(sizes, float), np.asarray(seconds, float)
    if not tau.any():
        return FittedLine(0.0, 0.0, (0.0,) * len(n))
    per_item, fixed = nearest_line(n, tau)
    residuals = tau / (per_item * n + fixed) - 1
    return FittedLine(per_item, fixed, tuple(residuals.tolist()))
