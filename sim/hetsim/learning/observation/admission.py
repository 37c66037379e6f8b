"""Observations of admission: the task in question, and the system it would join.

The environment (`hetsim.learning.environment.admission`) and the policy that runs what was learned
(`hetsim_policies.learning`) both use it.  It is told what an admission policy is told: which task asks, which tasks
have completed, and which have ended otherwise.  It looks up itself which admitted tasks wait and which run, so that a
policy meets in a run what it met in training.
Cost: that of an observation (`hetsim.learning.observation.window`), and a pass over all admitted tasks if anything has
started or ended since the last question.
"""

import math
from typing import ClassVar

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.learning.observation.window import ADMISSION, ASKED, LIMIT, Window
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, WAITING, Task
from hetsim.policy.contract import PlanProblem, View

REFUSE, ACCEPT = 0, 1
WORTHLESS = math.exp(-LIMIT)
"""No task counts as worth less: the logarithm of nothing is none."""


class AdmissionWindow(Window):
    """The window of admission: the new task, then the admitted unfinished ones.

    An observation ends with ASKED: value, the logarithm of the task's weight.
    """

    decides: ClassVar[str] = ADMISSION

    def begin(self, view: View) -> None:
        super().begin(view)
        self._started: dict[int, tuple[Task, Placement]] = {}
        """Admitted tasks that were running at the last look, and where."""
        self._seen = (-1, -1)

    def ask(self, task: Task) -> tuple[np.ndarray, np.ndarray]:
        """Observation and mask for a new task, which is then in the system."""
        self._look_around()
        self.ready(task)
        observation, mask = self.observe(task)
        observation[-len(ASKED) :] = min(max(math.log(max(task.weight, WORTHLESS)), -LIMIT), LIMIT)
        return observation, mask

    def _look_around(self) -> None:
        """Find the tasks that have started, moved or been stopped since the last look."""
        view = self.view
        seen = view.changes.launches, view.changes.releases
        if seen == self._seen:
            return
        self._seen = seen
        for task, placement in list(self._started.values()):
            if task.state == WAITING:
                del self._started[task.index]
                self.ready(task)
            elif view.launch_of(task).placement is not placement:
                self._follow(task)
        for task in [task for task in self._waiting.values() if task.state == RUNNING]:
            self._follow(task)

    def _follow(self, task: Task) -> None:
        if (placement := self.view.launch_of(task).placement) is not None:
            self._started[task.index] = task, placement
            self.follow(task, placement, self.view.launch_of(task).finish)

    def _forget(self, task: Task) -> None:
        self._started.pop(task.index, None)
        super()._forget(task)


def refuse_others(problem: PlanProblem) -> None:
    """Raise ScenarioError for tasks that learned admission cannot handle."""
    if problem.tasks.predecessors is not None:
        text = "a learned admission decides at arrivals, but all tasks of a task graph arrive at once"
        raise ScenarioError(Problem(f"{text}; use tasks without predecessors", key="workload"))
    if any(mode.batch_limit != 1 for mode in problem.tasks.modes):
        text = "a learned admission does not support batches; use tasks without a `service`"
        raise ScenarioError(Problem(text, key="workload"))
