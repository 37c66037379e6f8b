"""Common code of readers of text files: lines, cells, times, tables, problems."""

import csv
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Iterator, Sequence, Sized
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn

import numpy as np
from pydantic import BeforeValidator, Field

from hetsim.errors import MAX_PROBLEMS, Problem, ScenarioError, suggestion
from hetsim.model.files import check, is_gzip, opened
from hetsim.model.plan import find_cycle
from hetsim.model.units import MAX_SECONDS, TIME, shown

PARQUET = (".parquet", ".pq")
LONGEST_LINE = 16_000_000
NOWHERE = -1.0  # stands for the time of a task that cannot run on the device
YEAR_10000 = 253_402_300_800.0  # seconds since 1970 from which on there are no dates

NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def _names(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list):
        for name in names:
            if not isinstance(name, str) or not name.isprintable() or not name or " " in name:
                raise ValueError(f"must be the name of a type of device; got {shown(name)}")
            if names.count(name) > 1:
                raise ValueError(f"{shown(name)} is given twice; each column needs a different type")
    return names


Flag = Annotated[bool, Field(strict=True)]
Types = Annotated[list[str], Field(min_length=1), BeforeValidator(_names)]


class RowProblems:
    """Problems of one file: the first are listed, the others are only counted."""

    def __init__(self, path: Path):
        self.file = str(path)
        self.problems: list[Problem] = []
        self.unnamed = 0

    def add(self, message: str, line: int | None = None, column: int | None = None) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(message, "", self.file, line=line, column=column))
        else:
            self.unnamed += 1

    def fail_if_any(self) -> None:
        """Raise ScenarioError with all problems, in file order."""
        if not self.problems:
            return
        problems = sorted(self.problems, key=lambda problem: problem.line or 0)
        if self.unnamed:
            more = "1 more problem" if self.unnamed == 1 else f"{self.unnamed:,} more problems"
            problems.append(Problem(f"and {more}", file=self.file))
        raise ScenarioError(problems)


class ReadFile:
    """A file that is read row by row, with the problems of its rows."""

    def __init__(self, path: Path):
        self.path = path
        self.row_problems = RowProblems(path)

    def filled_lines(self, longest: int = LONGEST_LINE) -> Iterator[tuple[int, str]]:
        """Yield number and text of non-blank lines; ScenarioError for an empty file."""
        number = 0
        for number, text in numbered_lines(self.path, longest):
            if text.strip():
                yield number, text
        if not number:
            self.fail("is empty")

    def require(self, rows: Sized, message: str) -> None:
        """Raise ScenarioError with all problems, or with `message` if there are no rows."""
        self.row_problems.fail_if_any()
        if not rows:
            self.fail(message)

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        """Raise ScenarioError now, with all problems recorded so far."""
        self.row_problems.add(message, line)
        self.row_problems.fail_if_any()
        raise AssertionError


def numbered_lines(path: Path, longest: int = -1, keep: bool = False) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line of a gzip or plain file.

    Only one line is in memory.  ScenarioError if the file is not text, has a line of more than `longest` bytes (-1: no
    limit), or is compressed and exceeds the limit of `hetsim.model.files`.  `keep`: the caller stores all lines, so the
    limit of `hetsim.model.files` is checked before the first line is yielded.
    """
    file = str(path)
    number = 0
    try:
        if keep:
            check(path)
        with _opened(path) as stream:
            while raw := stream.readline(longest + 1 if longest >= 0 else -1):
                number += 1
                if 0 <= longest < len(raw):
                    message = f"a line must be at most {longest / 1e6:g} MB"
                    raise ScenarioError(Problem(message, "", file, number))
                yield number, _decoded(raw, number, file)
    except OSError as error:
        raise ScenarioError(Problem(f"cannot be read: {error.strerror or error}", file=file)) from None


def pieces(path: Path, size: int = 1 << 18) -> Iterator[str]:
    """Yield the text of a gzip or plain file in pieces; ScenarioError if unreadable."""
    file, line = str(path), 1
    decode = getincrementaldecoder("utf-8-sig")().decode
    try:
        with _opened(path) as stream:
            while raw := stream.read(size):
                text = decode(raw)
                yield text
                line += text.count("\n")
            decode(b"", True)
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        raise ScenarioError(Problem(_no_utf8(error), "", file, line)) from None
    except OSError as error:
        raise ScenarioError(Problem(f"cannot be read: {error.strerror or error}", file=file)) from None


def _opened(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz" and path.stat().st_size and not is_gzip(path):
        raise ScenarioError(Problem("is not compressed with gzip, although its name ends in .gz", file=str(path)))
    return opened(path)


def _decoded(raw: bytes, number: int, file: str) -> str:
    if number == 1:
        raw = raw.removeprefix(BOM_UTF8)
    try:
        return raw.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ScenarioError(Problem(_no_utf8(error), "", file, line=number, column=error.start + 1)) from None


def _no_utf8(error: UnicodeDecodeError) -> str:
    wide = error.object.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in error.object[:100]
    what = "it looks like UTF-16" if wide else f"byte 0x{error.object[error.start]:02x}"
    return f"is not UTF-8 text ({what}); save it as UTF-8"


def lines_of(path: Path) -> list[str]:
    """Return the lines of a gzip or plain text file; ScenarioError if unreadable."""
    lines = [line for _, line in numbered_lines(path, keep=True)]
    if not any(map(str.strip, lines)):
        raise ScenarioError(Problem("has no rows" if lines else "is empty", file=str(path)))
    return lines


def cells_of(lines: list[str]) -> list[tuple[int, list[str]]]:
    """Return number (from 1) and cells of each line, except blank and # lines."""
    split = ((number, line.split()) for number, line in enumerate(lines, start=1))
    return [(number, cells) for number, cells in split if cells and not cells[0].startswith("#")]


