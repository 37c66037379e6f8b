"""GPU clusters: `python -m benchmarks.cluster [--quick] [--only A,B]` with A, B of the figures that --help names.

A million jobs with gangs on 2,000 GPUs under the schedulers people run, costlier ones on a cluster with too much to do,
one program over fractions, an excerpt of Alibaba's pods on its whole cluster, and the same jobs beside other
simulators (--peer NAME --path FOLDER: `benchmarks.peers` says which).  Times are those of the processor.
Jobs as in `benchmarks.gang_load`.
Of `saturated` a run that takes longer than --limit seconds is left out, as are those with more jobs.
`openb` wants the folder with openb_node_list_all_node.csv and a list of pods (alibaba/clusterdata,
cluster-trace-gpu-v2023): --openb FOLDER.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gang_load import DEPTH, QUICK, SEED, SHARES, WIDTHS, Sizes, draw, simulate
from benchmarks.measure import (
    Row,
    bare_callbacks,
    chosen,
    in_turns,
    median_ratio,
    parser_of,
    per_second,
    print_table,
    python,
)
from benchmarks.peers import PEERS, peer_figures
from benchmarks.saturated import saturated_figures

TARGETS = {"fcfs": 80_000, "sjf": 60_000, "srtf": 30_000, "easy_backfill": 20_000, "las": 30_000}


def seconds(count: int, policy: str, nodes: int = 250, load: float = 0.9) -> float:
    return simulate(draw(count, 8 * nodes, load), nodes, policy)[0]


# Figures -----------------------------------------------------------------------------------------------------------


def million_figures(sizes: Sizes) -> Iterator[Row]:
    """Jobs per second under each scheduler, beside bare SimPy."""
    steps = {policy: partial(seconds, sizes.jobs, policy) for policy in TARGETS}
    spent = in_turns(sizes.repetitions, bare=partial(bare_callbacks, sizes.callbacks), **steps)
    yield Row("bare SimPy beside it", f"{per_second(sizes.callbacks, spent['bare']):,.0f} callbacks/s")
    for policy, target in TARGETS.items():
        rate = per_second(sizes.jobs, spent[policy])
        name = f"{policy}, depth {DEPTH}" if policy == "easy_backfill" else policy
        text = f"{rate:,.0f} jobs/s"
        yield Row(f"{sizes.jobs:,} jobs, 2,000 GPUs, 0.9: {name}", text, f"≥ {target:,}", rate >= target)


def growth_figures(sizes: Sizes) -> Iterator[Row]:
    """Time per job at the large size against the small one."""
    for policy in TARGETS:
        spent = in_turns(
            sizes.repetitions,
            fewer=partial(seconds, sizes.fewer, policy),
            more=partial(seconds, sizes.jobs, policy),
        )
        ratio = median_ratio(spent["more"], spent["fewer"]) * sizes.fewer / sizes.jobs
        figure = f"time a job, {sizes.jobs:,} / {sizes.fewer:,}: {policy}"
        yield Row(figure, f"{ratio:.2f} ×", "< 1.3 ×", ratio < 1.3)


def saturation_figures(sizes: Sizes) -> Iterator[Row]:
    """The load from which on the queue under strict fcfs grows without end: gangs of 8 wait for an empty node."""
    count = min(sizes.jobs, 200_000)
    for load in (0.7, 0.9, 0.95, 0.98, 1.0):
        jobs = draw(count, 2_000, load)
        text = []
        for policy in ("fcfs", "easy_backfill"):
            record = simulate(jobs, 250, policy)[1]
            wait = record.start - jobs.arrival
            halves = wait[: count // 2].mean(), wait[count // 2 :].mean()
            text.append(f"{halves[0]:,.0f} and {halves[1]:,.0f} s")
        yield Row(f"mean wait, halves of the run, load {load}", f"fcfs {text[0]}; easy {text[1]}")
    full = simulate(draw(count, 2_000, 1.3), 250, "fcfs")[1]
    jobs = draw(count, 2_000, 1.3)
    began = full.start
    window = (began > np.quantile(began, 0.2)) & (began < np.quantile(began, 0.8))
    work = float((jobs.width * jobs.duration)[window].sum())
    share = work / (float(np.ptp(began[window])) * 2_000)
    yield Row("fcfs saturates at (allocation under overload)", f"{share:.3f}")


def peak(jobs: int, policy: str = "fcfs") -> None:
    """Print the peak memory (bytes) of a process that makes one run: called in a fresh one."""
    record = simulate(draw(jobs, 2_000, 0.9), 250, policy)[1]
    assert len(record.status) == jobs
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(int(line.split()[1]) * 1024)


def memory_figures(sizes: Sizes) -> Iterator[Row]:
    """What each job more adds to the peak memory of a fresh process, arrays and record included."""
    for policy in TARGETS:
        code = "from benchmarks.cluster import peak; peak({}, '" + policy + "')"
        few, many = (float(python(code.format(count))) for count in (sizes.fewer, sizes.jobs))
        each = (many - few) / (sizes.jobs - sizes.fewer)
        figure = f"peak memory, from {sizes.fewer:,} to {sizes.jobs:,} jobs: {policy}"
        yield Row(figure, f"{each:,.0f} bytes a job", "< 1,000", each < 1_000)


# A program, and a real trace -----------------------------------------------------------------------------------------


def program_figures(sizes: Sizes) -> Iterator[Row]:
    """Max-min fairness over time fractions: 512 jobs, no two alike, on four types of 128 GPUs."""
    from hetsim_policies.dynamic.common.fractions import ModeOffers, _Groups, equal_share, max_min

    random = np.random.default_rng(SEED)
    count, kinds = 512, 4
    times = random.lognormal(7, 1.5, (count, 1)) / [1, 2, 4, 8] * random.lognormal(0, 0.5, (count, kinds))
    width = np.repeat(random.choice(WIDTHS, count, p=SHARES).astype(float), kinds)
    job, kind = np.repeat(np.arange(count), kinds), np.tile(np.arange(kinds), count)
    offers = ModeOffers(job, kind, width, times.ravel(), np.full(kinds, 128.0), np.ones(count))
    base = offers.progress(equal_share(offers))

    def raised_once(groups: _Groups) -> object:
        return groups.raise_min(np.zeros(groups.size), np.zeros(groups.size, dtype=bool))

    name = f"{count} jobs × {kinds} types"
    for figure, solve in (
        (f"one max-min program, {name}", lambda: raised_once(_Groups.of_offers(offers, base))),
        ("  and the sum above that level", lambda: max_min(offers, base, levels=1)),
        ("  max_min_fairness with its four levels", lambda: max_min(offers, base, levels=4)),
    ):
        spent = []
        for _ in range(sizes.repetitions + 1):  # the first imports
            began = time.process_time()
            solve()
            spent.append(time.process_time() - began)
        least = min(spent[1:])
        if figure.startswith("one"):
            yield Row(figure, f"{least:.2f} s", "< 0.3 s", least < 0.3)
        else:
            yield Row(figure, f"{least:.2f} s")


PODS = "openb_pod_list_default*.csv"


def openb_figures(sizes: Sizes, folder: str) -> Iterator[Row]:
    """The reader, the scenario and fgd on all nodes of Alibaba's cluster of 2023, from the files to the tables."""
    import hetsim as hs

    nodes, pods = Path(folder) / "openb_node_list_all_node.csv", next(iter(sorted(Path(folder).glob(PODS))), None)
    if pods is None or not nodes.exists():
        yield Row("openb", f"no node list and {PODS} in {folder}", "--openb FOLDER")
        return
    scenario = {
        "name": "openb",
        "cluster": {"trace": {"format": "openb_nodes", "path": str(nodes)}},
        "workload": [{"name": "pods", "trace": {"format": "openb", "path": str(pods), "since": "9961302 s"}}],
        "policy": {"scheduler": "fcfs", "placement": "fgd"},
    }
    spent = []
    for _ in range(sizes.repetitions + 1):
        gc.collect()
        began = time.process_time()
        result = hs.run(scenario)
        tasks = len(result.tasks)
        spent.append(time.process_time() - began)
    least = min(spent[1:])
    figure = f"{tasks:,} pods of openb with fgd on {len(result.devices['node'].unique()):,} nodes"
    yield Row(figure, f"{least:.2f} s", "< 3 s", least < 3)


