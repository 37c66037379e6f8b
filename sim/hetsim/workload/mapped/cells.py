"""Readers of single cells of a log that has a user's own columns.

A cell reader accepts a text (CSV), or a number, a date or a duration (Parquet, JSON), and returns a number in seconds,
bytes or units.  If it raises ValueError, the message continues a sentence that begins with the cell.
"""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

from hetsim.errors import suggestion
from hetsim.model.units import MAX_BYTES, MAX_SECONDS, SIZE, TIME, shown
from hetsim.workload.rows.text_rows import NUMBER, YEAR_10000, instant_of

Cell = Callable[[Any], float]

TIMES = {**TIME, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "hour": 3600.0, "minute": 60.0}
# A single letter is a power of 1,024, as Slurm, LSF and Linux print sizes
LETTERS = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "P": 2.0**50}
SIZES = {**SIZE, **LETTERS, **{f"{letter}i": factor for letter, factor in LETTERS.items()}}
# spellings in any case; logs do not write sizes in bits
_LOWER = {f"{letter}{end}".casefold(): f"{letter}{end}" for letter in LETTERS for end in ("", "B", "iB")}
# numbers with a decimal comma, and points between thousands
COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+(?:,\d+)?|\d+,\d+)")
MAX_COUNT = 1e6
COUNTS = {"milli": 1000.0, "percent": 100.0}  # divisors of counts by unit
EPOCH = ("epoch s", "epoch ms", "epoch us", "epoch ns")
ISO = "iso"

_CLOCK = re.compile(r"(?:(\d+)(?:-| days?,? ))?(\d+)(?::(\d{1,2}))?(?::(\d{1,2}(?:\.\d+)?))?")
_PARTS = re.compile(
    r"(?:(\d+)\s*d(?:ays?)?,?)?\s*(?:(\d+)\s*h(?:(?:ou)?rs?)?)?\s*(?:(\d+)\s*m(?:in(?:ute)?s?)?)?"
    r"\s*(?:(\d+(?:\.\d+)?)\s*s(?:ec(?:ond)?s?)?)?",
    re.IGNORECASE,
)
_ISO_PARTS = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_QUANTITY = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([a-zA-Zµ]+)")
_LONG_FRACTION = re.compile(r"(\.\d{6})\d+")
_OFFSET = re.compile(r"([-+])(\d{2}):?(\d{2})")


