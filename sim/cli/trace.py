"""`hetsim trace`: look at, check and convert traces."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.cli import console
from sim.cli.options import JSON, VERBOSITY, together
from sim.cli.program import Verbs

if TYPE_CHECKING:
    from sim.scenario.trace_schema import TraceSpec
    from sim.workload.traces import TaskTable

AS_FAR_AS_IT_GOES = {"unfit": "leave_out", "span": "recorded"}
"""How a log is replayed on a list of nodes: gangs over several nodes where they were, without what fits nowhere."""

ONE_PIECE = (".zip", ".tar")
"""Suffixes of packed files to which nothing can be added."""

READING = together(
    click.argument("file", metavar="FILE"),
    click.option("--format", "form", help="See `hetsim list traces`; without it, told from the file's first lines."),
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
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="PNG", help="Draw it there.")
def inspect(
    file: str, form: str | None, options: tuple[str, ...], verbose: bool, as_json: bool, out: Path | None
) -> None:
    """Say what is in a trace: how many tasks (or requests), when, how long, how large, which columns.

    The load over time counts every task from its recorded start, or from its submission where there is none, for as
    long as it takes.
    """
    from sim.errors import UsageError

    if out is not None and out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"--out {out}: a picture is written as .png, .pdf or .svg")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f'--out {out}: there is no folder "{out.parent}"')
    table = read(file, form, options)
    if out is not None and table.requests:
        raise UsageError("--out draws the tasks of a trace; this one has requests")
    found = contents(table)
    if as_json:
        console.as_json(found)
    else:
        console.lines(_text(found))
    for remark in table.notes:
        console.note(remark)
    if out is not None:
        from sim.model.files import write_whole
        from sim.plots.trace import trace as draw

        write_whole(out, lambda file: draw(table).savefig(file))
        console.note(f"picture: {out}")


@trace.command("map", short_help="Propose how the columns of a log map to what jobs are.")
@click.argument("file", metavar="FILE")
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "parquet", "jsonl"]),
    help="Without it, told from the file's name and first sign.",
)
@click.option("--separator", metavar="SIGN", help="Of the columns of a CSV; told from its first line unless given.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="YAML", help="Write it there.")
@click.option("--force", is_flag=True, help="Replace YAML if it exists.")
@JSON
@VERBOSITY
def map_(
    file: str, form: str | None, separator: str | None, out: Path | None, force: bool, as_json: bool, verbose: bool
) -> None:
    """Propose how the columns of a log map to what jobs are, from its header and first rows.

    Prints the workload of a scenario as YAML to paste, with what is unsure and what is missing in comments.
    `hetsim trace inspect` and `validate` take the YAML that --out writes in place of a trace.
    """
    from sim.errors import Problem, ScenarioError
    from sim.model.files import write_text, write_whole
    from sim.workload.mapped_rows import rows_of
    from sim.workload.propose import form_of, propose, written
    from sim.workload.recognise import recognise

    path = Path(file)
    if not path.is_file():
        raise ScenarioError(Problem("there is no such file", file=file))
    if out is not None and out.exists() and not force:
        raise click.UsageError(f"{out} exists; --force replaces it")
    known = recognise(path)
    if known is not None and known != "tasks":
        console.note(f"{file}: looks like {known}, which format: {known} reads without a mapping")
    told = form or form_of(path)
    proposal = propose(path, told, rows_of(path, told, {"tab": "\t"}.get(separator or "", separator)))
    if separator is not None:
        proposal.keys["separator"] = separator
    if out is not None:
        proposal.keys["path"] = os.path.relpath(path, out.parent)
    if as_json:
        console.as_json({"trace": proposal.keys, "unsure": proposal.unsure, "missing": proposal.missing,
                         "not_used": proposal.unused, "rows": proposal.looked_at})  # fmt: skip
    elif out is None:
        console.lines(written(proposal).splitlines())
    if out is not None:
        write_whole(out, lambda temporary: write_text(temporary, text=written(proposal)))
        console.note(f"mapping: {out}")
        for kind, texts in (("unsure", proposal.unsure), ("missing", proposal.missing)):
            for text in texts:
                console.note(f"{kind}: {text}")


@trace.command(short_help="Check a trace, or a model of a cluster against its log.")
@READING
@click.option(
    "--cluster",
    metavar="FORMAT:FILE",
    help="The list of nodes that the trace was recorded on (see `hetsim list clusters`): replay it there.",
)
@click.option("--policy", metavar="NAME", help="Instead of as_recorded, and of easy_backfill for simulated waits.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="YAML",
              help="Write the scenario with what was inferred there.")
@click.option("--force", is_flag=True, help="Replace YAML if it exists.")
@JSON
def validate(
    file: str,
    form: str | None,
    options: tuple[str, ...],
    verbose: bool,
    cluster: str | None,
    policy: str | None,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Check a trace; every problem is listed with its line.

    Where jobs have recorded starts, it says why they waited: no room, nodes that were down, jobs from before the log,
    limits, priorities, or nothing that the log tells.

    With --cluster, or where FILE is a scenario (.yaml) with a cluster, the trace is replayed as it was recorded, and
    simulated wait, response and allocation are printed beside the recorded ones.  Gangs use several nodes where the
    record says so, or names no node and they fit on none; what can never run there is left out, and told with the
    reason.  Then, and where FILE is a mapping (.yaml without a cluster), waits under --policy are simulated with what
    was inferred, step by step; --out writes the last of these scenarios.
    """
    from sim.cli import recorded_waits
    from sim.errors import UsageError

    if out is not None and out.exists() and not force:
        raise click.UsageError(f"{out} exists; --force replaces it")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f'--out {out}: there is no folder "{out.parent}"')
    if not _in_yaml(file):
        form = format_of(file, form)
    source = _source(file, form, options, cluster)
    found: dict[str, Any] = {"file": file}
    text: list[str] = []
    remarks: list[str] = []
    given = source is not None and "cluster" in source
    if given:
        assert source is not None
        found |= _replayed(file, source, policy, text, remarks)
    spec = _spec(file, form, options)
    table = spec.read()
    if not given:
        found |= {"valid": True, _rows(table): len(table), "notes": table.notes}
        text.append(f"{file}: valid; {len(table):,} {_rows(table)}")
        remarks += table.notes
    simulate = (source is not None or out is not None) and policy != "as_recorded"
    if not table.requests and (source is None or _one_trace(source)):
        trace = _trace_of(file, form, options)
        subject = recorded_waits.subject_of(Path(file), source, trace, table)
        explained, compared = recorded_waits.told(subject, policy, simulate, out, as_json)
        if explained is not None:
            found["waits"] = recorded_waits.mapping(explained, compared, simulate)
            text += recorded_waits.lines(explained, compared, simulate)
            remarks += compared.notes if compared is not None and simulate else []
    elif out is not None:
        raise UsageError("--out writes the scenario of one log of jobs; this is none")
    if as_json:
        console.as_json(found)
    else:
        console.lines(text)
    for remark in remarks:
        console.note(remark)


