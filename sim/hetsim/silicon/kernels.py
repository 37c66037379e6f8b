"""Kernels of a step of a language model, by tokens, sequences and context.

A layer multiplies with its matrices, attends, sums partial results over the GPUs twice, and, in a mixture of experts,
sends its tokens through experts.  The time of each kernel comes from a measured surface of the engine on that GPU.
Kernels that were not measured for a model raise `NotMeasured`.  Experts are an exception: the times of an unmeasured
shape are those of the nearest measured shape, in proportion to the operations.  The times of an unmeasured division
over GPUs differ from those of the nearest measured division as they differ with other engines on the same GPU.

`surfaces.parquet` has measured times on regular grids, by GPU and engine.  `benchmarks/distil.py` makes it from the
kernel tables of aiconfigurator-core (Apache-2.0; NOTICE names source and changes).
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import numpy as np

from hetsim.build import package_data
from hetsim.model.step_times import KernelSteps
from hetsim.silicon import exact
from hetsim.workload.costs.architectures import WIDTHS, Architecture
from hetsim.workload.costs.roofline import Peak

STEPS = 512.0  # steps of a stored value per factor of two

ENGINES = ("vllm", "trtllm", "sglang")
Key = tuple[str, str, str, str, tuple[int, ...]]
Coordinate = float | np.ndarray


@dataclass(frozen=True)
class Surface:
    """Log2 of a kernel's time in ns on a grid; log-log interpolation in between."""

    version: str
    axes: tuple[np.ndarray, ...]  # log2 of the points of each axis
    values: np.ndarray
    launch: float = 0.0  # smallest time of the shipped grid; a recorded graph of kernels hides most of it

    def at(self, *coordinates: Coordinate) -> np.ndarray:
        """Return a kernel's seconds by sizes; constant below the grid, extrapolated above."""
        places, shares = [], []
        for points, coordinate in zip(self.axes, coordinates, strict=True):
            value = np.log2(np.maximum(np.asarray(coordinate, dtype=float), 1e-9))
            if len(points) == 1:
                places.append((np.zeros(value.shape, int),) * 2)
                shares.append((np.ones(value.shape), np.zeros(value.shape)))
                continue
            low = np.clip(np.searchsorted(points, value, side="right") - 1, 0, len(points) - 2)
            share = np.maximum(0.0, (value - points[low]) / (points[low + 1] - points[low]))
            places.append((low, low + 1))
            shares.append((1.0 - share, share))
        total: np.ndarray = np.zeros(())
        for corner in product((0, 1), repeat=len(self.axes)):
            weight: np.ndarray = np.ones(())
            for axis, side in enumerate(corner):
                weight = weight * shares[axis][side]
            total = total + weight * self.values[tuple(places[axis][side] for axis, side in enumerate(corner))]
        return np.asarray(np.exp2(total / STEPS) * 1e-9)

    def beyond(self, *coordinates: Coordinate) -> np.ndarray:
        """Return seconds at coordinates minus the time to launch a kernel (at least 0)."""
        return np.maximum(0.0, self.at(*coordinates) - self.launch)


@cache
def surfaces() -> dict[Key, Surface]:
    """Return shipped kernel times by (GPU, engine, kernel, number format, shape)."""
    import pyarrow.parquet as pq

    made = {}
    for row in pq.read_table(io.BytesIO(package_data(__file__, "surfaces.parquet"))).to_pylist():
        axes = tuple(np.log2(points) for points in row["axes"])
        values = np.array(row["values"], dtype=np.int16).reshape([len(points) for points in axes])
        key = (row["gpu"], row["engine"], row["kernel"], row["format"], tuple(row["shape"]))
        made[key] = Surface(row["version"], axes, values, float(np.exp2(values.min() / STEPS) * 1e-9))
    return made


@cache
def surface_of(key: Key) -> Surface:
    """Return a kernel's surface, with all points if aiconfigurator-core is installed."""
    shipped = surfaces()[key]
    if (table := exact.measured(*key, shipped.version)) is None:
        return shipped
    points = [np.union1d(np.rint(np.exp2(axis)), one) for axis, one in zip(shipped.axes, table[0], strict=True)]
    values = STEPS * np.log2(1e9 * shipped.at(*np.meshgrid(*points, indexing="ij")))
    where = tuple(np.searchsorted(axis, one) for axis, one in zip(points, table[0], strict=True))
    values[where] = STEPS * np.log2(np.maximum(1e9 * table[1], 100.0))
    values = never_shorter(values) if key[2].startswith("sparse") else values
    return Surface(shipped.version, tuple(map(np.log2, points)), values, shipped.launch)


