"""The task table, derived from a Record in vectorized form.

The documentation defines its columns ("Result tables", "Metrics"); the other tables are in `launches` (one row per
launch) and `usage` (devices, timeline).

A request with stages is one row and counts once (`request_rows`), although each stage is a task of the engine.  In its
row
- `ready` and `start` are those of the first stage, `finish` is the end of the last one; it is completed when all stages
  are, otherwise it has the status and reason of the stage that ended it;
- `wait` is the sum of the waits of all stages, known once the last one has started; `upload`, `compute`, `download` and
  `overhead` are sums over the stages, so that, as for any task,
  response = (ready - arrival) + wait + upload + compute + download + overhead;
- if several items of a request are in different stages at the same time, such sums would exceed the response: `wait`
  is then that of the first start, and all time from there to the end is `compute`;
- `slowdown` is the response / the time that the request's stages, and the transfers between them, take alone;
- `device_type`, `device` and `node` join those of the stages by `+`, each once, in the order of the stages;
- `preemptions`, `migrations`, `energy_j` and `cost` are sums.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from hetsim.model.record import COMPLETED, MOVES, NOT_ARRIVED, STATUS_NAMES, STOPS, UNFINISHED, Record
from hetsim.results.declared import COST, DEFAULT_BOUND, ENERGY
from hetsim.results.one_run import language
from hetsim.results.one_run.launches import (
    LaunchColumns,
    PlaceColumns,
    categorical,
    ids_of_one_kind,
    launch_numbers,
    launches_of,
)
from hetsim.results.one_run.modes import ModeTable, exclusive_time
from hetsim.results.one_run.network import has_steps, task_columns
from hetsim.results.one_run.rows import TableRows, is_retry, met_by_calls
from hetsim.results.one_run.usage import allocated, prices

SUMS = ("upload", "compute", "download", "overhead", STOPS, MOVES, ENERGY, COST)


def request_rows(record: Record, frame: pd.DataFrame, bounded: str, bound: float) -> pd.DataFrame:
    """Return the task table with one row per request, instead of one per stage.

    bounded: name of the column of bounded slowdowns, in which run times count as at least `bound` seconds.
    """
    staged = record.input.tasks.staged
    assert staged is not None
    rows = TableRows(record)
    position = np.cumsum(record.status != NOT_ARRIVED) - 1
    first = position if rows.chosen is None else position[rows.chosen]
    deciding = position[rows.deciding]
    stage_rows = frame.iloc[first].reset_index(drop=True)
    of_stages = rows(staged.stage) >= 0
    stage_rows["id"] = np.where(of_stages, rows(staged.id), stage_rows["id"].to_numpy(dtype=object))
    for name in ("status", "reason"):
        stage_rows[name] = frame[name].iloc[deciding].array
    status = rows.record.status[rows.deciding]
    completed = status == COMPLETED

    def put(name: str, values: np.ndarray) -> None:
        old = stage_rows[name].to_numpy()
        stage_rows[name] = np.where(of_stages, values, old).astype(old.dtype)

    start, finish = rows.minimum(record.start), record.finish[rows.deciding]
    put("start", start)
    put("finish", finish)
    together = rows.streaming
    wait = np.add.reduceat(frame["wait"].to_numpy()[position[rows.members]], rows.begin) if rows.count else start
    put("wait", np.where(together, start - stage_rows["ready"].to_numpy(), wait))
    for name in SUMS:
        if name in frame:
            totals = np.zeros(len(record.status), frame[name].to_numpy().dtype)
            totals[record.status != NOT_ARRIVED] = frame[name].to_numpy()
            put(name, rows.total(totals))
    span = np.nan_to_num(np.where(status == UNFINISHED, record.end, finish) - start)
    for name, values in (
        ("upload", np.zeros(rows.count)), ("compute", span), ("download", np.zeros(rows.count)),
        ("overhead", np.where(completed, 0.0, np.nan)),
    ):  # fmt: skip
        put(name, np.where(together, values, stage_rows[name].to_numpy()))
    _ratios(stage_rows, put, rows(staged.alone), completed=completed, bounded=bounded, bound=bound)
    _placed(stage_rows, frame, rows, position=position, of_stages=of_stages)
    met = completed & (finish <= stage_rows["deadline"].to_numpy())
    given = stage_rows["met_deadline"].array
    stage_rows["met_deadline"] = pd.arrays.BooleanArray(
        np.where(of_stages, met, given.to_numpy(dtype=bool, na_value=False)), np.asarray(given.isna())
    )
    return stage_rows


def _ratios(
    found: pd.DataFrame, put: Any, alone: np.ndarray, completed: np.ndarray, bounded: str, bound: float
) -> None:  # fmt: skip
    response = np.where(completed, found["finish"].to_numpy() - found["arrival"].to_numpy(), np.nan)
    put("response", response)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowdown = response / alone
        slowdown[(response == 0) & (alone == 0)] = 1.0
        put("slowdown", slowdown)
        put(bounded, np.maximum(response / np.maximum(alone, bound), 1.0))


def _placed(
    found: pd.DataFrame, frame: pd.DataFrame, rows: TableRows, position: np.ndarray, of_stages: np.ndarray
) -> None:
    batch = found["batch"].array
    found["batch"] = pd.arrays.IntegerArray(
        np.where(of_stages, 0, batch.to_numpy(dtype=np.int32, na_value=0)).astype(np.int32),
        np.asarray(batch.isna()) | of_stages,
    )
    rack_of = {node.name: node.spec.rack for node in rows.record.input.cluster.nodes}
    for name in ("device_type", "device", "node"):
        column = frame[name].cat
        codes, texts = _joined(column.codes.to_numpy()[position[rows.members]], list(column.categories), rows)
        found[name] = categorical(codes, texts)
        if name == "node" and "hosts" in found:
            nodes = [text.split("+") for text in texts]
            hosts = np.array([*map(len, nodes), 0], np.int32)
            racks = np.array([*(len({rack_of[n] for n in on} - {None}) for on in nodes), 0], np.int32)
            for spread, numbers in (("hosts", hosts), ("racks", racks)):
                if spread in found:
                    found[spread] = np.where(of_stages, numbers[codes], found[spread].to_numpy()).astype(np.int32)


def _joined(codes: np.ndarray, names: list[str], rows: TableRows) -> tuple[np.ndarray, list[str]]:
    texts: dict[str, int] = {}
    code_of_row = np.full(rows.count, -1, np.int32)
    for size in np.unique(rows.size).tolist():
        mine = np.flatnonzero(rows.size == size)
        each = codes[rows.begin[mine][:, np.newaxis] + np.arange(size)]
        kinds, kind = np.unique(each, axis=0, return_inverse=True)
        joined = ["+".join(dict.fromkeys(names[code] for code in one if code >= 0)) for one in kinds.tolist()]
        numbers = np.array([texts.setdefault(text, len(texts)) if text else -1 for text in joined], np.int32)
        code_of_row[mine] = numbers[kind.reshape(-1)]
    return code_of_row, list(texts)


BOUNDED_SLOWDOWN = "bounded_slowdown_{bound:g}s"  # Column of the bounded slowdown, with the bound in its name.

# Columns of the stage table: columns of tasks that are defined for one stage.
OF_STAGES = (
    "id", "request", "stage", "class", "user", "arrival", "ready", "start", "finish", "wait", "device_type", "device",
    "node", "batch", "upload", "compute", "download", "overhead", "status", "reason", STOPS,
    MOVES, ENERGY, COST,
)  # fmt: skip


def bound_name(bound: float = DEFAULT_BOUND) -> str:
    """Name of the bounded slowdown's column for this bound."""
    return BOUNDED_SLOWDOWN.format(bound=bound)


