"""The static planners on published CPU/GPU task times: `python -m benchmarks.static [FOLDER]`.

Reads every two-resource task file of a folder (`id cpu gpu [predecessors]`, as published with measured Cholesky and
LU kernels; by default ../shared/data/hetero_dag/2_resources) as independent tasks, plans them on four clusters and
prints makespans over the lower bound that the dual approximation certifies, and its planning times.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from policies.static.balanced_makespan import balanced_makespan
from policies.static.clb2c import clb2c
from policies.static.dual_approximation import solve
from policies.static.greedy_dual import greedy_dual
from policies.static.heft import heft
from policies.static.mct import mct
from sim.workload import hetero_dag

CLUSTERS = ((16, 2), (16, 4), (32, 8), (64, 16))
DEFAULT = Path(__file__).parents[2] / "shared" / "data" / "hetero_dag" / "2_resources"

Rival = Callable[[np.ndarray, list[int]], float]
RIVALS: dict[str, Rival] = {
    "heft": lambda times, counts: heft(times, counts, [()] * len(times)).makespan,
    "mct": lambda times, counts: mct(times, counts, range(len(times))).makespan,
    "clb2c": lambda times, counts: clb2c(times, counts).makespan,
    "balanced_makespan": lambda times, counts: balanced_makespan(times, counts).makespan,
    "greedy_dual": lambda times, counts: greedy_dual(times, counts)[0].makespan,
}


def published(folder: Path) -> None:
    """Ratios to the certified bound on every file and cluster."""
    ratios: dict[str, list[float]] = {name: [] for name in ("dual_approximation", *RIVALS)}
    seconds: list[float] = []
    beaten = 0
    for file in sorted(folder.glob("*.txt")):
        table = hetero_dag.read(file, independent=True)
        times = np.stack([table.times["cpu_time"], table.times["gpu_time"]], axis=1)
        for m, k in CLUSTERS:
            began = time.perf_counter()
            found = solve(times[:, 0], times[:, 1], m, k)
            seconds.append(time.perf_counter() - began)
            own = found.schedule.makespan
            ratios["dual_approximation"].append(own / found.bound)
            for name, rival in RIVALS.items():
                other = rival(times, [m, k])
                ratios[name].append(other / found.bound)
                beaten += other < own * (1 - 1e-9)
    print(f"{len(seconds)} instances: makespan over the certified lower bound")
    for name, values in ratios.items():
        print(f"  {name:<20} mean {statistics.fmean(values):.4f}   worst {max(values):.3f}")
    print(f"  times a rival was better than the dual approximation: {beaten}")
    print(f"  its planning time: mean {statistics.fmean(seconds):.3f} s, worst {max(seconds):.3f} s")


def sizes() -> None:
    """Planning time as the instance grows."""
    for n, m, k in ((1_000, 32, 8), (100_000, 64, 16)):
        draw = np.random.default_rng(1)
        p = draw.uniform(1, 100, n)
        q = p / draw.uniform(0.5, 30, n)
        began = time.perf_counter()
        found = solve(p, q, m, k)
        spent = time.perf_counter() - began
        over = found.schedule.makespan / found.bound
        print(f"n = {n:,}, m = {m}, k = {k}: {spent:.2f} s, {over:.4f} times the bound")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    if any(folder.glob("*.txt")):
        published(folder)
    else:
        print(f"no task files in {folder}; name their folder to compare the planners on them")
    sizes()


if __name__ == "__main__":
    main()
