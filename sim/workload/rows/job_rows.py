"""What readers of clusters' job logs have in common: rows to columns, cut and sampled, with a count of what is not.

All these readers know the options

    since, until    only jobs submitted in this window of the log's own time; `since` becomes time 0.  Where the log
                    has dates its time 0 is the first submission, and a date (and time) may be given as well
    sample          the share of the jobs that is kept, chosen by a hash of the job's id (and `sample_seed`): the same
                    jobs in whatever order the rows stand, and a load of the same shape at that share of its height
    warm_start      begins with what the log has in the cluster at `since`: jobs that run then start at time 0 with what
                    they have left, those that wait come a millisecond later; the column `at_cut` is 1 and 2 for them
    trim            leaves out the almost empty head of a log: jobs before the instant at which their rate jumps to
                    more than ten times what it was (the most likely change point of two constant rates)
    time_scale      what the submissions are multiplied by after that; 0.5 doubles the rate
    estimates       `trace`: policies see what the users asked for, where the log tells; `perfect`: the true times.
                    An error model of one's own stands in the entry (`estimates:`), beside `perfect` here
    types           names of the log's GPU types in the cluster: {V100M32: v100}

Rows are read one by one; those left out leave nothing behind but a count.  What is kept takes 8 bytes a number and
column, and its id; for logs larger than memory it waits on disk (`Parts`).  A cell that cannot be read is an error with
its line; a job that the log itself knows nothing of (it never started, say) is left out and counted in the notes of the
table.
"""

from __future__ import annotations

import csv
import inspect
import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field, PlainValidator, WithJsonSchema

from sim.errors import Problem, ScenarioError, suggestion
from sim.model.paths import ExistingFile
from sim.model.units import MOST_SECONDS, TIME, parse, shown
from sim.workload.rows.job_columns import Blocks
from sim.workload.rows.job_tables import Assembly
from sim.workload.rows.request_rows import SampleSeed, Scale, Share
from sim.workload.rows.text_rows import NUMBER, Complaints, Flag, numbered_lines
from sim.workload.traces import TaskTable

LONGEST_LINE = 16_000_000
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

Named = Annotated[str, Field(min_length=1)]
TypeNames = dict[Named, Named]
Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]

_CALENDAR = re.compile(r"\s*\d{4}-\d{1,2}-\d{1,2}(?!\d)")


class Date(float):
    """An instant of the calendar, in seconds since 1970, where otherwise seconds of a log's own time stand."""

    zoned = False
    """Was it written with a zone?  Otherwise it is taken as UTC."""

    def naive(self) -> datetime:
        """The date and time as a clock of its zone shows it."""
        return datetime.fromtimestamp(self, UTC).replace(tzinfo=None)


def _moment(value: Any) -> float:
    if not isinstance(value, str) or not _CALENDAR.match(value):
        return parse(value, TIME, "5 s", most=MOST_SECONDS)
    try:
        found = Date(seconds_of(value.strip()))
        found.zoned = datetime.fromisoformat(value.strip()).tzinfo is not None
        return found
    except (ValueError, OverflowError):
        raise ValueError(f"{shown(value)} is not a date such as 2020-06-09 or 2020-06-09 18:41:01") from None


_EXAMPLES = {"anyOf": [{"type": "string", "examples": ["5 s", "2020-06-09 18:41:01"]}, {"const": 0}]}
Moment = Annotated[float, PlainValidator(_moment), WithJsonSchema(_EXAMPLES)]
"""Seconds of a log's own time, or a date."""


@dataclass(frozen=True)
class Cut:
    """The options of all readers; see the module."""

    since: Moment = 0.0
    until: Moment | None = None
    sample: Share = 1.0
    sample_seed: SampleSeed = 0
    trim: Flag = False
    warm_start: Flag = False
    time_scale: Scale = 1.0
    estimates: Literal["trace", "perfect"] = "trace"
    types: TypeNames | None = None


