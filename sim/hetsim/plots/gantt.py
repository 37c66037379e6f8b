"""Gantt charts, shelves of dual approximation, timeline and default picture."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from hetsim.errors import UsageError
from hetsim.plots.cdf import shares
from hetsim.plots.style import describe, look, short, stacked
from hetsim.plots.style import until as to_end
from hetsim.results.colors import BLUE, GREEN, INK, MUTED, ORANGE, PALETTE, SKY, VERMILION
from hetsim.results.declared import DEFAULT_METRIC, MAKESPAN
from hetsim.results.formatting import SECONDS, fitting, pair, seconds, with_unit
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.launches import FUSED
from hetsim.results.one_run.over_bins import device_bars, fill_lanes
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Axis, Band, Boxes, Line, Panel, Picture, Points, Texts, row_boxes, time_axis

STAGES = (
    ("upload", "upload_start", "upload_end", ORANGE),
    ("compute", "compute_start", "compute_end", BLUE),
    ("download", "download_start", "end", GREEN),
)
CPU_COLOR, LOST_COLOR, OVERHEAD_COLOR = SKY, VERMILION, "#C9C9C9"
MAX_DEVICES = 40
Names = list[tuple[float, str]]
FEW_LAUNCHES, FEW_DEVICES = 250, 32
LABELED = 400  # launches up to which bars carry the names of their tasks
SHELVES = (("long: more than 2λ/3", 2 / 3, BLUE), ("medium: more than λ/3", 1 / 3, ORANGE), ("small", 0.0, SKY))
RULES = (("λ/3", 1 / 3), ("2λ/3", 2 / 3), ("λ", 1.0), ("4λ/3", 4 / 3))
ROUNDING = 1e-9  # relative rounding of the limit of small tasks, a third of the guess
NAMED_LINES = 100  # rows up to which each core is named; above that only its node


def gantt(result: Result, *, devices: int = MAX_DEVICES, until: float | None = None) -> Picture:
    """Draw every launch of a run on the lines of its devices.

    A device has one row per concurrent launch, and a node one row per core if the policy chose the cores.  Accelerators
    of nodes with several types have their type next to their name.

    Parameters:
        result: a run.
        devices: maximum number of devices; of larger clusters the busiest are drawn, and the title says so.
        until: end of the time axis in s, to compare pictures of several runs, or to show the
            beginning of a long run; the title then has the makespan.  Later launches are not drawn.
    Returns: the picture.
    """
    bars, table = device_bars(result), result.devices
    used = table[table["device"].isin(set(bars["line"]))]
    busiest = used.sort_values("busy", ascending=False, kind="stable").index[:devices]
    chosen = used["device"][used.index.isin(busiest)].tolist()
    bars = bars[bars["line"].isin(chosen)]
    row, edges, cores, lines = lanes(bars, chosen, _unlike(result))
    end, total = result.end if until is None else until, edges[-1]
    if until is not None:
        inside = (bars["decided"] < until).to_numpy()
        bars, row = bars[inside], row[inside]
    marks = _stages(bars, row) + _names(bars, row, end)
    more = f" (the {len(chosen)} busiest of {len(used)} devices)" if len(used) > len(chosen) else ""
    makespan = f" · makespan {result.text(MAKESPAN)}" if until is not None and result.metric(MAKESPAN) >= 0 else ""
    legend = "above right" if len({mark.label for mark in marks if getattr(mark, "label", "")}) > 1 else ""
    y = lanes_axis(cores if total <= NAMED_LINES else lines, total)
    panel = Panel([*rules(edges), *marks], time_axis(0.0, end if end > 0 else 1.0), y,
                  describe(result) + makespan + more, grid="x", legend=legend)  # fmt: skip
    return Picture([[panel]], 10 if len(bars) <= 60 else 14, min(14.0, 1.6 + 0.3 * max(total, 3)))


def lanes(
    bars: pd.DataFrame, order: Iterable[str], kinds: Mapping[str, str] | None = None
) -> tuple[np.ndarray, list[int], Names, Names]:
    """Return each bar's row, edges of devices' rows, and names of rows and devices."""
    row, edges, cores, lines = np.zeros(len(bars), dtype=np.int64), [0], list[Any](), list[Any]()
    columns = [bars[name].to_numpy() for name in ("line", "core", "decided", "end")]
    for name in order:
        mine, first = np.flatnonzero(columns[0] == name), edges[-1]
        core, begin, end = (column[mine] for column in columns[1:])
        if (core >= 0).all():
            named, at = np.unique(core, return_inverse=True)
            cores += [(first + lane, f"{name}{one}") for lane, one in enumerate(named.tolist())]
            edges.append(first + len(named))
        else:
            at, count = fill_lanes(begin, end)
            cores.append((first + (count - 1) / 2, f"{name} {(kinds or {}).get(name, '')}".strip()))
            edges.append(first + count)
        row[mine] = first + at
        lines.append(((first + edges[-1] - 1) / 2, name))
    return row, edges, cores, lines


def _unlike(result: Result) -> dict[str, str]:
    """Return accelerators' types by name, only for nodes with several types."""
    nodes = result.record.input.cluster.nodes
    mixed = [node for node in nodes if len({device.type.name for device in node.accelerators}) > 1]
    return {device.name: device.type.name for node in mixed for device in node.accelerators}


