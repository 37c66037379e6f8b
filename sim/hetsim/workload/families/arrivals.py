"""Arrival processes: renewal, changing rates, bursts, times from a file."""

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from hetsim.model.units import ExistingFile, Fraction, PerSecond, Seconds, shown
from hetsim.workload.contract import BLOCK, MAX_ARRIVALS, ArrivalProcess, Interval, Positive, Rate, in_order, summed
from hetsim.workload.distributions import Floats, NumberDistribution
from hetsim.workload.families.columns import read_column
from hetsim.workload.families.sizes import Gamma, Hyperexponential


class Renewal(ArrivalProcess):
    """Independent gaps with mean 1 / `rate` and squared CV `scv`, from time 0.

    `family` is gamma, or hyperexponential with balanced means for scv > 1; auto is gamma for scv < 1, exponential for
    scv = 1 and hyperexponential for scv > 1.
    """

    steady_rate = True
    process: Literal["renewal"]
    rate: Rate
    """Mean number of arrivals per unit of time."""
    scv: Positive
    """Squared coefficient of variation of the gaps: 0 is regular, 1 is Poisson."""
    family: Literal["auto", "gamma", "hyperexponential"] = "auto"
    """Distribution of the gaps: gamma, hyperexponential, or auto (hyperexponential if scv is above 1, else gamma)."""

    def _check_keys(self) -> None:
        if self.family == "hyperexponential" and self.scv <= 1:
            raise ValueError(f"scv must be above 1 for hyperexponential; got {self.scv:g}: use family auto or gamma")

    @property
    def rate_mean(self) -> float:
        return self.rate

    @property
    def gaps(self) -> Hyperexponential | Gamma:
        mean, cv = 1 / self.rate, math.sqrt(self.scv)
        if self.family == "hyperexponential" or (self.family == "auto" and self.scv > 1):
            # model_construct: the figures are validated and in base units already.
            return Hyperexponential.model_construct(distribution="hyperexponential", mean_given=mean, cv=cv)
        return Gamma.model_construct(distribution="gamma", mean=mean, cv=cv)  # with scv = 1 gamma is exponential

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        gaps = self.gaps
        return summed(lambda n: gaps.sample(rng, n))


