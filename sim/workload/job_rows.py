"""What readers of clusters' job logs have in common: rows to columns, cut and sampled, with a count of what is not.

All these readers know the options

    since, until    only jobs submitted in this window of the log's own time; `since` becomes time 0.  Where the log
                    has dates its time 0 is the first submission
    sample          the share of the jobs that is kept, chosen by a hash of the job's id (and `sample_seed`): the same
                    jobs in whatever order the rows stand, and a load of the same shape at that share of its height
    trim            leaves out the almost empty head of a log: jobs before the instant at which their rate jumps to
                    more than ten times what it was (the most likely change point of two constant rates)
    time_scale      what the submissions are multiplied by after that; 0.5 doubles the rate
    estimates       `trace`: policies see what the users asked for, where the log tells; `perfect`: the true times.
                    An error model of one's own stands in the entry (`estimates:`), beside `perfect` here
    types           names of the log's GPU types in the cluster: {V100M32: v100}

Rows are read one by one; those left out leave nothing behind but a count.  What is kept takes 8 bytes a number and
column, and its id.  A cell that cannot be read is an error with its line; a job that the log itself knows nothing of
(it never started, say) is left out and counted in the notes of the table.
"""

from __future__ import annotations

import csv
import inspect
import math
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import partial, wraps
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
from pydantic import Field

from sim.errors import Problem, ScenarioError, suggestion
from sim.model.paths import ExistingFile
from sim.model.units import MOST_SECONDS, Seconds, shown
from sim.workload.request_rows import SampleSeed, Scale, Share
from sim.workload.text_rows import NUMBER, Complaints, Flag, numbered_lines
from sim.workload.traces import NUMBERS, TaskTable

