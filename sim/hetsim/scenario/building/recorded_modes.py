"""Modes of a trace's rows; rows with equal demands share a shape (list of modes)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Partition
from hetsim.model.curves import WorkCurve
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.tasks import KernelWork
from hetsim.scenario.building.streams import Context, one_lane, peak_of, stopping_of, unfit, why_unfit
from hetsim.scenario.building.trace_keys import nodes_by
from hetsim.scenario.file.document import Path_
from hetsim.scenario.schema.demand import GPU_TIME, Demand
from hetsim.scenario.schema.workload import WorkloadEntry
from hetsim.workload.costs.roofline import Peak
from hetsim.workload.traces import TaskTable

MAX_REASONS = 5  # Maximum number of reasons for left-out rows that are listed.
LEAVE_OUT = ("leave_out", "leave_out_parallel")
NOT_SEQUENTIAL = "not on one core or one whole GPU"
DEMANDS = ("nodes", "cpus", "gpus", "memory", "gpu_memory", "upload", "download")


@dataclass(frozen=True)
class TraceRows:
    """The rows of a trace that one entry of `workload:` uses, in order of its tasks."""

    entry: WorkloadEntry
    path: Path_
    table: TaskTable
    kept: np.ndarray  # row numbers in the table
    partition_code: np.ndarray  # position of each row's partition in `partitions`
    partitions: list[Partition | None]

    def types(self, row: int) -> list[str]:
        named = "" if self.table.devices is None else str(self.table.devices[row])
        return named.split("|") if named else []


@dataclass
class RowModes:
    """The shape (list of modes), times, estimates and work of each row."""

    shape: np.ndarray
    time: np.ndarray
    estimate: np.ndarray | None = None
    work: KernelWork | None = None
    fits: np.ndarray | None = None  # mask of the requested rows that can run, if others are left out; None: all
    left_out: str = ""  # message about the rows that are left out

    def without(self, lost: np.ndarray, told: str) -> "RowModes":
        fits = ~lost
        estimate = None if self.estimate is None else self.estimate[fits]
        work = None if self.work is None else self.work.take(np.flatnonzero(fits))
        return RowModes(self.shape[fits], self.time[fits], estimate, work=work, fits=fits, left_out=told)


class _Way(NamedTuple):
    """A mode in which a group of trace rows can run, and the source of its times."""

    mode: Mode
    column: str | None  # column of the table with the times; None on a missing device, where tasks never run
    factor: float  # factor on the column's times; for a mode with a curve the time itself


@dataclass
class _Group:
    rows: np.ndarray  # positions among the rows of the stream
    ways: list[_Way]  # modes that the demands allow
    plan: list[_Way]  # modes that fit on this cluster; empty: the rows can never run
    is_parallel: bool = False  # left out, though they can run, since no mode is one core or one whole accelerator

    @property
    def refused(self) -> list[Mode]:
        return [way.mode for way in self.ways]


def modes_of_rows(rows: TraceRows, refused: dict[int, str], context: Context) -> RowModes:
    """Return the modes of each row; raise ScenarioError if a row has none.

    `refused`: reasons of rejection, by position of the row; with `unfit: reject`, this function adds the rows without a
    mode.  Rejected rows have a placeholder as shape.  With `unfit: leave_out`, rows without a mode are removed.
    """
    groups = list(_groups(rows, refused, context))
    if rows.entry.unfit == LEAVE_OUT[1]:
        for group in groups:
            group.is_parallel = bool(group.plan) and not any(one_lane(way.mode) for way in group.plan)
            group.plan = [] if group.is_parallel else group.plan
    lost = [group for group in groups if not group.plan]
    leave_out = rows.entry.unfit in LEAVE_OUT and rows.table.predecessors is None and len(lost) < len(groups)
    if lost and not leave_out:
        raise ScenarioError(_lost(rows, lost, context))
    stopping, preemptible = stopping_of(rows.entry)
    shape = np.empty(len(rows.kept), dtype=np.int32)
    for group in groups:
        if group.plan:
            shape[group.rows] = context.modes.shape([way.mode for way in group.plan], stopping, preemptible)
    modes = _timed(rows, groups, shape, stopping)
    if not lost:
        return modes
    is_lost = np.zeros(len(rows.kept), dtype=bool)
    for group in lost:
        is_lost[group.rows] = True
    return modes.without(is_lost, _left_out(rows, lost, context))


def _groups(rows: TraceRows, refused: dict[int, str], context: Context) -> Iterator[_Group]:
    entry, table, kept, modes = rows.entry, rows.table, rows.kept, context.modes
    demands = {key: demand_of(entry, table, key, kept) for key in DEMANDS}
    possible = _sources(table, context)
    finite = [np.isfinite(table.times[column][kept]) & _allowed(table, device, kept) for device, column, _ in possible]
    turned_away = np.zeros(len(kept), dtype=bool)
    turned_away[list(refused)] = True
    spans = _spans(entry, table, kept)
    kinds = [] if table.curves is None else [table.curves.kind[kept]]
    named = table.extra["slice"][kept] if "slice" in table.extra else np.full(len(kept), "", object)
    profiles = np.where(np.isnan(demands["gpus"]) & (named == ""), entry.slice or "", named)
    codes, first = _group([*demands.values(), *finite, rows.partition_code, turned_away, spans, profiles, *kinds])
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(first) + 1))
    for number, row in enumerate(first.tolist()):
        usable = [one for one, there in zip(possible, finite, strict=True) if there[row]]
        demand = {key: demands[key][row] for key in DEMANDS}
        sizes = [None] if table.curves is None else table.curves.kinds[table.curves.kind[kept[row]]]
        made = partial(_mode, entry, partition=rows.partitions[rows.partition_code[row]], context=context)
        ways = [
            _Way(mode, column, factor if size is None else factor * size[1].seconds)
            for device, column, factor in usable
            for size in sizes
            if (mode := made(device, demand, profile=profiles[row], span=spans[row], size=size)) is not None
        ]
        group = _Group(order[bounds[number] : bounds[number + 1]], ways, [way for way in ways if modes.fits(way.mode)])
        if not group.plan and (turned_away[row] or entry.unfit == "reject"):
            if not turned_away[row]:
                why = why_unfit(context, group.refused, rows.types(int(kept[row])), nodes_by(entry))
                refused.update(dict.fromkeys(group.rows.tolist(), f"can never run here: {why}"))
            first_type = next(iter(context.cluster.types.values()))
            group.plan = ways[:1] or [_Way(modes.mode(first_type, Demand.model_construct()), None, 1.0)]
        yield group


def _timed(rows: TraceRows, groups: list[_Group], shape: np.ndarray, stopping: Stopping) -> RowModes:
    table = rows.table
    size = len(rows.kept), max((len(group.plan) for group in groups), default=1)
    time = np.full(size, np.inf)
    estimate = np.full(size, np.inf) if table.estimates else None
    work = KernelWork.unknown(*size) if "flops" in table.numbers else None
    for group in groups:
        here = rows.kept[group.rows]
        for position, way in enumerate(group.plan):
            if work is not None:
                _fill_work(work, group.rows, position, mode=way.mode, table=table, here=here)
            if way.column is None:
                time[group.rows, position] = 0.0
                if estimate is not None:
                    estimate[group.rows, position] = 0.0
                continue
            recorded = table.times[way.column]
            time[group.rows, position] = way.factor if way.mode.curve is not None else recorded[here] * way.factor
            if estimate is not None:
                estimate[group.rows, position] = table.estimates.get(way.column, recorded)[here] * way.factor
    time = stopping.with_checkpoints(time)
    return RowModes(shape, time, None if estimate is None else stopping.with_checkpoints(estimate), work)


def _fill_work(
    work: KernelWork, rows: np.ndarray, position: int, mode: Mode, table: TaskTable, here: np.ndarray
) -> None:
    peak = peak_of(mode.type) if one_lane(mode) else None
    if peak is not None:
        parts = (*_stages_of_work(table, peak, here), _bytes_of(table, here))
        for filled, values in zip(work.columns, parts, strict=True):
            filled[rows, position] = values


COMPUTED = "work on "  # Prefix of a device type's name: column of times computed from flops and bytes.


def with_computed_times(entry: WorkloadEntry, table: TaskTable, path: Path_, context: Context) -> TaskTable:
    """Return the table with missing times computed from the work in its rows."""
    if "flops" not in table.numbers:
        return table
    timed = {device.name for device, _, _ in _sources(table, context)}
    rows = np.arange(len(table))
    times = {}
    for device in context.cluster.types.values():
        peak = peak_of(device)
        if device.name in timed or peak is None or not context.modes.of_kind(device.name):
            continue
        overhead, operations, traffic = _stages_of_work(table, peak, rows)
        width = np.nan_to_num(demand_of(entry, table, "cpus" if device.kind == "cpu" else "gpus", rows), nan=1.0)
        width[width == 0] = 1.0
        busy = np.maximum(operations, traffic)
        # On several cores or a part of a GPU the rates are in proportion; a gang divides the work evenly.
        share = width if device.kind == "cpu" else np.minimum(width, 1.0)
        seconds = (overhead + busy / share) / (1.0 if device.kind == "cpu" else np.maximum(width, 1.0))
        times[COMPUTED + device.name] = np.where(np.isnan(seconds), np.inf, seconds)
    if not times and not timed:
        names = ", ".join(device.name for device in context.cluster.types.values())
        text = f"the speed of {names} is unknown; give them a peak under cluster"
        raise context.fail((*path, "trace"), f"the rows of {table.source} give operations instead of times, and {text}")
    return replace(table, times={**table.times, **times})


def _stages_of_work(table: TaskTable, peak: Peak, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return seconds of kernel launch, computing and memory traffic; NaN if unknown."""
    flops, efficiency = table.numbers["flops"][rows], table.numbers.get("efficiency")
    reached = np.ones(len(rows)) if efficiency is None else np.nan_to_num(efficiency[rows], nan=1.0)
    overhead = np.where(np.isnan(flops), np.nan, peak.launch_overhead)
    return overhead, flops / (peak.flops * reached), _bytes_of(table, rows) / (peak.bandwidth * reached)


