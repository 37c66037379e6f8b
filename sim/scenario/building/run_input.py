"""From a validated scenario to the input of one run: cluster, columns of tasks, and fresh policies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from sim import registry
from sim.errors import HetsimError, PolicyError, Problem, ScenarioError, suggestion
from sim.model.cluster import Cluster
from sim.model.faults import Faults
from sim.model.ragged import Ragged
from sim.model.randomness import JUDGED, RandomTree
from sim.model.record import ClosedStream, RunInput
from sim.model.service import LanguageService, Service
from sim.model.tasks import Item, KernelWork, StagedRequests, Tasks
from sim.model.units import MAX_BYTES, MOST, Seconds
from sim.policy import Admission, Batching, IterationPolicy, PlanProblem, Scheduler
from sim.scenario.building.cluster import build_cluster
from sim.scenario.building.faults import build_faults, check_chances
from sim.scenario.building.language_model import joining_problem, language_of
from sim.scenario.building.long_runs import may_take_long
from sim.scenario.building.modes import ModeBook
from sim.scenario.building.recorded import build_recorded
from sim.scenario.building.served import services_of, weights
from sim.scenario.building.site import apply_rules, with_partitions
from sim.scenario.building.streams import Context, TaskStream
from sim.scenario.building.synthetic import build_synthetic
from sim.scenario.fields import Model
from sim.scenario.file.document import Document, Path_, key_of
from sim.scenario.schema.cluster import ClusterSpec as ClusterModel
from sim.scenario.schema.policy import Policies, PolicySpec
from sim.scenario.schema.site import SiteSpec
from sim.scenario.schema.whole import ScenarioModel
from sim.scenario.schema.workload import DataItem, WorkloadEntry
from sim.workload.traces import TaskTable

HOPELESS = 0.01
"""Part of the tasks from which on hopeless deadlines are a warning rather than a note."""

DEFAULT_BATCHING = PolicySpec("batching", "serial_greedy")
DEFAULT_ITERATION = PolicySpec("batching", "continuous")
DEFAULT_ROUTING = PolicySpec("routing", "least_outstanding")

M = TypeVar("M", bound=BaseModel)


class ScenarioSource(Protocol):
    """What is read of a scenario to build a run of it; a `Scenario` has it."""

    document: Document
    base: Path
    model: ScenarioModel
    policies: Policies
    notes: list[str]

    def table(self, entry: int) -> TaskTable:
        """The trace of a workload entry; read once."""
        ...


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
    streams, items, problems = _parts(dict(enumerate(model.workload)), model.data, scenario.table, context)
    if not problems and not any(len(stream) for stream in streams) and not _may_come(model.workload, horizon):
        problems.append(scenario.document.problem(("workload",), "the workload is empty: no task ever arrives"))
    policies = scenario.policies
    scheduler = _make(policies.scheduler, scenario, problems)
    admission = None if policies.admission is None else _make(policies.admission, scenario, problems)
    batching = _batching(streams, scenario, context, problems)
    iteration = _iteration(streams, scenario, context, problems)
    faults = _faults(model.faults, cluster, scenario, problems)
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


def _batching(
    streams: list[TaskStream], scenario: ScenarioSource, context: Context, problems: list[Problem]
) -> list[Any]:
    """A batching policy for each service that has requests."""
    policies = scenario.policies
    served = [stream for stream in streams if stream.service is not None and len(stream)]
    if policies.batching is not None and all(entry.service is None for entry in scenario.model.workload):
        text = "batching is for services, and no entry of the workload has a service"
        problems.append(scenario.document.problem(("policy", "batching"), text))
    common = policies.batching if policies.batching is not None and not iterates(policies.batching) else None
    if policies.batching is not None and common is None and served and not any(stream.language for stream in streams):
        text = f"{policies.batching.name} is for language models (service: {{kind: llm}}), and there is none"
        problems.append(scenario.document.problem(("policy", "batching"), text))
    specs = [policies.of_service.get(int(stream.path[1]), common or DEFAULT_BATCHING) for stream in served]
    for stream, spec in zip(served, specs, strict=True):
        if iterates(spec):
            text = f"{spec.name} is for language models (service: {{kind: llm}}); this service forms batches"
            problems.append(scenario.document.problem((*stream.path, "service", "batching"), text))
    made = [
        _make(spec, scenario, problems, _place(stream, spec, policies.of_service))
        for stream, spec in zip(served, specs, strict=True)
    ]
    for stream, spec, policy in zip(served, specs, made, strict=True):
        if isinstance(policy, Batching):
            modes = context.modes.shapes[int(stream.shape[0])].modes
            context.warnings += [f"{stream.name}: {spec.name} {text}" for text in policy.remarks(modes)]
            context.warnings += _overload(stream, spec, policy)
    return made


def _overload(stream: TaskStream, spec: PolicySpec, policy: Any) -> list[str]:
    """What is to be said of a load that the devices of a service cannot serve."""
    text = None if stream.overload is None else stream.overload(policy, spec.name)
    return [] if text is None else [text]


def iterates(spec: PolicySpec) -> bool:
    """Does a batching policy let requests join between the steps of a language model?"""
    return bool(getattr(registry.policy("batching", spec.name), "iterates", False))


def _iteration(
    streams: list[TaskStream], scenario: ScenarioSource, context: Context, problems: list[Problem]
) -> list[tuple[Any, Any]]:
    """A batching and a routing policy for each language model that has requests."""
    policies, document = scenario.policies, scenario.document
    served = [stream for stream in streams if stream.language is not None and len(stream)]
    if policies.routing is not None and not any(hasattr(entry.service, "kind") for entry in scenario.model.workload):
        text = "routing is among the replicas of language models, and no entry of the workload has one"
        problems.append(document.problem(("policy", "routing"), text))
    common = policies.batching if policies.batching is not None and iterates(policies.batching) else None
    if policies.batching is not None and common is None and served and not any(stream.service for stream in streams):
        text = f"{policies.batching.name} forms whole batches, which language models do not; continuous suits them"
        problems.append(document.problem(("policy", "batching"), text))
    made = []
    for stream in served:
        number = int(stream.path[1])
        spec = policies.of_service.get(number, common or DEFAULT_ITERATION)
        if not iterates(spec):
            text = f"{spec.name} forms whole batches, which a language model does not; continuous suits it"
            problems.append(document.problem((*stream.path, "service", "batching"), text))
        routing = policies.routing_of.get(number, policies.routing or DEFAULT_ROUTING)
        made.append(
            (
                _make(spec, scenario, problems, _place(stream, spec, policies.of_service)),
                _make(routing, scenario, problems, _place(stream, routing, policies.routing_of)),
            )
        )
        if isinstance(made[-1][0], IterationPolicy):
            context.warnings += _overload(stream, spec, made[-1][0])
            found = joining_problem(stream, made[-1][0])
            if found is not None:
                problems.append(document.problem((*stream.path, "service", found[0]), f"{spec.name}: {found[1]}"))
    return made


def _place(stream: TaskStream, spec: PolicySpec, own: dict[int, PolicySpec]) -> Path_:
    """Where the scenario names a policy of a service: at the service itself, or for all of them."""
    named = own.get(int(stream.path[1])) is spec
    return (*stream.path, "service", spec.kind) if named else ("policy", spec.kind)


def _make(spec: PolicySpec, scenario: ScenarioSource, problems: list[Problem], place: Path_ = ()) -> Any:
    """A fresh policy; a value that its constructor refuses is a problem of the scenario, at `place` in it."""
    path: Path_ = place or ("policy", spec.kind)
    try:
        policy = spec.make()
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
        raise PolicyError(f'policy "{spec.name}" cannot be made: {type(error).__name__}: {error}') from error
    if spec.kind == "scheduler" and not isinstance(policy, Scheduler):
        message = f"{spec.name} is no scheduler: a class of your own derives from sim.policy.Scheduler"
        problems.append(scenario.document.problem(path, message))
    return policy


def check_parts(document: Document, base: Path, tables: dict[int, TaskTable]) -> list[Problem]:
    """What is wrong, beyond their keys, with the cluster and with the entries of the workload that have valid keys.

    For a scenario that has wrong keys elsewhere, so that all its problems come in one report.  `tables` are the
    traces that could be read.
    """
    data, context = document.data, {"base": str(base)}
    entries = as_list(data.get("workload"))
    valid = {number: _valid(WorkloadEntry, entry, context) for number, entry in enumerate(entries)}
    cluster = _valid(ClusterModel, data.get("cluster"), context)
    items = [_valid(DataItem, item, context) for item in as_list(data.get("data"))]
    try:
        site = _valid(SiteSpec, data.get("site") or {}, context) or SiteSpec()
        built = None if cluster is None else with_partitions(build_cluster(cluster, document), site, document)
    except ScenarioError as error:
        return error.problems + _repeated(entries, document)
    if built is None or None in items:
        return _repeated(entries, document)
    horizon = _valid(ScenarioHorizon, {"horizon": data.get("horizon")}, context)
    # Under a horizon that is wrong itself, one second: nothing then seems to go on for ever.
    limit = 1.0 if horizon is None else math.inf if horizon.horizon is None else horizon.horizon
    known = {
        number: entry
        for number, entry in valid.items()
        if entry is not None and (entry.trace is None or number in tables)
    }
    book = Context(document, built, ModeBook(built), RandomTree(0, 0), limit)
    _, _, problems = _parts(known, [item for item in items if item], tables.__getitem__, book)
    return problems


class ScenarioHorizon(Model):
    """The horizon alone, where the rest of a scenario is wrong."""

    horizon: Seconds | None = None


def _valid(model: type[M], value: Any, context: dict[str, str]) -> M | None:
    try:
        return model.model_validate(value, context=context)
    except ValidationError:
        return None


def as_list(value: Any) -> list[Any]:
    """One mapping where a list of them may stand."""
    return value if isinstance(value, list) else [] if value is None else [value]


def entry_names(entries: list[Any]) -> list[str | None]:
    """The name of each entry as the file has it: its own, its class, or `stream` and its number; None if it is none."""
    names: list[str | None] = []
    for number, entry in enumerate(entries):
        given = entry if isinstance(entry, dict) else {}
        name = given.get("name") or given.get("class") or f"stream{number}"
        names.append(str(name) if isinstance(name, str | int) else None)
    return names


def _repeated(entries: list[Any], document: Document) -> list[Problem]:
    """Entries of one name."""
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for number, name in enumerate(entry_names(entries)):
        if name is not None and first.setdefault(name, number) != number:
            message = f'the name "{name}" is that of workload.{first[name]}; give another (name: ...)'
            problems.append(document.problem(("workload", number), message))
    return problems


def _parts(
    entries: dict[int, WorkloadEntry], data: list[DataItem], tables: Callable[[int], TaskTable], context: Context
) -> tuple[list[TaskStream], list[Item], list[Problem]]:
    """Streams and items, and everything that is wrong with them."""
    raw = as_list(context.document.data.get("workload"))
    problems = _repeated(raw, context.document)
    streams: list[TaskStream] = []
    names = entry_names(raw)
    for number, entry in entries.items():
        path: Path_ = ("workload", number)
        name = names[number] or f"stream{number}"
        try:
            with np.errstate(all="ignore"):  # what overflows is found below, in the times
                if entry.trace is None:
                    streams.append(build_synthetic(entry, name, path, context))
                else:
                    streams.append(build_recorded(entry, name, path, tables(number), context))
        except ScenarioError as error:
            problems += error.problems
        except ArithmeticError:
            problems.append(context.problem(path, "the numbers here are too large or too small to compute with"))
        except ValueError as error:  # what only the cost model or a distribution can tell when it is used
            problems.append(context.problem(path, str(error)))
    for stream in streams:
        problems += _absurd(stream, context)
    items, found = _items(data, context)
    items += [Item(name, size, lasting=True) for name, size in weights(streams)]
    known = {item.name for item in items}
    told = {name: size for stream in streams for name, size in stream.items.items() if name not in known}
    items += [Item(name, size) for name, size in told.items()]
    return streams, items, problems + found + _unknown_items(streams, items, context)


def _absurd(stream: TaskStream, context: Context) -> list[Problem]:
    """Values that no column can hold, from sizes such as 1e300 B."""
    found = []
    for key in ("bytes_in", "bytes_out"):
        column = getattr(stream, key)
        if column is not None and len(column) and not column.max() < MAX_BYTES:
            found.append(context.problem((*stream.path, key), f"{column.max():.3g} bytes are beyond any memory"))
    times = stream.time if stream.estimate is None else stream.estimate
    known = [stream.arrival, stream.time, times]
    beyond = any(np.isnan(values).any() or (values[np.isfinite(values)] > MOST).any() for values in known)
    if beyond or not np.isfinite(stream.time).any(axis=1).all():
        message = "the numbers here are too large or too small to compute with: a time is not finite"
        found.append(context.problem(stream.path, message))
    return found


def _items(data: list[DataItem], context: Context) -> tuple[list[Item], list[Problem]]:
    """The items of the `data:` section, and what is wrong with them."""
    homes = {node.name: node.index for node in context.cluster.nodes}
    items: list[Item] = []
    names: set[str] = set()
    problems = []
    for number, item in enumerate(data):
        path: Path_ = ("data", number)
        if item.home is not None and item.home not in homes:
            near = suggestion(item.home, homes) or f"; nodes are named {', '.join(list(homes)[:5])}"
            problems.append(context.problem((*path, "home"), f'no node "{item.home}"{near}'))
        if item.name in names:
            problems.append(context.problem((*path, "name"), f'the item "{item.name}" is listed twice'))
        names.add(item.name)
        items.append(Item(item.name, item.size, None if item.home is None else homes.get(item.home)))
    return items, problems


def _unknown_items(streams: list[TaskStream], items: list[Item], context: Context) -> list[Problem]:
    """An item that a task names and `data` does not list is a problem at its entry."""
    known = {item.name for item in items}
    problems: list[Problem] = []
    for key in ("reads", "writes"):
        for stream in streams:
            lists = getattr(stream, key) or ()
            missing = list(dict.fromkeys(name for row in lists for name in row if name not in known))
            if missing:
                named = ", ".join(f'"{name}"' for name in missing[:5]) + (", ..." if len(missing) > 5 else "")
                near = suggestion(missing[0], known)
                message = f"{named} not listed under data: (items with name and size){near}"
                problems.append(context.problem((*stream.path, key), message))
    return problems


# Merging --------------------------------------------------------------------------------------------------------


def merge(
    streams: list[TaskStream], context: Context, items: list[Item]
) -> tuple[Tasks, list[ClosedStream], list[Service], list[LanguageService]]:
    """All streams as one table sorted by arrival, ties in the order of the streams."""
    sizes = [len(stream) for stream in streams]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    total = int(starts[-1])
    arrival = _joined([stream.arrival for stream in streams])
    order = None if total == 0 or bool(np.all(arrival[1:] >= arrival[:-1])) else np.argsort(arrival, kind="stable")

    def sort(column: np.ndarray) -> np.ndarray:
        return column if order is None else column[order]

    def sort_codes(column: str, names: str) -> tuple[np.ndarray | None, list[str]]:
        codes, merged = _merged_codes(streams, column, names, sizes)
        return None if codes is None else sort(codes), merged

    def optional(name: str, default: float) -> np.ndarray | None:
        columns = [getattr(stream, name) for stream in streams]
        if all(column is None for column in columns):
            return None
        parts = [np.full(n, default) if c is None else c for c, n in zip(columns, sizes, strict=True)]
        return sort(_joined(parts))

    arrival = sort(arrival)
    time = estimate = sort(_matrix([stream.time for stream in streams]))
    if any(stream.estimate is not None for stream in streams):
        estimate = sort(_matrix([s.time if s.estimate is None else s.estimate for s in streams]))
    rank = np.arange(total)
    if order is not None:
        rank[order] = np.arange(total)
    class_code, classes = sort_codes("class_code", "classes")
    user_code, users = sort_codes("user_code", "users")
    partition_code, partitions = sort_codes("partition_code", "partitions")
    refused = {int(rank[start + row]): reason for stream, start in zip(streams, starts.tolist(), strict=False)
               for row, reason in stream.refused.items()}  # fmt: skip
    deadline, patience = optional("deadline", math.nan), optional("patience", math.inf)
    bytes_in, bytes_out = _bytes(optional("bytes_in", 0.0)), _bytes(optional("bytes_out", 0.0))
    tasks = Tasks(
        arrival=arrival,
        shape=sort(_joined([stream.shape for stream in streams])),
        shapes=context.modes.shapes,
        time=time,
        estimate=estimate,
        id=_ids(streams, sizes, sort),
        class_code=class_code,
        classes=classes,
        user_code=user_code,
        users=users,
        priority=optional("priority", 0.0),
        weight=optional("weight", 1.0),
        deadline=None if deadline is None else np.where(np.isinf(arrival), math.nan, arrival + deadline),
        expires=None if patience is None else arrival + patience,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        items=items,
        work=_work(streams, order),
        hash_ids=_hash_ids(streams, order),
        partition_code=partition_code,
        partitions=partitions,
        refused=dict(sorted(refused.items())),
        extra=_extras(streams, sizes, sort),
    )
    if any(partitions) and "partition" not in tasks.extra:
        codes = np.zeros(total, dtype=np.int32) if tasks.partition_code is None else tasks.partition_code
        tasks.extra["partition"] = np.array(partitions, dtype=object)[codes]
    _join_graph(tasks, streams, starts, rank, order)
    tasks.staged = _staged(streams, starts, rank)
    _join_items(tasks, streams, order)
    _results_in_place(tasks)
    language = language_of(streams, starts, rank, tasks)
    return tasks, _closed(streams, starts, rank), services_of(streams, starts, rank, tasks), language


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _matrix(parts: list[np.ndarray]) -> np.ndarray:
    """Matrices below each other, filled up with inf to the widest."""
    width = max(part.shape[1] for part in parts)
    short = {number: width - part.shape[1] for number, part in enumerate(parts) if part.shape[1] < width}
    filled = [
        np.pad(part, ((0, 0), (0, short[number])), constant_values=np.inf) if number in short else part
        for number, part in enumerate(parts)
    ]
    return _joined(filled)


def _work(streams: list[TaskStream], order: np.ndarray | None) -> KernelWork | None:
    """What the kernels of all streams do, as far as that is known."""
    if all(stream.work is None for stream in streams):
        return None
    width = max(stream.time.shape[1] for stream in streams)
    parts = [KernelWork.unknown(len(stream), width) for stream in streams]
    for stream, part in zip(streams, parts, strict=True):
        for column, known in zip(part.columns, () if stream.work is None else stream.work.columns, strict=False):
            column[:, : known.shape[1]] = known
    joined = KernelWork(*(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)))
    return joined if order is None else joined.take(order)


def _bytes(column: np.ndarray | None) -> np.ndarray | None:
    return None if column is None or not column.any() else column.astype(np.int64)


def _merged_codes(
    streams: list[TaskStream], column: str, names: str, sizes: list[int]
) -> tuple[np.ndarray | None, list[str]]:
    """Codes over all streams with one list of names; no column where there is but one name."""
    known: dict[str, int] = {}
    parts = []
    for stream, size in zip(streams, sizes, strict=True):
        numbers = np.array([known.setdefault(name, len(known)) for name in getattr(stream, names)], dtype=np.int32)
        codes = getattr(stream, column)
        parts.append(np.full(size, numbers[0], dtype=np.int32) if codes is None else numbers[codes])
    return (None if len(known) == 1 else _joined(parts)), list(known)


def _ids(streams: list[TaskStream], sizes: list[int], sort: Any) -> np.ndarray | None:
    """The ids of tables; with several streams they carry the stream's name, so that they stay unique."""
    if all(stream.id is None for stream in streams):
        return None
    if len(streams) == 1:
        assert streams[0].id is not None
        return sort(streams[0].id)
    parts = []
    for stream, size in zip(streams, sizes, strict=True):
        own = range(size) if stream.id is None else stream.id.tolist()
        parts.append(np.array([f"{stream.name}/{value}" for value in own], dtype=object))
    return sort(_joined(parts))


