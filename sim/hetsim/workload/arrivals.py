"""Arrival processes: when tasks and requests arrive.

A scenario names one with `process:`

    arrivals: {process: poisson, rate: 40/h}
    arrivals: {process: diurnal, mean: 20/h, amplitude: 0.6, period: 24 h}

`Arrivals` is the type of this field.  To add a process, write a subclass of `ArrivalProcess` and register it in the
entry-point group `hetsim.arrivals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, Union

import numpy as np
from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from hetsim import registry
from hetsim.errors import suggestion
from hetsim.model.units import Seconds
from hetsim.workload.contract import BLOCK, ArrivalProcess, Count, Floats, Interval, Rate, in_order, summed
from hetsim.workload.distributions import TimeDistribution


class Deterministic(ArrivalProcess):
    """One arrival every `interval` (or 1 / `rate`), the first at `first`."""

    steady_rate = True
    process: Literal["deterministic"]
    interval: Interval | None = None
    """Time between two arrivals; in place of rate."""
    rate: Rate | None = None
    """Arrivals per unit of time; in place of interval."""
    first: Seconds = 0.0
    """Time of the first arrival."""

    def _check_keys(self) -> None:
        if (self.interval is None) == (self.rate is None):
            raise ValueError("deterministic arrivals need exactly one of interval and rate")

    @property
    def rate_mean(self) -> float:
        return float(1 / self.interval if self.rate is None else self.rate)  # type: ignore[operator]

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        rate = self.rate_mean
        for done in count(0, BLOCK):
            # A product rather than a running sum, so that the millionth arrival has not drifted.
            numbers = np.arange(done, done + BLOCK)
            steps = numbers * self.interval if self.interval is not None else numbers / rate
            yield self.first + steps


class Poisson(ArrivalProcess):
    """Independent exponential gaps with mean 1 / `rate`."""

    steady_rate = True
    process: Literal["poisson"]
    rate: Rate
    """Mean number of arrivals per unit of time."""

    @property
    def rate_mean(self) -> float:
        return self.rate

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        return summed(lambda n: rng.exponential(1 / self.rate, n))


class AllAtOnce(ArrivalProcess):
    """`count` arrivals, all at the time `at`."""

    process: Literal["all_at_once"]
    count: Count
    """Number of arrivals."""
    at: Seconds = 0.0
    """Time at which all of them arrive."""

    @property
    def endless(self) -> bool:
        return False

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        yield np.full(self.count, float(self.at))


class Closed(ArrivalProcess):
    """A closed loop of clients that each think, send one task and wait until it ends.

    `times` returns the first arrival of every client, after its jitter and one think time.  The engine draws each later
    think time (`think.sample`) when the client's task completes.  When the number of clients rises, the new clients
    begin with a think time; when it falls, surplus clients leave as their tasks complete.
    """

    closed: ClassVar[bool] = True

    process: Literal["closed"]
    clients: Annotated[
        Annotated[Count, Tag("<number>")]
        | Annotated[list[tuple[Seconds, Count]], Field(min_length=1), AfterValidator(in_order), Tag("<list>")],
        Discriminator(lambda value: "<list>" if isinstance(value, list) else "<number>"),
    ]
    """Number of clients, each with one task at a time: a number, or pairs of a time and the number from then on."""
    between: Literal["step", "linear"] = "step"
    """Clients between two given times: with step the number is constant, with linear it is interpolated."""
    think: TimeDistribution
    """Time from the completion of a client's task to its next task: a quantity or a distribution."""
    start_jitter: Seconds = 0.0
    """Each initial client starts after a delay that is drawn uniformly from 0 to this time."""

    @property
    def changes(self) -> list[tuple[float, int]]:
        """Times at which the number of clients changes, with the new number."""
        if isinstance(self.clients, int):
            return [(0.0, self.clients)]
        points = self.clients[:1]
        for (start, before), (end, after) in zip(self.clients, self.clients[1:], strict=False):
            if self.between == "linear":  # each whole number when the line reaches it
                steps = range(before, after, 1 if after > before else -1)[1:]
                points += [(start + (end - start) * (step - before) / (after - before), step) for step in steps]
            points.append((end, after))
        return points

    @property
    def endless(self) -> bool:
        return False

    def _blocks(self, rng: np.random.Generator, last: float) -> Iterator[Floats]:
        clients = self.changes[0][1]
        thinking = self.think.sample(rng, clients)  # before the jitter, which leaves these times as they are
        yield np.sort(thinking + rng.uniform(0.0, self.start_jitter, clients))


# Import path of each built-in process, by name
BUILTIN = {
    "deterministic": "hetsim.workload.arrivals:Deterministic", "poisson": "hetsim.workload.arrivals:Poisson",
    "renewal": "hetsim.workload.families.arrivals:Renewal",
    "mmpp": "hetsim.workload.families.arrivals:MarkovModulatedPoisson",
    "piecewise_poisson": "hetsim.workload.families.arrivals:PiecewisePoisson",
    "diurnal": "hetsim.workload.families.arrivals:Diurnal", "burst": "hetsim.workload.families.arrivals:Burst",
    "all_at_once": "hetsim.workload.arrivals:AllAtOnce", "closed": "hetsim.workload.arrivals:Closed",
    "file": "hetsim.workload.families.arrivals:FromFile",
}  # fmt: skip


def _named(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    if isinstance(value, ArrivalProcess):
        return value
    name = value.get("process") if isinstance(value, dict) else None
    if name is None:
        raise ValueError(f"must be a mapping with the key process: one of {', '.join(BUILTIN)}")
    if name in BUILTIN:
        return handler(value)

    names = registry.table("arrivals")
    if not isinstance(name, str) or name not in names:
        hint = f"; one of {', '.join(names)}"
        raise ValueError(f'unknown arrival process "{name}"{suggestion(str(name), names) or hint}')
    return registry.entry("arrivals", name).model_validate(value, context=info.context)


if TYPE_CHECKING:
    Arrivals: TypeAlias = ArrivalProcess
else:
    _OURS = tuple(map(registry.load_object, BUILTIN.values()))
    Arrivals = Annotated[Union[_OURS], Field(discriminator="process"), WrapValidator(_named)]  # noqa: UP007
