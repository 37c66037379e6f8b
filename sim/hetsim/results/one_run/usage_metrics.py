"""Metrics of devices: utilization, allocation, energy."""

import math

import numpy as np

from hetsim.results.declared import ENERGY, metric
from hetsim.results.one_run.measured import Measured, Metric


def _share(run: Measured, seconds: np.ndarray, gpus: bool) -> float:
    chosen = np.array([(one.type.kind != "cpu") == gpus for one in run.result.record.input.cluster.devices])
    up = float((run.use.up * run.use.count)[chosen].sum())
    return float(seconds[chosen].sum()) / up if up > 0 else math.nan


@metric(
    unit="share", better="neither", of="run",
    sets=("summary", "usual:90", "cluster:100", "display:80", "page_cards:100", "sweep:40"), title="GPU busy",
)  # fmt: skip
def gpu_utilization(run: Measured) -> float:
    """∫ compute-engine busy × share / ∫ accelerators that are up, in the window."""
    return _share(run, run.use.busy, True)


@metric(unit="share", better="neither", of="run", sets=("summary", "cluster:110"), title="GPU held")
def gpu_allocation(run: Measured) -> float:
    """∫ GPU share held by launches (at most 1) / ∫ GPUs up, in the window."""
    return _share(run, run.use.allocated, True)


@metric(unit="share", better="neither", of="run", sets=("summary", "display:90", "page_cards:120"), title="CPU busy")
def cpu_utilization(run: Measured) -> float:
    """∫ cores computing in CPU modes / ∫ cores that are up, over the window."""
    return _share(run, run.use.busy, False)


@metric(unit="share", better="neither", of="run", sets=("summary",), title="CPU held")
def cpu_allocation(run: Measured) -> float:
    """∫ cores held by launches, GPU hosts included / ∫ cores up, in the window."""
    return _share(run, run.use.allocated, False)


@metric(
    unit="J", better="less", of="run", sets=("summary", "usual:120", "cluster:270", "page_cards:110"),
    hide_if_zero=True,
)  # fmt: skip
def energy_j(run: Measured) -> float:
    """Joules of all devices in the window, the sum of the other energy metrics."""
    return sum(_joules_of(column)(run) for column, _ in _PARTS.values())


def _joules_of(column: str) -> Metric:
    return lambda run: float(getattr(run.use, column).sum())


_PARTS = {
    "tasks": ("dynamic", "(busy - idle) watts × frequency³ × time of work that counted."),
    "wasted": ("wasted", "(busy - idle) watts × frequency³ × time of work lost to stops and failures."),
    "idle": ("idle", "Idle watts × time that devices were up (per core of a CPU), busy or not."),
    "sleep": ("sleep", "Sleep watts × time asleep."),
}
"""Of the energy of a run: what of the `Usage` it is the sum of, and the definition."""
for _part, (_column, _meaning) in _PARTS.items():
    _joules = _joules_of(_column)
    _joules.__doc__ = _meaning
    metric(unit="J", better="less", of="run", sets=("summary",), hide_if_zero=True, name=f"energy_{_part}_j")(_joules)


@metric(unit="J", better="less", sets=("groups:190", "group_rows:190"), title="energy of work", hide_if_zero=True)
def energy_of_tasks_j(run: Measured) -> float:
    """Σ energy_j of the tasks: joules above idle of their work that counted."""
    return float(run.column(ENERGY).sum()) if run.result.record.input.cluster.has_watts else math.nan
