"""A static plan, replayed: for every task a mode and a place in the order of named devices.

Decides nothing that the plan does not say.  A task starts when it heads the queues of all its devices, they are
free and its predecessors are done; the plan fixes no times.  Its makespan on the estimates it was made for is the
planner's; off them, an order that waits for a late task leaves devices empty that a dynamic policy would use.
A plan whose orders and predecessors form a cycle could never end and is refused when it is loaded.
Cost: O(devices of the step) a task, and one look at each device queue's head that does not fit a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import Problem, ScenarioError
from sim.model.cluster import Cluster
from sim.model.paths import ExistingFile
from sim.model.plan import Plan, Step, lane_names
from sim.model.tasks import Shape, Tasks
from sim.policy import PlannedScheduler, PlanProblem

COLUMNS = ("task", "mode", "device", "order")


class Replay(PlannedScheduler):
    """Replays the plan in a table.

    plan: CSV or Parquet with one row a task and the columns task (its id), mode (name, or position counted from
    0), device (names joined by +; cores are named n0/cpu0, n0/cpu1, ...) and order (ascending on every device).
    """

    def __init__(self, plan: ExistingFile):
        super().__init__()
        self.path = Path(plan)

    def plan(self, problem: PlanProblem) -> Plan:
        return read_plan(self.path, problem.tasks, problem.cluster)


# Tables -------------------------------------------------------------------------------------------------------


def write_plan(plan: Plan, tasks: Tasks, path: str | Path) -> None:
    """Write the table that `replay` reads; Parquet if the name ends so, else CSV."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    for order, step in enumerate(plan.steps):
        names = [mode.name for mode in tasks.shapes[tasks.shape[step.task]].modes]
        name = names[step.mode]
        mode = name if names.count(name) == 1 else step.mode
        rows.append((str(tasks.name(step.task)), str(mode), "+".join(step.devices), order))
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    if Path(path).suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)


def read_plan(path: str | Path, tasks: Tasks, cluster: Cluster) -> Plan:
    """The plan in a table; ScenarioError with everything that makes it impossible."""
    problems: list[Problem] = []

    def complain(text: str, line: int | None = None) -> None:
        problems.append(Problem(text, file=str(path), line=line))

    rows = _rows(path)
    row_of = {str(tasks.name(index)): index for index in range(len(tasks))}
    steps: list[tuple[float, Step]] = []
    for number, row in enumerate(rows):
        line = number + 2 if Path(path).suffix != ".parquet" else None
        index = row_of.get(row["task"])
        if index is None:
            complain(f'there is no task "{row["task"]}"', line)
            continue
        shape = tasks.shapes[tasks.shape[index]]
        mode = _mode(row["mode"], shape)
        if mode is None:
            names = ", ".join(m.name for m in shape.modes)
            complain(f'task {row["task"]} has no mode "{row["mode"]}"; its modes are {names}', line)
            continue
        try:
            order = float(row["order"])
        except ValueError:
            complain(f'order "{row["order"]}" of task {row["task"]} is not a number', line)
            continue
        steps.append((order, Step(index, mode, tuple(name.strip() for name in row["device"].split("+")))))
    plan = Plan([step for _, step in sorted(steps, key=lambda entry: entry[0])])
    if not problems:
        for text in [*plan.problems(tasks, cluster), *_scattered(plan, tasks, cluster)]:
            complain(text)
    if problems:
        raise ScenarioError(problems)
    return plan


def _rows(path: str | Path) -> list[dict[str, str]]:
    """The table as text, row by row."""
    import pandas as pd

    if Path(path).suffix == ".parquet":
        table = pd.read_parquet(path).astype(str)
    else:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise ScenarioError(Problem(f"a plan needs the columns {', '.join(COLUMNS)}; missing: {', '.join(missing)}",
                                    file=str(path)))  # fmt: skip
    columns = [table[name].tolist() for name in COLUMNS]
    return [dict(zip(COLUMNS, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _mode(text: str, shape: Shape) -> int | None:
    """Position of a mode given by its name, or by position where no mode has that name."""
    names = [mode.name for mode in shape.modes]
    if names.count(text) == 1:
        return names.index(text)
    return int(text) if text.isdecimal() and int(text) < len(names) else None


def _scattered(plan: Plan, tasks: Tasks, cluster: Cluster) -> Iterator[str]:
    """Steps over several nodes whose mode has to stay on one."""
    lanes = lane_names(cluster)
    for step in plan.steps:
        mode = tasks.shapes[tasks.shape[step.task]].modes[step.mode]
        nodes = {lanes[name].node for name in step.devices if name in lanes}
        if len(nodes) > 1 and not mode.span_any:
            names = "+".join(step.devices)
            yield f"task {tasks.name(step.task)}: mode {mode.name} stays on one node, the plan names {names}"
