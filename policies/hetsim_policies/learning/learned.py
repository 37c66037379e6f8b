"""A learned scheduler: `hetsim train` makes it; here it runs, in NumPy alone.

Decides which of the first waiting tasks goes on which type of device, or that all wait, by the highest score of a
small network (`network`), from exactly what it saw in training (`hetsim.learning.observation.window`).
Reference: Mao, Alizadeh, Menache, Kandula, Resource Management with Deep Reinforcement Learning (HotNets 2016) for
scheduling as such a choice; the agents name theirs.
No guarantee of any kind.  Weakness: good where the load is like the one it was trained on; tasks beyond the window
are not seen, so that a long queue is served by its oldest part.
Cost: a decision takes some 0.2 ms, whatever the length of the queue.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.learning.agents.files import load
from hetsim.learning.observation.window import SCHEDULING, Window
from hetsim.model.paths import ExistingFile
from hetsim.policy import PlanProblem, View


class Learned(Window):
    """Runs what `hetsim train` learned.

    path: its file (.npz); it must have been trained for scheduling, and for the types of device that the cluster has.
    """

    def __init__(self, path: ExistingFile):
        self.path = Path(path)
        self.policy = load(self.path, SCHEDULING)
        super().__init__(self.policy.window, self.policy.scale)

    def check(self, problem: PlanProblem) -> None:
        wrong = self.policy.problem(problem.cluster)
        if wrong is not None:
            raise ScenarioError(Problem(wrong, file=str(self.path)))

    def begin(self, view: View) -> None:
        wrong = self.policy.problem(view.cluster)
        if wrong is not None:
            raise ScenarioError(Problem(wrong, file=str(self.path)))
        super().begin(view)

    def choose(self, observation: np.ndarray, mask: np.ndarray) -> int:
        return self.policy.best(observation, mask)
