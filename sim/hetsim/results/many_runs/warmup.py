"""Detection of the warm-up: MSER-5 on the mean across replications.

The series is the response time of the j-th task to arrive, averaged over the replications in which that task completed,
for j up to the number of tasks of the shortest replication.  It is averaged in batches of five.  MSER (White, "An
effective truncation heuristic for bias reduction in simulation output", 1997; in batches of five: White, Cobb and
Spratt, "A comparison of five steady-state truncation heuristics for simulation", 2000) cuts the first d of m batches,
at most m / 2, that minimize sum over i >= d of (Y_i - mean)^2 / (m - d)^2, where Y_i is the value of batch i and `mean`
the mean of the batches that remain: this mean is then estimated best.

On one run the rule would cut congestion that belongs to the steady state; an average over replications keeps only what
these have in common, the transient after the start.  Known weakness: if the load never becomes steady, or runs are
short relative to their congestion, about half is cut; `WarmupCut.near_half` reports that.
"""

from dataclasses import dataclass, field

import numpy as np

from hetsim.errors import UsageError
from hetsim.results.formatting import seconds
from hetsim.results.one_run.result import Result

BATCH = 5
MIN_REPLICATIONS = 5  # Minimum number of replications: a mean over fewer shows the congestion of single runs.
PILOT = 20  # Maximum number of replications that are averaged; the cut is used for all.
MIN_TASKS = 100  # Minimum number of tasks in every replication.
NEAR = 0.4  # Share of the run above which a cut is reported as near the limit of one half.


@dataclass(frozen=True)
class WarmupCut:
    """The warm-up to cut: `time` (s), in which `tasks` of `arrivals` tasks arrive."""

    time: float
    tasks: int
    arrivals: int
    runs: int
    seen: bool = True  # False if too few tasks completed to look for a warm-up

    @property
    def near_half(self) -> bool:
        return self.tasks > 0 and self.tasks >= NEAR * self.arrivals

    @property
    def sentence(self) -> str:
        if not self.seen:
            return f"warm-up: none (in {self.runs} replications too few tasks completed for MSER-5)"
        if not self.tasks:
            return f"warm-up: none (MSER-5 on the mean of {self.runs} replications finds no transient)"
        return (
            f"warm-up: the first {seconds(self.time)} cut, about {self.tasks:,} of {self.arrivals:,} tasks "
            f"(MSER-5 on the mean response of {self.runs} replications, by order of arrival)"
        )

    @property
    def warning(self) -> str:
        return (
            f"the warm-up found, {100 * self.tasks / self.arrivals:.0f} % of the tasks, is near the half that MSER-5 "
            "may cut: the run is too short, or never becomes steady (a load of 1 or more, a burst); make it "
            "longer, or give warmup as a time"
        )


def mser(series: np.ndarray) -> int:
    """Number of leading values to cut, at most half; 0 for a constant series."""
    values = np.asarray(series, dtype=np.float64)
    count = len(values)
    if count < 2:
        return 0
    centred = values - values.mean()  # so that the difference of squares below keeps its digits
    remaining = count - np.arange(count // 2 + 1)
    total = np.cumsum(centred[::-1])[::-1][: len(remaining)]
    squares = np.cumsum(centred[::-1] ** 2)[::-1][: len(remaining)]
    spread = np.maximum(squares - total**2 / remaining, 0.0) / remaining.astype(float) ** 2
    return int(np.argmin(spread))


@dataclass
class WarmupSeries:
    """Response times in order of arrival, averaged over runs, to find the warm-up."""

    runs: int = 0
    fewest: int = 0  # the replication with the fewest tasks
    _arrival: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _total: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _known: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, arrival: np.ndarray, response: np.ndarray) -> None:
        """Add a replication's tasks in order of arrival; response NaN if not completed."""
        there = ~np.isnan(response)
        new = (arrival, np.where(there, response, 0.0), there.astype(float))
        if not self.runs:
            self._arrival, self._total, self._known = new
        else:
            n = min(len(arrival), len(self._arrival))
            if n < len(self._arrival):
                self.fewest = self.runs
            old = (self._arrival, self._total, self._known)
            self._arrival, self._total, self._known = (a[:n] + b[:n] for a, b in zip(old, new, strict=True))
        self.runs += 1

    @property
    def cut(self) -> WarmupCut:
        """The warm-up cut; UsageError if a replication has too few tasks."""
        count = len(self._arrival)
        if count < MIN_TASKS:
            number = f"{count} task{'s' if count != 1 else ''}" if count else "no task"
            raise UsageError(
                f"warmup: auto needs at least {MIN_TASKS} tasks in every replication, but replication {self.fewest} "
                f"has {number}: make the runs longer, or give the warm-up as a time (warmup: 1 h)"
            )
        defined = np.flatnonzero(self._known > 0)  # a task that completed nowhere tells nothing
        series = self._total[defined] / self._known[defined]
        if not (batches := len(series) // BATCH):
            return WarmupCut(0.0, 0, count, self.runs, seen=False)
        cut = mser(series[: batches * BATCH].reshape(batches, BATCH).mean(axis=1)) * BATCH
        if not cut:
            return WarmupCut(0.0, 0, count, self.runs)
        first = int(defined[cut])  # the first task that counts
        return WarmupCut(float(self._arrival[first]) / self.runs, first, count, self.runs)


def response_series(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Arrivals and response times in order of arrival, for `WarmupSeries`."""
    arrival = result.tasks["arrival"].to_numpy(dtype=np.float64)
    response = result.tasks["response"].to_numpy(dtype=np.float64)
    order = np.argsort(arrival, kind="stable")
    return arrival[order], response[order]
