"""A proposal of how the columns of a log map to what jobs are, from its header and first rows.

By the names of columns and by what stands in them.  What it cannot know for sure it says: two columns that could be
the same, days and months that could be the other way round, numbers without a unit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.workload.column_names import NAMES, WIDTHS
from sim.workload.json_rows import first_sign
from sim.workload.log_map import unit_in_name
from sim.workload.mapped_cells import Instants, clock, guess_form
from sim.workload.mapped_rows import LOOKED_AT, Rows, beginning, fail, is_blank, tidied
from sim.workload.mapping import BLANKS, NO_LIMIT, kind_of
from sim.workload.text_rows import NUMBER

MINUTES = "min"
"""At the end of a name: minutes, or a minimum."""
NUMERIC = ("gpus", "cpus", "priority")
INSTANTS = ("arrival", "start", "end", "deadline")
DURATIONS = ("duration", "wait", "time_limit")
TEXTS = ("devices", "user", "class", "queue", "partition", "vc", "group", "account", "qos", "status", "recorded_node")
GPU_NAME = re.compile(r"\b(?:nvidia|tesla|[avhplktb]\d{1,3}0?|mi\d{2,3}|[rg]tx)", re.IGNORECASE)
EPOCHS = ((1e9, "epoch s"), (1e12, "epoch ms"), (1e15, "epoch us"), (1e18, "epoch ns"))
ORDER = (
    "id", "arrival", "start", "end", "duration", "time_limit", "gpus", "cpus", "memory", "gpu_memory", "devices",
    "user", "class", "queue", "partition", "vc", "group", "account", "qos", "status", "recorded_node", "priority",
    "deadline",
)  # fmt: skip


@dataclass
class Proposal:
    """Keys of a trace, and what is to be said of them: what is unsure, missing or not used."""

    keys: dict[str, Any]
    unsure: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    looked_at: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    """By target: what stands in its column."""


@dataclass
class Column:
    """The cells of a column in the first rows, blank ones apart."""

    name: str
    cells: list[Any]
    blank: int
    forms: list[str] = field(default_factory=list)
    """Ways in which all of them can be dates."""
    typed: str = ""
    """`instant` or `duration`, where the file's own type says so."""

    @property
    def plain(self) -> str:
        """The name without signs and unit: `Submit-Time (s)` is submittime."""
        return re.sub(r"[^a-z]", "", self.name.rpartition(".")[2].casefold())

    def names(self, target: str) -> list[str]:
        """By which it may be known: with and without a unit of the target's kind at the end."""
        unit = unit_in_name(self.name, "duration" if target in (*INSTANTS, *DURATIONS) else kind_of(target))
        if unit is None and target in DURATIONS and self.plain.endswith(MINUTES):
            return [self.plain, self.plain.removesuffix(MINUTES)]
        return [self.plain, self.plain.removesuffix(unit[0].casefold())] if unit else [self.plain]

    @property
    def numbers(self) -> list[float] | None:
        """All cells as numbers; None where one is none."""
        found = []
        for cell in self.cells:
            if isinstance(cell, str) and not NUMBER.fullmatch(cell):
                return None
            try:
                found.append(float(cell))
            except (TypeError, ValueError):
                return None
        return found if found else None


def propose(path: Path, form: str, rows: Rows) -> Proposal:
    """The mapping that the names and the first rows of a log suggest."""
    first = beginning(rows, LOOKED_AT)
    columns = [_column(name, [cells[place] for _, cells in first]) for place, name in enumerate(rows.names)]
    found = Proposal({"format": form, "path": str(path), "columns": {}}, looked_at=len(first))
    if not first:
        found.missing.append("the file has a header and no rows")
    chosen = _chosen(columns, found)
    chosen = _consistent(chosen, found)
    _parts_of_cells(columns, chosen, found)
    _times(chosen, found)
    _durations(chosen, found)
    _amounts(chosen, found)
    _blanks(chosen, found)
    for target in ORDER:
        if target in chosen and target not in found.keys["columns"]:
            found.keys["columns"][target] = chosen[target].name
    found.keys["columns"] = {one: found.keys["columns"][one] for one in ORDER if one in found.keys["columns"]}
    for target, column in chosen.items():
        known = list(dict.fromkeys(str(cell) for cell in column.cells))[:3]
        line = ", ".join(known) + (f"; {column.blank} of {len(first)} blank" if column.blank else "")
        found.examples[target] = line if len(line) <= 80 and line.isprintable() else line[:77] + "..."
    used = {column.name for column in chosen.values()}
    used |= {one["column"] for one in found.keys["columns"].values() if isinstance(one, dict) and "column" in one}
    found.unused = [column.name for column in columns if column.name not in used]
    _missing(chosen, columns, found)
    return found


