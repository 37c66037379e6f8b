"""Bad input of planners: refused in one sentence that names the task, or told as a flag; never a traceback."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim import registry
from hetsim.cli.program import hetsim
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Shape
from hetsim.model.tasks import Item
from hetsim.policy import PlanProblem
from hetsim.testing.systems import GB, cpu_mode, gpu_mode, node, workload
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.greedy_best_fit import GreedyBestFit

PLANNERS = ["convex_energy", "genetic", "greedy_best_fit", "load_balance", "mct", "prioritized", "simulated_annealing"]


def scenario(tmp_path, table, policy="mct", cluster=None):
    (tmp_path / "tasks.csv").write_text(table, encoding="utf-8")
    nodes = cluster or [{"cpus": 2, "memory": "8 GB", "gpus": {"type": "g", "count": 1, "memory": "11 GB"}}]
    trace = {"format": "tasks", "path": str(tmp_path / "tasks.csv")}
    return {"name": "bad", "cluster": {"nodes": nodes}, "workload": [{"trace": trace}], "policy": policy}


def refusal(*arguments, **more):
    with pytest.raises(ScenarioError) as caught:
        hs.run(scenario(*arguments, **more))
    return str(caught.value)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("nan,1", 'row 1, column cpu_time: "nan" is not a number'),
        ("1,-2", 'row 1, column gpu_time: "-2" is negative'),
        ("-inf,1", 'row 1, column cpu_time: "-inf" is negative'),
        ("inf,inf", "task a has no finite time on any device"),
        (",", "task a has no finite time on any device"),
        ("1e400,inf", "task a has no finite time on any device"),
    ],
)
def test_times_of_a_task_table(tmp_path, cells, says):
    said = refusal(tmp_path, f"id,cpu_time,gpu_time\na,{cells}\n")
    assert says in said
    assert "tasks.csv:2" in said


@pytest.mark.parametrize(
    ("rows", "says"),
    [("0 nan 1\n", "nan"), ("0 -3 1\n", "-3"), ("0 -1 -1\n", "0"), ("0 inf inf\n", "inf")],
)
def test_times_of_a_task_graph_file(tmp_path, rows, says):
    (tmp_path / "graph.txt").write_text(rows, encoding="utf-8")
    trace = {"format": "hetero_dag", "path": str(tmp_path / "graph.txt")}
    whole = {**scenario(tmp_path, "id,cpu_time\na,1\n"), "workload": [{"trace": trace}]}
    with pytest.raises(ScenarioError, match=says):
        hs.run(whole)


@pytest.mark.parametrize("time", [".nan", "-1 s", ".inf", "nan s"])
def test_times_in_yaml(tmp_path, time):
    text = f"""
