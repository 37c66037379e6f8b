"""Proposes how columns of a log map to jobs, from its header and first rows.

The proposal uses names of columns and contents of cells.  It reports what is uncertain: two columns with the same
meaning, days and months that could be swapped, numbers without a unit.
"""

import re
from pathlib import Path
from typing import Any

from hetsim.errors import ScenarioError, file_error, visible
from hetsim.model.units import shown
from hetsim.workload.mapped.cells import guess_form
from hetsim.workload.mapped.log_map import unit_in_name
from hetsim.workload.mapped.mapping import BLANKS, NO_DEFAULT, NO_LIMIT, blanks_of
from hetsim.workload.mapped.proposed_columns import (
    DURATIONS,
    INSTANTS,
    NAMES,
    TEXTS,
    UNIT_OF,
    WIDTHS,
    Column,
    Proposal,
    amounts,
    by_words,
    choose,
    column_of,
    durations,
    fractions,
    seconds_of,
)
from hetsim.workload.mapped.proposed_contents import Contents
from hetsim.workload.mapped.rows import LOOKED_AT, Csv, FileRows, beginning, rows_of
from hetsim.workload.rows.json_rows import first_sign
from hetsim.workload.rows.rows_of_a_job import CHOICES
from hetsim.workload.rows.text_rows import NUMBER, PARQUET

EPOCHS = ((1e9, "epoch s"), (1e12, "epoch ms"), (1e15, "epoch us"), (1e18, "epoch ns"))
ORDER = (
    "id", "arrival", "start", "end", "duration", "time_limit", "gpus", "cpus", "memory", "gpu_memory", "devices",
    "user", "class", "queue", "partition", "vc", "group", "account", "qos", "status", "recorded_node", "priority",
    "deadline",
)  # fmt: skip


def proposal_of(path: Path, form: str | None, separator: str | None, known: str | None) -> Proposal:
    """Propose how to read a log; format `known` replaces an incomplete proposal."""
    try:
        file_form = form or form_of(path)
        proposal = propose(path, file_form, rows_of(path, file_form, separator))
    except ScenarioError:
        if known is None or form is not None:
            raise
        return Proposal({"format": known, "path": str(path)})
    if proposal.lacking and known is not None and form is None:
        return Proposal({"format": known, "path": str(path)})
    return proposal


def propose(path: Path, form: str, rows: FileRows) -> Proposal:
    """Propose a mapping from the names and first rows of a log."""
    proposal = Proposal({"format": form, "path": str(path), "columns": {}})
    rows = _with_names(rows, proposal)
    first = beginning(rows, LOOKED_AT)
    proposal.looked_at = len(first)
    if not first:
        proposal.missing.append("the file has a header, but no rows")
    columns = _columns(rows.names, [cells for _, cells in first], proposal)
    choice = choose(columns)
    proposal.unsure += choice.unsure
    Contents(columns, choice.chosen, len(first), proposal).choose()
    chosen = _consistent(choice.chosen, proposal)
    _parts_of_cells(columns, chosen, proposal)
    _times(chosen, proposal)
    durations(chosen, proposal)
    amounts(chosen, proposal)
    fractions(columns, chosen, proposal)
    _blanks(chosen, proposal)
    for target in ORDER:
        if target in chosen and target not in proposal.keys["columns"]:
            proposal.keys["columns"][target] = chosen[target].name
    proposal.keys["columns"] = {one: proposal.keys["columns"][one] for one in ORDER if one in proposal.keys["columns"]}
    for target, column in chosen.items():
        blank = f"; {column.blank} of {len(first)} blank" if column.blank else ""
        proposal.examples[target] = column.examples + blank
    used = {name for one in proposal.keys["columns"].values() for name in _columns_in(one)}
    others = [column for column in columns if column.name not in used]
    proposal.unused = [f"{one.name} ({one.examples})" if "header" in proposal.keys else one.name for one in others]
    _missing(chosen, columns, choice.unfit, proposal)
    return proposal


def _columns_in(source: Any) -> list[str]:
    if not isinstance(source, dict):
        return [source]
    return [name for key in ("column", "difference", "sum", "product") if key in source
            for name in (source[key] if isinstance(source[key], list) else [source[key]])]  # fmt: skip


def _with_names(rows: FileRows, found: Proposal) -> FileRows:
    """Return the rows with column names; numbers are the names if a CSV has no header."""
    twice = sorted({name for name in rows.names if name and rows.names.count(name) > 1})
    for name in twice:
        found.unsure.append(f"columns: the file has two columns {shown(name)}; rename one if it is used")
    if not isinstance(rows, Csv):
        return rows
    numbers = sum(bool(NUMBER.fullmatch(name)) for name in rows.names)
    dates = sum(bool(guess_form([name])) for name in rows.names if not NUMBER.fullmatch(name))
    if not dates and numbers < 2:
        return rows
    names = [f"column {number}" for number in range(1, len(rows.names) + 1)]
    found.keys["header"] = names
    text = "the first line seems to be a row of the log; put the column names into header: and map them"
    found.missing.append(f"names: {text}")
    return Csv(rows.path, rows.separator, names)