def tasks_table(record: Record, table: ModeTable, bound: float = DEFAULT_BOUND) -> pd.DataFrame:
    """Return the table of tasks that arrived, in workload order; a request is one row.

    `response`, `slowdown`, `bounded_slowdown` and `overhead` are NaN unless the task completed, `wait` unless it
    started. response = (ready - arrival) + wait + upload + compute + download + overhead: `overhead` is the remainder,
    with rounding noise (relative 1e-12 of the clock) set to 0.
    `finish` of a rejected, expired or failed task is the time of that event.

    Columns that exist only if they apply: `hosts` and `racks` (numbers of nodes and racks of the task's place) if tasks
    may span nodes; `cost` if the cluster has prices (`hetsim.results.one_run.usage_metrics`); `step`, `communication`,
    `bubble`, `contention`, `network_bytes` and `mfu` if jobs have training steps or communicate
    (`hetsim.results.one_run.network`); `attempt_of`, the id of the call's first attempt, if clients time out or retry.
    `met_deadline` is False for a task that did not complete in time.  It is missing if the task has no deadline, or a
    deadline after the end of the run (`hetsim.results.one_run.task_metrics`); for a call it is in the row of the first
    attempt. The module's text defines the columns of requests with stages.
    """
    frame = _each_task(record, table, bound)
    return frame if record.input.tasks.staged is None else request_rows(record, frame, bound_name(bound), bound)