def _bytes_of(table: TaskTable, rows: np.ndarray) -> np.ndarray:
    given = table.numbers.get("bytes")
    moved = np.zeros(len(rows)) if given is None else np.nan_to_num(given[rows], nan=0.0)
    return np.where(np.isnan(table.numbers["flops"][rows]), np.nan, moved)


NODE, ANY, IF_WIDER = range(3)  # a gang may use several nodes: no, yes, or only if no node is large enough


def _spans(entry: WorkloadEntry, table: TaskTable, kept: np.ndarray) -> np.ndarray:
    """Return by row if gangs may span nodes: NODE (no), ANY, IF_WIDER (if they must)."""
    if entry.span != "recorded":
        return np.full(len(kept), ANY if entry.span == "any" else NODE, dtype=np.int8)
    if (names := table.extra.get("recorded_node")) is None:
        return np.full(len(kept), IF_WIDER, dtype=np.int8)
    cells = (str(name or "") for name in names[kept].tolist())
    return np.array([ANY if "|" in name else NODE if name else IF_WIDER for name in cells], dtype=np.int8)


def _allowed(table: TaskTable, device: DeviceType, kept: np.ndarray) -> np.ndarray | bool:
    if table.devices is None or device.kind == "cpu":
        return True
    import pandas as pd

    codes, names = pd.factorize(table.devices[kept])
    return np.array([not name or device.name in name.split("|") for name in names], dtype=bool)[codes]


