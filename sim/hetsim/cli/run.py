"""`hetsim run`: one scenario, one policy."""

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from hetsim.cli import console
from hetsim.cli.options import BY, FOLDER, RUNNING, SCENARIO, TIMELINE, Share
from hetsim.cli.program import VERBOSE
from hetsim.errors import UsageError
from hetsim.experiment.options import StudyKeywords, StudyOptions
from hetsim.report import terminal
from hetsim.results.declared import DEFAULT_METRIC

if TYPE_CHECKING:
    from hetsim.results.many_runs.replications import Replications


@click.command(short_help="Run a scenario and print the main figures.")
@SCENARIO
@click.option("--policy", metavar="NAME", help="Replaces the scenario's whole policy: sjf, or sjf+predicted_wait.")
@click.option("--out", type=FOLDER, metavar="DIR", help="Write tables, summary and a picture to DIR.")
@click.option("--perfetto", type=TIMELINE, metavar="JSON",
              help="Write all launches as a trace for Perfetto: run.json.gz (of the first replication).")  # fmt: skip
@click.option("--metric", "--metrics", "metrics", multiple=True, metavar="NAME",
              help="Another metric (or a set: cluster, all) to print, or the one of --batch-means or --plan-precision "
              "(repeatable).")  # fmt: skip
@BY
@click.option("--batch-means", "batched", is_flag=True,
              help="Compute intervals from one long run, by batches of its tasks; an error if the run is too short.")
@click.option("--plan-precision", "precision", type=Share(), metavar="SHARE",
              help="Print how many replications a precision such as 5% requires, from ten pilot runs (or "
              "--replications).")  # fmt: skip
@RUNNING
def run(
    scenario: str, policy: str | None, out: Path | None, perfetto: Path | None, metrics: tuple[str, ...],
    by: tuple[str, ...], batched: bool, precision: float | None, as_json: bool, quiet: bool,
    **options: Unpack[StudyKeywords],
) -> None:  # fmt: skip
    """Run a scenario, a file or a shipped one, and print the main figures.

    Nothing is written unless --out is given. Tables of a failed run are stored up to its failure, in DIR/partial
    (without --out in runs/NAME-HASH/partial).
    """
    from hetsim.experiment.directory import PICTURE, check_target, save
    from hetsim.experiment.run import one_run, prepare, replicate
    from hetsim.experiment.sensitivity import INTERVAL, sensitivity, sentences
    from hetsim.experiment.stopping import checked_amount
    from hetsim.report.perfetto import check_trace_file, write_trace
    from hetsim.results.one_run.groups import checked
    from hetsim.results.one_run.metrics import check, metric
    from hetsim.results.one_run.result import Result

    checked(by)
    for name in metrics:  # wrong names are said before the first run; of these two no sets of metrics
        metric(name) if batched or precision is not None else check(name)
    StudyOptions(audit=options["audit"])  # so that loading the scenario is watched too
    program = StudyOptions(external=options["external"], exchange=options["exchange"]).program
    loaded = prepare(scenario, policy, options.pop("overrides"), program)
    if precision is not None:
        if batched or out is not None:
            raise UsageError(
                "--plan-precision only estimates the number of replications; leave out --batch-means and --out"
            )
        _plan(loaded, precision, metrics, options=options, as_json=as_json, quiet=quiet)
        return
    if batched:
        if options["replications"] not in (None, 1):
            text = "--batch-means is for one long run; with --replications the intervals are over replications"
            raise UsageError(text)
        options["replications"] = 1
    if out is not None:
        check_target(out)
    if perfetto is not None:
        check_trace_file(perfetto)
    folder = default_directory(loaded, options["seed"])
    with console.making(out, folder, options["cache"], to_json=as_json, quiet=quiet) as options["progress"]:
        outcome: Result | Replications
        if checked_amount(loaded, options["replications"]).maximum == 1 and options["shard"] is None:
            chosen = StudyOptions(
                seed=options["seed"], check=options["check"], audit=options["audit"], progress=options["progress"]
            )
            outcome = one_run(loaded, chosen)
        else:
            outcome = replicate(loaded, metrics=metrics, by=by, **options)
        sensitive = sensitivity(loaded, outcome, options["seed"])
    from hetsim.report.groups import groups_lines
    from hetsim.report.overview import remarks
    from hetsim.results.many_runs.groups import tables_of_groups

    further = _batched(outcome, metrics) if batched else {}
    tables = tables_of_groups({outcome.policy or "run": outcome}, by)
    if as_json:
        intervals = list(filter(re.compile(INTERVAL).search, remarks(outcome)))  # warnings, as `size` has them
        more = {"sensitivity": sensitive | ({"intervals": intervals} if intervals else {})} if sensitive else {}
        console.as_json(_json(outcome, metrics, further, tables) | more)
    else:
        _show(outcome, loaded, () if batched else metrics)
        console.lines(["", *terminal.paragraphs(sentences(sensitive))] if sensitive else ())
        if batched:
            console.lines(["", *further["lines"]])
        if by:
            console.lines(groups_lines(tables, by, metrics))

    console.warnings(remarks(outcome), quiet)
    if click.get_current_context().meta.get(VERBOSE):
        _details(outcome, loaded)
    if out is not None:  # after the figures: a full disk does not take them away
        with console.own_warnings(quiet):
            folder = save(outcome, out, groups=tables)
        console.note(f"{'tables and picture' if (folder / PICTURE).is_file() else 'tables'}: {folder}", quiet)
    if perfetto is not None:
        first = outcome if isinstance(outcome, Result) else outcome.results[0]
        console.note(f"timeline: {write_trace(first, perfetto)}", quiet)


