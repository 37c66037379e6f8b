"""Build synthetic streams: arrivals, classes and sizes from random streams."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.errors import ScenarioError
from hetsim.model.cluster import Partition
from hetsim.model.mode import Mode
from hetsim.model.tasks import KernelWork as Known
from hetsim.registry import load_object
from hetsim.scenario.building.drawn_modes import DrawnModes
from hetsim.scenario.building.language_model import ServedLanguage
from hetsim.scenario.building.served import DrawnService, serving_of
from hetsim.scenario.building.site import drawn_partition
from hetsim.scenario.building.streams import (
    Context,
    Stages,
    TaskStream,
    closed_rows,
    draw_codes,
    estimate_error,
    one_lane,
    peak_of,
    stopping_of,
    unfit,
    users_of,
)
from hetsim.scenario.file.document import Path_
from hetsim.scenario.schema.demand import GPU_TIME, Demand, seconds_of
from hetsim.scenario.schema.workload import MAX_TASKS, WorkloadEntry
from hetsim.workload.arrivals import BLOCK
from hetsim.workload.costs.roofline import Work

# Builders of optional packages, by the key of an entry.
STREAMS = {"pipeline": "hetsim.planning.stream:pipeline_stream"}
IN_STEP = (
    "{:,} clients send equal requests at the same instants, as they start together and think equally long; give "
    "arrivals.start_jitter, or lengths or thinking times that vary"
)
PROBE = 1000  # Number of tasks drawn separately to estimate the mean time of a closed loop's tasks.
FOR_MEANS = 20_000  # Number of tasks drawn to estimate a class's mean, where policies know only that.


def build_synthetic(entry: WorkloadEntry, name: str, path: Path_, context: Context) -> TaskStream:
    """Build the stream of an entry with `arrivals`."""
    arrival, clients = _arrivals(entry, name, path, context)
    if entry.pipeline is not None:
        return load_object(STREAMS["pipeline"])(entry, name, path, arrival=arrival, context=context)
    classes = entry.whole_demands
    parts = len(classes) if entry.together else 1
    if (n := len(arrival) * parts) > MAX_TASKS:
        raise context.fail(path, f"a stream must have at most {MAX_TASKS:,} tasks; the classes together have {n:.3g}")
    arrival = np.repeat(arrival, parts) if entry.together else arrival
    labels = [one.class_ or name for one in classes]
    where = [(*path, "classes", k) if entry.classes else path for k in range(len(classes))]
    codes = None
    if entry.together:
        codes = np.arange(n, dtype=np.int32) % parts
    elif entry.classes:
        weights = np.array([one.weight for one in entry.classes])
        codes = draw_codes(weights, n, context.random.stream("classes", name))
    context.note_unused(name, dict.fromkeys(key for one in classes for key in one.typed_gpu_time))
    for kind in dict.fromkeys(kind for one in classes for kind in one.devices or ()):
        context.note_missing(name, f"devices: {kind}", kind)
    served = serving_of(entry, name, path, context)
    problems = []
    drawn: list[tuple[np.ndarray | slice, _Drawn]] = []
    for k, demand in enumerate(classes):
        rows: np.ndarray | slice = slice(None) if codes is None else np.flatnonzero(codes == k)
        count = n if isinstance(rows, slice) else len(rows)
        label = (name, str(k), demand.class_ or "") if entry.classes else (name,)
        one = _draw(demand, count, label, context=context, served=served, path=where[k])
        if not one.modes:
            types = [key.removeprefix(GPU_TIME) for key in demand.typed_gpu_time]
            nodes_by = "nodes: N" if served is None else ""
            first = f"a task of {labels[k]}"
            problems.append(
                unfit(context, where[k], count, first=first, refused=one.refused, types=types, nodes_by=nodes_by)
            )
        drawn.append((rows, one))
    if problems:
        raise ScenarioError(problems)
    stream = _assemble(drawn, name, path, arrival)
    if served is not None:
        served.finish(stream, entry)
    stream.class_code, stream.classes = codes, labels
    stream.user_code, stream.users = _users(entry, classes, codes, n=n, context=context, name=name)
    if entry.together:
        _join(stream, entry, name, context, best=np.column_stack([one.time.min(axis=1) for _, one in drawn]))
    if entry.weight is not None:
        stream.weight = np.full(n, entry.weight)
    if clients:
        arrivals: Any = entry.arrivals
        stream.clients, stream.think = clients, arrivals.think.sample
        if clients[0][1] > 1 and len(classes) == 1 and _alike(arrivals, classes[0]):
            context.warnings.append(f"{name}: {IN_STEP.format(clients[0][1])}")
    return stream


def _join(stream: TaskStream, entry: WorkloadEntry, name: str, context: Context, best: np.ndarray) -> None:
    """Make one request of the tasks of each arrival; `best`: each task's fastest time."""
    count, parts = best.shape
    labels = [one.class_ for one in entry.classes or []]
    before = [[labels.index(name) for name in one.after or ()] for one in entry.classes or []]
    for part, others in enumerate(before):
        best[:, part] += best[:, others].max(axis=1, initial=0.0)  # now when it ends, alone
    alone, number = best.max(axis=1), np.arange(count)
    stream.predecessors = [tuple(parts * row + k for k in others) for row in range(count) for others in before]
    stream.id = np.array([f"{row}/{part + 1}" for row in range(count) for part in range(parts)], dtype=object)
    names = [f"{name} {label or f'part {part + 1}'}" for part, label in enumerate(labels)]
    stage = np.tile(np.arange(parts, dtype=np.int32), count)
    stream.stages = Stages(np.repeat(parts * number, parts), stage, names, alone=np.repeat(alone, parts),
                           id=np.repeat(np.array(list(map(str, range(count))), dtype=object), parts))  # fmt: skip
    stream.class_code, stream.classes = None, [entry.class_ or name]
    users, stream.users = users_of(entry, count, context.random.stream("users", name))
    stream.user_code = None if users is None else np.repeat(users, parts)
    if (due := seconds_of(entry.limit, alone)) is not None:
        stream.deadline = np.repeat(due, parts)


