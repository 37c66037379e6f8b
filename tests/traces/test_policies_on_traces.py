"""Every policy on every trace that ships, over a short horizon: it runs, or refuses with a sentence; nothing crashes.

A trace is read once for all policies of a kind.
Cells that take more than 12 s of processor time are cut off and listed at the end.  Run by `pytest --nightly`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import hetsim as hs
from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.scenario.scenario import Scenario, load

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "hetsim_scenarios"
TASKS = 12
"""The first of each trace; of a task graph all."""
MORE = {"jobs-of-a-site": 100, "hpc-log-on-nodes": 150}
"""Until a queue has formed, by scenario."""
SMALLER = {"fgd": {"cluster.trace.path": "../clusters/pods-nodes.csv"}, "braun": {"horizon": "3 h"}}
"""A cluster with fewer nodes, and three hours of tasks that take weeks, in which policies decide each minute."""
MAX_SECONDS = 12.0
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The quickest there is: each process that collects the tests reads all scenarios."""


def traces() -> Iterator[tuple[Path, dict[str, Any]]]:
    """A scenario for each trace that is shipped, and what makes it short."""
    seen = set()
    for path in sorted(SCENARIOS.glob("*/*.yaml")):
        text = path.read_text(encoding="utf-8")
        if "trace:" not in text:
            continue
        workload = yaml.load(text, LOADER).get("workload", [])
        entries = workload if isinstance(workload, list) else [workload]
        short: dict[str, Any] = {}
        for position, entry in enumerate(entries):
            where = f"workload.{position}"
            spec = entry.get("trace")
            name = spec and str({**spec, "path": (path.parent / spec["path"]).resolve()})
            if name and name not in seen:
                seen.add(name)
                short |= {f"{where}.count": MORE.get(path.stem, TASKS), f"{where}.resample": None}
        if short:
            yield path, short | SMALLER.get(path.stem, {})


def whole_graphs(first: Scenario, short: dict[str, Any]) -> dict[str, Any]:
    """Without the count of entries that read a task graph, which cannot be cut."""
    graphs = {f"workload.{entry}.count" for entry in first.traces if first.table(entry).predecessors is not None}
    return {key: value for key, value in short.items() if key not in graphs}


def on(first: Scenario, policy: Any, short: dict[str, Any]) -> Scenario:
    """The scenario of a policy, with the traces that the first one has read."""
    scenario = first.with_overrides({"policy": policy, **short})
    for entry in scenario.traces:
        scenario.share_table(entry, first.table(entry))
    return scenario


class OutOfTime(BaseException):
    """Not an Exception: the engine would say that the policy raised it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """OutOfTime after so much processor time."""

    def stop(*_: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


POLICIES: dict[str, Callable[[str], Any]] = {
    "scheduler": lambda name: name,
    "placement": lambda name: {"scheduler": {"name": "fcfs_skip", "placement": name}},
    "admission": lambda name: {"scheduler": "fcfs_skip", "admission": name},
    "batching": lambda name: {"batching": name},
    "routing": lambda name: {"routing": name},
}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize(("path", "short"), [pytest.param(*row, id=row[0].stem) for row in traces()])
def test_a_policy_runs_on_a_trace_or_says_why_not(path, short, kind, record_property):
    crashes = []
    first = load(path, short)
    short = whole_graphs(first, short)
    for name in registry.policies(kind):
        try:
            with at_most(MAX_SECONDS):
                hs.run(on(first, POLICIES[kind](name), short))
        except ScenarioError as error:
            if len(str(error).split()) < 4:
                crashes.append(f"{name} refuses without a sentence: {error}")
        except OutOfTime:
            record_property("over 12 s", f"{name} on {path.stem}")
        except Exception as error:
            crashes.append(f"{name}: {type(error).__name__}: {error}")
    assert not crashes, "\n" + "\n".join(crashes)
