"""What is written: tables are safe before pictures are drawn, and a disk that is full is told with the file's name."""

from __future__ import annotations

import errno
import pickle
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiers
import yaml
from click.testing import CliRunner
from click.testing import Result as Called
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sim
from sim.cli import main
from sim.errors import PictureWarning
from sim.experiment.directory import load_any, save
from sim.report.html import report
from sim.results.one_run.store import write_csv

SCENARIO = """\
name: small
cluster: {nodes: [{cpus: 4, gpus: {type: k20, count: 2}}]}
workload:
  - name: a
    arrivals: {process: poisson, rate: 2/s}
    count: 30
    gpu_time: {distribution: exponential, mean: 700 ms}
"""
drawing_may_fail = pytest.mark.filterwarnings("default::sim.errors.PictureWarning")
"""Elsewhere in the tests a picture that fails is an error."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the quick tier what can be drawn is drawn and not rendered, which takes most of its time."""

    def savefig(self: Figure, target: Any, **_: Any) -> None:
        target.write(b"a picture") if hasattr(target, "write") else Path(target).write_bytes(b"a picture")

    if not tiers.whole:
        monkeypatch.setattr(Figure, "savefig", savefig)
        monkeypatch.setattr(Figure, "draw", lambda *_: None)


@pytest.fixture
def undrawable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matplotlib that cannot title a picture."""

    def fail(*_: Any, **__: Any) -> None:
        raise AttributeError("no such font")

    monkeypatch.setattr(Axes, "set_title", fail)


def call(*words: str) -> Called:
    return CliRunner().invoke(main, words)


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# Pictures ---------------------------------------------------------------------------------------------------------


@drawing_may_fail
@pytest.mark.parametrize("more", [(), ("--replications", "3")])
def test_a_run_outlives_its_picture(here: Path, undrawable: None, more: tuple[str, ...]):
    found = call("run", "small.yaml", "--out", "r", *more)
    assert found.exit_code == 0, found.output
    told = [line for line in found.stderr.splitlines() if "picture" in line]
    assert told == ["warning: the picture r/picture.png could not be drawn: AttributeError: no such font"]
    assert "tables: r" in found.stderr
    assert "summary.json" in below(here / "r") and "picture.png" not in below(here / "r")
    assert load_any("r").policy == "fcfs"
    assert not [name for name in below(here) if ".hetsim" in name]


@drawing_may_fail
@pytest.mark.slow
def test_a_comparison_outlives_its_pictures(here: Path, unrendered: None, undrawable: None):
    found = call("compare", "small.yaml", "--policy", "fcfs", "--policy", "sjf", "--replications", "3", "--out", "c")
    assert found.exit_code == 0, found.output
    failed = re.findall(r"warning: the picture c/(\S+) could not be drawn", found.stderr)
    assert {"fcfs/picture.png", "sjf/picture.png", "picture.png"} <= set(failed)
    assert len(failed) == len(set(failed)) and not set(failed) & below(here / "c")
    assert {"comparison.csv", "pairs.csv", "comparison.json", "sjf/summary.json"} <= below(here / "c")
    assert isinstance(load_any("c"), sim.Comparison)


@drawing_may_fail
def test_one_failed_picture_does_not_take_the_others(here: Path, unrendered: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("sim.plots.distributions")
    found = call("compare", "small.yaml", "--policy", "fcfs", "--policy", "sjf", "--out", "c")
    assert found.exit_code == 0, found.output
    assert re.findall(r"the picture (\S+) could", found.stderr) == ["c/distributions.png"]
    assert {"picture.png", "over_time.png", "fcfs/picture.png"} <= below(here / "c")


def test_a_run_that_is_written_again_has_no_picture_of_the_old_one(here: Path, monkeypatch: pytest.MonkeyPatch):
    save(sim.run("small.yaml"), "r")
    assert "picture.png" in below(here / "r")
    monkeypatch.delattr("sim.plots.default")
    with pytest.warns(PictureWarning, match="r/picture.png could not be drawn"):
        save(sim.run("small.yaml", seed=5), "r")
    assert "picture.png" not in below(here / "r") and load_any("r").seed == 5


def test_a_page_outlives_its_pictures(here: Path, unrendered: None, undrawable: None):
    made = [
        (sim.run("small.yaml"), "the run over time and how tasks fared"),
        (sim.compare("small.yaml", ["fcfs", "sjf"], replications=2), "metrics by policy"),
        (sim.sweep("small.yaml", {"cluster.nodes.0.cpus": [1, 2, 3]}), "response mean against cluster.nodes.0.cpus"),
    ]
    for outcome, picture in made:
        with pytest.warns(PictureWarning) as warned:
            text = report(outcome)
        said = [str(warning.message) for warning in warned]
        assert f'the picture "{picture}" could not be drawn: AttributeError: no such font' in said
        assert len(said) == len(set(said)) == text.count("could not be drawn") and "<table" in text


@drawing_may_fail
@pytest.mark.slow
def test_a_training_outlives_its_picture(here: Path, undrawable: None):
    found = call("train", "small.yaml", "--agent", "reinforce", "--steps", "40", "--out", "p.npz")
    assert found.exit_code == 0, found.output
    assert "the picture p.png could not be drawn" in found.stderr and "policy: p.npz\n" in found.stderr
    assert "slowdown" in found.stdout
    assert (here / "p.npz").is_file() and not (here / "p.png").exists()


# Full disks -------------------------------------------------------------------------------------------------------


def full(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, after: int = 0) -> None:
    """From some call on, a method that writes finds the disk full, which the system tells without a file's name."""
    calls, proper = 0, getattr(owner, method)

    def write(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return proper(*given, **more)

    monkeypatch.setattr(owner, method, write)


@pytest.mark.parametrize(
    ("owner", "method", "after", "words", "file"),
    [
        (pd.DataFrame, "to_parquet", 0, ("run",), "o/tasks.parquet"),
        (pd.DataFrame, "to_parquet", 4, ("run",), "o/record/tasks.parquet"),
        (Path, "write_text", 0, ("run",), "o/summary.json"),
        (pd.DataFrame, "to_parquet", 5, ("run", "--replications", "2"), "o/replications.parquet"),
        (pd.DataFrame, "to_parquet", 0, ("compare", "--policy", "fcfs", "--policy", "sjf"), "o/fcfs/tasks.parquet"),
        (pd.DataFrame, "to_csv", 0, ("compare", "--policy", "fcfs", "--policy", "sjf"), "o/comparison.csv"),
    ],
)
def test_a_full_disk_is_told_with_the_name_of_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, after: int, words: tuple[str, ...], file: str
):
    full(monkeypatch, owner, method, after)
    found = call(*words, "small.yaml", "--out", "o")
    assert found.exit_code == 1
    assert f"error: {file}: No space left on device" in found.stderr.splitlines()
    assert "response" in found.stdout  # the figures are not lost with the files
    assert below(here) == {"small.yaml"}


