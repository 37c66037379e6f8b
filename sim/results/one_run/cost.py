"""What a run costs, in whatever money the cluster's prices are in.

A device costs its price for as long as it is up, held by a task or not, and its price asleep (the same unless the
scenario says otherwise) while it sleeps; while it is down it costs nothing.  The price of a node is carried by its
accelerators in equal parts, without any by its cores.  So `cost` is the bill for the whole cluster, from the beginning
of the window to the end of the run: a cluster that is done earlier is given back earlier.
A task costs the share that it held × the price × the time from the decision to start it until it let go, lost work
included: `cost_held` is what the tasks would pay if they were charged by use, and `cost` less that is what stood idle.
Here alone prices become cost; policies that weigh costs read the same prices (`Cluster.price_of`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sim.model.cluster import Cluster
from sim.model.record import COMPLETED, Record
from sim.results.one_run.launches import Launches, Places, launches_of
from sim.results.one_run.modes import ModeTable

if TYPE_CHECKING:
    from sim.results.one_run.metrics import Measured
    from sim.results.one_run.usage import Usage


def device_cost(cluster: Cluster, use: Usage) -> np.ndarray:
    """Of each device, for the time in which it was up or asleep."""
    up, asleep = _prices(cluster)
    return use.powered * (up * use.up + asleep * use.asleep)


def device_cost_held(cluster: Cluster, use: Usage) -> np.ndarray:
    """Of each device, for the share of it that launches held."""
    return use.allocated * _prices(cluster)[0]


def cost(run: Measured) -> float:
    """Price × time in which devices were up or asleep, from the window's beginning to the end of the run."""
    cluster = run.result.record.input.cluster
    return float(device_cost(cluster, run.use).sum()) if cluster.priced else math.nan


def cost_held(run: Measured) -> float:
    """Price × share held × time of the window's tasks, lost work included: their cost if they paid by use."""
    return float(run.column("cost").sum()) if "cost" in run.result.tasks else math.nan


def cost_per_task(run: Measured) -> float:
    """Cost / completions inside the window, whenever the tasks arrived."""
    frame, whole = run.result.tasks, cost(run)
    finish = frame["finish"].to_numpy()[frame["status"].cat.codes.to_numpy() == COMPLETED]
    number = np.count_nonzero((finish >= run.low) & (finish <= run.high))
    return whole / number if number else math.nan


def launch_cost(record: Record, table: ModeTable, launches: Launches) -> np.ndarray:
    """Of each launch, from its decision to its end.

    Where launches overlap on a GPU with several streams, and together hold more than all of it, the costs of all
    launches there are lowered by one factor, so that their sum is what of the GPU was held.
    """
    from sim.results.one_run.usage import allocated  # which imports what is here

    cluster, places = record.input.cluster, Places(record)
    price, _ = _prices(cluster)
    held, devices = launches.end - launches.decided, len(cluster.devices)
    share, cores = table.share[launches.mode], table.cores[launches.mode]
    apart = places.spread(launches.place, held * share, devices)
    together = allocated(record, launches, places, held, share, 0.0, record.end)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(apart > 0, together / apart, 1.0)
    by_place = np.bincount(places.owner, weights=(price * factor)[places.flat], minlength=places.count)
    of_hosts = np.bincount(places.owner, weights=price[places.hosts] * places.amount, minlength=places.count)
    each = of_hosts / np.maximum(places.totals, 1)
    return held * (share * by_place[launches.place] + cores * each[launches.place])


def launches_and_cost(record: Record, table: ModeTable) -> tuple[Launches, np.ndarray]:
    """The launches of a run, and what each of them costs."""
    launches = launches_of(record, table)
    return launches, launch_cost(record, table, launches)


def _prices(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Of each device a second, up and asleep."""
    return np.array([price.up for price in cluster.prices]), np.array([price.asleep for price in cluster.prices])