def _column(name: str, cells: Sequence[Any]) -> Column:
    import datetime

    known = []
    for cell in cells:
        try:
            value = tidied(cell)
        except ValueError:
            value = "?"
        if not is_blank(value, frozenset(BLANKS)):
            known.append(value)
    column = Column(name, known, len(cells) - len(known))
    if known and all(isinstance(one, datetime.datetime) for one in known):
        column.typed = "instant"
    elif known and all(isinstance(one, datetime.timedelta) for one in known):
        column.typed = "duration"
    elif known and all(isinstance(one, str) for one in known) and not NUMBER.fullmatch(known[0]):
        column.forms = guess_form(sorted(set(known)))
    return column


def _chosen(columns: list[Column], found: Proposal) -> dict[str, Column]:
    """The column of each target: the surest name whose cells can be that."""
    pairs = []
    for target, names in NAMES.items():
        for column in columns:
            ranks = [names.index(name) for name in column.names(target) if name in names]
            if ranks and _could_be(target, column):
                pairs.append((min(ranks), target, column))
    chosen: dict[str, Column] = {}
    taken: set[str] = set()
    for _, target, column in sorted(pairs, key=lambda pair: pair[0]):
        if target in chosen:
            if column.name not in taken:
                text = f'{target}: "{chosen[target].name}" was taken; "{column.name}" could be it too'
                found.unsure.append(text)
            continue
        if column.name in taken:
            continue
        chosen[target] = column
        taken.add(column.name)
    return chosen


def _could_be(target: str, column: Column) -> bool:
    """Can what stands in a column be this?"""
    if not column.cells:
        return target in ("start", "end", "time_limit", "deadline")  # blank in the first rows
    if column.typed:
        return column.typed == ("instant" if target in INSTANTS else "duration" if target in DURATIONS else "")
    numbers = column.numbers
    if target in INSTANTS:
        return bool(column.forms) or numbers is not None
    if target in DURATIONS:
        texts = [cell for cell in column.cells if cell not in NO_LIMIT]
        return numbers is not None or all(isinstance(one, str) and clock(one) is not None for one in texts)
    if target in NUMERIC:
        return numbers is not None
    if target in ("memory", "gpu_memory"):
        sizes = re.compile(r"\d+(?:\.\d+)?\s*[KMGTP]?i?B?", re.IGNORECASE)
        return numbers is not None or all(isinstance(one, str) and sizes.fullmatch(one) for one in column.cells)
    if target in ("devices", "class") and column.plain in ("kind", "model", "gres"):
        of_gpus = all(GPU_NAME.search(str(cell)) for cell in column.cells)
        if of_gpus != (target == "devices"):
            return False
    if target in TEXTS:
        numeric = numbers is not None and any(value % 1 for value in numbers)
        return not column.forms and not numeric
    return True


def _consistent(chosen: dict[str, Column], found: Proposal) -> dict[str, Column]:
    """Without what a look at the rows speaks against."""
    queue = chosen.get("queue")
    if queue is not None and queue.numbers is not None and len(set(queue.cells)) > 1:
        what = "the wait" if _is_wait(queue, chosen) else "numbers, maybe the time in the queue"
        found.unsure.append(f'queue: "{queue.name}" holds {what}; it was left out')
        del chosen["queue"]
    wait = chosen.pop("wait", None)
    if wait is not None and "start" not in chosen:
        text = f'start: "{wait.name}" looks like the wait; start: {{sum: [{chosen["arrival"].name}, {wait.name}]}}'
        if "arrival" in chosen:
            found.unsure.append(f"{text} says so, if it is in seconds")
    if "class" not in chosen and "queue" in chosen and len(set(chosen["queue"].cells)) > 1:
        chosen["class"] = chosen.pop("queue")
        name = chosen["class"].name
        found.unsure.append(
            f'class: "{name}" was taken, so that tables go by it; queue: {name} would only carry it along'
        )
    return chosen


