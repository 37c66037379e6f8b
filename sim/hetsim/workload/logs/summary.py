"""Summary of a log of jobs: load over time, sizes, durations."""

from typing import Any

import numpy as np

from hetsim.workload.traces import TaskTable

BINS = 48


def held_amounts(table: TaskTable) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of GPUs and cores that each task occupies on all its nodes.

    A task with a time on GPUs occupies its GPUs (1 if the log states none); other tasks occupy no GPU.
    """
    on_gpu = on_gpus(table)
    one = np.ones(len(table))
    gpus, cpus = (table.numbers.get(name, one * np.nan) for name in ("gpus", "cpus"))
    gpus = np.where(on_gpu, np.where(np.isnan(gpus), 1.0, gpus), 0.0)
    cores = np.where(np.isnan(cpus), np.where(on_gpu, 0.0, 1.0), np.where(on_gpu, cpus, np.maximum(cpus, 1e-3)))
    if (nodes := table.numbers.get("nodes")) is not None:
        count = np.where(np.isnan(nodes), 1.0, nodes)
        gpus, cores = gpus * count, cores * count
    return gpus, cores


def on_gpus(table: TaskTable) -> np.ndarray:
    """Return the mask of tasks that can run on a GPU of any type."""
    runs_on_gpu = np.zeros(len(table), dtype=bool)
    for name, values in table.times.items():
        if name != "cpu_time":
            runs_on_gpu |= np.isfinite(values)
    return runs_on_gpu


def durations(table: TaskTable) -> np.ndarray:
    """Return the seconds of each task in its fastest mode."""
    return np.min(list(table.times.values()), axis=0) if table.times else np.zeros(len(table))


def occupied(begin: np.ndarray, end: np.ndarray, width: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the mean number of devices in use between each two successive `edges`.

    Task i uses `width[i]` devices from `begin[i]` to `end[i]`.
    """
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(np.concatenate([width, -width])[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    return np.diff(np.interp(edges, times, area, left=0.0, right=area[-1])) / np.diff(edges)


def load(table: TaskTable, bins: int = BINS) -> dict[str, Any]:
    """Return submissions and the use of GPUs and cores over time.

    Tasks begin at their recorded starts, or at their arrivals if none is recorded; the time from the first to the last
    arrival is divided into `bins` intervals.
    """
    first, last = float(table.arrival.min()), float(table.arrival.max())
    if last <= first:
        return {}
    edges = np.linspace(first, last, bins + 1)
    begin = table.extra.get("recorded_start", table.arrival)
    begin = np.where(np.isnan(begin), table.arrival, begin)
    end = begin + durations(table)
    gpus, cores = held_amounts(table)
    return {
        "stretch": float(edges[1] - edges[0]),
        "jobs": np.histogram(table.arrival, edges)[0].tolist(),
        "gpus": occupied(begin, end, gpus, edges).tolist(),
        "cores": occupied(begin, end, cores, edges).tolist(),
    }


def sizes(table: TaskTable) -> list[dict[str, Any]]:
    """Return counts of tasks by number of GPUs, and shares of tasks and of GPU time.

    If no task uses a GPU, the same by number of cores (key `cores` instead of `gpus`).
    """
    gpus, cores = held_amounts(table)
    unit, amount = ("gpus", gpus) if gpus.any() else ("cores", cores)
    work = amount * durations(table)
    total_work = float(work.sum())
    return [
        {
            unit: name, "tasks": int(rows.sum()), "tasks_share": float(rows.mean()),
            "work_share": float(work[rows].sum()) / total_work if total_work else 0.0,
        }
        for name, rows in (_classes(amount) if unit == "gpus" else _octaves(amount)).items() if rows.any()
    ]  # fmt: skip


def _octaves(amount: np.ndarray) -> dict[str, np.ndarray]:
    classes = {"below 1": amount < 1, "1": (amount >= 1) & (amount < 2)}
    low = 2
    while low <= amount.max(initial=0.0):
        classes[f"{low}–{2 * low - 1}"] = (amount >= low) & (amount < 2 * low)
        low *= 2
    return classes


def _classes(gpus: np.ndarray) -> dict[str, np.ndarray]:
    classes = {"none": gpus == 0, "fraction": (gpus > 0) & (gpus < 1), "1": gpus == 1}
    for low in (2, 4, 8, 16, 32, 64):
        classes[f"{low}"] = gpus == low
        classes[f"{low + 1}–{2 * low - 1}" if low > 2 else "3"] = (gpus > low) & (gpus < 2 * low)
    classes["128 and more"] = gpus >= 128
    return classes


def shares(table: TaskTable) -> dict[str, float]:
    """Return the fractions of GPU tasks that use part of a GPU, and several GPUs."""
    gpus, _ = held_amounts(table)
    count = max(1, int((gpus > 0).sum()))
    return {"fractions": float(((gpus > 0) & (gpus < 1)).sum()) / count, "gangs": float((gpus > 1).sum()) / count}
