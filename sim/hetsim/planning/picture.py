"""The schedule of a pipeline: stages, micro-batches, and idle time."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from hetsim.errors import UsageError
from hetsim.model.exchange import Exchange
from hetsim.pipelines.schedule import PipelineSchedule, step_schedule
from hetsim.plots.gantt import bar_boxes, label_lanes
from hetsim.plots.style import BLUE, GREEN, INK, ORANGE, PURPLE, describe, own_axes, tidy, time_axis, title
from hetsim.results.formatting import SECONDS, several
from hetsim.results.one_run.explain import find_tasks
from hetsim.results.one_run.result import Result

IDLE, UPDATE = "#E9E9E9", "#7F7F7F"
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved", "forward": "forward only"}
HALF = 0.42
SMALLEST = 4.5
"""Points of the smallest number in a bar; where half of the bars have no room for one none has any."""
SEEN = 0.0005
"""Share of the width from which a bar can be seen and has its line in the legend."""
WIDE = 60
"""More micro-batches than this, times the chunks, take a wider picture."""


def pipeline(found: Result | PipelineSchedule, ax: Axes | None = None, *, task: Any = None) -> Axes:
    """Draw one step of a training job's pipeline: a row a stage, a bar a micro-batch.

    What is grey is the bubble.  The passes contain the all-reduces of tensor parallelism; stages send and receive
    between them, or, of a partition, behind computing (between the rows).  Later chunks of an interleaved pipeline are
    lighter.  Of a stream of requests (`forward`) the first are drawn, and no bubble is told: it would depend on how
    many are drawn.

    Parameters: found: a run, or a schedule (`hetsim.pipelines.schedule`), which is drawn as it is; task: of a
        run, without it the job with the most GPU time; ax: axes to draw on, else those of a new figure.
    Returns: the axes.
    """
    if isinstance(found, PipelineSchedule):
        schedule, name = found, found.name
    else:
        schedule, job = training_pipeline(found, task)
        name = f"{describe(found)} · task {job}"
    pairs = [(stage, one) for stage, given in enumerate(schedule.stages) for one in range(given.replicas)]
    rows = {pair: row for row, pair in enumerate(pairs)}
    total = sum(stage.replicas for stage in schedule.stages)
    wide = 14 if schedule.micro_batches * schedule.chunks > WIDE or total > WIDE else 10
    ax = own_axes(ax, wide, min(14.0, 1.7 + 0.34 * max(total, 3)))
    end = schedule.makespan or 1.0
    legend = _bars(ax, schedule, rows, end)
    _numbers(ax, schedule, rows, end)
    labels = [(rows[stage, 0] + (one.replicas - 1) / 2, f"{stage + 1} {one.name}".strip())
              for stage, one in enumerate(schedule.stages)]  # fmt: skip
    label_lanes(ax, labels, [*(rows[stage, 0] for stage in range(len(schedule.stages))), total])
    ax.set_ylabel("stage", fontsize=9, color=INK)
    time_axis(ax, 0.0, end)
    tidy(ax, grid="")
    ax.tick_params(axis="y", length=0)
    title(ax, " · ".join(part for part in (name, _told(schedule)) if part), pad=24)
    ax.legend(handles=legend, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(legend), frameon=False, fontsize=9,
              borderaxespad=0.2, handlelength=1.2, columnspacing=1.2)  # fmt: skip
    return ax


def training_pipeline(result: Result, task: Any = None) -> tuple[PipelineSchedule, str]:
    """A step of a job with stages on its last devices, and the job's id.

    Without a task that of the job with the most GPU time.  UsageError where no job, or not this one, has stages.
    """
    record, exchanges = result.record, _exchanges(result)
    if not exchanges:
        text = "no job here has a pipeline that ran; `training` with `pipeline` of 2 or more has one"
        if result.record.input.tasks.staged is not None:
            text += "; what the stages of requests (`pipeline:` of an entry) did is in hetsim.plots.gantt"
        raise UsageError(text)
    if task is None:
        busy = result.modes.units[_codes(result)] * (np.nan_to_num(record.finish, nan=record.end) - record.start)
        row = max(exchanges, key=lambda one: (busy[one], -one))
    else:
        row = find_tasks(result, task)[0]
        if row not in exchanges:
            names = [str(record.input.tasks.name(one)) for one in sorted(exchanges)]
            listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise UsageError(f"task {task} has no pipeline that ran; those with one: {listed}")
    exchange = exchanges[row]
    devices, _ = record.places[record.place[row]]
    profile = exchange.profile_of([record.input.cluster.devices[one] for one in devices])
    assert exchange.pipeline is not None
    seconds = dict(zip(exchange.pipeline.phases, profile.exposed(), strict=True))
    return step_schedule(exchange.pipeline, seconds, profile.seconds), str(record.input.tasks.name(row))


def has_pipelines(result: Result) -> bool:
    """Return True if a job with stages ran."""
    return bool(_exchanges(result))


def _codes(result: Result) -> np.ndarray:
    return result.modes.codes(result.record.input.tasks.shape, result.record.mode)


def _exchanges(result: Result) -> dict[int, Exchange]:
    """Of each row with a pipeline that ran, how it did."""
    exchanges: dict[int, Exchange] = {}
    modes, codes, place = result.modes.modes, _codes(result), result.record.place
    for code, mode in enumerate(modes):
        if mode.exchange is not None and mode.exchange.pipeline is not None:
            exchanges.update(dict.fromkeys(np.flatnonzero((codes == code) & (place >= 0)).tolist(), mode.exchange))
    return exchanges


def _told(schedule: PipelineSchedule) -> str:
    """Schedule, size, time and bubble in words."""
    chunks = f" of {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    size = f"{len(schedule.stages)} stages{chunks} × {schedule.micro_batches:,}"
    if schedule.all_micro_batches is not None:
        size += f" of {schedule.all_micro_batches:,}"
    if schedule.order == "forward":
        return f"{NAMES[schedule.order]}, {size} items"
    parts = [f"{NAMES[schedule.order]}, {size} micro-batches"]
    if schedule.seconds is not None:
        parts.append(f"step {several([schedule.seconds], SECONDS)[0]}")
    parts.append(f"bubble {100 * schedule.bubble:.3g} %")
    return ", ".join(parts)


def _lighter(color: str, chunk: int, chunks: int) -> tuple[float, float, float]:
    """The color of a chunk: later ones towards white, so that all are told apart."""
    share = 0.0 if chunks == 1 else 0.55 * chunk / (chunks - 1)
    red, green, blue = (part + (1 - part) * share for part in to_rgb(color))
    return red, green, blue


def _bars(ax: Axes, schedule: PipelineSchedule, rows: dict[tuple[int, int], int], end: float) -> list[Patch]:
    """Idle time behind, passes in front; return the entries of the legend."""
    slots = schedule.slots
    row = np.array([rows[slot.stage, slot.replica] for slot in slots])
    begin, done, free = (np.array([getattr(slot, name) for slot in slots]) for name in ("begin", "end", "free"))
    edge = 0.4 if len(slots) < 3000 else 0.0

    def add(since: Any, until: Any, at: Any, color: Any, half: float = HALF, z: int = 2) -> None:
        boxes = bar_boxes(np.asarray(since), np.asarray(until), np.asarray(at), half)
        width = edge if color != ORANGE and z == 2 else 0.0
        bars = PolyCollection(boxes, facecolors=color, edgecolors="white", linewidths=width, zorder=z)
        bars.set_snap(False)  # else of bars thinner than a pixel some are seen and others not
        ax.add_collection(bars)

    every = np.array(sorted(rows.values()))
    add(np.zeros(len(every)), np.full(len(every), end), every, IDLE, z=1)
    legend = []
    forward, chunk = np.array([slot.forward for slot in slots]), np.array([slot.chunk for slot in slots])
    for label, color, mine in (("forward", BLUE, forward), ("backward", GREEN, ~forward)):
        for one in range(schedule.chunks):
            if (chosen := mine & (chunk == one)).any():
                add(begin[chosen], done[chosen], row[chosen], _lighter(color, one, schedule.chunks))
        if mine.any():
            legend.append(Patch(facecolor=color, label=label))
    if schedule.chunks > 1:
        legend.append(Patch(facecolor=_lighter(BLUE, 1, 2), label="lighter: later chunks"))
    sending = free > done
    if sending.any() or schedule.transfers:
        legend.append(Patch(facecolor=ORANGE, label="sending and receiving"))
    if sending.any():
        add(done[sending], free[sending], row[sending], ORANGE, z=3)
    else:
        _between(schedule, rows, add)
    last = {at: float(free[row == at].max(initial=0.0)) for at in every.tolist()}
    for label, seconds in schedule.after:
        color = PURPLE if label == "gradients" else UPDATE
        since = np.array([last[at] for at in every.tolist()])
        add(since, since + seconds, every, color)
        last = {at: time + seconds for at, time in last.items()}
        if seconds > SEEN * end:
            legend.append(Patch(facecolor=color, label=label))
    if schedule.bubble > 1e-9:
        legend.append(Patch(facecolor=IDLE, label="idle" if schedule.order == "forward" else "idle (bubble)"))
    return legend


def _between(schedule: PipelineSchedule, rows: dict[tuple[int, int], int], add: Any) -> None:
    """Transfers behind computing, between the rows of two stages."""
    for forward in (True, False):
        sent = [one for one in schedule.transfers if one.forward is forward]
        if sent:
            edges = np.array([rows[max(one.source, one.target), 0] - 0.5 for one in sent])
            at = edges + (-0.04 if forward else 0.04)
            add([one.begin for one in sent], [one.end for one in sent], at, color=ORANGE, half=0.035, z=3)


def _numbers(ax: Axes, schedule: PipelineSchedule, rows: dict[tuple[int, int], int], end: float) -> None:
    """Numbers of micro-batches, from 1, in the bars that have room for them."""
    picture = ax.get_figure(root=True)
    inches = 0.92 * ax.get_position().width * picture.get_figwidth()  # type: ignore[union-attr]
    height = 0.8 * ax.get_position().height * picture.get_figheight()  # type: ignore[union-attr]
    size = min(8.0, 72 * height / (len(rows) + 1) * 0.62)
    length = float(np.median([slot.end - slot.begin for slot in schedule.slots if slot.end > slot.begin] or [0.0]))
    widest = str(schedule.micro_batches)
    if size < SMALLEST or 72 * inches * length / end < SMALLEST * (0.62 * len(widest) + 0.15):
        return
    for slot in schedule.slots:
        text = str(slot.micro_batch + 1)
        room = 72 * inches * (slot.end - slot.begin) / end
        fits = min(size, room / (0.62 * len(text) + 0.15))
        if fits >= SMALLEST:
            dark = slot.chunk / max(1, schedule.chunks - 1) > 0.6 if schedule.chunks > 1 else False
            ax.text((slot.begin + slot.end) / 2, rows[slot.stage, slot.replica], text, ha="center", va="center",
                    fontsize=fits, color=INK if dark else "white", zorder=4, clip_on=True)  # fmt: skip
