"""Measured kernels: the shipped data, steps made of them, named engines, their intervals and what is supported."""

import hashlib
import json
import math
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli.program import hetsim
from hetsim.errors import ScenarioError
from hetsim.model.randomness import RandomTree
from hetsim.model.step_times import KernelSteps, attended, scaled
from hetsim.report.overview import remarks
from hetsim.scenario.scenario import load
from hetsim.silicon import engines, kernels
from hetsim.workload.costs.architectures import Architecture, model
from hetsim.workload.costs.roofline import DEVICES

SHIPPED = "98bcb2d64617ec529d7c49616af98a17cf3bed44a74baa7c6bbd02e01f1ee96b"
RECORD = "e6602de294d7b99e2e18584245ba9c4c54bb164e3810f7d7a5eebcc3598fd57e"


FILE = Path(kernels.__file__).with_name("surfaces.parquet")


def test_the_shipped_surfaces_are_those_of_the_wheel():
    """The digests of the Parquet, and of the RECORD of the wheel it is made of."""
    assert hashlib.sha256(FILE.read_bytes()).hexdigest() == SHIPPED
    assert parquet.read_schema(FILE).metadata[b"record"].decode() == RECORD
    assert FILE.stat().st_size < 3_000_000


def test_the_license_and_the_notice_lie_next_to_the_data():
    folder = FILE.parent
    assert "Apache License" in (folder / "LICENSE").read_text(encoding="utf-8")
    notice = (folder / "NOTICE").read_text(encoding="utf-8")
    assert "aiconfigurator-core 0.12.0" in notice and "Changes." in notice


def test_a_surface_is_exact_at_its_points_and_between_neighbors_elsewhere():
    surface = kernels.surfaces()["h100", "vllm", "matrix", "bfloat16", ()]
    m, n, k = (np.exp2(points) for points in surface.axes)
    stored = np.exp2(surface.values[3, 5, 6] / kernels.STEPS) * 1e-9
    assert surface.at(m[3], n[5], k[6]) == pytest.approx(stored, rel=1e-12)
    ends = sorted([stored, float(np.exp2(surface.values[4, 5, 6] / kernels.STEPS) * 1e-9)])
    between = float(surface.at(math.sqrt(m[3] * m[4]), n[5], k[6]))
    assert between == pytest.approx(math.sqrt(ends[0] * ends[1]), rel=1e-12)


def llama(number_format="fp8"):
    figures = model("llama-3.1-70b").model_dump(exclude_none=True)
    return Architecture.model_validate({**figures, "number_format": number_format})


def test_a_step_is_no_shorter_than_reading_the_weights_and_near_a_measured_server():
    """Measured: 17.4 ms a token with 4 requests of 1,024 + 1,024 tokens on two H100 (vLLM)."""
    steps = engines.steps_of(llama(), DEVICES["h100"], 2, "vllm-0.15")
    seconds = steps.seconds_for(0, 4, 4 * 1536)
    assert seconds > llama().bytes / (2 * DEVICES["h100"].bandwidth)
    assert seconds == pytest.approx(0.0174, rel=0.1)


@pytest.mark.parametrize("text", ["vllm-0.15", "trtllm-1.0", "sglang-0.5"])
@pytest.mark.parametrize("name", ["llama-3.1-70b", "qwen3-235b-a22b", "deepseek-r1", "deepseek-v3.2", "minimax-m2.5"])
@pytest.mark.parametrize("gpu", ["h200", "b200", "mi300x"])
def test_steps_grow_with_all_they_do_and_jumps_equal_single_steps(gpu, name, text):
    steps = engines.steps_of(model(name), DEVICES[gpu], 8, text)
    assert isinstance(steps, KernelSteps)
    assert steps.seconds_for(0, 8, 8_000) <= steps.seconds_for(0, 8, 800_000)
    assert steps.seconds_for(512, 8, 8_000, attended(512, 0)) < steps.seconds_for(8192, 8, 8_000, attended(8192, 0))
    single = sum(steps.seconds_for(0, 9, 9 * 1000 + 9 * step) for step in range(3000))
    assert steps.decoding(3000, 9, 9 * 1000) == pytest.approx(single, rel=1e-9)


