"""Time limits, partitions with their rules, and jobs that can never run: what sites do to jobs."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from tiers import some, spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import RunError, ScenarioError
from hetsim.model.record import COMPLETED, FAILED
from hetsim.scenario.scenario import Scenario

GPUS = {"type": "g", "count": 4}


def scenario(tmp_path, rows, site=None, nodes=None, policy="fcfs", trace=None, **entry):
    """Jobs from rows of a table (text with a header), on nodes of 4 GPUs unless said otherwise."""
    file = tmp_path / "jobs.csv"
    file.write_text(rows if isinstance(rows, str) else rows.to_csv(index=False))
    more = {key: entry.pop(key) for key in ("horizon", "faults", "seed") if key in entry}
    nodes = nodes or [{"count": 1, "cpus": 4, "gpus": GPUS}]
    work = [{"name": "jobs", "trace": {"format": "tasks", "path": str(file), **(trace or {})}, **entry}]
    return {"name": "s", "cluster": {"nodes": nodes}, "site": site or {}, "workload": work, "policy": policy, **more}


def run(*arguments, **named):
    return hs.run(scenario(*arguments, **named), check=True)


def drawn_jobs(seed, partitions, count=120, gpus=(1, 2, 4), rate=1.0):
    """Random jobs, with exact times, over partitions."""
    random = np.random.default_rng(seed)
    return pd.DataFrame({
        "arrival": np.cumsum(random.exponential(1 / rate, count)).round(3),
        "gpus": random.choice(gpus, count),
        "gpu_time": random.lognormal(1.0, 1.0, count).round(3),
        "partition": random.choice(partitions, count),
    })  # fmt: skip


# Time limits ------------------------------------------------------------------------------------------------------


KILL = {"at_limit": "kill"}


@pytest.mark.parametrize(("site", "ends", "status"), [
    ({}, [10, 12, 14], ["completed"] * 3),
    ({"at_limit": "overrun"}, [10, 12, 14], ["completed"] * 3),
    (KILL, [6, 8, 10], ["failed", "completed", "completed"]),
    ({**KILL, "grace": "3 s"}, [9, 11, 13], ["failed", "completed", "completed"]),
    ({**KILL, "grace": "4 s"}, [10, 12, 14], ["completed"] * 3),
])  # fmt: skip
def test_at_its_limit_a_job_overruns_or_is_killed(tmp_path, site, ends, status):
    """One after the other on all GPUs; the second ends at the very instant of its limit, the third has none."""
    rows = "gpus,gpu_time,time_limit\n4,10,6\n4,2,2\n4,2,\n"
    record = Simulation(Scenario.load(scenario(tmp_path, rows, site)).build(), check=True).run()
    assert record.finish.tolist() == ends
    assert [{COMPLETED: "completed", FAILED: "failed"}[one] for one in record.status] == status


def test_a_killed_job_wastes_what_it_did_and_its_energy_is_counted(tmp_path):
    power = {"idle": "10 W", "busy": "110 W"}
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 1, "power": power}}]
    result = run(tmp_path, "gpu_time,time_limit\n10,6\n4,\n", KILL, nodes)
    assert result.tasks["reason"][0] == "time limit"
    assert result.tasks["preemptions"].tolist() == [0, 0]
    assert result.tasks["energy_j"].tolist() == [0, 400]
    launches = result.launches
    assert (launches["lost"].tolist(), launches["busy"].tolist()) == ([6, 0], [6, 4])
    assert launches["energy"].sum() == pytest.approx(1000) if "energy" in launches else True
    assert result.metric("energy_j") == pytest.approx(10 * 110)


def test_who_is_killed_at_a_limit_is_who_would_run_longer(tmp_path):
    """Where no job is stopped, with the grace; where stops keep work, the limit counts what was computed before."""
    rows = drawn_jobs(3, [""], count=300)
    rows["time_limit"] = rows["gpu_time"] * np.random.default_rng(4).uniform(0.5, 2, len(rows))
    over = rows["gpu_time"] > rows["time_limit"] + 0.1
    for policy in ("easy_backfill", "srtf", "las"):
        built = scenario(tmp_path, rows, {**KILL, "grace": "100 ms"}, policy=policy)
        record = Simulation(Scenario.load(built).build(), check=True).run()
        killed = record.status == FAILED
        assert 0 < killed.sum() < len(rows)
        if policy == "easy_backfill":
            np.testing.assert_array_equal(killed, over)


def test_the_clock_goes_on_after_a_stop_that_keeps_work(tmp_path):
    """The long one runs 0 to 2 and again from 5: 4 s more of its 6 are over at 9."""
    rows = "arrival,gpus,gpu_time,time_limit\n0,4,10,6\n2,4,3,\n"
    result = run(tmp_path, rows, KILL, policy="srtf")
    assert result.tasks["finish"].tolist() == [9, 5]
    assert result.tasks["status"].tolist() == ["failed", "completed"]
    assert result.tasks["preemptions"].tolist() == [1, 0]


@pytest.mark.parametrize(("interval", "ends", "status"), [("1 s", 11, "completed"), (None, 12, "failed")])
def test_the_clock_begins_anew_after_a_failure(tmp_path, interval, ends, status):
    """It fails at 4 and goes on at 6 with 6 s: enough for the 5 it lacks with checkpoints, not for 9 without."""
    faults = tmp_path / "faults.csv"
    faults.write_text("time,device,event\n4,n0/g0,down\n6,n0/g0,up\n")
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 1}}]
    stopping = {"stopping": {"interval": interval}} if interval else {}
    result = run(tmp_path, "gpu_time,time_limit\n9,6\n", KILL, nodes, faults=[{"file": str(faults)}], **stopping)
    assert (result.tasks["finish"][0], result.tasks["status"][0]) == (ends, status)


def test_a_straggling_device_can_push_a_job_over_its_limit(tmp_path):
    """8 s of work under a limit of 9: half speed from 4 on leaves 1.5 s to do at 9."""
    faults = tmp_path / "faults.csv"
    faults.write_text("time,device,event,factor\n4,n0/g0,slow,2\n")
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 1}}]
    result = run(tmp_path, "gpu_time,time_limit\n8,9\n", KILL, nodes, faults=[{"file": str(faults)}])
    assert (result.tasks["finish"][0], result.tasks["status"][0]) == (9, "failed")


def test_successors_of_a_killed_task_fail_with_it(tmp_path):
    rows = "id,gpu_time,time_limit,predecessors\na,5,3,\nb,1,,a\nc,1,,b\nd,1,,\n"
    tasks = run(tmp_path, rows, KILL).tasks.set_index("id")
    assert tasks["status"].to_dict() == {"a": "failed", "b": "failed", "c": "failed", "d": "completed"}
    assert tasks["finish"].to_dict() == {"a": 3, "b": 3, "c": 3, "d": 1}


def test_backfilling_takes_the_limit_for_an_upper_bound(tmp_path):
    """A job whose estimate is 100 s will be killed at 5: the head is promised time 5, and 6 s do not fit before."""
    rows = "arrival,gpus,gpu_time,gpu_time_estimate,time_limit\n0,3,50,100,5\n1,4,1,1,\n2,1,6,6,\n3,1,1.5,1.5,\n"
    killed = run(tmp_path, rows, KILL, policy="easy_backfill").tasks
    assert killed["start"].tolist() == [0, 5, 6, 3]
    overrun = run(tmp_path, rows, {}, policy="easy_backfill").tasks
    assert overrun["start"].tolist() == [0, 50, 2, 8]


def test_limits_of_drawn_jobs(tmp_path):
    work = [{"name": "a", "gpu_time": {"distribution": "exponential", "mean": "1 h"}, "time_limit": {"factor": 0.5},
             "arrivals": {"process": "poisson", "rate": "1/h"}, "count": 20},
            {"name": "b", "gpu_time": "2 h", "time_limit": "3 h",
             "arrivals": {"process": "poisson", "rate": "1/h"}, "count": 20}]  # fmt: skip
    result = hs.run({"cluster": {"nodes": {"count": 20, "gpus": GPUS}}, "site": KILL, "workload": work}, check=True)
    status = result.tasks.groupby("class")["status"].unique()
    assert [list(status["a"]), list(status["b"])] == [["failed"], ["completed"]]
    assert result.tasks[result.tasks["class"] == "b"]["time_limit"].unique().tolist() == [3 * 3600]


# Partitions -------------------------------------------------------------------------------------------------------


TWO = [
    {"name": "a", "count": 2, "cpus": 4, "gpus": GPUS, "partitions": "a"},
    {"name": "b", "count": 3, "cpus": 4, "gpus": GPUS, "partitions": "b"},
]
SEPARATE = [
    "fcfs", "sjf", "largest_first", "wfq", "easy_backfill", "conservative_backfill", "gang_backfill",
    {"name": "easy_backfill", "depth": 2}, {"name": "conservative_backfill", "depth": 2}, "srtf", "las", "tiresias",
    {"name": "round_robin", "quantum": "2 s"}, "power_down", "defragment",
    {"name": "defragment", "discipline": "block"},
    "fcfs_skip", {"name": "sjf", "discipline": "skip"}, {"name": "largest_first", "discipline": "skip"},
    {"name": "srtf", "discipline": "skip"}, {"name": "conservative_backfill", "depth": None},
    {"name": "slurm_multifactor", "bf_max_job_test": 10_000, "fair_share": 0, "bf_interval": 0},
]  # fmt: skip


@pytest.mark.parametrize("policy", spread(SEPARATE, 5), ids=str)
def test_partitions_without_common_nodes_are_clusters_of_their_own(tmp_path, policy):
    """Each part alone, with its own jobs, does the same to the last second: nobody waits behind a head elsewhere."""
    rows = drawn_jobs(11, ["a", "b"], rate=1.5)
    policy = {"scheduler": policy}
    together = run(tmp_path, rows, nodes=TWO, policy=policy).tasks
    assert together["wait"].mean() > 1
    for place, nodes in zip("ab", TWO, strict=True):
        mine = rows[rows["partition"] == place]
        alone = run(tmp_path, mine.drop(columns="partition"), nodes=[{**nodes, "partitions": []}], policy=policy).tasks
        here = together[(rows["partition"] == place).to_numpy()].reset_index()
        pd.testing.assert_series_equal(here["start"], alone["start"])
        pd.testing.assert_series_equal(here["finish"], alone["finish"])
        assert here["node"].str.startswith(place).all()


@pytest.mark.parametrize("discipline", ["skip", "block"])
@pytest.mark.parametrize("name", ["drf", "quota_borrow"])
def test_turns_between_users_are_taken_in_each_partition(tmp_path, name, discipline):
    """Whom no node of its own partition takes keeps nobody from the other's, not even tasks of the same user."""
    rows = "arrival,gpus,gpu_time,partition,user\n0,4,10,a,ann\n1,4,10,a,ann\n2,4,5,b,ann\n2,2,5,b,bob\n3,4,5,a,bob\n"
    nodes = [{**node, "count": 1} for node in TWO]
    policy = {"name": name} if name == "quota_borrow" else {"name": name, "discipline": discipline}
    tasks = run(tmp_path, rows, nodes=nodes, policy={"scheduler": policy}).tasks
    assert tasks["start"][2:4].min() == 2
    assert tasks["start"][1] >= 10