def _columns(names: list[str], rows: list[list[Any]], found: Proposal) -> list[Column]:
    columns = [column_of(name, [cells[k] for cells in rows], blanks_of(BLANKS)) for k, name in enumerate(names)]
    with_comma = [column for column in columns if column.commas]
    if with_comma and found.keys["format"] == "csv":
        found.keys["decimal"] = ","
        text = f'decimal: {shown(with_comma[0].cells[0])} ("{with_comma[0].name}") was read as a decimal number'
        found.unsure.append(text)
        for column in with_comma:
            column.cells = [cell.replace(".", "").replace(",", ".") for cell in column.cells]
    if unknown := [column for column in columns if _minus_one(column)]:
        words = (*BLANKS, *dict.fromkeys(str(c) for column in unknown for c in column.cells if float(c) == -1))
        found.keys["missing_values"] = list(words)
        found.unsure.append(f'missing_values: -1 ("{unknown[0].name}") was read as a missing value')
        for column in unknown:
            cells_in_order = iter(column.cells)
            column.there = [there and float(next(cells_in_order)) != -1 for there in column.there]
            known_cells = [cell for cell in column.cells if float(cell) != -1]
            column.blank, column.cells = column.blank + len(column.cells) - len(known_cells), known_cells
    return columns


def _minus_one(column: Column) -> bool:
    numbers = column.numbers
    if numbers is None or min(numbers) != -1 or any(-1 < value < 0 for value in numbers):
        return False
    targets = (*INSTANTS, *DURATIONS, "gpus", "cpus", "memory", "gpu_memory")
    return any(set(column.names(one)) & set(NAMES[one]) or by_words(one, column.name) for one in targets)


def _consistent(chosen: dict[str, Column], found: Proposal) -> dict[str, Column]:
    """Correct chosen columns whose contents contradict their meaning; add remarks."""
    if (queue := chosen.get("queue")) is not None and queue.numbers is not None and len(set(queue.cells)) > 1:
        what = "the wait" if _is_wait(queue, chosen) else "numbers, maybe the time in the queue"
        found.unsure.append(f'queue: "{queue.name}" has {what}; the column was left out')
        del chosen["queue"]
    if (wait := chosen.pop("wait", None)) is not None and "start" not in chosen and "arrival" in chosen:
        source = f"start: {{sum: [{chosen['arrival'].name}, {wait.name}]}}"
        found.unsure.append(f'start: "{wait.name}" may be the wait; if it is in seconds, use {source}')
    if "class" not in chosen and "queue" in chosen and len(set(chosen["queue"].cells)) > 1:
        chosen["class"] = chosen.pop("queue")
        name = chosen["class"].name
        found.unsure.append(
            f'class: "{name}" was used, so tables group by it; queue: {name} would only keep the column'
        )
    return chosen


def _parts_of_cells(columns: list[Column], chosen: dict[str, Column], found: Proposal) -> None:
    for column in reversed(columns):
        if column.cells and all(_RESOURCES.match(str(cell)) for cell in column.cells):
            _resources_of(column, chosen, found)
            return
    if "gpus" not in chosen:
        _gpus_of_gres(columns, chosen, found)


def _resources_of(column: Column, chosen: dict[str, Column], found: Proposal) -> None:
    for target, key in (("gpus", "gres/gpu"), ("cpus", "cpu"), ("memory", "mem")):
        there = sum(f"{key}=" in str(cell) for cell in column.cells)
        if target not in chosen and there:
            found.keys["columns"][target] = {"column": column.name, "key": key}
            if there < len(column.cells) or column.blank:
                rule = "default" if target == "memory" else {"default": 0}
                found.keys.setdefault("missing", {})[target] = rule


def _gpus_of_gres(columns: list[Column], chosen: dict[str, Column], found: Proposal) -> None:
    for column in columns:
        texts = [str(cell) for cell in column.cells]
        if any("gpu" in text for text in texts) and all(_GRES.fullmatch(text) for text in texts):
            key = "gres/gpu" if texts[0].startswith("gres/gpu") else "gpu"
            found.keys["columns"]["gpus"] = {"column": column.name, "key": key}
            found.keys.setdefault("missing", {})["gpus"] = {"default": 0}
            for target in [target for target, one in chosen.items() if one is column]:
                del chosen[target]
            return


