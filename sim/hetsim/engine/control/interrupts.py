"""Interrupts: launches that a policy, a fault or a time limit ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hetsim.engine.control.completion import Completion
from hetsim.engine.control.waiting import Waiting
from hetsim.engine.core.policy_errors import illegal
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState
from hetsim.engine.flight.launch import Launch
from hetsim.engine.launching.limits import TimeLimits
from hetsim.engine.launching.stopping import Stops
from hetsim.model.record import FAILED, LAUNCH_MOVED
from hetsim.model.task import ENDED, Task


@dataclass(eq=False)
class Interrupts:
    """Ends launches before their time."""

    state: RunState
    rounds: Rounds
    waiting: Waiting
    completion: Completion
    stops: Stops
    limits: TimeLimits | None

    def lose(self, launches: Iterable[Launch]) -> None:
        """Launches have lost a device or an input: their tasks fall back to checkpoints."""
        for launch in launches:
            self._stop(launch, keep=True, fault=True)
        self.stops.follow()

    def stop(self, launch: Launch, keep: bool) -> None:
        """Its tasks wait again."""
        if not all(task.shape.preemptible for task in launch.tasks):
            raise illegal(self.state, f"stopped {launch.task}, which is not preemptible")
        self._stop(launch, keep)

    def _stop(self, launch: Launch, keep: bool, fault: bool = False) -> None:
        tasks = launch.tasks
        keep = keep and launch.fusion is None
        times = self.stops.stop(launch, keep, fault=fault)
        self._forget(launch, times[0], keep and not fault)
        self.waiting.wait_again(tasks)
        self.rounds.changed("release")

    def stop_to_move(self, launch: Launch) -> None:
        """Its task starts elsewhere at once."""
        times = self.stops.stop(launch, keep=True, outcome=LAUNCH_MOVED)
        self._forget(launch, times[0], True)

    def kill(self, launch: Launch, reason: str, status: int = FAILED) -> None:
        """End a launch and its tasks, as failed or otherwise; their work is wasted.

        To the policy it looks like a stop and, at the same instant, the end of a waiting task.
        """
        tasks = launch.tasks
        times = self.stops.stop(launch, keep=False, killed=True)
        self._forget(launch, times[0], False)
        if launch.fusion is not None:
            self.waiting.wait_again(tasks)
            for task in tasks:
                if task.state != ENDED:  # with the one that it waited for
                    self.completion.end_task(task, status, reason)
            self.rounds.changed("release")
            return
        for task in tasks:
            self.waiting.make_ready(task, killed=True)
            self.completion.end_task(task, status, reason)
        self.rounds.changed("release")

    def _forget(self, launch: Launch, start: float, clock_goes_on: bool) -> None:
        """Drop a launch that ended, so that no stale event keeps it or its tasks alive.

        start: of its first stage, NaN if there was none; clock_goes_on: that of its tasks' time limits.
        """
        note_start(self.state, launch, start)
        if self.limits is not None:
            self.limits.over(launch, clock_goes_on)
        del self.state.running[launch.number]
        for task in launch.tasks:
            note_place(self.state, task, launch)
            task._launch = None
        launch._tasks = ()


def note_start(state: RunState, launch: Launch, start: float) -> None:
    """The first stage of a task's first launch is the end of its wait."""
    starts = state.recorder.start
    if start == start:
        for task in launch.tasks:
            if starts[task.index] != starts[task.index]:
                starts[task.index] = start


def note_place(state: RunState, task: Task, launch: Launch) -> None:
    """Where a task ran last, and in which mode."""
    recorder = state.recorder
    recorder.place[task.index] = recorder.place_code(launch.placement, launch.cores)
    mode = launch.placement.mode
    if mode.parts:
        mode = mode.parts[launch.tasks.index(task)]
    recorder.mode[task.index] = task.shape.position[mode]