def plain(value: Any) -> float:
    """Return a number, or a text of a number, as float; ValueError for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    comma = isinstance(value, str) and (COMMA.fullmatch(value) or NUMBER.fullmatch(value.replace(",", "")))
    hint = '; numbers are written as 1234.5 (a mapped CSV may say decimal: ",")' if comma else ""
    raise ValueError(f"is not a number{hint}")


def number(least: float = 0.0, most: float = MAX_SECONDS, divisor: float = 1.0) -> Cell:
    """Return a cell reader that divides numbers by `divisor` and checks the bounds."""

    def read(value: Any) -> float:
        return bounded(plain(value) / divisor, least, most)

    return read


def bounded(found: float, least: float = 0.0, most: float = MAX_SECONDS) -> float:
    """Return the number if it is within the bounds; else raise ValueError."""
    if not math.isfinite(found):
        raise ValueError("is not finite")
    if found < least:
        raise ValueError("is negative" if least == 0 else f"is below {least:g}")
    if found > most:
        raise ValueError(f"is more than {most:g}")
    return found + 0.0


def scaled(value: Any, factor: float) -> float:
    """Return number · factor.  A factor < 1 is a division: 3 ms is exactly 0.003 s."""
    number = plain(value)
    return number * factor if factor >= 1 else number / round(1 / factor)


# Durations and sizes --------------------------------------------------------------------------------------------


def duration(unit: str | None) -> Cell:
    """Return a cell reader of durations: numbers in the unit, `1-02:03:04` or `5 min`."""
    factor = TIMES[unit or "s"]

    def read(value: Any) -> float:
        if isinstance(value, timedelta):
            if unit is not None:
                raise ValueError(f"is a duration of the file's own type; leave the unit {unit} out")
            return bounded(value.total_seconds())
        if isinstance(value, str) and not NUMBER.fullmatch(value):
            if (seconds := clock(value)) is None:
                seconds = composite(value)
            if seconds is None:
                seconds = _with_unit(value, TIMES, "1-02:03:04, 02:03:04 or 5 min")
            if unit is not None:
                raise ValueError(f"has a unit, but units says {unit}")
            return bounded(seconds)
        return bounded(scaled(value, factor))

    return read


def clock(text: str) -> float | None:
    """Return the seconds of `1-02:03:04`, `02:03:04` or `03:04` (min:s), else None."""
    match = _CLOCK.fullmatch(text)
    if not match or (match[1] is None and match[3] is None):
        return None
    days, *parts = match.groups()
    numbers = [float(part) for part in parts if part is not None]
    if days is None and len(numbers) == 2:
        numbers = [0.0, *numbers]
    hours, minutes, seconds = [*numbers, 0.0, 0.0][:3]
    return float(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def composite(text: str) -> float | None:
    """Return the seconds of `1h30m`, `2 days 3 hours`, `45m` or `PT1H30M`, else None."""
    match = _PARTS.fullmatch(text) or _ISO_PARTS.fullmatch(text)
    if not match or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def count(unit: str | None) -> Cell:
    """Return a reader of counts in `unit` (such as milli); None: cells like 2 or 500m."""
    divisor = COUNTS[unit] if unit else 1.0

    def read(value: Any) -> float:
        if isinstance(value, str) and value.endswith("m") and NUMBER.fullmatch(value[:-1]):
            if unit is not None:
                raise ValueError(f"has a unit, but units says {unit}")
            return bounded(float(value[:-1]) / COUNTS["milli"], most=MAX_COUNT)
        return bounded(plain(value) / divisor, most=MAX_COUNT)

    return read


def with_point(read: Cell) -> Cell:
    """Wrap the cell reader `read` to accept numbers with a decimal comma (`1.234,5`)."""

    def pointed(value: Any) -> float:
        if not isinstance(value, str):
            return read(value)
        if COMMA.fullmatch(value):
            return read(value.replace(".", "").replace(",", "."))
        if "." in value and NUMBER.fullmatch(value):
            raise ValueError('has a decimal point, but the key decimal says ","')
        return read(value)

    return pointed


def decimal_points(cells: Sequence[Any], separator: str = "") -> list[Any]:
    """Replace decimal commas in a column's cells by points.

    If `separator` (of the file's columns) is a comma and each comma in the cells is followed by three digits (`1,234`),
    the commas may mark thousands: nothing is replaced.  ValueError if some numbers have a decimal comma and others a
    point.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    commas = [text for text in texts if "," in text and COMMA.fullmatch(text)]
    if not commas or (separator == "," and all(len(text.rpartition(",")[2]) == 3 for text in commas)):
        return list(cells)
    if any("." in text and "," not in text for text in texts):
        raise ValueError("some numbers have a decimal comma and others a decimal point")
    pointed = {text: text.replace(".", "").replace(",", ".") for text in commas}
    return [pointed.get(cell, cell) if isinstance(cell, str) else cell for cell in cells]


def size(unit: str | None) -> Cell:
    """Return a cell reader of sizes: numbers in the unit, or `16G`, `16GiB`, `16GB`."""
    factor = SIZES[unit or "B"]

    def read(value: Any) -> float:
        if isinstance(value, str) and not NUMBER.fullmatch(value):
            size = _with_unit(value, SIZES, "16G, 16GiB or 16GB")
            if unit is not None:
                raise ValueError(f"has a unit, but units says {unit}")
        else:
            size = scaled(value, factor)
        return float(math.floor(bounded(size, most=MAX_BYTES)))

    return read


def _with_unit(text: str, units: dict[str, float], examples: str) -> float:
    if not (match := _QUANTITY.fullmatch(text)):
        raise ValueError(f"is not a number, nor written as {examples}")
    if units is SIZES and match[2] not in units and match[2].casefold() in _LOWER:
        return scaled(match[1], units[_LOWER[match[2].casefold()]])
    if match[2] not in units:
        raise ValueError(f"has the unknown unit {match[2]}{suggestion(match[2], units)}")
    return scaled(match[1], units[match[2]])


# Instants -------------------------------------------------------------------------------------------------------


def zone_of(name: str) -> tzinfo:
    """Return the named time zone, such as Europe/Berlin or +02:00; else ValueError."""
    if match := _OFFSET.fullmatch(name):
        minutes = int(match[2]) * 60 + int(match[3])
        if minutes >= 24 * 60 or int(match[3]) > 59:
            raise ValueError(f"{shown(name)} is not an offset from UTC")
        return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))
    if name in ("UTC", "Z"):
        return UTC
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        near = suggestion(name, zoneinfo.available_timezones())
        raise ValueError(f"{shown(name)} is not a time zone such as Europe/Berlin, UTC or +02:00{near}") from None


