"""Streams from traces: tasks grouped by what they demand, so that alike ones share a shape; and requests."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from sim.errors import Problem, ScenarioError
from sim.model.cluster import DeviceType, Partition
from sim.model.curves import WorkCurve
from sim.model.tasks import KernelWork, Mode, Tasks
from sim.results.formatting import seconds
from sim.scenario.building.language_model import ServedLanguage, check_tokens
from sim.scenario.building.served import DrawnService
from sim.scenario.building.site import limits_of, recorded_partitions
from sim.scenario.building.streams import (
    Context,
    TaskStream,
    estimate_error,
    one_lane,
    peak_of,
    relative_deadline,
    stopping_of,
    unfit,
    users_of,
    why_unfit,
)
from sim.scenario.file.document import Path_
from sim.scenario.schema.demand import GPU_TIME, span_speeds
from sim.scenario.schema.language_model import LanguageModel
from sim.scenario.schema.resample import FEW, by_block, by_row, by_user
from sim.scenario.schema.workload import WorkloadEntry
from sim.workload.costs.roofline import Peak
from sim.workload.traces import TaskTable

MAX_REASONS = 5
"""Reasons for which rows are left out that are named one by one; the rest is counted."""
DEMANDS = ("nodes", "cpus", "gpus", "memory", "gpu_memory", "upload", "download")


def build_recorded(entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, context: Context) -> TaskStream:
    """The stream of an entry with `trace`; keys of the entry stand in for columns that the table lacks."""
    if table.estimates and entry.estimates is not None:
        text = "the table has estimates of its own; give them once (a cluster's log leaves its own out with"
        raise context.fail((*path, "estimates"), f"{text} trace: {{estimates: perfect}})")
    if entry.estimates is not None and entry.estimates.known == "mean":
        text = "means are of times that are drawn by class; a table has estimates in columns such as gpu_time_estimate"
        raise context.fail((*path, "estimates", "known"), text)
    served = _served(entry, name, path, table, context)
    table = _with_computed_times(entry, table, path, context)
    context.note_unused(name, table.times)
    kept = _kept_rows(entry, path, table, context)
    kept, again, copies = _resampled(entry, name, path, table, kept, context)
    codes = np.zeros(len(kept), dtype=np.int32)
    bound: list[Partition | None] = [None]
    refused: dict[int, str] = {}
    work = None
    if served is None:
        codes, bound, refused = recorded_partitions(entry, path, table, kept, context)
        shape, time, estimate, fit, told, work = _ways(entry, path, table, kept, codes, bound, refused, context)
        if fit is not None:
            position = np.cumsum(fit) - 1
            refused = {int(position[row]): reason for row, reason in refused.items() if fit[row]}
            codes = codes[fit]
            kept, again, copies = kept[fit], _of(again, fit), _of(copies, fit)
            context.warnings.append(f"{name}: {told}")
    else:
        shape, time, estimate = _requests(entry, served, table, kept, context)
    n = len(kept)
    arrival = _arrival(entry, name, path, table, kept, context) if again is None else again
    if entry.load is not None:
        arrival = loaded(arrival, time, shape, entry.load, path, context)
    stream = TaskStream(name, path, arrival, shape, time, estimate, work=work)
    stream.resampled = None if entry.arrivals is not None else described(entry)
    stream.refused = refused
    if any(bound):
        names = ["" if one is None else one.name for one in bound]
        stream.partitions = list(dict.fromkeys(["", *names]))
        stream.partition_code = np.array([stream.partitions.index(name) for name in names], dtype=np.int32)[codes]
    random = context.random
    error = None if table.estimates else estimate_error(entry, n, random.stream("estimates", name))
    if error is not None:
        stream.estimate = time * error[:, np.newaxis]
    stream.id = _ids_of(table, kept, entry.resample is not None)
    stream.class_code, stream.classes = _codes(table.class_, kept, entry.class_ or name)
    if table.user is not None:
        stream.user_code, stream.users = _codes(table.user, kept, entry.user or "")
        if copies is not None:
            _copied_users(stream, copies)
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
    stream.items = table.items
    stream.extra = {key: values[kept] for key, values in table.extra.items()}
    _labels(entry, stream, time)
    if "recorded_start" in stream.extra:  # as the deadline: however the arrivals move, the wait stays what it was
        stream.extra["recorded_start"] = arrival + (stream.extra["recorded_start"] - table.arrival[kept])
    if served is not None:
        stream.extra |= served.extra
        stream.hash_ids = None if table.hash_ids is None else table.hash_ids.take(kept)
        served.finish(stream, entry)
    return stream


def _labels(entry: WorkloadEntry, stream: TaskStream, time: np.ndarray) -> None:
    """What the entry says of limits, tiers and accounts, where the table says nothing."""
    limits = limits_of(entry, time.min(axis=1))
    if limits is not None:
        given = stream.extra.get("time_limit")
        known = None if given is None else np.array(given, dtype=float)
        stream.extra["time_limit"] = limits if known is None else np.where(known > 0, known, limits)
    for key in ("qos", "account"):
        text = getattr(entry, key)
        if text is not None:
            cells = stream.extra.get(key, np.full(len(stream), "", dtype=object))
            stream.extra[key] = np.array([str(cell) or text for cell in cells.tolist()], dtype=object)


def _of(values: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[rows]


def _served(
    entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, context: Context
) -> DrawnService | ServedLanguage | None:
    """What serves the requests of the table; None if its rows are tasks with times of their own."""
    if table.requests and entry.service is None:
        text = "says when requests came, not what they take: add a service: to this entry"
        raise context.fail((*path, "trace"), f"the trace {table.source} {text}")
    if not table.requests and entry.service is not None:
        text = "are tasks with times of their own; a service serves the requests of arrivals, or of a trace of requests"
        raise context.fail((*path, "service"), f"the rows of {table.source} {text} (hetsim list traces)")
    if isinstance(entry.service, LanguageModel):
        return ServedLanguage(entry.service, name, path, context)
    return None if entry.service is None else DrawnService(entry.service, name, path, context)


def _requests(
    entry: WorkloadEntry, served: DrawnService | ServedLanguage, table: TaskTable, kept: np.ndarray, context: Context
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Shape and times of the requests of a trace."""
    n = len(kept)
    if isinstance(served, ServedLanguage):
        check_tokens(table, kept)
    ways = served.recorded({key: values[kept] for key, values in table.extra.items()}, n)
    fits = [way for way in ways if context.modes.fits(way[0])]
    if not fits:
        raise ScenarioError([unfit(context, served.path, n, f"a request of {served.name}", [mode for mode, _ in ways])])
    stopping, preemptible = stopping_of(entry)
    shape = context.modes.shape([mode for mode, _ in fits], stopping, preemptible)
    return np.full(n, shape, dtype=np.int32), np.column_stack([times for _, times in fits]), None


