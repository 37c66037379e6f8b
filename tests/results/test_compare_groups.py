"""Tasks by class, number of GPUs and user: tables of runs, replications and comparisons, in files and in pictures."""

import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hand_made import cluster, gpu_mode, record, workload
from replay_by_step import free_gpus

import hetsim as hs
from hetsim.cli.program import hetsim
from hetsim.errors import UnknownName, UsageError
from hetsim.experiment.directory import load_any
from hetsim.model.device_type import WHOLE, DeviceType, Link
from hetsim.model.mode import Mode, Shape
from hetsim.page import report
from hetsim.report.groups import groups_lines
from hetsim.report.overview import comparison_lines, comparison_remarks, headline, remarks
from hetsim.results.many_runs.compare import compare
from hetsim.results.many_runs.groups import (
    difference_cells,
    difference_note,
    differences_of_groups,
    group_values,
    in_order,
    table_of_groups,
    tables_of_groups,
)
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run import groups, metrics
from hetsim.results.one_run.bounds import area_bound, min_area, offered_load
from hetsim.results.one_run.estimands import ratio_contributions
from hetsim.results.one_run.fragmentation_metrics import fragmentation_steps
from hetsim.results.one_run.groups import OTHERS, gpus_label, named_users
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import paired_differences, student_interval

USERS = 15


def mix(**more):
    """Small and large jobs of many users on two nodes of four GPUs."""
    classes = [
        {"class": "part", "weight": 2, "gpus": 0.5, "gpu_time": {"distribution": "exponential", "mean": "20 min"}},
        {"class": "one", "weight": 4, "gpus": 1, "gpu_time": {"distribution": "exponential", "mean": "30 min"}},
        {"class": "gang", "weight": 1, "gpus": 4, "gpu_time": {"distribution": "exponential", "mean": "30 min"}},
    ]
    entry = {"name": "jobs", "arrivals": {"process": "poisson", "rate": "10/h"}, "count": 120, "classes": classes,
             "users": {"count": USERS, "zipf": 1.0}}  # fmt: skip
    nodes = {"count": 2, "cpus": 8, "gpus": {"type": "a", "count": 4}}
    return {"name": "mix", "seed": 3, "cluster": {"nodes": nodes}, "workload": [{**entry, **more}], "policy": "fcfs"}


# Groups ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "label"),
    [([], "none"), ([0.25], "part of one"), ([0.25, 0.5], "part of one"), ([1], "1"), ([3], "3"), ([8], "8"),
     ([12], "9–15"), ([16], "16"), ([17], "17–31"), ([100], "65–127"), ([1, 2, 4], "1 to 4"), ([0.5, 2], "0.5 to 2")],
)  # fmt: skip
def test_groups_of_gpus(gpus, label):
    kind = DeviceType("g")
    modes = [gpu_mode(1, int(size * WHOLE)) if size < 1 else gpu_mode(size, kind=kind) for size in gpus]
    assert gpus_label(Shape([*modes, Mode("cpu", DeviceType("cpu", kind="cpu"), millicores=1000)])) == label


def test_groups_of_gpus_stand_by_size():
    labels = ["16", "1 to 8", "8", "none", "9–15", "2 to 8", "part of one", "2"]
    expected = ["none", "part of one", "2", "8", "1 to 8", "2 to 8", "9–15", "16"]
    assert in_order("gpus", labels) == expected


def test_every_group_is_measured_as_if_it_were_all():
    result = hs.run(mix(), check=True)
    found = result.by("gpus", ["task_count", "response_mean", "wait_p95", "preemptions"])
    assert list(found.index) == ["part of one", "1", "4"]
    by_class = result.by("class", ["task_count", "response_mean", "wait_p95", "preemptions"])
    assert found.to_numpy().tolist() == by_class.loc[["part", "one", "gang"]].to_numpy().tolist()
    assert found["task_count"].sum() == len(result.tasks)
    gang = result.tasks[result.tasks["class"] == "gang"]
    assert found.loc["4", "response_mean"] == pytest.approx(gang["response"].mean())
    assert found.loc["4", "wait_p95"] == pytest.approx(gang["wait"].quantile(0.95))


def test_groups_keep_to_the_window():
    result = hs.run({**mix(), "warmup": "3 h"})
    assert result.by("class", ["task_count"])["task_count"].sum() == result.metric("task_count") < len(result.tasks)