def is_date(form: str) -> bool:
    """Return True if this format of instants is a date, not a number."""
    return form not in TIMES


def check_form(form: str) -> None:
    """Raise ValueError unless `form` is iso, an epoch, a unit or a strptime format."""
    if form == ISO or form in EPOCH or form in TIMES:
        return
    if "%" not in form:
        near = suggestion(form, [ISO, *EPOCH, *TIMES])
        choice = "iso, epoch s (or ms, us, ns), a unit such as s, or a format such as %Y-%m-%d %H:%M:%S"
        raise ValueError(f"{shown(form)} is not a format of times{near or f': {choice}'}")
    parts = set(re.findall(r"%(.)", form))
    if "s" in parts:
        raise ValueError("%s is not supported; use epoch s for seconds since 1970")
    full_date = parts & set("cx") or (parts & set("Yy") and (parts & set("mbB") and "d" in parts or "j" in parts))
    if not full_date:
        raise ValueError(f"{shown(form)} must have a year (%Y), a month (%m) and a day (%d)")
    try:
        sample = datetime(2020, 11, 25, 13, 14, 15, tzinfo=UTC)
        datetime.strptime(sample.strftime(form), form)
    except (ValueError, re.error) as error:
        raise ValueError(f"{shown(form)} is not a format of dates: {error}") from None


class Instants:
    """Reader of instants: dates become seconds since 1970, numbers become seconds.

    A local time that occurs twice when clocks are set back is returned as `Twice`; `skipped` counts local times that do
    not exist, because clocks were set forward.
    """

    def __init__(self, form: str | None, zone: tzinfo | None):
        self.form = form
        self.zone = zone
        self.skipped = 0
        self._slices = None if form is None else _sliced(form)

    def __call__(self, value: Any) -> float:
        form = self.form
        if isinstance(value, datetime):
            if form is not None:
                raise ValueError(f'is a time stamp of the file\'s own type; leave out "time: {form}"')
            return self._seconds(value)
        if form is not None and form in TIMES:
            return bounded(scaled(value, TIMES[form]))
        if form in EPOCH:
            instant = bounded(scaled(value, TIMES[form.removeprefix("epoch ")]))
            if instant >= YEAR_10000:
                raise ValueError(f"is after the year 9999 if read as {form}; give the right unit")
            return instant
        return self._text(value if isinstance(value, str) else str(value))

    def _text(self, text: str) -> float:
        if self.form is None or self.form == ISO:
            if len(text) < 10 or text.isdecimal():
                raise ValueError(_no_date(text))
            try:
                return self._seconds(datetime.fromisoformat(text))
            except (ValueError, OverflowError):
                raise ValueError(_no_date(text)) from None
        if self._slices is not None:
            with suppress(ValueError):
                return self._seconds(self._slices(text))
        try:
            return self._seconds(datetime.strptime(_LONG_FRACTION.sub(r"\1", text), self.form))
        except (ValueError, OverflowError):
            near = [form for form in guess_form([text]) if form != self.form]
            hint = f'; it reads as "{near[0]}"' if near else ""
            raise ValueError(f'is not of the form "{self.form}"{hint}') from None

    def _seconds(self, found: datetime) -> float:
        if found.tzinfo is None and self.zone is not None and self.zone is not UTC:
            here = found.replace(tzinfo=self.zone)
            self.skipped += here.timestamp() > here.replace(fold=1).timestamp()
        return instant_of(found, self.zone)


