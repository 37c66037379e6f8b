"""Writes the task graph of a tiled Cholesky factorization, and a static plan for it.

    python scenarios/hetsim_scenarios/graphs/make_cholesky.py

cholesky-8.csv        the graph: 8 × 8 tiles of 1,024 × 1,024 doubles, 120 tasks, in the order of the right-looking loop
cholesky-4.csv, cholesky-5.csv, cholesky-6.csv   smaller ones, to train on
cholesky-8-plan.csv   a plan by HEFT (Topcuoglu et al., 2002) for 8 cores and 2 GPUs

Kernel times are operations / rate.  The rates are assumed, of the order of a server with an older GPU: a core does
40 GFLOP/s in every kernel, a GPU 1 TFLOP/s in gemm, 0.8 in syrk, 0.5 in trsm and 0.1 in potrf.  An edge is a tile
that the successor reads.  The first task on a tile brings it from the host; tiles that other tasks read stay where
they were made.  `priority` is the longest way to the end of the graph, in milliseconds at the times of a GPU.
"""

from __future__ import annotations

import csv
from pathlib import Path

TILES = 8
TRAINING = 4, 5, 6
SIDE = 1024
TILE_BYTES = 8 * SIDE**2
OPERATIONS = {"potrf": SIDE**3 / 3, "trsm": SIDE**3, "syrk": SIDE**3, "gemm": 2 * SIDE**3}
CORE = 40e9
GPU = {"potrf": 0.1e12, "trsm": 0.5e12, "syrk": 0.8e12, "gemm": 1e12}
LINK = 12e9
LANES = [f"n0/cpu{core}" for core in range(8)] + ["n0/g0", "n0/g1"]

Graph = dict[str, tuple[str, ...]]
"""Predecessors of each task, in an order in which they can run."""


def kind(task: str) -> str:
    """`gemm-5-3-1` is a gemm."""
    return task.partition("-")[0]


def graph(tiles: int = TILES) -> Graph:
    """Right-looking Cholesky: task names carry row, column and step."""
    tasks: Graph = {}

    def add(task: str, *reads: str) -> None:
        tasks[task] = tuple(name for name in reads if name in tasks)

    for k in range(tiles):
        add(f"potrf-{k}", f"syrk-{k}-{k - 1}")
        for i in range(k + 1, tiles):
            add(f"trsm-{i}-{k}", f"potrf-{k}", f"gemm-{i}-{k}-{k - 1}")
        for i in range(k + 1, tiles):
            add(f"syrk-{i}-{k}", f"trsm-{i}-{k}", f"syrk-{i}-{k - 1}")
            for j in range(k + 1, i):
                add(f"gemm-{i}-{j}-{k}", f"trsm-{i}-{k}", f"trsm-{j}-{k}", f"gemm-{i}-{j}-{k - 1}")
    return tasks


def core_time(task: str) -> float:
    return OPERATIONS[kind(task)] / CORE


def gpu_time(task: str) -> float:
    return OPERATIONS[kind(task)] / GPU[kind(task)]


def first_on_its_tile(task: str) -> bool:
    return task == "potrf-0" or (kind(task) != "potrf" and task.endswith("-0"))


def ranks(tasks: Graph) -> dict[str, float]:
    """Longest way from a task to the end, itself included: seconds at the times of a GPU."""
    rank = {task: gpu_time(task) for task in tasks}
    for task in reversed(tasks):
        for before in tasks[task]:
            rank[before] = max(rank[before], gpu_time(before) + rank[task])
    return rank


def heft(tasks: Graph) -> list[tuple[str, str]]:
    """(task, lane) by rank, each on the lane where it would finish first; transfers of tiles counted, links idle."""
    rank = ranks(tasks)
    numbers = {task: number for number, task in enumerate(tasks)}
    free = dict.fromkeys(LANES, 0.0)
    finish: dict[str, float] = {}
    lane_of: dict[str, str] = {}
    steps = []
    for task in sorted(tasks, key=lambda task: (-rank[task], numbers[task])):
        ready = max((finish[before] for before in tasks[task]), default=0.0)

        def end(lane: str, task: str = task, ready: float = ready) -> float:
            on_gpu = "/g" in lane
            tiles = float(on_gpu and first_on_its_tile(task))
            for before in tasks[task]:
                if lane_of[before] != lane:
                    tiles += on_gpu + ("/g" in lane_of[before])
            seconds = gpu_time(task) if on_gpu else core_time(task)
            return max(ready, free[lane]) + tiles * TILE_BYTES / LINK + seconds

        lane = min(LANES, key=end)
        free[lane] = finish[task] = end(lane)
        lane_of[task] = lane
        steps.append((task, lane))
    return steps


def write_graph(path: Path, tasks: Graph) -> None:
    """The table of a graph."""
    rank = ranks(tasks)
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["id", "class", "cpu_time", "gpu_time", "bytes_in", "bytes_out", "priority", "predecessors"])
        for task, before in tasks.items():
            bytes_in = TILE_BYTES if first_on_its_tile(task) else 0
            times = [f"{seconds:.9f}" for seconds in (core_time(task), gpu_time(task))]
            priority = f"{rank[task] * 1e3:.3f}"
            table.writerow([task, kind(task), *times, bytes_in, TILE_BYTES, priority, ";".join(before)])


def write(folder: Path) -> None:
    """All files."""
    tasks = graph()
    for tiles in (*TRAINING, TILES):
        write_graph(folder / f"cholesky-{tiles}.csv", graph(tiles))
    with open(folder / "cholesky-8-plan.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["task", "mode", "device", "order"])
        for order, (task, lane) in enumerate(heft(tasks)):
            table.writerow([task, int("/g" in lane), lane, order])


if __name__ == "__main__":
    write(Path(__file__).parent)
