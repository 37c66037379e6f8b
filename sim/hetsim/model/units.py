"""Quantities with units, as scenarios write them (`5 min`, `5.3 GB/s`), and paths.

Inside the program every quantity is a float in SI base units (seconds, bytes, bytes per second, 1/s, watts, operations
per second); memory and data sizes are integers.  A value with a dimension needs a unit, except 0. GB = 10**9 B, GiB =
2**30 B, B bytes, b bits.

`Seconds`, `Bytes` and the other annotated types are used in pydantic models and in the signatures of policies, whose
parameters are thereby validated, and documented in the schema.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from hetsim.errors import suggestion, visible
from hetsim.model.files import record_input

TIME = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0,
    "h": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0, "week": 604800.0, "weeks": 604800.0,
}  # fmt: skip
_PREFIX = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
SIZE = {
    **{f"{prefix}B": float(value) for prefix, value in (_PREFIX | _BINARY | {"K": 10**3}).items()},
    **{f"{prefix}b": value / 8 for prefix, value in _PREFIX.items()},
}
BANDWIDTH = {
    **{f"{size}/s": value for size, value in SIZE.items()},
    **{f"{prefix}bps": value / 8 for prefix, value in _PREFIX.items()},
    **{f"{prefix}bit/s": value / 8 for prefix, value in _PREFIX.items()},
}
RATE = {f"/{unit}": 1 / value for unit, value in TIME.items()}
POWER = {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}
OPERATIONS = {f"{prefix}FLOP": float(value) for prefix, value in _PREFIX.items()}
OPERATION_RATE = {f"{unit}{suffix}": value for unit, value in OPERATIONS.items() for suffix in ("/s", "S")}
FREQUENCY = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
FRACTION = {"%": 0.01}

MAX_NUMBER = 1e30  # larger numbers are mistakes, and their products would overflow
MAX_SECONDS = 1e15  # thirty million years
MAX_BYTES = 1e18  # an exabyte; larger sizes would overflow sums in columns of 64-bit integers

_DATE = re.compile(r"\s*\d{4}-\d{1,2}-\d{1,2}(?!\d)")
_QUANTITY = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf|nan)\s*(.*?)\s*$", re.IGNORECASE)


def parse(
    value: Any, units: dict[str, float], example: str, *, negative: bool = False, most: float = MAX_NUMBER
) -> float:
    """Parse a value into base units; raise ValueError with a reason if it is wrong.

    `units`: factors by unit; `example`: a correct value, for messages; `negative`: True if values below 0 are allowed;
    `most`: maximum in base units.

    >>> parse("1.5 min", TIME, "5 s")
    90.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a value with a unit such as {example}; got {shown(value)}")
    text = value if isinstance(value, str) else str(value) if abs(value) <= MAX_NUMBER else "inf"
    if _DATE.match(text):
        raise ValueError(f"{shown(value)} is a date; it must be a value with a unit such as {example}")
    if not (match := _QUANTITY.match(text)):
        raise ValueError(f"{shown(value)} is not a value with a unit such as {example}")
    number, unit = float(match[1]), match[2]
    if math.isnan(number) or math.isinf(number):
        raise ValueError(f"{shown(value)} is not a finite number")
    if not unit:
        if number == 0:
            return 0.0
        raise ValueError(f"{shown(value)} has no unit; write {_with_unit(match[1], units, example)}")
    if (factor := units.get(unit)) is None:
        factor = units.get(re.sub(r"\s+", "", unit))
    if factor is None:
        raise ValueError(f"{shown(value)}: {shown(unit)} is not a unit here; use one of {', '.join(_some(units))}")
    if number < 0 and not negative:
        raise ValueError(f"{shown(value)} is negative")
    # One division rather than a product with an inexact factor: `3 ms` must be the float 0.003.
    inverse = round(1 / factor) if factor < 1 else 0
    in_base_units = number / inverse if inverse and abs(inverse * factor - 1) < 1e-12 else number * factor
    if abs(in_base_units) > most:
        raise ValueError(f"{shown(value)} is too large: at most {_bound_text(most, units)}")
    return in_base_units


