"""Turns the rows of a log, cut by its options, into one task table or several.

Rows are processed in blocks; a log in memory is a single block.  Properties of the whole log are determined first: time
0, repeated rows, columns with values, whether ids are numbers, and repeated ids.  Apart from the blocks, this takes 1
byte per row and 8 for its id (8 more for the key if repeated rows are skipped), and the texts of repeated ids.
"""

import inspect
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hetsim.model.units import ExistingFile
from hetsim.workload.rows.job_columns import RowBlock
from hetsim.workload.rows.job_log import JobLog, LogCut
from hetsim.workload.rows.job_times import by_ids, numbers_in
from hetsim.workload.rows.rows_of_a_job import refuse_repeated
from hetsim.workload.traces import NUMBERS, TaskTable

BEHIND = 1e-3  # seconds after the cut at which the jobs arrive that waited at the cut
OVERDUE = 1.0  # assumed remaining seconds of a job that exceeds its user's estimate


@dataclass
class TableColumns:
    """The columns of the tables: those with a value in any row that is used."""

    on_gpu: bool = False
    on_cpu: bool = False
    # by name, in order of first appearance: True if any value is known
    numbers: dict[str, bool] = field(default_factory=dict)
    finite: set[str] = field(default_factory=set)  # times with any finite value
    texts: dict[str, bool] = field(default_factory=dict)
    ids: Literal["none", "numbers", "texts"] = "none"
    again: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # keys of repeated ids


