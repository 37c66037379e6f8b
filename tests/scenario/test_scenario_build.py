"""From scenarios to columns: modes, streams, graphs, closed loops, and what can never run."""

import math

import numpy as np
import pytest

import hetsim as hs
from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.scenario.scenario import load

GPU = {"type": "v100", "count": 4}


@pytest.fixture(autouse=True)
def policies(monkeypatch):
    """The examples name fcfs and sjf, which may not be there yet; the tests here do not run them."""
    missing = {"fcfs", "sjf", "t_order"} - set(registry.policies("scheduler"))
    known = dict(registry._registered.get("scheduler", {}))
    known.update(dict.fromkeys(missing, lambda task: task.arrival))
    monkeypatch.setitem(registry._registered, "scheduler", known)


def run(workload, nodes=None, seed=1, replication=0, **rest):
    data = {
        "cluster": {"nodes": nodes or [{"cpus": 8, "gpus": GPU}]},
        "workload": workload,
        "policy": "t_order",
        **rest,
    }
    return load(data).build(seed, replication)


def one(nodes=None, **demand):
    """A stream of ten tasks, one a second."""
    entry = {"name": "one", "arrivals": {"process": "deterministic", "interval": "1 s"}, "count": 10}
    return run([{**entry, **demand}], nodes)


def modes(tasks, row=0):
    return [mode.name for mode in tasks.shapes[tasks.shape[row]].modes]


def problems(*arguments, **keywords):
    with pytest.raises(ScenarioError) as caught:
        one(*arguments, **keywords)
    return str(caught.value).split("\n")


# Modes ----------------------------------------------------------------------------------------------------


def test_cpu_and_gpu_are_two_modes_and_a_speedup_is_of_the_same_draw():
    tasks = one(gpu_time={"distribution": "exponential", "mean": "5 min"}, cpu_time={"speedup": 24}).tasks
    assert modes(tasks) == ["cpu", "v100"]
    assert np.allclose(tasks.time[:, 0], 24 * tasks.time[:, 1])
    cpu, gpu = tasks.shapes[0].modes
    assert (cpu.millicores, cpu.gpus, gpu.millicores, gpu.gpus) == (1000, 0, 0, 1)


def test_a_second_distribution_is_drawn_independently():
    law = {"distribution": "exponential", "mean": "5 min"}
    tasks = one(gpu_time=law, cpu_time=law).tasks
    assert len(set((tasks.time[:, 0] / tasks.time[:, 1]).round(9))) > 1


def test_generic_gpu_time_counts_speed_and_a_typed_one_is_taken_as_given():
    nodes = [{"gpus": [{"type": "v100", "speed": 2}, {"type": "a100", "speed": 4}, {"type": "k20"}]}]
    tasks = one(nodes, **{"gpu_time": "8 s", "gpu_time.a100": "3 s"}).tasks
    assert modes(tasks) == ["v100", "a100", "k20"]
    assert tasks.time[0].tolist() == [4, 3, 8]


def test_another_accelerator_is_asked_for_by_type_or_kind():
    nodes = [{"gpus": GPU, "accelerators": {"type": "ascend", "kind": "npu", "count": 1}}]
    assert modes(one(nodes, **{"gpu_time.npu": "1 s"}).tasks) == ["ascend"]
    assert modes(one(nodes, **{"gpu_time.ascend": "1 s", "gpu_time": "2 s"}).tasks) == ["v100", "ascend"]


def test_scaling_gives_elastic_modes_that_fit_a_node():
    tasks = one(gpu_time="100 s", scaling={1: 1, 2: 2, 4: 2.5, 8: 3}).tasks
    assert modes(tasks) == ["v100", "2xv100", "4xv100"]
    assert tasks.time[0].tolist() == [100, 50, 40]


def test_fractions_and_demands():
    tasks = one(gpu_time="1 s", gpus=0.25, cpus=2, memory="1 GB", gpu_memory="2 GB").tasks
    (mode,) = tasks.shapes[0].modes
    assert (mode.gpus, mode.share, mode.cpus, mode.memory, mode.gpu_memory) == (1, 250_000, 2, 10**9, 2 * 10**9)


