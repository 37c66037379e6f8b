"""What runs cost: prices of devices and nodes, the bill of the cluster, and each task's part of it."""

import math

import numpy as np
import pytest
from hand_made import gpu_mode, launches, record, workload
from machines import Job, simulate
from machines import gpu_mode as gpus_of

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import DeviceType, Price
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import Scenario
from hetsim_policies.dynamic.time_fractions import MaxThroughput, prices
from hetsim_policies.dynamic.unlike import MultiGeneration

HOUR = 3600.0


def scenario(nodes, workload, cluster=None, **more):
    found = {"name": "priced", "cluster": {"nodes": nodes, **(cluster or {})}, "workload": workload, "policy": "fcfs"}
    return {**found, **more}


def jobs(count=5, **more):
    entry = {"arrivals": {"process": "all_at_once", "count": count}, "gpu_time": "1 h"}
    return [{**entry, **more}]


def test_the_bill_of_a_cluster_and_the_part_of_each_task():
    # Two GPUs at 3/h and eight cores at 0.5/h for three hours; of six GPU hours five jobs take one each.
    gpus = {"type": "a", "count": 2, "price": "3/h"}
    result = hs.run(scenario({"cpus": 8, "cpu": {"price": "0.5/h"}, "gpus": gpus}, jobs()), check=True)
    assert result.metric("cost") == pytest.approx(3 * (2 * 3 + 8 * 0.5))
    assert result.metric("cost_held") == pytest.approx(5 * 3) == result.tasks["cost"].sum()
    assert result.metric("cost_per_task") == pytest.approx(30 / 5)
    assert result.tasks["cost"].tolist() == pytest.approx([3.0] * 5)
    devices = result.devices.set_index("type")
    assert devices.loc["cpu", ["cost", "cost_held"]].tolist() == pytest.approx([12, 0])
    assert devices.loc["a", "cost"].tolist() == pytest.approx([9, 9])
    assert devices["cost"].sum() == pytest.approx(result.metric("cost"))
    assert devices["cost_held"].sum() == pytest.approx(result.metric("cost_held"))


def test_a_task_pays_for_the_share_and_the_cores_that_it_holds():
    gpus = {"type": "a", "count": 1, "price": "4/h"}
    nodes = {"cpus": 8, "cpu": {"price": "1/h"}, "gpus": gpus}
    result = hs.run(scenario(nodes, jobs(2, gpus=0.25, cpus=2)), check=True)
    assert result.tasks["cost"].tolist() == pytest.approx([0.25 * 4 + 2] * 2)


def test_without_prices_there_is_no_cost():
    result = hs.run(scenario({"gpus": {"type": "a", "count": 2}}, jobs()))
    assert math.isnan(result.metric("cost")) and math.isnan(result.metric("cost_held"))
    assert "cost" not in result.tasks and "cost" not in result.devices and "cost" not in result.summary.index


def test_a_node_is_paid_through_its_accelerators_or_else_its_cores():
    kind = DeviceType("a", price=Price(1.0, 1.0))
    cluster = Cluster([
        NodeSpec(cpus=4, accelerators=((kind, 2),), price=Price(6.0, 2.0)), NodeSpec(cpus=4, price=Price(8.0, 8.0)),
    ])  # fmt: skip
    assert [(price.up, price.asleep) for price in cluster.prices] == [(0, 0), (4, 2), (4, 2), (2, 2)]
    assert cluster.price_of("a") == 4 and cluster.price_of("cpu") == 1 and cluster.price_of("b") == 0
    assert cluster.priced and not Cluster([NodeSpec(cpus=4)]).priced


@pytest.mark.parametrize(("price", "asleep"), [("2/h", 2.0), ({"up": "2/h", "asleep": 0}, 0.0)])
def test_sleep_is_free_only_where_that_is_said(price, asleep):
    gpus = {"type": "a", "price": price, "power": {"idle": "50 W", "busy": "200 W", "sleep": "5 W"}}
    late = {"arrivals": {"process": "poisson", "rate": "1/d"}, "count": 3}
    policy = {"name": "power_down", "patience": "1 h"}
    result = hs.run(scenario({"gpus": gpus}, [{**late, "gpu_time": "1 h"}], policy=policy), check=True)
    (row,) = result.devices.to_dict("records")
    assert row["asleep"] > 8 * HOUR
    assert row["cost"] == pytest.approx((2 * row["up"] + asleep * row["asleep"]) / HOUR)