def _in_yaml(file: str) -> bool:
    """Is this a scenario or a mapping, rather than a log?"""
    return Path(file).suffix in (".yaml", ".yml")


def _source(file: str, form: str | None, options: tuple[str, ...], cluster: str | None) -> dict[str, Any] | None:
    """The scenario that a file is, or that the log makes on a list of nodes; None of a log alone."""
    from sim.errors import UsageError
    from sim.scenario import document

    if _in_yaml(file):
        if cluster is not None:
            raise UsageError(f"{file} is a scenario; --cluster is for logs")
        return dict(document.read(Path(file)).data)
    if cluster is None:
        return None
    nodes, sign, listed = cluster.partition(":")
    if not sign:
        raise UsageError(f'--cluster needs FORMAT:FILE, not "{cluster}" (hetsim list clusters)')
    trace = {"format": format_of(file, form), "path": file, **_given(options)}
    return {
        "name": Path(file).name,
        "cluster": {"trace": {"format": nodes, "path": listed}},
        "workload": [{"trace": trace, **AS_FAR_AS_IT_GOES}],
    }


def _one_trace(source: dict[str, Any]) -> bool:
    """Is the workload of a scenario one trace of tasks?"""
    entries = source.get("workload")
    entries = entries if isinstance(entries, list) else [entries]
    return len(entries) == 1 and isinstance(entries[0], dict) and isinstance(entries[0].get("trace"), dict)


