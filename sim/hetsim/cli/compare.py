"""`hetsim compare`, `hetsim diff`: policies at the same load, and two runs."""

from pathlib import Path
from typing import Any, Unpack

import click

from hetsim.cli import console
from hetsim.cli.options import BY, FOLDER, JSON, PATH, RUNNING, SCENARIO, VERBOSITY, Share, Whole
from hetsim.cli.run import default_directory
from hetsim.errors import UsageError, suggestion
from hetsim.experiment.options import StudyKeywords, StudyOptions
from hetsim.registry import policies as known
from hetsim.report import terminal

USUAL = ("fcfs", "fcfs_skip", "sjf")  # compared with the scenario's own policy if none are named

USUAL_GROUPS = ("class", "gpus", "user")

VERDICTS = {
    "[^ ]+( ± [^ ]+)?( [^ ]+)? ◂": "best", "(?<=  )refuses(?=: )": "bad", "no significant difference": "unsure",
}  # fmt: skip


@click.command(short_help="Compare policies that meet the same load.")
@SCENARIO
@click.option("--policy", "policies", multiple=True, metavar="NAME",
              help="A policy to compare, such as sjf or sjf+predicted_wait (repeatable); all: every one.")  # fmt: skip
@click.option("--metric", "--metrics", "metrics", multiple=True, metavar="NAME",
              help="A metric to compare, or a set of them: usual, cluster, all (repeatable).")  # fmt: skip
@BY
@click.option("--baseline", metavar="NAME", help="Compare every policy with this one only.")
@click.option("--best", metavar="METRIC", help="Select the best policy by a metric with a given probability: runs as "
              "many replications as necessary (--replications: those of the first stage).")  # fmt: skip
@click.option("--probability", type=Share(), metavar="SHARE",
              help="With --best: probability that the best is selected.  [default: 95%]")  # fmt: skip
@click.option("--delta", type=Share(), metavar="SHARE",
              help="With --best: the difference, as a share of the mean, below which policies count as equal.  "
              "[default: 1%]")  # fmt: skip
@click.option("--out", type=FOLDER, metavar="DIR",
              help="Write the comparison, and tables and a picture of every policy, to DIR.")  # fmt: skip
@RUNNING
def compare(
    scenario: str, policies: tuple[str, ...], metrics: tuple[str, ...], by: tuple[str, ...], baseline: str | None,
    best: str | None, probability: float | None, delta: float | None, out: Path | None, as_json: bool, quiet: bool,
    **options: Unpack[StudyKeywords],
) -> None:  # fmt: skip
    """Compare policies under common random numbers, and say which is better.

    Without --policy the policies are the values of the scenario's sweep over `policy`, if it has one, else its own
    policy and fcfs, fcfs_skip and sjf. A single run of each does not show random variation: use --replications. A
    policy that cannot run the scenario has a row with the reason.

    Nothing is written unless --out is given; tables of a failed run are stored as by `hetsim run`.
    """
    from hetsim.experiment.compare import asked_for
    from hetsim.experiment.compare import compare as evaluate
    from hetsim.experiment.directory import PICTURE, check_target, comparison_json, save_comparison
    from hetsim.experiment.policies import named_policies, named_policy
    from hetsim.results.one_run.groups import checked
    from hetsim.scenario.scenario import load

    if best is None and (probability is not None or delta is not None):
        raise UsageError("--probability and --delta need a selection of the best policy: add --best METRIC")
    checked(by)
    StudyOptions(audit=options["audit"])  # so that loading the scenario is watched too
    chosen: Any = named_policies(policies)
    loaded = load(scenario, options["overrides"] if chosen else ())
    chosen = chosen or _default_policies(loaded.raw)
    if baseline is not None:
        baseline, _ = named_policy(baseline)
    _check_names((*metrics, *([best] if best else [])), baseline, chosen)
    if out is not None:
        check_target(out)
    groups = by if out is None else USUAL_GROUPS  # what is written has all of them
    folder = default_directory(loaded, options["seed"])
    with console.making(out, folder, options["cache"], to_json=as_json, quiet=quiet, cases=True) as options["progress"]:
        comparison = evaluate(
            loaded, chosen, metrics=metrics or None, baseline=baseline, best=best, probability=probability or 0.95,
            delta=delta or 0.01, by=groups, **options,
        )  # fmt: skip
    runs: Any = comparison.runs
    comparison.asked = asked_for(
        metrics, by, best, probability=probability, delta=delta, replications=options["replications"]
    )
    from hetsim.report.groups import groups_lines
    from hetsim.report.overview import common_remarks, comparison_headline, comparison_lines, comparison_remarks
    from hetsim.results.many_runs.groups import tables_of_groups
    from hetsim.results.one_run.metrics import by_name

    tables = tables_of_groups(runs, groups)
    if as_json:
        console.as_json(comparison_json(comparison, runs, {name: tables[name] for name in by if name in tables}))
    else:
        lines = [comparison_headline(runs), "", *comparison_lines(comparison), *common_remarks(runs)]
        own = by_name(metrics)
        console.lines([*lines, *groups_lines(tables, by, own, comparison=comparison, only=own)], VERDICTS)
    console.warnings(comparison_remarks(runs), quiet)
    if out is not None:
        with console.own_warnings(quiet):
            folder = save_comparison(comparison, runs, out, groups=tables)
        console.note(f"{'tables and pictures' if (folder / PICTURE).is_file() else 'tables'}: {folder}", quiet)


