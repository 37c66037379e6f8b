"""Runs over time: GPUs, queue, fragmentation, batches, power, links."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from scipy.stats import binned_statistic

from hetsim.errors import UsageError
from hetsim.model.exchange import link_names
from hetsim.plots.cdf import labeled
from hetsim.plots.style import describe, line_looks, look, short, stacked, until
from hetsim.results.colors import PALETTE, VERMILION
from hetsim.results.formatting import SECONDS, energy, fitting
from hetsim.results.one_run.calls import RATES, rates_over
from hetsim.results.one_run.network import series
from hetsim.results.one_run.over_bins import power_over_time
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Axis, Band, Boxes, Line, Panel, Picture, Shades, averaged, time_axis

# number of equal intervals of time over which lines are means: the steps of several policies hide each other
STRETCHES = 150
MAX_LINKS = 32
WATTS = ((1.0, "W"), (1e3, "kW"), (1e6, "MW"))
_PARTS = (("sleep", 0.25), ("idle", 0.5), ("work", 1.0))  # from the bottom up, with how strongly each is painted


def over_time(results: Result | Iterable[Result] | Mapping[str, Result]) -> Picture:
    """Draw panels of GPUs, queue and fragmentation, with one line per run.

    On clusters without GPUs the cores are shown.  Lines are means over intervals of 1/150 of the longest run;
    fragmentation is drawn if any request needs GPUs; answers, attempts and wasted work if clients make calls.

    Parameters: results: runs, with labels if in a mapping.
    Returns: the picture.
    """
    runs = labeled(results)
    edges = np.linspace(0.0, max(run.end for run in runs.values()) or 1.0, STRETCHES + 1)
    lines = {label: _lines(run, edges) for label, run in runs.items()}
    looks, middle = line_looks(list(runs)), (edges[:-1] + edges[1:]) / 2
    panels = []
    for name in _panels(lines):
        marks = [Line(middle, columns[name], **looks[label]) for label, columns in lines.items() if name in columns]
        top = float(np.nanmax(np.concatenate([mark.y for mark in marks]), initial=0.0))
        y = Axis(name, 0, count=4, integer=True)
        if name == FRAGMENTATION and top < 60:  # often far below 100 %: the axis ends where it does
            y = Axis(name, 0, max(1.1 * top, 1.0), count=4)
        elif "%" in name:
            y = Axis(name, 0, 103, [(at, str(at)) for at in (0, 50, 100)])
        panels.append(Panel(list(marks), time_axis(0.0, edges[-1], means=edges), y))
    return stacked(panels, 9.5, 1.0 + 1.45 * len(panels), legend=True)


FRAGMENTATION, HELD, BUSY = "fragmentation (%)", "GPUs held (%)", "GPUs busy (%)"
_PANELS = (HELD, BUSY, "cores busy (%)", "tasks waiting", FRAGMENTATION, *RATES)


def _lines(run: Result, edges: np.ndarray) -> dict[str, np.ndarray]:
    table, cluster = run.timeline, run.record.input.cluster
    gpus = sum(device.type.kind != "cpu" for device in cluster.devices)
    total = gpus or max(sum(node.cpus for node in cluster.nodes), 1)
    parts = {HELD: "allocated_gpus", BUSY: "busy_gpus"} if gpus else {"cores busy (%)": "busy_cores"}
    # Several launches in flight on one GPU do not hold more than all of it.
    columns = {name: np.minimum(100 * table[column].to_numpy() / total, 100.0) for name, column in parts.items()}
    columns["tasks waiting"] = table["waiting"].to_numpy(dtype=float)
    means = rates_over(run.record, run.modes, edges)
    means |= {name: averaged(table["time"].to_numpy(), one, edges, run.end) for name, one in columns.items()}
    fragmented = run.fragmentation_between(edges) if gpus else np.array([])
    return means | ({FRAGMENTATION: 100 * fragmented} if np.nan_to_num(fragmented).any() else {})


def _panels(lines: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
    names = [name for name in _PANELS if any(name in columns for columns in lines.values())]
    if len(names) > 1 and not any(np.nan_to_num(columns["tasks waiting"]).any() for columns in lines.values()):
        names.remove("tasks waiting")
    if all(HELD in one and np.allclose(one[HELD], one[BUSY], atol=0.5, equal_nan=True) for one in lines.values()):
        names.remove(HELD)
    return names


BATCH_STRETCHES, TIMES = 60, ("GPU time a batch", "latency")


def batches(results: Result | Iterable[Result] | Mapping[str, Result]) -> Picture:
    """Draw batch size, GPU time per batch, latency and throughput over time.

    A batch counts when its upload starts, a latency when its request arrives, and throughput when a request ends.

    Parameters: results: runs, with labels if in a mapping.
    Returns: the picture.
    """
    runs = labeled(results)
    edges = np.linspace(0.0, max(run.end for run in runs.values()), BATCH_STRETCHES + 1)
    lines, middle = [_batch_lines(run, edges) for run in runs.values()], (edges[:-1] + edges[1:]) / 2
    rows: list[Any] = []
    for name in lines[0]:
        peaks = [float(np.nanmax(one[name])) for one in lines]
        factor, unit = fitting(peaks, SECONDS) if name in TIMES else (1.0, "")
        x, top = replace(time_axis(0.0, edges[-1], means=edges), bare=True), 1.05 * max(peaks) / factor
        rows.append([Panel([Line(middle, one[name] / factor, color=look(n)["color"])], replace(x),
                           Axis(f"{name} ({unit})" if unit else name, 0, top, bare=n > 0))
                     for n, one in enumerate(lines)])  # fmt: skip
    for label, first, last in zip(runs, rows[0], rows[-1], strict=True):
        first.title, last.x.bare = label, False
    return Picture(rows, 1.0 + 4.0 * len(runs), 8.2)


def _batch_lines(run: Result, edges: np.ndarray) -> dict[str, np.ndarray]:
    tasks, rows = run.tasks[run.tasks["batch"].notna()], run.launches
    if not len(tasks):
        raise UsageError("all runs must have batches, which only services have")
    rows, done = rows[rows["launch"].isin(tasks["batch"])], tasks[tasks["finish"].notna()]
    means = {
        "requests a batch": (rows["upload_start"], rows["members"]),
        "GPU time a batch": (rows["upload_start"], rows["compute_end"] - rows["compute_start"]),
        "latency": (done["arrival"], done["response"]),
    }
    binned = {name: binned_statistic(*columns, bins=edges).statistic for name, columns in means.items()}
    return binned | {"requests served a second": np.histogram(done["finish"], edges)[0] / np.diff(edges)}


def power(result: Result, *, bins: int = 200) -> Picture:
    """Draw the watts of each device type, stacked: asleep, idle, and for work.

    The title has the energy of the whole run, which equals the area.

    Parameters: result: a run; bins: number of time intervals.
    Returns: the picture.
    """
    table, end = power_over_time(result, bins), result.end or 1.0
    edges, columns = np.append(table["time"].to_numpy(), end), table.drop(columns="time")
    total = columns.sum(axis=1)
    factor, unit = fitting([float(total.max())], WATTS)
    floor, marks = np.zeros(len(edges)), list[Any]()
    kinds = list(dict.fromkeys(str(name).rpartition(".")[0] for name in columns if columns[name].any()))
    for (number, kind), (part, strength) in product(enumerate(kinds), _PARTS):
        watts = columns[f"{kind}.{part}"].to_numpy() / factor
        if watts.any():
            below, floor = floor, floor + np.append(watts, watts[-1:])
            label, color = f"{short(kind, 24)} {'at work' if part == 'work' else part}", PALETTE[number % len(PALETTE)]
            marks.append(Band(edges, below, floor, label, color=color, alpha=strength, steps=True))
    spent = float((total * np.diff(edges)).sum()) if result.end > 0 else 0.0
    title = f"{short(describe(result), 70)} · {energy(spent) if total.any() else 'no power is given'}"
    y = Axis(f"power ({unit})", 0, 1.05 * float(floor.max()) if floor.any() else 1.0)
    # From above to below, as they lie.
    return Picture([[Panel(marks[::-1], time_axis(0.0, end, means=edges), y, title, legend="right")]])


def fragmentation(result: Result) -> Picture:
    """Draw the allocated GPUs, and above them the free GPUs that fit no request.

    Both are in percent of the GPUs that are up; the GPUs between the upper line and 100 % are free and usable.

    Parameters: result: a run.
    Returns: the picture.
    Raises: UsageError: the cluster has no GPUs.
    """
    if not any(device.type.kind != "cpu" for device in result.record.input.cluster.devices):
        raise UsageError("the cluster has no GPUs, so there is no fragmentation to draw")
    table, end = result.fragmentation_over_time, result.end
    up = (table["allocated_gpus"] + table["unallocated_gpus"]).to_numpy().clip(min=1e-12)
    shares = 100 * table["allocation"].fillna(0.0).to_numpy(), 100 * table["fragmented_gpus"].to_numpy() / up
    time, low, high = until(end, table["time"].to_numpy(), shares[0], shares[0] + shares[1])
    marks = [Band(time, 0.0, low, "allocated", alpha=0.25, steps=True),
             Band(time, low, high, "free, but unusable by the task mix", color=VERMILION, alpha=0.45,
                  steps=True)]  # fmt: skip
    panel = Panel(list(marks), time_axis(0.0, end if end > 0 else 1.0), Axis("GPUs (%)", 0, 105), describe(result),
                  legend="above", means=True)  # fmt: skip
    return Picture([[panel]], 9, 4)


def links(result: Result, *, bins: int = 160) -> Picture:
    """Draw each link's utilization over time; times with two or more jobs are marked.

    Links that jobs shared come first, then the busiest; uplinks are named by their rack.

    Parameters: result: a run; bins: number of time intervals.
    Returns: the picture.
    Raises: UsageError: no job sends data between nodes.
    """
    if not (columns := series(result.record)):
        raise UsageError("no job of this run sends data between nodes; give jobs `training` or `communication`")
    end = result.end or 1.0
    edges = np.linspace(0.0, end, bins + 1)
    names, table = link_names(result.record.input.cluster), result.links.set_index("link")
    order = sorted(columns, key=lambda link: (-table["shared"][names[link]], -table["utilization"][names[link]], link))
    shown = order[:MAX_LINKS]
    busy, shared = (np.array([averaged(columns[link][0], part(*columns[link][1:]), edges, end) for link in shown])
                    for part in (lambda rate, jobs: rate, lambda rate, jobs: jobs > 1))  # fmt: skip
    row, place = np.nonzero(shared > 0.5)
    label, rates = "rate in use (%), red: shared", 100 * np.minimum(busy, 1.0)
    marks = [Shades(edges, np.arange(len(shown) + 1), rates, (0, 100), label=label),
             Boxes(edges[place], edges[place + 1], row, row + 0.12, color=VERMILION)]  # fmt: skip
    more = f" · {len(order) - len(shown)} more links" if len(order) > len(shown) else ""
    rows = [(at + 0.5, short(names[link], 30)) for at, link in enumerate(shown)]
    x, y = time_axis(0.0, edges[-1], means=edges), Axis("", len(shown), 0, rows)
    panel = Panel(list(marks), x, y, describe(result) + more, grid="")
    return Picture([[panel]], 9, 1.9 + 0.26 * max(len(shown), 4))
