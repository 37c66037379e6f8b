"""`view.backlog`: sums kept by kind agree with adding up what waits and runs, at every round of random systems."""

from __future__ import annotations

import random

import pytest
from tiers import spread

from hetsim.engine.simulation import Simulation
from hetsim.policy import ListScheduler, Start, Stop
from hetsim.testing.generate import random_system


def added_up(view, kind, class_):
    """The same by walking through everybody."""
    state = view._state
    total = 0.0
    for task in state.waiting.values():
        best = task.shape.modes[task.modes_by_speed()[0]].type
        if class_ in (None, task.class_) and (kind is None or kind in (best.kind, best.name)):
            total += task.shortest_remaining
    for launch in state.running.values():
        used = launch.placement.mode.type
        if class_ in (None, launch.task.class_) and (kind is None or kind in (used.kind, used.name)):
            total += view._forecast.remaining_of(launch)
    return total


class Asking(ListScheduler):
    """First come first served, with a stop now and then, and every round the question."""

    def __init__(self):
        super().__init__(discipline="skip")
        self.asked = 0
        self.random = random.Random(3)

    def schedule(self, view):
        self.compare(view)
        running = [task for task in view.running("start") if task.shape.preemptible]
        if running and self.random.random() < 0.1:
            yield Stop(self.random.choice(running), keep=self.random.random() < 0.7)
        for decision in super().schedule(view):
            yield decision
            if isinstance(decision, Start):
                self.compare(view)

    def compare(self, view):
        self.asked += 1
        for kind in (None, "cpu", "gpu"):
            assert view.backlog(kind) == pytest.approx(added_up(view, kind, None), rel=1e-9, abs=1e-6)
        assert view.num_waiting() == len(view.waiting())


@pytest.mark.parametrize("seed", spread(range(12), 6))
def test_sums_agree_with_adding_up(seed):
    system = random_system(seed)
    policy = Asking()
    Simulation(system.run_input(policy), check=True).run()
    assert policy.asked > 0


def test_nobody_who_does_not_ask_pays():
    system = random_system(1)
    simulation = Simulation(system.run_input(ListScheduler(discipline="skip")))
    simulation.run()
    assert simulation.view._backlog is None
    assert type(simulation.state.waiting) is dict
