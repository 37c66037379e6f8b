"""GPU clusters: `python -m benchmarks.cluster [--quick] [--only A,B]` with A, B of the figures that --help names.

A million jobs with gangs on 2,000 GPUs under the schedulers people run, costlier ones on a cluster with too much to do,
one program over fractions, an excerpt of Alibaba's pods on its whole cluster, and the same jobs beside AccaSim.  Times
are those of the processor.
Jobs as in `benchmarks.gang_load`.
AccaSim wants an environment of its own:
    python -m venv accasim-env && accasim-env/bin/pip install accasim
    python -m benchmarks.cluster --only accasim --accasim accasim-env/bin/python
A run of AccaSim that takes longer than --limit seconds is made again with fewer jobs; the figure says how many.  Of
`saturated` a run that takes longer is left out, as are those with more jobs.
`openb` wants the folder with openb_node_list_all_node.csv and a list of pods (alibaba/clusterdata,
cluster-trace-gpu-v2023): --openb FOLDER.
"""

from __future__ import annotations

import gc
import json
import math
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.gang_load import DEPTH, QUICK, SEED, SHARES, WIDTHS, Jobs, Sizes, draw, simulate
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
        "workload": [{"name": "pods", "trace": {"format": "openb", "path": str(pods), "trim": True}}],
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


# Beside AccaSim ----------------------------------------------------------------------------------------------------

ACCASIM = r"""
import collections, collections.abc, contextlib, io, json, os, resource, sys, time
from datetime import datetime
for name in ("Mapping", "MutableMapping", "Sequence", "Iterable", "Callable"):
    setattr(collections, name, getattr(collections.abc, name))  # AccaSim 1.1.3 was written for Python 3.9
folder, scheduler, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
os.chdir(folder)
from accasim.base.simulator_class import Simulator
from accasim.base.allocator_class import FirstFit
from accasim.base.scheduler_class import FirstInFirstOut, ShortestJobFirst, EASYBackfilling
kinds = {"fcfs": FirstInFirstOut, "sjf": ShortestJobFirst, "easy_backfill": EASYBackfilling}
began = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    simulator = Simulator("jobs.swf", "system.json", kinds[scheduler](FirstFit()), scheduling_output=True,
                          RESULTS_FOLDER_NAME="out_" + scheduler, pprint_output=False, statistics_output=False)
    simulator.start_simulation()
spent = time.process_time() - began
starts = {}
for root, _, names in os.walk("."):
    for name in names:
        if name.startswith("sched"):
            for line in open(os.path.join(root, name)):
                at = datetime.strptime(line.rsplit("__", 1)[1].split(";")[0], "%Y-%m-%d %H:%M:%S")
                starts[int(line.split(";")[0])] = (at - datetime(1970, 1, 1)).total_seconds()
print("RESULT" + json.dumps({"seconds": spent, "starts": starts}))
"""


def write_for_accasim(jobs: Jobs, nodes: int, folder: Path) -> None:
    """The same jobs as SWF (processors are GPUs), and the system."""
    with (folder / "jobs.swf").open("w") as file:
        file.write("; UnixStartTime: 0\n; MaxNodes: 1\n")
        for number, (arrival, width, duration) in enumerate(
            zip(jobs.arrival.tolist(), jobs.width.tolist(), jobs.duration.tolist(), strict=True), 1
        ):
            d = int(duration)
            # A kilobyte of memory: AccaSim's EASY divides by what is asked for.
            fields = [number, int(arrival), -1, d, width, -1, -1, width, d, 1, 1, 1, 1, -1, 1, 1, -1, -1]
            file.write(" ".join(map(str, fields)) + "\n")
    system = {"groups": {"g0": {"core": 8, "mem": 1_000_000}}, "resources": {"g0": nodes}}
    (folder / "system.json").write_text(json.dumps(system))


