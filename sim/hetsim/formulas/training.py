"""Time, memory and traffic of parallel transformer training, in closed form.

Inputs are the degrees of tensor, pipeline and data parallelism and the links of a placement; steps and messages are not
simulated.  References: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM (SC 2021); Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022).
Two constants are fitted to measured steps: `efficiency`, the fraction of peak FLOP/s that matrix products reach, and
`passes`, the number of times that element-wise kernels of a forward pass move the stored activations through memory.

The times of collectives and messages are those on idle links, by the alpha-beta model: `ranks` take part with `size`
bytes each, `rate` is the one-way bus bandwidth of a rank's slowest hop (bytes/s), `latency` the seconds per hop.
Reference: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH (2005).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from hetsim.model.bandwidth import BandwidthCurve
from hetsim.model.device_type import NO_KEY, OPTIONAL
from hetsim.model.exchange import Phase, StepPipeline
from hetsim.model.units import Degree

Rate = float | BandwidthCurve  # bytes per second of a link, or its measured bandwidth curve by message size
Pattern = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "ring"]
# Passes of the data around a ring, by collective; a pass moves (N - 1) / N of the bytes among N ranks
WAYS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def rate_at(rate: Rate, size: float) -> float:
    """Return the bandwidth (bytes per second) at this message size."""
    return rate if isinstance(rate, float | int) else rate.rate(size)


def capped(rate: Rate, limit: float) -> Rate:
    """Return a rate or bandwidth curve, limited by a slower hop of the path."""
    if isinstance(rate, BandwidthCurve):
        return BandwidthCurve(rate.sizes, tuple(min(one, limit) for one in rate.rates))
    return min(rate, limit)


def message(size: float, rate: float, latency: float = 0.0) -> float:
    """Return the seconds of a message of `size` bytes from one rank to another."""
    return latency + size / rate


def ring_over_nodes(
    ways: int, nodes: int, each: int, size: float, inside: Rate, latency: float = 0.0, latency_inside: float = 0.0
) -> tuple[float, float, float]:
    """Return the cost of a ring collective of `each` ranks on each of `nodes` nodes.

    The tuple has the bytes that a node sends to the next node, the seconds on links within nodes (at the same time),
    and the seconds of latency.  size: bytes of the full buffer.  ways: 2 for an all-reduce, 1 for a reduce-scatter or
    an all-gather.  The ring visits all ranks and uses all network cards of a node at once (as in NCCL): the slower one
    of `inside` and the network cards limits the ring.
    """
    ranks = max(1, nodes * each)
    moved = ways * (ranks - 1) / ranks * size
    latencies = ways * ((each - 1) * latency_inside + (nodes - 1) * latency)
    return moved if nodes > 1 else 0.0, moved / rate_at(inside, size) if each > 1 else 0.0, latencies


Recomputation = Literal["none", "selective", "full"]
Schedule = Literal["gpipe", "1f1b", "interleaved"]

STATE = 18  # bytes per parameter, Adam in mixed precision: weights 2, gradients 4, master weights and two moments 12
KEPT, SHARDED = 6, 12  # bytes of STATE on every data-parallel rank, and bytes that a sharded optimizer divides
UPDATE = 30  # bytes per parameter that an optimizer step reads and writes


@dataclass(frozen=True)
class Block:
    """A transformer layer that differs from GPT's, given by its weight matrices."""

    shared: float  # weights applied to every token
    expert: float  # weights of one expert, or of the feed-forward block if the layer has no experts
    experts: int
    active: int  # number of experts that each token uses
    attention: float  # total width of all attention heads
    activations: float  # bytes of activations per token that tensor-parallel ranks divide
    tied: bool  # True if the input and output embeddings are one matrix


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer given by its dimensions."""

    layers: Degree = field(metadata=OPTIONAL)
    """Number of layers."""
    hidden: Degree = field(metadata=OPTIONAL)
    """Hidden size; a layer has 12 hidden² weights."""
    heads: Degree = field(metadata=OPTIONAL)
    """Number of attention heads per layer."""
    sequence: Degree
    """Tokens per sample."""
    vocabulary: Degree = field(metadata=OPTIONAL)
    """Number of tokens in the vocabulary."""
    block: Block | None = field(default=None, metadata=NO_KEY)
    """Weight matrices of a layer that does not have the 12 hidden² weights of a GPT layer."""

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
        """Number of parameters in experts; 0 if the layers have no experts."""
        block = self.block
        return self.layers * block.experts * block.expert if block is not None and block.experts > 1 else 0.0

    def of_a_layer(self, samples: int) -> float:
        """Return the floating-point operations of the forward pass of one layer."""
        s, h = self.sequence, self.hidden
        if self.block is None:
            return 24 * samples * s * h**2 + 4 * samples * s**2 * h
        weights = self.block.shared + self.block.active * self.block.expert
        return 2 * samples * s * weights + 4 * samples * s**2 * self.block.attention

    @property
    def divided(self) -> float:
        """Bytes of activations per token and layer that tensor parallelism divides."""
        return 24 * self.hidden if self.block is None else self.block.activations

    @property
    def largest(self) -> float:
        """Fraction of all weights that the largest tensor contains."""
        return max(self.vocabulary * self.hidden, 4 * self.hidden**2) / self.parameters

    def flops(self, samples: int, recomputation: Recomputation = "full") -> float:
        """Return the floating-point operations of a training step with recomputation."""
        l, h, s = self.layers, self.hidden, self.sequence  # noqa: E741
        forward = l * self.of_a_layer(samples)
        width = h if self.block is None else self.block.attention
        again = {"none": 0.0, "selective": samples * l * 4 * s**2 * width, "full": forward}[recomputation]
        return 3 * forward + again + 6 * samples * s * h * self.vocabulary


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """Division of a training step: degrees of parallelism, micro-batches, schedule."""

    batch: Degree
    """Samples per step, over all GPUs."""
    micro_batch: Degree = 1
    """Samples per micro-batch."""
    tensor: Degree = 1
    """Degree of tensor parallelism."""
    pipeline: Degree = 1
    """Number of pipeline stages."""
    data: Degree = field(default=1, metadata=OPTIONAL)
    """Degree of data parallelism. Default: the number of GPUs divided by `tensor` × `pipeline`."""
    schedule: Schedule = "1f1b"
    """Order of the micro-batches in the pipeline."""
    chunks: Degree = 1
    """Number of chunks of layers on each stage of an interleaved pipeline."""
    recomputation: Recomputation = "none"
    """Activations that the backward pass recomputes."""
    sequence_parallel: bool = False
    """True if tensor-parallel ranks also divide the activations of normalization and dropout."""
    sharded_optimizer: bool = False
    """True if data-parallel ranks divide the optimizer state."""
    experts: Degree = 1
    """Degree of expert parallelism: the number of data-parallel ranks that divide the experts."""
    buckets: Degree = 1
    """Number of buckets in which gradients are reduced; all but the last overlap the backward pass."""

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches per step in each pipeline."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def in_flight(self) -> float:
        """Number of micro-batches whose activations the first stage stores at a time."""
        p, m = self.pipeline, self.micro_batches
        if self.schedule == "gpipe":
            return m
        return min(p, m) if self.chunks == 1 else min(m, p * (1 + (p - 1) / (p * self.chunks)))


@dataclass(frozen=True)
class TrainingMachine:
    """The GPUs of a training job and the links between them.

    each, cards: GPUs and network cards per node.  inside, card: one-way bytes/s between a node's GPUs, and of one card.
    """

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
    # Measured bus bandwidth between nodes, over all cards of a node; `card` is then the highest rate per card
    network: BandwidthCurve | None = None
    island: int | None = None  # number of GPUs of a node that `inside` connects; None: all
    beyond: float = math.inf  # bytes/s between GPUs of different islands of a node

    def within(self, span: int) -> Rate:
        """Return the bandwidth of a ring over `span` GPUs of a node (of its slowest hop)."""
        if self.island is None or span <= self.island or self.beyond == math.inf:
            return self.inside
        return capped(self.inside, self.beyond)

    def used(self, cards: int) -> float:
        """Return the share of network cards in use if `cards` GPUs send, on one card each."""
        return min(cards, self.cards) / self.cards

    def excess(self, size: float) -> float:
        """Return the seconds per byte that a short message takes more than a long one.

        This is between nodes, by the measured bandwidth curve; 0 without a curve.
        """
        return 0.0 if self.network is None else self.network.excess(size)

    @property
    def share(self) -> float:
        """Network bandwidth per GPU (bytes/s) while all GPUs of a node send."""
        return self.card * min(self.cards, self.each) / self.each


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a training step by cause (`compute`: slowest stage), and bytes sent."""

    compute: float
    filling: float  # bubble caused by computing; `waiting` is the rest, caused by communication
    waiting: float
    tensor: float
    pipeline: float
    experts: float
    data: float
    update: float
    network_bytes: float  # bytes that one GPU sends to other nodes

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
    """Return the stored bytes of activations per layer and micro-batch on a GPU."""
    s, h, b, t = model.sequence, model.hidden, plan.micro_batch, plan.tensor
    if plan.recomputation == "full":
        return 2 * s * b * h
    if plan.recomputation == "selective":
        return s * b * ((10 * h + model.divided) / t if plan.sequence_parallel else 10 * h + model.divided / t)
    return _passed(model, plan)


