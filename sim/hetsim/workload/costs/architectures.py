"""Architectures of language models, from their published configurations.

Parameters, bytes of keys and values and operations are counted from the shapes of the matrices; biases and norms are
left out, which changes no figure by more than 0.2 %.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from hetsim.errors import UnknownName
from hetsim.model.described import Described
from hetsim.model.units import is_number, shown


def _number(value: Any) -> Any:
    if not is_number(value):
        raise ValueError(f"expected a number, not {shown(value)}")
    return value


Whole = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Width = Annotated[float, Field(gt=0, le=16), BeforeValidator(_number)]


class Architecture(Described):
    """The shape of a decoder-only transformer: weights, keys and values, operations."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: Whole
    """Number of layers."""
    hidden: Whole
    """Hidden size."""
    heads: Whole
    """Attention heads of a layer."""
    kv_heads: Whole | None = None
    """Heads of keys and values, as many as `heads` unless given."""
    head_size: Whole | None = None
    """Size of a head, hidden / heads unless given."""
    intermediate: Whole
    """Intermediate size of the feed-forward block, or of each expert."""
    vocabulary: Whole
    """Tokens of the vocabulary."""
    gated: bool = True
    """Has the feed-forward block a gate, and so three matrices rather than two?"""
    tied: bool = False
    """Is the first matrix of the vocabulary the last one too?"""
    experts: Whole = 1
    """Experts of a layer (mixture of experts)."""
    active_experts: Whole = 1
    """Experts of a layer that a token needs."""
    bytes_per_weight: Width = 2.0
    """Bytes of a weight: 2 in 16 bits, 1 quantized to 8, 0.5 to 4."""
    bytes_per_value: Width = 2.0
    """Bytes of a number of the keys and values."""

    @model_validator(mode="after")
    def _check(self) -> Architecture:
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(f"a hidden size of {self.hidden} is not a multiple of {self.heads} heads; give head_size")
        if self.heads % self._kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self._kv_heads} heads of keys and values evenly")
        if self.active_experts > self.experts:
            raise ValueError(f"a token cannot need {self.active_experts} of {self.experts} experts")
        return self

    @property
    def _kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def _head_size(self) -> int:
        return self.head_size or self.hidden // self.heads

    @property
    def attention(self) -> int:
        """Weights of the attention of all layers, with those that choose the experts."""
        queries, keys = self.heads * self._head_size, self._kv_heads * self._head_size
        chooser = self.experts if self.experts > 1 else 0
        return self.layers * self.hidden * (2 * queries + 2 * keys + chooser)

    @property
    def expert(self) -> int:
        """Weights of one expert of every layer."""
        return self.layers * (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def head(self) -> int:
        """Weights of the last matrix."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.attention + self.experts * self.expert + self.head * (1 if self.tied else 2)

    @property
    def bytes(self) -> int:
        """Of all weights."""
        return round(self.parameters * self.bytes_per_weight)

    @property
    def bytes_per_token(self) -> int:
        """Of the keys and values of a token."""
        return round(2 * self.layers * self._kv_heads * self._head_size * self.bytes_per_value)

    @property
    def operations_per_pair(self) -> int:
        """Of the attention between a token and one token before it, in all layers."""
        return 4 * self.layers * self.heads * self._head_size

    def stored(self, devices: int) -> int:
        """Bytes of the keys and values of a token on some devices; few heads are copied."""
        return self.bytes_per_token * max(1, -(-devices // self._kv_heads))


def _model(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int, **more: Any) -> (
    Architecture
):  # fmt: skip
    return Architecture(
        layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, intermediate=intermediate, vocabulary=vocabulary,
        **more,
    )  # fmt: skip


MODELS: dict[str, Architecture] = {
    # The file config.json next to each model's published weights; Bloom, OPT, GPT-3 and Falcon: their papers.
    "bloom-176b": _model(70, 14336, 112, kv_heads=112, intermediate=57344, vocabulary=250880, gated=False, tied=True),
    "falcon-40b": _model(60, 8192, 128, kv_heads=8, intermediate=32768, vocabulary=65024, gated=False),
    "gemma-2-9b": _model(42, 3584, 16, kv_heads=8, intermediate=14336, vocabulary=256000, head_size=256, tied=True),
    "gemma-2-27b": _model(46, 4608, 32, kv_heads=16, intermediate=36864, vocabulary=256000, head_size=128, tied=True),
    "gpt-3-175b": _model(96, 12288, 96, kv_heads=96, intermediate=49152, vocabulary=50257, gated=False, tied=True),
    "llama-2-7b": _model(32, 4096, 32, kv_heads=32, intermediate=11008, vocabulary=32000),
    "llama-2-13b": _model(40, 5120, 40, kv_heads=40, intermediate=13824, vocabulary=32000),
    "llama-2-70b": _model(80, 8192, 64, kv_heads=8, intermediate=28672, vocabulary=32000),
    "llama-3-8b": _model(32, 4096, 32, kv_heads=8, intermediate=14336, vocabulary=128256),
    "llama-3-70b": _model(80, 8192, 64, kv_heads=8, intermediate=28672, vocabulary=128256),
    "llama-3.1-405b": _model(126, 16384, 128, kv_heads=8, intermediate=53248, vocabulary=128256),
    "mistral-7b": _model(32, 4096, 32, kv_heads=8, intermediate=14336, vocabulary=32000),
    "mixtral-8x7b": _model(32, 4096, 32, kv_heads=8, intermediate=14336, vocabulary=32000, experts=8, active_experts=2),
    "mixtral-8x22b": _model(
        56, 6144, 48, kv_heads=8, intermediate=16384, vocabulary=32768, experts=8, active_experts=2
    ),
    "opt-13b": _model(40, 5120, 40, kv_heads=40, intermediate=20480, vocabulary=50272, gated=False, tied=True),
    "opt-66b": _model(64, 9216, 72, kv_heads=72, intermediate=36864, vocabulary=50272, gated=False, tied=True),
    "phi-3-mini": _model(32, 3072, 32, kv_heads=32, intermediate=8192, vocabulary=32064),
    "qwen2.5-7b": _model(28, 3584, 28, kv_heads=4, intermediate=18944, vocabulary=152064),
    "qwen2.5-32b": _model(64, 5120, 40, kv_heads=8, intermediate=27648, vocabulary=152064),
    "qwen2.5-72b": _model(80, 8192, 64, kv_heads=8, intermediate=29568, vocabulary=152064),
    "qwen3-30b-a3b": _model(
        48, 2048, 32, kv_heads=4, intermediate=768, vocabulary=151936, head_size=128, experts=128, active_experts=8
    ),
    "qwen3-235b-a22b": _model(
        94, 4096, 64, kv_heads=4, intermediate=1536, vocabulary=151936, head_size=128, experts=128, active_experts=8
    ),
}


def model(name: str) -> Architecture:
    """The architecture of a model in `MODELS`; UnknownName with a suggestion if none."""
    if name not in MODELS:
        raise UnknownName("model", name, MODELS)
    return MODELS[name]
