"""What the static planners are worth: `python -m benchmarks.static [FOLDER] [--quick] [--only exact,published,...]`.

exact       against optima (mixed integer programs): random instances of at most 14 tasks, in six families
published   published CPU/GPU task times as independent tasks, against the certified bound; planning times
sizes       planning times as instances grow, and a guess of the recursion as it was published
saga        heft beside that of anrg-saga, if that is installed
graphs      Cholesky graphs without transfers: heft and heteroprio over the bound of paths and linear program
transfers   Cholesky graphs with transfers: the simulated makespan of every graph policy over the bound

FOLDER has two-resource task files (`id cpu gpu [predecessors]`, as published with measured Cholesky and LU kernels);
by default ../shared/data/hetero_dag/2_resources.  Where it is missing, what needs it is left out.
Machines differ, so times that are compared were taken in one run, in turns; they are processor time, medians but
where a mean is said.  Makespans are the same with the same libraries.  Targets are for the full sizes.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import hetsim as hs
from benchmarks.dual_as_published import as_published, pairs
from benchmarks.hybrid_instances import FAMILIES, hybrid, instances, optimum
from benchmarks.measure import ROOT, SEED, Row, chosen, in_turns, median_ratio, parser_of, print_table
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.model.record import COMPLETED
from hetsim.policy import PlannedScheduler, PlanProblem
from hetsim.testing import System
from hetsim.workload.readers import hetero_dag, task_table
from hetsim.workload.traces import TaskTable
from hetsim_policies.static.common.bounds import linear_bound
from hetsim_policies.static.common.graph_bounds import Paths
from hetsim_policies.static.dual_approximation import RATIO, solve
from hetsim_policies.static.insertion import Heft, Insertion
from hetsim_policies.static.programs import hlp

DEFAULT = ROOT.parent / "shared" / "data" / "hetero_dag" / "2_resources"
CLUSTERS = ((16, 2), (16, 4), (32, 8), (64, 16))
DUAL = "dual_approximation"
INDEPENDENT = (
    DUAL, "heft", "heteroprio", "clb2c", "balanced_makespan", "greedy_dual", "lst", "linear_program", "er_ls", "eft",
    "max_min", "min_min", "sufferage", "mct", "graham",
)  # fmt: skip
TO_BEAT = INDEPENDENT[1:6]
GRAPH_LISTS = ("heft", "cpop", "peft", "hlp", "heteroprio", "dmda", "dmdas", "lws", "eft", "er_ls", "mct", "graham")
GRAPH_SEARCHES = (
    "linear_program", "integer_program", "genetic", "simulated_annealing", "constraint_injection", "local_search",
)  # fmt: skip
SAGA = "anrg-saga"


@dataclass(frozen=True)
class Sizes:
    """How much work the figures take."""

    each: int = 19
    """Instances of each family and k."""
    most: int = 14
    files: int | None = None
    clusters: int = 4
    repetitions: int = 3
    large: tuple[tuple[int, int, int, float], ...] = ((1_000, 32, 8, 0.5), (100_000, 64, 16, 10.0))
    paper: tuple[int, int, int] = (100, 16, 4)
    saga_tasks: int = 1_000
    searches: tuple[str, ...] = GRAPH_SEARCHES


QUICK = Sizes(1, 9, 2, 1, 1, ((200, 8, 2, 0.5), (2_000, 16, 4, 10.0)), (20, 4, 2), 100, GRAPH_SEARCHES[:1])
Line = Row | str
"""A figure with its target, or a line of a table."""


# Policies on instances -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a policy makes of independent tasks without transfers, and the seconds it takes for that."""

    makespan: float
    bound: float
    seconds: float


def outcome(name: str, system: System) -> Outcome:
    """Of a planner its plan, which the engine keeps to the second; of any other policy its run."""
    scheduler = registry.policy("scheduler", name)()
    began = time.process_time()
    if isinstance(scheduler, PlannedScheduler):
        plan = scheduler.plan(PlanProblem(system.tasks, system.cluster))
        spent = time.process_time() - began
        assert plan.makespan is not None
        return Outcome(plan.makespan, plan.bound or 0.0, spent)
    record = Simulation(system.run_input(scheduler)).run()
    spent = time.process_time() - began
    assert (record.status == COMPLETED).all()
    return Outcome(float(record.finish.max()), 0.0, spent)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Lines of a table, numbers to the right."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        first, *others = row
        numbers = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([f"  {first:<{widths[0]}}", *numbers]).rstrip()