def _parts_of_cells(columns: list[Column], chosen: dict[str, Column], found: Proposal) -> None:
    """GPUs, cores and memory in cells such as cpu=8,gres/gpu=2,mem=64G, the last such column first."""
    for column in reversed(columns):
        texts = [str(cell) for cell in column.cells]
        if not texts or not all(re.match(r"[\w/:]+=[^,]*(?:,|$)", text) for text in texts):
            continue
        for target, key in (("gpus", "gres/gpu"), ("cpus", "cpu"), ("memory", "mem")):
            there = sum(f"{key}=" in text for text in texts)
            if target not in chosen and there:
                found.keys["columns"][target] = {"column": column.name, "key": key}
                if there < len(texts) or column.blank:
                    rule = "default" if target == "memory" else {"default": 0}
                    found.keys.setdefault("missing", {})[target] = rule
        return


def _is_wait(column: Column, chosen: dict[str, Column]) -> bool:
    """Does it hold the time between submission and start?"""
    if not {"arrival", "start"} <= set(chosen) or any(chosen[one].blank for one in ("arrival", "start")):
        return False
    came, began = _seconds(chosen["arrival"]), _seconds(chosen["start"])
    if came is None or began is None or column.numbers is None or column.blank:
        return False
    return all(abs(b - a - wait) <= 2 for a, b, wait in zip(came, began, column.numbers, strict=True))