def test_sums_over_groups_are_those_of_the_run():
    scenario = mix()
    scenario["cluster"]["nodes"]["gpus"] |= {"price": "2/h", "power": {"idle": "50 W", "busy": "300 W"}}
    result = hs.run(scenario, policy="las", check=True)
    sums = ["gpu_seconds", "energy_of_tasks_j", "cost_held", "preemptions", "task_count"]
    for by in ("class", "gpus", "user"):
        assert result.by(by, sums).sum().to_numpy() == pytest.approx([result.metric(name) for name in sums])
    assert result.metric("energy_of_tasks_j") == pytest.approx(result.metric("energy_tasks_j"))
    assert result.metric("gpu_seconds") == pytest.approx(result.usage.busy[1:].sum(), rel=1e-6)


def test_fairness_of_a_group_is_that_of_its_tasks():
    result = hs.run(mix())
    rho = pd.Series(result.rho)
    for name, part in rho.groupby(result.tasks["class"].astype(str)):
        found = result.by("class", ["rho_mean", "rho_max", "rho_p95"]).loc[name]
        assert found.tolist() == pytest.approx([part.mean(), part.max(), part.quantile(0.95)])
    assert result.metric("rho_max") == rho.max()


def test_elastic_jobs_count_the_gpus_that_they_had():
    entry = {"arrivals": {"process": "poisson", "rate": "2/h"}, "count": 30, "scaling": {1: 1, 2: 2, 4: 4},
             "gpu_time": {"distribution": "exponential", "mean": "2 h"}}  # fmt: skip
    nodes = {"gpus": {"type": "a", "count": 4}}
    result = hs.run({"name": "e", "cluster": {"nodes": nodes}, "workload": [entry], "policy": "afs"}, check=True)
    assert result.metric("preemptions") > 5
    # Linear scaling: in whatever sizes, the work is the same.
    assert result.metric("gpu_seconds") == pytest.approx(result.devices["busy"].sum())


@pytest.mark.slow
def test_the_users_with_most_demand_have_a_row_each():
    result = hs.run(mix())
    table = table_of_groups({"fcfs": result}, "user").droplevel("policy")
    assert len(table) == groups.MAX_USERS + 1 and table.index[-1] == OTHERS
    demand = result.by("user", ["gpu_seconds"])["gpu_seconds"].sort_values(ascending=False)
    assert list(table.index[:-1]) == list(demand.index[: groups.MAX_USERS])
    rest = demand.iloc[groups.MAX_USERS :]
    assert table.loc[OTHERS, ("gpu_seconds", "mean")] == pytest.approx(rest.sum())
    assert table["task_count"]["mean"].sum() == len(result.tasks)
    assert len(result.by("user")) == len(demand)  # and a single run can tell of all


def test_one_user_more_than_the_most_is_not_called_others():
    run = hs.run(mix(users={"count": groups.MAX_USERS + 1, "zipf": 0.0})).record.input
    assert sorted(named_users(run)) == sorted(run.tasks.users)


def test_what_cannot_be_grouped_is_said():
    result = hs.run(mix())
    with pytest.raises(UsageError, match='no column "color".* gpus, id'):
        result.by("color")
    with pytest.raises(UsageError, match="makespan_bound is a metric of the whole run"):
        result.by("gpus", ["makespan_bound"])
    found = hs.compare(mix(), ["fcfs", "sjf"], replications=2)
    with pytest.raises(UsageError, match=r'by=\["gpus"\]'):
        found.by("gpus")
    with pytest.raises(UsageError, match='tasks cannot be grouped by "clas"; did you mean "class"'):
        found.by("clas")


# Replications and comparisons -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared():
    return hs.compare(mix(), ["fcfs", "sjf"], replications=3, by=["class", "gpus", "user"])


@pytest.mark.slow
def test_groups_of_replications_are_those_of_the_runs(compared):
    runs = list(hs.replicate(mix(), policy="sjf", replications=3, keep=True))
    each = np.array([run.by("class", ["response_mean"]).loc["gang", "response_mean"] for run in runs])
    done = np.array([run.by("class", ["completed_count"]).loc["gang", "completed_count"] for run in runs])
    given = ratio_contributions(each, done.astype(float))  # a run with more gangs weighs more
    expected = student_interval(given, metric="response_mean")
    row = compared.by("class").loc[("gang", "sjf"), "response_mean"]
    assert row["mean"] == pytest.approx(expected.mean) and row["n"] == 3
    assert row["half_width"] == pytest.approx(expected.half_width, rel=1e-6)
    kept = hs.replicate(mix(), policy="sjf", replications=3, keep=True).by("class")
    assert kept.loc["gang", ("response_mean", "mean")] == pytest.approx(expected.mean)