class MarkovModulatedPoisson(ArrivalProcess):
    """Poisson arrivals at rate `rates[state]`; the state is a Markov chain (MMPP).

    `switching[i][j]` is the transition rate from state i to j.  The chain starts in its stationary distribution, so
    that the expected rate is `rate_mean` at every time.

    Reference: Fischer, Meier-Hellstern, The Markov-modulated Poisson process (MMPP) cookbook (1993).
    """

    process: Literal["mmpp"]
    rates: list[PerSecond] = Field(min_length=2, max_length=500)
    """Arrivals per unit of time in each state."""
    switching: list[list[PerSecond]] | None = None
    """Transition rates between states, one row per state, 0 on the diagonal; in place of holding."""
    holding: list[Interval] | None = None
    """Mean time in each state; the states follow each other in a cycle. Replaces `switching`."""

    def _check_keys(self) -> None:
        if (self.switching is None) == (self.holding is None):
            raise ValueError("mmpp needs exactly one of switching and holding")
        states = len(self.rates)
        if not any(rate > 0 for rate in self.rates):
            raise ValueError("at least one of rates must be above 0")
        if self.holding is not None and len(self.holding) != states:
            raise ValueError(f"holding must have {states} times, one for each rate; got {len(self.holding)}")
        if self.switching is not None:
            if [len(row) for row in self.switching] != [states] * states:
                raise ValueError(f"switching must be a {states} x {states} matrix, because `rates` has {states} values")
            if any(self.switching[i][i] != 0 for i in range(states)):
                raise ValueError("the diagonal of switching must be 0: a state does not switch to itself")
            reach = np.linalg.matrix_power((self.switching_rates > 0) + np.eye(states), states)
            if (reach == 0).any():
                start, end = np.argwhere(reach == 0)[0]
                raise ValueError(f"state {end + 1} can never be reached from state {start + 1}")

    @property
    def switching_rates(self) -> Any:
        if self.switching is not None:
            return np.array(self.switching, dtype=float)
        assert self.holding is not None
        return np.roll(np.diag(1 / np.array(self.holding)), 1, axis=1)

    @property
    def stationary(self) -> Floats:
        """Long-run fraction of time in each state: π Q = 0 (Q: generator), Σ π = 1."""
        switching = self.switching_rates / self.switching_rates.max()  # the unit of time does not matter; rounding does
        generator = switching - np.diag(switching.sum(axis=1))
        equations = np.vstack([generator.T, np.ones(len(self.rates))])
        right = np.zeros(len(self.rates) + 1)
        right[-1] = 1
        return np.clip(np.linalg.lstsq(equations, right, rcond=None)[0], 0, 1)

    @property
    def rate_mean(self) -> float:
        return float(self.stationary @ np.array(self.rates))

    def events(self, until: float) -> float:
        return (self.rate_mean + float(self.stationary @ self.switching_rates.sum(axis=1))) * until

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        # Exact: the k-th arrival is where the integral of the rate along the path of the chain reaches the
        # k-th arrival of a Poisson process of rate 1.  The path is drawn as far as it is needed.
        rates = np.array(self.rates)
        path = self._path(rng)
        starts, cumulative, heights = np.zeros(1), np.zeros(1), np.zeros(0)
        for block in summed(lambda n: rng.exponential(1.0, n)):
            # Sojourns that all arrivals to come have left behind are dropped.
            gone = max(int(np.searchsorted(cumulative, block[0], side="right")) - 1, 0)
            new_starts, new_cumulative, new_heights = [starts[gone:]], [cumulative[gone:]], [heights[gone:]]
            end, total = starts[-1], cumulative[-1]
            while total <= block[-1] and end < last:
                states, sojourns = next(path)
                new_starts.append(end + np.cumsum(sojourns))
                new_cumulative.append(total + np.cumsum(sojourns * rates[states]))
                new_heights.append(rates[states])
                end, total = new_starts[-1][-1], new_cumulative[-1][-1]
            starts, cumulative = np.concatenate(new_starts), np.concatenate(new_cumulative)
            heights = np.concatenate(new_heights)
            before_end = block[block < total]
            at = np.searchsorted(cumulative, before_end, side="right") - 1
            yield starts[at] + (before_end - cumulative[at]) / heights[at]
            if len(before_end) < len(block):
                return

    def _path(self, rng: np.random.Generator, block: int = 256) -> Iterator[tuple[Any, Floats]]:
        leaving = self.switching_rates.sum(axis=1)
        onward = [(np.cumsum(row) / row.sum()).tolist() for row in self.switching_rates]
        state = bisect_right(np.cumsum(self.stationary)[:-1].tolist(), rng.random())
        while True:
            visited = []
            for choice in rng.random(block).tolist():
                visited.append(state)
                state = bisect_right(onward[state], choice)
            states = np.array(visited)
            yield states, rng.exponential(1.0, block) / leaving[states]


