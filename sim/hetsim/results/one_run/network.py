"""Metrics of launches, transferred data, and the network between nodes."""

import math
from typing import Any

import numpy as np
import pandas as pd

from hetsim.model.exchange import link_names, link_rates
from hetsim.model.record import LAUNCH_COMPLETED, UNFINISHED, Record
from hetsim.results.declared import metric
from hetsim.results.one_run.launches import launch_numbers, launches_of
from hetsim.results.one_run.measured import Measured, Run
from hetsim.results.one_run.modes import ModeTable
from hetsim.results.one_run.rows import TableRows


@metric(unit="count", better="neither", of="run", title="launches")
def launch_count(run: Measured) -> float:
    """Launches started in the window; a batch or a fused launch counts once."""
    begun = launches_of(run.result.record, run.result.modes).decided
    return float(((begun >= run.low) & (begun < run.high)).sum())


@metric(unit="B", better="less", of="run")
def bytes_moved(run: Measured) -> float:
    """Bytes transferred in the whole run, evictions included; once per link crossed."""
    return run.result.record.stats.get("bytes_moved", math.nan)


@metric(unit="B", better="less", of="run")
def memory_traffic(run: Measured) -> float:
    """Memory bytes of completed kernels (from `work`); undefined if any is unknown."""
    record = run.result.record
    if (work := record.input.tasks.work) is None:
        return math.nan
    launches = launches_of(record, run.result.modes)
    rows, mode, number = launches.task, record.mode[launches.task], np.full(len(launches), -1)
    ended = ~launches.open
    if record.launches is not None:
        ended = np.asarray(record.launches["outcome"]) == LAUNCH_COMPLETED
        mode, number = np.asarray(record.launches["mode"]), launch_numbers(record.launches)
    single = ended & ~np.isin(number, list(record.fused))
    if launches.members is not None and (launches.members[single] > 1).any():
        return math.nan  # a batch has no work of its own
    total = float(work.bytes[rows[single], mode[single]].sum())
    return total + sum(_traffic_of(record, one) for one in number[ended & ~single].tolist())


@metric(unit="B", better="less", of="run")
def peak_memory(run: Measured) -> float:
    """Maximum bytes occupied in an accelerator's memory at one time in the whole run."""
    return run.result.record.stats.get("peak_memory", math.nan)


def _traffic_of(record: Record, launch: int) -> float:
    members, saved = record.fused[launch]
    work = record.input.tasks.work
    assert work is not None
    moved = work.bytes[list(members), record.mode[list(members)]]
    return float(np.maximum(moved - np.array(saved), 0.0).sum())


COLUMNS = ("step", "communication", "bubble", "contention", "network_bytes", "mfu")
P95 = 0.95


def has_steps(table: ModeTable) -> bool:
    """Return True if some mode states training steps or communication between nodes."""
    return any(mode.exchange is not None for mode in table.modes)


def task_columns(record: Record, table: ModeTable) -> dict[str, np.ndarray]:
    """Return step time, its parts, bytes and MFU by task; NaN for tasks without steps."""
    count = len(record.status)
    names = ("seconds", "contention", "communication", "bubble", "steps", "bytes", "peak")
    sums = {name: np.zeros(count) for name in names}
    stepping = np.zeros(count, dtype=bool)
    if record.stays is not None:
        rows = record.stays["task"].astype(np.int64)
        stepping[rows] = True
        for name in names:
            sums[name] += np.bincount(rows, weights=record.stays[name], minlength=count)
    _on_one_node(record, table, sums, stepping)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "step": sums["seconds"] / sums["steps"], "communication": sums["communication"], "bubble": sums["bubble"],
            "contention": sums["contention"], "network_bytes": sums["bytes"], "mfu": sums["peak"] / sums["seconds"],
        }  # fmt: skip
    return {name: np.where(stepping, values, np.nan) for name, values in columns.items()}


def _on_one_node(record: Record, table: ModeTable, sums: dict[str, np.ndarray], stepping: np.ndarray) -> None:
    """Add training steps of one-node jobs to totals `sums`; mark jobs in `stepping`."""
    tasks = record.input.tasks
    if (compute := record.stage("compute")) is None:
        end = np.where((record.status == UNFINISHED) & ~np.isnan(record.start), record.end, record.finish)
        compute = np.nan_to_num(end - record.start)
    for number, shape in enumerate(tasks.shapes):
        for position, mode in enumerate(shape.modes):
            if mode.exchange is None or mode.node_count > 1:
                continue
            rows = (tasks.shape == number) & (record.mode == position)
            exchange, profile = mode.exchange, mode.exchange.on((0,))
            steps = compute[rows] / exchange.nominal
            communication, bubble = profile.parts
            sums["seconds"][rows] += compute[rows]
            sums["communication"][rows] += communication * steps
            sums["bubble"][rows] += bubble * steps
            sums["steps"][rows] += steps
            sums["peak"][rows] += exchange.at_peak * steps
            stepping |= rows


# Links ----------------------------------------------------------------------------------------------------------


