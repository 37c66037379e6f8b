"""What users see of plans: metrics, the second table of a comparison, what is stored, Gantt charts and shelves."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hand_made import cluster, gpu_mode, record, workload
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

import hetsim as hs
from hetsim.cli.program import hetsim
from hetsim.errors import UsageError
from hetsim.experiment.directory import comparison_json, save, save_comparison
from hetsim.model.record import LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_STOPPED
from hetsim.report.overview import comparison_lines, overview
from hetsim.results.many_runs.compare import compare
from hetsim.results.one_run.plans import in_pieces, plain_note
from hetsim.results.one_run.result import Result

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def call(*arguments: str) -> Any:
    return CliRunner().invoke(hetsim, list(arguments), catch_exceptions=False)


def instance(
    cpus: int, gpus: int, rows: list[str], folder: Path, columns: str = "id,cpu_time,gpu_time"
) -> dict[str, Any]:
    """A scenario of tasks given as rows of a table."""
    path = folder / f"tasks-{abs(hash((columns, *rows)))}.csv"
    path.write_text("\n".join([columns, *rows]) + "\n")
    return {
        "name": "instance",
        "cluster": {"nodes": [{"cpus": cpus, "gpus": {"type": "g", "count": gpus}}]},
        "workload": {"trace": {"format": "tasks", "path": str(path)}},
    }


def lemma(x: float) -> dict[str, str]:
    return {"workload.first.cpu_time": f"{x} s", "workload.second.gpu_time": f"{x + 1} s"}


def by_hand(notes: dict[str, Any], **more: Any) -> Result:
    """Two tasks of 2 s on two GPUs, one after the other: makespan 4 s, although 2 s would do."""
    found = record(
        cluster(gpus=2), workload([0, 0], [2, 2], **more.pop("tasks", {})), [0, 2], [2, 4], [(1,), (1,)], **more
    )
    found.notes = notes
    return Result(found)


# Metrics and notes ----------------------------------------------------------------------------------------------


def test_without_a_plan_nothing_is_planned():
    result = hs.run("list-lemma", policy="fcfs")
    assert result.notes == {}
    assert math.isnan(result.metric("planned_makespan")) and math.isnan(result.planning)
    assert result.metric("makespan_ratio") == result.metric("makespan") / result.metric("makespan_bound")
    assert "planned_makespan" not in result.summary.index


def test_the_ratio_takes_the_greater_bound():
    assert by_hand({}).metric("makespan_bound") == 2
    assert by_hand({}).metric("makespan_ratio") == 2
    assert by_hand({"lower_bound": 1.0}).metric("makespan_ratio") == 2
    assert by_hand({"lower_bound": 3.2}).metric("makespan_ratio") == 4 / 3.2
    assert by_hand({"lower_bound": "text"}).metric("makespan_ratio") == 2


def test_a_bound_for_other_numbers_is_not_one_of_this_run():
    result = by_hand({"lower_bound": 3.2})
    result.record.input.tasks.estimate = np.array([[2.0], [9.0]])
    assert result.metric("makespan_ratio") == 2
    same = by_hand({"lower_bound": 3.2})
    same.record.input.tasks.estimate = same.record.input.tasks.time.copy()
    assert same.metric("makespan_ratio") == 4 / 3.2


@pytest.mark.parametrize("mode", [gpu_mode(2), gpu_mode(share=250_000), gpu_mode(fixed=1.0, batch_limit=4)])
def test_a_bound_of_sequential_tasks_does_not_bind_gangs_fractions_and_batches(mode: Any):
    usual = by_hand({}, tasks={"modes": [[mode]]}).metric("makespan_ratio")
    assert by_hand({"lower_bound": 3.2}, tasks={"modes": [[mode]]}).metric("makespan_ratio") == usual


def test_a_run_that_goes_on_after_a_stop_can_be_shorter_than_any_plan():
    """Three tasks of 2 s on two GPUs: 4 s in one piece each, 3 s if one may move (McNaughton 1959)."""
    columns = {"lost": np.array([0.0, 0.0]), "busy": np.array([1.0, 1.0])}
    for outcome, lost, pieces in (
        (LAUNCH_STOPPED, 0.0, True),
        (LAUNCH_MOVED, 0.0, True),
        (LAUNCH_LOST, 0.25, True),  # back to a checkpoint
        (LAUNCH_LOST, 1.0, False),
        (0, 0.0, False),
    ):
        result = by_hand({"lower_bound": 3.2})
        result.record.launches = {**columns, "lost": np.array([0.0, lost]), "outcome": np.array([0, outcome])}
        assert in_pieces(result.record) == pieces


def test_notes_are_plain():
    given_ = {"a": np.float64(0.5), "b": np.array([1, 2]), "c": (True, None), "d": {1: Path("x")}}
    assert plain_note(given_) == {"a": 0.5, "b": [1, 2], "c": [True, None], "d": {"1": "x"}}
    assert type(plain_note(given_)["a"]) is float


@pytest.mark.slow
@examples(15)
@given(
    times=st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=1, max_size=9),
    cpus=st.integers(1, 3),
    gpus=st.integers(1, 2),
)
def test_no_policy_beats_the_bound_of_the_table(times: list, cpus: int, gpus: int, tmp_path_factory: Any):
    rows = [f"{number},{p!r},{q!r}" for number, (p, q) in enumerate(times)]
    scenario = instance(cpus, gpus, rows, tmp_path_factory.mktemp("random"))
    plans = hs.compare(scenario, ["dual_approximation", "greedy_dual", "mct", "graham", "fcfs", "sjf"]).plans
    assert plans["lower_bound"].nunique() == 1
    assert (plans["ratio"] >= 1 - 1e-9).all()
    assert plans.loc["dual_approximation", "ratio"] <= 4 / 3 * 1.001 * (1 + 1e-9)
    planned = plans["planned_makespan"].dropna()
    assert list(planned.index) == ["dual_approximation", "greedy_dual", "mct", "graham"]
    assert planned.to_numpy() == pytest.approx(plans.loc[planned.index, "makespan"].to_numpy())


# Comparisons ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [1, 9, 99, 12345])
@pytest.mark.slow
def test_the_lemma_grows_with_x(x: int):
    plans = hs.compare("list-lemma", ["graham", "dual_approximation", "fcfs"], overrides=lemma(x)).plans
    assert plans.loc["graham", "ratio"] == pytest.approx(x + 1)
    assert plans.loc["dual_approximation", "ratio"] == pytest.approx(1)
    assert plans["lower_bound"].to_numpy() == pytest.approx(1)
    assert (plans["planning_s"] > 0).tolist() == [True, True, False]


@pytest.mark.slow
def test_the_best_bound_of_all_serves_all(tmp_path: Path):
    """Three tasks of 2 s on two GPUs and a core that takes 9 s or more: 4 s at least; the areas say 2.7 s.

    As no two tasks are alike, mct and heft know the areas alone."""
    scenario = instance(1, 2, ["a,9,2", "b,10,2", "c,11,2"], tmp_path)
    plans = hs.compare(scenario, ["mct", "dual_approximation"]).plans
    assert plans["lower_bound"].to_numpy() == pytest.approx(4, rel=2e-3)
    alone = hs.compare(scenario, ["mct", "heft"]).plans
    assert (alone["lower_bound"] < 3.5).all()


def test_estimates_that_are_wrong_leave_the_usual_bound(tmp_path: Path):
    columns = "id,cpu_time,gpu_time,cpu_time_estimate,gpu_time_estimate"
    scenario = instance(1, 2, ["a,9,2,90,20", "b,9,2,90,20", "c,9,2,90,20"], tmp_path, columns)
    found = hs.compare(scenario, ["mct", "dual_approximation"])
    row = found.plans.loc["dual_approximation"]
    assert row["planned_makespan"] == pytest.approx(40) and row["makespan"] == pytest.approx(4)
    assert row["lower_bound"] < 3.5 and row["ratio"] > 1


def test_comparisons_without_plans_have_no_second_table():
    found = hs.compare("list-lemma", ["fcfs", "sjf"])
    assert found.plans.empty
    assert list(found.plans.columns) == ["planned_makespan", "makespan", "lower_bound", "ratio", "planning_s"]
    assert not any("Plans" in line for line in comparison_lines(found)) and "Plans" not in repr(found)
    assert "plans" not in comparison_json(found, {"fcfs": hs.run("list-lemma", policy="fcfs")})


def test_the_second_table_on_a_terminal():
    result = call("compare", "list-lemma", "--policy", "graham", "--policy", "fcfs")
    lines = result.stdout.splitlines()
    at = lines.index("Plans:")
    titles = ["policy", "planned makespan", "simulated makespan", "lower bound", "ratio", "planning time"]
    assert re.split(r" {2,}", lines[at + 1]) == titles
    graham, fcfs = (re.split(r" {2,}", line) for line in lines[at + 2 : at + 4])
    assert graham[:5] == ["graham", "10 s", "10 s", "1 s", "10"] and re.fullmatch(r"[\d.,]+ (µs|ms|s)", graham[5])
    assert fcfs[1] == fcfs[5] == "–" and fcfs[3] == "1 s"
    assert at > [line.startswith("policy") for line in lines].index(True)


@pytest.mark.slow
def test_with_replications_the_plans_are_of_the_first(tmp_path: Path):
    rough = {
        "cluster": {"nodes": [{"cpus": 2, "gpus": {"type": "g", "count": 1}}]},
        "workload": [
            {
                "arrivals": {"process": "all_at_once", "count": 9},
                "gpu_time": {"distribution": "exponential", "mean": "2 s"},
                "cpu_time": {"speedup": 3},
            }
        ],
    }
    one = hs.compare(rough, ["mct", "fcfs"]).plans
    found = hs.compare(rough, ["mct", "fcfs"], replications=3)
    told_ = ["planned_makespan", "makespan", "lower_bound", "ratio"]
    assert found.plans[told_].equals(one[told_])
    assert "Plans (of the first replication):" in comparison_lines(found)
    assert "Plans (of the first replication)" in repr(found) and "planned makespan" in found._repr_html_()
    (line,) = [line for line in overview(hs.replicate(rough, policy="mct", replications=2)) if line.startswith("plan ")]
    assert line.endswith("(first replication)")


def test_a_run_tells_its_plan_in_a_line():
    lines = call("run", "list-lemma", "--policy", "graham", "-v")
    (line,) = [line for line in lines.stdout.splitlines() if line.startswith("plan ")]
    assert re.fullmatch(
        r"plan +makespan 10 s planned; ratio 10 to the lower bound of 1 s; planned in [\d.,]+ (µs|ms|s)", line
    )
    assert "notes of the policy: planned_makespan 10" in lines.stderr
    assert not any(line.startswith("plan ") for line in overview(hs.run("list-lemma", policy="fcfs")))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({"optimal": False, "gap": 0.032}, "not proven optimal, gap 3.2 %"),
        ({"deterministic": False}, "stopped by its time limit: another run may give another plan"),
        ({"deadlines_missed": 2, "deadline_missed_by": 90.0}, "2 deadlines missed, by 90 s at most"),
        ({"optimal": True, "gap": 0.0, "deadlines_missed": 0}, ""),
    ],
)
def test_what_a_plan_does_not_hold_is_said_beside_it(notes: dict[str, Any], said: str):
    runs = {name: hs.run("list-lemma", policy=name) for name in ("mct", "graham")}
    runs["mct"].record.notes |= notes
    found = compare(runs)
    assert found.plan_notes == ([f"mct: {said}"] if said else [])
    assert (f"mct: {said}" in comparison_lines(found)) == bool(said)
    (line,) = [line for line in overview(runs["mct"]) if line.startswith("plan ")]
    assert line.endswith(said) and ("deadline" in line) == ("deadline" in said)


# What is stored -------------------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_notes_come_back_from_a_directory(tmp_path: Path):
    result = hs.run("list-lemma", policy="dual_approximation")
    result.save(tmp_path / "run")
    again = hs.Result.load(tmp_path / "run")
    assert again.notes == result.notes and again.notes["lower_bound"] == pytest.approx(1)
    assert again.record.notes == result.notes
    for metric in ("planned_makespan", "makespan_ratio"):
        assert again.metric(metric) == result.metric(metric)
    assert result.planning > 0 and math.isnan(again.planning)


def test_odd_notes_come_back_too(tmp_path: Path):
    result = hs.run("list-lemma")
    result.record.notes = {"gap": math.inf, "none": math.nan, "list": [np.int64(3), -math.inf], "optimal": True}
    result.save(tmp_path / "run")
    json.loads((tmp_path / "run" / "run.json").read_text(), parse_constant=pytest.fail)  # strict JSON
    notes = hs.Result.load(tmp_path / "run").notes
    assert notes == {"gap": math.inf, "none": None, "list": [3, -math.inf], "optimal": True}


@pytest.mark.slow
def test_planning_times_are_never_written(tmp_path: Path):
    """The same scenario and seed give the same bytes, although no two runs plan in the same time."""
    folders = []
    for number in range(2):
        runs = {name: hs.run("list-lemma", policy=name) for name in ("dual_approximation", "graham", "fcfs")}
        for run in runs.values():
            run.record.planning = 1234.5 + number
        found = compare(runs)
        assert found.plans["planning_s"].tolist()[:2] == [1234.5 + number] * 2
        assert "planning" not in json.dumps(comparison_json(found, runs))
        save_comparison(found, runs, tmp_path / f"c{number}")
        save(runs["graham"], tmp_path / f"r{number}")
        folders.append((contents(tmp_path / f"c{number}"), contents(tmp_path / f"r{number}")))
    assert folders[0] == folders[1]
    written = folders[0][0]
    header = written["plans.csv"].decode().splitlines()[0]
    assert header == "policy,planned_makespan,makespan,lower_bound,ratio"
    assert json.loads(written["comparison.json"])["plans"]["graham"]["ratio"] == 10
    assert json.loads(written["comparison.json"])["plans"]["fcfs"]["planned_makespan"] is None


# Pictures -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_policy_of_a_comparison_has_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn = []
    original = hs.plots.gantt

    def gantt(result: Result, *rest: Any, **options: Any) -> Any:
        drawn.append((result.policy, options))
        return original(result, *rest, **options)

    monkeypatch.setattr(hs.plots, "gantt", gantt)
    arguments = ["--policy", "graham", "--policy", "mct", "--policy", "fcfs", "--out", str(tmp_path / "o")]
    assert call("compare", "list-lemma", *arguments).exit_code == 0
    assert drawn == [(name, {"until": 10.0}) for name in ("graham", "mct", "fcfs")]
    for name in ("graham", "mct", "fcfs"):
        assert (tmp_path / "o" / name / "picture.png").stat().st_size > 5000


@pytest.mark.slow
def test_policies_without_plans_have_their_usual_pictures(tmp_path: Path):
    arguments = ["--policy", "sjf", "--policy", "fcfs", "--out", str(tmp_path / "o")]
    assert call("compare", "list-lemma", *arguments).exit_code == 0
    assert (tmp_path / "o" / "sjf" / "picture.png").is_file() and not (tmp_path / "o" / "plans.csv").exists()


def test_a_gantt_chart_tells_cores_apart(tmp_path: Path):
    rows = [f"{number},{3 + number},40" for number in range(6)]
    result = hs.run(instance(3, 1, rows, tmp_path), policy="mct")
    (ax,) = hs.plots.gantt(result, until=50.0).figure().axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["n0/cpu0", "n0/cpu1", "n0/cpu2"]
    assert ax.get_xlim() == (0, 50)
    assert "makespan" in ax.get_title(loc="left")
    where = {text.get_text(): round(text.get_position()[1]) for text in ax.texts}
    devices = result.tasks.set_index("id")["device"].astype(str)
    assert where == {str(task): int(devices[task].removeprefix("n0/cpu")) for task in devices.index}


def test_a_gantt_chart_of_very_many_cores_names_their_nodes():
    many = {
        "cluster": {"nodes": [{"count": 2, "cpus": 64}]},
        "workload": [{"arrivals": {"process": "all_at_once", "count": 128}, "cpu_time": "5 s"}],
    }
    (ax,) = hs.plots.gantt(hs.run(many)).figure().axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["n0/cpu", "n1/cpu"]


def test_shelves_sort_tasks_by_the_guess(tmp_path: Path):
    """On two cores: 9 s is long, 5 and 4 s are medium, and the rest small, if the guess is 10 s."""
    rows = ["a,9,99", "b,5,99", "c,4,99", "d,1,99", "e,0.5,99"]
    result = hs.run(instance(2, 1, rows, tmp_path), policy="dual_approximation")
    (ax,) = hs.plots.shelves(result, guess=10.0).figure().axes
    lengths = {}
    for collection in (one for one in ax.collections if one.get_paths()):
        color = "#" + "".join(f"{round(255 * part):02X}" for part in collection.get_facecolor()[0][:3])
        boxes = [path.vertices[:, 0] for path in collection.get_paths()]
        lengths[color] = sorted(float(x.max() - x.min()) for x in boxes)
    assert lengths["#0072B2"] == pytest.approx([9])
    assert lengths["#E69F00"] == pytest.approx([4, 5])
    assert lengths["#56B4E9"] == pytest.approx([0.5, 1])
    assert [line.get_xdata()[0] for line in ax.lines] == pytest.approx([10 / 3, 20 / 3, 10, 40 / 3])
    assert [text.get_text() for text in ax.texts] == ["λ/3", "2λ/3", "λ", "4λ/3"]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["n0/cpu0", "n0/cpu1"]


@pytest.mark.slow
def test_shelves_take_the_guess_that_was_accepted(tmp_path: Path):
    result = hs.run("list-lemma", policy="dual_approximation")
    assert result.metric("makespan") <= 4 / 3 * result.notes["guess"] * (1 + 1e-9)
    assert "λ = 1 s" in hs.plots.shelves(result).panels[0].title
    result.save(tmp_path / "run")
    hs.plots.shelves(hs.Result.load(tmp_path / "run"))


def test_shelves_of_others_are_refused():
    for policy in ("fcfs", "graham"):
        with pytest.raises(UsageError, match="dual_approximation"):
            hs.plots.shelves(hs.run("list-lemma", policy=policy))
    with pytest.raises(UsageError, match="above 0"):
        hs.plots.shelves(hs.run("list-lemma", policy="graham"), guess=0.0)


@examples(15)
@given(
    p=st.lists(st.floats(0.1, 9), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    m=st.integers(1, 4),
    k=st.integers(1, 3),
)
def test_the_guess_is_that_of_the_shelves(p: list[float], seed: int, m: int, k: int):
    """No schedule is shorter than the bound, which the guess is above; the schedule is within 4/3 of the guess."""
    from hetsim_policies.static.dual_approximation import solve

    q = np.random.default_rng(seed).uniform(0.1, 9, len(p))
    found = solve(np.array(p), q, m, k)
    assert found.bound <= found.guess * (1 + 1e-9)
    assert found.makespan <= found.guarantee * found.guess * (1 + 1e-9)
    assert found.guess <= found.makespan * (1 + 1e-9) or found.makespan <= 4 / 3 * found.guess * (1 + 1e-9)


# The page for users ---------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.chdir(tmp_path)
    (scenario,) = blocks("yaml")
    Path("batch.yaml").write_text(scenario, encoding="utf-8")
    command = blocks("console")[0]
    shown = call(*shlex.split(command)[1:]).stdout
    (table,) = (
        block.splitlines() for block in re.findall(r"```\n(Plans:.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    )
    lines = shown.splitlines()
    found = lines[lines.index("Plans:") :][: len(table)]

    def untimed(line: str) -> list[str]:
        return re.split(r" {2,}", line)[:-1]

    assert [untimed(line) for line in found[2:]] == [untimed(line) for line in table[2:]]
    assert Path("runs/batch/heft/picture.png").is_file() and Path("runs/batch/plans.csv").is_file()
    namespace: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, PAGE.name, "exec"), namespace)
    assert capsys.readouterr().out.splitlines()[-1].startswith("999 {'graham': 1000.0, 'dual_approximation': 1.0")
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (PAGE.parent / target).exists(), target
