"""Size distributions: times of tasks, bytes they move, numbers of steps.

A field of type `TimeDistribution`, `BytesDistribution` or `NumberDistribution` accepts a bare quantity, which
is constant (`5 min`), or a mapping:

    {distribution: lognormal, mean: 30 min, cv: 2}
    {distribution: scipy, name: invgauss, parameters: {mu: 0.3}, scale: 10 s}

`distribution_of` makes such a type for any other quantity of `hetsim.model.units`.

Every distribution is over values ≥ 0, knows its exact `mean` and `scv` (squared coefficient of variation,
variance / mean²) and draws vectors with `sample(rng, n)`.  Unless its docstring says otherwise it is
*prefix-consistent*: from the same fresh generator, the first 100 of 200 draws are the 100 of 100 draws, so
that a longer run of a scenario begins like the shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, Union

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import core_schema

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model import units
from hetsim.model.compressed import opened
from hetsim.model.described import Described
from hetsim.model.files import open_input
from hetsim.model.paths import ExistingFile

Floats: TypeAlias = NDArray[np.float64]


def _number(value: Any) -> float:
    if not units.is_number(value):
        raise ValueError(f"expected a number, not {units.shown(value)}")
    if value < 0:
        raise ValueError(f'"{value:g}" is negative')
    return float(value)


def _positive(value: Any, info: ValidationInfo) -> Any:
    if value is not None and not (0 < value < math.inf):
        raise ValueError(f"{info.field_name} must be above 0, not {value:g}")
    return value


def _written_as_one(unit: Any) -> Any:
    """A unit alone, as a quantity: "ms" is "1 ms"."""
    if unit is None or isinstance(unit, float):
        return unit
    if not isinstance(unit, str):
        raise ValueError("expected a unit such as ms")
    return f"1 {unit}"


Number: TypeAlias = Annotated[float, BeforeValidator(_number)]
"""A plain finite number, not negative: the quantity without a dimension."""

Positive: TypeAlias = Annotated[float, BeforeValidator(_number), AfterValidator(_positive)]

Q = TypeVar("Q", bound=float)
"""The quantity of a distribution: `Seconds`, `Bytes`, … of `hetsim.model.units`, or `Number`."""


class _OverQuantity(Described):
    """A model generic in its quantity, with a readable name in the schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """`ExponentialSeconds` rather than a name that spells out the annotation."""
        named = [name for name, value in vars(units).items() if value is params[0]]
        return cls.__name__ + (named[0] if named else "Number")

    def __reduce__(self) -> tuple:
        # `Exponential[Seconds]` is made at run time, so pickle cannot find it by name; `Exponential` it can,
        # and once validated the two behave alike.
        origin = self.__pydantic_generic_metadata__["origin"] or type(self)
        values = {name: self.__dict__[name] for name in type(self).model_fields}
        return _restored, (origin, values, set(self.model_fields_set))


def _restored(kind: type[BaseModel], values: dict[str, Any], given: set[str]) -> BaseModel:
    made = kind.model_construct(_fields_set=given)
    made.__dict__.update(values)
    return made


