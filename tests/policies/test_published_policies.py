"""Orders, disciplines and placements of published systems, against implementations of a few lines."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.mode import Shape
from hetsim.policy import ListScheduler
from hetsim.testing.systems import System, cpu_mode, node, workload

ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=14)
"""Arrival, seconds, cores of each job."""


def jobs_of(rows, cores=8):
    """Jobs on one pool of cores, and the system that has them."""
    shapes = [Shape([cpu_mode(width)]) for width in range(1, cores + 1)]
    ordered = sorted(rows, key=lambda row: row[0])
    tasks = workload([(float(arrival), width - 1, float(seconds)) for arrival, seconds, width in ordered], shapes)
    return ordered, System("jobs", Cluster([node(cpus=cores)]), tasks)


def starts(scheduler, system):
    return Simulation(system.run_input(scheduler), check=True).run().start.tolist()


def kept_head(rows, key, cores, backfill):
    """The chosen head stays the head until it fits; all changes of an instant come before a choice."""
    waiting, running, start = [], [], [math.nan] * len(rows)
    coming = list(enumerate(rows))
    free, head, due = cores, None, math.inf
    while coming or waiting or head is not None:
        instants = [row[0] for _, row in coming[:1]] + [end for end, _ in running]
        now = min(instants)
        while running and min(running)[0] <= now:
            running.sort()
            free += running.pop(0)[1]
        while coming and coming[0][1][0] <= now:
            waiting.append(coming.pop(0)[0])

        def go(job, now=now):
            nonlocal free
            start[job] = now
            free -= rows[job][2]
            running.append((now + rows[job][1], rows[job][2]))

        while head is not None or waiting:
            if head is None:
                head = min(waiting, key=lambda job: (key(rows[job]), rows[job][0], job))
                waiting.remove(head)
                due = math.nan
            if rows[head][2] <= free:
                go(head)
                head = None
                continue
            if due != due:
                room, due = free, now
                for end, width in sorted(running):
                    if room >= rows[head][2]:
                        break
                    room, due = room + width, end
            break
        if head is not None and backfill:
            for job in sorted(waiting, key=lambda job: (rows[job][0], job)):
                if rows[job][2] <= free and now + rows[job][1] < due:
                    waiting.remove(job)
                    go(job)
    return start


@given(ROWS)
@examples(60)
@pytest.mark.parametrize("backfill", [False, True])
def test_a_kept_head_against_a_few_lines(backfill, rows):
    """Shortest first, in rows of equal arrival and with many ties."""
    ordered, system = jobs_of(rows)
    discipline = "keep_backfill" if backfill else "keep"
    found = starts(ListScheduler(lambda task: task.shortest_estimate, discipline=discipline), system)
    assert found == kept_head(ordered, lambda row: row[1], 8, backfill)


def test_a_kept_head_is_not_passed_by_a_shorter_newcomer():
    """The long one is chosen at 0, when it alone waits; the short one comes at 1 and would fit at 4."""
    rows = [(0, 4, 5), (0, 9, 8), (1, 2, 2)]
    _, system = jobs_of(rows)
    assert starts(ListScheduler(lambda task: task.shortest_estimate, discipline="keep"), system) == [0, 4, 13]
    assert starts(ListScheduler(lambda task: task.shortest_estimate, discipline="block"), system) == [0, 4, 1]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("saf", [3, 1, 2]),
        ("f1", [1, 2, 3]),
        ("wfp3", [1, 3, 2]),
        ("unicep", [3, 1, 2]),
        ({"name": "wfp3", "formula": "schedgym"}, [2, 1, 3]),
        ({"name": "unicep", "formula": "schedgym"}, [2, 1, 3]),
    ],
)
def test_published_orders_by_hand(tmp_path, name, wanted):
    """At 100, after 90, 60 and 40 s of waiting: jobs of 4 s × 4, 30 s × 3 and 3 s × 2 cores on a pool of 4.

    wfp3: (90/4)³·4 = 45,563; (60/30)³·3 = 24; (40/3)³·2 = 4,741.  unicep: 90/(2·4) = 11.3; 60/(1.58·30) = 1.3;
    40/(1·3) = 13.3.  schedgym: ((1+10)/4)³·4 = 83; ((1+40)/30)³·3 = 7.7; ((1+60)/3)³·2 = 16,800; and 11/8, 41/47.5,
    61/3.  f1: 0.60·4 + 870·1 = 872; 1.48·3 + 870·1.60 = 1,398; 0.48·2 + 870·1.78 = 1,548.  saf: 16, 90, 6.
    """
    rows = "id,arrival,cpu_time,cpus\n0,0,100,4\n1,10,4,4\n2,40,30,3\n3,60,3,2\n"
    (tmp_path / "jobs.csv").write_text(rows)
    scenario = {
        "name": "orders", "cluster": {"nodes": [{"cpus": 4}]}, "policy": name,
        "workload": [{"trace": {"format": "tasks", "path": str(tmp_path / "jobs.csv")}}],
    }  # fmt: skip
    tasks = hs.run(scenario).tasks.set_index("id")
    assert tasks["start"].drop(0).sort_values(kind="stable").index.tolist() == wanted


def test_an_order_that_changes_keeps_no_head():
    with pytest.raises(ScenarioError, match=r"keep needs a fixed order \(formula: schedgym\); use block or skip"):
        hs.run("mm16", policy={"name": "wfp3", "discipline": "keep"})


# Placements of FGD ----------------------------------------------------------------------------------------------------

NODES = [("b", 16, 64, 2), ("a", 32, 128, 4), ("d", 32, 128, 8), ("c", 8, 32, 1), ("e", 64, 256, 8)]
"""Names that are not in order, cores, GB of memory, GPUs."""


def pods(seed, count):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        kind = int(rng.integers(5))
        gpus = [0.0, float(rng.choice([0.25, 0.47, 0.5, 0.81])), 1.0, 2.0, 4.0][kind]
        rows.append((int(rng.integers(1, 9)), gpus))
    return rows


def placed(policy, rows, tmp_path, seed=1):
    """The node of each pod (None: dropped), as hetsim places them."""
    text = "".join(
        f"{k},{k},{'' if gpus else 1000000},{1000000 if gpus else ''},{cores},{gpus or ''}\n"
        for k, (cores, gpus) in enumerate(rows)
    )
    (tmp_path / "pods.csv").write_text("id,arrival,cpu_time,gpu_time,cpus,gpus\n" + text)
    result = hs.run(
        {
            "name": "pods", "horizon": f"{len(rows) + 1} s", "seed": seed,
            "cluster": {"nodes": [
                {"name": name, "cpus": cores, "memory": f"{memory} GB", "gpus": {"type": "g", "count": gpus}}
                for name, cores, memory, gpus in NODES
            ]},
            "workload": [{"trace": {"format": "tasks", "path": str(tmp_path / "pods.csv")}, "patience": "0.5 s"}],
            "policy": {"scheduler": "fcfs_skip", "placement": {"name": policy, "scores": "published"}},
        }
    )  # fmt: skip
    names = result.tasks.sort_values("id")["node"]
    return [None if name != name or name is None or name == "" else str(name) for name in names]


def by_hand(policy, rows, names):
    """The same, node by node and score by score; of equal scores the first of `names` wins."""
    nodes = {name: {"cores": cores, "left": [1.0] * gpus, "kinds": []} for name, cores, _, gpus in NODES}
    max_cores, max_gpus = max(one[1] for one in NODES), max(one[3] for one in NODES)

    def score(one, cores, gpus):
        free = sum(one["left"])
        if policy == "best_fit":
            return math.floor(100 * (1 - ((one["cores"] - cores) / max_cores + (free - gpus) / max_gpus) / 2) + 1e-9)
        if policy == "dot_product":
            product = one["cores"] * cores / max_cores**2 + free * gpus / max_gpus**2
            return math.floor(100 * (1 - product / 2) + 1e-9)
        if not gpus:
            return 0
        if policy == "gpu_clustering":
            kind, there = gpus if gpus >= 1 else "share", set(one["kinds"])
            level = (3 if there == {kind} else 2) if kind in there else 1 if not there else 0
            return math.floor(25 * (max_gpus - free) / max_gpus + 1e-9) + 25 * level
        idle = one["left"].count(1.0)
        if idle == len(one["left"]):
            return max(33 - idle, idle)
        used = [left for left in one["left"] if gpus <= left < 1.0] if gpus < 1 else []
        return max(100 - math.floor(min(used) * 100 + 1e-9) // 10, 50) if used else max(50 - math.ceil(gpus), 33)

    found = []
    for cores, gpus in rows:
        each, count = (gpus, 1) if 0 < gpus < 1 else (1.0, int(gpus))
        fitting = [
            name for name, one in nodes.items()
            if one["cores"] >= cores and sum(left >= each - 1e-9 for left in one["left"]) >= count
        ]  # fmt: skip
        if not fitting:
            found.append(None)
            continue
        name = min(fitting, key=lambda name: (-score(nodes[name], cores, gpus), names.index(name)))
        one = nodes[name]
        one["cores"] -= cores
        if gpus:
            one["kinds"].append("share" if gpus < 1 else gpus)
            places = sorted((left, k) for k, left in enumerate(one["left"]) if left >= each - 1e-9)
            if gpus >= 1:
                places = [(left, k) for left, k in places if left == 1.0]
            for _, k in places[:count]:
                one["left"][k] = round(one["left"][k] - each, 6)
        found.append(name)
    return found


PLACEMENTS = ["best_fit", "dot_product", "gpu_clustering", "gpu_packing"]


@pytest.mark.quick(4)
@pytest.mark.parametrize("policy", PLACEMENTS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_placements_of_fgd_score_by_score(tmp_path, policy, seed):
    """Nodes are named at random: what comes out is that of some order of the names, for every pod."""
    rows = pods(seed, 40)
    found = placed(policy, rows, tmp_path)
    assert any(found == by_hand(policy, rows, names) for names in itertools.permutations("abcde"))


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "key"), [({"name": "fgd", "growth": 2}, "growth"),
                                                ({"name": "dot_product", "smallest": True}, "smallest")])  # fmt: skip
def test_what_published_scores_do_not_read_is_refused(placement, key):
    few = {"policy": {"scheduler": "fcfs", "placement": {**placement, "scores": "published"}}}
    with pytest.raises(ScenarioError, match=f"{key} has no effect with scores: published"):
        hs.run("first-steps", overrides=few)


@pytest.mark.quick(0)
def test_names_are_drawn_anew_in_each_run(tmp_path):
    """A task without a GPU scores 0 everywhere, so it goes on the node with the smallest drawn name."""
    first = {placed("gpu_packing", [(1, 0.0)], tmp_path, seed)[0] for seed in range(20)}
    again = {placed("gpu_packing", [(1, 0.0)], tmp_path, seed)[0] for seed in range(20)}
    assert first == again and len(first) > 2


# Tetris ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shortness", "wanted"), [(0, ["b", "c", "a"]), (1, ["c", "a", "b"])])
def test_tetris_by_hand(tmp_path, shortness, wanted):
    """Of 10 cores and 10 GB ask 4 s × (4 cores, 1 GB), 9 s × (8, 1) and 1 s × (5, 2).

    Alignments: .4 + .1 = .5, .9 and .7, so the packer takes b, and after it c before a.  Work: 4·.5 = 2, 9·.9 = 8.1 and
    1·.7 = .7, its price (.5 + .9 + .7) / 10.8 = .194: .5 - .39 = .11, .9 - 1.57 = -.67 and .7 - .14 = .56, so c goes
    first, a fits beside it, and b is last.
    """
    rows = "id,arrival,cpu_time,cpus,memory\n" + "".join(
        f"{name},0,{time},{cores},{memory}000000000\n"
        for name, time, cores, memory in [("a", 4, 4, 1), ("b", 9, 8, 1), ("c", 1, 5, 2)]
    )
    (tmp_path / "jobs.csv").write_text(rows)
    scenario = {
        "name": "pack", "cluster": {"nodes": [{"cpus": 10, "memory": "10 GB"}]},
        "workload": [{"trace": {"format": "tasks", "path": str(tmp_path / "jobs.csv")}}],
        "policy": {"scheduler": {"name": "tetris", "shortness": shortness}},
    }  # fmt: skip
    tasks = hs.run(scenario, check=True).tasks.set_index("id")
    assert tasks.sort_values(["start", "finish"], kind="stable").index.tolist() == wanted


# Rows up to a demand --------------------------------------------------------------------------------------------------

OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{k},{1000 * (k % 3 + 1)},1024,{k % 3},{500 if k % 3 == 1 else 1000},\n" for k in range(30)
)


def filled(tmp_path, **changes):
    (tmp_path / "pods.csv").write_text(OPENB)
    entry = {
        "trace": {"format": "openb", "path": str(tmp_path / "pods.csv"), "duration": "1 h"},
        "resample": {"by": "row", "gpu_demand": 1.5}, **changes,
    }  # fmt: skip
    cluster = {"nodes": [{"count": 2, "cpus": 64, "gpus": {"type": "g", "count": 8}}]}
    return hs.load({"name": "fill", "cluster": cluster, "workload": [entry], "policy": "fcfs"})


@pytest.mark.parametrize("demand", [0.5, 1.5, 3.0])
def test_rows_are_drawn_until_they_ask_for_the_demand(tmp_path, demand):
    """The trace asks for 25 GPUs of 16: rows are left out up to 1.5, and drawn again beyond."""
    scenario = filled(tmp_path, resample={"by": "row", "gpu_demand": demand})
    run = scenario.build(seed=3)
    asked = np.array([shape.modes[0].gpu_share for shape in run.tasks.shapes])[run.tasks.shape]
    assert demand * 16 - 2 < asked.sum() <= demand * 16
    cumulated = 100 * np.cumsum(asked) / 16
    assert np.allclose(run.tasks.arrival, cumulated, atol=1e-3)
    assert (np.diff(run.tasks.arrival) > 0).all()
    ids = run.tasks.id.tolist()
    assert len(set(ids)) == len(ids)
    assert (len(ids) > 30) == (demand == 3.0)


def test_each_replication_draws_other_rows(tmp_path):
    scenario = filled(tmp_path)
    first, again, other = (scenario.build(seed=3, replication=k).tasks.id.tolist() for k in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resample": {"by": "row"}}, "by: row and gpu_demand"),
        ({"resample": {"by": "user", "gpu_demand": 2}}, "by: row and gpu_demand"),
        ({"trace": {"format": "openb", "path": "pods.csv"}}, 'no column "creation_time"'),
        ({"skip": 30}, "leaves no row of the 30 rows of"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScenarioError, match=message):
        filled(tmp_path, **changes).build()


def test_skip_leaves_out_the_first_rows(tmp_path):
    (tmp_path / "jobs.csv").write_text("id,arrival,cpu_time\n" + "".join(f"j{k},{9 - k},1\n" for k in range(10)))
    entry = {"trace": {"format": "tasks", "path": str(tmp_path / "jobs.csv")}, "skip": 3, "count": 2}
    scenario = hs.load({"name": "cut", "cluster": {"nodes": [{"cpus": 1}]}, "workload": [entry], "policy": "fcfs"})
    assert scenario.build().tasks.id.tolist() == ["j6", "j5"]


def test_columns_of_a_task_table_can_have_other_names(tmp_path):
    (tmp_path / "jobs.csv").write_text("id,arrival,duration\na,0,5\n")
    trace = {"format": "tasks", "path": str(tmp_path / "jobs.csv"), "columns": {"duration": "cpu_time"}}
    scenario = {"name": "other", "cluster": {"nodes": [{"cpus": 1}]}, "workload": [{"trace": trace}], "policy": "fcfs"}
    assert hs.run(scenario).metric("makespan") == 5
    trace["columns"] = {"durations": "cpu_time"}
    with pytest.raises(ScenarioError, match='there is no column "durations" to use as cpu_time'):
        hs.run(scenario)


def test_a_mode_tells_cores(tmp_path):
    """What an order function of a user reads is cores, as the scenario says them, parts included."""
    seen = []

    def look(task):
        seen.append([mode.cpus for mode in task.modes])
        return 0.0

    scenario = {
        "name": "cores", "cluster": {"nodes": [{"cpus": 8, "gpus": {"type": "g", "count": 1}}]}, "policy": "fcfs",
        "workload": [
            {"arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "1 s", "cpu_time": "9 s", "cpus": 2.5}
        ],
    }  # fmt: skip
    hs.run(scenario, policy=look)
    assert seen == [[2.5, 2.5]]
