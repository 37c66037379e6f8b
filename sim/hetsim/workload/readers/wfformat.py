"""Task graphs of WfCommons (`format: wfformat`, WfFormat 1.5) with their files.

A JSON object: workflow.specification has tasks (id, name, parents, children, inputFiles, outputFiles) and files (id,
sizeInBytes), workflow.execution has the resources of each task (id, runtimeInSeconds, coreCount, memoryInBytes,
machines).  Tasks run on CPUs, `coreCount` cores each (default: 1), all submitted at time 0.  Files are data items,
which tasks read and write; those that no task writes exist on every host from the beginning.  A child waits for its
parents; it is enough if the child names the parent or the parent names the child.  The name of a task without its
number is its class, its machine becomes `recorded_node`.

`gpu_speedup` gives every task a GPU mode too, faster than its cores by this factor.  No task is skipped: a task without
a run time is an error, since the graph would be incomplete without it.
Reference: Coleman, Casanova, Pottier, Kaushik, Deelman, Ferreira da Silva, WfCommons: A Framework for Enabling
Scientific Workflow Research and Development (2022).
"""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from hetsim.errors import file_error
from hetsim.model.units import MAX_BYTES, MAX_SECONDS, ExistingFile, shown
from hetsim.workload.rows.json_rows import Opened, parts
from hetsim.workload.rows.text_rows import ReadFile, circle
from hetsim.workload.traces import TaskTable

Speedup = Annotated[float, Field(gt=0, le=1e9)]
_KEYS = ("parents", "children", "inputFiles", "outputFiles")
_NUMBERED = re.compile(r"[_-]?(ID)?\d+$")


def read(path: ExistingFile, *, gpu_speedup: Speedup | None = None) -> TaskTable:
    """A WfCommons workflow (task graph); gpu_speedup adds GPU modes (None: CPU only)."""
    return _Reader(Path(path)).table(gpu_speedup)


LISTS = (("workflow", "specification", "tasks"), ("workflow", "specification", "files"),
         ("workflow", "execution", "tasks"))  # fmt: skip
VERSION = ("schemaVersion",)
TASKS, FILES, RUNS = LISTS
MEASURED = ("runtimeInSeconds", "coreCount", "memoryInBytes")

Names = tuple[str, ...]


class _Task(NamedTuple):
    """Relations and files of a task; None for a list that the file lacks."""

    parents: Names | None
    children: Names | None
    inputs: Names | None
    outputs: Names | None


