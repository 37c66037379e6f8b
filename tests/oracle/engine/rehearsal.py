"""What planners may ask the engine before the clock starts: how a plan, or a policy, does on the estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from oracle.engine.simulation import Simulation
from sim.errors import PolicyError
from sim.model.cluster import Cluster, Device
from sim.model.plan import Placement, Plan, Step
from sim.model.record import COMPLETED, Record, RunInput
from sim.model.tasks import Task, Tasks
from sim.policy.contract import Decision, Move, PlanProblem, Scheduler, Start, View
from sim.policy.planned import Following


def problem_of(run: RunInput, random: np.random.Generator) -> PlanProblem:
    """The problem of a run, with the engine behind it.

    A plan has a place for every task, so what is tried out goes on to the end: no horizon, and nobody loses patience.
    """
    tasks = replace(run.tasks, time=run.tasks.estimate)
    endless = replace(run, tasks=replace(tasks, expires=None), admission=None, horizon=math.inf, warmup=0.0,
                      grace=None)

    def play(scheduler: Scheduler) -> Record:
        return Simulation(replace(endless, scheduler=scheduler)).run()

    def simulate(plan: Plan) -> float:
        return makespan_of(play(Following(plan)), tasks)

    def rehearse(scheduler: Scheduler) -> Plan:
        watched = Watched(scheduler)
        record = play(watched)
        plan = plan_of(watched.starts, record)
        stopped = record.preemptions is not None or record.migrations is not None
        return replace(plan, makespan=simulate(plan) if stopped and not plan.problems(tasks, run.cluster)
                       else makespan_of(record, tasks))  # fmt: skip

    return PlanProblem(tasks, run.cluster, random, simulate, rehearse)


def makespan_of(record: Record, tasks: Tasks) -> float:
    """From the first arrival to the last finish; inf where a task was not completed."""
    if not len(tasks):
        return 0.0
    if (record.status != COMPLETED).any():
        return float("inf")
    return float(record.finish.max() - tasks.arrival.min())


class Watched(Scheduler):
    """A scheduler whose starts are written down: the last of each task and its time, in the order of decisions."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner
        self.starts: dict[int, tuple[Placement, float]] = {}

    def prepare(self, problem: PlanProblem) -> None:
        self.inner.prepare(problem)

    def begin(self, view: View) -> None:
        self.inner.begin(view)

    def ready(self, task: Task) -> None:
        self.inner.ready(task)

    def finished(self, task: Task) -> None:
        self.inner.finished(task)

    def gone(self, task: Task) -> None:
        self.inner.gone(task)

    def device(self, device: Device, up: bool) -> None:
        self.inner.device(device, up)

    def schedule(self, view: View) -> Iterator[Decision]:
        for decision in self.inner.schedule(view):
            if isinstance(decision, Start):
                if not isinstance(decision.tasks, Task):
                    raise PolicyError("batches cannot be planned: a plan gives every task a place of its own")
                self.starts.pop(decision.tasks.index, None)
                self.starts[decision.tasks.index] = decision.placement, view.now
            elif isinstance(decision, Move):
                self.starts[decision.task.index] = decision.placement, view.now
            yield decision


def plan_of(starts: dict[int, tuple[Placement, float]], record: Record) -> Plan:
    """Placements in their order as a plan.

    Cores that the policy left unnamed are named here, whichever are free by then.  Of a task that was stopped the
    last start counts, so the plan of a policy that takes work up again where it stopped does more than the policy did.
    """
    tasks, cluster = record.input.tasks, record.input.cluster
    free: dict[int, list[float]] = {}
    steps = []
    for row, (placement, start) in starts.items():
        position = next(
            number for number, mode in enumerate(tasks.shapes[tasks.shape[row]].modes) if mode is placement.mode
        )
        names = _names(placement, cluster, free, start, float(record.finish[row]))
        steps.append(Step(row, position, names))
    return Plan(steps)


def _names(
    placement: Placement, cluster: Cluster, free: dict[int, list[float]], start: float, finish: float
) -> tuple[str, ...]:
    if not placement.mode.on_cpu:
        return tuple(device.name for device in placement.devices)
    device: Device = placement.devices[0]
    lanes = free.setdefault(device.node, [0.0] * cluster.nodes[device.node].cpus)
    cores = placement.cores
    if cores is None:  # those that are free, and among them those that were so last
        order = sorted(range(len(lanes)), key=lambda core: (lanes[core] > start, -lanes[core], core))
        cores = tuple(order[: max(1, placement.mode.millicores // 1000)])
    for core in cores:
        lanes[core] = max(lanes[core], finish)
    return tuple(f"{device.name}{core}" for core in cores)
