"""Task graphs of WfCommons (`format: wfformat`), WfFormat 1.5: workflows as they ran, with the files that they pass on.

A JSON object: workflow.specification has tasks (id, name, parents, children, inputFiles, outputFiles) and files (id,
sizeInBytes), workflow.execution what each task took (id, runtimeInSeconds, coreCount, memoryInBytes, machines).
Tasks run on CPUs, `coreCount` cores each (1 unless given), all submitted at time 0.  Files are data items, which tasks
read and write; those that no task writes exist on every host from the beginning.  A child waits for its parents,
whichever of the two names the other.  The name of a task without its number is its class, the machine on which it ran
`recorded_node`.

`gpu_speedup` gives every task a GPU mode too, so many times as fast as its cores.
Left out and counted: nothing; a task without a run time is an error, as the graph would fall apart without it.
Reference: Coleman, Casanova, Pottier, Kaushik, Deelman, Ferreira da Silva, WfCommons: A Framework for Enabling
Scientific Workflow Research and Development (2022).
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from sim.model.paths import ExistingFile
from sim.model.plan import find_cycle
from sim.model.units import MOST_BYTES, MOST_SECONDS, shown
from sim.workload.job_rows import problem_of
from sim.workload.text_rows import Complaints, pieces
from sim.workload.traces import TaskTable

Speedup = Annotated[float, Field(gt=0, le=1e9)]
_NUMBERED = re.compile(r"[_-]?(ID)?\d+$")


def read(path: ExistingFile, *, gpu_speedup: Speedup | None = None) -> TaskTable:
    """A workflow as WfCommons records it: a task graph with run times, cores, memory and files."""
    return _Reader(Path(path)).table(gpu_speedup)


class _Reader:
    def __init__(self, path: Path):
        self.path = path
        self.complaints = Complaints(path)
        text = "".join(pieces(path))
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise problem_of(path, f"is not JSON ({error.msg})" if text.strip() else "is empty", error.lineno) from None
        except (RecursionError, ValueError):
            raise problem_of(path, "is not JSON that can be read (too deep or too long)") from None
        if isinstance(data, dict) and isinstance(data.get("schemaVersion"), str) and data["schemaVersion"] < "1.4":
            version = data["schemaVersion"]
            raise problem_of(path, f"is WfFormat {version}; version 1.5 is read, to which WfCommons translates")
        self.tasks = self._list(data, "workflow", "specification", "tasks")
        self.files = self._list(data, "workflow", "specification", "files", optional=True)
        self.runs = self._list(data, "workflow", "execution", "tasks")

    def _list(self, data: Any, *keys: str, optional: bool = False) -> list[dict[str, Any]]:
        for key in keys:
            if not isinstance(data, dict) or key not in data:
                if optional:
                    return []
                raise problem_of(self.path, f"has no {'.'.join(keys)}: this is no instance of WfFormat 1.5")
            data = data[key]
        if not isinstance(data, list) or not all(isinstance(one, dict) and one.get("id") for one in data):
            raise problem_of(self.path, f"{'.'.join(keys)} is not a list of objects with an id")
        return data

    def table(self, speedup: float | None) -> TaskTable:
        if not self.tasks:
            raise problem_of(self.path, "has no tasks")
        ids = [str(task["id"]) for task in self.tasks]
        rows = {name: row for row, name in enumerate(ids)}
        if len(rows) < len(ids):
            self.complaints.add("two tasks have one id")
        runs = {str(run["id"]): run for run in self.runs}
        seconds = np.array([self._number(runs.get(name, {}), "runtimeInSeconds", name) for name in ids])
        table = TaskTable(str(self.path), {"cpu_time": seconds}, np.zeros(len(ids)), id=np.array(ids, dtype=object))
        if speedup is not None:
            table.times["gpu_time"] = seconds / speedup
        for key, column in (("coreCount", "cpus"), ("memoryInBytes", "memory")):
            values = [self._number(runs.get(name, {}), key, name, math.nan) for name in ids]
            if not all(map(math.isnan, values)):
                table.numbers[column] = np.array(values)
        table.class_ = np.array([_NUMBERED.sub("", str(task.get("name") or "")) for task in self.tasks], dtype=object)
        table.predecessors = self._parents(rows)
        table.reads, table.writes = self._names("inputFiles"), self._names("outputFiles")
        self._items(table)
        machines = [self._machine(runs.get(name, {})) for name in ids]
        if any(machines):
            table.extra["recorded_node"] = np.array(machines, dtype=object)
        self.complaints.fail_if_any()
        return table

    def _number(self, run: dict[str, Any], key: str, task: str, default: float | None = None) -> float:
        value = run.get(key)
        most = MOST_BYTES if "Bytes" in key else MOST_SECONDS
        if value is None:
            if default is None:
                self.complaints.add(f"{shown(task)} has no {key}")
            return default or 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            self.complaints.add(f"{shown(task)}: {key}: {shown(value)} is no number of that kind")
            return 0.0
        return float(value)

    def _parents(self, rows: dict[str, int]) -> list[tuple[int, ...]]:
        found: list[dict[int, None]] = [{} for _ in self.tasks]
        add = self.complaints.add
        for row, task in enumerate(self.tasks):
            for key in ("parents", "children"):
                for name in map(str, self._names_of(task, key)):
                    other = rows.get(name)
                    if other is None:
                        add(f"task {shown(str(task['id']))} names {shown(name)} among its {key}: there is none")
                    elif key == "parents":
                        found[row][other] = None
                    else:
                        found[other][row] = None
        lists = [tuple(one) for one in found]
        cycle = find_cycle(lists)
        if cycle:
            around = " → ".join(str(self.tasks[row]["id"]) for row in reversed(cycle[:12]))
            self.complaints.add(f"cyclic graph: these tasks wait for each other: {around}")
        return lists

    def _names_of(self, task: dict[str, Any], key: str) -> list[Any]:
        value = task.get(key) or []
        if not isinstance(value, list):
            self.complaints.add(f"task {shown(str(task['id']))}: {key} is not a list")
            return []
        return value

    def _names(self, key: str) -> list[tuple[str, ...]]:
        return [tuple(dict.fromkeys(map(str, self._names_of(task, key)))) for task in self.tasks]

    def _items(self, table: TaskTable) -> None:
        """Sizes of all files that tasks name."""
        sizes = {}
        for file in self.files:
            size = self._number(file, "sizeInBytes", str(file["id"]), 0.0)
            sizes[str(file["id"])] = round(size)
        unknown: dict[str, None] = {}
        for row in [*(table.reads or []), *(table.writes or [])]:
            for name in row:
                if name not in sizes:
                    unknown[name] = None
                table.items[name] = sizes.get(name, 0)
        if unknown:
            names = ", ".join(shown(name) for name in list(unknown)[:3])
            table.notes.append(f"{self.path}: {len(unknown):,} files of unknown size count as empty: {names}")

    def _machine(self, run: dict[str, Any]) -> str:
        machines = run.get("machines")
        return str(machines[0]) if isinstance(machines, list) and len(machines) == 1 else ""
