"""Rehearsals for planners: plans and policies run on estimates before the start."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hetsim.errors import PolicyError
from hetsim.model.cluster import Cluster
from hetsim.model.plan import Copy, Moment, Placement, Plan, Step
from hetsim.model.record import COMPLETED, Record, RunInput
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy.contract import PlanProblem, Scheduler, View
from hetsim.policy.decisions import Decision, Drop, Fetch, Move, Start
from hetsim.policy.planned import Following
from hetsim.policy.relay import Relay
from hetsim.policy.request_queue import Requests


def problem_of(run: RunInput, random: np.random.Generator, play: Callable[[RunInput], Record]) -> PlanProblem:
    """Return the problem that a planner solves; `play` simulates a run to its end."""
    stage = RehearsedStage(run, play)
    return PlanProblem(
        stage.tasks, run.cluster, random, simulate=stage.simulate, rehearse=stage.rehearse, unplanned=run.unplanned
    )


class RehearsedStage:
    """Simulates plans and policies with estimated times, before the run starts.

    A plan places every task, so these runs have no horizon, and no task loses patience.
    """

    def __init__(self, run: RunInput, play: Callable[[RunInput], Record]):
        self.play = play
        self.tasks = tasks = replace(run.tasks, time=run.tasks.estimate)
        self.cluster = run.cluster
        endless = replace(tasks, expires=None)
        self.run = replace(run, tasks=endless, admission=None, horizon=math.inf, warmup=0.0, grace=None)

    def _play(self, scheduler: Scheduler) -> Record:
        return self.play(replace(self.run, scheduler=scheduler))

    def simulate(self, plan: Plan) -> float:
        return makespan_of(self._play(Following(plan)), self.tasks)

    def rehearse(self, scheduler: Scheduler) -> Plan:
        """Run a scheduler on the estimates; return its starts as a plan."""
        watched = WatchedRun(scheduler)
        record = self._play(watched)
        plan = plan_of(watched.starts, record, watched.copies)
        stopped = record.preemptions is not None or record.migrations is not None
        again = stopped and not plan.problems(self.tasks, self.cluster)
        rows = [step.task for step in plan.steps]
        times = None if stopped else np.column_stack([record.start[rows], record.finish[rows]])
        makespan = self.simulate(plan) if again else makespan_of(record, self.tasks)
        return replace(plan, makespan=makespan, timetable=times)


def makespan_of(record: Record, tasks: Tasks) -> float:
    """Return the seconds from first arrival to last finish; inf if not all completed."""
    if not len(tasks):
        return 0.0
    if (record.status != COMPLETED).any():
        return float("inf")
    return float(record.finish.max() - tasks.arrival.min())


class WatchedRun(Relay):
    """A scheduler that relays to another one and records where and when tasks started."""

    def __init__(self, inner: Scheduler) -> None:
        super().__init__(inner)
        self.starts: dict[int, tuple[Placement, float]] = {}
        self.copies: list[Copy] = []
        # last event: the moment after which a copy that is decided now is made
        self._last: tuple[int | None, Moment] = None, "start"

    def prepare(self, problem: PlanProblem) -> None:
        self.inner.prepare(problem)

    def ready(self, task: Task) -> None:
        self._last = task.index, "ready"
        self.inner.ready(task)

    def finished(self, task: Task) -> None:
        self._last = task.index, "finish"
        self.inner.finished(task)

    def schedule(self, view: View) -> Iterator[Decision]:
        for decision in self.inner.schedule(view):
            if isinstance(decision, Start):
                fused = decision.placement.mode.parts
                if isinstance(decision.tasks, Task):
                    together: tuple[Task, ...] = (decision.tasks,)
                elif fused and not isinstance(decision.tasks, Requests):
                    together = tuple(decision.tasks)
                else:
                    raise PolicyError("batches cannot be planned: a plan places every task separately")
                for task in together:
                    self.starts.pop(task.index, None)  # the last start counts in the order of starts, too
                    self.starts[task.index] = decision.placement, view.now
                    self._last = task.index, "start"
            elif isinstance(decision, Move):
                self.starts[decision.task.index] = decision.placement, view.now
            elif isinstance(decision, Fetch | Drop):
                drop = isinstance(decision, Drop)
                self.copies.append(Copy(decision.item, decision.device.name, *self._last, drop))
            yield decision


def plan_of(starts: dict[int, tuple[Placement, float]], record: Record, copies: Sequence[Copy] = ()) -> Plan:
    """Return recorded placements as a plan, in the order of starts.

    If the policy named no cores, cores that were free at the start are chosen.  `copies`: the plan's prefetches.  If a
    task was stopped, the plan runs it once, in full, from its last start.
    """
    tasks, cluster = record.input.tasks, record.input.cluster
    free: dict[int, list[float]] = {}
    together: dict[int, list[int]] = {}
    steps = []
    for row, (placement, start) in starts.items():
        own, launch = placement.mode, None
        if own.parts:
            members = together.setdefault(id(placement), [])
            own, launch = own.parts[len(members)], list(together).index(id(placement))
            members.append(row)
        position = next(number for number, mode in enumerate(tasks.shapes[tasks.shape[row]].modes) if mode is own)
        names = _names(placement, cluster, free, start=start, finish=float(record.finish[row]))
        steps.append(Step(row, position, names, launch))
    return Plan(steps, copies=list(copies))


def _names(
    placement: Placement, cluster: Cluster, free: dict[int, list[float]], start: float, finish: float
) -> tuple[str, ...]:
    if not placement.mode.on_cpu:
        return tuple(device.name for device in placement.devices)
    names: list[str] = []
    parts = placement.parts or (placement.mode.millicores,)
    for device, part in zip(placement.devices, parts, strict=True):
        lanes = free.setdefault(device.node, [0.0] * cluster.nodes[device.node].cpus)
        if (cores := placement.cores) is None:  # those that are free, and among them those that were so last
            order = sorted(range(len(lanes)), key=lambda core: (lanes[core] > start, -lanes[core], core))  # noqa: B023
            cores = tuple(order[: max(1, part // 1000)])
        for core in cores:
            lanes[core] = max(lanes[core], finish)
        names += [f"{device.name}{core}" for core in cores]
    return tuple(names)
