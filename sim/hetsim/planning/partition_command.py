"""`hetsim plan partition`: where to cut a network into the stages of a pipeline."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetsim.cli import console
from hetsim.cli.options import PATH, PICTURE, TELLING
from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.report import terminal
from hetsim.results.declared import THROUGHPUT

if TYPE_CHECKING:
    from hetsim.pipelines.layer_cuts import Cuts
    from hetsim.pipelines.partition import EqualDevices, NetworkLevel, PipelinePartition
    from hetsim.results.panels import Picture

MAX_DEVICES = 64
"""More devices on a level are refused: time grows with their square."""
MAX_UNLIKE = 32
"""More unlike devices, in all groups together, are refused: time grows with their third power."""


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
@click.option("--inference", is_flag=True, help="Forward passes alone; activations are sent once. For --device.")
@click.option("--deadline", metavar="TIME", help="Longest latency of an item, such as 30ms. For --device.")
@click.option("--keep-order", is_flag=True, help="The devices follow each other as given. For --device.")
@click.option("--no-replication", is_flag=True, help="One device a stage.")
@click.option("--ignore-activations", is_flag=True, help="Sending activations takes no time. For --level.")
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
    weights, forward, backward, and seconds.DEVICE for what is measured on each type of device.

    With --level PipeDream's program for equal devices, all of which are used; with --device its form for unlike ones,
    compared with all layers on each device alone. A stage that needs more memory than its devices have is no
    candidate.
    """
    from hetsim.pipelines.partition import pipeline_partition, seconds_on, unlike_partition
    from hetsim.workload import measurements

    if bool(levels) == bool(devices):
        raise click.UsageError("give either --level (equal devices) or --device (unlike ones)")
    others = {"--inference": inference, "--deadline": deadline is not None, "--keep-order": keep_order}
    wrong = [name for name, given in others.items() if given] if levels else []
    only_levels = {"--ignore-activations": ignore_activations, "--memory": memory is not None}
    wrong += [name for name, given in only_levels.items() if given] if devices else []
    if wrong:
        raise click.UsageError(f"{wrong[0]} belongs to {'--device' if levels else '--level'}")
    if picture is not None and len(levels) > 1:
        raise click.UsageError("--picture draws the stages on one --level, or on --device")
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
    }, lambda: _text(profile, cuts, plan, alone=alone, inference=inference))  # fmt: skip
    drawn = partial(_drawn, profile, cuts, plan, groups=groups, levels=joined, inference=inference)
    console.picture(picture, lambda: drawn(ignore_activations=ignore_activations), quiet)


def _drawn(
    profile: Path, cuts: Cuts, found: PipelinePartition, groups: list[EqualDevices], levels: list[NetworkLevel],
    inference: bool, ignore_activations: bool,
) -> Picture:  # fmt: skip
    """Draw enough micro-batches in the stages to show the pipeline full."""
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
            raise ValueError(f'"{text}" is not a finite number')
        if value <= 0:
            raise ValueError(f'"{text}" is not above 0')
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
        raise click.UsageError(f'{option}: expected a whole number from 1 to {MAX_DEVICES}, not "{text}"')
    return int(text)


def _level(text: str) -> NetworkLevel:
    from hetsim.pipelines.partition import NetworkLevel

    count, _, rate = text.partition("@")
    if not rate:
        raise click.UsageError(f'--level: expected COUNT@RATE such as 4@10GB/s, not "{text}"')
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
            raise click.UsageError(f'--device: "{name}" is given twice' if name else "--device: a name comes first")
        groups.append(EqualDevices(name, **values))
    devices = sum(one.count for one in groups)
    if devices > MAX_UNLIKE:
        raise click.UsageError(f"--device: {devices} devices in all are more than {MAX_UNLIKE}; join some as one")
    return groups


def _known(cuts: Cuts, groups: list[EqualDevices], profile: Path) -> None:
    """Raise ScenarioError for devices that the profile has no times of."""
    measured = sorted(cuts.layers[0].on or {})
    if not measured or any(one.seconds for one in cuts.layers):
        return
    columns = f"there are columns for {', '.join(measured)}"
    problems = [f'no times for the device "{group.name}"; {columns}' for group in groups if group.name not in measured]
    if not groups:
        problems = [f"no forward or backward times, which equal devices need; {columns}"]
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


def _text(
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
