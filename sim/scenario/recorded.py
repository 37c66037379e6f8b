"""Streams from task tables: rows grouped by what they demand, so that alike tasks share one shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sim.errors import Problem, ScenarioError
from sim.model.cluster import DeviceType
from sim.model.tasks import Mode
from sim.scenario.demand_schema import GPU_TIME
from sim.scenario.document import Path_
from sim.scenario.streams import Context, Stream, estimate_error, relative_deadline, stopping_of, unfit, users_of
from sim.scenario.workload_schema import Entry
from sim.workload.traces import TaskTable

DEMANDS = ("cpus", "gpus", "memory", "gpu_memory", "upload", "download")


def build_recorded(entry: Entry, name: str, path: Path_, table: TaskTable, context: Context) -> Stream:
    """The stream of an entry with `trace`; keys of the entry stand in for columns that the table lacks."""
    if table.estimates and entry.estimates is not None:
        raise context.fail((*path, "estimates"), "the table has estimates of its own; give them once")
    context.note_unused(name, table.times)
    kept = _kept_rows(entry, path, table, context)
    shape, time, estimate = _ways(entry, path, table, kept, context)
    n = len(kept)
    arrival = _arrival(entry, name, path, table, kept, context)
    stream = Stream(name, path, arrival, shape, time, estimate)
    random = context.random
    error = None if table.estimates else estimate_error(entry, n, random.stream("estimates", name))
    if error is not None:
        stream.estimate = time * error[:, np.newaxis]
    stream.id = None if table.id is None else table.id[kept]
    stream.class_code, stream.classes = _codes(table.class_, kept, entry.class_ or name)
    if table.user is not None:
        stream.user_code, stream.users = _codes(table.user, kept, entry.user or "")
    else:
        stream.user_code, stream.users = users_of(entry, n, random.stream("users", name))
    stream.priority = _column(table, "priority", kept, entry.priority, 0.0)
    stream.weight = _column(table, "weight", kept, entry.weight, 1.0)
    stream.deadline = relative_deadline(entry, time.min(axis=1))
    if "deadline" in table.numbers:
        # Absolute in the table; time_scale moves the arrival and keeps the slack.
        slack = (table.numbers["deadline"] - table.arrival)[kept]
        stream.deadline = slack if stream.deadline is None else np.where(np.isnan(slack), stream.deadline, slack)
    patience = None if entry.patience is None else entry.patience.sample(random.stream("patience", name), n)
    if "patience" in table.numbers:
        given = table.numbers["patience"][kept]
        patience = np.where(np.isnan(given), math.inf if patience is None else patience, given)
    stream.patience = patience
    for key in ("bytes_in", "bytes_out"):
        distribution = getattr(entry, key)
        if key in table.numbers:
            setattr(stream, key, np.rint(np.nan_to_num(table.numbers[key][kept], nan=0.0)))
        elif distribution is not None:
            setattr(stream, key, np.rint(distribution.sample(random.stream(key, name), n)))
    stream.predecessors = table.predecessors
    for key in ("reads", "writes"):
        lists, given_names = getattr(table, key), getattr(entry, key)
        if lists is not None:
            setattr(stream, key, [lists[row] for row in kept.tolist()])
        elif given_names:
            setattr(stream, key, [tuple(given_names)] * n)
    stream.extra = {key: values[kept] for key, values in table.extra.items()}
    return stream


def _kept_rows(entry: Entry, path: Path_, table: TaskTable, context: Context) -> np.ndarray:
    """Row numbers in order of arrival (ties as in the file), cut at `count` and `until`.

    Of a task graph all rows, in file order.
    """
    if table.predecessors is not None:
        for key in ("count", "until"):
            if getattr(entry, key) is not None:
                raise context.fail((*path, key), "would cut a task graph apart: this table has predecessors")
        return np.arange(len(table))
    if entry.arrivals is not None:
        return np.arange(len(table) if entry.count is None else min(entry.count, len(table)))
    order = np.argsort(table.arrival, kind="stable")
    if entry.until is not None:
        scaled = table.arrival[order] * (entry.time_scale or 1.0)
        order = order[: int(np.searchsorted(scaled, entry.until, side="left"))]
    return order if entry.count is None else order[: entry.count]


def _arrival(entry: Entry, name: str, path: Path_, table: TaskTable, kept: np.ndarray, context: Context) -> np.ndarray:
    """Times of the table, scaled; or drawn anew where the entry has `arrivals`."""
    if entry.arrivals is None:
        return table.arrival[kept] * (1.0 if entry.time_scale is None else entry.time_scale)
    if entry.arrivals.closed:
        raise context.fail((*path, "arrivals"), "a closed loop over a trace is not available")
    times = entry.arrivals.times(context.random.stream("arrivals", name), entry.until, len(kept))
    if len(times) < len(kept):
        raise context.fail((*path, "arrivals"), f"only {len(times)} arrivals for the {len(kept)} tasks of the trace")
    return times


def _codes(values: np.ndarray | None, kept: np.ndarray, default: str) -> tuple[np.ndarray | None, list[str]]:
    """Codes and names; blank cells get the default."""
    if values is None:
        return None, [default]
    import pandas as pd

    codes, names = pd.factorize(values[kept])
    listed = [str(value) if str(value) else default for value in names]
    return codes.astype(np.int32), listed


def _column(table: TaskTable, key: str, kept: np.ndarray, default: float | None, neutral: float) -> np.ndarray | None:
    filler = neutral if default is None else default
    if key not in table.numbers:
        return None if default is None else np.full(len(kept), filler)
    values = table.numbers[key][kept]
    return np.where(np.isnan(values), filler, values)


# Modes ----------------------------------------------------------------------------------------------------------


def _ways(
    entry: Entry, path: Path_, table: TaskTable, kept: np.ndarray, context: Context
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Shape, times and (where the table has them) estimates of each row."""
    n = len(kept)
    demands = {key: _demand(entry, table, key, kept) for key in DEMANDS}
    possible = _sources(table, context)
    finite = [np.isfinite(table.times[column][kept]) for _, column, _ in possible]
    group, first = _group([*demands.values(), *finite])
    stopping, preemptible = stopping_of(entry)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
    plans: list[list[tuple[Mode, str, float]]] = []
    lost: list[tuple[int, list[Mode]]] = []
    shape_of = np.empty(len(first), dtype=np.int32)
    for number, row in enumerate(first.tolist()):
        usable = [one for one, there in zip(possible, finite, strict=True) if there[row]]
        ways = [
            (mode, column, factor)
            for device, column, factor in usable
            if (mode := _mode(entry, device, {key: demands[key][row] for key in DEMANDS}, context)) is not None
        ]
        fits = [way for way in ways if context.modes.fits(way[0])]
        plans.append(fits)
        if fits:
            shape_of[number] = context.modes.shape([mode for mode, _, _ in fits], stopping, preemptible)
        else:
            lost.append((number, [mode for mode, _, _ in ways]))
    if lost:
        raise ScenarioError(_lost(lost, order, bounds, path, table, kept, context))
    width = max((len(plan) for plan in plans), default=1)
    time = np.full((n, width), np.inf)
    estimate = np.full((n, width), np.inf) if table.estimates else None
    for number, plan in enumerate(plans):
        rows = order[bounds[number] : bounds[number + 1]]
        for position, (_, column, factor) in enumerate(plan):
            time[rows, position] = table.times[column][kept[rows]] * factor
            if estimate is not None:
                source = table.estimates.get(column, table.times[column])
                estimate[rows, position] = source[kept[rows]] * factor
    return shape_of[group], time, estimate