def _alike(arrivals: Any, demand: Demand) -> bool:
    """Return True if the clients of a closed loop always send requests together."""
    tokens = demand.tokens
    if tokens is None or arrivals.start_jitter:
        return False
    return not any(one.scv for one in (arrivals.think, tokens.prompt, tokens.output))


def _arrivals(
    entry: WorkloadEntry, name: str, path: Path_, context: Context
) -> tuple[np.ndarray, list[tuple[float, int]]]:
    """Return arrival times (inf: set during the run) and changes of the client count."""
    arrivals: Any = entry.arrivals
    until = min(context.horizon, math.inf if entry.until is None else entry.until)
    limited = entry.count is not None or math.isfinite(until)
    if not limited and (arrivals.endless or arrivals.closed):
        what = "a closed loop never ends" if arrivals.closed else f"{arrivals.process} arrivals never end"
        raise context.fail(path, f"{what}; give count or until here, or a horizon")
    rng = context.random.stream("arrivals", name)
    limit = until if math.isfinite(until) else None
    if not arrivals.closed:
        _check_amount(arrivals, until, entry.count, path=path, context=context)
        return arrivals.times(rng, limit, entry.count), []
    probe = _probe(entry, name, context) if entry.count is None else 0.0
    try:
        rows = closed_rows(entry, until, probe)
    except ValueError as error:
        raise context.fail(path, str(error)) from None
    if rows > MAX_TASKS:
        raise context.fail(path, f"a stream must have at most {MAX_TASKS:,} tasks; the closed loop may send {rows:.3g}")
    first = arrivals.times(rng, None, rows)
    return np.concatenate([first, np.full(rows - len(first), np.inf)]), [(0.0, len(first)), *arrivals.changes[1:]]


def _check_amount(arrivals: Any, until: float, count: int | None, path: Path_, context: Context) -> None:
    rate = arrivals.rate_mean
    # A block at least is drawn whatever the count.
    lasts = until if count is None or not rate else min(until, max(count, BLOCK) / rate)
    events = arrivals.events(lasts)
    if count is None and events > MAX_TASKS:
        raise context.fail(path, f"a stream must have at most {MAX_TASKS:,} tasks; about {events:.3g} arrive")
    if events > 2 * MAX_TASKS:
        raise context.fail(path, f"the arrival rate changes about {events:.3g} times, too often to simulate")


