"""Launches by device for Gantt charts, and power in equal time intervals.

Power is exact: the sum over the intervals equals the energy in the device table.
"""

import heapq

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.results.one_run.launches import PlaceColumns, launches_of
from hetsim.results.one_run.measured import Run
from hetsim.results.one_run.usage import device_states, resting_watts


def device_bars(result: Run) -> pd.DataFrame:
    """Return one row per launch and device, or per launch and core (column `core`)."""
    frame = result.launches.copy()
    frame["end"] = frame["end"].fillna(result.end)
    frame["line"] = frame["device"].astype(str).str.split("+", regex=False)
    frame = frame.explode("line", ignore_index=True)
    named = frame["line"].str.extract(r"^(.*/cpu)(\d+)$")
    frame["core"] = named[1].fillna("-1").astype(np.int64)
    frame["line"] = named[0].fillna(frame["line"])
    kinds = result.devices.set_index("device")["kind"].astype(str)
    frame["cpu"] = frame["line"].map(kinds).fillna("cpu") == "cpu"
    return frame


def fill_lanes(begin: np.ndarray, end: np.ndarray, slack: float = 1e-12) -> tuple[np.ndarray, int]:
    """Assign each interval the lowest free lane (row of a chart); count the lanes.

    An overlap of at most `slack` × start time is a rounding error and is ignored.
    """
    lane_of = np.zeros(len(begin), dtype=np.int64)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    used = 0
    for at in np.lexsort((end, begin)).tolist():
        while busy and busy[0][0] <= begin[at] + slack * abs(begin[at]):
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        lane_of[at] = lane
        heapq.heappush(busy, (float(end[at]), lane))
    return lane_of, max(used, 1)


def power_over_time(result: Run, bins: int = 200) -> pd.DataFrame:
    """Watts in `bins` equal intervals: columns time, TYPE.work, TYPE.idle, TYPE.sleep.

    `work` is the power of launches above idle, lost work included, spread evenly over each compute stage.
    """
    if bins < 1:
        raise UsageError(f"bins must be at least 1; got {bins}")
    edges = np.linspace(0.0, result.end if result.end > 0 else 1.0, bins + 1)
    width = np.diff(edges)
    record = result.record
    cluster = record.input.cluster
    kinds = list(dict.fromkeys(result.devices["type"].astype(str)))
    type_of = np.array([kinds.index(device.type.name) if device.type.name in kinds else -1
                        for device in cluster.devices])  # fmt: skip
    launches, places = launches_of(record, result.modes), PlaceColumns(record)
    length = launches.compute_end - launches.compute_start
    drawn = np.divide(launches.energy, length, out=np.zeros(len(launches)), where=length > 0)
    launch, device, watts = places.divided(launches.place, drawn)
    begin, end = launches.compute_start[launch], launches.compute_end[launch]
    work = _in_bins(begin, end, watts, row=type_of[device], rows=len(kinds), edges=edges)
    idle_watts, sleep_watts = resting_watts(cluster)
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


def _in_bins(
    begin: np.ndarray, end: np.ndarray, rate: np.ndarray, row: np.ndarray, rows: int, edges: np.ndarray
) -> np.ndarray:
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
