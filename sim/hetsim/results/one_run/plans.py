"""Plans and outcomes: planned and simulated makespan, best certified lower bound.

A run has two lower bounds of its makespan.  The metric `makespan_bound` holds for every policy.  The bound that a
planner certified for its instance (note `lower_bound`) is usually greater.  It also holds for every policy, but only if
the planned instance is the simulated one: estimates are the true times, the planner considered every mode of the tasks,
and every task is launched alone, completes, and runs in one piece (a task that resumes with kept work can finish
earlier than in any plan).  Of transfers, it includes only each task's own, which no policy can avoid.

`forecasts` formats what a policy notes about the errors of its forecasts (`hetsim_policies.prediction.durations`):
NAME_count, NAME_mape, NAME_pinball, NAME_quantile, and NAME_fallback, the share that was made by the predictor's
simpler method.  NAME is `forecast` (of a load, in devices) or `duration` (of jobs, in seconds).
"""

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from hetsim.model.cluster import Node
from hetsim.model.device_type import MILLI
from hetsim.model.mode import Mode
from hetsim.model.plan import PLANNED_MAKESPAN, can_host
from hetsim.model.record import COMPLETED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_STOPPED, Record
from hetsim.model.tasks import Tasks
from hetsim.results.declared import MAKESPAN, metric
from hetsim.results.formatting import seconds, share
from hetsim.results.one_run.measured import Measured, Run
from hetsim.results.one_run.modes import ModeTable

PLAN_COLUMNS = (PLANNED_MAKESPAN, MAKESPAN, "lower_bound", "ratio", "planning_s")


