"""Metrics of kernels and their data: launches, bytes moved, memory held."""

import math

import numpy as np

from hetsim.model.record import LAUNCH_COMPLETED, Record
from hetsim.results.declared import metric
from hetsim.results.one_run.launches import launch_numbers, launches_of
from hetsim.results.one_run.measured import Measured


@metric(unit="count", better="neither", of="run", title="launches")
def launch_count(run: Measured) -> float:
    """Launches begun in the window; a batch or a fused launch counts once."""
    begun = launches_of(run.result.record, run.result.modes).decided
    return float(((begun >= run.low) & (begun < run.high)).sum())


@metric(unit="B", better="less", of="run")
def bytes_moved(run: Measured) -> float:
    """Bytes over links in the whole run, evictions included; once for each link."""
    return run.result.record.stats.get("bytes_moved", math.nan)


@metric(unit="B", better="less", of="run")
def memory_traffic(run: Measured) -> float:
    """Memory bytes of completed kernels in the whole run, by their `work`.

    Undefined where the work of one is not known.
    """
    record = run.result.record
    if (work := record.input.tasks.work) is None:
        return math.nan
    launches = launches_of(record, run.result.modes)
    rows, mode, number = launches.task, record.mode[launches.task], np.full(len(launches), -1)
    ended = ~launches.open
    if record.launches is not None:
        ended = np.asarray(record.launches["outcome"]) == LAUNCH_COMPLETED
        mode, number = np.asarray(record.launches["mode"]), launch_numbers(record.launches)
    single = ended & ~np.isin(number, list(record.fused))
    if launches.members is not None and (launches.members[single] > 1).any():
        return math.nan  # a batch has no work of its own
    total = float(work.bytes[rows[single], mode[single]].sum())
    return total + sum(_traffic_of(record, one) for one in number[ended & ~single].tolist())


@metric(unit="B", better="less", of="run")
def peak_memory(run: Measured) -> float:
    """Maximum bytes held at once in the memory of an accelerator, whole run."""
    return run.result.record.stats.get("peak_memory", math.nan)


def _traffic_of(record: Record, launch: int) -> float:
    """Bytes of memory traffic of a launch of several tasks as one."""
    members, saved = record.fused[launch]
    work = record.input.tasks.work
    assert work is not None
    moved = work.bytes[list(members), record.mode[list(members)]]
    return float(np.maximum(moved - np.array(saved), 0.0).sum())
