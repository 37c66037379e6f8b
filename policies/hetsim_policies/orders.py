"""Orders of the waiting queue: key functions, lowest key first, ties by arrival.

A key is constant while its task waits.  Registered as a scheduler, a key becomes a `ListScheduler` with the parameters
`placement` and `discipline` (block: no task passes a head that does not fit; skip: any task that fits may start; keep:
a task that has become the head remains the head).  Cost of all: O(log n) per task, O(1) if keys arrive in ascending
order.
"""

import math

from hetsim.model.task import Task
from hetsim.policy import Discipline, ListScheduler, PlacementRule, View, arrival_order, queueing

# First come, first served is the list scheduler's own order: it knows of this one that no newcomer becomes the head.
fcfs = arrival_order


@queueing("blind to sizes")
def lcfs(task: Task) -> float:
    """Last come, first served, without preemption.

    Reference: Kleinrock, Queueing Systems I (1975).  The mean wait is that of fcfs if all tasks need one server, with a
    much larger variance.  Weakness: the oldest tasks starve while load is high.
    """
    return -task.arrival


@queueing("shortest job first")
def sjf(task: Task) -> float:
    """Shortest job first: the task of lowest estimated time in its best mode.

    Reference: Conway, Maxwell, Miller, Theory of Scheduling (1967), ch. 8.  It does not preempt.  It has the least mean
    wait among non-preemptive orders for M/G/1.  Weakness: long tasks can starve (see `priority` with aging), and
    estimates must be good.
    """
    return task.shortest_estimate


def ljf(task: Task) -> float:
    """Longest job first: the task of greatest estimated time in its best mode.

    Reference: Graham, Bounds on Multiprocessing Timing Anomalies (1969), as LPT: if all tasks are present at the start
    and need one of m equal servers, the makespan is at most 4/3 - 1/(3m) times the minimum.
    Weakness: the longest mean wait of all orders in this module.
    """
    return -task.shortest_estimate


def wspt(task: Task) -> float:
    """Weighted shortest processing time: the lowest ratio of estimated time to weight.

    Reference: Smith, Various Optimizers for Single-Stage Production (1956).  If all tasks are present at the start, the
    total weighted completion time is the minimum on one server, and at most (1 + sqrt 2)/2 times the minimum on m
    servers (Kawaguchi and Kyan, 1986).  Weakness: no guarantee with arrivals; long tasks of low weight starve.
    """
    weight = task.weight
    return task.shortest_estimate / weight if weight > 0 else float("inf")


def edf(task: Task) -> float:
    """Earliest deadline first; tasks without a deadline are last."""
    return task.deadline


def smallest_first(task: Task) -> float:
    """Smallest first: the task that needs the fewest devices (GPUs, else cores).

    Devices are counted in the task's fastest mode.  Reference: Majumdar, Eager, Bunt, Scheduling in Multiprogrammed
    Parallel Systems (1988).  It needs no time estimates, and under discipline `block` the head seldom blocks other
    tasks.  Weakness: wide gangs starve.
    """
    return _width(task)


def largest_first(task: Task) -> float:
    """Largest first: the task that needs the most devices (GPUs, else cores).

    Devices are counted in the task's fastest mode.  Reference: Coffman, Garey, Johnson, Tarjan, Performance Bounds for
    Level-Oriented Two-Dimensional Packing Algorithms (1980), for the idea of placing large items while there is room.
    Fragmentation is low and makespans are short.  Weakness: small tasks wait, and under discipline `block` devices are
    idle while a wide head waits.
    """
    return -_width(task)


def saf(task: Task) -> float:
    """Smallest area first: the lowest estimated time × processors (GPUs, else cores).

    Time and processors are those of the fastest mode.  Reference: Carastan-Santos, de Camargo, Trystram, Zrigui, One
    Can Only Gain by Replacing EASY Backfilling: A Simple Scheduling Policies Case Study (CCGrid 2019).  Weakness: long
    and wide tasks starve, and estimates must be good.
    """
    seconds, processors = request(task)
    return seconds * processors


def f1(task: Task) -> float:
    """F1: the lowest log10(estimated time) × processors + 870 × log10(arrival).

    A time or an arrival of 0 s is replaced by 0.1 s.  The arrival is measured in seconds from the trace's time 0.
    Reference: Carastan-Santos and de Camargo, Obtaining Dynamic Scheduling Policies with Simulation and Machine
    Learning (SC 2017), the first of the functions fitted there.  Weakness: it is fitted to bounded slowdowns on
    simulated loads of 256 processors, and depends on the trace's time 0.
    """
    seconds, processors = request(task)
    return math.log10(seconds or 0.1) * processors + 870.0 * math.log10(task.arrival or 0.1)


def request(task: Task) -> tuple[float, float]:
    """Return estimated seconds and processors (GPUs, else cores) of the fastest mode."""
    return task.shortest_estimate, task.modes[task.modes_by_speed()[0]].width


def _width(task: Task) -> float:
    mode = task.modes[task.modes_by_speed()[0]]
    return mode.gpu_share or mode.millicores / 1e9


class FcfsSkip(ListScheduler):
    """First come, first served, where tasks that fit may pass tasks that do not.

    Decides when: the oldest waiting task that fits now starts.
    Reference: "first fit" in Feitelson and Rudolph, Parallel Job Scheduling (1995); backfilling without a reservation.
    A device is never idle while a waiting task could use it.  Weakness: a wide gang can starve, since narrower tasks
    occupy devices as they become free (`easy_backfill` reserves for the head).
    Cost: O(log n) per task and O(distinct demands) per round.
    """

    queueing = "order of arrival"

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "skip"):
        super().__init__(fcfs, placement, discipline)


class RandomOrder(ListScheduler):
    """Random order: each task draws a number when ready; the lowest number first.

    Decides when.  Draws come from the run's own stream `policy`, so that runs repeat.
    Reference: Kingman, On Queues in Which Customers Are Served in Random Order (1962): the mean wait of fcfs in M/G/1,
    with a larger variance.  It is the baseline that a useful policy must beat.
    Weakness: it uses no information.  Cost: O(log n) per task.
    """

    queueing = "blind to sizes"

    def __init__(self, placement: PlacementRule | None = None, discipline: Discipline = "block"):
        super().__init__(self._draw, placement, discipline)

    def begin(self, view: View) -> None:
        self._random = view.random

    def _draw(self, task: Task) -> float:
        return self._random.random()