def place(line: str, cell: int) -> int:
    """Return the column (from 1) of a line at which cell `cell` (from 0) begins."""
    for number, match in enumerate(re.finditer(r"\S+", line)):
        if number == cell:
            return match.start() + 1
    return len(line) + 1


def time_of(cell: str, unit: str) -> tuple[float, str]:
    """Return the seconds in a cell (inf for -1), and a problem ("": none)."""
    if not NUMBER.fullmatch(cell):
        hint = f"; {NOWHERE:g} means that the task cannot run there" if cell.lower().lstrip("+-") == "inf" else ""
        return np.inf, f"{shown(cell)} is not a number{hint}"
    number = float(cell)
    if number == NOWHERE:
        return np.inf, ""
    if number < 0:
        return np.inf, f"{shown(cell)} is negative; only {NOWHERE:g} (cannot run there) may be"
    factor = TIME[unit]
    seconds = number * factor if factor >= 1 else number / round(1 / factor)  # 3 ms must be the float 0.003
    if seconds > MAX_SECONDS:
        return np.inf, f"{shown(cell)} is more than {MAX_SECONDS:g} s"
    return seconds + 0.0, ""


def circle(predecessors: Sequence[Sequence[int]], ids: Sequence[Any] | np.ndarray) -> tuple[int, str] | None:
    """Return a task in a cycle of predecessors, and a message; None without a cycle."""
    if not (cycle := find_cycle(predecessors)):
        return None
    around = [str(ids[row]) for row in reversed(cycle)]  # from a predecessor to what waits for it
    if len(around) > 12:
        around = [*around[:10], f"… ({len(around) - 11:,} more)", around[-1]]
    return cycle[-1], f"the graph has a cycle: these tasks wait for each other: {' → '.join(around)}"


class Twice(float):
    """The earlier instant of an ambiguous local time; `later` is the later instant."""

    later = 0.0


def instant_of(found: datetime, zone: tzinfo | None) -> float:
    """Return a date as seconds since 1970.

    A date without a time zone is read in `zone` (None: UTC).  If it occurs twice there, because clocks were set back,
    the result is a `Twice`: a float with the earlier instant, whose attribute `later` is the later one.
    """
    if found.tzinfo is not None:
        return found.timestamp()
    here = found.replace(tzinfo=zone or UTC)
    first, second = here.timestamp(), here.replace(fold=1).timestamp()
    if first >= second:
        return first
    twice = Twice(first)
    twice.later = second
    return twice


def written(cell: Any) -> str:
    """Return a cell as text; a whole number stored as a float has no point."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def column_of(kind: str) -> str:
    """Return the name of the task-table column with times on a device type (`kind`)."""
    return {"cpu": "cpu_time", "gpu": "gpu_time"}.get(kind, f"gpu_time.{kind}")


# Tables of separated values, row by row, with addresses of problems.


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


class CsvTable:
    """Rows of a CSV file: cells of the columns `needed` and, if present, `optional`."""

    def __init__(
        self, log: ReadFile, needed: tuple[str, ...], optional: tuple[str, ...] = (), separator: str = ",",
        header: tuple[str, ...] | None = None, longest: int = LONGEST_LINE,
    ):  # fmt: skip
        self.log = log
        self.separator = separator
        self.rows = ((number, line) for number, line in numbered_lines(log.path, longest) if line.strip())
        self.text = ""  # the row as it stands in the file
        if header is None:
            if (first := next(self.rows, None)) is None:
                log.fail("has no rows" if log.path.stat().st_size else "is empty")
            header = tuple(cell.strip() for cell in self._split(*first) or [])
            self._check(header, first[0], needed)
        elif not log.path.stat().st_size:
            log.fail("is empty")
        self.width = len(header)
        places = {name.casefold(): place for place, name in enumerate(header)}
        self.names = (*needed, *optional)
        self.places = [places.get(name.casefold()) for name in self.names]
        self.has = {name: name.casefold() in places for name in self.names}

    def _check(self, header: tuple[str, ...], line: int, needed: tuple[str, ...]) -> None:
        lower = [name.casefold() for name in header]
        missing = [name for name in needed if name.casefold() not in lower]
        for other, word in SEPARATORS.items():
            if missing and other != self.separator and len(header) == 1 and other in header[0]:
                self.log.fail(f"its columns are separated by {word}; use {SEPARATORS[self.separator]}", line)
        if missing and all(NUMBER.fullmatch(cell) for cell in header):
            self.log.fail(f"the first line is a row of numbers; there must be a header with {', '.join(needed)}", line)
        if len(set(lower)) < len(lower):
            self.log.fail("column names must be unique", line)
        for name in missing:
            near = suggestion(name, header) or f"; there are {', '.join(shown(one) for one in header[:12])}"
            self.log.row_problems.add(f'no column "{name}"{near}', line)
        self.log.row_problems.fail_if_any()

    def _split(self, number: int, line: str) -> list[str] | None:
        line = line.rstrip("\r")
        if '"' not in line:
            return line.split(self.separator)
        try:
            return next(csv.reader([line], delimiter=self.separator, strict=True))
        except csv.Error as error:
            self.log.row_problems.add(f"cannot be read as a row of cells: {error}", number)
            return None

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        width, places = self.width, self.places
        for number, line in self.rows:
            if (cells := self._split(number, line)) is None:
                continue
            if len(cells) != width:
                has = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
                self.log.row_problems.add(f"the row has {has}; there must be {width}", number)
                continue
            self.text = line
            yield number, ["" if place is None else cells[place].strip() for place in places]