def _stages(bars: pd.DataFrame, row: np.ndarray) -> list[Any]:
    cpu, lost = bars["cpu"].to_numpy(), bars["outcome"].isin(["lost"]).to_numpy()
    edge, decided, ended = 0.5 if len(bars) < 2000 else 0.0, bars["decided"].to_numpy(), bars["end"].to_numpy()
    marks, at_work = [row_boxes(decided, ended, row, 0.12, color=OVERHEAD_COLOR)], np.zeros(len(bars))
    for name, first, last, color in STAGES:
        begin, end = bars[first].to_numpy(dtype=float), bars[last].fillna(bars["end"]).to_numpy(dtype=float)
        at_work += np.nan_to_num(end - begin)
        parts = [(name, color, ~cpu), ("CPU", CPU_COLOR, cpu)] if name == "compute" else [(name, color, ~cpu | cpu)]
        for label, fill, mine in parts:
            kept = mine & ~np.isnan(begin) & (end > begin)
            for text, paint, chosen in ((label, fill, kept & ~lost), ("lost work", LOST_COLOR, kept & lost)):
                if chosen.any():
                    look = {"label": text, "color": paint, "edge": edge}
                    marks.append(row_boxes(begin[chosen], end[chosen], row[chosen], 0.4, **look))
    # Held, but no stage at work: waiting for a link, saving or restoring state.
    if (ended - decided - at_work > 1e-6 * np.maximum(ended - decided, 1e-300)).any():
        marks.append(Boxes([], [], [], [], label="overhead, no stage at work", color=OVERHEAD_COLOR))
    return marks


def _names(bars: pd.DataFrame, row: np.ndarray, end: float) -> list[Texts]:
    if len(bars) > LABELED or not end:
        return []
    if FUSED in bars:
        bars = bars.assign(task=bars[FUSED].where(bars[FUSED] != "", bars["task"].astype(str)))
    bars = bars.assign(row=row, until=bars["compute_end"].fillna(end).clip(upper=end))
    bars = bars[bars["until"] > bars["compute_start"]]
    begin, until, at = (bars[name].to_numpy() for name in ("compute_start", "until", "row"))
    texts, inks, middle = bars["task"].astype(str).tolist(), np.where(bars["cpu"], INK, "#FFFFFF"), (begin + until) / 2
    return [Texts(middle, at, texts, inks.tolist(), size=7.5, align="center", room=until - begin)] * bool(texts)


def lanes_axis(labels: Names, total: int) -> Axis:
    """Return the axis with the names of rows, from top to bottom."""
    return Axis("", max(total, 1) - 0.4, -0.6, [(at, short(name, 30)) for at, name in labels])


def rules(edges: list[int]) -> list[Line]:
    """Return lines that separate devices with several rows."""
    inner = edges[1:-1] if edges[-1] > len(edges) - 1 else []
    return [Line([-math.inf, math.inf], [edge - 0.5] * 2, color=MUTED, width=0.4, behind=True) for edge in inner]


