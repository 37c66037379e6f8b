"""The contract of size distributions and of arrival processes.

A longer run of a scenario begins like the shorter one.  So arrival processes use their generator in the same order
whatever the limits, and a distribution is *prefix-consistent* unless its docstring says otherwise: from the same fresh
generator, the first 100 of 200 draws are the 100 of 100 draws.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from hetsim.model import units
from hetsim.model.described import Described, Frozen
from hetsim.model.units import PerSecond, Seconds

Floats: TypeAlias = NDArray[np.float64]


def _number(value: Any) -> float:
    if not units.is_number(value):
        raise ValueError(f"must be a number; got {units.shown(value)}")
    if value < 0:
        raise ValueError(f'"{value:g}" is negative')
    return float(value)


def _positive(value: Any, info: ValidationInfo) -> Any:
    if value is not None and not (0 < value < math.inf):
        raise ValueError(f"{info.field_name} must be above 0; got {value:g}")
    return value


ABOVE_ZERO = AfterValidator(_positive)
"""Annotation of a finite quantity above 0, or of None."""
Number: TypeAlias = Annotated[float, BeforeValidator(_number)]
"""A plain finite number, not negative: the quantity without a dimension."""

Positive: TypeAlias = Annotated[float, BeforeValidator(_number), ABOVE_ZERO]

Q = TypeVar("Q", bound=float)
"""The quantity of a distribution: `Seconds`, `Bytes`, … of `hetsim.model.units`, or `Number`."""


class OverQuantity(Described):
    """A generic model of a quantity, with a readable name in the schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """A readable name, as `ExponentialSeconds`."""
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


class Distribution(OverQuantity):
    """Base class of all size distributions.

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


def require_order(low: float, high: float) -> None:
    if high <= low:
        raise ValueError(f"high must be above low; got {high:g} and {low:g} (in base units)")


def require_weights(weights: Iterable[float]) -> None:
    if not any(weight > 0 for weight in weights):
        raise ValueError("at least one weight must be above 0")


MAX_ARRIVALS = 50_000_000
"""More at one instant, or more bursts and changes of state, are a mistake: they would take hours or gigabytes."""

BLOCK = 8192
"""Arrivals drawn at a time: large enough for numpy, small enough to waste little past a limit."""


def above_zero(value: Any, info: ValidationInfo) -> Any:
    if value is not None and value <= 0:
        raise ValueError(f"{info.field_name} must be above 0")
    return value


Interval: TypeAlias = Annotated[Seconds, AfterValidator(above_zero)]

Rate: TypeAlias = Annotated[PerSecond, AfterValidator(above_zero)]

Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ARRIVALS, strict=True)]


class ArrivalProcess(Frozen):
    """Base class of arrival processes, built-in and others.

    A subclass is a pydantic model with a field `process: Literal["its_name"]` and its parameters; it has
    `_blocks`: sorted arrays of arrival times, one after another, forever or until the process is over, drawn
    from `rng` only and always in the same order; the limits are applied outside.

    `closed` is True where later arrivals depend on completions; then `times` gives only the first ones.
    """

    closed: ClassVar[bool] = False
    steady_rate: ClassVar[bool] = False
    """Return True if the rate is the same at all times."""

    process: str
    """Name of the arrival process; `hetsim list arrivals` has all."""

    @property
    def rate_mean(self) -> float | None:
        """Long-run arrivals per second; None if undefined."""
        return None

    def rate_at(self, t: float) -> float | None:
        """Arrivals per second at time t; None if it is random."""
        return self.rate_mean if self.steady_rate else None

    @property
    def endless(self) -> bool:
        """Return True if arrivals never end unless limited."""
        return True

    def events(self, until: float) -> float:
        """Approximate number of events before `until`; 0 if unknown."""
        rate = self.rate_mean
        return 0.0 if rate is None else rate * until

    def times(self, rng: np.random.Generator, until: float | None = None, count: int | None = None) -> Floats:
        """Sorted arrival times before `until` (exclusive), at most `count` of them.

        ValueError if neither limits an endless process.
        """
        if until is None and count is None and self.endless:
            raise ValueError(f"{self.process} arrivals never end; give until or count")
        last = math.inf if until is None else until
        wanted = math.inf if count is None else count
        parts: list[Floats] = []
        have = 0
        if wanted > 0 and last > 0:
            for block in self._blocks(rng, last):
                kept = block[: int(np.searchsorted(block, last, side="left"))]
                parts.append(kept)
                have += len(kept)
                if len(kept) < len(block) or have >= wanted:
                    break
        return (np.concatenate(parts) if parts else np.empty(0))[:count]

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        """Arrays of arrival times, each sorted and not before the one ahead of it.

        `last` may be used to stop early; it must not change what comes before it.
        """
        raise NotImplementedError


def in_order(pairs: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    """Raise an error unless instants begin at 0 s and increase."""
    if pairs and pairs[0][0] != 0:
        raise ValueError(f"the first entry must start at 0 s; got {pairs[0][0]:g} s")
    for (before, _), (after, _) in zip(pairs, pairs[1:], strict=False):
        if after <= before:
            raise ValueError(f"times must increase; {after:g} s follows {before:g} s")
    return pairs


def summed(draw: Callable[[int], Floats]) -> Iterator[Floats]:
    """Running sums of `draw(BLOCK)` in blocks, with the bits of one long sum."""
    reached = 0.0
    while True:
        block = np.cumsum(np.concatenate([[reached], draw(BLOCK)]))[1:]
        reached = block[-1]
        yield block
