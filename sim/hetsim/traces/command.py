"""`hetsim trace`: inspect, check and convert traces, and lists of nodes."""

import os
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetsim import registry
from hetsim.cli import console
from hetsim.cli.options import FILE, JSON, PAGE, PICTURE, VERBOSITY, YAML, together
from hetsim.cli.program import Verbs
from hetsim.cli.validate import VALID
from hetsim.errors import Problem, ScenarioError, UsageError
from hetsim.model.files import naming, write_text, write_whole
from hetsim.report import terminal
from hetsim.traces.node_lists import convert_nodes, format_of_nodes

if TYPE_CHECKING:
    from hetsim.scenario.schema.workload import TraceSpec
    from hetsim.traces.waits_command import Subject
    from hetsim.workload.traces import TaskTable

# replay on a list of nodes: gangs span nodes as recorded, and jobs that fit nowhere are skipped
AS_FAR_AS_IT_GOES = {"unfit": "leave_out", "span": "recorded"}

ONE_PIECE = (".zip", ".tar")  # suffixes of archives, which must be written at once

READING = together(
    click.argument("file", metavar="FILE"),
    click.option("--format", "form", help="A name of `hetsim list traces`; without it recognized by the first lines."),
    click.option("--option", "options", multiple=True, metavar="KEY=VALUE",
                 help="A parameter of the format's reader (repeatable)."),
    VERBOSITY,
)  # fmt: skip


@click.group(cls=Verbs, short_help="Inspect, map, check and convert logs of jobs and lists of nodes.")
def trace() -> None:
    """Inspect, map, check and convert traces (recorded tasks) and lists of nodes."""


@trace.command(short_help="Summarize the contents of a trace.")
@READING
@JSON
@click.option("--picture", type=PICTURE, metavar="PNG", help="Write a picture of the trace to PNG.")
def inspect(file: str, form: str | None, options: tuple[str, ...], as_json: bool, picture: Path | None) -> None:
    """Summarize a trace: number, times and sizes of its tasks, and its columns.

    The load over time counts every task from its recorded start (or, without one, its submission) for its duration.
    """
    from hetsim.traces.contents import contents, text_of

    table = read(file, form, options)
    if picture is not None and table.requests:
        raise UsageError("--picture needs a trace of tasks; this trace has requests")
    shown = contents(table)
    console.result(as_json, lambda: shown, lambda: text_of(shown))
    console.notes(table.notes)
    if picture is not None:
        from hetsim.traces.picture import trace as draw

        console.picture(picture, lambda: draw(table))


@trace.command("map", short_help="Propose how the columns of a log map to attributes of jobs.")
@click.argument("file", metavar="FILE")
@click.option("--format", "form", type=click.Choice(["csv", "parquet", "jsonl"]),
              help="Form of the file; without it recognized by name and first character.")  # fmt: skip
