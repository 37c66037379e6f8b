"""Rows of measured servers: what they say, and what the settings that their sources publish add to it.

The wheel aiconfigurator-core has a table `silicon_sample.csv`: mean time to first token and time a token of vLLM,
TensorRT-LLM and SGLang under a steady number of concurrent requests.  Repeats of a configuration count once, with their
median, and so do those that share a measurement under two names (DeepSeek R1 and V3, two files).  B300, GB300,
gpt-oss-120b, GLM, and configurations whose SHA-1 ends in 0, 1 or 2 are kept out.  The digest is that of the columns in
`KEY`, joined by "|", numbers without a fraction as whole ones and missing ones empty.

The settings are those of the repositories of InferenceMAX (scripts in `benchmarks`, loads in `.github/configs`, by the
day of the measurement) and of aiconfigurator (templates of its generator, for NVIDIA's own runs).
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hetsim.silicon.kernels import Divided

SAMPLE = "aiconfigurator_core/systems/silicon_sample.csv"
KEY = ["backend", "backend_version", "model_path", "system", "precision", "gemm_quant_mode", "moe_quant_mode", "isl",
       "osl", "batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"]  # fmt: skip
SAME = ["system", "backend", "isl", "osl", "batch_size", "silicon_ttft_ms", "silicon_tpot_ms"]
"""Columns that are equal in two points only if they are one measurement."""
MEASURED = ["silicon_ttft_ms", "silicon_tpot_ms"]
MODELS = {
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2.5", "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3-32B": "qwen3-32b", "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b", "deepseek-ai/DeepSeek-R1": "deepseek-r1",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3", "nvidia/DeepSeek-R1-NVFP4": "deepseek-r1",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3", "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "moonshotai/Kimi-K2.5": "kimi-k2.5", "openai/gpt-oss-120b": "gpt-oss-120b", "zhipuai/GLM-5": "glm-5",
}  # fmt: skip
FAMILIES = {"llama": "dense", "qwen3-32b": "dense", "deepseek": "latent", "kimi": "latent", "qwen3.5": "linear"}
BUDGET = {"vllm": 8192, "trtllm": 8192, "sglang": 8192}
"""Prompt tokens of a step, the engines' defaults on these GPUs."""
ASYNCHRONOUS = {"vllm": "0.14"}
"""First version whose results are seen a step later, if it is not the first measured one."""
PUBLIC = r"db-dump|source_file=(20|qwen3)"
"""Start of the source of rows of the public benchmark InferenceMAX; the others are NVIDIA's own (genai-perf)."""
UNDATED = {"source_file=2": "2025-10-29", "source_file=q": "2026-03-24"}
"""Day of rows of the benchmark without one, by the start of their source; the second has times of that day's rows."""
WARMED = "2026-01-21"
"""First day of InferenceMAX with warm-up requests; before, SGLang compiled kernels while the first requests waited."""
ROUNDS = 10
"""Requests of a client; the load generators send ten for each concurrent one."""
SHORTEST = 0.8
"""Shortest prompt and answer as a share of the longest, as the load generators draw them evenly."""


