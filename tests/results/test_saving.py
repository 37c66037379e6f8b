"""What is written: tables are safe before pictures are drawn, and a disk that is full is told with the file's name."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import pickle
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pandas as pd
import pyarrow.parquet as pq
import pytest
import tiers
import yaml
from click.testing import CliRunner
from click.testing import Result as Called
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from stored import stored_runs

import hetsim as hs
import hetsim.plots.draw  # its class keeps the methods that it finds as it is made: not those put in their place
from hetsim.cli import main
from hetsim.errors import PictureWarning, UsageError
from hetsim.experiment.directory import load_any, save
from hetsim.model import files
from hetsim.page import elements, report
from hetsim.results.one_run.store import MARK, write_csv
from hetsim.results.stored_files import digest_of, sealed, unsealed

SCENARIO = """\
name: small
cluster: {nodes: [{cpus: 4, gpus: {type: k20, count: 2}}]}
workload:
  - name: a
    arrivals: {process: poisson, rate: 2/s}
    count: 30
    gpu_time: {distribution: exponential, mean: 700 ms}
"""
drawing_may_fail = pytest.mark.filterwarnings("default::hetsim.errors.PictureWarning")
"""Elsewhere in the tests a picture that fails is an error."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(SCENARIO)
    return tmp_path


def save_nothing(figure: Figure, target: Any, **_: Any) -> None:
    """In the place of `Figure.savefig`."""
    target.write(b"a picture") if hasattr(target, "write") else Path(target).write_bytes(b"a picture")


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the quick tier what can be drawn is drawn and not rendered, which takes most of its time."""
    if not tiers.whole:
        monkeypatch.setattr(Figure, "savefig", save_nothing)
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


@pytest.mark.quick(1)
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
    assert isinstance(load_any("c"), hs.Comparison)


@pytest.mark.slow
@drawing_may_fail
def test_one_failed_picture_does_not_take_the_others(here: Path, unrendered: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("hetsim.plots.distributions")
    found = call("compare", "small.yaml", "--policy", "fcfs", "--policy", "sjf", "--out", "c")
    assert found.exit_code == 0, found.output
    assert re.findall(r"the picture (\S+) could", found.stderr) == ["c/distributions.png"]
    assert {"picture.png", "over_time.png", "fcfs/picture.png"} <= below(here / "c")


@pytest.mark.slow
def test_a_run_that_is_written_again_has_no_picture_of_the_old_one(here: Path, monkeypatch: pytest.MonkeyPatch):
    save(hs.run("small.yaml"), "r")
    assert "picture.png" in below(here / "r")
    monkeypatch.delattr("hetsim.plots.default")
    with pytest.warns(PictureWarning, match="r/picture.png could not be drawn"):
        save(hs.run("small.yaml", seed=5), "r")
    assert "picture.png" not in below(here / "r") and load_any("r").seed == 5


@pytest.mark.slow
def test_a_page_outlives_its_pictures(here: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(_: Any) -> None:
        raise AttributeError("no such font")

    monkeypatch.setattr(elements, "described", fails)
    made = [
        (hs.compare("small.yaml", ["fcfs", "sjf"], replications=2), "metrics by policy"),
        (hs.sweep("small.yaml", {"cluster.nodes.0.cpus": [1, 2, 3]}), "response mean against cluster.nodes.0.cpus"),
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
    found = call("train", "small.yaml", "--agent", "reinforce", "--steps", "40", "--file", "p.npz")
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


@pytest.mark.quick(2)
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
    save(hs.run("small.yaml"), "r", picture=False)
    full(monkeypatch, Path, "write_text")
    with pytest.raises(OSError, match="No space left on device: 'r/summary.json'"):
        save(hs.run("small.yaml", seed=5), "r", picture=False)
    assert load_any("r").seed == 0


def test_a_sweep_on_a_full_disk_says_how_it_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch):
    words = ("sweep", "small.yaml", "--over", "policy=fcfs,sjf", "--workers", "1", "--out", "s")
    with monkeypatch.context() as patch:
        full(patch, os, "write", after=1)  # a run
        found = call(*words)
    assert found.exit_code == 1
    assert re.search(r"^error: s/runs/journal-[\w-]+\.jsonl: No space left on device$", found.stderr, re.MULTILINE)
    assert "the finished runs are in s; --resume continues from there" in found.stderr
    assert len(stored_runs(here / "s")) == 1
    assert call(*words, "--resume").exit_code == 0
    assert len(load_any("s").table) == 2


def test_a_picture_on_a_full_disk_is_a_warning(here: Path, monkeypatch: pytest.MonkeyPatch):
    full(monkeypatch, Figure, "savefig")
    with pytest.warns(PictureWarning, match="the picture r/picture.png could not be drawn: No space left on device"):
        save(hs.run("small.yaml"), "r")
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
    monkeypatch.setattr("hetsim.workload.rows.job_columns.BLOCK", 8)
    assert call("trace", "convert", "log.swf", "first.csv").exit_code == 0
    full(monkeypatch, pickle, "dump")
    found = call("trace", "convert", "log.swf", "second.csv")
    assert found.exit_code == 1 and "error: second.csv: No space left on device" in found.stderr
    assert below(here) == {"small.yaml", "log.swf", "first.csv"}


# Folders of strangers ---------------------------------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", [
    "../evil.py", "record/../../evil.py", "/tmp/evil.py", "", ".", "./tasks.parquet", "a\\..\\b", "c:evil.py", "link",
    "loop", "tasks.parquet/evil.py",
])  # fmt: skip
def test_a_run_names_no_file_outside_its_folder(tmp_path: Path, name: str):
    """Neither one that is read when it is loaded, nor one that is written when it is saved again."""
    folder, evil = tmp_path / "run", tmp_path / "evil.py"
    hs.run(yaml.safe_load(SCENARIO)).save(folder)
    evil.write_text("evil")
    (folder / "link").symlink_to(evil)
    (folder / "loop").symlink_to(folder / "loop")
    about = unsealed(folder / MARK)
    (folder / MARK).write_text(sealed({**about, "files": {**about["files"], name: digest_of(evil)}}, 1))
    before = below(tmp_path)
    with pytest.raises(UsageError, match=r"run\.json is damaged: it names|link out of the folder|symbolic links"):
        hs.Result.load(folder)
    assert below(tmp_path) == before


@pytest.mark.parametrize(("kind", "name"), [
    ("run", MARK), ("compare", MARK), ("sweep", "sweep.json"), ("sweep", "tables.json"), ("sweep", "table.parquet"),
])  # fmt: skip
def test_no_file_of_a_folder_is_a_link_out_of_it(kinds: dict[str, Path], tmp_path: Path, kind: str, name: str):
    file = kinds[kind] / name
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    try:
        with pytest.raises(UsageError, match="link out of the folder"):
            load_any(kinds[kind])
    finally:
        file.unlink()
        (tmp_path / "elsewhere").rename(file)


def test_metadata_of_pandas_that_fit_no_table_are_a_sentence(tmp_path: Path):
    folder = tmp_path / "run"
    hs.run(yaml.safe_load(SCENARIO)).save(folder)
    table = pq.read_table(folder / "tasks.parquet")
    index = '[{"kind": "range", "start": 0, "stop": 9, "step": 1}]'
    text = f'{{"index_columns": {index}, "columns": [], "column_indexes": []}}'
    pq.write_table(table.replace_schema_metadata({"pandas": text}), folder / "tasks.parquet")
    about = unsealed(folder / MARK)
    names = {**about["files"], "tasks.parquet": digest_of(folder / "tasks.parquet")}
    (folder / MARK).write_text(sealed({**about, "files": names}, 1))
    with pytest.raises(UsageError, match=r"tasks\.parquet is damaged: it cannot be read as Parquet"):
        hs.Result.load(folder).tasks  # noqa: B018


@pytest.mark.parametrize("value", [None, 5, "x", [1], {"a": 1}])
@pytest.mark.parametrize(("mark", "key"), [
    (MARK, "files"), (MARK, "warnings"), (MARK, "policies"), ("tables.json", "files"),
])  # fmt: skip
def test_what_a_mark_should_not_hold_is_a_sentence(kinds: dict[str, Path], mark: str, key: str, value: Any):
    folder = kinds[{"policies": "compare"}.get(key, "run" if mark == MARK else "sweep")]
    text = (folder / mark).read_text()
    (folder / mark).write_text(sealed({**unsealed(folder / mark), key: value}, 1))
    try:
        with contextlib.suppress(UsageError):  # no other error
            load_any(folder)
    finally:
        (folder / mark).write_text(text)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each verb that writes runs."""
    folder = tmp_path_factory.mktemp("kinds")
    (folder / "small.yaml").write_text(SCENARIO)
    swept = ["sweep", "--over", "cluster.nodes.0.cpus=1,2"]
    with pytest.MonkeyPatch.context() as patch:  # what its pictures show is asked elsewhere
        patch.setattr(Figure, "savefig", save_nothing)
        patch.setattr(Figure, "draw", lambda *_: None)
        for words in (["run"], ["compare", "--policy", "fcfs", "--policy", "sjf"], swept):
            command = [words[0], str(folder / "small.yaml"), *words[1:], "--out", str(folder / words[0]), "-q"]
            assert call(*command).exit_code == 0
    return {name: folder / name for name in ("run", "compare", "sweep")}