_RESOURCES = re.compile(r"[\w/:]+=[^,]*(?:,|$)")
_GRES = re.compile(r"(?:(?:gres[:/])?[\w.-]+(?::[\w.-]+)?(?:[:=]\d+)?(?:\([^)]*\))?(?:,|$))+")


def _is_wait(column: Column, chosen: dict[str, Column]) -> bool:
    if not {"arrival", "start"} <= set(chosen) or any(chosen[one].blank for one in ("arrival", "start")):
        return False
    came, began = seconds_of(chosen["arrival"]), seconds_of(chosen["start"])
    if came is None or began is None or column.numbers is None or column.blank:
        return False
    return all(abs(b - a - wait) <= 2 for a, b, wait in zip(came, began, column.numbers, strict=True))


def _times(chosen: dict[str, Column], found: Proposal) -> None:
    here = {target: chosen[target] for target in INSTANTS if target in chosen}
    forms: dict[str, str] = {}
    bare: list[str] = []
    for target, column in here.items():
        if column.forms:
            forms[target] = column.forms[0]
            _other_way(target, column, found)
        elif not column.typed and (form := _form_of_numbers(column)):
            forms[target] = form
            if form == "s" and not unit_in_name(column.name, "duration"):
                bare.append(column.name)
    if bare:
        hold = f"{', '.join(bare)} hold{'s' * (len(bare) == 1)}"
        text = f"time: {hold} numbers without a unit; s from the start of the log was used"
        found.unsure.append(f"{text}, and could be ms, min or h")
    if forms:
        found.keys["time"] = next(iter(forms.values())) if len(set(forms.values())) == 1 else forms
        _zones(list(here.values()), list(forms.values()), found)