def test_the_full_form():
    full = [
        {"device": "gpu", "time": "10 s", "name": "fused", "gpus": 2},
        {"device": "cpu", "time": {"speedup": 5}, "cpus": 4, "memory": "1 GB"},
    ]
    tasks = one(modes=full).tasks
    assert modes(tasks) == ["fused", "4xcpu"]
    assert tasks.time[0].tolist() == [10, 50]
    assert tasks.shapes[0].modes[1].millicores == 4000


def test_equal_demands_are_one_mode_and_shape_across_streams():
    entry = {"arrivals": {"process": "all_at_once", "count": 2}, "gpu_time": "1 s"}
    tasks = run([{"name": "a", **entry}, {"name": "b", **entry, "gpu_time": "2 s"}]).tasks
    assert len(tasks.shapes) == 1
    assert tasks.shape.tolist() == [0, 0, 0, 0]


def test_a_profile_takes_its_times_from_the_peaks():
    tasks = one(profile="cnn_training", steps=100).tasks
    assert modes(tasks) == ["v100"]  # no peak is stated for the cores
    double = one(profile="cnn_training", steps=200).tasks
    assert double.time[0, 0] == pytest.approx(2 * tasks.time[0, 0])
    assert double.bytes_in[0] == 2 * tasks.bytes_in[0] > 0
    assert tasks.shapes[0].modes[0].gpu_memory > 0
    nodes = [{"cpus": 4, "cpu": {"peak": "cpu-core"}, "gpus": GPU}]
    assert modes(one(nodes, profile="cnn_training").tasks) == ["cpu", "v100"]


def test_work_is_timed_by_the_cost_model():
    tasks = one(work={"flops": "15.7 TFLOP", "launch_overhead": 0}).tasks
    assert tasks.time[0, 0] == pytest.approx(1.0)


# What can never run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "why"),
    [
        ({"gpu_time": "1 s", "gpus": 8},
         "8 × v100 exceed the 4 of any node (span: any would use several nodes)"),
        ({"gpu_time": "1 s", "gpus": 12, "span": "any"}, "12 × v100 exceed the 8 of the cluster"),
        ({"cpu_time": "1 s", "cpus": 9},
         "9 cores exceed the 8 of any node (nodes: N or span: any would use several nodes)"),
        ({"cpu_time": "1 s", "cpus": 17}, "17 cores exceed the 8 of any node"),
        ({"gpu_time": "1 s", "gpu_memory": "17 GB"}, "17 GB of GPU memory exceed the 16 GB of one v100"),
        ({"gpu_time": "1 s", "memory": "65 GB"}, "no node with 1 × v100 has 65 GB of memory"),
        ({"gpu_time.a100": "1 s"}, "no node has a100; the cluster has cpu, v100"),
    ],
)  # fmt: skip
def test_a_task_that_no_device_can_run(demand, why):
    nodes = [{"count": 2, "cpus": 8, "memory": "64 GB", "gpus": {**GPU, "memory": "16 GB"}}]
    expected = f"workload.0: 10 tasks, the first of them a task of one, can never run on this cluster: {why}"
    assert problems(nodes, **demand) == [expected]


def test_a_gang_across_nodes_may_span():
    tasks = one([{"count": 2, "gpus": GPU}], gpu_time="1 s", gpus=8, span="any", span_speed=0.8).tasks
    (mode,) = tasks.shapes[0].modes
    assert (mode.gpus, mode.span_any, mode.span_speed) == (8, True, 0.8)


def test_a_slice_of_mig_must_exist():
    nodes = [{"gpus": {"type": "a100", "count": 1, "sharing": {"kind": "mig", "layouts": [[0.5, 0.25]]}}}]
    (problem,) = problems(nodes, gpu_time="1 s", gpus=0.75)
    assert problem.endswith("a share of 0.75 is larger than any slice in the layouts of a100")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"cluster": {"nodes": [{"cpus": 0}]}}, "cluster.nodes: the cluster has no devices: no core and no GPU"),
        ({"cluster": {"nodes": [{"count": 0, "cpus": 4}]}},
         "cluster.nodes: the cluster has no devices: no core and no GPU"),
        ({"workload": []}, "workload: needs at least 1 entry"),
        ({"horizon": "1 us"}, "workload: the workload is empty: no task ever arrives"),
        ({"horizon": None}, "workload.0: poisson arrivals never end; give count or until here, or a horizon"),
        (
            {"cluster": {"nodes": [{"gpus": GPU}, {"gpus": {**GPU, "speed": 2}}]}},
            'cluster.nodes.1.gpus: device type "v100" has another speed in cluster.nodes.0; '
            "give the two types different names",
        ),
        (
            {"cluster": {"nodes": [{"cpus": 1, "name": "n1"}, {"cpus": 1, "name": "n", "count": 2}]}},
            'cluster.nodes.1.name: the node name "n1" is taken by cluster.nodes.0',
        ),
    ],
)  # fmt: skip
def test_empty_and_contradictory_scenarios(data, problem):
    whole = {
        "horizon": "1 h",
        "cluster": {"nodes": [{"cpus": 1}]},
        "workload": [{"name": "one", "arrivals": {"process": "poisson", "rate": "1/s"}, "cpu_time": "1 s"}],
        "policy": "t_order",
        **data,
    }
    with pytest.raises(ScenarioError) as caught:
        load(whole).build()
    assert problem in str(caught.value).split("\n")