# The table -------------------------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "million": million_figures,
    "growth": growth_figures,
    "saturation": saturation_figures,
    "memory": memory_figures,
    "program": program_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("cluster", __doc__, [*FIGURES, "saturated", "openb"])
    parser.add_argument("--openb", metavar="FOLDER", default="openb", help="with Alibaba's nodes and pods of 2023")
    parser.add_argument("--peer", choices=PEERS, help="another simulator that runs the same jobs; nothing else is run")
    parser.add_argument("--path", metavar="FOLDER", type=Path, help="where the peer is")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=480.0,
                        help="of one run of a peer, or of `saturated`")  # fmt: skip
    options = parser.parse_args(arguments)
    if (options.peer is None) != (options.path is None) or options.path and not options.path.is_dir():
        parser.error("--peer NAME goes with --path FOLDER, a folder that is there")
    sizes = QUICK if options.quick else Sizes()
    figures: dict[str, Callable[[], Iterator[Row | str]]] = {
        **{name: partial(figure, sizes) for name, figure in FIGURES.items()},
        "saturated": partial(saturated_figures, sizes, limit=options.limit),
        "openb": partial(openb_figures, sizes, folder=options.openb),
    }
    if options.peer:
        figures = {"peer": partial(peer_figures, sizes, name=options.peer, path=options.path, limit=options.limit)}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