def against_all(systems: Sequence[tuple[System, float | None]]) -> dict[str, list[tuple[float, float]]]:
    """(makespan over the reference, seconds) of every policy on every instance; None: the bound of `DUAL` is it."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in INDEPENDENT}
    for system, reference in systems:
        for name in INDEPENDENT:
            made = outcome(name, system)
            reference = reference or made.bound  # DUAL is the first
            found[name].append((made.makespan / reference, made.seconds))
    return found


def policy_table(found: dict[str, list[tuple[float, float]]]) -> Iterator[str]:
    own = [ratio for ratio, _ in found[DUAL]]
    rows = []
    for name, values in found.items():
        ratios, seconds = zip(*values, strict=True)
        better = sum(ratio < mine * (1 - 1e-9) for ratio, mine in zip(ratios, own, strict=True))
        mean = statistics.fmean(ratios)
        time_each = f"{statistics.fmean(seconds) * 1e3:.1f} ms"
        rows.append((name, f"{mean:.4f}", f"{max(ratios):.3f}", "" if name == DUAL else better, time_each))
    yield from table(("policy", "mean", "worst", f"better than {DUAL}", "mean time"), rows)


# Against optima and bounds ---------------------------------------------------------------------------------------


def exact_figures(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Makespans over optima of small instances."""
    systems = []
    for family in FAMILIES:
        for p, q, m, k in instances(family, sizes.each, sizes.most, SEED):
            systems.append((hybrid(p, q, m, k), optimum(p, q, m, k)))
    found = against_all(systems)
    ratios = [ratio for ratio, _ in found[DUAL]]
    worst, mean = max(ratios), statistics.fmean(ratios)
    yield Row(f"{len(ratios)} instances, n ≤ {sizes.most}, k in 1, 2, 4", f"{len(FAMILIES)} families, optima by HiGHS")
    yield Row("  worst ratio to the optimum", f"{worst:.4f}", "≤ 4/3", worst <= RATIO)
    yield Row("  mean ratio", f"{mean:.4f}", "≤ 1.02", mean <= 1.02)
    yield from policy_table(found)


