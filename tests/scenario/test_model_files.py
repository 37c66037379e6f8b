"""Models from config.json: the shapes of the catalogue, formats of quantized weights, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.scenario.scenario import load
from hetsim.workload.costs.architectures import MODELS, Architecture

MTP = {"num_nextn_predict_layers": 1}
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "vocab_size": 129280, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "tie_word_embeddings": False, **MTP,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336,
}  # fmt: skip
LLAMA_4 = {
    "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "attention_chunk_size": 8192,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "sliding_window": None, "use_sliding_window": False,
}  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    "deepseek-v3": DEEPSEEK,
    "deepseek-v3.2": {
        **DEEPSEEK, "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
    },
    "glm-5": {
        **DEEPSEEK, "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78,
        "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 154880, "intermediate_size": 12288,
        "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "head_dim": 64, "index_head_dim": 128,
        "index_n_heads": 32, "index_topk": 2048, "quantization_config": None,
    },
    "gpt-oss-120b": {
        "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "intermediate_size": 2880,
        "num_local_experts": 128, "experts_per_token": 4, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    },
    "gemma-2-9b": {
        "model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 256, "vocab_size": 256000, "intermediate_size": 14336,
        "sliding_window": 4096,
    },
    "llama-3.1-8b": LLAMA,
    "llama-4-scout": {"text_config": {**LLAMA_4, "num_local_experts": 16, "interleave_moe_layer_step": 1}},
    "llama-4-maverick": {
        "model_type": "llama4", "text_config": {**LLAMA_4, "num_local_experts": 128, "interleave_moe_layer_step": 2}
    },
    "minimax-m2.5": {
        "model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 200064, "intermediate_size": 1536,
        "num_local_experts": 256, "num_experts_per_tok": 8, "shared_intermediate_size": 0,
        "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["gate", "lm_head"]},
    },
    "qwen3-235b-a22b": QWEN3,
    "qwen3.5-397b-a17b": {
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_5_moe_text", "hidden_size": 4096, "num_hidden_layers": 60, "num_attention_heads": 32,
            "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248320, "moe_intermediate_size": 1024,
            "shared_expert_intermediate_size": 1024, "num_experts": 512, "num_experts_per_tok": 10,
            "attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
            "linear_value_head_dim": 128, "mlp_only_layers": [],
        },
    },
}  # fmt: skip
"""The keys of published files that say what a model's shape is."""


def scenario(model: Any) -> dict[str, Any]:
    return {
        "name": "s",
        "cluster": {"nodes": {"gpus": {"type": "h200", "count": 8, "memory": "141 GB"}}},
        "workload": {
            "name": "chat", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 5,
            "tokens": {"prompt": 100, "output": 10},
            "service": {"kind": "llm", "model": model, "gpu": "h200", "tensor_parallel": 8},
        },
    }  # fmt: skip


def read(folder: Path, content: Any, **changes: Any) -> Architecture:
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
    (folder / "s.yaml").write_text(json.dumps(scenario({"config": "config.json", **changes})))
    (entry,) = load(folder / "s.yaml").model.workload
    assert entry.service is not None and isinstance(entry.service.model, Architecture)
    return entry.service.model


@pytest.mark.parametrize("name", FILES)
def test_published_files_give_the_catalogue(name: str, tmp_path: Path):
    assert read(tmp_path, FILES[name]) == MODELS[name]


MODELOPT = {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16}
INT4 = {"num_bits": 4, "type": "int", "group_size": 32}