@pytest.mark.parametrize("policy", [
    "fcfs", "srtf", "easy_backfill", {"name": "round_robin", "quantum": "100 s"},
], ids=str)  # fmt: skip
def test_who_shares_no_node_with_a_blocked_head_passes_it(tmp_path, policy):
    """Of three nodes a has the first two, b the last two, c the last.  The fourth job, of a, waits for a whole node; b
    shares one with a, so its job stays behind, though it would fit; that of c goes; the one bound to nothing stays."""
    rows = "arrival,gpus,gpu_time,partition\n0,1,10,a\n0,4,10,a\n0,2,8,c\n1,4,10,a\n2,2,20,b\n3,1,20,c\n4,1,20,\n"
    nodes = [{"cpus": 4, "gpus": GPUS, "partitions": parts} for parts in (["a"], ["a", "b"], ["b", "c"])]
    tasks = run(tmp_path, rows, nodes=nodes, policy={"scheduler": policy}).tasks
    assert tasks["node"].tolist()[:3] == ["n0", "n1", "n2"]
    assert tasks["start"].tolist()[:4] == [0, 0, 0, 10]
    # Backfilling lets that of b go at once to the last node, where it delays no head.
    assert tasks["start"].tolist()[4:] == ([2, 8, 8] if policy == "easy_backfill" else [10, 3, 10])


