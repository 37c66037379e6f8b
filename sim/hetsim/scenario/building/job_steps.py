"""A step of a job on several GPUs: what its machine computes and sends, and how long it takes."""

from __future__ import annotations

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
    """Why a plan does not fit, with all figures; sum and memory in GB too, as scenarios and tables have them."""
    parts = f"{state / GIB:.4g} GiB of weights and their states and {kept / GIB:.4g} GiB of activations"
    whole = f"{(state + kept) / 1e9:.4g} GB"
    return f"{parts} ({whole}) are more than the {room / GIB:.4g} GiB ({room / 1e9:.4g} GB) of one {device}"


def kinds_of(nodes: Iterable[Node]) -> list[NodeSpec]:
    """One of each kind of these nodes."""
    alike = {id(node.spec): node.spec for node in nodes}.values()
    return list({replace(s, name=None, rack=None, first=None, count=1, partitions=()): s for s in alike}.values())


def pcie_of(device: DeviceType) -> float:
    """Bytes per second from a GPU to another one that NVLink does not join to it."""
    return min(device.link.upload, device.link.download)


def machine_of(
    spec: NodeSpec, gpus: int, device: DeviceType, peak: Peak, training: TrainingSpec
) -> formulas.TrainingMachine:
    """What this number of GPUs of each node computes and sends."""
    return formulas.TrainingMachine(
        flops=peak.flops,
        bandwidth=peak.bandwidth,
        each=gpus,
        inside=spec.nvlink.curve or spec.nvlink.upload,
        card=min(spec.network.upload, spec.network.download) / spec.cards,
        cards=spec.cards,
        latency_inside=spec.nvlink.latency,
        latency=spec.network.latency,
        efficiency=training.efficiency,
        passes=training.passes,
        network=spec.network.curve,
        island=spec.island_size,
        beyond=pcie_of(device),
    )


def training_step(
    cluster: Cluster, spec: NodeSpec, nodes: int, model: formulas.Transformer, plan: formulas.ParallelPlan,
    machine: formulas.TrainingMachine,
) -> Exchange:  # fmt: skip
    """A step of training on nodes of this kind."""
    step = formulas.step(model, plan, machine)
    phases = list(formulas.phases(model, plan, machine).values())
    flops = model.flops(plan.batch, "none") / plan.gpus / machine.flops
    pipeline = formulas.step_pipeline(model, plan, machine)
    compute = step.compute + step.update
    return exchange_over(cluster, spec, nodes, compute, step.filling, phases, flops, model.largest, pipeline)


def exchange_over(
    cluster: Cluster, spec: NodeSpec, nodes: int, compute: float, filling: float, phases: list[Phase],
    at_peak: float = math.nan, largest: float = 1.0, pipeline: StepPipeline | None = None,
) -> Exchange:  # fmt: skip
    """A step; its nominal seconds are those on nodes of this kind that are joined without a rack's uplink."""
    card = min(spec.network.upload, spec.network.download) / spec.cards
    seconds = compute + filling
    for phase in phases:
        seconds += (1 + phase.waits) * max(0.0, phase.fixed + phase.over(card, spec.cards) - phase.hidden)
    return Exchange(cluster, compute, filling, tuple(phases), seconds, at_peak, largest, pipeline)


def stretch_of(exchange: Exchange | None) -> float:
    """How many times as long as its computing a job with this communication takes."""
    return 1.0 if exchange is None else exchange.nominal / exchange.compute
