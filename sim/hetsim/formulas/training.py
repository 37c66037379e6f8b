"""Time, memory and traffic of parallel training of a transformer, closed form.

What a placement and its links make of tensor, pipeline and data parallelism: no step or message is an event.
References: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM (SC 2021);
Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022).
Two constants are fitted to measured steps: `efficiency`, the share of their peak that matrix products reach, and
`passes`, how often the bytes of the stored activations pass through memory in element-wise kernels of a forward pass.

Times of collectives and messages are those on idle links, by the alpha-beta model.
`ranks` take part with `size` bytes each; `rate` is the bus bandwidth of a rank's slowest hop in one direction, bytes
a second; `latency` seconds a hop.
Reference: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH (2005).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hetsim.model.bandwidth import BandwidthCurve
from hetsim.model.cluster import NO_KEY
from hetsim.model.exchange import Phase, StepPipeline
from hetsim.model.tasks import OPTIONAL
from hetsim.model.units import Degree

Rate = float | BandwidthCurve
"""Bytes per second of a link, or what was measured of it for each size."""
Pattern = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "ring"]
WAYS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
"""Ring collectives: how often each byte but one part in N goes around N ranks."""


def rate_at(rate: Rate, size: float) -> float:
    """Bytes per second of a collective at this size."""
    return rate if isinstance(rate, float | int) else rate.rate(size)


def capped(rate: Rate, limit: float) -> Rate:
    """A rate or measured curve, limited by a slower hop on the path."""
    if isinstance(rate, BandwidthCurve):
        return BandwidthCurve(rate.sizes, tuple(min(one, limit) for one in rate.rates))
    return min(rate, limit)


def message(size: float, rate: float, latency: float = 0.0) -> float:
    """Seconds of a message from one rank to another."""
    return latency + size / rate


def ring_over_nodes(
    ways: int, nodes: int, each: int, size: float, inside: Rate, latency: float = 0.0, latency_inside: float = 0.0
) -> tuple[float, float, float]:
    """Needs of a ring collective among `each` ranks on each of some nodes.

    Bytes that a node sends to the next, seconds of the links within nodes at the same time, and seconds of latencies.

    ways: 2 for an all-reduce, 1 for a reduce-scatter or an all-gather.  The ring goes through all ranks, over all
    cards of a node at once (as in NCCL), so that its bus bandwidth is the lower one of `inside` and of the cards.
    """
    ranks = max(1, nodes * each)
    moved = ways * (ranks - 1) / ranks * size
    latencies = ways * ((each - 1) * latency_inside + (nodes - 1) * latency)
    return moved if nodes > 1 else 0.0, moved / rate_at(inside, size) if each > 1 else 0.0, latencies


Recomputation = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved"]

STATE = 18
"""Bytes a parameter of mixed precision with Adam: weights and gradients of 2 and 4, master weights and two moments."""
KEPT, SHARDED = 6, 12
"""The bytes of STATE that every data-parallel rank keeps, and those that a sharded optimizer divides among ranks."""
UPDATE = 30
"""Bytes a parameter that an optimizer step reads and writes."""


@dataclass(frozen=True)
class Block:
    """A layer given by its matrices: grouped heads, a gate, experts."""

    shared: float
    """Weights that every token is multiplied with."""
    expert: float
    """Weights of one expert; of a layer without experts those of its feed-forward block."""
    experts: int
    active: int
    """Experts that a token needs."""
    attention: float
    """Width of all heads together."""
    activations: float
    """Bytes of activations of a token that tensor-parallel ranks divide."""
    tied: bool
    """True if the first and the last matrix of the vocabulary are one."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder model given by its dimensions."""

    layers: Degree = field(metadata=OPTIONAL)
    """Number of layers."""
    hidden: Degree = field(metadata=OPTIONAL)
    """Width of a layer, which has 12 hidden² weights."""
    heads: Degree = field(metadata=OPTIONAL)
    """Attention heads of a layer."""
    sequence: Degree
    """Tokens of a sample."""
    vocabulary: Degree = field(metadata=OPTIONAL)
    """Tokens that there are."""
    block: Block | None = field(default=None, metadata=NO_KEY)
    """What its layers are made of, where that is not 12 hidden² weights: a GPT."""

    @property
    def parameters(self) -> float:
        """Number of weights, embeddings included."""
        l, h = self.layers, self.hidden  # noqa: E741
        if self.block is not None:
            heads = 1 if self.block.tied else 2
            return l * (self.block.shared + self.block.experts * self.block.expert) + heads * self.vocabulary * h
        return 12 * l * h**2 * (1 + 13 / (12 * h) + (self.vocabulary + self.sequence) / (12 * l * h))

    @property
    def expert_parameters(self) -> float:
        """Parameters that belong to experts of which a token needs a few."""
        block = self.block
        return self.layers * block.experts * block.expert if block is not None and block.experts > 1 else 0.0

    def of_a_layer(self, samples: int) -> float:
        """Floating-point operations of a layer, forward."""
        s, h = self.sequence, self.hidden
        if self.block is None:
            return 24 * samples * s * h**2 + 4 * samples * s**2 * h
        weights = self.block.shared + self.block.active * self.block.expert
        return 2 * samples * s * weights + 4 * samples * s**2 * self.block.attention

    @property
    def divided(self) -> float:
        """Bytes of activations a token and layer that tensor-parallel ranks divide."""
        return 24 * self.hidden if self.block is None else self.block.activations

    @property
    def largest(self) -> float:
        """Share of the weights in the largest tensor."""
        return max(self.vocabulary * self.hidden, 4 * self.hidden**2) / self.parameters

    def flops(self, samples: int, recomputation: Recomputation = "full") -> float:
        """Floating-point operations of a training step, recomputation included."""
        l, h, s = self.layers, self.hidden, self.sequence  # noqa: E741
        forward = l * self.of_a_layer(samples)
        width = h if self.block is None else self.block.attention
        again = {"none": 0.0, "selective": samples * l * 4 * s**2 * width, "full": forward}[recomputation]
        return 3 * forward + again + 6 * samples * s * h * self.vocabulary


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Division of a step: degrees of parallelism, micro-batches, schedule."""

    batch: Degree
    """Samples of a step, over all GPUs."""
    micro_batch: Degree = 1
    """Samples that go through a pipeline at once."""
    tensor: Degree = 1
    """Degree of tensor parallelism."""
    pipeline: Degree = 1
    """Stages of the pipeline."""
    data: Degree = field(default=1, metadata=OPTIONAL)
    """Degree of data parallelism; what the GPUs leave unless given."""
    schedule: Schedule = "1f1b"
    """Order of the micro-batches in the pipeline."""
    chunks: Degree = 1
    """Parts of its layers that a stage of an interleaved pipeline has."""
    recomputation: Recomputation = "none"
    """Which activations are computed again for the backward pass."""
    sequence_parallel: bool = False
    """True if tensor-parallel ranks also divide the remaining activations."""
    sharded_optimizer: bool = False
    """True if data-parallel ranks divide the state of the optimizer."""
    experts: Degree = 1
    """Degree of expert parallelism: the number of data-parallel ranks that divide the experts."""
    buckets: Degree = 1
    """Parts in which gradients are reduced, all but the last during the backward pass."""

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step through each pipeline."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def in_flight(self) -> float:
        """Number of micro-batches of which the first stage holds the activations at once."""
        p, m = self.pipeline, self.micro_batches
        if self.schedule == "gpipe":
            return m
        return min(p, m) if self.chunks == 1 else min(m, p * (1 + (p - 1) / (p * self.chunks)))


@dataclass(frozen=True)
class TrainingMachine:
    """GPUs and links: `each` GPUs per node with `cards`; bytes/s one way."""

    flops: float
    bandwidth: float
    each: int
    inside: Rate = math.inf
    card: float = math.inf
    cards: int = 1
    latency_inside: float = 0.0
    latency: float = 0.0
    efficiency: float = 1.0
    passes: float = 0.0
    network: BandwidthCurve | None = None
    """Measured bus bandwidth between nodes, all cards of a node together; `card` is then its highest rate a card."""
    island: int | None = None
    """Number of GPUs of a node that `inside` joins; all unless given."""
    beyond: float = math.inf
    """Rate from a GPU to one of another island of its node."""

    def within(self, span: int) -> Rate:
        """Rate of a ring among some GPUs of a node: its slowest hop's."""
        if self.island is None or span <= self.island or self.beyond == math.inf:
            return self.inside
        return capped(self.inside, self.beyond)

    def used(self, cards: int) -> float:
        """Share of a node's network cards used by this number of GPUs."""
        return min(cards, self.cards) / self.cards

    def excess(self, size: float) -> float:
        """Extra seconds per byte to other nodes, in messages of this size."""
        return 0.0 if self.network is None else self.network.excess(size)

    @property
    def share(self) -> float:
        """A rank's share of its node's cards while all ranks use them."""
        return self.card * min(self.cards, self.each) / self.each


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step by cause (`compute`: the slowest stage), and bytes moved."""

    compute: float
    filling: float
    """The bubble as far as it comes from computing; what is left of it, `waiting`, comes from communication."""
    waiting: float
    tensor: float
    pipeline: float
    experts: float
    data: float
    update: float
    network_bytes: float
    """Bytes that one GPU sends to other nodes."""

    @property
    def bubble(self) -> float:
        return self.filling + self.waiting

    @property
    def communication(self) -> float:
        return self.tensor + self.pipeline + self.experts + self.data

    @property
    def seconds(self) -> float:
        return self.compute + self.bubble + self.communication + self.update


def activations(model: Transformer, plan: ParallelPlan) -> float:
    """Bytes of activations that a layer and micro-batch leave for backward passes."""
    s, h, b, t = model.sequence, model.hidden, plan.micro_batch, plan.tensor
    if plan.recomputation == "full":
        return 2 * s * b * h
    if plan.recomputation == "selective":
        return s * b * ((10 * h + model.divided) / t if plan.sequence_parallel else 10 * h + model.divided / t)
    return _passed(model, plan)


def _passed(model: Transformer, plan: ParallelPlan) -> float:
    """Bytes of all activations of a layer and micro-batch on a GPU."""
    s, h, a, b, t = model.sequence, model.hidden, model.heads, plan.micro_batch, plan.tensor
    scores = 5 * a * s / t
    if plan.sequence_parallel:
        return s * b * ((10 * h + model.divided) / t + scores)
    return s * b * (10 * h + model.divided / t + scores)


def memory(model: Transformer, plan: ParallelPlan) -> tuple[float, float]:
    """Bytes of weights and their state, and of activations, on the fullest GPU."""
    each = KEPT + SHARDED / plan.data if plan.sharded_optimizer else STATE
    return each * _held(model, plan), plan.in_flight * model.layers / plan.pipeline * activations(model, plan)


def _held(model: Transformer, plan: ParallelPlan) -> float:
    """Weights that one GPU holds."""
    experts = model.expert_parameters
    return (model.parameters - experts + experts / plan.experts) / (plan.tensor * plan.pipeline)


def phases(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> dict[str, Phase]:
    """Messages among the ranks during a step, by purpose.

    Tensor-parallel ranks lie side by side, then the data-parallel ranks of a stage, then the stages.
    """
    t, p, d, m, v, each = plan.tensor, plan.pipeline, plan.data, plan.micro_batches, plan.chunks, machine.each
    size = 2 * plan.micro_batch * model.sequence * model.hidden
    reduces = m * model.layers / p * (6 if plan.recomputation == "full" else 4)
    hosts, inside, waits = -(-t // each), min(t, each), (p - 1) / (v * m)
    reduced = _reduced(machine, machine.within(inside), hosts, each=inside, size=size)
    sent, within, fixed = (reduces * one for one in reduced)
    phase_of = {"tensor": Phase("ring", hosts, sent, fixed, cards=inside, waits=waits, inside=within)}
    if p > 1:
        hops, senders = 2 * v * m, min(each, t * d)
        crossing = t * d * p > each
        here = rate_at(machine.within(min(each, t * d * p)), size / t), machine.latency_inside
        sent = hops * senders * size / t if crossing else 0.0
        fixed = hops * message(size / t, *((math.inf, machine.latency) if crossing else here))
        fixed += sent * machine.excess(size / t) / machine.used(senders)
        wide = max(1, t * d // each)
        phase_of["pipeline"] = Phase("chain", wide, sent, fixed, cards=senders, loop=v > 1, waits=waits)
    ranks = min(d, max(1, each // t))
    if plan.experts > 1 and model.block is not None:
        phase_of["experts"] = _exchange(model, plan, machine, waits)
    hosts, gradients = -(-d // ranks), 2 * _held(model, plan)
    hidden = (1 - 1 / plan.buckets) * model.layers / p * layer_seconds(model, plan, machine) * 2 / 3
    rings = each / ranks  # of one rank in each group of tensor-parallel ranks, at once
    sent, within, fixed = _reduced(machine, machine.within(ranks * t), hosts, each=ranks, size=gradients, rings=rings)
    phase_of["data"] = Phase(
        "ring", hosts * max(1, t // each), sent, fixed=fixed, hidden=hidden, cards=each, inside=within
    )
    return phase_of


def _exchange(model: Transformer, plan: ParallelPlan, machine: TrainingMachine, waits: float) -> Phase:
    """Tokens go to their experts and back, forward and backward."""
    t, e, each = plan.tensor, plan.experts, machine.each
    assert model.block is not None
    size = 2 * plan.micro_batch * model.sequence * model.hidden * model.block.active / t
    times = 4 * plan.micro_batches * model.layers / plan.pipeline
    here = min(e, max(1, each // t))
    hosts = -(-e // here)
    within = (here - 1) * machine.latency_inside + (here - 1) / e * size / rate_at(machine.within(here * t), size)
    beyond = (e - here) * machine.latency if hosts > 1 else 0.0
    sent = times * (e - here) / e * size * min(each, here * t)
    group, senders = hosts * max(1, t // each), min(each, here * t)
    fixed = times * (within + beyond) + sent * machine.excess(size) / machine.used(senders)
    return Phase("all_to_all", group, sent, fixed, cards=senders, waits=waits)


def _reduced(
    machine: TrainingMachine, inside: Rate, hosts: int, each: int, size: float, rings: float = 1.0
) -> tuple[float, float, float]:
    """Needs of several all-reduces at once.

    Bytes that each node sends, seconds within nodes at the same time, and seconds in addition."""
    sent, within, fixed = ring_over_nodes(
        2, hosts, each, size=size, inside=inside, latency=machine.latency, latency_inside=machine.latency_inside
    )
    if hosts > 1 and machine.network is not None:  # what was measured contains latencies and steps within nodes
        return sent * rings, 0.0, sent * rings * machine.excess(size) / machine.used(round(each * rings))
    return sent * rings, within, fixed


def layer_seconds(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> float:
    """Seconds of a layer for a micro-batch, forward and backward, recomputed too."""
    s, a, b, t = model.sequence, model.heads, plan.micro_batch, plan.tensor
    rate = machine.flops * machine.efficiency
    forward = _forward_seconds(model, plan, machine)
    if plan.recomputation == "full":
        return 4 * forward
    if plan.recomputation == "selective":
        again = machine.passes * 5 * b * a * s**2 / t / machine.bandwidth
        width = model.hidden if model.block is None else model.block.attention
        return 3 * forward + 4 * b * s**2 * width / t / rate + again
    return 3 * forward


def _forward_seconds(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> float:
    """Seconds that a layer computes for a micro-batch, forward."""
    operations = model.of_a_layer(plan.micro_batch) / plan.tensor / (machine.flops * machine.efficiency)
    return operations + machine.passes * _passed(model, plan) / machine.bandwidth


def _head_seconds(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> float:
    """Seconds of the last stage for the vocabulary, a micro-batch both ways."""
    operations = 6 * plan.micro_batch * model.sequence * model.hidden * model.vocabulary / plan.tensor
    return operations / (machine.flops * machine.efficiency)


def _update_seconds(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> float:
    return UPDATE * _held(model, plan) / (plan.data if plan.sharded_optimizer else 1) / machine.bandwidth


def step_pipeline(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> StepPipeline | None:
    """Pipeline of a step's micro-batches; None for a single stage."""
    if plan.pipeline == 1:
        return None
    each = model.layers / plan.pipeline
    forward = each * _forward_seconds(model, plan, machine)
    return StepPipeline(
        schedule=plan.schedule,
        stages=plan.pipeline,
        micro_batches=plan.micro_batches,
        chunks=plan.chunks,
        forward=forward,
        backward=each * layer_seconds(model, plan, machine) - forward,
        head=_head_seconds(model, plan, machine),
        update=_update_seconds(model, plan, machine),
        phases=tuple(phases(model, plan, machine)),
        ahead=1 / 3 if plan.recomputation == "full" else 1 / 2,
    )


def step(
    model: Transformer, plan: ParallelPlan, machine: TrainingMachine, across: Callable[[Phase], float] | None = None
) -> StepSeconds:
    """Time and traffic of a step on this machine with uncontended links.

    across: seconds of a phase on the links between nodes; those on `machine.card` unless given.
    """
    p, m, v = plan.pipeline, plan.micro_batches, plan.chunks
    sent = phases(model, plan, machine)

    def seconds(name: str) -> float:
        if (phase := sent.get(name)) is None:
            return 0.0
        over = across(phase) if across else phase.over(machine.card, machine.cards)
        return max(0.0, phase.fixed + over - phase.hidden)

    compute = model.layers / p * layer_seconds(model, plan, machine)
    tensor, hops, experts = seconds("tensor"), seconds("pipeline"), seconds("experts")
    return StepSeconds(
        compute=m * (compute + _head_seconds(model, plan, machine)),
        filling=(p - 1) / v * compute,
        waiting=(p - 1) / v * (tensor + hops + experts) / m,
        tensor=tensor,
        pipeline=hops,
        experts=experts,
        data=seconds("data"),
        update=_update_seconds(model, plan, machine),
        network_bytes=sum(phase.bytes for phase in sent.values()) / machine.each,
    )
