"""Amounts that jobs use over time."""

import numpy as np

MOMENT = 60.0
COMMON = 0.01
"""The share of time for which a level is held that is no accident of a log."""


class HeldOverTime:
    """An amount in use over time, as steps: `level[k]` from `times[k]` on."""

    def __init__(self, start: np.ndarray, end: np.ndarray, amount: np.ndarray):
        times = np.concatenate([start, end])
        change = np.concatenate([amount, -amount])
        order = np.lexsort((change, times))  # ends before starts at one instant
        self.times, first = np.unique(times[order], return_index=True)
        total = np.cumsum(change[order])
        self.level = np.append(total[first[1:] - 1], total[-1:]) if len(total) else total
        self.level = np.where(np.abs(self.level) < 1e-6, 0.0, self.level)
        self.length = np.append(np.diff(self.times), 0.0)
        """Seconds of each step; 0 of the last."""

    def peak(self) -> float:
        """The highest level, ignoring `MOMENT` seconds (rounded times overlap)."""
        return self._level_above(MOMENT)

    def common(self) -> float:
        """The highest level reached for `COMMON` of the time in use."""
        return self._level_above(max(COMMON * float(self.length[self.level > 0].sum()), MOMENT))

    def _level_above(self, seconds: float) -> float:
        """The highest level but for this number of seconds (at most half of the time)."""
        order = np.argsort(-self.level, kind="stable")
        above = np.searchsorted(np.cumsum(self.length[order]), min(seconds, self.length.sum() / 2), side="right")
        return float(self.level[order][min(above, len(order) - 1)]) if len(order) else 0.0

    def at(self, times: np.ndarray) -> np.ndarray:
        """The level at each of these times, after their changes."""
        place = np.searchsorted(self.times, times, side="right") - 1
        return np.where(place >= 0, self.level[np.maximum(place, 0)], 0.0)
