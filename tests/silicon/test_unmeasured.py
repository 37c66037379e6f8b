"""Sparse attention, and experts divided as they were not measured."""

import numpy as np
import pytest

from benchmarks import distil
from hetsim.silicon import engines, kernels
from hetsim.silicon.kernels import CONTEXTS, SEQUENCES, Divided, NotMeasured, kernels_of
from hetsim.workload.costs.architectures import MODELS, Architecture
from hetsim.workload.costs.roofline import DEVICES

GPUS = ("h100", "h200", "b200", "b300", "gb200", "gb300")


def made(name: str, gpu: str, engine: str, divided: Divided, **changes) -> kernels.Kernels:
    figures = {**MODELS[name].model_dump(exclude_none=True), **changes}
    return kernels_of(Architecture.model_validate(figures), gpu, DEVICES[gpu], engine, divided)


def grown(values: np.ndarray) -> bool:
    return all((np.diff(values, axis=axis) >= 0).all() for axis in range(values.ndim))


@pytest.mark.parametrize("engine", kernels.ENGINES)
@pytest.mark.parametrize("gpu", GPUS)
def test_more_sequences_context_and_prompts_of_sparse_attention_take_no_less_time(gpu, engine):
    for name in ("glm-5", "deepseek-v3.2"):
        few, many = (made(name, gpu, engine, Divided(gpus), number_format="fp8") for gpus in (8, 2))
        for one in (few, many):
            assert grown(one.decode) and grown(one.prefill) and one.decode.min() > 0
        assert (many.decode >= few.decode - 1e-12).all()  # four times as many heads on each GPU


@pytest.mark.parametrize("engine", kernels.ENGINES)
@pytest.mark.parametrize("gpu", GPUS)
def test_sparse_attention_attends_to_all_of_a_short_context_and_to_some_of_a_long_one(gpu, engine):
    """DeepSeek V3.2 is V3 with an indexer of 2,048 tokens: the same growth below, and far less of it above."""
    sparse, dense = (made(name, gpu, engine, Divided(8)).decode for name in ("deepseek-v3.2", "deepseek-v3"))
    row = SEQUENCES.tolist().index(256)
    below, above, far = (CONTEXTS.tolist().index(context) for context in (64, 2048, 131072))
    growth = [values[row, above] - values[row, below] for values in (sparse, dense)]
    assert 0.5 < growth[0] / growth[1] < 2.5
    later = [values[row, far] - values[row, above] for values in (sparse, dense)]
    assert later[0] < 0.3 * later[1]
    # An indexer key has 128 + 4 bytes per layer, and each of the GPUs reads all of them.
    read = 61 * 132 * 256 * (131072 - 2048) / DEVICES[gpu].bandwidth
    assert later[0] > 0.8 * read


def test_the_projections_of_sparse_attention_are_counted_once():
    """The measured module contains them: the other matrices are those of feed-forward blocks."""
    builder = kernels.Builder(MODELS["deepseek-v3.2"], "h200", DEVICES["h200"], "vllm", Divided(8))
    alone = kernels.kernels_for(builder.model)
    builder._feed_forward(alone)
    assert builder.made().tokens["matrices"] == pytest.approx(alone.tokens["matrices"], rel=1e-12)
    # One sequence with no context reads the projections of 16 heads per GPU, in 8 bits.
    fewest = builder.model.model_copy(update={"heads": 8})
    read = 61 * sum(one * other for one, other in fewest._projections) / DEVICES["h200"].bandwidth
    assert read < builder.made().decode[0, 0] < 4 * read


@pytest.mark.parametrize(
    ("gpu", "changes", "reason"),
    [
        ("a100-80gb", {}, "sparse attention of this shape was not measured with vllm on a100-80gb"),
        ("h200", {"indexer": {"heads": 64, "head_size": 128, "tokens": 1024}}, "sparse attention of this shape"),
        ("h200", {"latent": {**MODELS["deepseek-v3.2"].latent.model_dump(), "kv_lora_rank": 256}}, "512 \\+ 64"),
        ("h200", {"number_format": {"weights": "fp8", "kv": "int8"}}, "int8"),
    ],
)  # fmt: skip
def test_sparse_attention_that_was_not_measured_is_refused_with_the_reason(gpu, changes, reason):
    with pytest.raises(NotMeasured, match=reason):
        made("deepseek-v3.2", gpu, "vllm", Divided(8), **changes)


