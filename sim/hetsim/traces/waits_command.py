"""Recorded waits in `hetsim trace validate`: reasons, and simulated waits."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hetsim.cli import console
from hetsim.errors import UsageError
from hetsim.model.files import write_text, write_whole
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.rows import TableRows
from hetsim.scenario.file.document import dump, read
from hetsim.scenario.readers import VALIDATE, not_understood
from hetsim.scenario.scenario import load
from hetsim.traces.from_log import POLICY, Compared, compare, document_of, inferred_nodes, variants
from hetsim.workload.logs.recorded_log import jobs_of
from hetsim.workload.logs.waits import Explained, explain
from hetsim.workload.traces import TaskTable

MAX_JOBS = 50_000  # maximum number of jobs whose waits are explained; larger logs need a window
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass
class Subject:
    """A log, its scenario, and the folder to which paths in the scenario are relative."""

    table: TaskTable
    document: dict[str, Any]
    inferred: bool  # the cluster was inferred from the log


def subject_of(file: Path, document: Mapping[str, Any] | None, trace: Mapping[str, Any], table: TaskTable) -> Subject:
    """Return a log with its scenario, whose cluster is given or inferred."""
    if document is not None and "cluster" in document:
        scenario = dict(document)
        scenario["workload"] = [{**_single(document), "trace": dict(trace)}]
        scenario.setdefault("policy", POLICY)
        return Subject(table, scenario, False)
    entry = None
    if document is not None:
        entry = {key: value for key, value in _single(document).items() if key not in ("trace", "name")}
        entry = {"unfit": "leave_out", "span": "any", **entry}
    document = document or {}
    name, policy = str(document.get("name", file.stem)), document.get("policy")
    return Subject(
        table, {**document, **document_of(name, trace, inferred_nodes(table), policy=policy, entry=entry)}, True
    )


def not_explained(file: str, subject: Subject) -> list[str]:
    """Return remarks on scenario keys that the explanation of waits does not use."""
    unknown = not_understood(load(subject.document), VALIDATE)
    return [f"{read(Path(file)).addressed(one)}; recorded waits are explained without this key" for one in unknown]


def _single(document: Mapping[str, Any]) -> Mapping[str, Any]:
    workload = document.get("workload")
    entry = workload[0] if isinstance(workload, list) and workload else workload
    assert isinstance(entry, Mapping)
    return entry


def explained_waits(
    subject: Subject, policy: str | None, simulate: bool, out: Path | None, quiet: bool
) -> tuple[Explained | None, Compared | None]:
    """Explain the waits in a log; if requested, simulate and write a scenario."""
    jobs = jobs_of(subject.table)
    if jobs is not None and len(jobs) > MAX_JOBS:
        console.note(f"waits of {len(jobs):,} jobs are too many to explain; choose a window (since, until)")
        jobs = None
    run = load(subject.document).build()
    names = [node.name for node in run.cluster.nodes]
    explained = None
    if jobs is not None:
        stated = None if subject.inferred else capacity_of_cluster(run, jobs.unit)
        cut = "at_cut" in subject.table.extra
        explained = explain(subject.table, stated, cut)
    if explained is None:
        if out is not None:
            write_scenario(subject.document, out)
        return None, None
    document = dict(subject.document)
    if policy is not None:
        document["policy"] = policy
    half = explain(subject.table, stated, cut, part=0) if simulate else None
    compared = variants(document, half or explained, not run.cluster.partitions, names)
    if simulate:
        gpus = Counter(device.node for device in run.cluster.devices if device.type.kind != "cpu")
        compare(compared, half or explained, max(gpus.values(), default=0), lambda text: console.note(text, quiet))
    if out is not None:
        write_scenario(compared.best.document, out)
    return explained, compared


def capacity_of_cluster(run: Any, unit: str) -> float:
    """Return the number of GPUs of a cluster, or of cores, as `unit` states."""
    if unit == "GPUs":
        return float(sum(device.type.kind != "cpu" for device in run.cluster.devices))
    return float(sum(node.cpus for node in run.cluster.nodes))


def write_scenario(document: dict[str, Any], out: Path) -> None:
    write_whole(out, partial(write_text, text=dump(_moved(document, out.parent))))
    console.note(f"scenario: {out}")


def _moved(value: Any, folder: Path) -> Any:
    if isinstance(value, Mapping):
        return {
            key: os.path.relpath(one, folder) if key == "path" and isinstance(one, str) and not os.path.isabs(one)
            else _moved(one, folder)
            for key, one in value.items()
        }  # fmt: skip
    return [_moved(one, folder) for one in value] if isinstance(value, list) else value


def against_record(result: Run) -> pd.DataFrame:
    """Return recorded and simulated figures: waits, responses and allocation.

    Rows `wait_mean`, `wait_p95`, ..., `response_...`, `allocation`; columns recorded, simulated, tasks.  Only completed
    tasks with a recorded start count.  Both allocations are means from the first arrival to the last recorded finish.
    """
    tasks = result.tasks
    if "recorded_start" not in tasks:
        raise UsageError("the tasks of this run have no recorded starts to compare with (column recorded_start)")
    chosen = tasks["recorded_start"].notna() & (tasks["status"] == "completed")
    if not chosen.any():
        raise UsageError("no completed task of this run has a recorded start to compare with")
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
    compared = pd.DataFrame.from_dict(rows, orient="index").assign(tasks=len(table))
    compared.index.name = "metric"
    return compared


def _allocation(result: Run, chosen: np.ndarray, began: np.ndarray, took: np.ndarray) -> dict[str, dict[str, float]]:
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
        overlap = np.maximum(np.minimum(end, high) - np.maximum(begin, low), 0.0)
        return float((width * overlap).sum()) / (high - low) / capacity

    simulated = share(table["start"].to_numpy(), table["finish"].to_numpy(dtype=float))
    return {"allocation": {"recorded": share(began, began + took), "simulated": simulated}}
