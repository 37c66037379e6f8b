"""Launches on lines of devices for Gantt charts and traces, without overlaps."""

import heapq

import numpy as np
import pandas as pd

from hetsim.results.one_run.measured import Run


def device_bars(result: Run) -> pd.DataFrame:
    """One row per launch and device or named core (`core`, else -1).

    `end` of what still runs is the end of the run; `cpu` says whether the line is a node's cores.
    """
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
    """The lowest free lane for each interval, and the number of lanes.

    Intervals that overlap by less than `slack` of their begin share a lane: sums of floats meet only nearly.
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