def test_more_gpus_are_faster_and_a_factor_scales_all_of_a_step():
    one, two = (engines.steps_of(llama(), DEVICES["h200"], gpus, "vllm-0.15") for gpus in (1, 2))
    assert two.seconds_for(0, 16, 16_000) < one.seconds_for(0, 16, 16_000)
    slower = scaled(one, 1.25)
    for step in ((0, 16, 16_000, 0), (2048, 16, 16_000, attended(2048, 0)), (100, 0, 0, 5050)):
        assert slower.seconds_for(*step) == pytest.approx(1.25 * one.seconds_for(*step), rel=1e-12)


@pytest.mark.parametrize(("name", "more"), [("llama-3.1-70b", 0.0), ("deepseek-r1", 2e-4)])
def test_steps_that_read_prompts_wait_for_the_launches_of_their_kernels(name, more):
    """By layer, and more by layer of latent attention; decoding steps are recorded graphs."""
    constants = dict(engines.fitted()["engines"]["trtllm"]["constants"], reading=0.0, reading_special=0.0)
    made = kernels.kernels_of(model(name), "h200", DEVICES["h200"], "trtllm", kernels.Divided(8))
    own = {"reading": 1e-4, "reading_special": 2e-4}
    without, with_ = made.steps(constants), made.steps({**constants, **own})
    for tokens, sequences in ((512, 0), (512, 8), (0, 8)):
        step = tokens, sequences, 1000 * sequences, attended(tokens, 0)
        expected = (1e-4 + more) * made.layers if tokens else 0.0
        assert with_.seconds_for(*step) - without.seconds_for(*step) == pytest.approx(expected, abs=1e-12)
    assert with_.decoding(9, 8, 8000) == without.decoding(9, 8, 8000)


def test_a_recorded_graph_hides_the_launches_that_the_tables_contain():
    """The smallest time of a table is that of a call; matrices of all engines share the smallest of their formats."""
    surface = kernels.surfaces()["h100", "vllm", "decode", "bfloat16", (128, 0)]
    assert surface.launch == pytest.approx(1e-9 * 2 ** (surface.values.min() / kernels.STEPS), rel=1e-12)
    whole = surface.at(8, 8, 64, 8192)
    assert whole > 10 * surface.launch and surface.beyond(8, 8, 64, 8192) == pytest.approx(whole - surface.launch)
    builder = kernels.Builder(llama("bf16"), "h100", DEVICES["h100"], "vllm", kernels.Divided(2))
    tables = [kernels.surfaces()["h100", engine, "matrix", "bfloat16", ()] for engine in kernels.ENGINES]
    whole = builder.fastest("matrix", ("bfloat16",), (kernels.TOKENS, 8192.0, 8192.0))
    expected = whole - min(table.launch for table in tables)
    assert builder.matrix(8192.0, 8192.0) == pytest.approx(expected, rel=1e-12) and expected.min() > 0


def test_a_matrix_scaled_as_a_whole_does_not_have_the_times_of_one_scaled_by_block():
    """A product of 1,024 x 5,120 x 25,600 on B200 in vLLM: scaled by block it takes longer, 4,096 rows of it less."""
    made = kernels.Builder(llama(), "b200", DEVICES["b200"], "vllm", kernels.Divided())
    whole, block = (kernels.surfaces()["b200", "vllm", "matrix", one, ()] for one in ("fp8", "fp8_block"))
    many = kernels.TOKENS.tolist().index(4096)
    least = min(kernels.surfaces()["b200", one, "matrix", "fp8", ()].launch for one in kernels.ENGINES)
    assert made.matrix(5120, 25600)[many] == pytest.approx(float(whole.at(4096, 5120, 25600)) - least)
    assert block.at(4096, 5120, 25600) < 0.9 * whole.at(4096, 5120, 25600)
    assert block.at(1024, 5120, 25600) > whole.at(1024, 5120, 25600)