def parse_fraction(value: Any) -> float:
    """Parse a fraction, such as `0.05` or `5%`."""
    if isinstance(value, str):
        return parse(value, FRACTION, "5%")
    if not is_number(value):
        raise ValueError(f"must be a share such as 0.05 or 5%; got {shown(value)}")
    return float(value)


def is_number(value: Any) -> bool:
    """Return True for a finite number of at most `MAX_NUMBER` in absolute value."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= MAX_NUMBER


def shown(value: Any) -> str:
    """Return a value as text for error messages."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = visible(str(value))
    return f'"{text if len(text) <= 60 else text[:57] + "..."}"'


def in_units(value: float, validators: Iterable[Any]) -> str:
    """Return a number with the unit that makes it shortest, as in a scenario."""
    functions = [getattr(one, "func", None) for one in validators]
    units: Mapping[str, float] = next((one.keywords["units"] for one in functions if isinstance(one, partial)), {})
    units = FRACTION if parse_fraction in functions else units
    texts = [(f"{value / factor:g}", unit) for unit, factor in units.items() if value]
    number, unit = min(texts, key=lambda text: (len(text[0]), -units[text[1]]), default=(f"{value:g}", ""))
    return f"{number}{unit}" if unit[:1] in ("", "%", "/") else f"{number} {unit}"


def _with_unit(number: str, units: dict[str, float], example: str) -> str:
    if units is RATE:
        return f"{number}/s (or per minute: {number}/min)"
    unit = _QUANTITY.match(example)
    assert unit
    gap = "" if unit[2] == "%" else " "
    return f"for instance {number}{gap}{unit[2]}"


def _bound_text(bound: float, units: dict[str, float]) -> str:
    base = next((unit for unit, factor in units.items() if factor == 1), "")
    return f"{bound:g}{base}" if base.startswith("/") else f"{bound:g} {base}".strip()


def _some(units: dict[str, float]) -> list[str]:
    common = ["ns", "us", "ms", "s", "min", "h", "d", "B", "kB", "MB", "GB", "TB", "MiB", "GiB", "b"]
    common += [f"{unit}/s" for unit in ("MB", "GB", "GiB", "Gb")] + ["/s", "/min", "/h", "/d", "mW", "W", "kW"]
    common += ["FLOP", "MFLOP", "GFLOP", "TFLOP", "GFLOP/s", "TFLOP/s", "MHz", "GHz", "%"]
    return [unit for unit in common if unit in units] or list(units)


def _read(value: Any, units: dict[str, float], example: str, whole: bool, most: float) -> float | int:
    number = parse(value, units, example, most=most)
    return round(number) if whole else number


def _quantity(units: dict[str, float], example: str, whole: bool = False, most: float = 1e30) -> Any:
    read = partial(_read, units=units, example=example, whole=whole, most=most)
    # Strings are what files hold; the resolved models hold numbers in base units.
    schema = {"anyOf": [{"type": "string", "examples": [example]}, {"const": 0}]}
    return Annotated[int if whole else float, BeforeValidator(read), WithJsonSchema(schema)]


Seconds = _quantity(TIME, "5 s", most=MAX_SECONDS)
Bytes = _quantity(SIZE, "2 GB", whole=True, most=MAX_BYTES)
BytesPerSecond = _quantity(BANDWIDTH, "12 GB/s")
PerSecond = _quantity(RATE, "40/h")
Watts = _quantity(POWER, "250 W")
Operations = _quantity(OPERATIONS, "3 GFLOP")
OperationsPerSecond = _quantity(OPERATION_RATE, "15 TFLOP/s")
Hertz = _quantity(FREQUENCY, "1.4 GHz")
Fraction = Annotated[
    float, BeforeValidator(parse_fraction), WithJsonSchema({"type": ["number", "string"], "examples": [0.05, "5%"]})
]

LONGEST_NAME = 200


def _number(value: Any) -> Any:
    if not is_number(value):
        beyond = isinstance(value, int | float) and abs(value) > MAX_NUMBER
        hint = f"; the largest is {MAX_NUMBER:g}" if beyond else ""
        raise ValueError(f"must be a number; got {shown(value)}{hint}")
    return value


