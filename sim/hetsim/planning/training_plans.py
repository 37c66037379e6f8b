"""All ways to divide a training among its GPUs: degrees, schedule, micro-batch.

Step time and memory of each way are computed by the formulas of the simulator (`hetsim.formulas.training`), for nodes
in as few racks as possible; nothing is run.
GPipe is not among the candidates: it takes as much time as 1F1B and more memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from hetsim.errors import KeyProblem, Problem, ScenarioError, UsageError, suggestion
from hetsim.formulas import training as formulas
from hetsim.model.cluster import Cluster, Node
from hetsim.model.device_type import DeviceType
from hetsim.model.exchange import Exchange, Phase, StepPipeline
from hetsim.pipelines.schedule import PipelineSchedule, step_schedule
from hetsim.scenario.building.cluster import build_cluster
from hetsim.scenario.building.drawn_modes import machine_of, too_large
from hetsim.scenario.building.site import default_of, unknown_partition, with_partitions
from hetsim.scenario.building.streams import peak_of
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.readers import TRAINING, not_understood
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.demand import Demand
from hetsim.scenario.schema.training import TrainingSpec

Rank = Literal["time", "gpu_hours"]
ONE_TYPE = "a job uses one type of GPU (hetsim plan partition cuts a measured network over several types)"

MAX_CHUNKS = 8  # maximum number of chunks tried for an interleaved pipeline


@dataclass(frozen=True)
class PlanCandidate:
    """A parallel plan on one GPU type; `room`: memory of one GPU in bytes, if limited."""

    device: str
    plan: formulas.ParallelPlan
    step: formulas.StepSeconds
    state: float
    kept: float
    room: int | None
    steps: float  # steps of a task, on average
    pipeline: StepPipeline | None

    @property
    def fits(self) -> bool:
        return self.room is None or self.state + self.kept <= self.room

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all steps of a task."""
        return self.steps * self.step.seconds * self.plan.gpus / 3600

    @property
    def refusal(self) -> str:
        """Message with the needed and available memory of a candidate that does not fit."""
        return too_large(self.state, self.kept, self.room or 0, self.device)

    def schedule(self) -> PipelineSchedule:
        """Return the schedule of a step's micro-batches; raise UsageError for one stage."""
        if self.pipeline is None:
            raise UsageError("the plan must have at least two stages to be drawn; got one")
        seconds = {name: getattr(self.step, name) for name in self.pipeline.phases}
        return step_schedule(self.pipeline, seconds, self.step.seconds)


def training_plans(
    scenario: Scenario, entry: str | None = None, *, gpus: Sequence[int] | None = None, rank: Rank = "time"
) -> list[PlanCandidate]:
    """Return all candidates for an entry with `training:`, sorted by `rank`.

    rank: sort by the time of a step, or by GPU-hours; candidates that fit into memory precede the others.  The model,
    batch, recomputation, sharding and overlap remain those of the entry.  `gpus`: numbers of GPUs to compare; default:
    those of the entry's nodes (or of each of its `widths`).  A job is on nodes of one GPU type, in the partition of the
    entry.  Raise ScenarioError if no entry or class has `training:` (or this name), no GPU type has a known peak, there
    are too few nodes, or no plan fits into memory.
    """
    path, chosen = _entry(scenario, entry)
    where = (*path, "training")
    document = scenario.document
    for one in not_understood(scenario, TRAINING, int(path[1])):
        note = f"{one}; times of steps are those without it"
        scenario.notes += [note] if note not in scenario.notes else []
    cluster = with_partitions(build_cluster(scenario.model.cluster, document), scenario.model.site, document)
    nodes = _allowed(cluster, chosen, path, document)
    training = chosen.training
    assert training is not None
    candidates: list[PlanCandidate] = []
    refused: dict[str, None] = {}
    for wanted, each in _widths(chosen, gpus):
        before = len(candidates)
        problems: list[str] = []
        for device in cluster.types.values():
            wished = chosen.devices is None or device.name in chosen.devices or device.kind in chosen.devices
            if not wished or device.kind == "cpu":
                continue
            of_type, problem = _on(cluster, nodes, device, wanted=wanted, each=each, training=training)
            candidates += of_type
            problems += [] if problem is None else [problem]
        if len(candidates) == before:
            layers = training.transformer().layers
            text = f"no degrees divide {wanted * each} GPUs, {layers} layers and a batch of {training.batch}"
            refused.update(dict.fromkeys(problems or [text]))
            several = len(problems) > 1 and not any("is unknown" in one for one in problems)
            refused.update(dict.fromkeys([ONE_TYPE] if several else []))
    if refused:
        raise ScenarioError(document.problem(where, "; ".join(refused)))
    candidates.sort(key=lambda one: (not one.fits, *_ranked(one, rank), one.state + one.kept))
    if not candidates[0].fits:
        smallest = min(candidates, key=lambda one: one.state + one.kept)
        plan = smallest.plan
        degrees = f"with tensor {plan.tensor}, pipeline {plan.pipeline}, data {plan.data}"
        text = f"no candidate fits: {degrees}, which needs the least memory, {smallest.refusal}"
        raise ScenarioError(document.problem(where, text))
    return candidates


def _ranked(one: PlanCandidate, rank: Rank) -> tuple[float, float]:
    return (one.step.seconds, one.gpu_hours) if rank == "time" else (one.gpu_hours, one.step.seconds)