def published_figures(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Makespans over the certified bound on every file and cluster."""
    files = sorted(folder.glob("*.txt"))[: sizes.files]
    if not files:
        yield f"published times: no task files in {folder}; name their folder to compare the planners on them"
        return
    systems: list[tuple[System, float | None]] = []
    for file in files:
        times = hetero_dag.read(file, independent=True).times
        systems += [(hybrid(times["cpu_time"], times["gpu_time"], *cluster), None)
                    for cluster in CLUSTERS[: sizes.clusters]]  # fmt: skip
    found = against_all(systems)
    own = found[DUAL]
    mean, seconds = statistics.fmean(ratio for ratio, _ in own), statistics.fmean(spent for _, spent in own)
    behind = {name: sum(other[0] < mine[0] * (1 - 1e-9) for mine, other in zip(own, found[name], strict=True))
              for name in INDEPENDENT[1:]}  # fmt: skip
    yield Row(f"{len(files)} task files on {sizes.clusters} clusters", f"{len(own)} instances, independent tasks")
    yield Row("  mean ratio to the certified bound", f"{mean:.4f}", "≤ 1.04", mean <= 1.04)
    beaten = sum(behind[name] for name in TO_BEAT)
    yield Row("  times a rival of the first five was better", f"{beaten}", "0", beaten == 0)
    yield Row("  times any of them all was better", f"{sum(behind.values())}")
    yield Row("  mean planning time", f"{seconds:.3f} s", "≤ 0.1 s", seconds <= 0.1)
    yield from policy_table(found)


# Time ------------------------------------------------------------------------------------------------------------


def random_times(n: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    p = draw.uniform(1, 100, n)
    return p, p / draw.uniform(0.5, 30, n)


def processor_time(step: Callable[[], Any]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def size_figures(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Planning times as the instance grows, and of one guess of the published recursion."""
    for n, m, k, target in sizes.large:
        p, q = random_times(n)
        spent = statistics.median(processor_time(partial(solve, p, q, m, k)) for _ in range(sizes.repetitions))
        over = solve(p, q, m, k).ratio
        text = f"{spent:.2f} s, {over:.4f} times the bound"
        yield Row(f"n = {n:,}, m = {m}, k = {k}", text, f"≤ {target:g} s", spent <= target)
    n, m, k = sizes.paper
    p, q = random_times(n)
    guess = linear_bound(p, q, m, k) * 1.01
    one = partial(as_published, p, q, m, k, guess)
    collapsed = partial(solve, p, q, m, k)
    spent = in_turns(sizes.repetitions, paper=lambda: processor_time(one), whole=lambda: processor_time(collapsed))
    seconds, updates = statistics.median(spent["paper"]), n * len(pairs(m)) * len(pairs(k)) * (3 * k * n + 1)
    yield Row(f"recursion as published, n = {n}, m = {m}, k = {k}", f"{seconds:.2f} s a guess", "≤ 5 s", seconds <= 5)
    yield Row("  state updates", f"{updates / 1e6:,.0f} million, {updates / seconds / 1e6:,.0f} million/s")
    yield Row("  a guess / the whole search as shipped", f"{median_ratio(spent['paper'], spent['whole']):,.0f} ×")


def saga_figures(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """HEFT on independent tasks beside that of SAGA: every task as many times as fast on each GPU, idle links."""
    try:
        from saga import Network, TaskGraph
        from saga.schedulers.heft import HeftScheduler
    except ImportError:
        yield f"heft beside {SAGA}: it is not installed; pip install '{SAGA}==2.0.*'"
        return
    n, m, k, gain = sizes.saga_tasks, 16, 4, 10.0
    cost = np.random.default_rng(SEED).uniform(1, 100, n)
    times, none = np.stack([cost, cost / gain], axis=1), [()] * n
    speeds = [(f"cpu{i}", 1.0) for i in range(m)] + [(f"gpu{i}", gain) for i in range(k)]
    names = [name for name, _ in speeds]
    logging.getLogger().setLevel(logging.ERROR)  # it warns that the graph has several sources
    network = Network.create(speeds, [(a, b, 1.0) for i, a in enumerate(names) for b in names[i + 1 :]])
    graph = TaskGraph.create([(f"t{i}", float(c)) for i, c in enumerate(cost)], [])
    spans: dict[str, float] = {}

    def ours() -> None:
        spans["ours"] = Heft.placed(Insertion(times, [m, k], none)).makespan

    def theirs() -> None:
        spans["theirs"] = HeftScheduler().schedule(network, graph).makespan

    spent = in_turns(sizes.repetitions, ours=lambda: processor_time(ours), theirs=lambda: processor_time(theirs))
    ratio, seconds = median_ratio(spent["theirs"], spent["ours"]), statistics.median(spent["ours"])
    text = f"{seconds * 1e3:.1f} ms; {SAGA} {statistics.median(spent['theirs']):.2f} s"
    yield Row(f"heft, {n:,} independent tasks, {m + k} processors", text)
    yield Row(f"  times as fast as {SAGA}", f"{ratio:,.0f} ×", "≥ 100 ×", ratio >= 100)
    off = abs(spans["ours"] / spans["theirs"] - 1)
    yield Row("  makespans", f"{spans['ours']:.6f} and {spans['theirs']:.6f}", "the same", off <= 1e-9)


# Cholesky graphs -------------------------------------------------------------------------------------------------

SHIPPED = "cholesky-8"
LINK = {"upload": "12 GB/s", "download": "12 GB/s"}


@dataclass(frozen=True)
class Graph:
    """A task graph and the cores and GPUs it runs on; `side` of the square tiles of single precision on its edges."""

    name: str
    tasks: TaskTable
    cores: int
    gpus: int
    side: int = 0


@cache
def graphs(folder: Path, most: int | None) -> list[Graph]:
    """The shipped Cholesky graph, and the published ones of a folder."""
    shipped = task_table.read(ROOT / "scenarios" / "hetsim_scenarios" / "graphs" / f"{SHIPPED}.csv")
    found = [Graph(SHIPPED, shipped, 8, 2)]
    for file in sorted(folder.glob("spotrf-*.txt"))[: None if most is None else most - 1]:
        _, side, tiles = file.stem.split("-")
        found.append(Graph(f"{side}-{tiles}", hetero_dag.read(file), 16, 4, int(side)))
    return found


def no_files(folder: Path) -> Iterator[str]:
    if not any(folder.glob("spotrf-*.txt")):
        yield f"published graphs: no spotrf files in {folder}; only the shipped graph"


def graph_figures(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Without transfers: list policies over what paths and the linear program certify."""
    yield from no_files(folder)
    rows = []
    for graph in graphs(folder, sizes.files):
        p, q = graph.tasks.times["cpu_time"], graph.tasks.times["gpu_time"]
        times, counts, before = np.stack([p, q], axis=1), [graph.cores, graph.gpus], graph.tasks.predecessors
        rounded, bound = hlp(times, counts, before)
        shared = outcome("heteroprio", hybrid(p, q, *counts, predecessors=before)).makespan
        spans = [Heft.placed(Insertion(times, counts, before)).makespan, shared, rounded.makespan]
        path = Paths.through(times.min(axis=1), before).longest
        lanes = f"{graph.cores} + {graph.gpus}"
        rows.append((graph.name, len(p), lanes, f"{bound * 1e3:.4g} ms", f"{path / bound:.3f}",
                     *(f"{span / bound:.3f}" for span in spans)))  # fmt: skip
    yield "Cholesky graphs (tile side - tiles) without transfers: makespan over the bound of paths and linear program"
    yield from table(("graph", "tasks", "CPUs + GPUs", "bound", "path alone", "heft", "heteroprio", "hlp"), rows)


def with_transfers(graph: Graph, folder: Path) -> str | dict[str, Any]:
    """The scenario: every edge carries a tile, which stays where it was made until another device reads it."""
    if not graph.side:
        return graph.name
    file = folder / f"{graph.name}.csv"
    tile = np.full(len(graph.tasks), 4.0 * graph.side**2)
    task_table.write(replace(graph.tasks, numbers={"bytes_out": tile}), file)
    node = {"cpus": graph.cores, "gpus": {"type": "gpu", "count": graph.gpus}, "pcie": LINK}
    return {"name": graph.name, "cluster": {"nodes": node},
            "workload": {"trace": {"format": "tasks", "path": str(file)}}, "policy": "heft"}  # fmt: skip


def transfer_figures(sizes: Sizes, folder: Path) -> Iterator[Line]:
    """With transfers: every graph policy, simulated, over the best bound that any planner certified without them."""
    yield from no_files(folder)
    names = (*GRAPH_LISTS, *sizes.searches)
    columns, bounds = [], []
    all_graphs = graphs(folder, sizes.files)
    with tempfile.TemporaryDirectory() as made:
        for graph in all_graphs:
            plans = hs.compare(with_transfers(graph, Path(made)), names).plans
            columns.append([f"{ratio:.3f}" for ratio in plans["ratio"]])
            bounds.append(f"{plans['lower_bound'].iloc[0] * 1e3:.4g}")
    yield f"Cholesky graphs with transfers ({LINK['upload']} each way): simulated makespan over the bound, in ms"
    rows = [("lower bound", *bounds), *zip(names, *columns, strict=True)]
    yield from table(("policy", *(graph.name for graph in all_graphs)), rows)


# The tables ------------------------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Sizes, Path], Iterator[Line]]] = {
    "exact": exact_figures,
    "published": published_figures,
    "sizes": size_figures,
    "saga": saga_figures,
    "graphs": graph_figures,
    "transfers": transfer_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("static", __doc__, FIGURES)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, help="with two-resource task files")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    figures = {name: partial(figure, sizes, options.folder) for name, figure in FIGURES.items()}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