class Distribution(_OverQuantity):
    """The base of all size distributions.

    Contract: `sample(rng, n)` returns n float64 values ≥ 0 in SI base units and uses no randomness but that
    of `rng`; `mean` and `scv` are those of exactly what `sample` draws.  Objects are immutable.
    """

    if TYPE_CHECKING:  # In some subclasses `mean` is a field, which a property here would shadow.

        @property
        def mean(self) -> float: ...

    @property
    def scv(self) -> float:
        """Squared coefficient of variation: variance / mean²; 1 is exponential."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        """n independent draws."""
        raise NotImplementedError


class Constant(Distribution, Generic[Q]):
    """Always `value`; also what a bare quantity means."""

    distribution: Literal["constant"] = "constant"
    """constant, which may be left out with the mapping: a bare quantity is constant."""
    value: Q
    """The value."""

    @property
    def mean(self) -> float:
        return float(self.value)

    @property
    def scv(self) -> float:
        return 0.0

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return np.full(n, float(self.value))


class Uniform(Distribution, Generic[Q]):
    """Equally likely anywhere in [low, high)."""

    distribution: Literal["uniform"]
    low: Q
    """Least value."""
    high: Q
    """The values are below this."""

    @model_validator(mode="after")
    def _check(self) -> Uniform:
        _require_order(self.low, self.high)
        return self

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def scv(self) -> float:
        return (self.high - self.low) ** 2 / 12 / self.mean**2

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.uniform(self.low, self.high, n)


class Exponential(Distribution, Generic[Q]):
    """Memoryless, with the given mean."""

    distribution: Literal["exponential"]
    mean: Annotated[Q, AfterValidator(_positive)]
    """Mean value."""

    @property
    def scv(self) -> float:
        return 1.0

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.exponential(self.mean, n)


class Gamma(Distribution, Generic[Q]):
    """Shape 1 / cv², scale mean · cv²; with cv = 1/√k it is Erlang's of k stages."""

    distribution: Literal["gamma"]
    mean: Annotated[Q, AfterValidator(_positive)]
    """Mean value."""
    cv: Positive
    """Standard deviation / mean."""

    @property
    def scv(self) -> float:
        return self.cv**2

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.gamma(1 / self.cv**2, self.mean * self.cv**2, n)


class Lognormal(Distribution, Generic[Q]):
    """exp of a normal variable.

    Given by `mean` and `cv` of the value itself, or by its `median` and `sigma`, the standard deviation of
    its logarithm: σ² = ln(1 + cv²), mean = median · exp(σ²/2).
    """

    distribution: Literal["lognormal"]
    mean_given: Annotated[Q | None, AfterValidator(_positive)] = Field(None, alias="mean")
    """Mean value, given with cv."""
    cv: Positive | None = None
    """Standard deviation / mean, given with mean."""
    median: Annotated[Q | None, AfterValidator(_positive)] = None
    """Median value, given with sigma; in place of mean and cv."""
    sigma: Positive | None = None
    """Standard deviation of the logarithm, given with median."""

    @model_validator(mode="after")
    def _check(self) -> Lognormal:
        by_mean = (self.mean_given is not None, self.cv is not None)
        by_median = (self.median is not None, self.sigma is not None)
        if (by_mean, by_median) not in (((True, True), (False, False)), ((False, False), (True, True))):
            raise ValueError("a lognormal distribution needs either mean and cv, or median and sigma")
        return self

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
    """P(X > x) = exp(−(x / scale)^shape): a shape below 1 has a heavy tail.

    Given by `scale`, or by `mean` = scale · Γ(1 + 1/shape).
    """

    distribution: Literal["weibull"]
    shape: Positive
    """Shape: below 1 the tail is heavy, 1 is exponential."""
    scale: Annotated[Q | None, AfterValidator(_positive)] = None
    """Scale; in place of mean."""
    mean_given: Annotated[Q | None, AfterValidator(_positive)] = Field(None, alias="mean")
    """Mean value; in place of scale."""

    @model_validator(mode="after")
    def _check(self) -> Weibull:
        if (self.scale is None) == (self.mean_given is None):
            raise ValueError("a weibull distribution needs a shape and either scale or mean")
        return self

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
    low: Annotated[Q, AfterValidator(_positive)]
    """Least value."""
    high: Q
    """Greatest value."""
    shape: Positive
    """Exponent of the tail; smaller is heavier."""

    @model_validator(mode="after")
    def _check(self) -> Pareto:
        _require_order(self.low, self.high)
        return self

    def _moment(self, k: int) -> float:
        """E (X / low)^k: the moment of order k over low^k.

        shape / (1 − h^−shape) · (h^(k − shape) − 1) / (k − shape), with h = high / low
        """
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


class Branch(_OverQuantity, Generic[Q]):
    """One exponential branch of a hyperexponential distribution, with its weight."""

    weight: Number
    """Its probability, relative to the other branches."""
    mean: Annotated[Q, AfterValidator(_positive)]
    """Mean value of this branch."""


