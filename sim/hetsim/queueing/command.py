"""`hetsim theory`: queueing theory of a scenario, compared with its simulation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import click

from hetsim.cli import console
from hetsim.cli.options import SCENARIO, TELLING, Whole, study_options
from hetsim.experiment.options import LocalKeywords, StudyKeywords
from hetsim.report import terminal

if TYPE_CHECKING:
    from hetsim.queueing.facts import Match
    from hetsim.queueing.keys_to_drop import Drop
    from hetsim.queueing.model_check import PredictionCheck

VERDICTS = {
    "the prediction is exact|^holds(?= )|(?<!not )covered$": "good",
    "is nearly|is only approximated by|^near(?= )": "unsure",
    "matches no exact model|has no steady state|^FAILS(?= )|not covered$": "bad",
}
COVERED = {True: "covered", False: "not covered", None: "no interval"}

IS = {"matches": "is", "nearly": "is nearly", "approximation": "is only approximated by"}

MAX_NAMED = 6  # assumptions that the first sentence names; the table below it has all


@click.command(short_help="Compare a scenario with the exact model that it matches.")
@SCENARIO
@click.option("--policy", metavar="NAME", help="Replaces the scenario's whole policy.")
@study_options(
    LocalKeywords,
    seed={},
    replications={"type": Whole(min=2, max=100_000), "help": "Number of runs; by default the scenario's, or 10."},
)
@click.option("--predict-only", is_flag=True, help="Print the prediction without simulating.")
@TELLING
def theory(
    scenario: str, policy: str | None, predict_only: bool, as_json: bool, quiet: bool,
    **options: Unpack[StudyKeywords],
) -> None:  # fmt: skip
    """Compare a scenario with the queueing model that it matches.

    The match is exact, or has a stated error.
    The report lists every assumption of the model and whether it holds. There is no prediction if a required assumption
    fails.  A scenario nearly matches if the error of the prediction is known to be at most 10 %.
    """
    from hetsim.experiment.run import prepare
    from hetsim.queueing.keys_to_drop import keys_to_drop
    from hetsim.queueing.matching import match
    from hetsim.queueing.model_check import simulate

    loaded = prepare(scenario, policy, options.pop("overrides"))
    model_match = match(loaded)
    beside: list[PredictionCheck] = []
    if model_match.rows and not predict_only:
        with console.progress(quiet) as options["progress"]:
            beside = simulate(loaded, model_match.rows, **options)
    drop = None if model_match.rows else keys_to_drop(loaded, model_match)
    if as_json:
        console.as_json(_json(loaded, model_match, beside, drop))
    else:
        console.lines(_text(loaded, model_match, beside, drop), VERDICTS)


def _json(scenario: Any, found: Match, beside: list[PredictionCheck], drop: Drop | None) -> dict[str, Any]:
    from hetsim.results.formatting import json_number, json_values

    intervals = {one.row: one for one in beside}
    figures = []
    for row in found.rows:
        figure: dict[str, Any] = {"metric": row.metric, **({"class": row.class_} if row.class_ else {})}
        figure["predicted"] = json_number(row.value)
        if row in intervals:
            one = intervals[row].interval
            figure["simulated"] = json_values({"mean": one.mean, "ci_low": one.low, "ci_high": one.high, "n": one.n})
            figure["covered"] = intervals[row].covered
        figures.append(figure)
    return {
        "scenario": scenario.name,
        "model": found.model,
        "verdict": found.verdict,
        "error": json_number(found.error),
        "formula_error": json_number(found.formula_error),
        "assumptions": [{**one._asdict(), "error": json_number(one.error)} for one in found.assumptions],
        "figures": figures,
        "drop": drop and {"keys": list(drop[0]), "model": drop[1].model, "verdict": drop[1].verdict},
    }


def _text(scenario: Any, found: Match, beside: list[PredictionCheck], drop: Drop | None) -> list[str]:
    from hetsim.queueing.facts import NEARLY
    rows = []
    for one in found.assumptions:
        state = "holds" if one.holds else "near" if one.soft and one.error <= NEARLY else "FAILS"
        rows.append([state, one.text, f"{one.key}: {one.value}".strip(": ")])
    headline = _headline(scenario, found)
    if drop is not None:
        keys, other = ", ".join(drop[0]), drop[1]
        headline = f"{headline.rstrip('.')}. Drop {keys}, and the scenario {IS[other.verdict]} {other.model}."
    lines = [*terminal.wrapped(headline), "", *terminal.table(rows)]
    if found.rows:
        lines += ["", *_figures(found, beside)]
    return lines


def _headline(scenario: Any, found: Match) -> str:
    from hetsim.queueing.facts import STABLE

    if found.verdict == "matches":
        return f"{scenario.name} is {found.model}: every assumption holds, and the prediction is exact."
    if found.verdict != "none":
        parts = [f'"{one.text}" does not hold ({_error(one.error)})' for one in found.failed]
        if found.formula_error:
            parts.insert(0, f"the mean wait by its formula is not exact ({_error(found.formula_error)})")
        return f"{scenario.name} {IS[found.verdict]} {found.model}: {'; '.join(parts)}."
    load = next((one for one in found.failed if one.text == STABLE), None)
    if load is not None and sum(not one.soft for one in found.failed) == 1:
        return (
            f"{scenario.name} has no steady state: its load is {load.value}, not below 1, and the queue grows without "
            f"bound. There is no prediction; lower the rate ({load.key}), add devices, or limit admission."
        )
    hard = [f"{one.text} ({one.key}: {one.value})" for one in found.failed if not one.soft]
    first = f"{scenario.name} matches no exact model. The nearest is {found.model}, whose failing assumptions are: "
    more = [f"{len(hard) - MAX_NAMED} more"] if len(hard) > MAX_NAMED else []
    return first + "; ".join(hard[:MAX_NAMED] + more)


def _error(error: float) -> str:
    from hetsim.results.formatting import share

    return "error unknown" if error == math.inf else f"error at most {share(error)}"


def _figures(found: Match, beside: list[PredictionCheck]) -> list[str]:
    from hetsim.report.overview import INFINITE
    from hetsim.results.formatting import PERCENT

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
            cells.append(COVERED[intervals[row].covered])
        table.append([name, *cells])
    return terminal.table(table, right=(1, 2)) + [INFINITE] * any("∞" in row[2] for row in table if row[2:])
