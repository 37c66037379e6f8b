"""Profiles of deep-learning jobs: the work of a step, from the network's layers.

    classes:
      - {profile: cnn_training,  weight: 3, steps: 2000}
      - {profile: lstm_training, weight: 1, steps: 500}

Formulas, for 4-byte floats.  A multiply-add is two operations; biases, activations and losses are left out, since they
are small compared with the rest.  Operations per sample in the forward pass:

    convolution             2 · k² · in channels · out channels · out pixels
    transposed convolution  2 · k² · in channels · out channels · in pixels
    dense                   2 · in · out
    pooling                 k² · outputs
    simple recurrent        2 · units · (in + units) per token; four times as many for an LSTM
    embedding               none: it only copies rows

A backward pass costs twice a forward pass (one product for the gradient of the inputs, one for that of the weights), so
that training costs 3 forward passes, as is customary.

Memory traffic of a step, where each layer is one kernel: a layer reads its weights once per step (a recurrent layer
once per token, since each token is a kernel; an embedding reads the rows it copies), reads its input and writes its
output.  A backward pass moves twice the forward traffic of activations and reads the weights again.  Then the gradients
are written and read, and Adam reads and writes the weights and two moments: in total 8 × the weights.

GPU memory: for training the weights, their gradients and two moments, and all activations of the batch; for inference
the weights and the largest input and output of a layer.  Memory that the framework itself uses is not included.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from hetsim.errors import UnknownName
from hetsim.workload.costs.roofline import Peak, Work
from hetsim.workload.distributions import Constant, Distribution

FLOAT = 4  # bytes of a number, of a token and of a label
ADAM_TRAFFIC = 8  # copies of the weights: gradient written and read; weight and two moments read and written
ADAM_COPIES = 4  # in memory: weight, gradient and two moments

# Defaults of a profile: items per step, number of steps, reached fraction of the peak rates
BATCH, STEPS, EFFICIENCY = 64, 1.0, 0.5

Shape = tuple[int, ...]
Kind = Literal["training", "inference"]


class LayerCosts(NamedTuple):
    """Forward costs of a layer for one sample of its input shape."""

    output: Shape
    parameters: int = 0  # trainable numbers, biases included
    flops: int = 0
    reads: int = 1  # times that a pass reads the weights: once per kernel
    rows: int = 0  # weights read per sample, if only some rows are read


Layer = Callable[[Shape], LayerCosts]


def _convolution(filters: int, kernel: int, stride: int = 1, same: bool = False) -> Layer:
    def costs(shape: Shape) -> LayerCosts:
        lost = 0 if same else kernel - 1
        output = (*(math.ceil((size - lost) / stride) for size in shape[:2]), filters)
        weights = kernel**2 * shape[2]
        return LayerCosts(output, (weights + 1) * filters, 2 * weights * math.prod(output))

    return costs


def _transposed(filters: int, kernel: int, stride: int = 1) -> Layer:
    """Return a padded transposed convolution; each side grows by the stride."""

    def costs(shape: Shape) -> LayerCosts:
        output = shape[0] * stride, shape[1] * stride, filters
        return LayerCosts(output, (kernel**2 * shape[2] + 1) * filters, 2 * kernel**2 * filters * math.prod(shape))

    return costs


def _pool(size: int) -> Layer:
    """Return a k × k pooling with stride k; incomplete windows at an edge are dropped."""

    def costs(shape: Shape) -> LayerCosts:
        output = shape[0] // size, shape[1] // size, shape[2]
        return LayerCosts(output, flops=size**2 * math.prod(output))

    return costs


def _dense(units: int, output: Shape = ()) -> Layer:
    return lambda shape: LayerCosts(output or (units,), (math.prod(shape) + 1) * units, 2 * math.prod(shape) * units)


def _embedding(vocabulary: int, dimension: int) -> Layer:
    return lambda shape: LayerCosts((*shape, dimension), vocabulary * dimension, rows=math.prod(shape) * dimension)


def _recurrent(units: int, gates: int = 1) -> Layer:
    """Return h ← tanh(W x + U h + b) over (tokens, features); an LSTM has four gates."""

    def costs(shape: Shape) -> LayerCosts:
        tokens, inputs = shape[0], shape[1] + units
        return LayerCosts((units,), gates * units * (inputs + 1), tokens * gates * 2 * units * inputs, reads=tokens)

    return costs


class LayerNetwork:
    """Sequence of layers applied to an input shape; all figures are per sample."""

    def __init__(self, shape: Shape, layers: Iterable[Layer]):
        self.input = shape
        self.layers: list[LayerCosts] = []
        for layer in layers:
            self.layers.append(layer(self.output))

    @property
    def output(self) -> Shape:
        return self.layers[-1].output if self.layers else self.input

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> int:
        return sum(layer.flops for layer in self.layers)

    @property
    def kernels(self) -> int:
        """Number of kernels in the forward pass of a batch."""
        return sum(layer.reads for layer in self.layers)

    @property
    def _numbers(self) -> list[int]:
        return [math.prod(shape) for shape in (self.input, *(layer.output for layer in self.layers))]

    @property
    def activation_traffic(self) -> int:
        """Return the bytes of activations that the forward pass reads and writes."""
        return FLOAT * (sum(self._numbers[:-1]) + sum(self._numbers[1:]))

    @property
    def activation_memory(self) -> int:
        """Return the bytes stored for the backward pass: input and output of every layer."""
        return FLOAT * sum(self._numbers)

    @property
    def working_memory(self) -> int:
        """Return the bytes used in inference: the largest input plus output of a layer."""
        return FLOAT * max(first + second for first, second in pairwise(self._numbers))

    def weight_traffic(self, batch: int) -> int:
        """Return the bytes of weights that the forward pass of a batch reads."""
        return FLOAT * sum(batch * one.rows or one.reads * one.parameters for one in self.layers)


@dataclass(frozen=True)
class Passes:
    """Forward and backward passes of a step; `updated`: True if weights are updated."""

    network: LayerNetwork
    forward: int = 1
    backward: int = 1
    updated: bool = True
    inputs_only: int = 0  # backward passes for the gradient of the inputs only; each costs one forward pass

    @property
    def equivalent(self) -> int:
        """Number of forward passes with the same cost; a backward pass counts as two."""
        return self.forward + 2 * self.backward + self.inputs_only


@dataclass(frozen=True)
class Profile:
    """A deep-learning workload: its training step, inference step and input."""

    name: str
    kind: Kind
    training: tuple[Passes, ...]
    inference: tuple[Passes, ...]
    training_input: int = field(metadata={"unit": "bytes a sample, label included"})
    inference_input: int = field(metadata={"unit": "bytes a sample"})

    @property
    def parameters(self) -> int:
        return sum(passes.network.parameters for passes in self._passes(self.kind))

    @property
    def flops(self) -> int:
        """Operations of the forward passes of all networks on one sample."""
        return sum(passes.network.flops for passes in self._passes(self.kind))

    @property
    def bytes(self) -> int:
        """Bytes moved by the forward passes of all networks on one sample."""
        networks = [passes.network for passes in self._passes(self.kind)]
        return sum(one.weight_traffic(1) + one.activation_traffic for one in networks)

    @property
    def activation_memory(self) -> int:
        return sum(passes.network.activation_memory for passes in self._passes(self.kind))

    def _passes(self, kind: Kind) -> tuple[Passes, ...]:
        return self.training if kind == "training" else self.inference

    def step(self, kind: Kind | None = None, batch: int = BATCH, efficiency: float = EFFICIENCY) -> Work:
        """Return the work of a step; `kind`: training or inference (None: the profile's)."""
        flops = moved = kernels = 0  # whole numbers, exact
        for passes in self._passes(kind or self.kind):
            network = passes.network
            flops += passes.equivalent * batch * network.flops
            moved += passes.equivalent * batch * network.activation_traffic
            # Each pass reads the weights once, backward as well as forward.
            reads = passes.forward + passes.backward + passes.inputs_only
            moved += reads * network.weight_traffic(batch)
            kernels += passes.equivalent * network.kernels
            if passes.updated:
                moved += ADAM_TRAFFIC * FLOAT * network.parameters
                kernels += 1
        return Work(flops=f"{flops} FLOP", bytes=f"{moved} B", kernels=kernels, efficiency=efficiency)

    def input_bytes(self, batch: int = BATCH, kind: Kind | None = None) -> int:
        return batch * (self.training_input if (kind or self.kind) == "training" else self.inference_input)

    def gpu_memory(self, batch: int = BATCH, kind: Kind | None = None) -> int:
        """Return the bytes of GPU memory for weights, optimizer and activations."""
        total = 0
        for passes in self._passes(kind or self.kind):
            network = passes.network
            if passes.updated:
                total += ADAM_COPIES * FLOAT * network.parameters
                total += passes.forward * batch * network.activation_memory
            else:
                total += FLOAT * network.parameters + batch * network.working_memory
        return total


IMAGE = (28, 28, 1)

# Digits: convolutions 32-64-64 of 3 × 3 with pooling after the first two, dense 64-10
CNN = LayerNetwork(
    IMAGE, [_convolution(32, 3), _pool(2), _convolution(64, 3), _pool(2), _convolution(64, 3), _dense(64), _dense(10)]
)
# Sentiment: 100 tokens of a vocabulary of 10,000, embedding 128, 64 recurrent units, dense 1
RNN = LayerNetwork((100,), [_embedding(10_000, 128), _recurrent(64), _dense(1)])
# Next word: the same embedding, 128 LSTM units, dense 10,000
LONG_SHORT_TERM = LayerNetwork((100,), [_embedding(10_000, 128), _recurrent(128, gates=4), _dense(10_000)])
# Noise to image: dense 7·7·256, transposed convolutions 128-64-1 of 5 × 5 with strides 1, 2, 2
GENERATOR = LayerNetwork(
    (100,), [_dense(7 * 7 * 256, (7, 7, 256)), _transposed(128, 5), _transposed(64, 5, stride=2),
             _transposed(1, 5, stride=2)],
)  # fmt: skip
# Image to real or not: convolutions 64-128 of 5 × 5 with stride 2, dense 1
DISCRIMINATOR = LayerNetwork(
    IMAGE, [_convolution(64, 5, stride=2, same=True), _convolution(128, 5, stride=2, same=True), _dense(1)]
)


def _pair(name: str, training: tuple[Passes, ...], inference: LayerNetwork, inputs: tuple[int, int]) -> list[Profile]:
    once = (Passes(inference, backward=0, updated=False),)
    kinds: tuple[Kind, Kind] = ("training", "inference")
    return [Profile(f"{name}_{kind}", kind, training, once, *inputs) for kind in kinds]


def _simple(name: str, network: LayerNetwork) -> list[Profile]:
    sample = FLOAT * math.prod(network.input)
    return _pair(name, (Passes(network),), network, (sample + FLOAT, sample))


# A step of adversarial training makes a batch of images, judges them and as many real ones (two forward and
# two backward passes of the discriminator), and trains the generator through the discriminator (one more
# backward pass of it, for its inputs only).  The noise is drawn on the device in training; inference
# uploads it.
_ADVERSARIAL = (Passes(GENERATOR), Passes(DISCRIMINATOR, forward=2, backward=2, inputs_only=1))

# All profiles by name: cnn, rnn, lstm and gan, each with _training and _inference
PROFILES: Mapping[str, Profile] = {
    made.name: made
    for made in (
        *_simple("cnn", CNN),
        *_simple("rnn", RNN),
        *_simple("lstm", LONG_SHORT_TERM),
        *_pair("gan", _ADVERSARIAL, GENERATOR, (FLOAT * math.prod(IMAGE), FLOAT * 100)),
    )
}


def profile(name: str) -> Profile:
    """Return the named profile; UnknownName with a suggestion if it does not exist."""
    if name not in PROFILES:
        raise UnknownName("profile", name, PROFILES)
    return PROFILES[name]


@dataclass(frozen=True)
class ProfileUse:
    """A profile as a scenario uses it: `{profile: cnn_training, steps: 2000}`."""

    profile: str
    batch: int = BATCH
    steps: Distribution = field(default_factory=lambda: Constant(value=STEPS))
    efficiency: float = EFFICIENCY  # fraction of the peak rates reached by small networks; to be calibrated

    @property
    def work(self) -> Work:
        return profile(self.profile).step(batch=self.batch, efficiency=self.efficiency)

    def seconds_per_step(self, peak: Peak, share: float = 1.0) -> float:
        """Return the compute seconds of a step on a share of a device, without transfers."""
        return self.work.step_seconds(peak, share)

    @property
    def input_bytes(self) -> int:
        return profile(self.profile).input_bytes(self.batch)

    @property
    def gpu_memory(self) -> int:
        return profile(self.profile).gpu_memory(self.batch)
