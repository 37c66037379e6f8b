"""With `audit` each file that a run opens and its scenario does not name is told; shipped scenarios and readers open
none, as Python sees it and as the system does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from stored import stored_runs
from test_cluster_traces import INSTANCES, JOBS, THROUGHPUTS
from test_inputs import BASE, LINUX, OPENED, ROWS, in_fork, traced, write
from test_trace_damage import EXAMPLES, MAPPING, PROFILE

import hetsim as hs
from hetsim import registry
from hetsim.cli import main
from hetsim.model.files import open_input, recorded_inputs, watch_opens
from hetsim.scenario.file import document
from hetsim.scenario.file.shipped import shipped
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.workload import check_traces

SAID = "opened files that the scenario does not name: s.txt"
TUNED = {**BASE, "policy": {"scheduler": "mine"}}


# What users see -------------------------------------------------------------------------------------------------------


def audited(folder: Path, verb: str, before: tuple[str, ...] = (), **given: Any) -> tuple[list[str], Any]:
    """The warnings of a verb and what it gives, in a process of its own, with an audit of other verbs before; the
    policy opens s.txt as it runs."""

    def call() -> tuple[list[str], Any]:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        registry.register("mine", __import__("mypol").mine)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for other in before:
                getattr(hs, other)(TUNED, audit=True, **({"over": {"seed": [1]}} if other == "sweep" else {}))
            told.clear()
            found = getattr(hs, verb)(TUNED, **given)
        table = found.table["warnings"].tolist() if verb == "sweep" else list(getattr(found, "warnings", ()))
        return [str(one.message) for one in told if "ResourceWarning" not in str(one.category)], table

    return in_fork(call)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, {"mypol.py": OPENED, "s.txt": "1"})
    return tmp_path


@pytest.mark.slow
@LINUX
def test_a_run_tells_what_it_opened_only_if_asked(folder: Path):
    assert audited(folder, "run")[1] == []
    assert audited(folder, "run", audit=True)[1] == [SAID]
    assert audited(folder, "run", before=("run", "sweep"))[1] == []
    assert audited(folder, "replicate", audit=True, replications=2)[1] == [
        f"replication 0: {SAID}", f"replication 1: {SAID}",
    ]  # fmt: skip


@pytest.mark.quick(1)
@LINUX
@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_tells_what_its_runs_opened(folder: Path, workers: int):
    told, table = audited(folder, "sweep", over={"seed": [1, 2]}, audit=True, workers=workers, cache="cache")
    assert table == [SAID, SAID]
    assert sum(text.startswith(SAID) for text in told) == 1
    assert [outcome.unknown for outcome in stored_runs(folder / "cache").values()] == [SAID, SAID]


@pytest.mark.slow
@LINUX
def test_searches_tell_it_too(folder: Path):
    told, _ = audited(folder, "tune", over={"cluster.nodes.cpus": [4, 5]}, audit=True)
    assert [text for text in told if text.startswith(SAID)] == [f"{SAID}; such runs have unknown inputs"]


IMPORTED = "from pathlib import Path\nS = float(Path('s.txt').read_text())\n\ndef mine(task):\n    return S * task.id\n"


@pytest.mark.quick(1)
@LINUX
@pytest.mark.parametrize(("verb", "text"), [
    pytest.param("run", OPENED, marks=pytest.mark.slow), ("run", IMPORTED),
    pytest.param("compare", OPENED, marks=pytest.mark.slow), ("sweep", OPENED),
])  # fmt: skip
def test_commands_take_the_flag(folder: Path, verb: str, text: str):
    """Of a run also what is opened while its scenario is loaded."""
    write(folder, {"mypol.py": text, "d.yaml": yaml.safe_dump(BASE)})
    given = {"sweep": ["--over", "seed=1", "--policy", "mine"], "compare": ["--policy", "mine", "--policy", "fcfs"]}

    def call(*more: str) -> str:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        registry.register("mine", "mypol:mine")
        return CliRunner().invoke(main, [verb, "d.yaml", *given.get(verb, []), *more]).output

    assert SAID in in_fork(lambda: call("--audit"))
    assert SAID not in in_fork(call)


@LINUX
def test_a_file_is_told_wherever_it_lies_but_for_packages(tmp_path: Path):
    """Also below the prefix of Python, which is the whole of /usr for some."""
    write(tmp_path, {"prefix/lib/data.txt": "1", "site-packages/theirs/data.txt": "1", "named.txt": "1"})

    def seen() -> tuple[list[str], list[str]]:
        sys.prefix = str(tmp_path / "prefix")
        watch_opens()
        with recorded_inputs() as found:
            open_input(tmp_path / "named.txt").close()
            for name in ("prefix/lib/data.txt", "site-packages/theirs/data.txt"):
                (tmp_path / name).read_text()
        return [path.name for path in found.opened], [str(path.relative_to(tmp_path)) for path in found.seen]

    assert in_fork(seen) == (["named.txt"], ["named.txt", "prefix/lib/data.txt"])


# Nothing shipped opens what it does not name ------------------------------------------------------------------------


@pytest.mark.quick(9)
@pytest.mark.parametrize("form", sorted({*EXAMPLES, "parquet"}))
@LINUX
def test_readers_open_what_they_are_given(form: str, tmp_path: Path):
    """By the hook, which sees what pandas and others open by a path of theirs in Python."""
    keys: dict[str, Any] = {"path": "log"}
    if form == "parquet":
        pd.DataFrame({"at": ["2026-01-01", "2026-01-02"], "took": [1, 2], "gpus": [1, 1]}).to_parquet(tmp_path / "log")
    else:
        (tmp_path / "log").write_text(EXAMPLES[form])
    if form in ("csv", "jsonl", "parquet"):
        keys |= MAPPING
    if form == "gavel":
        keys["throughputs"] = "throughputs.json"
        write(tmp_path, {"throughputs.json": THROUGHPUTS})
    if form == "pollux":
        keys["profiles"] = "profiles"
        write(tmp_path, {f"profiles/net/{name}": text for name, text in PROFILE.items()})
    if form == "pai":
        keys |= {"jobs": "jobs.csv", "instances": "instances.csv"}
        write(tmp_path, {"jobs.csv": JOBS, "instances.csv": INSTANCES})

    def read() -> tuple[list[str], list[str], list[Any]]:
        watch_opens()
        entry = {"workload": [{"name": "jobs", "trace": {"format": form, **keys}}]}
        with recorded_inputs() as inputs:
            specs, problems = check_traces(document.from_mapping(entry), tmp_path)
            table = specs[0].read()
        named = {*map(os.path.abspath, inputs.paths)}
        inside = {str(inner) for path in map(Path, named) if path.is_dir() for inner in path.rglob("*")}
        opened = {*map(os.path.abspath, table.opened)}
        return sorted(opened - named - inside), sorted(map(os.path.basename, opened)), problems

    unknown, opened, problems = in_fork(read)
    assert (unknown, problems) == ([], [])
    assert "log" in opened


@pytest.mark.nightly
@pytest.mark.parametrize("theme", sorted({one.theme for one in shipped()}))
@LINUX
def test_shipped_scenarios_open_what_they_name_to_the_end(theme: str):
    def found() -> dict[str, list[str]]:
        runs = {one.name: hs.run(one.path, audit=True) for one in shipped() if one.theme == theme}
        return {name: run.undeclared for name, run in runs.items() if run.undeclared}

    assert in_fork(found) == {}


# As the system sees it ------------------------------------------------------------------------------------------------

COMMAND = "from hetsim.cli import main; main()"


def system_opens(folder: Path, code: str, *arguments: str) -> set[Path]:
    """The files below a folder that Python code opens to read, run there under strace."""
    log = folder.parent / "strace.log"
    line = ["strace", "-f", "-qq", "-e", "trace=open,openat", "-o", str(log), sys.executable, "-B", "-c", code]
    done = subprocess.run([*line, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip(f"strace may not watch processes here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    found = set()
    for call in log.read_text(errors="replace").splitlines():
        name, _, rest = call.partition('"')[2].partition('"')
        path = Path(os.path.normpath(folder / name))
        reads = "O_DIRECTORY" not in rest and "O_WRONLY" not in rest and "= -1" not in rest
        if name and reads and path.is_relative_to(folder) and path.is_file():
            found.add(path)
    return found


def declared(path: Path) -> set[Path]:
    """The file of a scenario, and those that it records as its inputs."""
    scenario = load(path)
    return {path, *(Path(os.path.normpath(one)) for one in scenario.files if one.is_file())}


STRACE = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
WATCHED = ["pollux", "gavel", "splitwise", "jobs-of-a-site", "hpc-log-on-nodes", "learned-affinity", "npu-and-gpu"]


@STRACE
@pytest.mark.nightly
@pytest.mark.parametrize("name", WATCHED)
def test_the_system_sees_the_files_that_are_recorded_and_no_others(name: str, tmp_path: Path):
    """Of shipped scenarios that name files of several kinds: libraries in C++ open past Python's hook."""
    (one,) = [one for one in shipped() if one.name == name]
    shutil.copytree(one.path.parent, tmp_path / "there")
    path = tmp_path / "there" / one.path.name
    assert len(declared(path)) > 1
    assert system_opens(path.parent, COMMAND, "run", path.name) == declared(path)


@STRACE
@pytest.mark.slow
def test_the_system_sees_what_a_library_opens_by_a_path(tmp_path: Path):
    """So the comparison above can fail."""
    files = {"d.yaml": yaml.safe_dump(traced("tasks", path="jobs.csv")), "jobs.csv": ROWS.format(*9 * "1")}
    write(tmp_path / "there", {**files, "other.csv": "x\n1\n"})
    path = tmp_path / "there" / "d.yaml"
    hidden = f"import pyarrow.csv; pyarrow.csv.read_csv('other.csv'); {COMMAND}"
    assert system_opens(path.parent, hidden, "run", "d.yaml") - declared(path) == {path.parent / "other.csv"}
    assert system_opens(path.parent, COMMAND, "run", "d.yaml") == declared(path)