def _form_of_numbers(column: Column) -> str:
    """Return the format of numeric times: an epoch or a unit; "" if there are none."""
    numbers = [value for value in column.numbers or [] if value > 0]
    if not numbers:
        return ""
    middle = sorted(numbers)[len(numbers) // 2]
    form = next((form for low, form in EPOCHS if 0.3 * low <= middle < 10 * low), "s")
    unit = unit_in_name(column.name, "duration") if form == "s" else None
    return UNIT_OF[unit[1][0]] if unit else form


def _zones(columns: list[Column], forms: list[str], found: Proposal) -> None:
    shares = [(column, sum(_zoned(cell) for cell in column.cells)) for column in columns if column.cells]
    for column in [column for column, count in shares if 0 < count < len(column.cells)]:
        text = f'zone: some dates of "{column.name}" have a zone, the others are read as UTC'
        found.unsure.append(f"{text}; set another such as zone: Europe/Berlin")
    dates = any(form == "iso" or "%" in form for form in forms)
    if dates and not any(count for _, count in shares) and not any("%z" in form for form in forms):
        found.unsure.append("zone: the dates have none, and are read as UTC; set another such as zone: Europe/Berlin")


def _other_way(target: str, column: Column, found: Proposal) -> None:
    """Remark that dates could have another format, with day and month swapped."""
    form = column.forms[0]
    swapped = [other for other in column.forms[1:] if sorted(other) == sorted(form)]
    if swapped and "%b" not in form:
        found.unsure.append(f'time: "{column.cells[0]}" ({target}) was read as {form}, and could be {swapped[0]}')


def _zoned(cell: Any) -> bool:
    if isinstance(cell, str):
        return bool(re.search(r"(?:Z|[+-]\d{2}:?\d{2})$", cell)) and ":" in cell
    return getattr(cell, "tzinfo", None) is not None


def _blanks(chosen: dict[str, Column], found: Proposal) -> None:
    missing: dict[str, Any] = {}
    for target, column in chosen.items():
        limits = target == "time_limit" and any(cell in NO_LIMIT for cell in column.cells)
        if (not column.blank and not limits) or target in TEXTS or target == "id":
            continue
        if target in ("gpus", "cpus"):
            missing[target] = {"default": 0}
            found.unsure.append(f'missing: {column.blank} blank cells of "{column.name}" were read as 0')
        else:
            missing[target] = "drop" if target in NO_DEFAULT else "default"
    if "difference" in str(found.keys["columns"].get("duration")) and {"start", "end"} & set(missing):
        missing["duration"] = "drop"
    if missing:
        found.keys["missing"] = {**found.keys.get("missing", {}), **missing}


def _missing(chosen: dict[str, Column], columns: list[Column], unfit: dict[str, str], found: Proposal) -> None:
    there = found.keys["columns"]
    spent = next((one for one in columns if re.search(r"gpu[ _-]?(time|hours|seconds)", one.name, re.IGNORECASE)), None)
    if spent is not None:
        text = f'"{spent.name}" may be GPUs × time rather than elapsed time; the column was left out'
        found.unsure.append(f"gpu_time: {text}")
    for column in columns:
        if column.plain in WIDTHS and any(value > 1 for value in column.numbers or []):
            _amounts_of_each(column, there, found)
    steps = chosen["id"].steps if "id" in chosen else []
    if steps:
        text = f"id: {shown(steps[0])} seems to be a step of a job, which would count as a job"
        found.unsure.append(f"{text}; sacct -X lists jobs alone, and missing: {{user: drop}} drops rows without a user")
    ids = list(map(str, chosen["id"].cells)) if "id" in chosen and not steps else []
    if len(set(ids)) < len(ids):
        found.missing.append(f"attempts: {len(ids) - len(set(ids)):,} rows have the id of an earlier one; {CHOICES}")
    for target, text in REQUIRED.items():
        if target not in there and not any(stand_ins <= set(there) for stand_ins in INSTEAD.get(target, ())):
            found.missing.append(f"{target}: {unfit.get(target) or text}")


def _amounts_of_each(column: Column, there: dict[str, Any], found: Proposal) -> None:
    """Remark that GPU or core numbers may be per node (or other unit in `column`)."""
    if column.name not in there.values():
        for target in ("gpus", "cpus"):
            if isinstance(there.get(target), str):
                product = f"{target}: {{product: [{there[target]}, {column.name}]}}"
                found.unsure.append(f'{target}: if "{there[target]}" is for each of "{column.name}", {product}')
    if "gpus" not in there:
        found.unsure.append(f'gpus: if each of "{column.name}" has one GPU, gpus: {column.name}')


# Targets that are reported when missing, with the consequence
REQUIRED = {
    "arrival": "no column seems to be the time of submission; if all jobs are submitted at the start, "
    "arrival: {constant: 0} and time: s",
    "duration": "no column seems to be the run time, or the start and the end",
    "gpus": "no column seems to be a number of GPUs; without it all jobs run on cores",
    "start": "without recorded starts, simulated waits cannot be compared",
    "user": "without users, fairness cannot be measured",
}
INSTEAD = {"gpus": ({"devices"},), "start": ({"end", "duration"},)}  # targets that replace a missing target


def form_of(path: Path) -> str:
    """Return the file's form (csv, parquet or jsonl), by its name and first character."""
    if path.suffix.lower() in PARQUET:
        return "parquet"
    sign = first_sign(path)
    if sign == "[":
        raise file_error(path, "is one JSON list; convert it to JSON lines, one object per line: jq -c '.[]'")
    return "jsonl" if sign == "{" else "csv"


# As text ---------------------------------------------------------------------------------------------------------


def written(proposal: Proposal) -> str:
    """Return the proposal as YAML to paste, with remarks as comments."""
    keys = proposal.keys
    if "columns" not in keys:
        head = ", ".join(_pair(key, keys[key]) for key in ("format", "path"))
        return f"# The reader of {keys['format']} knows its columns.\nworkload:\n  - trace: {{{head}}}\n"
    lines = [f"# Proposed from the header and the first {proposal.looked_at:,} rows."]
    if lacking := proposal.lacking:
        lines.append(f"# It cannot be run before {' and '.join(lacking)} {'are' if lacking[1:] else 'is'} mapped.")
    lines += [f"# unsure: {visible(text)}" for text in proposal.unsure]
    lines += [f"# missing: {visible(text)}" for text in proposal.missing]
    if proposal.unused:
        lines.append(f"# not used: {visible(', '.join(proposal.unused))}")
    lines += ["workload:", "  - trace:"]
    lines += [f"      {_pair('format', keys['format'])}", f"      {_pair('path', keys['path'])}", "      columns:"]
    examples = {target: visible(text) for target, text in proposal.examples.items()}
    pairs = [(_pair(target, column), examples.get(target, "")) for target, column in keys["columns"].items()]
    width = max((len(pair) for pair, _ in pairs), default=0)
    lines += [f"        {pair:<{width}}  # {example}" if example else f"        {pair}" for pair, example in pairs]
    lines += [f"        # {target}: COLUMN" for target in lacking]
    lines += [f"      {_pair(key, keys[key])}" for key in FURTHER if key in keys]
    return "\n".join(lines) + "\n"


FURTHER = ("units", "time", "missing", "missing_values", "decimal", "separator", "header")


def _pair(key: str, value: Any) -> str:
    import yaml

    for unicode in (True, False):  # what cannot be seen is written as an escape, which YAML reads again
        text = yaml.safe_dump(
            {key: value}, default_flow_style=True, allow_unicode=unicode, width=10**6, sort_keys=False
        ).strip()
        if text.isprintable():
            break
    return text[1:-1]