def timeline(result: Result) -> Picture:
    """Draw the waiting tasks (above) and the computing share of each type (below).

    A panel with too many changes shows means over equal intervals, as its axis states.

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
        cores = f" core{'s' if there > 1 else ''}" if cluster.types[mine[0]].kind == "cpu" else ""
        busy = 100 * table[[f"busy.{kind}" for kind in mine]].to_numpy(dtype=float).sum(axis=1) / there
        # Dashes show a line below.
        lower.append(Line(time, np.append(busy, busy[-1:]), f"{short(label, 30)} ({there}{cores})", steps=True,
                          **look(number)))  # fmt: skip
    everywhere, warmup, x = [-math.inf, math.inf], list[Any](), time_axis(0.0, end if end > 0 else 1.0)
    if result.warmup > 0:
        warmup = [Boxes([0], [min(result.warmup, end)], everywhere[:1], everywhere[1:], color=MUTED, alpha=0.12)]
        upper.append(Texts([0], [1], [" warm-up"], MUTED, rise="top", inside="y"))
    upper += [Line([end, end], everywhere, color=VERMILION, width=1.5)] * bool(result.error)
    y = Axis("tasks waiting", 0, None if table["waiting"].any() else 1, integer=True)
    return stacked([
        Panel([*warmup, *upper], replace(x), y, describe(result), means=True),
        Panel([*warmup, *lower], x, Axis("busy (%)", 0, 105), legend="above", means=True),
    ], 9, 5)  # fmt: skip


def _groups_of_types(cluster: Any, kinds: list[str]) -> dict[str, list[str]]:
    if len(kinds) <= len(PALETTE):
        return {kind: [kind] for kind in kinds}
    cpus = [kind for kind in kinds if cluster.types[kind].kind == "cpu"]
    gpus = sorted((kind for kind in kinds if kind not in cpus), key=cluster.count, reverse=True)
    own, rest = gpus[: len(PALETTE) - 2], gpus[len(PALETTE) - 2 :]
    more = {f"{len(rest)} other types": rest, "all" if len(cpus) > 1 else "".join(cpus): cpus}
    return {kind: [kind] for kind in own} | {label: those for label, those in more.items() if those}


def shelves(result: Result, *, guess: float | None = None) -> Picture:
    """Draw the schedule of `dual_approximation` with the task classes of its proof.

    A task is long, medium or small by its time on its device: in the proof, a device has at most one long task or two
    medium ones, and is filled with small tasks up to 4λ/3.

    Parameters: result: a run; guess: λ in seconds, by default the last accepted one (`result.notes["guess"]`).
    Returns: the picture.
    Raises: UsageError: the policy reports no guess, or it is not above 0.
    """
    guess = result.notes.get("guess") if guess is None else guess
    if not isinstance(guess, int | float) or isinstance(guess, bool):
        policy = result.policy or "this policy"
        raise UsageError(f"shelves need a run of the policy dual_approximation; {policy} has no guess of the makespan")
    if not (guess > 0 and math.isfinite(guess)):
        raise UsageError(f"guess must be above 0 s; got {guess:g}")
    bars = device_bars(result)
    bars = bars[bars["compute_end"].notna()]
    bars = bars.assign(decided=bars["compute_start"], end=bars["compute_end"])  # a device computes one at a time
    begin, end = (bars[name].to_numpy(dtype=float) for name in ("decided", "end"))
    row, edges, names, _ = lanes(bars, result.devices["device"].astype(str))
    remaining, marks = np.ones(len(bars), dtype=bool), list[Any]()
    for name, above, color in SHELVES:
        chosen = remaining & (end - begin > above * guess * (1 + ROUNDING))
        remaining &= ~chosen
        if chosen.any():
            where = begin[chosen], end[chosen], row[chosen]
            marks.append(row_boxes(*where, half=0.4, label=name, color=color, edge=0.5))
    for text, part in RULES:
        at, color = part * guess, VERMILION if part == 1 else MUTED
        marks += [Line([at, at], [-math.inf, math.inf], color=color, dash=1, width=1.2),
                  Texts([at], [1.01], [text], size=9, align="center", rise="bottom", inside="y")]  # fmt: skip
    last = max(float(end.max(initial=0.0)), 4 / 3 * guess)
    title = f"{short(describe(result), 44)} · λ = {seconds(guess)}"
    panel = Panel(marks, time_axis(0.0, 1.02 * last), lanes_axis(names, edges[-1]), title,
                  grid="", legend="above right", room=16)  # fmt: skip
    return Picture([[panel]], 10, min(14.0, 1.9 + 0.3 * max(edges[-1], 3)))


def default(outcome: Result | Replications) -> Picture:
    """Draw a suitable picture of a run or of replications.

    A small run is shown as a Gantt chart.  A large run, or a run of language models (whose launches are mere busy
    periods), is shown as its timeline and the distributions of response and wait.  Replications are shown as the first
    run's timeline, next to the mean response of each replication.

    Parameters: outcome: the run, or the replications.
    Returns: the picture.
    """
    many = outcome if isinstance(outcome, Replications) else None
    if many is not None and not many.results:
        return Picture([[_spread(many)]], 10, 3.2)
    first = outcome.results[0] if isinstance(outcome, Replications) else outcome
    few = 0 < len(first.launches) <= FEW_LAUNCHES and first.launches["device"].nunique() <= FEW_DEVICES
    if few and many is None and not first.record.input.language:
        return gantt(first)
    rows, below = timeline(first).rows, [shares({"response": first}, "response", small=True)]
    if many is not None:
        rows[0][0].title += f" · replication 0 of {len(many)}"
        return Picture([*rows, [*below, _spread(many)]], 10, 6.5, heights=(1, 1, 1.18))
    second = "wait" if np.nan_to_num(first.measured.column("wait")).any() else "slowdown"
    below.append(shares({second: first}, second, small=True))
    below[1].y.bare = True
    return Picture([*rows, below], 10, 7, heights=(1, 1, 1.33))


def _spread(runs: Replications) -> Panel:
    values = runs.values[DEFAULT_METRIC]
    factor, unit = fitting(values.tolist(), SECONDS)
    finite = values[np.isfinite(values)] / factor
    y = Axis(f"mean response ({unit})", 0, 1.08 * finite.max() if len(finite) else 1)
    panel = Panel([Points(finite.index, finite, alpha=0.8)], Axis("replication", count=8, integer=True), y, small=True)
    interval = runs.interval(DEFAULT_METRIC) if values.notna().sum() > 1 else None
    if interval is not None and math.isfinite(interval.mean):
        ends = interval.mean, interval.half_width, interval.low, interval.high
        mean, half, low, high = (one / factor for one in ends)
        panel.marks += [Boxes([-math.inf], [math.inf], [low], [high], color=MUTED, alpha=0.18),
                        Line([-math.inf, math.inf], [mean, mean], color=INK, width=1)]  # fmt: skip
        panel.title = f"mean {with_unit(pair(mean, half), unit)} (95 %)"
    return panel