def _probe(entry: WorkloadEntry, name: str, context: Context) -> float:
    total = weights = 0.0
    weighted: list[tuple[Demand, float]] = [(one.over(entry), one.weight) for one in entry.classes or []]
    for k, (demand, weight) in enumerate(weighted or [(entry, 1.0)]):
        served = serving_of(entry, name, (), context)
        drawn = _draw(demand, PROBE, ("probe", name, str(k)), context=context, served=served)
        if drawn.modes:
            total += weight * float(drawn.time.min(axis=1).mean())
            weights += weight
    return total / weights if weights else 0.0


# Values of these columns for tasks of a class without the key, if another class has it.
NEUTRAL = {"deadline": math.nan, "patience": math.inf, "bytes_in": 0.0, "bytes_out": 0.0, "priority": 0.0}


@dataclass
class _Drawn:
    modes: list[Mode]
    refused: list[Mode]
    time: np.ndarray
    known_time: np.ndarray  # basis of estimates: the tasks' own times, or the mean of the class
    demand: Demand
    shape: int
    error: np.ndarray | None
    columns: dict[str, np.ndarray | None]  # the columns of `NEUTRAL`; None if the class has no such key
    extra: dict[str, np.ndarray]
    partition: Partition | None
    work: Mapping[Mode, Work]


def _draw(
    demand: Demand, n: int, label: tuple[str, ...], context: Context,
    served: DrawnService | ServedLanguage | None = None,
    path: Path_ = (),
) -> _Drawn:  # fmt: skip
    stream = context.random.stream
    ways = DrawnModes(demand, n, label, context)
    ways.path = path
    if served is None:
        ways.partition = drawn_partition(demand, path, context)
        ways.expand()
        if demand.drift is not None:
            factor = demand.drift.factor(stream("drift", *label))
            ways.found = [(mode, factor * times) for mode, times in ways.found]
    else:
        ways.found = served.ways(n, label, demand)
    fits = [(mode, times) for mode, times in ways.found if context.modes.fits(mode)]
    refused = [mode for mode, _ in ways.found if not context.modes.fits(mode)]
    modes = [mode for mode, _ in fits]
    stopping, preemptible = stopping_of(demand)
    time = stopping.with_checkpoints(np.column_stack([times for _, times in fits])) if fits else np.empty((n, 0))
    means = None
    if demand.estimates is not None and demand.estimates.basis == "mean" and len(time):
        unknown = demand.model_copy(update={"estimates": None, "drift": None})
        means = _draw(unknown, FOR_MEANS, ("mean", *label), context=context, served=served, path=path).time.mean(axis=0)

    def drawn(key: str, distribution: Any) -> np.ndarray | None:
        return None if distribution is None else distribution.sample(stream(key, *label), n)

    bytes_in, bytes_out = drawn("bytes_in", demand.bytes_in), drawn("bytes_out", demand.bytes_out)
    columns = {
        "deadline": seconds_of(demand.limit, time.min(axis=1)) if fits else None,
        "patience": drawn("patience", demand.patience),
        "bytes_in": ways.bytes_in if bytes_in is None else np.rint(bytes_in),
        "bytes_out": None if bytes_out is None else np.rint(bytes_out),
        "priority": None if demand.priority is None else np.full(n, demand.priority),
    }
    return _Drawn(
        modes, refused, time, known_time=time if means is None else np.broadcast_to(means, time.shape), demand=demand,
        shape=context.modes.shape(modes, stopping, preemptible) if modes else -1,
        error=estimate_error(demand, n, stream("estimates", *label)), columns=columns,
        extra=_labels(demand, n) if served is None else served.extra | _own_limits(demand, n),
        partition=ways.partition, work=ways.work,
    )  # fmt: skip


def _own_limits(demand: Demand, n: int) -> dict[str, np.ndarray]:
    limits = {"ttft_limit": demand.ttft, "tpot_limit": demand.tpot}
    return {key: np.full(n, limit) for key, limit in limits.items() if limit is not None}


