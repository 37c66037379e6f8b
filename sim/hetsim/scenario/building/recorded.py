"""Builds streams from traces: rows as recorded or resampled, with an entry's keys."""

import math
from dataclasses import dataclass

import numpy as np

from hetsim.errors import ScenarioError
from hetsim.model.cluster import Partition
from hetsim.model.randomness import RandomTree
from hetsim.model.tasks import Tasks
from hetsim.results.formatting import seconds
from hetsim.scenario.building.language_model import ServedLanguage, check_tokens
from hetsim.scenario.building.recorded_modes import RowModes, TraceRows, demand_of, modes_of_rows, with_computed_times
from hetsim.scenario.building.served import DrawnService, serving_of
from hetsim.scenario.building.site import recorded_partitions
from hetsim.scenario.building.streams import Context, TaskStream, estimate_error, stopping_of, unfit, users_of
from hetsim.scenario.building.trace_keys import check_effect
from hetsim.scenario.file.document import Path_
from hetsim.scenario.schema.demand import seconds_of
from hetsim.scenario.schema.workload import FEW, WorkloadEntry, by_block, by_row, by_user
from hetsim.workload.traces import TaskTable


@dataclass
class _Chosen:
    """The rows of a table that form the stream, in the order of the stream."""

    rows: np.ndarray
    arrival: np.ndarray | None = None  # arrival times if the rows are resampled; None: from the entry or the table
    copies: np.ndarray | None = None  # how often the user of each row was drawn before

    def take(self, which: np.ndarray) -> "_Chosen":
        return _Chosen(self.rows[which], _of(self.arrival, which), _of(self.copies, which))


def build_recorded(entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, context: Context) -> TaskStream:
    """Build the stream of an entry with a `trace`; the entry's keys fill blank cells."""
    _check_estimates(entry, path, table, context)
    served = _served(entry, name, path, table=table, context=context)
    if served is None:
        check_effect(entry, path, table, context)
    table = with_computed_times(entry, table, path, context)
    context.note_unused(name, table.times)
    chosen = _resampled(entry, name, path, table=table, kept=_kept_rows(entry, path, table, context), context=context)
    codes = np.zeros(len(chosen.rows), dtype=np.int32)
    bound: list[Partition | None] = [None]
    refused: dict[int, str] = {}
    if served is None:
        codes, bound, refused = recorded_partitions(entry, path, table, kept=chosen.rows, context=context)
        modes = modes_of_rows(
            TraceRows(entry, path, table, kept=chosen.rows, partition_code=codes, partitions=bound), refused, context
        )
        if modes.fits is not None:
            position = np.cumsum(modes.fits) - 1
            refused = {int(position[row]): reason for row, reason in refused.items() if modes.fits[row]}
            codes, chosen = codes[modes.fits], chosen.take(modes.fits)
            context.warnings.append(f"{name}: {modes.left_out}")
    else:
        modes = _requests(entry, served, table, kept=chosen.rows, context=context)
    arrival = _arrival(entry, name, path, table=table, chosen=chosen, context=context)
    if entry.load is not None:
        arrival = loaded(arrival, modes.time, modes.shape, load=entry.load, path=path, context=context)
    stream = TaskStream(
        name, path, arrival, shape=modes.shape, time=modes.time, estimate=modes.estimate, work=modes.work
    )
    stream.resampled = None if entry.arrivals is not None else described(entry)
    stream.refused = refused
    _name_partitions(stream, bound, codes)
    _fill_columns(stream, entry, table, chosen=chosen, random=context.random)
    if served is not None:
        stream.extra |= served.extra
        stream.hash_ids = None if table.hash_ids is None else table.hash_ids.take(chosen.rows)
        served.finish(stream, entry)
    return stream


def _check_estimates(entry: WorkloadEntry, path: Path_, table: TaskTable, context: Context) -> None:
    if entry.estimates is None:
        return
    if table.estimates:
        text = "estimates must be given once: here or in the table (a cluster's log omits them with"
        raise context.fail((*path, "estimates"), f"{text} trace: {{estimates: perfect}})")
    if entry.estimates.basis == "mean":
        text = "basis: mean needs times drawn by class; a table has estimates in columns such as gpu_time_estimate"
        raise context.fail((*path, "estimates", "basis"), text)


