"""Measured servers that read prompts and decode on different GPUs: their rows, and the rules of both roles."""

import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hetsim as hs
from benchmarks import measured_disaggregated as apart
from benchmarks import measured_model as servers
from benchmarks.measured_rows import SAMPLE, Rules, Server
from benchmarks.measured_servers import FILE
from hetsim.silicon.kernels import Divided

ROLE = {"num_workers": 1, "batch_size": 1, "tp_size": 1, "pp_size": 1, "attention_dp_size": 8, "moe_tp_size": 1,
        "moe_ep_size": 8}  # fmt: skip
ROW = {"backend": "trtllm", "backend_version": "0.8.1.post1", "model_path": "deepseek-ai/DeepSeek-V3", "mode": "disagg",
       "system": "h200_sxm", "precision": "fp8", "gemm_quant_mode": "fp8", "moe_quant_mode": "fp8", "isl": 8192,
       "osl": 1024, "silicon_ttft_ms": 1.0, "silicon_tpot_ms": 1.0,
       "silicon_data_source": "db-dump/2026; silicon_concurrency=128; measured=2026-02-14T00:00:00.000Z",
       **dict.fromkeys(apart.KEY[9:]), **{f"prefill_{name}": value for name, value in ROLE.items()},
       **{f"decode_{name}": value for name, value in ROLE.items()}, "prefill_batch_size": 1.0,
       "decode_batch_size": 16.0}  # fmt: skip


def wheel(path, *rows):
    """A wheel with these rows, each given by what differs from `ROW`."""
    text = io.StringIO()
    pd.DataFrame([{**ROW, **changes} for changes in rows]).to_csv(text, index=False)
    with zipfile.ZipFile(path / "a.whl", "w") as archive:
        archive.writestr(SAMPLE, text.getvalue())
    return str(path / "a.whl")


def test_rows_are_those_with_described_workers_of_at_most_eight_gpus(tmp_path):
    made = apart.rows_of(
        wheel(
            tmp_path, {}, {"silicon_tpot_ms": 3.0}, {"mode": "agg"}, {"decode_num_workers": None},
            {"decode_attention_dp_size": 16}, {"prefill_tp_size": 2},
            {"decode_batch_size": 15.0, "silicon_ttft_ms": 2.0},
            {"silicon_data_source": "source_file=/a.csv", "prefill_num_workers": 2, "decode_num_workers": 3,
             "silicon_ttft_ms": 3.0},
        )
    )  # fmt: skip
    assert made["repeats"].tolist() == [2, 1, 1] and made["silicon_tpot_ms"].iloc[0] == 2.0
    assert made["clients"].tolist() == [128, 128, 16 * 8 * 3]
    assert made["batch_size"].tolist() == [16, 16, 16]
    assert made.index[0].endswith("|1|1|1|1|8|1|8|1|16|1|1|8|1|8")  # the columns of both roles
    assert made["recipe"].isna().tolist() == [False, False, True]


def test_a_recipe_says_how_prompts_are_divided_where_columns_differ(tmp_path):
    made = apart.rows_of(wheel(tmp_path, {}, {"silicon_data_source": "source_file=/a.csv"}))
    reader, decoder = (apart.role_of(made.iloc[0], role) for role in apart.ROLES)
    assert reader.server.divided == Divided(8, 1, 1, 8) and decoder.server.divided == Divided(1, 8, 1, 8)
    assert (reader.most, reader.rules.late, decoder.rules.late, decoder.rules.memory) == (2, False, True, 0.85)
    assert apart.prepared(made).attrs["refused"] == {}
    lost = made.assign(recipe=None)
    frame = apart.prepared(pd.concat([made, lost.rename(index=lambda name: name + "|lost")]))
    assert set(frame.attrs["refused"].values()) == {"no recipe is known"}


def test_every_recipe_is_found_by_one_row_at_most():
    recipes = pd.read_csv(apart.RECIPES, dtype={"clients": str})
    recipes["clients"] = recipes["clients"].str.split("x")
    keys = list(recipes.columns[: recipes.columns.get_loc("clients") + 1])
    assert not recipes.explode("clients").duplicated(keys).any()
    divided = recipes["read_groups"] * recipes["decode_groups"] * recipes["read_experts"] * recipes["decode_experts"]
    assert np.log2(divided).mod(1).eq(0).all() and recipes["memory"].between(0.5, 0.95).all()


def replay(clients, workers, load=(1000, 200), engine="sglang", seconds=0.0, most=1 << 40, slots=1 << 40, low=1.0):
    """A closed loop on H100 with Llama 3.1 8B, and its times, without asynchronous steps."""
    server = Server("llama-3.1-8b", ("bf16",) * 3, "h100", engine, Divided(1, 1, None, 1))
    constants = json.loads(FILE.read_text(encoding="utf-8"))["engines"][engine]["constants"]
    made = servers.kernels(server)
    times = [apart.Times(made, constants, 1) for _ in range(2)]
    rules = Rules(low, 8192, late=False)
    roles = [apart.Role(server, count, rules, many, slots, 1 << 40)
             for count, many in zip(workers, (1 << 40, most), strict=True)]  # fmt: skip
    return apart.Replay(times, roles, [clients, *load], seconds, 1), times[0]