class _Reader(ReadFile):
    def __init__(self, path: Path):
        super().__init__(path)
        self.ids: list[str] = []
        self.classes: list[str] = []
        self.tasks: list[_Task] = []
        self.runs: dict[str, tuple[Any, ...]] = {}  # by task: what was measured, and the machine
        self.sizes: dict[str, Any] = {}
        self._texts: dict[str, str] = {}  # each text once: names stand at both ends of an edge
        lists: dict[Names, bool] = {}  # lists that the file has: True if of objects with an id
        version = None
        take: dict[Names, Callable[[dict[str, Any]], None]] = {TASKS: self._task, FILES: self._file, RUNS: self._run}
        for keys, value in parts(path, {VERSION, *LISTS}):
            if keys == VERSION:
                version = value
            elif isinstance(value, Opened):
                lists[keys] = True
            elif keys in lists and isinstance(value, dict) and value.get("id"):
                take[keys](value)
            else:
                lists[keys] = False
        if isinstance(version, str) and version < "1.4":
            raise file_error(path, f"must be WfFormat 1.5, to which WfCommons translates; got {version}")
        for keys in LISTS:
            if keys not in lists and keys != FILES:
                raise file_error(path, f"has no {'.'.join(keys)}: this is not an instance of WfFormat 1.5")
            if not lists.get(keys, True):
                raise file_error(path, f"{'.'.join(keys)} is not a list of objects with an id")

    def _once(self, value: Any) -> str:
        text = str(value)
        return self._texts.setdefault(text, text)

    def _task(self, task: dict[str, Any]) -> None:
        self.ids.append(self._once(task["id"]))
        self.classes.append(self._once(_NUMBERED.sub("", str(task.get("name") or ""))))
        named = (task.get(key) or [] for key in _KEYS)
        self.tasks.append(
            _Task(*(tuple(map(self._once, names)) if isinstance(names, list) else None for names in named))
        )

    def _file(self, file: dict[str, Any]) -> None:
        self.sizes[self._once(file["id"])] = file.get("sizeInBytes")

    def _run(self, run: dict[str, Any]) -> None:
        machines = run.get("machines")
        machine = self._once(machines[0]) if isinstance(machines, list) and len(machines) == 1 else ""
        self.runs[self._once(run["id"])] = (*(run.get(key) for key in MEASURED), machine)

    def table(self, speedup: float | None) -> TaskTable:
        if not self.tasks:
            raise file_error(self.path, "has no tasks")
        ids = self.ids
        rows = {name: row for row, name in enumerate(ids)}
        if len(rows) < len(ids):
            self.row_problems.add("task ids must be unique")
        nothing = (None, None, None, "")
        runs = [self.runs.get(name, nothing) for name in ids]
        self.runs, self._texts = {}, {}
        pairs = list(zip(ids, runs, strict=True))
        seconds = np.array([self._number(run[0], MEASURED[0], name) for name, run in pairs])
        table = TaskTable(str(self.path), {"cpu_time": seconds}, np.zeros(len(ids)), id=np.array(ids, dtype=object))
        if speedup is not None:
            table.times["gpu_time"] = seconds / speedup
        for place, column in ((1, "cpus"), (2, "memory")):
            values = np.array([self._number(run[place], MEASURED[place], name, math.nan) for name, run in pairs])
            if not np.isnan(values).all():
                table.numbers[column] = values
        table.class_ = np.array(self.classes, dtype=object)
        table.predecessors = self._parents(rows)
        table.reads, table.writes = self._names("inputs"), self._names("outputs")
        self._items(table)
        machines = [run[3] for run in runs]
        if any(machines):
            table.extra["recorded_node"] = np.array(machines, dtype=object)
        self.row_problems.fail_if_any()
        return table

    def _number(self, value: Any, key: str, task: str, default: float | None = None) -> float:
        upper = MAX_BYTES if "Bytes" in key else MAX_SECONDS
        if value is None:
            if default is None:
                self.row_problems.add(f"{shown(task)} has no {key}")
            return default or 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= upper:
            self.row_problems.add(f"{shown(task)}: {key}: {shown(value)} is not a number from 0 to {upper:g}")
            return 0.0
        return float(value)

    def _parents(self, rows: dict[str, int]) -> list[tuple[int, ...]]:
        parents: list[dict[int, None] | tuple[int, ...]] = [() for _ in self.tasks]
        add = self.row_problems.add

        def edge(child: int, parent: int) -> None:
            ahead = parents[child]
            if isinstance(ahead, dict):
                ahead[parent] = None
            elif parent not in ahead:
                parents[child] = (*ahead, parent) if len(ahead) < 8 else dict.fromkeys((*ahead, parent))

        for row, name in enumerate(self.ids):
            for key in ("parents", "children"):
                for one in self._names_of(row, key):
                    if (other := rows.get(one)) is None:
                        add(f"task {shown(name)} names {shown(one)} among its {key}: there is none")
                    elif key == "parents":
                        edge(row, other)
                    else:
                        edge(other, row)
        lists = [tuple(one) for one in parents]
        if waiting := circle(lists, self.ids):
            self.row_problems.add(waiting[1])
        return lists

    def _names_of(self, row: int, key: str) -> Names:
        names: Names | None = getattr(self.tasks[row], key)
        if names is None:
            words = _KEYS[_Task._fields.index(key)]
            self.row_problems.add(f"task {shown(self.ids[row])}: {words} is not a list")
        return names or ()

    def _names(self, key: str) -> list[Names]:
        row_names = (self._names_of(row, key) for row in range(len(self.tasks)))
        return [names if len(set(names)) == len(names) else tuple(dict.fromkeys(names)) for names in row_names]

    def _items(self, table: TaskTable) -> None:
        sizes = {name: round(self._number(size, "sizeInBytes", name, 0.0)) for name, size in self.sizes.items()}
        self.sizes = {}
        unknown: dict[str, None] = {}
        for row in [*(table.reads or []), *(table.writes or [])]:
            for name in row:
                if name not in sizes:
                    unknown[name] = None
                table.items[name] = sizes.get(name, 0)
        if unknown:
            names = ", ".join(shown(name) for name in list(unknown)[:3])
            table.notes.append(f"{self.path}: {len(unknown):,} files of unknown size count as empty: {names}")
