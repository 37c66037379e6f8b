"""Shared by all tests: the quick tier and the whole suite, and a registry that forgets what a test registered."""

from __future__ import annotations

import argparse
import copy
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a worker has a core: more threads only wait for one another
TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "sim" / "hetsim"
vars(os)["fsync"] = lambda handle: None  # what tests write need not outlast a power cut
TEST_SECONDS = 900
"""A test may take so long: on two shared cores the longest take minutes."""
sys.path[:0] = [str(TESTS), *sorted({str(file.parent) for file in TESTS.glob("*/test_*.py")})]  # tests share pieces
if "PYTHONPATH" in os.environ:  # of a test that starts a process in a folder of its own, too
    places = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(place) for place in places)

import tiers  # noqa: E402
import touched  # noqa: E402

REAL_SLURM = Path(__file__).parent / "oracle" / "test_real_slurm.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="the whole suite: slow tests too, and all examples")
    parser.addoption("--every-case", action="store_true", help="all cases of tests that are marked quick(N)")
    parser.addoption("--costs", metavar="FILE", help="add a line for each test: its processor seconds (tests/costs.py)")
    parser.addoption("--gallery", action="store_true", help="the gallery of published results, whole: an hour or more")
    parser.addoption("--slurm", action="store_true", help="next to real Slurm, where its daemons are: twenty minutes")
    parser.addoption("--nightly", nargs="?", const="1/1", type=part, metavar="I/N",
                     help="the nightly tests, or the I-th of N parts; with --all next to the others")  # fmt: skip


def part(text: str) -> tuple[int, int]:
    """"2/3" as numbers: the second of three parts."""
    place, _, count = text.partition("/")
    if not (place.isdigit() and count.isdigit() and 1 <= int(place) <= int(count)):
        hint = "I/N with I from 1 to N is meant, such as --nightly=2/3 (files come before a bare --nightly)"
        raise argparse.ArgumentTypeError(f"{hint}, not {text!r}")
    return int(place), int(count)


def other_sources() -> str:
    """Why hetsim is not that of this checkout, nor compiled from it; empty if it is."""
    hint = f"pip install -e '.[test]' in {TESTS.parent}, or PYTHONPATH=sim:policies:scenarios there"
    try:
        import hetsim
    except ModuleNotFoundError:
        return f"hetsim is not installed: {hint}"
    found = Path(str(hetsim.__file__)).parent
    if getattr(hetsim, "__build__", "interpreted") == "compiled" and all(
        path.read_bytes() == (found / path.relative_to(SOURCES)).read_bytes() for path in SOURCES.rglob("*.py")
    ):
        return ""
    return "" if found.samefile(SOURCES) else f"the tests are of {SOURCES}, and `import hetsim` gives {found}: {hint}"


def pytest_configure(config: pytest.Config) -> None:
    """The whole, too, where markers are chosen (-m) or a test is named by its node id."""
    if wrong := other_sources():
        pytest.exit(wrong, returncode=4)
    named = any("::" in argument for argument in config.args)
    tiers.whole = config.getoption("--all") or bool(config.option.markexpr) or named or bool(config.option.nightly)
    if sys.version_info >= (3, 12):
        config.pluginmanager.register(touched.Touched())
    if config.getoption("--costs"):
        import costs

        config.pluginmanager.register(costs.Costs(os.path.abspath(config.getoption("--costs"))))
    if getattr(config, "workerinput", {}).get("by_test"):
        import schedule

        schedule.send_by_test(config)
    gc.disable()  # a tenth of the time of collecting; pytest_collection_finish puts it on again
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
        return LastFirst.from_parent(parent, path=path) if TESTS in (path, path.parent) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        items.sort(key=lambda item: item.path)  # all workers have to name the tests in the same order
        yield