@pytest.mark.parametrize("policy", [
    "fcfs_skip", {"name": "sjf", "discipline": "skip"}, "easy_backfill",
    {"name": "conservative_backfill", "depth": None}, "las",
], ids=str)  # fmt: skip
def test_a_limit_on_gpus_is_as_a_smaller_machine(tmp_path, policy):
    """Jobs of one partition that may hold 4 of a node's 8 GPUs do as on a node of 4, shadows included."""
    rows = drawn_jobs(5, ["p"], rate=0.5)
    policy = {"scheduler": policy}
    big = [{"cpus": 8, "gpus": {"type": "g", "count": 8}, "partitions": "p"}]
    limited = run(tmp_path, rows, {"partitions": {"p": {"max_gpus": 4}}}, big, policy).tasks
    small = run(tmp_path, rows.drop(columns="partition"), nodes=[{"cpus": 8, "gpus": GPUS}], policy=policy).tasks
    assert small["wait"].mean() > 1
    np.testing.assert_allclose(limited["start"], small["start"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("policy", ["fcfs_skip", "easy_backfill", "conservative_backfill", "slurm_multifactor"])
def test_a_limit_on_nodes_is_kept(tmp_path, policy):
    """Of three nodes one may be in use: as one node."""
    rows = drawn_jobs(6, ["p"], rate=0.4)
    nodes = [{"count": 3, "cpus": 4, "gpus": GPUS, "partitions": "p"}]
    limited = run(tmp_path, rows, {"partitions": {"p": {"max_nodes": 1}}}, nodes, policy)
    launches = limited.launches.sort_values("start")
    for _, one in launches[:: some(1, 3)].iterrows():
        beside = launches[(launches["start"] <= one["start"]) & (launches["end"] > one["start"])]
        assert beside["node"].nunique() == 1
    if policy == "fcfs_skip":
        alone = run(tmp_path, rows, nodes=[{**nodes[0], "count": 1}], policy=policy).tasks
        np.testing.assert_allclose(limited.tasks["start"], alone["start"], rtol=0, atol=1e-9)


def test_a_gang_over_several_nodes_keeps_to_its_partition_and_its_limit_on_nodes(tmp_path):
    rows = "arrival,gpus,gpu_time,partition\n0,6,10,p\n1,2,10,p\n2,6,10,p\n"
    nodes = [{"cpus": 4, "gpus": GPUS}, {"count": 3, "cpus": 4, "gpus": GPUS, "partitions": "p"}]
    free = run(tmp_path, rows, nodes=nodes, span="any").tasks
    assert free["start"].tolist() == [0, 1, 10]
    held = run(tmp_path, rows.replace("2,6,10", "2,4,10"), {"partitions": {"p": {"max_nodes": 2}}}, nodes, span="any")
    assert held.tasks["start"].tolist() == [0, 1, 10]
    assert run(tmp_path, rows.replace("2,6,10", "2,4,10"), None, nodes, span="any").tasks["start"][2] == 2


def test_whom_a_limit_keeps_blocks_nobody_under_fcfs(tmp_path):
    """The second job waits for its partition's limit; those of the other partition pass, the third of its own not."""
    rows = "arrival,gpus,gpu_time,partition\n0,2,10,p\n1,2,5,p\n2,1,1,p\n3,1,1,q\n4,4,1,q\n5,1,1,q\n"
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 8}, "partitions": ["p", "q"]}]
    result = run(tmp_path, rows, {"partitions": {"p": {"max_gpus": 2}}}, nodes)
    assert result.tasks["start"].tolist() == [0, 10, 15, 3, 4, 5]
    assert (2.0, 2, "quota") in result.record.holds