@pytest.mark.parametrize("engine, more", [("trtllm", 0), ("sglang", 0), ("vllm", 1)])
def test_the_first_token_of_a_request_alone_comes_after_its_keys_and_values(engine, more):
    """vLLM reads the last token of the prompt again."""
    run, times = replay(1, (1, 1), engine=engine, seconds=1e-4)
    expected = servers.FRONT_END + times.reading([(1000, 500500)]) + 0.1 + more * times.decoding(1, 1, 1000)
    assert np.array(run.first) - np.array(run.arrived) == pytest.approx([expected] * 10)
    assert run.tpot == pytest.approx([times.decoding(199, 1, 1000 + 1) / 199] * 10, rel=1e-3)


def test_requests_wait_for_one_that_decodes_and_prompts_for_a_slot():
    run, times = replay(2, (1, 1), most=1)
    answer = times.decoding(199, 1, 1001)
    assert run.first[1] - run.first[0] == pytest.approx(answer, rel=0.02)
    late, slots = (replay(2, (2, 1), seconds=0.01, slots=slots)[0] for slots in (1 << 40, 1))
    assert max(late.first) == max(slots.first)  # each on a worker of its own
    late, slots = (replay(2, (1, 1), seconds=0.01, slots=slots)[0] for slots in (1 << 40, 1))
    assert slots.first[1] == pytest.approx(late.first[1] + times.reading([(1000, 500500)]), rel=0.01)


def test_groups_with_unequal_prompts_take_the_longest_but_experts_the_sum():
    made = servers.kernels(Server("deepseek-r1", ("fp8", "fp8", "fp8"), "h200", "trtllm", Divided(1, 8, 1, 8)))
    constants = dict.fromkeys(servers.CONSTANTS, 0.0) | {"kernels": 1.0, "moved": 1.0}
    times = apart.Times(made, constants, 8)
    full, one = times.reading([(4096, 10**7)] * 8), times.reading([(4096, 10**7)] + [(0, 0)] * 7)
    experts = np.interp([4096, 512], servers.TOKENS, made.tokens["experts"])
    assert full - one == pytest.approx(experts[0] - experts[1]) and full > one > 0


def test_the_replay_agrees_with_hetsim_run():
    """Whole responses; `hetsim run` counts a first token when the prompt is read."""
    run, _ = replay(32, (2, 1), load=(2000, 300), low=0.8)
    engine = json.loads(FILE.read_text(encoding="utf-8"))["engines"]["sglang"]["to"]
    model = servers.architecture("llama-3.1-8b", ("bf16",) * 3).model_dump(exclude_none=True)
    fast = {"in": "1e6 GB/s", "out": "1e6 GB/s"}
    gpus = {"type": "h100", "count": 1, "memory": "1 TB"}
    service = {
        "kind": "llm", "model": model, "gpu": "h100", "engine": f"sglang-{engine}", "async_scheduling": False,
        "disaggregated": {"prefill": 2, "decode": 1}, "front_end": f"{servers.FRONT_END} s", "memory_share": 1.0,
        "max_num_batched_tokens": 8192, "kv": {"tokens": 1 << 22}, "routing": "round_robin",
        "batching": {"name": "continuous", "phases": "mixed"},
    }  # fmt: skip
    spread = [{"distribution": "uniform", "low": 0.8 * most, "high": most} for most in (2000, 300)]
    scenario = {
        "name": "apart", "seed": 1, "horizon": "10 h",
        "cluster": {"nodes": [{"count": 3, "gpus": gpus, "network": fast, "pcie": {"upload": "1e6 GB/s"}}]},
        "workload": [{"arrivals": {"process": "closed", "clients": 32, "think": "0 s"}, "count": 320,
                      "tokens": dict(zip(("prompt", "output"), spread, strict=True)), "service": service}],
    }  # fmt: skip
    tasks = hs.run(scenario).tasks
    tokens = np.array(run.outputs) - 1
    response = np.array(run.first) - np.array(run.arrived) + np.array(run.tpot) * tokens
    assert response.mean() == pytest.approx(tasks["response"].mean(), rel=0.01)
    assert np.mean(run.tpot) == pytest.approx(tasks["tpot"].mean(), rel=0.02)


def test_the_tables_of_the_page_have_all_configurations():
    page = (Path(__file__).parents[2] / "docs" / "background" / "measured-servers.md").read_text(encoding="utf-8")
    rows = re.findall(r"\n\| all(, [a-z ]+)? \| ([\d,]+) \|", page)
    counts = [int(count.replace(",", "")) for what, count in rows if what != ", with disaggregated servers"]
    assert len(counts) == 6 and sum(counts) == 2485 + 211