def test_nothing_is_paid_for_a_device_that_is_down():
    kind = DeviceType("a", price=Price(1.0, 1.0))
    where = Cluster([NodeSpec(accelerators=((kind, 2),))])
    tasks = workload([0, 0], [10, 10], [[gpu_mode(kind=kind)]])
    log = [(4.0, 2, "down", 0.0), (9.0, 2, "up", 0.0)]
    found = record(where, tasks, [0, 0], [10, 4], [(1,), (2,)], end=10.0, device_log=log)
    assert Result(found).metric("cost") == 10 + 5
    assert Result(found).metric("cost_held") == 10 + 4


def test_launches_in_flight_together_share_what_the_gpu_costs():
    kind = DeviceType("a", streams=2, price=Price(1.0, 1.0))
    tasks = workload([0, 0], [10, 10], [[gpu_mode(kind=kind)]])
    rows = [{"task": 0, "place": 0, "start": 0, "end": 10}, {"task": 1, "place": 0, "start": 5, "end": 15}]
    found = record(Cluster([NodeSpec(accelerators=((kind, 1),))]), tasks, [0, 5], [10, 15], [(1,)] * 2,
                   launches=launches(rows))  # fmt: skip
    result = Result(found)
    assert result.metric("cost_held") == pytest.approx(15) == result.devices["cost_held"].sum()
    assert result.tasks["cost"].tolist() == pytest.approx([7.5, 7.5])


def test_work_that_is_lost_is_paid_too():
    """Under preemption without saving, what a task holds again it pays again: the sum is what devices were held."""
    small = {"gpus": {"type": "a", "count": 2, "price": "1/h"}}
    entry = {"arrivals": {"process": "poisson", "rate": "2/h"}, "count": 60, "gpu_time": {"distribution": "exponential",
             "mean": "50 min"}, "stopping": {"restore": "1 min"}}  # fmt: skip
    result = hs.run(scenario(small, [entry], policy="las"), check=True)
    assert result.metric("preemptions") > 0
    assert result.metric("cost_held") == pytest.approx(result.devices["cost_held"].sum(), rel=1e-9)
    assert result.metric("cost_held") > result.tasks["compute"].sum() / HOUR


def test_a_batch_shares_its_cost():
    service = {"compute": {"fixed": "1 s", "per_item": "1 s"}}
    entry = {"service": service, "arrivals": {"process": "all_at_once", "count": 4}}
    nodes = {"gpus": {"type": "a", "price": "1/s"}}
    policy = {"batching": {"name": "fixed_size", "size": 4}}
    result = hs.run(scenario(nodes, [entry], policy=policy), check=True)
    assert result.tasks["cost"].tolist() == pytest.approx([5 / 4] * 4)


def test_prices_by_type_serve_clusters_from_files():
    nodes = [{"gpus": {"type": "a", "count": 1}, "cpus": 2}]
    found = Scenario.load(scenario(nodes, jobs(), {"prices": {"a": "2/h", "cpu": {"up": "1/h", "asleep": 0}}}))
    cluster = found.build().cluster
    assert [price.up * HOUR for price in cluster.prices] == pytest.approx([1, 2])
    assert [price.asleep * HOUR for price in cluster.prices] == pytest.approx([0, 2])