def test_sizes_that_no_column_can_hold_are_refused():
    assert problems(gpu_time="1 s", bytes_in="1e300 B") == [
        'workload.0.bytes_in: "1e300 B" is too large: at most 1e+18 B'
    ]


def test_more_devices_than_fit_into_memory_are_refused():
    with pytest.raises(ScenarioError, match="cluster.nodes: .* at most 2,000,000 devices, .*; got 1,001,000,000"):
        one([{"count": 1_000_000, "gpus": {"type": "v100", "count": 1000}}], gpu_time="1 s")


def test_names_of_entries_are_unique():
    entry = {"name": "x", "arrivals": {"process": "all_at_once", "count": 1}, "cpu_time": "1 s"}
    with pytest.raises(ScenarioError, match=r'workload.1: the name "x" is that of workload.0'):
        run([entry, entry])


# Streams ----------------------------------------------------------------------------------------------------


def test_streams_are_superposed_in_order_of_arrival():
    first = {"name": "a", "arrivals": {"process": "deterministic", "interval": "2 s"}, "count": 3, "gpu_time": "1 s"}
    second = {**first, "name": "b", "arrivals": {"process": "deterministic", "interval": "1 s"}}
    tasks = run([first, second]).tasks
    assert tasks.arrival.tolist() == [0, 0, 1, 2, 2, 4]
    assert [tasks.classes[code] for code in tasks.class_code] == ["a", "b", "b", "a", "b", "a"]


def test_an_entry_does_not_disturb_the_others_and_more_replications_differ():
    law = {
        "arrivals": {"process": "poisson", "rate": "1/s"},
        "gpu_time": {"distribution": "exponential", "mean": "1 s"},
    }
    alone = run([{"name": "a", "count": 50, **law}]).tasks
    both = run([{"name": "b", "count": 20, **law}, {"name": "a", "count": 50, **law}]).tasks
    rows = both.class_code == both.classes.index("a")
    assert (both.arrival[rows] == alone.arrival).all()
    assert (both.time[rows] == alone.time).all()
    again = run([{"name": "a", "count": 50, **law}]).tasks
    assert (again.arrival == alone.arrival).all()
    other = run([{"name": "a", "count": 50, **law}], replication=1).tasks
    assert (other.arrival != alone.arrival).all()


def test_classes_are_drawn_with_their_weights_and_inherit_from_the_entry():
    entry = {
        "name": "mix",
        "arrivals": {"process": "poisson", "rate": "1/s"},
        "count": 20_000,
        "priority": 2,
        "gpus": 1,
        "classes": [
            {"class": "small", "weight": 3, "gpu_time": "1 s"},
            {"class": "large", "weight": 1, "gpu_time": "5 s", "gpus": 4, "priority": 7, "slo": {"factor": 3}},
        ],
    }
    tasks = run([entry]).tasks
    large = tasks.class_code == tasks.classes.index("large")
    assert large.mean() == pytest.approx(0.25, abs=0.02)
    assert set(tasks.priority[large]) == {7} and set(tasks.priority[~large]) == {2}
    assert np.allclose(tasks.deadline[large], tasks.arrival[large] + 15)
    assert np.isnan(tasks.deadline[~large]).all()


