"""Quasi-shortest service first: the minimum predicted GPU time first.

Decides when.  The prediction is GPUs × a duration learned from jobs that have ended in this run: the mean (with larger
weights of recent jobs) or a quantile of the user's finished jobs of the same class.  While the user has little history,
it is blended with that of all users (`hetsim_policies.prediction.durations`).  Estimates given with the jobs are not
used.  The errors of predictions are recorded with the run.
Reference: Hu et al., Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters
(2021), whose Quasi-Shortest-Service-First blends a gradient-boosted model with such rolling means; here only the means
are used.  Weakness: predictions are wrong for users with changing habits; without preemption, an unexpectedly long job
blocks others.  Cost: O(log n) per job; a prediction is made once, when the job begins to wait.
"""

from typing import Annotated, Any

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Discipline, ListScheduler, PlacementRule, View
from hetsim_policies.prediction import DurationHistory, Score, error_notes


class Qssf(ListScheduler):
    """Quasi-shortest service first, by predicted GPU time from history.

    decay: weight of earlier jobs in a user's mean; the latest job has weight 1 - decay.
    trust: with this number of jobs, a user's own mean has the same weight as the mean of all jobs.
    default: predicted duration while nothing has ended.
    quantile: predict this quantile of the last `window` durations; None: predict the mean.
    """

    def __init__(
        self,
        decay: Annotated[float, Field(ge=0, lt=1)] = 0.8,
        trust: Annotated[float, Field(gt=0)] = 3.0,
        default: Annotated[Seconds, Field(gt=0)] = 3600.0,
        placement: PlacementRule | None = None,
        discipline: Discipline = "block",
        quantile: Annotated[float, Field(gt=0, lt=1)] | None = None,
        window: Annotated[int, Field(ge=1)] = 100,
    ):
        super().__init__(self.predicted, placement, discipline)
        self.history = DurationHistory(decay, trust, default, quantile=quantile, window=window)
        self.score = Score(0.5 if quantile is None else quantile)
        self.notes: dict[str, Any] = {}
        self._said: dict[int, float] = {}  # durations predicted when a job began to wait, by row

    def begin(self, view: View) -> None:
        self._view = view

    def predicted(self, task: Task) -> float:
        """Predicted GPU-seconds (or core-seconds) of a task."""
        return _width(task) * self.history.forecast(task.user, task.class_)

    def ready(self, task: Task) -> None:
        super().ready(task)
        self._said.setdefault(task.index, self.history.forecast(task.user, task.class_))

    def finished(self, task: Task) -> None:
        if (said := self._said.pop(task.index, None)) is None:
            return  # a request of a service: it ran in a batch, and was never predicted
        seconds = self._view.attained(task) / _width(task)
        self.history.observe(task.user, task.class_, seconds)
        self.score.note(seconds, said)
        self.notes |= error_notes("duration", self.score.error)

    def gone(self, task: Task) -> None:
        self._said.pop(task.index, None)


def _width(task: Task) -> float:
    return task.fastest_modes()[0].width
