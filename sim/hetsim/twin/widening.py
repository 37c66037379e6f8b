"""How much wider forecasts have to be, by the errors of earlier forecasts.

A forecast of random run times and arrivals holds what is random, and not what is unknown of a site.  Forecasts from
earlier snapshots of the same history, held against what came, tell how far off they were: both ends of an interval are
moved, outward or inward, by what would have made as many of these intervals right as it promises.
Reference: Romano, Patterson, Candès, Conformalized Quantile Regression (2019).  Each end by itself holds more than is
promised, since half of the starts lie beyond the horizon and can miss one end only.  The promise holds where later
errors are like earlier ones.  Jobs of one snapshot err together, so that many starts at few instants say less than
their number: at two sites a snapshot of 54 and 73 starts was worth ten by the spread of its misses, and since three in
a row look at the same hours, each counts as `WORTH`.
Weakness: a start that is all but certain is widened like any other.  Errors in parts of the interval's own width, or of
the promised wait, which would spare it, made intervals no narrower at the same coverage where they were tried.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of a start that are told."""
WORTH = 4
"""Independent starts that one snapshot is worth: its jobs err together, and its hours are those of others, too."""
ENOUGH_STARTS = 30
"""Judged starts below which nothing is moved: of fewer three errors alone would decide the ends."""


@dataclass
class Past:
    """One earlier forecast: its quantiles, a row per job, and the outcomes."""

    known_at: float
    """When all of that was known."""
    forecast: np.ndarray
    actual: np.ndarray
    groups: list[str] = field(default_factory=list)
    """By job: jobs of one group err alike.  Empty: they are one."""


@dataclass(frozen=True)
class Widening:
    """Seconds by which each quantile is moved, and what they were learned from."""

    moves: tuple[float, ...]
    starts: int
    snapshots: int
    by_group: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """The same of groups with enough starts of their own."""

    def moved(self, told: Sequence[float] | np.ndarray, horizon: float, group: str = "") -> np.ndarray:
        """The quantiles `SHARES` of a start, moved; at most the horizon."""
        capped = np.minimum(np.asarray(told, dtype=float), horizon)
        moved = np.clip(capped + np.array(self.by_group.get(group, self.moves)), 0.0, horizon)
        middle = moved[..., 2] = capped[..., 2]
        moved[..., 1] = np.minimum(moved[..., 1], middle)
        moved[..., 0] = np.minimum(moved[..., 0], moved[..., 1])
        moved[..., 3] = np.maximum(moved[..., 3], middle)
        moved[..., 4] = np.maximum(moved[..., 4], moved[..., 3])
        return moved


def widening(pasts: Sequence[Past], now: float) -> Widening | None:
    """Learn from forecasts with known outcomes; None if there are too few."""
    finished = [past for past in pasts if past.known_at <= now and len(past.actual)]
    starts = sum(len(past.actual) for past in finished)
    if starts < ENOUGH_STARTS:
        return None
    intervals = np.concatenate([past.forecast for past in finished])
    actual = np.concatenate([past.actual for past in finished])
    groups = np.array([group for past in finished for group in past.groups or [""] * len(past.actual)])
    error = actual[:, None] - intervals
    number = np.repeat(np.arange(len(finished)), [len(past.actual) for past in finished])
    rows = {name: np.flatnonzero(groups == name) for name in sorted(set(groups.tolist()))}
    by_group = {name: _moves(error[own], len(set(number[own].tolist())))
                for name, own in rows.items() if len(own) >= ENOUGH_STARTS}  # fmt: skip
    return Widening(_moves(error, len(finished)), starts, len(finished), by_group)


def _moves(error: np.ndarray, snapshots: int) -> tuple[float, ...]:
    """Seconds that would have made each quantile right; the median does not move.

    The start to come is one more among as many as are independent.
    """
    moves, starts, more = [0.0] * len(SHARES), len(error), max(1.0, len(error) / (WORTH * snapshots))
    for low, high in ((0, -1), (1, -2)):
        rank = min(starts, math.ceil((starts + more) * round(SHARES[high] - SHARES[low], 9)))
        moves[high] = float(np.sort(np.maximum(-error[:, low], error[:, high]))[rank - 1])
        moves[low] = -moves[high]
    return tuple(moves)
