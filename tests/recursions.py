"""Queues in a few lines each: when tasks start and finish, from their arrivals and sizes alone.

Second opinions on the engine, and so fast that a closed form can be held against hundreds of thousands of tasks.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from hetsim.engine.simulation import Simulation
from hetsim.model.tasks import Tasks
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import student_interval
from hetsim.scenario.scenario import load

CONFIDENCE = 0.99

Times = tuple[np.ndarray, np.ndarray]
"""Starts and finishes; NaN of a task that is lost."""


def in_line(
    arrival: np.ndarray, size: np.ndarray, servers: int = 1, expires: np.ndarray | None = None,
    room: float | np.ndarray = math.inf
) -> Times:  # fmt: skip
    """In order of arrival on equal servers, as Lindley (1952) and Kiefer and Wolfowitz (1955) reckon waits.

    A task that could not start before it expires, or that finds as many as there is room for, is lost.
    """
    rooms = np.broadcast_to(room, len(arrival)).tolist()
    free: list[float] = [0.0] * servers
    ends: list[float] = []
    start = np.full(len(arrival), math.nan)
    for row, (came, takes) in enumerate(zip(arrival.tolist(), size.tolist(), strict=True)):
        begins = max(came, free[0])
        while ends and ends[0] <= came:
            heapq.heappop(ends)
        if len(ends) < rooms[row] and (expires is None or begins <= expires[row]):
            start[row] = begins
            heapq.heapreplace(free, begins + takes)
            if rooms[row] < math.inf:
                heapq.heappush(ends, begins + takes)
    return start, start + size


def by_order(arrival: np.ndarray, size: np.ndarray, order: Callable[[int, float], float], stops: bool = False) -> Times:
    """One server that takes the task with the least `order(row, what is left of it)`; `stops`: even if one runs."""
    left, since, running = size.tolist(), 0.0, -1
    start, finish = np.full((2, len(arrival)), math.nan)
    waiting: list[tuple[float, int]] = []
    came, row = arrival.tolist(), 0
    while row < len(came) or running >= 0:
        ends = since + left[running] if running >= 0 else math.inf
        if row == len(came) or ends <= came[row]:
            now, finish[running], running = ends, ends, -1
        else:
            now = came[row]
            heapq.heappush(waiting, (order(row, left[row]), row))
            row += 1
            if stops and running >= 0:
                left[running] -= now - since
                since = now
                if waiting[0][0] < order(running, left[running]):
                    heapq.heappush(waiting, (order(running, left[running]), running))
                    running = -1
        if running < 0 and waiting:
            running, since = heapq.heappop(waiting)[1], now
            if start[running] != start[running]:
                start[running] = now
    return start, finish


def shared(arrival: np.ndarray, size: np.ndarray, speed: Callable[[int], float], most: float = math.inf) -> Times:
    """One server shared by at most that many tasks, each of k of which runs at `speed(k)`; others wait in line."""
    start, finish = np.full((2, len(arrival)), math.nan)
    done, now = 0.0, 0.0  # what each task that runs has got since the beginning, and when
    running: list[tuple[float, int]] = []
    waiting: deque[int] = deque()
    came, takes, row = arrival.tolist(), size.tolist(), 0
    while row < len(came) or running:
        pace = speed(len(running)) if running else 1.0
        ends = now + (running[0][0] - done) / pace if running else math.inf
        if row == len(came) or ends <= came[row]:
            now, done = ends, running[0][0]
            finish[heapq.heappop(running)[1]] = now
        else:
            done += (came[row] - now) * pace
            now = came[row]
            waiting.append(row)
            row += 1
        while waiting and len(running) < most:
            start[waiting[0]] = now
            heapq.heappush(running, (done + takes[waiting[0]], waiting.popleft()))
    return start, finish


# What they are held against --------------------------------------------------------------------------------------


def sizes(tasks: Tasks) -> np.ndarray:
    return tasks.time[:, 0]


def reckoned(
    of: dict[str, Any], seed: int, how: Callable[[Tasks], Times], exact: Mapping[str | tuple[str, str], float]
) -> None:
    """The interval of every metric named, or of a class's, over 20 replications, covers its exact value.

    `lost_mean` is the share of tasks that are lost.

    `how` gives starts and finishes of the tasks that a replication draws, by a recursion.  The engine runs the first
    and the last replication: its starts and finishes are these, and so are its metrics.
    """
    built = load(of)
    values: dict[Any, list[float]] = {key: [] for key in exact}
    for replication in range(20):
        tasks = built.build(seed, replication).tasks
        start, finish = how(tasks)
        alone = {"wait": start - tasks.arrival, "response": finish - tasks.arrival}
        alone["slowdown"] = alone["response"] / sizes(tasks)
        counted = tasks.arrival >= built.model.warmup
        for key, found in values.items():
            metric, name = key if isinstance(key, tuple) else (key, "")
            mine = counted & (tasks.class_code == tasks.classes.index(name)) if name else counted
            kind, _, what = metric.partition("_")
            found.append(part_of(np.isnan(finish[mine]), what) if kind == "lost" else part_of(alone[kind][mine], what))
        if replication in (0, 19):
            run = Result(Simulation(built.build(seed, replication)).run())
            ended = run.tasks["finish"].where(run.tasks["status"] == "completed")  # what is lost ends, too
            assert ended.to_numpy() == pytest.approx(finish, rel=1e-9, nan_ok=True)
            for key, found in values.items():
                metric, name = key if isinstance(key, tuple) else (key, "")
                if metric != "lost_mean":
                    told = run.by("class", [metric]).loc[name, metric] if name else run.metric(metric)
                    assert told == pytest.approx(found[-1])
    for key, value in exact.items():
        interval = student_interval(values[key], CONFIDENCE, str(key))
        assert interval.covers(value), f"{interval} does not cover {value:.6g}"


def part_of(values: np.ndarray, what: str) -> float:
    """The mean, or a percentile (p95), of the values that there are."""
    known = values[~np.isnan(values)]
    return float(known.mean() if what == "mean" else np.quantile(known, int(what[1:]) / 100))
