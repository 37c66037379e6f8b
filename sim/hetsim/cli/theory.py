"""`hetsim theory`: what queueing theory says of a scenario, compared with the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sim.cli import console
from sim.cli.options import JSON, QUIET, SCENARIO, SET, VERBOSITY, Whole

if TYPE_CHECKING:
    from sim.queueing.facts import Match
    from sim.queueing.model_check import PredictionCheck


@click.command(short_help="Compare a scenario with the exact model that it matches.")
@SCENARIO
@click.option("--policy", metavar="NAME", help="Instead of the scenario's whole policy.")
@SET
@click.option("--seed", type=Whole(min=0), help="Instead of the scenario's seed.")
@click.option(
    "--replications", type=Whole(min=2, max=100_000), metavar="N", help="Independent runs; the scenario's own, or 10."
)
@click.option(
    "--workers",
    type=Whole(min=1, max=1000),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes for replications.",
)
@click.option("--predict-only", is_flag=True, help="Do not simulate.")
@JSON
@QUIET
@VERBOSITY
def theory(
    scenario: str,
    policy: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    replications: int | None,
    workers: int,
    predict_only: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Find the exact model that a scenario matches, or nearly matches, and compare its prediction with simulation.

    Every assumption of the model is listed with whether it holds. Where a hard one fails there is no prediction.
    """
    from sim.experiment.run import prepare
    from sim.queueing.matching import match
    from sim.queueing.model_check import simulate

    loaded = prepare(scenario, policy, overrides)
    found = match(loaded)
    beside: list[PredictionCheck] = []
    if found.rows and not predict_only:
        with console.progress(quiet) as bar:
            beside = simulate(loaded, found.rows, replications=replications, seed=seed, workers=workers, progress=bar)
    if as_json:
        console.as_json(_json(loaded, found, beside))
    else:
        console.lines(_text(loaded, found, beside))


def _json(scenario: Any, found: Match, beside: list[PredictionCheck]) -> dict[str, Any]:
    from sim.results.as_json import json_number

    intervals = {one.row: one for one in beside}
    figures = []
    for row in found.rows:
        figure: dict[str, Any] = {"metric": row.metric, **({"class": row.class_} if row.class_ else {})}
        figure["predicted"] = json_number(row.value)
        if row in intervals:
            interval = intervals[row].interval
            names = ("mean", "ci_low", "ci_high")
            values = (interval.mean, interval.low, interval.high)
            figure["simulated"] = {
                **{name: json_number(value) for name, value in zip(names, values, strict=True)}, "n": interval.n
            }  # fmt: skip
            figure["covered"] = intervals[row].covered
        figures.append(figure)
    return {
        "scenario": scenario.name,
        "model": found.model,
        "verdict": found.verdict,
        "approximate": found.approximate,
        "assumptions": [one._asdict() for one in found.assumptions],
        "figures": figures,
    }


def _text(scenario: Any, found: Match, beside: list[PredictionCheck]) -> list[str]:
    from sim.report import terminal

    rows = [
        ["holds" if one.holds else "near" if one.soft else "FAILS", one.text, f"{one.key}: {one.found}".strip(": ")]
        for one in found.assumptions
    ]
    lines = [*terminal.wrapped(_headline(scenario, found)), "", *terminal.table(rows)]
    if found.rows:
        lines += ["", *_figures(found, beside)]
    return lines


def _headline(scenario: Any, found: Match) -> str:
    from sim.queueing.facts import STABLE

    if found.verdict == "matches":
        return f"{scenario.name} is {found.model}: every assumption holds, and the prediction is exact."
    if found.verdict == "nearly":
        why = [one.text for one in found.failed]
        near = f"these hold only nearly: {'; '.join(why)}" if why else "the formula is an approximation"
        return f"{scenario.name} is nearly {found.model}; {near}."
    load = next((one for one in found.failed if one.text == STABLE), None)
    if load is not None and sum(not one.soft for one in found.failed) == 1:
        return (
            f"{scenario.name} has no steady state: its load is {load.found}, not below 1, and the queue grows without "
            f"bound. No figure can be given; lower the rate ({load.key}), add devices, or limit admission."
        )
    hard = [f"{one.text} ({one.key}: {one.found})" for one in found.failed if not one.soft]
    first = f"{scenario.name} matches no exact model. The nearest is {found.model}, and of its assumptions fail: "
    return first + "; ".join(hard)


def _figures(found: Match, beside: list[PredictionCheck]) -> list[str]:
    from sim.report import terminal
    from sim.results.formatting import PERCENT

    first = beside[0].interval if beside else None
    simulated = [] if first is None else [f"simulated ({first.confidence:.0%}, n = {first.n})", ""]
    table = [["", "predicted", *simulated]]
    intervals = {one.row: one for one in beside}
    for row in found.rows:
        name = terminal.metric_name(row.metric) + (f" of {row.class_}" if row.class_ else "")
        units = PERCENT if row.metric == "loss" else terminal.units_of(row.metric)
        cells = [terminal.one(row.value, units)]
        if row in intervals:
            interval = intervals[row].interval
            cells.append(terminal.several([interval.mean], units, [interval.half_width])[0])
            cells.append("covered" if intervals[row].covered else "not covered")
        table.append([name, *cells])
    return terminal.table(table, right=(1, 2))
