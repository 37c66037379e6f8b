"""A table of measured batch latencies in a file: a row a batch size or sample.

CSV, Parquet or JSON lines, any columns; `where` picks rows.  The unit of the times is what the name of their column
ends with (`p50_ms`), or is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim.errors import suggestion
from hetsim.model.batch_times import TimeSpread
from hetsim.model.units import TIME, shown
from hetsim.workload.mapped.cells import bounded, decimal_points, plain, scaled
from hetsim.workload.mapped.log_map import unit_in_name
from hetsim.workload.mapped.propose import form_of
from hetsim.workload.mapped.rows import FileRows, rows_of, tidied_row
from hetsim.workload.rows.text_rows import NUMBER, RowProblems, problem_of

MAX_SIZE = 1_000_000

Found = tuple[tuple[int, ...], tuple[float, ...], tuple[TimeSpread, ...]]


def read(
    path: Path, batch: str, time: str | None, unit: str | None, where: Mapping[str, Any],
    quantiles: Mapping[float, str], samples: bool,
) -> Found:  # fmt: skip
    """Sizes, expected seconds and scatter; ScenarioError with file, line and column."""
    rows = rows_of(path, form_of(path))
    ranks = sorted(quantiles)
    columns = [*([time] if time is not None else []), *(quantiles[rank] for rank in ranks)]
    for name in (batch, *columns, *where):
        if name not in rows.names:
            near = suggestion(name, rows.names) or f"; it has {', '.join(rows.names[:20])}"
            raise problem_of(path, f"no column {shown(name)}{near}", 1 if rows.word == "line" else None)
    row_problems = RowProblems(path)
    table = _Table(path, rows.word, row_problems, samples)
    factors = [_factor(path, name, unit) for name in columns]
    seen, picked = 0, []
    for number, cells in rows.cells([batch, *columns, *where]):
        seen += 1
        values = tidied_row(path, number, cells)
        wanted = values[1 + len(columns) :]
        if all(_equal(cell, value) for cell, value in zip(wanted, where.values(), strict=True)):
            picked.append((number, values[0], values[1 : 1 + len(columns)]))
    times = [_pointed(path, rows, name, [row[2][place] for row in picked]) for place, name in enumerate(columns)]
    for (number, size, _), pointed in zip(picked, zip(*times, strict=True), strict=True):
        table.add(number, batch, size, columns=columns, cells=[*pointed], factors=factors)
    row_problems.fail_if_any()
    if not table.rows:
        condition = " and ".join(f"{name} = {value}" for name, value in where.items())
        raise problem_of(path, f"none of its {seen:,} rows has {condition}" if where and seen else "has no rows")
    return table.result(time is not None, ranks)


def _pointed(path: Path, rows: FileRows, column: str, cells: list[Any]) -> list[Any]:
    """The cells of a column without decimal commas."""
    try:
        return decimal_points(cells, getattr(rows, "separator", ""))
    except ValueError as error:
        raise problem_of(path, f"column {column}: {error}") from None


def _factor(path: Path, column: str, unit: str | None) -> float:
    """Seconds of one unit of a column."""
    named = unit_in_name(column, "duration") or unit_in_name(f"x_{column}", "duration")
    if unit is None and named is None:
        raise problem_of(
            path, f"the column {shown(column)} does not say in which unit its times are; give unit: ms, for instance"
        )
    if unit is None:
        assert named is not None
        return named[1][0]
    if named is not None and abs(named[1][0] / TIME[unit] - 1) > 1e-9:
        text = f"the name of the column {shown(column)} says {named[0]}, but the unit is {unit}; correct it"
        raise problem_of(path, text)
    return TIME[unit]


def _equal(cell: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return str(cell).casefold() == str(value).casefold()
    if isinstance(value, float | int):
        return (not isinstance(cell, str) or bool(NUMBER.fullmatch(cell))) and float(cell) == float(value)
    return str(cell) == value


class _Table:
    """Rows by batch size."""

    def __init__(self, path: Path, word: str, row_problems: RowProblems, samples: bool):
        self.path, self.word, self.row_problems, self.samples = path, word, row_problems, samples
        self.rows: dict[int, list[list[float]]] = {}
        self.places: dict[int, int] = {}
        self.last = 0

    def add(
        self, number: int, batch: str, size_cell: Any, columns: list[str], cells: list[Any], factors: list[float]
    ) -> None:
        size = self._size(number, batch, size_cell)
        values = [self._seconds(number, *one) for one in zip(columns, cells, factors, strict=True)]
        if size is None or None in values:
            return
        there = [value for value in values if value is not None]
        if size in self.rows and not self.samples:
            first = f"{self.word} {self.places[size]}"
            text = (
                f"the batch size {size} stands in {first} already; samples: true draws from such rows, where picks some"
            )
            self._complain(number, batch, text)
        elif size < self.last and not self.samples:
            self._complain(number, batch, f"batch sizes increase, and {size} stands behind {self.last}")
        else:
            self.rows.setdefault(size, []).append(there)
            self.places.setdefault(size, number)
            self.last = size

    def _size(self, number: int, column: str, cell: Any) -> int | None:
        try:
            size = plain(cell)
        except ValueError as error:
            self._complain(number, column, f"{shown(str(cell))} {error}")
            return None
        if size % 1 or not 1 <= size <= MAX_SIZE:
            self._complain(
                number, column, f"{shown(str(cell))} is not a batch size: a whole number from 1 to {MAX_SIZE:,}"
            )
            return None
        return int(size)

    def _seconds(self, number: int, column: str, cell: Any, factor: float) -> float | None:
        try:
            seconds = bounded(scaled(cell, factor))
        except ValueError as error:
            self._complain(number, column, f"{shown(str(cell or ''))} {error}")
            return None
        if not seconds:
            self._complain(number, column, "a batch takes no time; it must be above 0")
            return None
        return seconds

    def _complain(self, number: int, column: str, message: str) -> None:
        of_row = self.word == "row"
        where = f"row {number}, " if of_row else ""
        self.row_problems.add(f"{where}column {column}: {message}", None if of_row else number)

    def result(self, expected: bool, ranks: list[float]) -> Found:
        """The whole table; the first value of a row is the expected one, if `expected`."""
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
                        where = self.places[size] if self.word == "line" else None
                        raise problem_of(self.path, f"batches of {size}: {high} is below {low}", where)
                spread = TimeSpread(tuple(quantiles), tuple(ranks))
            if spread is not None:
                spreads.append(spread)
            seconds.append(values[0][0] if expected and not self.samples else spread.mean if spread else values[0][0])
        return tuple(sizes), tuple(seconds), tuple(spreads)
