"""Devices in a time window: busy, allocated, up, asleep, energy; the timeline.

A launch *allocates* its devices from the decision to its end and makes them *busy* while it computes, both multiplied
by its share of each device.  Cores used by a GPU mode are allocated, not busy.  A device is *up* unless it has failed
or sleeps (a waking device counts as up: it draws idle power).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hetsim.model.cluster import Cluster
from hetsim.model.device_type import MILLI
from hetsim.model.record import ASLEEP, DOWN, UP, WAKING, DeviceStates, Record
from hetsim.results.declared import COST, ENERGY
from hetsim.results.one_run import language
from hetsim.results.one_run.launches import LaunchColumns, PlaceColumns, launches_of, occupations_of
from hetsim.results.one_run.modes import ModeTable


@dataclass
class Usage:
    """Use of each device of the cluster over one window, as columns.

    Seconds are multiplied by share (GPUs) or cores (CPUs).  Energies are in joules, NaN on a cluster without watts;
    `dynamic` is above idle for useful work, `wasted` above idle for lost work.
    """

    low: float
    high: float
    count: np.ndarray  # 1 for an accelerator, for a CPU its cores that tasks can use
    powered: np.ndarray  # `count` with the cores that drive accelerators, which draw idle power and have a price
    up: np.ndarray
    asleep: np.ndarray
    busy: np.ndarray
    allocated: np.ndarray
    uploading: np.ndarray
    downloading: np.ndarray  # seconds in which a copy engine moved launches' data, as for `uploading`
    launches: np.ndarray
    dynamic: np.ndarray
    wasted: np.ndarray
    idle: np.ndarray
    sleep: np.ndarray
    watts_at_end: float  # idle or sleep watts of all devices in their states at the end of the run


def usage(record: Record, table: ModeTable, low: float, high: float) -> Usage:
    """Compute the use of all devices over [low, high)."""
    cluster = record.input.cluster
    devices = len(cluster.devices)
    count, powered = np.array(cluster.units, float), np.array(cluster.powered_units, float)
    up, asleep, awake_at_end, asleep_at_end = device_states(record, low, high)
    watts_idle, watts_sleep = resting_watts(cluster)
    launches, places, stays = launches_of(record, table), PlaceColumns(record), occupations_of(record, table)[0]

    occupied = overlap(stays.decided, stays.end, low, high)
    cores, share = table.cores[stays.mode], table.share[stays.mode]
    taken = allocated(record, stays, places, held=occupied, share=share, low=low, high=high)
    taken += places.spread(stays.place, occupied * cores, devices, to_hosts=True)
    begun = (launches.decided >= low) & (launches.decided < high)
    number = places.begun(launches.place, begun.astype(np.float64), devices)
    del occupied, begun, cores, share

    per_device = np.where(table.on_cpu, 1, table.column(lambda mode: max(1, mode.gpus)))[launches.mode]
    part = _inside(launches, low, high) / per_device
    busy = places.spread(launches.place, launches.busy * part, devices)
    energy = launches.energy * part
    lost = energy * launches.lost_part
    wasted = places.spread(launches.place, lost, devices)
    energy -= lost
    spans = transfers_of(record, len(launches))
    unknown = 0.0 if cluster.has_watts else np.nan
    copied = [places.spread(launches.place, overlap(*span, low, high), devices) for span in spans]
    return Usage(
        low=low, high=high, count=count, powered=powered, up=up, asleep=asleep, busy=busy, allocated=taken,
        launches=number, uploading=copied[0], downloading=copied[1],
        dynamic=places.spread(launches.place, energy, devices) + unknown, wasted=wasted + unknown,
        idle=watts_idle * up + unknown, sleep=watts_sleep * asleep + unknown,
        watts_at_end=float((watts_idle * awake_at_end + watts_sleep * asleep_at_end).sum()),
    )  # fmt: skip


def resting_watts(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Watts of each device, with all its cores, while idle and while asleep."""
    powers, count = [device.type.power for device in cluster.devices], np.array(cluster.powered_units, float)
    return np.array([power.idle for power in powers]) * count, np.array([power.sleep for power in powers]) * count


