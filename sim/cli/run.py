"""`hetsim run`: one scenario, one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sim.cli import console
from sim.cli.options import RUNNING, SCENARIO


@click.command(short_help="Run a scenario and print the figures that matter.")
@SCENARIO
@click.option("--policy", metavar="NAME", help="Instead of the scenario's whole policy: sjf, or sjf+predicted_wait.")
@click.option(
    "--out", "--save", "out", type=click.Path(path_type=Path), metavar="DIR",
    help="Write tables, summary and a picture there.",
)  # fmt: skip
@RUNNING
def run(
    scenario: str,
    policy: str | None,
    out: Path | None,
    overrides: tuple[str, ...],
    seed: int | None,
    replications: int | None,
    workers: int,
    check: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Run a scenario, a file or a shipped one by name, and print the figures that matter.

    Nothing is written unless --out is given. A run that fails keeps its tables up to then in DIR/partial
    (without --out in runs/NAME-HASH/partial).
    """
    from sim.experiment.directory import check_target, save
    from sim.experiment.run import prepare
    from sim.experiment.run import run as run_scenario

    loaded = prepare(scenario, policy, overrides)
    if out is not None:
        check_target(out)
    with console.keeping_partial(out, default_directory(loaded, seed), quiet), console.progress(quiet) as bar:
        outcome = run_scenario(
            loaded, seed=seed, replications=replications, check=check, workers=workers, progress=bar
        )
    if as_json:
        console.as_json(outcome.to_json())
    else:
        _show(outcome, loaded)
    from sim.report.overview import remarks

    console.warnings(remarks(outcome), quiet)
    if verbose:
        _details(outcome, loaded)
    if out is not None:  # after the figures: a full disk does not take them away
        console.note(f"tables and picture: {save(outcome, out)}", quiet)


def default_directory(scenario: Any, seed: int | None) -> Path:
    """`runs/NAME-HASH`: four digits that differ where the scenario or the seed does."""
    import hashlib

    from sim.experiment.directory import folder_name

    what = f"{scenario.content_hash} {seed}"
    return Path("runs") / f"{folder_name(scenario.name)}-{hashlib.sha256(what.encode()).hexdigest()[:4]}"


def _show(outcome: Any, scenario: Any) -> None:
    from sim.report.overview import headline, overview
    from sim.report.terminal import wrapped

    description = ["", *wrapped(scenario.description)] if scenario.description else []
    console.lines([headline(outcome), *description, "", *overview(outcome)])


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
