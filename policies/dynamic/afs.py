"""Apathetic future share: GPUs go to short jobs, unless a longer one uses them so much better that both profit.

Decides the size of elastic jobs, and when they are resized.  Every job first gets its least size, the shortest first;
then sizes grow where relative speed gained a GPU, over the time left, is greatest.
Reference: Hwang et al., Elastic Resource Sharing for Distributed Deep Learning (2021).  There jobs are compared in
pairs (the shorter wins unless the longer's relative gain is greater); here the two wishes are one index, the relative
gain over the time left, so that one heap does.
Weakness: as every order by time left, long jobs are starved of size; wrong estimates.
Cost: see `policies.dynamic.elastic`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from policies.dynamic.elastic import Elastic
from sim.model.tasks import Mode, Task
from sim.model.units import Seconds


class Afs(Elastic):
    """Greatest relative gain a GPU over the time left.

    interval: running jobs are resized at most once in it.
    """

    def __init__(self, interval: Annotated[Seconds, Field(gt=0)] = 600.0):
        super().__init__(interval)

    def gain(self, task: Task, left: float, here: Mode, there: Mode) -> float:
        now, then = self.speed(task, here), self.speed(task, there)
        return (then - now) / then / (there.width - here.width) / max(left / now, 1e-9)
