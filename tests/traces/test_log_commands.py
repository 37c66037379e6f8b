"""What `hetsim trace` prints and writes of small logs: worked out by hand, with the slow searches left out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from test_trace_command import three_rules
from test_trace_texts import compared_waits, explained_waits

from hetsim import registry
from hetsim.cli import main
from hetsim.errors import ScenarioError, UsageError
from hetsim.experiment.run import one_run, prepare
from hetsim.traces import identify, waits_command, waits_report
from hetsim.traces.waits_command import Subject, against_record, capacity_of_cluster, subject_of, write_scenario
from hetsim.workload.logs.identified import PlaceScore
from hetsim.workload.traces import TaskTable

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,4000,8192,2,T4\nn2,4000,8192,2,T4\nn3,8000,8192,0,\n"
LOG = """id,arrival,gpu_time,gpus,recorded_start,user
1,0,10,2,0,u
2,1,10,2,10,v
3,2,4,1,20,u
4,3,4,1,20,u
"""
SCENARIO = """name: s
cluster: {nodes: {cpus: 4, gpus: {type: v100, count: 2}}}
workload: {name: jobs, trace: {format: tasks, path: log.csv}}
policy: fcfs
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"nodes.csv": NODES, "log.csv": LOG, "s.yaml": SCENARIO}.items():
        Path(name).write_text(text)
    return tmp_path


def run(arguments: str) -> Any:
    done = CliRunner().invoke(main, ["trace", *arguments.split()])
    assert done.exit_code == 0, done.stderr
    return done


def test_a_list_of_nodes_is_printed_or_written(files: Path):
    done = run("convert nodes.csv --format openb_nodes")
    nodes = yaml.safe_load(done.stdout)["cluster"]["nodes"]
    assert [(node["name"], node["count"], node["cpus"]) for node in nodes] == [("t4", 2, 4), ("cpu", 1, 8)]
    assert done.stdout == done.stdout.strip() + "\n" and not done.stderr
    done = run("convert nodes.csv n.yaml")
    assert yaml.safe_load(Path("n.yaml").read_text())["cluster"]["nodes"] == nodes and not done.stdout
    assert done.stderr.splitlines()[-1].endswith("3 nodes in 2 groups: n.yaml")
    Path("nodes.csv").write_text("".join(NODES.splitlines(keepends=True)[:3]))
    assert run("convert nodes.csv n.yaml --force").stderr.splitlines()[-1].endswith("2 nodes in 1 group: n.yaml")


@pytest.mark.slow
def test_a_picture_of_a_trace_is_written(files: Path):
    done = run("inspect log.csv --picture p.png")
    assert Path("p.png").read_bytes()[:4] == b"\x89PNG" and "p.png" in done.stderr
    assert "tasks" in done.stdout


def test_a_mapping_names_the_separator_and_the_file_from_its_folder(files: Path):
    Path("own.csv").write_text("Job;Submitted;Run time;Cards\n7;100;60;2\n8;160;30;1\n")
    Path("m").mkdir()
    for given, sign in (("--separator ;", ";"), ("", None)):
        run(f"map own.csv {given} --mapping m/x.yaml --force")
        trace = yaml.safe_load(Path("m/x.yaml").read_text())["workload"]
        trace = (trace[0] if isinstance(trace, list) else trace)["trace"]
        assert (trace.get("separator"), trace["path"]) == (sign, "../own.csv")
    Path("tabs.csv").write_text(Path("own.csv").read_text().replace(";", "\t"))
    assert json.loads(run("map tabs.csv --separator tab --json").stdout)["trace"]["separator"] == "tab"


# Scenarios on files -----------------------------------------------------------------------------------------------


def test_names_of_files_are_told_from_the_folder_of_the_scenario(files: Path, capsys: pytest.CaptureFixture[str]):
    """Also inside lists; absolute ones stay, and so do other keys and paths that are not text."""
    there = str(files / "x.csv")
    document = {"a": {"path": "log.csv", "paths": "log.csv"}, "b": [{"path": there}, {"path": 3}, "path"],
                "c": {"path": {"path": "m/log.csv"}}}  # fmt: skip
    Path("m").mkdir()
    write_scenario(document, Path("m/s.yaml"))
    assert yaml.safe_load(Path("m/s.yaml").read_text()) == {
        "a": {"path": "../log.csv", "paths": "log.csv"}, "b": [{"path": there}, {"path": 3}, "path"],
        "c": {"path": {"path": "log.csv"}}}  # fmt: skip
    assert capsys.readouterr().err.strip().endswith("scenario: m/s.yaml")


