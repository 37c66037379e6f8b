"""Results kept for popular inputs: who is answered without a device."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

import hetsim as hs
from hetsim.engine.queues.cache import Cache, ClockCache
from hetsim.engine.simulation import Simulation
from hetsim.model.faults import FaultEvent
from hetsim.model.record import COMPLETED, FAILED
from hetsim.scenario.scenario import load


def scenario(**cache):
    return {
        "name": "cached",
        "horizon": "20 s",
        "cluster": {"nodes": {"cpus": 4, "gpus": {"type": "g", "count": 1, "streams": 2}}},
        "workload": [
            {
                "name": "web",
                "arrivals": {"process": "poisson", "rate": "300/s"},
                "slo": "200 ms",
                "service": {
                    "upload": {"per_item": "0.1 ms", "fixed": "0.1 ms"},
                    "compute": {"per_item": "1 ms", "fixed": "10 ms"},
                    "cache": {"inputs": 1000, "zipf": 1.0, "size": 100, "hit": "0.5 ms", **cache},
                },
            }
        ],
    }


def test_lru_evicts_what_was_used_longest_ago():
    rng, cache, mirror = np.random.default_rng(1), Cache(7), OrderedDict()
    for key in rng.integers(0, 20, 2000).tolist():
        assert cache.holds(key) == (key in mirror)
        mirror[key] = True
        mirror.move_to_end(key)
        if len(mirror) > 7:
            mirror.popitem(last=False)
        cache.add(key)


def test_the_clock_spares_what_was_used_since_its_hand_passed():
    cache = ClockCache(3)
    for key in (1, 2, 3):
        cache.add(key)
    assert cache.holds(1)
    cache.add(4)  # the hand passes 1, which was used, and takes 2
    assert [cache.holds(key) for key in (1, 2, 3, 4)] == [True, False, True, True]


@pytest.mark.quick(1)
@pytest.mark.parametrize("evict", ["lru", "clock"])
def test_hits_are_those_of_the_cache_replayed_beside_it(evict):
    """A request is a hit if and only if its input is in the cache when it arrives, misses entering at their finish."""
    result = hs.run(scenario(evict=evict), seed=3, check=True)
    tasks = result.tasks
    cache = {"lru": Cache, "clock": ClockCache}[evict](100)
    done = tasks[tasks["status"] == "completed"]
    served = done[done["device"].notna()]
    events = [(time, 1, row, key) for row, time, key in zip(tasks.index, tasks["arrival"], tasks["input"], strict=True)]
    # Members of a batch enter in the order of the batch, before what arrives at that instant.
    ends = zip(served.index, served["finish"], served["input"], strict=True)
    events += [(time, 0, row, key) for row, time, key in ends]
    hits = set()
    for _, kind, row, key in sorted(events):
        if kind == 0:
            cache.add(key)
        elif cache.holds(key):
            hits.add(row)
    answered = done[done["device"].isna()]
    assert set(answered.index) == {row for row in hits if row in done.index}
    assert len(answered) > 0.3 * len(done)
    assert answered["response"].to_numpy() == pytest.approx(0.0005)
    assert (answered["wait"] == 0).all()
    assert result.launches["members"].sum() == len(tasks) - len(hits)


@pytest.mark.slow
def test_a_cache_takes_load_off_the_device():
    assert hs.run(scenario(size=400), seed=3).metric("gpu_utilization") < 0.9 * hs.run(
        scenario(size=1), seed=3
    ).metric("gpu_utilization")
    everything = hs.run(scenario(inputs=1, size=1), seed=3)
    assert everything.metric("cache_hit_fraction") > 0.99


def test_without_a_cache_there_is_no_hit_fraction():
    plain = scenario()
    del plain["workload"][0]["service"]["cache"]
    assert np.isnan(hs.run(plain, seed=3).metric("cache_hit_fraction"))


def test_no_cache_answers_a_request_that_a_time_limit_has_ended():
    """Four requests for one input on two devices, one of which slows down: the second is over its limit at 1.7 s, when
    the result of the first lies in the cache."""
    described = scenario(inputs=1)
    described |= {"cluster": {"nodes": {"gpus": {"type": "g", "count": 2}}}, "horizon": "60 s"}
    entry = described["workload"][0]
    entry |= {"arrivals": {"process": "all_at_once", "count": 4}, "slo": "60 s"}
    entry["service"] |= {"upload": {}, "compute": {"per_item": "1 s"}, "max_batch": 1}
    run = load(described).build(1)
    run.tasks.arrival = np.array([0.0, 0.2, 0.3, 0.4])
    run.tasks.time_limit = np.array([math.inf, 1.5, math.inf, math.inf])
    record = Simulation(replace(run, grace=0.0, faults=[FaultEvent(0.3, 2, "slow", 5.0)]), check=True).run()
    assert record.status.tolist() == [COMPLETED, FAILED, COMPLETED, COMPLETED]
    assert record.finish[1] == pytest.approx(1.7)
    assert record.reasons == {1: "time limit"}
