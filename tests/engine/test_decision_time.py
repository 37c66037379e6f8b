"""Decisions that take time (`policy.decisions`): by hand, as queues, and under every scheduler."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tiers import by_night, some

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.mode import Shape
from hetsim.model.record import DecisionTime
from hetsim.policy import ListScheduler
from hetsim.results.one_run.explain import causes
from hetsim.testing import examine, small_systems
from hetsim.testing.systems import System, cpu_mode, node, workload

CYCLES = {"cycle": "10 s", "per_cycle": "1 s", "per_waiting": "0.5 s", "per_start": "0.25 s"}


def burst(decisions, scheduler="fcfs", gpus=2):
    """Three tasks of 3 s at t = 1 s, and one at t = 12 s, on GPUs."""
    return {
        "name": "burst",
        "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "a", "count": gpus}}]},
        "workload": [
            {"arrivals": {"process": "burst", "size": 3, "at": ["1 s", "12 s"]}, "count": 4, "gpu_time": "3 s"}
        ],
        "policy": {"scheduler": scheduler, "decisions": decisions},
    }


def starts(decisions, **more):
    return hs.run(burst(decisions, **more)).tasks.start.tolist()


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        # Wanted at 1, begins at 10, 1 s and three waiting tasks: decides at 12.5.  Two GPUs are free again at 15.75.
        (CYCLES, [12.75, 13.0, 22.25, 22.5]),
        # One start a cycle, and the cycle takes 1 s: at 2, 3, then as GPUs come free at 5 and 6 (asked then, 1 s more).
        ({"per_cycle": "1 s", "max_starts": 1}, [2.0, 3.0, 6.0, 13.0]),
        # Starts of one cycle follow each other; the next cycle waits for them (one GPU is free at 2 + 3 = 5).
        ({"per_start": "1 s"}, [2.0, 3.0, 6.0, 13.0]),
        # Three waiting tasks cost 3 s; then those that arrive or wait when the cycle begins.
        ({"per_waiting": "1 s"}, [4.0, 4.0, 8.0, 13.0]),
        ({"cycle": "4 s"}, [4.0, 4.0, 8.0, 12.0]),
    ],
)
def test_by_hand(decisions, expected):
    assert starts(decisions) == expected


def test_starts_that_overlap_with_the_next_cycle_keep_their_order():
    """A start takes 4 s: the third task is decided at 8, when the first ends, as the second only then takes effect."""
    assert starts({"per_start": "4 s"}, gpus=3) == [5.0, 9.0, 13.0, 17.0]
    assert starts({"per_start": "4 s", "overlap": True}, gpus=3) == [5.0, 9.0, 13.0, 17.0]
    # With 2 GPUs the third is decided at 8, while the start of the second (at 9) is under way.
    assert starts({"per_start": "4 s"}) == [5.0, 9.0, 13.0, 17.0]
    fast = {"per_start": "4 s", "per_cycle": "3 s"}
    assert starts(fast) == [8.0, 12.0, 19.0, 22.0 + 1.0]
    assert starts(fast | {"overlap": True}) == [8.0, 12.0, 18.0, 22.0]


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_the_scheduler_is_a_single_server_queue(load):
    """With room for everything, the waits are those of a queue with constant service before its tasks (Lindley)."""
    rng = np.random.default_rng(5)
    arrival = np.cumsum(rng.exponential(1.0, 400))
    shape = Shape([cpu_mode()])
    system = System("wide", Cluster([node(cpus=400)]), workload([(at, 0, 1.0) for at in arrival], [shape]))
    record = run(system, DecisionTime(per_cycle=load, max_starts=1))
    wait = np.zeros(len(arrival))
    for at in range(1, len(arrival)):
        wait[at] = max(0.0, wait[at - 1] + load - (arrival[at] - arrival[at - 1]))
    assert np.allclose(record.start - arrival, wait + load, rtol=0, atol=1e-9)


def run(system, decisions):
    given = system.run_input(ListScheduler(registry.policy("scheduler", "fcfs")))
    return Simulation(dataclasses.replace(given, decisions=decisions), check=True).run()


def test_binding_is_a_single_server_queue_too():
    rng = np.random.default_rng(6)
    arrival = np.cumsum(rng.exponential(1.0, 400))
    shape = Shape([cpu_mode()])
    system = System("wide", Cluster([node(cpus=400)]), workload([(at, 0, 1.0) for at in arrival], [shape]))
    decided = []
    effective = -np.inf
    for at in arrival:
        effective = max(effective, at) + 0.8
        decided.append(effective)
    for overlap in (True, False):
        record = run(system, DecisionTime(per_start=0.8, overlap=overlap))
        assert np.allclose(record.start, decided, rtol=0, atol=1e-9)


def test_no_time_is_no_change():
    """Cycles that take next to no time change nothing that a clock of tasks can tell."""
    scenario = burst({"per_cycle": "1 ns"})
    exact = hs.run({**scenario, "policy": "fcfs"}).tasks
    assert np.allclose(hs.run(scenario).tasks.start, exact.start, rtol=0, atol=1e-6)


def test_more_time_never_helps_a_lone_task():
    last = 0.0
    for seconds in (0.0, 0.1, 1.0, 7.0):
        decisions = {"per_cycle": f"{seconds} s", "per_start": "1 s", "per_waiting": f"{seconds} s"}
        response = float(hs.run({**burst(decisions), "horizon": "100 s"}).tasks.response.iloc[0])
        assert response > last
        last = response


class DecidesAfterwards(System):
    """A system whose scheduler takes time."""

    def run_input(self, *policies):
        decisions = DecisionTime(per_cycle=0.05, per_waiting=0.01, per_start=0.02, max_starts=1)
        return dataclasses.replace(super().run_input(*policies), decisions=decisions)


def schedulers():
    for name in registry.policies("scheduler"):
        item = registry.policy("scheduler", name)
        if name in ("learned", "replay") or getattr(item, "at_own_times", False):
            continue
        yield name


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", by_night([pytest.param(n, marks=[] if at % 6 == 0 else pytest.mark.slow)
                                           for at, n in enumerate(schedulers())], 2))  # fmt: skip
def test_every_scheduler_may_be_cut_after_any_start(name):
    """One start a cycle: what a scheduler notes of a start must not come after it, or it starts a task twice."""
    from test_conformance import make

    systems = small_systems()
    for system in systems[1 :: some(5, 9)]:
        paced = DecidesAfterwards(system.name, system.cluster, system.tasks, system.seed)
        try:
            assert not examine(lambda _: make(name), paced)
        except ScenarioError:  # planners refuse what they cannot plan
            continue


class Forked:
    """A run, and a copy of it that was made at a time between its rounds."""

    def __init__(self, time):
        self.simulation = Simulation(hs.load(burst(CYCLES)).build())
        self.copies = []
        self.simulation.at(time, self.fork)
        self.record = self.simulation.run()

    def fork(self):
        self.copies.append(self.simulation.fork())


@pytest.mark.parametrize("time", [5.0, 11.0, 12.6, 12.9, 21.5])
def test_forks_in_the_middle_of_a_cycle_run_on_to_the_same_bytes(time):
    forked = Forked(time)
    (copy,) = forked.copies
    record = copy.run()
    assert record.start.tobytes() == forked.record.start.tobytes()
    assert record.finish.tobytes() == forked.record.finish.tobytes()
    assert record.start.tolist() == [12.75, 13.0, 22.25, 22.5]


def test_waits_are_explained_and_kept(tmp_path):
    result = hs.run(burst(CYCLES))
    result.save(tmp_path / "run")
    table = causes(result)
    assert table.scheduler.tolist() == [11.75, 12.0, 18.0, 7.25]
    assert (table.scheduler + table.no_capacity == table.wait).all()
    assert causes(hs.load(tmp_path / "run")).equals(table)


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ({"per_cycl": "1 s"}, 'unknown key "per_cycl"; did you mean "per_cycle"?'),
        ({"per_cycle": 3}, "policy.decisions.per_cycle"),
        ({"max_starts": 0}, "policy.decisions.max_starts: must be at least 1; got 0"),
        ({"overlap": True}, "policy.decisions.overlap: overlap needs a time of starts: give per_start, or "
                            "leave overlap out"),
        ({}, "policy.decisions: must give at least one time: cycle, per_cycle, per_waiting or per_start"),
        ("slow", "policy.decisions"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(decisions, message):
    with pytest.raises(ScenarioError) as told:
        hs.run(burst(decisions))
    assert message in str(told.value)


def test_schedulers_with_times_of_their_own_refuse():
    with pytest.raises(ScenarioError, match="las_intervals decides at fixed times, which must not be"):
        hs.run(burst(CYCLES, scheduler="las_intervals"))


def test_short_tasks_are_told():
    assert any("tasks compute for less than 10 scheduling cycles" in one for one in hs.run(burst(CYCLES)).warnings)
    assert not any("tasks compute for less than" in one for one in hs.run(burst({"per_cycle": "0.1 s"})).warnings)