@pytest.mark.slow
def test_users_are_the_same_for_all_policies_and_replications(compared):
    table = compared.by("user", ["task_count"])
    users = table.index.get_level_values("user")
    assert users.nunique() == groups.MAX_USERS + 1 and users[-1] == OTHERS
    per_policy = table["task_count"]["mean"].groupby("policy").sum()
    assert per_policy.tolist() == pytest.approx([120, 120])


@pytest.mark.slow
def test_workers_do_not_change_groups(compared):
    again = hs.compare(mix(), ["fcfs", "sjf"], replications=3, by=["class", "gpus", "user"], workers=2)
    for by in ("class", "gpus", "user"):
        pd.testing.assert_frame_equal(again.by(by), compared.by(by))


@pytest.mark.slow
def test_groups_are_no_metrics_of_the_replications(compared):
    runs = compared.runs["fcfs"]
    assert not any(name.startswith("_") for name in runs.values.columns)
    assert set(runs.to_json()["summary"]) == set(runs.results[0].names)


@pytest.mark.slow
def test_single_runs_have_groups_without_being_asked():
    found = hs.compare(mix(), ["fcfs", "sjf"])
    table = found.by("gpus", ["response_mean"])
    assert list(table.index.get_level_values("gpus").unique()) == ["part of one", "1", "4"]
    assert table["response_mean"]["half_width"].isna().all()
    assert set(tables_of_groups(found.runs)) == {"class", "gpus", "user"}


def test_one_group_is_no_table():
    plain = mix(users=None, classes=None, gpu_time="10 min")
    plain["workload"][0] = {key: value for key, value in plain["workload"][0].items() if value is not None}
    assert tables_of_groups(hs.compare(plain, ["fcfs", "sjf"]).runs) == {}


# Sets of metrics ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_set_for_clusters_has_what_is_defined(compared):
    found = hs.compare(mix(), ["fcfs", "las"], replications=2, metrics=["cluster"])
    for name in ("response_mean", "wait_mean", "slowdown_mean", "bounded_slowdown_10s_mean", "makespan", "jain",
                 "gpu_utilization", "gpu_allocation", "fragmentation", "queue_length_mean", "rho_p95", "rho_max",
                 "preemptions"):  # fmt: skip
        assert name in found.metrics
    assert not {"cost", "energy_j", "slo_attainment", "failed_count"} & set(found.metrics)
    assert {"jain", "rho_p95"} < set(compared.metrics)  # users show in the usual table too


@pytest.mark.slow
def test_sets_hold_for_single_runs_too():
    found = hs.compare(mix(), ["fcfs", "las"], metrics=["cluster"])
    assert {"fragmentation", "rho_mean", "jain"} < set(found.metrics)
    alone = mix(users={"count": 1, "zipf": 0.0})
    assert "jain" not in hs.compare(alone, ["fcfs", "las"], metrics=["cluster"]).metrics


def test_a_metric_asked_for_by_name_is_shown_even_where_it_tells_nothing():
    found = hs.compare(mix(), ["fcfs", "sjf"], metrics=["usual", "energy_j"])
    assert "energy_j" in found.metrics and "failed_count" not in found.metrics
    with pytest.raises(UnknownName, match='"clustr"; did you mean "cluster"'):
        metrics.check("clustr")
    assert "response_p99" in metrics.expanded(["all"])


# Text, JSON, files ----------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mix.json"
    path.write_text(json.dumps(mix()))
    return str(path)


def call(*arguments):
    return CliRunner().invoke(hetsim, list(arguments))


@pytest.mark.slow
def test_the_command_line_tells_groups(file):
    shown = call("compare", file, "--policy", "fcfs", "--policy", "sjf", "--replications", "2", "--by", "gpus").stdout
    assert "By GPUs asked for:" in shown and "part of one" in shown and "By user" not in shown
    assert all(len(line) <= 100 for line in shown.partition("By GPUs")[2].splitlines())
    one = call("run", file, "--by", "class", "--by", "user").stdout
    assert "By class:" in one and OTHERS in one and "fairness" in one
    assert "did you mean" in call("run", file, "--by", "usr").stderr


