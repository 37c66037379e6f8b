"""What was measured on an H100, and what is predicted of it: docs/background/measured-gpu.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tiers import spread

from benchmarks import h100

PAGE = (Path(__file__).parents[2] / "docs" / "background" / "measured-gpu.md").read_text(encoding="utf-8")
ROWS = {
    tuple(cells[:3]): cells
    for line in re.findall(r"^\| (?:graph|eager) \|.*", PAGE, re.MULTILINE)
    if (cells := [cell.strip() for cell in line.strip("| ").split("|")])
}
RUNS = {
    (run["executor"], "serial" if run["streams"] == 1 else "asynchronous", run["load"]): run
    for run in h100.runs()
    if run["attempt"] == 1
}
UNSTABLE = ("graph", "asynchronous", "0.6")
"""Two states between which the server goes to and fro: last bits of its times decide when."""


def test_the_page_has_every_run():
    assert set(ROWS) == set(RUNS) and len(RUNS) == 16


@pytest.mark.slow
@pytest.mark.by_turns(4)
@pytest.mark.parametrize("key", spread([(key,) for key in RUNS if key != UNSTABLE], 1))
def test_a_run_is_predicted_as_well_as_the_page_says(key):
    run = RUNS[key]
    assert len(h100.arrivals(run)) == run["requests"]
    stated = [float(cell.removesuffix(" %").replace("− ", "-").replace("+ ", "")) for cell in ROWS[key][6:]]
    here = h100.predicted(run)
    errors = [100 * (here[name] / run[name] - 1) for name in h100.FIGURES]
    np.testing.assert_allclose(errors, stated, atol=0.06)


@pytest.mark.slow
def test_the_run_between_two_states_lies_within_what_its_repetitions_span():
    run = RUNS[UNSTABLE]
    again = next(one for one in h100.runs() if one["attempt"] == 2 and one["seed"] == 1 and one["streams"] == 2)
    assert again["rate"] == run["rate"]
    mean = h100.predicted(run)["mean_ms"]
    assert run["mean_ms"] < mean < 1.1 * again["mean_ms"]


def test_the_sizes_held_out_lie_near_the_line_between_those_given():
    rows = h100.table("batches").query("attempt == 1 and stage == 'compute' and model == 'frames graph'")
    medians = rows.groupby("size")["event_us"].median()
    between = np.interp(medians.index, h100.SIZES, medians[list(h100.SIZES)]) / medians - 1
    rest = between[~between.index.isin(h100.SIZES)].abs()
    assert len(rest) == 61 and "1.8 % on average, at most 4.6 % (at 17)" in PAGE
    assert rest.mean() == pytest.approx(0.018, abs=5e-4) and rest.max() == pytest.approx(0.046, abs=5e-4)
    assert rest.idxmax() == 17


def test_steps_of_a_language_model_are_predicted_as_well_as_the_page_says():
    decode, prefill = h100.decode_steps()["error"], h100.prefill_steps().set_index("tokens")["error"]
    assert len(decode) == 35
    for share, text in (
        (decode.median(), "The median error over the settings is − 13.0 %"),
        (decode.min(), "errors range from − 23.8 %"),
        (decode.max(), "to + 6.4 %"),
        (prefill[128], "| 128 | 9.43 ms | 5.99 ms | − 36.5 % |"),
        (prefill[512], "| 512 | 14.48 ms | 12.28 ms | − 15.2 % |"),
        (prefill[4096], "| 4,096 | 111.17 ms | 111.18 ms | + 0.0 % |"),
    ):
        assert text in PAGE and h100.percent(share) in text


def test_the_host_issues_kernels_while_the_frames_are_uploaded():
    """Why eager batches end earlier than upload and compute add up to."""
    alone = h100.table("batches").query("model == 'frames eager' and attempt == 1")
    medians = alone.groupby("size")["event_us"].median()
    rows = h100.table("server_batches").query("executor == 'eager' and streams == 1 and attempt == 1 and load == 0.6")
    lasted = (rows["done_us"] - rows["launch_us"]).median()
    assert lasted == pytest.approx(rows["issue_us"].median(), rel=0.02)
    assert lasted < medians.min()


def test_two_streams_share_a_device():
    medians = h100.table("streams").groupby(["kernel", "size"]).median()
    slower = medians["two_us"] / medians["alone_us"]
    for kernel, size, factor in (
        ("resnet50", 1, 1.17), ("resnet50", 4, 1.32), ("resnet50", 16, 1.71), ("resnet50", 64, 1.88),
        ("matrix product", 128, 1.09), ("matrix product", 1024, 2.49), ("matrix product", 8192, 2.04),
    ):  # fmt: skip
        assert slower[kernel, size] == pytest.approx(factor, abs=0.006) and f"{factor}" in PAGE
