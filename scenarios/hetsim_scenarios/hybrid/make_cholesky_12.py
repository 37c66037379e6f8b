"""Writes the task graph of a Cholesky factorization of 12 × 12 tiles, as `graphs/make_cholesky.py` does of 8 × 8.

    python scenarios/hetsim_scenarios/hybrid/make_cholesky_12.py

cholesky-12.csv   364 tasks, in the order of the right-looking loop; kernels, tiles and rates are those of cholesky-8
"""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

TILES = 12


def write(folder: Path) -> None:
    """The table."""
    known = runpy.run_path(str(Path(__file__).parent.parent / "graphs" / "make_cholesky.py"))
    tasks = known["graph"](TILES)
    rank = known["ranks"](tasks)
    with open(folder / "cholesky-12.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["id", "class", "cpu_time", "gpu_time", "bytes_in", "bytes_out", "priority", "predecessors"])
        for task, before in tasks.items():
            bytes_in = known["TILE_BYTES"] if known["first_on_its_tile"](task) else 0
            times = [f"{seconds:.9f}" for seconds in (known["core_time"](task), known["gpu_time"](task))]
            priority = f"{rank[task] * 1e3:.3f}"
            row = [task, known["kind"](task), *times, bytes_in, known["TILE_BYTES"], priority, ";".join(before)]
            table.writerow(row)


if __name__ == "__main__":
    write(Path(__file__).parent)
