"""Common options of readers of request traces, and the conversion of lines.

A request trace contains the arrivals and sizes of requests, not their durations: it feeds an entry that has a
`service:`.  All readers have these options:

    since, until    read only requests that arrived in this window of the trace's own time; `since` becomes time 0
    time_scale      factor on the times, applied after that: 0.5 doubles the rate
    sample          the share of requests that is read, each drawn independently (by `sample_seed`), so that the
                    arrivals remain as irregular as they were
    sort            accept rows in any order; without this option, a row out of order is an error, since in published
                    traces it is a sign of damage

Rows are read one by one; rows outside the window or the sample use no memory, others about 40 bytes.  Reading stops at
`until` (with `sort`, at the end of the file).
"""

import inspect
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import numpy as np
from pydantic import Field

from hetsim.errors import MAX_PROBLEMS, file_error
from hetsim.model.ragged import Ragged
from hetsim.model.units import MAX_SECONDS, Seconds, Share, shown
from hetsim.workload.rows.text_rows import NUMBER, CsvTable, Flag, ReadFile
from hetsim.workload.traces import TaskTable

LONGEST_LINE = 1_000_000
MAX_TOKENS = 10**9
DRAWS = 8192


Scale = Annotated[float, Field(gt=0, le=1e9, strict=True)]
SampleSeed = Annotated[int, Field(ge=0, strict=True)]


@dataclass(frozen=True)
class RequestCut:
    """Options that select some of the requests of a trace; the module describes them."""

    since: Seconds = 0.0
    until: Seconds | None = None
    time_scale: Scale = 1.0
    sample: Share = 1.0
    sample_seed: SampleSeed = 0
    sort: Flag = False


def with_cut(read: Callable[..., TaskTable]) -> Callable[..., TaskTable]:
    """Decorator that adds the parameters of `RequestCut` (rows to read) to a reader."""
    signature, types = inspect.signature(read, eval_str=True), get_type_hints(RequestCut, include_extras=True)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    cut = [inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=types[one.name])
           for one in fields(RequestCut)]  # fmt: skip
    read.__signature__ = signature.replace(parameters=own + cut)  # type: ignore[attr-defined]
    return read


class Request(NamedTuple):
    """One row of a trace: `time` in whole nanoseconds of the trace's own clock."""

    line: int
    time: int
    prompt: int
    output: int
    labels: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()


@dataclass
class _Kept:
    lines: array = field(default_factory=lambda: array("q"))
    times: array = field(default_factory=lambda: array("q"))
    prompt: array = field(default_factory=lambda: array("q"))
    output: array = field(default_factory=lambda: array("q"))
    ids: array = field(default_factory=lambda: array("q"))
    ends: array = field(default_factory=lambda: array("q", [0]))

    def add(self, row: Request) -> None:
        self.lines.append(row.line)
        self.times.append(row.time)
        self.prompt.append(row.prompt)
        self.output.append(row.output)
        if row.ids or self.ids:
            self._pad()
            self.ids.extend(row.ids)
            self.ends.append(len(self.ids))

    def _pad(self) -> None:
        while len(self.ends) < len(self.times):
            self.ends.append(0)


