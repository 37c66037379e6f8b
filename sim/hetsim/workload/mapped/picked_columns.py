"""Columns of measurements, found by usual names that may end with a unit."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hetsim.errors import file_error, suggestion
from hetsim.model.batch_times import TimeSpread
from hetsim.model.units import TIME, shown
from hetsim.workload.mapped.cells import bounded, decimal_points, plain, scaled
from hetsim.workload.mapped.log_map import unit_in_name
from hetsim.workload.mapped.propose import form_of
from hetsim.workload.mapped.proposed_columns import UNIT_OF
from hetsim.workload.mapped.rows import rows_of, tidied_row
from hetsim.workload.rows.text_rows import NUMBER, RowProblems

LARGEST = 10**9
MAX_LISTED = 8  # number of values of a column that a message lists


class PickedColumns:
    """Columns of a file of measurements, restricted to the rows that `where` selects.

    ScenarioError names file, line and column of unreadable cells.
    """

    def __init__(self, path: Path, where: Mapping[str, Any], wanted: Sequence[str] | None = None):
        rows = rows_of(path, form_of(path))
        self.path, self.word = path, rows.word
        self.row_problems = RowProblems(path)
        self._separator = getattr(rows, "separator", "")
        for name in (*(wanted or ()), *where):
            if name not in rows.names:
                near = suggestion(name, rows.names) or f"; it has {', '.join(rows.names[:20])}"
                raise file_error(path, f"there is no column {shown(name)}{near}", self.line_of(1))
        self.names = list(rows.names if wanted is None else dict.fromkeys((*wanted, *where)))
        self.lines: list[int] = []
        self._cells: list[list[Any]] = []
        seen = 0
        # values of the selecting columns, as a hint if no row matches
        there: dict[str, dict[str, None]] = {name: {} for name in where}
        for line, cells in rows.cells(self.names):
            seen += 1
            row = tidied_row(path, line, cells)
            for name, values in there.items():
                values[str(row[self.names.index(name)])] = None
            if all(_equal(row[self.names.index(name)], value) for name, value in where.items()):
                self.lines.append(line)
                self._cells.append(row)
        if not self._cells:
            picked = " and ".join(f"{name} = {value}" for name, value in where.items())
            shown_values = "; ".join(f"{name} is {_listed(values)}" for name, values in there.items())
            text = f"no row of its {seen:,} rows has {picked}; {shown_values}"
            raise file_error(path, text if where and seen else "has no rows")

    @staticmethod
    def bare(names: Sequence[str]) -> dict[str, str]:
        """Return columns by plain name: `latency` for `Latency (ms)`, `p50` for `P50 [s]`."""
        units = {one.casefold() for one in TIME}
        columns: dict[str, str] = {}
        for name in names:
            words = re.findall(r"[^\W_]+", name.casefold())
            columns.setdefault("_".join(words[:-1] if words[1:] and words[-1] in units else words), name)
        return columns

    def has(self, wanted: Sequence[str]) -> bool:
        return any(one in self.bare(self.names) for one in wanted)

    def first_of(self, wanted: Sequence[str]) -> str:
        """Return the column with the first of these names that exists; else ScenarioError."""
        columns = self.bare(self.names)
        for one in wanted:
            if one in columns:
                return columns[one]
        raise file_error(self.path, f"no column {wanted[0]} (or {', '.join(wanted[1:])})", 1)

    def values(self, name: str, of: Callable[[Any], Any]) -> list[Any]:
        """Return the cells of a column, converted by `of`; record each ValueError."""
        place = self.names.index(name)
        try:
            cells = decimal_points([row[place] for row in self._cells], self._separator)
        except ValueError as error:
            raise file_error(self.path, f"column {name}: {error}") from None
        values = []
        for line, cell in zip(self.lines, cells, strict=True):
            try:
                values.append(of(cell))
            except ValueError as error:
                values.append(None)
                self.complain(line, name, f"{shown('' if cell is None else str(cell))} {error}")
        return values

    def complain(self, line: int, column: str, message: str) -> None:
        """Record a problem in a row; `done` raises all recorded problems."""
        where = f"row {line}, " if self.word == "row" else ""
        self.row_problems.add(f"{where}column {column}: {message}", self.line_of(line))

    def line_of(self, number: int) -> int | None:
        """Return the line of a row, or None in files without lines."""
        return None if self.word == "row" else number

    def done(self) -> None:
        """Raise ScenarioError for all recorded problems."""
        self.row_problems.fail_if_any()

    def whole_numbers(self, wanted: Sequence[str], least: int = 1) -> list[int]:
        """Read the first existing column in `wanted`: whole numbers of at least `least`."""

        def read(cell: Any) -> int:
            value = plain(cell)
            if value % 1 or not least <= value <= LARGEST:
                raise ValueError(f"is not a whole number from {least} to {LARGEST:,}")
            return int(value)

        return self.values(self.first_of(wanted), read)

    def seconds(self, wanted: Sequence[str], unit: str | None, positive: bool = True) -> list[float]:
        """Return the first column of `wanted` in s; unit: from its name, else from `unit`."""
        name = self.first_of(wanted)
        return self.times(name, self.unit_of(name, unit, "--unit ms"), "a step" if positive else "")

    def unit_of(self, name: str, unit: str | None, option: str) -> float:
        """Return a column's unit in s, from its name or `unit`; errors suggest `option`."""
        named_unit = unit_in_name(name, "duration") or unit_in_name(f"x_{name}", "duration")
        if named_unit is not None:
            return named_unit[1][0]
        if unit is None:
            text = f"the unit of the column {shown(name)} is unknown; give {option}, for instance"
            raise file_error(self.path, text)
        return TIME[unit]

    def times(self, name: str, factor: float, what: str) -> list[float]:
        """Read times in units of `factor` s; with `what` (the thing timed), 0 is an error."""

        def read(cell: Any) -> float:
            value = bounded(scaled(cell, factor))
            if what and not value:
                raise ValueError(f"must be above 0, because it is the time of {what}")
            return value

        return self.values(name, read)

    def one_each(self, wanted: Sequence[str], what: str) -> None:
        """Raise ScenarioError if the rows have several values of a column in `wanted`."""
        mixed = {}
        for name in self.names:
            if name.casefold() in wanted:
                values = dict.fromkeys(str(row[self.names.index(name)]) for row in self._cells)
                if len(values) > 1:
                    mixed[name] = values
        if mixed:
            listing = "; ".join(f"{name} is {_listed(values)}" for name, values in mixed.items())
            pick = " ".join(f"--where {name}={next(iter(values))}" for name, values in mixed.items())
            text = f"its rows are of several {what}: {listing}; pick one, for instance with {pick}"
            raise file_error(self.path, text)

    def texts(self, wanted: Sequence[str]) -> list[str]:
        return self.values(self.first_of(wanted), str)