@pytest.mark.parametrize(("number_format", "more"), [("fp8", 0.0), ("nvfp4", 1e-5)])
def test_inputs_of_matrices_in_nvfp4_are_quantized_in_each_layer(number_format, more):
    constants = dict(engines.fitted()["engines"]["trtllm"]["constants"], nvfp4=0.0)
    made = kernels.kernels_of(llama(number_format), "b200", DEVICES["b200"], "trtllm", kernels.Divided(4))
    without, with_ = made.steps(constants), made.steps({**constants, "nvfp4": 1e-5})
    for step in ((512, 0, 0, attended(512, 0)), (0, 8, 8000, 0)):
        difference = with_.seconds_for(*step) - without.seconds_for(*step)
        assert difference == pytest.approx(80 * more, abs=1e-12)


def test_experts_of_an_unmeasured_shape_have_the_times_of_the_nearest():
    figures = model("qwen3-235b-a22b").model_dump(exclude_none=True)
    other = Architecture.model_validate({**figures, "experts": 120})
    made = kernels.kernels_of(other, "h100", DEVICES["h100"], "vllm", kernels.Divided(8))
    assert len(made.transferred) == 1 and "120" in made.transferred[0]
    assert not kernels.kernels_of(model("qwen3-235b-a22b"), "h100", DEVICES["h100"], "vllm",
                                  kernels.Divided(8)).transferred  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vllm-9.9", "the nearest is vllm-0"), ("vllm-0.1", "the nearest is vllm-0"),
        ("trtllm-1.4.0rc2", "got 1.4.0rc2; the nearest is trtllm-1.3"),
        ("vllm-0.015", "measured from 0.12 to 0.19; got 0.015; the nearest is vllm-0.15"),
        ("vllm-00.15.02rc1", "the nearest is vllm-0.15.2rc1"), ("vllm-0.009", "the nearest is vllm-0.12"),
        ("vllm", "engine must be an engine and its version, such as"), ("tgi-1.0",
            "engine must be an engine and its version, such as sglang-0.5,"),
    ],
)  # fmt: skip
def test_an_engine_outside_its_versions_is_refused_and_the_nearest_named(text, message):
    with pytest.raises(ValueError, match=message):
        engines.engine_of(text)


def test_versions_of_candidates_and_later_builds_are_those_of_their_release():
    """TensorRT-LLM was measured with 1.2.0rc6.post3, SGLang with 0.5.5.post3: their own names are accepted."""
    for name in ("trtllm-1.2.0rc6.post3", "sglang-0.5.5.post3", "vllm-0.15.0rc1"):
        assert engines.engine_of(name)[0] == name.partition("-")[0]
    assert "async_scheduling" not in engines.defaults("vllm-0.13.0rc2")


def test_levels_of_support():
    levels = {
        name: engines.interval(model("llama-3.1-70b"), DEVICES[name], 4, "vllm-0.15").level
        for name in ("h100", "l40s", "mi300x")
    }
    assert levels == {"h100": "measured", "l40s": "transferred", "mi300x": "guessed"}


