"""The cost of each launch: its share × the price × the time that it occupied it."""

from __future__ import annotations

import numpy as np

from hetsim.model.record import Record
from hetsim.results.one_run.launches import LaunchColumns, PlaceColumns, launches_of
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.usage import allocated, prices


def launch_cost(record: Record, table: ModeTable, launches: LaunchColumns) -> np.ndarray:
    """Of each launch, from its decision to its end.

    Where launches overlap on a GPU with several streams, and together hold more than all of it, the costs of all
    launches there are lowered by one factor, so that their sum is what of the GPU was held.
    """
    cluster, places = record.input.cluster, PlaceColumns(record)
    price, _ = prices(cluster)
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


def launches_and_cost(record: Record, table: ModeTable) -> tuple[LaunchColumns, np.ndarray]:
    """The launches of a run, and what each of them costs."""
    launches = launches_of(record, table)
    return launches, launch_cost(record, table, launches)