def test_overlapping_partitions_share_their_nodes(tmp_path):
    rows = drawn_jobs(8, ["a", "b", ""], rate=1.5)
    nodes = [
        {"name": "a", "count": 1, "cpus": 4, "gpus": GPUS, "partitions": "a"},
        {"name": "ab", "count": 2, "cpus": 4, "gpus": GPUS, "partitions": ["a", "b"]},
        {"name": "x", "count": 1, "cpus": 4, "gpus": GPUS},
    ]
    for policy in ("fcfs_skip", "easy_backfill", "conservative_backfill", "slurm_multifactor", "srtf"):
        tasks = run(tmp_path, rows, nodes=nodes, policy=policy).tasks
        used = tasks.groupby("partition", dropna=False)["node"].unique()
        assert set(used["a"]) <= {"a", "ab0", "ab1"}
        assert set(used["b"]) <= {"ab0", "ab1"}
        assert set(used[""]) == {"a", "ab0", "ab1", "x"}  # bound to none: anywhere


def test_srtf_lets_a_limit_of_one_partition_block_no_other(tmp_path):
    """The second job waits for its partition's limit, and nobody can be stopped for it; the other partition's goes."""
    rows = "arrival,gpus,gpu_time,partition\n0,2,5,p\n1,2,6,p\n2,2,9,q\n"
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 8}, "partitions": ["p", "q"]}]
    tasks = run(tmp_path, rows, {"partitions": {"p": {"max_gpus": 2}}}, nodes, policy="srtf").tasks
    assert tasks["start"].tolist() == [0, 5, 2]


def test_a_power_down_cluster_wakes_only_what_the_partition_has(tmp_path):
    power = {"idle": "60 W", "busy": "300 W", "sleep": "10 W", "wake": "5 s"}
    gpus = {"type": "g", "count": 4, "power": power}
    nodes = [{"name": name, "cpus": 4, "gpus": gpus, "partitions": name} for name in "ab"]
    rows = "arrival,gpus,gpu_time,partition\n0,4,1,a\n1000,4,10,b\n2000,1,1,a\n"
    policy = {"scheduler": {"name": "power_down", "patience": "10 s", "safety": 0}}
    result = run(tmp_path, rows, nodes=nodes, policy=policy)
    assert result.tasks["start"].tolist() == pytest.approx([0, 1005, 2005])


def test_easy_never_starts_its_head_after_its_shadow_under_partitions_and_limits(tmp_path):
    """With exact estimates, whatever partition the head and those that pass it are in."""
    from hetsim_policies.dynamic.backfilling import EasyBackfill

    promised: dict[int, float] = {}

    class Watched(EasyBackfill):
        def backfill(self, heads, view):
            for head in heads:
                promised.setdefault(head.index, view.earliest_fit(head).time)
            yield from super().backfill(heads, view)

    rows = drawn_jobs(9, ["a", "b"], rate=1.2, count=400)
    nodes = [
        {"name": "a", "count": 1, "cpus": 4, "gpus": GPUS, "partitions": "a"},
        {"name": "ab", "count": 2, "cpus": 4, "gpus": GPUS, "partitions": ["a", "b"]},
    ]
    site = {"partitions": {"a": {"max_gpus": 6}, "b": {"max_gpus": 5}}}
    built = Scenario.load(scenario(tmp_path, rows, site, nodes)).build()
    built.scheduler = Watched()
    record = Simulation(built, check=True).run()
    assert len(promised) > 50
    late = [row for row, time in promised.items() if record.start[row] > time + 1e-9]
    assert late == []
    assert (record.status == COMPLETED).all()


