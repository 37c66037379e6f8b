"""Matrices of unrelated machines, R||Cmax (`format: hcsp`), after Braun et al.

    512 16
    25137.5  52468.0  150206.8 ...

The optional first line is `tasks machines`.  Then the times follow, task after task with one number per machine, in
lines of any length.  The published files of HCSP, from 512 tasks on 16 machines to 4,096 on 128, have a third number on
the first line, which is ignored: how the machines differ (0 consistently, 1 partly consistently, 2 inconsistently).  -1
means that the task cannot run on the machine, as in task-graph files.  Blank lines and lines that begin with # are
skipped; a file may be compressed with gzip.

The number of machines is determined, in this order, by the first line, by the option `machines` or the number of
`types`, or by lines of equal length.  Published files with one number per line and no first line need `machines`; those
of 8,192 numbers, the size of all instances of Braun et al., are read as 512 tasks on 16 machines, with a note.

Each machine becomes a GPU type of its own, `m0`, `m1`, ... or as `types` says, so that a cluster has one GPU of each:
`gpus: [{type: m0}, {type: m1}]`.  Tasks on GPUs use no cores, so that the machines are independent; machines modeled as
CPUs would depend on each other, since the tasks of a node share its cores.  If `types` names a column `cpu`, it is the
time on a core; `gpu` is the time on any GPU of speed 1.
"""

from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.units import ExistingFile, TimeUnit, shown
from hetsim.workload.rows.text_rows import Flag, ReadFile, Types, cells_of, column_of, lines_of, place, time_of
from hetsim.workload.traces import TaskTable

BRAUN = (512, 16)  # tasks and machines of all instances of Braun et al
MAX_MACHINES = 10_000

Machines = Annotated[int, Field(strict=True, ge=1, le=MAX_MACHINES)]
Rows = list[tuple[int, list[str]]]


def read(
    path: ExistingFile,
    *,
    unit: TimeUnit = "s",
    types: Types | None = None,
    machines: Machines | None = None,
    header: Flag | None = None,
) -> TaskTable:
    """A matrix of times on unrelated machines: a row per task, a column per machine.

    `types` names the machines (default: m0, m1, ...); `machines` is their number if neither the file nor `types` states
    it; `unit` is the unit of the times; `header` states whether the first line is `tasks machines`, with or without a
    third number (default: detected).
    """
    return _Reader(Path(path), unit, types, machines=machines, header=header).table()