def _plan(
    scenario: Any, precision: float, metrics: tuple[str, ...], options: StudyKeywords, as_json: bool, quiet: bool
) -> None:
    from hetsim.experiment.precision import PILOT, plan_precision
    from hetsim.report.overview import remarks

    pilot: Any = options["replications"] or PILOT
    plans = []
    for name in metrics or (DEFAULT_METRIC,):
        with console.progress(quiet) as bar:
            plans.append(plan_precision(
                scenario, precision, name, pilot=pilot, seed=options["seed"], workers=options["workers"], progress=bar
            ))  # fmt: skip
    if as_json:
        console.as_json([plan.to_json() for plan in plans])
    for number, plan in enumerate(plans if not as_json else []):
        lines = terminal.paragraphs(plan.sentences)
        console.lines(["", *lines] if number else lines)
    console.warnings(remarks(plans[0].runs), quiet)


def _batched(outcome: Any, metrics: tuple[str, ...]) -> dict[str, Any]:
    from hetsim.results.one_run.estimands import METHOD, candidates

    means, refused, rows = {}, [], []
    for name in metrics or candidates(outcome):
        try:
            interval = outcome.batch_means(name)
        except UsageError as error:
            refused.append(str(error))
            continue
        text = terminal.several([interval.mean], terminal.units_of(name), [interval.half_width])[0]
        rows.append([terminal.metric_name(name), text])
        means[name] = {"mean": interval.mean, "ci_low": interval.low, "ci_high": interval.high, "batches": interval.n}
    if not means:
        raise UsageError("; ".join(dict.fromkeys(refused)) or "batch means can be computed for no metric of this run")
    first = next(iter(means.values()))
    head = f"Intervals of 95 % from {first['batches']} {METHOD}:"
    lines = [head, *terminal.table(rows), *terminal.paragraphs(f"refused: {text}" for text in refused)]
    return {"lines": lines, "json": means}


def _json(outcome: Any, metrics: tuple[str, ...], batched: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    from hetsim.results.one_run.metrics import expanded

    shown: dict[str, Any] = outcome.to_json()
    many = hasattr(outcome, "column")
    if tables:
        from hetsim.results.many_runs.groups import groups_json

        by_policy = groups_json(tables, many)
        shown["groups"] = {name: next(iter(policies.values())) for name, policies in by_policy.items()}
    if batched:
        shown["batch_means"] = batched["json"]
    elif metrics and not many:
        from hetsim.results.formatting import json_values

        shown["summary"] |= json_values(outcome.values(expanded(metrics)))
    return shown


def default_directory(scenario: Any, seed: int | None) -> Path:
    """Return `runs/NAME-HASH`; the four digits depend on scenario and seed."""
    from hetsim.experiment.directory import folder_name

    what = f"{scenario.content_hash} {seed}"
    return Path("runs") / f"{folder_name(scenario.name)}-{hashlib.sha256(what.encode()).hexdigest()[:4]}"


def _show(outcome: Any, scenario: Any, metrics: tuple[str, ...] = ()) -> None:
    from hetsim.report.overview import asked, headline, overview

    description = ["", *terminal.wrapped(scenario.description)] if scenario.description else []
    console.lines([headline(outcome), *description, "", *overview(outcome)])
    if metrics:
        console.lines(["", *asked(outcome, metrics)])


def _details(outcome: Any, scenario: Any) -> None:
    from hetsim.report.overview import first_of

    first = first_of(outcome)
    stats = ", ".join(f"{value:,.0f} {name}" for name, value in first.record.stats.items())
    console.note(f"ended at t = {first.end:g} s after {stats}")
    if first.notes:
        texts = (f"{name} {value:{'.6g' if isinstance(value, float) else ''}}" for name, value in first.notes.items())
        console.note(f"notes of the policy: {', '.join(texts)}")
    console.notes(scenario.notes)
