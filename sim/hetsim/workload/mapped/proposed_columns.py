"""Proposes which column of a log has which job attribute, by name and contents."""

import datetime
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.model.files import package_table
from hetsim.model.units import shown
from hetsim.workload.mapped.cells import COMMA, Instants, clock, composite, guess_form
from hetsim.workload.mapped.log_map import unit_in_name
from hetsim.workload.mapped.mapping import NO_LIMIT, kind_of
from hetsim.workload.mapped.rows import is_blank, tidied
from hetsim.workload.rows.text_rows import NUMBER

_TABLES = package_table(__file__, "column_names.yaml")

# Names of columns in known logs, without signs between words; the surest name is first
NAMES: dict[str, tuple[str, ...]] = {target: tuple(names.split()) for target, names in _TABLES["names"].items()}

# names of columns with the number of nodes or instances of a job
WIDTHS: tuple[str, ...] = tuple(_TABLES["widths"].split())


@dataclass(frozen=True)
class Words:
    """Words that identify a column: at least one of each of `sets`, none of `none`."""

    sets: tuple[frozenset[str], ...]
    none: frozenset[str] = frozenset()

    def match(self, words: frozenset[str]) -> bool:
        return not words & self.none and all(words & one for one in self.sets)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.sub(r"@(\w+)", lambda match: _TABLES["groups"][match[1]], text).split())