def _passed(model: Transformer, plan: ParallelPlan) -> float:
    """Return the bytes of all activations of a layer and micro-batch on one GPU."""
    s, h, a, b, t = model.sequence, model.hidden, model.heads, plan.micro_batch, plan.tensor
    scores = 5 * a * s / t
    if plan.sequence_parallel:
        return s * b * ((10 * h + model.divided) / t + scores)
    return s * b * (10 * h + model.divided / t + scores)


def memory(model: Transformer, plan: ParallelPlan) -> tuple[float, float]:
    """Return the bytes on the fullest GPU: weights with optimizer state; activations."""
    each = KEPT + SHARDED / plan.data if plan.sharded_optimizer else STATE
    return each * _held(model, plan), plan.in_flight * model.layers / plan.pipeline * activations(model, plan)


def _held(model: Transformer, plan: ParallelPlan) -> float:
    experts = model.expert_parameters
    return (model.parameters - experts + experts / plan.experts) / (plan.tensor * plan.pipeline)


def phases(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> dict[str, Phase]:
    """Return the messages among the ranks during a step, by purpose.

    Ranks are ordered: tensor-parallel ranks are adjacent, then the data-parallel ranks of a stage, then the stages.
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
    """Return bytes sent by a node, seconds on links in nodes, and seconds of latency.

    They are for `rings` concurrent all-reduces of `size` bytes each.  hosts, each: nodes, and ranks on each of them.
    """
    sent, within, fixed = ring_over_nodes(
        2, hosts, each, size=size, inside=inside, latency=machine.latency, latency_inside=machine.latency_inside
    )
    if hosts > 1 and machine.network is not None:  # what was measured contains latencies and steps within nodes
        return sent * rings, 0.0, sent * rings * machine.excess(size) / machine.used(round(each * rings))
    return sent * rings, within, fixed


def layer_seconds(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> float:
    """Return a layer's seconds per micro-batch: forward, backward and recomputation."""
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
    operations = model.of_a_layer(plan.micro_batch) / plan.tensor / (machine.flops * machine.efficiency)
    return operations + machine.passes * _passed(model, plan) / machine.bandwidth


def _head_seconds(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> float:
    operations = 6 * plan.micro_batch * model.sequence * model.hidden * model.vocabulary / plan.tensor
    return operations / (machine.flops * machine.efficiency)


def _update_seconds(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> float:
    return UPDATE * _held(model, plan) / (plan.data if plan.sharded_optimizer else 1) / machine.bandwidth


def step_pipeline(model: Transformer, plan: ParallelPlan, machine: TrainingMachine) -> StepPipeline | None:
    """Return the pipeline of a step's micro-batches; None if there is only one stage."""
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
    """Return the time and traffic of a training step on links without contention.

    across: returns the seconds of a phase on the links between nodes; default: those on network cards (`machine.card`).
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
