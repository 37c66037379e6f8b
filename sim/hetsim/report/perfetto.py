"""A run as a Chrome trace for Perfetto: nodes, their engines, launches.

The file is in the Trace Event Format (JSON), gzipped if its name ends in .gz.  Its contents:

process     the cluster (its counters), then each node that served a launch
thread      an engine of a device (upload, compute, download), or a core; an engine that serves several launches at a
            time has as many threads, so that slices on one thread never overlap.  "overhead" has the times in which
            a launch occupied its device without any active stage
slice       a stage of a launch, named by its first task; its arguments are launch, batch size, outcome
counter     waiting and running tasks, busy GPUs and cores, of the cluster and (if they are few) of each node
arrow       from a task of a graph to each successor

A launch of a language model is only a busy period of a replica: each model has a process of its own instead, with a
slice for the prompt of every request and one for its answer.

Times are microseconds of the simulation, written to the nanosecond.  The same run gives the same bytes.
"""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.model.files import write_whole
from hetsim.model.service import LanguageService
from hetsim.model.units import shown
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.over_bins import device_bars, fill_lanes
from hetsim.results.one_run.result import Result

STAGES = (
    ("upload", "upload_start", "upload_end"),
    ("compute", "compute_start", "compute_end"),
    ("download", "download_start", "end"),
)
OVERHEAD = "overhead"
ORDER = ("upload", "compute", "download", OVERHEAD)

# Number of the cluster's own process; nodes follow.  Threads count from 1, since Perfetto draws a thread with the
# number of its process first, as its main thread.
CLUSTER = 1000

MAX_NODES = 100  # number of nodes above which only the cluster has counters

NANO = 1e9
Event = dict[str, Any]


class Slices(NamedTuple):
    """Slices of a Perfetto trace: stages of launches as columns, in whole nanoseconds."""

    bar: np.ndarray  # row of the bar of each slice
    stage: np.ndarray  # position in ORDER
    begin: np.ndarray
    end: np.ndarray


