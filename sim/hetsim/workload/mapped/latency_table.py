"""A table of measured batch latencies in a file: a row a batch size or sample.

CSV, Parquet or JSON lines, any columns; `where` picks rows.  The unit of the times is what the name of their column
ends with (`p50_ms`), or is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetsim.model.batch_times import TimeSpread
from hetsim.model.units import TIME, shown
from hetsim.workload.mapped.cells import plain
from hetsim.workload.mapped.picked_columns import PickedColumns
from hetsim.workload.mapped.proposed_units import UNIT_OF
from hetsim.workload.rows.text_rows import problem_of

MAX_SIZE = 1_000_000

Found = tuple[tuple[int, ...], tuple[float, ...], tuple[TimeSpread, ...]]


def read(
    path: Path, batch: str, time: str | None, unit: str | None, where: Mapping[str, Any],
    quantiles: Mapping[float, str], samples: bool,
) -> Found:  # fmt: skip
    """Sizes, expected seconds and scatter; ScenarioError with file, line and column."""
    ranks = sorted(quantiles)
    names = [*([time] if time is not None else []), *(quantiles[rank] for rank in ranks)]
    columns = PickedColumns(path, where, (batch, *names))
    factors = {name: columns.unit_of(name, unit, "unit: ms") for name in names}
    for name, factor in factors.items():
        if unit is not None and abs(factor / TIME[unit] - 1) > 1e-9:
            text = f"the name of the column {shown(name)} says {UNIT_OF[factor]}, but the unit is {unit}; correct it"
            raise problem_of(path, text)
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
    """Rows by batch size."""

    def __init__(self, columns: PickedColumns, samples: bool):
        self.columns, self.samples = columns, samples
        self.rows: dict[int, list[list[float]]] = {}
        self.places: dict[int, int] = {}
        self.last = 0

    def add(self, number: int, batch: str, size: int, values: list[float]) -> None:
        """Take a row: another sample of its size, or the next size."""
        if size in self.rows and not self.samples:
            text = f"the batch size {size} stands in {self.columns.word} {self.places[size]} already"
            self.columns.complain(number, batch, f"{text}; samples: true draws from such rows, where picks some")
        elif size < self.last and not self.samples:
            self.columns.complain(number, batch, f"batch sizes increase, and {size} stands behind {self.last}")
        else:
            self.rows.setdefault(size, []).append(values)
            self.places.setdefault(size, number)
            self.last = size

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
                        line = self.columns.line_of(self.places[size])
                        raise problem_of(self.columns.path, f"batches of {size}: {high} is below {low}", line)
                spread = TimeSpread(tuple(quantiles), tuple(ranks))
            if spread is not None:
                spreads.append(spread)
            seconds.append(values[0][0] if expected and not self.samples else spread.mean if spread else values[0][0])
        return tuple(sizes), tuple(seconds), tuple(spreads)