def version(text: str) -> tuple[int, ...]:
    """Major and minor number of a release; empty for what is none."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else ()


def family(model: str) -> str:
    """Family of a model, by its attention and its experts."""
    return next((kind for name, kind in FAMILIES.items() if model.startswith(name)), "experts")


def canonical(row: pd.Series, columns: list[str] = KEY) -> str:
    """The description of a configuration, of which the digest is taken."""
    values = [row[name] for name in columns]
    return "|".join("" if pd.isna(one) else f"{one:g}" if isinstance(one, float) else str(one) for one in values)


def sample(wheel: str, mode: str) -> pd.DataFrame:
    """All points of a mode: agg (read and decode on the same GPUs) or disagg."""
    with zipfile.ZipFile(wheel) as archive:
        rows = pd.read_csv(BytesIO(archive.read(SAMPLE)))
    rows = rows[rows["mode"] == mode].copy()
    rows["gpu"] = rows["system"].str.removesuffix("_sxm")
    rows["model"] = rows["model_path"].map(MODELS)
    rows["family"] = rows["model"].map(family)
    return rows


def once(rows: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Each configuration once, with the medians of its points; kept out if one of its names is."""
    rows["name"] = rows.apply(canonical, axis=1, columns=columns)
    digest = rows["name"].map(lambda name: hashlib.sha1(name.encode()).hexdigest()[-1])
    rows["kept_out"] = (
        digest.isin(list("012")) | rows["gpu"].isin(["b300", "gb300"]) | rows["model"].isin(["gpt-oss-120b", "glm-5"])
    )
    measured = list(rows[SAME].round({"silicon_ttft_ms": 2, "silicon_tpot_ms": 2}).itertuples(index=False, name=None))
    dumped = {one for one, source in zip(measured, rows["silicon_data_source"], strict=True) if "db-dump" in source}
    speculative = [speculates(row, one in dumped) for one, (_, row) in zip(measured, rows.iterrows(), strict=True)]
    rows["speculative"] = np.array(speculative)
    rows["key"] = rows["name"] + np.where(rows["speculative"], "|speculative", "")
    rows["same"] = alike(rows["key"], measured)
    rows["private"] = ~rows["silicon_data_source"].str.match(PUBLIC)
    grouped = rows.groupby("same", sort=False)
    first = rows.sort_values("private", kind="stable").drop_duplicates("same").set_index("same")
    first[MEASURED] = grouped[MEASURED].median()
    first["kept_out"], first["repeats"] = grouped["kept_out"].any(), grouped.size()
    first.attrs["rows"] = len(rows)
    return first.set_index("key")


