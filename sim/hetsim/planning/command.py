"""`hetsim plan`: plans of static policies, of pipelines and of training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hetsim.cli import console
from hetsim.cli.options import PICTURE, SCENARIO, SEED, SET, TABLE, TELLING, Whole
from hetsim.errors import UsageError
from hetsim.planning.partition_command import partition
from hetsim.report import terminal

if TYPE_CHECKING:
    from hetsim.planning.training_plans import PlanCandidate
    from hetsim.results.panels import Picture

MAX_GPUS = 1_000_000


@click.command(short_help="Find the best degrees of parallel training for a cluster.")
@SCENARIO
@SET
@click.option("--entry", metavar="NAME", help="The entry or class of the workload, where several train.")
@click.option("--gpus", metavar="N[,N...]",
              help="Numbers of GPUs to compare, such as 8,16,32; those of the entry unless given.")
@click.option("--rank", type=click.Choice(["time", "gpu_hours"]), default="time", show_default=True,
              help="By the time of a step, or by GPU-hours.")
@click.option("--top", type=Whole(min=1), default=10, show_default=True, metavar="N",
              help="Rows of the table, shared among the numbers of GPUs.")
@click.option("--picture", type=PICTURE, metavar="PNG",
              help="Draw there the schedule of the best candidate with stages.")
@TELLING
def training(
    scenario: str, overrides: tuple[str, ...], entry: str | None, gpus: str | None, rank: Literal["time", "gpu_hours"],
    top: int, picture: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Compare parallel degrees, schedules and micro-batches of `training:`.

    Each row has the time of a step and its parts, the GPU-hours of all steps, the memory of the fullest GPU, and the
    bytes that a GPU sends to other nodes a step. Nothing is run. A job is on one type of GPU, in the partition of its
    entry. What does not fit into the memory is counted, the fastest of it with both figures; --json has all candidates.
    """
    from hetsim.planning.training_plans import training_plans
    from hetsim.scenario.scenario import load

    loaded = load(scenario, overrides)
    plans = training_plans(loaded, entry, gpus=None if gpus is None else _numbers(gpus), rank=rank)
    console.result(as_json, lambda: {"scenario": loaded.name, "candidates": [_figures(one) for one in plans]},
                   lambda: _text(loaded.name, plans, top))  # fmt: skip
    console.notes(loaded.notes)
    staged = next((one for one in plans if one.fits and one.pipeline is not None), None)
    if picture is not None and staged is None:
        raise UsageError("--picture: no candidate that fits has more than one stage, so that there is nothing to draw")
    if staged is not None:
        console.picture(picture, lambda: _drawn(loaded.name, staged), quiet)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not part.isdecimal() or not 1 <= int(part) <= MAX_GPUS), None)
    if wrong is not None:
        raise click.UsageError(f'--gpus: expected whole numbers from 1 to {MAX_GPUS:,}, not "{wrong}"')
    return [int(part) for part in parts]


def _drawn(name: str, one: PlanCandidate) -> Picture:
    from hetsim.planning.picture import pipeline

    plan = one.plan
    text = f"{name}: tensor {plan.tensor}, data {plan.data}, micro-batch {plan.micro_batch}"
    return pipeline(replace(one.schedule(), name=text))


def _figures(one: PlanCandidate) -> dict[str, Any]:
    plan, step = one.plan, one.step
    return {
        "device": one.device, "gpus": plan.gpus,
        "tensor": plan.tensor, "pipeline": plan.pipeline, "data": plan.data, "micro_batch": plan.micro_batch,
        "schedule": plan.schedule, "chunks": plan.chunks,
        "step_seconds": step.seconds, "gpu_hours": one.gpu_hours,
        "compute_seconds": step.compute, "bubble_seconds": step.bubble,
        "communication_seconds": step.communication, "update_seconds": step.update,
        "state_bytes": one.state, "activation_bytes": one.kept, "network_bytes": step.network_bytes,
        "fits": one.fits, **({} if one.fits else {"refused": one.refusal}),
    }  # fmt: skip