def job_log(read: Callable[..., TaskTable | JobLog]) -> Callable[..., TaskTable]:
    """A reader `read(log, options of its own)` as a reader of a path that knows the common options too.

    It gives a table, or (annotated so) the log itself, whose table is meant.  The latter can also be read in parts:
    `reader.parts(folder, path, **options)`, see `Parts`.
    """

    def log_of(path: Path, given: dict[str, Any], folder: Path | None = None) -> JobLog:
        common = {option.name: given.pop(option.name) for option in fields(Cut) if option.name in given}
        return JobLog(Path(path), Cut(**common), folder)

    @wraps(read)
    def reader(path: Path, **given: Any) -> TaskTable:
        found = read(log_of(path, given), **given)
        return found.table() if isinstance(found, JobLog) else found

    def parts(folder: Path, path: Path, **given: Any) -> Parts:
        log = log_of(path, given, folder)
        try:
            read(log, **given)
            return Parts(log)
        except BaseException:
            log.blocks.close()
            raise

    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(read, eval_str=True)
    own = list(signature.parameters.values())[1:]
    common = inspect.signature(Cut, eval_str=True).parameters.values()
    path = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ExistingFile)
    reader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [path, *(one.replace(kind=keyword) for one in [*own, *common])], return_annotation=TaskTable
    )
    if signature.return_annotation is JobLog:
        reader.parts = parts  # type: ignore[attr-defined]
    return reader


class Parts:
    """The tasks of a log as tables on end, for logs larger than memory: together they are the table of the whole.

    Rows wait on disk, in a nameless file in a folder, until all are known.  `notes` are complete once the tables are
    through.
    """

    def __init__(self, log: JobLog):
        self._blocks = log.blocks
        self._assembly = Assembly(log)
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[TaskTable]:
        try:
            yield from self._assembly.tables()
            self.notes = self._assembly.notes()
        finally:
            self.close()

    def close(self) -> None:
        self._blocks.close()


