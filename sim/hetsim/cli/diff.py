"""`hetsim diff`: what differs between two runs."""

from pathlib import Path
from typing import Any

import click

from hetsim.cli import console
from hetsim.cli.options import JSON, PATH, VERBOSITY, Whole
from hetsim.report import terminal

COLUMNS = ("response", "wait", "slowdown", "finish", "start", "energy_j")
MAX_GROUPS = 12
MAX_SETTINGS = 10


@click.command(short_help="Say which tasks, groups and decisions differ between two runs.")
@click.argument("a", type=PATH, metavar="RUN")
@click.argument("b", type=PATH, metavar="RUN")
@click.option("--metric", "column", type=click.Choice(COLUMNS), default="response", show_default=True,
              help="What of each task is compared.")  # fmt: skip
@click.option("--by", type=click.Choice(["class", "user"]), help="Gainers and losers by class or by user only.")
@click.option("--top", type=Whole(min=1), default=10, show_default=True, metavar="N", help="Tasks that are listed.")
@JSON
@VERBOSITY
def diff(a: Path, b: Path, column: str, by: str | None, top: int, as_json: bool) -> None:
    """Compare two runs that `run --out` or `compare --out` wrote, task by task.

    Of replications the first is taken. Tasks are matched by their id.
    """
    from hetsim.experiment.directory import first_run
    from hetsim.results.many_runs.difference import difference
    from hetsim.results.stored_files import reading_stored

    for run in (a, b):
        if not run.is_dir():
            raise click.UsageError(f'there is no directory "{run}"; `hetsim run --out {run} ...` would write it')
    with reading_stored(a, b):
        compared = difference(first_run(a), first_run(b), column)
        console.result(as_json, lambda: compared.to_json(top), lambda: _lines(compared, by, top))


def _lines(found: Any, by: str | None, top: int) -> list[str]:
    a, b = found.labels
    lines = [f"a: {found.a.name} · {a}", f"b: {found.b.name} · {b}", *_settings(found), ""]
    lines += terminal.paragraphs(found.sentences)
    for group in (by,) if by else ("class", "user"):
        lines += _groups(found, group, asked=by is not None)
    return lines if by else lines + _tasks(found, top)


def _settings(found: Any) -> list[str]:
    """Where the scenarios differ besides their policies, which the labels tell."""
    differing = {key: values for key, values in found.settings.items() if not key.startswith("policy.")}
    if found.a.seed != found.b.seed:
        differing = {"seed": (found.a.seed, found.b.seed), **differing}
    lines = [
        f"   {key}: {_value(one)} in a, {_value(other)} in b"
        for key, (one, other) in list(differing.items())[:MAX_SETTINGS]
    ]
    more = len(differing) - MAX_SETTINGS
    return lines + ([f"   … and {more} more keys"] if more > 0 else [])


def _value(value: Any) -> str:
    return "not given" if value is None else str(value)


def _written(column: str, columns: list[list[float]]) -> list[list[str]]:
    """Format the columns of a table in one unit, so that they compare at a glance."""
    units = terminal.units_of("response" if column in ("start", "finish") else column)
    texts = iter(terminal.several([value for values in columns for value in values], units))
    return [[next(texts) for _ in values] for values in columns]


def _groups(found: Any, group: str, asked: bool) -> list[str]:
    table = found.by(group)
    if not asked and (len(table) < 2 or not (table["gained"] + table["lost"]).any()):
        return []
    shown = table if len(table) <= MAX_GROUPS else table.iloc[[*range(MAX_GROUPS // 2), *range(-MAX_GROUPS // 2, 0)]]
    rows = [[group, "tasks", "gained", "lost", "mean in a", "mean in b", "mean change"]]
    texts = _written(found.column, [shown[name].tolist() for name in ("mean_a", "mean_b", "change_mean")])
    for (name, row), *cells in zip(shown.iterrows(), *texts, strict=True):
        counts = [terminal.count(float(row[column])) for column in ("tasks", "gained", "lost")]
        rows.append([str(name) or "(none)", *counts, *cells])
    more = [f"… and {len(table) - len(shown)} between them (--json has all)"] if len(shown) < len(table) else []
    return ["", *terminal.table(rows, right=range(1, 7)), *more]


def _tasks(found: Any, top: int) -> list[str]:
    frame = found.tasks[found.tasks["change"].fillna(0.0) != 0.0].head(top)
    if frame.empty:
        return []
    rows = [["task", "class", "user", f"{found.column} in a", "in b", "change"]]
    texts = _written(found.column, [frame[name].tolist() for name in ("a", "b", "change")])
    for row, *cells in zip(frame[["id", "class", "user"]].astype(str).to_numpy().tolist(), *texts, strict=True):
        rows.append([*row, *cells])
    return ["", "tasks that changed most", *terminal.table(rows, right=(3, 4, 5))]
