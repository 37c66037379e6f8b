"""Build the input of one run from a scenario: cluster, tasks, policies."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from hetsim import registry
from hetsim.errors import HetsimError, PolicyError, Problem, ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.faults import Faults
from hetsim.model.randomness import JUDGED, RandomTree
from hetsim.model.record import DecisionTime, RunInput
from hetsim.model.tasks import Tasks
from hetsim.policy import Admission, Batching, IterationPolicy, PlannedScheduler, PlanProblem, Routing, Scheduler
from hetsim.policy.decisions import as_number
from hetsim.scenario.building.cluster import build_cluster
from hetsim.scenario.building.faults import build_faults, check_chances
from hetsim.scenario.building.language_model import joining_problem
from hetsim.scenario.building.merging import merge
from hetsim.scenario.building.model_places import place_problems
from hetsim.scenario.building.modes import ModeBook
from hetsim.scenario.building.served import OWN
from hetsim.scenario.building.site import apply_rules, with_partitions
from hetsim.scenario.building.streams import Context, TaskStream, check_retries
from hetsim.scenario.building.streams_and_items import build_parts
from hetsim.scenario.file.document import Path_, key_of
from hetsim.scenario.readers import PLAN, UNKNOWN, ReadScenario, not_understood
from hetsim.scenario.schema.policy import PolicySpec, inner_type
from hetsim.scenario.schema.workload import WorkloadEntry
from hetsim.workload.traces import TaskTable

# The fresh policies of one run and its services, and problems with them.


DEFAULT_EVICTION = PolicySpec("eviction", "lru")
DEFAULT_ROUTING = PolicySpec("routing", "least_outstanding")
DEFAULT_BATCHING = {False: PolicySpec("batching", "serial_greedy"), True: PolicySpec("batching", "continuous")}
# messages about a batching policy for services of the other kind; True: language models
UNFIT = {False: "needs a language model (service: {kind: llm}); services here form batches",
         True: "forms whole batches, which language models cannot use; use continuous"}  # fmt: skip
# signals of policies that only replicas of language models have
OF_TOKENS = {"kv": "KV blocks", "prefix": "cached prefixes", "forecast": "forecasts"}


def service_policies(
    streams: list[TaskStream], scenario: "ScenarioSource", context: Context, problems: list[Problem], language: bool
) -> list[tuple[Any, Any, Any]]:
    """Return the batching, routing and scaling policy of each service.

    `language`: True for services that are language models, False for all others.
    """
    policies, document = scenario.policies, scenario.document
    served = [one for one in streams if (one.language if language else one.service) is not None and len(one)]
    alone = served and not any(stream.service if language else stream.language for stream in streams)
    common = policies.batching
    if common is not None and iterates(common) is not language:
        if alone:
            problems.append(document.problem(("policy", "batching"), f"{common.name} {UNFIT[language]}"))
        common = None
    made = []
    for stream in served:
        number, own = int(stream.path[1]), DEFAULT_BATCHING[language]
        preset = getattr(stream.language, "batching", None)  # of an engine, where the service names none itself
        if isinstance(preset, dict):
            own = PolicySpec("batching", preset["name"], {key: preset[key] for key in preset if key != "name"})
        spec = policies.of_service.get(number, common or own)
        if iterates(spec) is not language:
            problems.append(document.problem((*stream.path, *OWN), f"{spec.name} {UNFIT[language]}"))
        policy = make_policy(spec, scenario, problems, _place(stream, spec, policies.of_service))
        made.append((policy, *_replica_policies(stream, scenario, problems)))
        if not isinstance(policy, IterationPolicy if language else Batching):
            continue
        if isinstance(policy, Batching):
            if (given := policy.max_batch) is not None and type(given) is not int:
                policy.max_batch = as_number(given, int)
            if given is not None and (policy.max_batch or 0) < 1:
                text = f"{spec.name}: max_batch must be a whole number of at least 1, or None; got {given!r}"
                problems.append(document.problem(_place(stream, spec, policies.of_service), text))
                continue
            modes = context.modes.shapes[int(stream.shape[0])].modes
            context.warnings += [f"{stream.name}: {spec.name} {text}" for text in policy.remarks(modes)]
        elif (joining := joining_problem(stream, policy)) is not None:
            problems.append(document.problem((*stream.path, "service", joining[0]), f"{spec.name}: {joining[1]}"))
        _note_overload(stream, spec, policy, scenario=scenario, context=context)
    return made


def _note_overload(
    stream: TaskStream, spec: PolicySpec, policy: Any, scenario: "ScenarioSource", context: Context
) -> None:  # fmt: skip
    """Warn if a service cannot serve its load; if certain, record it in `context`."""
    overload = None if stream.overload is None else stream.overload(policy, spec.name)
    if overload is None:
        return
    text, capacity = overload
    context.warnings.append(text)
    arrivals: Any = scenario.model.workload[int(stream.path[1])].arrivals
    steady = arrivals is not None and arrivals.steady_rate
    if steady and getattr(policy, "in_order", False) and stream.service is not None:
        lasts, fewest = float(stream.arrival[-1]), max(1.0, len(stream) - 3 * math.sqrt(len(stream)))  # of replications
        served = min(fewest, capacity * lasts)
        context.overloads.append((text, served, lasts * (1 - served / fewest)))


def iterates(spec: PolicySpec) -> bool:
    """Return True if a batching policy serves language models (continuous batching)."""
    return bool(getattr(registry.policy("batching", spec.name), "iterates", False))


def _replica_policies(stream: TaskStream, scenario: "ScenarioSource", problems: list[Problem]) -> tuple[Any, Any]:
    if not stream.replica_modes:
        return None, None
    policies, number, problem = scenario.policies, int(stream.path[1]), scenario.document.problem
    routing, scale = policies.routing_of.get(number, policies.routing or DEFAULT_ROUTING), policies.scale_of.get(number)
    place, scale_place = _place(stream, routing, policies.routing_of), (*stream.path, "service", "scale")
    router = make_policy(routing, scenario, problems, place)
    if router is not None and (why := _without_age(router)) is not None:
        problems.append(problem(place, f"{routing.name}: {why}"))
    scaler = None if scale is None else make_policy(scale, scenario, problems, scale_place)
    bounds: Any = getattr(stream.language or stream.service, "scale", None)
    if scaler is not None and scaler.measures and bounds.every is None:
        problems.append(problem(scale_place, f"{scale and scale.name} measures at intervals; give every, such as 10 s"))
    for spec, policy, path in ((routing, router, place), (scale, scaler, scale_place)):
        if stream.service and spec and (seen := OF_TOKENS.keys() & set(getattr(policy, "signals", ()))):
            what = " and ".join(OF_TOKENS[one] for one in sorted(seen))
            problems.append(problem(path, f"{spec.name} uses {what}, which only replicas of language models have"))
    return router, scaler


def _without_age(router: Routing) -> str | None:
    """Return why the router cannot use outdated signals (`refresh`, `delay`), or None."""
    if "forecast" in router.signals and (router.refresh or router.delay):
        return "the forecast uses the current state; leave out refresh and delay"
    if router.delay and not router.refresh and router.signals != ("queue",):
        return "delay needs refresh here, because the router uses more than numbers of requests"
    return None


def _place(stream: TaskStream, spec: PolicySpec, own: dict[int, PolicySpec]) -> Path_:
    named = own.get(int(stream.path[1])) is spec
    return (*stream.path, "service", spec.kind) if named else ("policy", spec.kind)


def make_policy(spec: PolicySpec, scenario: "ScenarioSource", problems: list[Problem], place: Path_ = ()) -> Any:
    """Create a policy; report an error of its constructor as a problem at `place`."""
    path: Path_ = place or ("policy", spec.kind)
    try:
        policy = spec.make()
        if missing := getattr(type(policy), "__abstractmethods__", None):  # compiled bases do not look at it
            raise TypeError(f"{type(policy).__name__} is abstract: it lacks {', '.join(sorted(missing))}")
        if hasattr(policy, "external_program") and (program := scenario.document.program) is not None:
            text = json.dumps(scenario.document.data, sort_keys=True, default=str)
            policy.external_program = replace(program, scenario=text)
    except ScenarioError as error:
        usual = key_of(("policy", spec.kind))
        moved = [replace(p, key=key_of(path) + p.key.removeprefix(usual)) for p in error.problems if not p.file]
        problems += moved + [problem for problem in error.problems if problem.file]
        return None
    except HetsimError:
        raise
    except ValueError as error:
        problems.append(scenario.document.problem(path, f"{spec.name}: {error}"))
        return None
    except Exception as error:
        raise PolicyError(f'policy "{spec.name}" cannot be created: {type(error).__name__}: {error}') from error
    if spec.kind == "scheduler" and not isinstance(policy, Scheduler):
        message = f"{spec.name} is not a scheduler: the class must derive from hetsim.policy.Scheduler"
        problems.append(scenario.document.problem(path, message))
    return policy


class ScenarioSource(ReadScenario, Protocol):
    """Protocol: the parts of a scenario from which a run is built."""

    notes: list[str]

    def table(self, entry: int) -> TaskTable:
        """Return the trace of a workload entry, which is read only once."""


SHORT_CYCLES = 10  # Number of scheduling cycles below which a task's compute time is short.
HOPELESS = 0.01  # Share of tasks with hopeless deadlines above which a note becomes a warning.
LONG = 120.0  # Seconds above which a run is reported to take long.


def build(scenario: ScenarioSource, seed: int | None = None, replication: int = 0, loads: str = JUDGED) -> RunInput:
    """Build one run of the scenario; ScenarioError lists everything wrong with it.

    The same scenario, seed, replication and `loads` (what the run is for: judging, training or validation) yield
    columns that are equal bit for bit.  `seed` defaults to that of the scenario.
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
    answered = [entry.service for entry in model.workload if entry.service is not None]
    if policies.batching is not None and not answered:
        text = "batching needs a service, but no workload entry has one"
        problems.append(scenario.document.problem(("policy", "batching"), text))
    for part in ("routing", "eviction"):
        if getattr(policies, part) is not None and not any(getattr(one, "kept", True) for one in answered):
            text = f"{part} needs a service with replicas, but no workload entry has one"
            problems.append(scenario.document.problem(("policy", part), text))
    formed, iteration = (service_policies(served, scenario, context, problems=problems, language=one)
                         for one in (False, True))  # fmt: skip
    batching, there = [one[0] for one in formed], any(stream.replica_modes for stream in served)
    eviction = make_policy(policies.eviction or DEFAULT_EVICTION, scenario, problems) if there else None
    problems += place_problems(served, model.workload, context)
    faults = _faults(model.faults, cluster, scenario, problems)
    if isinstance(scheduler, Scheduler) and scheduler.knows_rates:
        scheduler.rates = true_rates(scenario, streams, policies.scheduler.name, problems)
    if problems:
        raise ScenarioError(problems)
    tasks, closed, services, language, calls = merge(streams, context, items)
    if tasks.refused or any(tasks.partitions) or "time_limit" in tasks.extra:
        apply_rules(tasks, model.site, context)
    _check_refused(tasks, scheduler, policies.scheduler.name)
    if (sending := [stream.path for stream in streams if stream.calls is not None]) and _plans(scheduler):
        text = f"{policies.scheduler.name} plans all tasks in advance, but retries are unknown then; choose another"
        raise ScenarioError(scenario.document.problem((*sending[0], "clients"), f"{text} policy"))
    if calls is not None:
        rejecting = [] if admission is None else [admission]
        killing = model.site.at_limit == "kill"
        check_retries(calls, tasks, streams, policies=[scheduler, *rejecting], batching=batching, killing=killing,
                      context=context)  # fmt: skip
    context.warnings += check_chances(tasks, faults, cluster, horizon) if faults else []
    hopeless, many = hopeless_deadlines(tasks)
    (context.warnings if many else context.notes).extend(hopeless)
    # Before a planner plans, or plays through, anything.
    if any(not one.kinds for one in services) and type(scheduler).serve is Scheduler.serve:
        text = f"{policies.scheduler.name} does not serve requests in batches; fcfs, edf, priority and the other list "
        raise ScenarioError(Problem(f"{text}schedulers do", key="policy.scheduler"))
    problem = PlanProblem(replace(tasks, time=tasks.estimate), cluster)
    scheduler.check(problem)
    if isinstance(admission, Admission):
        admission.check(problem)
    if policies.decisions is not None and scheduler.at_own_times:
        text = f"{policies.scheduler.name} decides at fixed times, which must not be delayed; leave decisions out"
        raise ScenarioError(scenario.document.problem(("policy", "decisions"), text))
    context.warnings += _short_tasks(tasks, policies.decisions)
    context.warnings += may_take_long(scheduler, policies.scheduler.name, problem)
    unplanned = not_understood(scenario, PLAN) if _plans(scheduler) else []
    context.notes += [f"{one}; the plans of {policies.scheduler.name} ignore it" for one in unplanned]
    scenario.notes += [note for note in context.notes if note not in scenario.notes]
    return RunInput(
        name=model.name, cluster=cluster, tasks=tasks, scheduler=scheduler, admission=admission, random=random,
        closed=closed, calls=calls, horizon=horizon,
        warmup=0.0 if isinstance(model.warmup, str) else model.warmup,  # auto: known only after replications
        policy=policies.label, services=services, batching=batching,
        replica_policies=[one[1:] for one in formed], language=language, iteration=iteration, eviction=eviction,
        decisions=policies.decisions, warnings=context.warnings, overloads=context.overloads,
        unplanned=[one.message.removeprefix(UNKNOWN) for one in unplanned if isinstance(scheduler, PlannedScheduler)],
        faults=faults, grace=model.site.grace if model.site.at_limit == "kill" else None,
        traces=[stream.resampled for stream in streams if stream.resampled is not None],
    )  # fmt: skip


