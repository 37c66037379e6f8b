"""Optimus at fixed intervals: each GPU to the job with most remaining time saved.

Decides sizes and nodes of elastic jobs, and when they change.  Every job gets one GPU in the order of arrival, while
there are any; then one GPU at a time goes where it saves most time, and a job that the next one would not speed up
gets no more.  A job with an unchanged number of GPUs keeps those that it has; others take theirs from the emptiest
nodes, small jobs first.  The remaining time is that of the parts of the work (epochs) after the present one.
Reference: Peng et al., Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters (2018), as Qiao et
al., Pollux (OSDI 2021), simulate it: with step times and numbers of epochs that it is told, every 60 s.
Weakness: what `optimus` has; and a step that does not pay hides all beyond it, such as the fifth GPU where nodes have
four.
Cost: O(GPUs × jobs) an interval.
"""

from __future__ import annotations

from hetsim.policy import View
from hetsim_policies.dynamic.common.at_intervals import AtIntervals, IntervalJob, Share, spread

NOT_YET_OVER = 1e-6
"""Part of its time that a job in its last epoch is thought to have left."""


class OptimusIntervals(AtIntervals):
    """Greatest saving of time by the next GPU, at fixed intervals.

    interval: seconds from one decision to the next.
    """

    def deal(self, jobs: list[IntervalJob], room: Share, view: View) -> dict[int, Share]:
        free = sum(room.values())
        widths: dict[int, int] = {}
        gains: dict[int, float] = {}
        by_row = {job.task.index: job for job in jobs}
        for row, job in by_row.items():
            smallest = next(iter(job.sizes))
            if smallest <= free:
                widths[row] = smallest
                free -= smallest
                gains[row] = self._gain(job, smallest)
        while free and gains:
            row = max(gains, key=lambda one: gains[one])
            if gains[row] <= 0:
                break
            more = self._next(by_row[row], widths[row]) - widths[row]
            if more > free:
                gains[row] = 0.0
                continue
            widths[row] += more
            free -= more
            gains[row] = self._gain(by_row[row], widths[row])
        stay = {row: job.share for row, job in by_row.items() if job.share}
        dealt = {row: share for row, share in stay.items() if sum(share.values()) == widths.get(row)}
        for share in dealt.values():
            for node, count in share.items():
                room[node] -= count
        for row in sorted(widths, key=lambda row: widths[row]):
            if row not in dealt:
                dealt[row] = spread(by_row[row].sizes[widths[row]], room)
        return dealt

    @staticmethod
    def _next(job: IntervalJob, width: int) -> int:
        """The next larger size of a job; the same where there is none."""
        return next((size for size in job.sizes if size > width), width)

    def _gain(self, job: IntervalJob, width: int) -> float:
        """Seconds saved per GPU by the next size; 0 where there is none."""
        wider = self._next(job, width)
        if wider == width:
            return 0.0
        curve = job.sizes[width].curve
        done = job.done if curve is None else curve.section(job.done)[1]
        done = min(done, 1.0 - NOT_YET_OVER)
        return (job.remaining(width, done) - job.remaining(wider, done)) / (wider - width)
