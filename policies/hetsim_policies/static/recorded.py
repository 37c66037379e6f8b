"""Plans made elsewhere: read from a file, or recorded from a simulated scheduler."""

import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from hetsim.errors import Problem, ScenarioError, file_error
from hetsim.model.cluster import Cluster
from hetsim.model.files import open_input, open_text
from hetsim.model.mode import Shape
from hetsim.model.plan import Copy, Moment, Plan, Step, lane_names
from hetsim.model.plan_table import COLUMNS, COPY_COLUMNS, LAUNCH_COLUMN
from hetsim.model.tasks import Tasks
from hetsim.model.units import ExistingFile, shown
from hetsim.policy import PlannedScheduler, PlanProblem, Scheduler
from hetsim_policies.dynamic.heteroprio import HeteroPrio
from hetsim_policies.static.common.outcome import rehearsed

MOMENTS: tuple[Moment, ...] = get_args(Moment)
MAX_PROBLEMS = 100  # problems of a plan that are named; the rest is counted


class Replay(PlannedScheduler):
    """Follow a plan from a file: each task's mode and devices, and order per device.

    Decides nothing beyond the plan.  A task starts when it is at the head of the queues of all its devices, these
    devices are free, and its predecessors are done; the plan fixes no times.  If tasks take the times estimated when
    the plan was made, the makespan is the planned one.  If a task is late, devices whose order makes them wait for it
    are idle, although a dynamic policy would use them.  A plan in which orders and predecessors form a cycle could
    never end and is refused when it is loaded.  Reference: none; the plan is the user's.  Weakness: it waits for late
    tasks.
    Cost: O(devices of the task) per task, and in each scheduling round a check of each queue's head that does not fit.

    plan: CSV or Parquet with one row per task and the columns task (its id), mode (name, or position counted from
        0), device (names joined by +; cores are named n0/cpu0, n0/cpu1, ...) and order (ascending on every device).
        Rows with the same text in the column launch are launched as one kernel; blank: launched alone.
        A row with text in the column item is a transfer or removal of that item: mode is fetch or drop, task is the
        task that it waits for
        (blank: none), and the column after names the event of that task: ready, start or finish.
    """

    spreads = Scheduler.spreads

    def __init__(self, plan: ExistingFile):
        super().__init__()
        self.path = Path(plan)
        self.checked: Plan | None = None

    def check(self, problem: PlanProblem) -> None:
        self.checked = read_plan(self.path, problem.tasks, problem.cluster)

    def plan(self, problem: PlanProblem) -> Plan:
        return self.checked or read_plan(self.path, problem.tasks, problem.cluster)


def read_plan(path: str | Path, tasks: Tasks, cluster: Cluster) -> Plan:
    """Read a plan from a table; raise ScenarioError with all problems of the plan."""
    problems: list[Problem] = []

    def complain(text: str, line: int | None = None) -> None:
        problems.append(Problem(text, file=str(path), line=line))

    row_of = {str(tasks.name(index)): index for index in range(len(tasks))}
    item_of = {item.name: number for number, item in enumerate(tasks.items)}
    steps: list[tuple[float, Step]] = []
    copies: list[tuple[float, Copy]] = []
    launches: dict[str, int] = {}
    planned: dict[int, int | None] = {}
    for line, row in _rows(Path(path)):
        if (order := _number(row["order"])) is None:
            complain(f"order {shown(row['order'])} of task {row['task']} is not a number", line)
            continue
        if row.get("item"):
            made = _copy(row, row_of, item_of)
            if isinstance(made, Copy):
                copies.append((order, made))
            else:
                complain(made, line)
            continue
        if (index := row_of.get(row["task"])) is None:
            complain(f"there is no task {shown(row['task'])}", line)
            continue
        if index in planned:
            where = "" if planned[index] is None else f"; it is also at line {planned[index]}"
            complain(f"task {row['task']} is planned twice{where}", line)
            continue
        planned[index] = line
        shape = tasks.shapes[tasks.shape[index]]
        if (mode := _mode(row["mode"], shape)) is None:
            names = ", ".join(m.name for m in shape.modes)
            complain(f"task {row['task']} has no mode {shown(row['mode'])}; its modes are {names}", line)
            continue
        text = row.get(LAUNCH_COLUMN)
        launch = launches.setdefault(text, len(launches)) if text else None
        steps.append((order, Step(index, mode, tuple(name.strip() for name in row["device"].split("+")), launch)))
    plan = Plan(
        [step for _, step in sorted(steps, key=lambda entry: entry[0])],
        copies=[copy for _, copy in sorted(copies, key=lambda entry: entry[0])],
    )
    if not problems:
        for text in [*plan.problems(tasks, cluster), *_scattered(plan, tasks, cluster)]:
            complain(text)
    if problems:
        more = len(problems) - MAX_PROBLEMS
        rest = [Problem(f"and {more:,} more problems", file=str(path))] if more > 0 else []
        raise ScenarioError(problems[:MAX_PROBLEMS] + rest)
    return plan