def _short_tasks(tasks: Tasks, decisions: DecisionTime | None) -> list[str]:
    if decisions is None or not len(tasks):
        return []
    fastest = tasks.computing(tasks.time).min(axis=1)
    short = int((fastest < SHORT_CYCLES * decisions.shortest_cycle).sum())
    if 2 * short <= len(tasks):
        return []
    text = f"{short:,} of {len(tasks):,} tasks compute for less than {SHORT_CYCLES} scheduling cycles "
    return [f"{text}({decisions.shortest_cycle:g} s each): the cycle dominates their response times"]


def _faults(given: Any, cluster: Cluster, scenario: ScenarioSource, problems: list[Problem]) -> list[Faults]:
    try:
        return build_faults(given, cluster, scenario.document, scenario.base)
    except ScenarioError as error:
        problems += error.problems
        return []


def _plans(policy: Any) -> bool:
    wanted = {key: inner_type(one) for key, one in registry.parameters(type(policy)).items()}
    inner = [getattr(policy, key, None) for key, kind in wanted.items() if kind is not None]
    planner = isinstance(policy, PlannedScheduler) or PlannedScheduler in wanted.values()
    return planner or any(_plans(one) for one in inner if isinstance(one, Scheduler))


def _check_refused(tasks: Tasks, scheduler: Any, name: str) -> None:
    if tasks.refused and type(scheduler).prepare is not Scheduler.prepare:
        first = next(iter(tasks.refused))
        text = f"{name} plans all tasks in advance, but {tasks.name(first)} "
        raise ScenarioError(Problem(f"{text}{tasks.refused[first]}; leave such tasks out", key="workload"))


