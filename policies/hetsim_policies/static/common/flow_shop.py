"""Order tasks with overlapping upload, compute, download: 3-machine flow shop.

Johnson's rule (Optimal Two- and Three-Stage Production Schedules with Setup Times Included, 1954): jobs that are
shorter on the first machine than on the second come first, by increasing time on the first machine; the other jobs
follow by decreasing time on the second.  The rule is optimal for two machines, that is without downloads or without
uploads, if there are enough streams.  For three machines it is used with upload + compute as the first time and compute
+ download as the second.  This is optimal if no compute stage is longer than the shortest upload, or none is longer
than the shortest download.  With few streams, release times or a task graph nothing is proven: an order is adopted only
if it shortens the timetable of the lane (core or GPU).  Cost: O(k log k) for k tasks on a lane, and their timetable.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from hetsim_policies.common import grouped
from hetsim_policies.static.common.instance import Instance
from hetsim_policies.static.common.timing import Placed


def johnson(first: Sequence[float], second: Sequence[float]) -> list[int]:
    """Positions of the jobs in Johnson's order."""
    jobs = range(len(first))
    head = sorted((job for job in jobs if first[job] < second[job]), key=lambda job: first[job])
    tail = sorted((job for job in jobs if first[job] >= second[job]), key=lambda job: -second[job])
    return [*head, *tail]


def length(stages: Sequence[tuple[float, float, float]], streams: int) -> float:
    """Seconds for an idle device to run jobs in order, at most `streams` in flight."""
    free = [0.0, 0.0, 0.0]
    ends: list[float] = []
    for number, job in enumerate(stages):
        at = ends[number - streams] if number >= streams else 0.0
        for engine, seconds in enumerate(job):
            if seconds > 0:
                at = max(at, free[engine]) + seconds
                free[engine] = at
        ends.append(max(at, ends[-1]) if ends else at)  # a stream is free once an earlier one is
    return ends[-1] if ends else 0.0


def ordered(instance: Instance, placed: Iterable[Placed]) -> list[Placed]:
    """Order a plan's steps so that transfers and computing overlap better.

    Only for independent tasks that are all present at the start, on devices that can overlap; else unchanged.
    """
    rows = list(placed)
    tasks = instance.problem.tasks
    if not rows or not instance.pipelined:
        return rows
    plain = not any(tasks.predecessors or ()) and not any(tasks.reads or ()) and float(np.ptp(tasks.arrival)) == 0
    if not plain:
        return rows
    numbered = [(row[1:], position) for position, row in enumerate(rows) if not instance.serial[row[1]]]
    for (kind, lane), here in grouped(numbered).items():
        order = best_order(instance, [rows[position][0] for position in here], kind)
        for position, task in zip(here, order, strict=True):
            rows[position] = task, kind, lane
    return rows


def best_order(instance: Instance, tasks: Sequence[int], kind: int) -> list[int]:
    """Return the best of the present order of tasks on a device and Johnson's orders."""
    streams = instance.types[kind].streams
    up, compute, down = (part[list(tasks), kind].tolist() for part in (instance.up, instance.compute, instance.down))
    stages = list(zip(up, compute, down, strict=True))
    three = [u + q for u, q, _ in stages], [q + d for _, q, d in stages]
    tried = [list(range(len(stages))), johnson(*three), johnson(up, compute), johnson(compute, down)]
    return [tasks[job] for job in min(tried, key=lambda order: length([stages[job] for job in order], streams))]