def _text(name: str, found: list[PlanCandidate], top: int) -> list[str]:
    fitting = [one for one in found if one.fits]
    sizes = sorted({one.plan.gpus for one in found})
    rows = [["GPUs", "step", "GPU-hours", "bubble", "communication", "memory", "network", "tensor", "pipeline", "data",
             "micro-batch", "schedule", "GPU"]]  # fmt: skip
    for one in _shown(fitting, sizes, top):
        plan, step = one.plan, one.step
        schedule = plan.schedule if plan.chunks == 1 else f"{plan.schedule}, {plan.chunks} chunks"
        rows.append(
            [
                f"{plan.gpus:,}", terminal.seconds(step.seconds), f"{one.gpu_hours:.3g}",
                terminal.share(step.bubble / step.seconds),
                terminal.share(step.communication / step.seconds), terminal.data_size(one.state + one.kept),
                terminal.data_size(step.network_bytes), str(plan.tensor), str(plan.pipeline), str(plan.data),
                str(plan.micro_batch), schedule, one.device,
            ]
        )  # fmt: skip
    numbers = [f"{one:,}" for one in sizes]
    widths = " or ".join([", ".join(numbers[:-1]), numbers[-1]] if numbers[1:] else numbers)
    lines = [f"{name}: {len(found):,} candidates on {widths} GPUs, {len(fitting):,} fit", "", *terminal.table(rows)]
    for size in sizes:
        refused = [one for one in found if not one.fits and one.plan.gpus == size]
        if refused:
            plan, step = refused[0].plan, refused[0].step
            degrees = f"tensor {plan.tensor}, pipeline {plan.pipeline}, data {plan.data}"
            degrees = f"{degrees}, micro-batch {plan.micro_batch}, {terminal.seconds(step.seconds)}"
            all_plans = " all" if not any(one.plan.gpus == size for one in fitting) else ""
            on_gpus = f" on {size:,} GPUs" if len(sizes) > 1 else ""
            text = f"refused{on_gpus}:{all_plans} {len(refused):,}; the first ({degrees}): "
            lines += ["", *terminal.wrapped(text + refused[0].refusal)]
    return lines


def _shown(fitting: list[PlanCandidate], sizes: list[int], top: int) -> list[PlanCandidate]:
    """The first of each number of GPUs, in the order in which they are."""
    rows_left = dict.fromkeys(sizes, -(-top // len(sizes)))
    shown = []
    for one in fitting:
        if rows_left[one.plan.gpus]:
            rows_left[one.plan.gpus] -= 1
            shown.append(one)
    return shown


ROWS = 20


class Plan(click.Command):
    """A command on a scenario with subcommands, chosen by the first word."""

    commands = {"partition": partition, "training": training}

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not args or args[0] not in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        name, *rest = args
        try:
            return self.commands[name].make_context(f"{info_name} {name}", rest, parent, **extra)
        except click.MissingParameter as error:
            text = f"{error.format_message()} A scenario named {name} is planned by `hetsim plan -- {name}`."
            raise click.UsageError(text, error.ctx) from None

    def format_usage(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_usage(context, formatter)
        for name, command in self.commands.items():
            pieces = command.collect_usage_pieces(context)
            formatter.write_usage(f"{context.command_path} {name}", " ".join(pieces), prefix=" " * len("Usage: "))

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(context, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(90)) for name, one in self.commands.items()])


@click.command(cls=Plan, short_help="Show and save a plan: of a static policy, a pipeline, a training.")
@SCENARIO
@click.option("--policy", help="Instead of the scenario's policy.")
@SET
@SEED
@click.option("--table", type=TABLE, metavar="CSV",
              help="Write the plan for the policy replay: CSV, or Parquet if the name ends so.")  # fmt: skip
@TELLING
def plan(
    scenario: str, policy: str | None, overrides: tuple[str, ...], seed: int | None, table: Path | None, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Show what the static policy of a scenario plans, without running it.

    Start and finish are the planner's own timetable.  A saved plan is followed by `replay`:
    `hetsim run FILE --set policy.scheduler='{name: replay, plan: plan.csv}'`.

    Two commands plan something else: `hetsim plan partition` and `hetsim plan training`.
    """
    from hetsim.planning.static_plan import plan as make

    planned = make(scenario, policy=policy, overrides=overrides, seed=seed)
    if table is not None:
        planned.save(table)
        console.note(f"plan: {table}", quiet)
    console.result(as_json, lambda: {
        "scenario": planned.name, "policy": planned.policy, "plan": planned.figures,
        "steps": planned.table.astype(object).where(planned.table.notna(), None).to_dict("records"),
    }, lambda: _lines(planned))  # fmt: skip


def _lines(found: Any) -> list[str]:
    plan = found.plan
    facts = [] if plan.makespan is None else [f"planned makespan {terminal.seconds(plan.makespan)}"]
    if plan.bound is not None:
        facts.append(f"no schedule takes less than {terminal.seconds(plan.bound)}")
    if plan.copies:
        facts.append(f"{len(plan.copies):,} prefetches and drops")
    if plan.fused:
        facts.append(f"{len(plan.fused):,} launches of several kernels as one")
    head = f"plan of {found.policy} for {found.name}: {len(plan.steps):,} steps"
    lines = ["; ".join([head, *facts])]
    if covers := plan.notes.get("covers"):
        lines.append("transfers and the like: " + ", ".join(f"{what} {word}" for what, word in covers.items()))
    table = found.table
    lines += ["", *table.head(ROWS).to_string(index=False, na_rep="").splitlines()]
    if len(table) > ROWS:
        lines.append(f"… {len(table) - ROWS:,} more rows; --table CSV writes all")
    return lines