class Hyperexponential(Distribution, Generic[Q]):
    """A choice among exponentials: more variable than one of them.

    Given by `branches` with weights, or by `mean` and `cv` > 1: then two branches with balanced means,
    p₁ m₁ = p₂ m₂ (Allen, Probability, Statistics, and Queueing Theory, 1990, §5.2).
    """

    distribution: Literal["hyperexponential"]
    mean_given: Annotated[Q | None, AfterValidator(_positive)] = Field(None, alias="mean")
    """Mean value, given with cv; in place of branches."""
    cv: Positive | None = None
    """Standard deviation / mean, above 1."""
    branches: list[Branch[Q]] | None = None
    """Exponentials to choose from, with weights; in place of mean and cv."""

    @model_validator(mode="after")
    def _check(self) -> Hyperexponential:
        if self.branches is not None:
            if self.mean_given is not None or self.cv is not None:
                raise ValueError("a hyperexponential distribution needs either mean and cv, or branches")
            _require_weights([branch.weight for branch in self.branches])
        elif self.mean_given is None or self.cv is None:
            raise ValueError("a hyperexponential distribution needs either mean and cv, or branches")
        elif self.cv <= 1:
            raise ValueError(
                f"a hyperexponential distribution needs a cv above 1, not {self.cv:g}; "
                "for less variation use gamma, for cv = 1 exponential"
            )
        return self

    @property
    def _mixture(self) -> tuple[Floats, Floats]:
        """Probabilities and means of the branches."""
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
    """Values, and their cumulative probabilities if they are weighted."""

    values: Floats
    cumulative: Floats | None


class Empirical(Distribution, Generic[Q]):
    """One of the given values, equally likely or by `weights`.

    The values stand in the scenario, or in a `column` of a CSV or Parquet file at `path` (`weights` may then
    name a column too): plain numbers in `unit`, without one in base units (seconds, bytes).  The file is read
    at the first use; `load` reads it now and raises ScenarioError naming file, line and column of bad cells.
    """

    distribution: Literal["empirical"]
    values: list[Q] | None = None
    """The values; in place of a file."""
    weights: list[Number] | str | None = None
    """Probabilities of the values, relative to each other, or the column that has them; all alike unless given."""
    path: ExistingFile | None = None
    """A CSV or Parquet file with the values, relative to the scenario."""
    column: str | None = None
    """Its column with the values."""
    unit: Annotated[Q | None, BeforeValidator(_written_as_one)] = None
    """Unit of the numbers in it; base units (seconds, bytes) unless given."""

    @model_validator(mode="after")
    def _check(self) -> Empirical:
        if (self.values is None) == (self.path is None):
            raise ValueError("an empirical distribution needs either values, or the path and column of a file")
        if self.values is not None:
            if self.column is not None or self.unit is not None or isinstance(self.weights, str):
                raise ValueError("column and unit belong to path; values carry their own units")
            if not self.values:
                raise ValueError("an empirical distribution needs at least one value")
            if self.weights is not None:
                if len(self.weights) != len(self.values):
                    raise ValueError(f"{len(self.values)} values but {len(self.weights)} weights")
                _require_weights(self.weights)
        elif self.column is None:
            raise ValueError("path needs a column")
        elif isinstance(self.weights, list):
            raise ValueError("with path, weights is the name of a column")
        return self

    def load(self) -> None:
        """Read the file now, if there is one: ScenarioError if it is not fit."""
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
    """loc + scale · X, where X is `scipy.stats.NAME(**parameters)`.

    `low` conditions on values ≥ low: the part below is cut off and the rest scaled up, it is not piled up at
    low.  A distribution that can be negative, such as norm, is refused without it.  `mean` and `scv` are
    those of scipy, with `low` by numerical integration.  Prefix-consistent with `low`, and without it where
    scipy's own `rvs` is; some of its distributions draw by rejection and are not.
    """

    USED: ClassVar = {"loc": 0.0}

    distribution: Literal["scipy"]
    name: str
    """Name of a distribution of scipy.stats, such as invgauss."""
    parameters: dict[str, float] = {}
    """Its shape parameters by name."""
    scale: Annotated[Q, AfterValidator(_positive)]
    """Factor on what is drawn, with the unit."""
    loc: Q | None = None
    """Added to what is drawn."""
    low: Q | None = None
    """Values below this are cut off, and the rest scaled up; nothing is cut unless given."""

    @model_validator(mode="after")
    def _check(self) -> Scipy:
        from scipy import stats

        kind = getattr(stats, self.name, None)
        if not isinstance(kind, stats.rv_continuous | stats.rv_discrete):
            names = [n for n, v in vars(stats).items() if isinstance(v, stats.rv_continuous | stats.rv_discrete)]
            raise ValueError(f'scipy.stats has no distribution "{self.name}"{suggestion(self.name, names)}')
        wanted = kind.shapes.replace(" ", "").split(",") if kind.shapes else []
        if set(wanted) != set(self.parameters):
            needs = "the parameters " + ", ".join(wanted) if wanted else "no parameters"
            raise ValueError(f"scipy.stats.{self.name} has {needs}, not {', '.join(self.parameters) or 'none'}")
        frozen = self._frozen
        low, high = (float(self._offset + self.scale * end) for end in frozen.support())
        if math.isnan(low):
            raise ValueError(f"scipy.stats.{self.name} does not exist for parameters {self.parameters}")
        if self.low is None and low < 0:
            raise ValueError(
                f"scipy.stats.{self.name} can draw negative values, which a size cannot be; "
                "cut them off with low: 0, or move it with loc"
            )
        if self.low is not None and not (self.low <= high and self._above_low > 0):
            raise ValueError(f"scipy.stats.{self.name} never reaches low")
        mean = frozen.mean()
        if not math.isfinite(mean):
            raise ValueError(f"scipy.stats.{self.name} with parameters {self.parameters} has no finite mean")
        return self

    @property
    def _offset(self) -> float:
        return float(self.used("loc"))

    @cached_property
    def _frozen(self) -> Any:
        """X of the class docstring."""
        from scipy import stats

        return getattr(stats, self.name)(**self.parameters)

    @property
    def _cut(self) -> float | None:
        """`low` on the scale of X."""
        return None if self.low is None else (self.low - self._offset) / self.scale

    @property
    def _discrete(self) -> bool:
        return hasattr(self._frozen, "pmf")

    @property
    def _above_low(self) -> float:
        """P(X ≥ cut)."""
        cut = self._cut
        if cut is None:
            return 1.0
        return float(self._frozen.sf(math.ceil(cut) - 1 if self._discrete else cut))

    @cached_property
    def _moments(self) -> tuple[float, float]:
        """Mean and variance of loc + scale · X, given that it is at least low."""
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


