"""Picture of a pipeline schedule: stages, micro-batches, and idle time."""

from dataclasses import replace
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.exchange import Exchange
from hetsim.pipelines.schedule import PipelineSchedule, step_schedule
from hetsim.plots.gantt import lanes_axis, rules
from hetsim.plots.style import describe
from hetsim.results.colors import BLUE, GREEN, GRID, INK, ORANGE, PURPLE
from hetsim.results.formatting import SECONDS, several
from hetsim.results.one_run.explain import find_tasks
from hetsim.results.one_run.result import Result
from hetsim.results.panels import Boxes, Panel, Picture, Texts, row_boxes, time_axis

IDLE, UPDATE = GRID, "#7F7F7F"
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved", "forward": "forward only"}
HALF = 0.42
SMALLEST = 4.5  # minimum font size of numbers in bars; without numbers if half of the bars are too narrow
SEEN = 0.0005  # minimum width, as a fraction of the picture, at which a bar is visible and has a legend entry
WIDE = 60  # above this number of micro-batches × chunks the picture is wider


def pipeline(found: Result | PipelineSchedule, *, task: Any = None) -> Picture:
    """Draw a step of a training pipeline: a row per stage, a bar per micro-batch.

    Gray is the bubble (idle time).  Passes contain the all-reduces of tensor parallelism; stages communicate between
    passes or, in a partition, while they compute (drawn between the rows).  Later chunks of an interleaved pipeline are
    lighter.  Of a stream of requests (order `forward`), only the first ones are drawn, without a bubble.

    Parameters:
        found: a run, or a schedule (`hetsim.pipelines.schedule`), which is drawn as given.
        task: a task of a run; without it, the job with the most GPU time.
    Returns: the picture.
    """
    if isinstance(found, PipelineSchedule):
        schedule, name, tasks = found, found.name, list[str]()
    else:
        schedule, job = training_pipeline(found, task)
        name, tasks = f"{describe(found)} · task {job}", [f"task {job}"]
    pairs = [(stage, one) for stage, given in enumerate(schedule.stages) for one in range(given.replicas)]
    rows = {pair: row for row, pair in enumerate(pairs)}
    total = sum(stage.replicas for stage in schedule.stages)
    wide = 14 if schedule.micro_batches * schedule.chunks > WIDE or total > WIDE else 10
    high, end = min(14.0, 1.7 + 0.34 * max(total, 3)), schedule.makespan or 1.0
    first = [rows[stage, 0] for stage in range(len(schedule.stages))]
    names = [(at + (given.replicas - 1) / 2, f"{stage + 1} {given.name}".strip())
             for stage, (at, given) in enumerate(zip(first, schedule.stages, strict=True))]  # fmt: skip
    y = lanes_axis(names, total)
    y.label = "stage"
    bars = [replace(mark, rows=tasks) for mark in _bars(schedule, rows, end)]
    marks = [*bars, *_numbers(schedule, rows, end, (0.71 * wide, 0.62 * high))]
    title = " · ".join(part for part in (name, _told(schedule)) if part)
    panel = Panel([*rules([*first, total]), *marks], time_axis(0.0, end), y, title, grid="", legend="above")
    return Picture([[panel]], wide, high)


def training_pipeline(result: Result, task: Any = None) -> tuple[PipelineSchedule, str]:
    """Return the schedule of a training job's step, and the job's id.

    The step is that on the devices where the job ran last.  Without `task`, the job with the most GPU time is used.
    UsageError if no job, or not this one, has stages.
    """
    record, exchanges = result.record, _exchanges(result)
    if not exchanges:
        text = "no job of this run has a pipeline; give `training` a `pipeline` of 2 or more"
        if result.record.input.tasks.staged is not None:
            text += "; hetsim.plots.gantt draws the stages of requests (`pipeline:` of an entry)"
        raise UsageError(text)
    if task is None:
        busy = result.modes.units[_codes(result)] * (np.nan_to_num(record.finish, nan=record.end) - record.start)
        row = max(exchanges, key=lambda one: (busy[one], -one))
    else:
        row = find_tasks(result, task)[0]
        if row not in exchanges:
            names = [str(record.input.tasks.name(one)) for one in sorted(exchanges)]
            listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
            raise UsageError(f"task {task} has no pipeline; tasks with one are {listed}")
    exchange = exchanges[row]
    devices, _ = record.places[record.place[row]]
    profile = exchange.profile_of([record.input.cluster.devices[one] for one in devices])
    assert exchange.pipeline is not None
    seconds = dict(zip(exchange.pipeline.phases, profile.exposed(), strict=True))
    return step_schedule(exchange.pipeline, seconds, profile.seconds), str(record.input.tasks.name(row))


