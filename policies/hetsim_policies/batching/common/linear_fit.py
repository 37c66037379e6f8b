"""The line a·n + b through measured stage times, by least squares over a window.

Under a steady load the batches of a window have nearly one size, and the slope through them is noise.  So the new slope
is a weighted mean of the slope through the window and the former estimate of the slope.  The less the sizes vary, the
larger is the weight of the former estimate (ridge regression centered on it: Hoerl and Kennard, Ridge Regression,
1970).  The line always passes through the mean of the window, so nearby sizes are predicted well.  Cost: O(1) amortized
per batch.
"""

from collections import deque
from collections.abc import Sequence

from hetsim.model.batch_times import StageTable
from hetsim.model.mode import Mode

OFF = 0.01  # Relative deviation of measured times from a line above which a policy that assumes one warns
PULL = 0.1  # Weight of the former slope, as a sum of squared deviations of sizes, in squared mean sizes


class LinearFit:
    """A line fitted to the seconds of one stage by batch size."""

    __slots__ = ("slope", "fixed", "variance", "_window", "_seen", "_former", "_told", "_sums")

    def __init__(self, window: int):
        self.slope = self.fixed = 0.0
        self.variance = 0.0  # variance of relative prediction errors: a moving average over about a window
        self._window = window
        self._seen: deque[tuple[int, float]] = deque()
        self._former: float | None = None  # the slope when the window began; None until two sizes have been seen
        self._told = 0
        self._sums = (0.0, 0.0, 0.0, 0.0)

    def at(self, size: float) -> float:
        return self.slope * size + self.fixed

    @property
    def is_fitted(self) -> bool:
        """Return True if batches of two different sizes were measured."""
        return self._former is not None

    def add(self, size: int, seconds: float) -> None:
        if self.is_fitted and (expected := self.at(size)) > 0:
            count, mean = len(self._seen), self._sums[0]
            if mean < 2 * size * count < 4 * mean:  # far from the others the line errs, not the times
                error = seconds / expected - 1.0
                self.variance += (error * error - self.variance) / self._window
        seen = self._seen
        seen.append((size, seconds))
        old_size, old_seconds = seen.popleft() if len(seen) > self._window else (0, 0.0)
        n, t, nn, nt = self._sums
        self._sums = (
            n + size - old_size,
            t + seconds - old_seconds,
            nn + size * size - old_size * old_size,
            nt + size * seconds - old_size * old_seconds,
        )
        self._told += 1
        if self._told % self._window == 0:
            self._renew()
        self._fit()

    def _renew(self) -> None:
        """Begin a window: store the last slope; recompute sums to drop rounding errors."""
        if self.is_fitted:
            self._former = self.slope
        sizes = [size for size, _ in self._seen]
        self._sums = (
            float(sum(sizes)),
            sum(seconds for _, seconds in self._seen),
            float(sum(size * size for size in sizes)),
            sum(size * seconds for size, seconds in self._seen),
        )

    def _fit(self) -> None:
        count = len(self._seen)
        n, t, nn, nt = self._sums
        size, seconds = n / count, t / count
        spread = nn - n * size
        if spread > 0.25:  # sizes are whole: two different ones of any window differ by more than rounding
            pull, former = (0.0, 0.0) if self._former is None else (PULL * size * size, self._former)
            slope = (nt - n * seconds + pull * former) / (spread + pull)
            self.slope = min(max(slope, 0.0), seconds / size)
            if self._former is None:
                self._former = self.slope
        else:
            self.slope = min(self.slope, seconds / size)
        self.fixed = seconds - self.slope * size


def line_remarks(modes: Sequence[Mode]) -> list[str]:
    """Return warnings about stage times that are not linear in the batch size."""
    remarks = []
    for mode in modes:
        for name, stage in (("upload", mode.upload), ("compute", mode.table), ("download", mode.download)):
            if isinstance(stage, StageTable) and (line := stage.line()).worst > OFF:
                fitted = f"{1e3 * line.per_item:.4g} ms · n + {1e3 * line.fixed:.4g} ms"
                off = f"off by up to {line.worst:.1%} (batches of {line.at})"
                remarks.append(f"uses linear stage times; the line nearest to {name} on {mode} is {fitted}, {off}")
    return remarks
