"""`hetsim run`: one scenario, one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sim.cli import console
from sim.cli.options import BY, RUNNING, SCENARIO, Share


@click.command(short_help="Run a scenario and print the figures that matter.")
@SCENARIO
@click.option("--policy", metavar="NAME", help="Instead of the scenario's whole policy: sjf, or sjf+predicted_wait.")
@click.option(
    "--out", "--save", "out", type=click.Path(path_type=Path), metavar="DIR",
    help="Write tables, summary and a picture there.",
)  # fmt: skip
@click.option(
    "--trace-out",
    "trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what ran where and when for Perfetto's viewer: run.json.gz (of the first replication).",
)
@click.option("--metric", "--metrics", "metrics", multiple=True, metavar="NAME",
              help="A further metric (or a set: cluster, all) to print, or that of --batch-means or --plan-precision "
              "(repeatable).")  # fmt: skip
@BY
@click.option(
    "--batch-means",
    "batched",
    is_flag=True,
    help="Intervals from one long run, by batches of its tasks; refused where it is too short for that.",
)
@click.option(
    "--plan-precision",
    "precision",
    type=Share(),
    metavar="SHARE",
    help="Say how many replications a precision such as 5% takes, from a pilot of ten (or --replications).",
)
@RUNNING
def run(
    scenario: str,
    policy: str | None,
    out: Path | None,
    trace: Path | None,
    metrics: tuple[str, ...],
    by: tuple[str, ...],
    batched: bool,
    precision: float | None,
    overrides: tuple[str, ...],
    seed: int | None,
    replications: int | None,
    workers: int,
    dask: str | None,
    cache: Path | None,
    shard: str | None,
    fresh: bool,
    check: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Run a scenario, a file or a shipped one by name, and print the figures that matter.

    Nothing is written unless --out is given. A run that fails keeps its tables up to then in DIR/partial
    (without --out in runs/NAME-HASH/partial).
    """
    from sim.experiment.directory import PICTURE, check_target, save
    from sim.experiment.run import prepare
    from sim.experiment.run import run as run_scenario
    from sim.report.perfetto import check_trace_file, write_trace
    from sim.results.one_run.result import Result

    _check(metrics, by, batched or precision is not None)
    loaded = prepare(scenario, policy, overrides)
    if precision is not None:
        _plan(loaded, precision, metrics, batched, out, seed, replications, workers, as_json, quiet)
        return
    if batched:
        _one_run(loaded, replications)
    if out is not None:
        check_target(out)
    if trace is not None:
        check_trace_file(trace)
    with console.making(out, default_directory(loaded, seed), cache, as_json, quiet) as bar:
        outcome = run_scenario(
            loaded, seed=seed, replications=1 if batched else replications, check=check, workers=workers, dask=dask,
            cache=cache, shard=shard, fresh=fresh, progress=bar, metrics=metrics, by=by,
        )  # fmt: skip
    from sim.report.groups import groups_lines
    from sim.report.overview import remarks
    from sim.results.many_runs.groups import tables_of_groups

    further = _batched(outcome, metrics) if batched else {}
    tables = tables_of_groups({outcome.policy or "run": outcome}, by)
    if as_json:
        console.as_json(_json(outcome, metrics, further, tables))
    else:
        _show(outcome, loaded, () if batched else metrics)
        if batched:
            console.lines(["", *further["lines"]])
        if by:
            console.lines(groups_lines(tables, by, metrics))

    console.warnings(remarks(outcome), quiet)
    if verbose:
        _details(outcome, loaded)
    if out is not None:  # after the figures: a full disk does not take them away
        with console.own_warnings(quiet):
            folder = save(outcome, out, groups=tables)
        console.note(f"{'tables and picture' if (folder / PICTURE).is_file() else 'tables'}: {folder}", quiet)
    if trace is not None:
        first = outcome if isinstance(outcome, Result) else outcome.results[0]
        console.note(f"trace: {write_trace(first, trace)}", quiet)


def _check(metrics: tuple[str, ...], by: tuple[str, ...], one_by_one: bool) -> None:
    """Wrong names are said before the first run.  `one_by_one`: no sets of metrics."""
    from sim.results.one_run.groups import checked
    from sim.results.one_run.metric_sets import check
    from sim.results.one_run.metrics import metric

    checked(by)
    for name in metrics:
        metric(name) if one_by_one else check(name)