def never_shorter(values: np.ndarray) -> np.ndarray:
    """Return times on a grid, each reduced to the smallest time of all larger sizes."""
    for axis in range(values.ndim):
        values = np.flip(np.minimum.accumulate(np.flip(values, axis), axis), axis)
    return values


TOKENS = np.array([1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280,
                   1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768])  # fmt: skip
SEQUENCES = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024])
CONTEXTS = np.array([0, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 131072])
PROMPTS = np.array([1, 2, 4, 8, 16, 32, 64])
LENGTHS = np.array([0, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 2**20])
# Formats of surfaces by number format, the preferred first; 8-bit checkpoints of experts are scaled by block
FORMATS = {
    "bf16": ("bfloat16",), "fp16": ("bfloat16",), "fp8": ("fp8", "fp8_block"), "nvfp4": ("nvfp4",),
    "int4": ("int4_wo",), "int4-32": ("int4_wo",), "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
}  # fmt: skip
SPARSE_HEADS = 8  # smallest number of heads of the surfaces of sparse attention
NORMS = 16.0  # bytes that norms, sums and rotations of a layer move per number of a token's hidden state


# parts that move bytes between kernels; their share of the measured times is fitted separately
MOVED = ("sums", "norms")


class NotMeasured(Exception):
    """A kernel has no measured times in the grids that ship with hetsim."""


@dataclass(frozen=True)
class Divided:
    """How the model of a replica is divided over its GPUs."""

    tensor: int = 1
    attention: int = 1  # groups of GPUs with separate requests in attention (attention data parallelism)
    expert_tensor: int | None = None
    expert: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.attention

    @property
    def experts(self) -> tuple[int, int]:
        """Tensor-parallel degree of each expert, and expert-parallel degree."""
        return self.expert_tensor or self.gpus // self.expert, self.expert


@dataclass
class Kernels:
    """Seconds of a step's kernels (matrices, experts, all-reduces, attention, others)."""

    layers: int
    special: bool = False  # latent or linear attention, whose layers have more kernels
    nvfp4: bool = False  # each matrix needs a kernel that quantizes its inputs
    tokens: dict[str, np.ndarray] = field(default_factory=dict)  # by `TOKENS`: matrices, experts, sums, norms
    last: np.ndarray = field(default_factory=lambda: np.zeros(len(TOKENS)))
    decode: np.ndarray = field(default_factory=lambda: np.zeros((len(SEQUENCES), len(CONTEXTS))))
    prefill: np.ndarray = field(default_factory=lambda: np.zeros((len(PROMPTS), len(LENGTHS))))
    transferred: list[str] = field(default_factory=list)  # names of kernels that were measured in another shape only

    def add(self, part: str, seconds: np.ndarray) -> None:
        """Add a kernel's seconds (by token count, as `TOKENS`) to a part such as experts."""
        self.tokens[part] = self.tokens.get(part, np.zeros(len(TOKENS))) + seconds

    def steps(self, constants: Mapping[str, float]) -> KernelSteps:
        """Return step times: kernel times scaled by the constants of a serving engine."""
        parts, kernels, moved = self.tokens, constants["kernels"], constants["moved"]
        linear = sum(((moved if part in MOVED else kernels) * parts[part] for part in parts), np.zeros(len(TOKENS)))
        fixed = constants["fixed"] + (constants["per_layer"] + constants["nvfp4"] * self.nvfp4) * self.layers
        reading = constants["reading"] + constants["reading_special"] * self.special
        rows = [tuple(row.tolist()) for row in kernels * self.decode]
        read = [tuple(row.tolist()) for row in kernels * self.prefill]
        return KernelSteps(
            fixed=fixed, reading=reading * self.layers, per_sequence=constants["per_sequence"],
            tokens=tuple(TOKENS.tolist()), linear=tuple(linear.tolist()), last=tuple((kernels * self.last).tolist()),
            sequences=tuple(SEQUENCES.tolist()), contexts=tuple(CONTEXTS.tolist()), decode=tuple(rows),
            prompts=tuple(PROMPTS.tolist()), lengths=tuple(LENGTHS.tolist()), prefill=tuple(read),
        )  # fmt: skip