def _extras(streams: list[TaskStream], sizes: list[int], sort: Any) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for stream in streams for name in stream.extra)
    return {
        name: sort(_joined([s.extra.get(name, np.full(n, math.nan)) for s, n in zip(streams, sizes, strict=True)]))
        for name in names
    }


def _hash_ids(streams: list[TaskStream], order: np.ndarray | None) -> Ragged | None:
    if all(stream.hash_ids is None for stream in streams):
        return None
    parts = [Ragged.empty(len(stream)) if stream.hash_ids is None else stream.hash_ids for stream in streams]
    joined = Ragged.joined(parts)
    return joined if order is None else joined.take(order)


def _sorted_lists(streams: list[TaskStream], lists: list[list[Any]], order: np.ndarray | None) -> list[Any]:
    flat = [row for part in lists for row in part]
    return flat if order is None else [flat[row] for row in order.tolist()]


def _join_graph(tasks: Tasks, streams: list[TaskStream], starts: np.ndarray, rank: np.ndarray, order: Any) -> None:
    """Predecessors as rows of the merged table."""
    if all(stream.predecessors is None for stream in streams):
        return
    new = rank.tolist()
    parts: list[list[tuple[int, ...]]] = []
    for stream, start in zip(streams, starts.tolist(), strict=False):
        if stream.predecessors is None:
            parts.append([()] * len(stream))
        else:
            parts.append([tuple(new[start + p] for p in row) for row in stream.predecessors])
    tasks.predecessors = _sorted_lists(streams, parts, order)