def _copy(row: Mapping[str, str], row_of: Mapping[str, int], item_of: Mapping[str, int]) -> Copy | str:
    if row["mode"] not in ("fetch", "drop"):
        return f"item {row['item']}: mode must be fetch or drop; got {shown(row['mode'])}"
    if row["item"] not in item_of:
        matches = get_close_matches(row["item"], item_of, 1)
        return f"there is no item {shown(row['item'])}" + (f"; did you mean {matches[0]}?" if matches else "")
    if not row["task"]:
        return Copy(item_of[row["item"]], row["device"], drop=row["mode"] == "drop")
    if row["task"] not in row_of:
        return f"item {row['item']} is copied after task {shown(row['task'])}, which does not exist"
    after = row.get("after") or "start"
    if after not in MOMENTS:
        return f"item {row['item']} is copied after the {shown(after)} of task {row['task']}; it must be " + (
            f"{', '.join(MOMENTS[:-1])} or {MOMENTS[-1]}"
        )
    moment = MOMENTS[MOMENTS.index(after)]  # the same text, as the type that it has
    return Copy(item_of[row["item"]], row["device"], row_of[row["task"]], moment=moment, drop=row["mode"] == "drop")


def _rows(path: Path) -> Iterator[tuple[int | None, dict[str, str]]]:
    header: list[str] | None = None
    for line, cells in _parquet(path) if path.suffix == ".parquet" else _csv(path):
        if header is None:
            header = [cell.strip() for cell in cells]
            if missing := [name for name in COLUMNS if name not in header]:
                text = f"a plan needs the columns {', '.join(COLUMNS)}; missing: {', '.join(missing)}"
                raise file_error(path, text, line)
        elif len(cells) != len(header):
            raise file_error(path, f"the row has {len(cells)} cells, but the header has {len(header)} columns", line)
        else:
            columns = [name for name in (*COLUMNS, *COPY_COLUMNS, LAUNCH_COLUMN) if name in header]
            yield line, {name: cells[header.index(name)].strip() for name in columns}
    if header is None:
        raise file_error(path, "is empty")


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    import csv

    line = 0
    try:
        with open_text(path) as stream:
            reader = csv.reader(stream, strict=True)
            for cells in reader:
                line = reader.line_num
                if cells:  # not a blank line
                    yield line, cells
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x}"
        raise file_error(path, f"is not UTF-8 text ({byte}); save it as UTF-8") from None
    except (csv.Error, OSError) as error:
        raise file_error(path, f"cannot be read as CSV: {error}", line + 1) from None


def _parquet(path: Path) -> Iterator[tuple[None, list[str]]]:
    import pandas as pd

    try:
        with open_input(path) as source:
            table = pd.read_parquet(source)
    except (ValueError, OSError) as error:  # pyarrow's own errors are both
        raise file_error(path, f"cannot be read as Parquet: {error}") from None
    yield None, [str(name) for name in table.columns]
    for cells in table.itertuples(index=False, name=None):
        yield None, [_text(cell) for cell in cells]


def _text(cell: Any) -> str:
    """Format a cell as in a CSV file: 1.0 in a numeric column is 1, lists joined by +."""
    if hasattr(cell, "__len__") and not isinstance(cell, str):
        return "+".join(map(str, cell))
    if cell is None or cell != cell:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _mode(text: str, shape: Shape) -> int | None:
    names = [mode.name for mode in shape.modes]
    if names.count(text) == 1:
        return names.index(text)
    numeric = text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < len(names)
    return int(text) if numeric else None


def _scattered(plan: Plan, tasks: Tasks, cluster: Cluster) -> Iterator[str]:
    lanes = lane_names(cluster)
    for step in plan.steps:
        mode = tasks.shapes[tasks.shape[step.task]].modes[step.mode]
        if len({lanes[name].node for name in step.devices if name in lanes}) > 1 and not mode.span_any:
            names = "+".join(step.devices)
            yield f"task {tasks.name(step.task)}: mode {mode.name} needs one node; the plan has {names}"


class AsPlanned(PlannedScheduler):
    """Any scheduler as a plan: rehearse it on estimates, then follow its starts.

    Decides nothing itself: mode, devices and the order on each device are those of the rehearsal, in which every task
    takes as long as estimated.  With exact estimates the run equals a run of the scheduler, unless the scheduler
    stopped tasks: a plan runs each task once, where the scheduler started it last.  It may end sooner or, if stopped
    tasks continued elsewhere (round_robin, srtf), much later.  If estimates are wrong, the difference between
    `as_planned` of a scheduler and the scheduler itself is the benefit of deciding during the run.
    Reference: Agullo, Beaumont, Eyraud-Dubois, Kumar, Are Static Schedules So Bad? A Case Study on Cholesky
    Factorization (2016), where such plans are followed strictly and loosely.  Prefetches and drops of data are part of
    the plan, in the round in which the scheduler made them.
    Weakness: that of every plan: an order that waits for a late task leaves devices idle.  Other decisions of the
    scheduler (sleep, frequencies) are not in the plan; batches cannot be planned.
    Cost: two more runs: the rehearsal, and a run of its plan, which gives the start and end times in the plan.

    base: the scheduler, by name or as a mapping with its parameters; default: heteroprio.
    """

    spreads = Scheduler.spreads

    def __init__(self, base: Scheduler | None = None):
        super().__init__()
        self.base = HeteroPrio() if base is None else base

    def check(self, problem: PlanProblem) -> None:
        self.base.check(problem)

    def plan(self, problem: PlanProblem) -> Plan:
        return rehearsed(problem, problem.rehearse(self.base))