def plain_note(value: Any) -> Any:
    """Convert a note to plain data (text, numbers, lists, mappings) for a file."""
    if isinstance(value, Mapping):
        return {str(key): plain_note(inner) for key, inner in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return plain_note(value.tolist())
    if isinstance(value, list | tuple):
        return [plain_note(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def number(notes: Mapping[str, Any], name: str) -> float:
    """A note's value as a number; NaN if it is missing or not a number."""
    value = notes.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


@metric(unit="s", better="neither", of="run")
def planned_makespan(run: Measured) -> float:
    """Makespan expected by the policy's plan; undefined without a plan."""
    return number(run.result.notes, PLANNED_MAKESPAN)


@metric(unit="ratio", better="less", of="run")
def makespan_ratio(run: Measured) -> float:
    """Makespan / the best lower bound known for the run.

    The bound is `makespan_bound`, or the plan's own bound if that is greater and holds for the run (`certified`).
    """
    return ratio(run.result.metric(MAKESPAN), lower_bounds({"": run.result})[""])


def ratio(makespan: float, bound: float) -> float:
    """Ratio of a makespan to a bound: 1 for 0 / 0, NaN if the bound is unknown."""
    if bound > 0:
        return makespan / bound
    return 1.0 if makespan == 0 else math.nan


def has_plan(result: Run) -> bool:
    return not math.isnan(number(result.notes, PLANNED_MAKESPAN))


NOT_PROVEN = "is not proven optimal"  # Part of a run's warning about a plan that may not be optimal.


def reservations(notes: Mapping[str, Any]) -> list[str]:
    """Return caveats on the quality of a plan, such as a stopped search or late tasks."""
    texts = []
    gap = number(notes, "gap")
    if notes.get("optimal") is False:
        texts.append("not proven optimal" + (f", gap {share(gap)}" if gap >= 0 else ""))
    if notes.get("deterministic") is False:
        texts.append("stopped by its time limit: another run may give another plan")
    late, by = number(notes, "deadlines_missed"), number(notes, "deadline_missed_by")
    if late > 0:
        texts.append(f"{late:,.0f} deadlines missed" + (f", by {seconds(by)} at most" if by >= 0 else ""))
    covers = notes.get("covers")
    if isinstance(covers, Mapping):
        open_ = [f"{what} {word}" for what, word in covers.items() if word in ("partly", "ignored")]
        if open_:
            texts.append(f"the planner's bound and timetable leave out: {', '.join(open_)}")
    return texts


def plans_table(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Return the table of plans: a row for each policy; empty if no policy has a plan.

    Columns planned_makespan, makespan, lower_bound, ratio (makespan / lower bound) and planning_s (wall clock of this
    machine; NaN for a loaded run).
    """
    rows = {}
    if any(has_plan(result) for result in runs.values()):
        bounds = lower_bounds(runs)
        for policy, result in runs.items():
            planned, makespan = result.metric(PLANNED_MAKESPAN), result.metric(MAKESPAN)
            seconds = result.planning if has_plan(result) else math.nan
            rows[policy] = (planned, makespan, bounds[policy], ratio(makespan, bounds[policy]), seconds)
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(PLAN_COLUMNS), dtype=float)
    return frame.rename_axis("policy")


def lower_bounds(runs: Mapping[str, Run]) -> dict[str, float]:
    """Return the best lower bound of each run's makespan, for runs of the same tasks."""
    best = reduce(np.fmax, (certified(result) for result in runs.values()), math.nan)
    usual, bounds = math.nan, {}
    for policy, result in runs.items():
        if result.record.fused or not all_completed(result):
            bounds[policy] = result.metric("makespan_bound")
            continue
        if math.isnan(usual):
            usual = result.metric("makespan_bound")  # the same of all that complete the same tasks
        bounds[policy] = float(usual if in_pieces(result.record) else np.fmax(usual, best))
    return bounds


def certified(result: Run) -> float:
    """Lower bound that the policy proved, if it holds for the run; otherwise NaN."""
    bound = number(result.notes, "lower_bound")
    if math.isnan(bound):
        return math.nan
    tasks = result.record.input.tasks
    exact = tasks.estimate is tasks.time or np.array_equal(tasks.estimate, tasks.time)
    covers = result.notes.get("covers")
    wide = isinstance(covers, Mapping) and covers.get("parallel") == "covered"
    return bound if exact and _foreseen(tasks, result.modes, wide) else math.nan


def all_completed(result: Run) -> bool:
    """Return True if every task arrived in the window and completed."""
    status = result.measured.status
    return len(status) == result.record.input.tasks.request_count and bool((status == COMPLETED).all())


def in_pieces(record: Record) -> bool:
    """Return True if a task resumed with work done before a stop or move."""
    if (columns := record.launches) is None:
        return False
    kept = columns["lost"] < columns["busy"] * (1 - 1e-9)
    outcome = columns["outcome"]
    return bool(np.any(np.isin(outcome, (LAUNCH_STOPPED, LAUNCH_MOVED)) | ((outcome == LAUNCH_LOST) & kept)))


def _foreseen(tasks: Tasks, table: ModeTable, wide: bool) -> bool:
    """Return True if the planner considered every mode that the tasks can use.

    Planners of sequential tasks consider modes of one core or one whole accelerator, those of parallel tasks (`wide`)
    also gangs and several cores.  No planner considers fractions and batches: the result is False for these.
    """
    used = [tasks.shapes[number] for number in np.unique(tasks.shape).tolist()]
    modes = {mode: None for shape in used for mode in shape.modes if table.offered(mode)}
    return all(_alone(mode, wide) and all(can_host(node, mode) for node in _homes(table, mode)) for mode in modes)


def _alone(mode: Mode, wide: bool) -> bool:
    if mode.batch_limit > 1 and mode.single:
        return False
    if mode.on_cpu:
        return mode.millicores % MILLI == 0 if wide else mode.millicores == MILLI
    is_shared = mode.type.sharing.kind == "mps" and mode.type.streams > 1
    return (wide or mode.gpus == 1) and mode.whole_devices and not is_shared


def _homes(table: ModeTable, mode: Mode) -> list[Node]:
    return [
        node
        for node in table.cluster.nodes
        if (node.cpus and node.cpu.type is mode.type) or any(one.type is mode.type for one in node.accelerators)
    ]


NAMES = {"forecast": "load forecast", "duration": "durations"}


def forecasts(notes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Title and text of each kind of forecast: `MAPE 23 % (1,234 predictions)`."""
    texts = []
    for name, title in NAMES.items():
        count, mape, loss = (number(notes, f"{name}_{key}") for key in ("count", "mape", "pinball"))
        if not count > 0:
            continue
        parts = [f"MAPE {share(mape)}"] if mape >= 0 else []
        quantile = number(notes, f"{name}_quantile")
        at_quantile = f" at {quantile:g}" if quantile >= 0 and quantile != 0.5 else ""
        parts.append(f"pinball loss{at_quantile} {seconds(loss) if name == 'duration' else f'{loss:.3g} devices'}")
        text = f"{', '.join(parts)} ({count:,.0f} predictions)"
        fallback = number(notes, f"{name}_fallback")
        if fallback > 0:
            text += f", {share(fallback)} by the fall-back"
        texts.append((title, text))
    return texts