@pytest.mark.parametrize(
    ("model", "quantized", "formats"),
    [
        (LLAMA, {"quant_method": "awq", "bits": 4, "group_size": 128}, ("int4", None, "bf16", "bf16")),
        (LLAMA, {"quant_method": "gptq", "bits": 4, "group_size": 32}, ("int4-32", None, "bf16", "bf16")),
        (LLAMA, {"quant_method": "gptq", "bits": 8, "group_size": 32}, ("int8", None, "bf16", "bf16")),
        (LLAMA, {"quant_method": "fp8"}, ("fp8", None, "bf16", "fp8")),
        (LLAMA, {**MODELOPT, "quant_algo": "FP8"}, ("fp8", None, "fp8", "fp8")),
        (LLAMA, {**MODELOPT, "quant_algo": "NVFP4"}, ("nvfp4", None, "fp8", "fp4")),
        (LLAMA, {"quant_method": "compressed-tensors", "config_groups": {"a": {
            "weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "type": "int"}}}},
         ("int8", None, "bf16", "int8")),
        (LLAMA, {"quant_method": "compressed-tensors", "config_groups": {"a": {
            "weights": {"num_bits": 8, "type": "float"}, "input_activations": None}}}, ("fp8", None, "bf16", "bf16")),
        (QWEN3, {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": INT4,
            "input_activations": None}}, "ignore": ["re:.*self_attn.*"]}, ("bf16", "int4-32", "bf16", "bf16")),
        (QWEN3, {**MODELOPT, "config_groups": {"a": {"weights": NVFP4, "input_activations": NVFP4}},
            "ignore": [f"model.layers.{n}.self_attn*" for n in range(94)]}, ("bf16", "nvfp4", "fp8", "fp4")),
        (QWEN3, {**MODELOPT, "config_groups": {"a": {"weights": NVFP4, "input_activations": NVFP4}},
            "ignore": [f"model.layers.{n}.self_attn*" for n in range(9)]}, ("nvfp4", None, "fp8", "fp4")),
    ],
)  # fmt: skip
def test_formats_of_quantized_weights(model: Any, quantized: Any, formats: Any, tmp_path: Path):
    own = read(tmp_path, {**model, "quantization_config": quantized}).number_format
    assert (own.weights, own.experts, own.kv, own.arithmetic) == (formats[0], *formats[1:])


def test_the_file_next_to_it_says_formats_too(tmp_path: Path):
    """As ModelOpt writes it; both files are inputs of the run."""
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}))
    assert read(tmp_path, LLAMA).number_format.kv == "fp8"
    own = load(tmp_path / "s.yaml")
    assert own.files == [tmp_path / "config.json", beside]
    moved = yaml.safe_load(own.to_yaml(absolute_paths=True))
    assert moved["workload"]["service"]["model"]["config"] == str(tmp_path / "config.json")
    beside.write_text('{"quantization": \n {"quant_algo": "FP3"}}')
    with pytest.raises(ScenarioError, match=r'hf_quant_config.json:1:2: quantization: "modelopt" with "FP3" is not'):
        load(tmp_path / "s.yaml")
    beside.unlink()
    assert read(tmp_path, LLAMA).number_format.weights == "bf16"


def test_changes_replace_what_the_file_says(tmp_path: Path):
    """A format that is given need not be known from the file; part of one changes that part."""
    mixed = {**LLAMA, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}
    assert read(tmp_path, mixed, number_format="fp8").number_format.weights == "fp8"
    changed = read(tmp_path, DEEPSEEK, number_format={"kv": "fp8"})
    assert changed.number_format.weights == "fp8" and changed.number_format.kv == "fp8"
    assert changed.bytes_per_token * 2 == MODELS["deepseek-v3"].bytes_per_token
    assert read(tmp_path, LLAMA, layers=16).parameters < MODELS["llama-3.1-8b"].parameters


def test_a_profile_names_it_relative_to_itself(tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps(LLAMA))
    text = json.dumps({"service": {"kind": "llm", "model": {"config": "config.json"}, "gpu": "h200"}})
    (tmp_path / "models" / "x.service.yaml").write_text(text)
    own = scenario(0)
    own["workload"]["service"] = {"kind": "llm", "profile": "models/x.service.yaml"}
    (tmp_path / "s.yaml").write_text(json.dumps(own))
    assert len(hs.run(str(tmp_path / "s.yaml")).tasks) == 5


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key not in keys}