def test_a_run_in_folders_of_folders_is_saved_again(tmp_path: Path):
    folder = tmp_path / "run"
    hs.run(yaml.safe_load(SCENARIO)).save(folder)
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/c").write_text("note")
    about = unsealed(folder / MARK)
    (folder / MARK).write_text(sealed({**about, "files": {**about["files"], "a/b/c": digest_of(folder / "a/b/c")}}, 1))
    hs.Result.load(folder).save(tmp_path / "again")
    assert (tmp_path / "again/a/b/c").read_text() == "note"


@pytest.mark.quick(0)
def test_a_comparison_and_a_sweep_name_no_folder_outside_theirs(here: Path):
    swept = ("sweep", "small.yaml", "--over", "cluster.nodes.0.cpus=1,2")
    for words, mark, key, names in (
        (("compare", "small.yaml", "--policy", "fcfs", "--policy", "sjf"), MARK, "policies", {"fcfs": "../elsewhere"}),
        (swept, "tables.json", "files", {"../small.yaml": "0" * 64}),
    ):
        folder = here / words[0]
        assert call(*words, "--out", str(folder), "--replications", "2").exit_code == 0
        (folder / mark).write_text(sealed({**unsealed(folder / mark), key: names}, 1))
        with pytest.raises(UsageError, match="not a valid path inside its folder"):
            load_any(folder)