@pytest.mark.slow
def test_groups_as_json(file):
    found = json.loads(call("run", file, "--by", "gpus", "--json").stdout)
    assert found["groups"]["gpus"]["4"]["task_count"] == hs.run(mix()).by("gpus", ["task_count"]).loc["4", "task_count"]
    several = json.loads(
        call("compare", file, "--policy", "fcfs", "--policy", "sjf", "--replications", "2", "--by", "class",
             "--json").stdout
    )  # fmt: skip
    assert set(several["groups"]) == {"class"}
    assert set(several["groups"]["class"]["sjf"]["gang"]["wait_mean"]) == {"mean", "half_width", "n"}


@pytest.mark.slow
def test_a_directory_has_tables_and_pictures_of_groups(file, tmp_path):
    out = tmp_path / "out"
    done = call("compare", file, "--policy", "fcfs", "--policy", "sjf", "--replications", "2", "--out", str(out), "-q")
    assert done.exit_code == 0, done.output
    names = {path.name for path in out.iterdir()}
    for name in ("class", "gpus", "user"):
        assert {f"by_{name}.csv", f"by_{name}.png"} <= names
    assert {"distributions.png", "over_time.png", "picture.png"} <= names
    table = pd.read_csv(out / "by_gpus.csv")
    assert list(table.columns[:4]) == ["gpus", "policy", "task_count", "task_count_half_width"] and len(table) == 6
    assert "groups" in json.loads((out / "comparison.json").read_text())
    assert "By" not in done.stdout  # nobody asked
    run = tmp_path / "run"
    call("run", file, "--by", "gpus", "--out", str(run), "-q")
    assert list(pd.read_csv(run / "by_gpus.csv")["gpus"]) == ["part of one", "1", "4"]


# Pictures -------------------------------------------------------------------------------------------------------


def png(picture):
    found = io.BytesIO()
    picture.save(found, metadata={"Software": None})
    return found.getvalue()


@pytest.mark.slow
def test_pictures_of_a_comparison(compared):
    first = {label: runs.results[0] for label, runs in compared.runs.items()}
    over = hs.plots.over_time(first)
    labels = [panel.y.label for panel in over.panels]
    assert labels == ["GPUs busy (%)", "tasks waiting", "fragmentation (%)"]
    assert all(len(panel.marks) == 2 for panel in over.panels)
    three = hs.plots.distributions(first)
    shown = [panel.x.label.split(" (")[0] for panel in three.panels]
    assert shown == ["response", "wait", "bounded slowdown 10s"]
    bars = hs.plots.groups(compared.by("gpus"))
    assert [text for _, text in bars.panels[-1].x.ticks] == ["part of one", "1", "4"]
    for picture in (over, three, bars):
        assert png(picture)[:4] == b"\x89PNG"
    assert png(hs.plots.over_time(first)) == png(hs.plots.over_time(first))


@pytest.mark.slow
def test_pictures_without_gpus_or_chance():
    tasks = {"arrivals": {"process": "all_at_once", "count": 4}, "cpu_time": "1 min"}
    scenario = {"name": "c", "cluster": {"nodes": {"cpus": 2}}, "workload": [tasks], "policy": "fcfs"}
    found = hs.plots.over_time(hs.run(scenario))
    assert [panel.y.label for panel in found.panels] == ["cores busy (%)", "tasks waiting"]
    png(found)
    instant = {**scenario, "workload": [{**tasks, "cpu_time": 0}]}
    png(hs.plots.over_time(hs.run(instant)))
    png(hs.plots.distributions(hs.run(instant)))


def test_values_far_apart_have_a_logarithmic_axis():
    found = hs.compare(mix(), ["fcfs", "las"], by=["class"])
    table = found.by("class", ["wait_mean"]).copy()
    table.loc[("one", "las"), ("wait_mean", "mean")] = table["wait_mean"]["mean"].max() / 1000
    table.loc[("gang", "las"), ("wait_mean", "mean")] = 0.0
    table.loc[("gang", "fcfs"), ("wait_mean", "mean")] = math.inf
    (ax,) = hs.plots.groups(table, ["wait_mean"]).figure().axes
    assert ax.get_yscale() == "log"
    assert {"0", "∞"} <= {text.get_text() for text in ax.texts}


