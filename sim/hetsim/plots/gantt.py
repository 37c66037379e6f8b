"""The Gantt chart: what every device did when, transfers and computing told apart."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hetsim.plots.style import describe, look, short
from hetsim.plots.style import until as to_end
from hetsim.results.colors import BLUE, GREEN, INK, MUTED, ORANGE, PALETTE, SKY, VERMILION
from hetsim.results.declared import MAKESPAN
from hetsim.results.one_run.launches import FUSED
from hetsim.results.one_run.over_bins import device_bars, fill_lanes
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Axis, Band, Boxes, Line, Panel, Picture, Texts, row_boxes, time_axis

STAGES = (
    ("upload", "upload_start", "upload_end", ORANGE),
    ("compute", "compute_start", "compute_end", BLUE),
    ("download", "download_start", "end", GREEN),
)
CPU_COLOR = SKY
LOST_COLOR = VERMILION
OVERHEAD_COLOR = "#C9C9C9"
MAX_DEVICES = 40
LABELED = 400
"""With at most this many launches each bar that has room for it carries the name of its task."""
NAMED_LINES = 100
"""Up to this number of lines each core has its name; with more only its node."""


def gantt(result: Result, *, devices: int = MAX_DEVICES, until: float | None = None) -> Picture:
    """Draw every launch of a run on the lines of its devices.

    A device has a line for each launch that it served at a time, and a node a line for each core where the policy named
    the cores.  Accelerators that share a node with others of another type have their type next to their name.

    Parameters:
        result: a run.
        devices: of clusters with more the busiest are drawn, and the title says so.
        until: where the time axis ends, for pictures of several runs that are looked at side by side, or to look at the
            beginning of a long one; the title then tells the makespan.  What begins later is not drawn.
    Returns: the picture.
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
    marks = _stages(bars, row) + _names(bars, row, end)
    more = f" (the {len(chosen)} busiest of {len(chosen) + left_out} devices)" if left_out else ""
    makespan = f" · makespan {result.text(MAKESPAN)}" if until is not None and result.metric(MAKESPAN) >= 0 else ""
    legend = "above right" if len({mark.label for mark in marks if getattr(mark, "label", "")}) > 1 else ""
    y = lanes_axis(labels if total <= NAMED_LINES else devices_only, total)
    panel = Panel([*rules(edges), *marks], time_axis(0.0, end if end > 0 else 1.0), y,
                  describe(result) + makespan + more, grid="x", legend=legend)  # fmt: skip
    return Picture([[panel]], 10 if len(bars) <= 60 else 14, min(14.0, 1.6 + 0.3 * max(total, 3)))


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


def _stages(bars: pd.DataFrame, row: np.ndarray) -> list[Any]:
    """The bars of all stages, behind them all that is held."""
    cpu, lost = bars["cpu"].to_numpy(), bars["outcome"].isin(["lost"]).to_numpy()
    edge = 0.5 if len(bars) < 2000 else 0.0
    # Held, but no stage at work: waiting for a link, saving or restoring state.
    overhead = "overhead, no stage at work" if _idle(bars).any() else ""
    marks = [row_boxes(bars["decided"].to_numpy(), bars["end"].to_numpy(), row, 0.12, color=OVERHEAD_COLOR)]
    for name, first, last, color in STAGES:
        begin, end = bars[first].to_numpy(dtype=float), bars[last].to_numpy(dtype=float)
        end = np.where(np.isnan(end), bars["end"].to_numpy(), end)
        parts = [(name, color, ~cpu), ("CPU", CPU_COLOR, cpu)] if name == "compute" else [(name, color, ~cpu | cpu)]
        for label, fill, mine in parts:
            kept = mine & ~np.isnan(begin) & (end > begin)
            for text, paint, chosen in ((label, fill, kept & ~lost), ("lost work", LOST_COLOR, kept & lost)):
                if chosen.any():
                    look = {"label": text, "color": paint, "edge": edge}
                    marks.append(row_boxes(begin[chosen], end[chosen], row[chosen], 0.4, **look))
    return [*marks, *[Boxes([], [], [], [], label=overhead, color=OVERHEAD_COLOR)] * bool(overhead)]


def _idle(bars: pd.DataFrame) -> np.ndarray:
    """Which launches held their devices for a time that belongs to no stage."""
    length = (bars["end"] - bars["decided"]).to_numpy(dtype=float)
    at_work = np.zeros(len(bars))
    for _, first, last, _ in STAGES:
        end = bars[last].fillna(bars["end"]).to_numpy(dtype=float)
        at_work += np.nan_to_num(end - bars[first].to_numpy(dtype=float))
    return length - at_work > 1e-6 * np.maximum(length, 1e-300)


