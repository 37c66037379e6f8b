"""The best static plan against online rules on task graphs with transfers: `python -m benchmarks.graphs [--quick]`.

The graphs are those of shipped scenarios, and made ones on eight cores and two GPUs with links of 12 GB/s: tiled LU
without pivoting, tiled QR as of Buttari et al., A Class of Parallel Tiled Linear Algebra Algorithms (2009), and random
layered graphs.  Tiles are 1,024 × 1,024 doubles and every edge of a graph is one; a core does 40 GFLOP/s,
a GPU 0.1 TFLOP/s in factorizations of a tile, 0.5 in triangular solves and 1 in updates (LU), 0.8 (QR).
A cell is the simulated makespan over the best bound that any of the planners proved, which counts no shared tiles.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hetsim as hs
from benchmarks.measure import Row, chosen, parser_of, print_table
from hetsim.workload.readers import task_table
from hetsim.workload.traces import TaskTable

ONLINE = ("dmda", "dmdas")
STATIC = ("heft", "peft", "constraint_injection", "local_search")
SHIPPED = ("cholesky-8", "cnn-operators", "topcuoglu", "arabnejad", "data-affinity")
SIDE = 1024
TILE = 8 * SIDE**2
CORE = 40e9
RATES = {"getrf": 0.1e12, "trsm": 0.5e12, "gemm": 1e12, "geqrt": 0.1e12, "tsqrt": 0.1e12, "unmqr": 0.8e12,
         "tsmqr": 0.8e12}  # fmt: skip
OPERATIONS = {"getrf": 2 / 3, "trsm": 1.0, "gemm": 2.0, "geqrt": 4 / 3, "tsqrt": 2.0, "unmqr": 2.0, "tsmqr": 4.0}
"""Of one tile, in multiples of SIDE³."""

Tile = tuple[int, int]


@dataclass
class Made:
    """A graph in the making: a task reads the last writers of its tiles and becomes the writer of some."""

    kinds: list[str] = field(default_factory=list)
    before: list[tuple[int, ...]] = field(default_factory=list)
    writer: dict[Tile, int] = field(default_factory=dict)

    def add(self, kind: str, reads: Sequence[Tile], writes: Sequence[Tile]) -> None:
        known = [self.writer[tile] for tile in (*reads, *writes) if tile in self.writer]
        self.before.append(tuple(sorted(set(known))))
        self.kinds.append(kind)
        self.writer.update(dict.fromkeys(writes, len(self.kinds) - 1))

    def table(self) -> TaskTable:
        """The tasks with their times."""
        work = np.array([OPERATIONS[kind] for kind in self.kinds]) * SIDE**3
        times = {"cpu_time": work / CORE, "gpu_time": work / np.array([RATES[kind] for kind in self.kinds])}
        return tiles(times, self.before)


def tiles(times: Mapping[str, np.ndarray], before: list[tuple[int, ...]]) -> TaskTable:
    """Tasks whose results are a tile each."""
    size = len(before)
    numbers = {"bytes_out": np.full(size, float(TILE))}
    return TaskTable("made", dict(times), np.zeros(size), numbers=numbers, id=np.arange(size), predecessors=before)


def lu(count: int) -> TaskTable:
    """Right-looking tiled LU without pivoting."""
    made = Made()
    for k in range(count):
        made.add("getrf", (), [(k, k)])
        for j in range(k + 1, count):
            made.add("trsm", [(k, k)], [(k, j)])
            made.add("trsm", [(k, k)], [(j, k)])
        for i in range(k + 1, count):
            for j in range(k + 1, count):
                made.add("gemm", [(i, k), (k, j)], [(i, j)])
    return made.table()


def qr(count: int) -> TaskTable:
    """Tiled QR, a column from top to bottom."""
    made = Made()
    for k in range(count):
        made.add("geqrt", (), [(k, k)])
        for j in range(k + 1, count):
            made.add("unmqr", [(k, k)], [(k, j)])
        for i in range(k + 1, count):
            made.add("tsqrt", (), [(k, k), (i, k)])
            for j in range(k + 1, count):
                made.add("tsmqr", [(i, k)], [(k, j), (i, j)])
    return made.table()


def layered(seed: int, size: int = 60, layers: int = 8) -> TaskTable:
    """Tasks in layers, each reading three tenths of the layer before; a GPU is 0.5 to 12 times as fast as a core."""
    random = np.random.default_rng(seed)
    layer = np.sort(random.integers(layers, size=size))
    before = [tuple(i for i in range(j) if layer[i] == layer[j] - 1 and random.random() < 0.3) for j in range(size)]
    core = random.lognormal(np.log(8e-3), 0.7, size)
    return tiles({"cpu_time": core, "gpu_time": core / random.uniform(0.5, 12, size)}, before)


def scenario(name: str, table: TaskTable, folder: Path) -> dict[str, Any]:
    """The graph on eight cores and two GPUs."""
    file = folder / f"{name}.csv"
    task_table.write(table, file)
    node = {"cpus": 8, "gpus": {"type": "g", "count": 2}, "pcie": {"upload": "12 GB/s", "download": "12 GB/s"}}
    return {"name": name, "cluster": {"nodes": node}, "workload": {"trace": {"format": "tasks", "path": str(file)}},
            "policy": "heft"}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much work the table takes."""

    shipped: tuple[str, ...] = SHIPPED
    tiles: int = 6
    layered: int = 4
    evaluations: int = 200


QUICK = Sizes(("topcuoglu",), 2, 0, 15)


def line(name: str, given: Any, sizes: Sizes) -> str:
    """One graph under all policies, and the best static plan over the best online rule."""
    search = {"name": "local_search", "evaluations": sizes.evaluations}
    plans = hs.compare(given, [*ONLINE, *STATIC[:-1], search], overrides={"replications": 1}).plans
    makespan = plans["makespan"].to_numpy()
    best = makespan[len(ONLINE) :].min() / makespan[: len(ONLINE)].min()
    return "| " + " | ".join([name, *(f"{ratio:.2f}" for ratio in plans["ratio"]), f"{best:.3f}"]) + " |"


def shipped_graphs(sizes: Sizes) -> Iterator[Row | str]:
    """Of the scenarios that ship."""
    yield head()
    for name in sizes.shipped:
        yield line(name, name, sizes)


def made_graphs(sizes: Sizes) -> Iterator[Row | str]:
    """LU, QR and layered ones."""
    yield head()
    graphs = {f"LU, {sizes.tiles} tiles": lu(sizes.tiles), f"QR, {sizes.tiles} tiles": qr(sizes.tiles)}
    graphs |= {f"layered, seed {seed}": layered(seed) for seed in range(sizes.layered)}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, table) in enumerate(graphs.items()):
            yield line(name, scenario(f"graph-{number}", table, Path(folder)), sizes)


def head() -> str:
    return "| " + " | ".join(["graph", *ONLINE, *STATIC, "best plan / best rule"]) + " |"


FIGURES: dict[str, Callable[[Sizes], Iterator[Row | str]]] = {"shipped": shipped_graphs, "made": made_graphs}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("graphs", __doc__, FIGURES)
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    figures = {name: partial(figure, sizes) for name, figure in FIGURES.items()}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
