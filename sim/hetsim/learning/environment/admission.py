"""Admission step by step: the engine stops at each task that becomes ready.

During the decision the task waits in the engine, at the instant at which it became ready and before the scheduler is
notified of it; a refused task is rejected immediately.  So accepting all tasks gives the result tables of a plain run.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from hetsim.engine.simulation import Simulation
from hetsim.learning.environment.episode import Episodes
from hetsim.learning.environment.rewards import Reward, checked
from hetsim.learning.observation.admission import ACCEPT, REFUSE, AdmissionWindow
from hetsim.learning.observation.window import ADMISSION
from hetsim.model.randomness import JUDGED
from hetsim.model.record import RunInput
from hetsim.model.task import Task
from hetsim.policy.contract import PlanProblem, Scheduler, View
from hetsim.policy.decisions import Decision, Reject, Start, Wait
from hetsim.policy.relay import Relay


class Gate(Relay):
    """Wraps a scheduler, which is only notified of accepted tasks.

    asks: True if the agent decides about each task; otherwise all are accepted.  ahead: True if the reward is also
    notified when a task is accepted, and when it starts (with its expected end).
    """

    def __init__(self, inner: Scheduler, door: AdmissionWindow, asks: bool = True, ahead: bool = False):
        super().__init__(inner)
        self.door, self.asks, self.ahead = door, asks, ahead
        self.asked: deque[Task] = deque()
        self.known: dict[int, None] = {}  # accepted tasks that have not ended
        self.rewards: list[Reward]  # that of the agent, and if it gives rewards ahead the plain one

    def prepare(self, problem: PlanProblem) -> None:
        self.inner.prepare(problem)

    def begin(self, view: View) -> None:
        self.door.begin(view)
        self.inner.begin(view)

    def ready(self, task: Task) -> None:
        for reward in self.rewards:
            reward.arrived(task)
        if self.asks and task.index not in self.known:  # else it was stopped
            self.asked.append(task)
        else:
            self.accept(task)

    def accept(self, task: Task) -> None:
        """Accept a task: it may wait, and the scheduler is notified."""
        if self.ahead and task.index not in self.known:
            self.rewards[0].admitted(task)
        self.known[task.index] = None
        self.inner.ready(task)

    def finished(self, task: Task) -> None:
        for reward in self.rewards:
            reward.completed(task)
        self.door.finished(task)
        self.known.pop(task.index, None)
        self.inner.finished(task)

    def gone(self, task: Task) -> None:
        for reward in self.rewards:
            reward.departed(task)
        self.door.gone(task)
        self.known.pop(task.index, None)
        if task in self.asked:
            self.asked.remove(task)
        self.inner.gone(task)

    def schedule(self, view: View) -> Iterator[Decision]:
        """Yield the inner scheduler's decisions; its waits also end when anything changes."""
        for decision in self.inner.schedule(view):
            if isinstance(decision, Wait):
                decision = Wait(decision.until)
            if self.ahead and isinstance(decision, Start) and isinstance(decision.tasks, Task):
                task = decision.tasks
                end = view.now + view.duration(task, decision.placement)
                yield decision
                self.rewards[0].started(task, end, 0.0)
            else:
                yield decision


class Admissions(Episodes):
    """Episodes in which action 1 accepts the new task and action 0 rejects it."""

    decides: ClassVar[str] = ADMISSION
    asks_scheduler: ClassVar[bool] = True
    gate: Gate

    def _take_over(self, run: RunInput) -> Any:
        run.admission = None
        return self._put_before(run, True)

    def _put_before(self, run: RunInput, asks: bool) -> Gate:
        run.scheduler = Gate(run.scheduler, AdmissionWindow(self.window, self.scale), asks, self.ahead)
        return self._adopt(run.scheduler)

    def _adopt(self, scheduler: Any) -> Any:
        self.gate = scheduler
        self.watched = self.door = scheduler.door
        return scheduler

    def _take(self, simulation: Simulation, action: int) -> None:
        task = self.gate.asked.popleft()
        if action == ACCEPT:
            self.gate.accept(task)
        else:
            simulation.apply(Reject(task, "rejected by the environment"))

    def plain(self) -> int:
        """Return the action of a simple policy: accept the task if it could start now."""
        assert self.simulation is not None
        view = self.simulation.view
        return ACCEPT if any(view.fits(mode) for mode in self.gate.asked[0].modes) else REFUSE

    def _go(self) -> None:
        simulation, gate = self.simulation, self.gate
        assert simulation is not None
        while not gate.asked:
            if self._in_round:
                for decision in gate.schedule(simulation.view):
                    simulation.apply(decision)
            self._in_round = simulation.advance()
            if not self._in_round:
                self._end(simulation)
                return

    def _look(self) -> None:
        asked = self.gate.asked
        self.observation, self.mask = self.door.ask(asked[0]) if asked else self.door.observe()


class Played(Admissions):
    """Runs in which the scenario's own policy decides, scored with the agent's reward."""

    def _take_over(self, run: RunInput) -> Any:
        return self._put_before(run, False)

    def total(self, seed: int, replication: int = 0, loads: str = JUDGED) -> float:
        """Return the sum of all rewards of one run; `loads`: as for `Episodes`."""
        self.reset(seed, replication, loads)
        return checked(self.reward.take(self.now), self.parts, self.now)