def _trace_of(file: str, form: str | None, options: tuple[str, ...]) -> dict[str, Any]:
    """The keys of `trace:`, with the path from here."""
    from sim.scenario import document

    if not _in_yaml(file):
        return {"format": format_of(file, form), "path": file, **_given(options)}
    data = document.read(Path(file)).data
    entry = data["workload"][0] if isinstance(data["workload"], list) else data["workload"]
    path = Path(entry["trace"]["path"])
    return {**entry["trace"], "path": str(path if path.is_absolute() else Path(file).parent / path)}


def _replayed(
    file: str, source: dict[str, Any], policy: str | None, text: list[str], remarks: list[str]
) -> dict[str, Any]:
    """Run a trace as it was recorded, and say how far the model of the cluster is from the record."""
    from sim.experiment.run import prepare
    from sim.experiment.run import run as run_scenario
    from sim.results.recorded import against_record

    loaded = prepare(file if _in_yaml(file) else source, policy or "as_recorded", ())
    outcome: Any = run_scenario(loaded, replications=1)
    table = against_record(outcome)
    notes = {name: value for name, value in outcome.record.notes.items() if isinstance(value, int | float)}
    warnings = list(outcome.record.input.warnings)
    text += _compared(file, table, notes)
    remarks += [*loaded.notes, *warnings]
    pair = ("recorded", "simulated")
    rows = {str(name): {key: float(row[key]) for key in pair} for name, row in table.iterrows()}
    return {"tasks": int(table["tasks"].iloc[0]), "metrics": rows, "notes": notes, "warnings": warnings}


def _compared(file: str, table: Any, notes: dict[str, Any]) -> list[str]:
    from sim.report import terminal

    rows = [["", "recorded", "simulated", "difference"]]
    for name, row in table.iterrows():
        pair = [float(row["recorded"]), float(row["simulated"])]
        if name == "allocation":
            texts = [f"{100 * value:.2f} %" for value in (*pair, pair[1] - pair[0])]
        else:
            texts = terminal.several([*pair, pair[1] - pair[0]], terminal.SECONDS)
        rows.append([str(name).replace("_", " "), *texts])
    told = [[name.replace("_", " "), f"{value:,.6g}"] for name, value in notes.items()]
    count = int(table["tasks"].iloc[0])
    return [f"{file}: {count:,} tasks with a recorded start", "", *terminal.table(rows, right=range(1, 4)), "",
            *terminal.table(told)]  # fmt: skip


@trace.command(short_help="Write a trace as a plain table.")
@READING
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
def convert(file: str, form: str | None, options: tuple[str, ...], verbose: bool, target: Path, force: bool) -> None:
    """Write a trace as a plain table.

    Tasks become a task table, CSV or (with the suffix .parquet) Parquet; requests a request table (format: requests),
    which is CSV.  Logs of jobs are written part by part, however many they are: rows wait in a nameless file beside
    TARGET until the last one is read.
    """
    from sim.errors import UsageError
    from sim.model.files import naming
    from sim.workload.task_table import PARQUET, write, write_parts

    if target.exists() and not force:
        raise click.UsageError(f"{target} exists; --force replaces it")
    if not target.parent.is_dir():
        raise UsageError(f'there is no folder "{target.parent}" for {target.name}')
    spec = _spec(file, form, options)
    with naming(target):  # beside which rows wait
        parts = None if target.suffix.lower() in ONE_PIECE else spec.parts(target.parent)
    if parts is not None:
        with closing(parts):
            console.note(f"{target}: {write_parts(parts, target):,} tasks")
        remarks = parts.notes
    else:
        table = spec.read()
        if table.requests and target.suffix.lower() in PARQUET:
            name = target.with_suffix(".csv").name
            raise UsageError(f"{target}: a table of requests is written as CSV; name it {name}")
        write(table, target)
        console.note(f"{target}: {len(table):,} {_rows(table)}")
        remarks = table.notes
    for remark in remarks:
        console.note(remark)


def _rows(table: TaskTable) -> str:
    return "requests" if table.requests else "tasks"


def format_of(file: str, form: str | None) -> str:
    """The format that was named, or else what the file looks like; a task table where nothing speaks against it."""
    from sim import registry
    from sim.errors import UsageError
    from sim.workload.recognise import maybe_table, recognise

    if form is not None:
        return form
    found = recognise(file)
    if found is None and not maybe_table(file):
        known = ", ".join(sorted(registry.table("traces")))
        way = f"hetsim trace map {file} proposes how to read a log with columns of its own"
        raise UsageError(f"{file}: its format is not recognised; {way}; or give --format NAME: {known}")
    if found not in (None, "tasks"):
        console.note(f"{file}: looks like {found} (--format names another)")
    return found or "tasks"


