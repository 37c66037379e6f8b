"""Task graphs of dense linear algebra on CPU and GPU (`format: hetero_dag`).

One row per task, no header, columns separated by white space:

    id cpu_time gpu_time [gpu2_time ...] [predecessor,predecessor,...]

Ids are whole numbers in any order; a predecessor may follow its successor in the file.  A time of -1 means that the
task has no version for that device.  The published files state no unit; judging by their size the times are
milliseconds.  Blank lines and lines that begin with # are skipped; a file may be compressed with gzip.

The number of GPU columns is the number of names in `types`, or else is inferred from the whole file: rows of 3 columns,
or a fourth with a comma, indicate one; rows of 5 columns, or a fourth that can only be a time, indicate two.  The more
frequent evidence decides, and the other rows are reported.  If all rows have 4 columns, the fourth must be a time,
since a graph without cycles has a task without predecessors; if every fourth value could also be a predecessor, the
file is rejected until `types` is given.

The times on the GPU type T are the column `gpu_time.T`; the times on the type `gpu` are the column `gpu_time`, for a
GPU of speed 1.  Without `types` the types are `gpu` and `gpu2`.
"""

import re
from pathlib import Path
from typing import Annotated

import numpy as np

from hetsim.model.units import ExistingFile, TimeUnit, forbid, shown
from hetsim.workload.rows import text_rows
from hetsim.workload.traces import TaskTable

_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")


_CPU_AMONG_THEM = "types must name only the GPU columns: the CPU column is before them"
GpuTypes = Annotated[text_rows.Types, forbid(lambda types: "cpu" in types, _CPU_AMONG_THEM)]


def read(
    path: ExistingFile, *, unit: TimeUnit = "ms", types: GpuTypes | None = None, independent: text_rows.Flag = False
) -> TaskTable:
    """A task graph: rows `id cpu_time gpu_time [gpu2_time] [predecessor,...]`.

    A time of -1 means that the task cannot run on the device.  `unit` is the unit of the times, `types` names the types
    of the GPU columns (default: gpu, or gpu and gpu2), and `independent: true` ignores the predecessors, which may then
    be missing in the file.
    """
    return _Reader(Path(path), unit, types, independent).table()