def test_support_of_sparse_attention_and_what_is_transferred():
    """GLM-5 in 4 bits fits into eight B300; TensorRT-LLM has no times of gpt-oss with divided experts."""
    small = Architecture.model_validate(
        {**MODELS["glm-5"].model_dump(exclude_none=True), "number_format": {"experts": "nvfp4", "kv": "fp8"}}
    )
    rows = {row["name"].partition("-")[0]: row for row in engines.support(small, "b300") if 8 in row["gpus"]}
    assert all(row["kind"] == "guessed" and row["transferred"] == [] for row in rows.values()) and len(rows) == 3
    rows = {(row["name"][:4], *row["gpus"]): row for row in engines.support(MODELS["gpt-oss-120b"], "b200")}
    text = "experts (2880, 2880, 4, 128) on 4 x 1 GPUs (tensor x expert parallel) have the times of "
    row = rows["trtl", 4]
    assert row["transferred"] == [text + "(2880, 2880, 4, 128) on 1 x 1 GPUs, changed as with sglang"]
    assert row["summary"].endswith(row["transferred"][0])
    assert rows["vllm", 1, 2, 4, 8]["transferred"] == []


@pytest.mark.parametrize(
    ("gpu", "divided", "base", "engines_used"),
    [
        ("h200", (4, 1), (1, 1), ("vllm", "sglang")), ("h200", (2, 2), (1, 2), ("sglang",)),
        ("h100", (2, 1), (1, 2), ("vllm", "sglang")),
    ],
)  # fmt: skip
def test_divided_experts_change_their_times_as_with_other_engines(gpu, divided, base, engines_used):
    """The geometric mean of the changes with the others; TensorRT-LLM measured gpt-oss with whole experts only."""

    def at(engine, division):
        key = (gpu, engine, "experts", "w4a16_mxfp4", (2880, 2880, 4, 128, *division))
        return kernels.surface_of(key).at(kernels.TOKENS)

    own = made("gpt-oss-120b", gpu, "trtllm", Divided(divided[0] * divided[1], 1, *divided))
    changes = [at(engine, divided) / at(engine, base) for engine in engines_used]
    expected = 36 * at("trtllm", base) * np.exp(np.mean(np.log(changes), axis=0))
    assert own.tokens["experts"] == pytest.approx(expected, rel=1e-9)


def test_experts_that_no_other_engine_measured_are_scaled_by_their_weights(monkeypatch):
    monkeypatch.setattr(kernels, "ENGINES", ("trtllm",))
    whole, half = (made("gpt-oss-120b", "h200", "trtllm", Divided(gpus)) for gpus in (1, 2))
    assert half.tokens["experts"] == pytest.approx(whole.tokens["experts"] / 2, rel=1e-12)
    assert half.transferred[0].endswith("on 1 x 1 GPUs, scaled by their weights") and not whole.transferred
    with pytest.raises(NotMeasured, match="similar experts were not measured with trtllm on h200"):
        made("gpt-oss-120b", "h200", "trtllm", Divided(4))


def test_prompts_whose_launches_hide_them_take_times_in_proportion_to_their_number():
    """Log2 of times of 1, 2, 4 and 8 prompts: 16 units are those of launches, 40 are not; 8 long ones are missing."""
    axes = {"num_heads": [8], "batch_size": [1, 2, 4, 8], "isl": [16, 1024]}
    values = np.log2(np.array([[[16.0, 16.0], [16.0, 20.0], [16.0, 40.0], [16.0, np.nan]]]))
    made_ = 2 ** distil.more_prompts(values, axes)[0].T
    assert made_ == pytest.approx(np.array([[2.0, 4.0, 8.0, 16.0], [10.0, 20.0, 40.0, 80.0]]))


def test_longer_contexts_of_more_sequences_lie_between_two_bounds():
    """Two sequences of 32 tokens took 2 units more than of 16: four take at least as long as growth says, at most 4."""
    axes = {"num_heads": [8], "batch_size": [1, 2, 4], "step": [16, 32]}
    values = np.log2(np.array([[[8.0, 9.0], [10.0, 12.0], [20.0, np.nan]]]))
    lower = np.log2(12.0) + np.log2(12 / 9)
    expected = (lower + np.log2(20 + 4 / 2 * 2)) / 2
    assert distil.longer_contexts(values, axes)[0, 2, 1] == pytest.approx(expected)


def test_no_larger_cell_takes_less_time():
    values = np.array([[3.0, 9.0, 4.0], [2.0, 5.0, 6.0]])
    assert kernels.never_shorter(values).tolist() == [[2.0, 4.0, 4.0], [2.0, 5.0, 6.0]]
