"""Several policies on one load over time: GPUs, queue, fragmentation, batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.stats import binned_statistic

from hetsim.errors import UsageError
from hetsim.plots import style
from hetsim.plots.cdf import labeled
from hetsim.results.formatting import SECONDS, energy, fitting
from hetsim.results.one_run.calls import RATES, rates_over
from hetsim.results.one_run.over_bins import power_over_time
from hetsim.results.one_run.result import Result

STRETCHES = 150
"""Lines are means over this many equal stretches of time: steps of several policies over one another hide all."""
WATTS = ((1.0, "W"), (1e3, "kW"), (1e6, "MW"))
_PARTS = (("sleep", 0.25), ("idle", 0.5), ("work", 1.0))
"""From the bottom up, with how strongly each is painted."""


def over_time(results: Result | Iterable[Result] | Mapping[str, Result]) -> Figure:
    """Draw panels of GPUs, queue and fragmentation, with a line for every run.

    On clusters without GPUs the cores take their place.  Lines are means over 150th parts of the longest run;
    fragmentation is drawn where some request asks for GPUs, and answers, attempts and wasted work where clients time
    out or try again.

    Parameters: results: runs, with labels if in a mapping.
    Returns: the figure.
    """
    runs = labeled(results)
    end = max(run.end for run in runs.values())
    end = end if end > 0 else 1.0
    edges = np.linspace(0.0, end, STRETCHES + 1)
    lines = {label: _lines(run, edges) for label, run in runs.items()}
    names, looks = _panels(lines), style.line_looks(list(runs))
    picture = style.figure(9.5, 1.0 + 1.45 * len(names))
    panels = picture.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for name, ax in zip(names, panels, strict=True):
        for label, columns in lines.items():
            if name in columns:
                ax.plot((edges[:-1] + edges[1:]) / 2, columns[name], linewidth=1.4, **looks[label])
        _dress(ax, name, end, style.means_told(edges))
    style.one_time_axis(panels[:-1])
    style.legend_above(picture, panels[0])
    return picture


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
    means |= {name: style.averaged(time, values, edges, run.end) for name, values in columns.items()}
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


def _dress(ax: Axes, name: str, end: float, told: str) -> None:
    style.tidy(ax, y=name)
    style.time_axis(ax, 0.0, end, told=told)
    if "%" in name:
        ax.set_ylim(0, 103)
        ax.set_yticks([0, 50, 100])
        if name == FRAGMENTATION:
            _close(ax)
    else:
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _close(ax: Axes) -> None:
    """Fragmentation is often far below 100 %: the axis ends where it does."""
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.lines])
    top = float(np.nanmax(values, initial=0.0))
    if top < 60:
        ax.set_ylim(0, max(1.1 * top, 1.0))
        ax.yaxis.set_major_locator(MaxNLocator(4))


BATCH_STRETCHES, TIMES = 60, ("GPU time a batch", "latency")


def batches(results: Result | Iterable[Result] | Mapping[str, Result]) -> Figure:
    """Draw batch size, GPU time a batch, latency and throughput over time.

    Batches count where their upload starts, latencies where the request arrives, throughput where it ends.

    Parameters: results: runs, with labels if in a mapping.
    Returns: the figure.
    """
    runs = labeled(results)
    edges = np.linspace(0.0, max(run.end for run in runs.values()), BATCH_STRETCHES + 1)
    lines = [_batch_lines(run, edges) for run in runs.values()]
    picture = style.figure(1.0 + 4.0 * len(runs), 8.2)
    columns = picture.subplots(4, len(runs), sharex=True, sharey="row", squeeze=False).T
    for number, (label, panels) in enumerate(zip(runs, columns, strict=True)):
        for ax, (name, values) in zip(panels, lines[number].items(), strict=True):
            factor, unit = fitting([np.nanmax(one[name]) for one in lines], SECONDS) if name in TIMES else (1.0, "")
            ax.plot((edges[:-1] + edges[1:]) / 2, values / factor, color=style.look(number)["color"])
            ax.set_ylim(bottom=0)
            style.tidy(ax, y="" if number else f"{name} ({unit})" if unit else name)
        style.title(panels[0], label)
        style.time_axis(panels[-1], 0.0, edges[-1], told=style.means_told(edges))
    return picture


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


def power(result: Result, ax: Axes | None = None, *, bins: int = 200) -> Axes:
    """Draw the watts of each device type, stacked: asleep, idle, and for work.

    The title tells the energy of the whole run, which is the area.

    Parameters: result: a run; ax: axes to draw on, else those of a new figure; bins: stretches of time.
    Returns: the axes.
    """
    ax = style.own_axes(ax)
    table = power_over_time(result, bins)
    edges = np.append(table["time"].to_numpy(), result.end or 1.0)
    columns = table.drop(columns="time")
    total = columns.sum(axis=1)
    factor, unit = fitting([float(total.max())], WATTS)
    floor = np.zeros(len(edges))
    kinds = list(dict.fromkeys(str(name).rpartition(".")[0] for name in columns if columns[name].any()))
    for number, kind in enumerate(kinds):
        for part, strength in _PARTS:
            watts = columns[f"{kind}.{part}"].to_numpy() / factor
            if not watts.any():
                continue
            top = floor + np.append(watts, watts[-1:])
            label = f"{style.plain(style.short(kind, 24))} {'at work' if part == 'work' else part}"
            color = style.PALETTE[number % len(style.PALETTE)]
            ax.fill_between(edges, floor, top, step="post", linewidth=0, color=color, alpha=strength, label=label)
            floor = top
    ax.set_ylim(0, 1.05 * float(floor.max()) if floor.any() else 1.0)
    style.time_axis(ax, 0.0, result.end or 1.0, told=style.means_told(edges))
    style.tidy(ax, y=f"power ({unit})")
    spent = float((total * np.diff(edges)).sum()) if result.end > 0 else 0.0
    subtitle = energy(spent) if total.any() else "no power is given"
    style.title(ax, f"{style.short(style.describe(result), 70)} · {subtitle}")
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        ax.legend(handles[::-1], labels[::-1], frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def fragmentation(result: Result, ax: Axes | None = None) -> Axes:
    """Draw the allocated GPUs, and above them the free GPUs that fit no request.

    Both are in percent of the GPUs that are up; what lies between the upper line and 100 % is free and of use.

    Parameters: result: a run; ax: axes to draw on, else those of a new figure.
    Returns: the axes.
    Raises: UsageError: the cluster has no GPUs.
    """
    if not any(device.type.kind != "cpu" for device in result.record.input.cluster.devices):
        raise UsageError("there are no GPUs here, so none of them can be left over")
    ax = style.own_axes(ax, 9, 4)
    table, end = result.fragmentation_over_time, result.end
    up = (table["allocated_gpus"] + table["unallocated_gpus"]).to_numpy()
    time = table["time"].to_numpy()
    allocated = 100 * table["allocation"].fillna(0.0).to_numpy()
    stranded = 100 * table["fragmented_gpus"].to_numpy() / up.clip(min=1e-12)
    low, high = allocated, allocated + stranded
    edges = style.intervals(ax, end, low, high)
    if edges is not None:
        low, high, time = style.averaged(time, low, edges, end), style.averaged(time, high, edges, end), edges[:-1]
    time, low, high = np.append(time, end), np.append(low, low[-1:]), np.append(high, high[-1:])
    ax.fill_between(time, low, step="post", color=style.BLUE, alpha=0.25, linewidth=0, label="allocated")
    ax.fill_between(time, low, high, step="post", color=style.VERMILION, alpha=0.45, linewidth=0,
                    label="free, but of no use to the mix")  # fmt: skip
    ax.set_ylim(0, 105)
    ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.1)
    style.tidy(ax, y=style.steps_label("GPUs (%)", edges))
    style.time_axis(ax, 0.0, end if end > 0 else 1.0)
    style.title(ax, style.describe(result), pad=24)
    return ax