LONGEST_LINE = 16_000_000
JUMP = 10.0
"""How much denser arrivals must become for what comes before to be an empty head."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}

Named = Annotated[str, Field(min_length=1)]
TypeNames = dict[Named, Named]
Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]


@dataclass(frozen=True)
class Cut:
    """The options of all readers; see the module."""

    since: Seconds = 0.0
    until: Seconds | None = None
    sample: Share = 1.0
    sample_seed: SampleSeed = 0
    trim: Flag = False
    time_scale: Scale = 1.0
    estimates: Literal["trace", "perfect"] = "trace"
    types: TypeNames | None = None


def job_log(read: Callable[..., TaskTable]) -> Callable[..., TaskTable]:
    """A reader `read(log, options of its own)` as a reader of a path that knows the common options too."""

    @wraps(read)
    def reader(path: Path, **given: Any) -> TaskTable:
        common = {option.name: given.pop(option.name) for option in fields(Cut) if option.name in given}
        return read(JobLog(Path(path), Cut(**common)), **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = list(inspect.signature(read, eval_str=True).parameters.values())[1:]
    common = inspect.signature(Cut, eval_str=True).parameters.values()
    path = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ExistingFile)
    reader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [path, *(one.replace(kind=keyword) for one in [*own, *common])], return_annotation=TaskTable
    )
    return reader


class JobLog:
    """The jobs of one file as growing columns.

    `dated`: are its times dates, so that time 0 is the first submission?  `unique`: leave out repeated rows.
    """

    def __init__(self, path: Path, cut: Cut):
        self.path = path
        self.cut = cut
        self.dated = False
        self.unique = False
        self.complaints = Complaints(path)
        self.notes: list[str] = []
        self.seen = 0
        """Rows that stand for jobs, those left out included."""
        self._left_out: dict[str, list[int]] = {}
        self._remarks: dict[str, list[int]] = {}
        self._first = math.inf
        self._lines = array("q")
        self._arrival, self._duration = array("d"), array("d")
        self._ids: array | list[Any] = array("q")
        """An array while they all are whole numbers."""
        self._keys = array("q")
        self._numbers: dict[str, array] = {}
        self._texts: dict[str, tuple[array, dict[str, int]]] = {}
        if cut.until is not None and cut.until <= cut.since:
            self.fail(f"until ({cut.until:g} s) must be after since ({cut.since:g} s)")

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
        _count(self._left_out, reason, line)

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
            self._first = min(self._first, arrival)
            if cut.until is not None and arrival - self._first >= cut.until:
                _count(self._left_out, "outside the window", line)
                return
        elif arrival < cut.since or (cut.until is not None and arrival >= cut.until):
            _count(self._left_out, "outside the window", line)
            return
        if cut.sample < 1 and _hash(str(id_) if key is None else key, cut.sample_seed) >= cut.sample * 2**63:
            _count(self._left_out, "not in the sample", line)
            return
        if self.unique:
            self._keys.append(_hash(str(id_) if key is None else key, 0))
        self._append(columns)
        self._lines.append(line)
        self._arrival.append(arrival)
        self._duration.append(duration)
        if id_ is not None or self._ids:
            self._identify(id_)

    def _identify(self, id_: Any) -> None:
        """The id of the last row; a row without one among others goes by its line."""
        ids, before = self._ids, len(self._lines) - 1
        if isinstance(ids, array):
            if type(id_) is int and len(ids) == before and -(2**63) <= id_ < 2**63:
                ids.append(id_)
                return
            ids = self._ids = ids.tolist()
        ids += [f"line {one}" for one in self._lines[len(ids) : before]]
        ids.append(f"line {self._lines[-1]}" if id_ is None else id_)

    def _append(self, columns: Mapping[str, float | str]) -> None:
        before = len(self._lines)
        for name, value in columns.items():
            if isinstance(value, str):
                codes, names = self._texts.get(name) or self._texts.setdefault(name, (array("i"), {"": 0}))
                if len(codes) < before:
                    codes.extend([0] * (before - len(codes)))
                codes.append(names.setdefault(value, len(names)))
            else:
                numbers = self._numbers.get(name)
                if numbers is None:
                    numbers = self._numbers[name] = array("d")
                if len(numbers) < before:
                    numbers.extend([math.nan] * (before - len(numbers)))
                numbers.append(value)

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
        self.complaints.fail_if_any()
        arrival = np.frombuffer(self._arrival)
        zero = self._first if self.dated and len(arrival) else 0.0
        kept = self._kept(arrival - zero)
        self._check_some(len(kept))
        begin = zero + self.cut.since
        if self.cut.trim:
            kept, begin = self._without_head(arrival, kept, begin)
        when = (arrival[kept] - begin) * self.cut.time_scale
        lines = np.frombuffer(self._lines, np.int64)
        lines = lines if len(kept) == len(lines) else lines[kept]
        table = TaskTable(str(self.path), {}, when, line=partial(_line, lines))
        self._fill(table, kept, arrival)
        if self.dated and len(arrival):
            table.notes.append(f"{self.path}: time 0 is {datetime.fromtimestamp(begin, UTC):%Y-%m-%d %H:%M:%S}")
        table.notes += self._told()
        return table

    def _kept(self, since_zero: np.ndarray) -> np.ndarray:
        """Rows inside the window, without repetitions."""
        inside = np.ones(len(since_zero), dtype=bool)
        if self.dated:
            inside &= since_zero >= self.cut.since
            if self.cut.until is not None:
                inside &= since_zero < self.cut.until
            self._drop("outside the window", ~inside)
        if self.unique and len(since_zero):
            _, first = np.unique(np.frombuffer(self._keys, np.int64), return_index=True)
            again = np.ones(len(since_zero), dtype=bool)
            again[first] = False
            self._drop("repeated rows", again & inside)
            inside &= ~again
        return np.flatnonzero(inside)

    def _drop(self, reason: str, rows: np.ndarray) -> None:
        for row in np.flatnonzero(rows)[:1].tolist():
            known = self._left_out.setdefault(reason, [0, self._lines[row]])
            known[0] += int(rows.sum())
            known[1] = min(known[1], self._lines[row])

    def _check_some(self, count: int) -> None:
        if count:
            return
        if not self.seen:
            self.fail("has no jobs")
        reasons = "; ".join(f"{number:,} {reason}" for reason, (number, _) in self._left_out.items())
        self.fail(f"none of its {self.seen:,} jobs is left: {reasons}")

    def _without_head(self, arrival: np.ndarray, kept: np.ndarray, begin: float) -> tuple[np.ndarray, float]:
        jump = head_end(np.sort(arrival[kept]))
        if jump is None:
            self.notes.append(f"{self.path}: no empty head to trim: its rate never jumps by more than {JUMP:g} times")
            return kept, begin
        head = np.zeros(len(arrival), dtype=bool)
        head[kept] = arrival[kept] < jump
        self._drop(f"in the empty head, before {jump - begin:.6g} s", head)
        return kept[arrival[kept] >= jump], jump

    def _fill(self, table: TaskTable, kept: np.ndarray, arrival: np.ndarray) -> None:
        """Columns of the rows that are kept, one after the other: what grew is let go of as soon as it is there."""
        every = len(kept) == len(self._lines)

        def column(values: array, filler: float) -> np.ndarray:
            padded = _padded(values, len(self._lines), filler)
            return padded if every else padded[kept]

        numbers = {name: column(self._numbers.pop(name), math.nan) for name in list(self._numbers)}
        duration = column(self._duration, math.nan)
        start, estimate = numbers.pop("start", None), numbers.pop("estimate", None)
        gpus = numbers.get("gpus")
        on_gpu = np.zeros(len(kept), dtype=bool) if gpus is None else ~(gpus == 0)
        for name, there in (("gpu_time", on_gpu), ("cpu_time", ~on_gpu)):
            if there.any() and name not in table.times:
                table.times[name] = duration if there.all() else np.where(there, duration, np.inf)
                if estimate is not None and self.cut.estimates == "trace":
                    guess = np.where(np.isnan(estimate), duration, estimate)
                    table.estimates[name] = np.where(there, guess, np.inf)
        if start is not None and not np.isnan(start).all():
            table.extra["recorded_start"] = table.arrival + (start - arrival[kept])
        for name, values in numbers.items():
            if not np.isnan(values).all():
                (table.numbers if name in NUMBERS else table.extra)[name] = values
        for name in list(self._texts):
            codes, names = self._texts.pop(name)
            if len(names) > 1:
                self._text(table, name, column(codes, 0), list(names))
        self._name(table, kept)

    def _text(self, table: TaskTable, name: str, codes: np.ndarray, names: list[str]) -> None:
        if name == "devices" and self.cut.types:
            own = self.cut.types
            names = ["|".join(dict.fromkeys(own.get(one, one) for one in text.split("|"))) for text in names]
        values = np.array(names, dtype=object)[codes]
        if name in ("class", "user", "devices"):
            setattr(table, "class_" if name == "class" else name, values)
        else:
            table.extra[name] = values

    def _name(self, table: TaskTable, kept: np.ndarray) -> None:
        """Ids; those that come again get the number of their turn behind."""
        if not self._ids:
            return
        if isinstance(self._ids, array):
            ids = np.frombuffer(self._ids, np.int64)[kept]
            keys = ids
        else:
            ids = np.array(list(map(str, self._ids)), dtype=object)[kept]
            keys = np.fromiter((hash(one) for one in ids), np.int64, len(ids))  # only to see whether any comes again
        self._ids = []
        if len(np.unique(keys)) < len(keys):
            ids = self._by_turn(ids)
        table.id = ids

    def _by_turn(self, ids: np.ndarray) -> np.ndarray:
        seen: dict[Any, int] = {}
        turns = []
        for one in ids.tolist():
            turns.append(seen.get(one, 0))
            seen[one] = turns[-1] + 1
        again = sum(map(bool, turns))
        if again:
            self.notes.append(f"{self.path}: {again:,} ids come again; these jobs are named id#2, id#3, ...")
            pairs = zip(ids.tolist(), turns, strict=True)
            ids = np.array([f"{one}#{n + 1}" if n else str(one) for one, n in pairs], dtype=object)
        return ids

    def _told(self) -> list[str]:
        """What was left out, and what is to be known of what was kept."""
        told = []
        for reason, (count, line) in self._left_out.items():
            told.append(f"{self.path}: {count:,} of {self.seen:,} jobs left out: {reason} (first: line {line})")
        for what, (count, line) in self._remarks.items():
            told.append(f"{self.path}: {count:,} of {self.seen:,} jobs {what} (first: line {line})")
        return told + self.notes


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


def _padded(values: array, count: int, filler: float) -> np.ndarray:
    found = np.frombuffer(values, np.dtype(values.typecode))
    return found if len(found) == count else np.concatenate([found, np.full(count - len(found), filler, found.dtype)])


def _line(lines: np.ndarray, row: int) -> int:
    return int(lines[row])


def head_end(arrival: np.ndarray) -> float | None:
    """Where the rate of ascending arrivals jumps, if it does: the most likely change of a Poisson process's rate.

    None if the second rate is not above `JUMP` times the first.
    """
    n = len(arrival)
    if n < 3 or arrival[-1] <= arrival[0]:
        return None
    k = np.arange(1, n - 1)
    before, after = arrival[1:-1] - arrival[0], arrival[-1] - arrival[1:-1]
    # A burst of equal times is no rate: as if it took a second.
    first, second = k / np.maximum(before, 1.0), (n - 1 - k) / np.maximum(after, 1.0)
    likelihood = k * np.log(first) + (n - 1 - k) * np.log(second)
    likelihood[second <= JUMP * first] = -np.inf
    best = int(np.argmax(likelihood))
    return float(arrival[best + 1]) if np.isfinite(likelihood[best]) else None


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