KINDS = (
    Constant, Uniform, Exponential, Gamma, Lognormal, Weibull, Pareto, Hyperexponential, Empirical, Scipy,
)  # fmt: skip
NAMES = tuple(kind.__name__.lower() for kind in KINDS)


class _OrBareQuantity:
    """Annotation: a bare quantity is a constant; unknown names get a suggestion."""

    def __init__(self, quantity: Any):
        self.constant = Constant[quantity]
        self.quantity = TypeAdapter(quantity)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [self.quantity.json_schema(), handler(schema["schema"])]}

    def _read(self, value: Any, handler: Any) -> Any:
        if isinstance(value, Distribution):
            if value.__pydantic_generic_metadata__["origin"] is None:  # came back from pickle
                return value
            return handler(value)
        if not isinstance(value, dict):
            try:
                number = self.quantity.validate_python(value)
                return self.constant.model_construct(distribution="constant", value=number)
            except ValidationError as error:
                # The mapping that a bare quantity stands for is not in the file, so nor is its address.
                raise ValueError(str(error.errors()[0].get("ctx", {}).get("error", error))) from None
        name = value.get("distribution")
        if name is None:
            raise ValueError(f"which distribution? one of {', '.join(NAMES)}")
        if name not in NAMES:
            hint = f"; one of {', '.join(NAMES)}"
            raise ValueError(f'unknown distribution "{name}"{suggestion(name, NAMES) or hint}')
        return handler(value)