@dataclass(frozen=True)
class Builder:
    """Builder of the kernels of a model on one GPU with one engine."""

    model: Architecture
    gpu: str
    peak: Peak
    engine: str
    divided: Divided

    def surface(self, kernel: str, formats: tuple[str, ...], shape: tuple[int, ...] = (), engine: str = "") -> Surface:
        """Return kernel times in the first format that has some; NotMeasured if none has."""
        for one in formats:
            key: Key = (self.gpu, engine or self.engine, kernel, one, shape)
            if key in surfaces():
                return surface_of(key)
        what = " or ".join(formats)
        raise NotMeasured(f"{kernel.replace('_', ' ')} in {what} was not measured with {self.engine} on {self.gpu}")

    def formats(self, number_format: str) -> tuple[str, ...]:
        """Return the measured formats whose kernels can replace those of a number format."""
        if (formats := FORMATS.get(number_format)) is None:
            raise NotMeasured(f"no kernels for numbers in {number_format} were measured")
        return formats[::-1] if self.model.experts > 1 and number_format == "fp8" else formats

    def matrix(self, outputs: float, inputs: float, number_format: str | None = None) -> np.ndarray:
        """Return seconds of a matrix product by number of tokens, without kernel launch."""
        formats = self.formats(number_format or self.model.number_format.weights)
        for one in formats:
            keys: list[Key] = [(self.gpu, engine, "matrix", one, ()) for engine in ENGINES]
            if launches := [surface_of(key).launch for key in keys if key in surfaces()]:
                return np.maximum(0.0, self.fastest("matrix", (one,), (TOKENS, outputs, inputs)) - min(launches))
        raise NotMeasured(f"matrix in {' or '.join(formats)} was not measured on {self.gpu}")

    def fastest(self, kernel: str, formats: tuple[str, ...], where: tuple[Coordinate, ...]) -> np.ndarray:
        """Return a kernel's seconds: the minimum over the engines that were measured.

        Many measured times include the host's launches of kernels, which a server avoids: it replays a recorded graph
        of kernels.  Large matrix products (over twice the time of the smallest) hide their launches: there the time
        that was measured with this engine is returned.
        """
        keys = [(self.gpu, engine, kernel, one, ()) for engine in ENGINES for one in formats]
        times = {key: surface_of(key).at(*where) for key in keys if key in surfaces()}
        if not times:
            raise NotMeasured(f"{kernel} in {' or '.join(formats)} was not measured on {self.gpu}")
        fastest = np.asarray(np.minimum.reduce(list(times.values())))
        if kernel == "matrix" and (own := [seconds for key, seconds in times.items() if key[1] == self.engine]):
            seconds = np.minimum.reduce(own)
            fastest = np.where(seconds > 2.0 * seconds.flat[0], seconds, fastest)
        return fastest

    def made(self) -> Kernels:
        """Return all kernels of a step; NotMeasured names a kernel that is missing."""
        model, tensor = self.model, self.divided.tensor
        kernels = kernels_for(model)
        (self._latent if model.latent is not None else self._attention)(kernels)
        if model.linear is not None:
            self._linear(kernels)
        self._feed_forward(kernels)
        kernels.last = self.matrix(model.vocabulary / tensor, model.hidden, "bf16")
        moved = NORMS * model.hidden * model.layers / (0.75 * self.peak.bandwidth)
        kernels.add("norms", TOKENS * moved)
        return kernels

    def _attention(self, kernels: Kernels) -> None:
        model, tensor = self.model, self.divided.tensor
        layers, size = model.attention_layers, model._head_size
        heads = max(1, model.heads // tensor)
        keys = max(1, model._kv_heads // tensor)
        queries = heads * size
        gate = 2 if model.output_gate else 1
        kernels.add("matrices", layers * self.matrix(gate * queries + 2 * keys * size, model.hidden))
        kernels.add("matrices", layers * self.matrix(model.hidden, queries))
        kept = self._kept(kernels)
        windowed = 0 if model.window is None else model.windowed_layers or layers
        for count, window in ((layers - windowed, None), (windowed, model.window)):
            if not count:
                continue
            decode, prefill = (self.surface(kernel, kept, (size, 0)) for kernel in ("decode", "prefill"))
            reach = CONTEXTS if window is None else np.minimum(CONTEXTS, window)
            kernels.decode += count * decode.beyond(keys, heads / keys, SEQUENCES[:, None], reach)
            seen = 1.0 if window is None else np.minimum(1.0, window / np.maximum(LENGTHS, 1.0))
            seconds = prefill.at(heads, PROMPTS[:, None], LENGTHS) * seen * (2.0 - seen)  # the share of its pairs
            kernels.prefill += count * seconds * (LENGTHS > 0)

    def _kept(self, kernels: Kernels) -> tuple[str, str]:
        """Return the formats of keys and values whose kernels are used, the best first."""
        number_format = self.model.number_format.kv
        if number_format == "nvfp4":
            # no engine was measured with it
            kernels.transferred.append("attention to keys and values in nvfp4 has the times of fp8")
            number_format = "fp8"
        return min(self.formats(number_format)), "bfloat16"  # the first is not scaled by block

    def _latent(self, kernels: Kernels) -> None:
        model, tensor = self.model, self.divided.tensor
        latent = model.latent
        assert latent is not None
        if (latent.kv_lora_rank, latent.qk_rope_head_dim) != (512, 64):
            raise NotMeasured("latent attention was measured only with 512 + 64 numbers per token")
        heads = max(1, model.heads // tensor)
        kept = self._kept(kernels)
        weights = self.formats(model.number_format.weights)
        formats = tuple(f"{one}/{other}" for one in (*weights, "fp8_block", "bfloat16") for other in kept)
        if model.indexer is not None:
            self._sparse(kernels, heads, formats)
            return
        try:
            decode, prefill = (self.surface(f"latent_module_{one}", formats) for one in ("decode", "prefill"))
        except NotMeasured:
            decode, prefill = (self.surface(f"latent_{one}", kept) for one in ("decode", "prefill"))
            queries = heads * (latent.qk_nope_head_dim + latent.qk_rope_head_dim)
            rank = latent.q_lora_rank or model.hidden
            for outputs, inputs in (
                (rank + latent.kv_lora_rank + latent.qk_rope_head_dim, model.hidden), (queries, rank),
                (model.hidden, heads * latent.v_head_dim),
            ):  # fmt: skip
                kernels.add("matrices", model.layers * self.matrix(outputs, inputs))
            for name in ("mla_gen_pre", "mla_gen_post"):
                seconds = self.surface(name, ("bfloat16", "fp8")).beyond(heads, SEQUENCES.astype(float))
                kernels.decode += model.layers * seconds[:, None]
            rows = PROMPTS[:, None] * LENGTHS
            expand = heads * (latent.qk_nope_head_dim + latent.v_head_dim)
            seconds = self.fastest("matrix", weights, (rows, expand, latent.kv_lora_rank))
            kernels.prefill += model.layers * (LENGTHS > 0) * seconds
        kernels.decode += model.layers * decode.beyond(heads, SEQUENCES[:, None], CONTEXTS)
        kernels.prefill += model.layers * (LENGTHS > 0) * prefill.at(heads, PROMPTS[:, None], LENGTHS)

    def _sparse(self, kernels: Kernels, heads: int, formats: tuple[str, ...]) -> None:
        """Add attention to the tokens that an indexer chooses, and all projections."""
        model, latent, indexer = self.model, self.model.latent, self.model.indexer
        assert latent is not None and indexer is not None
        sizes = latent.q_lora_rank or 0, latent.qk_nope_head_dim, latent.v_head_dim
        shape = (model.hidden, *sizes, indexer.heads, indexer.head_size, indexer.tokens)
        if not any(key[:3] == (self.gpu, self.engine, "sparse_decode") and key[4] == shape for key in surfaces()):
            raise NotMeasured(f"sparse attention of this shape was not measured with {self.engine} on {self.gpu}")
        decode, prefill = (self.surface(f"sparse_{one}", formats, shape) for one in ("decode", "prefill"))
        # The smallest measured time of decoding is that of launches and of reading the weights of the fewest heads.
        smallest, weights = (
            sum(map(math.prod, model.model_copy(update={"heads": count})._projections))
            * WIDTHS[model.number_format.weights] / (0.75 * self.peak.bandwidth)
            for count in (SPARSE_HEADS, heads)
        )  # fmt: skip
        seconds = decode.beyond(heads, SEQUENCES[:, None], CONTEXTS) + min(smallest, decode.launch)
        kernels.decode += model.layers * seconds
        seconds = never_shorter(np.maximum(weights, prefill.at(heads, PROMPTS[:, None], LENGTHS)))
        kernels.prefill += model.layers * (LENGTHS > 0) * seconds

    def _linear(self, kernels: Kernels) -> None:
        model, tensor, linear = self.model, self.divided.tensor, self.model.linear
        assert linear is not None
        heads, values = max(1, linear.value_heads // tensor), linear.value_heads * linear.value_size
        outputs = (linear.queries + values + 2 * linear.value_heads) / tensor
        kernels.add("matrices", linear.layers * self.matrix(outputs, model.hidden))
        kernels.add("matrices", linear.layers * self.matrix(model.hidden, values / tensor))
        decode, prefill = (self.surface(f"delta_{one}", ("bfloat16",)) for one in ("decode", "prefill"))
        kernels.decode += linear.layers * decode.beyond(heads, SEQUENCES[:, None], 1.0)
        kernels.prefill += linear.layers * (LENGTHS > 0) * prefill.at(heads, PROMPTS[:, None], LENGTHS)

    def _feed_forward(self, kernels: Kernels) -> None:
        model, divided = self.model, self.divided
        dense = [(model.dense_intermediate or 0, model.dense_layers), (model.shared_intermediate, model.expert_layers)]
        if model.experts == 1:
            dense = [(model.intermediate, model.layers)]
        gates = 2 if model.gated else 1
        for size, layers in dense:
            if size and layers:
                own = size / divided.tensor
                kernels.add("matrices", layers * self.matrix(gates * own, model.hidden))
                kernels.add("matrices", layers * self.matrix(model.hidden, own))
        if model.experts > 1:
            kernels.add("matrices", model.expert_layers * self.matrix(model.experts, model.hidden, "bf16"))
            kernels.add("experts", model.expert_layers * self._experts(kernels))
        if divided.tensor > 1:
            sums = self.fastest("all_reduce", ("bfloat16",), (divided.tensor, TOKENS * model.hidden))  # by numbers
            kernels.add("sums", 2 * model.layers * sums)
        if divided.attention > 1 and model.experts > 1:
            for name in ("nccl_all_gather", "nccl_reduce_scatter"):
                surface = self.surface(name, ("bfloat16",), engine="vllm")
                numbers = TOKENS * model.hidden * divided.attention
                kernels.add("sums", model.expert_layers * surface.at(divided.gpus, numbers))

    def _experts(self, kernels: Kernels) -> np.ndarray:
        model = self.model
        shape = (model.hidden, model.intermediate, model.active_experts, model.experts)
        formats = self.formats(model.number_format.experts or model.number_format.weights)
        own, tokens, near = self.divided.experts, TOKENS * self.divided.attention, []
        for key in surfaces():
            if key[:3] == (self.gpu, self.engine, "experts") and key[3] in formats:
                apart, others = far(own, key[4][4:]), self._divided_by_others(key)
                distance = far(shape, key[4][:4]) + (1 if others else 4) * apart
                near.append((formats.index(key[3]), distance, key, others if apart else []))
        if not near:
            raise NotMeasured(f"experts in {' or '.join(formats)} were not measured with {self.engine} on {self.gpu}")
        _, distance, key, others = min(near)  # in the first format that has some
        if distance > 4.0:
            raise NotMeasured(f"similar experts were not measured with {self.engine} on {self.gpu}")
        seconds = surface_of(key).at(tokens) * (math.prod(shape[:2]) / math.prod(key[4][:2]))
        how = f"changed as with {' and '.join(one[1] for one, _ in others)}" if others else "scaled by their weights"
        if distance:
            wanted, base = (f"{one[:4]} on {one[4]} x {one[5]} GPUs" for one in ((*shape, *own), key[4]))
            kernels.transferred.append(f"experts {wanted} (tensor x expert parallel) have the times of {base}, {how}")
        if not others:
            return seconds * (math.prod(key[4][4:]) / math.prod(own))
        ratios = [surface_of(one).at(tokens) / surface_of(other).at(tokens) for one, other in others]
        return np.asarray(seconds * np.prod(ratios, axis=0) ** (1 / len(ratios)))

    def _divided_by_others(self, key: Key) -> list[tuple[Key, Key]]:
        """Return other engines' surfaces of experts: as divided here, and as in `key`.

        The ratio of the two shows what the other division changes: narrower matrices use a GPU less well.
        """
        pairs: list[tuple[Key, Key]] = [
            ((self.gpu, engine, *key[2:4], (*key[4][:4], *self.divided.experts)), (self.gpu, engine, *key[2:]))
            for engine in ENGINES if engine != self.engine
        ]  # fmt: skip
        return [pair for pair in pairs if all(one in surfaces() for one in pair)]


def far(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return the distance of two shapes: the sum of |log2| of the ratios of sizes."""
    return sum(abs(math.log2(first / second)) for first, second in zip(one, other, strict=True))


def kernels_for(model: Architecture) -> Kernels:
    """Return the kernels of a model, all of them still without times."""
    formats = (model.number_format.weights, model.number_format.experts)
    return Kernels(model.layers, model.latent is not None or model.linear is not None, "nvfp4" in formats)


def kernels_of(model: Architecture, gpu: str, peak: Peak, engine: str, divided: Divided) -> Kernels:
    """Return the kernels of a step; NotMeasured names a kernel that is missing."""
    return Builder(model, gpu, peak, engine=engine, divided=divided).made()