class PiecewisePoisson(ArrivalProcess):
    """Poisson arrivals with a rate given at instants, constant or linear between them.

    With `between: linear` and a `period`, the rate is also interpolated from the last instant back to the first.
    """

    process: Literal["piecewise_poisson"]
    rate: Annotated[list[tuple[Seconds, PerSecond]], Field(min_length=1), AfterValidator(in_order)]
    """Pairs of a time and the arrivals per unit of time from then on; the first time is 0 s."""
    between: Literal["step", "linear"] = "step"
    """Rate between two given times: with step the rate stays constant, with linear it is interpolated."""
    period: Interval | None = None
    """Time after which the list starts again. Default: never; the last rate applies forever."""

    def _check_keys(self) -> None:
        if not any(rate > 0 for _, rate in self.rate):
            raise ValueError("at least one rate must be above 0")
        if self.period is not None and self.period <= self.rate[-1][0]:
            raise ValueError(f"period must be longer than the last instant, {self.rate[-1][0]:g} s")

    @property
    def endless(self) -> bool:
        return self.period is not None or self.rate[-1][1] > 0

    @property
    def rate_mean(self) -> float | None:
        """Mean rate over a period; without `period`, None if there are several rates."""
        if self.period is not None:
            return self._expected(self.period)[-1] / self.period
        return self.rate[0][1] if len(self.rate) == 1 else None

    def rate_at(self, t: float) -> float:
        t = t if self.period is None else t % self.period
        piece = bisect_right(self.rate, t, key=lambda pair: pair[0]) - 1
        starts, rates, slopes = self._pieces()
        return float(rates[piece] + slopes[piece] * (t - starts[piece]))

    def events(self, until: float) -> float:
        if self.period is not None:
            return super().events(until)
        return float(self._expected(min(until, 1e300))[-1])

    def _pieces(self) -> tuple[Floats, Floats, Floats]:
        starts, rates = np.array(self.rate).T
        slopes = np.zeros(len(starts))
        if self.between == "linear":
            ends = np.append(starts[1:], math.inf if self.period is None else self.period)
            slopes = (np.append(rates[1:], rates[0]) - rates) / (ends - starts)
        return starts, rates, slopes

    def _expected(self, end: float) -> Any:
        starts, rates, slopes = self._pieces()
        lasting = np.diff(np.minimum(starts, end), append=end)
        return np.concatenate([[0.0], np.cumsum((rates + slopes * lasting / 2) * lasting)])

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        # Exact by inversion: the k-th arrival is where the expected number of arrivals reaches the k-th
        # arrival of a Poisson process of rate 1.
        starts, rates, slopes = self._pieces()
        expected = self._expected(starts[-1] if self.period is None else self.period)
        for block in summed(lambda n: rng.exponential(1.0, n)):
            cycle = np.zeros(len(block))
            if self.period is not None:
                cycle, block = np.divmod(block, expected[-1])
            elif rates[-1] == 0:
                block = block[block < expected[-1]]
            # side="right" passes over pieces of rate 0, in which the expectation stands still.
            piece = np.searchsorted(expected[:-1], block, side="right") - 1
            rate, beyond = rates[piece], block - expected[piece]
            # Where rate · t + slope · t² / 2 = beyond, in the form that is exact for slope 0.
            root = np.sqrt(np.maximum(rate * rate + 2 * slopes[piece] * beyond, 0.0))
            yield cycle[: len(block)] * (self.period or 0.0) + (starts[piece] + 2 * beyond / (rate + root))
            if len(block) < BLOCK:
                return


class Diurnal(ArrivalProcess):
    """Poisson arrivals of rate mean · (1 + amplitude · sin(2π (t − phase) / period)).

    The rate rises through its mean at `phase`, peaks a quarter of a period later, and averages `mean`.
    """

    process: Literal["diurnal"]
    mean: Rate
    """Mean number of arrivals per unit of time."""
    amplitude: Fraction
    """Amplitude around the mean, as a fraction of the mean, from 0 to 1."""
    period: Interval = 86400.0
    """Time from one peak to the next."""
    phase: Seconds = 0.0
    """Time at which the rate rises through its mean."""

    def _check_keys(self) -> None:
        if not 0 <= self.amplitude <= 1:
            raise ValueError(f"amplitude must be between 0 and 1; got {self.amplitude:g}")

    @property
    def rate_mean(self) -> float:
        return self.mean

    def rate_at(self, t: Any) -> Any:
        return self.mean * (1 + self.amplitude * np.sin(2 * np.pi * (t - self.phase) / self.period))

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        # Exact by thinning (Lewis, Shedler 1979): arrivals at the peak rate, each kept with rate / peak.
        peak = self.mean * (1 + self.amplitude)
        for candidates in summed(lambda n: rng.exponential(1 / peak, n)):
            yield candidates[rng.random(len(candidates)) * peak < self.rate_at(candidates)]
            if candidates[-1] >= last:
                return


