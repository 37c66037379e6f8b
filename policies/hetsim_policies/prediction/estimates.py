"""Reliability of time estimates, from the times of tasks that have ended.

Among the tasks of a class the logarithm of time / estimate is modeled as linear in the logarithm of the estimate, with
one slope for all classes.  With slope -1 estimates are uninformative: each task of a class is expected to take the
class's typical time.  With slope 0 estimates are right except for a constant factor.  Between -1 and 0 an estimate is
trusted in part: among tasks with short estimates, more were underestimated than overestimated.  This is the regression
to the mean of Galton (1886); with normal logarithms it is Bayes' rule.  Future times are drawn from the residuals,
which are ratios of actual to expected time.  The slope is fitted by least squares within classes; with fewer than
`ENOUGH_FOR_SLOPE` tasks it is the slope for errors that are independent of the estimates: -(variance of the ratios) /
(variance of the estimates).  The factor of a class is a weighted mean of its own factor and that of all classes, which
has the weight of `LEANING` tasks.  Fallback: with fewer than `ENOUGH` tasks errors are drawn from `DOUBTS`, a fixed
list of ratios.
Cost: O(1) per observation; O(window) per fit, and O(rows of the table) per use.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.model.task import Task
from hetsim.model.tasks import Tasks

ENOUGH = 5  # minimum number of ended tasks for a fit
ENOUGH_FOR_SLOPE = 20  # minimum number of tasks, beyond the first of each class, for a fitted slope
LEANING = 4  # weight of all classes in the factor of a class, in tasks
# Ratios before any fit: about those of lognormal errors with a coefficient of variation of 0.5
DOUBTS = np.exp(0.5 * np.array([-1.5, -0.9, -0.5, -0.16, 0.16, 0.5, 0.9, 1.5]))
SHORTEST = 1e-9  # minimum estimate in seconds
ALIKE = 1e-6  # logarithm of a ratio below which an estimate is exact
ENOUGH_ARRIVALS = 20  # Minimum number of arrivals for a model: with fewer, the mean gap has an error above a quarter
MAX_DRAWN = 1000  # maximum number of tasks of one sample


@dataclass(frozen=True)
class Believed:
    """How times follow estimates: slope, mean logarithms of ratios, and residuals.

    level, levels: mean logarithm of time / estimate, of all tasks and by class.  residuals: ratios of actual to
    expected time, with mean logarithm 0.
    """

    slope: float
    level: float
    levels: dict[str, float]
    residuals: np.ndarray

    def parts(self, tasks: Tasks) -> np.ndarray:
        """Return expected (median) time / estimate of each task.

        It is exp(level + slope × d), with the level of the task's class.  d: the logarithm of the task's estimate,
        minus the mean logarithm of the estimates of all tasks of this class that have arrived.
        """
        estimate = np.log(np.maximum(tasks.computing(tasks.estimate).min(axis=1), SHORTEST))
        usable = np.isfinite(estimate) & np.isfinite(tasks.arrival)
        code = np.zeros(len(tasks), dtype=int) if tasks.class_code is None else tasks.class_code
        parts = np.ones(len(tasks))
        for number, name in enumerate(tasks.classes):
            rows = usable & (code == number)
            if rows.any():
                ahead = estimate[rows] - estimate[rows].mean()
                parts[rows] = np.exp(self.levels.get(name, self.level) + self.slope * ahead)
        return parts


UNKNOWN = Believed(0.0, 0.0, {}, DOUBTS)


class EstimateHistory:
    """Estimates and times of the last `window` ended tasks."""

    def __init__(self, window: int = 512):
        self._last: deque[tuple[str, float, float]] = deque(maxlen=window)
        self._fit: Believed | None = None
        self._wrong = 0  # number of these tasks whose time was not their estimate

    def observe(self, task: Task, ratio: float) -> None:
        """Add a task's time divided by its estimate (above 0)."""
        if len(self._last) == self._last.maxlen:
            self._wrong -= abs(self._last[0][2]) > ALIKE
        shortest = min(map(task.estimate_at, range(len(task.modes))))  # of the whole task, in its fastest mode
        self._last.append((task.class_, math.log(max(shortest, SHORTEST)), math.log(ratio)))
        self._wrong += abs(self._last[-1][2]) > ALIKE
        self._fit = None

    @property
    def uncertain(self) -> bool:
        """Return True if estimates were wrong, or too few tasks have ended to judge."""
        return len(self._last) < ENOUGH or self._wrong > 0

    def believed(self) -> Believed:
        if len(self._last) < ENOUGH:
            return UNKNOWN
        if self._fit is None:
            self._fit = self._line()
        return self._fit

    def _line(self) -> Believed:
        x, y = np.array([(estimate, ratio) for _, estimate, ratio in self._last]).T
        level = float(y.mean())
        names = [name for name, _, _ in self._last]
        rows: dict[str, list[int]] = {}
        for row, name in enumerate(names):
            rows.setdefault(name, []).append(row)
        levels = {name: float((y[some].sum() + LEANING * level) / (len(some) + LEANING)) for name, some in rows.items()}
        across = x - _by_name({name: x[some].mean() for name, some in rows.items()}, names)
        up = y - _by_name({name: y[some].mean() for name, some in rows.items()}, names)
        free, spread = len(x) - len(rows), float(across @ across)
        slope = 0.0
        if free >= ENOUGH - 1 and spread > 1e-9:
            slope = float(across @ up if free >= ENOUGH_FOR_SLOPE else -(up @ up)) / spread
            slope = min(0.0, max(-1.0, slope))
        residual = y - _by_name(levels, names) - slope * across
        return Believed(slope, level, levels, np.exp(residual - residual.mean()))


def _by_name(values: dict[str, Any], names: list[str]) -> np.ndarray:
    return np.array([values[name] for name in names])


# Coming arrivals: the gaps between the last arrivals, and their tasks, are drawn again independently (Efron's
# bootstrap, 1979).  Bursts at one instant remain as frequent; patterns by day, week or user are lost.  With fewer than
# `ENOUGH_ARRIVALS` nothing is drawn (`enough`).  Cost: O(1) per arrival, O(tasks drawn) per sample.


class ArrivalHistory:
    """The last `window` arrivals, as a model of coming arrivals."""

    def __init__(self, window: int = 512):
        self._last: deque[Task] = deque(maxlen=window)

    @property
    def enough(self) -> bool:
        return len(self._last) >= ENOUGH_ARRIVALS

    def observe(self, task: Task) -> None:
        self._last.append(task)

    def sample(self, now: float, until: float, random: np.random.Generator) -> list[tuple[float, Task]]:
        """Draw arrivals in [now, until), each with an earlier task as template."""
        if not self.enough:
            return []
        gaps = np.diff(np.array([task.arrival for task in self._last]))
        if not gaps.sum():  # all came at one instant
            return []
        arrivals: list[tuple[float, Task]] = []
        at = now + float(random.choice(gaps))
        while at < until and len(arrivals) < MAX_DRAWN:
            arrivals.append((at, self._last[int(random.integers(len(self._last)))]))
            at += float(random.choice(gaps))
        return arrivals