class _Reader(ReadFile):
    def __init__(self, path: Path, unit: str, types: list[str] | None, machines: int | None, header: bool | None):
        super().__init__(path)
        self.unit = unit
        self.types = types
        self.declared = machines if machines is not None or types is None else len(types)
        self.header = header
        self.notes: list[str] = []

    def table(self) -> TaskTable:
        if self.types is not None and self.declared != len(self.types):
            self.fail(f"types must have {self.declared} names (machines); got {len(self.types)}")
        self.lines = lines_of(self.path)
        rows = cells_of(self.lines)
        size = self._size(rows)
        first = rows[0][0] if rows else None
        if size is not None:
            rows = rows[1:]
        if not rows:
            self.fail("has no times")
        machines = self._machines(rows) if size is None else self._checked(rows, first, *size)
        types = self.types or [f"m{number}" for number in range(machines)]
        times = self._times(rows, types)
        self._check_rows(times, rows)
        self.row_problems.fail_if_any()
        starts = [number for number, cells in rows for _ in cells][::machines]
        columns = {column_of(name): times[:, position].copy() for position, name in enumerate(types)}
        table = TaskTable(str(self.path), columns, np.zeros(len(times)), notes=self.notes)
        table.line = starts.__getitem__
        return table

    # Size -----------------------------------------------------------------------------------------------------

    def _size(self, rows: Rows) -> tuple[int, int] | None:
        """Return tasks and machines from the first line, or None if it is a matrix row."""
        if not rows or self.header is False:
            return None
        number, cells = rows[0]
        fits = len(cells) in (2, 3) and all(cell.isascii() and cell.isdigit() and len(cell) <= 18 for cell in cells)
        if not fits or not all(map(int, cells[:2])):
            if self.header:
                self.fail("the first line is not two whole numbers above 0, tasks and machines", number)
            return None
        tasks, machines = map(int, cells[:2])
        if self.header is None and tasks * machines != sum(len(others) for _, others in rows[1:]):
            # It may be a first task with whole times on two or three machines.
            alike = [len(others) == len(cells) for _, others in rows[1:]]
            if (all(alike) and machines != 2) if len(cells) == 2 else (any(alike) or not alike):
                return None
        return tasks, machines

    def _checked(self, rows: Rows, first: int | None, tasks: int, machines: int) -> int:
        """Check the first line's number of machines against the file, and return it."""
        count = sum(len(cells) for _, cells in rows)
        if self.declared is not None and self.declared != machines:
            source = "types names" if self.types is not None else "the option machines says"
            self.fail(f"the first line says {machines:,} machines, {source} {self.declared:,}", first)
        if machines > MAX_MACHINES:
            self.fail(f"must have at most {MAX_MACHINES:,} machines; got {machines:,}", first)
        if count != tasks * machines:
            self._name_odd_lines(rows, machines)
            self.fail(
                f"the first line says {tasks:,} tasks on {machines:,} machines, so {tasks * machines:,} numbers; "
                f"the file has {count:,}; if that line is a task, say header: false",
                first,
            )
        return machines

    def _machines(self, rows: Rows) -> int:
        widths = Counter(len(cells) for _, cells in rows)
        width, often = widths.most_common(1)[0]
        count = sum(len(cells) for _, cells in rows)
        machines = self.declared
        if machines is None and len(widths) == 1 and width == 1 and count == BRAUN[0] * BRAUN[1]:
            self.notes.append(
                f"{self.path}: one number a line and no first line with the size: read as {BRAUN[0]} tasks on "
                f"{BRAUN[1]} machines, the size of the instances of Braun et al.; the option machines sets another"
            )
            return BRAUN[1]
        if machines is None:
            if width == 1 or 2 * often <= len(rows):
                number, cells = rows[0]
                if len(cells) == 1 and any(mark in cells[0] for mark in ",;|"):
                    self.fail(f"{shown(cells[0])} is not a number; times are separated by white space", number)
                self.fail(
                    "the number of machines is unknown: give the option machines, or a first line "
                    "with the numbers of tasks and machines"
                )
            self._name_odd_lines(rows, width)
            machines = width
            if machines > MAX_MACHINES:
                self.fail(f"{machines:,} numbers on a line; at most {MAX_MACHINES:,} machines are read", rows[0][0])
        elif len(rows) > 1 and len(widths) == 1 and width not in (1, machines):
            source = "types names" if self.types is not None else "the option machines says"
            self.fail(
                f"every line has {width} numbers, but {source} {machines}; if a line is not a task, "
                "a first line with the numbers of tasks and machines states the layout"
            )
        else:
            self._name_odd_lines(rows, machines)
            if count % machines and not self.row_problems.problems:
                self.fail(f"{count:,} numbers are not a whole number of tasks on {machines:,} machines")
        self.row_problems.fail_if_any()
        return machines

    def _name_odd_lines(self, rows: Rows, machines: int) -> None:
        odd = [(number, len(cells)) for number, cells in rows if len(cells) != machines]
        if machines > 1 and 2 * len(odd) < len(rows):
            for number, count in odd:
                has = "1 number" if count == 1 else f"{count:,} numbers"
                self.row_problems.add(f"the line has {has}, for {machines:,} machines", number)

    # Times ----------------------------------------------------------------------------------------------------

    def _times(self, rows: Rows, types: list[str]) -> np.ndarray:
        machines = len(types)
        flat: list[float] = []
        for number, cells in rows:
            for position, cell in enumerate(cells):
                seconds, wrong = time_of(cell, self.unit)
                if wrong:
                    column = column_of(types[len(flat) % machines])
                    where = place(self.lines[number - 1], position)
                    self.row_problems.add(f"column {column}: {wrong}", number, where)
                flat.append(seconds)
        return np.array(flat).reshape(-1, machines)

    def _check_rows(self, times: np.ndarray, rows: Rows) -> None:
        if self.row_problems.problems:
            return  # a bad cell counts as no time, and is named already
        nowhere = np.flatnonzero(np.isinf(times).all(axis=1)).tolist()
        starts = [number for number, cells in rows for _ in cells] if nowhere else []
        for row in nowhere:
            message = f"task {row + 1} cannot run anywhere: each of its times is -1"
            self.row_problems.add(message, starts[row * times.shape[1]])
