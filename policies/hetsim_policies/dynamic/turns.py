"""Tasks in turn on devices, by quanta or leases; or all tasks simultaneously."""

import math
from collections.abc import Iterator
from itertools import count
from typing import Annotated

from pydantic import Field

from hetsim.model.device_type import WHOLE
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Discipline, ListScheduler, PlacementRule, Scheduler, View, claims_of
from hetsim.policy.decisions import WAIT_FOR_READY, Decision, Start, Stop, Wait
from hetsim_policies.common import place_of
from hetsim_policies.orders import fcfs

ROUNDING = 1e-6  # a turn within this fraction of a quantum of its end is over


class RoundRobin(ListScheduler):
    """Round robin: a task runs for a quantum, then joins the tail of the queue.

    The queue is strict: no task passes a head that does not fit.  Decides when, and which task is preempted.  A turn
    beyond its quantum continues while no waiting task could use the device.
    Reference: Kleinrock, Analysis of a Time-Shared Processor (1964); as the quantum shrinks it becomes processor
    sharing, with a mean response in M/G/1 that depends on the sizes only through their mean.  It needs no estimates.
    Weakness: tasks of equal length all end late; every turn costs a restore and a save, so a quantum should be long
    compared with these.  Cost: one event per quantum while tasks wait, and one pass over the running tasks.

    quantum: seconds of computing in one turn; transfers, saving and restoring do not count.
    """

    def __init__(self, quantum: Annotated[Seconds, Field(gt=0)] = 1.0, placement: PlacementRule | None = None):
        if not quantum > 0:
            raise ValueError(f"quantum must be above 0; got {quantum:g} s")
        super().__init__(self._ticket, self._begin_turn)
        self._tickets = count()
        self.quantum = quantum
        self.rule = placement
        self.turn_ends: dict[int, float] = {}
        self.received: dict[int, float] = {}  # device-seconds that a task had received when its turn began

    def _ticket(self, _: Task) -> int:
        return next(self._tickets)

    def _begin_turn(self, task: Task, view: View) -> Placement | None:
        placement = view.fit(task) if self.rule is None else self.rule(task, view)
        if placement is not None:
            self.turn_ends[task.index] = view.now + self.quantum
            self.received[task.index] = view.attained(task)
        return placement

    def _is_over(self, task: Task, view: View) -> bool:
        """Return True if a task has computed for its quantum; if not, set its next check.

        A task may have spent part of its turn on transfers, which do not count.
        """
        if self.turn_ends[task.index] > view.now:
            return False
        missing = self.quantum - (view.attained(task) - self.received[task.index]) / place_of(task, view).mode.width
        if missing <= ROUNDING * self.quantum:
            return True
        self.turn_ends[task.index] = view.now + max(missing, self.quantum / 10)
        return False

    def finished(self, task: Task) -> None:
        self.turn_ends.pop(task.index, None)
        self.received.pop(task.index, None)

    gone = finished
    serve = Scheduler.serve  # refused: batches run to their end, and have no turns

    def schedule(self, view: View) -> Iterator[Decision]:
        closed = 0
        while (head := (yield from self.start_in_order(view, closed))) is not None:
            room = None
            if not any(view.fits(mode) for mode in head.modes):  # else the rule declines, or its data find no room
                over = [task for task in view.running("start", own=True) if self._is_over(task, view)]
                room = view.make_room(head, over)
            if room is None:
                closed |= claims_of(head)
                continue
            for victim in room[1]:
                del self.turn_ends[victim.index]
                yield Stop(victim)
        if not closed:
            yield WAIT_FOR_READY
            return
        yield Wait(until=min((end for end in self.turn_ends.values() if end > view.now), default=math.inf))


class ProcessorSharing(ListScheduler):
    """Processor sharing: start each task on arrival, on the device of earliest end.

    Decides where.  It is for devices that share by time slices (`sharing: timeslice`), whose `streams` limit the tasks
    in flight; beyond that limit, and on other devices, tasks wait in the order of arrival.
    Reference: Kleinrock, Time-Shared Systems: A Theoretical Treatment (1967); on one server the mean response in M/G/1
    is x / (1 - load), whatever the distribution of sizes x.  Joining the least loaded of several servers: Gupta et
    al., Analysis of Join-the-Shortest-Queue Routing for Web Server Farms (2007), where the mean response is nearly
    insensitive to the distribution, too.  Weakness: equal tasks all end late; frequent switches between slices cost
    time; all running tasks need memory simultaneously.  Cost: linear in the devices that fit.
    """

    queueing = "processor sharing"

    def __init__(self, discipline: Discipline = "skip"):
        super().__init__(fcfs, least_loaded, discipline)


def least_loaded(task: Task, view: View) -> Placement | None:
    """Return the placement at which a task ends first; None if nothing fits.

    On a time-sliced device, the task's time is multiplied by the sum of shares in use, its own included, if above 1.
    """

    def finish(placement: Placement) -> tuple[float, float]:
        mode = placement.mode
        load = max(view.load(device) for device in placement.devices)
        shared = mode.type.sharing.kind == "timeslice"
        crowd = max(1.0, load + mode.share / WHOLE) if shared else 1.0
        return view.duration(task, placement) * crowd, load

    # Where a free accelerator is as good as any other the first will do; cores are on nodes of different load.
    options = [one for mode in task.fastest_modes() for one in view.options(task, mode, distinct=not mode.on_cpu)]
    return min(options, key=finish) if options else view.fit(task)


class Themis(Scheduler):
    """Themis: finish-time fairness; GPUs are given to the job treated worst so far.

    Decides when, and which job is preempted.  With N jobs in the system, a job's ρ is its expected time in the system
    divided by the time that it would need alone on 1/N of the cluster.  It is estimated as (time since arrival +
    remaining time) / (time in its fastest mode × max(1, N × f)), where f is the fraction of the cluster's GPUs that
    this mode uses.  At the end of each lease the GPUs are offered to the jobs of highest ρ first; jobs whose lease has
    not ended keep their GPUs, and a job that keeps them beyond its lease gets a new lease.
    Reference: Mahajan et al., Themis: Fair and Efficient GPU Cluster Scheduling (2020).  In the paper the worst-off
    jobs bid in an auction whose payments make honest bids optimal; here estimates are trusted, so the auction reduces
    to the order of ρ.  Weakness: ρ needs good estimates; short leases cause many stops, and with long leases the policy
    approaches fcfs.  Cost: one pass over all jobs in the system per round in which a job waits.

    lease: minimum seconds that a job keeps its GPUs.
    """

    def __init__(self, lease: Annotated[Seconds, Field(gt=0)] = 1200.0, placement: PlacementRule | None = None):
        self.lease = lease
        self.rule = placement
        self._leases: dict[int, float] = {}  # when the lease of each running task ends, by row
        self._gpus = 1.0

    def begin(self, view: View) -> None:
        self._gpus = float(max(1, sum(len(node.accelerators) for node in view.cluster.nodes)))

    def finished(self, task: Task) -> None:
        self._leases.pop(task.index, None)

    gone = ready = finished

    def rho(self, task: Task, view: View, jobs: int) -> float:
        """Expected time when shared / time alone on an equal share of the cluster."""
        if (alone := task.shortest_estimate) <= 0:
            return math.inf
        part = task.fastest_modes()[0].gpu_share / self._gpus
        return (view.now - task.arrival + view.remaining(task)) / (alone * max(1.0, jobs * part))

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
                if (room := view.make_room(task, victims)) is not None:
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
