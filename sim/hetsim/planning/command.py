"""The command `hetsim plan` for static policies, pipelines and parallel training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hetsim.cli import console
from hetsim.cli.options import PATH, PICTURE, SCENARIO, SEED, SET, TABLE, TELLING, Whole
from hetsim.errors import Problem, ScenarioError, UsageError, suggestion
from hetsim.report import terminal
from hetsim.results.declared import THROUGHPUT

if TYPE_CHECKING:
    from hetsim.pipelines.layer_cuts import Cuts
    from hetsim.pipelines.partition import EqualDevices, NetworkLevel, PipelinePartition
    from hetsim.planning.training_plans import PlanCandidate
    from hetsim.results.panels import Picture

MAX_DEVICES = 64  # more devices on a level are refused: time grows with their square
MAX_UNLIKE = 32  # more unlike devices in all are refused: time grows with their third power


@click.command(short_help="Cut a network into the stages of a pipeline.")
@click.argument("profile", metavar="PROFILE", type=PATH)
@click.option("--level", "levels", multiple=True, metavar="COUNT@RATE",
              help="Equal devices, or groups of the level before, and what joins them: 4@10GB/s (repeatable, from "
                   "inner to outer).")  # fmt: skip
@click.option("--device", "devices", multiple=True, metavar="NAME[,KEY=VALUE...]",
              help="Unlike devices (repeatable): count, speed (relative to the profile; 1), link (rate to other "
                   "groups), inside (rate between those of the group), memory (of each), as in "
                   "npu,speed=0.4,link=2GB/s")  # fmt: skip
@click.option("--memory", metavar="SIZE", help="Memory of each device, such as 16GB. For --level.")
@click.option("--inference", is_flag=True, help="Forward passes only; activations are sent once. For --device.")
@click.option("--deadline", metavar="TIME", help="Longest latency of an item, such as 30ms. For --device.")
@click.option("--keep-order", is_flag=True, help="Keep the order of devices as given. For --device.")
@click.option("--no-replication", is_flag=True, help="Use one device per stage.")
@click.option("--ignore-activations", is_flag=True, help="Ignore the time of sending activations. For --level.")
@click.option("--picture", type=PICTURE, metavar="PNG",
              help="Draw there how micro-batches go through the stages. For one --level, or --device.")
@TELLING
def partition(
    profile: Path, levels: tuple[str, ...], devices: tuple[str, ...], memory: str | None, inference: bool,
    deadline: str | None, keep_order: bool, no_replication: bool, ignore_activations: bool, picture: Path | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Find the pipeline stages with the highest throughput.

    PROFILE has the measured layers of a network: a profile of PipeDream, or CSV with the columns layer, activations,
    weights, forward, backward, and seconds.DEVICE for times measured on one type of device.

    --level runs PipeDream's program for equal devices and uses all of them; --device runs its form for unlike devices
    and compares the result with the whole network on each single device. A stage that needs more memory than its
    devices have is not a candidate.
    """
    from hetsim.pipelines.partition import pipeline_partition, seconds_on, unlike_partition
    from hetsim.workload import measurements

    if bool(levels) == bool(devices):
        raise click.UsageError("either --level (equal devices) or --device (devices of different types) must be given")
    others = {"--inference": inference, "--deadline": deadline is not None, "--keep-order": keep_order}
    wrong = [name for name, given in others.items() if given] if levels else []
    only_levels = {"--ignore-activations": ignore_activations, "--memory": memory is not None}
    wrong += [name for name, given in only_levels.items() if given] if devices else []
    if wrong:
        raise click.UsageError(f"{wrong[0]} needs {'--device' if levels else '--level'}")
    if picture is not None and len(levels) > 1:
        raise click.UsageError("--picture needs one --level, or --device")
    limit = math.inf if deadline is None else _quantity("--deadline", deadline, "time")
    room = math.inf if memory is None else _quantity("--memory", memory, "size")
    joined = [_level(text) for text in levels]
    groups = _groups(devices)
    cuts = measurements.reader("layers")(profile)
    _known(cuts, groups, profile)
    if joined:
        plan = pipeline_partition(
            cuts, joined, activations=not ignore_activations, replication=not no_replication, memory=room
        )  # fmt: skip
        alone: list[tuple[str, float]] = [("one device", math.fsum(one.seconds for one in cuts.layers))]
    else:
        plan = unlike_partition(
            cuts, groups, inference=inference, replication=not no_replication, deadline=limit, reorder=not keep_order
        )  # fmt: skip
        alone = [(one.name, math.fsum(seconds_on(layer, one, inference) for layer in cuts.layers)) for one in groups]
    console.result(as_json, lambda: {
        "profile": str(profile), "seconds": plan.seconds, "latency": plan.latency,
        THROUGHPUT: 1 / plan.seconds if plan.seconds else None, "alone": dict(alone),
        "stages": _rows(cuts, plan, inference),
    }, lambda: _partition_text(profile, cuts, plan, alone=alone, inference=inference))  # fmt: skip
    drawn = partial(_drawn_partition, profile, cuts, plan, groups=groups, levels=joined, inference=inference)
    console.picture(picture, lambda: drawn(ignore_activations=ignore_activations), quiet)


