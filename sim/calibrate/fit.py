"""The linear model τ(n) = a·n + b of a stage, from its median times at some batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
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


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> Line:
    """Of the lines through two of the points (or one, with the other coefficient zero) the nearest to all of them.

    No coefficient is negative.

    Near is the sum of |log(τ / line)|: relative, because medians scatter in proportion to their size and the largest
    batches alone would otherwise say what `fixed` is; and without squares, because single sizes are often special (a
    batch of one takes another kernel, a size fills the device badly), for which squares would bend the line.
    """
    n, tau = np.asarray(sizes, float), np.asarray(seconds, float)
    if not tau.any():
        return Line(0.0, 0.0, (0.0,) * len(n))
    lines = [(0.0, float(value)) for value in tau]
    lines += [(float(value / size), 0.0) for size, value in zip(n, tau, strict=True)]
    for first in range(len(n)):
        for second in range(first + 1, len(n)):
            slope = float((tau[second] - tau[first]) / (n[second] - n[first]))
            lines.append((slope, float(tau[first] - slope * n[first])))
    possible = [line for line in lines if min(line) >= 0]
    per_item, fixed = min(possible, key=lambda line: float(np.abs(np.log((line[0] * n + line[1]) / tau)).sum()))
    residuals = tau / (per_item * n + fixed) - 1
    return Line(per_item, fixed, tuple(residuals.tolist()))