@pytest.mark.quick(9)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**LLAMA, "model_type": "mamba"}, 'config.json:2:3: model_type: "mamba" is not supported; give model: '
                                           '{layers:'),
        ({**LLAMA, "model_type": ["llama"]}, "model_type: "),
        (without("model_type"), "config.json:1:1: model_type: the key is missing; give model:"),
        ("", "config.json:1:1: a config.json must be a mapping of keys to values; got empty"),
        (without("hidden_size"), "config.json:1:1: hidden_size: the key is missing; give model: {layers: ...,"),
        ({"model_type": "qwen3_vl", "text_config": {"num_hidden_layers": 2}},
            "config.json:3:3: text_config.hidden_size: the key is missing; give model: {layers: ...,"),
        ({**LLAMA, "hidden_size": 64.5}, 'hidden_size: must be a whole number from 1; got "64.5"'),
        ({**LLAMA, "num_attention_heads": 0}, "num_attention_heads: must be a whole number"),
        ({**LLAMA, "num_key_value_heads": 5}, "heads must be a multiple of kv_heads (5)"),
        ({**LLAMA, "num_hidden_layers": 10**9}, "num_hidden_layers: must be at most 10,000 layers"),
        ({**LLAMA, "vocab_size": True}, "vocab_size: must be a whole number"),
        ({**LLAMA, "layer_types": [["x"]] * 32}, "layer_types: must be a list of 32 entries, each one of full"),
        ({**LLAMA, "layer_types": ["full_attention"]}, "layer_types: must be a list of 32"),
        ({**LLAMA, "layer_types": ["linear_attention"] * 32}, "linear_num_key_heads: the key is missing; give "
                                                              "model: {layers: ...,"),
        ({**QWEN3, "mlp_only_layers": [1, 2]}, "mlp_only_layers: only"),
        ({**QWEN3, "decoder_sparse_step": 2}, "decoder_sparse_step: only"),
        ({**DEEPSEEK, "index_topk": 2048, "index_topk_freq": 4}, "index_topk_freq: only models with an index"),
        ({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, 'quantization_config: "bitsandbytes"'),
        ({**LLAMA, "quantization_config": 4}, "quantization_config: "),
        ({**LLAMA, "quantization_config": {"quant_method": ["x"]}}, "quantization_config: "),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 3}},
            'quantization_config: "gptq" with 3 bits is not supported; give number_format'),
        ({**LLAMA, "quantization_config": {**MODELOPT, "kv_cache_scheme": "FP3"}}, "quantization_config: "),
        ({**LLAMA, "quantization_config": {**MODELOPT, "config_groups": {"a": 3}}}, "quantization_config: "),
        ('{"model_type": "llama"', "is not valid YAML"),
        ("[1]", "got a list"),
        ("[" * 10_000, "nested more than 64 levels"),
        (" " * 4_100_000, "config.json: must be at most 4 MB; got 4.1 MB"),
    ],
)
def test_files_that_cannot_be_read_are_one_sentence(content: Any, message: str, tmp_path: Path):
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, content)
    assert len(caught.value.problems) == 1
    assert message in str(caught.value) and "service.model" in str(caught.value) and "config.json" in str(caught.value)
    assert "trace:" not in str(caught.value)  # the advice on large scenarios


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"config": "nowhere.json"}, "nowhere.json: the file does not exist"),
        ({"config": 3}, "config: must be the name of a file"),
        ({"config": "config.json", "name": "llama-2-70b"}, "name and config exclude each other; give one of the two"),
        ({"name": "llama-2-70b", "number_format": "fp9"}, 'unknown number format "fp9"; did you mean "fp8"?'),
        ({"name": "llama-2-70b", "number_format": "FP8"}, 'unknown number format "FP8"; did you mean "fp8"?'),
        ({"name": "llama-2-70b", "number_format": 8}, "number_format: must be one of bf16, fp16, fp8, int8, nvfp4, "
            'mxfp4, int4, int4-32, or {weights, experts, kv, arithmetic}; got "8"'),
        ({"name": "llama-2-70b", "number_format": {"experts": "fp8"}}, "number_format: the model has no experts; give "
            "{weights: ...}"),
        ({"name": "llama-2-70b", "number_format": {"kv": "nvfp4"}}, "service.model: keys and values in nvfp4 need a "
            "GPU that computes with 4-bit numbers (fp4_flops), such as b200; give number_format: {kv: fp8}"),
    ],
)
def test_mappings_that_cannot_be(model: Any, message: str):
    with pytest.raises(ScenarioError) as caught:
        load(scenario(model))
    assert message in str(caught.value)
