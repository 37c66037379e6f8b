"""Schedulers and planners that run inside another policy."""

import numpy as np

from hetsim.errors import ScenarioError, UsageError, refusal
from hetsim.model.mode import Shape
from hetsim.policy import Backfilling, ListScheduler, PlannedScheduler, PlanProblem, Scheduler
from hetsim.policy.remaining import in_mid_run, rows_of
from hetsim_policies.dynamic.common.lines import AssigningScheduler

ALONE = ("Defragment", "Gandiva", "PowerDown", "SharingByTable")  # list schedulers that need the whole cluster


def check_nested(inner: Scheduler, outer: str, key: str, lines: bool) -> None:
    """Raise ScenarioError for a scheduler that cannot run inside another one.

    The inner scheduler must be a list scheduler, but not one that backfills or needs the whole cluster; or, if `lines`
    is True, one that chooses a device queue for each task.  outer, key: the outer scheduler and its key, for the
    message.
    """
    listing = isinstance(inner, ListScheduler) and not isinstance(inner, Backfilling)
    if (listing and type(inner).__name__ not in ALONE) or (lines and isinstance(inner, AssigningScheduler)):
        return
    more = ", or eft, dmda, dmdas, er_ls" if lines else ""
    text = f"{outer} cannot nest {type(inner).__name__}; it needs a list order (fcfs, sjf, edf, fcfs_skip, ...){more}"
    raise refusal(text, f"policy.scheduler.{key}")


def plannable(problem: PlanProblem, planner: PlannedScheduler | None, foresight: bool = False) -> dict[Shape, bool]:
    """Return for each shape of tasks True if the planner (None: default) can plan it.

    Each shape is tried with one task.  foresight: True if the planner knows future arrivals; it cannot simulate plans
    then.  Raise ScenarioError if a given planner refuses every shape, or needs a function that is not available during
    a run.
    """
    tasks = problem.tasks
    refused: ScenarioError | None = None
    answers: dict[Shape, bool] = {}
    for shape in tasks.shapes:
        rows = np.flatnonzero(tasks.shape == shape.index)
        if not len(rows):
            continue
        first = rows_of(tasks, [int(rows[0])], np.zeros(1))
        one = in_mid_run(problem, first, simulate=None if foresight else lambda plan: 1.0)  # only tried
        try:
            (planner or default_planner(problem)).plan(one)
            answers[shape] = True
        except ScenarioError as error:
            refused = refused or error
            answers[shape] = False
        except UsageError as error:
            text = f"{type(planner).__name__} cannot plan during a run: {error}; dual_approximation, heft and mct can"
            raise refusal(text, "policy.scheduler.planner") from None
    if refused is not None and planner is not None and not any(answers.values()):
        raise refused
    return answers


def default_planner(problem: PlanProblem) -> PlannedScheduler:
    tasks, cluster = problem.tasks, problem.cluster
    kinds = [kind.kind == "cpu" for kind in cluster.types.values() if cluster.count(kind.name)]
    two = kinds.count(True) <= 1 and kinds.count(False) <= 1
    moved = any(column is not None for column in (tasks.bytes_in, tasks.bytes_out, tasks.reads, tasks.writes))
    if two and not moved and not any(tasks.predecessors or ()):
        from hetsim_policies.static.dual_approximation import DualApproximation

        return DualApproximation()
    from hetsim_policies.static.insertion import Heft, Peft

    return Peft() if any(tasks.predecessors or ()) else Heft()
