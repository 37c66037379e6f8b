"""Common options of readers of job logs, and the conversion of rows to columns.

All these readers have the options

    since, until    read only jobs submitted in this window of the log's own time; `since` becomes time 0.  If the log
                    has dates, its time 0 is the first submission, and the options may be dates (and times)
    sample          the share of jobs that is read, chosen by a hash of the job's id (and `sample_seed`): always the
                    same jobs, whatever the order of the rows
    warm_start      begin with the jobs in the cluster at `since`: running jobs start at time 0 with their remaining
                    time, waiting jobs arrive a millisecond later; the column `at_cut` is 1 for running, 2 for waiting
    time_scale      factor on the submission times after `since`; 0.5 doubles the rate
    estimates       `trace`: policies see the users' requested times, if the log has them; `perfect`: the true times.
                    For another error model set `perfect` here, and `estimates:` in the entry of the workload
    types           the cluster's GPU types by their names in the log: {V100M32: v100}

Rows are read one by one; skipped rows are only counted.  A row takes 8 bytes per number and column, and its id; rows
of logs larger than memory are stored on disk (`TableParts`).  An unreadable cell is an error that names its line; a job
for which the log itself has no values (it never started, for example) is skipped and counted in the table's notes.
"""

import math
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from hetsim.model.units import MAX_SECONDS, TIME, Share, parse, shown
from hetsim.workload.rows.job_columns import Blocks
from hetsim.workload.rows.request_rows import SampleSeed, Scale
from hetsim.workload.rows.text_rows import NUMBER, Flag, ReadFile, instant_of

Named = Annotated[str, Field(min_length=1)]
TypeNames = dict[Named, Named]
Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]

_CALENDAR = re.compile(r"\s*\d{4}-\d{1,2}-\d{1,2}(?!\d)")


class Date(float):
    """An instant given as a date, in seconds since 1970."""

    zoned = False  # written with a zone; a date without a zone is UTC

    def naive(self) -> datetime:
        """Return the date and time in the date's own zone, without the zone."""
        return datetime.fromtimestamp(self, UTC).replace(tzinfo=None)


def _moment(value: Any) -> float:
    if not isinstance(value, str) or not _CALENDAR.match(value):
        return parse(value, TIME, "5 s", most=MAX_SECONDS)
    try:
        date = Date(seconds_of(value.strip()))
        date.zoned = datetime.fromisoformat(value.strip()).tzinfo is not None
        return date
    except (ValueError, OverflowError):
        raise ValueError(f"{shown(value)} is not a date such as 2020-06-09 or 2020-06-09 18:41:01") from None


_EXAMPLES = {"anyOf": [{"type": "string", "examples": ["5 s", "2020-06-09 18:41:01"]}, {"const": 0}]}
Moment = Annotated[float, PlainValidator(_moment), WithJsonSchema(_EXAMPLES)]  # seconds of a log's own time, or a date


@dataclass(frozen=True)
class LogCut:
    """Options of all job log readers, such as `since`; the module's docstring has all."""

    since: Moment = 0.0
    until: Moment | None = None
    sample: Share = 1.0
    sample_seed: SampleSeed = 0
    warm_start: Flag = False
    time_scale: Scale = 1.0
    estimates: Literal["trace", "perfect"] = "trace"
    types: TypeNames | None = None


