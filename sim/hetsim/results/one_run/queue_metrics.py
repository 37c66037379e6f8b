"""Metrics of queues: numbers in system, GPU time, stops, moves, cache hits."""

import math

import numpy as np

from hetsim.model.record import COMPLETED, MOVES, STOPS
from hetsim.results.declared import metric
from hetsim.results.one_run import language
from hetsim.results.one_run.launches import launches_of
from hetsim.results.one_run.measured import Measured, Run
from hetsim.results.one_run.usage import overlap


@metric(unit="GPU s", better="neither", sets=("groups:180", "group_rows:180"), title="GPU time", hide_if_zero=True)
def gpu_seconds(run: Measured) -> float:
    """GPUs × share × time in which the tasks computed, of work that counted."""
    return float(run.chosen(run.result.gpu_seconds).sum())


@metric(unit="tasks", better="less", of="run", sets=("summary", "cluster:130"), congested=True)
def queue_length_mean(run: Measured) -> float:
    """Time average of tasks, or pipeline items, that are ready and not running."""
    record = run.result.record
    until = np.where(np.isnan(record.finish), run.result.end, record.finish)
    there = float(overlap(record.ready, until, run.low, run.high).sum())
    launches = launches_of(record, run.result.modes)
    running = overlap(launches.start, launches.end, run.low, run.high)
    running = running if launches.members is None else running * launches.members
    if record.input.language:
        running = running[~language.periods(record, launches.task)]
        running = np.append(running, overlap(*language.running(record), run.low, run.high).sum())
    return float(there - running.sum()) / run.duration if run.duration > 0 else math.nan


@metric(unit="tasks", better="less", of="run", sets=("summary",), congested=True)
def jobs_in_system_mean(run: Measured) -> float:
    """Time average over the window of the tasks that have arrived and not ended."""
    record = run.result.record
    arrival = run.result.tasks["arrival"].to_numpy()
    finish = run.result.tasks["finish"].to_numpy()
    total = overlap(arrival, np.where(np.isnan(finish), record.end, finish), run.low, run.high).sum()
    return float(total) / run.duration if run.duration > 0 else math.nan


@metric(
    unit="count", better="neither", sets=("summary", "cluster:190", "groups:170", "group_rows:170"),
    hide_if_zero=True,
)  # fmt: skip
def preemptions(run: Measured) -> float:
    """Stops of running tasks by the policy, of the window's tasks."""
    return int(run.column(STOPS).sum())


@metric(unit="count", better="neither", sets=("summary", "cluster:200"), hide_if_zero=True)
def migrations(run: Measured) -> float:
    """Moves of running tasks to another placement, of the window's tasks."""
    return int(run.column(MOVES).sum())


@metric(unit="share", better="neither", of="run")
def cache_hit_fraction(run: Measured) -> float:
    """Share of completed requests answered by a result cache, of those with one."""
    services = run.result.record.input.services
    names = [service.name for service in services if getattr(service, "cache", None) is not None]
    if not names or not run.count(COMPLETED):
        return math.nan
    rows = np.concatenate([service.rows for service in services if service.name in names])
    record = run.result.record
    rows = rows[(record.input.tasks.arrival[rows] >= run.low) & (record.status[rows] == COMPLETED)]
    return float((record.place[rows] < 0).mean()) if len(rows) else math.nan


def littles_law(result: Run) -> tuple[float, float]:
    """L and λW: mean number in system, and arrival rate × mean time in system.

    Exactly equal (up to rounding) for a drained run without warmup in which every task completed.
    """
    run = result.measured
    return jobs_in_system_mean(run), len(run.status) / run.duration * run.mean("response")
