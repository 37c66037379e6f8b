"""Compute the plan of a static policy without running it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hetsim.errors import Problem, ScenarioError
from hetsim.experiment.policies import PolicyLike
from hetsim.experiment.run import prepare
from hetsim.model.plan import Plan
from hetsim.model.plan_table import plan_table, write_plan
from hetsim.model.tasks import Tasks
from hetsim.policy import PlannedScheduler
from hetsim.results.one_run.plans import plain_note
from hetsim.scenario.scenario import Overrides, Scenario


@dataclass(frozen=True)
class Planned:
    """A plan, with the tasks that it schedules."""

    plan: Plan
    tasks: Tasks
    name: str
    policy: str

    @property
    def table(self) -> pd.DataFrame:
        """The plan as a table: a row per step, then a row per prefetch or drop."""
        return plan_table(self.plan, self.tasks)

    @property
    def figures(self) -> dict[str, Any]:
        """Planned makespan and lower bound (s), and the planner's notes, as plain values."""
        return {**self.plan.figures, **plain_note(self.plan.notes)}

    def save(self, path: str | Path) -> None:
        """Write the table for the policy `replay`, as Parquet or CSV by the file's suffix."""
        write_plan(self.plan, self.tasks, path)


def plan(
    scenario: str | Path | Mapping[str, Any] | Scenario, *, policy: PolicyLike | None = None, seed: int | None = None,
    overrides: Overrides = (),
) -> Planned:  # fmt: skip
    """Compute the plan of a static policy for a scenario.

    Parameters: scenario, policy, seed, overrides: as for `run`.
    Returns: the plan, with its table, its figures and a way to save it.
    Raises: ScenarioError: the policy makes no plan before the clock starts, or the scenario is invalid.
    """
    loaded = prepare(scenario, policy, overrides)
    record = loaded.begin(seed).input
    made = record.scheduler.made if isinstance(record.scheduler, PlannedScheduler) else None
    if made is None:
        text = f"{record.policy} makes no plan; the policy as_planned records its decisions on the estimates as a plan"
        with loaded.addresses():
            raise ScenarioError(Problem(text, key="policy.scheduler"))
    return Planned(made, record.tasks, loaded.name, record.policy)
