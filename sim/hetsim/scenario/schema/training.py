"""`training:` of a task: a transformer, its parallelism, and its efficiency."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hetsim.errors import KeyProblem, UnknownName
from hetsim.formulas import training
from hetsim.formulas.training import WAYS, Pattern, Rate, capped, message, rate_at, ring_over_nodes
from hetsim.model.cluster import NodeSpec
from hetsim.model.exchange import Phase
from hetsim.model.units import Bytes, Degree, Fraction, Name, NotNegative, Seconds
from hetsim.scenario.fields import Mirror, Model, keys_of
from hetsim.workload.costs import architectures
from hetsim.workload.distributions import StepCount

Part = Annotated[Fraction, Field(ge=0, le=1)]
EFFICIENCY, PASSES = 0.703, 2.51  # fitted to 12 published steps of Megatron-LM on A100 (background/validation.md)


@keys_of(training.Transformer)
class TransformerSpec(Mirror):
    """A decoder-only transformer, given by its dimensions or by name."""

    FIRST: ClassVar = ("name",)

    name: Name | None = None
    """A model of `hetsim list models`, such as llama-2-70b, in place of its figures."""

    def _check_keys(self) -> None:
        figures = ("layers", "hidden", "heads", "vocabulary")
        given = [key for key in figures if getattr(self, key) is not None]
        if self.name is None:
            if missing := [key for key in figures if key not in given]:
                raise KeyProblem(missing[0], "the key is missing; give the model's figures, or name a known model")
        elif given:
            raise KeyProblem(given[0], f"the model {self.name} defines this value; leave one of the two out")
        elif self.name not in architectures.MODELS:
            raise KeyProblem("name", f"{UnknownName('model', self.name, architectures.MODELS)} (hetsim list models)")
        elif (shape := architectures.MODELS[self.name]).latent is not None or shape.linear is not None:
            raise KeyProblem("name", f"{self.name} has an unsupported form of attention; give the figures of the model")

    @property
    def experts(self) -> int:
        return 1 if self.name is None else architectures.MODELS[self.name].experts

    def described(self) -> training.Transformer:
        if self.name is None:
            return self.made()
        shape = architectures.MODELS[self.name]
        size = shape.head_size or shape.hidden // shape.heads
        width, kept = shape.heads * size, 2 * (shape.kv_heads or shape.heads) * size
        layers = shape.layers
        inner = (shape.active_experts * shape.intermediate + shape.shared_intermediate) * shape.expert_layers
        inner += shape.dense_layers * (shape.dense_intermediate or 0)
        several = shape.experts > 1
        block = training.Block(
            shared=(shape.attention + (shape.dense if several else 0)) / layers,
            expert=(shape.expert if several else shape.dense) / layers,
            experts=shape.experts,
            active=shape.active_experts,
            attention=width,
            # Queries, keys, values and what attention gives; of the feed-forward block what goes into each matrix.
            activations=2 * (width + kept) + 2 * width + (6 if shape.gated else 4) * inner / layers,
            tied=shape.tied,
        )
        return training.Transformer(
            shape.layers, shape.hidden, shape.heads, sequence=self.sequence, vocabulary=shape.vocabulary, block=block
        )


class Communication(Model):
    """Traffic among the ranks of a job: one rank per GPU, or per node on cores."""

    pattern: Pattern
    """all_reduce, reduce_scatter, all_gather, all_to_all, or ring (each rank sends to the next)."""
    bytes: Bytes
    """Message size of each rank in one communication."""
    every: Annotated[Seconds, Field(gt=0)]
    """Computing time between two communications."""
    largest: Part = 1.0
    """Share of the bytes that belong to the largest tensor; only the placement `skew` uses it."""
    overlap: Part = 0.0
    """Share of the computing time that can hide communication."""

    def phase(self, nodes: int, each: int, spec: NodeSpec, beyond: float = math.inf) -> Phase:
        """Return the communication phase of a step on `nodes` nodes with `each` ranks.

        spec: hardware of a node; beyond: bytes per second between two GPUs of a node in different NVLink islands.
        """
        inside: Rate = spec.nvlink.curve or spec.nvlink.upload
        if spec.island_size is not None and each > spec.island_size and beyond < math.inf:
            inside = capped(inside, beyond)
        size, ranks, beside = float(self.bytes), nodes * each, 0.0
        ways, latency, latency_inside = WAYS.get(self.pattern), spec.network.latency, spec.nvlink.latency
        if ways is not None:
            sent, beside, fixed = ring_over_nodes(
                ways, nodes, each, size=size, inside=inside, latency=latency, latency_inside=latency_inside
            )
        elif self.pattern == "ring":  # one rank of each node sends to another node, over a card of its own
            sent = size
            fixed = latency if nodes > 1 else message(size, rate_at(inside, size), latency_inside) if each > 1 else 0.0
        else:
            sent = each * (ranks - each) / ranks * size
            fixed = (each - 1) * (latency_inside + size / ranks / rate_at(inside, size)) + (nodes - 1) * each * latency
        cards = 1 if self.pattern == "ring" else each
        if (curve := spec.network.curve) is not None and nodes > 1:
            longer = sent * curve.excess(size) * spec.cards / min(cards, spec.cards)
            # A measured ring contains its latencies and its steps within nodes.
            fixed, beside = (longer, 0.0) if ways is not None else (fixed + longer, beside)
        shape: Literal["all_to_all", "ring"] = "all_to_all" if self.pattern == "all_to_all" else "ring"
        return Phase(
            shape, nodes, sent if nodes > 1 else 0.0, fixed=fixed, hidden=self.overlap * self.every, cards=cards,
            inside=beside
        )


@keys_of(training.ParallelPlan)
class TrainingSpec(Mirror):
    """Parallel training, from which step time and GPU memory are computed."""

    FIRST: ClassVar = ("model", "batch", "micro_batch", "tensor", "pipeline", "data", "experts")

    model: TransformerSpec
    """The network, by its figures or its name."""
    efficiency: Part = EFFICIENCY
    """Share of the peak that matrix products reach, fitted on A100."""
    passes: NotNegative = PASSES
    """Number of times that element-wise kernels move the bytes of the activations in a forward pass."""
    widths: Annotated[list[Degree], Field(min_length=1)] | None = None
    """For an elastic job, in place of `nodes`: the numbers of nodes on which it can run."""
    steps: StepCount
    """Steps of a task: a whole number, or a distribution whose values are rounded."""

    def _check_keys(self) -> None:
        model = self.model.described()
        if self.widths is not None and self.data is not None and len(set(self.widths)) > 1:
            raise KeyProblem("data", "widths define the data parallelism; leave data out")
        if self.efficiency == 0:
            raise KeyProblem("efficiency", "must be a share above 0")
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            text = "an interleaved pipeline must have 2 or more chunks, others 1"
            raise KeyProblem("chunks", f"{text}; got {self.chunks} and schedule {self.schedule}")
        if self.pipeline * self.chunks > model.layers:
            parts = f"{self.pipeline} stages" + (f" of {self.chunks} chunks" if self.chunks > 1 else "")
            raise KeyProblem("pipeline", f"{parts} need more than the {model.layers} layers of the model")
        for key, count, what in (("pipeline", model.layers, "layers"), ("tensor", model.heads, "heads")):
            degree = getattr(self, key) * (self.chunks if key == "pipeline" else 1)
            if count % degree:
                raise KeyProblem(key, f"{count} {what} do not divide into {degree} equal parts")
        if self.model.experts % self.experts:
            text = f"{self.model.experts} experts do not divide into {self.experts} equal parts"
            raise KeyProblem("experts", text if self.model.experts > 1 else f"{text}; the model has none")

    def plan(self, gpus: int) -> training.ParallelPlan:
        """Return the parallel plan on this number of GPUs; KeyProblem if it is impossible."""
        stage = self.tensor * self.pipeline
        data = self.data or max(1, gpus // stage)
        if stage * data != gpus:
            degrees = f"tensor {self.tensor} × pipeline {self.pipeline} × data {data}"
            text = f"{degrees} must be the {gpus} GPUs of the job; got {stage * data}"
            raise KeyProblem("data" if self.data else "tensor", text)
        if self.batch % (data * self.micro_batch):
            samples = f"{self.batch} samples do not divide into micro-batches of {self.micro_batch}"
            raise KeyProblem("batch", f"{samples} on each of {data} data-parallel ranks")
        if data % self.experts:
            groups = f"expert-parallel groups of {self.experts}"
            raise KeyProblem("experts", f"{data} data-parallel ranks of training do not divide evenly into {groups}")
        plan: training.ParallelPlan = self.made(data=data)
        if self.chunks > 1 and plan.micro_batches % self.pipeline:
            text = f"{plan.micro_batches} micro-batches do not divide into rounds of {self.pipeline} stages"
            raise KeyProblem("batch", f"{text}, which an interleaved pipeline requires")
        return plan

    def transformer(self) -> training.Transformer:
        return self.model.described()
