"""`hetsim size`: the smallest cluster that meets a target."""

from __future__ import annotations

from typing import Any

import click

from sim.cli import console
from sim.cli.options import JSON, QUIET, SCENARIO, SET, VERBOSITY, Share, Whole

NOT_MET = 4
"""Exit code where no size is shown to meet the target: the search went well, and has no answer."""


@click.command(short_help="Find the smallest cluster that meets a target.")
@SCENARIO
@click.option("--target", required=True, metavar="TEXT", help="What to reach: 'response_p99 < 200 ms'.")
@click.option("--over", required=True, metavar="KEY.PATH", help="The whole number to find: cluster.nodes.0.count.")
@click.option("--from", "least", type=Whole(min=1), default=1, show_default=True, metavar="N", help="The least tried.")
@click.option("--to", "most", type=Whole(min=1), metavar="N",
              help="The most tried; without it sizes are doubled until one meets the target, up to 4096.")
@click.option("--confidence", type=Share(), default="95%", show_default=True, metavar="SHARE",
              help="That all verdicts are right.")
@click.option("--policy", metavar="NAME", help="Instead of the scenario's whole policy.")
@SET
@click.option("--seed", type=Whole(min=0), help="Instead of the scenario's seed.")
@click.option("--replications", type=Whole(min=2, max=10_000), default=10, show_default=True, metavar="N",
              help="Of each size; four times as many where these leave it open.")
@click.option("--workers", type=Whole(min=1, max=1000), default=1, show_default=True, metavar="N",
              help="Processes for replications; the results do not depend on it.")
@JSON
@QUIET
@VERBOSITY
def size(
    scenario: str, target: str, over: str, least: int, most: int | None, confidence: float, policy: str | None,
    overrides: tuple[str, ...], seed: int | None, replications: int, workers: int, as_json: bool, quiet: bool,
    verbose: bool,
) -> None:  # fmt: skip
    """Find the smallest value of a whole number in a scenario, such as how many nodes there are, that meets a target.

    The target is about what replications estimate, not about one of them. Found by bisection, which supposes that
    more is never worse. Exit code 4 if no size within --from and --to is shown to meet the target; what was tried is
    printed all the same.
    """
    from sim.experiment.size import size as search

    with console.progress(quiet) as bar:
        found = search(
            scenario, target, over, least=least, most=most, confidence=confidence, policy=policy, seed=seed,
            replications=replications, overrides=overrides, workers=workers, progress=bar,
        )  # fmt: skip
    if as_json:
        console.as_json(found.to_json())
    else:
        console.lines(_lines(found))
    if not found.met:
        click.get_current_context().exit(NOT_MET)


def _lines(found: Any) -> list[str]:
    from sim.report import terminal

    units = terminal.units_of(found.target.metric)
    texts = [terminal.several([trial.mean], units, [trial.half])[0] for trial in found.trials]  # each in its own unit
    rows = [[found.key, terminal.metric_name(found.target.metric), "replications", found.target.text]]
    for trial, text in zip(found.trials, texts, strict=True):
        rows.append([str(trial.size), text, str(trial.replications), trial.verdict])
    said = [line for text in found.sentences for line in terminal.wrapped(text, indent=2)]
    return [*terminal.table(rows, right=(0, 1, 2)), "", *said]