def test_users():
    weighted = one(gpu_time="1 s", users=[{"name": "ann", "weight": 0}, "bob"]).tasks
    assert {weighted.users[code] for code in weighted.user_code} == {"bob"}
    assert one(gpu_time="1 s", user="ann").tasks.users == ["ann"]
    entry = {"name": "u", "arrivals": {"process": "all_at_once", "count": 10_000}, "cpu_time": "1 s"}
    zipf = run([{**entry, "users": {"count": 3, "zipf": 1}}]).tasks
    shares = np.bincount(zipf.user_code) / 10_000
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)


def test_limits_estimates_and_data():
    tasks = one(
        gpu_time="10 s", slo="30 s", patience="5 s", priority=2, weight=3,
        bytes_in="2 MB", bytes_out="1 MB", upload="1 ms", estimates={"factor": 2},
        stopping={"save": "1 s", "interval": "1 min", "preemptible": False},
    ).tasks  # fmt: skip
    assert tasks.deadline.tolist() == (tasks.arrival + 30).tolist()
    assert tasks.expires.tolist() == (tasks.arrival + 5).tolist()
    assert (tasks.priority[0], tasks.weight[0], tasks.bytes_in[0], tasks.bytes_out[0]) == (2, 3, 2_000_000, 1_000_000)
    assert tasks.estimate.tolist() == (2 * tasks.time).tolist()
    shape = tasks.shapes[0]
    assert (shape.stopping.save, shape.stopping.interval, shape.preemptible) == (1, 60, False)
    assert shape.modes[0].upload.fixed == 0.001


def test_exact_estimates_are_the_same_array():
    tasks = one(gpu_time="10 s", estimates="exact").tasks
    assert tasks.estimate is tasks.time


def test_errors_of_estimates_are_one_factor_a_task():
    error = {"distribution": "lognormal", "cv": 0.5}
    tasks = one(gpu_time="10 s", cpu_time="90 s", estimates={"error": error}).tasks
    factors = tasks.estimate / tasks.time
    assert np.allclose(factors[:, 0], factors[:, 1])
    assert len(set(factors[:, 0].round(9))) == 10


# Closed loops -----------------------------------------------------------------------------------------------


def closed(**rest):
    return {"name": "loop", "arrivals": {"process": "closed", "clients": 5, "think": "10 s"}, "gpu_time": "1 s", **rest}


def test_a_closed_loop_has_rows_for_what_is_sent_later():
    other = {"name": "open", "arrivals": {"process": "deterministic", "interval": "7 s"}, "count": 3, "gpu_time": "1 s"}
    result = run([closed(count=12, slo="3 s", patience="2 s"), other])
    (loop,) = result.closed
    assert (loop.name, loop.clients, len(loop.rows)) == ("loop", [(0.0, 5)], 12)
    tasks = result.tasks
    assert np.isfinite(tasks.arrival[loop.rows]).sum() == 5
    assert np.isfinite(tasks.arrival[loop.rows[:5]]).all()
    assert (np.diff(tasks.arrival[:8]) >= 0).all() and np.isinf(tasks.arrival[8:]).all()
    assert loop.deadline.tolist() == [3] * 12 and loop.patience.tolist() == [2] * 12
    assert loop.think(np.random.default_rng(0), 2).tolist() == [10, 10]


def test_the_rows_of_a_closed_loop_suffice_for_the_horizon():
    result = run([closed()], horizon="1000 s")
    # Undisturbed, five clients send a task every 11 s.
    assert len(result.closed[0].rows) >= 5 * 1000 / 11
    with pytest.raises(ScenarioError, match="a closed loop never ends; give count or until here, or a horizon"):
        run([closed()])


# Task tables ------------------------------------------------------------------------------------------------


@pytest.fixture
def graph(tmp_path):
    def build(table, entry=None, nodes="[{cpus: 4, gpus: {type: k20, count: 2}}]", data=""):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / "t.csv").write_text(table)
        rest = "".join(f", {key}: {value}" for key, value in (entry or {}).items())
        text = f"cluster: {{nodes: {nodes}}}\nworkload: [{{trace: {{format: tasks, path: data/t.csv}}{rest}}}]\n"
        text += "policy: t_order\n"
        (tmp_path / "s.yaml").write_text(text + data)
        return load(tmp_path / "s.yaml").build()

    return build