def test_default_and_greatest_limits_of_a_partition(tmp_path):
    rows = "gpu_time,time_limit,partition\n10,,p\n10,4,p\n10,7,p\n10,,q\n10,,\n"
    site = {**KILL, "partitions": {"p": {"max_time": "6 s", "default_time": "3 s"}, "q": {"max_time": "5 s"}}}
    nodes = [{"count": 2, "cpus": 4, "gpus": GPUS, "partitions": ["p", "q"]}]
    result = run(tmp_path, rows, site, nodes)
    assert result.tasks["finish"].tolist() == [3, 4, 0, 5, 10]
    assert result.tasks["status"].tolist() == ["failed", "failed", "rejected", "failed", "completed"]
    assert result.tasks["reason"][2] == "asks for 7 s, more than the 6 s of partition p"
    assert result.tasks["time_limit"].tolist()[:4] == [3, 4, 7, 5]
    assert math.isnan(result.tasks["time_limit"][4])
    assert any("1 of 5 tasks are rejected at arrival" in text for text in result.warnings)


def test_who_may_use_a_partition(tmp_path):
    rows = "gpu_time,user,account,partition\n1,ann,x,p\n1,bob,x,p\n1,,x,p\n1,ann,y,q\n1,ann,,q\n1,bob,y,q\n"
    site = {"partitions": {"p": {"users": "ann"}, "q": {"accounts": ["y", "z"]}}}
    nodes = [{"count": 2, "cpus": 4, "gpus": GPUS, "partitions": ["p", "q"]}]
    tasks = run(tmp_path, rows, site, nodes).tasks
    assert tasks["status"].tolist() == ["completed", "rejected", "rejected", "completed", "rejected", "completed"]
    assert tasks["reason"].tolist()[1:3] == [
        "user bob may not use partition p", "a task without a user may not use partition p",
    ]  # fmt: skip
    assert tasks["reason"][4] == "a task without an account may not use partition q"


def test_where_a_task_goes_that_names_no_partition(tmp_path):
    rows = "gpu_time,vc\n1,\n1,two\n1,old\n1,x\n"
    nodes = [{"name": name, "cpus": 4, "gpus": GPUS, "partitions": name} for name in ("one", "two", "three")]
    site = {"partitions": {"three": {"default": True}}}
    told = {"column": "vc", "names": {"old": "one"}}
    tasks = run(tmp_path, rows, site, nodes, partition=told).tasks
    assert tasks["node"].tolist()[:3] == ["three", "two", "one"]
    assert tasks["reason"][3] == 'unknown partition "x"; there are one, two, three'
    assert tasks["status"].tolist() == ["completed"] * 3 + ["rejected"]
    # Without a word of the entry the column vc means nothing: all go to the default, or to the partition it names.
    assert run(tmp_path, rows, site, nodes).tasks["node"].unique().tolist() == ["three"]
    assert run(tmp_path, rows, site, nodes, partition="two").tasks["node"].unique().tolist() == ["two"]


def test_a_site_lists_the_nodes_of_a_partition_by_name_range_and_pattern(tmp_path):
    nodes = [{"name": "gpu", "count": 4, "cpus": 4, "gpus": GPUS}, {"name": "login", "cpus": 4, "gpus": GPUS}]
    site = {"partitions": {"p": {"nodes": "gpu[1-2]"}, "q": {"nodes": ["login", "gpu0"]}, "all": {"nodes": "*"}}}
    built = Scenario.load(scenario(tmp_path, "gpu_time\n1\n", site, nodes)).build()
    named = {name: [n.name for n in built.cluster.nodes if one.mask >> n.index & 1]
             for name, one in built.cluster.partitions.items()}  # fmt: skip
    assert named == {"p": ["gpu1", "gpu2"], "q": ["gpu0", "login"], "all": ["gpu0", "gpu1", "gpu2", "gpu3", "login"]}
    assert built.cluster.nodes[0].spec.partitions == ("q", "all")


def test_without_partitions_nothing_is_bound(tmp_path):
    """The column of a log alone binds nobody: the cluster has no partitions."""
    built = Scenario.load(scenario(tmp_path, "gpu_time,partition\n1,p\n1,q\n")).build()
    assert all(mode.bare and mode.nodes is None for shape in built.tasks.shapes for mode in shape.modes)
    assert len(built.tasks.shapes) == 1
    assert not built.tasks.refused