def accasim_run(interpreter: str, folder: Path, policy: str, limit: float) -> tuple[float, dict[int, float]] | None:
    """Its processor seconds and starts by job; None if it took more seconds than the limit."""
    done = subprocess.run(
        [interpreter, "-c", ACCASIM, str(folder), policy, f"{limit:.0f}"], capture_output=True, text=True, check=False
    )
    if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        return None
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        raise RuntimeError(f"AccaSim ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found = json.loads(line.removeprefix("RESULT"))
    return found["seconds"], {int(key): value for key, value in found["starts"].items()}


def accasim_figures(sizes: Sizes, interpreter: str, limit: float) -> Iterator[Row]:
    """Jobs per second beside AccaSim, and whether the starts are the same."""
    if not Path(interpreter).exists():
        yield Row("AccaSim", f"not at {interpreter}", "python -m venv, pip install accasim")
        return
    for nodes in sizes.peer_nodes:
        for load in (0.7, 0.95):
            for policy in ("fcfs", "sjf", "easy_backfill"):
                yield from beside_accasim(sizes.peer_jobs, nodes, load, policy, interpreter, limit)


def beside_accasim(
    count: int, nodes: int, load: float, policy: str, interpreter: str, limit: float
) -> Iterator[Row]:
    wanted = 5 if nodes <= 64 else 12
    figure = f"AccaSim, {nodes} nodes, {load}: {policy}"
    jobs = draw(count, 8 * nodes, load)
    with tempfile.TemporaryDirectory() as name:
        write_for_accasim(jobs, nodes, Path(name))
        theirs = accasim_run(interpreter, Path(name), policy, limit)
    ours = simulate(jobs, nodes, policy)[0]
    if theirs is None:
        yield Row(figure, f"{count / ours:,.0f} jobs/s; AccaSim took more than {limit:g} s for {count:,} jobs")
        if count >= 5_000:
            yield from beside_accasim(count // 5, nodes, load, policy, interpreter, limit)
        return
    spent, starts = theirs
    ratio = spent / ours
    rates = f"{count / ours:,.0f} against {count / spent:,.0f} jobs/s"
    yield Row(f"{figure}, {count:,} jobs", f"{rates}: {ratio:.1f} ×", f"≥ {wanted} ×", ratio >= wanted)
    # AccaSim's gangs take processors of any nodes: the models agree where ours may span nodes.
    agreed = simulate(jobs, nodes, policy, span=True)[1].start
    begun = np.array([starts.get(row + 1, math.nan) for row in range(count)])
    same = float((begun == agreed).mean())
    apart = float(np.nanmean(begun - agreed))
    text = f"{same:.2%} of the jobs, on average {apart:+.2g} s"
    if policy == "fcfs":
        yield Row("  same starts, gangs across nodes", text, "100 %", same == 1)
    else:
        yield Row("  same starts, gangs across nodes", text)


# The table -------------------------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "million": million_figures,
    "growth": growth_figures,
    "saturation": saturation_figures,
    "memory": memory_figures,
    "program": program_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("cluster", __doc__, [*FIGURES, "saturated", "openb", "accasim"])
    parser.add_argument("--openb", metavar="FOLDER", default="openb", help="with Alibaba's nodes and pods of 2023")
    parser.add_argument("--accasim", metavar="PYTHON", default="accasim-env/bin/python", help="with AccaSim installed")
    parser.add_argument("--limit", metavar="SECONDS", type=float, default=480.0,
                        help="of one run of AccaSim, or of `saturated`")  # fmt: skip
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    figures: dict[str, Callable[[], Iterator[Row]]] = {
        **{name: partial(figure, sizes) for name, figure in FIGURES.items()},
        "saturated": partial(saturated_figures, sizes, limit=options.limit),
        "openb": partial(openb_figures, sizes, folder=options.openb),
        "accasim": partial(accasim_figures, sizes, interpreter=options.accasim, limit=options.limit),
    }
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
