"""The Gantt chart: what every device did when, transfers and computing told apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hetsim.plots import style
from hetsim.results.declared import MAKESPAN
from hetsim.results.one_run.gantt_rows import device_bars, fill_lanes
from hetsim.results.one_run.launches import FUSED
from hetsim.results.one_run.result import Result

STAGES = (
    ("upload", "upload_start", "upload_end", style.ORANGE),
    ("compute", "compute_start", "compute_end", style.BLUE),
    ("download", "download_start", "end", style.GREEN),
)
CPU_COLOR = style.SKY
LOST_COLOR = style.VERMILION
OVERHEAD_COLOR = "#C9C9C9"
MAX_DEVICES = 40
LABELED = 400
"""With at most this many launches each bar that has room for it carries the name of its task."""
NAMED_LINES = 100
"""Up to this number of lines each core has its name; with more only its node."""


def gantt(result: Result, ax: Axes | None = None, *, devices: int = MAX_DEVICES, until: float | None = None) -> Axes:
    """Draw every launch of a run on the lines of its devices.

    A device has a line for each launch that it served at a time, and a node a line for each core where the policy named
    the cores.  Accelerators that share a node with others of another type have their type next to their name.

    Parameters:
        result: a run.
        ax: axes to draw on, else those of a new figure.
        devices: of clusters with more the busiest are drawn, and the title says so.
        until: where the time axis ends, for pictures of several runs that are looked at side by side, or to look at the
            beginning of a long one; the title then tells the makespan.  What begins later is not drawn.
    Returns: the axes.
    """
    bars = device_bars(result)
    chosen, left_out = _choose(result, bars, devices)
    bars = bars[bars["line"].isin(chosen)]
    labels: list[tuple[float, str]] = []
    devices_only: list[tuple[float, str]] = []
    edges = [0]
    row = np.zeros(len(bars), dtype=np.int64)
    total = 0
    names = bars["line"].to_numpy()
    kinds = _unlike(result)
    for name in chosen:
        mine = np.flatnonzero(names == name)
        cores = bars["core"].to_numpy()[mine]
        if (cores >= 0).all():
            named, lanes = np.unique(cores, return_inverse=True)
            used = len(named)
            labels += [(total + lane, f"{name}{core}") for lane, core in enumerate(named.tolist())]
        else:
            lanes, used = fill_lanes(bars["decided"].to_numpy()[mine], bars["end"].to_numpy()[mine])
            kind = f" {kinds[name]}" if name in kinds else ""
            labels.append((total + (used - 1) / 2, f"{name}{kind}"))
        devices_only.append((total + (used - 1) / 2, name))
        row[mine] = total + lanes
        total += used
        edges.append(total)
    end = result.end if until is None else until
    if until is not None:
        inside = (bars["decided"] < until).to_numpy()
        bars, row = bars[inside], row[inside]
    ax = style.own_axes(ax, 10 if len(bars) <= 60 else 14, min(14.0, 1.6 + 0.3 * max(total, 3)))
    shown = _draw(ax, bars, row)
    _label_bars(ax, bars, row, end)
    label_lanes(ax, labels if total <= NAMED_LINES else devices_only, edges)
    style.time_axis(ax, 0.0, end if end > 0 else 1.0)
    style.tidy(ax, grid="x")
    ax.tick_params(axis="y", length=0)
    more = f" (the {len(chosen)} busiest of {len(chosen) + left_out} devices)" if left_out else ""
    makespan = f" · makespan {result.text(MAKESPAN)}" if until is not None and result.metric(MAKESPAN) >= 0 else ""
    text = style.describe(result) + makespan + more
    # A long title goes above the legend.
    room = 11 * ax.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    beside = len(text) + sum(8 + len(str(patch.get_label())) for patch in shown) <= room
    style.title(ax, text, pad=None if beside or len(shown) < 2 else 24)
    if len(shown) > 1:
        ax.legend(handles=shown, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(shown), frameon=False,
                  fontsize=9, borderaxespad=0.2, handlelength=1.2, columnspacing=1.2)  # fmt: skip
    return ax


def _unlike(result: Result) -> dict[str, str]:
    """The type of each accelerator of nodes with several types, by name."""
    nodes = result.record.input.cluster.nodes
    mixed = [node for node in nodes if len({device.type.name for device in node.accelerators}) > 1]
    return {device.name: device.type.name for node in mixed for device in node.accelerators}


def _choose(result: Result, bars: pd.DataFrame, most: int) -> tuple[list[str], int]:
    """The devices to draw, in the order of the cluster, and how many are left out."""
    table = result.devices
    used = table[table["device"].isin(set(bars["line"]))]
    busiest = set(used.sort_values("busy", ascending=False, kind="stable")["device"].head(most))
    return [name for name in used["device"] if name in busiest], max(0, len(used) - most)


def _draw(ax: Axes, bars: pd.DataFrame, row: np.ndarray) -> list[Patch]:
    """The bars, and what the legend has to tell."""
    legend: list[Patch] = []
    cpu = bars["cpu"].to_numpy()
    lost = bars["outcome"].isin(["lost"]).to_numpy()
    edge = "white" if len(bars) < 2000 else "none"
    # Held, but no stage at work: waiting for a link, saving or restoring state.
    decided_boxes = bar_boxes(bars["decided"].to_numpy(), bars["end"].to_numpy(), row, 0.12)
    ax.add_collection(PolyCollection(decided_boxes, facecolors=OVERHEAD_COLOR, edgecolors="none", zorder=1))
    for name, first, last, color in STAGES:
        begin, end = bars[first].to_numpy(dtype=float), bars[last].to_numpy(dtype=float)
        end = np.where(np.isnan(end), bars["end"].to_numpy(), end)
        parts = [(name, color, ~cpu), ("CPU", CPU_COLOR, cpu)] if name == "compute" else [(name, color, ~cpu | cpu)]
        for label, fill, mine in parts:
            kept = mine & ~np.isnan(begin) & (end > begin)
            for text, paint, chosen in ((label, fill, kept & ~lost), ("lost work", LOST_COLOR, kept & lost)):
                if chosen.any():
                    boxes = bar_boxes(begin[chosen], end[chosen], row[chosen], 0.4)
                    ax.add_collection(
                        PolyCollection(boxes, facecolors=paint, edgecolors=edge, linewidths=0.5, zorder=2)
                    )
                    if text not in [patch.get_label() for patch in legend]:
                        legend.append(Patch(facecolor=paint, label=text))
    if _idle(bars).any():
        legend.append(Patch(facecolor=OVERHEAD_COLOR, label="overhead, no stage at work"))
    return legend


def _idle(bars: pd.DataFrame) -> np.ndarray:
    """Which launches held their devices for a time that belongs to no stage."""
    length = (bars["end"] - bars["decided"]).to_numpy(dtype=float)
    at_work = np.zeros(len(bars))
    for _, first, last, _ in STAGES:
        end = bars[last].fillna(bars["end"]).to_numpy(dtype=float)
        at_work += np.nan_to_num(end - bars[first].to_numpy(dtype=float))
    return length - at_work > 1e-6 * np.maximum(length, 1e-300)


def bar_boxes(begin: np.ndarray, end: np.ndarray, row: np.ndarray, half: float) -> list[np.ndarray]:
    """Corners of horizontal bars."""
    corners = np.empty((len(begin), 4, 2))
    corners[:, 0, 0] = corners[:, 1, 0] = begin
    corners[:, 2, 0] = corners[:, 3, 0] = end
    corners[:, 0, 1] = corners[:, 3, 1] = row - half
    corners[:, 1, 1] = corners[:, 2, 1] = row + half
    return list(corners)


def _label_bars(ax: Axes, bars: pd.DataFrame, row: np.ndarray, end: float) -> None:
    """Names of tasks inside their bars, where they fit into the visible part."""
    if len(bars) > LABELED or not end:
        return
    if FUSED in bars:
        bars = bars.assign(task=bars[FUSED].where(bars[FUSED] != "", bars["task"].astype(str)))
    computing = bars[["task", "compute_start", "compute_end", "cpu"]].itertuples(index=False)
    for (task, begin, until, on_cpu), at in zip(computing, row, strict=True):
        until = end if until != until else min(until, end)
        if until - begin > (0.004 + 0.007 * len(str(task))) * end:
            ink = style.INK if on_cpu else "white"
            ax.text((begin + until) / 2, at, style.plain(str(task)), ha="center", va="center", fontsize=7.5, color=ink,
                    zorder=3, clip_on=True)  # fmt: skip


def label_lanes(ax: Axes, labels: list[tuple[float, str]], edges: list[int]) -> None:
    """Label the rows, and draw a rule between devices with several rows."""
    ax.set_yticks([at for at, _ in labels], [style.plain(style.short(name, 30)) for _, name in labels])
    for tick in ax.get_yticklabels():
        tick.set_color(style.INK)
        tick.set_fontsize(6.5 if len(labels) > 48 else 8 if len(labels) > 20 else 9)
    total = edges[-1]
    if total > len(edges) - 1:
        for edge in edges[1:-1]:
            ax.axhline(edge - 0.5, color=style.MUTED, linewidth=0.4, zorder=0)
    ax.set_ylim(max(total, 1) - 0.4, -0.6)


def timeline(result: Result, axes: tuple[Axes, Axes] | None = None) -> tuple[Axes, Axes]:
    """Draw the waiting tasks (above) and the computing share of each type (below).

    A panel with more changes than can be told apart shows means over equal intervals, and says so at its axis.

    Parameters: result: a run; axes: two to draw on, else those of a new figure.
    Returns: both axes.
    """
    if axes is None:
        upper, lower = style.figure(9, 5).subplots(2, 1, sharex=True, height_ratios=[1, 1])
    else:
        upper, lower = axes
    table = result.timeline_by("type")
    time, end = table["time"].to_numpy(), result.end
    waiting = table["waiting"].to_numpy(dtype=float)
    edges = style.intervals(upper, end, waiting)
    style.draw_steps(upper, time, waiting, end=end, edges=edges, color=style.BLUE, fill=True)
    upper.set_ylim(0, None if table["waiting"].any() else 1)
    upper.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    style.tidy(upper, y=style.steps_label("tasks waiting", edges, shaded=True))
    cluster = result.record.input.cluster
    kinds = [name.removeprefix("busy.") for name in table.columns if name.startswith("busy.")]
    shares = {}
    for label, mine in _groups_of_types(cluster, kinds).items():
        there = max(sum(cluster.count(kind) for kind in mine), 1)
        cores = f" core{'s' if there > 1 else ''}" if _is_cpu(cluster, mine[0]) else ""
        busy = table[[f"busy.{kind}" for kind in mine]].to_numpy(dtype=float).sum(axis=1)
        shares[f"{style.plain(style.short(label, 30))} ({there}{cores})"] = 100 * busy / there
    labels, edges = list(shares), style.intervals(lower, end, *shares.values())
    for number, (label, share) in enumerate(shares.items()):
        # Dashes show a line below.
        style.draw_steps(lower, time, share, end=end, edges=edges, label=label, **style.look(number))
    lower.set_ylim(0, 105)
    style.tidy(lower, y=style.steps_label("busy (%)", edges))
    if kinds:
        across = max(1, min(len(labels), 110 // (6 + max(map(len, labels)))))
        lower.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=across,
                     borderaxespad=0.1)  # fmt: skip
    for ax in (upper, lower):
        style.time_axis(ax, 0.0, end if end > 0 else 1.0)
    style.one_time_axis([upper])
    if result.warmup > 0:
        for ax in (upper, lower):
            ax.axvspan(0, min(result.warmup, end), color=style.MUTED, alpha=0.12, linewidth=0)
        upper.text(0, 1, " warmup", transform=upper.get_xaxis_transform(), va="top", fontsize=8, color=style.MUTED)
    if result.error:
        upper.axvline(end, color=style.VERMILION, linewidth=1.5)
    style.title(upper, style.describe(result))
    return upper, lower


def _groups_of_types(cluster: Any, kinds: list[str]) -> dict[str, list[str]]:
    """Device types by the label of their line; the rarest of many share one."""
    if len(kinds) <= len(style.PALETTE):
        return {kind: [kind] for kind in kinds}
    gpus = sorted((kind for kind in kinds if not _is_cpu(cluster, kind)), key=cluster.count, reverse=True)
    cpus = [kind for kind in kinds if _is_cpu(cluster, kind)]
    own = gpus[: len(style.PALETTE) - 2]
    rest, cores = gpus[len(own) :], {"all": cpus} if len(cpus) > 1 else {kind: [kind] for kind in cpus}
    return {kind: [kind] for kind in own} | ({f"{len(rest)} other types": rest} if rest else {}) | cores


def _is_cpu(cluster: Any, kind: str) -> bool:
    return cluster.types[kind].kind == "cpu"
