"""Pollux-style allocation: the fairest mean of speedups over all jobs.

Decides the size of elastic jobs, and when they are resized: the power mean, with exponent `fairness`, of each job's
speed against its speed on a fair share of the cluster.  Towards minus infinity only the worst-off counts.
Reference: Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (2021).  There a
genetic search also places GPUs and batch sizes adapt; here sizes grow greedily by the gain in the sum of powers, which
for concave speeds is optimal up to the last step.
Weakness: blind to the time left, so that short jobs are treated as long ones.
Cost: see `policies.dynamic.elastic`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from policies.dynamic.elastic import Elastic
from sim.model.tasks import Mode, Task
from sim.model.units import Seconds


class Pollux(Elastic):
    """Greatest gain in the sum of powers of speedups.

    fairness: the exponent, below 0.
    interval: running jobs are resized at most once in it.
    """

    def __init__(
        self,
        fairness: Annotated[float, Field(lt=0, ge=-20)] = -1.0,
        interval: Annotated[Seconds, Field(gt=0)] = 600.0,
    ):
        super().__init__(interval)
        self.fairness = fairness

    def first(self, task: Task, left: float) -> float:
        return task.arrival

    def gain(self, task: Task, left: float, here: Mode, there: Mode) -> float:
        fair = self._fair_speed(task)
        now, then = self.speed(task, here) / fair, self.speed(task, there) / fair
        return float(now**self.fairness - then**self.fairness) / (there.width - here.width)

    def _fair_speed(self, task: Task) -> float:
        """On the greatest size within an equal share of the cluster, or its least size."""
        sizes = self.sizes(task)
        share = self._total[sizes[0].type.name] / self._jobs
        within = [mode for mode in sizes if mode.width <= share] or sizes[:1]
        return self.speed(task, within[-1])
