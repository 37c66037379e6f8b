"""A picture of a log of jobs: load over time, run times, and GPUs."""

import numpy as np

from hetsim.results.colors import BLUE, ORANGE
from hetsim.results.panels import ROUND_TIMES, Axis, Band, Boxes, Line, Panel, Picture, time_axis
from hetsim.workload.logs import summary
from hetsim.workload.traces import TaskTable

SHARES = Axis("", 0, 1.01, [(part / 5, f"{20 * part} %") for part in range(6)])


def trace(table: TaskTable) -> Picture:
    """Draw the tasks of a trace: load over time above, durations and sizes below."""
    return Picture([[_load(table)], [_durations(table), _sizes(table)]], 9, 6)


def _load(table: TaskTable) -> Panel:
    begin = "recorded start" if "recorded_start" in table.extra else "submission"
    panel = Panel(title=f"{len(table):,} tasks, each from its {begin} on")
    if load_steps := summary.load(table, 200):
        first, last = float(table.arrival.min()), float(table.arrival.max())
        edges = np.linspace(first, last, len(load_steps["jobs"]) + 1)
        key, color = ("gpus", BLUE) if any(load_steps["gpus"]) else ("cores", ORANGE)
        values = np.append(load_steps[key], load_steps[key][-1:])
        panel.marks = [Band(edges, 0.0, values, color=color, alpha=0.25, steps=True),
                       Line(edges, values, color=color, width=1.3, steps=True)]  # fmt: skip
        panel.x = time_axis(first, last, means=edges)
        panel.y = Axis(f"{'GPUs' if key == 'gpus' else 'cores'} held", 0)
    return panel


def _durations(table: TaskTable) -> Panel:
    values = np.sort(summary.durations(table))
    values = values[np.isfinite(values)]
    share = np.arange(1, len(values) + 1) / max(1, len(values))
    step = max(1, len(values) // 2000)
    line = Line(np.maximum(values, 1e-3)[::step], share[::step], width=1.6, steps=True)
    return Panel([line], Axis("duration", ticks=ROUND_TIMES, log=True), SHARES, grid="both")


def _sizes(table: TaskTable) -> Panel:
    rows = summary.sizes(table)
    on_cores, place = all("cores" in row for row in rows), np.arange(len(rows))
    work = "core time" if on_cores else "GPU time"
    series = (-0.2, "tasks_share", "tasks", BLUE), (0.2, "work_share", work, ORANGE)
    bars = [Boxes(place + x - 0.19, place + x + 0.19, 0 * place, [row[key] for row in rows], label=label, color=color)
            for x, key, label, color in series]  # fmt: skip
    # Of a class of cores only where it begins, or the names run into each other.
    names = [row["cores"].partition("–")[0] if on_cores else row["gpus"] for row in rows]
    ticks = list(enumerate(map(str, names)))
    x = Axis("cores of a task, from" if on_cores else "GPUs of a task", -0.6, len(rows) - 0.4, ticks)
    return Panel(list(bars), x, SHARES, legend="inside")
