"""A metric is one declaration: refused where a part is missing, and known to all that names metrics, ours or not."""

import json
import subprocess
import sys

import pytest

import hetsim as hs
from hetsim import registry
from hetsim.errors import RunError, UnknownName, UsageError
from hetsim.model.record import COMPLETED
from hetsim.page import report
from hetsim.results.declared import current_name, declaration, declarations, in_set, unknown_metric
from hetsim.results.formatting import formatter, metric_name
from hetsim.results.one_run import metrics
from hetsim.results.one_run.estimands import WEIGHTS
from hetsim.results.one_run.tables import bound_name


def late_share(run):
    """Completed tasks that arrived in the second half of the window / completed tasks."""
    done = run.status == COMPLETED
    return float((run.column("arrival")[done] > (run.low + run.high) / 2).mean())


@pytest.fixture
def own(monkeypatch):
    """A metric of a script, declared as in its text."""
    monkeypatch.setattr(registry, "_registered", {})
    return hs.metric(unit="share", better="more", weight="_completed", sets=("usual",), title="late tasks")(late_share)


@pytest.mark.parametrize("missing", ["unit", "better"])
def test_without_a_unit_or_a_direction_a_metric_is_an_error(missing):
    parts = {"unit": "s", "better": "less"}
    parts.pop(missing)
    with pytest.raises(TypeError, match=missing):
        hs.metric(**parts)


@pytest.mark.parametrize("wrong", [
    {"unit": "parsecs"}, {"better": "higher"}, {"of": "group"}, {"name": "makespan"}, {"sets": ("usaul",)},
])  # fmt: skip
def test_what_a_declaration_does_not_take(wrong, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    with pytest.raises(UsageError, match="metric"):
        hs.metric(**{"unit": "s", "better": "less"} | wrong)(late_share)
    assert late_share.__name__ not in declarations()


def test_every_declaration_is_whole():
    for name, one in declarations().items():
        assert one.function.__doc__, name
        assert one.weight is None or one.weight in WEIGHTS, name
        assert one.weight is None or one.estimand == "tasks", name
    assert len({one.title for one in declarations().values()}) == len(declarations())


@pytest.mark.parametrize("bound", [0.5, 10.0, 60.0, 1e-5, 1e7])
def test_a_name_with_any_bound_has_the_declaration_of_the_default(bound):
    assert declaration(f"{bound_name(bound)}_p95") is declaration(f"{bound_name()}_p95")
    assert [name.replace(bound_name(bound), bound_name()) for name in in_set("summary", bound)] == in_set("summary")
    assert metric_name(f"{bound_name(bound)}_p95") == f"{bound_name(bound)}_p95".replace("_", " ")


def test_a_metric_of_a_script_is_known_wherever_metrics_are_named(own):
    found = hs.compare("first-steps", ["fcfs", "sjf"], replications=3, metrics=["usual", "late_share"], workers=1)
    assert "late_share" in found.metrics
    values = found.runs["sjf"].column("late_share")
    assert values.between(0, 1).all()
    assert formatter("late_share")(0.5) == "50 %"
    assert metric_name("late_share") == "late tasks"
    assert "late tasks" in str(found)
    swept = hs.sweep("first-steps", {"policy": ["fcfs", "sjf"]}, metrics=["late_share"], workers=1)
    assert swept.table["late_share"].between(0, 1).all()


@pytest.mark.quick(0)
def test_a_usual_metric_of_a_script_is_in_tables_that_name_no_metrics(own, tmp_path):
    policies = ["fcfs", "sjf"]
    assert "late_share" in hs.compare("first-steps", policies, replications=2, workers=1).metrics
    assert "late_share" in hs.compare("first-steps", policies, workers=1, seed=3).metrics
    swept = hs.sweep("first-steps", {"policy": policies}, workers=1)
    assert "late_share" in swept.table and "late_share" in swept.shown_metrics
    run = hs.run("first-steps", seed=3)
    run.save(tmp_path)
    assert run.summary["value"]["late_share"] == run.metric("late_share") > 0
    for loaded in (run, hs.load(tmp_path)):
        assert ">late tasks<" in report(loaded)
    assert "late_share" not in hs.run("first-steps").by("class", ["wait_mean"])


def test_tune_and_size_go_by_a_metric_of_a_script(own):
    tuned = hs.tune("first-steps", "easy_backfill", over={"depth": [1, 100]}, metric="late_share", first=2, final=3)
    assert "late tasks" in str(tuned)
    sized = hs.size("first-steps", "late_share < 101%", "cluster.nodes.0.count", most=2, replications=2)
    assert "late tasks" in str(sized)


def test_a_stored_run_from_before_the_declaration_is_made_again(monkeypatch, tmp_path):
    """Its row lacks the metric: it would be missing in the table of the next sweep."""
    monkeypatch.setattr(registry, "_registered", {})
    over, options = {"policy": ["fcfs", "sjf"]}, {"cache": tmp_path, "workers": 1}
    assert "late_share" not in hs.sweep("first-steps", over, **options).table
    hs.metric(unit="share", better="more", sets=("summary",))(late_share)
    assert hs.sweep("first-steps", over, **options).table["late_share"].notna().all()


def test_a_metric_of_a_script_in_a_set_of_some_runs_is_in_a_summary_once(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})
    hs.metric(unit="share", better="more", sets=("costs",))(late_share)
    run = hs.run("first-steps", overrides={"cluster.nodes.0.price": "1/h"})
    assert "cost" in run.names and run.names.count("late_share") == 1