def _names(bars: pd.DataFrame, row: np.ndarray, end: float) -> list[Texts]:
    """Names of tasks inside their bars, where they fit into the visible part."""
    if len(bars) > LABELED or not end:
        return []
    if FUSED in bars:
        bars = bars.assign(task=bars[FUSED].where(bars[FUSED] != "", bars["task"].astype(str)))
    computing = bars[["task", "compute_start", "compute_end", "cpu"]].itertuples(index=False)
    names = []
    for (task, begin, until, on_cpu), at in zip(computing, row.tolist(), strict=True):
        until = end if until != until else min(until, end)
        if until > begin:
            names.append(((begin + until) / 2, at, str(task), INK if on_cpu else "#FFFFFF", until - begin))
    if not names:
        return []
    x, y, texts, colors, room = zip(*names, strict=True)
    return [Texts(x, y, texts, color=colors, size=7.5, align="center", room=room)]


def lanes_axis(labels: list[tuple[float, str]], total: int) -> Axis:
    """The names of rows from above to below."""
    return Axis("", max(total, 1) - 0.4, -0.6, [(at, short(name, 30)) for at, name in labels])


def rules(edges: list[int]) -> list[Line]:
    """Lines between devices with several rows."""
    inner = edges[1:-1] if edges[-1] > len(edges) - 1 else []
    return [Line([-math.inf, math.inf], [edge - 0.5] * 2, color=MUTED, width=0.4, behind=True) for edge in inner]


def timeline(result: Result) -> Picture:
    """Draw the waiting tasks (above) and the computing share of each type (below).

    A panel with more changes than can be told apart shows means over equal intervals, and says so at its axis.

    Parameters: result: a run.
    Returns: the picture.
    """
    table, end = result.timeline_by("type"), result.end
    time, waiting = to_end(end, table["time"].to_numpy(), table["waiting"].to_numpy(dtype=float))
    upper: list[Any] = [Band(time, 0.0, waiting, alpha=0.15, steps=True, peak=True), Line(time, waiting, steps=True)]
    cluster, lower = result.record.input.cluster, list[Any]()
    kinds = [name.removeprefix("busy.") for name in table.columns if name.startswith("busy.")]
    for number, (label, mine) in enumerate(_groups_of_types(cluster, kinds).items()):
        there = max(sum(cluster.count(kind) for kind in mine), 1)
        cores = f" core{'s' if there > 1 else ''}" if _is_cpu(cluster, mine[0]) else ""
        busy = 100 * table[[f"busy.{kind}" for kind in mine]].to_numpy(dtype=float).sum(axis=1) / there
        # Dashes show a line below.
        lower.append(Line(time, np.append(busy, busy[-1:]), f"{short(label, 30)} ({there}{cores})", steps=True,
                          **look(number)))  # fmt: skip
    everywhere, warmup = [-math.inf, math.inf], list[Any]()
    if result.warmup > 0:
        warmup = [Boxes([0], [min(result.warmup, end)], everywhere[:1], everywhere[1:], color=MUTED, alpha=0.12)]
        upper.append(Texts([0], [1], [" warmup"], MUTED, rise="top", inside="y"))
    upper += [Line([end, end], everywhere, color=VERMILION, width=1.5)] * bool(result.error)
    x = time_axis(0.0, end if end > 0 else 1.0)
    top = None if table["waiting"].any() else 1
    return Picture([
        [Panel([*warmup, *upper], replace(x, bare=True), Axis("tasks waiting", 0, top, integer=True), describe(result),
               means=True)],
        [Panel([*warmup, *lower], x, Axis("busy (%)", 0, 105), legend="above", means=True)],
    ], 9, 5)  # fmt: skip


def _groups_of_types(cluster: Any, kinds: list[str]) -> dict[str, list[str]]:
    """Device types by the label of their line; the rarest of many share one."""
    if len(kinds) <= len(PALETTE):
        return {kind: [kind] for kind in kinds}
    gpus = sorted((kind for kind in kinds if not _is_cpu(cluster, kind)), key=cluster.count, reverse=True)
    cpus = [kind for kind in kinds if _is_cpu(cluster, kind)]
    own = gpus[: len(PALETTE) - 2]
    rest, cores = gpus[len(own) :], {"all": cpus} if len(cpus) > 1 else {kind: [kind] for kind in cpus}
    return {kind: [kind] for kind in own} | ({f"{len(rest)} other types": rest} if rest else {}) | cores


def _is_cpu(cluster: Any, kind: str) -> bool:
    return cluster.types[kind].kind == "cpu"