class JobLog:
    """The jobs of one file as growing columns, in memory or (where a folder is given) on disk.

    `dated`: are its times dates, so that time 0 is the first submission?  `unique`: leave out repeated rows.
    `times`: the columns that hold times by device, and their names in the table; then `duration` means nothing.
    """

    def __init__(self, path: Path, cut: Cut, folder: Path | None = None):
        self.path = path
        self.cut = cut
        self.dated = False
        self.origin: float | None = None
        """Where times are no dates: which date (seconds since 1970) their 0 is, if the log tells."""
        self.unique = False
        self.complaints = Complaints(path)
        self.notes: list[str] = []
        self.word = "line"
        """What the number of a row counts."""
        self.seen = 0
        """Rows that stand for jobs, those left out included."""
        self.left_out: dict[str, list[int]] = {}
        """Jobs by reason: how many, and the first line."""
        self.passed_over: dict[str, list[int]] = {}
        """Rows that are no jobs of their own, in the same way."""
        self.first = math.inf
        """The first submission, where times are dates."""
        self.times: dict[str, str] = {}
        self.keys = array("q")
        """By which repeated rows are told."""
        self.blocks = Blocks(folder)
        self._block, self._most = self.blocks.current, self.blocks.most
        self._remarks: dict[str, list[int]] = {}
        self._bounds: tuple[float, float] | None = None
        if cut.warm_start and not cut.since:
            self.fail("warm_start needs since: the instant at which the replay begins, in the midst of the log")
        if cut.warm_start and cut.trim:
            self.fail("trim cuts off a head in which nothing runs; warm_start is for a cut in the midst of a log")
        alike = isinstance(cut.until, Date) == isinstance(cut.since, Date)
        if cut.until is not None and alike and cut.until <= cut.since:
            self.fail(f"until ({_written(cut.until)}) must be after since ({_written(cut.since)})")

    # Rows -----------------------------------------------------------------------------------------------------

    def wrong(self, line: int | None, column: str, message: str) -> None:
        self.complaints.add(f"column {column}: {message}" if column else message, line)

    def fail(self, message: str, line: int | None = None) -> NoReturn:
        """Stop at once, with everything that is known to be wrong."""
        self.complaints.add(message, line)
        self.complaints.fail_if_any()
        raise AssertionError

    def leave_out(self, reason: str, line: int) -> None:
        """A job of the log that is not among the tasks, and why."""
        self.seen += 1
        _count(self.left_out, reason, line)

    def pass_over(self, what: str, line: int) -> None:
        """A row that is no job of its own: a step or a part of one, say."""
        _count(self.passed_over, what, line)

    def remark(self, what: str, line: int) -> None:
        """Something to be counted about a job that is kept."""
        _count(self._remarks, what, line)

    def add(
        self, line: int, id_: Any, arrival: float, duration: float, key: Any = None, **columns: float | str
    ) -> None:
        """A job; `columns` are numbers and texts by name: those of a task table, `start` and `estimate` in seconds
        (NaN: unknown), `devices` (types separated by |), or further ones, which are carried along.  `key`: the text by
        which samples and repetitions are told, where it is not the id.
        """
        self.seen += 1
        cut = self.cut
        if self.dated:
            self.first = min(self.first, arrival)
            if cut.until is not None and arrival - (0.0 if isinstance(cut.until, Date) else self.first) >= cut.until:
                _count(self.left_out, "outside the window", line)
                return
        elif not (window := self._bounds or self.window())[0] <= arrival < window[1] and not (
            cut.warm_start and arrival < window[0] < columns.get("start", -math.inf) + duration  # type: ignore[operator]
        ):
            _count(self.left_out, "outside the window", line)
            return
        if cut.sample < 1 and _hash(str(id_) if key is None else key, cut.sample_seed) >= cut.sample * 2**63:
            _count(self.left_out, "not in the sample", line)
            return
        if self.unique:
            self.keys.append(_hash(str(id_) if key is None else key, 0))
        self._block.add(line, id_, arrival, duration, columns)
        if len(self._block) >= self._most:
            self._block = self.blocks.next()

    def window(self) -> tuple[float, float]:
        """`since` and `until` in seconds from the log's time 0, once all rows of a log with dates have been read."""
        zero = self.origin if not self.dated else self.first if math.isfinite(self.first) else 0.0
        bounds = []
        for key, given in (("since", self.cut.since), ("until", self.cut.until)):
            if isinstance(given, Date) and zero is None:
                told = f"{key}: this log has no dates to compare {_written(given)} with"
                self.fail(f"{told}; give seconds from its start, such as 3600 s")
            bounds.append(math.inf if given is None else given - zero if isinstance(given, Date) and zero else given)
        low, high = bounds
        if high <= low:
            began = "" if zero is None else f", and the log's time 0 is {_written(Date(zero))}"
            self.fail(f"until ({_written(self.cut.until)}) is not after since ({_written(self.cut.since)}){began}")
        self._bounds = float(low), float(high)
        return self._bounds

    # Cells ----------------------------------------------------------------------------------------------------

    def number(self, line: int, column: str, cell: str, blank: float | None = None, least: float = 0.0) -> float | None:
        """The number in a cell; None, and a complaint, if there is none.  `blank`: what an empty cell means."""
        if not cell and blank is not None:
            return blank
        if not NUMBER.fullmatch(cell):
            self.wrong(line, column, f"{shown(cell)} is not a number" if cell else "the cell is empty")
            return None
        found = float(cell)
        if found < least:
            low = "negative" if least == 0 else f"below {least:g}"
            self.wrong(line, column, f"{shown(cell)} is {low}")
            return None
        if found > MOST_SECONDS:
            self.wrong(line, column, f"{shown(cell)} is more than {MOST_SECONDS:g}")
            return None
        return found

    def date(self, line: int, column: str, cell: str) -> float | None:
        """Seconds since 1970 of a date and time, without a zone as if in UTC; None, and a complaint, otherwise."""
        try:
            return seconds_of(cell)
        except (ValueError, OverflowError):
            example = "2020-06-09 18:41:01"
            message = f"{shown(cell)} is not a time such as {example}" if cell else "the time is missing"
            self.wrong(line, column, message)
            return None

    # The table ------------------------------------------------------------------------------------------------

    def table(self) -> TaskTable:
        """What the options leave; ScenarioError with all that is wrong."""
        assembly = Assembly(self)
        (table,) = assembly.tables()
        table.notes += assembly.notes()
        return table

    def told(self) -> list[str]:
        """What was left out, and what is to be known of what was kept."""
        told = []
        for what, (count, line) in self.passed_over.items():
            first = f"(first: {self.word} {line})"
            told.append(f"{self.path}: {count:,} rows that are no jobs of their own: {what} {first}")
        for reason, (count, line) in self.left_out.items():
            told.append(f"{self.path}: {count:,} of {self.seen:,} jobs left out: {reason} (first: {self.word} {line})")
        for what, (count, line) in self._remarks.items():
            told.append(f"{self.path}: {count:,} of {self.seen:,} jobs {what} (first: {self.word} {line})")
        return told + self.notes