def test_a_task_graph_is_sorted_and_its_results_stay_where_they_are_made(graph):
    # c comes first in the file but last in time; a feeds both others.
    tasks = graph(
        "id,arrival,cpu_time,gpu_time,predecessors,bytes_out,class\nc,2,3,,a;b,30,x\na,0,1,1,,10,x\nb,1,2,2,a,0,y\n"
    ).tasks
    assert tasks.id.tolist() == ["a", "b", "c"]
    assert tasks.predecessors == [(), (0,), (0, 1)]
    assert [(item.name, item.size) for item in tasks.items] == [("a:out", 10)]
    assert tasks.writes == [(0,), (), ()] and tasks.reads == [(), (0,), (0,)]
    assert tasks.bytes_out.tolist() == [0, 0, 30]
    assert modes(tasks, 0) == ["cpu", "k20"] and modes(tasks, 2) == ["cpu"]
    assert tasks.time[2].tolist() == [3, math.inf]
    assert [tasks.classes[code] for code in tasks.class_code] == ["x", "y", "x"]


def test_rows_with_demands_of_their_own(graph):
    tasks = graph("cpu_time,gpu_time,gpus,cpus,memory,upload\n8,1,,,,\n8,1,0.5,2,1e9,0.001\n8,1,0,,,\n").tasks
    assert modes(tasks, 0) == ["cpu", "k20"] and modes(tasks, 2) == ["cpu"]
    cpu, half = tasks.shapes[tasks.shape[1]].modes
    assert (cpu.cpus, half.cpus, half.share, half.memory, half.upload.fixed) == (2, 2, 500_000, 10**9, 0.001)


def test_estimates_deadlines_and_time_scale(graph):
    table = "arrival,gpu_time,gpu_time_estimate,deadline,tokens\n10,1,2,15,7\n20,1,,,8\n"
    tasks = graph(table, {"time_scale": 0.5, "slo": "3 s"}).tasks
    assert tasks.arrival.tolist() == [5, 10]
    assert tasks.deadline.tolist() == [10, 13]
    assert tasks.estimate[:, 0].tolist() == [2, 1]
    assert tasks.extra["tokens"].tolist() == [7, 8]


def test_tables_can_be_cut_and_given_other_arrivals(graph):
    table = "arrival,gpu_time\n3,1\n1,2\n2,3\n"
    assert graph(table, {"count": 2}).tasks.time[:, 0].tolist() == [2, 3]
    assert graph(table, {"until": "2 s"}).tasks.time[:, 0].tolist() == [2]
    tasks = graph(table, {"arrivals": "{process: all_at_once, count: 3}"}).tasks
    assert tasks.arrival.tolist() == [0, 0, 0]
    with pytest.raises(ScenarioError, match="workload.0.count: would divide a task graph: this table has predecessors"):
        graph("id,gpu_time,predecessors\n1,1,\n2,1,1\n", {"count": 1})


def test_items_are_those_of_the_data_section(graph):
    table = "id,gpu_time,reads\na,1,weights\n"
    data = "data: [{name: weights, size: 1 GB, home: n0}]\n"
    tasks = graph(table, data=data).tasks
    assert tasks.reads == [(0,)]
    assert (tasks.items[0].size, tasks.items[0].home) == (10**9, 0)
    with pytest.raises(ScenarioError) as caught:
        graph(table.replace("weights", "wights"), data=data)
    message = (
        's.yaml:2:12: workload.0.reads: "wights" not listed under data: (items with name and size); '
        'did you mean "weights"?'
    )
    assert str(caught.value).endswith(message)
    with pytest.raises(ScenarioError, match=r's.yaml:4:36: data.0.home: there is no node "n7"'):
        graph(table, data=data.replace("n0", "n7"))


def test_rows_that_can_never_run_are_counted_and_the_first_is_named(graph, tmp_path):
    with pytest.raises(ScenarioError) as caught:
        graph("id,gpu_time,gpus\na,1,1\n\nb,1,3\nc,1,4\n")
    assert str(caught.value) == (
        f"{tmp_path}/s.yaml:2:12: workload.0: 2 tasks, the first of them task b ({tmp_path}/data/t.csv, line 4), "
        "can never run on this cluster: 3 × k20 exceed the 2 of any node"
        " (unfit: reject counts such tasks as rejected, leave_out leaves them out)"
    )


