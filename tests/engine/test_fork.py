"""Forks of runs in mid-flight: they end with the original's bytes, and the original never notices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import chaotic, services
from test_shipped_scenarios import short
from tiers import spread

from hetsim.engine.flight.launch import Lane, Launch
from hetsim.engine.fork import Copier
from hetsim.engine.resources.occupancy import GpuState, NodeState
from hetsim.engine.simulation import Simulation
from hetsim.errors import HetsimError
from hetsim.model.task import Task
from hetsim.scenario.file.shipped import shipped
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.policy import PolicySpec
from hetsim.testing.conformance import fingerprint
from hetsim.testing.generate import random_system

Build = Callable[[], Any]


def a_round(run: Simulation) -> bool:
    """One round of decisions; False when the run is over."""
    if not run.advance():
        return False
    for decision in run.input.scheduler.schedule(run.view):
        run.apply(decision)
    return True


def end(run: Simulation) -> str:
    """What a run comes to: a digest of its columns, or what it is refused for."""
    try:
        return fingerprint(run.run())
    except HetsimError as error:
        return str(error)


def look(build: Build, seed: int = 0, forks: int = 2) -> None:
    """Forks at random rounds, one of them forked again, run to their ends before the original goes on."""
    whole = Simulation(build())
    expected = end(whole)
    random = np.random.default_rng(seed)
    run = Simulation(build())
    at = np.sort(random.integers(0, max(1, whole.state.rounds), forks)).tolist()
    for rounds in at:
        while run.state.rounds < rounds:
            assert a_round(run)
        first, second = run.fork(), run.fork()
        assert end(first) == expected
        further = min(rounds + int(random.integers(1, 20)), whole.state.rounds - 1)
        while second.state.rounds < further:
            assert a_round(second)
        assert end(second.fork()) == expected
    assert end(run) == expected


@pytest.mark.parametrize("kind", [Task, Launch, Lane, GpuState, NodeState], ids=lambda kind: kind.__name__)
def test_classes_that_fill_their_copies_leave_no_field_out(kind: Any) -> None:
    names = {name for base in kind.__mro__ for name in vars(base).get("__slots__", ())}
    if not names:
        pytest.skip("a compiled class names no slots; the same source is checked without compiling")
    old, new = kind.__new__(kind), kind.__new__(kind)
    for name in names:
        setattr(old, name, [name, name])
    kind.fill_copies([old], [new], list)
    assert not {name for name in names if getattr(new, name) != [name, name]}


@pytest.mark.parametrize("value", [1, [1]])
def test_ordered_dictionaries_are_copied_with_their_order(value: Any) -> None:
    copied = Copier({}).copy(OrderedDict.fromkeys("abc", value))
    copied.move_to_end("a")
    assert [copied.popitem(last=False)[0] for _ in "abc"] == ["b", "c", "a"]


def named(cases: Any) -> list[Any]:
    return [pytest.param(build, id=name) for name, build in cases]


@pytest.mark.quick(1)
@pytest.mark.parametrize("build", spread(named(chaotic(40)), 6))
def test_random_decisions_and_faults(build: Build) -> None:
    look(build)


@pytest.mark.quick(2)
@pytest.mark.parametrize("build", spread(named(services()), 8))
def test_batches_of_requests(build: Build) -> None:
    look(build)


POLICIES = ("fcfs", "srtf", "easy_backfill", "conservative_backfill", "heteroprio", "dmda", "drf", "round_robin")


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", spread(range(32), 8))
def test_random_systems(seed: int) -> None:
    policy = POLICIES[seed % len(POLICIES)]
    look(lambda: random_system(seed, nodes=1 + seed % 4).run_input(PolicySpec("scheduler", policy).make()), seed)


LONG = {"four-generations", "cnn-alone", "fgd", "two-jobs-on-one-gpu", "elastic-training"}
"""Scenarios that take long and have nothing that others have not."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in shipped() if one.name not in LONG])
def test_shipped(name: str) -> None:
    look(lambda: load(name, short(name, 20)).build(None, 0), forks=1)
