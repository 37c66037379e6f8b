"""Apathetic future share: GPUs for short jobs, or where both jobs profit more.

Decides the size of elastic jobs, and when they are resized.  Every job first gets its least size, the shortest first.
Each further step goes to the winner of a row of duels: of two jobs, the longer one b gets it if (p'_b - p_b) / p'_b >
(p'_a - p_a) / p_a, with speeds p now and p' with one GPU more, else the shorter one a; how long is the time left at
the present size.
Reference: Hwang, Kim, Kim, Shin, Park, Elastic Resource Sharing for Distributed Deep Learning (NSDI 2021): AFS-L, the
rule for known durations.  If b has the GPU in question at the latest when a ends, it is the choice of less mean
response of the two.
There sizes grow by one GPU; a step of several counts here as if each of them brought an equal part.  Several types of
GPU are an extension (`hetsim_policies.dynamic.common.elastic`).
Weakness: the rule is not transitive, so that of three jobs it matters in which order they meet (here from the shortest
on); wrong estimates.
Cost: as `hetsim_policies.dynamic.common.elastic`, but a step costs a pass over the jobs.
"""

from __future__ import annotations

from bisect import insort

from hetsim.model.task import Task
from hetsim_policies.dynamic.common.elastic import Elastic, GrowthStep, Wishes


class Afs(Elastic):
    """The shorter job first, unless the longer one gains more.

    interval: running jobs are resized at most once in it.
    """

    def first(self, task: Task, left: float) -> float:
        return left / self.speed(task, self.smallest(task, self.sizes(task))[0])

    def wishes(self, left: dict[int, float]) -> Wishes:
        return Duels(self, left)

    def gain(self, step: GrowthStep, left: float) -> float:
        """Speed gained by each GPU, over the speed now."""
        now, then = self.speed(step.task, step.here), self.speed(step.task, step.there)
        return (then - now) / now / step.more


class Duels:
    """The job step that the pairwise rule prefers; of its own steps that of most gain."""

    def __init__(self, afs: Afs, left: dict[int, float]):
        self._afs, self._left = afs, left
        self._steps: list[tuple[float, int, float, int, GrowthStep]] = []
        """Time left at the present size, row, minus the gain, a count: a job's best step stands before its others."""
        self._count = 0

    def add(self, step: GrowthStep) -> None:
        remaining = self._left[step.task.index]
        now = remaining / self._afs.speed(step.task, step.here)
        self._count += 1
        insort(self._steps, (now, step.task.index, -self._afs.gain(step, remaining), self._count, step))

    def take(self) -> GrowthStep | None:
        if not self._steps:
            return None
        winner, top_loss = 0, -self._steps[0][2]
        met = self._steps[0][1]
        for place, (_, row, loss, _, _) in enumerate(self._steps):
            # p' = p (1 + gain), so that the gain over p' is gain / (1 + gain).
            if row != met and -loss / (1 - loss) > top_loss:
                winner, top_loss = place, -loss
            met = row
        return self._steps.pop(winner)[-1]