def rows_of(wheel: str) -> pd.DataFrame:
    """Servers that read and decode on the same GPUs, at most eight of them, each configuration once."""
    rows = sample(wheel, "agg")
    experts = rows["moe_tp_size"].fillna(1) * rows["moe_ep_size"].fillna(1)
    rows["attention"] = rows["attention_dp_size"].fillna(np.maximum(1, experts // rows["tp_size"])).replace(0, 1)
    rows["gpus"] = rows["tp_size"] * rows["pp_size"] * rows["attention"]
    first = once(rows[rows["gpus"] <= 8].copy(), KEY)
    named = first["silicon_data_source"].str.extract(r"silicon_concurrency=(\d+)")[0].astype(float)
    first["sound"] = ~(named > first["batch_size"] * first["attention"])
    days = first.apply(public, axis=1)
    first["warm"] = (first["backend"] != "sglang") | (days == "") | (days >= WARMED)
    for name, row in first.iterrows():
        if (groups := divided(row)) is not None:
            attention, expert = groups
            first.loc[name, ["attention", "moe_ep_size"]] = attention, expert
            first.loc[name, ["tp_size", "moe_tp_size"]] = row["gpus"] // attention, row["gpus"] // expert
            first.loc[name, "batch_size"] = row["batch_size"] * row["attention"] // attention
    return first


def alike(names: pd.Series, measured: list[tuple[object, ...]]) -> np.ndarray:
    """Numbers of configurations; those that share a measurement are one."""
    name, point = pd.factorize(names)[0], pd.factorize(pd.Series(measured))[0]
    size = name.max() + 1
    links = coo_array((np.ones(len(name)), (name, size + point)), shape=(size + point.max() + 1,) * 2)
    return np.asarray(connected_components(links, directed=False)[1][name])


def speculates(row: pd.Series, dumped: bool) -> bool:
    """Was a point measured with speculative decoding?  No column tells it, but the published loads and images do.

    DeepSeek with TensorRT-LLM 1.2.0rc6.post3, and with 1.1.0rc2.post2 from the day on which that was added; Qwen3.5 in
    8 bits on four B200 with SGLang 0.5.9 and whole experts.  DeepSeek in 8 bits on eight B200 with SGLang 0.5.9 was
    measured with it and without up to some load, and only with it beyond.  The dump of the benchmark's database has
    the points without it (`dumped`), and none of a load or image that was only measured with it.
    """
    day, version_of = public(row), str(row["backend_version"])
    if not day or dumped:
        return False
    if row["backend"] == "trtllm":
        since = {"1.2.0rc6.post3": "", "1.1.0rc2.post2": "2026-01-14"}.get(version_of, "never")
        return row["family"] == "latent" and day >= since
    if (row["backend"], row["gpu"], row["precision"], version_of) != ("sglang", "b200", "fp8", "0.5.9"):
        return False
    if row["model"] == "qwen3.5-397b-a17b":
        return row["gpus"] == 4 and row["moe_ep_size"] == 1
    return row["family"] == "latent" and row["gpus"] == 8 and row["moe_ep_size"] == 1


@dataclass(frozen=True)
class Rules:
    """How the clients and the scheduler of a row behave."""

    shortest: float
    """Shortest prompt and answer as a share of the longest."""
    budget: int
    """Most tokens of a step."""
    mixed: bool = True
    """Steps both read prompts and decode."""
    late: bool = True
    """The results of a step are seen only after the next one (asynchronous scheduling)."""
    every: int = 1
    """Decoding steps between two looks at new requests."""
    held: tuple[float, int] = (0.0, 0)
    """Prompts wait until a step has this share of the most tokens, or for so many decoding steps."""
    memory: float = 0.9
    """Share of the memory for weights, keys and values; with TensorRT-LLM of what is free next to the weights."""
    fewer: int = 0
    """How many requests less than there are clients the server runs at once."""
    stored: str = ""
    """Format of keys and values in memory, if it is not that with which they are read."""


BLACKWELL = ("b200", "b300", "gb200", "gb300")


def public(row: pd.Series) -> str:
    """The day on which InferenceMAX measured a row; empty for a row of NVIDIA's own."""
    source = row["silicon_data_source"]
    found = re.search(r"measured=(\d{4}-\d\d-\d\d)", source)
    return (found[1] if found else UNDATED[source[:13]]) if re.match(PUBLIC, source) else ""


def divided(row: pd.Series) -> tuple[int, int] | None:
    """Groups that attend for themselves, and degree of expert parallelism, where scripts contradict the columns.

    Until 2 November 2025 the scripts of DeepSeek with TensorRT-LLM divided attention and experts from some load on.
    SGLang with 4 bits divided the experts.  MiniMax with vLLM got expert parallelism whether or not it was asked for,
    until the script was mended in April 2026; the script of Kimi never passed it on.  Where the former scripts divided
    the experts alone, the columns hold (by rows not kept out).
    """
    day, gpus, clients, latent = public(row), int(row["gpus"]), int(row["batch_size"]), row["family"] == "latent"
    engine, model, four = row["backend"], row["model"], row["gemm_quant_mode"] == "nvfp4"
    early = model == "minimax-m2.5" and "2026-03-11" <= day < "2026-04" and row["gpu"] != "h100"
    if engine == "vllm" and day and (early or model == "kimi-k2.5"):
        return 1, gpus if early else 1
    if not latent or not day or day > ("2025-11-10" if engine == "sglang" else "2025-11-02"):
        return None
    if engine == "sglang":
        return (1, gpus) if four else None
    load = (int(row["isl"]), int(row["osl"]))
    if four:
        least = 33 if load == (8192, 1024) else 256
    elif row["gpu"] == "b200":
        least = 33 if load == (1024, 1024) else 65
    else:
        least = 33 if load == (8192, 1024) else 65
    return (gpus, gpus) if clients >= least else None


def rules_of(row: pd.Series) -> Rules:
    """The rules of a row, from the published settings of its source (four by rows not kept out).

    InferenceMAX draws lengths evenly (`random-range-ratio` 0.8).  Steps of vLLM have 8192 tokens; since April 2026 on
    Blackwell those of two prompts, for its mixtures.  Steps of TensorRT-LLM have 16384 (gpt-oss: 20000), with DeepSeek
    one prompt and the batch, since 21 January 2026 at least 8192; Llama on less than 8 GPUs and 1024 + 1024 tokens
    waits for 0.9 of a step's tokens, or 20 steps.  The other source has equal lengths, and steps of one prompt and the
    batch; its published rule has 500 to 1500 tokens more, but first tokens on H100 take the time of one prompt.  Its
    SGLang mixes prompts into decoding steps since 0.5.6, and its TensorRT-LLM with Llama 3.1 8B runs one request less
    than there are clients: so say its first tokens, which take a share of 1 / clients of an answer more.  Its templates
    leave 0.8 of the free memory to TensorRT-LLM; SGLang, given no share, computes one from the memory of the GPU.
    """
    clients, prompt, engine, day = int(row["batch_size"]), int(row["isl"]), row["backend"], public(row)
    if not day:
        if engine == "sglang":
            memory = 0.91 if row["gpu"] == "h200" else 0.84
            mixed = str(row["backend_version"]) >= "0.5.6"
            return Rules(1.0, prompt + 1500, mixed=mixed, memory=memory)
        late = engine == "trtllm" or version(str(row["backend_version"])) >= (0, 14)
        short = engine == "trtllm" and not pd.isna(row["gemm_quant_mode"])
        fewer = int(engine == "trtllm" and row["model"] == "llama-3.1-8b")
        memory = 0.8 if engine == "trtllm" else 0.9
        return Rules(1.0, prompt + clients, late=late, fewer=fewer, stored="fp8" if short else "", memory=memory)
    if engine == "sglang":
        return sglang_rules(row)
    if engine == "vllm":
        since = {"minimax-m2.5": "2026-04"} | ({"kimi-k2.5": "2026-04-20"} if row["gpu"] == "b200" else {})
        fast = row["gpu"] in BLACKWELL and day >= since.get(row["model"], "never")
        early = row["model"] == "minimax-m2.5" and row["gpu"] in ("h200", "b200") and day < "2026-04"
        int4 = row["model"] == "kimi-k2.5" and row["moe_quant_mode"] == "int4_wo"
        return Rules(SHORTEST, 2 * prompt if fast else BUDGET[engine], memory=0.95 if early or int4 else 0.9)
    if row["family"] != "dense":
        return trtllm_rules(row)
    waits = row["gpus"] < 8 and (prompt, int(row["osl"])) == (1024, 1024)
    return Rules(SHORTEST, 16384, held=(0.9, 20) if waits else (0.0, 0))


def trtllm_rules(row: pd.Series) -> Rules:
    """The rules of mixtures with TensorRT-LLM in InferenceMAX, from its published scripts.

    Groups that attend for themselves read prompts at the same time (`enable_balance`): as soon as each has one, but at
    the latest after 60 steps (`timeout_iters`).  A group gets one in output / clients steps on average.
    """
    clients, prompt, output, day = int(row["batch_size"]), int(row["isl"]), int(row["osl"]), public(row)
    if row["model"] == "gpt-oss-120b":
        return Rules(SHORTEST, max(prompt + clients + 64, 20000), memory=0.85)
    groups = int(row["attention"])
    budget = max(prompt + clients * groups + 64, 8192 if day >= "2026-01-21" else 0)
    memory, held, every = 0.75 if row["gpu"] == "h200" else 0.8, (0.0, 0), 1
    if row["gpu"] == "b200" and row["gemm_quant_mode"] != "nvfp4" and day >= "2026-01-21":
        if (prompt, output) == (1024, 1024) and clients * groups >= 64:
            held = (0.8, 40)
        memory = 0.75 if prompt == 8192 and row["gpus"] == 4 else memory
        memory = 0.7 if output == 8192 and clients * groups >= 256 else memory
    if groups > 1:
        steps = 0.9 * output / clients * sum(1 / one for one in range(1, groups + 1))
        every = max(1, min(60, round(steps)))
    return Rules(SHORTEST, budget, every=every, held=held, memory=memory)


def sglang_rules(row: pd.Series) -> Rules:
    """The rules of SGLang in InferenceMAX, from its published scripts.

    On Blackwell it looks for requests every 10 steps, from 16 clients on every 30 (`scheduler-recv-interval`).
    """
    wide, latent, four = row["gpu"] in BLACKWELL, row["family"] == "latent", row["gemm_quant_mode"] == "nvfp4"
    if wide and latent and not four and row["gpus"] == 4:
        return Rules(SHORTEST, 8192, mixed=False, every=10, memory=0.95)
    if row["gpu"] == "b300" and not latent and row["gemm_quant_mode"] == "fp8":
        return Rules(SHORTEST, 16384, mixed=False, every=10, memory=0.8)
    every = (30 if row["batch_size"] >= 16 else 10) if wide else 1
    budget = 16384 if (latent and four) or not (latent or wide) else 32768
    share = 0.85 if four else 0.82
    return Rules(SHORTEST, budget, mixed=False, every=every, memory=share)


def kept(row: pd.Series) -> str:
    """Format of keys and values: the published setting of InferenceMAX, and 8 bits for checkpoints of NVIDIA.

    vLLM on H100 was to have 8 bits, but its saturated rows have room for 16 only.  TensorRT-LLM of the other source has
    room for 8 bits (`Rules.stored`), but attends in the time of 16.
    """
    engine, day, family = row["backend"], public(row), row["family"]
    if pd.isna(row["gemm_quant_mode"]):
        return "bf16"
    if row["model_path"].startswith("nvidia/") or row["gemm_quant_mode"] == "nvfp4":
        return "fp8"
    if not day:
        return "bf16"
    wide = row["gpu"] in BLACKWELL
    if row["model"] == "gpt-oss-120b":
        short = wide and (engine == "trtllm" or day >= "2026")
    elif engine == "vllm":
        short = row["gpu"] != "h100" if family == "dense" else wide and day >= "2026-04"
    else:
        short = engine == "trtllm" or wide or family != "latent"
    return "fp8" if short else "bf16"


@dataclass(frozen=True)
class Server:
    """What of a row decides about its steps."""

    model: str
    formats: tuple[str, str, str]
    """Of weights, experts, keys and values."""
    gpu: str
    engine: str
    divided: Divided


def server_of(row: pd.Series) -> Server:
    """The server of a row; NotMeasured if the row does not describe it."""
    weights, experts = row["gemm_quant_mode"], row["moe_quant_mode"]
    if pd.isna(weights):
        weights = experts = "bf16"  # no format is named: the checkpoints have 16 bits
    names = {"fp8": "fp8", "fp8_block": "fp8", "nvfp4": "nvfp4", "int4_wo": "int4", "bf16": "bf16"}
    weights, experts = names[weights], names[experts]
    if row["model"].startswith("kimi") or (row["model"] == "glm-5" and weights == "nvfp4"):
        weights = "bf16"  # only their experts are quantized, and a few dense layers (so says the checkpoint in nvfp4)
    if row["model"].startswith("gpt-oss"):
        weights, experts = "bf16", "mxfp4"
    tensor, attention = int(row["tp_size"]), int(row["attention"])
    expert = int(row["moe_ep_size"] or 1) if family(row["model"]) != "dense" else 1
    expert_tensor = int(row["moe_tp_size"] or 1) if family(row["model"]) != "dense" else None
    if expert_tensor is not None and expert * expert_tensor != tensor * attention:
        expert, expert_tensor = 1, tensor * attention
    return Server(
        row["model"], (weights, experts, kept(row)), row["gpu"], row["backend"],
        Divided(tensor, attention, expert_tensor, expert),
    )  # fmt: skip
