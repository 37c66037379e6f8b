"""Every way to divide the training of a scenario among its GPUs: degrees, schedule and micro-batch.

The time of a step and the memory are those that a run of the scenario has (`sim.theory.training`); nothing is run.
GPipe is not among the candidates: it takes the time of 1F1B and more memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sim.errors import Problem, ScenarioError, suggestion
from sim.model.cluster import Cluster, DeviceType
from sim.scenario.building.cluster import build_cluster
from sim.scenario.building.streams import peak_of
from sim.scenario.building.synthetic import GIB, machine_of
from sim.scenario.fields import KeyProblem
from sim.scenario.scenario import Scenario
from sim.scenario.schema.training import TrainingSpec
from sim.scenario.schema.workload import WorkloadEntry
from sim.theory import training as formulas

MAX_CHUNKS = 8
"""Most chunks of an interleaved pipeline that are tried."""


@dataclass(frozen=True)
class Candidate:
    """One way on one type of GPU; `room` is the memory of a GPU, None where the scenario does not say."""

    device: str
    plan: formulas.ParallelPlan
    step: formulas.StepSeconds
    state: float
    kept: float
    room: int | None

    @property
    def fits(self) -> bool:
        return self.room is None or self.state + self.kept <= self.room

    @property
    def refusal(self) -> str:
        """Both figures of one that does not fit."""
        parts = f"{self.state / GIB:.4g} GiB of weights and their states and {self.kept / GIB:.4g} GiB of activations"
        return f"{parts} are more than the {(self.room or 0) / GIB:.4g} GiB of one {self.device}"


def training_plans(scenario: Scenario, entry: str | None = None) -> list[Candidate]:
    """All candidates for an entry of the workload with `training:`, those that fit first, then by the time of a step.

    What the entry says of the model, the batch, recomputation, sharding and overlap stays.  ScenarioError where no
    entry trains, the name is of none, no type of GPU has a known peak, or nothing fits: with both figures.
    """
    number, chosen = _entry(scenario, entry)
    where = ("workload", number, "training")
    cluster = build_cluster(scenario.model.cluster, scenario.document)
    training = chosen.training
    assert training is not None
    gpus = round(chosen.gpus or 1)
    total = (chosen.nodes or 1) * gpus
    found = []
    for device in _types(cluster, chosen):
        peak = peak_of(device)
        specs = dict.fromkeys(n.spec for n in cluster.nodes if any(d.type is device for d in n.accelerators))
        if peak is None or not specs:
            continue
        model = training.transformer()
        for plan in _plans(training, total):
            steps = [formulas.step(model, plan, machine_of(spec, gpus, peak, training)) for spec in specs]
            slowest = max(steps, key=lambda one: one.seconds)
            found.append(Candidate(device.name, plan, slowest, *formulas.memory(model, plan), device.memory))
    if not found:
        layers = training.transformer().layers
        text = f"no degrees divide {total} GPUs, {layers} layers and a batch of {training.batch}, "
        raise ScenarioError(scenario.document.problem(where, text + "or no type of GPU has a known peak"))
    found.sort(key=lambda one: (not one.fits, one.step.seconds, one.state + one.kept))
    if not found[0].fits:
        least = min(found, key=lambda one: one.state + one.kept)
        plan = least.plan
        degrees = f"with tensor {plan.tensor}, pipeline {plan.pipeline}, data {plan.data}"
        text = f"nothing fits: {degrees}, which needs the least memory, {least.refusal}"
        raise ScenarioError(scenario.document.problem(where, text))
    return found


def _entry(scenario: Scenario, name: str | None) -> tuple[int, WorkloadEntry]:
    """The entry that trains, by name where there are several."""
    trains = {number: one for number, one in enumerate(scenario.model.workload) if one.training is not None}
    if not trains:
        text = "no entry of the workload has training:"
        raise ScenarioError(scenario.document.problem(("workload",), text))
    names = {one.name or f"{number}": number for number, one in trains.items()}
    if name is not None and name not in names:
        text = f'no entry with training: is called "{name}"{suggestion(name, names)}; there are {", ".join(names)}'
        raise ScenarioError(Problem(text, key="workload", file=scenario.file))
    if name is None and len(trains) > 1:
        text = f"several entries train: choose one of {', '.join(names)} with --entry"
        raise ScenarioError(scenario.document.problem(("workload",), text))
    number = next(iter(trains)) if name is None else names[name]
    return number, trains[number]


def _types(cluster: Cluster, entry: WorkloadEntry) -> Iterator[DeviceType]:
    for device in cluster.types.values():
        wanted = entry.devices is None or device.name in entry.devices or device.kind in entry.devices
        if wanted and device.kind != "cpu":
            yield device


def _plans(training: TrainingSpec, gpus: int) -> Iterator[formulas.ParallelPlan]:
    """All that divide evenly."""
    layers = training.transformer().layers
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
                        checked = TrainingSpec.model_validate({**dict(training), **change})
                        yield checked.plan(gpus)
                    except (KeyProblem, ValueError):  # does not divide: the schema says what may be
                        continue


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]


def _powers(number: int) -> Iterator[int]:
    """Powers of two that divide it."""
    power = 1
    while number % power == 0:
        yield power
        power *= 2