name: bad
cluster: {{nodes: [{{cpus: 1}}]}}
workload: [{{arrivals: {{process: all_at_once, count: 1}}, cpu_time: {time}}}]
policy: mct
"""
    (tmp_path / "bad.yaml").write_text(text, encoding="utf-8")
    for command in ("run", "validate"):
        outcome = CliRunner().invoke(hetsim, [command, str(tmp_path / "bad.yaml")])
        assert outcome.exit_code == 3
        assert "cpu_time" in outcome.output


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([[1.0, 1], [np.nan, 2]], r"NaN \(the first is 1\)"),
        ([[1.0, -1]], r"negative \(the first is 0\)"),
        ([[1.0, 1], [np.inf, np.inf]], r"can run on no core and no whole GPU of the cluster \(1"),
    ],
)
def test_times_of_a_table_made_in_python(planner, times, says):
    gpu = DeviceType("g")
    tasks = workload([(0, 0, *row) for row in times], [Shape([cpu_mode(), gpu_mode(gpu)])])
    given = PlanProblem(tasks, Cluster([node(cpus=1, accelerators=((gpu, 1),))]))
    with pytest.raises(ScenarioError, match=says):
        registry.policy("scheduler", planner)().plan(given)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_graph_that_goes_round_in_circles(tmp_path, planner):
    said = refusal(tmp_path, "id,cpu_time,predecessors\na,1,b\nb,1,a\n", planner)
    assert "the graph has a cycle: these tasks wait for each other:" in said
    tasks = workload([(0, 0, 1.0), (0, 0, 1.0)], [Shape([cpu_mode()])], predecessors=[(1,), (0,)])
    given = PlanProblem(tasks, Cluster([node(cpus=1)]))
    with pytest.raises(ScenarioError, match="2 tasks are on a cycle"):
        registry.policy("scheduler", planner)().plan(given)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_task_that_fits_no_memory(tmp_path, planner):
    """The table names task, demand and largest device, and so does a planner that gets such a task from Python."""
    said = refusal(tmp_path, "id,gpu_time,gpu_memory\na,1,1e9\nb,1,20e9\n", planner)
    assert "task b" in said
    assert "20 GB of GPU memory exceed the 11 GB of one g" in said
    gpu = DeviceType("g", memory=11 * GB)
    shapes = [Shape([gpu_mode(gpu)]), Shape([gpu_mode(gpu, gpu_memory=20 * GB)])]
    given = PlanProblem(workload([(0, 0, 1.0), (0, 1, 1.0)], shapes), Cluster([node(cpus=1, accelerators=((gpu, 1),))]))
    with pytest.raises(ScenarioError, match=r"task 1 needs 20 GB of memory in mode 1 g; one g has 11 GB"):
        registry.policy("scheduler", planner)().plan(given)


def test_memory_that_only_some_nodes_have(tmp_path):
    """Planners that take all lanes of a type for alike say so; best fit by memory can do with it."""
    nodes = [{"cpus": 1, "memory": "4 GB"}, {"cpus": 1, "memory": "64 GB"}]
    table = "id,cpu_time,memory\na,1,1e9\nb,1,20e9\n"
    said = refusal(tmp_path, table, cluster=nodes)
    assert "task b needs 20 GB of memory in mode cpu; not every node with cpu has that, but" in said
    result = hs.run(scenario(tmp_path, table, "greedy_best_fit", nodes))
    assert result.tasks.set_index("id").node["b"] == "n1"


def test_items_that_fit_no_device(tmp_path):

    gpu = DeviceType("g", memory=8 * GB)
    tasks = workload([(0, 0, 1.0)], [Shape([gpu_mode(gpu, gpu_memory=GB)])], items=[Item("w", 9 * GB)], reads=[(0,)])
    given = PlanProblem(tasks, Cluster([node(accelerators=((gpu, 1),))]))
    with pytest.raises(ScenarioError, match=r"task 0 needs 10 GB .* the largest is n0/g0 \(g\) with 8 GB"):
        GreedyBestFit().plan(given)


@pytest.mark.parametrize("planner", PLANNERS)
def test_gangs_are_refused(planner):
    gpu = DeviceType("g")
    tasks = workload([(0, 0, 1.0)], [Shape([gpu_mode(gpu, 2)])])
    given = PlanProblem(tasks, Cluster([node(accelerators=((gpu, 2),))]))
    with pytest.raises(ScenarioError, match=f"{planner} plans tasks of one core or one whole GPU"):
        runnable(given, planner)


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"name": "dual_approximation", "ratio": 1.2}, "policy.scheduler.ratio: must be at least 1.33333"),
        ({"name": "convex_energy", "deadline": "0 s"}, 'policy.scheduler.deadline: must be above 0; got "0 s"'),
        ({"name": "convex_energy", "slack": 0.9}, "policy.scheduler.slack: must be at least 1"),
        ({"name": "convex_energy", "slack": 2, "deadline": "9 s"}, "deadline and slack exclude each other; "
                                                                   "give one of them"),
        ({"name": "convex_energy", "min_frequency": 0}, "policy.scheduler.min_frequency: must be above 0"),
        ({"name": "genetic", "evaluations": 0}, "policy.scheduler.evaluations: must be at least 1"),
        ({"name": "genetic", "population": 1}, "policy.scheduler.population: must be at least 2"),
        ({"name": "simulated_annealing", "seconds": "-1 s"}, 'policy.scheduler.seconds: "-1 s" is negative'),
        ({"name": "prioritized", "by": "size"}, "one of deadline, demand, importance"),
        ({"name": "round_robin", "quantum": "0 s"}, 'policy.scheduler.quantum: must be above 0; got "0 s"'),
    ],
)
def test_parameters(tmp_path, policy, says):
    assert says in refusal(tmp_path, "id,cpu_time\na,1\n", policy)


def test_deadlines_that_cannot_be_met(tmp_path):
    table = "id,cpu_time,deadline\na,10,1\nb,1,100\n"
    said = refusal(tmp_path, table, {"name": "convex_energy", "deadline": "2 s"})
    assert "no schedule meets the deadline of 2 s: even at full speed all take at least 10 s, 8 s longer" in said
    outcome = hs.run(scenario(tmp_path, table, "prioritized"))
    assert outcome.record.notes["deadlines_missed"] == 1
    assert outcome.record.notes["deadline_missed_by"] == 9
