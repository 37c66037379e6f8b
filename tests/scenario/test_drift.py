"""`drift` of classes of tasks: one factor on all times of a replication."""

import math

import numpy as np
import pytest

import hetsim as hs
from hetsim.errors import ScenarioError

NODE = {"cpus": 8, "gpus": {"type": "v100", "count": 2}}


def scenario(policy="fcfs", **keys):
    entry = {"name": "jobs", "count": 20, "arrivals": {"process": "poisson", "rate": "1/day"}, **keys}
    return {"name": "drift", "horizon": "9000 h", "cluster": {"nodes": [NODE]}, "workload": [entry], "policy": policy}


def factors(keys, seed=1, policy="fcfs"):
    """The times of the tasks over those without drift."""
    runs = [hs.run(scenario(policy, **keys, drift=drift), seed=seed).tasks for drift in ({"cv": 0.2}, {})]
    with_drift, without = (run.sort_values("id")["compute"].to_numpy() for run in runs)
    return with_drift / without


TIMES = {"gpu_time": {"distribution": "exponential", "mean": "1 h"}}


@pytest.mark.parametrize(
    "keys",
    [
        TIMES,
        {**TIMES, "cpu_time": {"speedup": 4}},
        {"gpu_time.v100": "1 h"},
        {"modes": [{"device": "v100", "time": "1 h"}, {"device": "cpu", "time": {"speedup": 3}}]},
        {**TIMES, "scaling": {1: 1, 2: 1.8}},
    ],
)
def test_all_times_of_a_replication_have_one_factor(keys):
    found = factors(keys)
    assert np.ptp(found) < 1e-9 and abs(found[0] - 1) > 1e-3
    assert factors(keys, policy="sjf") == pytest.approx(found)
    assert abs(factors(keys, seed=2)[0] - found[0]) > 1e-3


def test_each_class_has_a_factor_of_its_own():
    classes = [{"class": "a", "gpu_time": "1 h"}, {"class": "b", "gpu_time": "2 h", "drift": {"mean": 2}}]
    tasks = hs.run(scenario(classes=classes, drift={"cv": 0.2}), seed=1).tasks
    found = tasks.groupby("class")["compute"].agg(["min", "max"]) / 3600
    assert found.loc["b"].tolist() == pytest.approx([4, 4])
    assert found.loc["a", "min"] == pytest.approx(found.loc["a", "max"]) and abs(found.loc["a", "min"] - 1) > 1e-3


def test_the_factor_is_lognormal_with_the_given_mean_and_variation():
    """Of 300 replications; the error of a mean is within five standard errors."""
    drawn = np.array([
        hs.run(scenario(gpu_time="1 h", drift={"cv": 0.2, "mean": 1.5}, count=1), seed=seed).tasks["compute"].iloc[0]
        for seed in range(300)
    ]) / 3600  # fmt: skip
    assert drawn.mean() == pytest.approx(1.5, abs=5 * 1.5 * 0.2 / math.sqrt(300))
    assert np.log(drawn).std() == pytest.approx(math.sqrt(math.log1p(0.04)), rel=0.2)


def test_estimates_by_the_mean_of_a_class_do_not_know_the_factor():
    keys = {"gpu_time": "1 h", "drift": {"mean": 3}, "estimates": {"basis": "mean"}}
    seen = set()

    def shortest(task):
        """Remember the estimate that the policy sees."""
        seen.add(task.shortest_estimate)
        return task.shortest_estimate

    tasks = hs.run(scenario(**keys), policy=shortest, seed=1).tasks
    assert seen == {3600.0} and tasks["compute"].to_numpy() == pytest.approx(3 * 3600)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({**TIMES, "drift": {"cv": -0.1}}, "drift.cv: must be at least 0"),
        ({**TIMES, "drift": {"cv": 2}}, "drift.cv: must be at most 1"),
        ({"work": {"flops": "1 TFLOP", "bytes": "1 GB"}, "drift": {"cv": 0.1}}, "drift: the key is for given times"),
        ({"service": {"device": "v100", "compute": "1 s", "max_batch": 4}, "drift": {"cv": 0.1}}, "leave out drift"),
    ],
)  # fmt: skip
def test_where_drift_has_no_meaning_it_is_refused(keys, message):
    with pytest.raises(ScenarioError, match=message):
        hs.run(scenario(**keys))