@click.option("--separator", metavar="SIGN", help="Separator of CSV columns; by default that of the first line.")
@click.option("--mapping", type=YAML, metavar="YAML", help="Write the mapping to YAML.")
@click.option("--force", is_flag=True, help="Replace YAML if it exists.")
@JSON
@VERBOSITY
def map_(file: str, form: str | None, separator: str | None, mapping: Path | None, force: bool, as_json: bool) -> None:
    """Propose a mapping of the columns of a log, from its header and first rows.

    Prints the workload of a scenario as YAML to paste, with comments on what is uncertain or missing.
    In place of a trace, `hetsim trace inspect` and `validate` also accept the YAML that --mapping writes.
    """
    from hetsim.workload.logs.recognize import node_list, recognize
    from hetsim.workload.mapped.propose import proposal_of, written

    path = Path(file)
    if not path.is_file():
        raise ScenarioError(Problem("the file does not exist", file=file))
    console.check_replaceable(mapping, force)
    if (nodes := node_list(path)) is not None:
        text = f"seems to be a list of nodes; read it with cluster: {{trace: {{format: {nodes}, path: ...}}}}"
        raise ScenarioError(Problem(f"{text}; a log must have a row for each job", file=file))
    known_format = recognize(path)
    known_format = None if known_format == "tasks" else known_format
    if known_format is not None:
        console.note(f"{file} seems to be {known_format}: read it with format: {known_format}, without a mapping")
    proposal = proposal_of(path, form, {"tab": "\t", "space": " "}.get(separator or "", separator), known_format)
    if separator is not None:
        proposal.keys["separator"] = separator
    if mapping is not None:
        proposal.keys["path"] = os.path.relpath(path, mapping.parent)
    if as_json:
        console.as_json({"trace": proposal.keys, "unsure": proposal.unsure, "missing": proposal.missing,
                         "not_used": proposal.unused, "rows": proposal.looked_at})  # fmt: skip
    elif mapping is None:
        console.lines(written(proposal).splitlines())
    if mapping is not None:
        write_whole(mapping, lambda temporary: write_text(temporary, text=written(proposal)))
        console.note(f"mapping: {mapping}")
        for kind, texts in (("unsure", proposal.unsure), ("missing", proposal.missing)):
            console.notes(f"{kind}: {text}" for text in texts)


@trace.command(short_help="Check a trace, or a model of a cluster against its log.")
@READING
@click.option("--cluster", metavar="FORMAT:FILE",
              help="Replay the trace on the list of nodes that it was recorded on (see `hetsim list clusters`).")
