"""Widens forecast intervals by the errors of earlier forecasts.

A forecast of random run times and arrivals covers randomness, but not what is unknown about a site.  The errors of
forecasts from earlier snapshots of the same history measure this: both bounds of an interval are moved, outward or
inward, so that the intended share of these earlier intervals would have been right.
Reference: Romano, Patterson, Candès, Conformalized Quantile Regression (2019).  Treating each bound separately covers
more than intended, since half of the starts are beyond the horizon and can miss one bound only.  The coverage is valid
if later errors are like earlier ones.  Many starts in few snapshots say less than as many independent starts, since
errors of the jobs in one snapshot are correlated: at two sites, with 54 and with 73 starts per snapshot, the misses
varied among snapshots as much as with ten independent starts each.  Moreover, three consecutive snapshots cover the
same hours.  Therefore each snapshot counts as only `WORTH` independent starts.

Weakness: an almost certain start is widened like any other.  Errors relative to the interval or wait did not help.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # forecast quantiles of a start
# independent starts that one snapshot is worth: its jobs' errors are correlated, and its hours overlap others
WORTH = 4
ENOUGH_STARTS = 30  # minimum number of judged starts for widening: with fewer, three errors alone would decide the ends


@dataclass
class Past:
    """An earlier forecast: its quantiles, one row per job, and the actual starts."""

    known_at: float  # when all outcomes were known, in s
    forecast: np.ndarray
    actual: np.ndarray
    groups: list[str] = field(default_factory=list)  # by job: jobs of one group have similar errors; empty: one group


@dataclass(frozen=True)
class Widening:
    """Seconds to add to each quantile of a forecast start, and counts of data used."""

    moves: tuple[float, ...]
    starts: int
    snapshots: int
    # `moves` of groups with enough starts of their own
    by_group: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def moved(self, told: Sequence[float] | np.ndarray, horizon: float, group: str = "") -> np.ndarray:
        """Widen start quantiles `told` (s from now) by a group's errors, up to `horizon`."""
        capped = np.minimum(np.asarray(told, dtype=float), horizon)
        moved = np.clip(capped + np.array(self.by_group.get(group, self.moves)), 0.0, horizon)
        middle = moved[..., 2] = capped[..., 2]
        moved[..., 1] = np.minimum(moved[..., 1], middle)
        moved[..., 0] = np.minimum(moved[..., 0], moved[..., 1])
        moved[..., 3] = np.maximum(moved[..., 3], middle)
        moved[..., 4] = np.maximum(moved[..., 4], moved[..., 3])
        return moved


def widening(pasts: Sequence[Past], now: float) -> Widening | None:
    """Learn by how much to widen forecasts, from past errors; None: too few starts."""
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
    """Return the seconds to add to each quantile; the median is not moved.

    error: actual start minus each forecast quantile (s), a row per earlier start.  The moved intervals contain the
    intended share of the earlier starts and one more independent start (several rows, as errors are correlated).
    """
    moves, starts, more = [0.0] * len(SHARES), len(error), max(1.0, len(error) / (WORTH * snapshots))
    for low, high in ((0, -1), (1, -2)):
        rank = min(starts, math.ceil((starts + more) * round(SHARES[high] - SHARES[low], 9)))
        moves[high] = float(np.sort(np.maximum(-error[:, low], error[:, high]))[rank - 1])
        moves[low] = -moves[high]
    return tuple(moves)
