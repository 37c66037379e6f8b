"""Shared by all tests: the quick tier and the whole suite, and a registry that forgets what a test registered."""

from __future__ import annotations

import copy
import gc
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a worker has a core: more threads only wait for one another
TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

import tiers  # noqa: E402
import touched  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the whole suite: slow tests too, and all examples")
    parser.addoption("--gallery", action="store_true", help="the gallery of published results, whole: an hour or more")


def pytest_configure(config: pytest.Config) -> None:
    """The whole, too, where markers are chosen (-m) or a test is named by its node id."""
    named = any("::" in argument for argument in config.args)
    tiers.whole = config.getoption("--all") or bool(config.option.markexpr) or named
    if sys.version_info >= (3, 12):
        config.pluginmanager.register(touched.Touched())
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if config.args_source.name == "TESTPATHS" and worker[-1] in "13579":
        config.pluginmanager.register(Backwards())


def pytest_report_header() -> str:
    return "tests: the whole suite" if tiers.whole else "tests: the quick tier (pytest --all runs the slow tests too)"


class Backwards:
    """A plugin for every second worker: it imports the modules from the last one on, and meets the others half-way.

    After a change, and on a fresh clone, each of two then compiles half of them, and reads what the other has written.
    """

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        return LastFirst.from_parent(parent, path=path) if path == TESTS else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        items.sort(key=lambda item: item.path)  # all workers have to name the tests in the same order
        yield


class LastFirst(pytest.Dir):
    """A folder whose last module comes first."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return [*super().collect()][::-1]


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole_gallery = config.getoption("--gallery")
    others = [item for item in items if bool(item.get_closest_marker("gallery")) != whole_gallery]
    named = any("::" in argument for argument in config.args)
    if whole_gallery or not named:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if bool(item.get_closest_marker("gallery")) == whole_gallery]
    for item in items:
        group = tiers.runs_shared(item.path.stem, item.name, getattr(item, "fixturenames", ()))
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
        mark = item.get_closest_marker("xdist_group")
        if mark and hasattr(config, "workerinput") and hasattr(item, "_id"):
            # The scheduler of pytest-xdist knows a group by the end of a node's id, which version 3.8 writes where
            # pytest 9.2 no longer looks: without this, what a group shares is made once for each test.
            item._id = type(item._id).parse(f"{item.nodeid}@{mark.args[0]}")
    if not tiers.whole:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def pytest_collection_finish() -> None:
    """Thousands of tests and all that was imported stay; the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def only_shipped_policies():
    """What a test registers is gone after it."""
    from sim import registry

    before = copy.deepcopy(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of a page are drawn but not rendered, which takes most of its time."""
    from sim.errors import UsageError

    def drawn(draw: Callable[[], Any], alt: str, caption: str = "", *, optional: bool = False) -> str:
        try:
            draw()
        except UsageError:
            if not optional:
                raise
            return ""
        return f"<p>{alt}</p>"

    monkeypatch.setattr("sim.report.html.elements.picture", drawn)