@click.option("--policy", metavar="NAME", help="Replaces as_recorded, and easy_backfill for simulated waits.")
@click.option("--scenario", type=YAML, metavar="YAML", help="Write the scenario with inferred rules to YAML.")
@click.option("--page", type=PAGE, metavar="HTML", help="Write a page on the recorded waits, with a picture.")
@click.option("--force", is_flag=True, help="Replace YAML and HTML if they exist.")
@JSON
def validate(
    file: str, form: str | None, options: tuple[str, ...], cluster: str | None, policy: str | None,
    scenario: Path | None, page: Path | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Check a trace; every problem is listed with its line.

    If jobs have recorded starts, the reasons of their waits are printed: no room, nodes that were down, jobs from
    before the log, limits, priorities, or unknown.

    With --cluster, or if FILE is a scenario (.yaml) with a cluster, the trace is replayed as recorded, and simulated
    wait, response and allocation are printed next to the recorded values.  A gang uses several nodes if the record says
    so, or if it names no node and the gang fits on none; jobs that can never run are skipped, with the reason.

    With --cluster, --scenario or a .yaml FILE, waits under --policy are simulated too.  Inferred properties (limits,
    nodes that were down, ...) are added one by one, each with a run, and kept if the waits come closer to the record;
    --scenario writes the result.
    """
    from hetsim.traces.contents import rows_word
    from hetsim.traces.waits_command import subject_of

    console.check_replaceable(scenario, force)
    console.check_replaceable(page, force)
    if not _in_yaml(file):
        form = format_of(file, form)
    source = _source(file, form, options, cluster)
    output = _Told({"file": file})
    on_cluster = source is not None and "cluster" in source
    if source is not None and on_cluster:
        _replay(output, file, source, policy)
    table = _spec(file, form, options).read()
    if not on_cluster:
        output.mapping |= {"valid": True, rows_word(table): len(table), "notes": table.notes}
        output.lines.append(f"{file}: valid; {len(table):,} {rows_word(table)}")
        output.remarks += table.notes
    if not table.requests and (source is None or _one_trace(source)):
        subject = subject_of(Path(file), source, _trace_of(file, form, options), table)
        simulate = (source is not None or scenario is not None) and policy != "as_recorded"
        _tell_waits(
            output, file, subject, policy=policy, simulate=simulate, scenario=scenario, page=page, quiet=as_json
        )
    elif scenario is not None or page is not None:
        raise UsageError("--scenario and --page need one log of jobs; the file is not a log of jobs")
    output.print(as_json)


@trace.command(short_help="Infer the scheduler of a log from its starts.")
@READING
@click.option("--cluster", metavar="FORMAT:FILE", help="The list of nodes of the site (see `hetsim list clusters`).")
@click.option("--scenario", type=YAML, metavar="YAML", help="Write the scenario of the log with that scheduler.")
@click.option("--page", type=PAGE, metavar="HTML", help="Write a page with all schedulers to HTML.")
@click.option("--force", is_flag=True, help="Replace YAML and HTML if they exist.")
@JSON
def identify(
    file: str, form: str | None, options: tuple[str, ...], cluster: str | None, scenario: Path | None,
    page: Path | None, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Identify the scheduler that made a log, from its starts.

    At each instant of the log each scheduler computes which jobs it would start, from the jobs that ran and waited then
    according to the log.  Orders (arrival, size, time, class, shares of users), disciplines (no overtaking, overtaking
    by all jobs that fit, EASY and conservative backfilling), limits and placements are fitted on half of the jobs and
    judged on the others: by the share of starts that they explain to the second, or within one decision cycle of the
    site.
    """
    from hetsim.traces import identify as report
    from hetsim.traces.waits_command import subject_of, write_scenario

    console.check_replaceable(scenario, force)
    console.check_replaceable(page, force)
    source = _source(file, form, options, cluster)
    trace = _trace_of(file, form, options)
    table = _spec(file, form if _in_yaml(file) else trace["format"], options).read()
    subject = subject_of(Path(file), source, trace, table)
    identified = report.identified_of(file, subject)
    document, notes = report.scenario_of(subject, identified)
    console.result(as_json, lambda: {"file": file, **report.mapping(identified), "notes": table.notes + notes},
                   lambda: report.lines(identified))  # fmt: skip
    console.notes(table.notes + notes)
    if page is not None:
        report.write_page(page, Path(file).name, identified, table.notes + notes)
        console.note(f"page: {page}")
    if scenario is not None:
        write_scenario(document, scenario)


@dataclass
class _Told:
    """Output of a command: a mapping (for JSON) or lines, and remarks."""

    mapping: dict[str, Any]
    lines: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def print(self, as_json: bool) -> None:
        console.result(as_json, lambda: self.mapping, lambda: self.lines, VALID)
        console.notes(self.remarks)


def _tell_waits(
    output: _Told, file: str, subject: "Subject", policy: str | None, simulate: bool, scenario: Path | None,
    page: Path | None, quiet: bool,
) -> None:  # fmt: skip
    from hetsim.traces import waits_command, waits_report
    from hetsim.traces.waits_report import write_waits

    explained, compared = waits_command.explained_waits(subject, policy, simulate, out=scenario, quiet=quiet)
    if explained is not None:
        output.remarks += waits_command.not_explained(file, subject)
        output.mapping["waits"] = waits_report.mapping(explained, compared, simulate)
        output.lines += waits_report.lines(explained, compared, simulate)
        output.remarks += compared.notes if compared is not None and simulate else []
    if page is None:
        return
    if explained is None:
        raise UsageError(f"--page needs recorded waits, but no job of {file} has one")
    write_waits(page, Path(file).name, explained, compared=compared, simulated=simulate, notes=output.remarks)
    console.note(f"page: {page}")


def _in_yaml(file: str) -> bool:
    return Path(file).suffix in (".yaml", ".yml")


def _source(file: str, form: str | None, options: tuple[str, ...], cluster: str | None) -> dict[str, Any] | None:
    from hetsim.scenario.file import document

    if _in_yaml(file):
        if cluster is not None:
            raise UsageError(f"--cluster needs a log; {file} is a scenario")
        return dict(document.read(Path(file)).data)
    if cluster is None:
        return None
    nodes, sign, listed = cluster.partition(":")
    if not sign:
        raise UsageError(f'--cluster must be FORMAT:FILE (hetsim list clusters); got "{cluster}"')
    return {
        "name": Path(file).name,
        "cluster": {"trace": {"format": nodes, "path": listed}},
        "workload": [{"trace": _trace_of(file, form, options), **AS_FAR_AS_IT_GOES}],
    }


def _one_trace(source: dict[str, Any]) -> bool:
    entries = source.get("workload")
    entries = entries if isinstance(entries, list) else [entries]
    return len(entries) == 1 and isinstance(entries[0], dict) and isinstance(entries[0].get("trace"), dict)


def _trace_of(file: str, form: str | None, options: tuple[str, ...]) -> dict[str, Any]:
    from hetsim.scenario.file import document

    if not _in_yaml(file):
        return {"format": format_of(file, form), "path": file, **_given(options)}
    data = document.read(Path(file)).data
    entry = data["workload"][0] if isinstance(data["workload"], list) else data["workload"]
    path = Path(entry["trace"]["path"])
    return {**entry["trace"], "path": str(path if path.is_absolute() else Path(file).parent / path)}


def _replay(told: _Told, file: str, source: dict[str, Any], policy: str | None) -> None:
    from hetsim.experiment.run import one_run, prepare
    from hetsim.traces.waits_command import against_record

    loaded = prepare(file if _in_yaml(file) else source, policy or "as_recorded", ())
    outcome = one_run(loaded)
    table = against_record(outcome)
    notes = {name: value for name, value in outcome.record.notes.items() if isinstance(value, int | float)}
    warnings = list(outcome.record.input.warnings)
    told.lines += _compared(file, table, notes)
    told.remarks += [*loaded.notes, *warnings]
    pair = ("recorded", "simulated")
    rows = {str(name): {key: float(row[key]) for key in pair} for name, row in table.iterrows()}
    told.mapping |= {
        "tasks": int(table["tasks"].iloc[0]), "metrics": rows, "notes": notes, "warnings": warnings,
    }  # fmt: skip


def _compared(file: str, table: Any, notes: dict[str, Any]) -> list[str]:
    rows = [["", "recorded", "simulated", "difference"]]
    for name, row in table.iterrows():
        pair = [float(row["recorded"]), float(row["simulated"])]
        if name == "allocation":
            texts = [f"{100 * value:.2f} %" for value in (*pair, pair[1] - pair[0])]
        else:
            texts = terminal.several([*pair, pair[1] - pair[0]], terminal.SECONDS)
        rows.append([str(name).replace("_", " "), *texts])
    lines = [[name.replace("_", " "), f"{value:,.6g}"] for name, value in notes.items()]
    count = int(table["tasks"].iloc[0])
    return [f"{file}: {count:,} tasks with a recorded start", "", *terminal.table(rows, right=range(1, 4)), "",
            *terminal.table(lines)]  # fmt: skip


@trace.command(short_help="Write a trace as a plain table, or a list of nodes as a cluster.")
@READING
@click.argument("target", metavar="[TARGET]", required=False, type=FILE)
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@click.pass_context
def convert(
    context: click.Context, file: str, form: str | None, options: tuple[str, ...], target: Path | None,
    force: bool,
) -> None:  # fmt: skip
    """Write a trace as a plain table, or a list of nodes as the cluster of a scenario.

    Tasks become a task table, CSV or (with the suffix .parquet) Parquet; requests become a request table (format:
    requests), which is CSV.  Logs of jobs of any size are written part by part: rows are stored in an unnamed file next
    to TARGET until the last row is read.

    A list of nodes (`hetsim list clusters`) becomes `cluster:` as YAML, which is printed if TARGET is missing. Equal
    nodes become a group with a count and a name, by which it can be varied: --over cluster.nodes.a100.count=8..32.
    """
    nodes = None if _in_yaml(file) else format_of_nodes(file, form)
    if nodes is not None:
        if target is not None:
            YAML.convert(target, None, context)
        console.check_replaceable(target, force)
        convert_nodes(file, nodes, options, target)
        return
    if target is None or target.suffix.lower() in YAML.suffixes:
        text = "TARGET must end in .csv or .parquet, since a trace is written as a table"
        raise click.UsageError(f"{text} (hetsim trace map proposes a mapping, as YAML)")
    console.check_replaceable(target, force)
    _write_table(file, form, options, target)


def _write_table(file: str, form: str | None, options: tuple[str, ...], target: Path) -> None:
    from hetsim.traces.contents import rows_word
    from hetsim.workload.readers.task_table import write, write_parts
    from hetsim.workload.rows.text_rows import PARQUET

    if not target.parent.is_dir():
        raise UsageError(f'{target.name} cannot be written: the folder "{target.parent}" does not exist')
    spec = _spec(file, form, options)
    in_parts = getattr(registry.entry("traces", spec.format), "parts", None)
    parts = None
    if in_parts is not None and target.suffix.lower() not in ONE_PIECE:
        with naming(target):  # rows wait next to it
            parts = in_parts(target.parent, **spec.parameters)
    if parts is not None:
        with closing(parts):
            console.note(f"{target}: {write_parts(parts, target):,} tasks")
        remarks = parts.notes
    else:
        table = spec.read()
        if table.requests and target.suffix.lower() in PARQUET:
            name = target.with_suffix(".csv").name
            raise UsageError(f"a table of requests must be CSV, such as {name}; got {target}")
        write(table, target)
        console.note(f"{target}: {len(table):,} {rows_word(table)}")
        remarks = table.notes
    console.notes(remarks)


def format_of(file: str, form: str | None) -> str:
    """Return the given format; else the recognized one; else that of a plain table."""
    from hetsim.workload.logs.recognize import maybe_table, recognize

    if form is not None:
        return form
    name = recognize(file)
    if name is None and not maybe_table(file):
        formats = ", ".join(sorted(registry.table("traces")))
        way = f"hetsim trace map {file} proposes how to read a log with columns of its own"
        text = f"its format is not recognized; give --format NAME (hetsim list traces): {formats}"
        raise UsageError(f"{file}: {text}; {way}")
    if name not in (None, "tasks"):
        console.note(f"{file} seems to have the format {name} (--format sets another)")
    return name or "tasks"


def read(file: str, form: str | None, options: tuple[str, ...]) -> "TaskTable":
    return _spec(file, form, options).read()


def _spec(file: str, form: str | None, options: tuple[str, ...]) -> "TraceSpec":
    from hetsim.scenario.file import document
    from hetsim.scenario.schema.workload import check_traces

    if not _in_yaml(file):
        data = {"workload": [{"trace": _trace_of(file, form, options)}]}
        specs, problems = check_traces(document.from_mapping(data), Path())
        if problems:
            prefix = "workload.0.trace."
            raise ScenarioError([replace(problem, key=problem.key.removeprefix(prefix)) for problem in problems])
        return specs[0]
    if form is not None or options:
        raise UsageError(f"--format and --option are for traces, but {file} is a scenario, which names the format")
    specs, problems = check_traces(document.read(Path(file)), Path(file).parent)
    if problems:
        raise ScenarioError(problems)
    if len(specs) != 1:
        what = "no trace" if not specs else f"{len(specs)} traces"
        raise ScenarioError(Problem(f"has {what} in its workload; there must be one", file=file))
    (spec,) = specs.values()
    return spec


def _given(options: tuple[str, ...]) -> dict[str, Any]:
    from hetsim.scenario.file import document

    given: dict[str, Any] = {}
    for text in options:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UsageError(f'--option must be KEY=VALUE; got "{text}"')
        try:
            given[key.strip()] = document.parse_value(value.strip())
        except ScenarioError as error:
            raise UsageError(f"--option {text}: the value {error.problems[0].message}") from None
    return given
