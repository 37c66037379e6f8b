"""The state of the system over time: waiting tasks and busy devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.ticker import MaxNLocator

from hetsim.plots.steps import draw_steps, intervals, steps_label
from hetsim.plots.style import (
    BLUE,
    INK,
    MUTED,
    PALETTE,
    VERMILION,
    describe,
    figure,
    look,
    plain,
    short,
    tidy,
    time_axis,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hetsim.results.one_run.result import Result


def timeline(result: Result, axes: tuple[Axes, Axes] | None = None) -> tuple[Axes, Axes]:
    """Draw the tasks that wait (above) and the share of each device type that computes (below).

    A panel with more changes than can be told apart shows means over equal intervals, and says so at its axis.

    Parameters: result: a run; axes: two to draw on, else those of a new figure.
    Returns: both axes.
    """
    if axes is None:
        upper, lower = figure(9, 5).subplots(2, 1, sharex=True, height_ratios=[1, 1])
    else:
        upper, lower = axes
    table = result.timeline_by("type")
    time, end = table["time"].to_numpy(), result.end
    waiting = table["waiting"].to_numpy(dtype=float)
    edges = intervals(upper, end, waiting)
    draw_steps(upper, time, waiting, end, edges, color=BLUE, fill=True)
    upper.set_ylim(0, None if table["waiting"].any() else 1)
    upper.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    upper.set_ylabel(steps_label("tasks waiting", edges, shaded=True), fontsize=9, color=INK)
    cluster = result.record.input.cluster
    kinds = [name.removeprefix("busy.") for name in table.columns if name.startswith("busy.")]
    shares = {}
    for label, mine in _groups_of_types(cluster, kinds).items():
        there = max(sum(cluster.count(kind) for kind in mine), 1)
        cores = f" core{'s' if there > 1 else ''}" if _is_cpu(cluster, mine[0]) else ""
        busy = table[[f"busy.{kind}" for kind in mine]].to_numpy(dtype=float).sum(axis=1)
        shares[f"{plain(short(label, 30))} ({there}{cores})"] = 100 * busy / there
    labels, edges = list(shares), intervals(lower, end, *shares.values())
    for number, (label, share) in enumerate(shares.items()):
        draw_steps(lower, time, share, end, edges, label=label, **look(number))  # dashes show a line below
    lower.set_ylim(0, 105)
    lower.set_ylabel(steps_label("busy (%)", edges), fontsize=9, color=INK)
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
