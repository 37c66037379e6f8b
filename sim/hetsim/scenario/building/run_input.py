"""From a validated scenario to the input of one run: cluster, columns of tasks, and fresh policies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from hetsim import registry
from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.faults import Faults
from hetsim.model.randomness import JUDGED, RandomTree
from hetsim.model.record import RunInput
from hetsim.model.tasks import Tasks
from hetsim.policy import Admission, PlannedScheduler, PlanProblem, Scheduler
from hetsim.scenario.building.cluster import build_cluster
from hetsim.scenario.building.faults import build_faults, check_chances
from hetsim.scenario.building.long_runs import may_take_long
from hetsim.scenario.building.merging import merge
from hetsim.scenario.building.modes import ModeBook
from hetsim.scenario.building.run_policies import batching_policies, iteration_policies, make_policy
from hetsim.scenario.building.site import apply_rules, with_partitions
from hetsim.scenario.building.source import ScenarioSource
from hetsim.scenario.building.streams import Context
from hetsim.scenario.building.streams_and_items import build_parts
from hetsim.scenario.building.true_rates import true_rates
from hetsim.scenario.readers import PLAN, UNKNOWN, not_understood
from hetsim.scenario.schema.policy import inner_type
from hetsim.scenario.schema.workload import WorkloadEntry

HOPELESS = 0.01
"""Part of the tasks from which on hopeless deadlines are a warning rather than a note."""


def build(scenario: ScenarioSource, seed: int | None = None, replication: int = 0, loads: str = JUDGED) -> RunInput:
    """One run of the scenario; ScenarioError with everything that is wrong with it.

    Same scenario, seed, replication and `loads` (what they are for): the same columns to the last bit.  `seed` defaults
    to the scenario's.
    """
    model = scenario.model
    random = RandomTree(model.seed if seed is None else seed, replication, loads)
    cluster = with_partitions(build_cluster(model.cluster, scenario.document), model.site, scenario.document)
    horizon = math.inf if model.horizon is None else model.horizon
    context = Context(scenario.document, cluster, ModeBook(cluster), random, horizon)
    streams, items, problems = build_parts(dict(enumerate(model.workload)), model.data, scenario.table, context)
    if not problems and not any(len(stream) for stream in streams) and not _may_come(model.workload, horizon):
        problems.append(scenario.document.problem(("workload",), "the workload is empty: no task ever arrives"))
    policies = scenario.policies
    scheduler = make_policy(policies.scheduler, scenario, problems)
    admission = None if policies.admission is None else make_policy(policies.admission, scenario, problems)
    batching = batching_policies(streams, scenario, context, problems)
    iteration = iteration_policies(streams, scenario, context, problems)
    faults = _faults(model.faults, cluster, scenario, problems)
    if isinstance(scheduler, Scheduler) and scheduler.knows_rates:
        scheduler.rates = true_rates(scenario, streams, policies.scheduler.name, problems)
    if problems:
        raise ScenarioError(problems)
    tasks, closed, services, language = merge(streams, context, items)
    apply_rules(tasks, model.site, context)
    _check_refused(tasks, scheduler, policies.scheduler.name)
    context.warnings += check_chances(tasks, faults, cluster, horizon)
    hopeless, many = hopeless_deadlines(tasks)
    (context.warnings if many else context.notes).extend(hopeless)
    if services and type(scheduler).serve is Scheduler.serve:  # before a planner plans, or plays through, anything
        text = f"{policies.scheduler.name} does not serve requests in batches; fcfs, edf, priority and the other list "
        raise ScenarioError(Problem(f"{text}schedulers do", key="policy.scheduler"))
    problem = PlanProblem(replace(tasks, time=tasks.estimate), cluster)
    scheduler.check(problem)
    if isinstance(admission, Admission):
        admission.check(problem)
    context.warnings += may_take_long(scheduler, policies.scheduler.name, problem)
    unplanned = not_understood(scenario, PLAN) if _plans(scheduler) else []
    context.notes += [f"{one}; the plans of {policies.scheduler.name} do without it" for one in unplanned]
    scenario.notes += [note for note in context.notes if note not in scenario.notes]
    return RunInput(
        name=model.name,
        cluster=cluster,
        tasks=tasks,
        scheduler=scheduler,
        admission=admission,
        random=random,
        closed=closed,
        horizon=horizon,
        warmup=0.0 if isinstance(model.warmup, str) else model.warmup,  # auto: known only after replications
        policy=policies.label,
        services=services,
        batching=batching,
        language=language,
        iteration=iteration,
        warnings=context.warnings,
        overloads=context.overloads,
        unplanned=[one.message.removeprefix(UNKNOWN) for one in unplanned if isinstance(scheduler, PlannedScheduler)],
        faults=faults,
        grace=model.site.grace if model.site.at_limit == "kill" else None,
        traces=[stream.resampled for stream in streams if stream.resampled is not None],
    )


def _faults(given: Any, cluster: Cluster, scenario: ScenarioSource, problems: list[Problem]) -> list[Faults]:
    """The faults of a run; none, and their problems, where they are wrong."""
    try:
        return build_faults(given, cluster, scenario.document, scenario.base)
    except ScenarioError as error:
        problems += error.problems
        return []


def _plans(policy: Any) -> bool:
    """Does it plan, by itself or by a policy that it works with?"""
    wanted = {key: inner_type(one) for key, one in registry.parameters(type(policy)).items()}
    inner = [getattr(policy, key, None) for key, kind in wanted.items() if kind is not None]
    planner = isinstance(policy, PlannedScheduler) or PlannedScheduler in wanted.values()
    return planner or any(_plans(one) for one in inner if isinstance(one, Scheduler))


def _check_refused(tasks: Tasks, scheduler: Any, name: str) -> None:
    """Refuse tasks that are rejected as they come, where all are planned beforehand."""
    if tasks.refused and type(scheduler).prepare is not Scheduler.prepare:
        first = next(iter(tasks.refused))
        text = f"{name} plans all tasks beforehand, and {tasks.name(first)} "
        raise ScenarioError(Problem(f"{text}{tasks.refused[first]}; leave such tasks out", key="workload"))


def _may_come(entries: list[WorkloadEntry], horizon: float) -> bool:
    """Might another draw have tasks?  Not if fewer than one in a hundred draws had any."""
    expected = 0.0
    for entry in entries:
        if entry.arrivals is not None and not entry.arrivals.closed and entry.count is None:
            until = min(horizon, math.inf if entry.until is None else entry.until)
            expected += (entry.arrivals.rate_mean or 0.0) * until
    return expected >= 0.01


def hopeless_deadlines(tasks: Tasks) -> tuple[list[str], bool]:
    """A note on tasks that cannot meet their deadline even alone on the fastest device: how many, and by how much.

    Also whether they are more than the few that drawn sizes bring with them.
    """
    if tasks.deadline is None or not len(tasks):
        return [], False
    fastest = np.full(len(tasks), np.inf)
    for shape in tasks.shapes:
        rows = np.flatnonzero(tasks.shape == shape.index)
        fixed = np.array([mode.fixed for mode in shape.modes])
        if len(rows):
            fastest[rows] = (tasks.time[rows][:, : len(fixed)] + fixed).min(axis=1)
    if tasks.staged is not None:  # a request is late or not, and none of its stages by itself
        staged = tasks.staged.stage >= 0
        fastest[staged] = np.where(tasks.staged.last, tasks.staged.alone, 0.0)[staged]
    with np.errstate(invalid="ignore"):
        lacking = fastest - (tasks.deadline - tasks.arrival)
    late = lacking > 1e-9 * fastest
    if not late.any():
        return [], False
    number, most = f"{int(late.sum()):,} of {tasks.request_count:,} tasks", f"{lacking[late].max():.4g} s at most"
    text = f"no schedule meets the deadlines of {number}: they take longer on any device, by {most}"
    return [text], float(late.sum() / tasks.request_count) > HOPELESS