def demand_of(entry: WorkloadEntry, table: TaskTable, key: str, kept: np.ndarray) -> np.ndarray:
    """Return one demand (`key`) of each row; NaN if neither table nor entry has it."""
    given = getattr(entry, key)
    default = math.nan if given is None else float(given)
    if key not in table.numbers:
        return np.full(len(kept), default)
    values = table.numbers[key][kept]
    return np.where(np.isnan(values), default, values)


def _sources(table: TaskTable, context: Context) -> list[tuple[DeviceType, str, float]]:
    """Return (device type, trace column of its run times, factor on them) tuples."""
    cluster = context.cluster
    own = {
        device.name: column
        for column in table.times
        if column.startswith(GPU_TIME)
        for device in context.modes.of_kind(column.removeprefix(GPU_TIME))
    }
    sources = []
    if "cpu_time" in table.times:
        sources += [(device, "cpu_time", 1 / device.speed) for device in context.modes.of_kind("cpu")]
    for device in cluster.types.values():
        if device.kind == "cpu" or not context.modes.of_kind(device.name):
            continue
        if device.name in own:
            sources.append((device, own[device.name], 1.0))
        elif device.kind == "gpu" and "gpu_time" in table.times:
            sources.append((device, "gpu_time", 1 / device.speed))
    sources += [
        (device, COMPUTED + device.name, 1.0)
        for device in cluster.types.values()
        if COMPUTED + device.name in table.times
    ]
    return sources