def _drawn_partition(
    profile: Path, cuts: Cuts, found: PipelinePartition, groups: list[EqualDevices], levels: list[NetworkLevel],
    inference: bool, ignore_activations: bool,
) -> Picture:  # fmt: skip
    from hetsim.pipelines.partition import EqualDevices, StageWay, slower_link
    from hetsim.pipelines.schedule import partition_schedule
    from hetsim.planning.picture import pipeline
    devices = {one.name: one for one in groups}
    if levels:
        devices = {"": EqualDevices("", levels[0].count, inside=levels[0].rate, link=levels[0].rate)}
    number = max(8, 2 * sum(stage.replicas for stage in found.stages))
    schedule = partition_schedule(
        cuts, found, devices, inference=inference, micro_batches=number,
        ways=(lambda a, b: StageWay()) if ignore_activations else slower_link,
    )  # fmt: skip
    return pipeline(replace(schedule, name=f"{profile.name}, an item every {terminal.seconds(found.seconds)}"))


def _parsed(option: str, text: str, read: Callable[[str], float]) -> float:
    try:
        value = read(text)
        if not math.isfinite(value):
            raise ValueError(f'must be a finite number; got "{text}"')
        if value <= 0:
            raise ValueError(f'must be above 0; got "{text}"')
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None
    return value


def _quantity(option: str, text: str, kind: str) -> float:
    from hetsim.model import units

    table, example = {
        "time": (units.TIME, "30 ms"), "rate": (units.BANDWIDTH, "12 GB/s"), "size": (units.SIZE, "16 GB"),
    }[kind]  # fmt: skip
    return _parsed(option, text, lambda text: units.parse(text, table, example))


