"""A step of a job on several GPUs: computation, communication, and duration."""

import math
from collections.abc import Iterable
from dataclasses import replace

from hetsim.formulas import training as formulas
from hetsim.model.cluster import Cluster, DeviceType, Node, NodeSpec
from hetsim.model.exchange import Exchange, Phase, StepPipeline
from hetsim.scenario.schema.training import TrainingSpec
from hetsim.workload.costs.roofline import Peak

GIB = 2**30


def too_large(state: float, kept: float, room: float, device: str) -> str:
    """Why a plan does not fit, with needed and available memory in GB."""
    parts = f"{state / GIB:.4g} GiB of weights and their states and {kept / GIB:.4g} GiB of activations"
    total = f"{(state + kept) / 1e9:.4g} GB"
    return f"{parts} ({total}) are more than the {room / GIB:.4g} GiB ({room / 1e9:.4g} GB) of one {device}"


def kinds_of(nodes: Iterable[Node]) -> list[NodeSpec]:
    """One node of each kind among these."""
    alike = {id(node.spec): node.spec for node in nodes}.values()
    return list({replace(s, name=None, rack=None, first=None, count=1, partitions=()): s for s in alike}.values())


def pcie_of(device: DeviceType) -> float:
    """Bytes per second between GPUs without NVLink, over PCIe."""
    return min(device.link.upload, device.link.download)


def machine_of(
    spec: NodeSpec, gpus: int, device: DeviceType, peak: Peak, training: TrainingSpec
) -> formulas.TrainingMachine:
    """Rates of a machine with this number of GPUs of each node."""
    return formulas.TrainingMachine(
        flops=peak.flops, bandwidth=peak.bandwidth, each=gpus, inside=spec.nvlink.curve or spec.nvlink.upload,
        card=min(spec.network.upload, spec.network.download) / spec.cards, cards=spec.cards,
        latency_inside=spec.nvlink.latency, latency=spec.network.latency, efficiency=training.efficiency,
        passes=training.passes, network=spec.network.curve, island=spec.island_size, beyond=pcie_of(device),
    )  # fmt: skip


def training_step(
    cluster: Cluster, spec: NodeSpec, nodes: int, model: formulas.Transformer, plan: formulas.ParallelPlan,
    machine: formulas.TrainingMachine,
) -> Exchange:  # fmt: skip
    """A step of training on this kind of nodes."""
    step = formulas.step(model, plan, machine)
    phases = list(formulas.phases(model, plan, machine).values())
    flops = model.flops(plan.batch, "none") / plan.gpus / machine.flops
    pipeline = formulas.step_pipeline(model, plan, machine)
    compute = step.compute + step.update
    return exchange_over(
        cluster, spec, nodes, compute=compute, filling=step.filling, phases=phases, at_peak=flops,
        largest=model.largest, pipeline=pipeline
    )


def exchange_over(
    cluster: Cluster, spec: NodeSpec, nodes: int, compute: float, filling: float, phases: list[Phase],
    at_peak: float = math.nan, largest: float = 1.0, pipeline: StepPipeline | None = None,
) -> Exchange:  # fmt: skip
    """The step with its communication; nominal seconds leave out uplinks."""
    card = min(spec.network.upload, spec.network.download) / spec.cards
    seconds = compute + filling
    for phase in phases:
        seconds += (1 + phase.waits) * max(0.0, phase.fixed + phase.over(card, spec.cards) - phase.hidden)
    return Exchange(
        cluster, compute, filling, phases=tuple(phases), nominal=seconds, at_peak=at_peak, largest=largest,
        pipeline=pipeline
    )


def stretch_of(exchange: Exchange | None) -> float:
    """Time with communication, divided by compute time alone."""
    return 1.0 if exchange is None else exchange.nominal / exchange.compute