# Fragmentation of whole GPUs ------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("policy", ["fcfs", "fcfs_skip", "las"])
@pytest.mark.parametrize("memory", [None, "40 GB"])
def test_columns_and_replay_agree_on_fragmentation(policy, memory):
    node = {"count": 3, "cpus": 12, "gpus": {"type": "a", "count": 4}}
    other = {"count": 2, "cpus": 4, "gpus": {"type": "b", "count": 2, "speed": 2}}
    nodes = [node | ({"memory": memory} if memory else {}), other, {"cpus": 6}]
    law = {"distribution": "lognormal", "mean": "20 min", "cv": 2}
    host = {"memory": "12 GB"} if memory else {}
    classes = [
        {"class": "one", "weight": 4, "gpus": 1, "cpus": 4, "gpu_time": law, **host},
        {"class": "gang", "weight": 2, "gpus": 4, "cpus": 2, "gpu_time.a": law},
        {"class": "wide", "weight": 1, "gpus": 6, "cpus": 5, "gpu_time.a": law, "span": "any"},
        {"class": "host", "weight": 2, "cpus": 5, "cpu_time": law},
    ]
    entry = {"arrivals": {"process": "poisson", "rate": "20/h"}, "count": 150, "classes": classes}
    scenario = {"name": "f", "seed": 2, "cluster": {"nodes": nodes}, "workload": [entry], "policy": policy}
    result = hs.run(scenario, check=True)
    fast = fragmentation_steps(result)
    slow = np.array(list(free_gpus(result))).T
    for time, *values in zip(*fast, strict=True):
        row = np.searchsorted(slow[0], time, side="right") - 1
        assert slow[1:, row] == pytest.approx(values, abs=1e-9)
    assert fast[2].max() > 0 and 0 < result.metric("fragmentation") < 1


def test_a_failed_gpu_is_not_free():
    result = Result(record(cluster(gpus=2), workload([0], [4]), [0], [4], [(1,)], device_log=[(1.0, 2, "down", 0.0)]))
    assert result.fragmentation_over_time["unallocated_gpus"].tolist() == [1, 0, 1]


def test_means_between_edges_are_those_of_the_steps():
    result = hs.run(mix())
    whole = result.fragmentation_between(np.array([0.0, result.end]))
    table = result.fragmentation_over_time
    span = np.diff(table["time"], append=result.end)
    expected = (table["fragmented_gpus"] * span).sum() / (table["unallocated_gpus"] * span).sum()
    assert whole == pytest.approx([expected])
    assert math.isnan(result.fragmentation_between(np.array([result.end, 2 * result.end]))[0])


# Load -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_least_area_of_up_to_two_types_is_the_linear_programs():
    random = np.random.default_rng(1)
    for _ in range(200):
        tasks, kinds = random.integers(1, 12), random.integers(1, 4)
        work = random.exponential(1.0, (tasks, kinds))
        work[random.random((tasks, kinds)) < 0.3] = np.inf
        work = work[np.isfinite(work).any(axis=1)]
        capacity = random.integers(1, 5, kinds).astype(float)
        if len(work):
            assert min_area(work, capacity) == pytest.approx(area_bound(work, capacity), rel=1e-6)


def test_the_load_counts_all_devices_that_could_do_the_work():
    old, new = DeviceType("old", link=Link()), DeviceType("new", link=Link())
    from hetsim.model.cluster import Cluster, NodeSpec

    where = Cluster([NodeSpec(accelerators=((old, 3), (new, 1)))])
    modes = [[gpu_mode(kind=old), gpu_mode(kind=new)]]
    # One task every second, 3 s on an old GPU or 1 s on the new one: 1 + 1 tasks a second can be served, so load 0.5.
    tasks = workload(list(range(101)), [[3.0, 1.0]] * 101, modes)
    result = Result(record(where, tasks, [math.nan] * 101, [math.nan] * 101, [None] * 101, end=100.0))
    assert offered_load(tasks, result.modes) == pytest.approx(0.5 * 101 / 100)
    assert "load 0.5" in headline(result)