def _mode(
    entry: WorkloadEntry, device: DeviceType, demand: dict[str, Any], profile: str, partition: Partition | None,
    span: int, context: Context, size: tuple[int, WorkCurve] | None = None,
) -> Mode | None:  # fmt: skip
    """Return a recorded job's mode on a type; None: a GPU type, but no GPU requested."""
    values = {key: None if math.isnan(value) else float(value) for key, value in demand.items()}
    gpus = values["gpus"] = values["gpus"] if size is None else float(size[0])
    if device.kind != "cpu" and gpus == 0:
        return None
    integers = {key: round(values[key] or 0) or None for key in ("nodes", "memory", "gpu_memory")}
    occupied = entry.model_copy(update={**values, **integers, "slice": profile})
    make = partial(context.modes.mode, device, occupied, partition=partition, curve=None if size is None else size[1])
    if device.kind == "cpu" and span == ANY and entry.span == "any":
        span = IF_WIDER  # it ran on one node if it fits on one: a log does not say which jobs were spread
    mode = make(span_any=bool(span == ANY))
    return make(span_any=True) if span == IF_WIDER and not context.modes.fits(mode) else mode


def _group(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    n = len(columns[0])
    codes = np.zeros(n, dtype=np.int64)
    for column in columns:
        more, names = pd.factorize(column, use_na_sentinel=False)
        if len(names) > 1:
            codes, _ = pd.factorize(codes * len(names) + more)
    first = np.full(int(codes.max()) + 1 if n else 0, -1)
    first[codes[::-1]] = np.arange(n)[::-1]
    return codes, first


def _lost(rows: TraceRows, lost: list[_Group], context: Context) -> list[Problem]:
    table = rows.table
    count = sum(len(group.rows) for group in lost)
    worst = min(lost, key=lambda group: int(rows.kept[group.rows].min()))
    row = int(rows.kept[worst.rows].min())
    first = f"task {table.name(row)} ({table.source}, {_where(table, row)})"
    if worst.is_parallel:
        problem = context.document.problem((*rows.path, "unfit"), f"{count} tasks are {NOT_SEQUENTIAL}; first: {first}")
    else:
        problem = unfit(
            context, rows.path, count, first=first, refused=worst.refused, types=rows.types(row),
            nodes_by=nodes_by(rows.entry)
        )
    way_out = "unfit: reject counts such tasks as rejected, leave_out leaves them out"
    if rows.entry.unfit in LEAVE_OUT:
        graph = "a task graph needs all of its tasks" if table.predecessors is not None else ""
        way_out = graph or "no task of this trace would remain"
    return [replace(problem, message=f"{problem.message} ({way_out})")]


def _left_out(rows: TraceRows, lost: list[_Group], context: Context) -> str:
    table = rows.table
    counts: dict[str, list[int]] = {}
    for group in lost:
        row = int(rows.kept[group.rows].min())
        why = why_unfit(context, group.refused, rows.types(row), nodes_by(rows.entry))
        tally = counts.setdefault(NOT_SEQUENTIAL if group.is_parallel else why, [0, row])
        tally[0] += len(group.rows)
        tally[1] = min(tally[1], row)
    ranked = sorted(counts.items(), key=lambda item: (-item[1][0], item[1][1]))
    parts = []
    for reason, (count, row) in ranked[:MAX_REASONS]:
        one = f"task {table.name(row)} ({_where(table, row)})"
        parts.append(f"{one}: {reason}" if count == 1 else f"{count:,} (the first is {one}): {reason}")
    if len(ranked) > MAX_REASONS:
        more = sum(count for _, (count, _) in ranked[MAX_REASONS:])
        parts.append(f"and {more:,} for other reasons")
    total = sum(count for _, (count, _) in ranked)
    never = "" if any(group.is_parallel for group in lost) else "can never run on this cluster and "
    what = f"{total:,} of {len(rows.kept):,} tasks {never}are left out"
    return f"{what}: {'; '.join(parts)}"


def _where(table: TaskTable, row: int) -> str:
    line = table.line(row)
    return f"row {row + 1}" if line is None else f"line {line}"
