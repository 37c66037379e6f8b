"""`hetsim plan`: plans of static policies, of pipelines and of training."""

from pathlib import Path
from typing import Any

import click

from hetsim.cli import console
from hetsim.cli.options import SCENARIO, SEED, SET, TABLE, TELLING
from hetsim.planning.partition_command import partition
from hetsim.planning.training_command import training
from hetsim.report import terminal

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