def transfers_of(record: Record, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Start and end of each launch's upload and download; NaN without a transfer."""
    if (columns := record.launches) is None:
        never = np.full(count, np.nan)
        return [(never, never), (never, never)]
    ended = np.where(np.isnan(columns["end"]), record.end, columns["end"])
    spans = []
    for begin, end in (("upload_start", "upload_end"), ("download_start", "end")):
        since, until = np.asarray(columns[begin]), np.asarray(columns[end])
        spans.append((since, np.where(np.isnan(until), ended, until)))  # some were still under way at the end
    return spans


def overlap(begin: np.ndarray, end: np.ndarray, low: float, high: float) -> np.ndarray:
    """Seconds of [begin, end) inside [low, high); 0 if a bound is NaN."""
    span = np.minimum(end, high)
    span -= np.maximum(begin, low)
    np.nan_to_num(span, copy=False)
    return np.maximum(span, 0.0, out=span)


def _inside(launches: LaunchColumns, low: float, high: float) -> np.ndarray:
    length = launches.compute_end - launches.compute_start
    inside = overlap(launches.compute_start, launches.compute_end, low, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(length > 0, inside / length, 0.0)


def allocated(
    record: Record, launches: LaunchColumns, places: PlaceColumns, held: np.ndarray, share: np.ndarray, low: float,
    high: float,
) -> np.ndarray:  # fmt: skip
    """Return seconds × occupied share of each accelerator in the window [low, high).

    held, share: seconds for which each launch occupies devices, and its share of each.  The launches of a device with
    several streams count as at most the whole device.
    """
    devices = record.input.cluster.devices
    result = places.spread(launches.place, held * share, len(devices))
    many = np.array([device.type.streams > 1 for device in devices])
    if not many.any() or not len(launches):
        return result
    chosen = np.flatnonzero(share > 0)
    pair, device = places.pairs(launches.place[chosen])
    launch = chosen[pair]
    launch, device = launch[many[device]], device[many[device]]
    # Sweep over each device's takings and givings back: the sum of shares, cut at one.
    when = np.clip(np.concatenate([launches.decided[launch], launches.end[launch]]), low, high)
    change = np.concatenate([share[launch], -share[launch]])
    owner = np.concatenate([device, device])
    order = np.lexsort((when, owner))
    when, owner = when[order], owner[order]
    level = np.minimum(np.cumsum(change[order]), 1.0)  # a device's changes sum to 0
    span = np.diff(when) * (owner[1:] == owner[:-1])
    # A change without a successor on its device leaves a level of 0; there is no change where nothing was launched.
    result[many] = np.bincount(owner[:-1], weights=level[:-1] * span, minlength=len(devices))[many]
    return result


def device_states(record: Record, low: float, high: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return how long devices are up and asleep in a window, and their final states.

    Returns four arrays over devices: seconds up, seconds asleep, True if up at the end, True if asleep at the end.  A
    waking device counts as up, since it draws and costs as much as an idle one.
    """
    cluster = record.input.cluster
    states, devices = DeviceStates(cluster), len(cluster.devices)
    seconds = {UP: np.full(devices, max(high - low, 0.0)), ASLEEP: np.zeros(devices), DOWN: np.zeros(devices)}
    seconds[WAKING] = seconds[UP]
    last = list(states.of)
    for time, index, what, _ in record.device_log:
        # Each change moves what is left of the window from one state to the other.
        remaining = high - min(max(time, low), high)
        for device in states.change(index, what):
            seconds[last[device]][device] -= remaining
            last[device] = states.of[device]
            seconds[last[device]][device] += remaining
    at_end = np.array(last)
    return seconds[UP], seconds[ASLEEP], np.isin(at_end, (UP, WAKING)), at_end == ASLEEP


def devices_table(record: Record, use: Usage) -> pd.DataFrame:
    """Return the table of devices in the window of `use`; a node's cores are one row.

    `busy`, `allocated` and `up` are device-seconds (core-seconds of a CPU); `utilization` = busy / up, `allocation` =
    allocated / up.  `uploading` and `downloading` are the seconds in which an accelerator's link is in use.  `energy_j`
    is the sum of idle, sleep, useful and lost work; energies are NaN if the cluster has no watts.  If it has prices,
    `cost` is for the time up or asleep, and `cost_held` for the allocated share.
    """
    cluster = record.input.cluster
    kept = np.flatnonzero(use.powered > 0)
    devices = [cluster.devices[index] for index in kept]
    up = use.up * use.count
    with np.errstate(divide="ignore", invalid="ignore"):
        utilization, allocation = use.busy / up, use.allocated / up
    columns = {
        "busy": use.busy,
        "allocated": use.allocated,
        "up": up,
        "asleep": use.asleep * use.count,
        "utilization": utilization,
        "allocation": allocation,
        "uploading": use.uploading,
        "downloading": use.downloading,
        "launches": use.launches.astype(np.int64),
        ENERGY: use.dynamic + use.wasted + use.idle + use.sleep,
        "energy_tasks_j": use.dynamic,
        "energy_wasted_j": use.wasted,
        "energy_idle_j": use.idle,
        "energy_sleep_j": use.sleep,
    }
    if cluster.priced:
        columns |= {COST: device_cost(cluster, use), "cost_held": use.allocated * prices(cluster)[0]}
    names = {
        "device": [device.name for device in devices],
        "type": pd.Categorical([device.type.name for device in devices]),
        "kind": pd.Categorical([device.type.kind for device in devices]),
        "node": pd.Categorical([cluster.nodes[device.node].name for device in devices]),
        "count": use.count[kept].astype(np.int64),
    }
    return pd.DataFrame(names | {name: values[kept] for name, values in columns.items()})


def timeline_table(record: Record, table: ModeTable, by: str | None = None) -> pd.DataFrame:
    """Return the system's state as steps: each row is valid until the next `time`.

    `waiting` tasks are ready and not in a launch, `running` tasks have begun the first stage of their launch.  `busy_*`
    counts computing devices and `allocated_gpus` occupied ones, both weighted by share; if launches transfer data,
    `uploading` and `downloading` count transfers.  `by="type"` or `"node"` adds columns `busy.NAME` and
    `allocated.NAME` (GPUs; cores for a CPU type or a node without GPUs).
    """
    launches, places = launches_of(record, table), PlaceColumns(record)
    count, stays = len(launches), occupations_of(record, table)[0]
    released = np.where(stays.open, np.inf, stays.end)
    ready = record.ready
    there = np.flatnonzero(~np.isnan(ready))
    # What is still there at the end leaves after the last row.
    gone = np.where(np.isnan(record.finish), np.inf, record.finish)[there]
    ended = np.where(launches.open, np.inf, launches.end)
    began = np.where(np.isnan(launches.start), ended, launches.start)
    computed = np.where(np.isnan(launches.compute_start), ended, launches.compute_start)
    finished = np.where(np.isnan(launches.compute_end), ended, launches.compute_end)
    finished[launches.open & (finished == record.end)] = np.inf
    grid = np.concatenate([[0.0], ready[there], gone, launches.decided, began, computed, finished, ended,
                           stays.decided[count:], released[count:], [record.end]])  # fmt: skip
    moved = {}
    for name, (since, until) in zip(("uploading", "downloading"), transfers_of(record, len(launches)), strict=True):
        some = ~np.isnan(since)
        if some.any():
            moved[name] = since[some], np.where(until[some] < record.end, until[some], np.inf)
            grid = np.concatenate([grid, since[some], until[some]])
    grid = np.unique(grid[grid <= record.end])

    def steps(begin: np.ndarray, end: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        size = len(grid) + 1
        rises = np.bincount(np.searchsorted(grid, begin), weights=weight, minlength=size)
        falls = np.bincount(np.searchsorted(grid, end), weights=weight, minlength=size)
        return np.cumsum(rises - falls)[: len(grid)]

    members = None if launches.members is None else launches.members.astype(np.float64)
    if record.input.language and members is not None:
        members[language.periods(record, launches.task)] = 0.0  # their requests come and go within
        grid = np.unique(np.concatenate([grid, *(t[t <= record.end] for t in language.running(record))]))
    running = steps(began, ended, members)
    if record.input.language:
        running = running + steps(*language.running(record))
    # Thousandths and millionths are whole numbers, so the sums below are exact.
    cores = np.where(table.on_cpu, table.column(lambda mode: mode.millicores), 0.0)[stays.mode]
    gpus = table.column(lambda mode: mode.gpus * mode.share)[stays.mode]
    columns = {
        "time": grid,
        "waiting": (steps(ready[there], gone) - running).astype(np.int64),
        "running": running.astype(np.int64),
        "busy_cores": steps(computed, finished, cores[:count]) / MILLI,
        "busy_gpus": steps(computed, finished, gpus[:count]) / 1e6,
        "allocated_gpus": steps(stays.decided, released, gpus) / 1e6,
    }
    for name, (since, until) in moved.items():
        columns[name] = steps(since, until).astype(np.int64)
    if by is not None:
        amount = np.where(gpus > 0, gpus / 1e6, cores / MILLI)
        for name, weight in _groups(record, table, stays, places=places, amount=amount, by=by):
            columns[f"busy.{name}"] = steps(computed, finished, weight[:count])
            columns[f"allocated.{name}"] = steps(stays.decided, released, weight)
    return pd.DataFrame(columns, copy=False)


def _groups(
    record: Record, table: ModeTable, launches: LaunchColumns, places: PlaceColumns, amount: np.ndarray, by: str
) -> list[tuple[str, np.ndarray]]:
    """Return, by device type or node, its name and its part of each launch's `amount`."""
    if by == "type":
        names = list(dict.fromkeys(mode.type.name for mode in table.modes))
        number = table.column(lambda mode: names.index(mode.type.name), np.int64)[launches.mode]
        return [(name, np.where(number == code, amount, 0.0)) for code, name in enumerate(names)]
    cluster = record.input.cluster
    node_of = np.array([device.node for device in cluster.devices])[places.flat]
    groups = []
    for node in cluster.nodes:
        on_node = np.bincount(places.owner, weights=(node_of == node.index) * places.amount, minlength=places.count)
        groups.append((node.name, amount * (on_node / places.totals)[launches.place]))
    return groups


def device_cost(cluster: Cluster, use: Usage) -> np.ndarray:
    """Cost of each device for the time in which it was up or asleep."""
    up, asleep = prices(cluster)
    return use.powered * (up * use.up + asleep * use.asleep)


def prices(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Price per second of each device, while up and while asleep."""
    return np.array([price.up for price in cluster.prices]), np.array([price.asleep for price in cluster.prices])
