"""`hetsim explain`: why tasks waited."""

from pathlib import Path
from typing import Any

import click

from hetsim.cli import console
from hetsim.cli.options import JSON, PATH, VERBOSITY
from hetsim.report import terminal

MAX_STRETCHES = 25


@click.command(short_help="Split a task's waiting by cause, and print how it ended.")
@click.argument("run", type=PATH, metavar="RUN")
@click.argument("task", required=False)
@click.option("--by", metavar="class|gpus|user",
              help="Add up the waits by class, by requested number of GPUs, or by user.")  # fmt: skip
@JSON
@VERBOSITY
def explain(run: Path, task: str | None, by: str | None, as_json: bool) -> None:
    """Print why TASK of a run waited, how long for each cause, and how it ended.

    RUN is a directory that `hetsim run --out RUN` wrote; the first of several replications is explained.
    """
    from hetsim.experiment.directory import first_run
    from hetsim.results.stored_files import reading_stored

    if (task is None) == (by is None):
        raise click.UsageError("either a TASK, or --by class, --by gpus or --by user must be given")
    if not run.is_dir():
        raise click.UsageError(f'the directory "{run}" does not exist; `hetsim run --out {run} ...` writes it')
    with reading_stored(run):
        result = first_run(run)
        if by is not None:
            _groups(result, by, as_json)
        else:
            _task(result, str(task), as_json)


def _task(result: Any, task: str, as_json: bool) -> None:
    from hetsim.results.one_run.explain import ending, find_tasks
    from hetsim.results.one_run.explain import explain as stretches_of
    from hetsim.results.one_run.network import stretch

    rows = find_tasks(result, task)
    ended = ending(result, task)
    if len(rows) > 1:
        _request(result, rows, stretches_of(result, task), ended=ended, as_json=as_json)
        return
    (row,) = rows
    if result.record.ready[row] != result.record.ready[row]:
        name = str(result.record.input.tasks.name(row))
        about = {"task": name, "started": False, "wait": 0.0, "causes": {}, **_told(ended), "stretches": []}
        texts = [f"task {name} of {result.name} ({result.policy}) never became ready", _ending_line(ended)]
        console.result(as_json, lambda: about, lambda: texts)
        return
    table = stretches_of(result, task)
    causes, wait = _causes(table)
    record = result.record
    network = stretch(result, row)
    started = bool(record.start[row] == record.start[row])
    about = {"task": str(record.input.tasks.name(row)), "started": started, "wait": wait, "causes": causes}
    about |= _told(ended) | ({} if network is None else {"computing": network})
    lines = _task_lines(result, row, table, causes=causes, wait=wait, ended=ended)
    console.result(as_json, lambda: {**about, "stretches": table.to_dict("records")},
                   lambda: lines if network is None else [*lines[:2], _network_line(network), *lines[2:]])  # fmt: skip


def _causes(table: Any) -> tuple[dict[str, float], float]:
    sums = table.groupby("cause", sort=False)["seconds"].sum()
    return {str(cause): float(seconds) for cause, seconds in sums.items()}, float(table["seconds"].sum())


def _shares(causes: dict[str, float], wait: float) -> list[str]:
    largest = sorted(causes.items(), key=lambda pair: -pair[1])
    shares = [[cause_name(cause), terminal.seconds(s), terminal.share(s / wait)] for cause, s in largest]
    return terminal.table([["cause", "time", ""], *shares], right=(1, 2))


def _request(result: Any, rows: list[int], table: Any, ended: dict[str, Any], as_json: bool) -> None:
    """Explain a request with stages: its waiting in all stages, then in each."""
    from hetsim.model.record import STATUS_NAMES
    record = result.record
    tasks = record.input.tasks
    name = str(tasks.staged.id[rows[0]])
    (causes, wait), begin = _causes(table), float(record.start[rows[0]])
    stages = len({int(tasks.staged.stage[row]) for row in rows})
    items = len(rows) // stages
    if as_json:
        about = {"task": name, "items": items, "stages": stages, "started": begin == begin, "wait": wait,
                 "causes": causes}  # fmt: skip
        console.as_json({**about, **_told(ended), "stretches": table.to_dict("records")})
        return
    end = f"its first stage began at {terminal.clock(begin)}" if begin == begin else "it never started"
    arrived = terminal.clock(float(tasks.arrival[rows[0]]))
    through = f"{stages} stage{'s' * (stages > 1)}"
    through = f"{items:,} items through {through}" if items > 1 else through
    head = f"request {name} of {result.name} ({result.policy}): {through}, arrived at {arrived}, {end}"
    if wait:
        total = f"it waited {terminal.seconds(wait)} in all"
        if items > 1:
            total = f"its items waited {terminal.seconds(wait)} in all, summed over items that wait at the same time"
        waited = [total, "", *_shares(causes, wait)]
    else:
        waited = ["it did not wait"]
    shown = [["task", "stage", "ready", "wait", "start", "finish", "status"]]
    for row in rows[:MAX_STRETCHES]:
        ready, start, finish = (float(column[row]) for column in (record.ready, record.start, record.finish))
        stage, status = tasks.staged.stages[tasks.staged.stage[row]], STATUS_NAMES[int(record.status[row])]
        times = terminal.clock(ready), terminal.seconds(start - ready), terminal.clock(start), terminal.clock(finish)
        shown.append([str(tasks.name(row)), stage, *times, status])
    more = len(rows) - MAX_STRETCHES
    rest = [f"… and {more} more (result.stages has all)"] if more > 0 else []
    console.lines([head, _ending_line(ended), *waited, "", *terminal.table(shown, right=(2, 3, 4, 5)), *rest])


