"""Converts rows of a mapped log into jobs; records problems of unusable rows."""

import math
from functools import cached_property
from typing import Any

from hetsim.model.units import shown
from hetsim.workload.mapped import cells as cells_of
from hetsim.workload.mapped import mapping
from hetsim.workload.mapped.cells import Instants, plain
from hetsim.workload.mapped.log_map import LogMap
from hetsim.workload.mapped.mapping import CellSource, kind_of
from hetsim.workload.mapped.rows import is_blank, tidied
from hetsim.workload.rows.job_log import JobLog, number_or_text
from hetsim.workload.rows.job_times import ROUNDED, JobTimes
from hetsim.workload.rows.rows_of_a_job import JobRows, Sink
from hetsim.workload.rows.text_rows import written

SHOWN = 3  # bad cells per column that are named; further ones are counted


class MappedJobs:
    """Converter of rows of cells into jobs."""

    def __init__(self, log: JobLog, made: LogMap, keyed: bool):
        """Read jobs by the map `made`; `keyed`: JSON rows, in which keys may be missing."""
        self.log, self.made, self.keyed = log, made, keyed
        self.readers = {target: made.reader(target) for target in made.columns if kind_of(target) != "text"}
        self.bad: dict[str, int] = {}  # cells of each target that cannot be read
        # by column: row and line of the first bad cell that is not named
        self.more: dict[str, tuple[int, int | None]] = {}
        self.blank: dict[str, int] = {}
        self.blank_at: dict[str, int | None] = {}
        self.first = math.inf
        self.row = 0  # number of the present row, from 1, headers not counted
        columns = made.columns
        self.typed = [name for name in columns if name.startswith(mapping.GPU_TIME) or name in ("gpu_time", "cpu_time")]
        if self.typed not in ([], ["gpu_time"], ["cpu_time"]):
            log.times = {f"time {name}": name for name in self.typed}
        self.times_of = {name: key for key, name in log.times.items()}
        self.times = JobTimes(log, cells_of.TIMES[made.units.get("duration", "s")])
        rows: Sink = self._job
        self.stages: list[JobRows] = []
        if made.gang is not None:
            gangs = JobRows(log, made.gang, rows)
            self.stages.append(gangs)
            rows = lambda line, row, whole: gangs.take(row.pop("_gang", None), line, row, whole)  # noqa: E731
        self.jobs: JobRows | None = None
        if made.fold is not None or (made.gang is not None and "id" in columns):
            self.jobs = JobRows(log, made.fold, rows)
            self.stages.insert(0, self.jobs)
        self.rows = rows
        # by column and key in cells: whether a row has it, and for which target
        self.keys_sought: dict[tuple[str, str], list[Any]] = {}
        log.one_row_each = "id" in columns and made.fold is None and made.attempts != "separate"
        log.unique = "id" in columns and not self.stages

    # Rows -------------------------------------------------------------------------------------------------------

    def take(self, line: int, cells: dict[str, Any]) -> None:
        """Convert a row into a job; or count it as skipped, or record its problems."""
        self.row += 1
        row: dict[str, Any] = {}
        fine, dropped = True, ""
        for target, source in self.made.columns.items():
            try:
                value = self._value(target, source, cells)
            except _Bad as bad:
                self._complain(line, target, bad.column, bad.message)
                fine = False
                continue
            if value is None:
                rule = self.made.missing.get(target)
                if rule is not None and rule.action == "drop":
                    dropped = dropped or target
                    continue
                if rule is not None and rule.value is not None:
                    value = rule.value if kind_of(target) == "text" else self.readers[target](rule.value)
                # Of texts a blank cell is an error only where that is stated.
                elif kind_of(target) != "text" if rule is None else rule.action == "error":
                    self._complain_blank(line, target, source)
                    fine = False
                    continue
            row[target] = value
        if dropped:
            self.log.leave_out(f"no {dropped} ({self._nothing(self.made.columns[dropped])})", line)
        elif fine:
            # Samples tell jobs without an id by what stands in their rows.
            needs_row = "id" in self.made.columns or self.log.cut.sample < 1
            row_text = "\t".join(map(str, cells.values())) if needs_row else None
            self._row(line, {name: value for name, value in row.items() if value is not None}, cells, row_text)

    def _row(self, line: int, row: dict[str, Any], cells: dict[str, Any], whole: str | None) -> None:
        made = self.made
        if made.gang is not None:
            label = self._key(made.gang.by, row, cells)
            row |= {} if label is None else {"_gang": label}
        if self.jobs is not None:
            self.jobs.take(self._key("id" if made.fold is None else made.fold.by, row, cells), line, row, whole)
        else:
            self.rows(line, row, whole)

    def _key(self, by: str, row: dict[str, Any], cells: dict[str, Any]) -> str | None:
        value = row.get(by) if by in self.made.columns else cells.get(by)
        return None if value is None or is_blank(value, self.made.blanks) else str(value)

    def _value(self, target: str, source: CellSource, cells: dict[str, Any]) -> Any:
        """Return a row's value of a job attribute; None if blank, _Bad if unreadable."""
        if source.operation == "constant":
            return source.constant if kind_of(target) == "text" else self.readers[target](source.constant)
        if source.operation != "column":
            return self._combined(target, source, cells)
        column = source.columns[0]
        cell = self._cell(column, cells, target)
        if source.key is not None and cell is not None:
            self.keys_sought.setdefault((column, source.key), [False, target])
            cell = _part(str(cell), source.key)
            self.keys_sought[column, source.key][0] |= cell is not None
        if source.values is not None and cell is not None:
            cell = source.values.get(str(cell), cell)
        if cell is None:
            return None
        if kind_of(target) == "text":
            return written(cell)
        return _reading(self.readers[target], cell, column)

    def _cell(self, column: str, cells: dict[str, Any], target: str) -> Any:
        try:
            cell = tidied(cells[column])
        except ValueError as error:
            raise _Bad(column, f"the cell {error}") from None
        if is_blank(cell, self.made.blanks) or (target in ("time_limit", "estimate") and cell in mapping.NO_LIMIT):
            return None
        return cell

    def _combined(self, target: str, source: CellSource, cells: dict[str, Any]) -> float | None:
        parts = [self._cell(column, cells, target) for column in source.columns]
        if any(part is None for part in parts):
            return None
        pairs = zip(self._operands(target, source), parts, source.columns, strict=True)
        values = [_reading(reader, part, column) for reader, part, column in pairs]
        if source.operation == "product" and kind_of(target) == "count":
            return _reading(self.readers[target], math.prod(values), source.columns[0])
        if source.operation == "product":
            return math.prod(values)
        if source.operation == "sum":
            return math.fsum(values)
        return values[0] - values[1]

    def _operands(self, target: str, source: CellSource) -> list[Any]:
        kind, count = kind_of(target), len(source.columns)
        if source.operation == "product":
            factor = cells_of.with_point(_factor) if self.made.comma else _factor
            if kind == "count":  # the unit is that of the product: 1 times 470 milli is the float 0.47
                return [factor] * count
            return [self.readers[target], *[factor] * (count - 1)]
        if kind == "instant":
            span = cells_of.duration(self.made.units.get(target))
            span = cells_of.with_point(span) if self.made.comma else span
            return [self.readers[target], *[span] * (count - 1)]
        if kind == "duration" and source.operation == "difference":
            return [self._instant] * count
        return [self.readers[target]] * count

    @cached_property
    def _instant(self) -> Instants:
        return Instants(self.made.form("arrival"), self.made.zone)

    # RowProblems -------------------------------------------------------------------------------------------------

    def _complain(self, line: int, target: str, column: str, message: str) -> None:
        count = self.bad[column] = self.bad.get(column, 0) + 1
        if count == SHOWN + 1:
            self.more[column] = self.row, self._place(line)
        if count <= SHOWN:
            self.log.row_problems.add(f"row {self.row}, column {column}: {message}", self._place(line))

    def _place(self, line: int) -> int | None:
        return None if self.log.word == "row" else line

    def _complain_blank(self, line: int, target: str, source: CellSource) -> None:
        count = self.blank[target] = self.blank.get(target, 0) + 1
        if count == 1:
            ways = f"missing: {{{target}: drop}} leaves such jobs out"
            ways += "" if target in mapping.NO_DEFAULT else ", default takes what a table without the column has"
            text = f"row {self.row}: {self._nothing(source)}, and missing does not state its meaning for {target}"
            text = f"{text}; {ways}"
            self.blank_at[target] = self._place(line)
            self.log.row_problems.add(text, self._place(line))

    def _nothing(self, source: CellSource) -> str:
        if source.key is not None:
            return f"{shown(source.key)} is not found in {_of(source)}"
        if self.keyed:
            return f"the {'keys' if source.columns[1:] else 'key'} {', '.join(source.columns)} is not there, or null"
        return f"{_of(source)} is blank"

    def finish(self) -> None:
        """Finish all jobs; report unreadable and blank cells, and ambiguous dates."""
        log = self.log
        for (column, key), (there, target) in self.keys_sought.items():
            if not there:
                log.row_problems.add(f"columns.{target}: {shown(key)} is not found in any cell of column {column}")
        for stage in self.stages:
            stage.finish()
        self.times.finish(self.made.attempts == "separate")
        for column, count in self.bad.items():
            if count > SHOWN:
                row, place = self.more[column]
                more = "1 more cell" if count == SHOWN + 1 else f"{count - SHOWN:,} more cells"
                log.row_problems.add(f"from row {row} on, column {column}: {more} cannot be read", place)
        for target, count in self.blank.items():
            if count > 1:
                more = "in 1 more row" if count == 2 else f"in {count - 1:,} more rows"
                log.row_problems.add(f"{self._nothing(self.made.columns[target])} {more}", self.blank_at[target])
        instants = [one for one in self.readers.values() if isinstance(one, Instants)]
        if skipped := sum(one.skipped for one in instants):
            log.notes.append(f"{log.path}: {skipped:,} times are in an hour that clocks skip (start of summer time)")
        if not log.dated and len(log.blocks) and min(log.blocks.current.arrival, default=0.0) > 1e8:
            text = "if these are seconds since 1970, give time: epoch s (or ms, us, ns)"
            log.notes.append(
                f"{log.path}: submissions begin {min(log.blocks.current.arrival):.6g} s after time 0; {text}"
            )

    # Jobs -------------------------------------------------------------------------------------------------------

    def _job(self, line: int, found: dict[str, Any], whole: str | None) -> None:
        log = self.log
        self.first = min(self.first, found["arrival"])
        arrival, start, end = found.pop("arrival"), found.pop("start", None), found.pop("end", None)
        times = {name: found.pop(name) for name in self.typed if name in found}
        took = found.pop("duration", None)
        if took is None and len(self.typed) == 1:
            took = times.get(self.typed[0])
        if took is None and not log.times and (start is None or end is None):
            log.leave_out("never ran (without a start or an end)", line)
            return
        if start is None and end is not None and took is not None and end - took < arrival - ROUNDED:
            log.remark("ran longer than the time from submission to end", line)
        settled = self.times.settle(line, arrival, start, end=None if log.times else end, took=took)
        if settled is None:
            return
        arrival, start, took = settled
        if not self._devices(line, found, times):
            return
        self._limits(line, found, took)
        id_ = self._id(line, found.pop("id", None))
        if log.times:
            found.update({self.times_of[name]: times.get(name, math.inf) for name in self.typed})
        if start is not None:
            found["start"] = start
        key = None if id_ is not None or log.cut.sample == 1 else whole
        duration = math.nan if took is None else took
        self.times.added(log.add(line, id_, arrival, duration=duration, key=key, whole=whole, **found))

    def _limits(self, line: int, found: dict[str, Any], took: float | None) -> None:
        """Check the run time against the time limit; a missing estimate becomes the limit."""
        if "deadline" in found:
            found["due"] = found.pop("deadline")
        if (limit := found.get("time_limit")) is not None:
            found.setdefault("estimate", limit)
            if took is not None and limit < took:
                self.log.remark("ran longer than their time limit", line)

    def _id(self, line: int, id_: Any) -> Any:
        if "id" in self.made.columns and id_ is None:
            return f"{self.log.word} {line}"
        return number_or_text(id_) if isinstance(id_, str) else id_

    def _devices(self, line: int, found: dict[str, Any], times: dict[str, float]) -> bool:
        """Check a job's GPUs and cores; return False, with a reason recorded, to skip it."""
        log = self.log
        gpus = found.get("gpus")
        if gpus is not None and gpus > 1 and gpus % 1:
            column = ", ".join(self.made.columns["gpus"].columns)
            self._complain(line, "gpus", column, f"must be a share of one GPU below 1, or whole GPUs; got {gpus:g}")
            return False
        if not gpus:
            found.pop("devices", None)
        if self.typed == ["gpu_time"] and gpus == 0:
            log.leave_out("use no GPU, but only gpu_time is mapped (duration is the time on any device)", line)
            return False
        if self.typed == ["gpu_time"] and "gpus" not in self.made.columns:
            found["gpus"] = 1.0
        if self.typed == ["cpu_time"]:
            found["gpus"] = 0.0
        if log.times and not times:
            log.leave_out("have no time on any device", line)
            return False
        if not found.get("cpus") and gpus == 0 and "cpus" in self.made.columns:
            log.leave_out("use neither cores nor GPUs", line)
            return False
        return True


class _Bad(Exception):
    def __init__(self, column: str, message: str):
        self.column, self.message = column, message


def _reading(reader: Any, cell: Any, column: str) -> float:
    try:
        number: float = reader(cell)
    except ValueError as error:
        raise _Bad(column, f"{shown(str(cell))} {error}") from None
    return number


def _factor(value: Any) -> float:
    return cells_of.bounded(plain(value))


def _part(cell: str, key: str) -> str | None:
    """Return the amount of `key` in a cell such as cpu=8,gres/gpu=2 or gpu:a100:2."""
    parts = [part.partition("(")[0].strip() for part in cell.split(",")]
    for part in parts:
        name, sign, value = part.partition("=")
        if sign and name.strip() == key:
            return value.strip()
    words_of_parts = [part.removeprefix("gres:").replace("=", ":").split(":") for part in parts]
    counts = [int(words[-1]) if words[-1].isdecimal() else 1 for words in words_of_parts if words[0] == key]
    return str(sum(counts)) if counts else None


def _of(source: CellSource) -> str:
    return f"column {source.columns[0]}" if len(source.columns) == 1 else f"columns {', '.join(source.columns)}"
