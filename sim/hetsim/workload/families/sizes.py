"""Size distributions: gamma, heavy tails, mixtures, measured values, scipy's."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.units import ExistingFile
from hetsim.workload.contract import (
    ABOVE_ZERO,
    Distribution,
    Floats,
    Number,
    OverQuantity,
    Positive,
    Q,
    require_order,
    require_weights,
)
from hetsim.workload.families.columns import read_column


class Gamma(Distribution, Generic[Q]):
    """Gamma distribution of shape 1 / cv², scale mean · cv²; cv = 1/√k is Erlang-k."""

    distribution: Literal["gamma"]
    mean: Annotated[Q, ABOVE_ZERO]
    """Mean value."""
    cv: Positive
    """Standard deviation / mean."""

    @property
    def scv(self) -> float:
        return self.cv**2

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.gamma(1 / self.cv**2, self.mean * self.cv**2, n)


class Lognormal(Distribution, Generic[Q]):
    """Lognormal distribution: the exponential of a normal variable.

    Given by `mean` and `cv` of the value itself, or by its `median` and `sigma`, the standard deviation of its
    logarithm: σ² = ln(1 + cv²), mean = median · exp(σ²/2).
    """

    distribution: Literal["lognormal"]
    mean_given: Annotated[Q | None, ABOVE_ZERO] = Field(None, alias="mean")
    """Mean value; requires cv."""
    cv: Positive | None = None
    """Standard deviation / mean; requires mean."""
    median: Annotated[Q | None, ABOVE_ZERO] = None
    """Median value; requires sigma; in place of mean and cv."""
    sigma: Positive | None = None
    """Standard deviation of the logarithm; requires median."""

    def _check_keys(self) -> None:
        by_mean = (self.mean_given is not None, self.cv is not None)
        by_median = (self.median is not None, self.sigma is not None)
        if (by_mean, by_median) not in (((True, True), (False, False)), ((False, False), (True, True))):
            raise ValueError("a lognormal distribution needs either mean and cv, or median and sigma")

    @property
    def _log_variance(self) -> float:
        return self.sigma**2 if self.sigma is not None else math.log1p((self.cv or 0.0) ** 2)

    @property
    def mean(self) -> float:
        if self.mean_given is not None:
            return float(self.mean_given)
        return float(self.median or 0.0) * math.exp(self._log_variance / 2)

    @property
    def scv(self) -> float:
        return self.cv**2 if self.cv is not None else math.expm1(self._log_variance)

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        variance = self._log_variance
        return rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), n)


class Weibull(Distribution, Generic[Q]):
    """Weibull: P(X > x) = exp(−(x / scale)^shape), mean = scale · Γ(1 + 1/shape)."""

    distribution: Literal["weibull"]
    shape: Positive
    """Shape: below 1 the tail is heavy, 1 is exponential."""
    scale: Annotated[Q | None, ABOVE_ZERO] = None
    """Scale of the distribution; in place of mean."""
    mean_given: Annotated[Q | None, ABOVE_ZERO] = Field(None, alias="mean")
    """Mean value; in place of scale."""

    def _check_keys(self) -> None:
        if (self.scale is None) == (self.mean_given is None):
            raise ValueError("a weibull distribution needs a shape and either scale or mean")

    @property
    def mean(self) -> float:
        if self.mean_given is not None:
            return float(self.mean_given)
        return float(self.scale or 0.0) * math.gamma(1 + 1 / self.shape)

    @property
    def scv(self) -> float:
        return math.expm1(math.lgamma(1 + 2 / self.shape) - 2 * math.lgamma(1 + 1 / self.shape))

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        scale = float(self.scale) if self.scale is not None else self.mean / math.gamma(1 + 1 / self.shape)
        return scale * rng.weibull(self.shape, n)


class Pareto(Distribution, Generic[Q]):
    """Bounded Pareto: density proportional to x^(−shape − 1) between low and high.

    Reference: Harchol-Balter, Performance Modeling and Design of Computer Systems (2013), ch. 20.
    """

    distribution: Literal["pareto"]
    low: Annotated[Q, ABOVE_ZERO]
    """Minimum value."""
    high: Q
    """Maximum value."""
    shape: Positive
    """Exponent of the tail; a smaller exponent is a heavier tail."""

    def _check_keys(self) -> None:
        require_order(self.low, self.high)

    def _moment(self, k: int) -> float:
        """Return E[(X / low)^k], the k-th moment divided by low^k."""
        log_ratio = math.log(self.high / self.low)
        above = (k - self.shape) * log_ratio
        # The limit for shape = k is ln h; expm1 keeps shapes close to k accurate.
        integral = log_ratio if above == 0 else math.expm1(above) / above * log_ratio
        return self.shape * integral / -math.expm1(-self.shape * log_ratio)

    @property
    def mean(self) -> float:
        return self.low * self._moment(1)

    @property
    def scv(self) -> float:
        return self._moment(2) / self._moment(1) ** 2 - 1

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        kept = -math.expm1(-self.shape * math.log(self.high / self.low))
        return self.low * (1 - kept * rng.random(n)) ** (-1 / self.shape)


class Branch(OverQuantity, Generic[Q]):
    """One exponential branch of a hyperexponential distribution, with its weight."""

    weight: Number
    """Probability of this branch, relative to the other branches."""
    mean: Annotated[Q, ABOVE_ZERO]
    """Mean value of the exponential distribution in this branch of the mixture."""


class Hyperexponential(Distribution, Generic[Q]):
    """A mixture of exponential distributions, more variable than a single one.

    Given by `branches` with weights, or by `mean` and `cv` > 1, which stand for two branches with equal products of
    probability and mean (Allen, Probability, Statistics, and Queueing Theory, 1990, §5.2).
    """

    distribution: Literal["hyperexponential"]
    mean_given: Annotated[Q | None, ABOVE_ZERO] = Field(None, alias="mean")
    """Mean value.  Requires cv; mean and cv replace branches."""
    cv: Positive | None = None
    """Standard deviation / mean, above 1; requires mean."""
    branches: list[Branch[Q]] | None = None
    """Exponential branches with weights; in place of mean and cv."""

    def _check_keys(self) -> None:
        if self.branches is not None:
            if self.mean_given is not None or self.cv is not None:
                raise ValueError("a hyperexponential distribution needs either mean and cv, or branches")
            require_weights([branch.weight for branch in self.branches])
        elif self.mean_given is None or self.cv is None:
            raise ValueError("a hyperexponential distribution needs either mean and cv, or branches")
        elif self.cv <= 1:
            raise ValueError(
                f"cv must be above 1 for a hyperexponential distribution; got {self.cv:g}: "
                "for less variation use gamma, for cv = 1 exponential"
            )

    @property
    def _mixture(self) -> tuple[Floats, Floats]:
        if self.branches is not None:
            weights = np.array([branch.weight for branch in self.branches])
            return weights / weights.sum(), np.array([float(branch.mean) for branch in self.branches])
        scv, mean = float(self.cv or 0.0) ** 2, float(self.mean_given or 0.0)
        first = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
        probabilities = np.array([first, 1 - first])
        return probabilities, mean / (2 * probabilities)

    @property
    def mean(self) -> float:
        if self.mean_given is not None:
            return float(self.mean_given)
        probabilities, means = self._mixture
        return float(probabilities @ means)

    @property
    def scv(self) -> float:
        if self.cv is not None:
            return self.cv**2
        probabilities, means = self._mixture
        return float(2 * (probabilities @ means**2) / self.mean**2 - 1)

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        probabilities, means = self._mixture
        # Two uniforms a draw, side by side: drawing all branches first would not be prefix-consistent.
        uniform = rng.random((n, 2))
        branch = np.searchsorted(np.cumsum(probabilities[:-1]), uniform[:, 0], side="right")
        return -np.log1p(-uniform[:, 1]) * means[branch]


@dataclass(frozen=True, eq=False)  # eq=False: arrays have no single truth value, and models compare fields
class _Table:
    values: Floats
    cumulative: Floats | None


def _written_as_one(unit: Any) -> Any:
    if unit is None or isinstance(unit, float):
        return unit
    if not isinstance(unit, str):
        raise ValueError("must be a unit such as ms")
    return f"1 {unit}"


class Empirical(Distribution, Generic[Q]):
    """One of the given values, with equal probability or by `weights`.

    A file is read at the first use.  `load` reads it at once; ScenarioError names file, line and column of bad cells.
    """

    distribution: Literal["empirical"]
    values: list[Q] | None = None
    """The values; in place of a file."""
    weights: list[Number] | str | None = None
    """Relative probabilities of the values: a list, or the file's column with them. Default: all equal."""
    path: ExistingFile | None = None
    """A CSV or Parquet file with the values, relative to the scenario."""
    column: str | None = None
    """Column of the file with the values."""
    unit: Annotated[Q | None, BeforeValidator(_written_as_one)] = None
    """Unit of the numbers in the file. Default: base units (seconds, bytes)."""

    def _check_keys(self) -> None:
        if (self.values is None) == (self.path is None):
            raise ValueError("an empirical distribution needs either values, or the path and column of a file")
        if self.values is not None:
            if self.column is not None or self.unit is not None or isinstance(self.weights, str):
                raise ValueError("column and unit belong to path; values carry their own units")
            if not self.values:
                raise ValueError("an empirical distribution needs at least one value")
            if self.weights is not None:
                if len(self.weights) != len(self.values):
                    raise ValueError(f"weights needs {len(self.values)} entries, 1 per value; got {len(self.weights)}")
                require_weights(self.weights)
        elif self.column is None:
            raise ValueError("path needs a column")
        elif isinstance(self.weights, list):
            raise ValueError("with path, weights must be the name of a column")

    def load(self) -> None:
        """Read the file, if one is given; ScenarioError if it cannot be used."""
        _ = self._table

    @cached_property
    def _table(self) -> _Table:
        weights: Any = self.weights
        if self.path is not None and self.column is not None:
            values = read_column(self.path, self.column) * float(1 if self.unit is None else self.unit)
            if isinstance(self.weights, str):
                weights = read_column(self.path, self.weights)
                if not weights.any():
                    raise ScenarioError(Problem(f'column "{self.weights}": all weights are 0', file=str(self.path)))
        else:
            values = np.array(self.values, dtype=float)
        if weights is None:
            return _Table(values, None)
        cumulative = np.cumsum(np.asarray(weights, dtype=float))
        return _Table(values, cumulative / cumulative[-1])

    def _raw_moment(self, k: int) -> float:
        values, cumulative = self._table.values, self._table.cumulative
        if cumulative is None:
            return float(np.mean(values**k))
        return float(np.diff(cumulative, prepend=0.0) @ values**k)

    @property
    def mean(self) -> float:
        return self._raw_moment(1)

    @property
    def scv(self) -> float:
        mean = self.mean
        return max(self._raw_moment(2) / mean**2 - 1, 0.0) if mean else 0.0

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        values, cumulative = self._table.values, self._table.cumulative
        uniform = rng.random(n)
        if cumulative is None:
            return values[(uniform * len(values)).astype(np.int64)]
        return values[np.searchsorted(cumulative, uniform, side="right")]