# What killed processes left ---------------------------------------------------------------------------------------


def test_what_a_killed_process_left_goes_with_the_next_file(tmp_path: Path):
    """Of this machine, from a process that is gone; a file that another process writes at the moment stays."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    host = files.host_digest()
    kept, lost = (tmp_path / f".hetsim-{host}-{pid}-x.csv" for pid in (os.getppid(), gone.pid))
    kept.touch()
    lost.touch()
    files.write_whole(tmp_path / "table.csv", lambda path: path.write_text("1"))
    assert below(tmp_path) == {"table.csv", kept.name}
    for name in ("first-new", "first-old"):  # of a run: what is being written, and what it was about to replace
        (tmp_path / f".hetsim-{host}-{gone.pid}-{name}-x").mkdir()
    hs.run(yaml.safe_load(SCENARIO)).save(tmp_path / "second")
    assert [path.name[-11:] for path in tmp_path.glob(f".hetsim-{host}-{gone.pid}-*")] == ["first-old-x"]


# Texts from files -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_terminal_obeys_no_name_from_a_file(here: Path):
    """Names of columns, tasks and users come from strangers: what a terminal would obey is written out."""
    (here / "log.csv").write_text(
        "id,submit\x1b[31m,start\x07,gpu\x1b]0;title\x07s,end,\u202euser\n"
        "1,2026-01-01 00:00:00,2026-01-01 00:00:10,1,2026-01-01 00:10:00,\x1b[2Jann\n"
    )
    done = call("trace", "map", "log.csv")
    assert not set(done.output) & set("\x1b\x07\u202e")
    assert yaml.safe_load(done.stdout)["workload"][0]["trace"]["columns"]["arrival"] == "submit\x1b[31m"
    (here / "t.csv").write_text('id,arrival,cpu_time,class\nj,0,1,"a\u009b31m\u202eb"\n')
    inspected = call("trace", "inspect", "t.csv", "--format", "tasks", "--json")
    assert not set(inspected.output) & set("\x9b\u202e")
    assert "a\x9b31m\u202eb" in json.dumps(json.loads(inspected.stdout), ensure_ascii=False)
    assert call("trace", "map", "log.csv", "--mapping", "map.yaml").exit_code == 0
    assert yaml.safe_load((here / "map.yaml").read_text()) == yaml.safe_load(done.stdout)


@pytest.mark.slow
def test_a_picture_of_any_names_is_one_that_can_be_read(here: Path, recwarn: pytest.WarningsRecorder):
    """A control character is not allowed in XML, and no font has one; those of a language are named once."""
    (here / "t.csv").write_text("id,arrival,cpu_time,class\nj\x1b[31m,0,1,a\x07b\nk,0,1,训练\n")
    trace = {"format": "tasks", "path": str(here / "t.csv")}
    scenario = {"name": "p", "cluster": {"nodes": [{"cpus": 1}]}, "workload": [{"trace": trace}]}
    hs.plots.gantt(hs.run(scenario)).save(here / "p.svg")
    by_class = hs.plots.groups(hs.compare(scenario, ["fcfs", "sjf"]).by("class"))
    with pytest.warns(PictureWarning, match="lacks 练 训"):
        by_class.save(here / "groups.svg")
    assert "a\\x07b" in (here / "groups.svg").read_text()
    page = report(hs.run(scenario))
    (packed,) = re.findall(r'id="columns">([^<]*)<', page)
    assert b"a\\\\x07b" in zlib.decompress(base64.b64decode(packed))
    assert not set(page) & set(map(chr, range(32))) - {"\n"}
    for name in ("p", "groups"):
        minidom.parse(str(here / f"{name}.svg"))
    assert not [one for one in recwarn if "Glyph" in str(one.message)]


@pytest.mark.slow
def test_each_kind_of_results_has_its_class_and_load_finds_it(kinds: dict[str, Path], tmp_path: Path):
    """`hs.load` reads all; the class of each kind has a `load` of one type, and reads no other."""
    runs = save(hs.replicate(yaml.safe_load(SCENARIO), replications=2), tmp_path / "replications", picture=False)
    folders = {"Result": kinds["run"], "Comparison": kinds["compare"], "Sweep": kinds["sweep"], "Replications": runs}
    for name, folder in folders.items():
        assert type(hs.load(folder)) is type(load_any(folder)) is getattr(hs, name)
        for other in folders.values():
            if other != folder:
                with pytest.raises(UsageError):
                    getattr(hs, name).load(other)
    assert isinstance(hs.load(kinds["run"] / "scenario.yaml"), hs.Scenario)