def test_ids_of_several_streams_stay_apart(tmp_path):
    (tmp_path / "t.csv").write_text("id,gpu_time\n1,1\n")
    trace = {"trace": {"format": "tasks", "path": "t.csv"}}
    data = {"cluster": {"nodes": {"gpus": GPU}}, "policy": "t_order"}
    tasks = load({**data, "workload": [{"name": "a", **trace}, {"name": "b", **trace}]}, base=tmp_path).build().tasks
    assert tasks.id.tolist() == ["a/1", "b/1"]
    assert load({**data, "workload": [trace]}, base=tmp_path).build().tasks.id.tolist() == [1]


# The examples of the documentation ----------------------------------------------------------------------------

MIX = """
name: deep-learning-mix      # synthetic tasks: one class inline, or several under `classes`
horizon: 72 h
cluster: {nodes: [{count: 8, cpus: 32, gpus: {type: v100, count: 4}}]}
workload:
  - name: quick
    arrivals: {process: poisson, rate: 40/h}
    gpu_time: {distribution: exponential, mean: 5 min}
    cpu_time: {speedup: 24}          # 24 × the drawn GPU time; a second distribution would be drawn independently
  - name: training
    arrivals: {process: diurnal, mean: 20/h, amplitude: 0.6, period: 24 h}
    classes:                         # weights are probabilities per arrival
      - {class: cnn,  weight: 3, gpus: 1, gpu_time: {distribution: lognormal, mean: 30 min, cv: 2}}
      - {class: lstm, weight: 1, gpus: 4, gpu_time: {distribution: lognormal, mean: 2 h, cv: 1.5}, bytes_in: 2 GB}
policy: sjf
"""


def test_deep_learning_mix(tmp_path):
    (tmp_path / "mix.yaml").write_text(MIX)
    result = load(tmp_path / "mix.yaml").build(seed=3)
    tasks = result.tasks
    assert result.cluster.describe() == "8 × (32 cores, 4 × v100)"
    assert len(tasks) == pytest.approx(60 * 72, rel=0.1)
    assert tasks.classes == ["quick", "cnn", "lstm"]
    assert [modes(tasks, int(np.argmax(tasks.class_code == code))) for code in range(3)] == [
        ["cpu", "v100"], ["v100"], ["4xv100"],
    ]  # fmt: skip
    assert tasks.bytes_in[tasks.class_code == 2].tolist() == [2 * 10**9] * int((tasks.class_code == 2).sum())
    assert (result.name, result.horizon, result.policy) == ("deep-learning-mix", 72 * 3600, "sjf")


def test_a_cholesky_graph(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "potrf-320.csv").write_text(
        "id,cpu_time,gpu_time,predecessors\npotrf0,0.02,0.01,\ntrsm1,0.04,0.004,potrf0\n"
        "trsm2,0.04,0.004,potrf0\nsyrk1,0.04,0.002,trsm1\ngemm21,0.08,0.003,trsm1 trsm2\n"
    )
    (tmp_path / "s.yaml").write_text(
        "name: cholesky-320\ncluster: {nodes: [{cpus: 16, gpus: {type: k20, count: 4}}]}\n"
        "workload: [{trace: {format: tasks, path: data/potrf-320.csv}}]\npolicy: fcfs\n"
    )
    tasks = load(tmp_path / "s.yaml").build().tasks
    assert tasks.predecessors == [(), (0,), (0,), (1,), (1, 2)]
    assert tasks.reads is None  # no bytes_out: nothing moves


def test_what_only_the_cost_model_can_refuse_has_an_address_too():
    launch = {"grid": 16, "block": 4096}
    (problem,) = problems(work={"flops": "1 MFLOP", "launch": launch})
    assert problem == "workload.0: 4096 threads in a block exceed the device's 1024"


def test_times_for_devices_that_the_cluster_lacks_are_noted(tmp_path):
    (tmp_path / "t.csv").write_text("cpu_time,gpu_time.k20\n1,1\n")
    own = {"name": "own", "arrivals": {"process": "all_at_once", "count": 2}, "cpu_time": "1 s", "gpu_time.v10": "1 s"}
    scenario = load(
        {
            "cluster": {"nodes": {"cpus": 1, "gpus": GPU}},
            "workload": [own, {"name": "table", "trace": {"format": "tasks", "path": "t.csv"}}],
            "policy": "t_order",
        },
        base=tmp_path,
    )
    scenario.build()
    scenario.build(2)
    assert scenario.notes == [
        'own: gpu_time.v10 is not used: the cluster has no v10; did you mean "v100"?',
        "table: gpu_time.k20 is not used: the cluster has no k20",
    ]


