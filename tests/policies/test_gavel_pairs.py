"""Two jobs on one GPU with measured interference: the engine's rates, the policies that form pairs, Gavel's table."""

import json

import pytest

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.registry import entry
from hetsim.workload.readers.gavel import slowdowns, table_of

TABLE = {
    "v100": {
        "('A', 1)": {"null": 8.0, "('A', 1)": [5.0, 5.0], "('B', 1)": [6.4, 2.0], "('C', 1)": [0.0, 0.0]},
        "('B', 1)": {"null": 4.0, "('C', 1)": [4.0, 0.0]},
        "('C', 1)": {"null": 1.0},
    },
    "k80": {"('A', 1)": {"null": 2.0}, "('B', 1)": {"null": 2.0}, "('C', 1)": {"null": 1.0}},
}
JOBS = "A\tx\td\t-s\t1\t800\t1\t1\t-1\t0\nB\tx\td\t-s\t1\t200\t1\t1\t-1\t0\n"


@pytest.fixture
def scenario(tmp_path):
    def of(jobs=JOBS, policy="fcfs", **cluster):
        (tmp_path / "t.json").write_text(json.dumps(TABLE))
        (tmp_path / "jobs.trace").write_text(jobs)
        table = str(tmp_path / "t.json")
        nodes = {"format": "gavel_gpus", "path": table, "gpus": {"v100": 1}, **cluster}
        trace = {"format": "gavel", "path": str(tmp_path / "jobs.trace"), "throughputs": table}
        return {"name": "t", "cluster": {"trace": nodes}, "workload": [{"name": "j", "trace": trace}], "policy": policy}

    return of


def test_slowdowns_of_a_table(scenario, tmp_path):
    scenario()
    found = slowdowns(table_of(tmp_path / "t.json"), "v100")
    assert found["A"] == {"A": 8 / 5, "B": 8 / 6.4, "C": None}
    assert found["B"]["A"] == 2.0
    assert found["C"] == {"A": None, "B": None} and found["B"]["C"] is None


def test_nodes_with_pairs(scenario, tmp_path):
    scenario()
    found = entry("clusters", "gavel_gpus")(tmp_path / "t.json", gpus={"v100": 6, "k80": 4})
    assert [(node["count"], node["gpus"]["type"], node["gpus"]["count"]) for node in found] == [
        (1, "v100", 4), (1, "v100", 2), (1, "k80", 4)
    ]  # fmt: skip
    assert found[0]["gpus"]["streams"] == 2 and "streams" not in found[2]["gpus"]
    plain = entry("clusters", "gavel_gpus")(tmp_path / "t.json", gpus={"v100": 6}, pairs=False)
    assert "sharing" not in plain[0]["gpus"]
    with pytest.raises(ScenarioError, match='no GPU type "v10"; did you mean "v100"'):
        entry("clusters", "gavel_gpus")(tmp_path / "t.json", gpus={"v10": 6})


def test_the_engine_slows_a_pair_down_as_measured(scenario):
    """A needs 100 s alone and B 50 s; beside each other A is 1.25 and B 2 times slower: B ends at 100, when A has 20 s
    left.
    """
    tasks = hs.run(scenario(), check=True).tasks.set_index("class")
    assert tasks.start.tolist() == [0, 0]
    assert tasks.finish["B"] == pytest.approx(100)
    assert tasks.finish["A"] == pytest.approx(120)


def test_what_cannot_share_goes_by_time_slices(scenario):
    """Whoever puts such a pair on one GPU all the same gets half of it each."""
    tasks = hs.run(scenario(JOBS.replace("B", "C")), check=True).tasks.set_index("class")
    assert tasks.finish["A"] == pytest.approx(200) and tasks.finish["C"] == pytest.approx(300)


@pytest.mark.parametrize(
    ("second", "starts"),
    [
        ("B\tx\td\t-s\t1\t400\t1\t1\t-1\t0\n", [0, 0]),  # finish 125 and 162.5 together, 100 and 200 apart
        ("B\tx\td\t-s\t1\t4\t1\t1\t-1\t0\n", [0, 0]),  # short: it pays at once
        ("C\tx\td\t-s\t1\t50\t1\t1\t-1\t0\n", [0, 100]),  # cannot share
        ("A\tx\td\t-s\t1\t800\t1\t1\t-1\t0\n", [0, 100]),  # 160 and 160 together, 100 and 200 apart
    ],
)
def test_sharing_forms_pairs_by_the_measured_table(scenario, second, starts):
    jobs = JOBS.splitlines(keepends=True)[0] + second
    tasks = hs.run(scenario(jobs, "sharing"), check=True).tasks
    assert tasks.start.tolist() == starts


def test_an_empty_gpu_is_taken_before_a_shared_one(scenario):
    tasks = hs.run(scenario(policy="sharing", gpus={"v100": 2}), check=True).tasks
    assert tasks.start.tolist() == [0, 0] and tasks.finish.tolist() == [100, 50]
    assert len(set(tasks.device)) == 2


def test_gandiva_learns_which_pairs_pay(scenario):
    """A beside A runs at 2 × 0.625 of alone, which pays; A beside C shares slices, 2 × 0.5, and is undone."""
    same = JOBS.splitlines(keepends=True)[0]
    good = hs.run(scenario(same * 2, {"name": "gandiva", "trial": "10 s"}), check=True).tasks
    assert good.start.tolist() == [0, 0] and good.preemptions.sum() == 0
    assert good.finish.tolist() == pytest.approx([160, 160])
    bad = same + "C\tx\td\t-s\t1\t50\t1\t1\t-1\t0\n"
    tasks = hs.run(scenario(bad, {"name": "gandiva", "trial": "10 s"}), check=True).tasks
    assert tasks.preemptions.tolist() == [0, 1]
    assert tasks.finish.tolist() == pytest.approx([105, 150])  # ten seconds at half speed, then one after the other


def test_pairs_in_a_scenario():
    gpus = {"type": "g", "count": 1, "streams": 2, "sharing": {"kind": "timeslice", "pairs": {"a": {"a": 1.5}}}}
    arrivals = {"process": "deterministic", "rate": "1000000/s"}
    model = {
        "name": "t",
        "cluster": {"nodes": [{"cpus": 4, "gpus": gpus}]},
        "workload": [{"name": "a", "arrivals": arrivals, "count": 2, "gpu_time": "10 s"}],
        "policy": "fcfs",
    }
    assert hs.run(model, check=True).tasks.finish.tolist() == pytest.approx([15, 15], abs=1e-3)
    gpus["sharing"] = {"kind": "mig", "pairs": {"a": {"a": 1.5}}}
    with pytest.raises(ScenarioError, match="pairs need sharing timeslice or mps; got"):
        hs.run(model)
    gpus["sharing"] = {"kind": "timeslice", "pairs": {"a": {"a": 0}}}
    with pytest.raises(ScenarioError, match="pairs"):
        hs.run(model)
