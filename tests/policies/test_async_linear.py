"""async_linear: just in time, within its limits, and the line that it fits."""

import math

import numpy as np
import pytest

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.scenario.scenario import load
from hetsim_policies.batching.common.linear_fit import LinearFit

A_UP, A_CALC, B_CALC = 0.114e-3, 1.264e-3, 13e-3


def scenario(rate=500, streams=2, horizon=20, slo=None, noise=0.0, **policy):
    entry = {
        "name": "r",
        "service": {
            "upload": {"per_item": "0.114 ms", "fixed": "0.15 ms"},
            "compute": {"per_item": "1.264 ms", "fixed": "13 ms"},
            "download": {"fixed": "0.05 ms"},
            "noise": noise,
        },
        "arrivals": {"process": "poisson", "rate": f"{rate}/s"},
    }
    if slo:
        entry["slo"] = slo
    return {
        "name": "async",
        "horizon": f"{horizon} s",
        "cluster": {"nodes": [{"gpus": {"type": "gpu", "streams": streams}}]},
        "workload": [entry],
        "policy": {"batching": {"name": "async_linear", **policy}},
    }


# When -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rate", [300, 500, 700])
def test_uploads_end_when_the_compute_ends(rate):
    """Of batches that follow one another: the upload ends within a few requests' upload of the compute's end."""
    launches = hs.run(scenario(rate), check=True).launches[20:-2]
    before = launches["compute_end"].shift()
    follows = launches["decided"] < before
    assert follows.mean() > 0.9
    off = (launches["upload_end"] - before)[follows]
    assert abs(off.median()) < 3 * A_UP
    assert off.abs().quantile(0.9) < 3 * A_UP * math.sqrt(launches["members"].mean())


def test_an_idle_device_is_used_at_once():
    result = hs.run(scenario(10, horizon=60))
    at_once = result.tasks["wait"] == 0
    assert at_once.mean() > 0.8
    alone = result.tasks["response"][at_once]
    assert (alone < 14.578e-3 + 1e-9).mean() > 0.95


def test_one_stream_is_serial_greedy():
    mine = hs.run(scenario(400, streams=1))
    serial = hs.run(scenario(400, streams=1), policy={"batching": "serial_greedy"})
    assert mine.tasks["finish"].equals(serial.tasks["finish"])


# How many -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_batches_keep_within_the_latency_limit():
    """The first request waits for a compute and passes through all stages itself: L = τ_calc(n) + τ(n)."""
    result = hs.run(scenario(500, slo="80 ms"))
    most = (80 - 0.2 - 2 * 13) / (0.114 + 2 * 1.264)
    sizes = result.launches["members"][3:]
    assert sizes.max() == int(most)
    given = hs.run(scenario(500, latency="80 ms"))
    assert given.launches["members"][3:].max() == int(most)


def test_the_largest_batch_is_kept_and_pairs_of_sizes_are_seen_first():
    """In a backlog all batches would be of one size: the second is halved, so that there is a slope."""
    found = scenario(2_000, max_batch=32, horizon=5)
    sizes = hs.run(found).launches["members"].tolist()
    assert max(sizes) == 32
    full = sizes.index(32)
    assert set(sizes[full + 2 :]) == {32}
    assert len(set(sizes[: full + 2])) > 1


@pytest.mark.slow
def test_a_rising_rate_fills_batches_before_their_time():
    """With margin 0 some batches go before the compute's end is near; by default hardly any do."""
    early = {}
    for margin in (0, 8):
        launches = hs.run(scenario(400, margin=margin)).launches[20:-2]
        before = launches["compute_end"].shift()
        early[margin] = (launches["upload_end"] < before - 2e-3).mean()
    assert early[0] > 0.2
    assert early[8] < 0.02


def test_wrong_parameters_are_refused():
    for wrong in ({"rule": "guess"}, {"window": 1}, {"latency": "0 s"}, {"max_batch": 0}, {"margin": -1}):
        with pytest.raises(ScenarioError):
            load(scenario(**wrong))


# The line -------------------------------------------------------------------------------------------------------


def test_exact_times_give_the_exact_line_from_two_sizes_on():
    fit = LinearFit(8)
    for size in (1, 1, 4, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 31):
        fit.add(size, B_CALC + A_CALC * size)
        assert fit.is_fitted == (size > 1)
    assert fit.slope == pytest.approx(A_CALC, rel=1e-9)
    assert fit.fixed == pytest.approx(B_CALC, rel=1e-9)
    assert fit.variance == pytest.approx(0, abs=1e-20)


def test_equal_sizes_keep_the_slope_and_follow_the_level():
    """A window of one size tells nothing of the slope; that the device has become slower it does tell."""
    fit = LinearFit(8)
    for size in (10, 20, 30):
        fit.add(size, B_CALC + A_CALC * size)
    for slower in (1, 2):
        for _ in range(50):
            fit.add(25, slower * (B_CALC + A_CALC * 25))
    assert fit.slope == pytest.approx(A_CALC)
    assert fit.at(25) == pytest.approx(2 * (B_CALC + A_CALC * 25))


def test_nearly_equal_sizes_and_noise_do_not_throw_the_slope():
    """Plain least squares over such a window has a standard error of the slope itself."""
    random = np.random.default_rng(1)
    ridge, plain = [], []
    fit = LinearFit(16)
    window = []
    for number in range(2_000):
        size = int(random.integers(5, 60)) if number < 64 else 30 + int(random.integers(0, 2))
        seconds = (B_CALC + A_CALC * size) * (1 + 0.02 * random.standard_normal())
        fit.add(size, seconds)
        window = [*window[-15:], (size, seconds)]
        if number >= 64:
            ridge.append(fit.slope)
            plain.append(np.polyfit(*np.array(window).T, 1)[0] if len({n for n, _ in window}) > 1 else A_CALC)
    assert np.std(ridge) < 0.2 * A_CALC
    assert np.std(ridge) < 0.5 * np.std(plain)
    assert abs(fit.at(30) / (B_CALC + A_CALC * 30) - 1) < 0.03
