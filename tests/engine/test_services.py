"""Services through the whole program: scenario, engine, tables."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
from tiers import spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, ScenarioError
from hetsim.policy import Batching, Delay, Discard, Scheduler, Take
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load

COSTS = {
    "upload": {"per_item": "0.114 ms", "fixed": "0.15 ms"},
    "compute": {"per_item": "1.264 ms", "fixed": "13 ms"},
    "download": {"fixed": "0.05 ms"},
}


def scenario(gpus=1, rate="400/s", horizon="8 s", pcie=None, policy=None, **service):
    entry = {
        "name": "web",
        "arrivals": {"process": "poisson", "rate": rate},
        "slo": "250 ms",
        "service": {**copy.deepcopy(COSTS), **service},
    }
    node = {"cpus": 4, "gpus": {"type": "g", "count": gpus, "streams": 2}, "pcie": pcie or {"upload": "5 GB/s"}}
    found = {"name": "s", "cluster": {"nodes": node}, "workload": [entry], "policy": policy or {}}
    return found | ({"horizon": horizon} if horizon else {})


def run(described):
    return Result(Simulation(load(described).build(1), check=True).run())


def same(first, second):
    for table in ("tasks", "launches", "devices", "timeline"):
        pd.testing.assert_frame_equal(getattr(first, table), getattr(second, table), check_exact=True)


class Padded(Batching):
    """Batches of a power of two, filled up; half of what waits is thrown away now and then."""

    def next_batch(self, queue, placement, view):
        if len(queue) < 3 and not queue.over:
            return Delay(until=queue.arrival(0) + 0.02, count=3) if view.now < queue.arrival(0) + 0.02 else Take(1, 4)
        if len(queue) > 40:
            return Discard(len(queue) // 2)
        count = min(len(queue), 32)
        return Take(count, 1 << (count - 1).bit_length())


hs.register("padded", Padded, kind="batching")

@pytest.mark.quick(1)
@pytest.mark.parametrize(("rate", "gpus"), [("700/s", 1), ("1500/s", 1), ("1300/s", 3)])
def test_requests_asked_for_one_by_one_go_as_those_that_nobody_asks_for(rate, gpus):
    """Admission that accepts all looks at every request; what batches are made of, and when, is the same."""
    described = scenario(gpus, rate, "3 s", policy={"batching": "padded"})
    together = run(described)
    described["policy"]["admission"] = "accept_all"
    same(together, run(described))
    assert (together.launches["members"] > 1).any()
    assert (together.tasks["status"] == "expired").any()


@pytest.mark.parametrize(("overhead", "size"), [(0.0, 600e3), (0.25, 600e3), (0.25, 0)])
def test_the_stages_of_a_batch_by_hand(overhead, size):
    """One request: 0.264 ms, and 600 kB, if any, at 5 GB/s after 10 us; 14.264 ms, longer on a GPU whose preemption
    costs a share of the rate; 0.05 ms, and 40 kB at 4 GB/s after 10 us."""
    pcie = {"upload": "5 GB/s", "download": "4 GB/s", "latency": "10 us"}
    described = scenario(horizon=None, pcie=pcie)
    described["workload"][0] |= {"bytes_in": f"{size} B", "bytes_out": "40 kB", "count": 1}
    if overhead:
        described["cluster"]["nodes"]["gpus"]["preemption"] = {"kind": "flep", "overhead": overhead}
    task = run(described).tasks.iloc[0]
    expected = [0.264e-3 + (0.12e-3 + 1e-5 if size else 0), 14.264e-3 * (1 + overhead), 0.05e-3 + 1e-5 + 1e-5]
    assert [task["upload"], task["compute"], task["download"]] == pytest.approx(expected, rel=1e-9)


def test_two_services_share_gpus_by_the_age_of_their_oldest_request():
    described = scenario(gpus=2)
    other = copy.deepcopy(described["workload"][0]) | {"name": "mail", "slo": "1 s"}
    other["service"]["compute"] = {"per_item": "3 ms", "fixed": "20 ms"}
    described["workload"].append(other)
    described["workload"][0]["arrivals"]["rate"] = "500/s"
    for policy in ("fcfs", "edf"):
        described["policy"] = policy
        result = run(described)
        assert set(result.tasks.loc[result.tasks["status"] == "completed", "class"]) == {"web", "mail"}
    urgent = result.by("class", ["wait_mean"])["wait_mean"]
    assert urgent["web"] < urgent["mail"]  # edf: the deadlines of web are nearer


def test_response_is_wait_and_stages_and_the_way_there_and_back():
    without = run(scenario()).tasks
    traveled = run(scenario(network={"request": "2 ms", "response": "3 ms"})).tasks
    done = (without["status"] == "completed") & (traveled["status"] == "completed")
    assert (traveled["ready"] - traveled["arrival"]).to_numpy() == pytest.approx(0.002)
    assert traveled["overhead"][done].to_numpy() == pytest.approx(0.003)
    assert (traveled["response"] - without["response"])[done].to_numpy() == pytest.approx(0.005)


def test_a_batch_carries_its_stage_times_and_shares_its_energy():
    described = scenario()
    described["cluster"]["nodes"]["gpus"]["power"] = {"idle": "10 W", "busy": "110 W"}
    result = run(described)
    done = result.tasks[result.tasks["status"] == "completed"]
    sizes = done.groupby("batch").size()
    assert done.groupby("batch")["compute"].first().to_numpy() == pytest.approx(0.013 + 0.001264 * sizes.to_numpy())
    assert done.groupby("batch")["upload"].first().to_numpy() == pytest.approx(0.00015 + 0.000114 * sizes.to_numpy())
    assert done.groupby("batch")["energy_j"].sum().to_numpy() == pytest.approx(
        100 * (0.013 + 0.001264 * sizes.to_numpy())
    )
    result.metric("energy_j")


def test_tasks_and_services_side_by_side():
    described = scenario(gpus=2, rate="200/s")
    described["workload"].append(
        {"name": "jobs", "arrivals": {"process": "poisson", "rate": "1/s"}, "gpu_time": "300 ms"}
    )
    result = run(described)
    by = result.by("class", ["completed_count"])["completed_count"]
    assert by["web"] > 1500
    assert by["jobs"] >= 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compute": {"per_item": "-1 ms", "fixed": "13 ms"}}, "negative"),
        ({"compute": {"per_item": "0 ms", "fixed": "13 ms"}}, "per_item must be above 0"),
        ({"compute": {"fixed": "13 ms"}}, "without per_item a batch of any size takes the same time, so max_batch is"),
        ({"compute": {}}, "a batch must take time; give per_item, fixed or both"),
        ({"max_batch": 0}, "must be at least 1"),
        ({"model": "20 GB"}, "the model and its batches need 20 GB"),
        ({"gpu_memory_per_item": "20 GB"}, "one request per stream and the model do not fit into"),
        ({"noise": "50%"}, "from 0 to 30%"),
        ({"device": "cpu"}, "upload and download need an accelerator; leave them out for a CPU"),
        ({"batching": "serial_gredy"}, 'did you mean "serial_greedy"'),
        ({"variants": [{"compute": "5 ms", "max_batch": 4}]}, "with variants, the key must be given in each variant"),
    ],
)
def test_what_makes_no_sense_is_said(change, said):
    described = scenario(**change)
    described["cluster"]["nodes"]["gpus"]["memory"] = "11 GB"
    with pytest.raises(ScenarioError, match=said):
        hs.run(described)


def test_an_slo_shorter_than_a_batch_of_one_is_refused():
    described = scenario()
    described["workload"][0]["slo"] = "10 ms"
    with pytest.raises(ScenarioError, match=r"a batch of one takes 14\.58 ms"):
        hs.run(described)


def test_overload_finishes_and_is_told():
    result = hs.run(scenario(rate="900/s"))
    assert any("the queue grows without bound" in text for text in result.warnings)
    assert result.metric("unfinished_count") > 500


HEAVY = {"compute": {"per_item": "1 ms", "fixed": "5 ms"}, "upload": {}, "download": {}, "max_batch": 64}
"""At 900 requests/s batches of 32 serve 865 requests/s, too few; those of 64 serve 928."""


def heavy(batching, **more):
    found = scenario(rate="900/s", horizon="2 s", policy={"batching": batching}, **{**HEAVY, **more})
    found["cluster"]["nodes"]["gpus"]["streams"] = 1
    return hs.run(found)


@pytest.mark.quick(4)
@pytest.mark.parametrize("max_batch", spread([64, 128, None], 2))
@pytest.mark.parametrize(
    "batching", ["smdp", "batopt", "triton_dynamic", "size_or_timeout", "nexus", "clipper_quantile"]
)
def test_a_policy_without_a_limit_of_its_own_forms_batches_up_to_that_of_the_service(batching, max_batch):
    result = heavy(batching, max_batch=max_batch)
    assert not any("forms batches" in text for text in result.warnings)
    assert result.launches["members"].max() > 32
    assert result.metric("unfinished_count") < 300


def test_what_is_beyond_the_sizes_of_the_model_is_taken_whole():
    """At 990 requests/s a service that takes 512 answers batches of about 500; models know sizes up to 64."""
    for batching in ("smdp", "batopt"):
        described = scenario(rate="990/s", horizon="4 s", policy={"batching": batching}, **{**HEAVY, "max_batch": 512})
        described["cluster"]["nodes"]["gpus"]["streams"] = 1
        result = hs.run(described)
        assert not result.warnings or "unfinished" in result.warnings[0]
        assert result.launches["members"].max() > 64


@pytest.mark.parametrize(
    ("batching", "cap", "capacity"),
    [
        ({"name": "smdp", "max_batch": 32}, 32, "864.9"),
        ({"name": "triton_dynamic", "max_batch_size": 16}, 16, "761.9"),
        ({"name": "size_or_timeout", "allowed_batch_sizes": [4, 32]}, 32, "864.9"),
        ({"name": "serial_greedy", "max_batch": 8}, 8, "615.4"),
        ("fixed_size", 8, "615.4"),
    ],
)
def test_a_smaller_limit_that_the_load_does_not_allow_is_a_warning(batching, cap, capacity):
    name = batching if isinstance(batching, str) else batching["name"]
    assert heavy(batching).warnings[0] == (
        f"web: 900 requests/s arrive, but {name} forms batches of at most {cap}, with which its devices serve at most "
        f"{capacity}/s: the queue grows without bound; the service allows batches of 64 (927.5/s)"
    )
    without = heavy(batching, max_batch=None)
    assert without.warnings[0].endswith("the service allows larger ones (1000/s)")


def test_a_limit_that_the_load_allows_is_no_warning():
    """900 requests/s need batches of 45."""
    assert not any("forms batches" in text for text in heavy({"name": "triton_dynamic", "max_batch_size": 48}).warnings)
    assert any("forms batches" in text for text in heavy({"name": "triton_dynamic", "max_batch_size": 44}).warnings)


def test_asynchronous_batches_on_one_stream_are_serial_and_the_run_says_so():
    def responses(batching, streams):
        described = scenario(policy={"batching": batching})
        described["cluster"]["nodes"]["gpus"]["streams"] = streams
        del described["workload"][0]["slo"]  # async_linear would limit its batches by it
        return hs.run(described)

    text = "web: async_linear cannot overlap on g, which run one launch at a time: it acts as"
    alone, two = responses("async_linear", 1), responses("async_linear", 2)
    serial = responses("serial_greedy", 1)
    assert alone.warnings[0].startswith(text)
    pd.testing.assert_series_equal(alone.tasks["finish"], serial.tasks["finish"], check_exact=True)
    assert not [warning for warning in (*two.warnings, *serial.warnings) if "overlaps" in warning]
    assert two.metric("response_mean") < alone.metric("response_mean")


def test_batching_needs_a_service_and_a_scheduler_that_serves():
    plain = scenario(policy={"batching": "serial_greedy"})
    plain["workload"] = [{"name": "t", "arrivals": {"process": "poisson", "rate": "1/s"}, "gpu_time": "1 s"}]
    with pytest.raises(ScenarioError, match="batching needs a service, but no workload entry has one"):
        hs.run(plain)
    with pytest.raises(ScenarioError, match="does not serve requests"):
        hs.run(scenario(policy="heft"))
    with pytest.raises(ScenarioError, match="a preemptive scheduler cannot serve requests: batches cannot be "
                                            "preempted"):
        hs.run(scenario(policy={"scheduler": {"name": "edf", "preemptive": True}}))


class Wrong(Batching):
    """Answers what it was told to."""

    answer: object = None

    def next_batch(self, queue, placement, view):
        return type(self).answer


hs.register("wrong", Wrong, kind="batching")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Take(10**6), "but only 1 of them wait"),
        (Take(0), "but only 1 of them wait"),
        (Take(1, 0), "as a batch of 0"),
        (None, ".next_batch must answer Take, Discard or Delay; got"),
        (Delay(until=-1.0), "a time after now"),
        (Take(1.5), r"Wrong.next_batch answered Take\(which=1.5, size=None\): `which` must be a number of requests"),
        (Take("all"), "`which` must be a number of requests or a list of them"),
        (Discard([3]), "`which` must be a number of requests or a list of them"),
        (Take(1, "x"), "`size` a whole number or None"),
        (Delay("x"), r"Wrong.next_batch answered Delay\('x', None\): `until` must be a time"),
        (Delay(count=1.5), "`count` a whole number or None"),
        (Delay(), "starts nothing"),
    ],
)
def test_a_wrong_answer_stops_the_run_with_policy_and_time(answer, said):
    Wrong.answer = answer
    described = scenario(policy={"batching": "wrong"}, horizon=None)
    described["workload"][0]["count"] = 50
    with pytest.raises(PolicyError, match=said):
        hs.run(described)


class Limited(Padded):
    max_batch = np.int64(2)


hs.register("limited", Limited, kind="batching")


def test_counts_of_numpy_are_counts():
    """In `max_batch`, `Take`, `Discard` and `Delay`; a largest batch below 1 is refused by name."""
    class Counts(Batching):
        def __init__(self, kind):
            self.kind = kind

        def next_batch(self, queue, placement, view):
            if len(queue) < 3 and not queue.over:
                return Delay(np.float32(np.inf) if self.kind is not int else np.inf, self.kind(3))
            return Discard(self.kind(1)) if len(queue) > 9 else Take(self.kind(1), self.kind(2))

    made = []
    for kind in (int, np.int64):
        built = load(scenario(rate="900/s", horizon="100 ms")).build(1)
        built.batching = [Counts(kind)]
        made.append(Result(Simulation(built, check=True).run()))
    same(*made)
    hs.run(scenario(horizon="10 ms", policy={"batching": "limited"}))
    Limited.max_batch = 0
    with pytest.raises(ScenarioError, match="limited: max_batch must be a whole number of at least 1, or None; got 0"):
        hs.run(scenario(policy={"batching": "limited"}))


def test_models_are_loaded_once_and_evicted_when_another_needs_the_room():
    described = scenario(rate="50/s", model="4 GB")
    described["cluster"]["nodes"]["gpus"]["memory"] = "6 GB"
    other = copy.deepcopy(described["workload"][0]) | {"name": "mail"}
    described["workload"].append(other)
    result = hs.run(described, check=True)
    loads = (result.launches["upload_end"] - result.launches["upload_start"]) > 0.5
    assert 2 <= loads.sum() < len(result.launches)
    alone = hs.run(scenario(rate="50/s", model="4 GB"), check=True)
    assert ((alone.launches["upload_end"] - alone.launches["upload_start"]) > 0.5).sum() == 1
    assert np.nanmin(alone.tasks["slowdown"]) >= 1 - 1e-9


def test_a_fused_variant_is_taken_where_it_is_faster():
    variants = [
        {"name": "plain", **copy.deepcopy(COSTS)},
        {"name": "fused", "compute": {"per_item": "1 ms", "fixed": "9 ms"}},
    ]
    described = scenario()
    described["workload"][0]["service"] = {"variants": variants}
    result = hs.run(described)
    assert set(result.launches["mode"]) == {"fused"}


def test_a_scheduler_that_knows_nothing_of_services_says_so():
    class Idle(Scheduler):
        pass

    with pytest.raises(ScenarioError, match="Idle does not serve requests"):
        hs.run(scenario(), policy=Idle)


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_a_batch_moves_its_share_of_the_bytes_over_the_link_of_each_gpu(gpus):
    """As for all launches (`docs/engine.md`); batches of 1 to 3 requests with stage times besides, and as forecast."""
    forecast = {}

    class Noted(Batching):
        def next_batch(self, queue, placement, view):
            forecast[view.now] = queue.stages(min(3, len(queue)), placement)
            return Take(min(3, len(queue)))

    described = scenario(4, pcie={"upload": "1 GB/s", "download": "2 GB/s", "latency": "1 ms"}, horizon=None)
    entry = described["workload"][0] | {"count": 40, "bytes_in": "12 MB", "bytes_out": "8 MB"}
    entry["service"]["gpus"] = gpus
    built = load(described | {"workload": [entry]}).build(1)
    built.batching = [Noted()]
    launches = Result(Simulation(built, check=True).run()).launches
    sizes = launches["members"].to_numpy()
    assert set(sizes) >= {1, 3}
    upload, download = launches["upload_end"] - launches["upload_start"], launches["end"] - launches["download_start"]
    np.testing.assert_allclose(upload, 0.15e-3 + 0.114e-3 * sizes + 1e-3 + sizes * 12e-3 / gpus, rtol=1e-9)
    np.testing.assert_allclose(download, 0.05e-3 + 1e-3 + sizes * 4e-3 / gpus, rtol=1e-9)
    np.testing.assert_allclose([forecast[begun].upload for begun in launches["decided"]], upload)
    np.testing.assert_allclose([forecast[begun].download for begun in launches["decided"]], download)