def distribution_of(quantity: Any) -> Any:
    """The field type of a distribution over `quantity`, an annotated float."""
    choices: Any = Union[tuple(kind[quantity] for kind in KINDS)]  # noqa: UP007  (a union made of a tuple)
    return Annotated[choices, Field(discriminator="distribution"), _OrBareQuantity(quantity)]


if TYPE_CHECKING:
    TimeDistribution: TypeAlias = Distribution
    BytesDistribution: TypeAlias = Distribution
    NumberDistribution: TypeAlias = Distribution
else:
    TimeDistribution = distribution_of(units.Seconds)
    BytesDistribution = distribution_of(units.Bytes)
    NumberDistribution = distribution_of(Number)


def _whole_steps(value: Distribution) -> Distribution:
    if isinstance(value, Constant) and (value.mean < 1 or value.mean != int(value.mean)):
        raise ValueError(f"expected a whole number of steps, 1 or more, not {value.mean:g}")
    if value.mean < 1:
        raise ValueError(f"a task has at least one step; these are {value.mean:g} on average")
    return value


StepCount = Annotated[NumberDistribution, AfterValidator(_whole_steps)]
"""Steps of a task: a whole number, or a distribution of which what is drawn is rounded, to 1 at least."""


def drawn_steps(values: Floats) -> Floats:
    """Whole steps, at least one, from what a distribution of them gives."""
    return np.maximum(np.rint(values), 1.0)


def read_column(path: Path, column: str) -> Floats:
    """The numbers of a column of a CSV or Parquet file, all finite and not negative.

    ScenarioError names file, line (the header of a CSV is line 1) and column of the first twenty bad cells.
    """
    import pandas as pd

    parquet = path.suffix.lower() in (".parquet", ".pq")
    try:
        if parquet:
            import pyarrow.parquet

            with open_input(path) as source:
                columns = pyarrow.parquet.read_schema(source).names
        else:
            with opened(path) as source:
                columns = [str(name) for name in pd.read_csv(source, nrows=0, skipinitialspace=True).columns]
    except (ValueError, OSError) as error:  # pandas' and pyarrow's own errors are both
        raise ScenarioError(Problem(f"cannot be read as a table: {error}", file=str(path))) from error
    if column not in columns:
        hint = suggestion(column, columns) or f"; it has {', '.join(columns)}"
        raise ScenarioError(Problem(f'no column "{column}"{hint}', file=str(path), line=None if parquet else 1))
    if parquet:
        cells = _parquet_cells(path, column)
    else:
        # As text and with blank lines kept, so that a bad cell can be quoted with its line number.
        with opened(path) as source:
            cells = pd.read_csv(
                source,
                usecols=[column],
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,
                skipinitialspace=True,
            )[column]
    numbers = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = np.flatnonzero(~(numbers >= 0) | np.isinf(numbers))
    if len(bad):
        shown = bad[:20].tolist()
        raise ScenarioError(_bad_cell(path, column, row, cell=cells.iloc[row], parquet=parquet) for row in shown)
    if not len(numbers):
        raise ScenarioError(Problem(f'column "{column}" is empty', file=str(path)))
    return numbers


def _parquet_cells(path: Path, column: str) -> Any:
    """A column of a Parquet file; ScenarioError if Python cannot have its values."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with open_input(path) as source:
            cells = pyarrow.parquet.read_table(source, columns=[column]).column(column)
        cells.validate(full=True)
        return cells.to_pandas()
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise ScenarioError(Problem(f'column "{column}" cannot be read: {error}', file=str(path))) from None


def _bad_cell(path: Path, column: str, row: int, cell: Any, parquet: bool) -> Problem:
    text = "" if cell is None else str(cell)
    what = f'"{text}" is not a number ≥ 0' if text.strip() else "the cell is empty"
    where = f"row {row + 1}, " if parquet else ""
    return Problem(f'{where}column "{column}": {what}', file=str(path), line=None if parquet else row + 2)


def _require_order(low: float, high: float) -> None:
    if high <= low:
        raise ValueError(f"high must be above low, but {high:g} ≤ {low:g} (in base units)")


def _require_weights(weights: Iterable[float]) -> None:
    if not any(weight > 0 for weight in weights):
        raise ValueError("at least one weight must be above 0")
