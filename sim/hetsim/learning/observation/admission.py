"""Observations of admission: the new task, and the system that it would join.

The environment (`hetsim.learning.environment.admission`) and the policy that runs a trained network
(`hetsim_policies.learning`) both use this file.  An `AdmissionWindow` is notified as an admission policy is: of each
new task, of completed tasks, and of tasks that ended otherwise.  It finds the waiting and running admitted tasks in the
view, so that a policy observes in a run what it observed in training.  Cost: that of an observation
(`hetsim.learning.observation.window`), and a pass over all admitted tasks if anything has started or ended since the
last decision.
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
WORTHLESS = math.exp(-LIMIT)  # minimum weight of a task, so that the logarithm is finite


class AdmissionWindow(Window):
    """Observations for admission: the new task, then the admitted unfinished tasks.

    The last entry of an observation (named `value`) is the logarithm of the new task's weight.
    """

    decides: ClassVar[str] = ADMISSION

    def begin(self, view: View) -> None:
        super().begin(view)
        # admitted tasks that were running at the last observation, and their placements
        self._started: dict[int, tuple[Task, Placement]] = {}
        self._seen = (-1, -1)

    def ask(self, task: Task) -> tuple[np.ndarray, np.ndarray]:
        """Return observation and mask for a new task, and add the task to the system."""
        self._look_around()
        self.ready(task)
        observation, mask = self.observe(task)
        observation[-len(ASKED) :] = min(max(math.log(max(task.weight, WORTHLESS)), -LIMIT), LIMIT)
        return observation, mask

    def _look_around(self) -> None:
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