def _name_partitions(stream: TaskStream, bound: list[Partition | None], codes: np.ndarray) -> None:
    if any(bound):
        names = ["" if one is None else one.name for one in bound]
        stream.partitions = list(dict.fromkeys(["", *names]))
        stream.partition_code = np.array([stream.partitions.index(name) for name in names], dtype=np.int32)[codes]


def _fill_columns(
    stream: TaskStream, entry: WorkloadEntry, table: TaskTable, chosen: _Chosen, random: RandomTree
) -> None:
    n, kept, name = len(stream), chosen.rows, stream.name
    error = None if table.estimates else estimate_error(entry, n, random.stream("estimates", name))
    if error is not None:
        stream.estimate = stream.time * error[:, np.newaxis]
    stream.id = _ids_of(table, kept, entry.resample is not None)
    stream.class_code, stream.classes = _codes(table.class_, kept, entry.class_ or name)
    if table.user is None:
        stream.user_code, stream.users = users_of(entry, n, random.stream("users", name))
    else:
        stream.user_code, stream.users = _codes(table.user, kept, entry.user or "")
        if chosen.copies is not None:
            _copied_users(stream, chosen.copies)
    stream.priority = _column(table, "priority", kept, entry)
    stream.weight = _column(table, "weight", kept, entry)
    stream.deadline = _deadline(stream, entry, table, kept)
    stream.patience = _patience(stream, entry, table, kept=kept, random=random)
    _fill_transfers(stream, entry, table, kept=kept, random=random)
    stream.predecessors = table.predecessors
    stream.items = table.items
    stream.extra = {key: values[kept] for key, values in table.extra.items()}
    _labels(entry, stream, stream.time)
    if "recorded_start" in stream.extra:  # as the deadline: however the arrivals move, the wait stays what it was
        stream.extra["recorded_start"] = stream.arrival + (stream.extra["recorded_start"] - table.arrival[kept])


def _deadline(stream: TaskStream, entry: WorkloadEntry, table: TaskTable, kept: np.ndarray) -> np.ndarray | None:
    given = seconds_of(entry.limit, stream.time.min(axis=1))
    if "deadline" not in table.numbers:
        return given
    # Absolute in the table; time_scale moves the arrival and keeps the slack.
    slack = (table.numbers["deadline"] - table.arrival)[kept]
    return slack if given is None else np.where(np.isnan(slack), given, slack)


def _patience(
    stream: TaskStream, entry: WorkloadEntry, table: TaskTable, kept: np.ndarray, random: RandomTree
) -> np.ndarray | None:
    rng = random.stream("patience", stream.name)
    drawn = None if entry.patience is None else entry.patience.sample(rng, len(stream))
    if "patience" not in table.numbers:
        return drawn
    given = table.numbers["patience"][kept]
    return np.where(np.isnan(given), math.inf if drawn is None else drawn, given)


def _fill_transfers(
    stream: TaskStream, entry: WorkloadEntry, table: TaskTable, kept: np.ndarray, random: RandomTree
) -> None:
    for key in ("bytes_in", "bytes_out"):
        distribution, rng = getattr(entry, key), random.stream(key, stream.name)
        drawn = None if distribution is None else np.rint(distribution.sample(rng, len(stream)))
        if key in table.numbers:
            given = table.numbers[key][kept]
            drawn = np.rint(np.where(np.isnan(given), 0.0 if drawn is None else drawn, given))
        if drawn is not None:
            setattr(stream, key, drawn)
    for key in ("reads", "writes"):
        lists, given_names = getattr(table, key), getattr(entry, key)
        if lists is not None:
            setattr(stream, key, [lists[row] for row in kept.tolist()])
        elif given_names:
            setattr(stream, key, [tuple(given_names)] * len(stream))


