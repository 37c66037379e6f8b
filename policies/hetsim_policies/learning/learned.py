"""Policies that `hetsim train` learned, run in NumPy alone."""

from pathlib import Path

import numpy as np

from hetsim.learning.agents.files import load
from hetsim.learning.observation.admission import ACCEPT, AdmissionWindow, refuse_others
from hetsim.learning.observation.window import ADMISSION, SCHEDULING, Window
from hetsim.model.task import Task
from hetsim.model.units import ExistingFile
from hetsim.policy import Accept, Admission, PlanProblem, Reject, View


class Learned(Window):
    """A learned scheduler that `hetsim train` made; it runs in NumPy alone.

    Decides which of the first waiting tasks goes on which type of device, or that all wait, by the highest score of a
    small network (`network`), from exactly what it saw in training (`hetsim.learning.observation.window`).
    Reference: Mao, Alizadeh, Menache, Kandula, Resource Management with Deep Reinforcement Learning (HotNets 2016) for
    scheduling as such a choice; the agents name theirs.
    No guarantee of any kind.  Weakness: good where the load is like the one it was trained on; tasks beyond the window
    are not seen, so that a long queue is served by its oldest part.
    Cost: a decision takes some 0.2 ms, whatever the length of the queue.

    path: its file (.npz); it must have been trained for scheduling, and for the types of device that the cluster has.
    """

    def __init__(self, path: ExistingFile):
        self.path = Path(path)
        self.policy = load(self.path, SCHEDULING)
        super().__init__(self.policy.window, self.policy.scale)

    def check(self, problem: PlanProblem) -> None:
        self.policy.check(problem.cluster, self.path)

    def begin(self, view: View) -> None:
        self.policy.check(view.cluster, self.path)
        super().begin(view)

    def choose(self, observation: np.ndarray, mask: np.ndarray) -> int:
        return self.policy.best(observation, mask)


YES = Accept()


class LearnedAdmission(Admission):
    """A learned admission that `hetsim train` made; it runs in NumPy alone.

    Decides whether a task may wait, by which of the two has the higher score of a small network (`network`): to accept,
    scored from the task and the state of the system, or to reject, scored from the state alone; exactly what was seen
    in training (`hetsim.learning.observation.admission`).
    Reference: the agents name theirs; Stidham, Optimal Control of Admission to a Queueing System, IEEE Transactions on
    Automatic Control 30 (1985), for what is best where the load has a simple model (`mdp_threshold`).  No guarantee of
    any kind.  Weakness: good where the load is like the one it was trained on, under the scheduler that was there; of
    running tasks it knows the estimates only.
    Cost: a decision takes some 0.1 ms, more where hundreds wait and run.

    path: its file (.npz); it must have been trained for admission, and for the types of device that the cluster has.
    """

    def __init__(self, path: ExistingFile):
        self.path = Path(path)
        self.policy = load(self.path, ADMISSION)
        self.door = AdmissionWindow(self.policy.window, self.policy.scale)
        self._no = Reject(reason="not worth it, as it was learned")

    def check(self, problem: PlanProblem) -> None:
        self.policy.check(problem.cluster, self.path)
        refuse_others(problem)

    def begin(self, view: View) -> None:
        self.door.begin(view)

    def admit(self, task: Task, view: View) -> Accept | Reject:
        return YES if self.policy.best(*self.door.ask(task)) == ACCEPT else self._no

    def finished(self, task: Task) -> None:
        self.door.finished(task)

    def gone(self, task: Task) -> None:
        self.door.gone(task)