@pytest.mark.parametrize("gpu", ["h200", "l40s", "mi300x"])
def test_what_was_not_measured_is_a_guess_as_wide_as_families_left_out(gpu):
    """A model of another shape, and a format of weights that no server of the engine had; not another vocabulary."""
    def bounds(name, engine="vllm-0.15", **changes):
        figures = model(name).model_dump(exclude_none=True)
        return engines.interval(Architecture.model_validate({**figures, **changes}), DEVICES[gpu], 4, engine)

    known, tuned = (bounds("llama-3.1-70b", vocabulary=size) for size in (128_256, 128_264))
    assert known == tuned and known.level == {"mi300x": "guessed"}.get(gpu, known.level) and "family" not in known.why
    new, other, form = bounds("gpt-oss-120b"), bounds("llama-3.1-70b", layers=79), bounds("llama-3.1-70b",
                                                                              number_format="int4")  # fmt: skip
    level = {"h200": "measured", "l40s": "transferred", "mi300x": "guessed"}[gpu]
    row = engines.fitted()["errors"]["families"][level]
    for guess in (new, other, form):
        assert (math.log(guess.low), math.log(guess.high), *map(math.log, guess.first)) == pytest.approx(row[:4])
        assert guess.level == "guessed" and guess.high / guess.low > known.high / known.low
    assert "guess: no measured model of this family and size with vllm; errors of" in str(new)
    assert other.why == new.why and form.why == "no measured server with weights in int4_wo with vllm"


def test_first_tokens_have_an_interval_of_their_own():
    interval = engines.interval(llama(), DEVICES["h100"], 4, "vllm-0.15")
    row = engines.fitted()["errors"]["measured"]["vllm/h100/llama-3.1-70b"]
    assert [math.log(one) for one in (interval.low, interval.high, *interval.first)] == pytest.approx(row[:4])
    assert "first tokens at least {:.2f}, at most {:.2f} times".format(*interval.first) in str(interval)


def test_the_intervals_of_replications_with_other_loads_are_one_line():
    """The tokens of each replication have another mean, so they lie at another distance from the measured loads."""
    own = {**scenario(), "horizon": "6 s"}
    own["workload"][0]["tokens"]["prompt"] = {"distribution": "uniform", "low": 1, "high": 100_000}
    (text,) = (one for one in remarks(hs.replicate(own, replications=3, workers=1)) if "90 %" in one)
    bounds = "at least N, at most N".replace("N", r"[0-9.]+( to [0-9.]+)?")
    assert re.search(f"90 %: {bounds} times as long, first tokens {bounds} times [(]measured", text), text
    assert " to " in text.partition("first tokens")[2] and text.endswith("(in all 3 replications)")


def test_run_says_that_a_model_was_not_measured():
    guess = {"model": "gpt-oss-120b", "tensor_parallel": 1}
    for name, service, said in (("guess", guess, True), ("known", {}, False)):
        warnings = load(scenario(**service)).build().warnings
        assert any("guess: no measured model of this family and size" in text for text in warnings) == said, name


def test_an_interval_is_wider_the_farther_the_nearest_measured_load_is(monkeypatch):
    monkeypatch.setitem(engines.fitted(), "widening", 0.1)
    near, far = (
        engines.interval(llama(), DEVICES["h100"], 4, "vllm-0.15", load) for load in ((2048, 16), (100_000, 512))
    )
    assert far.low < near.low < near.high < far.high


def test_factors_lie_in_the_interval_nine_of_ten_times():
    interval = engines.interval(llama(), DEVICES["h100"], 4, "vllm-0.15")
    factors = np.array([interval.factor(RandomTree(1, number).stream("steps")) for number in range(3000)])
    assert 0.88 < ((factors >= interval.low) & (factors <= interval.high)).mean() < 0.92


def scenario(**service):
    given = {"kind": "llm", "model": {"name": "llama-3.1-70b", "number_format": "fp8"}, "gpu": "h100",
             "tensor_parallel": 2, "engine": "vllm-0.15", **service}  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    return {
        "name": "chat", "seed": 3, "horizon": "40 s", "cluster": {"nodes": [{"gpus": [{"type": "h100", "count": 2}]}]},
        "workload": [{"name": "chat", "arrivals": {"process": "poisson", "rate": "1/s"},
                      "tokens": {"prompt": 1024, "output": 64}, "service": given}],
    }  # fmt: skip