@pytest.mark.parametrize("load", [0.4, 1.1])
def test_a_trace_scaled_to_a_load_is_told_with_that_load(tmp_path, load):
    random = np.random.default_rng(5)
    times = random.exponential(600.0, 200)
    table = pd.DataFrame({"id": range(200), "arrival": np.sort(random.uniform(0, 1e5, 200)), "gpu_time.a": times,
                          "gpu_time.b": times / random.uniform(1, 4, 200),
                          "gpus": random.choice([1, 2, 4], 200)})  # fmt: skip
    table.to_csv(tmp_path / "jobs.csv", index=False)
    nodes = [{"count": 2, "gpus": {"type": kind, "count": 4}} for kind in "ab"]
    trace = {"trace": {"format": "tasks", "path": str(tmp_path / "jobs.csv")}, "load": load}
    result = hs.run({"name": "t", "cluster": {"nodes": nodes}, "workload": [trace], "policy": "fcfs_skip"})
    assert offered_load(result.record.input.tasks, result.modes) == pytest.approx(load, rel=1e-9)
    assert f"(load {load})" in headline(result)


def test_the_load_of_several_generations_is_that_of_all_of_them():
    result = hs.run("four-generations", policy="fcfs")
    assert "(load 1.3)" in headline(result)
    newest = [shape.modes[0] for shape in result.record.input.tasks.shapes]
    assert {mode.type.name for mode in newest} == {"a100"}
    tasks = result.record.input.tasks
    work = (tasks.time[:, 0] * np.array([mode.gpus for mode in newest])[tasks.shape]).sum()
    assert work / (64 * np.ptp(tasks.arrival)) == pytest.approx(3.4, abs=0.05)  # were all of it on the newest


# What is said once ----------------------------------------------------------------------------------------------


def test_a_plan_that_is_not_proven_optimal_is_told_once():
    runs = {name: hs.run("list-lemma", policy=name) for name in ("mct", "graham")}
    runs["mct"].record.notes |= {"optimal": False, "gap": 0.05}
    assert compare(runs).plan_notes == ["mct: not proven optimal, gap 5 %"]
    assert "is not proven optimal" in runs["mct"].warnings[0]
    assert comparison_remarks(runs) == [] and remarks(runs["mct"]) == []


# Differences of groups --------------------------------------------------------------------------------------------


def hand_made_replications(values):
    """Replications of which the means of groups are given: group -> one a replication."""
    found = Replications()
    for number in range(len(next(iter(values.values())))):
        kept = {f'_by:["class", "{group}", "wait_mean"]': each[number] for group, each in values.items()}
        found.add_values({"replication": float(number), "wait_mean": float(number), **kept})
    return found


def test_differences_of_groups_are_paired_and_tested_together():
    random = np.random.default_rng(4)
    load = random.exponential(100.0, 20)  # what all policies have in common
    noise = random.normal(size=(4, 20))
    noise = (noise - noise.mean(axis=1, keepdims=True)) / noise.std(axis=1, ddof=1, keepdims=True)
    # Student's t of the four differences: -5.4, -2.34 (p = 0.03), 0 and 13.
    of_b = {"x": load + noise[0] - 1.2, "y": load + noise[1]}
    of_c = {"x": load + noise[2] - 0.523, "y": load + noise[3] + 3}
    runs = {"a": hand_made_replications({"x": load, "y": load}), "b": hand_made_replications(of_b),
            "c": hand_made_replications(of_c)}  # fmt: skip
    found = differences_of_groups(runs, "class")
    assert list(found.columns) == ["class", "metric", "policy", "other", "difference", "half_width", "p",
                                   "significant", "n"]  # fmt: skip
    assert found[["class", "policy", "other"]].to_numpy().tolist() == [
        ["x", "b", "a"], ["x", "c", "a"], ["y", "b", "a"], ["y", "c", "a"]
    ]  # fmt: skip
    values = {label: group_values(run, "class") for label, run in runs.items()}
    plain = [values[p][g, "wait_mean"] - values["a"][g, "wait_mean"] for g in "xy" for p in "bc"]
    expected = paired_differences(plain)  # all four at once
    assert found["difference"].tolist() == pytest.approx([one.mean for one in expected])
    assert found["half_width"].tolist() == pytest.approx([one.half_width for one in expected])
    assert found["significant"].tolist() == [one.significant for one in expected] == [True, False, False, True]
    apart = found["difference"].abs() > found["half_width"]
    assert apart.tolist() == found["significant"].tolist()
    # By itself, without the other groups, the smaller of the two would have passed for a difference.
    assert paired_differences([plain[1]])[0].p == pytest.approx(0.03, abs=0.001)
    reverse = differences_of_groups(runs, "class", "c").set_index(["class", "policy"])
    assert reverse.loc[("y", "a"), "difference"] == pytest.approx(-expected[3].mean)