class Scipy(Distribution, Generic[Q]):
    """Values loc + scale · X, where X is `scipy.stats.NAME(**parameters)`.

    With `low`, smaller values are cut off and the density above is scaled up; a distribution that can be negative, such
    as norm, requires `low`.  `mean` and `scv` are those of scipy; with `low` they are integrated numerically.  Draws
    are prefix-consistent (see `hetsim.workload.contract`) if `low` is given, or if scipy does not draw by rejection.
    """

    USED: ClassVar = {"loc": 0.0}

    distribution: Literal["scipy"]
    name: str
    """Name of a distribution of scipy.stats, such as invgauss."""
    parameters: dict[str, float] = {}
    """Shape parameters of the distribution, by name."""
    scale: Annotated[Q, ABOVE_ZERO]
    """Factor on the values of scipy's distribution, with their unit, such as 10 s."""
    loc: Q | None = None
    """Offset that is added to the drawn values."""
    low: Q | None = None
    """Lower bound: smaller values are cut off and the remaining density is scaled up. Default: no bound."""

    def _check_keys(self) -> None:
        from scipy import stats

        kind = getattr(stats, self.name, None)
        if not isinstance(kind, stats.rv_continuous | stats.rv_discrete):
            names = [n for n, v in vars(stats).items() if isinstance(v, stats.rv_continuous | stats.rv_discrete)]
            raise ValueError(f'scipy.stats has no distribution "{self.name}"{suggestion(self.name, names)}')
        wanted = kind.shapes.replace(" ", "").split(",") if kind.shapes else []
        if set(wanted) != set(self.parameters):
            needs = "the parameters " + ", ".join(wanted) if wanted else "no parameters"
            raise ValueError(f"scipy.stats.{self.name} needs {needs}; got {', '.join(self.parameters) or 'none'}")
        frozen = self._frozen
        low, high = (float(self._offset + self.scale * end) for end in frozen.support())
        if math.isnan(low):
            raise ValueError(f"scipy.stats.{self.name} is not defined for parameters {self.parameters}")
        if self.low is None and low < 0:
            raise ValueError(
                f"scipy.stats.{self.name} can draw negative values, which a size cannot be; "
                "cut them off with low: 0, or move it with loc"
            )
        if self.low is not None and not (self.low <= high and self._above_low > 0):
            raise ValueError(f"low must be below the largest value of scipy.stats.{self.name}")
        mean = frozen.mean()
        if not math.isfinite(mean):
            raise ValueError(f"scipy.stats.{self.name} with parameters {self.parameters} has no finite mean")

    @property
    def _offset(self) -> float:
        return float(self.used("loc"))

    @cached_property
    def _frozen(self) -> Any:
        from scipy import stats

        return getattr(stats, self.name)(**self.parameters)

    @property
    def _cut(self) -> float | None:
        return None if self.low is None else (self.low - self._offset) / self.scale

    @property
    def _discrete(self) -> bool:
        return hasattr(self._frozen, "pmf")

    @property
    def _above_low(self) -> float:
        if (cut := self._cut) is None:
            return 1.0
        return float(self._frozen.sf(math.ceil(cut) - 1 if self._discrete else cut))

    @cached_property
    def _moments(self) -> tuple[float, float]:
        """Mean and variance of loc + scale · X, given that the value is at least `low`."""
        cut, law = self._cut, self._frozen
        if cut is None or cut <= law.support()[0]:
            mean, variance = (float(value) for value in law.stats("mv"))
        elif self._discrete:
            lowest = math.ceil(cut)
            mean = float(law.expect(lambda x: x, lb=lowest, conditional=True))
            variance = float(law.expect(lambda x: (x - mean) ** 2, lb=lowest, conditional=True))
        else:
            # Over probabilities rather than values: no peak for the integration to miss, no infinite end.
            from scipy import integrate

            above = self._above_low

            def expected(power: int, center: float) -> float:
                def value(probability: float) -> float:
                    return (law.isf(probability * above) - center) ** power

                return float(integrate.quad(value, 0, 1, epsabs=0, epsrel=1e-10, limit=500)[0])

            mean = expected(1, 0.0) if cut >= 0 else cut + expected(1, cut)
            variance = expected(2, mean)
        return self._offset + self.scale * mean, self.scale**2 * variance

    @property
    def mean(self) -> float:
        return self._moments[0]

    @property
    def scv(self) -> float:
        mean, variance = self._moments
        return variance / mean**2 if mean else 0.0

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        if self._cut is None:
            drawn = self._frozen.rvs(size=n, random_state=rng)
        else:
            drawn = self._frozen.isf((1 - rng.random(n)) * self._above_low)
        values = self._offset + self.scale * np.asarray(drawn, dtype=float)
        if self.low is not None:
            values = np.maximum(values, self.low)  # isf may come out a rounding error below low
        if n and not (values.min() >= 0):
            raise ValueError(f"scipy.stats.{self.name} drew {values.min():g}, which is not a size; set low: 0")
        return values