def test_a_service_of_an_engine_runs_with_its_steps_front_end_and_defaults():
    run = load(scenario()).build()
    service = run.language[0]
    assert service.kinds[0].step == engines.steps_of(llama(), DEVICES["h100"], 2, "vllm-0.15")
    assert service.request_delay == engines.fitted()["engines"]["vllm"]["front_end"] > 0
    assert service.async_scheduling and not load(scenario(engine="vllm-0.13")).build().language[0].async_scheduling
    assert service.max_num_batched_tokens == 8192
    assert any("90 %" in text and "measured" in text for text in run.warnings)
    assert load(scenario(front_end="3 ms")).build().language[0].request_delay == 0.003


def grouped(**service):
    given = {"model": "deepseek-r1", "gpu": "b200", "engine": "trtllm-1.2", "tensor_parallel": 1, "data_parallel": 8,
             "expert_parallel": 4, "replicas": 8, "device": "b200", "uncertain": False}  # fmt: skip
    return scenario(**given | service) | {"cluster": {"nodes": [{"gpus": [{"type": "b200", "count": 8}]}]}}


def test_replicas_that_share_their_experts_attend_and_keep_for_themselves():
    """The experts compute the tokens of 8 replicas, each of which has an eighth of their weights."""
    figures, peak = model("deepseek-r1"), DEVICES["b200"]
    service = load(grouped()).build().language[0]
    made = kernels.kernels_of(figures, "b200", peak, "trtllm", kernels.Divided(1, 8, expert_tensor=2, expert=4))
    assert service.kinds[0].step == made.steps(engines.fitted()["engines"]["trtllm"]["constants"])
    alone = kernels.kernels_of(figures, "b200", peak, "trtllm", kernels.Divided(8, 1, expert_tensor=2, expert=4))
    assert made.tokens["experts"][0] == pytest.approx(alone.tokens["experts"][3])  # 8 x 1 token: those of 8 tokens
    weights = 256 * 58 * 3 * 7168 * 2048  # numbers of 8 bits of all experts
    assert service.kinds[0].weights == pytest.approx(figures.bytes - weights * 7 / 8, abs=1)
    stored = figures.stored(1) * 16
    assert service.kinds[0].blocks == 0.9 * (peak.memory - service.kinds[0].weights) // stored


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"replicas": 4}, "data_parallel: the number of replicas must be a multiple of 8; give replicas: 8"),
        ({"expert_parallel": 3}, "expert_parallel: must divide the 8 GPUs and the 256 experts; got 3"),
        ({"engine": None}, "data_parallel: needs a mixture of experts and measured kernels"),
        ({"model": "llama-3.1-8b", "data_parallel": None}, "expert_parallel: needs a mixture of experts"),
        ({"gpu": "mi300x"}, "engine: no measured kernels of this GPU"),
        ({"replicas": None, "scale": {"name": "keep_alive", "max": 8}}, "is constant; omit scale"),
    ],
)  # fmt: skip
def test_what_cannot_share_experts_is_said(service, message):
    with pytest.raises(ScenarioError, match=message):
        load(grouped(**service))


def test_an_uncertain_service_draws_one_factor_a_replication():
    loaded = load(scenario(uncertain=True))
    first, again, other = (loaded.build(replication=number).language[0].kinds[0].step for number in (0, 0, 1))
    certain = load(scenario()).build().language[0].kinds[0].step
    ratio = [one.seconds_for(0, 4, 4000) / certain.seconds_for(0, 4, 4000) for one in (first, again, other)]
    assert ratio[0] == ratio[1] != ratio[2] and 1.0 not in ratio


