"""`hetsim trace`: look at, check and convert traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.cli import console
from sim.cli.options import JSON, VERBOSITY, together
from sim.cli.program import Verbs

if TYPE_CHECKING:
    from sim.workload.traces import TaskTable

READING = together(
    click.argument("file", metavar="FILE"),
    click.option("--format", "form", default="tasks", show_default=True, help="See `hetsim list traces`."),
    click.option("--option", "options", multiple=True, metavar="KEY=VALUE",
                 help="A parameter of the format's reader (repeatable)."),
    VERBOSITY,
)  # fmt: skip


@click.group(cls=Verbs, short_help="Inspect, check and convert traces.")
def trace() -> None:
    """Inspect, check and convert traces: recorded tasks in a file."""


@trace.command(short_help="Say what is in a trace.")
@READING
@JSON
def inspect(file: str, form: str, options: tuple[str, ...], verbose: bool, as_json: bool) -> None:
    """Say what is in a trace: how many tasks (or requests), when, how long, which columns."""
    table = read(file, form, options)
    found = contents(table)
    if as_json:
        console.as_json(found)
    else:
        console.lines(_text(found))
    for remark in table.notes:
        console.note(remark)


@trace.command(short_help="Check a trace.")
@READING
def validate(file: str, form: str, options: tuple[str, ...], verbose: bool) -> None:
    """Check a trace; every problem is listed with its line."""
    table = read(file, form, options)
    console.lines([f"{file}: valid; {len(table):,} {_rows(table)}"])
    for remark in table.notes:
        console.note(remark)


@trace.command(short_help="Write a trace as a plain table.")
@READING
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
def convert(file: str, form: str, options: tuple[str, ...], verbose: bool, target: Path, force: bool) -> None:
    """Write a trace as a plain table.

    Tasks become a task table, CSV or (with the suffix .parquet) Parquet; requests a request table (format: requests),
    which is CSV.
    """
    from sim.errors import UsageError
    from sim.workload.task_table import PARQUET, write

    if target.exists() and not force:
        raise click.UsageError(f"{target} exists; --force replaces it")
    table = read(file, form, options)
    if table.requests and target.suffix.lower() in PARQUET:
        raise UsageError(f"{target}: a table of requests is written as CSV; name it {target.with_suffix('.csv').name}")
    write(table, target)
    console.note(f"{target}: {len(table):,} {_rows(table)}")
    for remark in table.notes:
        console.note(remark)


def _rows(table: TaskTable) -> str:
    return "requests" if table.requests else "tasks"


def read(file: str, form: str, options: tuple[str, ...]) -> TaskTable:
    """The tasks in a file, through the registered reader; problems are addressed by its parameters."""
    from dataclasses import replace

    from sim.errors import ScenarioError, UsageError
    from sim.scenario import document
    from sim.scenario.trace_schema import check_traces

    given: dict[str, Any] = {}
    for text in options:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UsageError(f'--option needs KEY=VALUE, not "{text}"')
        try:
            given[key.strip()] = document.parse_value(value.strip())
        except ScenarioError as error:
            raise UsageError(f"--option {text}: the value {error.problems[0].message}") from None
    data = {"workload": [{"trace": {"format": form, "path": file, **given}}]}
    specs, problems = check_traces(document.from_mapping(data), Path())
    if problems:
        prefix = "workload.0.trace."
        raise ScenarioError([replace(problem, key=problem.key.removeprefix(prefix)) for problem in problems])
    return specs[0].read()


def contents(table: TaskTable) -> dict[str, Any]:
    """What a trace holds, as plain numbers in seconds."""
    import numpy as np

    durations = {}
    for name, values in table.times.items():
        known = values[np.isfinite(values)]
        quantiles = np.quantile(known, [0, 0.5, 0.95, 1]).tolist() if len(known) else [None] * 4
        mean = float(known.mean()) if len(known) else None
        durations[name] = {
            "tasks": len(known), "mean": mean, **dict(zip(("min", "p50", "p95", "max"), quantiles, strict=True))
        }  # fmt: skip
    labels = {"id": table.id, "class": table.class_, "user": table.user}
    columns = [
        *(name for name, values in labels.items() if values is not None),
        *table.numbers,
        *(name for name in ("predecessors", "reads", "writes", "hash_ids") if getattr(table, name) is not None),
    ]
    return {
        "file": table.source,
        _rows(table): len(table),
        "first_arrival": float(table.arrival.min()),
        "last_arrival": float(table.arrival.max()),
        "classes": _counts(table.class_),
        "users": 0 if table.user is None else len(set(table.user.tolist())),
        "edges": 0 if table.predecessors is None else sum(map(len, table.predecessors)),
        "columns": columns,
        "kept_columns": list(table.extra),
        "durations": durations,
    } | (_tokens(table) if table.requests else {})


def _tokens(table: TaskTable) -> dict[str, Any]:
    """How long the requests of a trace are, and how much of their prompts others had before."""
    import numpy as np

    sizes = {}
    for name in ("prompt_tokens", "output_tokens"):
        if name in table.extra:
            values = table.extra[name]
            quantiles = np.quantile(values, [0, 0.5, 0.95, 1]).tolist()
            sizes[name] = {"mean": float(values.mean()), **dict(zip(("min", "p50", "p95", "max"), quantiles, strict=True))}
    found: dict[str, Any] = {"tokens": sizes}
    if table.hash_ids is not None and len(table.hash_ids.values):
        blocks = table.hash_ids.values
        found["blocks"] = len(blocks)
        found["repeated_blocks"] = 1 - len(np.unique(blocks)) / len(blocks)
    return found


def _counts(values: Any) -> dict[str, int]:
    if values is None:
        return {}
    from collections import Counter

    return {str(name): number for name, number in Counter(values.tolist()).most_common()}


def _text(found: dict[str, Any]) -> list[str]:
    from sim.report import terminal

    first, last = found["first_arrival"], found["last_arrival"]
    rows_are = "requests" if "tokens" in found else "tasks"
    count = found[rows_are]
    facts = [[rows_are, terminal.count(count)], ["arrivals", f"{first:.6g} s to {last:.6g} s"]]
    if last > first:
        facts[-1][1] += f" ({terminal.rate(count / (last - first))})"
    classes = found["classes"]
    if classes:
        shown = [f"{name or '(none)'} {number:,}" for name, number in list(classes.items())[:8]]
        facts.append(["classes", ", ".join(shown) + (f", … {len(classes) - 8} more" if len(classes) > 8 else "")])
    if found["users"]:
        facts.append(["users", terminal.count(found["users"])])
    if found["edges"]:
        facts.append(["predecessors", f"{found['edges']:,} edges"])
    facts.append(["columns", ", ".join(found["columns"]) or "none besides arrival and times"])
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
    return [found["file"], "", *terminal.table(facts), "", *terminal.table(rows, right=range(1, 7))]