def read(file: str, form: str | None, options: tuple[str, ...]) -> TaskTable:
    """The tasks in a file, through the registered reader; problems are addressed by its parameters."""
    return _spec(file, form, options).read()


def _spec(file: str, form: str | None, options: tuple[str, ...]) -> TraceSpec:
    from dataclasses import replace

    from sim.errors import ScenarioError
    from sim.scenario import document
    from sim.scenario.trace_schema import check_traces

    if _in_yaml(file):
        return _spec_of_scenario(file, form, options)
    data = {"workload": [{"trace": {"format": format_of(file, form), "path": file, **_given(options)}}]}
    specs, problems = check_traces(document.from_mapping(data), Path())
    if problems:
        prefix = "workload.0.trace."
        raise ScenarioError([replace(problem, key=problem.key.removeprefix(prefix)) for problem in problems])
    return specs[0]


def _spec_of_scenario(file: str, form: str | None, options: tuple[str, ...]) -> TraceSpec:
    """The trace of a scenario, or of a mapping that `trace map` wrote."""
    from sim.errors import Problem, ScenarioError, UsageError
    from sim.scenario import document
    from sim.scenario.trace_schema import check_traces

    if form is not None or options:
        raise UsageError(f"{file} says how its trace is read; --format and --option are for traces themselves")
    specs, problems = check_traces(document.read(Path(file)), Path(file).parent)
    if problems:
        raise ScenarioError(problems)
    if len(specs) != 1:
        what = "no trace" if not specs else f"{len(specs)} traces"
        raise ScenarioError(Problem(f"has {what} in its workload; expected is one", file=file))
    (spec,) = specs.values()
    return spec


def _given(options: tuple[str, ...]) -> dict[str, Any]:
    """The values of --option."""
    from sim.errors import ScenarioError, UsageError
    from sim.scenario import document

    given: dict[str, Any] = {}
    for text in options:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UsageError(f'--option needs KEY=VALUE, not "{text}"')
        try:
            given[key.strip()] = document.parse_value(value.strip())
        except ScenarioError as error:
            raise UsageError(f"--option {text}: the value {error.problems[0].message}") from None
    return given


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
    labels = {"id": table.id, "class": table.class_, "user": table.user, "devices": table.devices}
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
    } | (_tokens(table) if table.requests else _amounts(table))


def _amounts(table: TaskTable) -> dict[str, Any]:
    """Sizes, and the load over time."""
    from sim.workload import summary

    return {"sizes": summary.sizes(table), **summary.shares(table), "load": summary.load(table)}


def _tokens(table: TaskTable) -> dict[str, Any]:
    """How long the requests of a trace are, and how much of their prompts others had before."""
    import numpy as np

    sizes = {}
    for name in ("prompt_tokens", "output_tokens"):
        if name in table.extra:
            values = table.extra[name]
            quantiles = np.quantile(values, [0, 0.5, 0.95, 1]).tolist()
            ranks = dict(zip(("min", "p50", "p95", "max"), quantiles, strict=True))
            sizes[name] = {"mean": float(values.mean()), **ranks}
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
    table = terminal.table(rows, right=range(1, 7))
    return [found["file"], "", *terminal.table(facts), "", *table, *_sizes_text(found), *_load_text(found)]


def _sizes_text(found: dict[str, Any]) -> list[str]:
    """Tasks by size: GPUs, or cores where none holds a GPU."""
    from sim.report import terminal

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
    """The load over time, as bars of text."""
    from sim.report import terminal

    load = found["load"]
    lines = []
    for key, name in (("gpus", "GPUs held"), ("cores", "cores held"), ("jobs", "submissions")):
        values = load.get(key, [])
        most = max(values, default=0)
        if most > 0:
            bars = "".join(BARS[min(8, int(8.999 * value / most))] for value in values)
            mean = sum(values) / len(values)
            lines.append([name, f"|{bars}|", f"mean {mean:,.4g}, most {most:,.4g}"])
    if not lines:
        return []
    stretch = terminal.several([load["stretch"]], terminal.SECONDS)[0]
    return ["", f"over the submissions, each sign {stretch}", *terminal.table(lines)]