def _written(given: float | None) -> str:
    """A bound of the window, for people."""
    if isinstance(given, Date):
        return f"{datetime.fromtimestamp(given, UTC):%Y-%m-%d %H:%M:%S}"
    return f"{given:g} s"


def _count(counts: dict[str, list[int]], reason: str, line: int) -> None:
    known = counts.get(reason)
    if known is None:
        counts[reason] = [1, line]
    else:
        known[0] += 1


def _hash(text: str, seed: int) -> int:
    """63 bits that depend on nothing but text and seed."""
    digest = blake2b(text.encode(), digest_size=8, salt=(seed % 2**64).to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") >> 1


def seconds_of(text: str) -> float:
    """Seconds since 1970 of an ISO date and time; ValueError if it is none."""
    if len(text) < 10:
        raise ValueError(text)
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return found.timestamp()


# Cells by column ------------------------------------------------------------------------------------------------


class Table:
    """The rows of a file with one separator, as cells of the columns that are asked for, in that order.

    `header`: the names of the columns where the file itself does not tell them.
    """

    def __init__(
        self,
        log: JobLog,
        needed: tuple[str, ...],
        optional: tuple[str, ...] = (),
        separator: str = ",",
        header: tuple[str, ...] | None = None,
    ):
        self.log = log
        self.separator = separator
        self.rows = ((number, line) for number, line in numbered_lines(log.path, LONGEST_LINE) if line.strip())
        self.text = ""
        """The row as it stands in the file."""
        if header is None:
            first = next(self.rows, None)
            if first is None:
                log.fail("has no rows" if log.path.stat().st_size else "is empty")
            header = tuple(cell.strip() for cell in self._split(*first) or [])
            self._check(header, first[0], needed)
        elif not log.path.stat().st_size:
            log.fail("is empty")
        self.width = len(header)
        known = {name.casefold(): place for place, name in enumerate(header)}
        self.places = [known.get(name.casefold()) for name in (*needed, *optional)]
        self.has = {name: name.casefold() in known for name in (*needed, *optional)}

    def _check(self, header: tuple[str, ...], line: int, needed: tuple[str, ...]) -> None:
        lower = [name.casefold() for name in header]
        missing = [name for name in needed if name.casefold() not in lower]
        for other, word in SEPARATORS.items():
            if missing and other != self.separator and len(header) == 1 and other in header[0]:
                self.log.fail(f"its columns are separated by {word}, expected are {SEPARATORS[self.separator]}", line)
        if missing and all(NUMBER.fullmatch(cell) for cell in header):
            self.log.fail(f"the first line is a row of numbers; expected is a header with {', '.join(needed)}", line)
        if len(set(lower)) < len(lower):
            self.log.fail("two columns have one name", line)
        for name in missing:
            near = suggestion(name, header) or f"; there are {', '.join(shown(one) for one in header[:12])}"
            self.log.complaints.add(f'no column "{name}"{near}', line)
        self.log.complaints.fail_if_any()

    def _split(self, number: int, line: str) -> list[str] | None:
        line = line.rstrip("\r")
        if '"' not in line:
            return line.split(self.separator)
        try:
            return next(csv.reader([line], delimiter=self.separator, strict=True))
        except csv.Error as error:
            self.log.complaints.add(f"cannot be read as a row of cells: {error}", number)
            return None

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        width, places = self.width, self.places
        for number, line in self.rows:
            cells = self._split(number, line)
            if cells is None:
                continue
            if len(cells) != width:
                has = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
                self.log.complaints.add(f"the row has {has}, expected are {width}", number)
                continue
            self.text = line
            yield number, ["" if place is None else cells[place].strip() for place in places]


def problem_of(path: Path, message: str, line: int | None = None) -> ScenarioError:
    return ScenarioError(Problem(message, file=str(path), line=line))
