"""`hetsim tune`: the best parameters of a policy in a scenario."""

from __future__ import annotations

from typing import Any

import click

from hetsim.cli import console
from hetsim.cli.options import SCENARIO, TELLING, Whole, study_options
from hetsim.experiment.options import SearchKeywords
from hetsim.results.declared import DEFAULT_METRIC


@click.command(short_help="Find the best parameters of a policy.")
@SCENARIO
@click.option("--policy", metavar="NAME", help="Instead of the scenario's whole policy: sjf, or fcfs+codel.")
@click.option("--over", multiple=True, required=True, metavar="PARAMETER=VALUES",
              help="A parameter and what to try: 8,16,32 or a range: '10 s..10 min log' (repeatable).")  # fmt: skip
@click.option("--metric", default=DEFAULT_METRIC, show_default=True, metavar="NAME", help="By which.")
@click.option("--sample", type=click.Choice(["grid", "random", "latin_hypercube", "sobol"]),
              help="All combinations, or --n settings drawn.  [default: grid of lists, sobol of ranges]")  # fmt: skip
@click.option("--n", type=Whole(min=1, max=100_000), metavar="N", help="Settings drawn.  [default: 27]")
@click.option("--sample-seed", type=Whole(min=0), default=0, show_default=True, help="Of the sample.")
@click.option("--first", type=Whole(min=2, max=100_000), default=3, show_default=True, metavar="N",
              help="Replications of every setting before any leaves.")  # fmt: skip
@click.option("--final", type=Whole(min=3, max=100_000), default=20, show_default=True, metavar="N",
              help="Replications for the winner's interval, none of them used for the choice.")  # fmt: skip
@study_options(SearchKeywords)
@TELLING
def tune(scenario: str, over: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Find the best parameters of a policy by successive halving.

    Settings are dropped as replications show that they are worse.

    All settings meet the same replications. The winner's figure is from further ones that had no part in the choice,
    compared with that of the present setting.
    """
    from hetsim.cli.sweep import over_given
    from hetsim.search.tune import tune as search

    with console.searching(console.of_cache(options["cache"]), as_json, quiet, cases=True) as options["progress"]:
        tuning = search(scenario, over=over_given(over) or {}, **options)
    console.warnings(tuning.warnings, quiet)
    if as_json:
        console.as_json(tuning.to_json())
        return
    _show(tuning)


def _show(found: object) -> None:
    from hetsim.report import terminal
    from hetsim.scenario.file.document import dump
    from hetsim.search.tuning import Tuning

    assert isinstance(found, Tuning)
    shown = found.shown()
    rows = [[str(title) for title in shown.columns]]
    rows += [[str(cell) for cell in row] for row in shown.itertuples(index=False)]
    lines = terminal.table(rows, right=range(len(rows[0]) - 1, len(rows[0])))
    if len(found.settings) > len(shown):
        lines.append(f"... {len(found.settings) - len(shown):,} more settings, which left earlier")
    said = [line for text in found.sentences for line in terminal.wrapped(text, indent=2)]
    console.lines([*lines, "", *said, "", *dump({"policy": dict(found.policy)}).splitlines()])
