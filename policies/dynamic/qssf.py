"""Quasi-shortest service first: the job with the least predicted GPU time goes first.

Decides when.  The prediction is GPUs × a duration learnt from what has ended in this run: the mean of the user's own
finished jobs of the same class, recent ones weighing more, blended with the mean over all users while the user has
little history.  Estimates given with the jobs are not used.
Reference: Hu et al., Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters
(2021), the service of that name at Helios; there a gradient-boosted model is blended with such rolling means, here the
means stand alone.
Weakness: a user who changes habits is misjudged; without preemption long jobs of users known for short ones block.
Cost: O(log n) a job; a prediction is made once, when the job begins to wait.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sim.model.tasks import Task
from sim.model.units import Seconds
from sim.policy import Discipline, ListScheduler, PlacementRule, View


class Qssf(ListScheduler):
    """Quasi-shortest service first.

    decay: weight of the history against the latest job in a user's mean.
    trust: jobs of a user until which the mean over all users counts as much as his own.
    default: predicted duration while nothing has ended.
    """

    def __init__(
        self,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.8,
        trust: Annotated[float, Field(gt=0)] = 3.0,
        default: Annotated[Seconds, Field(gt=0)] = 3600.0,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
    ):
        super().__init__(self.predicted, placement, discipline)
        self.decay = decay
        self.trust = trust
        self.default = default
        self._view: View | None = None
        self._means: dict[tuple[str, str], tuple[int, float]] = {}
        """By user and class: how many have ended, and their mean duration."""
        self._all = (0, 0.0)

    def begin(self, view: View) -> None:
        self._view = view

    def predicted(self, task: Task) -> float:
        """GPU-seconds (core-seconds)."""
        count, everybody = self._all
        everybody = everybody if count else self.default
        jobs, own = self._means.get((task.user, task.class_), (0, 0.0))
        part = jobs / (jobs + self.trust)
        mode = task.modes[task.modes_by_speed()[0]]
        return mode.width * (part * own + (1 - part) * everybody)

    def finished(self, task: Task) -> None:
        assert self._view is not None
        mode = task.modes[task.modes_by_speed()[0]]
        seconds = self._view.attained(task) / mode.width
        key = task.user, task.class_
        jobs, own = self._means.get(key, (0, seconds))
        self._means[key] = jobs + 1, self.decay * own + (1 - self.decay) * seconds
        count, everybody = self._all
        self._all = count + 1, everybody + (seconds - everybody) / (count + 1)
