"""Several policies on one load over time: GPUs, queue, fragmentation, batches."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.stats import binned_statistic

from hetsim.errors import UsageError
from hetsim.plots.cdf import labeled
from hetsim.plots.style import describe, line_looks, look, short, until
from hetsim.results.colors import PALETTE, VERMILION
from hetsim.results.formatting import SECONDS, energy, fitting
from hetsim.results.one_run.calls import RATES, rates_over
from hetsim.results.one_run.over_bins import power_over_time
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Axis, Band, Line, Panel, Picture, averaged, time_axis

STRETCHES = 150
"""Lines are means over this many equal stretches of time: steps of several policies over one another hide all."""
WATTS = ((1.0, "W"), (1e3, "kW"), (1e6, "MW"))
_PARTS = (("sleep", 0.25), ("idle", 0.5), ("work", 1.0))
"""From the bottom up, with how strongly each is painted."""


def over_time(results: Result | Iterable[Result] | Mapping[str, Result]) -> Picture:
    """Draw panels of GPUs, queue and fragmentation, with a line for every run.

    On clusters without GPUs the cores take their place.  Lines are means over 150th parts of the longest run;
    fragmentation is drawn where some request asks for GPUs, and answers, attempts and wasted work where clients time
    out or try again.

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
    for panel in panels[:-1]:
        panel.x.bare = True
    return Picture([[panel] for panel in panels], 9.5, 1.0 + 1.45 * len(panels), legend=True)


FRAGMENTATION = "fragmentation (%)"
_PANELS = ("GPUs held (%)", "GPUs busy (%)", "cores busy (%)", "tasks waiting", FRAGMENTATION, *RATES)


def _lines(run: Result, edges: np.ndarray) -> dict[str, np.ndarray]:
    """Each quantity of a run as means between the edges; NaN after its end."""
    table = run.timeline
    cluster = run.record.input.cluster
    gpus, time = sum(device.type.kind != "cpu" for device in cluster.devices), table["time"].to_numpy()
    columns = {"tasks waiting": table["waiting"].to_numpy(dtype=float)}
    if gpus:
        # Several launches in flight on one GPU do not hold more than all of it.
        columns["GPUs held (%)"] = np.minimum(100 * table["allocated_gpus"].to_numpy() / gpus, 100.0)
        columns["GPUs busy (%)"] = np.minimum(100 * table["busy_gpus"].to_numpy() / gpus, 100.0)
    else:
        cores = sum(node.cpus for node in cluster.nodes)
        columns["cores busy (%)"] = 100 * table["busy_cores"].to_numpy() / max(cores, 1)
    means = rates_over(run.record, run.modes, edges)
    means |= {name: averaged(time, values, edges, run.end) for name, values in columns.items()}
    fragmented = run.fragmentation_between(edges) if gpus else np.array([])
    return means | ({FRAGMENTATION: 100 * fragmented} if np.nan_to_num(fragmented).any() else {})


