"""Runs as compressed columns of whole numbers, which the page's script draws.

`core.js` reads them: the length of a description, the description as JSON, then each column: the lowest bytes of all
numbers, their next bytes, and so on.  Times are in ticks: an arrival as the difference to that of the task before,
later times as differences to the previous time of the same task.
"""

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError, visible_lines
from hetsim.model.plan import cores_on
from hetsim.model.record import ASLEEP, DOWN, DeviceStates
from hetsim.results.one_run import explain, language
from hetsim.results.one_run.launches import launches_of
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.rows import TableRows

MAX_ROWS = 1_500_000  # maximum number of tasks of all runs of a page; other runs are omitted
FINE, FINE_ROWS, COARSE = 36, 2_000, 26  # tick = end of run / 2**FINE for at most FINE_ROWS tasks, else / 2**COARSE
TASK_TIMES = ("arrival", "ready", "start", "finish")
LAUNCH_TIMES = (
    "decided", "begun", "upload_start", "upload_end", "compute_start", "compute_end", "download_start", "end",
)  # fmt: skip


Waits = pd.DataFrame | None


def waits_by_cause(run: Result) -> Waits:
    """Return the wait of each task by cause; None if the run does not record causes."""
    try:
        return explain.causes(run)
    except UsageError:
        return None


def packed(runs: Mapping[str, tuple[Result, Waits]]) -> tuple[bytes, list[str]]:
    """Return runs that fit on a page, deflated, and the labels of the other runs."""
    columns = _Columns()
    shown: list[dict[str, Any]] = []
    omitted, rows = [], 0
    for label, (run, waits) in runs.items():
        rows += len(run.tasks)
        if shown and rows > MAX_ROWS:
            omitted.append(label)
        else:
            shown.append(_add_run(columns, label, run, waits))
    head = json.dumps({"runs": shown, "columns": columns.index}).encode()
    return zlib.compress(b"".join([len(head).to_bytes(4, "little"), head, *columns.parts]), 9), omitted


