"""Streams of items through the stages of a pipeline: one task per item and stage.

All items of one arrival form one request, and results count requests (`hetsim.model.tasks.StagedRequests`).

The plan is that of `hetsim.pipelines.partition` for the groups of equal devices of the cluster.  A result moves from
device to device as in the engine: down to the host, over the network, up to the next device, one hop after another.
Each stage runs on the nodes that the plan assigns.  Weights are on the devices from the start.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from hetsim.errors import NothingMeets, ScenarioError, UsageError, suggestion
from hetsim.model.cluster import Cluster, Node, Partition
from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType, Link
from hetsim.pipelines import partition as theory
from hetsim.pipelines.layer_cuts import Cuts
from hetsim.pipelines.partition import EqualDevices, PipelineStage, StageWay, seconds_on
from hetsim.scenario.building.streams import NO_STOPPING, Context, Stages, TaskStream, unfit, users_of
from hetsim.scenario.file.document import Path_
from hetsim.scenario.schema.demand import Demand, Factor
from hetsim.scenario.schema.workload import MAX_TASKS, PipelineSpec, WorkloadEntry
from hetsim.workload import measurements

MAX_DEVICES = 32  # more devices are refused: the time to plan grows with their third power


ROUNDING = 1e-12  # fraction of a deadline by which a plan may exceed it (rounding)


@dataclass(frozen=True)
class _Place:
    """Equal devices that stages may use: those of one node, or one on each of `nodes`."""

    group: EqualDevices
    type: DeviceType
    nodes: tuple[Node, ...]


def pipeline_stream(entry: WorkloadEntry, name: str, path: Path_, arrival: np.ndarray, context: Context) -> TaskStream:
    spec = entry.pipeline
    assert spec is not None
    where = (*path, "pipeline")
    cuts = measurements.reader("layers")(spec.profile)
    places = _places(spec, cuts, where, context)
    plan = _plan(entry, spec, places, where=where, context=context)
    stages = plan.stages
    context.notes.append(f"{name}: {_told(cuts, plan)}")
    tries = 1 if entry.clients is None else entry.clients.attempts
    rows = len(arrival) * spec.items * sum(tries ** (k + 1) for k in range(len(stages)))
    if rows > MAX_TASKS:
        raise context.fail(where, f"a stream must have at most {MAX_TASKS:,} tasks (items × stages); got {rows:.3g}")
    by_name = {one.group.name: one for one in places}
    used: dict[str, int] = {}
    shapes, seconds = [], []
    for number, stage in enumerate(stages, 1):
        place = by_name[stage.device]
        mode_partition = _nodes_of(
            place, stage, used, name=f"{name} stage {number}", cluster=context.cluster, cores=bool(entry.cpus)
        )
        mode = context.modes.mode(place.type, Demand.model_construct(cpus=entry.cpus), partition=mode_partition)
        if not context.modes.fits(mode):
            raise ScenarioError(unfit(context, where, rows, first=f"a stage of {name}", refused=[mode], nodes_by=""))
        shapes.append(context.modes.shape([mode], NO_STOPPING, True))
        seconds.append(_seconds(cuts, stage, place.group, spec))
    return _stream(
        entry, spec, name, path, arrival=arrival, cuts=cuts, plan=plan, shapes=shapes, seconds=seconds, context=context
    )


def _stream(
    entry: WorkloadEntry, spec: PipelineSpec, name: str, path: Path_, arrival: np.ndarray, cuts: Cuts,
    plan: theory.PipelinePartition, shapes: Sequence[int], seconds: Sequence[float], context: Context,
) -> TaskStream:  # fmt: skip
    count, each = len(plan.stages), spec.items
    stage = np.tile(np.arange(count), len(arrival) * each)
    stream = TaskStream(
        name,
        path,
        np.repeat(arrival, each * count),
        shape=np.asarray(shapes, dtype=np.int32)[stage],
        time=np.asarray(seconds)[stage][:, np.newaxis],
    )
    stream.predecessors = [(row - 1,) if row % count else () for row in range(len(stage))]
    numbers = [f"{k}" if each == 1 else f"{k}.{i}" for k in range(len(arrival)) for i in range(each)]
    stream.id = np.array([f"{item}/{s + 1}" for item in numbers for s in range(count)], dtype=object)
    stream.classes = [entry.class_ or name]
    rng = context.random.stream
    codes, stream.users = users_of(entry, len(arrival), rng("users", name))
    stream.user_code = None if codes is None else np.repeat(codes, each * count)
    for key in ("priority", "weight"):
        if (value := getattr(entry, key)) is not None:
            setattr(stream, key, np.full(len(stage), float(value)))
    if (limit := entry.limit) is not None:
        due = limit.factor * _alone(plan, seconds, each) if isinstance(limit, Factor) else float(limit)
        stream.deadline = np.full(len(stage), due)
    ways = 2 if spec.training else 1
    sent = [ways * float(cuts.crossing[one.last]) for one in plan.stages]
    sent[-1] = 0.0 if spec.training else float(cuts.crossing[-1])
    stream.bytes_out = np.rint(np.asarray(sent))[stage]
    if entry.bytes_out is not None:
        stream.bytes_out[stage == count - 1] = np.repeat(
            np.rint(entry.bytes_out.sample(rng("bytes_out", name), len(arrival))), each
        )
    stream.bytes_in = np.zeros(len(stage))
    if entry.bytes_in is not None:
        drawn = np.rint(entry.bytes_in.sample(rng("bytes_in", name), len(arrival)))
        stream.bytes_in[stage == 0] = np.repeat(drawn, each)
    if entry.clients is not None:
        return _as_calls(stream, stage, np.rint(np.asarray(sent))[stage], count)
    alone = np.full(len(arrival), _alone(plan, seconds, each))
    ends = context.modes.shapes[shapes[0]].modes[0].type.link, context.modes.shapes[shapes[-1]].modes[0].type.link
    for link, up, column in ((ends[0], True, stream.bytes_in), (ends[1], False, stream.bytes_out)):
        size = column[stage == (0 if up else count - 1)][::each]
        rate = link.upload if up or link.duplex == "half" else link.download
        alone += np.where(size > 0, link.latency + size / rate, 0.0)
    stream.stages = Stages(
        first=np.repeat(np.arange(len(arrival)) * each * count, each * count),
        stage=stage.astype(np.int32),
        names=[f"{name} stage {s + 1}" for s in range(count)],
        id=np.repeat(np.array([f"{k}" for k in range(len(arrival))], dtype=object), each * count),
        alone=np.repeat(alone, each * count),
    )
    if any(sent[:-1]) and any(context.modes.shapes[shape].modes[0].type.streams < 2 for shape in shapes):
        text = "with one stream a device cannot transfer while it computes; streams: 2 overlaps both"
        context.notes.append(f"{name}: {text}")
    return stream


def _as_calls(stream: TaskStream, stage: np.ndarray, sent: np.ndarray, count: int) -> TaskStream:
    """Turn `count` stages into a call chain; stage, sent: stage and bytes by task."""
    assert stream.bytes_in is not None
    later = stage > 0
    stream.bytes_in[later] = sent[:-1][later[1:]]  # no item of the run: each attempt has it sent again
    stream.predecessors, stream.depth, stream.class_code = None, count, stage.astype(np.int32)
    stream.classes = [f"{stream.classes[0]} stage {k + 1}" for k in range(count)]
    return stream


def _promised(plan: theory.PipelinePartition, items: int) -> float:
    """Planned seconds to finish all items, if nothing else uses the devices."""
    assert plan.latency is not None
    return plan.latency + (items - 1) * plan.seconds


def _alone(plan: theory.PipelinePartition, seconds: Sequence[float], items: int) -> float:
    """Return the minimum seconds of a plan for all items, if its devices are idle."""
    assert plan.latency is not None
    rounds = [(-(-items // stage.replicas) - 1) * time for stage, time in zip(plan.stages, seconds, strict=True)]
    sent = max(0, items - max(stage.replicas for stage in plan.stages)) * plan.seconds
    return plan.latency + max(*rounds, sent)


# The plan ---------------------------------------------------------------------------------------------------------


def _plan(
    entry: WorkloadEntry, spec: PipelineSpec, places: Sequence[_Place], where: Path_, context: Context
) -> theory.PipelinePartition:
    devices = sum(place.group.count for place in places)
    if devices > MAX_DEVICES:
        text = f"a pipeline must have at most {MAX_DEVICES} devices; got {devices}: select types with devices"
        raise context.fail(where, text)
    limit = entry.limit
    due = math.inf if limit is None or isinstance(limit, Factor) or spec.training else float(limit)
    ways = tuple(((a.group.name, b.group.name), _way(a, b)) for a in places for b in places)
    about = spec.profile.stat()

    def planned(latency: float) -> theory.PipelinePartition:
        return _planned(
            spec.profile, about.st_mtime_ns, about.st_size, groups=tuple(place.group for place in places), ways=ways,
            training=spec.training, replication=spec.replication, due=latency,
        )  # fmt: skip

    try:
        plan = planned(due)
    except (NothingMeets, UsageError) as error:
        raise context.fail(where, str(error)) from None
    # No plan that is in time has less between two items than the one found, which says what is left for the first.
    while _promised(plan, spec.items) > due * (1 + ROUNDING):
        try:
            plan = planned(due - (spec.items - 1) * plan.seconds)
        except (NothingMeets, UsageError):
            each = f"with an item every {plan.seconds:.4g} s all take {_promised(plan, spec.items):.4g} s"
            text = f"no plan completes {spec.items:,} items within {due:.4g} s: {each}; allow more time or fewer items"
            raise context.fail(where, text) from None
    return plan


@lru_cache(maxsize=64)
def _planned(
    profile: Path, changed: int, size: int, groups: tuple[EqualDevices, ...],
    ways: tuple[tuple[tuple[str, str], StageWay], ...],
    training: bool, replication: bool, due: float,
) -> theory.PipelinePartition:  # fmt: skip
    way_of = dict(ways)
    return theory.unlike_partition(
        measurements.reader("layers")(profile), groups, inference=not training, replication=replication, deadline=due,
        ways=lambda a, b: way_of[a.name, b.name],
    )  # fmt: skip


def _places(spec: PipelineSpec, cuts: Cuts, where: Path_, context: Context) -> list[_Place]:
    """Return groups of equal accelerators: in a node, or on nodes that have just one."""
    measured = cuts.layers[0].on or {}
    general = any(one.seconds for one in cuts.layers)
    types = [one for one in context.cluster.types.values() if one.kind != "cpu"]
    for number, wanted in enumerate(spec.devices or ()):
        if not any(wanted in (one.name, one.kind) for one in types):
            near = suggestion(wanted, [one.name for one in types])
            raise context.fail((*where, "devices", number), f'the cluster has no accelerator "{wanted}"{near}')
    if spec.devices is not None:
        types = [one for one in types if one.name in spec.devices or one.kind in spec.devices]
    timed = [one for one in types if general or one.name in measured]
    missing = [one.name for one in types if one not in timed]
    if missing and (spec.devices is not None or not timed):
        columns = f"it has columns for {', '.join(sorted(measured))}"
        raise context.fail((*where, "profile"), f"the profile has no times for {' and '.join(missing)}; {columns}")
    places = [place for one in timed for place in _groups(one, one.name in measured, context.cluster)]
    if not places:
        raise context.fail(where, "the cluster has no accelerators, on which the stages of a pipeline run")
    return places


def _groups(kind: DeviceType, measured: bool, cluster: Cluster) -> list[_Place]:
    alike: dict[tuple[int, Link, Link, int], list[Node]] = {}
    for node in cluster.nodes:
        count = sum(device.type is kind for device in node.accelerators)
        if count:
            key = (count, node.spec.network, node.spec.switch, node.index if count > 1 else -1)
            alike.setdefault(key, []).append(node)
    equal_devices = []
    for (count, *_), members in alike.items():
        first = members[0]
        name = kind.name if len(alike) == 1 else f"{kind.name} of {first.name}"
        number = len(members) if count == 1 else count
        link = first.spec.nvlink if count != 1 else first.spec.network
        inside = min(link.upload, link.download)
        if count != 1 and math.isinf(inside):
            inside = min(_hop(_device(first, kind), up) for up in (True, False))
        group = EqualDevices(
            name, number, 1.0 if measured else kind.speed, inside=inside,
            memory=math.inf if kind.memory is None else kind.memory, measured=kind.name,
        )  # fmt: skip
        equal_devices.append(_Place(group, kind, tuple(members)))
    return equal_devices


def _device(node: Node, kind: DeviceType) -> Device:
    return next(device for device in node.accelerators if device.type is kind)


def _hop(device: Device, up: bool, switch: Link | None = None) -> float:
    link = device.type.link
    rate = link.upload if up else link.download
    return rate if switch is None or device.switch is None else min(rate, switch.upload if up else switch.download)


def _way(a: _Place, b: _Place) -> StageWay:
    first, last = a.nodes[0], b.nodes[0]
    source, target = _device(first, a.type), _device(last, b.type)
    hops = [_hop(source, False, first.spec.switch), _hop(target, True, last.spec.switch)]
    latency = 0.0
    for device, node in ((source, first), (target, last)):
        latency += device.type.link.latency + (0.0 if device.switch is None else node.spec.switch.latency)
    together = math.inf
    if not (len(a.nodes) == len(b.nodes) == 1 and first is last):
        hops.append(min(first.spec.network.upload, last.spec.network.download))
        latency += first.spec.network.latency + last.spec.network.latency
        if len(a.nodes) == 1 or len(b.nodes) == 1:  # its devices share the network of their node
            together = hops[-1]
    slowness = sum(1 / rate for rate in hops)
    return StageWay(1 / slowness if slowness else math.inf, latency, together)


def _nodes_of(
    place: _Place, stage: PipelineStage, used: dict[str, int], name: str, cluster: Cluster, cores: bool
) -> Partition | None:  # fmt: skip
    """Return a partition with the nodes of a pipeline's stage; None if it may use all.

    The partition binds tasks to these nodes: in a strict order, a task whose stage has no room then does not block
    tasks of stages on other nodes.  `cores`: stages also need CPU cores, so stages on the same nodes compete.
    """
    nodes = place.nodes
    if len(nodes) > 1:
        begin = used.get(place.group.name, 0)
        nodes = nodes[begin : begin + stage.replicas]
        used[place.group.name] = begin + stage.replicas
    mask = sum(1 << node.index for node in nodes)
    claims = cluster.claims(mask, None if cores else place.type)
    return None if claims == cluster.claims((1 << len(cluster.nodes)) - 1) else Partition(name, mask, claims=claims)


def _seconds(cuts: Cuts, stage: PipelineStage, group: EqualDevices, spec: PipelineSpec) -> float:
    layers = cuts.between(stage.first, stage.last)
    seconds = math.fsum(seconds_on(one, group, not spec.training) for one in layers)
    if spec.training and stage.replicas > 1:
        weights = math.fsum(one.weights for one in layers)
        seconds += 4 * (stage.replicas - 1) * weights / (group.inside * stage.replicas)
    return seconds


def _told(cuts: Cuts, plan: theory.PipelinePartition) -> str:
    parts = []
    for stage in plan.stages:
        layers = cuts.between(stage.first, stage.last)
        replicas = f"{stage.replicas} × " if stage.replicas > 1 else ""
        last = f" to {layers[-1].name}" if layers[1:] else ""
        parts.append(f"{replicas}{stage.device} has {layers[0].name}{last}")
    assert plan.latency is not None
    return f"{', '.join(parts)}; an item every {plan.seconds:.4g} s, latency {plan.latency:.4g} s"