def _default_policies(raw: dict[str, Any]) -> dict[str, Any]:
    from hetsim.experiment.policies import named_policies

    sweep = raw.get("sweep")
    for key in ("policy", "policy.scheduler", "policy.scheduler.name"):
        values = sweep.get(key) if isinstance(sweep, dict) else None
        if isinstance(values, list) and len(values) > 1:
            return named_policies(values)
    own = named_policies([raw["policy"]])
    return own | {name: name for name in USUAL if name not in own and name in known("scheduler")}


def _check_names(metrics: tuple[str, ...], baseline: str | None, policies: dict[str, Any]) -> None:
    from hetsim.results.one_run.metrics import check

    for name in metrics:
        check(name)
    if baseline is not None and baseline not in policies:
        near = suggestion(baseline, policies) or f"; the compared policies are {', '.join(policies)}"
        raise UsageError(f'--baseline must be one of the compared policies; got "{baseline}"{near}')


COLUMNS = ("response", "wait", "slowdown", "finish", "start", "energy_j")
MAX_GROUPS = 12
MAX_SETTINGS = 10


@click.command(short_help="List the tasks, groups and decisions that differ between two runs.")
@click.argument("a", type=PATH, metavar="RUN")
@click.argument("b", type=PATH, metavar="RUN")
@click.option("--metric", "column", type=click.Choice(COLUMNS), default="response", show_default=True,
              help="Column of the tasks to compare.")  # fmt: skip
@click.option("--by", type=click.Choice(["class", "user"]), help="List gainers and losers by class or by user only.")
@click.option("--top", type=Whole(min=1), default=10, show_default=True, metavar="N", help="Number of listed tasks.")
@JSON
@VERBOSITY
def diff(a: Path, b: Path, column: str, by: str | None, top: int, as_json: bool) -> None:
    """Compare two runs that `run --out` or `compare --out` wrote, task by task.

    The first of several replications is used. Tasks are matched by their id.
    """
    from hetsim.experiment.directory import first_run
    from hetsim.results.many_runs.difference import difference
    from hetsim.results.stored_files import reading_stored

    for run in (a, b):
        if not run.is_dir():
            raise click.UsageError(f'the directory "{run}" does not exist; `hetsim run --out {run} ...` writes it')
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