def _times(chosen: dict[str, Column], found: Proposal) -> None:
    """How dates are written."""
    here = {target: chosen[target] for target in INSTANTS if target in chosen}
    forms: dict[str, str] = {}
    bare: list[str] = []
    for target, column in here.items():
        if column.typed:
            continue
        if column.forms:
            forms[target] = column.forms[0]
            _other_way(target, column, found)
            continue
        numbers = [value for value in column.numbers or [] if value > 0]
        if not numbers:
            continue
        middle = sorted(numbers)[len(numbers) // 2]
        form = next((form for low, form in EPOCHS if 0.3 * low <= middle < 10 * low), "s")
        forms[target] = form
        if form == "s":
            unit = unit_in_name(column.name, "duration")
            if unit:
                forms[target] = {1e-3: "ms", 1e-6: "us", 1e-9: "ns", 60.0: "min", 3600.0: "h"}.get(unit[1][0], "s")
            else:
                bare.append(column.name)
    if bare:
        text = f"time: {', '.join(bare)} hold numbers without a unit; s from the log's own beginning was taken"
        found.unsure.append(f"{text}, and could be ms, min or h")
    if not forms:
        return
    if len(set(forms.values())) == 1:
        found.keys["time"] = next(iter(forms.values()))
    else:
        found.keys["time"] = forms
    zoned = any(_zoned(column) for column in here.values())
    dates = any(form == "iso" or "%" in form for form in forms.values())
    if dates and not zoned and not any("%z" in form for form in forms.values()):
        found.unsure.append("zone: the dates carry none, and are taken as UTC; zone: Europe/Berlin, say, tells another")


def _other_way(target: str, column: Column, found: Proposal) -> None:
    """Could the days be the months?"""
    form = column.forms[0]
    swapped = [other for other in column.forms[1:] if sorted(other) == sorted(form)]
    if swapped and "%b" not in form:
        found.unsure.append(f'time: "{column.cells[0]}" ({target}) was read as {form}, and could be {swapped[0]}')


def _zoned(column: Column) -> bool:
    text = column.cells[0] if column.cells else ""
    if isinstance(text, str):
        return bool(re.search(r"(?:Z|[+-]\d{2}:?\d{2})$", text)) and ":" in text
    return getattr(text, "tzinfo", None) is not None


def _durations(chosen: dict[str, Column], found: Proposal) -> None:
    """Units of durations, and how long jobs run where no column says so."""
    units = found.keys.setdefault("units", {})
    for target in DURATIONS:
        column = chosen.get(target)
        if column is None or column.typed:
            continue
        if column.numbers is None:
            short = [one for one in column.cells if isinstance(one, str) and re.fullmatch(r"\d+:\d+", one)]
            if short:
                found.unsure.append(f'{target}: "{short[0]}" is read as minutes and seconds, as Slurm writes it')
            continue
        told = unit_in_name(column.name, "duration")
        if told:
            units[target] = _unit_of(told[1][0])
            continue
        measured = _measured(target, chosen)
        minutes = column.plain.endswith(MINUTES)
        units[target] = measured or ("min" if minutes else "s")
        if not measured:
            what = "may be minutes or a minimum" if minutes else "has no unit in its name"
            found.unsure.append(f'units: "{column.name}" ({target}) {what}; {units[target]} was taken')
    if "duration" not in chosen and {"start", "end"} <= set(chosen):
        found.keys["columns"]["duration"] = {"difference": [chosen["end"].name, chosen["start"].name]}


def _unit_of(factor: float) -> str:
    return {1e-9: "ns", 1e-6: "us", 1e-3: "ms", 1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}[factor]


def _measured(target: str, chosen: dict[str, Column]) -> str:
    """The unit in which a duration agrees with end − start, where the rows tell both."""
    if target != "duration" or not {"start", "end"} <= set(chosen):
        return ""
    start, end, took = (chosen[one] for one in ("start", "end", "duration"))
    if start.blank or end.blank or took.blank:
        return ""
    ends, starts = _seconds(end), _seconds(start)
    if ends is None or starts is None or took.numbers is None:
        return ""
    ratios = [(b - a) / t for b, a, t in zip(ends, starts, took.numbers, strict=True) if t > 0 and b - a > 60]
    if not ratios:
        return ""
    middle = sorted(ratios)[len(ratios) // 2]
    near = [(abs(middle / factor - 1), unit) for factor, unit in
            ((1e-9, "ns"), (1e-6, "us"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))]  # fmt: skip
    off, unit = min(near)
    return unit if off < 0.02 else ""


def _seconds(column: Column) -> list[float] | None:
    if column.numbers is not None:
        return column.numbers
    form = None if column.typed or not column.forms else column.forms[0]
    read = Instants(form, None)
    try:
        return [read(cell) for cell in column.cells]
    except ValueError:
        return None


def _amounts(chosen: dict[str, Column], found: Proposal) -> None:
    """Units of memory, and fractions."""
    units = found.keys.setdefault("units", {})
    for target in ("memory", "gpu_memory"):
        column = chosen.get(target)
        if column is None or column.numbers is None:
            continue
        told = unit_in_name(column.name, "size")
        if told:
            units[target] = {1.0: "B", 2.0**10: "KiB", 2.0**20: "MiB", 2.0**30: "GiB", 2.0**40: "TiB"}[told[1][-1]]
            if len(told[1]) > 1:
                text = f'units: "{column.name}" was taken as {units[target]} (powers of 1,024)'
                found.unsure.append(f"{text}; {told[0].upper()} would be powers of 1,000")
            continue
        highest = max(column.numbers, default=0.0)
        units[target] = "GiB" if highest <= 4096 else "MiB" if highest < 1e8 else "B"
        text = f'units: "{column.name}" holds numbers up to {highest:g} and says no unit; {units[target]} was taken'
        found.unsure.append(text)
    for target in ("gpus", "cpus"):
        column = chosen.get(target)
        if column is not None and "milli" in column.name.casefold():
            units[target] = "milli"
        elif target == "gpus" and column is not None and column.numbers is not None:
            hundredths = max(column.numbers) >= 50 and all(value % 25 == 0 for value in column.numbers)
            text = f'"{column.name}" (gpus) looks like hundredths of a GPU; percent was taken'
            units |= {target: "percent"} if hundredths else {}
            found.unsure += [f"units: {text}"] if hundredths else []
    if not units:
        del found.keys["units"]


def _blanks(chosen: dict[str, Column], found: Proposal) -> None:
    """What blank cells mean."""
    missing: dict[str, Any] = {}
    sources = {**{target: [column] for target, column in chosen.items()}}
    for target, columns in sources.items():
        limits = target == "time_limit" and any(cell in NO_LIMIT for column in columns for cell in column.cells)
        blank = sum(column.blank for column in columns)
        if (not blank and not limits) or target in TEXTS or target == "id":
            continue
        if target in ("gpus", "cpus"):
            missing[target] = {"default": 0}
            found.unsure.append(f'missing: {blank} blank cells of "{columns[0].name}" were taken as none held')
        elif target in ("arrival", "start", "end", "duration"):
            missing[target] = "drop"
        else:
            missing[target] = "default"
    if "difference" in str(found.keys["columns"].get("duration")) and {"start", "end"} & set(missing):
        missing["duration"] = "drop"
    if missing:
        found.keys["missing"] = {**found.keys.get("missing", {}), **missing}


def _missing(chosen: dict[str, Column], columns: list[Column], found: Proposal) -> None:
    """What a replay needs and the log does not seem to have."""
    there = found.keys["columns"]
    spent = next((one for one in columns if re.search(r"gpu[ _-]?(time|hours|seconds)", one.name, re.IGNORECASE)), None)
    if spent is not None:
        text = f'"{spent.name}" may be GPUs × time rather than elapsed time; it was left out'
        found.unsure.append(f"gpu_time: {text}")
    for column in columns:
        several = column.plain in WIDTHS and any(value > 1 for value in column.numbers or [])
        for target in ("gpus", "cpus") if several and column.name not in there.values() else ():
            if target in there:
                product = f"{target}: {{product: [{there[target]}, {column.name}]}}"
                found.unsure.append(f'{target}: if "{there[target]}" is for each of "{column.name}", {product}')
    if "arrival" not in there:
        found.missing.append("arrival: no column looks like the time at which jobs were submitted")
    if "duration" not in there:
        found.missing.append("duration: no column looks like the run time, nor are there a start and an end")
    if "gpus" not in there and "devices" not in there:
        found.missing.append("gpus: no column looks like a number of GPUs; without one all jobs run on cores")
    if "start" not in there and not {"end", "duration"} <= set(there):
        found.missing.append("start: without recorded starts there is nothing to compare simulated waits with")
    if "user" not in there:
        found.missing.append("user: without users there is no fairness between them")


def form_of(path: Path) -> str:
    """In which of the three forms a file is, by its name and its first sign."""
    from sim.workload.task_table import PARQUET

    if path.suffix.lower() in PARQUET:
        return "parquet"
    sign = first_sign(path)
    if sign == "[":
        raise fail(path, "is one JSON list; JSON lines hold an object a line (jq -c '.[]' makes them)")
    return "jsonl" if sign == "{" else "csv"


def written(proposal: Proposal) -> str:
    """The proposal as YAML to paste, with what there is to say of it in comments."""
    lines = [f"# Proposed from the header and the first {proposal.looked_at:,} rows."]
    lines += [f"# unsure: {text}" for text in proposal.unsure]
    lines += [f"# missing: {text}" for text in proposal.missing]
    if proposal.unused:
        lines.append(f"# not used: {', '.join(proposal.unused)}")
    lines += ["workload:", "  - trace:"]
    keys = proposal.keys
    lines += [f"      {_pair('format', keys['format'])}", f"      {_pair('path', keys['path'])}", "      columns:"]
    pairs = [(_pair(target, column), proposal.examples.get(target, "")) for target, column in keys["columns"].items()]
    if not pairs:
        lines[-1] += " {}"
    width = max((len(pair) for pair, _ in pairs), default=0)
    lines += [f"        {pair:<{width}}  # {example}" if example else f"        {pair}" for pair, example in pairs]
    lines += [f"      {_pair(key, keys[key])}" for key in ("units", "time", "missing", "separator") if key in keys]
    return "\n".join(lines) + "\n"


def _pair(key: str, value: Any) -> str:
    """A key and its value on one line of YAML."""
    import yaml

    text = yaml.safe_dump({key: value}, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.strip()[1:-1]