class _Columns:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.index: list[list[Any]] = []

    def add(self, name: str, values: Any, *, differences: bool = False) -> None:
        """Add a column of whole numbers, or of their differences.

        If any is negative, n is stored as 2n, and a negative n as -2n - 1 (zigzag).
        """
        numbers = np.asarray(values, dtype=np.int64)
        if differences:
            numbers = np.diff(numbers, prepend=0)
        if signed := bool((numbers < 0).any()):
            numbers = (numbers << 1) ^ (numbers >> 63)
        width = max(1, (int(numbers.max(initial=0)).bit_length() + 7) // 8)
        self.parts.append(numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes())
        self.index.append([name, len(numbers), width, int(signed) + 2 * int(differences)])

    def text(self, name: str, value: Any) -> None:
        self.parts.append(json.dumps(value).encode())
        self.index.append([name, len(self.parts[-1]), 0, 0])


def _add_run(columns: _Columns, label: str, run: Result, waits: Waits) -> dict[str, Any]:
    tasks, cluster = run.tasks, run.record.input.cluster
    tick = _tick([tasks[name].to_numpy() for name in TASK_TIMES], run.end)
    ids = tasks["id"]
    if pd.api.types.is_integer_dtype(ids):
        columns.add("id", ids, differences=True)
    else:
        columns.text("id", [visible_lines(one) for one in ids.astype(str)])
    times = {name: _ticks(tasks[name].to_numpy(), tick) for name in TASK_TIMES}
    columns.add("arrival", times["arrival"], differences=True)
    _chain(columns, times, TASK_TIMES[1:], times["arrival"])
    facts = {name: _codes(columns, name, tasks[name]) for name in ("class", "user", "status", "reason")}
    facts["causes"] = [] if waits is None else _add_causes(columns, run, waits)
    _add_launches(columns, run, times, tick=tick, facts=facts)
    columns.text("devices", [
        [one.name, one.type.name, cluster.nodes[one.node].name, int(units)]
        for one, units in zip(cluster.devices, cluster.units, strict=True)
    ])  # fmt: skip
    columns.text("off", _off(run))
    return facts | {
        "label": label, "tasks": len(tasks), "tick": tick, "end": run.end, "warmup": run.warmup,
        "horizon": run.horizon if math.isfinite(run.horizon) else None,
        "cores": sorted(name for name, kind in cluster.types.items() if kind.kind == "cpu"),
    }  # fmt: skip


def _off(run: Result) -> list[tuple[int, float, float]]:
    states, since, times = DeviceStates(run.record.input.cluster), dict[int, float](), []
    for time, index, what, _ in run.record.device_log:
        for device in states.change(index, what):
            if states.of[device] in (DOWN, ASLEEP):
                since.setdefault(device, time)
            elif device in since:
                times.append((device, since.pop(device), time))
    return times + [(device, begin, run.end) for device, begin in since.items()]


def _tick(times: list[np.ndarray], end: float) -> float:
    """Return 1 s or 1 ms if all times are multiples of it, else a tiny part of `end`."""
    every = np.concatenate(times)
    every = every[np.isfinite(every)]
    for tick in (1.0, 1e-3):
        if (np.abs(every / tick - np.rint(every / tick)) < 1e-6).all() and end < tick * 2**44:
            return tick
    bits = FINE if len(times[0]) <= FINE_ROWS else COARSE
    return float(2.0 ** (math.ceil(math.log2(end)) - bits)) if end > 0 else 1.0


def _ticks(times: Any, tick: float) -> np.ndarray:
    return np.rint(np.nan_to_num(np.asarray(times, dtype=float) / tick, nan=-1.0)).astype(np.int64)


def _chain(columns: _Columns, times: Mapping[str, np.ndarray], names: tuple[str, ...], before: np.ndarray) -> None:
    for name in names:
        there = times[name] >= 0
        step = times[name] - before
        columns.add(name, np.where(there, 1 + ((step << 1) ^ (step >> 63)), 0))
        before = np.where(there, times[name], before)


def _codes(columns: _Columns, name: str, values: pd.Series) -> list[str]:
    column = values.astype("category")
    columns.add(name, column.cat.codes.to_numpy().astype(np.int64) + 1)  # 0: none
    return ["", *(visible_lines(str(name)) for name in column.cat.categories)]


def _add_causes(columns: _Columns, run: Result, table: pd.DataFrame) -> list[str]:
    shown = [name for name in explain.CAUSES if table[name].any()]
    at = pd.Index(run.tasks["id"]).get_indexer(pd.Index(table["id"]))
    wait = table["wait"].to_numpy()
    for name in shown:
        percent = np.zeros(len(run.tasks))
        percent[at[at >= 0]] = (100 * table[name].to_numpy() / np.where(wait > 0, wait, 1.0))[at >= 0]
        columns.add(f"cause {name}", np.rint(percent))
    return shown


def _add_launches(
    columns: _Columns, run: Result, of_tasks: Mapping[str, np.ndarray], tick: float, facts: dict[str, Any]
) -> None:
    record, table = run.record, run.launches
    launches, rows = launches_of(record, run.modes), TableRows(record)
    first = launches.task if rows.staged is None else rows.staged.first[launches.task]
    row = first if rows.chosen is None else np.searchsorted(rows.chosen, first)
    periods = language.periods(record, launches.task)  # of replicas: their requests are drawn instead
    of_table = table.rename(columns={"start": "begun"})  # tasks have a start, too
    times = {name: _ticks(of_table[name].to_numpy(), tick) for name in LAUNCH_TIMES}
    times["end"] = np.where(times["end"] < 0, _ticks(launches.end, tick), times["end"])
    facts["launches"] = len(table)
    columns.add("launch task", row, differences=True)
    started = np.where(of_tasks["start"] >= 0, of_tasks["start"], of_tasks["ready"])
    _chain(columns, times, LAUNCH_TIMES, started[row])
    for name in ("mode", "outcome"):
        facts[name] = _codes(columns, name, table[name])
    lengths = launches.compute_end - launches.compute_start
    with np.errstate(divide="ignore", invalid="ignore"):
        columns.add("rate", np.rint(1e4 * np.nan_to_num(launches.busy / lengths, posinf=0.0)))
    columns.add("period", periods)
    columns.add("members", table["members"])
    used, codes = np.unique(launches.place, return_inverse=True)
    columns.add("place", codes)
    columns.text("places", [_lines(run, place) if place >= 0 else [] for place in used.tolist()])
    number = pd.Index(table["launch"]).get_indexer(pd.Index(run.tasks["batch"].fillna(-1).astype(np.int64)))
    columns.add("batch", number + 1)
    tokens = run.tasks["arrival"] + run.tasks["ttft"] if "ttft" in run.tasks else np.full(len(run.tasks), np.nan)
    _chain(columns, {"token": _ticks(tokens, tick)}, ("token",), started)


def _lines(run: Result, place: int) -> list[list[int]]:
    """Return [device, core] for each device of a placement; core -1: not recorded."""
    devices, cores = run.record.places[place]
    if cores is None:
        return [[int(device), -1] for device in devices]
    named = zip(devices, cores_on(devices, cores, run.record.input.cluster), strict=True)
    return [[int(device), int(core)] for device, here in named for core in here]
