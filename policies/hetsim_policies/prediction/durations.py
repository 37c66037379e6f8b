"""Expected times of jobs, from ended jobs of the same user and class.

A mean in which recent jobs weigh more, or a quantile of the last ones; blended with the mean, or the quantile, of all
jobs while the user has little history.
Reference: Tsafrir, Etsion, Feitelson, Backfilling Using System-Generated Predictions Rather than User Runtime Estimates
(2007), where the mean of a user's last two jobs does better than what users say; Hu et al., Characterization and
Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters (2021) for rolling means by user and name.
Fall-back: `default` while nothing has ended at all.
Cost: O(1) a job for means; O(window) for quantiles.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence


class DurationHistory:
    """Durations by user and class.

    decay: weight of the history against the latest job in a user's mean.
    trust: number of a user's jobs at which the mean of all jobs and the user's own mean have equal weight.
    default: predicted while nothing has ended.
    quantile: predict this quantile of the last `window` durations; none: the mean.
    ValueError for a parameter that is none.
    """

    def __init__(
        self,
        decay: float = 0.8,
        trust: float = 3.0,
        default: float = 3600.0,
        quantile: float | None = None,
        window: int = 100,
    ):
        if not 0 <= decay < 1:
            raise ValueError(f"decay is the weight of the history, from 0 to below 1, not {decay}")
        if not 0 < trust < math.inf:
            raise ValueError(f"trust is a number of jobs above 0 (few, to trust a user's own soon), not {trust}")
        if not 0 <= default < math.inf:
            raise ValueError(f"default is a time in seconds from 0 on, not {default}")
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"a quantile lies between 0 and 1, {quantile} does not")
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            raise ValueError(f"window is a number of durations from 1 on, not {window!r}")
        self.decay, self.trust, self.default, self.quantile = decay, trust, default, quantile
        self.window = window
        self._means: dict[tuple[str, str], tuple[int, float]] = {}
        """By user and class: how many have ended, and their mean duration."""
        self._all = (0, 0.0)
        self._recent: dict[tuple[str, str], RunningQuantile] = {}
        self._recent_all = RunningQuantile(10 * window)

    def observe(self, user: str, class_: str, seconds: float) -> None:
        """A job of this user and class took so long."""
        key = user, class_
        jobs, own = self._means.get(key, (0, seconds))
        self._means[key] = jobs + 1, self.decay * own + (1 - self.decay) * seconds
        count, overall = self._all
        self._all = count + 1, overall + (seconds - overall) / (count + 1)
        if self.quantile is not None:
            if key not in self._recent:
                self._recent[key] = RunningQuantile(self.window)
            self._recent[key].add(seconds)
            self._recent_all.add(seconds)

    def forecast(self, user: str, class_: str) -> float:
        """Seconds that the next job of this user and class will take."""
        count, overall = self._all
        jobs, own = self._means.get((user, class_), (0, 0.0))
        if self.quantile is not None and count:
            overall = self._recent_all.at(self.quantile)
            own = self._recent[user, class_].at(self.quantile) if jobs else 0.0
        overall = overall if count else self.default
        part = jobs / (jobs + self.trust)
        return part * own + (1 - part) * overall


class RunningQuantile:
    """Quantiles of the last `window` values.

    Cost: O(window) a value, O(1) a quantile.
    """

    def __init__(self, window: int):
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self.window = window

    def add(self, value: float) -> None:
        if len(self._order) == self.window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(value)
        insort(self._sorted, value)

    def at(self, quantile: float) -> float:
        """The minimum value that this part of them does not exceed (inverse CDF)."""
        return quantile_of(self._sorted, quantile)


def quantile_of(ordered: Sequence[float], quantile: float) -> float:
    """Of values in ascending order, at least one."""
    return ordered[min(len(ordered) - 1, max(0, math.ceil(quantile * len(ordered) - 1e-9) - 1))]