@pytest.mark.parametrize("engine", ["vllm-0.15", "trtllm-1.2", "sglang-0.5"])
def test_an_uncertain_service_draws_its_number_of_kv_blocks_where_it_was_measured(engine):
    known = engines.fitted()["engines"][engine.partition("-")[0]].get("memory")
    certain = load(scenario(engine=engine)).build()
    computed, loaded = certain.language[0].kinds[0].blocks, load(scenario(engine=engine, uncertain=True))
    said = [text for text in certain.warnings if "KV blocks 0.94 to 1.10 times as many (20 measured servers)" in text]
    drawn = [loaded.build(replication=number).language[0].kinds[0].blocks for number in range(5)]
    if known is None:
        assert set(drawn) == {computed} and not said
        return
    normal = [RandomTree(3, number).stream("memory", "chat").normal() for number in range(5)]
    logs = sum(known[:2]) / 2 + (known[1] - known[0]) / 2 / 1.6449 * np.array(normal)  # 90 % within its bounds
    assert len(said) == 1 and drawn == [int(computed * math.exp(log)) for log in logs]
    given = load(scenario(engine=engine, uncertain=True, kv={"tokens": 160_000})).build()
    assert given.language[0].kinds[0].blocks == 10_000 and not any("KV blocks" in text for text in given.warnings)


def test_the_memory_share_of_trtllm_is_one_of_the_memory_that_the_weights_leave():
    """As its `free_gpu_memory_fraction`."""
    service = load(scenario(engine="trtllm-1.2")).build().language[0]
    kind = service.kinds[0]
    assert kind.blocks == 0.9 * (2 * DEVICES["h100"].memory - kind.weights) // (16 * service.token_bytes)
    with pytest.raises(ScenarioError, match=r"but 2 × h100 \(the model and 90% of the rest\) has"):
        load(scenario(engine="trtllm-1.2", kv={"tokens": 2_000_000})).build()


