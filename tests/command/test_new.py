"""`hetsim new`: the folders that it makes work as their READMEs say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pages
import pytest
from click.testing import CliRunner, Result

from hetsim.cli import main
from hetsim.cli.listing import KINDS

TEMPLATES = Path(__file__).parents[2] / "scenarios" / "hetsim_scenarios" / "templates"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="hetsim")


def commands(folder: Path) -> list[list[str]]:
    """The commands that the README of a folder proposes."""
    (block,) = re.findall(r"(?ms)^```sh\n(.*?)^```", (folder / "README.md").read_text())
    return [shlex.split(line) for line in block.splitlines()]


def test_each_kind_has_its_files() -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == set(KINDS)
    for kind in KINDS:
        names = {path.name for path in (TEMPLATES / kind).iterdir()} - {"__pycache__", ".pytest_cache"}
        assert {"README.md", "scenario.yaml"} <= names
        assert len(commands(TEMPLATES / kind)) == 3


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", [
    "graph", "log", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("serving", "language-model", "policy"))
])  # fmt: skip
def test_the_commands_of_its_readme_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    made = call("new", str(folder), "--kind", kind)
    assert made.exit_code == 0, made.output
    names = {path.name for path in folder.iterdir()}
    assert made.stdout.splitlines() == sorted(str(folder / name) for name in names)
    monkeypatch.chdir(folder)
    assert call("validate", "scenario.yaml").exit_code == 0
    for program, *words in commands(folder):
        if program == "hetsim":
            done = call(*words)
            assert done.exit_code == 0, done.output
            continue
        start = {"python": [sys.executable], "pytest": [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]}
        env = {**os.environ, "PYTHONPATH": pages.SOURCES}
        process = subprocess.run([*start[program], *words], env=env, capture_output=True, text=True)
        assert process.returncode == 0, process.stdout + process.stderr
        assert ("patient_sjf" if program == "python" else "2 passed") in process.stdout


@pytest.mark.slow
def test_a_policy_that_is_wrong_fails_its_test(tmp_path: Path) -> None:
    """The test of the template notices a policy that is no longer what it says."""
    assert call("new", str(tmp_path / "mine"), "--kind", "policy").exit_code == 0
    policy = tmp_path / "mine" / "my_policy.py"
    policy.write_text(policy.read_text().replace("view.now - task.ready > self.patience", "False"))
    words = ["-p", "no:cacheprovider", "-q", "test_my_policy.py", "-k", "order_of_arrival"]
    env = {**os.environ, "PYTHONPATH": pages.SOURCES}
    start = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(start, cwd=tmp_path / "mine", env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout


def test_without_a_kind_all_are_listed_and_nothing_is_written(tmp_path: Path) -> None:
    done = call("new", str(tmp_path / "mine"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert all(f"--kind {kind}" in done.stderr for kind in KINDS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert call("new", str(tmp_path / "empty"), "--kind", "log").exit_code == 0
    before = (tmp_path / "empty" / "jobs.csv").stat().st_mtime_ns
    done = call("new", str(tmp_path / "empty"), "--kind", "serving")
    assert (done.exit_code, "must be an empty or new folder; nothing was written" in done.stderr) == (2, True)
    assert (tmp_path / "empty" / "jobs.csv").stat().st_mtime_ns == before
    (tmp_path / "file").write_text("mine")
    assert call("new", str(tmp_path / "file"), "--kind", "log").exit_code == 2
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert call("new", str(tmp_path / "link"), "--kind", "log").exit_code == 2
    assert not (tmp_path / "elsewhere").exists()