def _task_lines(
    result: Any, row: int, table: Any, causes: dict[str, float], wait: float, ended: dict[str, Any]
) -> list[str]:
    record = result.record
    name = record.input.tasks.name(row)
    ready, begin = float(record.ready[row]), float(record.start[row])
    end = f"its first stage began at {terminal.clock(begin)}" if begin == begin else "it never started"
    head = f"task {name} of {result.name} ({result.policy}): ready at {terminal.clock(ready)}, {end}"
    if not wait:
        return [head, _ending_line(ended), "it did not wait"]
    waited = f"it waited {terminal.seconds(wait)}"
    rows = [["from", "to", "time", "cause", ""]]
    for begin, until, seconds, cause, detail in table.head(MAX_STRETCHES).itertuples(index=False):
        rows.append(
            [terminal.clock(begin), terminal.clock(until), terminal.seconds(seconds), cause_name(cause), str(detail)]
        )
    more = len(table) - MAX_STRETCHES
    rest = [f"… and {more} more stretches (--json has all)"] if more > 0 else []
    shown = terminal.table(rows, right=(0, 1, 2))
    return [head, _ending_line(ended), waited, "", *_shares(causes, wait), "", *shown, *rest]


def _network_line(found: dict[str, float]) -> str:
    names = {"placement": "for its place", "neighbors": "for others on its links", "devices": "for slow devices"}
    text = f"it computed for {terminal.seconds(found['seconds'])}: {terminal.seconds(found['alone'])} in the best place"
    parts = [
        f"{terminal.seconds(abs(found[name]))} {'more' if found[name] > 0 else 'less'} {why}"
        for name, why in names.items()
        if abs(found[name]) > 1e-9 * found["seconds"]
    ]
    return ", ".join([f"{text} with the links to itself", *parts])


def _groups(result: Any, by: str, as_json: bool) -> None:
    from hetsim.results.one_run.explain import CAUSES, explain_all

    table = explain_all(result, by)
    if as_json:
        console.as_json({str(name): {key: float(v) for key, v in row.items()} for name, row in table.iterrows()})
        return
    shown = [cause for cause in CAUSES if table[cause].sum() > 0]
    rows = [[by, "tasks", "mean wait", *(cause_name(cause) for cause in shown)]]
    for name, row in table.iterrows():
        wait, tasks = float(row["wait"]), float(row["tasks"])
        parts = [terminal.share(float(row[cause]) / wait) if wait else "–" for cause in shown]
        rows.append([str(name) or "(all)", terminal.count(tasks), terminal.seconds(wait / max(tasks, 1)), *parts])
    title = f"{result.name} ({result.policy}): share of waiting by cause"
    console.lines([title, "", *terminal.table(rows, right=range(1, len(rows[0])))])


def _told(ended: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value != value else value for key, value in ended.items()}


def _ending_line(ended: dict[str, Any]) -> str:
    words = {"rejected": "was rejected", "unfinished": "has not ended"}
    text = f"it {words.get(ended['status'], ended['status'])}"
    if ended["at"] == ended["at"]:
        text += f" at {terminal.clock(ended['at'])}"
    text += f": {ended['reason']}" if ended["reason"] else ""
    if ended["fused_with"]:
        text += f"; it was launched as one kernel with {', '.join(ended['fused_with'])}"
    if ended["stops"]:
        launches = f"{ended['stops']} of {ended['launches']} launches were"
        text += f"; {'its only launch was' if ended['launches'] == 1 else launches} cut short"
        if ended["wasted"]:
            text += f", {terminal.seconds(ended['wasted'])} of computing (devices × time) lost"
    return text


def cause_name(cause: str) -> str:
    names = {"no_capacity": "no free capacity", "head_of_line": "head of line", "choice": "policy's choice",
             "scheduler": "the scheduler's own time"}  # fmt: skip
    return names.get(cause, cause)