@pytest.fixture
def installed(tmp_path):
    """A package on the path that registers a metric by its entry point; runs code or a command with it."""
    (tmp_path / "theirs.py").write_text(
        "import hetsim as hs\nfrom hetsim.model.record import COMPLETED\n"
        "@hs.metric(unit='s', better='less', weight='_completed', title='their response')\n"
        "def theirs(run):\n    'Twice the mean response.'\n"
        "    return 2 * float(run.column('response')[run.status == COMPLETED].mean())\n"
    )
    about = tmp_path / "theirs-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: theirs\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[hetsim.metrics]\ntheirs = theirs:theirs\n")

    def python(code):
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    return python


@pytest.mark.slow
def test_a_metric_of_an_installed_package_is_loaded_by_its_entry_point(installed):
    run = "run = hs.run('first-steps')"
    shown = installed(f"import hetsim as hs; {run}; print(run.metric('theirs') / run.metric('response_mean'))")
    assert float(shown) == pytest.approx(2)


def called(python, *commands):
    """What commands print as JSON, all of one process."""
    lists = [[*words, "--json", "-q", "--workers", "1"] for words in commands]
    each = "main(words, standalone_mode=False); print('---')"
    shown = python(f"from hetsim.cli import main\nfor words in {lists!r}: {each}")
    return [json.loads(text) for text in shown.split("---\n")[:-1]]


@pytest.mark.slow
def test_a_metric_of_an_installed_package_selects_the_best_policy_and_the_size(installed):
    """Twice the mean response selects what the mean response does."""
    policies = ("--policy", "fcfs", "--policy", "sjf", "--delta", "20%")
    over = ("--target", "response_p95 < 1 h", "--over", "cluster.nodes.0.count=1..2", "--replications", "2")
    names = ("theirs", "response_mean")
    every = called(installed, *(("compare", "first-steps", *policies, "--best", one) for one in names),
                   *(("size", "first-steps", *over, "--minimize", one) for one in names))  # fmt: skip
    both = [found["selection"] for found in every[:2]]
    assert [one["metric"] for one in both] == ["theirs", "response_mean"] and both[0]["best"] == both[1]["best"]
    assert both[0]["delta"] == pytest.approx(2 * both[1]["delta"])
    both = every[2:]
    assert [one["minimize"] for one in both] == ["theirs", "response_mean"]
    costs = [[one["objective"] for one in found["candidates"]] for found in both]
    assert costs[0] == pytest.approx([2 * one for one in costs[1]])
    assert both[0]["best"]["values"] == both[1]["best"]["values"]


@pytest.mark.quick(0)
def test_a_metric_of_a_script_selects_the_best_policy_and_the_size(own):
    found = hs.compare("first-steps", ["fcfs", "sjf"], best="late_share", delta=0.5, workers=1)
    assert found.selection.metric == "late_share"
    sized = hs.size("first-steps", "response_p95 < 1 h", {"cluster.nodes.0.count": [1, 2]}, minimize="late_share",
                    replications=2, delta=0.5, workers=1)  # fmt: skip
    best = max(sized.candidates, key=lambda one: one.objective)  # more is better
    assert sized.objective == "late_share" and "late tasks" in str(sized)
    assert sized.best.objective == pytest.approx(best.objective, rel=0.5)


def test_what_a_worker_cannot_load_is_said_when_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(registry, "_not_here", {("metric", "late_share"): "No module named 'mine'"})
    with pytest.raises(hs.errors.RunError, match="worker process: No module"):
        metrics.metric("late_share")
    with pytest.raises(UnknownName):
        metrics.metric("late_shar")


@pytest.mark.parametrize(("column", "today"), [
    ("tasks", "task_count"), ("launches", "launch_count"), ("rejected", "rejected_count"), ("aborted", "aborted_count"),
    ("failed_ci_low", "failed_count_ci_low"), ("rejected_fraction", "rejected_fraction"), ("energy_j", "energy_j"),
    ("_completed", "_completed"), ("status", "status"),
])  # fmt: skip
def test_counts_of_older_files_have_their_names_of_today(column: str, today: str):
    assert current_name(column) == today == current_name(today)


def test_a_former_name_leads_to_that_of_today():
    assert "task_count" in str(unknown_metric("tasks", declarations()))


def test_a_metric_that_raises_is_named_with_its_line(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})

    @hs.metric(unit="s", better="less")
    def mine(measured):
        """Theirs."""
        return [1.0][3]

    with pytest.raises(RunError, match=r'metric "mine" raised IndexError \(test_declared_metrics\.py:\d+\): list'):
        hs.run("first-steps").metric("mine")