def _labels(demand: Demand, n: int) -> dict[str, np.ndarray]:
    texts = {"qos": demand.qos, "account": demand.account}
    return {key: np.full(n, text, dtype=object) for key, text in texts.items() if text is not None}


def _assemble(
    drawn: list[tuple[np.ndarray | slice, _Drawn]], name: str, path: Path_, arrival: np.ndarray
) -> TaskStream:
    n = len(arrival)
    if len(drawn) == 1 and isinstance(drawn[0][0], slice):
        time = drawn[0][1].time
    else:
        time = np.full((n, max(len(one.modes) for _, one in drawn)), np.inf)
        for rows, one in drawn:
            time[rows, : len(one.modes)] = one.time
    stream = TaskStream(name, path, arrival, shape=np.empty(n, dtype=np.int32), time=time)
    for rows, one in drawn:
        stream.shape[rows] = one.shape
        _fill_estimate(stream, rows, one)
        for column, values in one.columns.items():
            _fill(stream, column, rows, values)
        if (limits := seconds_of(one.demand.time_limit, one.time.min(axis=1))) is not None:
            stream.extra.setdefault("time_limit", np.full(n, np.nan))[rows] = limits
        if one.partition is not None:
            _bind(stream, rows, one.partition.name)
        for key, values in one.extra.items():
            empty = np.full(n, "", dtype=object) if values.dtype == object else np.zeros(n, values.dtype)
            stream.extra.setdefault(key, empty)[rows] = values
        _fill_work(stream, rows, one)
        _fill_data(stream, rows, one.demand)
    return stream


def _fill_estimate(stream: TaskStream, rows: np.ndarray | slice, drawn: _Drawn) -> None:
    if drawn.error is None and drawn.known_time is drawn.time:
        return
    if stream.estimate is None:
        stream.estimate = stream.time.copy()
    stream.estimate[rows, : drawn.time.shape[1]] = drawn.known_time
    if drawn.error is not None:
        stream.estimate[rows] *= drawn.error[:, np.newaxis]


def _fill_work(stream: TaskStream, rows: np.ndarray | slice, drawn: _Drawn) -> None:
    for position, mode in enumerate(drawn.modes):
        peak = peak_of(mode.type) if mode in drawn.work and one_lane(mode) else None
        if peak is None:
            continue
        if stream.work is None:
            stream.work = Known.unknown(*stream.time.shape)
        for column, value in zip(stream.work.columns, drawn.work[mode].parts(peak), strict=True):
            column[rows, position] = value


def _fill_data(stream: TaskStream, rows: np.ndarray | slice, demand: Demand) -> None:
    for key in ("reads", "writes"):
        if names := getattr(demand, key):
            lists = getattr(stream, key) or [()] * len(stream)
            for row in np.arange(len(stream))[rows].tolist():
                lists[row] = tuple(names)
            setattr(stream, key, lists)


def _bind(stream: TaskStream, rows: np.ndarray | slice, partition: str) -> None:
    if partition not in stream.partitions:
        stream.partitions.append(partition)
    if stream.partition_code is None:
        stream.partition_code = np.zeros(len(stream), dtype=np.int32)
    stream.partition_code[rows] = stream.partitions.index(partition)


def _fill(stream: TaskStream, column: str, rows: np.ndarray | slice, values: np.ndarray | None) -> None:
    if values is None:
        return
    if (filled := getattr(stream, column)) is None:
        filled = np.full(len(stream), NEUTRAL[column])
        setattr(stream, column, filled)
    filled[rows] = values


def _users(
    entry: WorkloadEntry, classes: list[Demand], codes: np.ndarray | None, n: int, context: Context, name: str
) -> tuple[np.ndarray | None, list[str]]:
    if codes is None or all(one.users is None and one.user is None for one in entry.classes or []):
        return users_of(entry, n, context.random.stream("users", name))
    merged: dict[str, int] = {}
    column = np.zeros(n, dtype=np.int32)
    for k, demand in enumerate(classes):
        rows = np.flatnonzero(codes == k)
        of_class, names = users_of(demand, len(rows), context.random.stream("users", name, str(k)))
        numbers = np.array([merged.setdefault(user, len(merged)) for user in names])
        column[rows] = numbers[0] if of_class is None else numbers[of_class]
    return column, list(merged)