def _kept_rows(entry: WorkloadEntry, path: Path_, table: TaskTable, context: Context) -> np.ndarray:
    """Row numbers in order of arrival (ties as in the file), from `skip` on, cut at `count` and `until`.

    Of a task graph all rows, in file order.
    """
    if table.predecessors is not None:
        for key in ("skip", "count", "until"):
            if getattr(entry, key) is not None:
                raise context.fail((*path, key), "would cut a task graph apart: this table has predecessors")
        return np.arange(len(table))
    skip = entry.skip or 0
    if skip >= len(table) and skip:
        raise context.fail((*path, "skip"), f"leaves nothing of the {len(table):,} rows of {table.source}")
    if entry.arrivals is not None:
        return np.arange(len(table))[skip:][: entry.count]
    order = np.argsort(table.arrival, kind="stable")[skip:]
    if entry.until is not None:
        scaled = table.arrival[order] * (entry.time_scale or 1.0)
        order = order[: int(np.searchsorted(scaled, entry.until, side="left"))]
    return order if entry.count is None else order[: entry.count]


def _resampled(
    entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, kept: np.ndarray, context: Context
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """The rows drawn again where the entry says so, their arrivals, and how often each's user was drawn before."""
    if entry.resample is None:
        return kept, None, None
    if table.predecessors is not None:
        raise context.fail((*path, "resample"), "would tear a task graph apart: this table has predecessors")
    if not len(kept):
        return kept, None, None
    random, scale = context.random.stream("resample", name), entry.time_scale or 1.0
    recorded = table.arrival[kept]
    try:
        if entry.resample.block is not None:
            positions, times, units = by_block(recorded, entry.resample.block, random)
            copies, what = None, "blocks"
        elif entry.resample.gpu_demand is not None:
            gpus = np.nan_to_num(_demand(entry, table, "gpus", kept), nan=0.0)
            there = sum(len(node.accelerators) for node in context.cluster.nodes)
            positions, times = by_row(gpus, there, entry.resample.gpu_demand, random)
            return kept[positions], times * scale, None
        else:
            if table.user is None:
                raise context.fail((*path, "resample", "by"), f"{table.source} has no column of users")
            positions, copies, units = by_user(table.user[kept], random)
            times, what = recorded[positions], "users"
    except ValueError as error:
        raise context.fail((*path, "resample"), str(error)) from None
    if units < FEW:
        few = f"{name}: the trace has only {units} {what} to draw from"
        context.warnings.append(f"{few}: replications are alike, and intervals too narrow")
    return kept[positions], times * scale, copies


def described(entry: WorkloadEntry) -> str:
    """How the trace of an entry is drawn again, for people; empty if it is not."""
    if entry.resample is None:
        return ""
    block = entry.resample.block
    return f"by {entry.resample.by}" if block is None else f"in blocks of {seconds(block)}"


def _ids_of(table: TaskTable, kept: np.ndarray, repeated: bool) -> np.ndarray | None:
    """The ids of rows; of rows drawn again with the number of the draw behind, so that they stay unique."""
    if table.id is None or not repeated:
        return None if table.id is None else table.id[kept]
    import pandas as pd

    number = pd.Series(kept).groupby(kept).cumcount().to_numpy()
    ids = table.id[kept].tolist()
    named = [one if not n else f"{one}#{n + 1}" for one, n in zip(ids, number.tolist(), strict=True)]
    return np.array(named, dtype=object)


def _copied_users(stream: TaskStream, copies: np.ndarray) -> None:
    """A user drawn twice is two users: `ann` and `ann#2`."""
    codes = np.zeros(len(copies), dtype=np.int64) if stream.user_code is None else stream.user_code.astype(np.int64)
    width = int(copies.max(initial=0)) + 1
    found, position = np.unique(codes * width + copies, return_inverse=True)
    names = [(stream.users[int(key) // width], int(key) % width) for key in found]
    stream.users = [name if not copy else f"{name}#{copy + 1}" for name, copy in names]
    stream.user_code = position.astype(np.int32)


def _arrival(
    entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, kept: np.ndarray, context: Context
) -> np.ndarray:
    """Times of the table, scaled; or drawn anew where the entry has `arrivals`."""
    if entry.arrivals is None:
        return table.arrival[kept] * (1.0 if entry.time_scale is None else entry.time_scale)
    if entry.arrivals.closed:
        raise context.fail((*path, "arrivals"), "a closed loop over a trace is not available")
    times = entry.arrivals.times(context.random.stream("arrivals", name), entry.until, len(kept))
    if len(times) < len(kept):
        raise context.fail((*path, "arrivals"), f"only {len(times)} arrivals for the {len(kept)} tasks of the trace")
    return times


def loaded(
    arrival: np.ndarray, time: np.ndarray, shape: np.ndarray, load: float, path: Path_, context: Context
) -> np.ndarray:
    """Arrivals stretched or compressed around the first so that the load is `load` (`sim.results.one_run.load`)."""
    from sim.results.one_run.load import offered_load
    from sim.results.one_run.modes import ModeTable

    if len(arrival) == 0 or arrival.max() <= arrival.min():
        raise context.fail((*path, "load"), "the tasks of this trace all come at one instant")
    tasks = Tasks(arrival, shape, context.modes.shapes, time, time)
    found = offered_load(tasks, ModeTable(tasks, context.cluster))
    if not found:
        raise context.fail((*path, "load"), "the tasks of this trace are no work for the cluster")
    first = float(arrival.min())
    return first + (arrival - first) * (found / load)


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
    entry: WorkloadEntry, path: Path_, table: TaskTable, kept: np.ndarray, codes: np.ndarray,
    bound: list[Partition | None],
    refused: dict[int, str], context: Context,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None, str, KernelWork | None]:  # fmt: skip
    """Shape, times and (where the table has them) estimates of each row; if some are left out, which rows fit and
    what is to be said of the others; and the work of the rows, as far as it is known.

    `codes` tell the partition of each row in `bound`.  Rows that are refused get a shape as if they could run.
    """
    n = len(kept)
    demands = {key: _demand(entry, table, key, kept) for key in DEMANDS}
    possible = _sources(table, context)
    finite = [np.isfinite(table.times[column][kept]) & _allowed(table, device, kept) for device, column, _ in possible]
    turned_away = np.zeros(n, dtype=bool)
    turned_away[list(refused)] = True
    spans = _spans(entry, table, kept)
    kinds = [] if table.curves is None else [table.curves.kind[kept]]
    group, first = _group([*demands.values(), *finite, codes, turned_away, spans, *kinds])
    stopping, preemptible = stopping_of(entry)
    order = np.argsort(group, kind="stable")
    bounds = np.searchsorted(group[order], np.arange(len(first) + 1))
    plans: list[list[tuple[Mode, str | None, float]]] = []
    lost: list[tuple[int, list[Mode]]] = []
    shape_of = np.empty(len(first), dtype=np.int32)
    for number, row in enumerate(first.tolist()):
        usable = [one for one, there in zip(possible, finite, strict=True) if there[row]]
        demand = {key: demands[key][row] for key in DEMANDS}
        sizes = [None] if table.curves is None else table.curves.kinds[table.curves.kind[kept[row]]]
        ways: list[tuple[Mode, str | None, float]] = [
            (mode, column, factor if size is None else factor * size[1].seconds)
            for device, column, factor in usable
            for size in sizes
            if (mode := _mode(entry, device, demand, bound[codes[row]], spans[row], context, size)) is not None
        ]
        fits = [way for way in ways if context.modes.fits(way[0])]
        if not fits and (turned_away[row] or entry.unfit == "reject"):
            if not turned_away[row]:
                why = why_unfit(context, [mode for mode, _, _ in ways], _types(table, int(kept[row])))
                rows = order[bounds[number] : bounds[number + 1]].tolist()
                refused.update(dict.fromkeys(rows, f"can never run here: {why}"))
            fits = ways[:1] or [(context.modes.mode(next(iter(context.cluster.types.values()))), None, 1.0)]
        plans.append(fits)
        if fits:
            shape_of[number] = context.modes.shape([mode for mode, _, _ in fits], stopping, preemptible)
        else:
            lost.append((number, [mode for mode, _, _ in ways]))
    fit, told = None, ""
    if lost and entry.unfit == "leave_out" and table.predecessors is None and len(lost) < len(first):
        unfit_groups = np.zeros(len(first), dtype=bool)
        unfit_groups[[number for number, _ in lost]] = True
        fit = ~unfit_groups[group]
        told = _left_out(lost, order, bounds, table, kept, context)
    elif lost:
        raise ScenarioError(_lost(entry, lost, order, bounds, path, table, kept, context))
    width = max((len(plan) for plan in plans), default=1)
    time = np.full((n, width), np.inf)
    estimate = np.full((n, width), np.inf) if table.estimates else None
    work = KernelWork.unknown(n, width) if "flops" in table.numbers else None
    for number, plan in enumerate(plans):
        rows = order[bounds[number] : bounds[number + 1]]
        for position, (mode, column, factor) in enumerate(plan):
            peak = peak_of(mode.type) if work is not None and one_lane(mode) else None
            if work is not None and peak is not None:
                parts = (*_stages_of_work(table, peak, kept[rows]), _bytes_of(table, kept[rows]))
                for filled, values in zip(work.columns, parts, strict=True):
                    filled[rows, position] = values
            if column is None:  # on nothing that there is: these never run
                time[rows, position] = 0.0
                if estimate is not None:
                    estimate[rows, position] = 0.0
                continue
            time[rows, position] = factor if mode.curve is not None else table.times[column][kept[rows]] * factor
            if estimate is not None:
                source = table.estimates.get(column, table.times[column])
                estimate[rows, position] = source[kept[rows]] * factor
    time = stopping.with_checkpoints(time)
    estimate = None if estimate is None else stopping.with_checkpoints(estimate)
    shape = shape_of[group]
    if fit is not None:
        known = None if work is None else work.take(np.flatnonzero(fit))
        return shape[fit], time[fit], None if estimate is None else estimate[fit], fit, told, known
    return shape, time, estimate, None, told, work


COMPUTED = "work on "
"""Before the name of a type of device: times there that follow from flops and bytes."""


def _with_computed_times(entry: WorkloadEntry, table: TaskTable, path: Path_, context: Context) -> TaskTable:
    """The table with times computed from its work, on each type with a known peak and no time in the table."""
    if "flops" not in table.numbers:
        return table
    timed = {device.name for device, _, _ in _sources(table, context)}
    rows = np.arange(len(table))
    found = {}
    for device in context.cluster.types.values():
        peak = peak_of(device)
        if device.name in timed or peak is None or not context.modes.of_kind(device.name):
            continue
        overhead, operations, traffic = _stages_of_work(table, peak, rows)
        width = np.nan_to_num(_demand(entry, table, "cpus" if device.kind == "cpu" else "gpus", rows), nan=1.0)
        width[width == 0] = 1.0
        busy = np.maximum(operations, traffic)
        # On several cores or a part of a GPU the rates are in proportion; a gang divides the work evenly.
        share = width if device.kind == "cpu" else np.minimum(width, 1.0)
        seconds = (overhead + busy / share) / (1.0 if device.kind == "cpu" else np.maximum(width, 1.0))
        found[COMPUTED + device.name] = np.where(np.isnan(seconds), np.inf, seconds)
    if not found and not timed:
        names = ", ".join(device.name for device in context.cluster.types.values())
        text = f"of how fast {names} are nothing is known; give them a peak under cluster"
        raise context.fail((*path, "trace"), f"the rows of {table.source} only say what they do, and {text}")
    return replace(table, times={**table.times, **found})


def _stages_of_work(table: TaskTable, peak: Peak, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of launching, operations and memory traffic of rows on one device; NaN where the work is not known."""
    flops, efficiency = table.numbers["flops"][rows], table.numbers.get("efficiency")
    reached = np.ones(len(rows)) if efficiency is None else np.nan_to_num(efficiency[rows], nan=1.0)
    overhead = np.where(np.isnan(flops), np.nan, peak.launch_overhead)
    return overhead, flops / (peak.flops * reached), _bytes_of(table, rows) / (peak.bandwidth * reached)


def _bytes_of(table: TaskTable, rows: np.ndarray) -> np.ndarray:
    """Bytes of memory traffic of rows: 0 where only operations are given, NaN where nothing is."""
    given = table.numbers.get("bytes")
    moved = np.zeros(len(rows)) if given is None else np.nan_to_num(given[rows], nan=0.0)
    return np.where(np.isnan(table.numbers["flops"][rows]), np.nan, moved)


NODE, ANY, IF_WIDER = range(3)
"""Whether a gang may use several nodes: no, yes, or if it fits on none."""


def _spans(entry: WorkloadEntry, table: TaskTable, kept: np.ndarray) -> np.ndarray:
    """For each row whether a gang may use several nodes, as the entry says or the record shows."""
    if entry.span != "recorded":
        return np.full(len(kept), ANY if entry.span == "any" else NODE, dtype=np.int8)
    names = table.extra.get("recorded_node")
    if names is None:
        return np.full(len(kept), IF_WIDER, dtype=np.int8)
    cells = (str(name or "") for name in names[kept].tolist())
    return np.array([ANY if "|" in name else NODE if name else IF_WIDER for name in cells], dtype=np.int8)


def _allowed(table: TaskTable, device: DeviceType, kept: np.ndarray) -> np.ndarray | bool:
    """Which rows may run on a type of device: those that name it, or no GPU type at all; cores are open to all."""
    if table.devices is None or device.kind == "cpu":
        return True
    import pandas as pd

    codes, names = pd.factorize(table.devices[kept])
    return np.array([not name or device.name in name.split("|") for name in names], dtype=bool)[codes]


def _types(table: TaskTable, row: int) -> list[str]:
    """The types of device to which a row keeps."""
    named = "" if table.devices is None else str(table.devices[row])
    return named.split("|") if named else []


def _demand(entry: WorkloadEntry, table: TaskTable, key: str, kept: np.ndarray) -> np.ndarray:
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
    found += [
        (device, COMPUTED + device.name, 1.0)
        for device in cluster.types.values()
        if COMPUTED + device.name in table.times
    ]
    return found


def _mode(
    entry: WorkloadEntry, device: DeviceType, demand: dict[str, Any], partition: Partition | None, span: int,
    context: Context, size: tuple[int, WorkCurve] | None = None,
) -> Mode | None:  # fmt: skip
    """The mode of a row on a type, in one of its sizes; None for a GPU mode of a row that wants no GPU."""
    known = {key: None if math.isnan(value) else float(value) for key, value in demand.items()}
    if size is not None:
        known["gpus"] = float(size[0])
    gpus, nodes = known["gpus"], round(known["nodes"] or 1)
    if device.kind != "cpu" and gpus == 0:
        return None
    make = partial(
        context.modes.mode,
        device,
        gpus=gpus or 1.0,
        cpus=known["cpus"],
        memory=round(known["memory"] or 0),
        gpu_memory=round(known["gpu_memory"] or 0),
        span_speed=entry.span_speed or 1.0,
        span_speeds=span_speeds(entry),
        upload=known["upload"] or 0.0,
        download=known["download"] or 0.0,
        partition=partition,
        nodes=nodes,
        curve=None if size is None else size[1],
    )
    if device.kind == "cpu" and span == ANY and entry.span == "any":
        span = IF_WIDER  # it ran on one node if it fits on one: a log does not say which jobs were spread
    mode = make(span_any=span == ANY)
    return make(span_any=True) if span == IF_WIDER and not context.modes.fits(mode) else mode


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
    entry: WorkloadEntry, lost: list[tuple[int, list[Mode]]], order: np.ndarray, bounds: np.ndarray, path: Path_,
    table: TaskTable, kept: np.ndarray, context: Context,
) -> list[Problem]:  # fmt: skip
    """One problem for all rows that can never run, naming the first of the file."""
    rows = {number: kept[order[bounds[number] : bounds[number + 1]]] for number, _ in lost}
    count = sum(len(found) for found in rows.values())
    worst, refused = min(lost, key=lambda one: int(rows[one[0]].min()))
    row = int(rows[worst].min())
    first = f"task {table.name(row)} ({table.source}, {_where(table, row)})"
    told = unfit(context, path, count, first, refused, _types(table, row))
    way_out = "unfit: reject counts such tasks as rejected, leave_out leaves them out"
    if entry.unfit == "leave_out":
        graph = "a task graph cannot do without some of its tasks" if table.predecessors is not None else ""
        way_out = graph or "nothing would be left of this trace"
    return [replace(told, message=f"{told.message} ({way_out})")]


def _left_out(
    lost: list[tuple[int, list[Mode]]], order: np.ndarray, bounds: np.ndarray, table: TaskTable, kept: np.ndarray,
    context: Context,
) -> str:  # fmt: skip
    """How many rows are left out, and for each reason how many and the first of the file; the most frequent ones."""
    counts: dict[str, list[int]] = {}
    for number, refused in lost:
        rows = kept[order[bounds[number] : bounds[number + 1]]]
        row = int(rows.min())
        known = counts.setdefault(why_unfit(context, refused, _types(table, row)), [0, row])
        known[0] += len(rows)
        known[1] = min(known[1], row)
    ranked = sorted(counts.items(), key=lambda item: (-item[1][0], item[1][1]))
    parts = []
    for reason, (count, row) in ranked[:MAX_REASONS]:
        one = f"task {table.name(row)} ({_where(table, row)})"
        parts.append(f"{one}: {reason}" if count == 1 else f"{count:,}, the first of them {one}: {reason}")
    if len(ranked) > MAX_REASONS:
        more = sum(count for _, (count, _) in ranked[MAX_REASONS:])
        parts.append(f"and {more:,} for other reasons")
    total = sum(count for _, (count, _) in ranked)
    what = f"{total:,} of {len(kept):,} tasks can never run on this cluster and are left out"
    return f"{what}: {'; '.join(parts)}"


def _where(table: TaskTable, row: int) -> str:
    """Where a row stands in its file."""
    line = table.line(row)
    return f"row {row + 1}" if line is None else f"line {line}"