class _Reader(text_rows.ReadFile):
    def __init__(self, path: Path, unit: str, types: list[str] | None, independent: bool):
        super().__init__(path)
        self.unit = unit
        self.types = types
        self.independent = independent

    def table(self) -> TaskTable:
        self.lines = text_rows.lines_of(self.path)
        rows = self._without_header(text_rows.cells_of(self.lines))
        if not rows:
            self.fail("has no rows")
        types = self.types or ["gpu", "gpu2"][: self._gpu_columns(rows)]
        columns = ["cpu_time", *map(text_rows.column_of, types)]
        ids = [self._id(number, cells[0]) if len(cells) > 1 else None for number, cells in rows]
        self._check_ids(ids, rows)
        times, lists = [], []
        for number, cells in rows:
            complete = self._has_length(number, cells, len(columns))
            times.append(self._times(number, cells, columns) if complete else [0.0] * len(columns))
            after = cells[len(columns) + 1 :] if complete else []
            lists.append(self._whole_numbers(number, after[0], len(columns) + 1) if after else [])
        predecessors = None if self.independent or not any(lists) else self._predecessors(lists, ids, rows)
        self.row_problems.fail_if_any()
        values = np.array(times, dtype=float)
        return TaskTable(str(self.path), {name: values[:, position].copy() for position, name in enumerate(columns)},
                         np.zeros(len(rows)), id=np.array(ids, dtype=np.int64), predecessors=predecessors,
                         line=[number for number, _ in rows].__getitem__)  # fmt: skip

    def _without_header(self, rows: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
        if rows and len(rows[0][1]) > 1 and not any(text_rows.NUMBER.fullmatch(cell) for cell in rows[0][1]):
            self.row_problems.add("must not have a header; remove it", rows[0][0])
            return rows[1:]
        return rows

    def _gpu_columns(self, rows: list[tuple[int, list[str]]]) -> int:
        names = {cells[0] for _, cells in rows}
        one = two = open_ = 0
        for _, cells in rows:
            count, last = len(cells), cells[-1]
            if count == 3 or (count == 4 and "," in last):
                one += 1
            elif count == 5 or (count == 4 and text_rows.NUMBER.fullmatch(last) and not _WHOLE.fullmatch(last)):
                two += 1
            elif count == 4:
                two += last == "-1" and last not in names
                open_ += last in names
        if one or two:
            return 1 if one >= two else 2
        if open_ and open_ == sum(len(cells) == 4 for _, cells in rows):
            self.row_problems.add(
                "all rows have 4 columns, and the last could be times as well as predecessors; say which by naming "
                "the GPU columns: types: [gpu], or types: [gpu, gpu2]"
            )
            self.row_problems.fail_if_any()
        return 2 if any(len(cells) == 4 for _, cells in rows) else 1

    def _has_length(self, number: int, cells: list[str], times: int) -> bool:
        count, required = len(cells), times + 1
        if count in (required, required + 1):
            return True
        has = "1 column" if count == 1 else f"{count} columns"
        gpus = "1 GPU column" if times == 2 else f"{times - 1} GPU columns"
        message = f"the row has {has}; with {gpus} it needs {required}, or {required + 1} with predecessors"
        if count == 1 and re.search("[,;]", cells[0]):
            message += "; columns are separated by white space"
        elif count > required + 1 and any("," in cell for cell in cells[required:]):
            message += ", separated by commas without spaces"
        elif count > required + 1 and self.types is None:
            message += "; for further GPU columns name them all with types"
        self.row_problems.add(message, number)
        return False

    def _bad(self, number: int, cell: int, column: str, message: str) -> None:
        self.row_problems.add(f"column {column}: {message}", number, text_rows.place(self.lines[number - 1], cell))

    def _times(self, number: int, cells: list[str], columns: list[str]) -> list[float]:
        times_read, clean = [], True
        for position, column in enumerate(columns, start=1):
            seconds, wrong = text_rows.time_of(cells[position], self.unit)
            if wrong:
                self._bad(number, position, column, wrong)
                clean = False
            times_read.append(seconds)
        if clean and min(times_read) == np.inf:
            message = f"task {shown(cells[0])[1:-1]} cannot run anywhere: each of its times is -1"
            self._bad(number, 1, ", ".join(columns), message)
        return times_read

    def _id(self, number: int, cell: str) -> int | None:
        if _WHOLE.fullmatch(cell):
            return int(cell)
        hint = " of at most 18 digits" if cell.lstrip("+-").isdecimal() else ""
        self._bad(number, 0, "id", f"{shown(cell)} is not a whole number{hint}")
        return None

    def _check_ids(self, ids: list[int | None], rows: list[tuple[int, list[str]]]) -> None:
        first: dict[int, int] = {}
        for value, (number, _) in zip(ids, rows, strict=True):
            if value is not None and first.setdefault(value, number) != number:
                self._bad(number, 0, "id", f"{value} is also the id of line {first[value]}")

    def _whole_numbers(self, number: int, cell: str, position: int) -> list[int]:
        numbers = []
        for name in cell.split(","):
            if _WHOLE.fullmatch(name):
                numbers.append(int(name))
            else:
                message = f"{shown(name)} is not an id, a whole number" if name else "an id is missing next to a comma"
                self._bad(number, position, "predecessors", message)
        return numbers

    def _predecessors(
        self, lists: list[list[int]], ids: list[int | None], rows: list[tuple[int, list[str]]]
    ) -> list[tuple[int, ...]]:
        row_of = {value: row for row, value in enumerate(ids)}
        predecessors = []
        for row, names in enumerate(map(dict.fromkeys, lists)):
            for name in names:
                if name not in row_of:
                    number, cells = rows[row]
                    message = f"task {ids[row]} names the unknown predecessor {name}"
                    self._bad(number, len(cells) - 1, "predecessors", message)
            predecessors.append(tuple(row_of[name] for name in names if name in row_of))
        if waiting := text_rows.circle(predecessors, ids):
            number, cells = rows[waiting[0]]
            self._bad(number, len(cells) - 1, "predecessors", waiting[1])
        return predecessors
