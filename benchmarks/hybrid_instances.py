"""Independent tasks on m CPUs and k GPUs, (Pm,Pk)||Cmax, and their optima.

What tests of planners compare with, and the benchmark of them.  p are the times on a CPU and q those on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.demand import Stopping
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Shape
from hetsim.testing.systems import System, cpu_mode, gpu_mode, node, workload

Times = tuple[np.ndarray, np.ndarray]
Instance = tuple[np.ndarray, np.ndarray, int, int]
"""p, q, m, k."""


def uniform(rng: np.random.Generator, n: int) -> Times:
    return rng.uniform(1, 10, n), rng.uniform(1, 10, n)


def bimodal(rng: np.random.Generator, n: int) -> Times:
    p = np.where(rng.random(n) < 0.5, rng.uniform(8, 10, n), rng.uniform(1, 2, n))
    return p, np.where(rng.random(n) < 0.5, p / 8, p)


def accelerated(rng: np.random.Generator, n: int) -> Times:
    p = rng.uniform(1, 10, n)
    return p, p / rng.uniform(2, 20, n)


def cpu_better(rng: np.random.Generator, n: int) -> Times:
    p = rng.uniform(1, 10, n)
    return p, p * rng.uniform(1, 5, n)


def equal(rng: np.random.Generator, n: int) -> Times:
    p = rng.integers(1, 10, n).astype(float)
    return p, p.copy()


def heavy_tailed(rng: np.random.Generator, n: int) -> Times:
    return rng.pareto(1.2, n) + 0.1, rng.pareto(1.2, n) + 0.1


FAMILIES: dict[str, Callable[[np.random.Generator, int], Times]] = {
    "uniform": uniform,
    "bimodal": bimodal,
    "all-accelerated": accelerated,
    "CPU-better": cpu_better,
    "equal": equal,
    "heavy-tailed": heavy_tailed,
}


def instances(family: str, each: int = 4, most: int = 10, seed: int = 11) -> Iterator[Instance]:
    """So many for each k of 1, 2, 4, with 3 to `most` tasks and 1 to 4 CPUs."""
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    for k in (1, 2, 4):
        for _ in range(each):
            yield *FAMILIES[family](rng, int(rng.integers(3, most + 1))), int(rng.integers(1, 5)), k


def optimum(p: np.ndarray, q: np.ndarray, m: int, k: int) -> float:
    """The minimum makespan by mixed integer programming, a variable a task and lane."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    n, lanes = len(p), m + k
    time = np.hstack([np.repeat(p[:, None], m, 1), np.repeat(q[:, None], k, 1)])
    once = np.hstack([np.kron(np.eye(n), np.ones(lanes)), np.zeros((n, 1))])
    load = np.zeros((lanes, n * lanes + 1))
    for lane in range(lanes):
        load[lane, lane : n * lanes : lanes] = time[:, lane]
    load[:, -1] = -1
    solution = milp(
        np.eye(n * lanes + 1)[-1],
        constraints=[LinearConstraint(once, 1, 1), LinearConstraint(load, -np.inf, 0)],
        integrality=[1] * (n * lanes) + [0],
        bounds=Bounds(0, [1] * (n * lanes) + [np.inf]),
        options={"mip_rel_gap": 1e-9},
    )
    assert solution.status == 0
    return float(solution.fun)


def hybrid(
    p: np.ndarray, q: np.ndarray, m: int, k: int, *,
    arrival: np.ndarray | None = None, stopping: Stopping | None = None, **columns: Any,
) -> System:  # fmt: skip
    """The instance as a system: tasks of one core or one GPU; inf: no such mode."""
    kind = DeviceType("g")
    both = cpu_mode(), gpu_mode(kind)
    shapes: dict[tuple[bool, ...], Shape] = {(True, True): Shape(list(both), stopping or Stopping())}
    rows = []
    at = np.zeros(len(p)) if arrival is None else arrival
    for there, *times in zip(*(np.asarray(column, dtype=float).tolist() for column in (at, p, q)), strict=True):
        can = tuple(map(math.isfinite, times))
        if can not in shapes:
            shapes[can] = Shape([mode for mode, has in zip(both, can, strict=True) if has], stopping or Stopping())
        rows.append((there, list(shapes).index(can), *filter(math.isfinite, times)))
    cluster = Cluster([node(cpus=m, accelerators=((kind, k),))])
    return System("hybrid", cluster, workload(rows, list(shapes.values()), **columns))
