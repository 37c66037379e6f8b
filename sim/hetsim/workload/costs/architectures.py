"""Architectures of language models, from their published configurations.

Parameters, bytes of keys and values, and operations are counted from the shapes of the matrices.  Biases and norms
are ignored, which changes no figure by more than 0.2 %.  Layers that only predict additional tokens, and encoders of
images or sound, are ignored too.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from hetsim.errors import UnknownName
from hetsim.model.described import Frozen, shipped
from hetsim.model.units import shown

Whole = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**9, strict=True)]

# Bytes per number with its share of a scale factor: 1 byte per 16 (NVFP4) or 32 (MXFP4), 2 per 128 or 32 (int4)
WIDTHS = {
    "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5 + 1 / 16, "mxfp4": 0.5 + 1 / 32,
    "int4": 0.5 + 2 / 128, "int4-32": 0.5 + 2 / 32,
}  # fmt: skip
KEPT = 2.0  # bytes per weight that stays in 16 bits: matrices of the vocabulary and routers of experts
CONTEXT = 4096  # context length in tokens over which fixed costs are spread: windows, states of linear attention

Width = Literal["bf16", "fp16", "fp8", "int8", "nvfp4", "mxfp4", "int4", "int4-32"]


class NumberFormat(Frozen):
    """Number formats of weights, of keys and values, and of arithmetic.

    The default is 16 bits; experts default to the format of the other weights.  The weights of the vocabulary always
    have 16 bits.  A GPU without units for an arithmetic format computes in the next wider format.
    """

    weights: Width = "bf16"
    experts: Width | None = None
    kv: Literal["bf16", "fp16", "fp8", "int8", "nvfp4"] = "bf16"
    arithmetic: Literal["bf16", "fp16", "fp8", "int8", "fp4"] = "bf16"

    @property
    def of_weights(self) -> str:
        """Phrase for reports that names the formats of the weights."""
        if self.experts is not None:
            return f"with experts in {self.experts}"
        return "in 16 bits" if WIDTHS[self.weights] == KEPT else f"in {self.weights}"


# by the name that the key `number_format` accepts: the formats in which servers run such a checkpoint
FORMATS = {name: NumberFormat.model_validate({"weights": name}) for name in WIDTHS} | {
    "fp8": NumberFormat(weights="fp8", kv="fp8", arithmetic="fp8"),
    "int8": NumberFormat(weights="int8", arithmetic="int8"),
    "nvfp4": NumberFormat(weights="nvfp4", kv="fp8", arithmetic="fp4"),
}


def _format(value: Any) -> Any:
    if isinstance(value, dict | NumberFormat):
        return value
    if not isinstance(value, str):
        parts = ", ".join(NumberFormat.model_fields)
        raise ValueError(f"must be one of {', '.join(FORMATS)}, or {{{parts}}}; got {shown(value)}")
    if value not in FORMATS:
        raise ValueError(str(UnknownName("number format", value, FORMATS)))
    return FORMATS[value]


class Latent(Frozen):
    """Multi-head latent attention (DeepSeek-V2, 2024), with the keys of config.json.

    Per token, a layer stores `kv_lora_rank` numbers for all heads and `qk_rope_head_dim` numbers for the position.
    """

    kv_lora_rank: Whole
    q_lora_rank: Whole | None = None
    qk_nope_head_dim: Whole
    qk_rope_head_dim: Whole
    v_head_dim: Whole


class Indexer(Frozen):
    """Attention heads that choose which `tokens` tokens of the context are read.

    Sparse attention reads only the chosen tokens.  The heads share one key of `head_size` 8-bit numbers per token and
    layer.
    """

    heads: Whole
    head_size: Whole
    tokens: Whole


class Linear(Frozen):
    """Layers with gated linear attention, which store a state of constant size.

    `convolution`: width, in tokens, of the convolution before the attention.
    Reference: Yang et al., Gated Delta Networks, ICLR 2025.
    """

    layers: Whole
    key_heads: Whole
    key_size: Whole
    value_heads: Whole
    value_size: Whole
    convolution: Whole = 4

    @property
    def queries(self) -> int:
        """Number of elements of a token's queries, keys and values together."""
        return 2 * self.key_heads * self.key_size + self.value_heads * self.value_size


