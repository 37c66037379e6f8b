"""Requests that come by the clock and those that come one by one wait in one queue, and fare alike."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from cases import FAULT, service

from hetsim.engine.simulation import Simulation
from hetsim.model.record import EXPIRED
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load

DRAWN = {"distribution": "exponential", "mean": "60 ms"}
JOBS = {"name": "jobs", "arrivals": {"process": "poisson", "rate": "30/s"},
        "gpu_time": {"distribution": "exponential", "mean": "20 ms"}}  # fmt: skip
FAR = {"network": {"request": "5 ms", "response": "3 ms"}}
CASES = {
    "plain": {}, "patience": {"entry": {"patience": "60 ms"}, "rate": "800/s"},
    "drawn patience": {"entry": {"patience": DRAWN}, "rate": "800/s"},
    "no patience": {"entry": {"patience": "0 s"}},
    "patience, far away": {"entry": {"patience": DRAWN}, "rate": "800/s", **FAR},
    "patience, faults": {"entry": {"patience": DRAWN}, "gpus": 2, "rate": "900/s", "more": {"faults": [FAULT]}},
    "patience, fixed size": {"entry": {"patience": "40 ms", "count": 400}, "horizon": None,
                             "policy": {"batching": {"name": "fixed_size", "size": 16}}},
    "drawn sizes": {"compute": {"per_item": {"distribution": "exponential", "mean": "1 ms"}, "fixed": "13 ms"},
                    "entry": {"patience": DRAWN}, "rate": "800/s"},
    "priorities": {"policy": {"batching": "triton_dynamic"}, "entry": {"patience": DRAWN}, "rate": "800/s"},
    "faults": {"gpus": 2, "more": {"faults": [FAULT]}, **FAR},
}  # fmt: skip


def scenario(name, asked, jobs):
    found = service(**copy.deepcopy({"horizon": "500 ms", **CASES[name]}))
    if asked:
        found["policy"]["admission"] = "accept_all"
    if jobs:
        found["workload"].append(dict(JOBS, until="500 ms"))
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("jobs", [False, True], ids=["alone", "with tasks"])
@pytest.mark.parametrize("name", CASES)
def test_it_makes_no_difference_whether_each_request_is_asked_about(name, jobs):
    silent, asked = (
        Result(Simulation(load(scenario(name, one, jobs)).build(3), check=True).run()) for one in (False, True)
    )
    for table in ("tasks", "launches", "devices"):
        pd.testing.assert_frame_equal(getattr(silent, table), getattr(asked, table), check_exact=True)
    tasks = silent.tasks
    assert (tasks["status"] == "completed").any() or name == "no patience"
    assert (tasks["status"] == "expired").any() == ("patience" in str(CASES[name]))


@pytest.mark.parametrize("name", [name for name in CASES if "patience" in str(CASES[name])])
def test_patience_ends_at_its_time_or_as_the_request_gets_there(name):
    run = load(scenario(name, False, False)).build(3)
    record = Simulation(run, check=True).run()
    gone = np.flatnonzero(record.status == EXPIRED)
    there = run.tasks.arrival + run.services[0].request_delay
    assert set(map(record.reasons.get, gone.tolist())) == {"patience ended"}
    assert (record.finish[gone] == np.maximum(run.tasks.expires, there)[gone]).all()
    if name != "no patience":
        decided = dict(zip(record.launches["launch"].tolist(), record.launches["decided"].tolist(), strict=True))
        stopped = np.zeros(len(there), dtype=int) if record.preemptions is None else record.preemptions
        begun = np.flatnonzero((record.batch >= 0) & (stopped == 0)).tolist()
        assert len(begun) > 100
        assert all(decided[record.batch[row]] < run.tasks.expires[row] for row in begun)
