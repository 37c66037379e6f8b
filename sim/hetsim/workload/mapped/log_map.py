"""Mapping of a log's columns: checks for contradictions, and cell readers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo

from hetsim.errors import suggestion
from hetsim.model.units import MAX_BYTES, shown
from hetsim.workload.mapped import cells as read
from hetsim.workload.mapped.cells import SIZES, TIMES, Cell, Instants
from hetsim.workload.mapped.mapping import GPU_TIME, NO_DEFAULT, UNITS, CellSource, Missing, kind_of
from hetsim.workload.rows.rows_of_a_job import OF_TEXTS, Fold

# units of time at the end of a column's name; `min` is ambiguous (minimum) and is not used
_SUFFIXES = {
    "ns": 1e-9, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "millis": 1e-3, "milliseconds": 1e-3,
    "microseconds": 1e-6, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "mins": 60.0,
    "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hrs": 3600.0, "hours": 3600.0, "days": 86400.0,
}  # fmt: skip
# units of size there; many logs write GB and mean GiB
_SIZE_SUFFIXES = {
    "bytes": (1.0,), "kb": (1e3, 2.0**10), "mb": (1e6, 2.0**20), "gb": (1e9, 2.0**30), "tb": (1e12, 2.0**40),
    "kib": (2.0**10,), "mib": (2.0**20,), "gib": (2.0**30,), "tib": (2.0**40,),
}  # fmt: skip


Problems = Iterator[tuple[str, str]]  # keys of a mapping, and the problem of each


@dataclass(frozen=True)
class LogMap:
    """Mapping of a log's columns to job attributes: the keys of `trace:`, checked."""

    columns: Mapping[str, CellSource]
    units: Mapping[str, str]
    forms: Mapping[str, str]
    zone: tzinfo | None
    missing: Mapping[str, Missing]
    blanks: frozenset[str | float]
    comma: bool = False  # numbers are written with a decimal comma
    fold: Fold | None = None
    gang: Fold | None = None
    attempts: str | None = None

    @property
    def wanted(self) -> list[str]:
        """Names of the columns that the mapping reads from the file."""
        keys = [one.by for one in (self.fold, self.gang) if one is not None and one.by not in self.columns]
        return list(dict.fromkeys([*(name for source in self.columns.values() for name in source.columns), *keys]))

    def form(self, target: str) -> str | None:
        """Return the date format of a job attribute; None if `time:` does not state one."""
        return self.forms.get(target, self.forms.get(""))

    @property
    def dated(self) -> bool:
        """True if times are dates, so that the first date is time 0."""
        form = self.form("arrival")
        return form is None or read.is_date(form)

    def problems(self, names: Sequence[str] | None, file: str, missing: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Return contradictions in the mapping, or with the file, as (key, message)."""
        problems = [*self._whole(), *self._twice(), *self._of_units(), *self._of_missing(), *self._of_forms()]
        for key, fold in (("fold", self.fold), ("gang", self.gang)):
            problems += [] if fold is None else self._of_fold(key, fold, names, file=file, missing=missing)
        for target, source in self.columns.items():
            for column in source.columns:
                if column in missing:
                    near = suggestion(column, names or ()) or _listed(names or ())
                    problems.append((f"columns.{target}", f"{file} has no column {shown(column)}{near}"))
                elif names is not None and list(names).count(column) > 1:
                    problems.append((f"columns.{target}", f"{file} has two columns {shown(column)}; rename one"))
        return problems

    def _of_fold(
        self, key: str, fold: Fold, names: Sequence[str] | None, file: str, missing: Sequence[str]
    ) -> Problems:
        if fold.by not in self.columns and fold.by in missing:
            names_here = [*self.columns, *(names or ())]
            near = suggestion(fold.by, names_here) or _listed(names or ())
            yield key, f"by: {shown(fold.by)} is neither mapped nor a column of {file}{near}"
        for name, rule in fold.columns.items():
            if rule == "count" and name in self.columns:
                yield key, f"{name} is a column already; count makes one of its own, such as attempts: count"
            elif rule != "count" and name not in self.columns:
                yield key, f"no column is mapped to {name}{suggestion(name, self.columns)}"
            elif rule not in ("count", *OF_TEXTS) and kind_of(name) == "text":
                yield key, f"{name} is a text, for which {rule} is undefined; use one of {', '.join(OF_TEXTS)}"

    def _whole(self) -> Problems:
        if "arrival" not in self.columns:
            yield "columns", "no column is mapped to arrival, the time of submission"
        times = [target for target in self.columns if target in ("gpu_time", "cpu_time") or target.startswith(GPU_TIME)]
        if not times and "duration" not in self.columns and not {"start", "end"} <= set(self.columns):
            yield "columns", "no column is mapped to the run time: map duration, gpu_time or cpu_time, or start and end"
        if times and "duration" in self.columns:
            text = f"duration is the time on any device, {times[0]} the time on one type; map one of them"
            yield "columns.duration", text
        if times == ["cpu_time"] and "gpus" in self.columns:
            way = "map duration (the time on any device) in place of cpu_time"
            yield "columns.gpus", f"jobs with GPUs need a time there: {way}"

    def _twice(self) -> Problems:
        by_column: dict[str, str] = {}
        for target, source in self.columns.items():
            if source.operation != "column" or source.key is not None or source.values is not None:
                continue
            column = source.columns[0]
            if column in by_column:
                text = f"the column {shown(column)} is mapped twice, to {by_column[column]} and to {target}"
                yield f"columns.{target}", f"{text}; a column must be mapped once"
            by_column.setdefault(column, target)

    def _of_units(self) -> Problems:
        for target, unit in self.units.items():
            if target not in self.columns:
                yield f"units.{target}", f"no column is mapped to {target}"
                continue
            units = UNITS.get(kind_of(target))
            if self.columns[target].operation == "difference" and kind_of(target) == "duration":
                text = "a difference of two instants has no unit (time: states how they are written); leave it out"
                yield f"units.{target}", text
            elif units is None:
                hint = "; time: states how instants are written" if kind_of(target) == "instant" else ""
                yield f"units.{target}", f"{target} has no unit{hint}"
            elif unit not in units:
                yield f"units.{target}", f"{unit} is not a unit of {target}; use one of {', '.join(units)}"
        for target, source in self.columns.items():
            has_unit = kind_of(target) in ("duration", "size") and source.operation in ("column", "product")
            if has_unit and (text := contradiction(target, source.columns[0], self.units.get(target))):
                yield f"units.{target}" if target in self.units else f"columns.{target}", text

    def _of_missing(self) -> Problems:
        for target, rule in self.missing.items():
            if target not in self.columns:
                yield f"missing.{target}", f"no column is mapped to {target}"
            elif target in NO_DEFAULT and rule == Missing("default"):
                text = f"{target} has no default; drop leaves such jobs out, {{default: VALUE}} gives them one"
                yield f"missing.{target}", text
            elif rule.value is not None:
                yield from self._unreadable(f"missing.{target}", target, "default", value=rule.value)
        for target, source in self.columns.items():
            if source.operation == "constant":
                yield from self._unreadable(f"columns.{target}", target, "constant", value=source.constant)

    def _unreadable(self, key: str, target: str, what: str, value: str) -> Problems:
        if kind_of(target) != "text":
            try:
                self.reader(target)(value)
            except ValueError as error:
                yield key, f"the {what} {shown(value)} {error}"

    def _of_forms(self) -> list[tuple[str, str]]:
        unknown = [target for target in self.forms if target and target not in self.columns]
        problems = [(f"time.{target}", f"no column is mapped to {target}") for target in unknown]
        instants = [target for target in self.columns if kind_of(target) == "instant"]
        forms = {target: self.form(target) for target in instants}
        dated = {target: form is None or read.is_date(form) for target, form in forms.items()}
        if len(set(dated.values())) > 1:
            no_date = next(target for target, is_date in dated.items() if not is_date)
            text = f"{no_date} is a number ({forms[no_date]} of the log's clock), but others are dates"
            problems.append(("time", f"{text}; they cannot be compared"))
        return problems + self._of_zone([form for form in forms.values() if form is not None])

    def _of_zone(self, written: list[str]) -> list[tuple[str, str]]:
        if self.zone is None:
            return []
        if written and all(form.startswith("epoch") or form in TIMES for form in written):
            return [("zone", f"{written[0]} has no time zone; leave zone out")]
        if any("%z" in form for form in written):
            return [("zone", "the dates have a time zone (%z); leave zone out")]
        return []

    # Readers of cells ---------------------------------------------------------------------------------------------

    def reader(self, target: str) -> Cell:
        cell = self._reader(target)
        dated = isinstance(cell, Instants) and (cell.form is None or cell.form not in (*TIMES, *read.EPOCH))
        return read.with_point(cell) if self.comma and not dated else cell

    def _reader(self, target: str) -> Cell:
        kind, unit = kind_of(target), self.units.get(target)
        if kind == "instant":
            return Instants(self.form(target), self.zone)
        if kind == "duration":
            return read.duration(unit)
        if kind == "size":
            return read.size(unit)
        if kind == "count":
            return read.count(unit)
        return read.number(least=-MAX_BYTES) if target == "priority" else read.number()


def _listed(names: Sequence[str]) -> str:
    return f"; it has {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}" if names else ""


def contradiction(target: str, column: str, unit: str | None) -> str:
    """Return why the unit in a column's name contradicts the mapping's `unit`, or ""."""
    if not (unit_named := unit_in_name(column, kind_of(target))):
        return ""
    factors = TIMES if kind_of(target) == "duration" else SIZES
    if unit is not None and unit not in factors:
        return ""  # told as such
    meant = factors[unit] if unit else 1.0
    if any(abs(one / meant - 1) < 1e-9 for one in unit_named[1]):
        return ""
    said = f"the unit is {unit}" if unit else f"no unit is stated, which means {'s' if factors is TIMES else 'bytes'}"
    way = f"state units: {{{target}: ...}}" if not unit else "correct it, or rename the column if its name is wrong"
    return f"the column name {shown(column)} says {unit_named[0]}, but {said}; {way}"


def unit_in_name(column: str, kind: str) -> tuple[str, tuple[float, ...]] | None:
    """Return the unit that ends a column's name, and its possible factors, or None.

    kind: "duration" (factors to seconds) or "size" (to bytes; `kb` may be 1000 or 1024).
    """
    word = column.replace("(", " ").replace(")", " ").replace("[", " ").replace("]", " ").replace("_", " ")
    parts = word.replace("-", " ").replace(".", " ").split()
    if len(parts) < 2:
        return None
    last = parts[-1]
    if kind == "duration" and last.casefold() == "min" and column.rstrip().endswith((")", "]")):
        return last, (60.0,)
    if kind == "duration" and last.casefold() in _SUFFIXES and last not in ("H", "S"):
        return last, (_SUFFIXES[last.casefold()],)
    if kind == "size" and last.casefold() in _SIZE_SUFFIXES:
        return last, _SIZE_SUFFIXES[last.casefold()]
    return None
