"""The quick tier touches every module: of each, it runs at least one function.

Python tells so from version 3.12 on, at no cost; on 3.11 nothing is watched.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

TOP = Path(__file__).parent.parent
TOOL = 4
"""Of the numbers that Python gives to tools, one that neither a debugger, coverage nor a profiler takes."""

EXTRAS = {"sim/hetsim/calibrate/torch_device.py": "torch", "sim/hetsim/learning/agents/learners.py": "sb3_contrib"}
"""Modules of which nothing can run without a package that the tests do not install."""


class Touched:
    """A plugin for pytest: notes in all workers which functions run, and fails a full run that missed a module."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        monitoring.use_tool_id(TOOL, "hetsim")
        monitoring.register_callback(TOOL, monitoring.events.PY_START, self.started)
        monitoring.set_events(TOOL, monitoring.events.PY_START)

    def started(self, code: CodeType, offset: int) -> Any:
        if code.co_flags & CO_OPTIMIZED:  # a function: neither a module nor the body of a class
            self.files.add(code.co_filename)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined,unused-ignore]

    def missing(self) -> list[str]:
        """Modules that define functions, none of which ran."""
        absent = {name for name, package in EXTRAS.items() if find_spec(package) is None}
        found = []
        for path in [*(TOP / "sim").rglob("*.py"), *(TOP / "policies").rglob("*.py")]:
            name = path.relative_to(TOP).as_posix()
            defines = re.search(r"^ *def ", path.read_text(encoding="utf-8"), re.MULTILINE)
            if defines and name not in absent and str(path) not in self.files:
                found.append(name)
        return sorted(found)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.files.update(getattr(node, "workeroutput", {}).get("touched", ()))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["touched"] = [file for file in self.files if file.startswith(str(TOP))]
        elif everything(session.config) and session.exitstatus == 0 and (missed := self.missing()):
            session.config.get_terminal_writer().line("\nno test runs a function of " + ", ".join(missed), red=True)
            session.exitstatus = 1


def everything(config: pytest.Config) -> bool:
    """No tests were chosen: all of a tier runs."""
    options = config.option
    return config.args_source.name == "TESTPATHS" and not (options.keyword or options.markexpr or options.deselect)
