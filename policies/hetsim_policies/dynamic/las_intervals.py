"""Least attained service at fixed intervals: gangs in a few queues, on any nodes.

Decides when, where and which job is preempted.  As in `las` a job falls into the next queue when its GPU time crosses a
threshold, and never comes back; within a queue jobs go in the order in which they came into it.  At every multiple of
the interval the jobs are visited in that order, and a job runs if enough GPUs are left, on whichever nodes; jobs that
ran before keep their GPUs, others take them from the emptiest nodes.
Reference: Gu et al., Tiresias: A GPU Cluster Manager for Distributed Deep Learning (2019), as Qiao et al., Pollux
(OSDI 2021), simulate it: two queues, 16 GPU hours, 60 s.
Weakness: as `las`; a gang is spread over nodes although it would fit on one that is less empty.
Cost: see `hetsim_policies.dynamic.common.at_intervals`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import View
from hetsim_policies.dynamic.common.at_intervals import AtIntervals, IntervalJob, Share, spread


class LasIntervals(AtIntervals):
    """Least attained service, at fixed intervals.

    interval: seconds between decisions.
    thresholds: attained GPU-seconds at which a job is demoted to the next queue.
    """

    def __init__(
        self,
        interval: Annotated[Seconds, Field(gt=0)] = 60.0,
        thresholds: Annotated[list[Annotated[Seconds, Field(gt=0)]], Field(min_length=1)] | None = None,
    ):
        super().__init__(interval)
        self.thresholds = sorted(thresholds or [57600.0])
        self._queued: dict[int, tuple[int, int]] = {}
        """By row: the queue, and the sequence number of the entry into it."""
        self._entries = 0

    def finished(self, task: Task) -> None:
        super().finished(task)
        self._queued.pop(task.index, None)

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        for job in jobs:
            level = sum(job.attained * (1 + 1e-9) >= threshold for threshold in self.thresholds)
            queue = self._queued.get(job.task.index)
            if queue is None or level > queue[0]:
                self._entries += 1
                self._queued[job.task.index] = level, self._entries
        free = sum(room.values())
        chosen = []
        for job in sorted(jobs, key=lambda job: self._queued[job.task.index]):
            width = next(iter(job.sizes))
            if job.share:
                width = sum(job.share.values())
            if width <= free:
                free -= width
                chosen.append((job, width))
        dealt = {job.task.index: job.share for job, _ in chosen if job.share}
        for share in dealt.values():
            for node, count in share.items():
                room[node] -= count
        for job, width in chosen:
            if not job.share:
                dealt[job.task.index] = spread(job.sizes[width], room)
        return dealt