@pytest.mark.parametrize(
    ("nodes", "cluster", "said"),
    [
        ({"gpus": {"type": "a", "price": 3}}, {}, "has no unit"),
        ({"gpus": {"type": "a", "price": "-3/h"}}, {}, "is negative"),
        ({"gpus": {"type": "a"}, "price": {"asleep": "1/h"}}, {}, "price.up: this key is missing"),
        ({"gpus": {"type": "a100"}}, {"prices": {"a10": "1/h"}}, 'no device type "a10"; did you mean "a100"'),
        ({"gpus": {"type": "a", "price": "1/h"}}, {"prices": {"a": "1/h"}}, "must be given once"),
        ([{"gpus": {"type": "a", "price": "1/h"}}, {"gpus": {"type": "a"}}], {}, "has another price"),
    ],
)
def test_prices_that_make_no_sense_are_refused(nodes, cluster, said):
    with pytest.raises(ScenarioError, match=said):
        Scenario.load(scenario(nodes, jobs(), cluster)).build()


# Policies -------------------------------------------------------------------------------------------------------

OLD, NEW = DeviceType("old", price=Price(1.0, 1.0)), DeviceType("new", price=Price(3.0, 3.0))


def test_policies_that_weigh_costs_read_the_prices_of_the_cluster():
    specs = NodeSpec(accelerators=((OLD, 2), (NEW, 1)))
    # At three times the price twice as fast is dearer, and five times as fast cheaper.
    tasks = [Job([gpus_of(OLD), gpus_of(NEW)], [10.0, 5.0]), Job([gpus_of(OLD), gpus_of(NEW)], [10.0, 2.0])]
    assert simulate(specs, tasks, MultiGeneration(budget=1.0, measure="cost")).mode.tolist() == [0, 1]
    # By the second alone a job that is slower there would never be on the old one.
    assert simulate(specs, tasks[:1], MultiGeneration(budget=1.6, measure="cost")).mode.tolist() == [1]
    assert prices(Cluster([specs]), {}) == {"cpu": 1.0, "old": HOUR, "new": 3 * HOUR}


def test_throughput_per_cost_leaves_the_dear_devices_idle():
    nodes = [{"gpus": {"type": "old", "price": "1/h"}}, {"gpus": {"type": "new", "price": "9/h"}}]
    entry = [{**jobs(2)[0], "gpu_time.old": "1 h", "gpu_time.new": "30 min"}]
    del entry[0]["gpu_time"]
    dear = hs.run(scenario(nodes, entry, policy="max_throughput"), check=True)
    cheap = hs.run(scenario(nodes, entry, policy={"name": "max_throughput", "costs": "prices"}), check=True)
    assert (dear.tasks["device_type"] == "new").any()
    assert cheap.metric("cost_held") < dear.metric("cost_held")
    assert (cheap.tasks["device_type"] == "old").all()


def test_a_price_is_given_in_one_place():
    nodes = {"gpus": {"type": "a", "price": "1/h"}}
    for policy in ({"name": "max_throughput"}, {"name": "multi_generation", "measure": "cost"}):
        with pytest.raises(ScenarioError, match="must be given once: here or in the cluster"):
            hs.run(scenario(nodes, jobs(), policy={**policy, "costs": {"a": 2}}))
    with pytest.raises(ScenarioError, match="costs: prices needs prices of the cluster"):
        hs.run(scenario({"gpus": {"type": "a"}}, jobs(), policy={"name": "max_throughput", "costs": "prices"}))
    assert MaxThroughput(costs={"a": 1.0}).costs == {"a": 1.0}


# Comparisons ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_tells_cost_where_there_are_prices():
    nodes = [{"gpus": {"type": "a", "count": 2, "price": "1/h"}}]
    entry = {"arrivals": {"process": "poisson", "rate": "2/h"}, "count": 40,
             "gpu_time": {"distribution": "exponential", "mean": "50 min"}}  # fmt: skip
    found = hs.compare(scenario(nodes, [entry]), ["fcfs", "sjf"], replications=3)
    assert "cost" in found.metrics
    makespan = found.table["makespan"]["mean"] / HOUR
    first = np.array([run.column("cost").mean() for run in found.runs.values()])
    assert first == pytest.approx(found.table["cost"]["mean"].to_numpy())
    assert (first >= 2 * makespan.to_numpy()).all()  # two GPUs until the last task is done
    free = hs.compare(scenario([{"gpus": {"type": "a", "count": 2}}], [entry]), ["fcfs", "sjf"], replications=3)
    assert "cost" not in free.metrics
