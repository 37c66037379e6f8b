"""Small cases by hand, and properties, of results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_output_statistics import queue
from tiers import examples

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.results.formatting import PERCENT, one
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.selection import Race
from hetsim.results.one_run.tables import batch_members
from hetsim.results.one_run.usage import overlap


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100 %"), (0.9996, "99.96 %"), (0.99951, "99.951 %"), (0.999999, "99.9999 %"), (0.994, "99.4 %")],
)
def test_almost_all_is_not_all(value: float, text: str):
    assert one(value, PERCENT) == text


@pytest.mark.parametrize(("shift", "left"), [(3.0, ["a", "b"]), (4.7, ["a", "b"]), (5.0, ["a"])])
def test_a_policy_leaves_the_race_beyond_the_margin(shift: float, left: list[str]):
    """First stage of 3, probability 90 %: η = ((2 × 0.1)^(-1) - 1) / 2 = 2, h² = 2 × 2 × 2 = 8; δ = 10 % of 10.

    The differences have the variance 4: W(3) = (8 × 4 / 1² - 3) × 1 / 6 = 4.83.
    """
    race = Race(["a", "b"], "response_mean", 0.9, 0.1)
    for other in (-2.0, 0.0, 2.0):
        race.add("a", 10.0)
        race.add("b", 10.0 + shift + other)
    race.start()
    race.screen()
    assert race.left == left


@examples(100)
@given(st.lists(st.tuples(st.floats(-50, 50), st.floats(0, 30)), min_size=1), st.lists(st.floats(-60, 90), min_size=2))
def test_windows_side_by_side_share_out_each_span(spans: list[tuple[float, float]], bounds: list[float]):
    begin = np.array([start for start, _ in spans])
    end = np.array([start + length for start, length in spans])
    bounds = sorted(bounds)
    parts = [overlap(begin, end, low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
    assert all((part >= 0).all() for part in parts)
    assert sum(parts) == pytest.approx(overlap(begin, end, bounds[0], bounds[-1]), abs=1e-9)
    assert (overlap(begin, end, 200.0, 300.0) == 0).all() and (overlap(begin, np.nan * end, 0.0, 9.0) == 0).all()
    assert overlap(begin, end, -1e3, 1e3) == pytest.approx(end - begin)


@pytest.mark.slow
def test_members_of_a_batch_are_the_tasks_that_share_its_launch():
    found = hs.run("async-burst")
    batch = found.record.batch
    assert batch is not None and (batch >= 0).any()
    shared = np.array([(batch == number).sum() if number >= 0 else 1 for number in batch])
    members = batch_members(found.record)
    assert members is not None and members.tolist() == shared.tolist() and members.max() > 1


def test_replications_of_nothing_are_not_identical():
    assert Replications().identical is False


def test_a_run_is_saved_into_an_empty_folder_and_into_no_other(tmp_path: Path):
    found = hs.run(queue(5))
    (tmp_path / "empty").mkdir()
    found.save(tmp_path / "empty")
    assert len(hs.Result.load(tmp_path / "empty").tasks) == 5
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a run directory"):
        found.save(tmp_path / "other")
