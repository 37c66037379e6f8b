"""Orders by how long a task has waited for its size: `wfp3` and `unicep`.

Decides when.  The urgency of a task grows with its wait, at a rate that depends on its estimated time and its number of
processors (GPUs, else cores), so the queue is sorted again in every round; the most urgent task is first, ties by
arrival.
Reference: Tang, Lan, Desai and Buettner, Fault-Aware, Utility-Based Job Scheduling on Blue Gene/P Systems (Cluster
2009).  Weakness: nothing is proven; urgency depends on the estimates, and on a busy machine long tasks wait long.  With
`formula: schedgym` the waiting time is replaced by -1 - arrival, so the order is fixed, as in the environment of
RLScheduler (Zhang, Dai, He, Bao, Xie, RLScheduler: An Automated HPC Batch Job Scheduler Using Reinforcement Learning,
SC 2020).  Weakness: the preferences of this formula are opposite to those of the published policies.  Cost: a pass with
NumPy over the waiting tasks per round; with a fixed order O(log n) per task.
"""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from hetsim import policy
from hetsim.model.task import WAITING, Task
from hetsim.policy.lists import AnyDiscipline
from hetsim_policies.orders import request

Formula = Literal["paper", "schedgym"]

ROUND_COST = 1e-6  # seconds that a waiting task adds to a round


class Waited(policy.ListScheduler):
    """Base of policies that sort all waiting tasks by urgency in every round.

    formula: "paper", or "schedgym": as in the simulator SchedGym, the waiting time is replaced by -1 - arrival (s), so
        that the order does not change with time.
    placement: rule for placing a task; None: its fastest mode that fits now, on the first devices.
    discipline: "block": no task passes the first task of the order (the head) if it does not fit, on any node of its
        partition; "skip": any task that fits may start; "keep" (needs schedgym): as "block", but the head remains the
        head even if a more urgent task arrives.
    """

    def __init__(
        self,
        placement: policy.PlacementRule | None = None,
        discipline: AnyDiscipline = "block",
        formula: Formula = "paper",
    ):
        self.fixed = formula == "schedgym"
        if not self.fixed and discipline not in ("block", "skip"):
            raise ValueError(f"discipline: {discipline} needs a fixed order (formula: schedgym); use block or skip")
        super().__init__(self.schedgym if self.fixed else policy.arrival_order, placement, discipline)
        # By row: (task, ready time, estimated seconds, processors)
        self._waiting: dict[int, tuple[Task, float, float, float]] = {}

    def urgency(self, wait: np.ndarray, seconds: np.ndarray, processors: np.ndarray) -> np.ndarray:
        """Urgency of tasks; the largest is first."""
        raise NotImplementedError

    @staticmethod
    def schedgym(task: Task) -> float:
        """Return a task's sort key (lowest first), as in SchedGym: wait = -1 - arrival."""
        raise NotImplementedError

    def round_cost(self, problem: policy.PlanProblem) -> float:
        return super().round_cost(problem) if self.fixed else ROUND_COST

    def ready(self, task: Task) -> None:
        if self.fixed:
            super().ready(task)
        else:
            self._waiting[task.index] = (task, task.ready, *request(task))

    def _ranked(self, now: float) -> list[Task]:
        self._waiting = {row: entry for row, entry in self._waiting.items() if entry[0].state == WAITING}
        if not self._waiting:
            return []
        tasks = [entry[0] for entry in self._waiting.values()]
        ready, seconds, processors = np.array([entry[1:] for entry in self._waiting.values()]).T
        with np.errstate(divide="ignore", invalid="ignore"):
            urgency = np.nan_to_num(self.urgency(now - ready, seconds, processors), nan=0.0, posinf=math.inf)
        order = np.lexsort([[task.index for task in tasks], [task.arrival for task in tasks], -urgency])
        return [tasks[position] for position in order.tolist()]

    def _schedule_tasks(self, view: policy.View) -> Iterator[policy.Decision]:
        return super()._schedule_tasks(view) if self.fixed else self._by_urgency(view)

    def _by_urgency(self, view: policy.View) -> Iterator[policy.Decision]:
        closed = 0
        tasks = self._ranked(view.now)
        for task in tasks:
            if closed == policy.EVERYWHERE:
                break
            if policy.claims_of(task) & closed:
                continue
            if (placement := self.place(task, view)) is not None:
                yield policy.Start(task, placement)
            elif self.discipline == "block" and not view.over_limit(task):
                closed |= policy.claims_of(task)
        # The order changes with time: whatever happens, another task may have become the head and fit.
        yield policy.WAIT_FOR_CHANGE if any(task.state == WAITING for task in tasks) else policy.WAIT_FOR_READY


class Wfp3(Waited):
    """WFP3: the largest (wait / estimated time)³ × processors first.

    formula: "schedgym": the lowest ((1 + arrival) / estimated time)³ × processors first: early, long and narrow tasks.
    """

    def urgency(self, wait: np.ndarray, seconds: np.ndarray, processors: np.ndarray) -> np.ndarray:
        return (wait / seconds) ** 3 * processors

    @staticmethod
    def schedgym(task: Task) -> float:
        seconds, processors = request(task)
        return ((1.0 + task.arrival) / seconds) ** 3 * processors if seconds > 0 else math.inf


class Unicep(Waited):
    """UNICEP: the largest wait / (log2(processors) × estimated time) first.

    A task with one processor precedes all wider tasks as soon as it has waited at all.
    formula: "schedgym": the lowest (1 + arrival) / (log2(processors) × estimated time) first: early, long and wide
        tasks.
    """

    def urgency(self, wait: np.ndarray, seconds: np.ndarray, processors: np.ndarray) -> np.ndarray:
        return wait / (np.log2(np.maximum(processors, 1.0)) * seconds)

    @staticmethod
    def schedgym(task: Task) -> float:
        seconds, processors = request(task)
        size = math.log2(processors + 1e-15) * seconds
        return (1.0 + task.arrival) / size if size else math.inf