class LastFirst(pytest.Dir):
    """A folder whose last module, or folder, comes first."""

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return [*super().collect()][::-1]


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    named = any("::" in argument for argument in config.args)
    if not config.getoption("--every-case"):
        tiers.mark_slow_cases(items)
    for item in items:
        group = tiers.runs_shared(item.path.stem, item.name, getattr(item, "fixturenames", ()))
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    tiers.mark_nightly_cases(items)
    if config.getoption("--gallery") or not named:
        asked = bool(config.getoption("--gallery"))
        _keep(config, items, lambda item: bool(item.get_closest_marker("gallery")) == asked)
    if config.option.nightly:
        place, count = config.option.nightly
        nightly = [tiers.unit_of(item) for item in items if item.get_closest_marker("nightly")]
        parts = tiers.parts_of(nightly, count)
        others = config.getoption("--all")
        _keep(config, items, lambda item: parts[tiers.unit_of(item)] == place - 1
              if item.get_closest_marker("nightly") else others)  # fmt: skip
    elif not named:
        real = config.getoption("--slurm")
        _keep(config, items, lambda item: not item.get_closest_marker("nightly") or real and item.path == REAL_SLURM)
    if not tiers.whole:
        _keep(config, items, lambda item: not item.get_closest_marker("slow"))
    if hasattr(config, "workerinput"):
        items[:] = [items[position] for position in tiers.longest_first([tiers.unit_of(item) for item in items])]
        for item in items:
            mark = item.get_closest_marker("xdist_group")
            if mark and hasattr(item, "_id"):
                # The scheduler of pytest-xdist knows a group by the end of a node's id, which version 3.8 writes where
                # pytest 9.2 no longer looks: without this, what a group shares is made once for each test.
                item._id = type(item._id).parse(f"{item.nodeid}@{mark.args[0]}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Agree with a process that runs tests on one message a test."""
    import schedule

    schedule.receive_by_test(node)
    node.workerinput["by_test"] = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Groups as `--dist loadgroup` makes them, without its search through all tests after each of them."""
    if config.option.dist != "loadgroup":
        return None
    import schedule

    config.option.loadscopereorder = False  # the workers have sorted the tests
    return schedule.Groups(config, log)


def _keep(config: pytest.Config, items: list[pytest.Item], wanted: Callable[[pytest.Item], bool]) -> None:
    """Keep the tests that are wanted and deselect the others."""
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        (kept if wanted(item) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = kept


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what nightly tests cut off (`record_property("over 12 s", ...)`)."""
    reports = [report for group in ("passed", "failed") for report in terminalreporter.getreports(group)]
    over = [text for report in reports for name, text in report.user_properties if name == "over 12 s"]
    if over:
        terminalreporter.section("cut off after 12 s of processor time")
        for text in over:
            terminalreporter.line(text)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test that hangs fail: without this, the run would end without a word of which it was."""
    signal.signal(signal.SIGALRM, _too_long)
    seconds = 4 * TEST_SECONDS if item.config.getoption("--slurm") else TEST_SECONDS
    signal.setitimer(signal.ITIMER_REAL, seconds, 10)  # again: what ends a test may hang as well
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the test took over {TEST_SECONDS} s")


def pytest_collection_finish() -> None:
    """Thousands of tests and all that was imported stay; the garbage collector need not look at them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def second_opinion() -> Generator[None]:
    """In each run of the conformance suite the answers of the view are reckoned a second time."""
    conformance = sys.modules.get("hetsim.testing.conformance")
    with pytest.MonkeyPatch.context() as patch:
        if conformance is not None:
            import witness

            # Classes: a function of ours in a module of hetsim would count with the code of every policy.
            patch.setattr(conformance, "WatchedScheduler", witness.WitnessedScheduler)
            patch.setattr(conformance, "WatchedPlanner", witness.WitnessedPlanner)
        yield


@pytest.fixture(autouse=True)
def only_shipped_policies():
    """What a test registers is gone after it."""
    from hetsim import registry

    before = copy.deepcopy(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)
