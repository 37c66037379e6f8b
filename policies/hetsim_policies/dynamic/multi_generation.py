"""Several generations: newer devices to jobs that gain most, within a budget.

Decides when and in which mode.  A job may use the modes in which it needs at most `budget` times the least energy (or
cost) of all its modes.  Of the waiting jobs that may use a device that is free, the one goes first that saves most
time a device-second there, against the slowest of its modes that are allowed: a fast device goes to the job that gains
most from it, and a job that gains little leaves it to others.
Energy of a mode: devices × estimated time × watts above idle; cost: devices × estimated time × the type's price in the
cluster, or in `costs`.
References: Smith, Various Optimizers for Single-Stage Production (1956), for the gain a unit of time as the order;
Gavel (Narayanan et al., OSDI 2020) and Gandiva_fair (Chaudhary et al., Balancing Efficiency and Fairness in
Heterogeneous GPU Clusters for Deep Learning, EuroSys 2020), which trade fast devices by speedup.
Weakness: greedy and without preemption; jobs of little gain may starve on the fast types, and with a budget of 1
each job has one type only, so queues grow next to idle devices.
Cost: a sort of the waiting jobs by type whenever one came or something was released.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, View
from hetsim_policies.dynamic.time_fractions import check_costs, prices

ROUNDING = 1e-9


class MultiGeneration(Scheduler):
    """The fast devices for those that gain most, within a budget.

    budget: most energy or cost of a job, in multiples of its least.
    measure: energy or cost.
    costs: price of a device and time by name of type, where the cluster has none; types without a price cost 1.
    """

    def __init__(
        self,
        budget: Annotated[float, Field(ge=1)] = 1.5,
        measure: Literal["energy", "cost"] = "energy",
        costs: dict[str, Annotated[float, Field(gt=0)]] | None = None,
    ):
        if costs is not None and measure == "energy":
            text = "costs are prices, and count only with `measure: cost`; take one of them out"
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        self.budget = budget
        self.measure = measure
        self.costs = costs or {}
        self.waiting: dict[int, Task] = {}
        self._ways: dict[int, list[tuple[float, int]]] = {}
        """By task: (gain, position) of the modes within the budget, the greatest gain first."""
        self._prices: dict[str, float] = {}
        self._tried: tuple[int, int] = (-1, -1)
        self._arrivals = 0

    def check(self, problem: PlanProblem) -> None:
        check_costs(self.costs, problem.cluster)

    def begin(self, view: View) -> None:
        self._prices = prices(view.cluster, self.costs)

    def ready(self, task: Task) -> None:
        self.waiting[task.index] = task
        self._ways[task.index] = self.ways(task)
        self._arrivals += 1

    def gone(self, task: Task) -> None:
        self.waiting.pop(task.index, None)
        self._ways.pop(task.index, None)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self.waiting:
            return
        if self._tried == (view.changes.releases, self._arrivals):
            return
        offers = [(-gain, task.arrival, index, position) for index, task in self.waiting.items()
                  for gain, position in self._ways[index]]  # fmt: skip
        blocked: dict[Mode, None] = {}
        for _, _, index, position in sorted(offers):
            task = self.waiting.get(index)
            if task is None or (mode := task.modes[position]) in blocked:
                continue
            placement = view.first(mode)
            if placement is None:
                blocked[mode] = None
            elif view.holds(task, placement):
                self.gone(task)
                yield Start(task, placement)
        self._tried = (view.changes.releases, self._arrivals)

    def ways(self, task: Task) -> list[tuple[float, int]]:
        """Gain and position of the modes that the budget allows."""
        positions = task.allowed or range(len(task.modes))
        seconds = {p: task.estimate_at(p) for p in positions}
        seconds = {p: value for p, value in seconds.items() if math.isfinite(value)}
        price = {p: self._price(task.modes[p]) * value for p, value in seconds.items()}
        limit = self.budget * min(price.values()) * (1 + ROUNDING)
        allowed = [p for p in seconds if price[p] <= limit]
        slowest = max(seconds[p] for p in allowed)

        def gain(position: int) -> float:
            """Seconds saved for each device-second."""
            area = seconds[position] * task.modes[position].width
            return (slowest - seconds[position]) / area if area > 0 else math.inf

        return sorted(((gain(p), p) for p in allowed), reverse=True)

    def _price(self, mode: Mode) -> float:
        """Of a second in a mode."""
        if self.measure == "energy":
            return mode.width * (mode.type.power.busy - mode.type.power.idle)
        return mode.width * self._prices[mode.type.name]
