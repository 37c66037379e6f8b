"""Ranges of a sweep: lowest and highest value of a key, and the scale in between.

{low: 10/s, high: 1000/s, scale: log}            a range from which values are sampled
{low: 1, high: 8, integer: true, steps: 4}       a grid of at most 4 values (`steps`)
10/s..1000/s log        1..8 integer 4           the same ranges as texts, for the command line
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetsim.errors import suggestion
from hetsim.model import units
from hetsim.model.units import shown

_BASE = ("s", "B", "B/s", "/s", "W", "FLOP", "FLOP/s", "Hz", "")
_RANGE = re.compile(r"^\s*(?P<low>[^{}\[\]]+?)\s*\.\.\s*(?P<high>[^{}\[\]]+?)\s*$")
_KEYS = ("low", "high", "scale", "integer", "steps")
SCALES = ("linear", "log")
MAX_STEPS = 100_000


@dataclass(frozen=True)
class Range:
    """The values from `low` to `high`, written in `unit`."""

    low: float
    high: float
    unit: str = ""
    scale: str = "linear"
    integer: bool = False
    steps: int | None = None

    def at(self, share: float) -> Any:
        """Return the value at a fraction (0 to 1) of the range, as a scenario writes it."""
        # Of whole numbers each has an interval of its own, so that the last is drawn as often as the others.
        high = self.high + 1 if self.integer else self.high
        number = self._number(share, high)
        if self.integer:
            return self._written(min(math.floor(number), int(self.high)))
        return self._written(min(max(number, self.low), self.high))

    def grid(self) -> list[Any]:
        """Return `steps` values from low to high, both included; each integer only once."""
        assert self.steps is not None
        between = [step / (self.steps - 1) for step in range(self.steps)] if self.steps > 1 else [0.0]
        numbers = [self._number(share, self.high) for share in between]
        if self.integer:
            return [self._written(number) for number in dict.fromkeys(round(number) for number in numbers)]
        return [self._written(number) for number in numbers]

    def _number(self, share: float, high: float) -> float:
        return self.low * (high / self.low) ** share if self.scale == "log" else self.low + share * (high - self.low)

    def _written(self, number: float) -> Any:
        if not self.integer:
            number = float(f"{number:.10g}")  # the last digits of a logarithm differ between platforms
        if not self.unit:
            return number
        return f"{number}{'' if self.unit[0] in '/%' else ' '}{self.unit}"


def is_range(value: Any) -> bool:
    """Return True for a range; False for a value or a list of values."""
    if isinstance(value, Mapping):
        return "low" in value or "high" in value
    return isinstance(value, str) and _RANGE.match(value) is not None


def read_range(value: Any) -> Range:
    """Return the range that a mapping or text describes; ValueError if it is none."""
    given = _from_text(value) if isinstance(value, str) else dict(value)
    for key in given:
        if key not in _KEYS:
            raise ValueError(f'a range has no key "{key}"{suggestion(key, _KEYS) or "; it has " + ", ".join(_KEYS)}')
    for key in ("low", "high"):
        if key not in given:
            raise ValueError(f"a range needs both ends; {key} is missing")
    scale, integer = given.get("scale", "linear"), given.get("integer", False)
    if scale not in SCALES:
        raise ValueError(f"unknown scale {shown(scale)}{suggestion(str(scale), SCALES) or '; linear or log'}")
    if not isinstance(integer, bool):
        raise ValueError(f"integer: must be true or false; got {shown(integer)}")
    low, high, unit = _ends(given["low"], given["high"])
    if low >= high:
        raise ValueError(f"low must be below high; got {given['low']} to {given['high']}")
    if scale == "log" and low <= 0:
        raise ValueError(f"a log scale must start above 0; got {given['low']}")
    if integer and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"both ends of an integer range must be whole numbers; got {given['low']} to {given['high']}")
    return Range(low, high, unit, scale=scale, integer=integer, steps=_steps(given.get("steps")))


def _ends(low: Any, high: Any) -> tuple[float, float, str]:
    first, last = units.quantity(low), units.quantity(high)
    for written, quantity in ((low, first), (high, last)):
        if quantity is None or not math.isfinite(quantity[0]):
            raise ValueError(f"the ends of a range must be numbers, with a unit or without; got {shown(written)}")
    assert first is not None and last is not None
    if first[0] == 0 and first[1] < 0 <= last[1]:  # 0 needs no unit
        first = (0.0, last[1], last[2])
    if first[1] != last[1]:
        raise ValueError(f"both ends must have units of the same dimension; got {low} and {high}")
    if first[2] != last[2]:
        return first[0], last[0], _BASE[first[1]]
    numbers = [float(re.match(rf"\s*({units.SIGNED})", str(end))[1]) for end in (low, high)]  # type: ignore[index]
    return numbers[0], numbers[1], first[2]


def _steps(steps: Any) -> int | None:
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps: must be a whole number from 1 to {MAX_STEPS:,}; got {shown(steps)}")
    return steps


def _from_text(text: str) -> dict[str, Any]:
    words = text.split()
    parts: dict[str, Any] = {}
    while words and ".." not in words[-1]:
        word = words[-1]
        if word in SCALES:
            parts["scale"] = word
        elif word == "integer":
            parts["integer"] = True
        elif word.isdigit() and "steps" not in parts:
            parts["steps"] = int(word)
        else:
            break  # the unit of the upper end
        words.pop()
    if (match := _RANGE.match(" ".join(words))) is None:
        raise ValueError(f'must be a range such as 10/s..1000/s log; got "{text}"')
    return {"low": match["low"], "high": match["high"], **parts}
