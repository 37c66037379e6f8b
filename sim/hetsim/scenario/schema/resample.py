"""Another trace from one: rows drawn again by blocks of time, or user by user.

Blocks: a moving-block bootstrap (Künsch, "The jackknife and the bootstrap for general stationary observations", 1989)
on the trace closed to a circle (Politis and Romano, 1992), so that every row is as likely as any other.  Inside a block
order and gaps stay; between blocks dependence is cut.  Where a block is a whole number of days it begins at one of the
trace's days (24 h from its first arrival on), so that the time of day stays what it was.
By user: as many users as there are, drawn with replacement; each brings all its jobs at their times, and one drawn
twice is two users.
By row: all rows in random order, then rows drawn with replacement, until they ask for `gpu_demand` times the GPUs of
the cluster; where the trace asks for more, rows drawn at random are left out.  Time runs with demand: a task arrives
when the GPUs that were asked for, its own included, are that many hundredths of those of the cluster, in seconds.  So
Weng et al., Beware of Fragmentation (USENIX ATC 2023), fill a cluster.

The jobs come when the trace says, however long those before them take: an open loop.  What is drawn is like the trace
and cannot know more than it: intervals are for the expectation over such draws.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import field_validator, model_validator

from hetsim.model.units import Positive, Seconds
from hetsim.scenario.fields import Model

DAY = 86_400.0
BETWEEN = 1e-6
"""Seconds between a task that asks for no GPU and the one before it, where time runs with demand."""
FEW = 5
"""Blocks or users in the trace below which the draws are too alike for intervals to be believed."""


class Resample(Model):
    """Draw a trace again in every replication, by `block` seconds or `by` user."""

    block: Seconds | None = None
    """Length of the stretches of the trace that are drawn, in the trace's own time."""
    by: Literal["user", "row"] | None = None
    """user: whole users are drawn, with all their jobs; row: rows in random order, up to gpu_demand."""
    gpu_demand: Positive | None = None
    """By row: how many times the GPUs of the cluster the rows ask for together."""

    @field_validator("block")
    @classmethod
    def _some_time(cls, value: float | None) -> float | None:
        if value == 0:
            raise ValueError("must be above 0")
        return value

    @model_validator(mode="after")
    def _one(self) -> Resample:
        if (self.block is None) == (self.by is None):
            raise ValueError("give either block (a time such as 1 week) or by: user or row")
        if (self.gpu_demand is None) == (self.by == "row"):
            raise ValueError("by: row goes with gpu_demand, such as 1.3, and gpu_demand with by: row")
        return self


def by_block(arrival: np.ndarray, block: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Positions in `arrival`, new times in order, and the number of blocks.

    ValueError with a sentence if the trace is too short for such blocks.
    """
    begin = float(arrival[0])
    length = float(arrival[-1]) - begin
    days = block % DAY == 0
    if days:
        length = math.ceil(length / DAY + 1e-9) * DAY
    if length < 2 * block:
        raise ValueError(f"the trace spans {length / block:.2g} of such blocks; take blocks of at most half of it")
    count = math.ceil(length / block - 1e-9)
    if days:
        starts = random.integers(round(length / DAY), size=count) * DAY
    else:
        starts = random.random(count) * length
    since = arrival - begin
    positions, times = [], []
    for number, start in enumerate(starts.tolist()):
        size = min(block, length - number * block)
        for low, offset in ((start, 0.0), (0.0, length - start)):  # up to the end of the trace, then from its beginning
            high = min(low + size - offset, length)
            first = int(np.searchsorted(since, low))
            end = len(since) if high >= length else int(np.searchsorted(since, high))
            if end > first:
                positions.append(np.arange(first, end))
                times.append(since[first:end] - low + offset + number * block)
    if not positions:
        return np.zeros(0, dtype=np.int64), np.zeros(0), count
    return np.concatenate(positions), begin + np.concatenate(times), count


def by_user(user: np.ndarray, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """Positions, by `user`, earlier draws of that user, and the users."""
    import pandas as pd

    codes, names = pd.factorize(user, use_na_sentinel=False)
    if len(names) < 2:
        raise ValueError("the trace has one user only: nothing to draw from")
    drawn = np.bincount(random.integers(len(names), size=len(names)), minlength=len(names))
    times = drawn[codes]
    positions = np.repeat(np.arange(len(codes)), times)
    copy = np.arange(len(positions)) - np.repeat(np.cumsum(times) - times, times)
    return positions, copy, len(names)


def by_row(
    gpus: np.ndarray, capacity: float, demand: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Positions by arrival, until `demand` × `capacity` GPUs are asked for.

    gpus: GPUs that each row asks for.  ValueError with a sentence if nothing asks for any.
    """
    if not capacity:
        raise ValueError("the cluster has no GPUs for gpu_demand to count")
    asked = float(gpus.sum())
    if not asked:
        raise ValueError("no row of the trace asks for a GPU: gpu_demand is never reached")
    target = demand * capacity
    order = random.permutation(len(gpus))
    more: list[int] = []
    if asked > target:
        leaving = random.permutation(len(order))
        remaining = asked - np.cumsum(gpus[order[leaving]])
        count = int(np.searchsorted(-remaining, -target)) + 1
        order = order[np.sort(leaving[count:])]
    else:
        while (asked := asked + float(gpus[row := int(random.integers(len(gpus)))])) <= target:
            more.append(row)
    positions = np.concatenate([order, np.array(more, dtype=np.int64)])
    cumulated = 100.0 * np.cumsum(gpus[positions]) / capacity
    return positions, cumulated + BETWEEN * np.arange(len(positions))