def _staged(streams: list[TaskStream], starts: np.ndarray, rank: np.ndarray) -> StagedRequests | None:
    """Which tasks of the merged table are stages of requests."""
    if all(stream.stages is None for stream in streams):
        return None
    total = len(rank)
    staged = StagedRequests(
        np.arange(total), np.full(total, -1, np.int32), [], np.empty(total, dtype=object), np.full(total, math.nan)
    )
    for stream, start in zip(streams, starts.tolist(), strict=False):
        own = rank[start : start + len(stream)]
        if stream.stages is None:
            ids = range(len(stream)) if stream.id is None else stream.id.tolist()
        else:
            staged.first[own] = rank[start + stream.stages.first]
            staged.stage[own] = stream.stages.stage + len(staged.stages)
            staged.stages += stream.stages.names
            staged.alone[own] = stream.stages.alone
            ids = stream.stages.id.tolist()
        staged.id[own] = list(ids) if len(streams) == 1 else [f"{stream.name}/{value}" for value in ids]
    return staged


def _join_items(tasks: Tasks, streams: list[TaskStream], order: Any) -> None:
    """`reads` and `writes` as indexes of items."""
    index = {item.name: number for number, item in enumerate(tasks.items)}
    for key in ("reads", "writes"):
        if all(getattr(stream, key) is None for stream in streams):
            continue
        parts = []
        for stream in streams:
            lists = getattr(stream, key) or [()] * len(stream)
            parts.append([tuple(index[name] for name in row) for row in lists])
        setattr(tasks, key, _sorted_lists(streams, parts, order))


