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

    Decides which of the first waiting tasks starts on which device type, or that all wait, by the highest score of a
    small network (`network`), from the same observation as in training (`hetsim.learning.observation.window`).
    Reference: Mao, Alizadeh, Menache, Kandula, Resource Management with Deep Reinforcement Learning (HotNets 2016) for
    scheduling as such a choice; each agent names its own reference.  No guarantee of any kind.  Weakness: good only for
    loads like the training load; only the first waiting tasks are observed, so in a long queue newer tasks are not
    considered.  Cost: a decision takes about 0.2 ms, whatever the length of the queue.

    path: the policy file (.npz), trained for scheduling and for the device types of the cluster.
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

    Decides whether a task is admitted: a small network (`network`) scores acceptance from the task and the state of the
    system, and rejection from the state alone; the higher score wins.  The observation is that of training
    (`hetsim.learning.observation.admission`).
    Reference: that of the learning algorithm (the agent in `hetsim train`); Stidham, Optimal Control of Admission to a
    Queueing System, IEEE Transactions on Automatic Control 30 (1985), for the optimum if the load has a simple model
    (`mdp_threshold`).  No guarantee of any kind.  Weakness: good only for loads like the training load, under the same
    scheduler; it observes only estimates of running tasks.  Cost: a decision takes about 0.1 ms, more if hundreds of
    tasks wait and run.

    path: the policy file (.npz), trained for admission and for the device types of the cluster.
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
