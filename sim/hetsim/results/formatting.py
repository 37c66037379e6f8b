"""Format numbers with readable units, and names of metrics.

No heavy imports and no output: every function returns text.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hetsim.results.declared import declaration

Unit = tuple[float, str]

SECONDS: tuple[Unit, ...] = (
    (1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d"),
)  # fmt: skip
BYTES: tuple[Unit, ...] = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB"))
JOULES: tuple[Unit, ...] = ((1.0, "J"), (1e3, "kJ"), (3.6e6, "kWh"), (3.6e9, "MWh"), (3.6e12, "GWh"))
PERCENT: tuple[Unit, ...] = ((0.01, "%"),)
PER_TIME: tuple[Unit, ...] = ((1 / 86400, "/d"), (1 / 3600, "/h"), (1 / 60, "/min"), (1.0, "/s"))

# A unit is taken from this many of it on: 90 s rather than 1.5 min, but 3.2 min rather than 192 s.
_FROM = {"min": 2.0, "h": 1.5, "d": 2.0, "kWh": 0.1, "/s": 0.2, "/min": 1.0, "/h": 0.5}


def seconds(value: float) -> str:
    """Format a duration: `12.3 µs`, `45 s`, `3.2 min`, `2.5 h`."""
    return one(value, SECONDS)


def data_size(value: float) -> str:
    """Format bytes: `1.2 GB`."""
    return one(value, BYTES)


def energy(value: float) -> str:
    """Format joules: `850 J`, `61 kWh`."""
    return one(value, JOULES)


def rate(value: float) -> str:
    """Format events per second: `40/h`, `12.5/s`."""
    return one(value, PER_TIME)


def share(value: float) -> str:
    """Format a share in percent: `63 %`, `0.4 %`, `99.97 %`."""
    return one(value, PERCENT)


def count(value: float) -> str:
    """Format a count: `1,240`; a mean that is not whole gets one decimal: `12.5`."""
    if not math.isfinite(value):
        return _odd(value)
    return f"{value:,.0f}" if float(value).is_integer() else figures(value)


def plain(value: float) -> str:
    return figures(value)


def listed(names: Sequence[str]) -> str:
    """Join names: `a, b and c`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def figures(value: float, digits: int = 3) -> str:
    """Format a number to `digits` significant figures: `0.0123`, `45.6`, `1,234`."""
    if not math.isfinite(value):
        return _odd(value)
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 7 or size < -4:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - size)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _odd(value: float) -> str:
    return "–" if math.isnan(value) else "∞" if value > 0 else "-∞"


