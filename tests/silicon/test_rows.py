"""Settings of measured servers that their sources publish, and how the rows have them."""

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