class Assembly:
    """Builder of the tables of a log; raises ScenarioError with all problems."""

    def __init__(self, log: JobLog):
        self.log = log
        log.row_problems.fail_if_any()
        self.zero = log.first if log.dated and len(log.blocks) else 0.0
        low, high = log.window()
        self.window = low, high
        self.begin = self.zero + low
        self.kept = [self._inside(block) for block in log.blocks]  # of each block: which rows
        self._leave_repetitions()
        self._check_some()
        self.columns = self._columns()
        self.turns: dict[Any, int] = {}  # how often each id that comes again has been there
        self.renamed = 0

    def tables(self) -> Iterator[TaskTable]:
        """Yield the tables, one for each block that has tasks."""
        for block, kept in zip(self.log.blocks, self.kept, strict=True):
            if kept.any():
                yield self._table(block, kept)

    def notes(self) -> list[str]:
        """Return remarks on the tasks; call after all tables are made."""
        log = self.log
        if self.renamed:
            log.notes.append(f"{log.path}: {self.renamed:,} ids are repeated; these jobs are named id#2, id#3, ...")
            self.renamed = 0
        zero = []
        if log.dated and len(log.blocks):
            zero = [f"{log.path}: time 0 is {datetime.fromtimestamp(self.begin, UTC):%Y-%m-%d %H:%M:%S}"]
        return zero + log.summary()

    # Rows -----------------------------------------------------------------------------------------------------

    def _inside(self, block: RowBlock) -> np.ndarray:
        inside = np.ones(len(block), dtype=bool)
        low, high = self.window
        if self.log.dated and (low > 0 or high < math.inf):
            since_zero = np.frombuffer(block.arrival) - self.zero
            inside &= (since_zero >= low) & (since_zero < high)
            if self.log.cut.warm_start:
                inside |= (since_zero < low) & (_end_of(block) - self.zero > low)
            self._drop("outside the window", block, ~inside)
        return inside

    def _leave_repetitions(self) -> None:
        if not self.log.unique or not self.kept:
            return
        _, first = np.unique(np.frombuffer(self.log.keys, np.int64), return_index=True)
        if len(first) == len(self.log.keys):
            return
        again = np.ones(len(self.log.keys), dtype=bool)
        again[first] = False
        del first
        begin = 0
        for block, kept in zip(self.log.blocks, self.kept, strict=True):
            here = again[begin : begin + len(kept)]
            self._drop("repetitions", block, here & kept, self.log.passed_over)
            self.log.seen -= int((here & kept).sum())
            kept &= ~here
            begin += len(kept)

    def _drop(self, reason: str, block: RowBlock, rows: np.ndarray, where: dict[str, list[int]] | None = None) -> None:
        if rows.any():
            line = block.lines[int(np.argmax(rows))]
            tally = (self.log.left_out if where is None else where).setdefault(reason, [0, line])
            tally[0] += int(rows.sum())
            tally[1] = min(tally[1], line)

    def _check_some(self) -> None:
        if any(kept.any() for kept in self.kept):
            return
        if not self.log.seen:
            rows = "; ".join(f"{what}: {number:,}" for what, (number, _) in self.log.passed_over.items())
            self.log.fail("has no jobs" + (f" ({rows})" if rows else ""))
        reasons = "; ".join(f"{number:,} {reason}" for reason, (number, _) in self.log.left_out.items())
        self.log.fail(f"no job of its {self.log.seen:,} jobs remains: {reasons}")

    # Columns --------------------------------------------------------------------------------------------------

    def _columns(self) -> TableColumns:
        columns = TableColumns()
        kinds = set()
        bare = False
        for block, kept in zip(self.log.blocks, self.kept, strict=True):
            every = bool(kept.all())
            for name in block.numbers:
                values = block.number(name)
                values = values if every else values[kept]
                if not columns.numbers.get(name):
                    columns.numbers[name] = not bool(np.isnan(values).all())
                if name == "gpus":
                    columns.on_gpu |= bool((values != 0).any())
                    columns.on_cpu |= bool((values == 0).any())
                if name in self.log.times and name not in columns.finite and np.isfinite(values).any():
                    columns.finite.add(name)
            bare |= "gpus" not in block.numbers and bool(kept.any())
            for name, (_, names) in block.texts.items():
                columns.texts[name] = columns.texts.get(name, False) or len(names) > 1
            kinds.add("none" if not block.ids else "numbers" if isinstance(block.ids, array) else "texts")
        if "gpus" in columns.numbers:
            columns.on_gpu |= bare  # not a word about GPUs, in a log that otherwise tells
        else:
            columns.on_cpu = True
        if kinds - {"none"}:
            columns.ids = "numbers" if kinds == {"numbers"} else "texts"
            keys, count = np.empty(sum(int(kept.sum()) for kept in self.kept), np.int64), 0
            for block, kept in zip(self.log.blocks, self.kept, strict=True):
                ids = self._ids(block, kept, columns.ids)
                keys[count : count + len(ids)] = _keys(ids)
                count += len(ids)
            columns.again = _twice(keys)
            if len(columns.again) and self.log.one_row_each:
                self._refuse(columns)
        return columns

    def _refuse(self, found: TableColumns) -> None:
        seen: set[Any] = set()
        for block, kept in zip(self.log.blocks, self.kept, strict=True):
            lines = np.array(block.lines)[kept]
            ids = self._ids(block, kept, found.ids)
            for row in np.flatnonzero(np.isin(_keys(ids), found.again)).tolist():
                if ids[row] in seen:
                    refuse_repeated(self.log, ids[row], int(lines[row]), len(found.again))
                    self.log.row_problems.fail_if_any()
                seen.add(ids[row])

    def _ids(self, block: RowBlock, kept: np.ndarray, kind: str) -> np.ndarray:
        if kind == "numbers":
            ids: np.ndarray = np.frombuffer(block.ids, np.int64)  # type: ignore[arg-type]
        else:
            names = block.ids if isinstance(block.ids, list) else block.names_of(len(block))
            ids = np.array(names, dtype=object)
        return ids if kept.all() else ids[kept]

    # Tables ---------------------------------------------------------------------------------------------------

    def _table(self, block: RowBlock, kept: np.ndarray) -> TaskTable:
        log, columns = self.log, self.columns
        rows = self._in_order(block, kept)

        def chosen(values: np.ndarray) -> np.ndarray:
            return values if rows is None else values[rows]

        def numbers_of(name: str) -> np.ndarray:
            values = chosen(block.number(name))
            block.numbers.pop(name, None)
            return values

        arrival = chosen(np.frombuffer(block.arrival))
        when = (arrival - self.begin) * log.cut.time_scale
        table = TaskTable(str(log.path), {}, when, line=chosen(np.frombuffer(block.lines, np.int64)).item)
        numbers = {name: numbers_of(name) for name in columns.numbers}
        start, estimate, due = (numbers.pop(name, None) for name in ("start", "estimate", "due"))
        if log.cut.warm_start:
            table.extra["at_cut"] = self._warm_up(table.arrival, start, arrival < self.begin)
        if log.times:
            self._times(table, numbers, estimate)
        else:
            duration = chosen(np.frombuffer(block.duration))
            if log.cut.warm_start:
                duration, estimate = self._left(duration, start, estimate, numbers)
            self._durations(table, duration, numbers.get("gpus"), estimate)
        self._recorded(table, arrival, start, due)
        for name, values in numbers.items():
            if columns.numbers[name]:
                (table.numbers if name in NUMBERS else table.extra)[name] = values
        for name, there in columns.texts.items():
            if there and name in block.texts:
                self._text(table, name, chosen(block.codes(name)), list(block.texts.pop(name)[1]))
            elif there:
                self._text(table, name, np.zeros(len(table), np.int32), [""])
        if columns.ids != "none":
            table.id = self._by_turn(chosen(self._ids(block, np.ones(1, dtype=bool), columns.ids)))
            block.ids = []
        return table

    def _in_order(self, block: RowBlock, kept: np.ndarray) -> np.ndarray | None:
        """Return the rows used (None: all, in order); in unsorted files, ties are by id."""
        arrival = np.frombuffer(block.arrival)
        if not (np.diff(arrival) < 0).any() or len(np.unique(arrival)) == len(arrival):
            return None if kept.all() else np.flatnonzero(kept)
        plain = isinstance(block.ids, array) and len(block.ids) == len(block)
        rank = np.array(block.ids, dtype=float) if plain else numbers_in(block.names_of(len(block)))
        came, rows = np.argsort(arrival, kind="stable"), np.arange(len(kept))
        rows[came] = came if by_ids(rank, arrival)[1] is None else np.lexsort((rank, arrival))
        return rows[kept[rows]]

    def _times(self, table: TaskTable, numbers: dict[str, np.ndarray], estimate: np.ndarray | None) -> None:
        for name, kind in self.log.times.items():
            values = numbers.pop(name, None)
            if values is None or name not in self.columns.finite:
                continue
            table.times[kind] = values
            if estimate is not None and self.log.cut.estimates == "trace":
                both = np.isfinite(values) & ~np.isnan(estimate)
                table.estimates[kind] = np.where(both, estimate, values)

    def _recorded(
        self, table: TaskTable, arrival: np.ndarray, start: np.ndarray | None, due: np.ndarray | None
    ) -> None:
        """Set recorded starts and deadlines, moved by as much as the jobs' arrivals."""
        if start is not None and self.columns.numbers["start"]:
            wait = start - arrival
            if self.log.cut.warm_start:  # from the cut on; those that were moved behind it start when they did
                wait = np.maximum(start, self.begin) - np.maximum(arrival, self.begin)
                wait = np.maximum(0.0, wait - np.where(table.arrival == BEHIND, BEHIND, 0.0))
            table.extra["recorded_start"] = table.arrival + wait
        if due is not None and self.columns.numbers["due"]:
            table.numbers["deadline"] = table.arrival + (due - arrival)

    def _warm_up(self, when: np.ndarray, start: np.ndarray | None, warm: np.ndarray) -> np.ndarray:
        """Return each job's state at time 0 of a warm start: 0 new, 1 running, 2 waiting.

        Changes the arrivals `when`: running jobs arrive at 0, others at `BEHIND` (1 ms) or later.  warm: True for jobs
        that arrived before time 0.
        """
        runs = warm & (np.full(len(when), np.inf) if start is None else start <= self.begin)
        when[warm] = 0.0
        when[~runs & (when < BEHIND)] = BEHIND  # whatever the order of a scheduler, it starts first what runs already
        return runs + 2.0 * (warm & ~runs)

    def _left(
        self, duration: np.ndarray, start: np.ndarray | None, estimate: np.ndarray | None,
        numbers: dict[str, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
        """Return remaining run times and estimates (s); reduce time limits in `numbers`."""
        if start is None:
            return duration, estimate
        done = np.nan_to_num(np.maximum(0.0, self.begin - start))
        remaining = np.where(done > 0, duration - done, duration)
        if (limit := numbers.get("time_limit")) is not None:
            numbers["time_limit"] = np.where(done > 0, np.where(limit > done, limit - done, np.nan), limit)
        if estimate is not None:
            estimate = np.where(done > 0, np.maximum(estimate - done, OVERDUE), estimate)
        return remaining, estimate

    def _durations(
        self, table: TaskTable, duration: np.ndarray, gpus: np.ndarray | None, estimate: np.ndarray | None
    ) -> None:
        on_gpu = np.zeros(len(table), dtype=bool) if gpus is None else ~(gpus == 0)
        columns = self.columns
        pairs = (("gpu_time", on_gpu, columns.on_gpu), ("cpu_time", ~on_gpu, columns.on_cpu))
        for name, here, there in pairs:
            if not there:
                continue
            table.times[name] = duration if here.all() else np.where(here, duration, np.inf)
            if estimate is not None and self.log.cut.estimates == "trace":
                guess = np.where(np.isnan(estimate), duration, estimate)
                table.estimates[name] = np.where(here, guess, np.inf)

    def _text(self, table: TaskTable, name: str, codes: np.ndarray, names: list[str]) -> None:
        own = self.log.cut.types
        if name == "devices" and own:
            names = ["|".join(dict.fromkeys(own.get(one, one) for one in text.split("|"))) for text in names]
        values = np.array(names, dtype=object)[codes]
        if name in ("class", "user", "devices"):
            setattr(table, "class_" if name == "class" else name, values)
        else:
            table.extra[name] = values

    def _by_turn(self, ids: np.ndarray) -> np.ndarray:
        again = self.columns.again
        if not len(again):
            return ids
        names = ids.astype(object)
        for row in np.flatnonzero(np.isin(_keys(ids), again)).tolist():
            turn = self.turns[names[row]] = self.turns.get(names[row], 0) + 1
            if turn > 1:
                self.renamed += 1
                names[row] = f"{names[row]}#{turn}"
        return np.array(list(map(str, names)), dtype=object)


def _keys(ids: np.ndarray) -> np.ndarray:
    return ids if ids.dtype == np.int64 else np.fromiter(map(hash, ids), np.int64, len(ids))


def _twice(keys: np.ndarray) -> np.ndarray:
    """Return the keys that occur more than once; sorts `keys` in place."""
    keys.sort()
    return np.unique(keys[1:][keys[1:] == keys[:-1]])


def _end_of(block: RowBlock) -> np.ndarray:
    start = block.number("start") if "start" in block.numbers else np.full(len(block), np.nan)
    return np.nan_to_num(start, nan=-np.inf) + np.frombuffer(block.duration)


# Readers of job logs: a reader of a path, with options, from one of a log.


def job_log(read: Callable[..., TaskTable | JobLog]) -> Callable[..., TaskTable]:
    """Decorator that turns `read(log, **options)` into a reader with common options.

    `read` returns a table, or a log that the decorator converts to a table.  If the annotation of `read` says that it
    returns a log, the reader can also read in parts: `reader.parts(folder, path, **options)` returns `TableParts`.
    """

    def log_of(path: Path, given: dict[str, Any], folder: Path | None = None) -> JobLog:
        common = {option.name: given.pop(option.name) for option in fields(LogCut) if option.name in given}
        return JobLog(Path(path), LogCut(**common), folder)

    @wraps(read)
    def reader(path: Path, **given: Any) -> TaskTable:
        log = read(log_of(path, given), **given)
        return table_of(log) if isinstance(log, JobLog) else log

    def parts(folder: Path, path: Path, **given: Any) -> "TableParts":
        log = log_of(path, given, folder)
        try:
            read(log, **given)
            return TableParts(log)
        except BaseException:
            log.blocks.close()
            raise

    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(read, eval_str=True)
    own = list(signature.parameters.values())[1:]
    common = inspect.signature(LogCut, eval_str=True).parameters.values()
    path = inspect.Parameter("path", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=ExistingFile)
    reader.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [path, *(one.replace(kind=keyword) for one in [*own, *common])], return_annotation=TaskTable
    )
    if signature.return_annotation is JobLog:
        reader.parts = parts  # type: ignore[attr-defined]
    return reader


class TableParts:
    """Tasks of a log as consecutive tables, for logs larger than memory.

    A temporary file stores the rows until the whole log has been read.  `notes` are complete after the last table.
    """

    def __init__(self, log: JobLog):
        self._blocks = log.blocks
        self._assembly = Assembly(log)
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[TaskTable]:
        try:
            yield from self._assembly.tables()
            self.notes = self._assembly.notes()
        finally:
            self.close()

    def close(self) -> None:
        self._blocks.close()


def table_of(log: JobLog) -> TaskTable:
    """Return the table of a log, with its options applied; ScenarioError for problems."""
    assembly = Assembly(log)
    (table,) = assembly.tables()
    table.notes += assembly.notes()
    return table