def has_pipelines(result: Result) -> bool:
    return bool(_exchanges(result))


def _codes(result: Result) -> np.ndarray:
    return result.modes.codes(result.record.input.tasks.shape, result.record.mode)


def _exchanges(result: Result) -> dict[int, Exchange]:
    exchanges: dict[int, Exchange] = {}
    modes, codes, place = result.modes.modes, _codes(result), result.record.place
    for code, mode in enumerate(modes):
        if mode.exchange is not None and mode.exchange.pipeline is not None:
            exchanges.update(dict.fromkeys(np.flatnonzero((codes == code) & (place >= 0)).tolist(), mode.exchange))
    return exchanges


def _told(schedule: PipelineSchedule) -> str:
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


def _lighter(color: str, chunk: int, chunks: int) -> str:
    share = 0.0 if chunks == 1 else 0.55 * chunk / (chunks - 1)
    parts = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)


def _bars(schedule: PipelineSchedule, rows: dict[tuple[int, int], int], end: float) -> list[Boxes]:
    slots, every = schedule.slots, np.array(sorted(rows.values()))
    row = np.array([rows[slot.stage, slot.replica] for slot in slots])
    begin, done, free = (np.array([getattr(slot, name) for slot in slots]) for name in ("begin", "end", "free"))
    edge = 0.4 if len(slots) < 3000 else 0.0
    idle = "" if schedule.bubble <= 1e-9 else "idle" if schedule.order == "forward" else "idle (bubble)"
    marks, look = [row_boxes(0 * every, 0 * every + end, every, HALF, color=IDLE)], dict[str, Any]()
    forward, chunk = np.array([slot.forward for slot in slots]), np.array([slot.chunk for slot in slots])
    for label, color, mine in (("forward", BLUE, forward), ("backward", GREEN, ~forward)):
        for number in range(schedule.chunks):
            if (chosen := mine & (chunk == number)).any():
                paint = _lighter(color, number, schedule.chunks)
                look = {"label": "" if number else label, "color": paint, "edge": edge}
                marks.append(row_boxes(begin[chosen], done[chosen], row[chosen], HALF, **look))
    if schedule.chunks > 1:
        marks.append(Boxes([], [], [], [], label="lighter: later chunks", color=_lighter(BLUE, 1, 2)))
    if (sending := free > done).any():
        look = {"label": "sending and receiving", "color": ORANGE}
        marks.append(row_boxes(done[sending], free[sending], row[sending], HALF, **look))
    else:
        marks += _between(schedule, rows)
    last = np.array([free[row == at].max(initial=0.0) for at in every])
    for label, seconds in schedule.after:
        color = PURPLE if label == "gradients" else UPDATE
        look = {"label": label if seconds > SEEN * end else "", "color": color, "edge": edge}
        marks.append(row_boxes(last, last + seconds, every, HALF, **look))
        last = last + seconds
    return marks + [Boxes([], [], [], [], label=idle, color=IDLE)] * bool(idle)


def _between(schedule: PipelineSchedule, rows: dict[tuple[int, int], int]) -> list[Boxes]:
    """Return boxes for transfers, each between the rows of its two stages."""
    sent = schedule.transfers
    at = np.array([rows[max(each.source, each.target), 0] - (0.54 if each.forward else 0.46) for each in sent])
    begin, end = ([getattr(each, name) for each in sent] for name in ("begin", "end"))
    return [row_boxes(begin, end, at, 0.035, label="sending and receiving", color=ORANGE)] if sent else []


def _numbers(
    schedule: PipelineSchedule, rows: dict[tuple[int, int], int], end: float, inches: tuple[float, float]
) -> list[Texts]:
    size = min(8.0, 72 * inches[1] / (len(rows) + 1) * 0.62)
    lengths = [slot.end - slot.begin for slot in schedule.slots]
    middle = float(np.median([length for length in lengths if length > 0] or [0.0]))
    widest = 0.62 * len(str(schedule.micro_batches)) + 0.15
    if size < SMALLEST or 72 * inches[0] * middle / end < SMALLEST * widest:
        return []
    dark = [schedule.chunks > 1 and slot.chunk / (schedule.chunks - 1) > 0.6 for slot in schedule.slots]
    inks = [INK if one else "#FFFFFF" for one in dark]
    return [Texts([(slot.begin + slot.end) / 2 for slot in schedule.slots],
                  [rows[slot.stage, slot.replica] for slot in schedule.slots],
                  [str(slot.micro_batch + 1) for slot in schedule.slots], color=inks, size=size, align="center",
                  room=lengths)]  # fmt: skip