def _equal(cell: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return str(cell).casefold() == str(value).casefold()
    if isinstance(value, float | int):
        return (not isinstance(cell, str) or bool(NUMBER.fullmatch(cell))) and float(cell) == float(value)
    return str(cell) == value


def _listed(values: Iterable[str]) -> str:
    first = [*islice(values, MAX_LISTED + 1)]
    if len(first) > MAX_LISTED:
        return ", ".join(first[:MAX_LISTED]) + ", ..."
    return " or ".join([*([", ".join(first[:-1])] if len(first) > 1 else []), *first[-1:]])


# A table of measured batch latencies in a file: a row a batch size or sample.
#
# CSV, Parquet or JSON lines, any columns; `where` picks rows.  The unit of the times is what the name of their column
# ends with (`p50_ms`), or is said.


MAX_SIZE = 1_000_000

Found = tuple[tuple[int, ...], tuple[float, ...], tuple[TimeSpread, ...]]


def read(
    path: Path, batch: str, time: str | None, unit: str | None, where: Mapping[str, Any],
    quantiles: Mapping[float, str], samples: bool,
) -> Found:  # fmt: skip
    """Read batch sizes, expected times (s), and spreads of times (quantiles, samples)."""
    ranks = sorted(quantiles)
    names = [*([time] if time is not None else []), *(quantiles[rank] for rank in ranks)]
    columns = PickedColumns(path, where, (batch, *names))
    factors = {name: columns.unit_of(name, unit, "unit: ms") for name in names}
    for name, factor in factors.items():
        if unit is not None and abs(factor / TIME[unit] - 1) > 1e-9:
            text = f"the column name {shown(name)} says {UNIT_OF[factor]}, but the unit is {unit}; correct it"
            raise file_error(path, text)
    sizes = columns.values(batch, _size)
    seconds = [columns.times(name, factors[name], "a batch") for name in names]
    table = _Table(columns, samples)
    for line, size, *values in zip(columns.lines, sizes, *seconds, strict=True):
        if None not in (size, *values):
            table.add(line, batch, size, values)
    columns.done()
    return table.result(time is not None, ranks)


def _size(cell: Any) -> int:
    size = plain(cell)
    if size % 1 or not 1 <= size <= MAX_SIZE:
        raise ValueError(f"is not a batch size: a whole number from 1 to {MAX_SIZE:,}")
    return int(size)


class _Table:
    def __init__(self, columns: PickedColumns, samples: bool):
        self.columns, self.samples = columns, samples
        self.rows: dict[int, list[list[float]]] = {}
        self.places: dict[int, int] = {}
        self.last = 0

    def add(self, number: int, batch: str, size: int, values: list[float]) -> None:
        if size in self.rows and not self.samples:
            text = f"the batch size {size} is also in {self.columns.word} {self.places[size]}"
            self.columns.complain(number, batch, f"{text}; samples: true draws from such rows, where picks some")
        elif size < self.last and not self.samples:
            self.columns.complain(number, batch, f"batch sizes must increase; {size} follows {self.last}")
        else:
            self.rows.setdefault(size, []).append(values)
            self.places.setdefault(size, number)
            self.last = size

    def result(self, expected: bool, ranks: list[float]) -> Found:
        """Return batch sizes, seconds and spreads; expected: row[0] is the expected time."""
        sizes = sorted(self.rows)
        seconds, spreads = [], []
        for size in sizes:
            values = self.rows[size]
            spread = None
            if self.samples:
                spread = TimeSpread(tuple(sorted(row[0] for row in values)))
            elif ranks:
                quantiles = values[0][1:] if expected else values[0]
                for place in range(1, len(ranks)):
                    if quantiles[place] < quantiles[place - 1]:
                        low, high = (f"p{100 * ranks[one]:g}" for one in (place - 1, place))
                        line = self.columns.line_of(self.places[size])
                        raise file_error(self.columns.path, f"batches of {size}: {high} is below {low}", line)
                spread = TimeSpread(tuple(quantiles), tuple(ranks))
            if spread is not None:
                spreads.append(spread)
            seconds.append(values[0][0] if expected and not self.samples else spread.mean if spread else values[0][0])
        return tuple(sizes), tuple(seconds), tuple(spreads)
