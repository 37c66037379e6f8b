"""The plain task table (`format: tasks`): CSV, gzip or not, or Parquet.

Columns, all optional except one duration or flops: id, arrival, class, user, priority, weight, deadline, patience,
cpu_time, gpu_time, gpu_time.TYPE (durations), cpus, gpus, memory, gpu_memory, bytes_in, bytes_out, upload, download,
flops, bytes, efficiency (work of a kernel: operations, bytes of memory traffic, and the fraction of a device's peak
rates that it reaches), predecessors, reads, writes (names separated by `;` or spaces), devices (the GPU types that a
task may run on, separated by `|`; blank: all), slice (the profile of its MIG slice, in place of gpus).  A duration with
the suffix `_estimate`, such as gpu_time_estimate, is the value that policies see.  Times are seconds, sizes bytes.  A
blank or `inf` duration means that the task cannot run on that device.  With flops a missing duration is computed, for
types with a known peak.  Other numeric columns are copied to the result; other text columns are ignored, with a note.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hetsim.errors import MAX_PROBLEMS, Problem, ScenarioError, suggestion
from hetsim.model.files import open_input, opened, write_whole
from hetsim.model.units import MAX_BYTES, MAX_SECONDS, ExistingFile, shown
from hetsim.workload.rows.text_rows import PARQUET, circle, numbered_lines, written
from hetsim.workload.traces import LISTS, NUMBERS, TaskTable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TEXTS = ("id", "class", "user", "devices")
# text columns that are copied, as in logs of clusters; for most, no reader knows a meaning
KEPT_TEXTS = ("slice", "partition", "vc", "queue", "group", "account", "qos", "status", "recorded_node", "topology",
              "flavors")  # fmt: skip
KNOWN = ("arrival", "cpu_time", "gpu_time", *TEXTS, *NUMBERS, *LISTS)
SIZES = ("memory", "gpu_memory", "bytes_in", "bytes_out", "bytes")
# upper bounds of columns; other columns (times and weights) are bounded by MAX_SECONDS
MAX_OF = {**dict.fromkeys(("nodes", "cpus", "gpus"), 1e6), "flops": 1e30, **dict.fromkeys(SIZES, MAX_BYTES)}
MISSPELT = 0.8  # difflib ratio above which a name is taken for a misspelled one; submit_time is not a gpu_time

_TIME = re.compile(r"(?:cpu_time|gpu_time|gpu_time\..+?)(?P<estimate>_estimate)?\Z")


def read(path: ExistingFile, *, columns: dict[str, str] | None = None) -> TaskTable:
    """Read a task table; ScenarioError lists every problem with line and column."""
    return _Reader(Path(path), columns or {}).table()


def write(table: TaskTable, path: str | Path) -> None:
    """Write a task table as CSV or, by its suffix, Parquet."""
    write_frame(to_frame(table), path)


def write_frame(frame: pd.DataFrame, path: str | Path) -> None:
    target = Path(path)
    put: Callable[..., Any] = frame.to_parquet if target.suffix.lower() in PARQUET else frame.to_csv
    write_whole(target, lambda temporary: put(temporary, index=False))


def write_parts(parts: Iterable[TaskTable], path: str | Path) -> int:
    """Write the parts of a table in order; return the number of tasks.

    After an error no file remains.  In Parquet each part is a row group; a single part is written as `write` does.
    """
    target = Path(path)
    put = _rows_of_parquet if target.suffix.lower() in PARQUET else _lines_of_csv
    count = 0

    def frames() -> Iterator[pd.DataFrame]:
        nonlocal count
        for part in parts:
            count += len(part)
            yield to_frame(part)

    write_whole(target, lambda temporary: put(frames(), temporary))
    return count


def _rows_of_parquet(frames: Iterator[pd.DataFrame], path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    first = pa.Table.from_pandas(next(frames), preserve_index=False)
    with parquet.ParquetWriter(path, first.schema, compression="snappy") as writer:
        writer.write_table(first)
        del first
        for frame in frames:
            writer.write_table(pa.Table.from_pandas(frame, schema=writer.schema, preserve_index=False))


def _lines_of_csv(frames: Iterator[pd.DataFrame], path: Path) -> None:
    next(frames).to_csv(path, index=False)
    for frame in frames:
        frame.to_csv(path, index=False, header=False, mode="a")


def to_frame(table: TaskTable) -> pd.DataFrame:
    """Return a table as a data frame with the columns of the file format."""
    import pandas as pd

    columns: dict[str, Any] = {}
    if table.id is not None:
        columns["id"] = table.id
    columns["arrival"] = table.arrival
    texts = {"class": table.class_, "user": table.user, "devices": table.devices}
    columns.update({name: values for name, values in texts.items() if values is not None})
    columns.update(table.times)
    columns.update({f"{name}_estimate": values for name, values in table.estimates.items()})
    columns.update(table.numbers)
    if table.predecessors is not None:
        columns["predecessors"] = [";".join(str(table.name(p)) for p in row) for row in table.predecessors]
    for name, lists in (("reads", table.reads), ("writes", table.writes)):
        if lists is not None:
            columns[name] = [";".join(row) for row in lists]
    columns.update(table.extra)
    if table.hash_ids is not None:
        columns["hash_ids"] = [";".join(map(str, ids.tolist())) for ids in table.hash_ids]
    if table.predecessors is not None and table.id is None:
        columns = {"id": np.arange(1, len(table) + 1), **columns}
    return pd.DataFrame(columns)


class _Reader:
    def __init__(self, path: Path, names: dict[str, str]):
        self.path = path
        self.names = names
        self.parquet = path.suffix.lower() in PARQUET
        self.problems: list[Problem] = []
        self.unnamed = 0

    def table(self) -> TaskTable:
        arrow = self._arrow()
        for name in self.names:
            if name not in arrow.column_names:
                self._column_problem(f'there is no column "{name}" to use as {self.names[name]}')
        arrow = arrow.rename_columns([self.names.get(name, name) for name in arrow.column_names])
        columns = list(arrow.column_names)
        self._check_columns(columns)
        if not (count := arrow.num_rows):
            self.problems.append(Problem("the table has no rows", file=str(self.path)))
        if self.problems:
            raise ScenarioError(self.problems)
        table = TaskTable(str(self.path), {}, np.zeros(count), line=partial(line_of, self.path))
        for name in columns:
            self._take(table, name, arrow.column(name))
        self._check_ids(table)
        if "predecessors" in columns:
            table.predecessors = self._predecessors(table, arrow.column("predecessors"))
        self._check_rows(table)
        if self.unnamed:
            self.problems.append(Problem(f"and {self.unnamed:,} more bad cells", file=str(self.path)))
        if self.problems:
            raise ScenarioError(self.problems)
        return table

    def _arrow(self) -> pa.Table:
        import pyarrow as pa

        try:
            if self.parquet:
                from pyarrow import parquet

                with open_input(self.path) as stream:
                    table = parquet.read_table(stream)
                table.validate(full=True)  # texts too: Parquet does not promise that their bytes are UTF-8
                return table
            from pyarrow import csv

            # One thread: only then does a row of the wrong length come with its number.
            reading = csv.ReadOptions(use_threads=False)
            with _bytes_of(self.path) as source, csv.open_csv(source, read_options=reading) as stream:
                names = stream.schema.names
            texts = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
            with _bytes_of(self.path) as source:
                return csv.read_csv(source, read_options=reading, convert_options=texts)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise ScenarioError(self._unreadable(str(error))) from None

    def _unreadable(self, message: str) -> Problem:
        message = " ".join(message.split())
        if not self.parquet and (damage := _no_text(self.path)):
            return damage
        if "straddling" in message or ("Empty CSV" in message and self.path.stat().st_size):
            longest = "a row is longer than 1 MB, the maximum; a quotation mark may not be closed"
            return Problem(longest, file=str(self.path))
        ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", message)
        if ragged:
            row, wanted, got = (int(part) for part in ragged.groups())
            cells = "1 cell" if got == 1 else f"{got} cells"
            return Problem(f"the row has {cells}, but the header has {wanted} columns", "", str(self.path), row)
        if "Empty CSV" in message:
            return Problem("is empty", file=str(self.path))
        kind = "Parquet" if self.parquet else "CSV"
        return Problem(f"cannot be read as {kind}: {message}", file=str(self.path))

    def _check_columns(self, columns: list[str]) -> None:
        for name in dict.fromkeys(columns):
            if columns.count(name) > 1:
                self._column_problem(f'the column "{name}" is given twice')
        timed = any(_TIME.match(name) and not name.endswith("_estimate") for name in columns)
        if not timed and "flops" not in columns:
            times = ("cpu_time", "gpu_time")
            near = [f'"{one}"; did you mean "{similar[0]}"?' for one in columns
                    if (similar := get_close_matches(one, times, 1, MISSPELT))]  # fmt: skip
            has = ", ".join(columns[:20]) + (", ..." if len(columns) > 20 else "")
            if wrong := next((mark for mark in (";", "\t") if len(columns) == 1 and mark in columns[0]), None):
                hint = f"; its columns are separated by {'tabs' if wrong != ';' else 'semicolons'}, use commas"
            elif near:
                hint = f" ({near[0]})"
            else:
                way = f"hetsim trace map {self.path} proposes how to read a log with columns of its own"
                hint = f"; it has {has}. {way}"
            self._column_problem("missing column: a task table needs cpu_time, gpu_time, gpu_time.TYPE or flops" + hint)
        for name in columns:
            if name.endswith("_estimate") and _TIME.match(name) and name.removesuffix("_estimate") not in columns:
                self._column_problem(f'column "{name}" needs the column "{name.removesuffix("_estimate")}" next to it')

    def _column_problem(self, message: str) -> None:
        self.problems.append(Problem(message, "", str(self.path), None if self.parquet else 1))

    # Columns --------------------------------------------------------------------------------------------------

    def _take(self, table: TaskTable, name: str, column: pa.ChunkedArray) -> None:
        if times := _TIME.match(name):
            values = self._floats(name, column, infinite=True)
            self._cells(name, column, np.isfinite(values) & (values > MAX_SECONDS), f"is more than {MAX_SECONDS:g}")
            values[np.isnan(values)] = np.inf
            if times["estimate"]:
                table.estimates[name.removesuffix("_estimate")] = values
            else:
                table.times[name] = values
        elif name == "arrival":
            table.arrival = self._floats(name, column, required=True)
            late = np.isfinite(table.arrival) & (table.arrival > MAX_SECONDS)
            self._cells(name, column, late, f"is more than {MAX_SECONDS:g}")
        elif name in NUMBERS:
            values = table.numbers[name] = self._floats(name, column, negative=name == "priority")
            upper = MAX_OF.get(name, MAX_SECONDS)
            self._cells(name, column, np.isfinite(values) & (np.abs(values) > upper), f"is more than {upper:g}")
            if name == "nodes":
                wrong = np.isfinite(values) & ((values < 1) | (values != np.floor(values)))
                self._cells(name, column, wrong, "is not a number of nodes: 1, 2, 3, ...")
        elif name == "id":
            table.id = self._texts(name, column, required=True, numbers=True)
        elif name in TEXTS:
            setattr(table, "class_" if name == "class" else name, self._texts(name, column))
        elif name in KEPT_TEXTS:
            table.extra[name] = self._texts(name, column)
        elif name in ("reads", "writes"):
            setattr(table, name, [tuple(row) for row in self._lists(name, column)])
        elif name != "predecessors":
            self._keep(table, name, column)

    def _keep(self, table: TaskTable, name: str, column: pa.ChunkedArray) -> None:
        values, bad = _numbers(column)
        table.unknown.append(name)
        near = suggestion(name, KNOWN) if len(table.unknown) < 100 else ""
        if bad.any():
            table.notes.append(f'{self.path}: column "{name}" is unknown and not numeric: ignored{near}')
        else:
            table.extra[name] = values
            if near:
                table.notes.append(f'{self.path}: column "{name}" is unknown: kept unchanged{near}')

    def _floats(
        self,
        name: str,
        column: pa.ChunkedArray,
        *,
        required: bool = False,
        infinite: bool = False,
        negative: bool = False,
    ) -> np.ndarray:
        values, bad = _numbers(column)
        blank = np.isnan(values) & ~bad
        self._cells(name, column, bad, "is not a number")
        if required:
            self._cells(name, column, blank, "is blank; every task needs a value")
        if not infinite:
            self._cells(name, column, np.isinf(values), "is not finite")
        if not negative:
            self._cells(name, column, values < 0, "is negative")
        return values

    def _texts(
        self, name: str, column: pa.ChunkedArray, *, required: bool = False, numbers: bool = False
    ) -> np.ndarray:
        import pyarrow as pa
        from pyarrow import compute

        if numbers and pa.types.is_integer(column.type) and not column.null_count:
            return np.asarray(column.to_numpy())
        try:
            texts = compute.fill_null(compute.utf8_trim_whitespace(column.cast(pa.string())), "")
        except pa.ArrowException:  # bytes, lists, and so on, in Parquet
            self._column_problem(f'column "{name}" has neither texts nor numbers ({column.type})')
            return np.full(len(column), "", dtype=object)
        if required:
            blank = np.asarray(compute.equal(texts, "").to_numpy())
            self._cells(name, column, blank, "is blank; every task needs a value")
        if numbers:
            try:
                integers = compute.cast(texts, pa.int64())
                if compute.all(compute.equal(integers.cast(pa.string()), texts)).as_py():  # not 007
                    return np.asarray(integers.to_numpy())
            except pa.ArrowInvalid:
                pass
        return np.asarray(texts.to_numpy(zero_copy_only=False) if isinstance(texts, pa.Array) else texts.to_numpy())

    # Rows -----------------------------------------------------------------------------------------------------

    def _check_ids(self, table: TaskTable) -> None:
        if table.id is None:
            return
        import pandas as pd

        again = np.flatnonzero(pd.Series(table.id).duplicated().to_numpy())
        values = table.id.tolist() if len(again) else []
        first: dict[Any, int] = {}
        for row, value in enumerate(values):
            first.setdefault(value, row)
        for row in again.tolist():
            value = values[row]
            if value != "":
                # Places are looked up in the file: only for the few that are shown.
                where = self._place(first[value]) if len(self.problems) < MAX_PROBLEMS else ""
                self._row_problem(row, "id", f"{shown(value)} is also the id of {where}")

    def _predecessors(self, table: TaskTable, column: pa.ChunkedArray) -> list[tuple[int, ...]]:
        ids = np.arange(1, len(table) + 1) if table.id is None else table.id
        row_of = {str(value): row for row, value in enumerate(ids.tolist())}
        predecessors = []
        for row, names in enumerate(map(dict.fromkeys, self._lists("predecessors", column))):
            for name in names:
                if name not in row_of:
                    few = len(row_of) <= 10_000 and len(self.problems) < MAX_PROBLEMS
                    near = suggestion(name, row_of) if few else ""
                    message = f"task {ids[row]} names the unknown predecessor {shown(name)}{near}"
                    self._row_problem(row, "predecessors", message)
            predecessors.append(tuple(row_of[name] for name in names if name in row_of))
        if waiting := circle(predecessors, ids):
            self._row_problem(waiting[0], "predecessors", waiting[1])
        return predecessors

    def _check_rows(self, table: TaskTable) -> None:
        nowhere = np.full(len(table), not self.problems)  # a bad cell counts as no time: it is named already
        for values in table.times.values():
            nowhere &= np.isinf(values)
        if (flops := table.numbers.get("flops")) is not None:
            nowhere &= np.isnan(flops)
        self._check_work(table, flops)
        text = "must be a share above 0 and at most 1; got {:g}"
        self._refuse(table, "efficiency", lambda share: (share <= 0) | (share > 1), text)
        for row in np.flatnonzero(nowhere)[: MAX_PROBLEMS + 1].tolist():
            message = f"task {table.name(row)} has no finite time on any device"
            self._row_problem(row, ", ".join(table.times) or "flops", message)
        text = "must be a share of one GPU below 1, or whole GPUs; got {:g}"
        self._refuse(table, "gpus", lambda gpus: (gpus > 1) & (gpus != np.floor(gpus)), text)
        for name, values in table.estimates.items():
            np.copyto(values, table.times[name], where=np.isinf(values))  # a blank estimate is exact
        self._refuse(table, "weight", lambda weight: weight == 0, "a weight must be above 0")

    def _refuse(self, table: TaskTable, name: str, wrong: Callable[[np.ndarray], np.ndarray], message: str) -> None:
        if (numbers := table.numbers.get(name)) is not None:
            for row in np.flatnonzero(wrong(numbers)).tolist():
                self._row_problem(row, name, message.format(numbers[row]))

    def _check_work(self, table: TaskTable, flops: np.ndarray | None) -> None:
        for name in ("bytes", "efficiency"):
            if (given := table.numbers.get(name)) is None:
                continue
            if flops is None:
                self._column_problem(f'column "{name}" needs the column "flops" next to it')
                continue
            for row in np.flatnonzero(~np.isnan(given) & np.isnan(flops)).tolist():
                self._row_problem(row, name, "must be empty for a task without flops")

    def _lists(self, name: str, column: pa.ChunkedArray) -> list[list[str]]:
        import pyarrow as pa

        types, kind = pa.types, column.type
        listed = types.is_list(kind) or types.is_large_list(kind)
        kind = kind.value_type if listed else kind
        if not any(fits(kind) for fits in (types.is_string, types.is_large_string, types.is_integer, types.is_floating,
                                           types.is_null, types.is_dictionary)):  # fmt: skip
            self._column_problem(f'column "{name}" has neither texts nor numbers ({column.type})')
            return [[]] * len(column)
        cells = column.to_pylist()
        if listed:
            return [[_name(part) for part in cell or ()] for cell in cells]
        return [[part for part in re.split(r"[;,\s]+", _name(cell)) if part] for cell in cells]

    def _cells(self, name: str, column: pa.ChunkedArray, bad: np.ndarray, what: str) -> None:
        for row in np.flatnonzero(bad).tolist():
            cell = _cell(column, row) if len(self.problems) < MAX_PROBLEMS else None
            named = "the cell" if cell is None or str(cell).strip() == "" else shown(str(cell))
            self._row_problem(row, name, f"{named} {what}")

    def _row_problem(self, row: int, column: str, message: str) -> None:
        if len(self.problems) >= MAX_PROBLEMS:
            self.unnamed += 1
            return
        address = f"row {row + 1}, column {column}"
        self.problems.append(Problem(f"{address}: {message}", "", str(self.path), line_of(self.path, row)))

    def _place(self, row: int) -> str:
        line = line_of(self.path, row)
        return f"row {row + 1}" if line is None else f"line {line}"


def _bytes_of(path: Path) -> pa.NativeFile:
    import pyarrow as pa

    return pa.PythonFile(opened(path), "r")


def _no_text(path: Path) -> Problem | None:
    try:
        for _ in numbered_lines(path):
            pass
    except ScenarioError as error:
        return error.problems[0]
    return None


def line_of(path: Path, row: int) -> int | None:
    """Return the line (from 1) of a row in a CSV file; None in a Parquet file."""
    if path.suffix.lower() in PARQUET:
        return None
    seen = -1  # the header comes before row 0
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip(b"\r\n"):
                if seen == row:
                    return number
                seen += 1
    return None


def _numbers(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return a column as floats (NaN if blank or bad), and the mask of bad cells.

    In CSV the words nan and NA are bad; in Parquet a blank may be stored as NaN.
    """
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pa.types.is_string(column.type):
        types = pa.types
        if types.is_large_string(column.type):
            column = column.cast(pa.string())
        elif any(fits(column.type) for fits in (types.is_integer, types.is_floating, types.is_decimal, types.is_null)):
            values = np.array(column.cast(pa.float64(), safe=False).to_numpy(), dtype=float)  # beyond 2⁵³ rounded
            return values, np.zeros(len(values), dtype=bool)
        else:
            return np.full(len(column), np.nan), np.ones(len(column), dtype=bool)
    trimmed = compute.utf8_trim_whitespace(column)
    blank = compute.or_kleene(compute.is_null(trimmed), compute.equal(trimmed, ""))
    filled = compute.if_else(compute.fill_null(blank, True), pa.scalar(None, pa.string()), trimmed)
    try:
        values = np.array(compute.cast(filled, pa.float64()).to_numpy(), dtype=float)
        return values, np.isnan(values) & ~np.asarray(compute.is_null(filled).to_numpy())
    except pa.ArrowInvalid:
        return _numbers_one_by_one(filled.to_pylist())


def _numbers_one_by_one(cells: list[str | None]) -> tuple[np.ndarray, np.ndarray]:
    values, bad = np.full(len(cells), np.nan), np.zeros(len(cells), dtype=bool)
    for row, cell in enumerate(cells):
        if cell is None:
            continue
        with contextlib.suppress(ValueError):
            values[row] = float(cell) if "_" not in cell else np.nan  # float() would take 1_000
        bad[row] = np.isnan(values[row])
    return values, bad


def _cell(column: pa.ChunkedArray, row: int) -> Any:
    with contextlib.suppress(OverflowError, ValueError):
        return column[row].as_py()
    return None


def _name(cell: Any) -> str:
    return "" if cell is None or cell != cell else written(cell)
