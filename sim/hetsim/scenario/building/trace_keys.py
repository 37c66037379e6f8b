"""Checks for keys next to a trace that have no effect.

A key fills blank cells of rows (`hetsim.scenario.building.recorded`).  If no row has such a blank cell, the key is an
error, since a reader would expect it to apply to the tasks.
"""

import re
from typing import Any

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.scenario.building.streams import Context
from hetsim.scenario.file.document import Path_
from hetsim.scenario.schema.demand import GPU_TIME
from hetsim.scenario.schema.workload import WorkloadEntry
from hetsim.workload.traces import TaskTable

NUMBERS = ("nodes", "cpus", "gpus", "memory", "gpu_memory", "upload", "download", "bytes_in", "bytes_out", "priority",
           "weight", "deadline", "patience")  # fmt: skip
TEXTS = ("qos", "account")
# Keys that apply only to tasks on accelerators.
ON_GPUS = ("gpus", "gpu_memory", "upload", "download", "bytes_in", "bytes_out")


def check_effect(entry: WorkloadEntry, path: Path_, table: TaskTable, context: Context) -> None:
    """Raise ScenarioError for keys and columns with no effect or a misleading one."""
    problems: list[Problem] = []

    def refuse(key: str, text: str) -> None:
        problems.append(context.document.problem((*path, key), text))

    on_gpus = "flops" in table.numbers or any(name.startswith("gpu_time") for name in table.times)
    for key, column in _given(entry):
        if _filled(table, column):
            refuse(key, f"every row of {table.source} has its {column}, so this key has no effect; leave it out")
        elif column in ON_GPUS and not on_gpus:
            refuse(key, f"no row of {table.source} has a time on a GPU, so this key has no effect; leave it out")
    if entry.nodes is not None and entry.nodes > 1 and "nodes" not in table.numbers:
        kinds = [key for key in ("cpus", "gpus") if key in table.numbers]
        if kinds:
            text = f"the rows of {table.source} have the totals of a job, and this key multiplies them by {entry.nodes}"
            refuse("nodes", f"{text} ({' and '.join(kinds)}); {nodes_by(entry)} gives the nodes of each job")
    line = None if table.line(0) is None else 1  # where columns are named; Parquet has no lines
    for name in table.unknown:
        for kind in context.cluster.types:
            if _reads_as_time(name, kind):
                text = f'column "{name}" has no effect: times on {kind} are read from column "{GPU_TIME}{kind}"'
                problems.append(Problem(f"{text}; rename it, or leave it out", "", table.source, line))
    if problems:
        raise ScenarioError(problems)


def _reads_as_time(column: str, kind: str) -> bool:
    words, named = (set(re.findall(r"[a-z0-9]+", name.lower())) for name in (column, kind))
    rest = words - named - {"gpu", "estimate", "s", "sec"}
    return named <= words and bool(rest) and rest <= {"time", "duration", "runtime", "seconds"}


def _given(entry: WorkloadEntry) -> list[tuple[str, str]]:
    pairs = [(key, key) for key in (*NUMBERS, *TEXTS, "reads", "writes", "user", "time_limit")
             if getattr(entry, key) is not None]  # fmt: skip
    pairs += [("slice", "gpus"), ("slice", "slice")] if entry.slice is not None else []
    pairs += [("slo", "deadline")] if entry.slo is not None else []
    pairs += [("users", "user")] if entry.users is not None else []
    return pairs + ([("class", "class")] if entry.class_ is not None else [])


def _filled(table: TaskTable, column: str) -> bool:
    if not len(table):
        return False
    if column in ("reads", "writes"):  # a row that names nothing reads nothing
        return getattr(table, column) is not None
    values: Any = {"user": table.user, "class": table.class_}.get(column, table.numbers.get(column))
    if values is None:
        values = table.extra.get(column)
    if values is None:
        return False
    if column == "time_limit":
        return bool((np.nan_to_num(np.asarray(values, dtype=float)) > 0).all())
    if values.dtype == object or values.dtype.kind in "US":
        return all(str(cell) for cell in values.tolist())
    return not np.isnan(values).any()


def nodes_by(entry: WorkloadEntry) -> str:
    """Return the key or column that states the number of nodes of a trace's jobs."""
    sources = {"swf": "cores_per_node: N under trace", "slurm": "node_counts: true under trace"}
    form = "" if entry.trace is None else entry.trace.format
    return sources.get(form, "a column nodes of the table")
