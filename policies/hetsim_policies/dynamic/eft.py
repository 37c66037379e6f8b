"""Earliest finish time, online: each task to the device where it would end first.

Decides where, by the estimated times of all tasks that were assigned to a device before; blind to the places of
data.  Assigned tasks start in the order in which they became ready.
Reference: the online list scheduling of Graham, Bounds for Certain Multiprocessing Anomalies (1966), on unlike
machines; compared in Amaris, Lucarelli, Mommessin, Trystram, Generic Algorithms for Scheduling Applications on Hybrid
Multi-core Machines (2017).  Known as `dm` in StarPU.  On m unlike lanes at most m times the least makespan of
independent tasks (Aspnes, Azar, Fiat, Plotkin, Waarts, On-line Routing of Virtual Circuits, 1997: greedy).
Weakness: greedy; a task that hardly gains takes the device that the next one needs; a graph with large data is torn
apart (see `dmda`).
Cost: O(kinds of node × types + log devices) a task; linear in the devices of a type for gangs, tasks of several
cores and fractions.
"""

from __future__ import annotations

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.dynamic.common.earliest import EarliestLine


class Eft(EarliestLine):
    """Earliest finish time by estimates of computing only."""

    def expected(self, task: Task, placement: Placement, free: float, view: View) -> tuple[float, float]:
        mode = placement.mode
        seconds = task.remaining_in(mode)
        seconds /= mode.span_rate(placement.devices)
        return free, free + seconds
