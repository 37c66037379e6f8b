"""`hetsim plan`: what a static policy would do, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sim.cli import console
from sim.cli.options import JSON, QUIET, SCENARIO, SET, VERBOSITY, Whole

ROWS = 20


@click.command(short_help="Show and save the plan of a static policy.")
@SCENARIO
@click.option("--policy", help="Instead of the scenario's policy.")
@SET
@click.option("--seed", type=Whole(min=0), help="Instead of the scenario's seed.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the plan for the policy replay: CSV, or Parquet if the name ends so.")  # fmt: skip
@JSON
@QUIET
@VERBOSITY
def plan(
    scenario: str,
    policy: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show what the static policy of a scenario plans, without running it.

    Start and finish are the planner's own timetable.  A saved plan is followed by `replay`:
    `hetsim run FILE --set policy.scheduler='{name: replay, plan: plan.csv}'`.
    """
    from sim.experiment.plan import plan as make

    found = make(scenario, policy=policy, overrides=overrides, seed=seed)
    if out is not None:
        found.save(out)
        console.note(f"written: {out}", quiet)
    if as_json:
        rows = found.table.astype(object).where(found.table.notna(), None).to_dict("records")
        console.as_json({"scenario": found.name, "policy": found.policy, "plan": found.figures, "steps": rows})
        return
    console.lines(_lines(found))


def _lines(found: Any) -> list[str]:
    from sim.report import terminal

    plan = found.plan
    known = [] if plan.makespan is None else [f"planned makespan {terminal.seconds(plan.makespan)}"]
    if plan.bound is not None:
        known.append(f"no schedule takes less than {terminal.seconds(plan.bound)}")
    if plan.copies:
        known.append(f"{len(plan.copies):,} prefetches and drops")
    if plan.fused:
        known.append(f"{len(plan.fused):,} launches of several kernels as one")
    head = f"plan of {found.policy} for {found.name}: {len(plan.steps):,} steps"
    lines = ["; ".join([head, *known])]
    covers = plan.notes.get("covers")
    if covers:
        lines.append("transfers and the like: " + ", ".join(f"{what} {word}" for what, word in covers.items()))
    table = found.table
    lines += ["", *table.head(ROWS).to_string(index=False, na_rep="").splitlines()]
    if len(table) > ROWS:
        lines.append(f"… {len(table) - ROWS:,} more rows; --out FILE writes all")
    return lines