def _demand(entry: Entry, table: TaskTable, key: str, kept: np.ndarray) -> np.ndarray:
    """A demand of each row; NaN where neither the table nor the entry says anything."""
    given = getattr(entry, key)
    default = math.nan if given is None else float(given)
    if key not in table.numbers:
        return np.full(len(kept), default)
    values = table.numbers[key][kept]
    return np.where(np.isnan(values), default, values)


def _sources(table: TaskTable, context: Context) -> list[tuple[DeviceType, str, float]]:
    """Device types of the cluster, the column with the times there, and what they are multiplied by."""
    cluster = context.cluster
    own = {
        device.name: column
        for column in table.times
        if column.startswith(GPU_TIME)
        for device in context.modes.of_kind(column.removeprefix(GPU_TIME))
    }
    found = []
    if "cpu_time" in table.times:
        found += [(device, "cpu_time", 1 / device.speed) for device in context.modes.of_kind("cpu")]
    for device in cluster.types.values():
        if device.kind == "cpu" or not context.modes.of_kind(device.name):
            continue
        if device.name in own:
            found.append((device, own[device.name], 1.0))
        elif device.kind == "gpu" and "gpu_time" in table.times:
            found.append((device, "gpu_time", 1 / device.speed))
    return found


def _mode(entry: Entry, device: DeviceType, demand: dict[str, Any], context: Context) -> Mode | None:
    """The mode of a row on a type; None for a GPU mode of a row that wants no GPU."""
    known = {key: None if math.isnan(value) else float(value) for key, value in demand.items()}
    gpus = known["gpus"]
    if device.kind != "cpu" and gpus == 0:
        return None
    return context.modes.mode(
        device,
        gpus=gpus or 1.0,
        cpus=known["cpus"],
        memory=round(known["memory"] or 0),
        gpu_memory=round(known["gpu_memory"] or 0),
        span_any=entry.span == "any",
        span_speed=entry.span_speed or 1.0,
        upload=known["upload"] or 0.0,
        download=known["download"] or 0.0,
    )


def _group(columns: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The group of each row, rows alike in all columns together, and the first row of each group.

    Column by column, by codes: sorting rows as records takes ten times as long on a million rows.
    """
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


def _lost(
    lost: list[tuple[int, list[Mode]]], order: np.ndarray, bounds: np.ndarray, path: Path_, table: TaskTable,
    kept: np.ndarray, context: Context,
) -> list[Problem]:  # fmt: skip
    """One problem for all rows that can never run, naming the first of the file."""
    rows = {number: kept[order[bounds[number] : bounds[number + 1]]] for number, _ in lost}
    count = sum(len(found) for found in rows.values())
    worst, refused = min(lost, key=lambda one: int(rows[one[0]].min()))
    row = int(rows[worst].min())
    line = table.line(row)
    where = f"row {row + 1}" if line is None else f"line {line}"
    return [unfit(context, path, count, f"task {table.name(row)} ({table.source}, {where})", refused)]
