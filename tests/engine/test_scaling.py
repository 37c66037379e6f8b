"""Scaling policies and routers with signals of an age, against loops of a few lines and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_llm import requests

from hetsim.model.record import COMPLETED

MOMENT = 1e-12  # a step in no time


def serverless(arrivals, keep, load):
    """Starts of requests in no time on one replica that stays for `keep`, and the number of loads."""
    starts, loads, ready, idle = [], 0, -math.inf, -math.inf
    for at in arrivals:
        if at > ready and at > idle + keep:
            ready, loads = at + load, loads + 1
        starts.append(max(at, ready))
        idle = starts[-1]
    return np.array(starts), loads


def cold(arrivals, keep=10.0, load=5.0, more=None):
    scale = {"name": "keep_alive", "min": 0, "max": 1, "keep": f"{keep} s"}
    service = {"scale": scale, "model": f"{load} GB", "step": {"fixed": f"{MOMENT} s"}, **(more or {})}
    return requests(arrivals, [1] * len(arrivals), [1] * len(arrivals), service, gpus=1)


@pytest.mark.parametrize("seed", range(2))
def test_keep_alive_start_by_start(seed):
    """All that come during a load are served at its end; K counts from when the replica falls idle."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(10.0, 200))
    record = cold(arrivals)
    starts, loads = serverless(arrivals, 10.0, 5.0)
    assert record.start == pytest.approx(starts, abs=1e-9) and (record.status == COMPLETED).all()
    assert np.isfinite(record.launches["upload_start"]).sum() == loads > 20


def test_keep_alive_at_its_very_end_by_hand():
    """Cold at 0 s; 3 s and 4.5 s wait for 5 s.  At 15 s, K after it fell idle, an arrival comes before the end of K.
    26 s is past 25 s (+ a moment), so it loads until 31 s; 41.5 s is past 41 s and loads again."""
    record = cold([0.0, 3.0, 4.5, 15.0, 26.0, 41.5])
    assert record.start == pytest.approx([5.0, 5.0, 5.0, 15.0, 31.0, 46.5], abs=1e-9)
    assert np.isfinite(record.launches["upload_start"]).sum() == 3


def test_keep_alive_share_and_wait_in_closed_form():
    """The loop above, which the engine follows start by start, on 40 long paths: 1 / (LS + e^(LK)) and so on."""
    rate, keep, load = 0.1, 10.0, 5.0
    below = rate * load + math.exp(rate * keep)
    shares, waits = [], []
    for seed in range(40):
        arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, 2000))
        starts, loads = serverless(arrivals, keep, load)
        shares.append(loads / len(arrivals))
        waits.append((starts - arrivals).mean())
    for values, exact, printed in ((shares, 1 / below, 0.3107), (waits, (load + rate * load**2 / 2) / below, 1.942)):
        half = 2.7 * np.std(values, ddof=1) / math.sqrt(len(values))
        assert exact == pytest.approx(printed, abs=5e-4) and abs(np.mean(values) - exact) < half < 0.02 * exact


def seen_count(line, t, refresh, delay):
    """Requests (arrival, end) of a replica as they are seen at t."""
    if refresh:
        k = math.floor((t - delay) / refresh)
        k += ((k + 1) * refresh + delay <= t) - (k * refresh + delay > t)
        return sum(at < k * refresh <= end for at, end in line)
    return sum(at + delay <= t < end + delay for at, end in line)


@pytest.mark.parametrize(("refresh", "delay"), [(0.7, 0), (0.7, 0.2), (0, 0.4), (0.3, 1.1), (0, 0)])
@pytest.mark.parametrize("replicas", [2, 4])
def test_the_shortest_queue_with_an_age_start_by_start(refresh, delay, replicas):
    """One request at a time, of geometric length: the first replica with the fewest requests as they are seen."""
    rng = np.random.default_rng(replicas)
    count = 250
    arrivals = np.cumsum(rng.exponential(1 / (0.85 * replicas), count))
    tokens = rng.geometric(0.1, count)
    routing = {"name": "least_outstanding", "refresh": f"{refresh} s", "delay": f"{delay} s"}
    service = {"replicas": replicas, "max_num_seqs": 1, "step": {"fixed": "100 ms"}, "routing": routing}
    record = requests(arrivals, [1] * count, tokens, service, gpus=replicas)
    lines: list[list[tuple[float, float]]] = [[] for _ in range(replicas)]
    chosen, starts = [], []
    for at, length in zip(arrivals.tolist(), tokens.tolist(), strict=True):
        counts = [seen_count(line, at, refresh, delay) for line in lines]
        line = lines[counts.index(min(counts))]
        starts.append(max(at, line[-1][1] if line else at))
        line.append((at, starts[-1] + 0.1 * length))
        chosen.append(counts.index(min(counts)) + 1)
    assert record.place.tolist() == chosen
    assert record.start == pytest.approx(starts, abs=1e-9)