@pytest.mark.slow
def test_stars_of_groups_are_seldom_wrong():
    """Without any difference, the share of tables that have one is at most 5 %."""
    random = np.random.default_rng(9)
    wrong = 0
    for _ in range(400):
        runs = {name: hand_made_replications({g: random.normal(10, 1, 10) for g in "vwxyz"}) for name in "abc"}
        wrong += differences_of_groups(runs, "class")["significant"].any()
    assert wrong / 400 < 0.05 + 2.33 * math.sqrt(0.05 * 0.95 / 400)


def test_groups_that_a_policy_leaves_undefined_are_not_compared():
    nan = math.nan
    runs = {
        "a": hand_made_replications({"x": [1.0, 2.0, 3.0], "y": [1.0, nan, 3.0], "z": [1.0, 2.0, 3.0]}),
        "b": hand_made_replications({"x": [2.0, nan, 4.0], "y": [2.0, nan, 4.5], "w": [1.0, 2.0, 3.0]}),
    }
    found = differences_of_groups(runs, "class").set_index("class")
    assert list(found.index) == ["x", "y", "z", "w"]
    assert math.isnan(found.loc["x", "difference"])  # one of the pairs lacks it for b only
    assert (found.loc["y", "difference"], found.loc["y", "n"]) == (1.25, 2)
    assert found.loc[["z", "w"], "difference"].isna().all()
    assert not found["significant"].any()
    fewer = {"a": runs["a"], "b": hand_made_replications({"x": [2.0, 4.0], "y": [nan, nan]})}
    shorter = differences_of_groups(fewer, "class").set_index("class")
    assert (shorter.loc["x", "difference"], shorter.loc["x", "n"]) == (1.5, 2)
    with pytest.raises(UnknownName, match='unknown policy "c"'):
        differences_of_groups(runs, "class", "c")


@pytest.mark.slow
def test_a_comparison_tells_differences_of_groups(compared):
    found = compared.differences_by("gpus", ["wait_mean"])
    assert found["gpus"].tolist() == ["part of one", "1", "4"]
    assert (found["policy"] == "sjf").all()
    assert (found["other"] == "fcfs").all()
    table = compared.by("gpus")["wait_mean"]["mean"]
    for row in found.to_dict("records"):
        assert row["difference"] == pytest.approx(table[row["gpus"], "sjf"] - table[row["gpus"], "fcfs"])
    assert not compared.differences_by("class")["metric"].isin(["makespan"]).any()
    based = hs.compare(mix(), ["fcfs", "sjf", "las"], replications=3, by=["class"], baseline="sjf")
    assert based.differences_by("class")["other"].unique().tolist() == ["sjf"]
    one = hs.compare(mix(), ["fcfs", "sjf"]).differences_by("class", ["wait_mean"])
    assert one["difference"].notna().all()
    assert one["half_width"].isna().all()
    assert not one["significant"].any()
    with pytest.raises(UsageError, match='by=\\["class"\\]'):
        hs.compare(mix(), ["fcfs", "sjf"], replications=2).differences_by("class")


@pytest.mark.slow
def test_what_is_not_random_has_differences_without_intervals():
    jobs = {"arrivals": {"process": "deterministic", "rate": "12/h"}, "count": 20}
    entries = [{**jobs, "name": "short", "class": "short", "gpu_time": "3 min"},
               {**jobs, "name": "long", "class": "long", "gpu_time": "8 min"}]  # fmt: skip
    nodes = {"gpus": {"type": "a", "count": 1}}
    scenario = {"name": "d", "cluster": {"nodes": nodes}, "workload": entries, "policy": "fcfs"}
    found = hs.compare(scenario, ["fcfs", "sjf"], replications=3, by=["class"])
    assert found.identical
    rows = found.differences_by("class", ["wait_mean"])
    assert (rows["difference"] != 0).any()
    assert rows["half_width"].isna().all()
    assert rows["n"].tolist() == [1, 1]
    said = groups_lines(tables_of_groups(found.runs, ["class"]), ["class"], (), found)
    assert said[-1].startswith("The scenario is not random: all replications are equal, so differences")