def _labels(entry: WorkloadEntry, stream: TaskStream, time: np.ndarray) -> None:
    if (limits := seconds_of(entry.time_limit, time.min(axis=1))) is not None:
        given = stream.extra.get("time_limit")
        stated = None if given is None else np.array(given, dtype=float)
        stream.extra["time_limit"] = limits if stated is None else np.where(stated > 0, stated, limits)
    for key in ("qos", "account"):
        if (text := getattr(entry, key)) is not None:
            cells = stream.extra.get(key, np.full(len(stream), "", dtype=object))
            stream.extra[key] = np.array([str(cell) or text for cell in cells.tolist()], dtype=object)


def _of(values: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[rows]


def _served(
    entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, context: Context
) -> DrawnService | ServedLanguage | None:
    if table.requests and entry.service is None:
        text = "has arrival times of requests, but no times of work: add a service: to this entry"
        raise context.fail((*path, "trace"), f"the trace {table.source} {text}")
    if not table.requests and entry.service is not None:
        text = "are tasks with run times; a service needs arrivals, or a trace of requests"
        raise context.fail((*path, "service"), f"the rows of {table.source} {text} (hetsim list traces)")
    return serving_of(entry, name, path, context)


def _requests(
    entry: WorkloadEntry, served: DrawnService | ServedLanguage, table: TaskTable, kept: np.ndarray, context: Context
) -> RowModes:
    n = len(kept)
    if isinstance(served, ServedLanguage):
        check_tokens(table, kept)
    ways = served.recorded({key: values[kept] for key, values in table.extra.items()}, n)
    fits = [way for way in ways if context.modes.fits(way[0])]
    if not fits:
        refused = [mode for mode, _ in ways]
        raise ScenarioError(
            unfit(context, served.path, n, first=f"a request of {served.name}", refused=refused, nodes_by="")
        )
    stopping, preemptible = stopping_of(entry)
    shape = context.modes.shape([mode for mode, _ in fits], stopping, preemptible)
    return RowModes(np.full(n, shape, dtype=np.int32), np.column_stack([times for _, times in fits]))


def _kept_rows(entry: WorkloadEntry, path: Path_, table: TaskTable, context: Context) -> np.ndarray:
    """Return the rows that `skip`, `count` and `until` select, in order of arrival."""
    if table.predecessors is not None:
        for key in ("skip", "count", "until"):
            if getattr(entry, key) is not None:
                raise context.fail((*path, key), "would divide a task graph: this table has predecessors")
        return np.arange(len(table))
    skip = entry.used("skip")
    if skip >= len(table) and skip:
        raise context.fail((*path, "skip"), f"leaves no row of the {len(table):,} rows of {table.source}")
    if entry.arrivals is not None:
        return np.arange(len(table))[skip:][: entry.count]
    order = np.argsort(table.arrival, kind="stable")[skip:]
    if entry.until is not None:
        scaled = table.arrival[order] * entry.used("time_scale")
        order = order[: int(np.searchsorted(scaled, entry.until, side="left"))]
    return order if entry.count is None else order[: entry.count]


def _resampled(
    entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, kept: np.ndarray, context: Context
) -> _Chosen:
    if entry.resample is None:
        return _Chosen(kept)
    if table.predecessors is not None:
        raise context.fail((*path, "resample"), "would divide a task graph: this table has predecessors")
    if not len(kept):
        return _Chosen(kept)
    random, scale = context.random.stream("resample", name), entry.used("time_scale")
    recorded = table.arrival[kept]
    try:
        if entry.resample.block is not None:
            positions, times, units = by_block(recorded, entry.resample.block, random)
            copies, what = None, "blocks"
        elif entry.resample.gpu_demand is not None:
            gpus = np.nan_to_num(demand_of(entry, table, "gpus", kept), nan=0.0)
            there = sum(len(node.accelerators) for node in context.cluster.nodes)
            positions, times = by_row(gpus, there, entry.resample.gpu_demand, random)
            return _Chosen(kept[positions], times * scale)
        else:
            if table.user is None:
                raise context.fail((*path, "resample", "by"), f"{table.source} must have a column of users")
            positions, copies, units = by_user(table.user[kept], random)
            times, what = recorded[positions], "users"
    except ValueError as error:
        raise context.fail((*path, "resample"), str(error)) from None
    if units < FEW:
        few = f"{name}: the trace has only {units} {what} to resample"
        context.warnings.append(f"{few}: replications are similar, and confidence intervals too narrow")
    return _Chosen(kept[positions], times * scale, copies)


def described(entry: WorkloadEntry) -> str:
    """Return how an entry's trace is resampled, as a phrase; "" if it is not."""
    if entry.resample is None:
        return ""
    block = entry.resample.block
    return f"by {entry.resample.by}" if block is None else f"in blocks of {seconds(block)}"


def _ids_of(table: TaskTable, kept: np.ndarray, repeated: bool) -> np.ndarray | None:
    if table.id is None or not repeated:
        return None if table.id is None else table.id[kept]
    import pandas as pd

    number = pd.Series(kept).groupby(kept).cumcount().to_numpy()
    ids = table.id[kept].tolist()
    named = [one if not n else f"{one}#{n + 1}" for one, n in zip(ids, number.tolist(), strict=True)]
    return np.array(named, dtype=object)


def _copied_users(stream: TaskStream, copies: np.ndarray) -> None:
    codes = np.zeros(len(copies), dtype=np.int64) if stream.user_code is None else stream.user_code.astype(np.int64)
    width = int(copies.max(initial=0)) + 1
    copies_of, position = np.unique(codes * width + copies, return_inverse=True)
    names = [(stream.users[int(key) // width], int(key) % width) for key in copies_of]
    stream.users = [name if not copy else f"{name}#{copy + 1}" for name, copy in names]
    stream.user_code = position.astype(np.int32)


def _arrival(
    entry: WorkloadEntry, name: str, path: Path_, table: TaskTable, chosen: _Chosen, context: Context
) -> np.ndarray:
    if chosen.arrival is not None:
        return chosen.arrival
    kept = chosen.rows
    if entry.arrivals is None:
        return table.arrival[kept] * entry.used("time_scale")
    if entry.arrivals.closed:
        raise context.fail((*path, "arrivals"), "a trace cannot have a closed loop; give another arrival process")
    times = entry.arrivals.times(context.random.stream("arrivals", name), entry.until, len(kept))
    if len(times) < len(kept):
        raise context.fail((*path, "arrivals"), f"must give an arrival for each of {len(kept)} tasks; got {len(times)}")
    return times


def loaded(
    arrival: np.ndarray, time: np.ndarray, shape: np.ndarray, load: float, path: Path_, context: Context
) -> np.ndarray:
    """Stretch the gaps between arrivals so that the offered load becomes `load`."""
    from hetsim.results.one_run.bounds import offered_load
    from hetsim.results.one_run.modes import ModeTable

    if len(arrival) == 0 or arrival.max() <= arrival.min():
        raise context.fail((*path, "load"), "all tasks of the trace arrive at once, which cannot be scaled")
    tasks = Tasks(arrival, shape, context.modes.shapes, time=time, estimate=time)
    offered = offered_load(tasks, ModeTable(tasks, context.cluster))
    if not offered:
        raise context.fail((*path, "load"), "the tasks of this trace have no work for the cluster")
    first = float(arrival.min())
    return first + (arrival - first) * (offered / load)


def _codes(values: np.ndarray | None, kept: np.ndarray, default: str) -> tuple[np.ndarray | None, list[str]]:
    if values is None:
        return None, [default]
    import pandas as pd

    codes, names = pd.factorize(values[kept])
    listed = [str(value) if str(value) else default for value in names]
    return codes.astype(np.int32), listed


def _column(table: TaskTable, key: str, kept: np.ndarray, entry: WorkloadEntry) -> np.ndarray | None:
    if key not in table.numbers:
        return None if getattr(entry, key) is None else np.full(len(kept), entry.used(key))
    values = table.numbers[key][kept]
    return np.where(np.isnan(values), entry.used(key), values)
