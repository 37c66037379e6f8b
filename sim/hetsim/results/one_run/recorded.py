"""A run against the record of what really happened: wait, response and allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.results.one_run.rows import TableRows

if TYPE_CHECKING:
    from hetsim.results.one_run.measured import Run

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def against_record(result: Run) -> pd.DataFrame:
    """Rows `wait_mean`, `wait_p95`, ..., `response_...`, `allocation`; columns recorded, simulated, tasks.

    Of the tasks with a recorded start that completed.  Both allocations are means over the same time: from the first
    arrival to the last recorded finish.
    """
    tasks = result.tasks
    if "recorded_start" not in tasks:
        raise UsageError("the tasks of this run have no recorded starts to compare with (column recorded_start)")
    chosen = tasks["recorded_start"].notna() & (tasks["status"] == "completed")
    if not chosen.any():
        raise UsageError("none of the completed tasks of this run has a recorded start to compare with")
    table = tasks[chosen]
    arrival, began = table["arrival"].to_numpy(), table["recorded_start"].to_numpy()
    took = table["compute"].to_numpy(dtype=float)
    pairs = {
        "wait": (began - arrival, table["start"].to_numpy() - arrival),
        "response": (began + took - arrival, table["response"].to_numpy(dtype=float)),
    }
    rows: dict[str, dict[str, Any]] = {}
    for name, (recorded, simulated) in pairs.items():
        rows[f"{name}_mean"] = {"recorded": recorded.mean(), "simulated": simulated.mean()}
        for label, share in QUANTILES.items():
            low, high = np.quantile(recorded, share), np.quantile(simulated, share)
            rows[f"{name}_{label}"] = {"recorded": low, "simulated": high}
    rows |= _allocation(result, chosen.to_numpy(), began, took)
    found = pd.DataFrame.from_dict(rows, orient="index").assign(tasks=len(table))
    found.index.name = "metric"
    return found


def _allocation(result: Run, chosen: np.ndarray, began: np.ndarray, took: np.ndarray) -> dict[str, dict[str, float]]:
    """The share of GPUs (where there are none, of cores) that these tasks held."""
    record, cluster = result.record, result.record.input.cluster
    gpus = sum(device.type.kind != "cpu" for device in cluster.devices)
    index = TableRows(record)(np.arange(len(record.status)))
    shapes, widths = record.input.tasks.shapes, np.zeros(len(chosen))
    for row in np.flatnonzero(chosen).tolist():
        number = int(index[row])
        mode = shapes[int(record.input.tasks.shape[number])].modes[int(record.mode[number])]
        widths[row] = mode.gpu_share if gpus else mode.millicores / 1000
    width = widths[chosen]
    table = result.tasks[chosen]
    low, high = float(table["arrival"].min()), float((began + took).max())
    if high <= low:
        return {}
    capacity = float(gpus or sum(node.cpus for node in cluster.nodes))

    def share(begin: np.ndarray, end: np.ndarray) -> float:
        held = np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0.0)
        return float((width * held).sum()) / (high - low) / capacity

    simulated = share(table["start"].to_numpy(), table["finish"].to_numpy(dtype=float))
    return {"allocation": {"recorded": share(began, began + took), "simulated": simulated}}
