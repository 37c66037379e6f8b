"""Size distributions: task times, bytes moved, numbers of steps.

A field of type `TimeDistribution`, `BytesDistribution` or `NumberDistribution` accepts a bare quantity, which
is constant (`5 min`), or a mapping:

    {distribution: lognormal, mean: 30 min, cv: 2}
    {distribution: scipy, name: invgauss, parameters: {mu: 0.3}, scale: 10 s}

`distribution_of` makes such a type for any other quantity of `hetsim.model.units`.
"""

from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, Union

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import core_schema

from hetsim.errors import suggestion
from hetsim.model import units
from hetsim.registry import load_object
from hetsim.workload.contract import ABOVE_ZERO, Distribution, Floats, Number, Q, require_order


class Constant(Distribution, Generic[Q]):
    """Always `value`; a bare quantity means this distribution."""

    distribution: Literal["constant"] = "constant"
    """constant; a bare quantity, such as 5 min, means the same as the mapping."""
    value: Q
    """The constant value."""

    @property
    def mean(self) -> float:
        return float(self.value)

    @property
    def scv(self) -> float:
        return 0.0

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return np.full(n, float(self.value))


class Uniform(Distribution, Generic[Q]):
    """Uniform distribution in [low, high)."""

    distribution: Literal["uniform"]
    low: Q
    """Minimum value."""
    high: Q
    """Upper bound, which is not drawn itself."""

    def _check_keys(self) -> None:
        require_order(self.low, self.high)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def scv(self) -> float:
        return (self.high - self.low) ** 2 / 12 / self.mean**2

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.uniform(self.low, self.high, n)


class Exponential(Distribution, Generic[Q]):
    """Exponential distribution (memoryless) with the given mean."""

    distribution: Literal["exponential"]
    mean: Annotated[Q, ABOVE_ZERO]
    """Mean value."""

    @property
    def scv(self) -> float:
        return 1.0

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.exponential(self.mean, n)


# Distributions that hetsim.workload.families defines, loaded by name
FAMILIES = (
    "hetsim.workload.families.sizes:Gamma", "hetsim.workload.families.sizes:Lognormal",
    "hetsim.workload.families.sizes:Weibull", "hetsim.workload.families.sizes:Pareto",
    "hetsim.workload.families.sizes:Hyperexponential", "hetsim.workload.families.sizes:Empirical",
    "hetsim.workload.families.sizes:Scipy",
)  # fmt: skip

KINDS: tuple[Any, ...] = (Constant, Uniform, Exponential, *map(load_object, FAMILIES))

NAMES = tuple(kind.__name__.lower() for kind in KINDS)


class _OrBareQuantity:
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
        if (name := value.get("distribution")) is None:
            raise ValueError(f"must name a distribution: one of {', '.join(NAMES)}")
        if name not in NAMES:
            hint = f"; one of {', '.join(NAMES)}"
            raise ValueError(f'unknown distribution "{name}"{suggestion(name, NAMES) or hint}')
        return handler(value)


def distribution_of(quantity: Any) -> Any:
    """Return the field type of a distribution whose values have the type `quantity`."""
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


_BROKEN_STEPS = "must be a whole number of steps, 1 or more; got {0.mean:g}"
# Steps of a task: a whole number, or a distribution whose values are rounded, to 1 at least
StepCount = Annotated[
    NumberDistribution,
    units.forbid(lambda n: isinstance(n, Constant) and (n.mean < 1 or n.mean % 1), _BROKEN_STEPS),
    units.forbid(lambda steps: steps.mean < 1, "must be at least one step; got {0.mean:g} on average"),
]


def drawn_steps(values: Floats) -> Floats:
    """Round values drawn from a distribution to whole numbers of steps, at least one."""
    return np.maximum(np.rint(values), 1.0)
