"""The fairest mean of speedups: the objective of Pollux, with greedy sizes.

Decides the size of elastic jobs, and when they are resized: the power mean, with exponent `fairness`, of each job's
speed against its speed on a fair share of the cluster.  Towards minus infinity only the worst-off counts.
Reference: Qiao et al., Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning (2021).  There a
genetic search also places GPUs (`pollux`) and batch sizes adapt; here sizes grow greedily by the gain in the sum of
powers, which for concave speeds is optimal up to the last step.  Several types of GPU are an extension
(`hetsim_policies.dynamic.common.elastic`).
Weakness: blind to the time left, so that short jobs are treated as long ones.
Cost: see `hetsim_policies.dynamic.common.elastic`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim_policies.dynamic.common.elastic import Elastic, GrowthStep, Interval


class SpeedupMean(Elastic):
    """Greatest gain in the sum of powers of speedups.

    fairness: the exponent, below 0.
    interval: running jobs are resized at most once in it.
    """

    def __init__(self, fairness: Annotated[float, Field(lt=0, ge=-20)] = -1.0, interval: Interval = 600.0):
        super().__init__(interval)
        self.fairness = fairness

    def first(self, task: Task, left: float) -> float:
        return task.arrival

    def gain(self, step: GrowthStep, left: float) -> float:
        fair = self._fair_speed(step.task)
        now, then = self.speed(step.task, step.here) / fair, self.speed(step.task, step.there) / fair
        return float(now**self.fairness - then**self.fairness) / step.more

    def _fair_speed(self, task: Task) -> float:
        """The fastest size within an equal share of usable GPUs, or its minimum size."""
        sizes = self.sizes(task)
        share = sum(self._total[name] for name in sizes) / self._jobs
        within = [mode for of_type in sizes.values() for mode in of_type if mode.width <= share]
        return max(self.speed(task, mode) for mode in within or self.smallest(task, sizes)[:1])
