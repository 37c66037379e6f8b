"""The state of the system over time: waiting tasks and busy devices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from sim.plots.style import BLUE, INK, MUTED, PALETTE, VERMILION, describe, figure, plain, short, tidy, time_axis, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sim.results.one_run.result import Result

MAX_STEPS = 4000
"""Beyond this many steps the line is averaged over equal stretches of time: a picture has fewer points."""


def timeline(result: Result, axes: tuple[Axes, Axes] | None = None) -> tuple[Axes, Axes]:
    """Draw the tasks that wait (above) and the share of each device type that computes (below)."""
    if axes is None:
        upper, lower = figure(9, 5).subplots(2, 1, sharex=True, height_ratios=[1, 1])
    else:
        upper, lower = axes
    table = result.timeline_by("type")
    time, end = table["time"].to_numpy(), result.end
    _steps(upper, time, table["waiting"].to_numpy(dtype=float), end, color=BLUE, fill=True)
    upper.set_ylim(0, None if table["waiting"].any() else 1)
    upper.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    upper.set_ylabel("tasks waiting", fontsize=9, color=INK)
    cluster = result.record.input.cluster
    kinds = [name.removeprefix("busy.") for name in table.columns if name.startswith("busy.")]
    labels = []
    for number, (label, mine) in enumerate(_groups_of_types(cluster, kinds).items()):
        there = max(sum(cluster.count(kind) for kind in mine), 1)
        share = 100 * table[[f"busy.{kind}" for kind in mine]].to_numpy(dtype=float).sum(axis=1) / there
        cores = f" core{'s' if there > 1 else ''}" if _is_cpu(cluster, mine[0]) else ""
        labels.append(f"{plain(short(label, 30))} ({there}{cores})")
        _steps(lower, time, share, end, color=PALETTE[number], label=labels[-1])
    lower.set_ylim(0, 105)
    lower.set_ylabel("busy (%)", fontsize=9, color=INK)
    if kinds:
        across = max(1, min(len(labels), 110 // (6 + max(map(len, labels)))))
        lower.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=across,
                     borderaxespad=0.1)  # fmt: skip
    for ax in (upper, lower):
        tidy(ax)
        time_axis(ax, 0.0, end if end > 0 else 1.0)
    upper.set_xlabel("")
    upper.tick_params(labelbottom=False)
    if result.warmup > 0:
        for ax in (upper, lower):
            ax.axvspan(0, min(result.warmup, end), color=MUTED, alpha=0.12, linewidth=0)
        upper.text(0, 1, " warmup", transform=upper.get_xaxis_transform(), va="top", fontsize=8, color=MUTED)
    if result.error:
        upper.axvline(end, color=VERMILION, linewidth=1.5)
    title(upper, describe(result))
    return upper, lower


def _groups_of_types(cluster: Any, kinds: list[str]) -> dict[str, list[str]]:
    """Device types by the label of their line: each its own, but of many the rarest together."""
    if len(kinds) <= len(PALETTE):
        return {kind: [kind] for kind in kinds}
    gpus = sorted((kind for kind in kinds if not _is_cpu(cluster, kind)), key=cluster.count, reverse=True)
    cpus = [kind for kind in kinds if _is_cpu(cluster, kind)]
    own = gpus[: len(PALETTE) - 2]
    rest, cores = gpus[len(own) :], {"all": cpus} if len(cpus) > 1 else {kind: [kind] for kind in cpus}
    return {kind: [kind] for kind in own} | ({f"{len(rest)} other types": rest} if rest else {}) | cores


def _is_cpu(cluster: Any, kind: str) -> bool:
    return cluster.types[kind].kind == "cpu"


def _steps(ax: Axes, time: np.ndarray, value: np.ndarray, end: float, *, fill: bool = False, **look: Any) -> None:
    time, value = thinned(time, value, end)
    time, value = np.append(time, end), np.append(value, value[-1:])
    ax.plot(time, value, drawstyle="steps-post", linewidth=1.4, **look)
    if fill:
        ax.fill_between(time, value, step="post", color=look["color"], alpha=0.15, linewidth=0)


def thinned(time: np.ndarray, value: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    """The steps, or their means over equal stretches where there are too many to see."""
    if len(time) <= MAX_STEPS or not math.isfinite(end) or end <= 0:
        return time, value
    edges = np.linspace(0.0, end, 801)
    return edges[:-1], averaged(time, value, edges, end)


def averaged(time: np.ndarray, value: np.ndarray, edges: np.ndarray, end: float) -> np.ndarray:
    """Means of steps between the edges, of the time before `end`; NaN where there is none."""
    area = np.concatenate([[0.0], np.cumsum(value * np.diff(time, append=end))])
    inside = np.minimum(edges, end)
    span = np.diff(inside)
    whole = np.diff(np.interp(inside, np.append(time, end), area))
    return np.divide(whole, span, out=np.full(len(span), np.nan), where=span > 0)