def _plan(
    scenario: Any, precision: float, metrics: tuple[str, ...], batched: bool, out: Path | None, seed: int | None,
    replications: int | None, workers: int, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """What a precision of each metric costs."""
    from sim.errors import UsageError
    from sim.experiment.precision import PILOT, plan_precision
    from sim.report.overview import remarks
    from sim.report.terminal import wrapped

    if batched or out is not None:
        raise UsageError("--plan-precision only says what a precision costs: it takes neither --batch-means nor --out")
    plans = []
    for name in metrics or ("response_mean",):
        with console.progress(quiet) as bar:
            plans.append(
                plan_precision(
                    scenario,
                    precision,
                    name,
                    pilot=PILOT if replications is None else replications,
                    seed=seed,
                    workers=workers,
                    progress=bar,
                )  # fmt: skip
            )
    if as_json:
        console.as_json([plan.to_json() for plan in plans])
    for number, plan in enumerate(plans if not as_json else []):
        lines = [line for text in plan.sentences for line in wrapped(text, indent=2)]
        console.lines(["", *lines] if number else lines)
    console.warnings(remarks(plans[0].runs), quiet)


def _one_run(scenario: Any, replications: int | None) -> None:
    from sim.errors import UsageError

    if replications is not None and replications > 1:
        raise UsageError("--batch-means is for one long run; with --replications the intervals are over replications")


def _batched(outcome: Any, metrics: tuple[str, ...]) -> dict[str, Any]:
    """Batch means of the metrics asked for, else of the usual ones, as lines and as JSON; UsageError without any."""
    from sim.errors import UsageError
    from sim.report import terminal
    from sim.results.one_run.batch_means import METHOD, candidates

    found, refused, rows = {}, [], []
    for name in metrics or candidates(outcome):
        try:
            interval = outcome.batch_means(name)
        except UsageError as error:
            refused.append(str(error))
            continue
        text = terminal.several([interval.mean], terminal.units_of(name), [interval.half_width])[0]
        rows.append([terminal.metric_name(name), text])
        found[name] = {"mean": interval.mean, "ci_low": interval.low, "ci_high": interval.high, "batches": interval.n}
    if not found:
        raise UsageError("; ".join(dict.fromkeys(refused)) or "no metric of this run has batch means")
    first = next(iter(found.values()))
    head = f"Intervals of 95 % from {first['batches']} {METHOD}:"
    said = [line for text in refused for line in terminal.wrapped(f"refused: {text}", indent=2)]
    lines = [head, *terminal.table(rows), *said]
    return {"lines": lines, "json": found}


def _json(outcome: Any, metrics: tuple[str, ...], batched: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    from sim.results.one_run.metric_sets import expanded

    found: dict[str, Any] = outcome.to_json()
    many = hasattr(outcome, "column")
    if tables:
        from sim.results.many_runs.groups import groups_json

        by_policy = groups_json(tables, many)
        found["groups"] = {name: next(iter(policies.values())) for name, policies in by_policy.items()}
    if batched:
        found["batch_means"] = batched["json"]
    elif metrics and not many:
        from sim.results.as_json import json_values

        found["summary"] |= json_values(outcome.values(expanded(metrics)))
    return found


def default_directory(scenario: Any, seed: int | None) -> Path:
    """`runs/NAME-HASH`: four digits that differ where the scenario or the seed does."""
    import hashlib

    from sim.experiment.directory import folder_name

    what = f"{scenario.content_hash} {seed}"
    return Path("runs") / f"{folder_name(scenario.name)}-{hashlib.sha256(what.encode()).hexdigest()[:4]}"


def _show(outcome: Any, scenario: Any, metrics: tuple[str, ...] = ()) -> None:
    from sim.report.overview import asked, headline, overview
    from sim.report.terminal import wrapped

    description = ["", *wrapped(scenario.description)] if scenario.description else []
    console.lines([headline(outcome), *description, "", *overview(outcome)])
    if metrics:
        console.lines(["", *asked(outcome, metrics)])


def _details(outcome: Any, scenario: Any) -> None:
    """What -v tells: how much work the run was."""
    from sim.report.overview import first_of

    first = first_of(outcome)
    stats = ", ".join(f"{value:,.0f} {name}" for name, value in first.record.stats.items())
    console.note(f"ended at t = {first.end:g} s after {stats}")
    if first.notes:
        console.note("the policy notes: " + ", ".join(_noted(name, value) for name, value in first.notes.items()))
    for remark in scenario.notes:
        console.note(remark)


def _noted(name: str, value: Any) -> str:
    return f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