def plain_table() -> TaskTable:
    return TaskTable("x", {"gpu_time": np.ones(2)}, np.zeros(2), numbers={"gpus": np.ones(2)})


def test_the_document_of_a_log():
    """With the cluster of its scenario; else with the one that it shows, and the keys of the entry but its trace."""
    trace = {"format": "swf", "path": "x.swf"}
    own = {"cluster": {"nodes": 1}, "workload": [{"name": "w", "span": "recorded", "trace": {"path": "other"}}]}
    subject = subject_of(Path("d/x.swf"), own, trace, plain_table())
    assert not subject.inferred and subject.document == {
        "cluster": {"nodes": 1}, "workload": [{"name": "w", "span": "recorded", "trace": trace}],
        "policy": "easy_backfill"}  # fmt: skip
    assert subject_of(Path("x"), {**own, "policy": "sjf"}, trace, plain_table()).document["policy"] == "sjf"
    nodes = {"nodes": [{"name": "n", "count": 1, "cpus": 1, "gpus": {"type": "gpu", "count": 2}}]}
    shown = {"name": "x", "cluster": nodes, "policy": "easy_backfill",
             "workload": [{"name": "jobs", "trace": trace, "unfit": "leave_out", "span": "any"}]}  # fmt: skip
    subject = subject_of(Path("d/x.swf"), None, trace, plain_table())
    assert subject.inferred and subject.document == shown
    mapping = {"name": "m", "site": {}, "workload": {"name": "w", "unfit": "error", "trace": {}}, "policy": "sjf"}
    entry = {"name": "jobs", "trace": trace, "unfit": "error", "span": "any"}
    assert subject_of(Path("x"), mapping, trace, plain_table()).document == {
        **shown, "name": "m", "site": {}, "policy": "sjf", "workload": [entry]}  # fmt: skip


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_scenario_elsewhere_names_its_log_from_its_folder(files: Path, listed: bool, absolute: bool):
    Path("d").mkdir()
    path = files / "log.csv" if absolute else "../log.csv"
    text = SCENARIO.replace("path: log.csv", f"path: {path}")
    text = text.replace("workload: {name: jobs, ", "workload:\n- {name: jobs, ") if listed else text
    Path("d/s.yaml").write_text(text)
    done = run("validate d/s.yaml --json")
    assert json.loads(done.stdout)["metrics"]["wait_mean"]["recorded"] == 11
    Path("d/mapping.yaml").write_text("workload: {trace: {format: tasks, path: ../log.csv}}\n")
    shown = json.loads(run("validate d/mapping.yaml --json --policy fcfs --scenario d/x.yaml").stdout)
    assert (shown["valid"], shown["tasks"], shown["waits"]["mean_recorded_wait"]) == (True, 4, 11)
    assert yaml.safe_load(Path("d/x.yaml").read_text())["workload"][0]["trace"]["path"] == "../log.csv"


def test_a_scenario_with_a_wrong_trace_is_refused_with_its_place(files: Path):
    Path("s.yaml").write_text(SCENARIO.replace("path: log.csv", "path: log.csv, nothing: 1"))
    done = CliRunner().invoke(main, ["trace", "inspect", "s.yaml"])
    assert done.exit_code == 3 and "nothing" in done.stderr and "s.yaml" in done.stderr and not done.stdout


# Waits ------------------------------------------------------------------------------------------------------------


def test_too_many_jobs_are_not_explained(files: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waits_command, "MAX_JOBS", 4)
    assert "4 jobs" in run("validate log.csv").stdout and "waits" in json.loads(run("validate log.csv --json").stdout)
    monkeypatch.setattr(waits_command, "MAX_JOBS", 3)
    done = run("validate log.csv --scenario s.yaml --force")
    assert "4 jobs are too many to explain; choose a window (since, until)" in " ".join(done.stderr.split())
    written = yaml.safe_load(Path("s.yaml").read_text())
    assert written["policy"] == "easy_backfill" and written["workload"][0]["trace"]["path"] == "log.csv"


def test_the_best_scenario_of_a_log_is_written(files: Path, monkeypatch: pytest.MonkeyPatch):
    """With what was kept; the policy is the one that is given."""
    asked: list[Any] = []

    def compare(compared: Any, explained: Any, widest: int, tell: Any) -> None:
        asked.append((len(explained.jobs), widest, compared.variants[0].document["policy"]))
        compared.variants[0].document["name"] = "best"
        tell("simulating it")

    monkeypatch.setattr(waits_command, "compare", compare)
    done = run("validate log.csv --scenario s.yaml --force --policy fcfs")
    assert asked == [(4, 2, "fcfs")] and "simulating it" in done.stderr
    assert yaml.safe_load(Path("s.yaml").read_text())["name"] == "best"
    run("validate log.csv --policy fcfs")
    assert len(asked) == 1  # of a log alone nothing is simulated