@pytest.mark.slow
def test_the_command_line_tells_differences_of_groups(file):
    arguments = ["compare", file, "--policy", "fcfs", "--policy", "sjf", "--policy", "las", "--replications", "12",
                 "--by", "gpus"]  # fmt: skip
    shown = call(*arguments).stdout
    part = shown.partition("Differences to fcfs, by GPUs asked for:\n")[2]
    assert all(len(line) <= 100 for line in part.splitlines())
    assert "Holm over all groups and policies of a metric, 12 replications" in " ".join(part.split())
    assert "Equal under all policies in every run: GPU time." in part
    table = json.loads(call(*arguments, "--json").stdout)["group_differences"]["gpus"]
    waits = [row for row in table if row["metric"] == "wait_mean"]
    assert [(row["gpus"], row["policy"]) for row in waits] == [
        (group, policy) for group in ("part of one", "1", "4") for policy in ("sjf", "las")
    ]
    head, *lines = part.splitlines()
    column = slice(head.index("policy") + 6, head.index("wait mean") + 11)
    cells = [line[column].strip() for line in lines[:6]]
    assert [cell.endswith("*") for cell in cells] == [row["significant"] for row in waits]
    assert any(row["significant"] for row in waits)
    assert [cell.startswith("+") for cell in cells] == [row["difference"] > 0 for row in waits]
    based = call(*arguments, "--baseline", "las").stdout
    assert "Differences to las, by GPUs asked for:" in based
    one = call(*arguments[:-4], "--by", "class").stdout
    assert "One run of each policy gives no confidence intervals; use --replications" in one.partition(
        "Differences to fcfs, by class:")[2]
    assert "*" not in one.partition("Differences to")[2]


def test_differences_of_shares_are_percentage_points():
    cells = difference_cells("slo_attainment", [0.125, -0.04, 0.0, math.nan], [0.031, math.nan, 0.0, math.nan],
                             [True, False, False, False])  # fmt: skip
    assert cells == ["+12.5 ± 3.1 points *", "-4 points", "0 points", "–"]


@pytest.mark.slow
def test_the_report_has_differences_of_groups(file, tmp_path):
    out = tmp_path / "out"
    done = call("compare", file, "--policy", "fcfs", "--policy", "sjf", "--replications", "3", "--baseline", "fcfs",
                "--out", str(out), "-q")  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads((out / "comparison.json").read_text())
    assert told["baseline"] == "fcfs"
    assert set(told["group_differences"]) == {"class", "gpus", "user"}
    loaded = load_any(out)
    assert loaded.baseline == "fcfs"
    page = report(loaded, "out")
    assert page.count("Differences to fcfs. ± are 95 % intervals of paired differences") == 3
    row = loaded.differences_by("class", ["wait_mean"]).set_index("class").loc["gang"]
    assert f'data-value="{float(row["difference"])!r}"' in page


def test_metrics_that_groups_do_not_have_are_unknown(compared):
    with pytest.raises(UnknownName, match='unknown metric "nosuch"'):
        compared.differences_by("gpus", ["wait_mean", "nosuch"])
    with pytest.raises(UnknownName, match='unknown metric of groups "jain"'):
        compared.differences_by("gpus", ["jain"])
    assert compared.differences_by("gpus", []).empty


def test_groups_without_a_value_are_told_from_one_run():
    nan = math.nan
    both = hand_made_replications({"x": [nan, nan]})
    undefined = differences_of_groups({"a": both, "b": both}, "class")
    assert difference_note(undefined, 0.95, single=False).startswith("Nothing can be compared: ")
    rarely = hand_made_replications({"x": [1.0, nan]})
    once = differences_of_groups({"a": rarely, "b": hand_made_replications({"x": [2.0, nan]})}, "class")
    note = difference_note(once, 0.95, single=False)
    assert note == "Metrics that are defined in only one run have no confidence intervals."
    assert difference_note(once, 0.95).startswith("One run of each policy")


@pytest.mark.slow
def test_a_metric_without_a_value_is_told_from_one_run():
    """No task has a deadline."""
    for number in (1, 2):
        found = hs.compare(mix(), ["fcfs", "sjf"], replications=number, metrics=["goodput_fraction"])
        found = compare(found.runs, ["goodput_fraction"])
        said = " ".join(comparison_lines(found))
        where = "in the run of any policy" if number == 1 else "in any run of any policy"
        assert f"Nothing can be compared: goodput fraction is not defined {where}." in said
        assert "chance" not in said
    one = hs.compare(mix(), ["fcfs", "sjf"], metrics=["wait_mean", "goodput_fraction"])
    assert "One run of each policy gives no confidence intervals; use --replications" in " ".join(comparison_lines(one))