def test_a_full_disk_leaves_the_run_that_was_there(here: Path, monkeypatch: pytest.MonkeyPatch):
    save(sim.run("small.yaml"), "r", picture=False)
    full(monkeypatch, Path, "write_text")
    with pytest.raises(OSError, match="No space left on device: 'r/summary.json'"):
        save(sim.run("small.yaml", seed=5), "r", picture=False)
    assert load_any("r").seed == 0


def test_a_sweep_on_a_full_disk_says_how_it_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch):
    words = ("sweep", "small.yaml", "--over", "policy=fcfs,sjf", "--workers", "1", "--out", "s")
    with monkeypatch.context() as patch:
        full(patch, Path, "write_text", after=3)  # the scenario, what is swept, and one run
        found = call(*words)
    assert found.exit_code == 1
    assert re.search(r"^error: s/runs/\w\w/\w+\.json: No space left on device$", found.stderr, re.MULTILINE)
    assert "the runs that ended are in s; the same command with --resume goes on from there" in found.stderr
    assert len(list((here / "s/runs").rglob("*.json"))) == 1
    assert call(*words, "--resume").exit_code == 0
    assert len(load_any("s").table) == 2


def test_a_picture_on_a_full_disk_is_a_warning(here: Path, monkeypatch: pytest.MonkeyPatch):
    full(monkeypatch, Figure, "savefig")
    with pytest.warns(PictureWarning, match="the picture r/picture.png could not be drawn: No space left on device"):
        save(sim.run("small.yaml"), "r")
    assert "summary.json" in below(here / "r")


# Spreadsheets -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_text_of_a_report_table_is_a_formula(here: Path):
    classes = ["=1+cmd", "+x", "-x", "@x", "-5", "plain"]
    rows = "\n".join(f"{row},{name},1" for row, name in enumerate(classes))
    (here / "tasks.csv").write_text(f"arrival,class,cpu_time\n{rows}\n")
    table = {"trace": {"format": "tasks", "path": str(here / "tasks.csv")}}
    (here / "t.yaml").write_text(
        yaml.safe_dump({"name": "t", "cluster": {"nodes": [{"cpus": 1}]}, "workload": [table]})
    )
    found = call("compare", "t.yaml", "--policy", "fcfs", "--policy", "sjf", "--out", "c", "-q")
    assert found.exit_code == 0, found.output
    written = [line.split(",")[0] for line in (here / "c/by_class.csv").read_text().splitlines()[1:]]
    assert set(written) == {"'=1+cmd", "'+x", "'-x", "'@x", "-5", "plain"}
    assert call("trace", "convert", "tasks.csv", "again.csv").exit_code == 0
    assert pd.read_csv(here / "again.csv")["class"].tolist() == classes


def test_numbers_of_a_report_table_stay_as_they_are(tmp_path: Path):
    table = pd.DataFrame({"difference": [-1.5, 2.0], "n": [-3, 4], "policy": ["=a", "b"], "shown": ["-1e3", "+2"]})
    write_csv(table, tmp_path / "t.csv", index=False)
    assert (tmp_path / "t.csv").read_text() == "difference,n,policy,shown\n-1.5,-3,'=a,-1e3\n2.0,4,b,+2\n"


def test_a_log_that_waits_on_a_full_disk_is_told_with_the_name_of_the_target(
    here: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs = "\n".join(f"{n + 1} {7 * n} 5 100 4 -1 -1 4 200 -1 1 3 1 -1 1 1 -1 -1" for n in range(40))
    (here / "log.swf").write_text(f"; MaxProcs: 64\n{jobs}\n")
    monkeypatch.setattr("sim.workload.rows.job_columns.BLOCK", 8)
    assert call("trace", "convert", "log.swf", "first.csv").exit_code == 0
    full(monkeypatch, pickle, "dump")
    found = call("trace", "convert", "log.swf", "second.csv")
    assert found.exit_code == 1 and "error: second.csv: No space left on device" in found.stderr
    assert below(here) == {"small.yaml", "log.swf", "first.csv"}