def test_the_page_of_waits_is_written(files: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[Any] = []

    def page(*arguments: Any) -> str:
        written.append(arguments)
        return "a page\n"

    monkeypatch.setattr(waits_report, "waits_page", page)
    done = run("validate log.csv --page p.html")
    assert Path("p.html").read_bytes() == b"a page\n" and "page: p.html" in done.stderr
    name, explained, compared, notes = written.pop()
    assert (name, explained.mean_wait, compared, notes) == ("log.csv", 11, None, [])
    explained, compared = explained_waits(), compared_waits()
    for simulated in (True, False):
        waits_report.write_waits(Path("q.html"), "x", explained, compared, simulated, ["a"])
        assert written.pop() == ("x", explained, compared if simulated else None, ["a"])
    assert Path("q.html").read_text() == "a page\n"


CAPACITY = [("{nodes: {count: 3, cpus: 4, gpus: {type: v100, count: 2}}}", 6, 12), ("{nodes: {cpus: 5}}", 0, 5)]


@pytest.mark.parametrize(("cluster", "gpus", "cores"), CAPACITY)
def test_the_capacity_of_a_cluster(cluster: str, gpus: int, cores: int):
    document = {"cluster": yaml.safe_load(cluster), "policy": "fcfs", "workload": {
        "name": "w", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 3, "cpu_time": "1 s"}}  # fmt: skip
    built = prepare(document).build()
    assert [capacity_of_cluster(built, unit) for unit in ("GPUs", "cores")] == [gpus, cores]


def replayed(files: Path, rows: str, cluster: str, kind: str) -> pd.DataFrame:
    header = f"id,arrival,{kind}_time,{kind}s,recorded_start\n"
    Path("t.csv").write_text(header + rows)
    document = {"cluster": yaml.safe_load(cluster), "policy": "fcfs",
                "workload": {"name": "jobs", "trace": {"format": "tasks", "path": "t.csv"}}}  # fmt: skip
    return against_record(one_run(prepare(document)))


@pytest.mark.parametrize(("cluster", "kind"), [
    ("{nodes: {cpus: 9, gpus: {type: v100, count: 2}}}", "gpu"), ("{nodes: {cpus: 2}}", "cpu"),
])  # fmt: skip
def test_a_record_next_to_a_run(files: Path, cluster: str, kind: str):
    """On record all run at once, which two devices cannot: 2.2 times the capacity until 10 s, and once in the run.
    The last task has no record."""
    table = replayed(files, "1,0,10,2,0\n2,0,10,2,0\n3,1,4,1,3\n4,2,1,1,\n", cluster, kind)
    assert table["tasks"].tolist() == [3] * 9 and table.index.name == "metric"
    shown = {str(name): (row["recorded"], row["simulated"]) for name, row in table.iterrows()}
    assert shown["allocation"] == pytest.approx((2.2, 1))
    assert shown["wait_mean"] == pytest.approx((2 / 3, (0 + 10 + 19) / 3))
    assert shown["wait_p50"] == pytest.approx((0, 10)) and shown["wait_p95"] == pytest.approx((1.8, 18.1))
    assert shown["wait_p99"] == pytest.approx((1.96, 18.82))
    assert shown["response_mean"] == pytest.approx(((10 + 10 + 6) / 3, (10 + 20 + 23) / 3))
    assert shown["response_p50"] == pytest.approx((10, 20))


def test_a_record_of_no_length_has_no_allocation(files: Path):
    table = replayed(files, "1,5,0,1,5\n", "{nodes: {cpus: 2}}", "cpu")
    assert "allocation" not in table.index and len(table) == 8


def test_a_run_without_a_record_is_refused():
    tasks = pd.DataFrame({"status": ["completed", "failed"], "arrival": [0.0, 0.0]})
    run_of: Any = SimpleNamespace(tasks=tasks)
    with pytest.raises(UsageError, match="have no recorded starts to compare with"):
        against_record(run_of)
    tasks["recorded_start"] = [np.nan, 3.0]
    with pytest.raises(UsageError, match="no completed task of this run has a recorded start to compare with"):
        against_record(run_of)


# Which scheduler made a log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_json", [True, False])
def test_what_identify_prints_and_writes(files: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool):
    found, asked = three_rules(), []

    def identified_of(file: str, subject: Subject) -> Any:
        asked.append((file, subject.inferred, subject.document["workload"][0]["trace"]))
        subject.table.notes.append("a note on rows")
        return found

    monkeypatch.setattr(identify, "identified_of", identified_of)
    monkeypatch.setattr(identify, "scenario_of", lambda subject, one: ({"name": "best", "path": "log.csv"}, ["of it"]))
    monkeypatch.setattr(identify, "write_page", lambda *given: asked.append(given))
    Path("d").mkdir()
    done = run(f"identify log.csv --scenario d/s.yaml --page d/p.html {'--json' if as_json else ''}")
    trace = {"format": "tasks", "path": "log.csv"}
    notes = ["a note on rows", "of it"]
    assert asked == [("log.csv", True, trace), (Path("d/p.html"), "log.csv", found, notes)]
    assert yaml.safe_load(Path("d/s.yaml").read_text()) == {"name": "best", "path": "../log.csv"}
    told = done.stderr.splitlines()
    assert [line.removeprefix("hetsim: ").removeprefix("note: ") for line in told[-4:]] == [
        *notes, "page: d/p.html", "scenario: d/s.yaml"], told  # fmt: skip
    if as_json:
        assert json.loads(done.stdout) == {"file": "log.csv", **identify.mapping(found), "notes": notes}
    else:
        assert [line.rstrip() for line in done.stdout.splitlines()] == [line.rstrip() for line in identify.lines(found)]


def test_the_page_of_identify(tmp_path: Path):
    found = three_rules(by_chance=0.25)
    identify.write_page(tmp_path / "p.html", "log.csv", found, ["a note"])
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    for text in ("<h1>Which scheduler made log.csv</h1>", "Schedulers", "What was inferred", "a note",
                 "Validated on the half of the jobs that was not used for "
                 "fitting.", *identify.conclusion(found), identify.places_text(found),
                 *identify.fitted(found), *(cell for row in identify.rows(found) for cell in row)):  # fmt: skip
        assert text.replace("'", "&#x27;") in page or text in page, text
    assert "Placements" not in page and "at random" not in page
    heads = [page.index(f">{text}<") for text in ("Schedulers", "What was inferred", "Notes")]
    assert heads == sorted(heads)
    found.places = [PlaceScore(right=np.arange(10) < right, name=name, prefer=None, alike=alike)  # type: ignore[arg-type]
                    for right, name, alike in ((9, "best_fit", False), (8, "first_fit", True))]  # fmt: skip
    identify.write_page(tmp_path / "p.html", "log.csv", found, [])
    rows = _rows((tmp_path / "p.html").read_text(encoding="utf-8"))
    for row in (["best_fit", "90.0 %", ""], ["first_fit", "80.0 %", "alike"], ["at random", "25.0 %", ""],
                ["Placement", "Of places explained", ""]):  # fmt: skip
        assert row in rows
    assert len(rows) == 1 + 3 + 1 + 3


def _rows(page: str) -> list[list[str]]:
    import re

    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [[re.sub(r"<[^>]*>|\n", "", cell) for cell in re.split(r"</t[dh]>", row)[:-1]] for row in rows]


@pytest.mark.parametrize("unit", ["gpu", "cpu"])
def test_what_identify_takes_for_the_sizes_of_nodes(files: Path, monkeypatch: pytest.MonkeyPatch, unit: str):
    """GPUs where the log has any, else cores; the capacity is only stated by a cluster that was given."""
    asked: list[Any] = []
    monkeypatch.setattr(identify, "identify", lambda *given: asked.append(given[1:]))
    text = LOG.replace("gpu_time,gpus", f"{unit}_time,{unit}s")
    Path("log.csv").write_text(text)
    nodes = {"nodes": [{"name": "a", "cpus": 4, "gpus": {"type": "g", "count": 2}}, {"name": "b", "cpus": 3}]}
    table = registry.entry("traces", "tasks")(Path("log.csv"))
    for inferred in (False, True):
        document = {"cluster": nodes, "policy": "fcfs", "workload": [
            {"name": "jobs", "trace": {"format": "tasks", "path": "log.csv"}}]}  # fmt: skip
        with pytest.raises(ScenarioError, match="no scheduler can be inferred: almost no job waited, or too "
                                                "few have a"):
            identify.identified_of("log.csv", Subject(table, document, inferred))
        capacity = 2 if unit == "gpu" else 7
        sizes = {"a": 2} if unit == "gpu" else {"a": 4, "b": 3}
        assert asked.pop() == (None if inferred else capacity, sizes, False)