@pytest.mark.parametrize("placement", spread([
    "best_fit", "worst_fit", "random", "dot_product", "gpu_packing", "gpu_clustering", "pack", "spread", "consolidate",
    "fgd", "topology", "fastest_device", "earliest_finish",
], 5))  # fmt: skip
def test_placement_rules_keep_to_partitions_and_limits_without_knowing_of_them(tmp_path, placement):
    rows = drawn_jobs(12, ["a", "b", ""], rate=1.5, gpus=(0.5, 1, 2))
    rows["cpus"] = 1
    nodes = [
        {"name": "a", "count": 1, "cpus": 4, "gpus": GPUS, "partitions": "a"},
        {"name": "ab", "count": 2, "cpus": 4, "gpus": GPUS, "partitions": ["a", "b"]},
    ]
    policy = {"scheduler": {"name": "fcfs_skip", "placement": placement}}
    result = run(tmp_path, rows, {"partitions": {"b": {"max_gpus": 3}}}, nodes, policy)  # checked at every round
    assert set(result.tasks[result.tasks["partition"] == "b"]["node"]) <= {"ab0", "ab1"}
    assert (result.tasks["status"] == "completed").all()


def test_planners_that_take_devices_for_alike_say_that_they_cannot_plan_partitions(tmp_path):
    rows = "gpu_time,partition\n1,a\n1,b\n"
    with pytest.raises(ScenarioError, match="is bound to partition a, but b0 is not in it;"):
        run(tmp_path, rows, nodes=TWO, policy="heft")
    assert run(tmp_path, rows, nodes=TWO, policy="greedy_best_fit").tasks["node"].tolist() == ["a0", "b0"]


# Lists of nodes ---------------------------------------------------------------------------------------------------


def test_slurm_nodes_know_their_partitions(tmp_path):
    (tmp_path / "nodes.txt").write_text(
        "NodeName=g1 CPUTot=8 RealMemory=1000 Gres=gpu:g:2 State=IDLE Partitions=short,long\n"
        "NodeName=g2 CPUTot=8 RealMemory=1000 Gres=gpu:g:2 State=IDLE\n   Partitions=long\n"
        "NodeName=g3 CPUTot=8 RealMemory=1000 Gres=gpu:g:2 State=IDLE Partitions=(null)\n"
    )
    (tmp_path / "jobs.txt").write_text(
        "JobID|User|Partition|Submit|Start|End|State|AllocTRES\n"
        + "".join(f"{n}|u|{p}|2026-01-01T00:00:0{n}|2026-01-01T00:01:00|2026-01-01T00:03:00|COMPLETED|gres/gpu=2\n"
                  for n, p in enumerate(["short", "short", "long", "gone"]))
    )  # fmt: skip
    tasks = hs.run({
        "cluster": {"trace": {"format": "slurm_nodes", "path": str(tmp_path / "nodes.txt")}},
        "workload": {"trace": {"format": "slurm", "path": str(tmp_path / "jobs.txt")}},
        "policy": "fcfs_skip",
    }, check=True).tasks  # fmt: skip
    assert tasks["node"].tolist()[:3] == ["g1", "g1", "g2"]
    assert tasks["start"].tolist()[:3] == [0, 120, 2]
    assert tasks["reason"][3] == 'unknown partition "gone"; there are short, long'


def test_virtual_clusters_of_philly_are_partitions(tmp_path):
    (tmp_path / "vc.csv").write_text("vc,node num\nx,1\ny,2\n")
    (tmp_path / "jobs.csv").write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n"
        "2017-10-01 00:00:00,100,8,800,y\n2017-10-01 00:00:01,100,8,800,x\n2017-10-01 00:00:02,100,8,800,x\n"
    )
    tasks = hs.run({
        "cluster": {"trace": {"format": "philly_vc", "path": str(tmp_path / "vc.csv")}},
        "workload": {"trace": {"format": "philly", "path": str(tmp_path / "jobs.csv")}, "partition": {"column": "vc"}},
    }, check=True).tasks  # fmt: skip
    assert tasks["node"].tolist() == ["y-0", "x-", "x-"]
    assert tasks["start"].tolist() == [0, 1, 101]


# Jobs that can never run ------------------------------------------------------------------------------------------


ODD = "id,arrival,gpus,gpu_time,devices\nfits,0,1,5,\nwide,1,8,5,\ntype,2,1,5,h100\nzero,3,1,0,\nlast,4,1,2,g\n"


def test_rows_that_can_never_run_stop_the_run_unless_it_is_said_what_becomes_of_them(tmp_path):
    with pytest.raises(ScenarioError) as caught:
        run(tmp_path, ODD)
    told = str(caught.value)
    assert "jobs.csv, line 3" in told
    assert "8 × g exceed the 4 of any node" in told
    assert "unfit: reject" in told
    rejected = run(tmp_path, ODD, unfit="reject")
    tasks = rejected.tasks.set_index("id")
    assert tasks["status"].to_dict() == {
        "fits": "completed", "wide": "rejected", "type": "rejected", "zero": "completed", "last": "completed",
    }  # fmt: skip
    assert tasks["reason"]["wide"].startswith("can never run here: 8 × g exceed the 4 of any node")
    assert tasks["reason"]["type"] == "can never run here: no node has h100; the cluster has cpu, g"
    assert tasks["finish"]["wide"] == 1
    assert rejected.metric("rejected_count") == 2
    assert any("2 of 5 tasks are rejected at arrival" in text for text in rejected.warnings)
    assert run(tmp_path, ODD, unfit="leave_out").tasks["id"].tolist() == ["fits", "zero", "last"]