class Attention(NamedTuple):
    """Attention of all layers that read the same part of the context, added up.

    `reach`: number of tokens that are read (None: the whole context).  `bytes`: keys and values, per token read.
    `prompt_operations` and `decode_operations`: per pair of tokens, while a prompt is read and while tokens are
    decoded.  Decoding with latent attention computes directly with the compressed keys and values.
    """

    reach: int | None
    bytes: float
    prompt_operations: float
    decode_operations: float

    def share(self, context: float) -> float:
        """Return the fraction of `context` tokens that this attention reads."""
        return 1.0 if self.reach is None else min(1.0, self.reach / context)


class Architecture(Frozen):
    """Shape of a decoder-only transformer: weights, keys and values, operations."""

    layers: Whole
    hidden: Whole
    heads: Whole
    """Number of attention heads of a layer."""
    kv_heads: Whole | None = None
    """Number of key and value heads of a layer. Default: `heads`."""
    head_size: Whole | None = None
    """Size of a head. Default: hidden / heads."""
    latent: Latent | None = None
    """Latent attention; in place of `kv_heads` and `head_size`."""
    indexer: Indexer | None = None
    window: Whole | None = None
    """Number of tokens of context that a layer with a sliding window reads."""
    windowed_layers: Whole | None = None
    """Number of layers with a sliding window. Default: all layers with attention, if `window` is given."""
    linear: Linear | None = None
    output_gate: bool = False
    """Whether attention has an output gate of the size of its queries."""
    intermediate: Whole
    """Intermediate size of the feed-forward block; in a mixture of experts, of each expert."""
    shared_intermediate: Count = 0
    """Intermediate size of all shared experts together; every token uses the shared experts."""
    dense_layers: Count = 0
    """Number of layers without experts in a mixture of experts."""
    dense_intermediate: Whole | None = None
    """Intermediate size of the layers without experts."""
    vocabulary: Whole
    """Number of tokens in the vocabulary."""
    gated: bool = True
    """Whether the feed-forward block has a gate, and so three matrices instead of two."""
    tied: bool = False
    """Whether the input and the output matrix of the vocabulary are the same."""
    experts: Whole = 1
    """Number of experts per layer (mixture of experts)."""
    active_experts: Whole = 1
    """Number of experts per layer that a token uses."""
    number_format: Annotated[NumberFormat, BeforeValidator(_format)] = NumberFormat()
    """Number formats: one of bf16, fp8, int8, nvfp4, mxfp4, int4, int4-32, or {weights, experts, kv, arithmetic}."""

    def _check_keys(self) -> None:
        layers, heads, experts = self.layers, self.heads, self.experts
        linear = self.linear.layers if self.linear is not None else 0
        apart, own = self.dense_layers > 0, self.latent is not None
        problems = (
            (own and (self.kv_heads or self.head_size), "latent attention has no kv_heads or head_size"),
            (not own and self.head_size is None and self.hidden % heads,
             f"hidden must be a multiple of heads ({heads}), or head_size be given; got {self.hidden}"),
            (heads % self._kv_heads, f"heads must be a multiple of kv_heads ({self._kv_heads}); got {heads}"),
            (self.active_experts > experts, f"active_experts must be at most {experts}; got {self.active_experts}"),
            (experts == 1 and (self.shared_intermediate or apart),
             "shared experts and layers without experts need several experts; give experts"),
            (experts == 1 and self.number_format.experts not in (None, self.number_format.weights),
             "number_format: the model has no experts; give {weights: ...}, the format of all its weights"),
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
        """Raise ValueError unless the attention heads divide evenly over the GPUs."""
        if self.heads % gpus:
            raise ValueError(f"the attention heads ({self.heads}) must be a multiple of the number of GPUs ({gpus})")

    @property
    def _kv_heads(self) -> int:
        return 1 if self.latent is not None else self.kv_heads or self.heads

    @property
    def _head_size(self) -> int:
        return self.head_size or self.hidden // self.heads

    @property
    def attention_layers(self) -> int:
        """Number of layers that store keys and values."""
        return self.layers - (self.linear.layers if self.linear is not None else 0)

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts (in a dense model: all layers)."""
        return self.layers - self.dense_layers

    @property
    def matrices(self) -> list[tuple[str, int, int, int]]:
        """All matrices but the input embedding: (part, input size, output size, count).

        `count`: the number in all layers, with one expert per layer (part "expert"); shared experts belong to "dense".
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
            shapes += [(rank or hidden, indexer.heads * indexer.head_size), (hidden, indexer.head_size + indexer.heads)]
        return shapes

    def weights_of(self, *parts: str) -> int:
        """Return the number of weights in parts of `matrices`; of experts, one per layer."""
        return sum(inputs * outputs * copies for part, inputs, outputs, copies in self.matrices if part in parts)

    @property
    def attention(self) -> int:
        """Number of weights of attention and of the routers to experts, in all layers."""
        return self.weights_of("attention", "router")

    @property
    def dense(self) -> int:
        """Number of feed-forward weights that every token uses."""
        return self.weights_of("dense")

    @property
    def expert(self) -> int:
        """Number of weights of one expert in each layer, summed over all layers."""
        return self.weights_of("expert")

    @property
    def head(self) -> int:
        """Number of weights of the vocabulary's output matrix."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.attention + self.dense + self.experts * self.expert + self.head * (1 if self.tied else 2)

    @property
    def active_parameters(self) -> int:
        """Number of weights that are used to compute one token."""
        return self.attention + self.dense + self.active_experts * self.expert + self.head

    @property
    def expert_width(self) -> float:
        """Bytes per weight of an expert."""
        return WIDTHS[self.number_format.experts or self.number_format.weights]

    @property
    def expert_bytes(self) -> float:
        """Bytes of the weights of all experts."""
        return self.experts * self.expert * self.expert_width

    @property
    def dense_bytes(self) -> float:
        """Bytes of the weights that every token uses."""
        width = WIDTHS[self.number_format.weights]
        return self.weights_of("attention", "dense") * width + self.weights_of("router", "head") * KEPT

    @property
    def bytes(self) -> int:
        first = 0.0 if self.tied else self.head * KEPT
        return round(self.dense_bytes + self.expert_bytes + first)

    @property
    def attentions(self) -> list[Attention]:
        """Attention of the layers, grouped by how much of the context they read."""
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
        """Bytes of the keys and values of a token, over all layers."""
        return round(sum(one.bytes for one in self.attentions))

    @property
    def operations_per_pair(self) -> float:
        """Operations of attention per pair of tokens, while a prompt is read."""
        return sum(one.prompt_operations for one in self.attentions)

    @property
    def state_bytes(self) -> int:
        """Bytes of the linear-attention and convolution states of a sequence."""
        if (one := self.linear) is None:
            return 0
        state = one.value_heads * one.key_size * one.value_size * 4.0 + one.queries * (one.convolution - 1) * KEPT
        return round(one.layers * state)

    @property
    def state_operations(self) -> int:
        """Operations per token on the linear-attention states of all layers."""
        one = self.linear
        return 0 if one is None else 7 * one.layers * one.value_heads * one.key_size * one.value_size

    def _copies(self, devices: int) -> int:
        return max(1, -(-devices // self._kv_heads))

    def read(self, devices: int) -> float:
        """Return the memory traffic to decode a token, in bytes per token of its context.

        It is that of keys, values and states, without weights, on all `devices` GPUs.  Costs that do not grow with the
        context are spread over `CONTEXT` tokens.
        """
        kept = sum(one.bytes * one.share(CONTEXT) for one in self.attentions)
        return kept * self._copies(devices) + 2.0 * self.state_bytes / CONTEXT

    def stored(self, devices: int) -> int:
        """Return KV cache bytes per token of a context of `CONTEXT` tokens, on all GPUs."""
        if self.indexer is not None:  # it may choose any token
            return self.bytes_per_token * self._copies(devices)
        return math.ceil(self.read(devices) - self.state_bytes / CONTEXT)


MODELS: dict[str, Architecture] = shipped(Architecture, __file__, "models.yaml")


def model(name: str) -> Architecture:
    """Return the architecture `name` of `MODELS`; raise UnknownName for other names."""
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    return MODELS[name]
