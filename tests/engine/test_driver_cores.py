"""Cores that drive accelerators: a property of the machine, the same for every policy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType
from hetsim.testing.audit import audit

POLICIES = ["fcfs", "sjf", "easy_backfill", "heft", "dual_approximation", "eft", "dmda", "dmdas", "lws", "dada",
            "heteroprio", "plan_and_repair", {"name": "hierarchical", "inner": "sjf"}]  # fmt: skip
POWER = {"idle": "2 W", "busy": "10 W"}


def scenario(cpus, driver_cores=None, policy="fcfs", **node):
    group = {"cpus": cpus, "gpus": {"type": "g", "count": 2, "power": {"idle": "20 W", "busy": "100 W"}}, **node}
    if driver_cores is not None:
        group["driver_cores"] = driver_cores
    entry = {
        "name": "jobs", "arrivals": {"process": "poisson", "rate": "2/s"}, "count": 60,
        "gpu_time": {"distribution": "exponential", "mean": "1 s"}, "cpu_time": {"speedup": 2},
    }  # fmt: skip
    return {"name": "d", "seed": 3, "cluster": {"nodes": [group]}, "workload": [entry], "policy": policy}


@pytest.mark.quick(2)
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_policy_pays_for_them_as_if_the_node_had_fewer_cores(policy):
    """Four cores of which two drive the GPUs are two cores, for planners, bounds and shares of what is used too."""
    given = hs.run(scenario(4, 1, policy), check=True)
    fewer = hs.run(scenario(2, policy=policy), check=True)
    pd.testing.assert_frame_equal(given.tasks, fewer.tasks, check_exact=True)
    shown = [name for name in given.names if not name.startswith("planning")]
    assert {n: given.metric(n) for n in shown} == pytest.approx({n: fewer.metric(n) for n in shown}, nan_ok=True)
    assert given.bound == fewer.bound
    assert not audit(given.record)


def test_at_equal_cores_a_policy_of_starpu_is_not_behind_a_plan():
    """On four cores and two GPUs without driver cores: dmda gave up two of the cores, which heft did not."""
    entry = {"arrivals": {"process": "all_at_once", "count": 300}, "gpu_time": "2 s", "cpu_time": "3 s"}
    given = scenario(4) | {"workload": [entry]}
    spans = {name: hs.run(given, policy=name).metric("makespan") for name in ("heft", "dmda", "dmdas", "lws")}
    assert max(spans.values()) <= 1.02 * spans["heft"]


@pytest.mark.parametrize("name", ["dmda", "dmdas", "lws", "dada", "eft"])
def test_they_are_no_parameter_of_a_policy(name):
    with pytest.raises(ScenarioError, match="driver_cores"):
        hs.load(scenario(4, policy={"name": name, "driver_cores": 1}))


def test_they_draw_idle_power_and_cost_money():
    """Cores at 2 W and 1/h, GPUs at 20 W.  All tasks run on GPUs, which alone draw more for work."""
    def run(cpus, driver_cores=None):
        given = scenario(cpus, driver_cores, cpu={"power": POWER, "price": "1/h"})
        del given["workload"][0]["cpu_time"]
        return hs.run(given, check=True)

    result, plain = run(4, 1), run(4)
    seconds = result.metric("makespan") + result.tasks["arrival"].min()
    assert result.metric("energy_idle_j") == pytest.approx(seconds * (4 * 2 + 2 * 20))
    assert result.metric("cost") == pytest.approx(4 * seconds / 3600)
    for name in ("energy_j", "energy_idle_j", "cost"):
        assert result.metric(name) == pytest.approx(plain.metric(name))
    devices = result.devices.set_index("type")
    assert devices.loc["cpu", "count"] == 2
    assert devices.loc["cpu", "up"] == pytest.approx(2 * seconds)
    all_drive = run(2, 1)
    assert all_drive.metric("energy_idle_j") == pytest.approx(seconds * (2 * 2 + 2 * 20))
    assert all_drive.devices["energy_j"].sum() == pytest.approx(all_drive.metric("energy_j"))


def test_more_than_there_are_is_an_error_at_its_place(tmp_path):
    file = tmp_path / "d.yaml"
    file.write_text(
        "cluster:\n  nodes:\n    - {cpus: 2, gpus: {type: g, count: 3}, driver_cores: 1}\n"
        "workload: [{arrivals: {process: all_at_once, count: 1}, gpu_time: 1 s}]\n",
        encoding="utf-8",
    )
    with pytest.raises(ScenarioError) as caught:
        hs.load(file).build()
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{file}:3:44: cluster.nodes.0.driver_cores: 1 for each of 3 accelerators")
    assert "give nodes more cpus, or fewer driver cores" in str(problem)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ScenarioError, match="driver_cores"):
            hs.load(scenario(4, wrong))
    with pytest.raises(ValueError, match="node n0 needs a core for each of 3 driver cores; it has 2"):
        Cluster([NodeSpec(cpus=2, accelerators=((DeviceType("g"), 3),), driver_cores=1)])


def test_tasks_that_only_find_cores_which_drive_accelerators_are_refused_with_the_reason():
    given = scenario(4, 1)
    given["workload"][0] |= {"cpus": 3}
    del given["workload"][0]["gpu_time"]
    given["workload"][0]["cpu_time"] = "1 s"
    with pytest.raises(ScenarioError, match="3 cores exceed the 2 of any node that do not drive accelerators"):
        hs.run(given)


def test_the_description_of_a_cluster_names_them():
    gpu = DeviceType("g")
    spec = NodeSpec(cpus=8, accelerators=((gpu, 2), (DeviceType("n", kind="npu"), 1)), driver_cores=2)
    assert Cluster([spec]).describe() == "8 cores (6 of them drive accelerators), 2 × g, 1 × n"
    assert Cluster([NodeSpec(cpus=1, accelerators=((gpu, 1),), driver_cores=1)]).describe() == (
        "1 core (1 of them drives GPUs), 1 × g"
    )
    assert Cluster([spec]).units == [2, 1, 1, 1] and Cluster([spec]).powered_units == [8, 1, 1, 1]
    assert np.isclose(Cluster([spec]).count("cpu"), 2)
