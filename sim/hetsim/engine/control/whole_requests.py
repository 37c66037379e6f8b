"""Admission of requests that pass through stages: asked once, told once."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetsim.engine.core.policy_errors import call
from hetsim.engine.core.state import RunState
from hetsim.model.record import EXPIRED, REJECTED
from hetsim.model.task import Task
from hetsim.model.tasks import StagedRequests


class WholeRequests:
    """The admission of requests with stages: that of the first task holds for all."""

    def __init__(self, state: RunState, staged: StagedRequests):
        self.state = state
        self.first: list[int] = staged.first.tolist()
        self.size: list[int] = np.bincount(staged.first, minlength=len(self.first)).tolist()
        self.deferred: dict[int, list[Task]] = {}
        """Tasks that came while the answer for their request was deferred, by the row of its first task."""
        self.heads: dict[int, Task] = {}
        """The first tasks of requests that have not ended, where the policy is told of the end."""
        self.left: dict[int, int] = {}
        """Tasks of a request that have not ended, if others of it have."""
        self.failed: dict[int, None] = {}
        """Requests of which a task ended badly, and others have not ended."""
        self.on_finished: Any = None
        self.on_gone: Any = None

    # The answer -----------------------------------------------------------------------------------------------

    def refusal(self, task: Task) -> tuple[int, str] | None:
        """Status and reason of a request that was refused earlier, or while deferred."""
        row = self.first[task.index]
        recorder = self.state.recorder
        status = recorder.status[row]
        return (status, recorder.reasons[row]) if status in (REJECTED, EXPIRED) else None

    # The end --------------------------------------------------------------------------------------------------

    def tell(self, finished: Any, gone: Any) -> None:
        """The hooks of the policy, None where it has none."""
        self.on_finished, self.on_gone = finished, gone

    def begun(self, task: Task) -> None:
        """Ask the policy at the first task of a request; it later hears of the end."""
        if self.on_finished is not None or self.on_gone is not None:
            self.heads[task.index] = task

    def finished(self, task: Task) -> None:
        """A task has completed."""
        self._ended(task)

    def gone(self, task: Task) -> None:
        """A task has ended without completing."""
        self.failed[self.first[task.index]] = None
        self._ended(task)

    def _ended(self, task: Task) -> None:
        row = self.first[task.index]
        tasks_left = self.left.pop(row, self.size[row]) - 1
        if tasks_left:
            self.left[row] = tasks_left
            return
        well = row not in self.failed
        self.failed.pop(row, None)
        hook = self.on_finished if well else self.on_gone
        head = self.heads.pop(row, task)
        if hook is not None:
            call(self.state, hook, head)