def test_a_speedup_needs_something_to_be_relative_to():
    with pytest.raises(ScenarioError, match="cpu_time: a speedup is relative to gpu_time, work or a profile; give one"):
        one(cpu_time={"speedup": 3})
    with pytest.raises(ScenarioError, match="the first mode needs a time, since a speedup is relative to it"):
        one(modes=[{"device": "cpu", "time": {"speedup": 3}}])


def test_estimates_are_given_once(graph):
    with pytest.raises(ScenarioError, match="workload.0.estimates: estimates must be given once: here or in the table"):
        graph("gpu_time,gpu_time_estimate\n1,2\n", {"estimates": "{factor: 2}"})


# Shares of the multiprocessors, and work in modes ------------------------------------------------------------

VECTOR_ADD = {"flops": "1 GFLOP", "bytes": "1 GB", "launch": {"grid": 160, "block": 64}}
KNOWN_CPU = [{"cpus": 8, "cpu": {"peak": "cpu-core"}, "gpus": GPU}]


def test_work_can_demand_a_share_of_the_multiprocessors():
    """A quarter of the 80 multiprocessors is held, and 160 blocks are timed on those 20."""
    whole = one(work=VECTOR_ADD).tasks
    part = one(work={**VECTOR_ADD, "share": "25%"}).tasks
    (mode,) = part.shapes[0].modes
    assert (mode.gpus, mode.share) == (1, 250_000)
    assert part.time[0, 0] == one(work=VECTOR_ADD, gpus=0.25).tasks.time[0, 0] > 3 * whole.time[0, 0]


def test_a_share_and_another_number_of_gpus_contradict_each_other():
    work = {**VECTOR_ADD, "share": 0.25}
    said = "gpus: gpus must equal share (0.25) of the work, or be left out; got 2"
    assert problems(work=work, gpus=2) == [f"workload.0.{said}"]
    assert problems(work=work, classes=[{"gpus": 2}]) == [f"workload.0.{said}"]
    assert one(work=work, gpus=0.25).tasks.shapes[0].modes[0].share == 250_000


def test_modes_have_work_of_their_own():
    ways = [{"device": "gpu", "work": {**VECTOR_ADD, "share": 0.5}}, {"device": "cpu", "work": {"flops": "96 GFLOP"}}]
    tasks = one(KNOWN_CPU, modes=ways).tasks
    assert modes(tasks) == ["0.5xv100", "cpu"]
    assert tasks.time[0, 0] == one(work=VECTOR_ADD, gpus=0.5).tasks.time[0, 0]
    assert tasks.time[0, 1] == 1.0


def test_modes_have_profiles_of_their_own():
    """As many steps in each mode, however many are drawn; the entry's steps hold for both."""
    steps = {"distribution": "uniform", "low": 10, "high": 20}
    ways = [{"device": "gpu", "profile": "cnn_training", "batch": n, "name": str(n)} for n in (64, 32)]
    found = one(modes=ways, steps=steps).tasks
    large, small = (one(profile="cnn_training", batch=n, steps=steps).tasks for n in (64, 32))
    assert np.array_equal(found.time, np.hstack([large.time, small.time]))
    assert np.array_equal(found.bytes_in, large.bytes_in)


def test_work_in_a_mode_needs_a_device_that_is_known():
    unknown = [{"gpus": {"type": "v1000", "count": 1}}]
    assert problems(unknown, modes={"device": "gpu", "work": VECTOR_ADD}) == [
        "workload.0: the speed of v1000 is unknown; give it the key peak under cluster"
    ]
    assert problems(modes={"device": "gpu"}) == ["workload.0.modes: a mode needs one of time, work and profile"]


def test_work_and_profiles_can_be_kept_to_some_devices():
    assert modes(one(KNOWN_CPU, work=VECTOR_ADD).tasks) == ["cpu", "v100"]
    assert modes(one(KNOWN_CPU, work=VECTOR_ADD, devices="gpu").tasks) == ["v100"]
    assert modes(one(KNOWN_CPU, profile="cnn_training", devices=["cpu"]).tasks) == ["cpu"]
    assert problems(gpu_time="1 s", devices="gpu") == [
        "workload.0.devices: the key needs work, a profile or training"
    ]


# One report --------------------------------------------------------------------------------------------------


