"""`hetsim sweep`, `hetsim merge`: a scenario at many points, in one table."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import click

from hetsim.cli import console
from hetsim.cli.options import FOLDER, PATH, QUIET, SCENARIO, TELLING, VERBOSITY, Whole, study_options
from hetsim.errors import UsageError
from hetsim.experiment.options import StudyKeywords
from hetsim.report import terminal
from hetsim.results.declared import has_direction

SHOWN_POINTS, SHOWN_WARNINGS = 20, 4


@click.command(short_help="Run a scenario at many points; print one table.")
@SCENARIO
@click.option("--over", multiple=True, metavar="KEY=VALUES",
              help="A key and its values: 8,16,32 or, for samples, a range: '10/s..900/s log' (repeatable).")
@click.option("--points", type=PATH, metavar="FILE.csv", help="Points from a table: columns are keys, rows are points.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Policy of each point (repeatable).")
@click.option("--sample", type=click.Choice(["grid", "random", "latin_hypercube", "sobol"]), default="grid",
              show_default=True, help="grid: all combinations; others: --n points drawn from the ranges.")  # fmt: skip
@click.option("--n", type=Whole(min=1), metavar="N", help="Number of sampled points.")
@click.option("--sample-seed", type=Whole(min=0), default=0, show_default=True, help="Seed of the sample.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="A metric to store and show (repeatable).")
@click.option("--keep", multiple=True, metavar="NAME", help="Store only this and those of --metric (repeatable).")
@click.option("--by-replication", is_flag=True, help="Print one row per replication (with --json).")
@click.option("--out", type=FOLDER, metavar="DIR",
              help="Store finished runs and tables in DIR; an interrupted sweep continues from them.")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue the sweep in --out, which must exist.")
@click.option("--dry-run", is_flag=True, help="Print the points and an estimate of the time; write nothing.")
@study_options(
    StudyKeywords,
    replications={"help": "Runs of every point; adds intervals."},
    cache={"help": "Store and reuse finished runs in DIR; without it in DIR/runs of --out."},
    fresh={"help": "Repeat every run, and replace the sweep in --out."},
)
@TELLING
def sweep(
    scenario: str, over: tuple[str, ...], points: Path | None, policies: tuple[str, ...], sample: str, n: int | None,
    sample_seed: int, metrics: tuple[str, ...], keep: tuple[str, ...], by_replication: bool, out: Path | None,
    resume: bool, dry_run: bool, as_json: bool, quiet: bool, **options: Unpack[StudyKeywords],
) -> None:  # fmt: skip
    """Run a scenario at many points and under several policies; print one table.

    Without --over and --points, the scenario's `sweep` is run. Several keys make a grid. Nothing is written unless
    --out (or --cache) is given; with it, every run is stored as soon as it ends, and the same command continues after
    an interruption. A run that fails is a row with its error.

    Replications may be a precision (--set 'replications={precision: 5%, metric: response_mean}'), and the warm-up auto;
    then each row has its own number of replications and warm-up, as by `hetsim compare` at that point.
    """
    from hetsim.experiment.points import read_points
    from hetsim.experiment.sweep import estimate_sweep, plan_sweep, sweep_plan

    if by_replication and not as_json:
        raise UsageError("--by-replication needs --json; --out always writes the values of all replications (Parquet)")
    plan = plan_sweep(
        scenario, over_given(over), points=None if points is None else read_points(points), sample=sample, n=n,
        policies=list(policies) or None, sample_seed=sample_seed, metrics=metrics, keep=keep, **options,
    )  # fmt: skip
    if dry_run:
        _show_plan(plan, estimate_sweep(plan, out, resume), as_json)
        return
    with console.searching(_interrupted(out, options["cache"]), as_json, quiet, cases=True) as bar:
        plan.options = replace(plan.options, progress=bar)
        outcome = sweep_plan(plan, out, resume)
    console.result(as_json, lambda: outcome.to_json(by_replication), lambda: _lines(outcome))
    if failed := len(outcome.failed):
        row = outcome.failed.iloc[0]
        first = f"point {row['point']} ({row['policy']}): {row['error']}"
        console.warnings([f"{failed:,} of {len(outcome):,} rows failed; the first is {first}"], quiet)
    warned = outcome.table[outcome.table["warnings"] != ""]
    firsts: dict[str, str] = {}  # each text at its first point; semicolons within parentheses are part of a text
    for point, texts in zip(warned["point"], warned["warnings"], strict=True):
        for text in re.split("; (?![^(]*[)])", re.sub("replication [0-9]+: ", "", texts)):
            firsts.setdefault(text, f"point {point}: {text}")
    if firsts:
        first, *others = list(firsts.values())[:SHOWN_WARNINGS]
        console.warnings([f"{len(warned):,} of {len(outcome):,} rows have warnings, such as {first}", *others], quiet)
    if out is not None:
        console.note(f"tables: {out}", quiet)


def over_given(texts: tuple[str, ...]) -> dict[str, Any] | None:
    from hetsim.experiment.points import parse_over

    values_of_keys: dict[str, Any] = {}
    for key, values in map(parse_over, texts):
        if key in values_of_keys:
            raise UsageError(f"--over {key} must be given once, with all its values")
        values_of_keys[key] = values
    return values_of_keys or None


def _interrupted(out: Path | None, cache: str | Path | None) -> str:
    if out is not None:
        return f"the finished runs are in {out}; --resume continues from there"
    return "no finished run was saved; --out DIR makes a sweep resumable" if cache is None else console.of_cache(cache)


def _show_plan(plan: Any, found: Any, as_json: bool) -> None:
    from hetsim.scenario.schema.whole import MIN_FOR_PRECISION

    shown = plan.table
    if as_json:
        rows = shown.to_dict("records")
        console.as_json({
            "scenario": plan.base.name, "rows": rows, "replications": plan.replications, "runs": found.runs,
            "there": found.there, "seconds": None if found.total != found.total else round(found.total, 1),
            "lower_bound": found.is_bound,
        })  # fmt: skip
        return
    rows = [[str(title) for title in shown.columns]]
    rows += [[str(cell) for cell in row] for row in shown.head(SHOWN_POINTS).itertuples(index=False)]
    lines = terminal.table(rows)
    if len(shown) > SHOWN_POINTS:
        lines.append(f"... {len(shown) - SHOWN_POINTS:,} more rows")
    each, max_runs = "", plan.amount.maximum
    if plan.amount.precision is not None:
        each = f", {MIN_FOR_PRECISION} to {max_runs:,} replications each"
    elif max_runs > 1:
        each = f", {max_runs:,} replications each"
    head = f"{plan.base.name}: {len(shown):,} rows{each}"
    console.lines([head, "", *lines, "", *terminal.paragraphs(plan.remarks), found.sentence])


def _lines(outcome: Any) -> list[str]:
    from hetsim.results.many_runs.tradeoff import knees

    titles, rows = outcome.shown()
    right = set(range(len(outcome.keys) + 2, len(titles)))
    lines = [outcome.title, "", *terminal.table([titles, *rows], right=right)]
    if len(outcome) > len(rows):
        lines.append(f"... {len(outcome) - len(rows):,} more rows (--out DIR saves them, --json prints them)")
    lines += ["", *_best(outcome), *knees(outcome)]
    if "response_mean_ci_low" in outcome.table:
        lines.append("± are 95 % intervals; what each is for: docs/statistics.md")
    return [*lines, *terminal.paragraphs(outcome.remarks)]


def _best(outcome: Any) -> list[str]:
    rows = []
    for name in outcome.shown_metrics:
        if not has_direction(name) or not outcome.table[name].notna().any():
            continue
        row = outcome.best(name)
        which = ", ".join(f"{key}={outcome.points.loc[row['point'], key]}" for key in outcome.keys)
        where = ", ".join(part for part in (row["policy"], which) if part)
        rows.append([f"best {terminal.metric_name(name)}", terminal.formatter(name)(row[name]), where])
    return terminal.table(rows)


@click.command(short_help="Merge finished runs of several machines into one folder.")
@click.argument("sources", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option("--into", required=True, type=FOLDER, metavar="DIR",
              help="A cache, or the directory of a sweep; it may be one of the sources.")  # fmt: skip
@QUIET
@VERBOSITY
def merge(sources: tuple[Path, ...], into: Path, quiet: bool) -> None:
    """Copy finished runs of caches (--cache) and sweeps (--out) into one folder.

    Use it for shards that had no common folder. Every run is checked; files with damaged runs are named. Afterwards,
    start the study's command with this folder and without --shard: it runs what is missing, and writes the tables.
    """
    from hetsim.experiment.store import merge_stores

    merged = merge_stores(sources, into)
    said = "is damaged: its intact runs were copied, and the others were left out"
    console.warnings((f"{path} {said}" for path in merged.damaged), quiet)
    console.lines([merged.sentence])
