"""Records written by hand, for tests whose right answers are worked out on paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import WHOLE, DeviceType, Link, Power
from hetsim.model.mode import Mode, Shape
from hetsim.model.record import COMPLETED, NOT_ARRIVED, UNFINISHED, Record, RunInput
from hetsim.model.tasks import Tasks
from hetsim.results.one_run.result import Result

GPU = DeviceType("g", power=Power(idle=50, busy=250, sleep=5))


def cluster(nodes: int = 1, gpus: int = 1, cpus: int = 0, kind: DeviceType = GPU) -> Cluster:
    return Cluster([NodeSpec(cpus=cpus, accelerators=((kind, gpus),), count=nodes)])


def gpu_mode(gpus: int = 1, share: int = WHOLE, kind: DeviceType = GPU, **more: Any) -> Mode:
    return Mode(f"{gpus} gpu", kind, gpus=gpus, share=share, **more)


def workload(
    arrival: list[float], time: list, modes: list[list[Mode]] | None = None, shape: Any = None, **more: Any
) -> Tasks:
    """Tasks; `time` is a list of numbers, or of lists with one number a mode."""
    times = np.array(time, dtype=float).reshape(len(arrival), -1)
    shapes = [Shape(found) for found in (modes or [[gpu_mode()]])]
    codes = np.zeros(len(arrival), np.int64) if shape is None else np.array(shape)
    return Tasks(np.array(arrival, dtype=float), codes, shapes, times, times, **more)


def record(
    where: Cluster, tasks: Tasks, start: list[float], finish: list[float], place: list[tuple[int, ...] | None],
    *, end: float | None = None, warmup: float = 0.0, horizon: float = math.inf, status: list[int] | None = None,
    mode: list[int] | None = None, **more: Any,
) -> Record:  # fmt: skip
    """A record of plain launches; NaN starts and finishes and place None where there were none."""
    starts, finishes = np.array(start, dtype=float), np.array(finish, dtype=float)
    if status is None:
        status = [UNFINISHED if math.isnan(f) else COMPLETED for f in finish]
    places = list(dict.fromkeys(p for p in place if p is not None))
    absent = np.array(status) == NOT_ARRIVED
    return Record(
        input=RunInput("by hand", where, tasks, None, warmup=warmup, horizon=horizon, policy="paper"),
        end=float(np.nanmax(finishes)) if end is None else end,
        status=np.array(status, dtype=np.int8),
        ready=more.pop("ready", np.where(absent, np.nan, tasks.arrival)),
        start=starts,
        finish=finishes,
        mode=np.array(mode or [-1 if p is None else 0 for p in place], dtype=np.int16),
        place=np.array([-1 if p is None else places.index(p) for p in place], dtype=np.int32),
        places=[(p, None) for p in places],
        **more,
    )


def launches(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    """Launch columns from rows; stages that are not given follow from start and end."""
    names = ("upload_start", "upload_end", "download_start")
    full = []
    for number, row in enumerate(rows):
        line: dict[str, float] = dict.fromkeys(names, math.nan)
        line |= {"launch": number, "members": 1, "mode": 0, "outcome": 0, "lost": 0.0, "decided": row["start"]}
        line |= {"compute_start": row["start"], "compute_end": row["end"]}
        line |= {"busy": row["end"] - row["start"], "energy": 200 * (row["end"] - row["start"])}
        full.append(line | row)
    whole = ("launch", "members", "mode", "outcome", "task", "place")
    return {name: np.array([row[name] for row in full], dtype=int if name in whole else float) for name in full[0]}


def three() -> Result:
    """One GPU, first come first served: arrivals 0, 1, 2, times 4, 3, 2; so starts 0, 4, 7 and finishes 4, 7, 9."""
    tasks = workload([0, 1, 2], [4, 3, 2])
    return Result(record(cluster(), tasks, [0, 4, 7], [4, 7, 9], [(1,)] * 3), seed=7)


def slow_link() -> DeviceType:
    """Upload 1 GB/s, download 0.5 GB/s, latency 0.1 s."""
    return DeviceType("g", link=Link(upload=1e9, download=0.5e9, latency=0.1), power=GPU.power)