class RequestRows(ReadFile):
    """Rows of one file, selected by `RequestCut` and collected into a table.

    `labels` names the text columns of a row (`class` or `user`), `numbers` its additional number columns.
    `from_first`: time 0 is the time of the first row, rather than 0 on the trace's clock.
    """

    def __init__(
        self, path: Path, given: Mapping[str, Any], labels: tuple[str, ...] = (), numbers: tuple[str, ...] = (),
        from_first: bool = False,
    ):  # fmt: skip
        super().__init__(path)
        self.cut = cut = RequestCut(**given)
        self.labels = labels
        self.numbers = numbers
        self.from_first = from_first
        self.notes: list[str] = []
        self.read = 0  # rows seen so far, those outside the window included
        if cut.until is not None and cut.until <= cut.since:
            raise file_error(path, f"until ({cut.until:g} s) must be after since ({cut.since:g} s)")
        self._kept = _Kept()
        self._zero = 0
        self._codes: list[array] = [array("l") for _ in labels]
        self._names: list[dict[str, int]] = [{} for _ in labels]
        self._further: list[array] = [array("d") for _ in numbers]

    def table(self, rows: Iterator[Request]) -> TaskTable:
        """Return all selected rows as a table; ScenarioError with all problems."""
        self._gather(rows)
        self.row_problems.fail_if_any()
        kept = self._kept
        times = np.array(kept.times, np.int64)
        order = None
        if self.cut.sort:
            order = np.argsort(times, kind="stable")
            zero = int(times[order[0]]) if self.from_first and len(times) else 0
            seconds = (times[order] - zero) / 1e9
            inside = seconds >= self.cut.since
            if self.cut.until is not None:
                inside &= seconds < self.cut.until
            order = order[inside]
            if self.cut.sample < 1:
                order = order[np.random.default_rng(self.cut.sample_seed).random(len(order)) < self.cut.sample]
            times = times[order] - zero
        elif self.from_first:
            times = times - self._zero
        if not len(times):
            self.fail("no request remains: check since, until and sample" if self.read else "has no requests")
        return self._made(times, order)

    def _gather(self, rows: Iterator[Request]) -> None:
        cut, kept = self.cut, self._kept
        since, until = round(cut.since * 1e9), None if cut.until is None else round(cut.until * 1e9)
        drawn = _drawn(cut.sample, cut.sample_seed)
        latest, latest_line = None, 0
        for row in rows:
            self.read += 1
            if latest is None:
                latest, self._zero = row.time, row.time if self.from_first else 0
            if row.time < latest:
                if not cut.sort:
                    before = f"is earlier than that of line {latest_line}"
                    hint = "rows must be in order of time; sort: true sorts them"
                    self.row_problems.add(f"its time {before}: {hint}", row.line)
                    if len(self.row_problems.problems) >= MAX_PROBLEMS:
                        return
            else:
                latest, latest_line = row.time, row.line
            if not cut.sort:
                time = row.time - self._zero
                if until is not None and time >= until:
                    return
                if time < since or not next(drawn):
                    continue
            kept.add(row)
            for codes, names, label in zip(self._codes, self._names, row.labels, strict=False):
                codes.append(names.setdefault(label, len(names)))
            for column, number in zip(self._further, row.numbers, strict=False):
                column.append(number)

    def _made(self, times: np.ndarray, order: np.ndarray | None) -> TaskTable:
        kept, cut = self._kept, self.cut

        def column(values: array, kind: Any = np.int64) -> np.ndarray:
            numbers = np.array(values, kind)
            return numbers if order is None else numbers[order]

        # Whole nanoseconds first: a difference of floats would show in the last digits.
        arrival = (times - round(cut.since * 1e9)) / 1e9
        if cut.time_scale != 1:
            arrival = arrival * cut.time_scale
        table = TaskTable(str(self.path), {}, arrival, notes=self.notes)
        table.extra = {"prompt_tokens": column(kept.prompt), "output_tokens": column(kept.output)}
        for name, values in zip(self.numbers, self._further, strict=True):
            if len(values):
                table.extra[name] = column(values, float)
        for label, codes, names in zip(self.labels, self._codes, self._names, strict=True):
            if set(names) - {""}:
                texts = np.array(list(names), dtype=object)[column(codes)]
                setattr(table, "class_" if label == "class" else label, texts)
        if kept.ids:
            kept._pad()
            table.hash_ids = Ragged(np.array(kept.ids, np.int64), np.array(kept.ends, np.int64))
            if order is not None:
                table.hash_ids = table.hash_ids.take(order)
        table.line = column(kept.lines).item
        return table


def _drawn(share: float, seed: int) -> Iterator[bool]:
    if share >= 1:
        while True:
            yield True
    rng = np.random.default_rng(seed)
    while True:
        yield from (rng.random(DRAWS) < share).tolist()


# Cells ----------------------------------------------------------------------------------------------------------


def nanoseconds(cell: str, unit: int) -> tuple[int, str]:
    """Return the exact ns of a number in units of `unit` ns, and a problem ("": none)."""
    if not NUMBER.fullmatch(cell):
        return 0, f"{shown(cell)} is not a number" if cell else "the time is missing"
    nanos = (int(cell) if cell.isdigit() and len(cell) < 16 else float(cell)) * unit
    if nanos < 0:
        return 0, f"{shown(cell)} is negative"
    if nanos > min(MAX_SECONDS, 9e9) * 1e9:
        return 0, f"must be at most 285 years; got {shown(cell)}"
    return round(nanos), ""


def tokens(cell: str) -> tuple[int, str]:
    """Return the number of tokens in a cell, and a problem ("": none)."""
    text = cell[:-2] if cell.endswith(".0") else cell
    if text.isdecimal() and text.isascii() and len(text) <= 10:
        count = int(text)
        return (count, "") if count <= MAX_TOKENS else (0, f"must be at most {MAX_TOKENS:,} tokens; got {count:,}")
    if NUMBER.fullmatch(text) and text.startswith("-"):
        return 0, f"{shown(cell)} is negative; it must be a number of tokens"
    return 0, f"{shown(cell)} is not a whole number of tokens" if cell else "the number of tokens is missing"


# Comma separated ------------------------------------------------------------------------------------------------

class Column(NamedTuple):
    """A column of a format: the parser of its cells, and the value if it is missing.

    The parser returns a value and a problem ("": none).  If the default is None, the column is required.
    """

    name: str
    parse: Callable[[str], tuple[Any, str]]
    default: Any = None


class RequestColumns:
    """The rows of a comma-separated file, reduced to the wanted columns."""

    def __init__(self, requests: RequestRows, columns: tuple[Column, ...]):
        self.requests = requests
        needed = tuple(column.name for column in columns if column.default is None)
        optional = tuple(column.name for column in columns if column.name not in needed)
        self.table = CsvTable(requests, needed, optional, longest=LONGEST_LINE)
        self.columns = [(*column, self.table.names.index(column.name)) for column in columns]

    def has(self, name: str) -> bool:
        return self.table.has[name]

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        for number, cells in self.table:
            values = []
            for name, parse, default, place in self.columns:
                value, wrong = parse(cells[place]) if self.table.has[name] else (default, "")
                if wrong:
                    self.requests.row_problems.add(f"column {name}: {wrong}", number)
                    break
                values.append(value)
            else:
                yield number, values