def links_table(record: Record, low: float, high: float) -> pd.DataFrame:
    """Return the table of links that jobs used during a window.

    Columns: `rate` (bytes per second in each direction), `bytes` sent, `utilization` (mean) and its 95th percentile
    over time, seconds in `use`, and seconds `shared` by two jobs or more.
    """
    names, rates = link_names(record.input.cluster), link_rates(record.input.cluster)
    nodes = len(record.input.cluster.nodes)
    rows: list[dict[str, Any]] = []
    for link, (time, busy, jobs) in series(record).items():
        begin, end = np.clip(time, low, high), np.clip(np.append(time[1:], max(record.end, time[-1])), low, high)
        length = end - begin
        rate = rates[link]
        idle = max(0.0, high - low - length.sum())
        rows.append({
            "link": names[link], "kind": "node" if link < nodes else "uplink", "rate": rate,
            "bytes": float((busy * length).sum() * rate) if rate < math.inf else math.nan,
            "utilization": float((busy * length).sum()) / (high - low) if high > low else math.nan,
            "utilization_p95": over_time(np.append(busy, 0.0), np.append(length, idle), P95),
            "use": float(length[jobs > 0].sum()), "shared": float(length[jobs > 1].sum()),
        })  # fmt: skip
    columns = ["link", "kind", "rate", "bytes", "utilization", "utilization_p95", "use", "shared"]
    return pd.DataFrame(rows, columns=columns)


def series(record: Record) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return for each link: times of changes, and the used share and number of jobs."""
    if record.links is None:
        return {}
    links = record.links["link"].astype(np.int64)
    order = np.argsort(links, kind="stable")
    by_link = {}
    for part in np.split(order, np.flatnonzero(np.diff(links[order])) + 1):
        if len(part):
            by_link[int(links[part[0]])] = tuple(record.links[name][part] for name in ("time", "busy", "jobs"))
    return dict(sorted(by_link.items()))  # type: ignore[arg-type]


def over_time(values: np.ndarray, length: np.ndarray, share: float) -> float:
    """Return the quantile `share` (0 to 1) of values that last `length` seconds each."""
    if not length.sum() > 0:
        return math.nan
    order = np.argsort(values)
    passed = np.cumsum(length[order])
    at = min(int(np.searchsorted(passed, share * passed[-1])), len(values) - 1)
    return float(values[order][at])


# Metrics --------------------------------------------------------------------------------------------------------


@metric(unit="share", better="less", sets=("network",))
def communication_fraction(run: Measured) -> float:
    """Share of jobs' device time spent on communication, without link contention."""
    return _share(run, "communication")


@metric(unit="share", better="less", sets=("network",))
def bubble_fraction(run: Measured) -> float:
    """Share of the device time of jobs with steps that is lost in pipeline bubbles."""
    return _share(run, "bubble")


@metric(unit="share", better="less", sets=("network",))
def contention_fraction(run: Measured) -> float:
    """Share of jobs' device time lost to other jobs on the same links."""
    return _share(run, "contention")


def _share(run: Measured, name: str) -> float:
    if "contention" not in run.result.tasks:
        return math.nan
    record, table = run.result.record, run.result.modes
    codes = table.codes(record.input.tasks.shape, record.mode)
    width = np.append([mode.width for mode in table.modes], 0.0)[codes]
    width = run.chosen(TableRows(record)(width))
    part, seconds = run.column(name), run.column("compute")
    is_known = ~np.isnan(part)
    total = float((seconds * width)[is_known].sum())
    return float((part * width)[is_known].sum()) / total if total > 0 else math.nan


@metric(unit="share", better="neither", of="run", sets=("network",))
def network_utilization(run: Measured) -> float:
    """Mean utilization in the window of rack uplinks; without uplinks, of node links."""
    cluster, table = run.result.record.input.cluster, run.result.links
    if run.result.record.links is None:
        return math.nan
    uplinks = sum(rate < math.inf for rate in cluster.fabric.uplinks.values())
    kind, count = ("uplink", uplinks) if uplinks else ("node", len(cluster.nodes))
    return float(table.loc[table["kind"] == kind, "utilization"].sum()) / count


@metric(unit="share", better="less", of="run", sets=("network",))
def cross_rack_fraction(run: Measured) -> float:
    """Bytes sent between racks / bytes sent between nodes, over all jobs of the run."""
    stays = run.result.record.stays
    if stays is None or not stays["bytes"].sum() > 0:
        return math.nan
    return float(stays["across"].sum() / stays["bytes"].sum())


# One task -------------------------------------------------------------------------------------------------------


def stretch(result: Run, row: int) -> dict[str, float] | None:
    """Explain why a task computed longer than it would alone in its best place.

    Returns None without a network.  The `seconds` of computing are the sum of `alone` (the time alone in the best
    place) and of the additional times due to `placement`, `neighbors` (other jobs) and slow `devices`.
    """
    stays = result.record.stays
    if stays is None or not (mine := stays["task"] == row).any():
        return None
    total = {name: float(stays[name][mine].sum()) for name in ("seconds", "contention", "nominal", "here")}
    return {
        "seconds": total["seconds"],
        "alone": total["nominal"],
        "placement": total["here"] - total["nominal"],
        "neighbors": total["contention"],
        "devices": total["seconds"] - total["contention"] - total["here"],
    }
