"""The engine against the one before it, which went through every stage by events: tables equal to the last bit."""

from __future__ import annotations

import pytest
from oracle import compare
from tiers import spread

from sim.engine.simulation import Simulation

SERVICES = dict(compare.services())
OFTEN = ("fcfs_skip", "srtf", "round_robin", "heft")
SYSTEMS = {name: build for name, build in compare.systems() if name.endswith(OFTEN)}
CHAOS = dict(compare.chaotic(40))
RANDOM = dict(compare.random_systems(12))


def check(build):
    old, said, _ = compare.run(compare.Oracle, build, True)
    for looked_at in (True, False):  # what checks the invariants asks for every timetable
        new, says, _ = compare.run(Simulation, build, looked_at)
        assert said == says
        assert old is None or not compare.differences(old, new)


@pytest.mark.parametrize("name", spread(SERVICES, 6))
def test_services(name):
    check(SERVICES[name])


@pytest.mark.parametrize("name", spread(SYSTEMS, 10))
def test_systems_of_the_conformance_suite(name):
    check(SYSTEMS[name])


@pytest.mark.parametrize("name", spread(RANDOM, 6))
def test_random_systems(name):
    check(RANDOM[name])


@pytest.mark.parametrize("name", spread(CHAOS, 10))
def test_random_decisions_and_faults(name):
    """Stops, moves, frequencies, prefetches and failures at random."""
    check(CHAOS[name])
