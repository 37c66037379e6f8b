"""Pages of the documentation as programs: what stands in their blocks is run, in order, as a reader would do it.

The blocks of a page share one folder and one Python namespace.

    python    executed
    yaml      validated as a scenario: a whole one as it stands, a part of one put into a small whole one
    console   commands of hetsim, a line each
    output    what the block before it printed: each of its lines must be there ("…" stands for anything)
    others    shown only (text, sh, no language)

A block below a line "Save this as `NAME`" is written there.  One below a sentence with "the tests do not run" is only
shown; the reader sees why.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click.testing

import hetsim as hs
from hetsim import registry
from hetsim.cli.program import hetsim
from hetsim.scenario.file import document

TOP = Path(__file__).parent.parent
SOURCES = os.pathsep.join(str(TOP / name) for name in ("sim", "policies", "scenarios"))
"""As PYTHONPATH: hetsim of this checkout, whichever is installed."""
RUN = ("python", "yaml", "console", "output")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

WHOLE: dict[str, Any] = {
    "horizon": "1 h",
    "cluster": {"nodes": [{"name": "n", "count": 8, "cpus": 32, "gpus": {"type": "a100", "count": 4, "streams": 2}}]},
    "workload": [{"name": "tasks", "arrivals": {"process": "poisson", "rate": "2/h"}, "gpu_time": "5 min"}],
}
"""What stands around a part of a scenario."""


@dataclass
class Block:
    """A fenced block, the line where it begins, and the paragraph above it."""

    language: str
    text: str
    line: int
    above: str

    @property
    def name(self) -> str | None:
        """The file that it is saved as."""
        found = re.findall(r"[Ss]ave this as `([^`]+)`", self.above)
        return found[-1] if found else None

    @property
    def shown_only(self) -> bool:
        return self.language not in RUN or "the tests do not run" in self.above


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        above = text[: match.start()].rstrip().rpartition("\n\n")[2]
        yield Block(match[1], match[2], text.count("\n", 0, match.start()) + 1, above)


class Reader:
    """Does what a page says, in the present folder."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "page"}
        self.said = ""

    def follow(self, page: Path) -> None:
        """Every block in turn; AssertionError with the page and line of the first that does not do."""
        does: dict[str, Callable[[Block], str]] = {
            "python": self.python, "yaml": self.yaml, "console": self.console, "output": self.output,
        }  # fmt: skip
        for block in blocks(page):
            if block.name:
                Path(block.name).write_text(block.text, encoding="utf-8")
            if block.name == "pyproject.toml":
                install(block.text)
            if block.shown_only:
                continue
            try:
                self.said = does[block.language](block)
            except BaseException as error:
                error.add_note(f"{page.name}:{block.line}")
                raise

    def python(self, block: Block) -> str:
        if block.name and "run it" not in block.above:
            return ""  # a module, which later blocks import
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block.text, f"line {block.line}", "exec"), self.namespace)
        return said.getvalue()

    def console(self, block: Block) -> str:
        said = []
        for line in re.sub(r"\\\n", " ", block.text).splitlines():
            program, *arguments = shlex.split(line, comments=True)
            assert program == "hetsim", line
            with mock.patch.dict(registry._registered, clear=True):  # a shell knows nothing of a Python session
                done = click.testing.CliRunner().invoke(hetsim, arguments, prog_name="hetsim")
            assert done.exit_code == 0, f"{line}\n{done.output}"
            said.append(done.output)
        return "".join(said)

    def output(self, block: Block) -> str:
        said = [" ".join(line.split()) for line in self.said.splitlines()]
        for line in filter(None, (" ".join(line.split()) for line in block.text.splitlines())):
            if line != "…":
                pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
                assert any(pattern.fullmatch(one) for one in said), f"not said: {line}\n{self.said}"
        return self.said

    def yaml(self, block: Block) -> str:
        if not block.name:
            check(block.text)
        elif block.name.endswith((".yaml", ".yml")):
            hs.load(block.name)
        return ""


def install(project: str) -> None:
    """What `pip install -e .` of a project in this folder does, as far as pages need it: its entry points are found."""
    described = tomllib.loads(project)["project"]
    folder = Path(f"{described['name'].replace('-', '_')}-{described['version']}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {described['name']}\nVersion: {described['version']}\n")
    lines = []
    for group, points in described["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines))
    importlib.invalidate_caches()
    registry.of_packages.cache_clear()


def check(text: str) -> None:
    """A whole scenario, or a part of one in its place, is valid."""
    part = document.parse(text).data
    if "gpus" in part:  # of a node
        part = {"cluster": {"nodes": part}}
    if "price" in part or "nodes" in part:
        part = {"cluster": part}
    whole = {**WHOLE, **part}
    if "sweep" in part:  # its keys name parts of a scenario that is not there
        del whole["sweep"]
    hs.load(whole)
