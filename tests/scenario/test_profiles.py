"""Deep-learning profiles against the parameter counts that Keras prints and against hand calculations."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from hetsim.errors import UnknownName
from hetsim.scenario.schema.demand import Held, profile_use
from hetsim.workload.costs.profiles import (
    CNN,
    DISCRIMINATOR,
    GENERATOR,
    LONG_SHORT_TERM,
    PROFILES,
    RNN,
    LayerNetwork,
    ProfileUse,
    profile,
)
from hetsim.workload.costs.roofline import DEVICES


@pytest.mark.parametrize(
    ("network", "count"),
    [
        # 320 + 18,496 + 36,928 + 36,928 + 650
        (CNN, 93_322),
        # 1,280,000 + 64 · (128 + 64 + 1) + 65
        (RNN, 1_292_417),
        # 1,280,000 + 4 · 128 · (128 + 128 + 1) + 129 · 10,000
        (LONG_SHORT_TERM, 2_701_584),
        # 101 · 12,544 + (25 · 256 + 1) · 128 + (25 · 128 + 1) · 64 + 25 · 64 + 1
        (GENERATOR, 2_292_737),
        # 26 · 64 + (25 · 64 + 1) · 128 + 6,273
        (DISCRIMINATOR, 212_865),
    ],
)
def test_parameter_counts(network: LayerNetwork, count: int):
    assert network.parameters == count


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (CNN, (10,)),
        (RNN, (1,)),
        (LONG_SHORT_TERM, (10_000,)),
        (GENERATOR, (28, 28, 1)),
        (DISCRIMINATOR, (1,)),
    ],
)
def test_output_shapes(network: LayerNetwork, shape: tuple):
    assert network.output == shape


def test_cnn_operations_by_hand():
    """2 · 9 · in · out · pixels for the convolutions, 4 an output for pooling, 2 · in · out for dense."""
    convolutions = 2 * 9 * (1 * 32 * 26**2 + 32 * 64 * 11**2 + 64 * 64 * 3**2)
    pooling = 4 * (32 * 13**2 + 64 * 5**2)
    assert CNN.flops == convolutions + pooling + 2 * (576 * 64 + 64 * 10)


def test_recurrent_operations_by_hand():
    assert RNN.flops == 100 * 2 * 64 * (128 + 64) + 2 * 64
    assert LONG_SHORT_TERM.flops == 100 * 4 * 2 * 128 * (128 + 128) + 2 * 128 * 10_000


def test_generator_operations_by_hand():
    """2 · 25 · in · out · input pixels for each transposed convolution."""
    transposed = 256 * 128 * 7**2 + 128 * 64 * 7**2 + 64 * 1 * 14**2
    assert GENERATOR.flops == 2 * 100 * 12_544 + 2 * 25 * transposed


def test_cnn_activations_by_hand():
    outputs = 32 * 26**2 + 32 * 13**2 + 64 * 11**2 + 64 * 5**2 + 64 * 3**2 + 64 + 10
    assert CNN.activation_memory == 4 * (28 * 28 + outputs)


def test_training_costs_three_forward_passes():
    made = profile("cnn_training")
    assert (
        made.step("training", batch=10).flops == 3 * made.step("inference", batch=10).flops == 30 * CNN.flops
    )


def test_adversarial_training_costs_three_generators_and_seven_discriminators():
    """3 G; the discriminator judges real and made images (2 · 3) and passes a gradient back (1)."""
    assert profile("gan_training").step(batch=1).flops == 3 * GENERATOR.flops + 7 * DISCRIMINATOR.flops


def test_a_larger_batch_reads_the_weights_once():
    """Operations are proportional to the batch; bytes grow by the activations only."""
    made = profile("cnn_inference")
    one, two = made.step(batch=1), made.step(batch=2)
    assert two.flops == 2 * one.flops
    assert two.bytes - one.bytes == CNN.activation_traffic


LAYERS = {
    # Of each layer: weights, numbers in and out, how often a pass reads the weights, kernels, operations of a sample.
    "cnn": [[
        (320, 784, 26 * 26 * 32, 1, 1, 2 * 9 * 32 * 26**2), (0, 26 * 26 * 32, 13 * 13 * 32, 1, 1, 4 * 13 * 13 * 32),
        (18_496, 13 * 13 * 32, 11 * 11 * 64, 1, 1, 2 * 9 * 32 * 64 * 11**2),
        (0, 11 * 11 * 64, 5 * 5 * 64, 1, 1, 4 * 5 * 5 * 64), (36_928, 5 * 5 * 64, 9 * 64, 1, 1, 2 * 9 * 64 * 64 * 9),
        (36_928, 576, 64, 1, 1, 2 * 576 * 64), (650, 64, 10, 1, 1, 2 * 64 * 10),
    ]],
    "rnn": [[
        (1_280_000, 100, 12_800, 0.01 * 64, 1, 0), (12_352, 12_800, 64, 100, 100, 2 * 100 * 64 * 192),
        (65, 64, 1, 1, 1, 128),
    ]],
    "lstm": [[
        (1_280_000, 100, 12_800, 0.01 * 64, 1, 0), (131_584, 12_800, 128, 100, 100, 2 * 4 * 100 * 128 * 256),
        (1_290_000, 128, 10_000, 1, 1, 2 * 128 * 10_000),
    ]],
    "gan": [[
        (1_266_944, 100, 12_544, 1, 1, 2 * 100 * 12_544), (819_328, 12_544, 49 * 128, 1, 1, 2 * 25 * 256 * 128 * 49),
        (204_864, 49 * 128, 196 * 64, 1, 1, 2 * 25 * 128 * 64 * 49), (1_601, 196 * 64, 784, 1, 1, 2 * 25 * 64 * 196),
    ], [
        (1_664, 784, 196 * 64, 1, 1, 2 * 25 * 64 * 196), (204_928, 196 * 64, 49 * 128, 1, 1, 2 * 25 * 64 * 128 * 49),
        (6_273, 49 * 128, 1, 1, 1, 2 * 49 * 128),
    ]],
}  # fmt: skip
PASSES = {"gan": [(1, 1, 0), (2, 2, 1)]}
"""Forward, backward, and backward for the inputs alone, of each network; one forward and one backward elsewhere."""


@pytest.mark.parametrize("name", LAYERS)
def test_a_training_step_by_hand_layer_by_layer(name: str):
    """Operations, traffic, kernels and time of a batch of 64, from tables of layers written here."""
    flops = moved = kernels = 0.0
    for layers, (forward, backward, inputs) in zip(LAYERS[name], PASSES.get(name, [(1, 1, 0)]), strict=True):
        equal, reads = forward + 2 * backward + inputs, forward + backward + inputs
        weights = sum(layer[0] for layer in layers)
        flops += 64 * equal * sum(layer[5] for layer in layers)
        moved += 4 * (64 * equal * sum(layer[1] + layer[2] for layer in layers) + 8 * weights)
        moved += 4 * reads * sum(layer[0] * layer[3] for layer in layers)
        kernels += equal * sum(layer[4] for layer in layers) + 1  # and the optimizer
    work, peak = profile(f"{name}_training").step(batch=64), DEVICES["v100"]
    assert (work.flops, work.kernels) == (flops, kernels)
    assert work.bytes == pytest.approx(moved, rel=1e-12)
    by_hand = kernels * peak.launch_overhead + 2 * max(flops / peak.flops, moved / peak.bandwidth)
    assert work.seconds(peak) == pytest.approx(by_hand, rel=1e-12)


def test_embedding_reads_only_its_rows():
    rest = RNN.weight_traffic(2) - 4 * 2 * 100 * 128
    assert rest == 4 * (100 * RNN.layers[1].parameters + RNN.layers[2].parameters)


def test_training_needs_more_memory_than_inference():
    for name in ("cnn", "rnn", "lstm", "gan"):
        assert profile(f"{name}_training").gpu_memory(64) > profile(f"{name}_inference").gpu_memory(64)


def test_cnn_training_memory_by_hand():
    """Weights, gradients and two moments, and the activations of the batch."""
    assert profile("cnn_training").gpu_memory(64) == 16 * 93_322 + 64 * CNN.activation_memory


def test_input_bytes_of_a_batch():
    assert profile("cnn_training").input_bytes(64) == 64 * 4 * (784 + 1)
    assert profile("rnn_inference").input_bytes(8) == 8 * 4 * 100


def test_unknown_profile_gets_a_suggestion():
    with pytest.raises(UnknownName, match='unknown profile "cnn_trainng"; did you mean "cnn_training"?'):
        profile("cnn_trainng")


def test_use_in_a_scenario():
    use = profile_use(Held.model_validate({"profile": "cnn_training", "batch": 128, "steps": 2000}))
    assert use.steps.mean == 2000
    assert use.seconds_per_step(DEVICES["v100"]) == use.work.seconds(DEVICES["v100"])
    assert use.input_bytes == profile("cnn_training").input_bytes(128)
    assert use.gpu_memory == profile("cnn_training").gpu_memory(128)


def test_steps_may_be_drawn():
    steps = {"distribution": "lognormal", "mean": 500, "cv": 1}
    use = profile_use(Held.model_validate({"profile": "lstm_training", "steps": steps}))
    assert (use.steps.mean, use.batch, use.efficiency) == (500, 64, 0.5)


def test_unknown_profile_in_a_scenario_is_a_validation_error():
    with pytest.raises(
        ValidationError, match='unknown profile "lstm_trianing"; did you mean "lstm_training"?'
    ):
        Held.model_validate({"profile": "lstm_trianing"})


@pytest.mark.parametrize("name", PROFILES)
def test_gpus_beat_a_core_and_lose_their_lead_to_launch_overhead(name: str):
    """A GPU is faster than a core; no step is faster than the overhead of its kernels."""
    use = ProfileUse(profile=name)
    gpu, core = use.seconds_per_step(DEVICES["v100"]), use.seconds_per_step(DEVICES["cpu-core"])
    assert use.work.kernels * 5e-6 < gpu < core
