"""Intervals of measured servers: which errors count, how much, and what the bounds of left-out groups contain."""

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks import measured_model as servers


def test_for_a_new_cell_errors_of_one_cell_count_less_than_as_many_of_several():
    """Twenty-four errors, two of them of 1: for a known cell 92 % are within 0, for a new one a cell in two is not."""
    cell = np.array(["a"] * 20 + ["b"] * 5 + ["c"] * 4)
    errors = np.concatenate([np.zeros(20), np.full(5, -1.0), np.full(4, 9.0)])  # of c there are too few
    found = [np.where((cell == name)[:, None], np.stack([errors, 2 * errors], axis=1), np.nan) for name in "abc"]
    assert servers.reach(found, cell) == [-1.0, 1.0, -2.0, 2.0, 25]
    errors[20:23] = 0.0
    found = [np.stack([errors, errors], axis=1)[:25]]
    assert servers.reach(found, cell[:25])[1] == 0.0 and servers.reach(found, cell[:25], new=True)[1] == 1.0


def test_a_cell_has_bounds_of_its_own_from_nine_errors_on():
    rising = np.stack([np.arange(1.0, 40.0), -np.arange(1.0, 40.0)], axis=1) / 10
    assert servers.own(rising[:8]) is None
    assert servers.own(rising[:9]) == pytest.approx([-0.9, 0.9, -0.9, 0.9, 9])
    assert servers.own(rising) == pytest.approx([0.2, 3.8, -3.8, -0.2, 39])


def test_an_error_that_is_not_known_leaves_the_other_one(monkeypatch):
    """Times a token of servers whose source names another load do not count, their first tokens do."""
    frame = pd.DataFrame({"backend": "e", "gpu": ["a"] * 9 + ["b"] * 9, "model": "llama-3.1-8b", "sound": True})
    frame.loc[0, "sound"] = False
    found = np.full((18, 2), 0.1)
    found[0] = 5.0
    monkeypatch.setattr(servers, "errors", lambda frame, out, of, unknown: np.where(of[:, None], found, np.nan))
    assert servers.of_known(frame) == [-0.1, 0.1, -0.1, 0.1, 18]
    found[1:3, 1] = 5.0
    assert servers.of_known(frame)[1:4:2] == [0.1, 5.0]
    frame["sound"] = True
    found[1, 0] = 5.0
    assert servers.of_known(frame)[1:4:2] == [5.0, 5.0]


@pytest.mark.slow
def test_left_out_gpus_and_families_are_covered(monkeypatch):
    """Errors of a cell have a part in common, drawn anew for each; nine of ten are inside."""
    spread = 0.2
    models = {"llama-3.1-70b": "dense", "llama-3.1-8b": "dense", "deepseek-r1": "latent", "minimax-m2.5": "experts"}
    rng, rows = np.random.default_rng(5), []
    for number in range(5):
        for name, family in list(models.items())[: 2 + number % 3]:
            rows += [{"backend": "e", "gpu": f"g{number:02}", "model": name, "family": family,
                      "error": rng.normal(0, 0.4 * spread) + part} for part in rng.normal(0, spread, 12)]  # fmt: skip
    frame = pd.DataFrame(rows).assign(sound=True)
    errors = frame["error"].to_numpy()

    def known(frame, out, of, unknown=False):
        assert out[of].all()  # nothing is fitted to what is left out
        return np.where(of[:, None], np.stack([errors, errors], axis=1), np.nan)

    monkeypatch.setattr(servers, "errors", known)
    inside, half = servers.coverage(frame, np.stack([errors, errors], axis=1), False)
    assert 0.85 < inside.mean() < 0.98
    width = 1.645 * spread * math.sqrt(1.16)
    assert np.median(half) == pytest.approx(math.sinh(width), rel=0.3)
    assert not servers.seen(frame, (frame["gpu"] != "none").to_numpy()).any()
