"""Processor sharing: start all at once, each where it would end first.

Decides where.  Meant for devices that share by time slices (`sharing: timeslice`) and have as many `streams` as
tasks may be in flight at once; where they are used up, and on other devices, tasks wait in the order of arrival.
Reference: Kleinrock, Time-Shared Systems: A Theoretical Treatment (1967); on one server the mean response in M/G/1
is x / (1 - load), whatever the distribution of sizes x.  Joining the least loaded of several servers: Gupta et
al., Analysis of Join-the-Shortest-Queue Routing for Web Server Farms (2007), nearly as insensitive.
Weakness: equal tasks all end late; the cost of switching slices is paid all the time; memory for all at once.
Cost: linear in the devices that fit.
"""

from __future__ import annotations

from hetsim.model.cluster import WHOLE
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import Discipline, ListScheduler, View
from hetsim_policies.orders import fcfs


class ProcessorSharing(ListScheduler):
    """Start all, each on the least loaded device."""

    queueing = "processor sharing"

    def __init__(self, discipline: Discipline = "skip"):
        super().__init__(fcfs, least_loaded, discipline)


def least_loaded(task: Task, view: View) -> Placement | None:
    """The device of the earliest end if all in flight there went on sharing it."""

    def finish(placement: Placement) -> tuple[float, float]:
        mode = placement.mode
        load = max(view.load(device) for device in placement.devices)
        shared = mode.type.sharing.kind == "timeslice"
        crowd = max(1.0, load + mode.share / WHOLE) if shared else 1.0
        return view.duration(task, placement) * crowd, load

    modes = [task.modes[position] for position in task.modes_by_speed()]
    # Where a free accelerator is as good as any other the first will do; cores are on nodes of different load.
    options = [option for mode in modes for option in view.options(task, mode, distinct=not mode.on_cpu)]
    return min(options, key=finish) if options else view.fit(task)