PARALLEL = (
    "id,arrival,gpus,cpus,gpu_time,cpu_time\none,0,1,0,5,\ntwo,1,2,0,5,\nhalf,2,0.5,0,5,\ncore,3,0,1,,4\ncores,4,0,2,,4\n"
    "wide,5,8,0,5,\nlast,6,1,1,2,\n"
)


def test_rows_that_are_not_sequential_can_be_left_out_for_planners(tmp_path):
    """Of one, two and half a GPU, one and two cores, eight GPUs of four, and one GPU with a core next to it."""
    with pytest.raises(ScenarioError, match="unfit: leave_out_parallel leaves such rows of a trace out"):
        run(tmp_path, PARALLEL.replace("wide,5,8,0,5,\n", ""), policy="lst")
    for policy in ("lst", "fcfs"):  # the same tasks under every policy
        found = run(tmp_path, PARALLEL, unfit="leave_out_parallel", policy=policy)
        assert found.tasks["id"].tolist() == ["one", "core", "last"], policy
        assert (found.tasks["status"] == "completed").all()
        said = next(text for text in found.warnings if "left out" in text)
        assert "4 of 7 tasks are left out: 3 (the first is task two (line 3)): not on one core or one whole" in said
        assert "task wide (line 7): 8 × g exceed the 4 of any node" in said
    with pytest.raises(ScenarioError, match=r"2 tasks are not on one core .*no task of this trace would remain"):
        run(tmp_path, "id,gpus,gpu_time\na,2,1\nb,2,1\n", unfit="leave_out_parallel")
    graph = "id,gpus,gpu_time,predecessors\na,2,1,\nb,1,1,a\n"
    with pytest.raises(ScenarioError, match="a task graph needs all of its tasks"):
        run(tmp_path, graph, unfit="leave_out_parallel")


def test_a_gang_larger_than_its_partition_is_told_so(tmp_path):
    nodes = [{"count": 2, "cpus": 4, "gpus": GPUS, "partitions": "p"}, {"count": 9, "cpus": 4, "gpus": GPUS}]
    with pytest.raises(ScenarioError, match="12 × g exceed the 8 of partition p"):
        run(tmp_path, "gpus,gpu_time,partition\n12,1,p\n", nodes=nodes, span="any")
    with pytest.raises(ScenarioError, match="8 × g exceed the 4 of any node of partition p"):
        run(tmp_path, "gpus,gpu_time,partition\n8,1,p\n", nodes=nodes)
    site = {"partitions": {"p": {"max_gpus": 3}}}
    with pytest.raises(ScenarioError, match="4 GPUs exceed the 3 that jobs of partition p may use"):
        run(tmp_path, "gpus,gpu_time,partition\n4,1,p\n", site, nodes)


@pytest.mark.parametrize(("change", "told"), [
    ({"gpus": 16, "gpu_time": "1 h"}, "16 × g exceed the 4 of any node"),
    ({"gpu_time.h100": "1 h"}, "no node has h100; the cluster has cpu, g"),
    ({"gpu_time": "1 h", "partition": "q"}, 'workload.0.partition: unknown partition "q"; there are p'),
    ({"gpu_time": "1 h", "partition": {"column": "vc"}}, "must be the name of a partition: drawn tasks have no "
                                                         "columns"),
    ({"gpu_time": "1 h", "time_limit": 0}, "a time limit must be above 0; leave it out if there is none"),
])  # fmt: skip
def test_drawn_jobs_that_can_never_run_are_refused_with_an_address(change, told):
    work = {"arrivals": {"process": "poisson", "rate": "1/h"}, "count": 3, **change}
    nodes = {"cpus": 4, "gpus": GPUS, "partitions": "p"}
    with pytest.raises(ScenarioError) as caught:
        hs.run({"cluster": {"nodes": nodes}, "workload": work})
    assert told in str(caught.value)


@pytest.mark.parametrize(("site", "told"), [
    ({"partitions": {"q": {}}}, 'partition "q" has no nodes'),
    ({"partitions": {"q": {"nodes": "n7"}}}, 'no node "n7"; nodes are named n0'),
    ({"partitions": {"p": {"default": True}, "q": {"default": True, "nodes": "n0"}}},
        "at most one partition may be the default; got"),
    ({"partitions": {"p": {"max_time": "1 h", "default_time": "2 h"}}}, "default_time must be at most the "
                                                                        "max_time of 3600 s"),
    ({"grace": "1 s"}, "grace needs at_limit: kill; give that, or leave grace out"),
    ({"at_limit": "stop"}, "at_limit"),
])  # fmt: skip
def test_bad_rules_are_refused(tmp_path, site, told):
    with pytest.raises(ScenarioError) as caught:
        run(tmp_path, "gpu_time\n1\n", site, [{"cpus": 1, "gpus": GPUS, "partitions": "p"}])
    assert told in str(caught.value)