@pytest.mark.parametrize(
    ("service", "message"),
    [
        ({"engine": "vllm-9.9"}, "the nearest is"), ({"step": {"roofline": True}},
            "engine and step exclude each other"),
        ({"engine": None, "uncertain": True}, "give engine"),
        ({"model": "glm-5", "gpu": "l40s"}, "sparse attention of this shape was not measured with vllm on l40s"),
        ({"gpu": None}, "the GPU of the steps is missing"),
        ({"model": "14 GB"}, "service.model: engine needs the architecture; name a known model"),
        ({"tensor_parallel": 0}, r"^\S*workload.0.service.tensor_parallel: must be at least 1; got 0$"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_know_is_said(service, message):
    with pytest.raises(ScenarioError, match=message):
        load(scenario(**service)).build()


def test_hetsim_list_support():
    shown = CliRunner().invoke(hetsim, ["list", "support", "--model", "llama-3.1-70b", "--gpu", "h100", "--json"])
    rows = {(row["name"].partition("-")[0], row["kind"]): row for row in json.loads(shown.output)}
    measured, none = rows["vllm", "measured"], rows["vllm", "none"]
    assert measured["low"] < 1 < measured["high"] and measured["name"].endswith("on 2, 4, 8 GPUs")
    assert none["name"].endswith("on 1 GPU") and "141.1 GB of weights do not fit" in none["summary"]
    assert {engine for engine, _ in rows} == {"vllm", "trtllm", "sglang"}
    smaller = "{name: llama-3.1-70b, number_format: fp8}"
    shown = CliRunner().invoke(hetsim, ["list", "support", "--model", smaller, "--gpu", "h100", "--json"])
    rows = {row["name"].partition("-")[0]: row for row in json.loads(shown.output)}
    kinds = {"vllm": "measured", "trtllm": "transferred", "sglang": "guessed"}  # servers of it, with other GPUs, none
    assert {engine: row["kind"] for engine, row in rows.items()} == kinds
    assert all(row["gpus"] == [1, 2, 4, 8] and row["first"][0] < 1 < row["first"][1] for row in rows.values())
    words = ["list", "support", "--model", "llama-2-70b", "--gpu", "h200", "--json"]
    for row in json.loads(CliRunner().invoke(hetsim, words).output):  # `run` refuses one with the default share
        of_rest = row["name"].startswith("trtllm")
        assert row["summary"].endswith("; on 1 × h200 the weights need memory_share: 97.9%") is not of_rest
        assert row["gpus"][0] == 1
    service = {"model": "llama-2-70b", "gpu": "h200", "tensor_parallel": 1}
    with pytest.raises(ScenarioError, match=r"the model needs 138 GB; 90% of one h100 has 126.9 GB"):
        load(scenario(**service)).build()
    load(scenario(**service, memory_share="97.9%")).build()
    small = "{name: glm-5, number_format: nvfp4}"
    text = CliRunner().invoke(hetsim, ["list", "support", "--model", small, "--gpu", "b300"])
    assert " ".join(text.output.split()).count("guess: no measured model of this family and size") == 3
    text = CliRunner().invoke(hetsim, ["list", "support", "--model", "gpt-oss-120b", "--gpu", "b200"])
    assert "changed as with sglang" in " ".join(text.output.split())
    for wrong in (["list", "support"], ["list", "models", "--model", "x", "--gpu", "y"]):
        done = CliRunner().invoke(hetsim, wrong)
        assert done.exit_code == 2 and "support needs --model and --gpu" in done.output
    wrong = CliRunner().invoke(hetsim, ["list", "support", "--model", "lama", "--gpu", "h100"])
    assert wrong.exit_code == 3 and 'unknown model "lama"' in wrong.output
    for model_text, message in {"14 GB": "--model must be a name "
                                         "or", "{config: no.json}": "the file does not exist"}.items():
        wrong = CliRunner().invoke(hetsim, ["list", "support", "--model", model_text, "--gpu", "h100"])
        assert wrong.exit_code == 2 and message in wrong.output


def test_heads_divide_over_the_gpus_of_each_type_of_device():
    others = [{"device": "l40s", "gpu": "l40s", "tensor_parallel": 3}]
    with pytest.raises(ScenarioError, match=r"the attention heads \(64\) must be a multiple of") as caught:
        load(scenario(model="llama-3.1-70b", gpu="h100", tensor_parallel=4, also_on=others))
    assert "also_on.0.tensor_parallel" in str(caught.value)


def test_decoding_reads_at_least_what_the_memory_allows():
    """Long contexts in large batches were not measured: they are continued near the bound of the bandwidth."""
    figures, peak = llama(), DEVICES["h200"]
    steps = engines.steps_of(figures, peak, 1, "vllm-0.15")
    for sequences, context in ((512, 1_569), (256, 3_138)):
        bound = sequences * context * figures.read(1) / peak.bandwidth
        assert steps.seconds_for(0, sequences, sequences * context) > 0.8 * bound


def test_attention_of_a_long_prompt_grows_with_the_square_of_its_length():
    steps = engines.steps_of(llama(), DEVICES["h200"], 1, "vllm-0.15")
    quarter, half, whole = (steps._reading(1.0, length) for length in (65_536, 131_072, 262_144))
    assert 3.0 < half / quarter < 4.5 and 3.0 < whole / half < 4.5


def test_what_cannot_be_timed_is_a_sentence():
    with pytest.raises(ValueError, match="matrix units"):
        engines.steps_of(llama(), DEVICES["k20"], 1, "vllm-0.15")
    integers = Architecture.model_validate({**llama().model_dump(exclude_none=True), "number_format": {"kv": "int8"}})
    with pytest.raises(ValueError, match="int8"):
        engines.steps_of(integers, DEVICES["h100"], 1, "vllm-0.15")
    four = Architecture.model_validate({**llama().model_dump(exclude_none=True), "number_format": {"kv": "nvfp4"}})
    for gpu in ("h100", "mi300x"):  # with measured kernels, and without
        with pytest.raises(ValueError, match="need a GPU that computes with 4-bit numbers"):
            engines.steps_of(four, DEVICES[gpu], 2, "vllm-0.15")
    eight = Architecture.model_validate({**llama().model_dump(exclude_none=True), "number_format": {"kv": "fp8"}})
    assert engines.steps_of(four, DEVICES["b200"], 2, "vllm-0.15") == engines.steps_of(
        eight, DEVICES["b200"], 2, "vllm-0.15"
    )
    assert {row["transferred"][0] for row in engines.support(four, "b200") if row["kind"] != "none"} == {
        "attention to keys and values in nvfp4 has the times of fp8"
    }
    for text in ("vllm", "vllm-0", "vllm-0.", "vllm-٠.١٥", "vllm-0." + "9" * 5000):
        with pytest.raises(ValueError):
            engines.engine_of(text)


def served(**service):
    return {
        "cluster": {"nodes": [{"gpus": {"type": one, "count": 4, "memory": "80 GB"}} for one in ("h100", "a100")]},
        "workload": [{
            "name": "chat", "arrivals": {"process": "poisson", "rate": "4/s"}, "count": 60,
            "tokens": {"prompt": 2000, "output": 40},
            "service": {"kind": "llm", "model": {"name": "llama-3.1-70b", "number_format": "fp8"}, "device": "h100",
                        "gpu": "h100", "tensor_parallel": 2, "engine": "sglang-0.5", **service},
        }],
    }  # fmt: skip


def test_an_engine_brings_the_phases_of_its_steps():
    """SGLang reads prompts first, unless the service or the policy says otherwise."""
    own, first, mixed = (
        hs.run({**served(**more), **policy}).tasks["finish"].tolist()
        for more, policy in (
            ({}, {}),
            ({"batching": {"name": "continuous", "phases": "prefill_first"}}, {}),
            ({}, {"policy": {"batching": {"name": "continuous", "phases": "mixed"}}}),
        )
    )
    assert own == first != mixed


def test_a_second_kind_of_replica_may_have_steps_of_its_own():
    other = {"device": "a100", "gpus": 2, "replicas": 1, "step": {"fixed": "1 s"}}
    built = load(served(also_on=[other])).build()
    first, second = (kind.step for kind in built.language[0].kinds)
    assert second.seconds_for(0, 1, 100) == 1.0 > first.seconds_for(0, 1, 100)
    assert "another GPU than a100" not in " ".join(built.warnings)  # of which only the memory matters


@pytest.mark.parametrize("other", [{"step": {"fixed": "1 s"}}, {"gpu": "l40s"}])
@pytest.mark.parametrize(("keys", "factor"), [({"interval": [1.0, 4.0]}, 2.0), ({"drift": {"mean": 3.0}}, 3.0),
                                              ({"uncertain": True}, None)])  # fmt: skip
def test_only_steps_of_an_engine_have_its_factor_and_each_type_of_device_its_interval(other, keys, factor):
    """Measured steps of a type are certain but for the drift of a run; a type with an engine has its own interval."""
    runs = []
    for more in ({}, keys):
        data = served(also_on=[{"device": "l40s", "gpus": 2, "replicas": 1, **other}], **more)
        data["cluster"]["nodes"][1]["gpus"]["type"] = "l40s"
        runs.append(load(data).build())
    alone = runs[1].tasks.time[0] / runs[0].tasks.time[0]
    steps = [[one.step.seconds_for(0, 1, 100) for one in run.language[0].kinds] for run in runs]
    assert np.divide(steps[1], steps[0]) == pytest.approx(alone)
    certain = "step" in other and "drift" not in keys
    assert alone[0] == pytest.approx(factor or alone[0]) and alone[0] != 1.0
    assert (alone[1] == pytest.approx(1.0)) == certain
    assert any("with sglang-0.5 on l40s take, 90 %" in text for text in runs[1].warnings) == ("gpu" in other)