# Words that identify a column whose name is none of NAMES
WORDS: dict[str, tuple[Words, ...]] = {
    target: tuple(Words(tuple(map(_words, one["sets"])), _words(one.get("none", ""))) for one in ways)
    for target, ways in _TABLES["words"].items()
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PLURALS = re.compile(r"\b(?:n|num)?([GC])PUs?(?![a-z])|(?<=[a-z])([GC])PUs?(?![a-z])")


def words_of(name: str) -> frozenset[str]:
    """Return the set of words of a name; `jobSubmitTime` equals `Job submit-time`."""
    plain = _PLURALS.sub(lambda match: f"_{(match[1] or match[2]).lower()}pus_", name)
    return frozenset(word.casefold() for word in _WORD.findall(plain))


def by_words(target: str, name: str) -> bool:
    """Return True if the words of a column's name indicate this job attribute."""
    words = words_of(name)
    return any(one.match(words) for one in WORDS.get(target, ()))


MINUTES = "min"  # at the end of a name: minutes, or a minimum
NUMERIC = ("gpus", "cpus", "priority")
INSTANTS = ("arrival", "start", "end", "deadline")
DURATIONS = ("duration", "wait", "time_limit")
TEXTS = ("devices", "user", "class", "queue", "partition", "vc", "group", "account", "qos", "status", "recorded_node")
GPU_NAME = re.compile(r"\b(?:nvidia|tesla|[avhplktb]\d{1,3}0?|mi\d{2,3}|[rg]tx)", re.IGNORECASE)
# targets for which the proposal explains why a column with a similar name was rejected
NEEDED = (*INSTANTS, "duration", "gpus")
BY_WORDS = 1000  # rank of a name that only matches by some words: behind all known names


@dataclass
class Proposal:
    """Proposed keys of `trace:`; remarks on uncertain, missing and unused columns."""

    keys: dict[str, Any]
    unsure: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    looked_at: int = 0
    examples: dict[str, str] = field(default_factory=dict)  # by target: an example from its column

    @property
    def lacking(self) -> list[str]:
        """Job attributes without a column, among those that the mapping requires."""
        return [target for target in ("arrival", "duration") if target not in self.keys["columns"]]


@dataclass
class Column:
    """The non-blank cells of a column in the first rows."""

    name: str
    cells: list[Any]
    blank: int
    forms: list[str] = field(default_factory=list)  # date formats that all cells fit
    there: list[bool] = field(default_factory=list)  # by row: True if the cell is not blank
    typed: str = ""  # `instant` or `duration`, if the file has types and states it

    @property
    def plain(self) -> str:
        """The letters of the name in lower case: submittimes for `Submit-Time (s)`."""
        return re.sub(r"[^a-z]", "", self.name.rpartition(".")[2].casefold())

    def names(self, target: str) -> list[str]:
        """Return forms of the column's name to compare: with and without its final unit."""
        unit = unit_in_name(self.name, "duration" if target in (*INSTANTS, *DURATIONS) else kind_of(target))
        if unit is None and target in DURATIONS and self.plain.endswith(MINUTES):
            return [self.plain, self.plain.removesuffix(MINUTES)]
        return [self.plain, self.plain.removesuffix(unit[0].casefold())] if unit else [self.plain]

    @property
    def numbers(self) -> list[float] | None:
        """All cells as numbers; None if one is not a number."""
        if any(isinstance(cell, str) and not NUMBER.fullmatch(cell) for cell in self.cells):
            return None
        try:
            return [float(cell) for cell in self.cells] or None
        except (TypeError, ValueError):
            return None

    @property
    def commas(self) -> bool:
        """True if all cells are numbers, and some have a decimal comma."""
        texts = [str(cell) for cell in self.cells]
        return any("," in one and COMMA.fullmatch(one) for one in texts) and all(
            COMMA.fullmatch(one) or NUMBER.fullmatch(one) for one in texts
        )

    @property
    def examples(self) -> str:
        line = ", ".join(list(dict.fromkeys(str(cell) for cell in self.cells))[:3])
        return line if len(line) <= 80 and line.isprintable() else line[:77].replace("\n", " ") + "..."

    @property
    def steps(self) -> list[str]:
        """Cells that are ids of job steps, which `sacct` prints without the option -X."""
        return [cell for cell in self.cells if isinstance(cell, str) and _STEP.fullmatch(cell)]


_STEP = re.compile(r"\d+(?:_\d+)?\.(?:batch|extern|interactive|\d+)")


@dataclass
class ColumnChoice:
    """The chosen column of each job attribute, and remarks on similar columns."""

    chosen: dict[str, Column]
    unsure: list[str]
    unfit: dict[str, str]  # by target: why a column with a similar name was rejected


def column_of(name: str, cells: Sequence[Any], words: frozenset[str | float]) -> Column:
    """Return a column with its non-blank cells; `words` also mean blank."""
    cells_there, there = [], []
    for cell in cells:
        try:
            value = tidied(cell)
        except ValueError:
            value = "?"
        there.append(not is_blank(value, words))
        if there[-1]:
            cells_there.append(value)
    column = Column(name, cells_there, len(cells) - len(cells_there), there=there)
    if cells_there and all(isinstance(one, datetime.datetime) for one in cells_there):
        column.typed = "instant"
    elif cells_there and all(isinstance(one, datetime.timedelta) for one in cells_there):
        column.typed = "duration"
    elif cells_there and all(isinstance(one, str) for one in cells_there) and not NUMBER.fullmatch(cells_there[0]):
        column.forms = guess_form(sorted(set(cells_there)))
    return column


def choose(columns: list[Column]) -> ColumnChoice:
    """Choose a column for each job attribute, by name, among columns whose cells fit."""
    pairs, unfit = [], dict[str, str]()
    for target, names in NAMES.items():
        for column in columns:
            ranks = [names.index(name) for name in column.names(target) if name in names]
            if not ranks and by_words(target, column.name):
                ranks = [BY_WORDS]
            if ranks and could_be(target, column):
                pairs.append((min(ranks), target, column))
            elif ranks and target in NEEDED and column.cells:
                unfit.setdefault(target, f'"{column.name}" has a matching name, but {_why_not(target, column)}')
    chosen: dict[str, Column] = {}
    taken: set[str] = set()
    unsure = []
    for rank, target, column in sorted(pairs, key=lambda pair: pair[0]):
        if column.name in taken:
            continue
        if target in chosen:
            unsure.append(f'{target}: "{chosen[target].name}" was used; "{column.name}" could be it, too')
            continue
        chosen[target] = column
        taken.add(column.name)
        if rank == BY_WORDS and target != "wait":
            unsure.append(f'{target}: "{column.name}" was used because of its name')
    # A column that is something else in the end could be nothing besides.
    unsure = [text for text in unsure if "could be it, too" not in text or text.split('"')[3] not in taken]
    return ColumnChoice(chosen, unsure, unfit)


def could_be(target: str, column: Column) -> bool:
    """Return True if a column's contents are possible values of this job attribute."""
    if not column.cells:
        return not column.blank or target in ("start", "end", "time_limit", "deadline")  # blank in the first rows
    for targets, kind, fits in FITS:
        if target in targets:
            return column.typed == kind if column.typed else fits(target, column)
    return not column.typed


def _like_durations(target: str, column: Column) -> bool:
    texts = [cell for cell in column.cells if cell not in NO_LIMIT]
    return column.numbers is not None or all(isinstance(one, str) and _is_duration(one) for one in texts)


def _written_as(form: re.Pattern[str], column: Column) -> bool:
    return column.numbers is not None or all(isinstance(one, str) and form.fullmatch(one) for one in column.cells)


def _like_texts(target: str, column: Column) -> bool:
    if target in ("devices", "class") and column.plain in ("kind", "model", "gres"):
        of_gpus = all(GPU_NAME.search(str(cell)) for cell in column.cells)
        if of_gpus != (target == "devices"):
            return False
    if column.forms:
        return False
    if column.numbers is None:
        return True
    return not (any(value % 1 for value in column.numbers) or target in ("devices", "status") or column.plain in WIDTHS)


_SIZE = re.compile(r"\d+(?:\.\d+)?\s*[KMGTP]?i?B?", re.IGNORECASE)
_MILLI = re.compile(r"\d+(?:\.\d+)?m?")

# Targets, the type of their cells in typed files, and the test of untyped cells
FITS: tuple[tuple[Collection[str], str, Callable[[str, Column], bool]], ...] = (
    (INSTANTS, "instant", lambda _, column: bool(column.forms) or column.numbers is not None),
    (DURATIONS, "duration", _like_durations),
    (("cpus",), "", lambda _, column: _written_as(_MILLI, column)),
    (NUMERIC, "", lambda _, column: column.numbers is not None),
    (("memory", "gpu_memory"), "", lambda _, column: _written_as(_SIZE, column)),
    (TEXTS, "", _like_texts),
)


def _is_duration(text: str) -> bool:
    return clock(text) is not None or composite(text) is not None


def _why_not(target: str, column: Column) -> str:
    if target in INSTANTS:
        return _no_dates(column)
    if column.typed:
        return f"has {column.typed}s"
    bad = next((one for one in column.cells if not _reads(target, one)), column.cells[0])
    if target == "gpus" and isinstance(bad, str):
        ways = {str(cell): (re.search(r"\d+", str(cell)) or ["?"])[0] for cell in column.cells}
        examples = ", ".join(f"{shown(name)}: {value}" for name, value in list(ways.items())[:3])
        way = f"gpus: {{column: {column.name}, values: {{{examples}}}}} says what it means"
        return f"{shown(bad)} is not a number; {way}"
    return f"{shown(str(bad))} is not a {'duration' if target in DURATIONS else 'number'} in a way that is known"


def _reads(target: str, cell: Any) -> bool:
    return not isinstance(cell, str) or bool(NUMBER.fullmatch(cell)) or (target in DURATIONS and _is_duration(cell))


def _no_dates(column: Column) -> str:
    texts = [str(cell) for cell in column.cells]
    ways: dict[str, int] = {}
    forms = {text: [form.partition(".%f")[0] for form in guess_form([text])][:1] for text in dict.fromkeys(texts)}
    for text in texts:
        ways.setdefault(" ".join(forms[text]), texts.index(text))
    if "" in ways:
        text = texts[ways[""]]
        year = "" if re.search(r"\d{4}|\d{1,2}[./-]\d{1,2}[./-]\d{2}", text) else " (it names no year)"
        return f"{shown(text)} is not in a known format of dates{year}; give it by time:"
    (one, first), (other, second), *_ = sorted(ways.items(), key=lambda pair: pair[1])
    both = f"{shown(texts[first])} ({one}) and {shown(texts[second])} ({other})"
    return f"its dates have several formats: {both}; use one"


# The units of durations, sizes and counts in a mapping, by names and cells.


# names of units of time, by seconds
UNIT_OF = {1e-9: "ns", 1e-6: "us", 1e-3: "ms", 1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}


def durations(chosen: dict[str, Column], found: Proposal) -> None:
    """Propose units of durations, and end − start if no column has run times."""
    units = found.keys.setdefault("units", {})
    for target in DURATIONS:
        column = chosen.get(target)
        if column is None or column.typed:
            continue
        if column.numbers is None:
            if short := [one for one in column.cells if isinstance(one, str) and re.fullmatch(r"\d+:\d+", one)]:
                found.unsure.append(f'{target}: "{short[0]}" is read as minutes and seconds, as Slurm writes it')
            continue
        if named := unit_in_name(column.name, "duration"):
            units[target] = UNIT_OF[named[1][0]]
            continue
        measured = _measured(target, chosen)
        minutes = column.plain.endswith(MINUTES)
        if target in units:
            continue
        units[target] = measured or ("min" if minutes else "s")
        if not measured:
            what = "may be minutes or a minimum" if minutes else "has no unit in its name"
            found.unsure.append(f'units: "{column.name}" ({target}) {what}; {units[target]} was used')
    if "duration" not in chosen and {"start", "end"} <= set(chosen):
        found.keys["columns"]["duration"] = {"difference": [chosen["end"].name, chosen["start"].name]}


def _measured(target: str, chosen: dict[str, Column]) -> str:
    """Return the unit in which the duration column equals end − start; "" if unknown."""
    if target != "duration" or not {"start", "end"} <= set(chosen):
        return ""
    start, end, took = (chosen[one] for one in ("start", "end", "duration"))
    if start.blank or end.blank or took.blank:
        return ""
    ends, starts = seconds_of(end), seconds_of(start)
    if ends is None or starts is None or took.numbers is None:
        return ""
    ratios = [(b - a) / t for b, a, t in zip(ends, starts, took.numbers, strict=True) if t > 0 and b - a > 60]
    if not ratios:
        return ""
    middle = sorted(ratios)[len(ratios) // 2]
    off, unit = min((abs(middle / factor - 1), unit) for factor, unit in UNIT_OF.items())
    return unit if off < 0.02 else ""


def seconds_of(column: Column) -> list[float] | None:
    if column.numbers is not None:
        return column.numbers
    read = Instants(None if column.typed or not column.forms else column.forms[0], None)
    try:
        return [read(cell) for cell in column.cells]
    except ValueError:
        return None


def amounts(chosen: dict[str, Column], found: Proposal) -> None:
    """Propose the units of memory, GPU and core columns, from their names and numbers."""
    units = found.keys.setdefault("units", {})
    for target in ("memory", "gpu_memory"):
        column = chosen.get(target)
        if column is None or column.numbers is None:
            continue
        if named := unit_in_name(column.name, "size"):
            units[target] = {1.0: "B", 2.0**10: "KiB", 2.0**20: "MiB", 2.0**30: "GiB", 2.0**40: "TiB"}[named[1][-1]]
            if len(named[1]) > 1:
                text = f'units: "{column.name}" was read as {units[target]} (powers of 1,024)'
                found.unsure.append(f"{text}; {named[0].upper()} would be powers of 1,000")
            continue
        highest = max(column.numbers, default=0.0)
        units[target] = "GiB" if highest < 2048 else "MiB" if highest < 1e8 else "B"
        text = f'units: "{column.name}" has numbers up to {highest:g} without a unit; {units[target]} was used'
        found.unsure.append(text)
    for target in ("gpus", "cpus"):
        column = chosen.get(target)
        if column is not None and "milli" in column.name.casefold():
            units[target] = "milli"
        elif target == "gpus" and column is not None and column.numbers is not None:
            hundredths = max(column.numbers) >= 50 and all(value % 25 == 0 for value in column.numbers)
            text = f'"{column.name}" (gpus) seems to be hundredths of a GPU; percent was used'
            units |= {target: "percent"} if hundredths else {}
            found.unsure += [f"units: {text}"] if hundredths else []
    if not units:
        del found.keys["units"]


def fractions(columns: list[Column], chosen: dict[str, Column], found: Proposal) -> None:
    """Propose `gpus` × a column of GPU thousandths, if the log has such a column."""
    part = next((one for one in columns if words_of(one.name) >= {"gpu", "milli"} and one.numbers is not None), None)
    gpus = chosen.get("gpus")
    if part is None or gpus is None or part is gpus:
        return
    found.keys["columns"]["gpus"] = {"product": [gpus.name, part.name]}
    found.keys.setdefault("units", {})["gpus"] = "milli"
    found.unsure.append(f'gpus: "{part.name}" was read as thousandths of each of "{gpus.name}"')
