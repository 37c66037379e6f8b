"""What a store of finished runs gives back: the outcome of the very run that was asked for, whole, or nothing."""

from __future__ import annotations

import json
import math

import pytest

from hetsim.experiment.store import Store
from hetsim.experiment.work import RunOutcome

RUN, OTHER = "ab" + "1" * 62, "ab" + "2" * 62


def kept(tmp_path):
    store = Store(tmp_path)
    store.put(RUN, RunOutcome({"wait_mean": 2.5, "makespan": math.nan}, ["slow"]))
    return store


def test_what_was_kept_comes_back(tmp_path):
    found = kept(tmp_path).get(RUN)
    assert found is not None
    assert found.values["wait_mean"] == 2.5
    assert math.isnan(found.values["makespan"])
    assert found.warnings == ["slow"]
    assert kept(tmp_path).get(OTHER) is None


def test_a_file_of_another_run_is_not_taken_for_this_one(tmp_path):
    """Copied, or named by hand: the hash inside decides."""
    store = kept(tmp_path)
    store.path(OTHER).write_bytes(store.path(RUN).read_bytes())
    assert store.get(OTHER) is None
    assert store.get(RUN) is not None
    whole = json.loads(store.path(RUN).read_text())
    assert whole["run"] == RUN
    store.path(RUN).write_text(json.dumps(whole | {"run": RUN[:-1]}))
    assert store.get(RUN) is None


def test_an_error_that_was_kept_is_one_again(tmp_path):
    store = Store(tmp_path)
    store.put(RUN, RunOutcome(None, ["slow"], error="the policy looped"))
    found = store.get(RUN)
    assert found is not None
    assert (found.values, found.error, found.warnings) == (None, "the policy looped", ["slow"])
    store.put(OTHER, RunOutcome(None, [], error="the disk was full", lasting=False))
    assert store.get(OTHER) is None


UNSEALED = json.dumps({"run": RUN, "error": "", "warnings": [], "values": {}})


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"run": 3}', UNSEALED])
def test_a_damaged_file_is_no_outcome(tmp_path, damage):
    store = kept(tmp_path)
    store.path(RUN).write_text(damage)
    assert store.get(RUN) is None


def test_a_run_without_a_metric_that_is_asked_for_is_made_again(tmp_path):
    kept(tmp_path)
    assert Store(tmp_path).get(RUN, ["wait_mean", "makespan"]) is not None
    assert Store(tmp_path).get(RUN, ["wait_mean", "jain"]) is None
    assert Store(tmp_path, fresh=True).get(RUN) is None
    assert Store(None).get(RUN) is None


def test_any_byte_that_is_changed_is_seen(tmp_path):
    """A space becomes a tab, a digit another: whatever JSON makes of it."""
    store = kept(tmp_path)
    path = store.path(RUN)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.get(RUN) is None, place
    for short in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:short])
        assert store.get(RUN) is None
    assert set(store.damaged) == {path}
    path.write_bytes(whole)
    assert store.get(RUN) is not None