def _widths(entry: Demand, gpus: Sequence[int] | None) -> list[tuple[int, int]]:
    each = round(entry.used("gpus"))
    if gpus is None:
        assert entry.training is not None
        return [(nodes, each) for nodes in entry.training.widths or [entry.used("nodes")]]
    wrong = [number for number in gpus if number > each and number % each]
    if wrong:
        raise UsageError(f"the number of GPUs must be a multiple of {each}, the GPUs of one node; got {wrong[0]}")
    return [(max(1, number // each), min(number, each)) for number in dict.fromkeys(gpus)]


def _allowed(cluster: Cluster, entry: Demand, path: Path_, document: Document) -> list[Node]:
    if (given := entry.partition) is None:
        default = default_of(cluster)
    elif not isinstance(given, str) or given not in cluster.partitions:
        text = unknown_partition(given, cluster) if isinstance(given, str) else "must be a name here"
        raise ScenarioError(document.problem((*path, "partition"), text))
    else:
        default = cluster.partitions[given]
    return [node for node in cluster.nodes if default is None or default.mask >> node.index & 1]


def _on(
    cluster: Cluster, allowed: list[Node], device: DeviceType, wanted: int, each: int, training: TrainingSpec
) -> tuple[list[PlanCandidate], str | None]:
    if (peak := peak_of(device)) is None:
        return [], f"the speed of {device.name} is unknown; give it the key peak under cluster"
    racks: dict[str | None, list[Node]] = {}
    for node in allowed:
        if sum(one.type is device for one in node.accelerators) >= each:
            racks.setdefault(node.spec.rack, []).append(node)
    nodes = [node for rack in sorted(racks.values(), key=len, reverse=True) for node in rack]  # the fullest rack first
    if len(nodes) < wanted:
        needed = f"{wanted} node{'s' * (wanted > 1)} with {each} × {device.name} each"
        there = "the cluster" if len(allowed) == len(cluster.nodes) else "its partition"
        return [], f"{needed} exceed the {len(nodes)} of {there}"
    specs = dict.fromkeys(node.spec for node in nodes[:wanted])
    across = _across(cluster, nodes[:wanted])
    model = training.transformer()
    candidates = []
    for plan in _plans(training, wanted * each):
        machines = [machine_of(spec, each, device, peak=peak, training=training) for spec in specs]
        steps = [formulas.step(model, plan, machine, across) for machine in machines]
        slowest = max(range(len(steps)), key=lambda one: steps[one].seconds)
        pipeline = formulas.step_pipeline(model, plan, machines[slowest])
        state, kept = formulas.memory(model, plan)
        candidates.append(
            PlanCandidate(
                device=device.name, plan=plan, step=steps[slowest], state=state, kept=kept, room=device.memory,
                steps=training.steps.mean, pipeline=pipeline,
            )  # fmt: skip
        )  # fmt: skip
    return candidates, None


def _trains(scenario: Scenario) -> Iterator[tuple[str, Path_, Demand]]:
    for number, entry in enumerate(scenario.model.workload):
        here: Path_ = ("workload", number)
        own = entry.name or f"{number}"
        if not entry.classes and entry.training is not None:
            yield own, here, entry
        for place, one in enumerate(entry.classes or ()):
            merged = one.over(entry)
            if merged.training is not None:
                inside = (*here, "classes", place) if one.training is not None else here
                yield one.class_ or f"{own}.{place}", inside, merged


def _entry(scenario: Scenario, name: str | None) -> tuple[Path_, Demand]:
    trains = {own: (where, one) for own, where, one in _trains(scenario)}
    if not trains:
        text = "no workload entry has training:"
        if any(one.pipeline is not None for one in scenario.model.workload):
            text += "; the stages of an entry with pipeline: are those of its plan (hetsim plan partition, run -v)"
        raise ScenarioError(scenario.document.problem(("workload",), text))
    if name is not None and name not in trains:
        text = f'no entry with training: is called "{name}"{suggestion(name, trains)}; there are {", ".join(trains)}'
        raise ScenarioError(Problem(text, key="workload", file=scenario.file))
    if name is None and len(trains) > 1:
        text = f"several workload entries have training: choose one of {', '.join(trains)} with --entry"
        raise ScenarioError(scenario.document.problem(("workload",), text))
    return next(iter(trains.values())) if name is None else trains[name]


def _across(cluster: Cluster, nodes: list[Node]) -> Callable[[Phase], float] | None:
    """Return a function that times a phase over rack links; None if there is one rack."""
    if len({node.spec.rack for node in nodes}) == 1:
        return None
    devices = [node.cpu for node in nodes]

    @cache
    def seconds(phase: Phase) -> float:
        ((_, loads),) = Exchange(cluster, 0.0, 0.0, phases=(phase,), nominal=0.0).profile_of(devices).phases
        return max([phase.inside, *(load.seconds for load in loads)])

    return seconds


def _plans(training: TrainingSpec, gpus: int) -> Iterator[formulas.ParallelPlan]:
    layers = training.transformer().layers
    training = training.model_copy(update={"widths": None})
    for tensor in _divisors(gpus):
        for pipeline in _divisors(gpus // tensor):
            data = gpus // tensor // pipeline
            if training.batch % data or layers % pipeline:
                continue
            for micro in _powers(training.batch // data):
                for chunks in range(1, min(MAX_CHUNKS, layers // pipeline) + 1 if pipeline > 1 else 2):
                    change = {
                        "tensor": tensor, "pipeline": pipeline, "data": data, "micro_batch": micro, "chunks": chunks,
                        "schedule": "1f1b" if chunks == 1 else "interleaved",
                    }  # fmt: skip
                    try:
                        yield TrainingSpec.model_validate({**dict(training), **change}).plan(gpus)
                    except (KeyProblem, ValueError):  # does not divide: the schema says what may be
                        continue


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _powers(number: int) -> list[int]:
    return [2**k for k in range(number.bit_length()) if number % 2**k == 0]
