"""The metrics of one run, each a function with its definition, in a registry by name.

A metric takes a `Measured` run and gives a number; NaN says that it is not defined there (a makespan with
tasks unfinished, an attainment without deadlines).  Task metrics cover the tasks that arrive in the window
[warmup, horizon), device metrics the time in it.  `SUMMARY` names those of every summary; the others are
computed when asked for by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np

from sim.errors import UnknownName
from sim.model.record import COMPLETED, EXPIRED, FAILED, REJECTED, UNFINISHED
from sim.results.one_run import language, network
from sim.results.one_run.language_metrics import OF_LANGUAGE, OF_THE_RUN
from sim.results.one_run.launches import launches_of
from sim.results.one_run.measured import QUANTILES, Measured, Metric, Run
from sim.results.one_run.tables import SLOWDOWN_BOUND, bound_name
from sim.results.one_run.usage import overlap


def counting(status: int, meaning: str) -> Metric:
    def metric(run: Measured) -> float:
        return run.count(status)

    metric.__doc__ = f"Tasks of the window that {meaning}."
    return metric


def tasks(run: Measured) -> float:
    """Tasks that arrived in the window."""
    return len(run.status)


def makespan(run: Measured) -> float:
    """Last finish of a completed task - first arrival; undefined while anything is unfinished."""
    if not run.count(COMPLETED) or run.count(UNFINISHED):
        return math.nan
    finish = run.column("finish")[run.status == COMPLETED]
    return float(finish.max() - run.column("arrival").min())


def throughput(run: Measured) -> float:
    """Completions inside the window per second, whenever the tasks arrived."""
    frame = run.result.tasks
    finish = frame["finish"].to_numpy()[frame["status"].cat.codes.to_numpy() == COMPLETED]
    inside = np.count_nonzero((finish >= run.low) & (finish <= run.high))  # a drained run ends with its last finish
    return inside / run.duration if run.duration > 0 else math.nan


def rejected_fraction(run: Measured) -> float:
    """Tasks that were rejected / all arrivals; undefined where none came."""
    return run.count(REJECTED) / len(run.status) if len(run.status) else math.nan


def bsld_swf_mean(run: Measured) -> float:
    """Mean of max(1, response / max(run time, 10 s)), run time = finish - start, of completed tasks.

    The bounded slowdown of the batch-scheduling literature (Feitelson's SWF logs); ours divides by T*.
    """
    done = run.status == COMPLETED
    if not done.any():
        return math.nan
    ran = (run.column("finish") - run.column("start"))[done]
    return float(np.maximum(run.column("response")[done] / np.maximum(ran, SLOWDOWN_BOUND), 1.0).mean())


def _devices(run: Measured, gpus: bool) -> np.ndarray:
    return np.array([(device.type.kind != "cpu") == gpus for device in run.result.record.input.cluster.devices])


def _share(run: Measured, seconds: np.ndarray, gpus: bool) -> float:
    chosen = _devices(run, gpus)
    up = float((run.use.up * run.use.count)[chosen].sum())
    return float(seconds[chosen].sum()) / up if up > 0 else math.nan


def gpu_utilization(run: Measured) -> float:
    """∫ compute-engine busy × share / ∫ GPUs (accelerators of any kind) that are up, over the window."""
    return _share(run, run.use.busy, True)


def gpu_allocation(run: Measured) -> float:
    """∫ GPU share held by launches (at most 1 a GPU) / ∫ GPUs that are up, over the window."""
    return _share(run, run.use.allocated, True)


def cpu_utilization(run: Measured) -> float:
    """∫ cores computing in CPU modes / ∫ cores that are up, over the window."""
    return _share(run, run.use.busy, False)


def cpu_allocation(run: Measured) -> float:
    """∫ cores held by launches, those next to a GPU included / ∫ cores that are up, over the window."""
    return _share(run, run.use.allocated, False)


def energy_j(run: Measured) -> float:
    """Joules of all devices in the window: energy_tasks_j, _wasted_j, _idle_j and _sleep_j; undefined without watts."""
    return energy_tasks_j(run) + energy_wasted_j(run) + energy_idle_j(run) + energy_sleep_j(run)


def energy_tasks_j(run: Measured) -> float:
    """(busy - idle) watts × frequency³ × time of work that counted; without warmup the tasks' energy_j."""
    return float(run.use.dynamic.sum())


def energy_wasted_j(run: Measured) -> float:
    """The same of work that was lost to stops and failures."""
    return float(run.use.wasted.sum())


def energy_idle_j(run: Measured) -> float:
    """Idle watts × time that devices were up (per core of a CPU), busy or not."""
    return float(run.use.idle.sum())


def energy_sleep_j(run: Measured) -> float:
    """Sleep watts × time asleep."""
    return float(run.use.sleep.sum())


def energy_of_tasks_j(run: Measured) -> float:
    """Σ energy_j of the tasks: joules above idle of their work that counted."""
    return float(run.column("energy_j").sum()) if run.result.record.input.cluster.has_watts else math.nan


def gpu_seconds(run: Measured) -> float:
    """GPUs × share × time in which the tasks computed, of work that counted."""
    return float(run.chosen(run.result.gpu_seconds).sum())


def preemptions(run: Measured) -> float:
    """Stops of running tasks by the policy, of the window's tasks."""
    return int(run.column("preemptions").sum())


def cache_hit_fraction(run: Measured) -> float:
    """Of the completed requests of services with a result cache, those answered without a device."""
    services = run.result.record.input.services
    names = [service.name for service in services if getattr(service, "cache", None) is not None]
    if not names or not run.count(COMPLETED):
        return math.nan
    rows = np.concatenate([service.rows for service in services if service.name in names])
    record = run.result.record
    arrived = (record.input.tasks.arrival[rows] >= run.low) & (record.status[rows] == COMPLETED)
    rows = rows[arrived]
    return float((record.place[rows] < 0).mean()) if len(rows) else math.nan


def migrations(run: Measured) -> float:
    """Moves of running tasks to another placement, of the window's tasks."""
    return int(run.column("migrations").sum())


def queue_length_mean(run: Measured) -> float:
    """Time average over the window of the tasks, or items of a pipeline, that are ready and not running."""
    record = run.result.record
    there = _time_in(record.ready, record.finish, run)
    launches = launches_of(record, run.result.modes)
    running = overlap(launches.start, launches.end, run.low, run.high)
    running = running if launches.members is None else running * launches.members
    if record.input.language:
        running = running[~language.periods(record, launches.task)]
        running = np.append(running, overlap(*language.running(record), run.low, run.high).sum())
    return float(there - running.sum()) / run.duration if run.duration > 0 else math.nan


def jobs_in_system_mean(run: Measured) -> float:
    """Time average over the window of the tasks that have arrived and not ended."""
    record = run.result.record
    arrival = run.result.tasks["arrival"].to_numpy()
    finish = run.result.tasks["finish"].to_numpy()
    total = overlap(arrival, np.where(np.isnan(finish), record.end, finish), run.low, run.high).sum()
    return float(total) / run.duration if run.duration > 0 else math.nan


def _time_in(begin: np.ndarray, finish: np.ndarray, run: Measured) -> float:
    return float(overlap(begin, np.where(np.isnan(finish), run.result.end, finish), run.low, run.high).sum())


def output_rate(run: Measured) -> float:
    """Tokens generated per second of the window, by requests that completed in it."""
    frame = run.result.tasks
    if "output_tokens" not in frame or run.duration <= 0:
        return math.nan
    finish = frame["finish"].to_numpy()
    inside = (frame["status"].cat.codes.to_numpy() == COMPLETED) & (finish >= run.low) & (finish <= run.high)
    return float(np.nansum(frame["output_tokens"].to_numpy()[inside].astype(float)) / run.duration)


def of_tokens(metric: Metric, column: str) -> Metric:
    """A metric of a column that only runs with language models have; elsewhere undefined."""

    def guarded(run: Measured) -> float:
        return metric(run) if column in run.result.tasks else math.nan

    guarded.__doc__ = metric.__doc__
    return guarded


def littles_law(result: Run) -> tuple[float, float]:
    """L and λW of a run: the mean number in system, and arrivals per second × mean time in system.

    Exactly equal (up to rounding) for a drained run without warmup in which every task completed.
    """
    run = result.measured
    return jobs_in_system_mean(run), tasks(run) / run.duration * run.mean("response")


def _statistics(column: str, meaning: str) -> dict[str, Metric]:
    """mean, p50, p95, p99 and max of a column."""

    def mean(run: Measured) -> float:
        return run.mean(column)

    def maximum(run: Measured) -> float:
        return run.maximum(column)

    found: dict[str, Metric] = {f"{column}_mean": mean}
    mean.__doc__ = f"Mean {meaning}; unfinished tasks are left out and counted by `unfinished`."
    for label, share in QUANTILES.items():

        def percentile(run: Measured, share: float = share) -> float:
            return run.quantile(column, share)

        percentile.__doc__ = f"{label[1:]}th percentile of the {meaning}; unfinished tasks count as +inf."
        found[f"{column}_{label}"] = percentile
    maximum.__doc__ = f"Greatest {meaning}; unfinished tasks count as +inf."
    return found | {f"{column}_max": maximum}


@cache
def metrics(bound: float = SLOWDOWN_BOUND) -> dict[str, Metric]:
    """All metrics by name; `bound` (s) is that of the bounded slowdown."""
    from sim.results.one_run.bounds import makespan_bound
    from sim.results.one_run.cost import cost, cost_held, cost_per_task
    from sim.results.one_run.data_moved import bytes_moved, launches, memory_traffic, peak_memory
    from sim.results.one_run.deadlines import (
        attainment_admitted,
        deadline_after_end,
        goodput,
        goodput_fraction,
        slo_attainment,
        value_fraction,
    )
    from sim.results.one_run.fairness import jain, rho_max, rho_mean, rho_p95, rho_unfair_share
    from sim.results.one_run.fragmentation import fragmentation
    from sim.results.one_run.plans import makespan_ratio, planned_makespan

    found: dict[str, Metric] = {
        "tasks": tasks,
        "completed": counting(COMPLETED, "completed"),
        "rejected": counting(REJECTED, "were rejected"),
        "expired": counting(EXPIRED, "ran out of time before they started"),
        "failed": counting(FAILED, "failed, or had a failed predecessor"),
        "unfinished": counting(UNFINISHED, "were waiting or running when the run ended"),
    }
    found |= _statistics("response", "time from arrival to finish")
    found |= _statistics("wait", "time from ready to the first stage's start")
    found |= _statistics("slowdown", "response / T* (time alone in the fastest mode, transfers included)")
    found |= _statistics(bound_name(bound), f"max(1, response / max(T*, {bound:g} s))")
    for metric in (
        bsld_swf_mean, makespan, throughput, rejected_fraction, goodput, goodput_fraction, value_fraction,
        slo_attainment, attainment_admitted, deadline_after_end,
        gpu_utilization, gpu_allocation, cpu_utilization, cpu_allocation,
        energy_j, energy_tasks_j, energy_wasted_j, energy_idle_j, energy_sleep_j, energy_of_tasks_j,
        cost, cost_per_task, cost_held, gpu_seconds,
        queue_length_mean, jobs_in_system_mean, preemptions, migrations, cache_hit_fraction,
        makespan_bound, planned_makespan, makespan_ratio,
        fragmentation, rho_max, rho_mean, rho_p95, rho_unfair_share, jain,
        launches, bytes_moved, memory_traffic, peak_memory, *network.METRICS,
    ):  # fmt: skip
        found[metric.__name__] = metric
    for column, meaning in (("ttft", "time from arrival to the first token"), ("tpot", "time per further token")):
        found |= {name: of_tokens(one, column) for name, one in _statistics(column, meaning).items()}
    found["output_rate"] = output_rate
    return found | OF_LANGUAGE


TOKENS = (*(f"{column}_{what}" for column in ("ttft", "tpot") for what in ("mean", *QUANTILES, "max")), "output_rate",
          *OF_LANGUAGE)  # fmt: skip
"""Metrics of language models, part of the summary of runs that have some."""

FAIRNESS = ("rho_max", "rho_p95", "rho_unfair_share", "jain")
"""Part of the summary of runs with several users."""

NETWORK = network.NAMES
"""Part of the summary of runs with jobs that have steps of which their parts are known."""

COSTS = ("cost", "cost_per_task", "cost_held")
"""Part of the summary of runs on a cluster that has prices."""

LAZY = frozenset(
    {
        *TOKENS, *FAIRNESS, *COSTS, *NETWORK,
        "makespan_bound", "planned_makespan", "makespan_ratio",
        "fragmentation", "rho_mean", "cache_hit_fraction", "gpu_seconds", "energy_of_tasks_j", "value_fraction",
        "launches", "bytes_moved", "memory_traffic", "peak_memory",
    }
)  # fmt: skip
"""Metrics that cost more than a pass over the tasks, or that few runs have: computed only when asked for."""

RUN_ONLY = frozenset(
    {
        "throughput", "gpu_utilization", "gpu_allocation", "cpu_utilization", "cpu_allocation", "energy_j",
        "output_rate", "energy_tasks_j", "energy_wasted_j", "energy_idle_j", "energy_sleep_j", "queue_length_mean",
        "jobs_in_system_mean", "makespan_bound", "planned_makespan", "makespan_ratio", "fragmentation", "jain",
        "cost", "cost_per_task", "cache_hit_fraction", "launches", "bytes_moved", "memory_traffic", "peak_memory",
        *OF_THE_RUN, *network.OF_THE_RUN,
    }
)  # fmt: skip
"""Metrics of the whole run, which have no meaning for a group of tasks."""

HIGHER_IS_BETTER = frozenset(
    {
        "completed", "throughput", "goodput", "goodput_fraction", "value_fraction", "slo_attainment",
        "attainment_admitted", "jain", "output_rate", "prefix_hit_rate", "prefix_tokens_served",
    }
)  # fmt: skip
NO_DIRECTION = frozenset(
    {
        "tasks", "deadline_after_end", "preemptions", "migrations", "makespan_bound", "planned_makespan", "launches",
        "cache_hit_fraction", "gpu_seconds", "gpu_utilization", "gpu_allocation", "cpu_utilization", "cpu_allocation",
        "kv_used_mean", "kv_used_max", "tokens_per_step", "prefix_tokens_requested", "preemptions_recompute",
        "preemptions_swap", "preemptions_failure", "network_utilization",
    }
)  # fmt: skip
"""Metrics of which neither more nor less is better: compared, but never won.

A device can be busy with work that is lost later, or that another device would do in a tenth of the time.
"""


def summary_names(bound: float = SLOWDOWN_BOUND) -> list[str]:
    """The metrics of every summary, in order."""
    return [name for name in metrics(bound) if name not in LAZY]


def metric(name: str, bound: float = SLOWDOWN_BOUND) -> Metric:
    """The metric of that name; UnknownName with a suggestion otherwise."""
    known = metrics(bound)
    if name not in known:
        raise UnknownName("metric", name, known)
    return known[name]


def evaluate(run: Measured, names: Iterable[str], bound: float = SLOWDOWN_BOUND) -> dict[str, float]:
    """Values of metrics by name, in the order asked for."""
    return {name: metric(name, bound)(run) for name in names}
