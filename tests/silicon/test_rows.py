"""Settings of measured servers that their sources publish, and how the rows have them."""

import zipfile
from types import SimpleNamespace

import pandas as pd
import pytest

from benchmarks import measured_rows as rows

ROW = {"backend": "trtllm", "backend_version": None, "model": "deepseek-r1", "family": "latent", "gpu": "b200",
       "gemm_quant_mode": "nvfp4", "moe_quant_mode": "nvfp4", "isl": 8192, "osl": 1024, "batch_size": 64.0,
       "gpus": 8.0, "attention": 1.0,
       "silicon_data_source": "source_file=2026-03-25.csv; measured=2025-11-02T00:00:00Z"}  # fmt: skip


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, (8, 8)),
        ({"batch_size": 32.0}, None),
        ({"isl": 1024, "batch_size": 128.0}, None),
        ({"isl": 1024, "batch_size": 256.0, "gpus": 4.0}, (4, 4)),
        ({"gemm_quant_mode": "fp8"}, None),
        ({"gemm_quant_mode": "fp8", "isl": 1024}, (8, 8)),
        ({"gemm_quant_mode": "fp8", "gpu": "h200"}, (8, 8)),
        ({"silicon_data_source": "source_file=2026-03-25.csv; measured=2026-02-03T00:00:00Z"}, None),
        ({"silicon_data_source": "source_file=/Users/a.csv"}, None),
        ({"backend": "sglang"}, (1, 8)),
        ({"backend": "vllm", "model": "kimi-k2.5"}, (1, 1)),
        ({"backend": "vllm", "model": "minimax-m2.5", "family": "experts"}, None),
        ({"backend": "vllm", "model": "minimax-m2.5", "family": "experts", "gpus": 2.0,
          "silicon_data_source": "source_file=2026-04.csv; measured=2026-03-11T00:00:00Z"}, (1, 2)),
    ],
)  # fmt: skip
def test_scripts_say_how_attention_and_experts_are_divided(changes, expected):
    assert rows.divided(pd.Series({**ROW, **changes})) == expected


def test_groups_that_attend_for_themselves_read_prompts_together():
    """Eight groups get a prompt every 922 / 64 steps each, so that all have one after 39; at most 60 steps pass."""
    full = rows.rules_of(pd.Series({**ROW, "attention": 8.0}))
    assert (full.every, full.budget, full.memory) == (39, 8192 + 8 * 64 + 64, 0.8)
    assert rows.rules_of(pd.Series({**ROW, "attention": 8.0, "batch_size": 8.0})).every == 60
    assert rows.rules_of(pd.Series(ROW)).every == 1


@pytest.mark.parametrize(
    ("model", "formats"), [("glm-5", ("bf16", "nvfp4", "fp8")), ("deepseek-v3", ("nvfp4", "nvfp4", "fp8"))]
)
def test_checkpoints_of_glm_in_4_bits_keep_their_attention_in_16(model, formats):
    changes = {"model": model, "model_path": "", "tp_size": 8.0, "moe_ep_size": 1.0, "moe_tp_size": 8.0}
    assert rows.server_of(pd.Series({**ROW, **changes, "backend": "sglang"})).formats == formats


MTP = {"backend": "sglang", "backend_version": "0.5.9", "precision": "fp8", "moe_ep_size": 1.0,
       "silicon_data_source": "source_file=2026-03-25.csv; measured=2026-03-25T16:34:14Z"}  # fmt: skip
TRT = {"silicon_data_source": "source_file=2026-03-25.csv; measured=2026-01-14T00:00:00Z", "precision": "fp8"}


@pytest.mark.parametrize(
    "changes, expected",
    [
        (MTP, True),
        ({**MTP, "gpus": 4.0}, False),
        ({**MTP, "gpu": "h200"}, False),
        ({**MTP, "backend_version": "0.5.6"}, False),
        ({**MTP, "model": "qwen3.5-397b-a17b", "family": "linear", "gpus": 4.0}, True),
        ({**MTP, "model": "qwen3.5-397b-a17b", "family": "linear", "gpus": 4.0, "moe_ep_size": 4.0}, False),
        ({**TRT, "backend_version": "1.2.0rc6.post3"}, True),
        ({**TRT, "backend_version": "1.2.0rc6.post2"}, False),
        ({**TRT, "backend_version": "1.1.0rc2.post2"}, True),
        ({**MTP, "backend": "trtllm", "backend_version": "1.1.0rc2.post2", "model": "llama-3.1-70b", "family": "dense"},
         False),
        ({"precision": "fp8", "backend_version": "1.1.0rc2.post2"}, False),
        ({**MTP, "silicon_data_source": "source_file=/data/b200_sxm/sglang/0.5.9/a.csv"}, False),
    ],
)  # fmt: skip
def test_published_loads_and_images_say_which_points_speculate(changes, expected):
    row = pd.Series({**ROW, **changes})
    assert rows.speculates(row, dumped=False) is expected
    assert rows.speculates(row, dumped=True) is False


def few(folder):
    """Points of DeepSeek in a wheel: two of one server, two with speculation, one of another load."""
    server = {"mode": "agg", "system": "b200_sxm", "backend": "sglang", "backend_version": "0.5.9", "precision": "fp8",
              "model_path": "deepseek-ai/DeepSeek-R1", "gemm_quant_mode": "fp8", "moe_quant_mode": "fp8_block",
              "isl": 1024, "osl": 1024, "batch_size": 4.0, "tp_size": 8.0, "pp_size": 1.0, "attention_dp_size": 1.0,
              "moe_tp_size": 8.0, "moe_ep_size": 1.0, "silicon_ttft_ms": 183.2, "silicon_tpot_ms": 8.76,
              "silicon_data_source": MTP["silicon_data_source"]}  # fmt: skip
    faster = {**server, "silicon_ttft_ms": 206.7, "silicon_tpot_ms": 6.70}
    dump = {**server, "model_path": "deepseek-ai/DeepSeek-V3", "silicon_ttft_ms": 183.2001,
            "silicon_data_source": "db-dump/2026-04-27; config_id=87; measured=2026-03-25T00:00:00Z"}  # fmt: skip
    points = [server, faster, {**faster, "silicon_tpot_ms": 6.74}, dump, {**dump, "batch_size": 8.0}]
    with zipfile.ZipFile(folder / "few.whl", "w") as archive:
        archive.writestr(rows.SAMPLE, pd.DataFrame(points).to_csv(index=False))
    return rows.rows_of(str(folder / "few.whl"))


def test_a_measurement_with_two_names_is_one_configuration(tmp_path):
    frame = few(tmp_path)
    assert frame.attrs["rows"] == 5
    assert frame["repeats"].tolist() == [2, 2, 1]
    assert frame["speculative"].tolist() == [False, True, False]
    assert frame["silicon_tpot_ms"].tolist() == pytest.approx([8.76, 6.72, 8.76])


def test_a_configuration_is_kept_out_if_one_of_its_names_is(tmp_path, monkeypatch):
    """Only the names of DeepSeek V3 have a digest that is kept out."""
    of = SimpleNamespace(sha1=lambda name: SimpleNamespace(hexdigest=lambda: "0" if b"V3" in name else "f"))
    monkeypatch.setattr(rows, "hashlib", of)
    assert few(tmp_path)["kept_out"].tolist() == [True, False, True]
