"""Merges several rows of one job: its attempts, or the parts of a gang.

A row is a dict of a job's values: arrival, start and end, duration, amounts and texts by name.  A `Fold` states which
rows belong together and how each column becomes one value:

    min, max, sum     of the known numbers
    first, last       in the order of the file
    join              distinct texts separated by bars
    peak              the maximum that the rows use at one instant, by their starts and ends
    count             the number of rows

The start of a job is that of its earliest row and its end that of the latest; its duration is the difference unless a
rule is given.  A column without a rule must be equal in all rows.  Rows that are equal in every column are repetitions:
only one of them is used, and the others are counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hetsim.model.units import shown
from hetsim.workload.rows.job_log import JobLog

RULES = ("min", "max", "sum", "first", "last", "join", "peak", "count")
OF_TEXTS = ("first", "last", "join")
TIMES = {"arrival": "min", "start": "min", "end": "max"}
HOLDS = ("gpus", "cpus", "memory")
CHOICES = (
    "state their meaning: attempts: restarts (one job from its first start to its last end), attempts: separate (a job "
    "each), fold: {by: id, columns: {start: min, end: max, gpus: max}}, or gang: {by: COLUMN}"
)

Row = dict[str, Any]
Sink = Callable[[int, Row, str | None], None]


@dataclass(frozen=True)
class Fold:
    """Rules by which rows with the same value of the column `by` become one job."""

    by: str
    columns: Mapping[str, str] = field(default_factory=dict)  # declared rules
    numbers: str = ""  # rule of all other numbers; "": they must be equal
    texts: str = "last"
    gang: bool = False

    def rule(self, name: str, is_text: bool) -> str:
        """Return the rule that merges the values of a job's rows; "": they must be equal."""
        if name in self.columns:
            return self.columns[name]
        if name in TIMES:
            return TIMES[name]
        if self.gang and name in HOLDS:
            return "peak"
        if self.gang and name in ("recorded_node", "devices"):
            return "join"
        return self.texts if is_text else self.numbers


def restarts(by: str = "id") -> Fold:
    """Return the rule that merges attempts: one job from first start to last end."""
    return Fold(by, {"attempts": "count"}, numbers="max")


def gang(by: str, columns: Mapping[str, str] | None = None) -> Fold:
    """Return the rule that merges the rows of a gang: equal labels in column `by`."""
    return Fold(by, columns or {}, numbers="max", texts="first", gang=True)


class JobRows:
    """Converter of rows into jobs; jobs are in the order of their first rows."""

    def __init__(self, log: JobLog, fold: Fold | None, sink: Sink):
        """fold: how rows of one job become one; None: rows that differ are an error."""
        self.log, self.fold, self.sink = log, fold, sink
        self._waiting: dict[object, list[tuple[int, Row, str | None]]] = {}

    def take(self, key: str | None, line: int, row: Row, whole: str | None = None) -> None:
        """Add a row to job `key` (None: a new job), unless it has a row of text `whole`."""
        rows = self._waiting.setdefault(len(self._waiting) if key is None else key, [])
        if whole is not None and any(whole == other for _, _, other in rows):
            self.log.pass_over("repetitions", line)
        else:
            rows.append((line, row, whole))

    def finish(self) -> None:
        merged, first = 0, 0
        different: list[tuple[object, int]] = []
        for key, rows in self._waiting.items():
            line, row, row_text = rows[0]
            if len(rows) > 1 and self.fold is None:
                different.append((key, rows[1][0]))
                continue
            if len(rows) > 1 and self.fold is not None:
                merged, first = merged + len(rows), first or line
                row = self._folded(self.fold, str(key), rows)
            elif self.fold is not None:
                row |= {name: 1.0 for name, rule in self.fold.columns.items() if rule == "count"}
            self.sink(line, row, row_text)
        if different:
            refuse_repeated(self.log, *different[0], len(different))
        if merged and self.fold is not None:
            what = "gangs" if self.fold.gang else "jobs with several rows"
            count = sum(len(rows) > 1 for rows in self._waiting.values())
            text = f"{merged:,} rows were combined into {count:,} {what}, by {self.fold.by}"
            self.log.notes.append(f"{self.log.path}: {text} (first: {self.log.word} {first})")
        self._waiting = {}

    def _folded(self, fold: Fold, key: str, rows: list[tuple[int, Row, str | None]]) -> Row:
        parts = [_with_end(row) for _, row, _ in rows]
        merged_row: Row = {}
        for name in dict.fromkeys(name for row in parts for name in row):
            values = [row[name] for row in parts if row.get(name) is not None]
            if not values or (name == "duration" and name not in fold.columns):
                continue
            rule = fold.rule(name, isinstance(values[0], str))
            if name == "end" and any(row.get("start") is not None and row.get("end") is None for row in parts):
                continue  # the last attempt, or a part, still runs
            if not rule and len(set(values)) > 1:
                text = f"job {shown(key)}: {name} is {shown(str(values[0]))} and {shown(str(values[1]))} in its rows"
                self.log.wrong(rows[1][0], "", f"{text}; fold: {{columns: {{{name}: ...}}}} says which counts")
            merged_row[name] = _one(rule or "first", name, values, parts)
        merged_row |= {name: float(len(rows)) for name, rule in fold.columns.items() if rule == "count"}
        if "duration" not in merged_row and {"start", "end"} <= set(merged_row):
            merged_row["duration"] = merged_row["end"] - merged_row["start"]
        elif "duration" in merged_row and "duration" in fold.columns:
            merged_row.pop("end", None)
        elif all(row.get("duration") is not None for row in parts) and "end" not in merged_row:
            merged_row["duration"] = max(row["duration"] for row in parts)
        if fold.gang:
            merged_row["id"] = key
        return merged_row


def refuse_repeated(log: JobLog, key: object, line: int, count: int) -> None:
    """Record the problem that several different rows have one id."""
    others = f" (and {count - 1:,} more ids)" if count > 1 else ""
    log.wrong(line, "", f"the id {shown(str(key))} has several rows that differ{others}; {CHOICES}")


def _with_end(row: Row) -> Row:
    start, end, took = (row.get(name) for name in ("start", "end", "duration"))
    if took is None or (start is None) == (end is None):
        return row
    return {**row, "end": start + took} if end is None else {**row, "start": end - took}


def _one(rule: str, name: str, values: list[Any], rows: list[Row]) -> Any:
    if rule == "join":
        return "|".join(dict.fromkeys(part for value in values for part in str(value).split("|")))
    if rule == "peak":
        return _peak(name, rows)
    if rule in ("first", "last"):
        return values[0 if rule == "first" else -1]
    if rule == "count":
        return float(len(rows))
    if rule == "sum":
        return sum(values)
    return min(values) if rule == "min" else max(values)


def _peak(name: str, rows: list[Row]) -> float:
    """Return a column's highest sum over rows at one time; without times, over all."""
    if any(row.get("start") is None or row.get("end") is None for row in rows):
        return float(sum(row.get(name) or 0.0 for row in rows))
    steps = sorted([(row["start"], 1, row.get(name) or 0.0) for row in rows]
                   + [(row["end"], 0, -(row.get(name) or 0.0)) for row in rows])  # fmt: skip
    level = highest = 0.0
    for _, _, change in steps:
        level += change
        highest = max(highest, level)
    return highest