def test_what_can_be_built_is_judged_even_where_keys_are_wrong():
    arrivals = {"process": "all_at_once", "count": 1}
    workload = [
        {"name": "a", "arrivals": arrivals, "gpu_tme": "1 s"},
        {"name": "a", "arrivals": arrivals, "gpu_time": "1 s", "gpus": 9},
        {"name": "c", "arrivals": arrivals, "gpu_time": "1 s", "reads": ["modle"]},
    ]
    with pytest.raises(ScenarioError) as caught:
        run(workload, data=[{"name": "model", "size": "1 MB"}])
    found = "\n".join(sorted(str(caught.value).split("\n")))
    assert 'workload.0.gpu_tme: unknown key "gpu_tme"' in found
    assert 'workload.1: the name "a" is that of workload.0; give another (name: ...)' in found
    assert "workload.1: a task of a can never run on this cluster: 9 × v100 exceed the 4 of any node" in found
    assert 'workload.2.reads: "modle" not listed under data: (items with name and size); did you mean "model"?' in found


def test_a_closed_loop_knows_patience_and_deadlines():
    """Two clients, one core, tasks of 3 s: the second gives up after 1 s, thinks again, and misses its deadline."""
    loop = {"process": "closed", "clients": 2, "think": "1 s"}
    workload = [{"arrivals": loop, "count": 6, "cpu_time": "3 s", "patience": "1 s", "slo": "2 s"}]
    tasks = hs.run({"cluster": {"nodes": {"cpus": 1}}, "workload": workload}, check=True).tasks
    sent = tasks[tasks.arrival < np.inf]
    assert sent.status.tolist()[:3] == ["completed", "expired", "expired"]
    assert sent.arrival.tolist()[:3] == [1, 1, 3]
    assert (sent.deadline - sent.arrival == 2).all() and not sent.met_deadline.any()


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ({"process": "mmpp", "rates": ["1/s", 0], "holding": ["1e-300 s", "1e-300 s"]},
            "times, too often to simulate"),
        ({"process": "burst", "size": 1e12, "at": ["1 s"]}, "times, too often to simulate"),
        ({"process": "burst", "size": 1e-9, "every": "1e-9 s"}, "times, too often to simulate"),
        ({"process": "all_at_once", "count": 10**11}, "must be at most 50,000,000"),
        ({"process": "piecewise_poisson", "rate": [["0 s", "1e12/s"], ["1 s", 0]]},
            "times, too often to simulate"),
    ],
)
def test_arrivals_that_would_take_for_ever_are_refused(arrivals, said):
    (problem,) = problems(arrivals=arrivals, gpu_time="1 s")
    assert said in problem


def test_numbers_beyond_computing_are_refused():
    assert problems(gpu_time="1e300 s") == [
        'workload.0.gpu_time: "1e300 s" is too large: at most 1e+15 s'
    ]
    (said,) = problems(gpu_time="1 s", cpu_time={"speedup": 10**300})
    assert said.startswith("workload.0.cpu_time.speedup: must be a number")
    assert problems(gpu_time={"distribution": "lognormal", "median": "1 s", "sigma": 1e6}) != []


@pytest.mark.parametrize(("entry", "nodes", "way_out"), [
    ({"gpus": 16, "gpu_time": "5 s"}, 4, True),
    ({"gpus": 16, "gpu_time": "5 s"}, 1, False),
    ({"service": {"gpus": 16, "compute": {"fixed": "5 ms", "per_item": "1 ms"}}}, 4, False),
])  # fmt: skip
def test_a_way_out_is_told_where_it_is_one(entry, nodes, way_out):
    """`span: any` is proposed exactly where the scenario with it runs."""
    scenario = {
        "name": "wide", "horizon": "10 s", "policy": "fcfs",
        "cluster": {"nodes": [{"count": nodes, "cpus": 4, "gpus": {"type": "g", "count": 8}}]},
        "workload": [{"name": "a", "arrivals": {"process": "poisson", "rate": "1/s"}, **entry}],
    }  # fmt: skip
    with pytest.raises(ScenarioError, match="16 × g exceed the 8 of any node") as refused:
        hs.run(scenario)
    assert ("span: any" in str(refused.value)) == way_out
    scenario["workload"][0]["span"] = "any"
    if way_out:
        assert len(hs.run(scenario).tasks)
    else:
        with pytest.raises(ScenarioError):
            hs.run(scenario)
