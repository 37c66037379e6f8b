"""Architectures of language models, from their published configurations.

Parameters, bytes of keys and values and operations are counted from the shapes of the matrices; biases and norms are
left out, which changes no figure by more than 0.2 %.  Layers that only predict further tokens, and the parts that see
or hear, are left out too.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from hetsim.errors import UnknownName
from hetsim.model.described import Frozen, shipped

Whole = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]

WIDTHS = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32,
    "int4": 0.5 + 2 / 128, "int4-32": 0.5 + 2 / 32,
}  # fmt: skip
"""Bytes of a number, and of its part of a scale: a byte for 16 (NVFP4) or 32 (MXFP4), two for 128 or 32 (int4)."""
KEPT = 2.0
"""Bytes of a number of what stays in 16 bits: the matrices of the vocabulary, and those that choose experts."""
CONTEXT = 4096
"""Tokens of context over which what does not grow with it is spread: windows, and states of linear attention."""

Width = Literal["bf16", "fp16", "fp8", "int8", "nvfp4", "mxfp4", "int4", "int4-32"]


class NumberFormat(Frozen):
    """Number formats: of weights, of keys and values, and of arithmetic.

    What is left out is in 16 bits, but for the experts, whose format is that of the other weights; the weights of the
    vocabulary are in 16 bits always.  Where a GPU has no units for an arithmetic it computes in the next wider one.
    """

    weights: Width = "bf16"
    experts: Width | None = None
    kv: Literal["bf16", "fp16", "fp8", "int8", "nvfp4"] = "bf16"
    arithmetic: Literal["bf16", "fp16", "fp8", "int8", "fp4"] = "bf16"

    @property
    def of_weights(self) -> str:
        """The formats of the weights, in words."""
        if self.experts is not None:
            return f"with experts in {self.experts}"
        return "in 16 bits" if WIDTHS[self.weights] == KEPT else f"in {self.weights}"


FORMATS = {name: NumberFormat.model_validate({"weights": name}) for name in WIDTHS} | {
    "fp8": NumberFormat(weights="fp8", kv="fp8", arithmetic="fp8"),
    "int8": NumberFormat(weights="int8", arithmetic="int8"),
    "nvfp4": NumberFormat(weights="nvfp4", kv="fp8", arithmetic="fp4"),
}
"""By the name that `number_format` takes: what servers do with such a checkpoint."""


def _format(value: Any) -> Any:
    if isinstance(value, str):
        if value not in FORMATS:
            raise ValueError(str(UnknownName("number format", value, FORMATS)))
        return FORMATS[value]
    return value


class Latent(Frozen):
    """Multi-head latent attention (DeepSeek-V2, 2024), under the names of config.json.

    A layer keeps `kv_lora_rank` numbers of a token for all heads, and `qk_rope_head_dim` that know its position.
    """

    kv_lora_rank: Whole
    q_lora_rank: Whole | None = None
    qk_nope_head_dim: Whole
    qk_rope_head_dim: Whole
    v_head_dim: Whole


class Indexer(Frozen):
    """Heads that choose the `tokens` that sparse attention reads (one key, FP8)."""

    heads: Whole
    head_size: Whole
    tokens: Whole


class Linear(Frozen):
    """Layers with gated linear attention, which keep a state.

    Reference: Yang et al., Gated Delta Networks, ICLR 2025.  Before it goes a convolution over that number of tokens.
    """

    layers: Whole
    key_heads: Whole
    key_size: Whole
    value_heads: Whole
    value_size: Whole
    convolution: Whole = 4

    @property
    def queries(self) -> int:
        """Numbers of queries, keys and values of a token, added up."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size


class Attention(NamedTuple):
    """The attention of layers with the same reach, added up.

    They read `reach` tokens of the context (None: all), with these bytes of each, and compute with each pair of tokens,
    while a prompt is read or while decoding: latent attention multiplies there what it keeps, without expanding it.
    """

    reach: int | None
    bytes: float
    prompt_operations: float
    decode_operations: float

    def share(self, context: float) -> float:
        """The share of a context that is read."""
        return 1.0 if self.reach is None else min(1.0, self.reach / context)


