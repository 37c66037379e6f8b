"""The units of durations, sizes and counts in a mapping, by names and cells."""

from __future__ import annotations

import re

from hetsim.workload.mapped.cells import Instants
from hetsim.workload.mapped.log_map import unit_in_name
from hetsim.workload.mapped.proposed_columns import DURATIONS, MINUTES, Column, Proposal
from hetsim.workload.rows.column_names import words_of

UNIT_OF = {1e-9: "ns", 1e-6: "us", 1e-3: "ms", 1.0: "s", 60.0: "min", 3600.0: "h", 86400.0: "d"}
"""Units of time by their seconds."""


def durations(chosen: dict[str, Column], found: Proposal) -> None:
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
        named = unit_in_name(column.name, "duration")
        if named:
            units[target] = UNIT_OF[named[1][0]]
            continue
        measured = _measured(target, chosen)
        minutes = column.plain.endswith(MINUTES)
        if target in units:
            continue
        units[target] = measured or ("min" if minutes else "s")
        if not measured:
            what = "may be minutes or a minimum" if minutes else "has no unit in its name"
            found.unsure.append(f'units: "{column.name}" ({target}) {what}; {units[target]} was taken')
    if "duration" not in chosen and {"start", "end"} <= set(chosen):
        found.keys["columns"]["duration"] = {"difference": [chosen["end"].name, chosen["start"].name]}


def _measured(target: str, chosen: dict[str, Column]) -> str:
    """The unit in which a duration agrees with end − start, where the rows tell both."""
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
    form = None if column.typed or not column.forms else column.forms[0]
    read = Instants(form, None)
    try:
        return [read(cell) for cell in column.cells]
    except ValueError:
        return None


def amounts(chosen: dict[str, Column], found: Proposal) -> None:
    """Units of memory, and fractions."""
    units = found.keys.setdefault("units", {})
    for target in ("memory", "gpu_memory"):
        column = chosen.get(target)
        if column is None or column.numbers is None:
            continue
        named = unit_in_name(column.name, "size")
        if named:
            units[target] = {1.0: "B", 2.0**10: "KiB", 2.0**20: "MiB", 2.0**30: "GiB", 2.0**40: "TiB"}[named[1][-1]]
            if len(named[1]) > 1:
                text = f'units: "{column.name}" was taken as {units[target]} (powers of 1,024)'
                found.unsure.append(f"{text}; {named[0].upper()} would be powers of 1,000")
            continue
        highest = max(column.numbers, default=0.0)
        units[target] = "GiB" if highest < 2048 else "MiB" if highest < 1e8 else "B"
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


def fractions(columns: list[Column], chosen: dict[str, Column], found: Proposal) -> None:
    """Thousandths of GPUs next to a number of GPUs: the share of each one."""
    part = next((one for one in columns if words_of(one.name) >= {"gpu", "milli"} and one.numbers is not None), None)
    gpus = chosen.get("gpus")
    if part is None or gpus is None or part is gpus:
        return
    found.keys["columns"]["gpus"] = {"product": [gpus.name, part.name]}
    found.keys.setdefault("units", {})["gpus"] = "milli"
    found.unsure.append(f'gpus: "{part.name}" was taken for thousandths of each of "{gpus.name}"')