def fitting(values: Iterable[float], units: Sequence[Unit]) -> Unit:
    """Return the unit that suits the median of some values."""
    sizes = sorted(abs(v) for v in values if math.isfinite(v) and v != 0)
    if not sizes:
        return next((unit for unit in units if unit[0] == 1.0), units[0])
    middle = sizes[(len(sizes) - 1) // 2]
    chosen = units[0]
    for factor, name in units:
        if middle >= factor * _FROM.get(name, 1.0) * (1 - 1e-12):
            chosen = (factor, name)
    return chosen


def with_unit(text: str, unit: str) -> str:
    """Append a unit: `12 s`, `12/s`; an undefined value gets no unit."""
    if text in ("–", "∞", "-∞") or not unit:
        return text
    return f"{text}{unit}" if unit.startswith("/") else f"{text} {unit}"


def one(value: float, units: Sequence[Unit]) -> str:
    """Format a value in that unit of `units` that suits its size."""
    factor, name = fitting([value], units)
    text = figures(value / factor)
    if units == PERCENT and text == "100" and value < 1:
        # Not all, but almost: as many nines as it has, and one figure more.
        text = figures(100 * value, 4 + min(9, math.floor(-math.log10(1 - value))))
    return with_unit(text, name)


def several(values: Sequence[float], units: Sequence[Unit], halves: Sequence[float] | None = None) -> list[str]:
    """Format values in one common unit; with `halves`, each as value `±` half-width."""
    factor, name = fitting(values, units)
    halves = [math.nan] * len(values) if halves is None else halves
    return [with_unit(pair(value / factor, half / factor), name) for value, half in zip(values, halves, strict=True)]


def pair(value: float, half: float) -> str:
    """Format `12.3 ± 0.4`: half-width to two figures, value to the same digits."""
    if not (math.isfinite(value) and math.isfinite(half)):
        return figures(value)
    if half <= 1e-9 * abs(value):
        return figures(value)  # the same in every run
    places = min(9, max(0, 1 - math.floor(math.log10(half))))
    while places < 9 and f"{abs(value):.{places}f}" == f"{half:.{places}f}" and abs(abs(value) - half) > 1e-4 * half:
        places += 1
    return f"{value:,.{places}f} ± {half:,.{places}f}"


def clock(value: float) -> str:
    """Format a time of the simulated clock: `86.1769 s`, `1,234,567 s`."""
    if not math.isfinite(value):
        return _odd(value)
    if 0 < abs(value) < 1e-3:
        factor, name = fitting([value], SECONDS)
        return f"{value / factor:.6g} {name}"
    text = f"{value:.6g}" if abs(value) < 1e5 else f"{value:,.1f}".removesuffix(".0")
    return f"{text} s"


def lower_bound(value: float, units: Sequence[Unit]) -> str:
    """Format a percentile that depends on unfinished tasks as a bound: `≥ 12 s`."""
    return "≥ " + one(value, units) if math.isfinite(value) else "∞"


# Units of metrics ---------------------------------------------------------------------------------------------


# Units of task columns that are not metrics, are not averaged by one, and do not count tokens.
COLUMNS = {"upload": "s", "compute": "s", "download": "s"}

_SHOWN_IN = {"s": SECONDS, "GPU s": SECONDS, "share": PERCENT, "J": JOULES, "1/s": PER_TIME, "B": BYTES}


def unit_of(metric: str) -> str:
    """Unit of a metric or a column of tasks (s, J, share, ...); "" if none."""
    declared = declaration(metric) or declaration(f"{metric}_mean")
    if declared is not None:
        return declared.unit
    return COLUMNS.get(metric, "tokens" if metric.endswith("_tokens") else "")


def units_of(metric: str) -> tuple[Unit, ...]:
    """Units in which a metric or a column of tasks is shown."""
    declared = declaration(metric)
    plain = declared is not None and not declared.is_percent
    return ((1.0, ""),) if plain else _SHOWN_IN.get(unit_of(metric), ((1.0, ""),))


def metric_name(metric: str) -> str:
    declared = declaration(metric)
    return declared.title if declared and "{" not in declared.name else metric.removesuffix("_j").replace("_", " ")


def gap(metric: str, difference: float, half: float = math.nan) -> str:
    """Format a difference without sign: `63 ± 47 s`, `27 ± 12 percentage points`."""
    units = units_of(metric)
    if units == PERCENT:
        return with_unit(pair(100 * abs(difference), 100 * half), "percentage points")
    factor, name = fitting([max(abs(difference), finite(half))], units)
    return with_unit(pair(abs(difference) / factor, half / factor), name)


def finite(value: float, otherwise: float = 0.0) -> float:
    return value if math.isfinite(value) else otherwise


def formatter(metric: str) -> Callable[[float], str]:
    """Return the function that formats a single value of a metric."""
    units = units_of(metric)
    return count if units == ((1.0, ""),) else lambda value: one(value, units)


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: json_number(value) for name, value in values.items()}


def json_number(value: Any) -> Any:
    """Convert for JSON: NaN to null, infinities to "Infinity" (readable by float())."""
    if isinstance(value, int | np.integer):
        return int(value)
    if math.isnan(value):
        return None
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else float(value)
