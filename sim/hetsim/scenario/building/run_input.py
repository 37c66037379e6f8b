"""From a validated scenario to the input of one run: cluster, tasks, policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hetsim import registry
from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.decision_time import DecisionTime
from hetsim.model.faults import Faults
from hetsim.model.randomness import JUDGED, RandomTree
from hetsim.model.record import RunInput
from hetsim.model.tasks import Tasks
from hetsim.policy import Admission, PlannedScheduler, PlanProblem, Scheduler
from hetsim.scenario.building.calls import check_retries
from hetsim.scenario.building.cluster import build_cluster
from hetsim.scenario.building.faults import build_faults, check_chances
from hetsim.scenario.building.merging import merge
from hetsim.scenario.building.modes import ModeBook
from hetsim.scenario.building.run_policies import ScenarioSource, batching_policies, iteration_policies, make_policy
from hetsim.scenario.building.site import apply_rules, with_partitions
from hetsim.scenario.building.streams import Context, TaskStream
from hetsim.scenario.building.streams_and_items import build_parts
from hetsim.scenario.readers import PLAN, UNKNOWN, not_understood
from hetsim.scenario.schema.policy import inner_type
from hetsim.scenario.schema.workload import WorkloadEntry

SHORT_CYCLES = 10
"""Tasks that compute for fewer cycles of the scheduler than these are short."""
HOPELESS = 0.01
"""Part of the tasks from which on hopeless deadlines are a warning rather than a note."""
LONG = 120.0
"""Seconds from which on a run is said to take long."""


def build(scenario: ScenarioSource, seed: int | None = None, replication: int = 0, loads: str = JUDGED) -> RunInput:
    """One run of the scenario; ScenarioError with everything that is wrong with it.

    Same scenario, seed, replication and `loads` (what they are for): the same columns to the last bit.  `seed` defaults
    to the scenario's.
    """
    model = scenario.model
    random = RandomTree(model.seed if seed is None else seed, replication, loads)
    cluster = with_partitions(build_cluster(model.cluster, scenario.document), model.site, scenario.document)
    horizon = math.inf if model.horizon is None else model.horizon
    named = registry.policy("scheduler", scenario.policies.scheduler.name)
    book = ModeBook(cluster, getattr(named, "spreads", Scheduler.spreads))
    context = Context(scenario.document, cluster, book, random=random, horizon=horizon)
    streams, items, problems = build_parts(dict(enumerate(model.workload)), model.data, scenario.table, context)
    if not problems and not any(len(stream) for stream in streams) and not _may_come(model.workload, horizon):
        problems.append(scenario.document.problem(("workload",), "the workload is empty: no task ever arrives"))
    policies = scenario.policies
    scheduler = make_policy(policies.scheduler, scenario, problems)
    admission = None if policies.admission is None else make_policy(policies.admission, scenario, problems)
    served = [stream for stream in streams if stream.service is not None or stream.language is not None]
    batching = batching_policies(served, scenario, context, problems)
    iteration = iteration_policies(served, scenario, context, problems)
    faults = _faults(model.faults, cluster, scenario, problems)
    if isinstance(scheduler, Scheduler) and scheduler.knows_rates:
        scheduler.rates = true_rates(scenario, streams, policies.scheduler.name, problems)
    if problems:
        raise ScenarioError(problems)
    tasks, closed, services, language, calls = merge(streams, context, items)
    if tasks.refused or any(tasks.partitions) or "time_limit" in tasks.extra:
        apply_rules(tasks, model.site, context)
    _check_refused(tasks, scheduler, policies.scheduler.name)
    sending = [stream.path for stream in streams if stream.calls is not None]
    if sending and _plans(scheduler):
        text = f"{policies.scheduler.name} plans all tasks beforehand, and none knows what is sent again; name another"
        raise ScenarioError(scenario.document.problem((*sending[0], "clients"), f"{text} policy"))
    if calls is not None:
        rejecting = [] if admission is None else [admission]
        killing = model.site.at_limit == "kill"
        check_retries(
            calls, tasks, streams, policies=[scheduler, *rejecting], batching=batching, killing=killing, context=context
        )
    context.warnings += check_chances(tasks, faults, cluster, horizon) if faults else []
    hopeless, many = hopeless_deadlines(tasks)
    (context.warnings if many else context.notes).extend(hopeless)
    if services and type(scheduler).serve is Scheduler.serve:  # before a planner plans, or plays through, anything
        text = f"{policies.scheduler.name} does not serve requests in batches; fcfs, edf, priority and the other list "
        raise ScenarioError(Problem(f"{text}schedulers do", key="policy.scheduler"))
    problem = PlanProblem(replace(tasks, time=tasks.estimate), cluster)
    scheduler.check(problem)
    if isinstance(admission, Admission):
        admission.check(problem)
    if policies.decisions is not None and scheduler.at_own_times:
        text = f"{policies.scheduler.name} decides at exact times of its own, which nothing may delay; leave this out"
        raise ScenarioError(scenario.document.problem(("policy", "decisions"), text))
    context.warnings += _short_tasks(tasks, policies.decisions)
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
        calls=calls,
        horizon=horizon,
        warmup=0.0 if isinstance(model.warmup, str) else model.warmup,  # auto: known only after replications
        policy=policies.label,
        services=services,
        batching=batching,
        language=language,
        iteration=iteration,
        decisions=policies.decisions,
        warnings=context.warnings,
        overloads=context.overloads,
        unplanned=[one.message.removeprefix(UNKNOWN) for one in unplanned if isinstance(scheduler, PlannedScheduler)],
        faults=faults,
        grace=model.site.grace if model.site.at_limit == "kill" else None,
        traces=[stream.resampled for stream in streams if stream.resampled is not None],
    )


def _short_tasks(tasks: Tasks, decisions: DecisionTime | None) -> list[str]:
    """Warn where most tasks are short next to a cycle of the scheduler."""
    if decisions is None or not len(tasks):
        return []
    fastest = tasks.computing(tasks.time).min(axis=1)
    short = int((fastest < SHORT_CYCLES * decisions.shortest_cycle).sum())
    if 2 * short <= len(tasks):
        return []
    text = f"{short:,} of {len(tasks):,} tasks compute less than {SHORT_CYCLES} cycles of the scheduler "
    return [f"{text}({decisions.shortest_cycle:g} s each): it decides how long they take"]


def _faults(given: Any, cluster: Cluster, scenario: ScenarioSource, problems: list[Problem]) -> list[Faults]:
    """The faults of a run; none, and their problems, where they are wrong."""
    try:
        return build_faults(given, cluster, scenario.document, scenario.base)
    except ScenarioError as error:
        problems += error.problems
        return []


def _plans(policy: Any) -> bool:
    """Return True if the policy, or one that it works with, plans."""
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
    """Return True if another draw has tasks with a chance of 1 % or more."""
    expected = 0.0
    for entry in entries:
        if entry.arrivals is not None and not entry.arrivals.closed and entry.count is None:
            until = min(horizon, math.inf if entry.until is None else entry.until)
            expected += (entry.arrivals.rate_mean or 0.0) * until
    return expected >= 0.01


def hopeless_deadlines(tasks: Tasks) -> tuple[list[str], bool]:
    """A note on tasks late even alone on the fastest device.

    Also whether they are more than the few that drawn sizes bring with them.
    """
    if tasks.deadline is None or not len(tasks):
        return [], False
    fastest = tasks.computing(tasks.time).min(axis=1)
    if tasks.staged is not None:  # a request is late or not, and none of its stages by itself
        staged = tasks.staged.stage >= 0
        fastest[staged] = np.where(tasks.staged.last, tasks.staged.alone, 0.0)[staged]
    with np.errstate(invalid="ignore"):
        lacking = fastest - (tasks.deadline - tasks.arrival)
    late = lacking > 1e-9 * fastest
    if not late.any():
        return [], False
    number, latest = f"{int(late.sum()):,} of {tasks.request_count:,} tasks", f"{lacking[late].max():.4g} s at most"
    text = f"no schedule meets the deadlines of {number}: they take longer on any device, by {latest}"
    return [text], float(late.sum() / tasks.request_count) > HOPELESS


def true_rates(
    scenario: ScenarioSource, streams: list[TaskStream], name: str, problems: list[Problem]
) -> Mapping[str, Callable[[float], float]]:
    """Arrivals per second of each class and service at any time."""
    parts: dict[str, list[tuple[float, Any, float]]] = {}
    for stream in streams:
        number = int(stream.path[1])
        entry = scenario.model.workload[number]
        arrivals: Any = entry.arrivals
        key = "trace" if entry.trace is not None else "pipeline" if entry.pipeline is not None else "arrivals"
        if key != "arrivals" or arrivals.rate_at(0.0) is None:
            what = f"{arrivals.process} arrivals have" if key == "arrivals" else f"a {key} has"
            text = f"{what} no certain rate, and the predictor of {name} must know it; poisson, piecewise_poisson, "
            text += "diurnal, renewal and deterministic arrivals have one"
            problems.append(scenario.document.problem(("workload", number, key), text))
            continue
        over = entry.count is not None and len(stream) == entry.count
        end = float(stream.arrival[-1]) if over else math.inf if entry.until is None else entry.until
        codes = np.zeros(len(stream), int) if stream.class_code is None else stream.class_code
        names = [stream.name] if stream.service is not None else stream.classes
        shares = [1.0] if stream.service is not None else np.bincount(codes, minlength=len(names)) / max(1, len(stream))
        for label, share in zip(names, shares, strict=True):
            parts.setdefault(label, []).append((float(share), arrivals, end))
    return {label: partial(_rate, those) for label, those in parts.items()}


def _rate(parts: list[tuple[float, Any, float]], time: float) -> float:
    return sum(share * process.rate_at(time) for share, process, end in parts if time <= end)


def may_take_long(scheduler: Scheduler, name: str, problem: PlanProblem) -> list[str]:
    """A warning of long runs where rounds look at all waiting tasks."""
    cost, count = scheduler.round_cost(problem), len(problem.tasks)
    if not cost or cost * count**2 < LONG:
        return []
    load = offered_load(problem.tasks, problem.cluster)
    waiting = 0.5 * count * max(0.0, 1.0 - 1.0 / load) if load > 0 else 0.0  # on average, while tasks arrive
    expected = cost * 2 * count * waiting  # two rounds a task
    if expected < LONG:
        return []
    return [
        f"{name} looks at all waiting tasks in each round, and at a load of {load:.3g} the queue grows: with "
        f"{count:,} tasks a run may take {expected / 60:,.0f} minutes (see docs/speed.md); fewer tasks, more devices, "
        "or a policy that looks at a bounded number of them take less"
    ]


def offered_load(tasks: Tasks, cluster: Cluster) -> float:
    """Work that arrives a second / capacity, of accelerators or of cores.

    Each task counts in its fastest mode, by estimate; inf if all arrive at once.
    """
    work = {"cores": 0.0, "accelerators": 0.0}
    by_mode = tasks.computing(tasks.estimate)
    for number, shape in enumerate(tasks.shapes):
        times = by_mode[tasks.shape == number][:, : len(shape.modes)]
        if not len(times):
            continue
        fastest = np.argmin(times, axis=1)
        for position, mode in enumerate(shape.modes):
            mine = times[fastest == position, position]
            work["cores" if mode.on_cpu else "accelerators"] += float(mine[np.isfinite(mine)].sum()) * mode.width
    total = {
        "cores": float(sum(node.cpus for node in cluster.nodes)),
        "accelerators": float(sum(len(node.accelerators) for node in cluster.nodes)),
    }
    seconds = max(work[kind] / total[kind] for kind in work if total[kind]) if any(total.values()) else 0.0
    span = float(np.ptp(tasks.arrival)) if len(tasks) else 0.0
    return seconds / span if span > 0 else float("inf")