def check_trace_file(path: str | Path) -> Path:
    """Check that a trace can be written to a path later; else raise UsageError."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"the trace must be a file, such as run.json.gz; got {shown(str(target))}, a folder")
    parent = target.absolute().parent
    if not parent.is_dir():
        raise UsageError(f"{shown(str(target))} cannot be written: the folder {parent} does not exist")
    if not os.access(parent, os.W_OK):
        raise UsageError(f"{shown(str(target))} cannot be written: no permission in {parent}")
    return target


def write_trace(result: Result, path: str | Path) -> Path:
    """Write the trace of a run; compressed if the name ends in .gz.

    UsageError if the result is not one run, such as replications.
    """
    target = check_trace_file(path)
    if isinstance(result, Replications):
        raise UsageError(
            f"write_trace needs one run; got {len(result)} replications: "
            "give one of their `results`, such as write_trace(runs.results[0], path)"
        )
    if not isinstance(result, Result):
        raise UsageError(f"write_trace needs the result of a run; got a {type(result).__name__}")

    def write(temporary: Path) -> None:
        with temporary.open("wb") as raw:
            if target.suffix == ".gz":
                # Neither name nor time of the file in its head: the same run gives the same bytes.
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as packed:
                    _write(result, packed)
            else:
                _write(result, raw)

    write_whole(target, write)
    return target


def _write(result: Result, stream: Any) -> None:
    about = {"scenario": result.name, "policy": result.policy, "seed": result.seed, "replication": result.replication}
    head = '{"displayTimeUnit":"ms","otherData":' + json.dumps(about, ensure_ascii=False) + ',"traceEvents":[\n'
    stream.write(head.encode())
    for number, event in enumerate(trace_events(result)):
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        stream.write(("" if number == 0 else ",\n").encode() + text.encode())
    stream.write(b"\n]}\n")


def trace_events(result: Result) -> Iterator[Event]:
    """Yield the events of a run: names, slices, counters, arrows."""
    bars = device_bars(result)
    slices = _slices(bars)
    node_of = dict(zip(result.devices["device"], result.devices["node"], strict=True))
    nodes = list(dict.fromkeys(result.devices["node"]))
    used = {node_of[line] for line in bars["line"].unique()}
    process = {node: CLUSTER + 1 + number for number, node in enumerate(nodes) if node in used}
    yield from _labels("process", CLUSTER, 0, f"cluster of {result.name}" if result.name else "cluster")
    for node, number in process.items():
        yield from _labels("process", number, 0, f"node {node}")
    pid = np.array([process[node_of[line]] for line in bars["line"]], dtype=np.int64)
    tid, threads = _threads(result, bars, slices)
    for (owner, number), name in threads.items():
        yield from _labels("thread", process[node_of[owner]], number, name)
    yield from _slice_events(bars, slices, pid, tid)
    for number, service in enumerate(result.record.input.language):
        yield from _request_events(result, service, CLUSTER + 1 + len(nodes) + number)
    yield from _counters(result, process)
    yield from _arrows(result, bars, slices, pid=pid, tid=tid)


def _labels(kind: str, process: int, thread: int, name: str) -> Iterator[Event]:
    for what, value in (("name", name), ("sort_index", thread or process)):
        yield {"ph": "M", "name": f"{kind}_{what}", "pid": process, "tid": thread, "args": {what: value}}


# Slices ------------------------------------------------------------------------------------------------------------


def _slices(bars: pd.DataFrame) -> Slices:
    end = bars["end"].to_numpy(dtype=float)
    columns = {name: bars[name].to_numpy(dtype=float) for stage in STAGES for name in stage[1:]}
    columns |= {"decided": bars["decided"].to_numpy(dtype=float), "end": end}
    parts = []
    for number, (_, first, last) in enumerate(STAGES):
        begin = columns[first]
        until = np.where(np.isnan(columns[last]), end, columns[last])
        parts.append((number, begin, until, ~np.isnan(begin)))
    parts += [(ORDER.index(OVERHEAD), *gap) for gap in _gaps(columns)]
    bar = np.concatenate([np.flatnonzero(kept) for _, _, _, kept in parts])
    stage = np.concatenate([np.full(int(kept.sum()), number) for number, _, _, kept in parts])
    begin = np.concatenate([values[kept] for _, values, _, kept in parts])
    until = np.concatenate([values[kept] for _, _, values, kept in parts])
    return Slices(bar, stage, np.round(begin * NANO).astype(np.int64), np.round(until * NANO).astype(np.int64))


def _gaps(columns: dict[str, np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    before = columns["decided"]
    for _, first, last in STAGES:
        begin = columns[first]
        yield before, begin, np.round(before * NANO) < np.round(begin * NANO)
        until = np.where(np.isnan(columns[last]), columns["end"], columns[last])
        before = np.where(np.isnan(begin), before, until)
    yield before, columns["end"], np.round(before * NANO) < np.round(columns["end"] * NANO)


def _threads(result: Result, bars: pd.DataFrame, slices: Slices) -> tuple[np.ndarray, dict[tuple[str, int], str]]:
    """Return the Perfetto thread of each slice, and thread names by (device, number)."""
    line, core = bars["line"].to_numpy()[slices.bar], bars["core"].to_numpy()[slices.bar]
    positions = {device: number for number, device in enumerate(result.devices["device"])}
    device = np.array([positions[name] for name in line], dtype=np.int64)
    order = np.lexsort((slices.stage, core, device))
    keys = np.stack([device[order], core[order], slices.stage[order]])
    edges = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    thread = np.zeros(len(order), dtype=np.int64)
    names: dict[tuple[str, int], str] = {}
    following: dict[str, int] = {}
    node_of = dict(zip(result.devices["device"], result.devices["node"], strict=True))
    for group in np.split(order, edges) if len(order) else []:
        owner, stage, which = str(line[group[0]]), ORDER[slices.stage[group[0]]], int(core[group[0]])
        lane, used = fill_lanes(slices.begin[group], slices.end[group], slack=0.0)
        first = following.get(node_of[owner], 1)
        following[node_of[owner]] = first + used
        thread[group] = first + lane
        short = owner.rpartition("/")[2] + (str(which) if which >= 0 else "")
        for number in range(used):
            names[owner, first + number] = f"{short} {stage}" + (f" {number + 1}" if used > 1 else "")
    return thread, names


def _slice_events(bars: pd.DataFrame, slices: Slices, pid: np.ndarray, tid: np.ndarray) -> Iterator[Event]:
    order = np.lexsort((slices.end, slices.begin, tid, pid[slices.bar]))
    names = [str(task) for task in bars["task"]]
    members, launch = bars["members"].tolist(), bars["launch"].tolist()
    outcome, mode = bars["outcome"].astype(str).tolist(), bars["mode"].astype(str).tolist()
    for at in order.tolist():
        bar, stage = int(slices.bar[at]), ORDER[slices.stage[at]]
        more = f" +{members[bar] - 1}" if members[bar] > 1 else ""
        yield {
            "ph": "X", "name": names[bar] + more, "cat": stage, "pid": int(pid[bar]), "tid": int(tid[at]),
            "ts": _micro(slices.begin[at]), "dur": _micro(slices.end[at] - slices.begin[at]),
            "args": {"launch": launch[bar], "tasks": members[bar], "mode": mode[bar], "outcome": outcome[bar]},
        }  # fmt: skip


def _request_events(result: Result, service: LanguageService, process: int) -> Iterator[Event]:
    """Yield a prompt span and an answer span for each request to a language model."""
    record, tasks = result.record, result.record.input.tasks
    rows = service.rows[~np.isnan(record.start[service.rows])]
    begin, first, end = (
        np.full(len(rows), np.nan) if column is None else column[rows]
        for column in (record.start, record.first_token, record.finish)
    )
    end = np.where(np.isnan(end), record.end, end)
    first = np.where(np.isnan(first), end, first)
    begin, first, end = (np.round(values * NANO).astype(np.int64) for values in (begin, first, end))
    lane, used = fill_lanes(begin, end, slack=0.0)
    if len(rows):
        yield from _labels("process", process, 0, f"requests of {service.name}")
    for number in range(used if len(rows) else 0):
        yield from _labels("thread", process, 1 + number, f"request {number + 1}")
    for at in np.lexsort((begin, lane)).tolist():
        name, where = tasks.name(int(rows[at])), {"pid": process, "tid": 1 + int(lane[at])}
        for what, since, until in (("prompt", begin[at], first[at]), ("answer", first[at], end[at])):
            if until > since:
                yield {"ph": "X", "name": f"{name} {what}", "cat": what, **where, "ts": _micro(since),
                       "dur": _micro(until - since)}  # fmt: skip


def _micro(nanoseconds: Any) -> float:
    return int(nanoseconds) / 1000


# Counters and arrows ----------------------------------------------------------------------------------------------


def _counters(result: Result, process: dict[str, int]) -> Iterator[Event]:
    by_node = 0 < len(process) <= MAX_NODES
    table = result.timeline_by("node") if by_node else result.timeline
    times = [_micro(round(time * NANO)) for time in table["time"].tolist()]
    gauges = [
        (CLUSTER, "tasks", {name: name for name in ("waiting", "running")}),
        (CLUSTER, "GPUs", {"busy": "busy_gpus", "allocated": "allocated_gpus"}),
        (CLUSTER, "cores", {"busy": "busy_cores"}),
    ]
    gauges += [(number, "devices", {"busy": f"busy.{node}"}) for node, number in process.items()]
    for owner, name, series in gauges:
        kept = {label: table[column].to_numpy() for label, column in series.items() if column in table}
        if kept and any(values.any() for values in kept.values()):
            yield from _steps(owner, name, times, kept)


def _steps(owner: int, name: str, times: list[float], series: dict[str, np.ndarray]) -> Iterator[Event]:
    columns = np.stack([np.asarray(values, dtype=float) for values in series.values()])
    if not columns.shape[1]:
        return
    changed = np.concatenate([[True], np.any(np.diff(columns, axis=1) != 0, axis=0)])
    labels = list(series)
    for at in np.flatnonzero(changed).tolist():
        values = {label: float(value) for label, value in zip(labels, columns[:, at], strict=True)}
        yield {"ph": "C", "name": name, "pid": owner, "tid": 0, "ts": times[at], "args": values}


def _arrows(result: Result, bars: pd.DataFrame, slices: Slices, pid: np.ndarray, tid: np.ndarray) -> Iterator[Event]:
    tasks = result.record.input.tasks
    if tasks.predecessors is None or not len(slices.bar):
        return
    row = {str(tasks.name(index)): index for index in range(len(tasks))}
    owner = np.array([row.get(str(name), -1) for name in bars["task"]], dtype=np.int64)[slices.bar]
    first, last = np.full(len(tasks), -1), np.full(len(tasks), -1)
    order = np.lexsort((slices.end, slices.begin))
    order = order[(owner[order] >= 0) & (slices.stage[order] != ORDER.index(OVERHEAD))]
    last[owner[order]] = order  # the last of equal entries stays
    first[owner[order[::-1]]] = order[::-1]
    number = 0
    for successor, before in enumerate(tasks.predecessors):
        for predecessor in before:
            source, target = int(last[predecessor]), int(first[successor])
            if source < 0 or target < 0:
                continue  # one of them never ran
            number += 1
            same = {"cat": "graph", "name": "precedes", "id": number}
            yield {"ph": "s", **same, "pid": int(pid[slices.bar[source]]), "tid": int(tid[source]),
                   "ts": _micro(slices.begin[source])}  # fmt: skip
            yield {"ph": "f", "bp": "e", **same, "pid": int(pid[slices.bar[target]]), "tid": int(tid[target]),
                   "ts": _micro(slices.begin[target])}  # fmt: skip
