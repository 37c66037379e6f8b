"""Themis: finish-time fairness, by giving GPUs to the job treated worst so far.

Decides when, and which job is preempted.  A job's ρ is its expected time in the cluster over the time that it would
need on an exclusive 1/N share: (waited and run so far + time left) / (time in its fastest mode × N / the part of the
cluster it uses, at least its time alone), N the jobs in the system.  At the end of each lease the jobs of highest ρ are
offered the GPUs first; those with a lease that has not ended keep theirs, and a job that keeps them at the end of its
lease while others wait has a new lease.
Reference: Mahajan et al., Themis: Fair and Efficient GPU Cluster Scheduling (2020).  There the worst-off part of the
jobs bid in an auction with payments that make honest bids the best; here estimates are taken as they are, so the
auction comes down to the order of ρ.
Weakness: ρ needs good estimates; a lease too short pays for stops, one too long is fcfs.
Cost: one pass over all jobs in the system a round in which a job waits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Decision, PlacementRule, Scheduler, Start, Stop, View, Wait


class Themis(Scheduler):
    """Finish-time fairness with leases.

    lease: seconds that a job keeps its GPUs at least.
    """

    def __init__(self, lease: Annotated[Seconds, Field(gt=0)] = 1200.0, placement: PlacementRule | None = None):
        self.lease = lease
        self.rule = placement
        self._leases: dict[int, float] = {}
        """Of running tasks, by row: when the lease ends."""
        self._gpus = 1.0

    def begin(self, view: View) -> None:
        self._gpus = float(max(1, sum(len(node.accelerators) for node in view.cluster.nodes)))

    def finished(self, task: Task) -> None:
        self._leases.pop(task.index, None)

    def gone(self, task: Task) -> None:
        self._leases.pop(task.index, None)

    def ready(self, task: Task) -> None:
        self._leases.pop(task.index, None)

    def rho(self, task: Task, view: View, jobs: int) -> float:
        """Expected time shared over expected time on an exclusive 1/N of the cluster."""
        alone = task.shortest_estimate
        if alone <= 0:
            return math.inf
        part = task.modes[task.modes_by_speed()[0]].gpu_share / self._gpus
        shared = view.now - task.arrival + view.remaining(task)
        return shared / (alone * max(1.0, jobs * part))

    def schedule(self, view: View) -> Iterator[Decision]:
        if not view.num_waiting(own=True):
            return
        running, waiting = view.running("start", own=True), view.waiting(own=True)
        jobs = len(running) + len(waiting)
        ranked = sorted(((-self.rho(task, view, jobs), task.index, task) for task in waiting), key=lambda e: e[:2])
        over = [task for task in running if self._leases.get(task.index, 0.0) <= view.now]
        worst = {task.index: self.rho(task, view, jobs) for task in over}
        over.sort(key=lambda task: (worst[task.index], task.index))  # the job that is best off is preempted first
        for negative, _, task in ranked:
            placement = view.fit(task, self.rule)
            if placement is None and over and not any(view.fits(mode) for mode in task.modes):
                victims = [other for other in over if worst[other.index] < -negative]
                room = view.make_room(task, victims)
                if room is not None:
                    for victim in room[1]:
                        over.remove(victim)
                        yield Stop(victim)
                    placement = view.fit(task, self.rule)
            if placement is not None:
                self._leases[task.index] = view.now + self.lease
                yield Start(task, placement)
        if view.num_waiting(own=True):
            for task in over:  # not outbid (a newcomer's ρ is 1/N, as that of a job never disturbed)
                self._leases[task.index] = view.now + self.lease
            yield Wait(until=min((end for end in self._leases.values() if end > view.now), default=math.inf))
