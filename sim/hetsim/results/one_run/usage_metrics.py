"""Metrics of devices and queues: utilization, energy, cost, numbers in system.

Costs are in the currency of the cluster's prices.  A device costs its price while it is up, used or not, and its sleep
price (equal unless the scenario says otherwise) while it sleeps; while it is down it costs nothing.  A node's price
is divided equally among its accelerators, or is that of its cores if it has none.  `cost` is thus the bill for the
whole cluster from the start of the window to the end of the run: a cluster that finishes earlier is returned earlier.

A task costs its share × price × time from the start decision to its end, lost work included: `cost_held` is the charge
for all tasks by use, and `cost` minus `cost_held` is the cost of idle devices.
"""

import math
from typing import Any

import numpy as np

from hetsim.model.record import COMPLETED, MOVES, STOPS
from hetsim.results.declared import COST, ENERGY, metric
from hetsim.results.one_run import language
from hetsim.results.one_run.launches import launches_of
from hetsim.results.one_run.measured import Measured, Metric, Run
from hetsim.results.one_run.task_metrics import completions
from hetsim.results.one_run.usage import device_cost, overlap, prices


def _share(run: Measured, seconds: np.ndarray, gpus: bool) -> float:
    chosen = np.array([(one.type.kind != "cpu") == gpus for one in run.result.record.input.cluster.devices])
    up = float((run.use.up * run.use.count)[chosen].sum())
    return float(seconds[chosen].sum()) / up if up > 0 else math.nan


@metric(
    unit="share", better="neither", of="run",
    sets=("summary", "usual:90", "cluster:100", "display:80", "page_cards:100", "sweep:40"), title="GPU busy",
)  # fmt: skip
def gpu_utilization(run: Measured) -> float:
    """GPU time computing × share / GPU time up, in the window."""
    return _share(run, run.use.busy, True)


@metric(unit="share", better="neither", of="run", sets=("summary", "cluster:110"), title="GPU held")
def gpu_allocation(run: Measured) -> float:
    """GPU time × share occupied (at most 1 per GPU) / GPU time up, in the window."""
    return _share(run, run.use.allocated, True)


@metric(unit="share", better="neither", of="run", sets=("summary", "display:90", "page_cards:120"), title="CPU busy")
def cpu_utilization(run: Measured) -> float:
    """Core time computing in CPU modes / core time up, in the window."""
    return _share(run, run.use.busy, False)


@metric(unit="share", better="neither", of="run", sets=("summary",), title="CPU held")
def cpu_allocation(run: Measured) -> float:
    """Core time occupied (also by GPU launches) / core time up, in the window."""
    return _share(run, run.use.allocated, False)


@metric(
    unit="J", better="less", of="run", sets=("summary", "usual:120", "cluster:270", "page_cards:110"),
    hide_if_zero=True,
)  # fmt: skip
def energy_j(run: Measured) -> float:
    """Joules of all devices in the window: the sum of the other energy metrics."""
    return sum(_joules_of(column)(run) for column, _ in _PARTS.values())


def _joules_of(column: str) -> Metric:
    return lambda run: float(getattr(run.use, column).sum())


_PARTS = {
    "tasks": ("dynamic", "(busy - idle) watts × frequency³ × time of useful work."),
    "wasted": ("wasted", "(busy - idle) watts × frequency³ × time of work lost by stops and failures."),
    "idle": ("idle", "Idle watts × time in which devices were up (for a CPU, per core), busy or not."),
    "sleep": ("sleep", "Sleep watts × time in which devices were asleep."),
}  # Part of a run's energy -> (field of `Usage`, definition).
for _part, (_column, _meaning) in _PARTS.items():
    _joules = _joules_of(_column)
    _joules.__doc__ = _meaning
    metric(unit="J", better="less", of="run", sets=("summary",), hide_if_zero=True, name=f"energy_{_part}_j")(_joules)


@metric(unit="J", better="less", sets=("groups:190", "group_rows:190"), title="energy of work", hide_if_zero=True)
def energy_of_tasks_j(run: Measured) -> float:
    """Energy (J) of all tasks' useful work, without idle power: the sum of `energy_j`."""
    return float(run.column(ENERGY).sum()) if run.result.record.input.cluster.has_watts else math.nan


@metric(unit="money", better="less", of="run", sets=("costs", "usual:130", "cluster:280", "page_cards:130"))
def cost(run: Measured) -> float:
    """Price × time of devices up or asleep, from the window's start to the run's end."""
    cluster = run.result.record.input.cluster
    return float(device_cost(cluster, run.use).sum()) if cluster.priced else math.nan


@metric(unit="money", better="less", of="run", sets=("costs", "cluster:290"))
def cost_per_task(run: Measured) -> float:
    """Cost / completions in the window, whenever the tasks arrived."""
    number = completions(run)
    return cost(run) / number if number else math.nan


@metric(unit="money", better="less", sets=("costs", "cluster:300", "groups:200", "group_rows:200"), title="cost of use")
def cost_held(run: Measured) -> float:
    """Price × occupied share × time of the window's tasks, lost work included."""
    return float(run.column(COST).sum()) if COST in run.result.tasks else math.nan


@metric(unit="money", better="less", of="run", sets=("costs",), hide_if_zero=True, title="cost of idle replicas")
def cost_held_idle(run: Measured) -> float:
    """Cost of GPUs while they are occupied but idle; NaN without prices or replicas."""
    given: Any = run.result.record.input
    if not (given.cluster.priced and any(one.kinds for one in (*given.language, *given.services))):
        return math.nan
    idle = np.array([one.type.kind != "cpu" for one in given.cluster.devices]) * (run.use.allocated - run.use.busy)
    return float((prices(given.cluster)[0] * np.maximum(idle, 0.0)).sum())


@metric(unit="GPU s", better="neither", sets=("groups:180", "group_rows:180"), title="GPU time", hide_if_zero=True)
def gpu_seconds(run: Measured) -> float:
    """GPUs × share × time in which the window's tasks computed useful work."""
    return float(run.chosen(run.result.gpu_seconds).sum())


@metric(unit="tasks", better="less", of="run", sets=("summary", "cluster:130"), congested=True)
def queue_length_mean(run: Measured) -> float:
    """Time average of the tasks, or pipeline items, that are ready and not running."""
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
    """Number of preemptions by the policy, of tasks that arrived in the window."""
    return int(run.column(STOPS).sum())


@metric(unit="count", better="neither", sets=("summary", "cluster:200"), hide_if_zero=True)
def migrations(run: Measured) -> float:
    """Number of times that a running task of the window moved to other devices."""
    return int(run.column(MOVES).sum())


@metric(unit="share", better="neither", of="run")
def cache_hit_fraction(run: Measured) -> float:
    """Share of completed requests that a cache answered, among services with a cache."""
    services = run.result.record.input.services
    names = [service.name for service in services if getattr(service, "cache", None) is not None]
    if not names or not run.count(COMPLETED):
        return math.nan
    rows = np.concatenate([service.rows for service in services if service.name in names])
    record = run.result.record
    rows = rows[(record.input.tasks.arrival[rows] >= run.low) & (record.status[rows] == COMPLETED)]
    return float((record.place[rows] < 0).mean()) if len(rows) else math.nan


def littles_law(result: Run) -> tuple[float, float]:
    """Return L and λW: mean number in system, arrival rate × mean time in system.

    They are equal, up to rounding, if no time is cut as warmup and every task completed before the run ended.
    """
    run = result.measured
    return jobs_in_system_mean(run), len(run.status) / run.duration * run.mean("response")
