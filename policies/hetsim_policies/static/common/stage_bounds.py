"""A lower bound on the makespan where stages of tasks overlap or share links: engines, streams, links and switches.

In a schedule of length T every engine of every accelerator works for at most T, a lane with s streams has at most s
launches in flight, and a link carries at most rate × T bytes.  Each of these is a row Σ_j Σ_t a[j, t] x[j, t] ≤ C T
with x[j, t] = 1 where task j runs on type t; lanes of one type are taken together, which only weakens a row.  Prices
w ≥ 0 of the rows with Σ C w = 1 certify Σ_j min_t Σ_r w_r a_r[j, t] ≤ T, whatever solver they come from.  With
release times and tails the sum is taken of what cannot start before r, or must be done r before the end, and r added.
Only private data are counted: items that several tasks read may be brought once, before, or by another task.
Reference: the dual is that of the area bound of Agullo, Beaumont, Eyraud-Dubois and Kumar, Are Static Schedules so
Bad? (2016), with rows for engines as in the machine-based bounds of flow shops (Lageweg, Lenstra, Rinnooy Kan, 1978).
Cost: one linear program of n × types variables and a row a resource; prices of a sample where n is large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hetsim.model.cluster import Device, DeviceType, Link
from hetsim.model.plan import lane_names
from hetsim.model.stages import download_rate
from hetsim_policies.static.common.instance import Instance
from hetsim_policies.static.common.ranks import ways
from hetsim_policies.static.common.unrelated import SAMPLE
from hetsim_policies.task_graphs import downward, graph_of, tails, topological


@dataclass(frozen=True)
class ResourceRow:
    """What tasks take of a resource on each type of device, and how much of it there is for each second."""

    use: np.ndarray
    capacity: float


def stage_bound(instance: Instance) -> float:
    """No schedule is shorter, counted from the first arrival (in mid-run from the first arrival of what is left)."""
    if not instance.size:
        return 0.0
    usable = np.isfinite(instance.time)
    alone = np.where(usable, instance.alone, np.inf)
    fastest = alone.min(axis=1)
    arrival = instance.problem.tasks.arrival
    before = ways(graph_of(instance.problem.tasks))
    order = topological(graph_of(instance.problem.tasks))
    heads = np.array(downward(fastest, before, order, arrival)) - float(arrival.min())
    ends = np.array(tails(fastest, before, order))
    best = float((heads + fastest + ends).max())
    cost = priced_rows(list(rows_of(instance)), usable)
    for release in (heads, ends):
        latest = np.argsort(-release, kind="stable")
        best = max(best, float((release[latest] + np.cumsum(cost[latest])).max()))
    return best


def rows_of(instance: Instance) -> Iterator[ResourceRow]:
    """The resources of an instance."""
    usable = np.isfinite(instance.time)
    blank = np.zeros(instance.time.shape)
    known = lane_names(instance.problem.cluster)
    up, compute, down = (np.where(usable, part, 0.0) for part in (instance.up, instance.compute, instance.down))
    for kind, (one, count) in enumerate(zip(instance.types, instance.counts, strict=True)):

        def on(values: np.ndarray, kind: int = kind) -> np.ndarray:
            use = blank.copy()
            use[:, kind] = values[:, kind]
            return use

        if one.kind == "cpu":
            yield ResourceRow(on(compute), float(count))
            continue
        yield ResourceRow(on(up + compute + down), float(count * one.streams))
        if one.streams > 1:
            at_once = one.streams if one.sharing.kind == "mps" else 1
            yield ResourceRow(on(compute), float(count * at_once))
            yield ResourceRow(on(up), float(count))
            yield ResourceRow(on(down), float(count))
        devices = [known[name] for name in instance.lanes[kind]]
        for sizes, capacity in _links(instance, one, devices):
            use = blank.copy()
            use[:, kind] = np.where(usable[:, kind], sizes, 0.0)
            yield ResourceRow(use, capacity)


def _links(instance: Instance, kind: DeviceType, devices: list[Device]) -> Iterator[tuple[np.ndarray, float]]:
    """Bytes of each task over the links of a type in each direction, or both, and the rate of all its links."""
    cluster = instance.problem.cluster
    above, below = instance.private.up, instance.private.down
    switch_of = {(d.node, d.switch): cluster.nodes[d.node].spec.switch for d in devices if d.switch is not None}
    behind = [(d.node, d.switch) for d in devices]

    def rate(link: Link, direction: str) -> float:
        return link.upload if direction == "up" else download_rate(link)

    def together(direction: str) -> float:
        own = rate(kind.link, direction)
        total = own * sum(one not in switch_of for one in behind)
        return total + sum(min(rate(s, direction), own * behind.count(key)) for key, s in switch_of.items())

    for sizes, direction in ((above, "up"), (below, "down")):
        if np.isfinite(together(direction)):
            yield sizes, together(direction)
    if kind.link.duplex == "half" and np.isfinite(kind.link.upload):
        yield above + below, kind.link.upload * len(devices)
    one_way = (
        switch_of and all(key in switch_of for key in behind) and all(s.duplex == "half" for s in switch_of.values())
    )
    if one_way and np.isfinite(sum(s.upload for s in switch_of.values())):
        yield above + below, sum(s.upload for s in switch_of.values())


def priced_rows(rows: list[ResourceRow], usable: np.ndarray) -> np.ndarray:
    """What each task costs at least; the sum is no more than the makespan of any schedule."""
    rows = [row for row in rows if row.use.any()]
    if not rows:
        return np.zeros(len(usable))
    every = max(1, -(-len(usable) // SAMPLE))
    prices = _prices([ResourceRow(row.use[::every], row.capacity) for row in rows], usable[::every])
    cost = sum(price * row.use for price, row in zip(prices.tolist(), rows, strict=True))
    return np.where(usable, cost, np.inf).min(axis=1)


def _prices(rows: list[ResourceRow], usable: np.ndarray) -> np.ndarray:
    """Prices of the program, scaled so that the capacities cost 1 together."""
    from scipy.optimize import linprog  # takes as long to import as a small plan takes
    from scipy.sparse import coo_array, hstack

    capacity = np.array([row.capacity for row in rows])
    even = 1 / capacity / len(rows)
    task, kind = np.nonzero(usable)
    number, size = np.arange(len(task)), len(usable)
    units = np.array([row.use.sum() / row.capacity for row in rows])  # rows in bytes and in seconds alike
    scale = float(units.max())
    load = np.array([row.use[task, kind] / row.capacity / scale for row in rows])
    upper = hstack([coo_array(load), coo_array(-np.ones((len(rows), 1)))]).tocsr()
    once = coo_array((np.ones(len(task)), (task, number)), shape=(size, len(task) + 1)).tocsr()
    goal = np.zeros(len(task) + 1)
    goal[-1] = 1.0
    found = linprog(goal, upper, np.zeros(len(rows)), once, np.ones(size), method="highs-ds")
    if found.x is None:
        return even
    dual = np.maximum(0.0, -found.ineqlin.marginals) / capacity
    worth = float(dual @ capacity)
    return dual / worth if worth > 0 else even
