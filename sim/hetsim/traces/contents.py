"""The contents of a trace, as `hetsim trace inspect` shows them."""

from collections import Counter
from typing import Any

import numpy as np

from hetsim.report import terminal
from hetsim.workload.logs import summary
from hetsim.workload.traces import TaskTable


def rows_word(table: TaskTable) -> str:
    """Return "requests" if the rows of a trace are requests, else "tasks"."""
    return "requests" if table.requests else "tasks"


def contents(table: TaskTable) -> dict[str, Any]:
    """Return a summary of a trace as a mapping: counts, columns, and times in seconds."""
    durations = {}
    for name, values in table.times.items():
        finite = values[np.isfinite(values)]
        durations[name] = {"tasks": len(finite), **_spread(finite)}
    labels = {"id": table.id, "class": table.class_, "user": table.user, "devices": table.devices}
    columns = [
        *(name for name, values in labels.items() if values is not None),
        *table.numbers,
        *(name for name in ("predecessors", "reads", "writes", "hash_ids") if getattr(table, name) is not None),
    ]
    return {
        "file": table.source,
        rows_word(table): len(table),
        "first_arrival": float(table.arrival.min()),
        "last_arrival": float(table.arrival.max()),
        "classes": {} if table.class_ is None else
        {str(name): number for name, number in Counter(table.class_.tolist()).most_common()},
        "users": 0 if table.user is None else len(set(table.user.tolist())),
        "edges": 0 if table.predecessors is None else sum(map(len, table.predecessors)),
        "columns": columns,
        "kept_columns": list(table.extra),
        "durations": durations,
    } | (
        _tokens(table) if table.requests
        else {"sizes": summary.sizes(table), **summary.shares(table), "load": summary.load(table)}
    )  # fmt: skip


def _tokens(table: TaskTable) -> dict[str, Any]:
    names = [name for name in ("prompt_tokens", "output_tokens") if name in table.extra]
    tokens: dict[str, Any] = {"tokens": {name: _spread(table.extra[name]) for name in names}}
    if table.hash_ids is not None and len(table.hash_ids.values):
        blocks = table.hash_ids.values
        tokens["blocks"] = len(blocks)
        tokens["repeated_blocks"] = 1 - len(np.unique(blocks)) / len(blocks)
    return tokens


def _spread(values: Any) -> dict[str, float | None]:
    figures = [values.mean(), *np.quantile(values, [0, 0.5, 0.95, 1])] if len(values) else []
    return dict(zip(("mean", "min", "p50", "p95", "max"), map(float, figures) if figures else [None] * 5, strict=True))


def text_of(found: dict[str, Any]) -> list[str]:
    first, last = found["first_arrival"], found["last_arrival"]
    rows_are = "requests" if "tokens" in found else "tasks"
    count = found[rows_are]
    facts = [[rows_are, terminal.count(count)], ["arrivals", f"{first:.6g} s to {last:.6g} s"]]
    if last > first:
        facts[-1][1] += f" ({terminal.rate(count / (last - first))})"
    if classes := found["classes"]:
        shown = [f"{name or '(none)'} {number:,}" for name, number in list(classes.items())[:8]]
        facts.append(["classes", ", ".join(shown) + (f", … {len(classes) - 8} more" if len(classes) > 8 else "")])
    if found["users"]:
        facts.append(["users", terminal.count(found["users"])])
    if found["edges"]:
        facts.append(["predecessors", f"{found['edges']:,} edges"])
    facts.append(["columns", ", ".join(found["columns"]) or "only arrival and times"])
    if found["kept_columns"]:
        facts.append(["kept columns", ", ".join(found["kept_columns"])])
    if "blocks" in found:
        facts.append(["prompt blocks", f"{found['blocks']:,}, {found['repeated_blocks']:.1%} seen before"])
    if rows_are == "requests":
        rows = [["", "mean", "min", "p50", "p95", "max"]]
        for name, numbers in found["tokens"].items():
            rows.append([name.replace("_", " "), *(f"{value:,.0f}" for value in numbers.values())])
        sizes = ["", *terminal.table(rows, right=range(1, 6))] if len(rows) > 1 else []
        return [found["file"], "", *terminal.table(facts), *sizes]
    rows = [["duration", "tasks", "mean", "min", "p50", "p95", "max"]]
    for name, numbers in found["durations"].items():
        values = [numbers[key] for key in ("mean", "min", "p50", "p95", "max")]
        texts = ["–"] * 5 if values[0] is None else terminal.several(values, terminal.SECONDS)
        rows.append([name, terminal.count(numbers["tasks"]), *texts])
    table = terminal.table(rows, right=range(1, 7))
    return [found["file"], "", *terminal.table(facts), "", *table, *_sizes_text(found), *_load_text(found)]


def _sizes_text(found: dict[str, Any]) -> list[str]:
    on_cores = all("cores" in row for row in found["sizes"])
    if on_cores and len(found["sizes"]) < 2:
        return []
    unit, head = ("cores", "cores") if on_cores else ("gpus", "GPUs")
    rows = [[head, "tasks", "share", "of core time" if on_cores else "of GPU time"]]
    for row in found["sizes"]:
        shares = [f"{100 * row[key]:.1f} %" for key in ("tasks_share", "work_share")]
        rows.append([row[unit], terminal.count(row["tasks"]), *shares])
    if on_cores:
        return ["", *terminal.table(rows, right=range(1, 4))]
    parts = f"{100 * found['fractions']:.1f} % take a fraction, {100 * found['gangs']:.1f} % are gangs"
    return ["", *terminal.table(rows, right=range(1, 4)), f"of the tasks on GPUs {parts}"]


BARS = " ▁▂▃▄▅▆▇█"


def _load_text(found: dict[str, Any]) -> list[str]:
    load = found["load"]
    lines = []
    for key, name in (("gpus", "GPUs held"), ("cores", "cores held"), ("jobs", "submissions")):
        values = load.get(key, [])
        peak = max(values, default=0)
        if peak > 0:
            bars = "".join(BARS[min(8, int(8.999 * value / peak))] for value in values)
            mean = sum(values) / len(values)
            lines.append([name, f"|{bars}|", f"mean {mean:,.4g}, most {peak:,.4g}"])
    if not lines:
        return []
    stretch = terminal.several([load["stretch"]], terminal.SECONDS)[0]
    return ["", f"over the submissions, each sign {stretch}", *terminal.table(lines)]
