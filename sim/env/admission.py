"""Admission step by step: the engine stops at every task that becomes ready; the scenario's scheduler does the rest.

A task waits in the engine while it is decided about, at the instant at which it became ready and before the scheduler
is told of it; one that is refused is rejected there and then.  So accepting all gives the tables of the run itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.engine.simulation import Simulation
from sim.env.episode import Episodes
from sim.env.rewards import Reward
from sim.model.cluster import Device
from sim.model.record import RunInput
from sim.model.tasks import Task
from sim.policy.contract import Decision, Move, PlanProblem, Reject, Scheduler, Start, View, Wait
from sim.policy.window import Window

REFUSE, ACCEPT = 0, 1


class Gate(Scheduler):
    """Stands before a scheduler: tasks come through when they are accepted."""

    def __init__(self, inner: Scheduler, window: Window, asks: bool = True):
        self.inner, self.window, self.asks = inner, window, asks
        self.asked: deque[Task] = deque()
        self.known: dict[int, None] = {}
        """Accepted tasks that have not ended."""
        self.reward: Reward

    def prepare(self, problem: PlanProblem) -> None:
        self.inner.prepare(problem)

    def begin(self, view: View) -> None:
        self.window.begin(view)
        self.inner.begin(view)

    def ready(self, task: Task) -> None:
        self.reward.arrived(task)
        self.window.ready(task)
        if self.asks and task.index not in self.known:  # else it was stopped
            self.asked.append(task)
        else:
            self.accept(task)

    def accept(self, task: Task) -> None:
        """The task may wait: the scheduler is told."""
        self.known[task.index] = None
        self.inner.ready(task)

    def finished(self, task: Task) -> None:
        self.reward.completed(task)
        self.window.finished(task)
        self.known.pop(task.index, None)
        self.inner.finished(task)

    def gone(self, task: Task) -> None:
        self.reward.left(task)
        self.window.gone(task)
        self.known.pop(task.index, None)
        if task in self.asked:
            self.asked.remove(task)
        self.inner.gone(task)

    def device(self, device: Device, up: bool) -> None:
        self.inner.device(device, up)

    def announced(self, device: Device, start: float, end: float) -> None:
        self.inner.announced(device, start, end)

    def schedule(self, view: View) -> Iterator[Decision]:
        """What the scheduler decides; it is asked again at every change, since newcomers must be seen."""
        for decision in self.inner.schedule(view):
            if isinstance(decision, Wait):
                decision = Wait(decision.until)
            if isinstance(decision, Start) and isinstance(decision.tasks, Task):
                self.window.follow(decision.tasks, decision.placement)
            elif isinstance(decision, Move):
                self.window.follow(decision.task, decision.placement)
            yield decision


class Admissions(Episodes):
    """Runs of a scenario in which every task is decided about: action 1 accepts, 0 rejects."""

    asks_scheduler = True
    gate: Gate

    @property
    def actions(self) -> int:
        return 2

    def _take_over(self, run: RunInput) -> Any:
        run.admission = None
        run.scheduler = self.gate = Gate(run.scheduler, Window(self.window, self.scale))
        self.watched = self.gate.window
        return self.gate

    def _take(self, simulation: Simulation, action: int) -> None:
        task = self.gate.asked.popleft()
        if action == ACCEPT:
            self.gate.accept(task)
        else:
            simulation.apply(Reject(task, "rejected by the environment"))

    def _go(self) -> None:
        """On to the next task to decide about, running the scheduler wherever there is none left."""
        simulation, gate = self.simulation, self.gate
        assert simulation is not None
        while not gate.asked:
            if self._in_round:
                for decision in gate.schedule(simulation.view):
                    simulation.apply(decision)
            self._in_round = simulation.advance()
            if not self._in_round:
                self._end()
                return
        self._look()

    def _look(self) -> None:
        asked = self.gate.asked
        self.observation = self.watched.observe(asked[0] if asked else None)[0]
        self.mask = np.ones(2, np.bool_)


class Played(Admissions):
    """Runs of the scenario's own policy, in which nothing is decided but rewards are earned: to compare with."""

    def _take_over(self, run: RunInput) -> Any:
        run.scheduler = self.gate = Gate(run.scheduler, Window(self.window, self.scale), asks=False)
        self.watched = self.gate.window
        return self.gate

    def earned(self, seed: int, replication: int = 0) -> float:
        """The sum of all rewards of a run."""
        self.reset(seed, replication)
        return self.reward.take(self.now)