def stages_table(record: Record, table: ModeTable) -> pd.DataFrame:
    """Return the table of stages of each request (and item) that arrived.

    `request` is the id of the row in `tasks`, `stage` the stage's name, and `id` the name used in launches.  A stage is
    ready when the previous one has finished; the other columns are those of tasks, except response, slowdown and
    deadline, which only a whole request has.
    """
    if (staged := record.input.tasks.staged) is None:
        return pd.DataFrame()
    frame = _each_task(record, table, DEFAULT_BOUND)
    arrived = record.status != NOT_ARRIVED
    stage = staged.stage[arrived]
    frame["request"] = ids_of_one_kind(staged.id)[arrived]
    frame["stage"] = categorical(stage, staged.stages)
    return frame.loc[stage >= 0, [name for name in OF_STAGES if name in frame]].reset_index(drop=True)


def _each_task(record: Record, table: ModeTable, bound: float) -> pd.DataFrame:
    tasks = record.input.tasks
    rows = TableRows(record, apart=True)
    places = PlaceColumns(record)
    status = rows(record.status)
    completed = status == COMPLETED
    arrival, ready, start, finish = (rows.copy(a) for a in (tasks.arrival, record.ready, record.start, record.finish))
    wait = start - ready
    response = np.where(completed, finish - arrival, np.nan)
    alone = rows(exclusive_time(table))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        slowdown = response / alone
        slowdown[(response == 0) & (alone == 0)] = 1.0  # a task of no length that was not delayed
        bounded = response / np.maximum(alone, bound)
    np.maximum(bounded, 1.0, out=bounded)
    del alone
    upload, compute, download = _stages(record, rows, start, finish=finish, status=status)
    plain = record.compute is None and record.launches is None
    overhead = _held(start, finish, completed, upload=upload, compute=compute, download=download, plain=plain)
    codes = table.codes(tasks.shape, record.mode)
    where = rows(record.place)
    place, node = places.names(where), places.node_names(where)
    columns: dict[str, Any] = {
        "id": rows(np.arange(len(tasks))) if tasks.id is None else rows.copy(ids_of_one_kind(tasks.id)),
        "class": categorical(_codes(tasks.class_code, rows), tasks.classes),
        "user": categorical(_codes(tasks.user_code, rows), tasks.users),
        "arrival": arrival,
        "ready": ready,
        "start": start,
        "finish": finish,
        "wait": wait,
        "response": response,
        "slowdown": slowdown,
        bound_name(bound): bounded,
        "device_type": categorical(rows(codes), [mode.type.name for mode in table.modes]),
        "device": categorical(place[0][where], place[1]),
        "node": categorical(node[0][where], node[1]),
        "batch": _batch(record, rows),
        "upload": upload,
        "compute": compute,
        "download": download,
        "overhead": overhead,
        "status": categorical(status, [STATUS_NAMES[code] for code in range(len(STATUS_NAMES))]),
        "reason": _reasons(record, rows),
        STOPS: _counts(record.preemptions, rows),
        MOVES: _counts(record.migrations, rows),
    }
    if any(mode.span_any for mode in table.modes):
        columns |= {name: counts[where] for name, counts in places.spreads(where).items()}
    deadline = np.full(len(status), np.nan) if tasks.deadline is None else rows.copy(tasks.deadline)
    columns["deadline"] = deadline
    met = completed & (finish <= deadline)
    if record.attempt_of is not None and record.call_end is not None:  # in a chain the last stage answers first
        answered = rows(np.where(record.attempt_of < 0, record.finish, record.call_end[record.attempt_of]))
        met &= answered <= deadline
    if tokens := language.token_times(record):
        limited, kept = (rows(column) for column in language.limits(record, tokens))
        met = np.where(limited, kept & (met | np.isnan(deadline)), met)
    if record.attempt_of is not None:
        met = met_by_calls(rows, record.attempt_of, met)
    columns["met_deadline"] = pd.arrays.BooleanArray(met, ~(rows(due_times(record)) <= observed_until(record)))
    columns[ENERGY] = rows(_energy(record, table))
    if record.input.cluster.priced:
        columns[COST] = rows(_cost(record, table))
    if has_steps(table):
        columns |= {name: rows(values) for name, values in task_columns(record, table).items()}
    columns |= {name: rows.copy(values) for name, values in (tokens | language.counts(record)).items()}
    if record.attempt_of is not None:
        first = np.where(record.attempt_of < 0, np.arange(len(tasks)), record.attempt_of)
        columns["attempt_of"] = rows(first if tasks.id is None else ids_of_one_kind(tasks.id)[first])
    for name, values in tasks.extra.items():
        # A source's column never hides one of ours.
        columns[name if name not in columns else f"{name}_given"] = rows.copy(np.asarray(values))
    # copy=False: a million rows of consolidated copies would double the memory of a run.
    return pd.DataFrame(columns, copy=False)


