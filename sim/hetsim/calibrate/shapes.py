"""Chooses the shape of stage times by cross-validation: line, powers or table.

Each size is left out in turn and predicted from the others; the error of a shape is the mean relative error of these
predictions.  The chosen shape is the simplest whose error is within one standard error of the smallest error (Hastie,
Tibshirani and Friedman, The Elements of Statistical Learning, section 7.10).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from hetsim.model.batch_times import MAX_POINTS, StageTable, nearest_line

Predict = Callable[[int], float]

# minimum number of sizes to judge a shape: one is left out, the others must determine it
MIN_SIZES = {"line": 3, "broken line": 5, "powers": 4, "table": 3}
SHAPES = tuple(MIN_SIZES)  # from the simplest on
ROUNDING = 1e-9  # relative errors below this are due to floating point


@dataclass(frozen=True)
class JudgedShape:
    """How well one functional form of stage times (line, power, ...) predicts.

    The errors are relative, and are those on batch sizes that were left out of the fit: mean, standard error, largest.
    """

    shape: str
    error: float
    standard_error: float
    worst: float
    worst_size: int


@dataclass
class Shaped:
    """Measured stage times by size, and the curve (line, powers, ...) chosen for them."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    judged: list[JudgedShape]
    chosen: str
    knots: dict[int, float] = field(default_factory=dict)  # of a table or a broken line: its points, seconds by size
    line: tuple[float, float] = (0.0, 0.0)  # of a line: seconds per item, and fixed seconds
    floor: float | None = None  # of powers: seconds that do not depend on the size

    def seconds_at(self, size: int) -> float:
        if self.chosen == "line":
            return self.line[0] * size + self.line[1]
        between: Literal["linear", "power"] = "power" if self.chosen == "powers" else "linear"
        table = StageTable(tuple(self.knots), tuple(self.knots.values()), between, floor=self.floor or 0.0)
        return table.seconds_for(size)

    @property
    def about(self) -> dict[str, object]:
        """Describe these times for a profile: best curve, measured times, curves' errors."""
        return {
            "shape": self.chosen,
            "sizes": list(self.sizes),
            "times_ms": [float(f"{1e3 * value:.6g}") for value in self.seconds],
            "cross_validation": {judged.shape: round(judged.error, 4) for judged in self.judged},
        }

    @property
    def off(self) -> float:
        """Largest relative deviation of the measured times from the shape."""
        return max(abs(self.seconds_at(n) / t - 1) for n, t in zip(self.sizes, self.seconds, strict=True))


def shaped(
    sizes: tuple[int, ...], seconds: tuple[float, ...], wanted: str | None = None, floor: float | None = None
) -> Shaped:
    """Fit a stage in the wanted shape, or in the shape that cross-validation chooses.

    floor: minimum seconds of a batch of any size.  If given, `floor` + powers of the size are tried, too.
    """
    n, tau = np.array(sizes, dtype=float), np.array(seconds)
    fits: dict[str, Callable[[np.ndarray, np.ndarray], Predict]] = {
        "line": lambda n, tau: np.poly1d(_points(n, tau)),
        "broken line": lambda n, tau: partial(_through, *_knots(n, tau)),
        "table": lambda n, tau: partial(_through, n, tau),
    }
    if floor is not None:
        fits["powers"] = lambda n, tau: (
            StageTable(tuple(map(int, n)), tuple(tau.tolist()), "power", floor=floor).seconds_for
        )
    judged = [_judge(shape, fits[shape], n, tau) for shape in SHAPES if shape in fits and len(n) >= MIN_SIZES[shape]]
    chosen = wanted or (_simplest(judged) if judged else "table")
    stage = Shaped(sizes, seconds, judged, chosen, floor=floor)
    if chosen == "line":
        stage.line = _points(n, tau)
    elif chosen in ("table", "powers"):
        stage.knots = dict(zip(sizes, seconds, strict=True))
    else:
        stage.knots = {int(size): float(value) for size, value in zip(*_knots(n, tau), strict=True)}
    return stage


def _simplest(judged: list[JudgedShape]) -> str:
    best = min(judged, key=lambda one: one.error)
    bound = max(best.error + best.standard_error, ROUNDING)
    return next(one.shape for one in judged if one.error <= bound)


def _judge(shape: str, fit: Callable[[np.ndarray, np.ndarray], Predict], n: np.ndarray, tau: np.ndarray) -> JudgedShape:
    errors = []
    places = np.unique(np.linspace(0, len(n) - 1, min(len(n), MAX_POINTS)).astype(int))
    for place in places.tolist():
        rest = np.arange(len(n)) != place
        errors.append(abs(fit(n[rest], tau[rest])(int(n[place])) / float(tau[place]) - 1))
    worst = int(np.argmax(errors))
    scatter = float(np.std(errors, ddof=1)) / math.sqrt(len(errors)) if len(errors) > 1 else 0.0
    return JudgedShape(shape, float(np.mean(errors)), scatter, worst=errors[worst], worst_size=int(n[places[worst]]))


def _points(n: np.ndarray, tau: np.ndarray) -> tuple[float, float]:
    chosen = np.unique(np.linspace(0, len(n) - 1, min(len(n), MAX_POINTS)).astype(int))
    return nearest_line(n[chosen], tau[chosen])


def _through(n: np.ndarray, tau: np.ndarray, size: float) -> float:
    high = int(np.clip(np.searchsorted(n, size), 1, len(n) - 1))
    slope = (tau[high] - tau[high - 1]) / (n[high] - n[high - 1])
    return max(float(tau[high - 1] + slope * (size - n[high - 1])), 1e-12)


def _knots(n: np.ndarray, tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the three sizes and times of the broken line that fits best."""
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    for place in range(1, len(n) - 1):
        knots = n[[0, place, -1]]
        # Hat functions: the value at a size is a weighted mean of those at the knots around it.
        base = np.array([np.interp(n, knots, row) for row in np.eye(3)]).T
        values, *_ = np.linalg.lstsq(base / tau[:, None], np.ones(len(n)), rcond=None)
        miss = float(np.sum((base @ values / tau - 1) ** 2))
        if values.min() > 0 and (best is None or miss < best[0]):
            best = miss, knots, values
    return (n[[0, -1]], tau[[0, -1]]) if best is None else (best[1], best[2])
