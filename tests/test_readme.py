"""The README does what it says: its scenario, commands and Python blocks run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from yaml import safe_load as parse

import sim

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    scenario = blocks("yaml")[0]
    (folder / "mix.yaml").write_text(scenario, encoding="utf-8")
    return folder


def test_every_command_runs(folder):
    (commands,) = blocks("console")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "hetsim"
        code = "import sys; from sim.cli import main; sys.argv[0] = 'hetsim'; main()"
        done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert done.stdout


def test_every_python_block_runs():
    """In order, in one namespace, as a reader would type them."""
    namespace: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), namespace)


def test_the_service_runs():
    """The part of a scenario that shows a service, with a cluster and a horizon around it."""
    (_, service) = blocks("yaml")
    around = "horizon: 5 s\ncluster: {nodes: {cpus: 4, gpus: {type: g, streams: 2}}}\n"
    result = sim.run(parse(around + service), check=True)
    assert result.metric("completed") > 2000
    assert "async_linear" in result.policy


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target