def _results_in_place(tasks: Tasks) -> None:
    """A result with successors stays where it was made: an item that the task writes and its successors read."""
    if tasks.predecessors is None or tasks.bytes_out is None:
        return
    tasks.items = list(tasks.items)
    made: dict[int, int] = {}
    extra_reads: dict[int, list[int]] = {}
    for row, predecessors in enumerate(tasks.predecessors):
        for predecessor in predecessors:
            size = int(tasks.bytes_out[predecessor])
            if not size:
                continue
            if predecessor not in made:
                made[predecessor] = len(tasks.items)
                tasks.items.append(Item(f"{tasks.name(predecessor)}:out", size))
            extra_reads.setdefault(row, []).append(made[predecessor])
    if not made:
        return
    reads = list(tasks.reads or [()] * len(tasks))
    writes = list(tasks.writes or [()] * len(tasks))
    tasks.bytes_out = tasks.bytes_out.copy()
    for row, item in made.items():
        writes[row] = (*writes[row], item)
        tasks.bytes_out[row] = 0
    for row, items in extra_reads.items():
        reads[row] = (*reads[row], *items)
    tasks.reads, tasks.writes = reads, writes
    if not tasks.bytes_out.any():
        tasks.bytes_out = None


def _closed(streams: list[TaskStream], starts: np.ndarray, rank: np.ndarray) -> list[ClosedStream]:
    found = []
    for stream, start in zip(streams, starts.tolist(), strict=False):
        if stream.think is not None:
            rows = rank[start : start + len(stream)]
            found.append(
                ClosedStream(stream.name, rows, stream.clients, stream.think, stream.deadline, stream.patience)
            )
    return found