class Architecture(Frozen):
    """The shape of a decoder-only transformer: weights, keys and values, operations."""

    layers: Whole
    hidden: Whole
    heads: Whole
    """Attention heads of a layer."""
    kv_heads: Whole | None = None
    """Heads of keys and values, as many as `heads` unless given."""
    head_size: Whole | None = None
    """Size of a head, hidden / heads unless given."""
    latent: Latent | None = None
    """Latent attention, in place of `kv_heads` and `head_size`."""
    indexer: Indexer | None = None
    window: Whole | None = None
    """Tokens of context that layers with a sliding window read."""
    windowed_layers: Whole | None = None
    """Layers with that window; all that have attention unless given."""
    linear: Linear | None = None
    output_gate: bool = False
    """Whether attention has a gate of the size of its queries."""
    intermediate: Whole
    """Intermediate size of the feed-forward block, or of each expert."""
    shared_intermediate: Count = 0
    """Intermediate size of the experts that every token goes through, together."""
    dense_layers: Count = 0
    """Layers of a mixture of experts that have none."""
    dense_intermediate: Whole | None = None
    """Intermediate size of those layers."""
    vocabulary: Whole
    """Tokens of the vocabulary."""
    gated: bool = True
    """Whether the feed-forward block has a gate, and so three matrices instead of two."""
    tied: bool = False
    """Whether the first and the last matrix of the vocabulary are one."""
    experts: Whole = 1
    """Experts of a layer (mixture of experts)."""
    active_experts: Whole = 1
    """Experts of a layer that a token needs."""
    number_format: Annotated[NumberFormat, BeforeValidator(_format)] = NumberFormat()
    """Formats of numbers: bf16, fp8, int8, nvfp4, mxfp4, int4, int4-32, or {weights, experts, kv, arithmetic}."""

    def _check_keys(self) -> None:
        layers, heads, experts = self.layers, self.heads, self.experts
        linear = self.linear.layers if self.linear is not None else 0
        apart = self.dense_layers > 0
        own = self.latent is not None
        problems = (
            (own and (self.kv_heads or self.head_size), "latent attention has no kv_heads or head_size"),
            (not own and self.head_size is None and self.hidden % heads,
             f"hidden must be a multiple of heads ({heads}), or head_size be given; got {self.hidden}"),
            (heads % self._kv_heads, f"heads must be a multiple of kv_heads ({self._kv_heads}); got {heads}"),
            (self.active_experts > experts, f"active_experts must be at most {experts}; got {self.active_experts}"),
            (experts == 1 and (self.shared_intermediate or apart),
             "shared experts and layers without experts need several experts; give experts"),
            (apart != (self.dense_intermediate is not None) or self.dense_layers >= layers,
             "dense_layers and dense_intermediate must be given together, with fewer dense_layers than layers"),
            (self.windowed_layers and self.window is None, "windowed_layers need window, a number of tokens"),
            (self.indexer is not None and not own, "an indexer needs latent attention; give latent"),
            ((self.windowed_layers or 0) + linear > layers or linear == layers,
             f"windowed_layers and linear_layers must be at most layers ({layers})"),
        )  # fmt: skip
        for wrong, message in problems:
            if wrong:
                raise ValueError(message)

    def check_parts(self, gpus: int) -> None:
        """ValueError where the heads do not divide over the GPUs."""
        if self.heads % gpus:
            raise ValueError(f"{self.heads} attention heads must be a multiple of the {gpus} GPUs")

    @property
    def _kv_heads(self) -> int:
        return 1 if self.latent is not None else self.kv_heads or self.heads

    @property
    def _head_size(self) -> int:
        return self.head_size or self.hidden // self.heads

    @property
    def attention_layers(self) -> int:
        """Number of layers that keep keys and values."""
        return self.layers - (self.linear.layers if self.linear is not None else 0)

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts, or of feed-forward blocks."""
        return self.layers - self.dense_layers

    @property
    def matrices(self) -> list[tuple[str, int, int, int]]:
        """Part, inputs, outputs and count of all matrices but the first.

        The number is that in all layers.  Of the part "expert" are those of one expert; shared experts are "dense".
        """
        hidden, gates = self.hidden, 2 if self.gated else 1
        rows = [("attention", *shape, self.attention_layers) for shape in self._projections]
        if (linear := self.linear) is not None:
            values = linear.value_heads * linear.value_size
            inner = linear.queries + values + 2 * linear.value_heads
            shapes = ((hidden, inner), (linear.queries, linear.convolution), (values, hidden))
            rows += [("attention", *shape, linear.layers) for shape in shapes]
        blocks = (
            ("dense" if self.experts == 1 else "expert", self.intermediate, self.expert_layers),
            ("dense", self.shared_intermediate, self.expert_layers),
            ("dense", self.dense_intermediate or 0, self.dense_layers),
        )
        for part, size, layers in blocks:
            rows += [(part, hidden, gates * size, layers), (part, size, hidden, layers)]
        chooser = self.experts if self.experts > 1 else 0
        return [*rows, ("router", hidden, chooser, self.expert_layers), ("head", hidden, self.vocabulary, 1)]

    @property
    def _projections(self) -> list[tuple[int, int]]:
        """Inputs and outputs of the matrices of a layer with attention."""
        latent, indexer, hidden = self.latent, self.indexer, self.hidden
        if latent is None:
            queries, keys = self.heads * self._head_size, self._kv_heads * self._head_size
            return [(hidden, queries * (2 if self.output_gate else 1) + 2 * keys), (queries, hidden)]
        queries = self.heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
        rank = latent.q_lora_rank
        shapes = [(hidden, queries)] if rank is None else [(hidden, rank), (rank, queries)]
        shapes += [
            (hidden, latent.kv_lora_rank + latent.qk_rope_head_dim),
            (latent.kv_lora_rank, self.heads * (latent.qk_nope_head_dim + latent.v_head_dim)),
            (self.heads * latent.v_head_dim, hidden),
        ]
        if indexer is not None:
            shapes += [
                (rank or hidden, indexer.heads * indexer.head_size), (hidden, indexer.head_size + indexer.heads)
            ]  # fmt: skip
        return shapes

    def weights_of(self, *parts: str) -> int:
        """Number of weights in these parts; of one expert per layer."""
        return sum(inputs * outputs * copies for part, inputs, outputs, copies in self.matrices if part in parts)

    @property
    def attention(self) -> int:
        """Number of weights in the attention of all layers."""
        return self.weights_of("attention", "router")

    @property
    def dense(self) -> int:
        """Number of feed-forward weights that every token needs."""
        return self.weights_of("dense")

    @property
    def expert(self) -> int:
        """Number of weights of one expert of every layer."""
        return self.weights_of("expert")

    @property
    def head(self) -> int:
        """Number of weights of the last matrix."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.attention + self.dense + self.experts * self.expert + self.head * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Number of weights with which a token is multiplied."""
        return self.attention + self.dense + self.active_experts * self.expert + self.head

    @property
    def expert_width(self) -> float:
        """Bytes per weight of an expert."""
        return WIDTHS[self.number_format.experts or self.number_format.weights]

    @property
    def dense_bytes(self) -> float:
        """Bytes of the weights that every token needs."""
        width = WIDTHS[self.number_format.weights]
        return self.weights_of("attention", "dense") * width + self.weights_of("router", "head") * KEPT

    @property
    def bytes(self) -> int:
        first = 0.0 if self.tied else self.head * KEPT
        return round(self.dense_bytes + self.experts * self.expert * self.expert_width + first)

    @property
    def attentions(self) -> list[Attention]:
        """The attention of all layers, by reach."""
        width, layers = WIDTHS[self.number_format.kv], self.attention_layers
        if self.latent is not None:
            kept, rope = self.latent.kv_lora_rank, self.latent.qk_rope_head_dim
            sizes = self.latent.qk_nope_head_dim + rope + self.latent.v_head_dim
            one = (kept + rope) * width, 2 * self.heads * sizes, 2 * self.heads * (2 * kept + rope)
        else:
            pair = 4 * self.heads * self._head_size
            one = 2 * self._kv_heads * self._head_size * width, pair, pair
        if self.indexer is not None:
            pair = 2 * self.indexer.heads * self.indexer.head_size * layers
            chooser = Attention(None, (self.indexer.head_size + 4) * layers, pair, pair)  # in 8 bits, with a scale
            return [chooser, Attention(self.indexer.tokens, *(layers * value for value in one))]
        windowed = 0 if self.window is None else self.windowed_layers or layers
        groups = (None, layers - windowed), (self.window, windowed)
        return [Attention(reach, *(count * value for value in one)) for reach, count in groups if count]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of a token, all layers."""
        return round(sum(one.bytes for one in self.attentions))

    @property
    def operations_per_pair(self) -> float:
        """Operations of attention for a pair of tokens."""
        return sum(one.prompt_operations for one in self.attentions)

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of a sequence, and of convolutions."""
        if self.linear is None:
            return 0
        one = self.linear
        state = one.value_heads * one.key_size * one.value_size * 4.0 + one.queries * (one.convolution - 1) * KEPT
        return round(one.layers * state)

    @property
    def state_operations(self) -> int:
        """Operations on the states of all layers per token."""
        one = self.linear
        return 0 if one is None else 7 * one.layers * one.value_heads * one.key_size * one.value_size

    def _copies(self, devices: int) -> int:
        return max(1, -(-devices // self._kv_heads))

    def read(self, devices: int) -> float:
        """Bytes per token that decoding reads and writes in a context."""
        kept = sum(one.bytes * one.share(CONTEXT) for one in self.attentions)
        return kept * self._copies(devices) + 2.0 * self.state_bytes / CONTEXT

    def stored(self, devices: int) -> int:
        """Bytes that a token occupies in a context of `CONTEXT`."""
        if self.indexer is not None:  # it may choose any token
            return self.bytes_per_token * self._copies(devices)
        return math.ceil(self.read(devices) - self.state_bytes / CONTEXT)


MODELS: dict[str, Architecture] = shipped(Architecture, __file__, "models.yaml")


def model(name: str) -> Architecture:
    """The architecture of a model in `MODELS`; UnknownName if it is not there."""
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    return MODELS[name]
