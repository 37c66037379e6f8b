"""The contract of size distributions and of arrival processes.

A longer run of a scenario must begin like a shorter one.  Therefore an arrival process draws its random numbers in the
same order, whatever its limits, and a distribution is *prefix-consistent* unless its docstring states otherwise: from
the same fresh generator, the first 100 of 200 draws equal 100 draws.
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


ABOVE_ZERO = AfterValidator(_positive)  # a finite quantity above 0, or None
Number: TypeAlias = Annotated[float, BeforeValidator(_number)]  # a finite number ≥ 0 without a dimension

Positive: TypeAlias = Annotated[float, BeforeValidator(_number), ABOVE_ZERO]

Q = TypeVar("Q", bound=float)  # `Seconds`, `Bytes`, ... of `hetsim.model.units`, or `Number`


class OverQuantity(Described):
    """Base of distributions, generic in the type of their values, such as `Seconds`."""

    model_config = ConfigDict(extra="forbid", frozen=True, serialize_by_alias=True)

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
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

    Contract: `sample(rng, n)` returns n float64 values ≥ 0 in SI base units and draws randomness from `rng` only;
    `mean` and `scv` are exact for what `sample` draws.  Objects are immutable.
    """

    if TYPE_CHECKING:  # In some subclasses `mean` is a field, which a property here would shadow.

        @property
        def mean(self) -> float: ...

    @property
    def scv(self) -> float:
        """Squared coefficient of variation: variance / mean²; 1 is exponential."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, n: int) -> Floats:
        raise NotImplementedError


def require_order(low: float, high: float) -> None:
    if high <= low:
        raise ValueError(f"high must be above low; got {high:g} and {low:g} (in base units)")


def require_weights(weights: Iterable[float]) -> None:
    if not any(weight > 0 for weight in weights):
        raise ValueError("at least one weight must be above 0")


MAX_ARRIVALS = 50_000_000  # limit of arrivals at one instant, of bursts and of state changes: more take hours or GB

BLOCK = 8192  # arrivals drawn at a time: large enough for numpy, small enough to waste little past a limit


def above_zero(value: Any, info: ValidationInfo) -> Any:
    if value is not None and value <= 0:
        raise ValueError(f"{info.field_name} must be above 0")
    return value


Interval: TypeAlias = Annotated[Seconds, AfterValidator(above_zero)]

Rate: TypeAlias = Annotated[PerSecond, AfterValidator(above_zero)]

Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_ARRIVALS, strict=True)]


class ArrivalProcess(Frozen):
    """Base class of arrival processes, built-in and others.

    A subclass is a pydantic model with a field `process: Literal["its_name"]` and its parameters.  Its `_blocks` yields
    sorted arrays of arrival times until the process ends, and draws from `rng` only, always in the same order; `times`
    applies the limits `until` and `count`.

    `closed` is True if later arrivals depend on completions; `times` then returns only the first arrivals.
    """

    closed: ClassVar[bool] = False
    steady_rate: ClassVar[bool] = False  # the rate is the same at all times

    process: str
    """Name of the arrival process; `hetsim list arrivals` prints all names."""

    @property
    def rate_mean(self) -> float | None:
        """Mean arrivals per second in the long run; None if undefined."""
        return None

    def rate_at(self, t: float) -> float | None:
        """Return the arrivals per second at time t, or None if the rate is random."""
        return self.rate_mean if self.steady_rate else None

    @property
    def endless(self) -> bool:
        """True if the process never ends by itself, so that `times` requires a limit."""
        return True

    def events(self, until: float) -> float:
        """Estimate the number of arrivals and rate changes before `until` (s); 0: unknown."""
        rate = self.rate_mean
        return 0.0 if rate is None else rate * until

    def times(self, rng: np.random.Generator, until: float | None = None, count: int | None = None) -> Floats:
        """Return sorted arrival times before `until` (exclusive), at most `count` times.

        ValueError if an endless process has neither limit.
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
        """Yield sorted arrays of arrival times.

        last: time after which arrivals are not needed; the times before must not depend on it.
        """
        raise NotImplementedError


def in_order(pairs: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    """Return (time, value) pairs; ValueError unless times start at 0 s and increase."""
    if pairs and pairs[0][0] != 0:
        raise ValueError(f"the first entry must start at 0 s; got {pairs[0][0]:g} s")
    for (before, _), (after, _) in zip(pairs, pairs[1:], strict=False):
        if after <= before:
            raise ValueError(f"times must increase; {after:g} s follows {before:g} s")
    return pairs


def summed(draw: Callable[[int], Floats]) -> Iterator[Floats]:
    """Yield arrival times in blocks: the running sums of the gaps that `draw` returns."""
    reached = 0.0
    while True:
        block = np.cumsum(np.concatenate([[reached], draw(BLOCK)]))[1:]
        reached = block[-1]
        yield block
