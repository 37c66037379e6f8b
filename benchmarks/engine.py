"""How fast the simulator is: `python -m benchmarks.engine [--quick] [--only simpy,throughput,...]`.

Machines differ and are shared, so what counts is a ratio inside one run: tasks per callback of bare SimPy, time
per task at one size against another, customers per second beside Ciw and plain SimPy.  What is compared runs in
turns, and medians of the repetitions are shown.  Times are processor time, which a neighbor's work changes least;
only those of whole processes are wall time.  Targets stand beside; they are for the full sizes.
"""

from __future__ import annotations

import gc
import math
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import simpy

from benchmarks.measure import (
    SEED,
    Row,
    bare_callbacks,
    chosen,
    in_turns,
    median_ratio,
    parser_of,
    per_second,
    print_table,
    python,
    wall,
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much work the figures take."""

    repetitions: int = 5
    callbacks: int = 600_000
    tasks: int = 1_000_000
    fewer_tasks: int = 100_000
    wide_tasks: int = 300_000
    customers: int = 300_000
    peer_repetitions: int = 3
    storm_tasks: int = 20_000
    starts: int = 7


QUICK = Sizes(2, 30_000, 9_000, 3_000, 9_000, 10_000, 2, 500, 1)


# Bare SimPy ------------------------------------------------------------------------------------------------------


def simpy_figures(sizes: Sizes) -> Iterator[Row]:
    """Bare SimPy, and how its rate falls as the heap grows."""
    heaps = (1_000, 10_000, 100_000)
    steps = {str(heap): partial(bare_callbacks, sizes.callbacks, heap) for heap in heaps}
    spent = in_turns(sizes.repetitions, **steps)
    for heap in heaps:
        rate = per_second(sizes.callbacks, spent[str(heap)])
        slower = median_ratio(spent[str(heap)], spent["1000"])
        beside = "" if heap == 1_000 else f", {slower:.2f} × the time at 1,000"
        yield Row(f"bare SimPy, {heap:,} pending", f"{rate:,.0f} callbacks/s{beside}")


# One fleet, one queue --------------------------------------------------------------------------------------------


def fleet(tasks: int, gpus: int, policy: str = "fcfs", load: float = 0.8, seed: int = SEED) -> Any:
    """The input of a run: single-GPU tasks, Poisson arrivals, exponential times of mean 1 s, nodes of 8 GPUs."""
    from hetsim.model.cluster import Cluster, NodeSpec
    from hetsim.model.device_type import WHOLE, DeviceType
    from hetsim.model.mode import Mode, Shape
    from hetsim.model.record import RunInput
    from hetsim.model.tasks import Tasks
    from hetsim.scenario.schema.policy import PolicySpec

    kind = DeviceType("gpu")
    nodes = [NodeSpec(cpus=32, accelerators=((kind, 8),), count=gpus // 8)]
    if gpus % 8:
        nodes.append(NodeSpec(cpus=32, accelerators=((kind, gpus % 8),)))
    draw = np.random.default_rng(seed)
    times = draw.exponential(1.0, (tasks, 1))
    columns = Tasks(
        arrival=np.cumsum(draw.exponential(1 / (load * gpus), tasks)),
        shape=np.zeros(tasks, dtype=np.int32),
        shapes=[Shape([Mode("gpu", kind, gpus=1, share=WHOLE)])],
        time=times,
        estimate=times,
    )
    return RunInput("fleet", Cluster(nodes), columns, PolicySpec("scheduler", policy).make(), policy=policy)


class FleetRun:
    """One run from arrays to a Result with its table of tasks, and where the time went."""

    def __init__(self, tasks: int, gpus: int, **more: Any):
        from hetsim.engine.simulation import Simulation
        from hetsim.results.one_run.result import Result

        run = fleet(tasks, gpus, **more)
        gc.collect()
        began = time.process_time()
        record = Simulation(run).run()
        ran = time.process_time()
        self.result = Result(record)
        assert len(self.result.tasks) == tasks
        ended = time.process_time()
        self.engine_seconds = ran - began
        self.table_seconds = ended - ran
        self.seconds = ended - began


def fleet_seconds(tasks: int, gpus: int) -> float:
    return FleetRun(tasks, gpus).seconds


def throughput_figures(sizes: Sizes) -> Iterator[Row]:
    """The first figure: a million tasks on 1,000 GPUs, beside bare SimPy."""
    runs: list[FleetRun] = []

    def whole() -> float:
        # Only the split is kept of a run: a million rows would burden the repetitions that follow.
        run = FleetRun(sizes.tasks, 1_000)
        del run.result
        runs.append(run)
        return run.seconds

    spent = in_turns(sizes.repetitions, bare=partial(bare_callbacks, sizes.callbacks), fleet=whole)
    rate = per_second(sizes.tasks, spent["fleet"])
    per_event = median_ratio(spent["bare"], spent["fleet"]) * sizes.tasks / sizes.callbacks
    bare = per_second(sizes.callbacks, spent["bare"])
    yield Row("bare SimPy beside it", f"{bare:,.0f} callbacks/s")
    yield Row(f"{sizes.tasks:,} tasks, 1,000 GPUs, fcfs", f"{rate:,.0f} tasks/s", "≥ 150,000 at 1.5 M callbacks/s")
    yield Row("  tasks per bare event", f"{per_event:.3f}", "≥ 0.10", per_event >= 0.10)
    for part in ("engine", "table"):
        share = statistics.median(getattr(run, f"{part}_seconds") / run.seconds for run in runs)
        took = statistics.median(getattr(run, f"{part}_seconds") for run in runs)
        yield Row(f"  {part}", f"{took:.2f} s, {share:.0%}, {took / sizes.tasks * 1e6:.2f} µs a task")


def growth_figures(sizes: Sizes) -> Iterator[Row]:
    """Time per task at the large size against the small one."""
    spent = in_turns(
        sizes.repetitions,
        fewer=partial(fleet_seconds, sizes.fewer_tasks, 1_000),
        more=partial(fleet_seconds, sizes.tasks, 1_000),
    )
    ratio = median_ratio(spent["more"], spent["fewer"]) * sizes.fewer_tasks / sizes.tasks
    yield Row(f"time a task, {sizes.tasks:,} / {sizes.fewer_tasks:,} tasks", f"{ratio:.2f} ×", "≤ 1.2 ×", ratio <= 1.2)


def width_figures(sizes: Sizes) -> Iterator[Row]:
    """Time per task with many GPUs against few, beside bare SimPy with as many events in its heap."""
    spent = in_turns(
        sizes.repetitions,
        few=partial(fleet_seconds, sizes.wide_tasks, 100),
        bare_few=partial(bare_callbacks, sizes.wide_tasks, 80),
        many=partial(fleet_seconds, sizes.wide_tasks, 10_000),
        bare_many=partial(bare_callbacks, sizes.wide_tasks, 8_000),
    )
    ratio = median_ratio(spent["many"], spent["few"])
    bare = median_ratio(spent["bare_many"], spent["bare_few"])
    yield Row("time a task, 10,000 / 100 GPUs", f"{ratio:.2f} ×", "≤ 1.6 ×", ratio <= 1.6)
    yield Row("  bare SimPy, 8,000 / 80 pending", f"{bare:.2f} ×")


def peak(tasks: int) -> None:
    """Print the peak memory (MB) of a process that makes one run: called in a fresh one."""
    run = FleetRun(tasks, 1_000)
    assert len(run.result.tasks) == tasks
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss, which on Linux a child inherits from the process that started it.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        print(int(line.split()[1]) * 1024 / 1e6)
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def memory_figures(sizes: Sizes) -> Iterator[Row]:
    """Peak memory of a fresh process, and of one that only imports."""
    whole = float(python(f"from benchmarks.engine import peak; peak({sizes.tasks})"))
    bare = float(python("from benchmarks.engine import peak; peak(1)"))
    text = f"{whole:,.0f} MB, of which {bare:,.0f} MB are the libraries"
    yield Row(f"peak memory, {sizes.tasks:,} tasks", text, "≤ 700 MB", whole <= 700)


# M/M/16 beside others ---------------------------------------------------------------------------------------------

RATE, SERVERS, WARMUP_SHARE, BATCHES = 13.7, 16, 0.1, 30


def waits_of_hetsim(customers: int, seed: int) -> np.ndarray:
    """M/M/16 as a scenario, from the mapping to the column of the result."""
    import hetsim as hs

    scenario = {
        "name": "mm16",
        "cluster": {"nodes": [{"count": 2, "gpus": {"type": "gpu", "count": 8}}]},
        "workload": [
            {
                "arrivals": {"process": "poisson", "rate": f"{RATE}/s"},
                "count": customers,
                "gpu_time": {"distribution": "exponential", "mean": "1 s"},
            }
        ],
        "policy": "fcfs",
    }
    result: Any = hs.run(scenario, seed=seed)
    return result.tasks["wait"].to_numpy()


def waits_of_ciw(customers: int, seed: int) -> np.ndarray:
    """M/M/16 in Ciw, as its documentation writes it."""
    import ciw

    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate=RATE)],
        service_distributions=[ciw.dists.Exponential(rate=1.0)],
        number_of_servers=[SERVERS],
    )
    ciw.seed(seed)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(customers, method="Finish")
    records = sorted((record.arrival_date, record.waiting_time) for record in simulation.get_all_records())
    return np.array([wait for _, wait in records])


def waits_of_simpy(customers: int, seed: int) -> np.ndarray:
    """M/M/16 in SimPy, as its documentation writes it: a process a customer and a Resource."""
    draw = random.Random(seed).expovariate
    waits = [0.0] * customers
    environment = simpy.Environment()
    servers = simpy.Resource(environment, SERVERS)

    def customer(number: int) -> Generator[Any, Any, None]:
        arrived = environment.now
        with servers.request() as turn:
            yield turn
            waits[number] = environment.now - arrived
            yield environment.timeout(draw(1.0))

    def source() -> Generator[Any, Any, None]:
        for number in range(customers):
            yield environment.timeout(draw(RATE))
            environment.process(customer(number))

    environment.process(source())
    environment.run()
    return np.array(waits)


def batch_means(waits: np.ndarray) -> list[float]:
    """Means of consecutive batches after the warm-up: nearly independent where batches are long."""
    kept = waits[int(len(waits) * WARMUP_SHARE) :]
    return [float(batch.mean()) for batch in np.array_split(kept, BATCHES)]


def erlang_c_wait() -> float:
    """The exact mean wait: C(c, a) / (c - a)."""
    blocked = 1.0
    for server in range(1, SERVERS + 1):
        blocked = RATE * blocked / (server + RATE * blocked)
    return blocked / (1 - RATE / SERVERS * (1 - blocked)) / (SERVERS - RATE)


def peer_figures(sizes: Sizes) -> Iterator[Row]:
    """Customers per second of three simulators of M/M/16, and whether they agree."""
    from scipy import stats

    makers = {"hetsim": waits_of_hetsim, "SimPy": waits_of_simpy, "Ciw": waits_of_ciw}
    means: dict[str, list[float]] = {name: [] for name in makers}

    def timed(name: str) -> float:
        repetition = len(means[name]) // BATCHES
        began = time.process_time()
        waits = makers[name](sizes.customers, SEED + repetition)
        spent = time.process_time() - began
        means[name] += batch_means(waits)
        return spent

    makers["hetsim"](1_000, 0)  # imports are not what is compared
    gc.collect()
    spent = in_turns(sizes.peer_repetitions, **{name: partial(timed, name) for name in makers})
    for name in makers:
        rate = per_second(sizes.customers, spent[name])
        if name == "hetsim":
            yield Row(f"M/M/16, {sizes.customers:,} customers: hetsim", f"{rate:,.0f} customers/s")
        else:
            ratio = median_ratio(spent[name], spent["hetsim"])
            text = f"{rate:,.0f} customers/s; hetsim is {ratio:.1f} × as fast"
            yield Row(f"  {name} {'process + Resource' if name == 'SimPy' else ''}".rstrip(), text, "≥ 3 ×", ratio >= 3)
    intervals = {}
    for name, values in means.items():
        half = stats.t.ppf(0.995, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        intervals[name] = (statistics.fmean(values), half)
        text = f"{intervals[name][0]:.4f} ± {half:.4f} s (99 %)"
        yield Row(f"  mean wait, {name}", text, f"exact {erlang_c_wait():.4f} s")
    agree = all(
        abs(a - b) <= math.hypot(half_a, half_b) for (a, half_a), (b, half_b) in combinations(intervals.values(), 2)
    )
    yield Row("  the three agree within their intervals", "yes" if agree else "no", "yes", agree)


# Command line ----------------------------------------------------------------------------------------------------

SCENARIO = """
name: thousand-tasks
cluster: {nodes: [{count: 4, cpus: 32, gpus: {type: v100, count: 4}}]}
workload:
  - arrivals: {process: poisson, rate: 40/h}
    count: 1000
    gpu_time: {distribution: lognormal, mean: 15 min, cv: 2}
    cpu_time: {speedup: 24}
policy: sjf
"""


HETSIM = "from hetsim.cli import main; main()"
"""What the installed command `hetsim` does."""


def cli_figures(sizes: Sizes) -> Iterator[Row]:
    """Wall time of whole processes."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "thousand.yaml"
        file.write_text(SCENARIO)
        python(HETSIM, "run", str(file), "-q")  # byte code is compiled once
        spent = in_turns(
            sizes.starts,
            bare=lambda: wall(lambda: python("pass")),
            help=lambda: wall(lambda: python(HETSIM, "--help")),
            run=lambda: wall(lambda: python(HETSIM, "run", str(file), "-q")),
        )
    helping, running = statistics.median(spent["help"]), statistics.median(spent["run"])
    yield Row("python -c pass", f"{statistics.median(spent['bare']) * 1e3:.0f} ms")
    yield Row("hetsim --help", f"{helping * 1e3:.0f} ms", "< 150 ms", helping < 0.15)
    yield Row("hetsim run, 1,000 tasks", f"{running:.2f} s", "< 2 s", running < 2)


# Preemption ------------------------------------------------------------------------------------------------------


def storm_figures(sizes: Sizes) -> Iterator[Row]:
    """srtf at 1.5 times what 64 GPUs can do: most arrivals stop a task, whose finish event becomes stale."""
    stops: list[float] = []

    def storm() -> float:
        run = FleetRun(sizes.storm_tasks, 64, policy="srtf", load=1.5)
        stops.append(run.result.metric("preemptions"))
        return run.seconds

    calm = partial(fleet_seconds, sizes.storm_tasks, 64)
    spent = in_turns(sizes.repetitions, storm=storm, calm=calm)
    rate = per_second(sizes.storm_tasks, spent["storm"])
    each = statistics.median(spent["storm"]) / (sizes.storm_tasks + stops[0])
    yield Row(f"srtf, overloaded, {sizes.storm_tasks:,} tasks", f"{rate:,.0f} tasks/s, {stops[0]:,.0f} preemptions")
    yield Row("  time a launch", f"{each * 1e6:.1f} µs")
    yield Row("  time a task / that of fcfs at load 0.8", f"{median_ratio(spent['storm'], spent['calm']):.1f} ×")
    yield from retiming_figures(sizes)


def retiming_figures(sizes: Sizes) -> Iterator[Row]:
    """The clock alone: 1,000 pending events are put off again and again, so that nearly every entry goes stale."""
    from hetsim.engine.kernel.clock import FINISH, Clock, Timer

    thrown_out: list[int] = []
    compact = Clock._compact

    def counted(clock: Clock) -> None:
        thrown_out.append(len(clock._heap))
        compact(clock)

    def retime() -> float:
        clock = Clock()
        timers = [Timer() for _ in range(1_000)]
        for number, timer in enumerate(timers):
            clock.at(1.0 + number, FINISH, timer)
        began = time.process_time()
        for number in range(sizes.callbacks):
            clock.again(2.0 + number, FINISH, timers[number % 1_000])
        return time.process_time() - began

    with patch.object(Clock, "_compact", counted):
        spent = in_turns(sizes.repetitions, bare=partial(bare_callbacks, sizes.callbacks), retime=retime)
    rate = per_second(sizes.callbacks, spent["retime"])
    ratio = median_ratio(spent["bare"], spent["retime"])
    yield Row("1,000 events put off again and again", f"{rate:,.0f}/s, {ratio:.1f} per bare event")
    text = f"{len(thrown_out) // sizes.repetitions} times a run; longest heap {max(thrown_out):,} entries"
    yield Row("  stale entries thrown out", text)


# The table -------------------------------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "simpy": simpy_figures,
    "throughput": throughput_figures,
    "growth": growth_figures,
    "width": width_figures,
    "memory": memory_figures,
    "peers": peer_figures,
    "cli": cli_figures,
    "storm": storm_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("engine", __doc__, FIGURES)
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    figures = {name: partial(figure, sizes) for name, figure in FIGURES.items()}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