@pytest.mark.parametrize("policy", ["fcfs", "easy_backfill", "conservative_backfill", "slurm_multifactor"])
def test_jobs_of_no_length_count_and_take_no_time(tmp_path, policy):
    rows = "arrival,gpus,gpu_time\n0,4,0\n0,4,0\n0,4,3\n1,4,0\n1,1,0\n2,1,2\n"
    tasks = run(tmp_path, rows, policy=policy).tasks
    assert (tasks["status"] == "completed").all()
    assert (tasks["finish"] - tasks["start"]).tolist() == [0, 0, 3, 0, 0, 2]
    assert tasks["start"].tolist() == [0, 0, 0, 3, 3, 3]


def test_a_checkpoint_interval_beyond_the_time_between_failures_is_told_with_its_numbers():
    work = {"gpu_time": "10 h", "gpus": 4, "arrivals": {"process": "all_at_once", "count": 1},
            "stopping": {"interval": "6 h"}}  # fmt: skip
    faults = [{"on": ["gpu"], "every": "1 h", "repair": "1 min"}]
    given = {"cluster": {"nodes": {"gpus": GPUS}}, "workload": work, "faults": faults}
    told = "it takes 6 h without a failure, and its devices fail every 15 min): 1 will practically never finish"
    with pytest.raises(ScenarioError) as caught:
        hs.run(given)
    assert told in str(caught.value)
    # With a horizon it ends all the same, and is told before.
    result = hs.run({**given, "horizon": "50 h"})
    assert any(told in text for text in result.warnings)
    assert result.tasks["status"].tolist() == ["unfinished"]


def test_planners_refuse_what_is_refused_as_it_comes(tmp_path):
    with pytest.raises(ScenarioError, match="plans all tasks in advance, but wide can never run here: 8 × g exceed"):
        run(tmp_path, ODD, unfit="reject", policy="heft")


def test_an_illegal_start_outside_a_partition_is_named(tmp_path):
    from hetsim.model.plan import Placement
    from hetsim.policy import Scheduler, Start

    class Outside(Scheduler):
        def schedule(self, view):
            for task in view.waiting():
                yield Start(task, Placement(task.modes[0], (view.cluster.nodes[-1].accelerators[0],)))

    built = Scenario.load(scenario(tmp_path, "gpu_time,partition\n1,a\n", nodes=TWO)).build()
    built.scheduler = Outside()
    with pytest.raises(RunError, match="b2/g0 is not in partition a"):
        Simulation(built).run()


# All together -----------------------------------------------------------------------------------------------------


STOPPING = [
    "easy_backfill", "srtf", "las", "tiresias", "processor_sharing", "round_robin", "gandiva", "speedup_mean", "afs",
    "defragment", {"name": "max_min_fairness", "round_length": "2 s"}, "slurm_multifactor", "quota_borrow", "priority",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", spread(STOPPING, 4), ids=str)
def test_limits_hold_through_stops_moves_resizes_and_failures(tmp_path, policy):
    """Every task ends in one status; its clock, begun anew after what lost its work, never passes the limit.

    Jobs on 1, 2 or 4 GPUs with checkpoints on two partitions that overlap, some of which are killed, on GPUs that fail.
    """
    job = {"scaling": {1: 1, 2: 1.9, 4: 3.4}, "stopping": {"interval": "1 s", "restore": "100 ms"},
           "gpu_time": {"distribution": "lognormal", "mean": "6 s", "cv": 1.5}, "time_limit": "8 s",
           "arrivals": {"process": "poisson", "rate": "0.8/s"}, "count": 60}  # fmt: skip
    result = hs.run({
        "cluster": {"nodes": [{"count": 1, "gpus": GPUS, "partitions": "a"},
                              {"count": 2, "gpus": GPUS, "partitions": ["a", "b"]}]},
        "site": {**KILL, "grace": "500 ms", "partitions": {"b": {"max_gpus": 5}}},
        "workload": [{"name": "a", "partition": "a", **job}, {"name": "b", "partition": "b", "users": 3, **job}],
        "faults": [{"on": "gpu", "every": {"distribution": "exponential", "mean": "60 s"}, "repair": "3 s"}],
        "policy": {"scheduler": policy}, "seed": 4,
    }, check=True)  # fmt: skip
    tasks, launches = result.tasks, result.launches
    assert set(tasks["status"]) == {"completed", "failed"}
    assert set(tasks[tasks["status"] == "failed"]["reason"]) == {"time limit"}
    starts = launches["decided"] if "decided" in launches else launches["start"]
    for row, task in tasks.iterrows():
        mine = launches[launches["task"] == task["id"]]
        clock = 0.0
        for number in mine.index:
            clock += launches["end"][number] - starts[number]
            assert clock <= 8.5 + 1e-6
            last = number == mine.index[-1]
            if launches["outcome"][number] == "lost" and not last:
                clock = 0.0
        assert (clock >= 8.5 - 1e-6) == (task["status"] == "failed"), f"task {row}: {clock}"