_WIDTHS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2}


def _sliced(form: str) -> Callable[[str], datetime] | None:
    """Return a fast reader of fixed-width dates; None if `form` has no fixed width."""
    places: dict[str, slice] = {}
    signs: list[tuple[int, str]] = []
    at = 0
    for part, sign in re.findall(r"%(.)|([^%])", form):
        if sign:
            signs.append((at, sign))
            at += 1
        elif part in _WIDTHS and part not in places:
            places[part] = slice(at, at + _WIDTHS[part])
            at += _WIDTHS[part]
        else:
            return None
    if not {"Y", "m", "d"} <= set(places):
        return None
    year, month, day = places["Y"], places["m"], places["d"]
    hour, minute, second = (places.get(part) for part in "HMS")

    def read(text: str) -> datetime:
        if len(text) != at or not text.isascii() or any(text[place] != sign for place, sign in signs):
            raise ValueError(text)
        h, m, s = (0 if one is None else _digits(text[one]) for one in (hour, minute, second))
        return datetime(_digits(text[year]), _digits(text[month]), _digits(text[day]), h, m, s)

    return read


def _digits(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _no_date(text: str) -> str:
    said = "is not a date such as 2020-06-09 18:41:01"
    if NUMBER.fullmatch(text):
        return f"{said}; use time: epoch s for seconds since 1970, time: s for seconds of the log's clock"
    near = guess_form([text])
    return said + (f'; give time: "{near[0]}"' if near and near[0] != ISO else "; time: states how dates are written")


# date formats that logs are known to use
FORMS = tuple(
    f"{date}{gap}{time}"
    for date in ("%Y-%m-%d", "%Y/%m/%d", "%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%d-%m-%Y", "%Y%m%d", "%d-%b-%Y",
                 "%d %b %Y", "%b %d %Y", "%b %d, %Y", "%m/%d/%y", "%d/%m/%y")
    for gap, time in ((" ", "%H:%M:%S"), ("T", "%H:%M:%S"), (" ", "%H:%M:%S.%f"), ("T", "%H:%M:%S.%f"),
                      (" ", "%H:%M"), ("T", "%H:%M"), (" ", "%I:%M:%S %p"), (" ", "%I:%M %p"), ("", ""),
                      (" ", "%H:%M:%S %z"), (" ", "%H%M%S"), ("T", "%H%M%S"))
) + ("%a %b %d %H:%M:%S %Y", "%a %d %b %Y %H:%M:%S", "%a, %d %b %Y %H:%M:%S %z")  # fmt: skip


def guess_form(texts: list[str]) -> list[str]:
    """Return all date formats that fit every one of these texts, `iso` first."""
    return [form for form in (ISO, *FORMS) if all(_fits(text, form) for text in texts)]


def _fits(text: str, form: str) -> bool:
    try:
        if form != ISO:
            datetime.strptime(_LONG_FRACTION.sub(r"\1", text), form)
        elif len(text) < 10 or text.isdecimal() or not datetime.fromisoformat(text):
            return False
    except ValueError:
        return False
    return True
