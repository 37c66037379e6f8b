"""What a demanding user of services came upon: models to load, ways to go, divided devices, schedulers of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.policy import ListScheduler
from hetsim.scenario.scenario import load

SERVICE = {
    "upload": {"per_item": "0.114 ms", "fixed": "0.15 ms"},
    "compute": {"per_item": "1.264 ms", "fixed": "13 ms"},
    "download": {"fixed": "0.05 ms"},
    "max_batch": 64,
}


def scenario(batching: str, rate: int = 300, slo: str = "250 ms", services: int = 1, gpu: Any = None, **more: Any):
    """Services that are alike on one GPU; `more` are further keys of each service."""
    gpus = {"type": "g", "memory": "11 GB", "streams": 2, **(gpu or {})}
    entries = [
        {
            "name": f"service{number}",
            "service": {**copy.deepcopy(SERVICE), **more},
            "arrivals": {"process": "poisson", "rate": f"{rate}/s"},
            "count": 200,
            "slo": slo,
        }
        for number in range(services)
    ]
    return {
        "name": "t",
        "seed": 3,
        "cluster": {"nodes": {"gpus": gpus, "pcie": {"upload": "5.3 GB/s", "download": "12 GB/s"}}},
        "workload": entries,
        "policy": {"batching": batching},
    }


def completed(result):
    tasks = result.tasks
    return tasks[tasks.status == "completed"]


@pytest.mark.parametrize("model", ["1 GB", "7 GB"])  # two of them fit, or they drive each other out
def test_clockwork_counts_the_loading_of_a_model(model):
    slo = {"1 GB": "250 ms", "7 GB": "1.6 s"}[model]
    result = hs.run(load(scenario("clockwork", 100, slo, 2, model=model)), check=True)
    served = completed(result)
    assert len(served) > 50 and (served.finish <= served.deadline + 1e-9).all()
    assert len(result.tasks) == 400 and set(result.tasks.status) <= {"completed", "rejected", "expired"}


def test_a_policy_knows_that_the_response_has_a_way_to_go():
    given = scenario("clockwork", 600, "100 ms", network={"request": "10 ms", "response": "20 ms"})
    served = completed(hs.run(load(given), check=True))
    assert len(served) > 50 and (served.finish <= served.deadline + 1e-9).all()


def test_a_limit_shorter_than_the_ways_is_told():
    given = scenario("serial_greedy", slo="30 ms", network="10 ms")
    with pytest.raises(hs.errors.ScenarioError, match="14.58 ms on an idle device, and the way there and back 20 ms"):
        hs.run(load(given))


def test_bytes_count_for_the_limit_and_for_the_capacity():
    given = scenario("serial_greedy", slo="15 ms")
    given["workload"][0]["bytes_in"] = "6 MB"  # 1.13 ms each
    with pytest.raises(hs.errors.ScenarioError, match="a batch of one takes 15.71 ms"):
        hs.run(load(given))
    given = scenario("serial_greedy", rate=600)
    assert not hs.run(load(given)).warnings
    given["workload"][0]["bytes_in"] = "12 MB"
    # the upload is the slowest stage now: 64 / (64 (0.114 + 12000 / 5300) + 0.15) ms
    assert "at most 420" in hs.run(load(given)).warnings[0]
    given["cluster"]["nodes"]["pcie"] = {"upload": "5.3 GB/s", "duplex": "half"}
    given["workload"][0]["bytes_out"] = "12 MB"
    assert "at most 215" in hs.run(load(given)).warnings[0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("batching", ["serial_greedy", "nexus", "clipper_aimd"])
@pytest.mark.parametrize(("sharing", "gpus"), [("timeslice", 1), ("exclusive", 0.5)])
def test_services_side_by_side_on_a_divided_gpu(batching, sharing, gpus):
    given = scenario(batching, 100, "2 s", 2, {"sharing": sharing}, gpus=gpus)
    launches = hs.run(load(given), check=True).launches.sort_values("compute_start")
    overlapping = launches.compute_start.to_numpy()[1:] < launches.compute_end.to_numpy()[:-1] - 1e-9
    assert overlapping.any()
    # A service's own batches follow one another.
    result = hs.run(load(scenario(batching, 100, "2 s", 1, {"sharing": sharing}, gpus=gpus)))
    alone = result.launches.sort_values("compute_start")
    assert (alone.decided.to_numpy()[1:] >= alone.end.to_numpy()[:-1] - 1e-9).all()


@pytest.mark.parametrize("scheduler", ["round_robin", "sharing", "gandiva"])
def test_a_scheduler_that_knows_no_requests_says_so(scheduler):
    given = scenario("serial_greedy")
    given["policy"]["scheduler"] = scheduler
    with pytest.raises(hs.errors.ScenarioError, match=f"{scheduler} does not serve requests in batches"):
        hs.run(load(given))


class Forgetful(ListScheduler):
    """A list scheduler with rounds of its own, in which it forgets that there are services."""

    def schedule(self, view):
        return iter(())


def test_requests_that_nobody_asks_for_are_no_empty_result():
    run = load(scenario("serial_greedy")).build()
    run.scheduler = Forgetful()
    with pytest.raises(hs.errors.RunError, match="200 requests"):
        Simulation(run).run()


@pytest.mark.parametrize("batching", ["batopt", "smdp"])
def test_the_analytic_models_are_no_larger_than_the_batches(batching):
    policy = registry.policy("batching", batching)(max_batch=512)
    given = scenario("serial_greedy", max_batch=8)
    run = load(given).build()
    run.batching = [policy]
    Simulation(run).run()
    if batching == "smdp":
        assert policy.solved and all(len(table) == 4 * 8 + 1 for table in policy.solved.values())
    given["policy"]["batching"] = {"name": batching, "max_batch": 513}
    with pytest.raises(hs.errors.ScenarioError, match="at most 512"):
        load(given).build()


@pytest.mark.parametrize("limit", [{"ttft": "5 ms"}, {"tpot": "8.01 ms"}])
def test_limits_of_language_models_shorter_than_a_step_are_told(limit):
    given = scenario("continuous")
    service = {"kind": "llm", "step": {"fixed": "8 ms", "per_sequence": "0.02 ms"}, "slo": limit}
    given["workload"] = [{"name": "chat", "service": service, "tokens": {"prompt": 5, "output": 5}}]
    given["workload"][0]["arrivals"] = {"process": "all_at_once", "count": 3}
    with pytest.raises(hs.errors.ScenarioError, match="no request can meet a .* a step takes 8"):
        load(given)
    service["slo"] = {"ttft": "1 s", "tpot": "8.02 ms"}
    load(given)


def test_a_key_is_not_suggested_in_place_of_itself():
    given = scenario("serial_greedy", kind="batches")
    with pytest.raises(hs.errors.ScenarioError) as error:
        load(given)
    assert 'unknown key "upload"' in str(error.value) and 'did you mean "upload"' not in str(error.value)