def _panels(lines: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
    """Panels that some run has; held and busy GPUs are one where equal in all."""
    names = [name for name in _PANELS if any(name in columns for columns in lines.values())]
    if len(names) > 1 and not any(np.nan_to_num(columns["tasks waiting"]).any() for columns in lines.values()):
        names.remove("tasks waiting")
    pairs = [(columns.get("GPUs held (%)"), columns.get("GPUs busy (%)")) for columns in lines.values()]
    same = [
        occupied is not None and busy is not None and np.allclose(occupied, busy, atol=0.5, equal_nan=True)
        for occupied, busy in pairs
    ]
    if all(same):
        names.remove("GPUs held (%)")
    return names


BATCH_STRETCHES, TIMES = 60, ("GPU time a batch", "latency")


def batches(results: Result | Iterable[Result] | Mapping[str, Result]) -> Picture:
    """Draw batch size, GPU time a batch, latency and throughput over time.

    Batches count where their upload starts, latencies where the request arrives, throughput where it ends.

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
        y = Axis(f"{name} ({unit})" if unit else name, 0, 1.05 * max(peaks) / factor)
        x = replace(time_axis(0.0, edges[-1], means=edges), bare=True)
        curves = [Line(middle, one[name] / factor, color=look(n)["color"]) for n, one in enumerate(lines)]
        rows.append([Panel([curve], replace(x), replace(y, bare=n > 0)) for n, curve in enumerate(curves)])
    for label, first, last in zip(runs, rows[0], rows[-1], strict=True):
        first.title, last.x.bare = label, False
    return Picture(rows, 1.0 + 4.0 * len(runs), 8.2)


def _batch_lines(run: Result, edges: np.ndarray) -> dict[str, np.ndarray]:
    """Each quantity of a run as means between the edges; NaN without events."""
    tasks, rows = run.tasks[run.tasks["batch"].notna()], run.launches
    if not len(tasks):
        raise UsageError("there is a run without batches, which only services have")
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

    The title tells the energy of the whole run, which is the area.

    Parameters: result: a run; bins: stretches of time.
    Returns: the picture.
    """
    table, end = power_over_time(result, bins), result.end or 1.0
    edges, columns = np.append(table["time"].to_numpy(), end), table.drop(columns="time")
    total = columns.sum(axis=1)
    factor, unit = fitting([float(total.max())], WATTS)
    floor, marks = np.zeros(len(edges)), list[Any]()
    kinds = list(dict.fromkeys(str(name).rpartition(".")[0] for name in columns if columns[name].any()))
    for number, kind in enumerate(kinds):
        for part, strength in _PARTS:
            watts = columns[f"{kind}.{part}"].to_numpy() / factor
            if watts.any():
                top = floor + np.append(watts, watts[-1:])
                label = f"{short(kind, 24)} {'at work' if part == 'work' else part}"
                color = PALETTE[number % len(PALETTE)]
                marks.append(Band(edges, floor, top, label, color=color, alpha=strength, steps=True))
                floor = top
    spent = float((total * np.diff(edges)).sum()) if result.end > 0 else 0.0
    subtitle = energy(spent) if total.any() else "no power is given"
    y = Axis(f"power ({unit})", 0, 1.05 * float(floor.max()) if floor.any() else 1.0)
    title = f"{short(describe(result), 70)} · {subtitle}"
    # From above to below, as they lie.
    return Picture([[Panel(marks[::-1], time_axis(0.0, end, means=edges), y, title, legend="right")]])


def fragmentation(result: Result) -> Picture:
    """Draw the allocated GPUs, and above them the free GPUs that fit no request.

    Both are in percent of the GPUs that are up; what lies between the upper line and 100 % is free and of use.

    Parameters: result: a run.
    Returns: the picture.
    Raises: UsageError: the cluster has no GPUs.
    """
    if not any(device.type.kind != "cpu" for device in result.record.input.cluster.devices):
        raise UsageError("there are no GPUs here, so none of them can be left over")
    table, end = result.fragmentation_over_time, result.end
    up = (table["allocated_gpus"] + table["unallocated_gpus"]).to_numpy()
    allocated = 100 * table["allocation"].fillna(0.0).to_numpy()
    stranded = 100 * table["fragmented_gpus"].to_numpy() / up.clip(min=1e-12)
    time, low, high = until(end, table["time"].to_numpy(), allocated, allocated + stranded)
    marks = [
        Band(time, 0.0, low, "allocated", alpha=0.25, steps=True),
        Band(time, low, high, "free, but of no use to the mix", color=VERMILION, alpha=0.45, steps=True),
    ]
    panel = Panel(list(marks), time_axis(0.0, end if end > 0 else 1.0), Axis("GPUs (%)", 0, 105), describe(result),
                  legend="above", means=True)  # fmt: skip
    return Picture([[panel]], 9, 4)