class JobLog(ReadFile):
    """The jobs of one file as columns that grow, in memory or on disk.

    `dated`: times are dates, and time 0 is the first submission.  `unique`: skip repeated rows.  `times`: columns with
    run times on one device type, as name in the log -> name in the task table; if there are any, `duration` is ignored.
    """

    def __init__(self, path: Path, cut: LogCut, folder: Path | None = None):
        super().__init__(path)
        self.cut = cut
        self.dated = False
        # date (seconds since 1970) of time 0 in a log without dates, if the log states it
        self.origin: float | None = None
        self.unique = False
        self.notes: list[str] = []
        self.word = "line"  # what the number of a row counts
        self.seen = 0  # rows that stand for jobs, those left out included
        self.left_out: dict[str, list[int]] = {}  # jobs by reason: how many, and the first line
        self.passed_over: dict[str, list[int]] = {}  # rows that are not jobs of their own, in the same way
        self.first = math.inf  # the first submission, where times are dates
        self.times: dict[str, str] = {}
        self.keys = array("q")  # by which repeated rows are told
        self.blocks = Blocks(folder)
        self._block, self._most = self.blocks.current, self.blocks.most
        self._remarks: dict[str, list[int]] = {}
        self._bounds: tuple[float, float] | None = None
        self._added = 0
        self.zone: tzinfo | None = None  # of dates that name none, where it is not UTC
        self.one_row_each = False  # True if several rows with one id are an error
        if cut.warm_start and not cut.since:
            self.fail("warm_start needs since: the time within the log at which the replay begins")
        alike = isinstance(cut.until, Date) == isinstance(cut.since, Date)
        if cut.until is not None and alike and cut.until <= cut.since:
            self.fail(f"until ({_written(cut.until)}) must be after since ({_written(cut.since)})")

    # Rows -----------------------------------------------------------------------------------------------------

    def wrong(self, line: int | None, column: str, message: str) -> None:
        self.row_problems.add(f"column {column}: {message}" if column else message, line)

    def leave_out(self, reason: str, line: int) -> None:
        """Count a job of the log that does not become a task, with the reason."""
        self.seen += 1
        _count(self.left_out, reason, line)

    def pass_over(self, what: str, line: int) -> None:
        """Count a row that is not a job itself: a step or a part of a job."""
        _count(self.passed_over, what, line)

    def remark(self, what: str, line: int) -> None:
        """Count a problem (`what`) of a job that is kept; a note will state the count."""
        _count(self._remarks, what, line)

    def add(
        self, line: int, id_: Any, arrival: float, duration: float, key: Any = None, whole: Any = None,
        **columns: float | str | None,
    ) -> int:  # fmt: skip
        """Add a job; return its row, or -1 if it is skipped.

        `columns` are numbers and texts by name: those of a task table, `start` and `estimate` in seconds (NaN:
        unknown), `devices` (types separated by |), or other columns, which are copied; empty texts and None are not
        stored.  `key`: the text whose hash decides whether the job is in the sample (None: the id).  `whole`: of rows
        with the same text only the first is used (None: the key).
        """
        self.seen += 1
        cut = self.cut
        if self.dated:
            self.first = min(self.first, arrival)
            if cut.until is not None and arrival - (0.0 if isinstance(cut.until, Date) else self.first) >= cut.until:
                _count(self.left_out, "outside the window", line)
                return -1
        elif not (window := self._bounds or self.window())[0] <= arrival < window[1] and not (
            cut.warm_start and arrival < window[0] < columns.get("start", -math.inf) + duration  # type: ignore[operator]
        ):
            _count(self.left_out, "outside the window", line)
            return -1
        if cut.sample < 1 and _hash(str(id_) if key is None else key, cut.sample_seed) >= cut.sample * 2**63:
            _count(self.left_out, "not in the sample", line)
            return -1
        if self.unique:
            self.keys.append(_hash(whole or (str(id_) if key is None else key), 0))
        self._block.add(line, id_, arrival, duration=duration, columns=columns)
        if len(self._block) >= self._most:
            self._block = self.blocks.next()
        self._added += 1
        return self._added - 1

    def window(self) -> tuple[float, float]:
        """Return `since`, `until` in log time (s); a log with dates must be read before."""
        zero = self.origin if not self.dated else self.first if math.isfinite(self.first) else 0.0
        bounds = []
        for key, given in (("since", self.cut.since), ("until", self.cut.until)):
            if isinstance(given, Date) and zero is None:
                text = f"{key}: this log has no dates to compare {_written(given)} with"
                self.fail(f"{text}; give seconds from its start, such as 3600 s")
            bounds.append(math.inf if given is None else given - zero if isinstance(given, Date) and zero else given)
        low, high = bounds
        if high <= low:
            began = "" if zero is None else f", and the log's time 0 is {_written(Date(zero))}"
            self.fail(f"until ({_written(self.cut.until)}) is not after since ({_written(self.cut.since)}){began}")
        self._bounds = float(low), float(high)
        return self._bounds

    # Cells ----------------------------------------------------------------------------------------------------

    def number(self, line: int, column: str, cell: str, blank: float | None = None, least: float = 0.0) -> float | None:
        """Return the number in a cell, or `blank` if it is empty.

        If the cell is not a number of at least `least`, record a problem and return None.
        """
        if not cell and blank is not None:
            return blank
        if not NUMBER.fullmatch(cell):
            self.wrong(line, column, f"{shown(cell)} is not a number" if cell else "the cell is empty")
            return None
        number = float(cell)
        if number < least:
            low = "negative" if least == 0 else f"below {least:g}"
            self.wrong(line, column, f"{shown(cell)} is {low}")
            return None
        if number > MAX_SECONDS:
            self.wrong(line, column, f"{shown(cell)} is more than {MAX_SECONDS:g}")
            return None
        return number

    def numbers(
        self, line: int, columns: Sequence[str], cells: Sequence[str], blank: float | None = None, least: float = 0.0
    ) -> list[float] | None:
        """Return the numbers in several cells (see `number`); None if any cell is wrong."""
        values = [self.number(line, *one, blank, least) for one in zip(columns, cells, strict=True)]
        given = [value for value in values if value is not None]
        return given if len(given) == len(values) else None

    def date(self, line: int, column: str, cell: str) -> float | None:
        """Return a date (UTC without a zone) as seconds since 1970; None after a problem."""
        try:
            return seconds_of(cell, self.zone)
        except (ValueError, OverflowError):
            example = "2020-06-09 18:41:01"
            message = f"{shown(cell)} is not a time such as {example}" if cell else "the time is missing"
            self.wrong(line, column, message)
            return None

    def summary(self) -> list[str]:
        """Return sentences on skipped rows, and remarks on the rows that were read."""
        jobs = f"of {self.seen:,} jobs"
        counts = {f"rows that are not separate jobs: {what}": count for what, count in self.passed_over.items()}
        counts |= {f"{jobs} left out: {reason}": count for reason, count in self.left_out.items()}
        counts |= {f"{jobs} {what}": count for what, count in self._remarks.items()}
        first = f"first: {self.word}"
        return [*(f"{self.path}: {n:,} {what} ({first} {line})" for what, (n, line) in counts.items()), *self.notes]


def out_of_order(came: float, began: float, ended: float) -> str:
    """Return why a job with these times is skipped, or "" if they are in order."""
    if ended < began:
        return "ended before they began"
    return "began before their submission" if began < came else ""


def _written(given: float | None) -> str:
    if isinstance(given, Date):
        return f"{datetime.fromtimestamp(given, UTC):%Y-%m-%d %H:%M:%S}"
    return f"{given:g} s"


def _count(counts: dict[str, list[int]], reason: str, line: int) -> None:
    counts.setdefault(reason, [0, line])[0] += 1


def _hash(text: str, seed: int) -> int:
    digest = blake2b(text.encode(), digest_size=8, salt=(seed % 2**64).to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") >> 1


def seconds_of(text: str, zone: tzinfo | None = None) -> float:
    """Return the seconds since 1970 of an ISO date and time; else ValueError."""
    if len(text) < 10:
        raise ValueError(text)
    return instant_of(datetime.fromisoformat(text), zone)


def number_or_text(text: str) -> int | str:
    """Return an id as a number if it is written like one."""
    return int(text) if text.isdecimal() and len(text) < 16 and str(int(text)) == text else text