def _count(option: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DEVICES:
        raise click.UsageError(f'{option} must be a whole number from 1 to {MAX_DEVICES}; got "{text}"')
    return int(text)


def _level(text: str) -> NetworkLevel:
    from hetsim.pipelines.partition import NetworkLevel

    count, _, rate = text.partition("@")
    if not rate:
        raise click.UsageError(f'--level must be COUNT@RATE such as 4@10GB/s; got "{text}"')
    return NetworkLevel(_count("--level", count.strip()), _quantity("--level", rate.strip(), "rate"))


def _groups(texts: tuple[str, ...]) -> list[EqualDevices]:
    from hetsim.pipelines.partition import EqualDevices

    rate, size = (partial(_quantity, kind=kind) for kind in ("rate", "size"))
    readers: dict[str, Callable[[str, str], float]] = {
        "count": _count, "speed": partial(_parsed, read=float), "link": rate, "inside": rate, "memory": size,
    }  # fmt: skip
    groups: list[EqualDevices] = []
    for text in texts:
        name, *rest = (part.strip() for part in text.split(","))
        values: dict[str, Any] = {}
        for part in rest:
            key, _, value = (piece.strip() for piece in part.partition("="))
            where = f"--device {name}: {key}"
            if key in values:
                raise click.UsageError(f"{where} is given twice")
            if key not in readers:
                keys = f"{suggestion(key, readers)}; there are {', '.join(readers)}"
                raise click.UsageError(f'--device {name}: unknown key "{key}"{keys}')
            values[key] = readers[key](where, value)
        if not name or any(one.name == name for one in groups):
            raise click.UsageError(f'--device: "{name}" is given twice' if name else "--device must begin with a name")
        groups.append(EqualDevices(name, **values))
    devices = sum(one.count for one in groups)
    if devices > MAX_UNLIKE:
        raise click.UsageError(f"--device must give at most {MAX_UNLIKE} devices in all; got {devices}")
    return groups


def _known(cuts: Cuts, groups: list[EqualDevices], profile: Path) -> None:
    measured = sorted(cuts.layers[0].on or {})
    if not measured or any(one.seconds for one in cuts.layers):
        return
    columns = f"there are columns for {', '.join(measured)}"
    problems = [f'no times for the device "{group.name}"; {columns}' for group in groups if group.name not in measured]
    if not groups:
        problems = [f"no forward and backward times, which --level needs; {columns}"]
    if problems:
        raise ScenarioError([Problem(one, "", str(profile), 1) for one in problems])


def _rows(cuts: Cuts, found: PipelinePartition, inference: bool) -> list[dict[str, Any]]:
    from hetsim.pipelines.partition import memory_of

    rows = []
    memory = memory_of(cuts, found, inference)
    for number, stage in enumerate(found.stages, 1):
        layers = cuts.between(stage.first, stage.last)
        rows.append(
            {
                "stage": number, **({"device": stage.device} if stage.device else {}), "replicas": stage.replicas,
                "layers": len(layers), "first": layers[0].name, "last": layers[-1].name,
                "weights_bytes": math.fsum(one.weights for one in layers), "memory_bytes": memory[number - 1],
                "sent_bytes": float(cuts.crossing[stage.last]) if number < len(found.stages) else 0.0,
            }
        )  # fmt: skip
    return rows


def _partition_text(
    profile: Path, cuts: Cuts, found: PipelinePartition, alone: list[tuple[str, float]], inference: bool
) -> list[str]:  # fmt: skip
    rows = _rows(cuts, found, inference)
    titles = {"weights_bytes": "weights", "memory_bytes": "memory", "sent_bytes": "sent"}
    table = [[titles.get(key, key) for key in rows[0]]]
    for row in rows:
        cells = {**row, **{key: terminal.data_size(row[key]) for key in titles}}
        table.append([str(cell)[:40] for cell in cells.values()])
    devices = sum(stage.replicas for stage in found.stages)
    rate = f", {1 / found.seconds:.4g} a second" if found.seconds else ""
    latency = "" if found.latency is None else f"; latency {terminal.seconds(found.latency)}"
    lines = [
        f"{profile.name}: {len(found.stages)} stage{'s' * (len(found.stages) > 1)} on {devices} "
        f"device{'s' * (devices > 1)}, one item every {terminal.seconds(found.seconds)}{rate}{latency}",
        "", *terminal.table(table), "",
    ]  # fmt: skip
    for name, seconds in alone:
        gain = f", {seconds / found.seconds:.3g} times as long" if found.seconds else ""
        lines.append(f"all layers on {name}: one item every {terminal.seconds(seconds)}{gain}")
    return lines


MAX_GPUS = 1_000_000


@click.command(short_help="Find the best degrees of parallel training for a cluster.")
@SCENARIO
@SET
@click.option("--entry", metavar="NAME", help="The workload entry or class, if several have training.")
@click.option("--gpus", metavar="N[,N...]",
              help="Numbers of GPUs to compare, such as 8,16,32. Default: those of the entry.")
@click.option("--rank", type=click.Choice(["time", "gpu_hours"]), default="time", show_default=True,
              help="Rank by the time of a step, or by GPU-hours.")
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
    bytes that a GPU sends to other nodes per step. Nothing is run. A job is on one type of GPU, in the partition that
    its workload entry names. Candidates that exceed the GPU memory are not listed but counted; for the fastest of them,
    the needed and the available memory are shown. --json has all candidates.
    """
    from hetsim.planning.training_plans import training_plans
    from hetsim.scenario.scenario import load

    loaded = load(scenario, overrides)
    plans = training_plans(loaded, entry, gpus=None if gpus is None else _numbers(gpus), rank=rank)
    console.result(as_json, lambda: {"scenario": loaded.name, "candidates": [_figures(one) for one in plans]},
                   lambda: _training_text(loaded.name, plans, top))  # fmt: skip
    console.notes(loaded.notes)
    staged = next((one for one in plans if one.fits and one.pipeline is not None), None)
    if picture is not None and staged is None:
        raise UsageError("--picture: no candidate that fits has more than one stage, so there is no pipeline to draw")
    if staged is not None:
        console.picture(picture, lambda: _drawn_training(loaded.name, staged), quiet)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not part.isdecimal() or not 1 <= int(part) <= MAX_GPUS), None)
    if wrong is not None:
        raise click.UsageError(f'--gpus must be whole numbers from 1 to {MAX_GPUS:,}; got "{wrong}"')
    return [int(part) for part in parts]


def _drawn_training(name: str, one: PlanCandidate) -> Picture:
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


def _training_text(name: str, found: list[PlanCandidate], top: int) -> list[str]:
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
    rows_left = dict.fromkeys(sizes, -(-top // len(sizes)))
    shown = []
    for one in fitting:
        if rows_left[one.plan.gpus]:
            rows_left[one.plan.gpus] -= 1
            shown.append(one)
    return shown


ROWS = 20


class Plan(click.Command):
    """The command `hetsim plan SCENARIO`, with the subcommands partition and training."""

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
    """Show the plan of a scenario's static policy without running it.

    Start and finish are the planner's own timetable.  The policy `replay` follows a saved plan:
    `hetsim run FILE --set policy.scheduler='{name: replay, plan: plan.csv}'`.

    Two subcommands plan other things: `hetsim plan partition` and `hetsim plan training`.
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
