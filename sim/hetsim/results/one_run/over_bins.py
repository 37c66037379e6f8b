"""Devices in equal stretches of time: shares busy, and power drawn, as tables.

Each is exact: the sum over the stretches is what the device tables say of the whole run.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.results.one_run.launches import LaunchColumns, PlaceColumns, launches_of
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.usage import device_states

GROUPS = ("device", "node", "type")


def busy_over_time(result: Run, bins: int = 120, by: str = "device") -> pd.DataFrame:
    """Share of each device, node or type that computed, in `bins` equal parts.

    Rows are devices (nodes, types) in the order of the cluster, columns the begins of the stretches in seconds.  Of a
    node with accelerators the share is of these, of others of their cores.
    """
    edges = _edges(result, bins)
    if by not in GROUPS:
        raise UsageError(f'shares are told by {", ".join(GROUPS)}, not by "{by}"')
    names, owner, capacity = _owners(result, by)
    launches, places = launches_of(result.record, result.modes), PlaceColumns(result.record)
    launch, device, rate = places.divided(launches.place, _rate(launches.busy, launches))
    begin, end = launches.compute_start[launch], launches.compute_end[launch]
    seconds = _in_bins(begin, end, rate, row=owner[device], rows=len(names), edges=edges)
    share = seconds / (capacity[:, None] * np.diff(edges))
    return pd.DataFrame(share, index=pd.Index(names, name=by), columns=pd.Index(edges[:-1], name="time"))


def power_over_time(result: Run, bins: int = 200) -> pd.DataFrame:
    """Watts in `bins` equal parts: time, then TYPE.work, .idle, .sleep.

    `work` is what launches drew above idle, lost work included, spread evenly over each launch's compute stage.
    """
    edges = _edges(result, bins)
    width = np.diff(edges)
    record = result.record
    cluster = record.input.cluster
    kinds, type_of, _ = _owners(result, "type")
    launches, places = launches_of(record, result.modes), PlaceColumns(record)
    launch, device, watts = places.divided(launches.place, _rate(launches.energy, launches))
    begin, end = launches.compute_start[launch], launches.compute_end[launch]
    work = _in_bins(begin, end, watts, row=type_of[device], rows=len(kinds), edges=edges)
    count = np.array(cluster.powered_units, float)
    draws = [device.type.power for device in cluster.devices]
    idle_watts = np.array([draw.idle for draw in draws]) * count
    sleep_watts = np.array([draw.sleep for draw in draws]) * count
    idle, sleep = np.zeros_like(work), np.zeros_like(work)
    states = zip(edges[:-1], edges[1:], strict=True)
    seen = type_of >= 0
    for number, (low, high) in enumerate(states):
        up, asleep, *_ = device_states(record, low, high)
        np.add.at(idle[:, number], type_of[seen], (up * idle_watts)[seen])
        np.add.at(sleep[:, number], type_of[seen], (asleep * sleep_watts)[seen])
    columns = {"time": edges[:-1]}
    for number, kind in enumerate(kinds):
        for name, part in (("work", work), ("idle", idle), ("sleep", sleep)):
            columns[f"{kind}.{name}"] = part[number] / width
    return pd.DataFrame(columns)


def _edges(result: Run, bins: int) -> np.ndarray:
    if bins < 1:
        raise UsageError(f"time is cut into at least one stretch, not {bins}")
    return np.linspace(0.0, result.end if result.end > 0 else 1.0, bins + 1)


def _rate(amount: np.ndarray, launches: LaunchColumns) -> np.ndarray:
    """A total per launch as a rate over its compute stage."""
    length = launches.compute_end - launches.compute_start
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(length > 0, amount / length, 0.0)


def _owners(result: Run, by: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of rows, the row of each device (-1: none), and the amount of each row."""
    table = result.devices
    numbers = {device.name: device.index for device in result.record.input.cluster.devices}
    at = np.array([numbers[name] for name in table["device"]], dtype=np.int64)
    label = table[by].astype(str)
    kept = np.ones(len(table), dtype=bool)
    if by == "node":
        accelerated = label.isin(set(label[table["kind"].astype(str) != "cpu"])).to_numpy()
        kept = ~accelerated | (table["kind"].astype(str) != "cpu").to_numpy()
    names = list(dict.fromkeys(label[kept]))
    row = {name: number for number, name in enumerate(names)}
    owner = np.full(len(numbers), -1, dtype=np.int64)
    owner[at[kept]] = [row[name] for name in label[kept]]
    capacity = np.bincount(owner[at[kept]], weights=table["count"].to_numpy(dtype=float)[kept], minlength=len(names))
    return names, owner, capacity


def _in_bins(
    begin: np.ndarray, end: np.ndarray, rate: np.ndarray, row: np.ndarray, rows: int, edges: np.ndarray
) -> np.ndarray:
    """The integral of `rate` over [begin, end) in each bin by row; NaN counts 0."""
    bins, width = len(edges) - 1, edges[1] - edges[0]
    counted = ~(np.isnan(begin) | np.isnan(end)) & (rate > 0) & (row >= 0)
    rate, row = rate[counted], row[counted]
    low, high = (np.clip(times[counted], edges[0], edges[-1]) for times in (begin, end))
    first, last = (np.clip(((times - edges[0]) / width).astype(np.int64), 0, bins - 1) for times in (low, high))
    inside = first == last
    head = np.where(inside, high - low, edges[first + 1] - low)
    tail = np.where(inside, 0.0, high - edges[last])

    def total(column: np.ndarray, weight: np.ndarray) -> np.ndarray:
        # One column more than there are bins: differences may end behind the last.
        return np.bincount(row * (bins + 1) + column, weights=weight, minlength=rows * (bins + 1)).reshape(rows, -1)

    through = np.where(inside, 0.0, rate)  # from the bin after the first to the bin before the last it is all there
    full = np.cumsum(total(first + 1, through) - total(last, through), axis=1)[:, :bins]
    parts = total(first, rate * np.maximum(head, 0.0)) + total(last, rate * np.maximum(tail, 0.0))
    return parts[:, :bins] + np.maximum(full, 0.0) * width