class Burst(ArrivalProcess):
    """Bursts of `size` arrivals, every `every` seconds from 0 s on, or at times `at`.

    All arrivals of a burst occur at its start, or at independent uniform times within `over` seconds after its
    start.  A drawn size that is not whole is rounded up or down at random, so that the mean size does not change.
    """

    process: Literal["burst"]
    size: NumberDistribution
    """Number of arrivals in a burst: a number or a distribution."""
    every: Interval | None = None
    """Time between the starts of two bursts, the first at 0 s; replaces the key `at`."""
    at: "Annotated[list[Seconds] | None, BeforeValidator(lambda at: [at] if isinstance(at, str | int) else at)]" = None
    """Start of the bursts: a time or a list of times; replaces the key `every`."""
    over: Seconds = 0.0
    """Time over which the arrivals of a burst are spread."""

    def _check_keys(self) -> None:
        if (self.every is None) == (self.at is None):
            raise ValueError("burst arrivals need exactly one of every and at")
        if self.at is not None and not self.at:
            raise ValueError("at must have at least one time")
        if self.size.mean <= 0:
            raise ValueError("the size of a burst must be above 0")

    @property
    def endless(self) -> bool:
        return self.at is None

    @property
    def rate_mean(self) -> float | None:
        return None if self.every is None else self.size.mean / self.every

    def events(self, until: float) -> float:
        if self.every is None:
            return self.size.mean * len(self.at or ())
        return (1 + self.size.mean) / self.every * until

    def _starts(self) -> Iterator[float]:
        if self.every is None:
            yield from sorted(self.at or ())
            return
        for number in count():
            yield number * self.every

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        open_ = np.empty(0)  # arrivals of begun bursts that later bursts may still overlap
        for start in self._starts():
            if start >= last:
                break
            if settled := int(np.searchsorted(open_, start, side="left")):
                yield open_[:settled]
            size = math.floor(self.size.sample(rng, 1)[0] + rng.random())
            if size > MAX_ARRIVALS:
                raise ValueError(f"a burst must have at most {MAX_ARRIVALS:,} arrivals; got {size:.3g}")
            offsets = np.sort(rng.random(size)) * self.over if self.over else np.zeros(size)
            open_ = np.sort(np.concatenate([open_[settled:], start + offsets]), kind="stable")
        yield open_


def _unit_of_time(unit: Any) -> Any:
    if not isinstance(unit, str):
        raise ValueError(f"must be a unit of time such as ms; got {shown(unit)}")
    TypeAdapter(Seconds).validate_python(f"1 {unit}")
    return unit


class FromFile(ArrivalProcess):
    """Arrival times from a `column` of a CSV or Parquet file, in any order.

    The file is read at the first use.  `load` reads it at once; ScenarioError names file, line and column of bad cells.
    """

    process: Literal["file"]
    path: ExistingFile
    """A CSV or Parquet file, relative to the scenario."""
    column: str = "arrival"
    """Column with the arrival times."""
    unit: Annotated[str, BeforeValidator(_unit_of_time)] = "s"
    """Unit of the arrival times in the file."""

    @property
    def endless(self) -> bool:
        return False

    def load(self) -> Floats:
        """Read the file now; return the arrival times, sorted, in seconds."""
        factor = TypeAdapter(Seconds).validate_python(f"1 {self.unit}")
        numbers = np.sort(read_column(self.path, self.column))
        # As in `hetsim.model.units`: 3 ms must be the float 0.003, which 3 · 0.001 is not for every 3.
        inverse = round(1 / factor) if factor < 1 else 0
        return numbers / inverse if inverse and abs(inverse * factor - 1) < 1e-12 else numbers * factor

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        yield self.load()