def _whole(value: Any) -> Any:
    _number(value)
    if value != int(value):
        raise ValueError(f"must be a whole number; got {shown(value)}")
    return int(value)


def _seed(value: Any) -> Any:
    return value if isinstance(value, int) and not isinstance(value, bool) else _whole(value)


def _name(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be a name; got {shown(value)}")
    if len(value) > LONGEST_NAME:
        raise ValueError(f"a name must have at most {LONGEST_NAME} characters; got {len(value):,}")
    if not value.isprintable():
        raise ValueError("a name must be one line of visible characters")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false; got {shown(value)}")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(_number)]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Part = Annotated[Positive, Field(le=1)]
Whole = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
Degree = Annotated[Count, Field(le=1_000_000)]
Seed = Annotated[int, Field(ge=0), BeforeValidator(_seed)]  # any whole number: seeds of 128 bits are common
Name = Annotated[str, Field(min_length=1), BeforeValidator(_name)]
Flag = Annotated[bool, BeforeValidator(_flag)]


DIMENSIONS = (TIME, SIZE, BANDWIDTH, RATE, POWER, OPERATIONS, OPERATION_RATE, FREQUENCY, FRACTION)
SIGNED = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_WRITTEN = re.compile(rf"\s*({SIGNED})\s*(.*?)\s*$")


def quantity(value: Any) -> tuple[float, int, str] | None:
    """Return (value in base units, number of its dimension, unit as written), or None.

    Dimension -1: a number without a unit.  None: not a number, or an unknown unit.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value), -1, ""
    match = _WRITTEN.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    if not (unit := re.sub(r"\s+", "", match[2])):
        return float(match[1]), -1, ""
    for number, factors in enumerate(DIMENSIONS):
        if unit in factors:
            return parse(value, factors, "", negative=True), number, unit
    return None


def forbid(when: Callable[[Any], bool], message: str) -> AfterValidator:
    """Return a validator that rejects values for which `when` is true."""

    def check(value: Any) -> Any:
        if when(value):
            raise ValueError(message.format(value))
        return value

    return AfterValidator(check)


def _one_of_time(value: str) -> str:
    if value not in TIME:
        near = suggestion(value, TIME) or f"; one of {', '.join(TIME)}"
        raise ValueError(f"{shown(value)} is not a unit of time{near}")
    return value


_NO_SHARE = "must be a share above 0 and at most 1, such as 10%; got {:g}"
Share = Annotated[Fraction, forbid(lambda share: not 0 < share <= 1, _NO_SHARE)]
TimeUnit = Annotated[str, AfterValidator(_one_of_time)]


# Paths in scenario files: relative to the file, or else the working directory.
#
# The latter is for names on a command line: shipped scenarios are not in the user's folder.


def _existing(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be a file name")
    given = path = Path(value)
    if not path.is_absolute():
        path = Path((info.context or {}).get("base", ".")) / path
    try:
        if not path.exists() and given.is_file():
            path = given.absolute()
        is_file, folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        is_file = folder = False
    if folder:
        raise ValueError(f"{shown(str(value))} is a folder, not a file")
    if not is_file:
        looked = "" if str(path) == str(value) or len(str(path)) > 500 else f" (searched at {path})"
        raise ValueError(f"there is no file {shown(str(value))}{looked}")
    return record_input(path, info.field_name, value)


def _existing_folder(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be the name of a folder")
    path = Path(value)
    inside = path if path.is_absolute() else Path((info.context or {}).get("base", ".")) / path
    try:
        existing = next((one.absolute() for one in (inside, path) if one.is_dir()), None)
        file = inside.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        existing, file = None, False
    if existing is None:
        what = "is a file, not a folder" if file else f"is not a folder (searched at {str(inside)[:500]})"
        raise ValueError(f"{shown(str(value))} {what}")
    return record_input(existing, info.field_name, value)


# an existing folder, searched like an `ExistingFile`
ExistingFolder = Annotated[Path, BeforeValidator(_existing_folder), WithJsonSchema({"type": "string"})]

# an existing file, searched first in `base` of the validation context (the scenario's folder)
ExistingFile = Annotated[Path, BeforeValidator(_existing), WithJsonSchema({"type": "string"})]
