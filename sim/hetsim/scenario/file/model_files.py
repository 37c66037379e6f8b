"""Language-model architectures from config.json files of Hugging Face models."""

import re
from pathlib import Path
from typing import Any, NoReturn

from hetsim.errors import ScenarioError
from hetsim.model.files import record_input
from hetsim.model.units import is_number, shown
from hetsim.scenario.file import document

KINDS = """
    deepseek_v2 deepseek_v3 deepseek_v32 gemma2 glm4_moe glm_moe_dsa gpt_oss kimi_k2 kimi_k25 llama llama4 llama4_text
    mimo minimax_m2 mistral mixtral phi3 qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text
    qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text
"""  # Supported values of model_type.
PARTS = {
    "latent": {key: key for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")},
    "indexer": {"heads": "index_n_heads", "head_size": "index_head_dim", "tokens": "index_topk"},
    "linear": {
        "key_heads": "linear_num_key_heads", "key_size": "linear_key_head_dim", "value_heads": "linear_num_value_heads",
        "value_size": "linear_value_head_dim", "convolution": "linear_conv_kernel_dim",
    },
}  # fmt: skip
# Number formats by type and bits, or by their name in NVIDIA's ModelOpt.
FORMATS = {
    "float 8": "fp8", "float 4": "nvfp4", "int 8": "int8", "int 4": "int4", "FP8": "fp8", "NVFP4": "nvfp4",
    "MXFP4": "mxfp4", "None": "bf16",
}  # fmt: skip
MAX_LAYERS = 10_000
# Attention modules in lists of modules that are not quantized.
ATTENTION = re.compile(r"attn(\*|\.\*|\$|$|\.[qkvo]\w*proj)")


def architecture(folder: str, named: Any, formats: bool = True) -> dict[str, Any]:
    """Return a model's architecture from its config.json; ValueError names a bad key.

    named: the file, relative to `folder`.  formats: include the model's number formats.
    """
    if not isinstance(named, str) or not named:
        raise ValueError(f"config: must be the name of a file; got {shown(named)}")
    path = record_input(Path(folder) / named, "config", named)
    beside = path.with_name("hf_quant_config.json")
    try:
        read, what = document.read(path, "a config.json"), "an hf_quant_config.json"
        quantized = document.read(record_input(beside), what) if beside.is_file() else None
    except ScenarioError as error:
        raise ValueError(str(error.problems[0])) from None
    return _Config(read).figures(quantized, formats)


class _Config:
    """A config.json; the keys may also be in its part `text_config`."""

    def __init__(self, read: document.Document):
        self.read = read
        read.positions[()] = (1, 1)  # of its object, for keys that are missing
        text = read.data.get("text_config")
        self.text: dict[str, Any] = text if isinstance(text, dict) else {}

    def refuse(self, key: str, message: str, instead: str = "model: {layers: ..., hidden: ...}") -> NoReturn:
        inside = self.text and (key in self.text or key not in self.read.data)
        at = ("text_config", key) if inside else (key,)
        raise ValueError(f"{self.read.problem(at, message)}; give {instead}")

    def value(self, key: str) -> Any:
        return self.text.get(key, self.read.data.get(key))

    def number(self, *keys: str, default: int | None = None) -> int:
        """Return the first value given for these keys, as a whole number.

        ValueError if the value is not a whole number from 1 (from 0 if `default` is 0) to 10⁹, or if no value is given
        and there is no default.
        """
        key = next((one for one in keys if self.value(one) is not None), keys[0])
        value = self.value(key)
        if value is None and default is not None:
            return default
        if value is None or not is_number(value) or int(value) != value or not (default != 0) <= value <= 10**9:
            text = f"must be a whole number from {int(default != 0)}; got {shown(value)}"
            self.refuse(key, "the key is missing" if value is None else text)
        return int(value)

    def part(self, name: str) -> dict[str, int]:
        return {figure: self.number(key) for figure, key in PARTS[name].items()}

    def figures(self, beside: document.Document | None, formats: bool) -> dict[str, Any]:
        kind = self.value("model_type")
        if not isinstance(kind, str) or kind not in KINDS.split():
            self.refuse("model_type", "the key is missing" if kind is None else f"{shown(kind)} is not supported")
        layers = self.number("num_hidden_layers")
        if layers > MAX_LAYERS:
            self.refuse("num_hidden_layers", f"must be at most {MAX_LAYERS:,} layers; got {layers:,}")
        figures: dict[str, Any] = {
            "layers": layers, "hidden": self.number("hidden_size"),
            "heads": self.number("num_attention_heads"), "vocabulary": self.number("vocab_size"),
            "tied": bool(self.value("tie_word_embeddings") or kind == "gemma2"),
        }  # fmt: skip
        figures |= self.attention(layers, kind) | self.blocks(layers, kind)
        quantized = formats and self.value("quantization_config")
        if formats and not quantized and beside is not None:  # whose mistakes are of this file
            quantized, self.read, self.text = beside.data.get("quantization"), beside, {}
        return figures | ({"number_format": self.formats(quantized, figures)} if quantized else {})

    def attention(self, layers: int, kind: str) -> dict[str, Any]:
        if self.value("kv_lora_rank") is not None:
            if (every := self.value("index_topk_freq")) not in (None, 1):
                text = f"only models with an index in every layer are supported; got {shown(every)}"
                self.refuse("index_topk_freq", text)
            latent = self.part("latent")
            if self.value("q_lora_rank") is not None:
                latent["q_lora_rank"] = self.number("q_lora_rank")
            return {"latent": latent, **({"indexer": self.part("indexer")} if self.value("index_topk") else {})}
        figures: dict[str, Any] = {"output_gate": bool(self.value("attn_output_gate") or kind == "qwen3_next")}
        for figure, key in (("kv_heads", "num_key_value_heads"), ("head_size", "head_dim")):
            if self.value(key) is not None:
                figures[figure] = self.number(key)
        types = self.value("layer_types") or self.types(layers, kind)
        allowed = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
        if not isinstance(types, list) or len(types) != layers or any(one not in allowed for one in types):
            self.refuse("layer_types", f"must be a list of {layers} entries, each one of {', '.join(allowed)}")
        full, sliding, chunked, linear = map(types.count, allowed)
        if linear:
            figures["linear"] = {"layers": linear, **self.part("linear")}
        if windowed := sliding + chunked:
            figures |= {"window": self.number("sliding_window", "attention_chunk_size"), "windowed_layers": windowed}
        return figures

    def types(self, layers: int, kind: str) -> list[str]:
        """Return the attention type of each layer, for a config that does not list them."""
        other, every, first = "sliding_attention", 10**9, 0
        if kind.startswith(("qwen3_5", "qwen3_next")):
            other, every = "linear_attention", self.number("full_attention_interval", default=4)
        elif kind.startswith("llama4"):
            every = 4 if self.value("attention_chunk_size") is not None else 1
        elif self.value("sliding_window") is None or self.value("use_sliding_window") is False:
            every = 1
        elif kind == "gemma2":
            every = 2
        elif kind.startswith("qwen2"):
            first = self.number("max_window_layers", default=0)
        full = (number < first or (number + 1) % max(1, every) == 0 for number in range(layers))
        return ["full_attention" if one else other for one in full]

    def blocks(self, layers: int, kind: str) -> dict[str, Any]:
        experts = self.number("n_routed_experts", "num_local_experts", "num_experts", default=1)
        if experts <= 1:
            return {"intermediate": self.number("intermediate_size")}
        for key in ("moe_layer_freq", "decoder_sparse_step", "mlp_only_layers"):
            if self.value(key) not in (None, 1, []):
                self.refuse(key, f"only models with experts in every layer are supported; got {shown(self.value(key))}")
        size = self.number("moe_intermediate_size", "intermediate_size")
        shared = self.number("shared_expert_intermediate_size", "shared_intermediate_size", default=0)
        shared += size * self.number("n_shared_experts", default=1 if kind.startswith("llama4") else 0)
        dense = self.number("first_k_dense_replace", default=0)
        dense += layers - layers // max(1, self.number("interleave_moe_layer_step", default=1))
        other = {"dense_intermediate": self.number("intermediate_size_mlp", "intermediate_size")} if dense else {}
        needed = self.number("num_experts_per_tok", "experts_per_token")
        return {"intermediate": size, "experts": experts, "active_experts": needed, "shared_intermediate": shared,
                "dense_layers": dense, **other}  # fmt: skip

    def formats(self, given: Any, figures: dict[str, Any]) -> dict[str, Any]:
        given = given if isinstance(given, dict) else {"quant_method": given}
        method, named = given.get("quant_method", "modelopt"), given.get("quant_algo")
        groups = given.get("config_groups")
        scheme: dict[str, Any] = {"weights": named}
        if method in ("awq", "gptq"):
            scheme = {"weights": {"num_bits": given.get("bits"), **given}, "input_activations": None}
        elif method in ("fp8", "fbgemm_fp8", "mxfp4") and named is None:
            scheme = {"weights": "MXFP4" if method == "mxfp4" else "FP8"}
        elif method in ("modelopt", "compressed-tensors") and isinstance(groups, dict) and len(groups) == 1:
            scheme = next(iter(groups.values()))
        elif method != "modelopt":
            scheme = {}
        kv = self.width(given.get("kv_cache_scheme", given.get("kv_cache_quant_algo")))
        width = self.width(scheme.get("weights")) if isinstance(scheme, dict) else None
        if width in (None, "bf16") or kv is None:
            detail = f"{given['bits']} bits" if "bits" in given else "these keys" if named is None else shown(named)
            what = f"{shown(method)} with {detail} is not supported"
            key = "quantization" if "quantization" in self.read.data else "quantization_config"
            self.refuse(key, what, "number_format: {weights: ...} next to config")
        inputs = self.width(scheme["input_activations"]) if "input_activations" in scheme else width
        arithmetic = "fp4" if inputs == "nvfp4" else inputs if inputs in ("fp8", "int8") else "bf16"
        lists = (given.get(key) for key in ("ignore", "modules_to_not_convert", "exclude_modules"))
        names = [str(name) for one in lists if isinstance(one, list) for name in one if ATTENTION.search(str(name))]
        some = {number for name in names for number in re.findall(r"layers\.(\d+)", name)}
        apart = len(some) * 2 >= figures["layers"] or any(not re.search(r"layers\.\d", name) for name in names)
        kept = apart and "experts" in figures
        return {"experts" if kept else "weights": width, "kv": kv, "arithmetic": arithmetic}

    @staticmethod
    def width(given: Any) -> str | None:
        """Return the number format that a quantization describes; None if not supported."""
        if not isinstance(given, dict):
            return FORMATS.get(str(given))
        name = FORMATS.get(f"{given.get('type', 'int')} {given.get('num_bits')}")
        groups_of_32 = {"int4": "int4-32", "nvfp4": "mxfp4"}
        return groups_of_32.get(name or "", name) if given.get("group_size") == 32 else name