def _counts(column: np.ndarray | None, rows: TableRows) -> np.ndarray:
    return np.zeros(rows.count, np.int32) if column is None else rows(column).astype(np.int32)


def _codes(column: np.ndarray | None, rows: TableRows) -> np.ndarray:
    return np.zeros(rows.count, np.int8) if column is None else rows(column)


def _stages(
    record: Record, rows: TableRows, start: np.ndarray, finish: np.ndarray, status: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return seconds of upload, compute and download (so far, for running tasks)."""

    def counted(name: str) -> np.ndarray | None:
        column = record.stage(name)
        # A column made for this table is not copied once more: runs of millions of requests would feel it.
        return None if column is None else np.nan_to_num(rows(column), copy=column is getattr(record, name))

    if (compute := counted("compute")) is None:
        compute = np.where(status == UNFINISHED, record.end, finish)
        compute -= start
        compute[np.isnan(compute)] = 0.0
    upload, download = (np.zeros(rows.count) if c is None else c for c in (counted("upload"), counted("download")))
    return upload, compute, download


def _held(
    start: np.ndarray, finish: np.ndarray, completed: np.ndarray,
    upload: np.ndarray, compute: np.ndarray, download: np.ndarray, plain: bool,
) -> np.ndarray:  # fmt: skip
    if plain:
        return np.where(completed, 0.0, np.nan)
    overhead = finish - start
    overhead -= upload
    overhead -= compute
    overhead -= download
    # Stage times are differences and sums of clock readings: noise is relative to the clock.
    overhead[np.abs(overhead) <= 1e-12 * np.maximum(1.0, np.abs(finish))] = 0.0
    overhead[~completed] = np.nan
    return overhead


def _batch(record: Record, rows: TableRows) -> Any:
    if record.batch is None:
        return pd.arrays.IntegerArray(np.zeros(rows.count, np.int32), np.ones(rows.count, bool))
    batch = rows(record.batch)
    return pd.arrays.IntegerArray(batch.astype(np.int32), batch < 0)


def _reasons(record: Record, rows: TableRows) -> Any:
    codes = np.full(len(record.status), -1, np.int32)
    code_of: dict[str, int] = {}
    if record.reasons:
        codes[list(record.reasons)] = [code_of.setdefault(text, len(code_of)) for text in record.reasons.values()]
    return categorical(rows(codes), list(code_of))


def _energy(record: Record, table: ModeTable) -> np.ndarray:
    """Joules above idle by task, lost work excluded; batches are divided equally."""
    count = len(record.status)
    if not record.input.cluster.has_watts:
        return np.full(count, np.nan)
    if not table.dynamic_watts.any() and (record.launches is None or not record.launches["energy"].any()):
        return np.zeros(count)
    launches = launches_of(record, table)
    energy = launches.energy * (1.0 - launches.lost_part)
    if not record.input.language:
        return by_launch(record, launches, energy)
    # Launches of replicas are busy periods, of which the record has the shares of requests.
    by_task = by_launch(record, launches, np.where(language.periods(record, launches.task), 0.0, energy))
    rows = language.rows_of(record.input)
    by_task[rows] = 0.0 if record.energy is None else record.energy[rows]
    return by_task


def _cost(record: Record, table: ModeTable) -> np.ndarray:
    if record.input.language:
        return np.full(len(record.status), np.nan)
    launches = launches_of(record, table)
    return by_launch(record, launches, launch_cost(record, table, launches))


def by_launch(record: Record, launches: LaunchColumns, energy: np.ndarray) -> np.ndarray:
    """Divide each launch's energy (or cost) among its tasks; return the sum by task."""
    count = len(record.status)
    if launches.members is None or record.batch is None:
        return np.bincount(launches.task, weights=energy, minlength=count)
    assert record.launches is not None
    several = launches.members > 1
    by_task = np.bincount(launches.task, weights=np.where(several, 0.0, energy), minlength=count)
    number = launch_numbers(record.launches)[several]
    by_number = np.zeros(int(max(number.max(initial=0), record.batch.max(initial=0))) + 1)
    by_number[number] = energy[several]
    present = np.bincount(record.batch[record.batch >= 0], minlength=len(by_number))
    # Of a batch that was stopped only the first member is known: it carries the energy of all.
    gone = present[number] == 0
    by_task += np.bincount(launches.task[several][gone], weights=energy[several][gone], minlength=count)
    each = by_number / np.maximum(present, 1)
    return by_task + np.where(record.batch < 0, 0.0, each[np.maximum(record.batch, 0)])


def batch_members(record: Record) -> np.ndarray | None:
    """Number of tasks in each task's last launch (1 if none); None if all are 1."""
    if record.batch is None or record.launches is None or "members" not in record.launches:
        return None
    number = launch_numbers(record.launches)
    members = np.ones(int(number.max(initial=0)) + 1, np.int64)
    members[number] = record.launches["members"]
    count_of = np.where(record.batch < 0, 1, members[np.maximum(record.batch, 0)])
    count_of[language.rows_of(record.input)] = 1
    return count_of


def launch_cost(record: Record, table: ModeTable, launches: LaunchColumns) -> np.ndarray:
    """Cost of each launch, from its decision to its end.

    If launches overlap on a GPU with several streams and their shares sum to more than 1, the costs of all launches on
    that GPU are reduced by one factor, so that together they pay for the occupied part of the GPU.
    """
    cluster, places = record.input.cluster, PlaceColumns(record)
    price, _ = prices(cluster)
    seconds, devices = launches.end - launches.decided, len(cluster.devices)
    share, cores = table.share[launches.mode], table.cores[launches.mode]
    apart = places.spread(launches.place, seconds * share, devices)
    together = allocated(record, launches, places, held=seconds, share=share, low=0.0, high=record.end)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(apart > 0, together / apart, 1.0)
    by_place = np.bincount(places.owner, weights=(price * factor)[places.flat], minlength=places.count)
    of_hosts = np.bincount(places.owner, weights=price[places.hosts] * places.amount, minlength=places.count)
    each = of_hosts / np.maximum(places.totals, 1)
    return seconds * (share * by_place[launches.place] + cores * each[launches.place])


def due_times(record: Record) -> np.ndarray:
    """Return when a deadline or token limit is due (the earlier); NaN: none or retry."""
    tasks = record.input.tasks
    due = np.full(len(tasks), np.nan) if tasks.deadline is None else tasks.deadline
    due = np.fmin(due, language.due_times(record)) if record.input.language else due
    return due if record.attempt_of is None else np.where(is_retry(record), np.nan, due)


def observed_until(record: Record) -> float:
    """Time until which outcomes are known: the run's end, or inf if all tasks ended."""
    drained = math.isinf(record.input.horizon) and not (record.status == UNFINISHED).any()
    return math.inf if drained else record.end