def _may_come(entries: list[WorkloadEntry], horizon: float) -> bool:
    """Return True if random arrivals are expected to bring at least 0.01 tasks."""
    expected = 0.0
    for entry in entries:
        if entry.arrivals is not None and not entry.arrivals.closed and entry.count is None:
            until = min(horizon, math.inf if entry.until is None else entry.until)
            expected += (entry.arrivals.rate_mean or 0.0) * until
    return expected >= 0.01


def hopeless_deadlines(tasks: Tasks) -> tuple[list[str], bool]:
    """Return a warning about tasks that are late even if they start on arrival.

    The second value is True if their share of all tasks exceeds `HOPELESS`, which random sizes do not explain.
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
    text = f"no schedule meets the deadlines of {number}: they take longer on every device, by {latest}"
    return [text], float(late.sum() / tasks.request_count) > HOPELESS


def true_rates(
    scenario: ScenarioSource, streams: list[TaskStream], name: str, problems: list[Problem]
) -> Mapping[str, Callable[[float], float]]:
    """Return functions of time for the arrival rates (1/s) of classes and services."""
    parts: dict[str, list[tuple[float, Any, float]]] = {}
    for stream in streams:
        number = int(stream.path[1])
        entry = scenario.model.workload[number]
        arrivals: Any = entry.arrivals
        key = "trace" if entry.trace is not None else "pipeline" if entry.pipeline is not None else "arrivals"
        if key != "arrivals" or arrivals.rate_at(0.0) is None:
            what = f"{arrivals.process} arrivals have" if key == "arrivals" else f"a {key} has"
            text = f"{what} no known rate, which the predictor of {name} needs; poisson, piecewise_poisson, "
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
    """Return a warning if rounds that examine all waiting tasks make the run long."""
    cost, count = scheduler.round_cost(problem), len(problem.tasks)
    if not cost or cost * count**2 < LONG:
        return []
    load = offered_load(problem.tasks, problem.cluster)
    waiting = 0.5 * count * max(0.0, 1.0 - 1.0 / load) if load > 0 else 0.0  # on average, while tasks arrive
    expected = cost * 2 * count * waiting  # two rounds a task
    if expected < LONG:
        return []
    return [
        f"{name} examines all waiting tasks in each round, and at a load of {load:.3g} the queue grows: with "
        f"{count:,} tasks a run may take {expected / 60:,.0f} minutes (see docs/speed.md); fewer tasks, more devices, "
        "or a policy that examines a bounded number of tasks are faster"
    ]


def offered_load(tasks: Tasks, cluster: Cluster) -> float:
    """Return the arriving work per second divided by the capacity.

    The work of a task is its estimated time in its fastest mode times the width of that mode.
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
    total = {"cores": float(sum(node.cpus for node in cluster.nodes)),
             "accelerators": float(sum(len(node.accelerators) for node in cluster.nodes))}  # fmt: skip
    seconds = max(work[kind] / total[kind] for kind in work if total[kind]) if any(total.values()) else 0.0
    span = float(np.ptp(tasks.arrival)) if len(tasks) else 0.0
    return seconds / span if span > 0 else float("inf")
