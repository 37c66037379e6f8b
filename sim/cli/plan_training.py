"""`hetsim plan-training`: the best degrees, schedule and micro-batch for a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sim.cli import console
from sim.cli.options import JSON, QUIET, SCENARIO, SET, VERBOSITY, Whole

if TYPE_CHECKING:
    from sim.experiment.training_plans import PlanCandidate


@click.command("plan-training", short_help="Find the best degrees of parallel training for a cluster.")
@SCENARIO
@SET
@click.option("--entry", metavar="NAME", help="The entry or class of the workload, where several train.")
@click.option("--top", type=Whole(min=1), default=10, show_default=True, metavar="N", help="Rows of the table.")
@JSON
@QUIET
@VERBOSITY
def plan_training(
    scenario: str,
    overrides: tuple[str, ...],
    entry: str | None,
    top: int,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Compare all degrees of parallelism, schedules and micro-batches for the `training:` of a scenario.

    Each row has the time of a step and its parts, the memory of the fullest GPU, and the bytes that a GPU sends to
    other nodes a step.  Nothing is run.  What does not fit into the memory is counted, the fastest of it with both
    figures; --json has all candidates.
    """
    from sim.experiment.training_plans import training_plans
    from sim.scenario.scenario import load

    loaded = load(scenario, overrides)
    found = training_plans(loaded, entry)
    if as_json:
        console.as_json({"scenario": loaded.name, "candidates": [_figures(one) for one in found]})
    else:
        console.lines(_text(loaded.name, found, top))


def _figures(one: PlanCandidate) -> dict[str, Any]:
    plan, step = one.plan, one.step
    return {
        "device": one.device,
        "tensor": plan.tensor, "pipeline": plan.pipeline, "data": plan.data, "micro_batch": plan.micro_batch,
        "schedule": plan.schedule, "chunks": plan.chunks,
        "step_seconds": step.seconds, "compute_seconds": step.compute, "bubble_seconds": step.bubble,
        "communication_seconds": step.communication, "update_seconds": step.update,
        "state_bytes": one.state, "activation_bytes": one.kept, "network_bytes": step.network_bytes,
        "fits": one.fits, **({} if one.fits else {"refused": one.refusal}),
    }  # fmt: skip


def _text(name: str, found: list[PlanCandidate], top: int) -> list[str]:
    from sim.report import terminal

    fitting = [one for one in found if one.fits]
    rows = [["step", "bubble", "communication", "memory", "network", "tensor", "pipeline", "data", "micro-batch",
             "schedule", "GPU"]]  # fmt: skip
    for one in fitting[:top]:
        plan, step = one.plan, one.step
        schedule = plan.schedule if plan.chunks == 1 else f"{plan.schedule}, {plan.chunks} chunks"
        rows.append(
            [
                terminal.seconds(step.seconds), terminal.share(step.bubble / step.seconds),
                terminal.share(step.communication / step.seconds), terminal.data_size(one.state + one.kept),
                terminal.data_size(step.network_bytes), str(plan.tensor), str(plan.pipeline), str(plan.data),
                str(plan.micro_batch), schedule, one.device,
            ]
        )  # fmt: skip
    gpus = found[0].plan.gpus
    lines = [f"{name}: {len(found):,} candidates on {gpus:,} GPUs, {len(fitting):,} fit", "", *terminal.table(rows)]
    refused = [one for one in found if not one.fits]
    if refused:
        plan = refused[0].plan
        degrees = f"tensor {plan.tensor}, pipeline {plan.pipeline}, data {plan.data}, micro-batch {plan.micro_batch}"
        text = f"refused: {len(refused):,}; the fastest ({degrees}, {terminal.seconds(refused[0].step.seconds)}): "
        lines += ["", *terminal.wrapped(text + refused[0].refusal)]
    return lines
