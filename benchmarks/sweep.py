"""What a sweep costs besides its runs, and what a second worker gains: `python -m benchmarks.sweep [--quick]`.

Overhead is processor time, so that a busy machine does not spoil it: a sweep of runs that are almost nothing, less the
same runs made one by one.  Two workers are set against one in two ways.  By wall clock it takes two free cores; the row
says how many the workers had.  By processor time it is what one process needs, over half of what all processes of a
sweep with two workers need, their start included: what two free cores would give.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, chosen, parser_of, print_table
from hetsim.experiment import work
from hetsim.experiment.sweep import SweepPlan, plan_sweep, sweep, sweep_plan
from hetsim.experiment.work import RunJob, RunOutcome, Setup, needed_for, outcome_of
from hetsim.results.stored_files import digest_of
from hetsim.scenario.scenario import Scenario, load


def scenario(tasks: int) -> dict[str, Any]:
    """Eight GPUs, fcfs, Poisson arrivals at load 0.8."""
    return {
        "name": "sweep",
        "cluster": {"nodes": [{"cpus": 8, "gpus": {"type": "g", "count": 8}}]},
        "workload": [
            {
                "name": "a",
                "arrivals": {"process": "poisson", "rate": "0.64/s"},
                "count": tasks,
                "gpu_time": {"distribution": "exponential", "mean": "10 s"},
            }
        ],
        "policy": "fcfs",
    }


def overhead(points: int) -> Iterator[Row]:
    """Milliseconds of processor time a point: checking, hashing, sending, keeping, and the tables."""
    seeds = list(range(points))
    base = load(scenario(10))

    def alone() -> float:
        began = time.process_time()
        for seed in seeds:
            outcome_of(Setup((base,)), base, RunJob(0, {}, seed, 0))
        return time.process_time() - began

    def swept(workers: int = 1) -> float:
        """Of this process, without its workers."""
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            sweep(base, {"seed": seeds}, out=Path(folder) / "s", workers=workers)
            return time.process_time() - began

    alone()
    swept()  # imports
    here = statistics.median(1e3 * (swept() - alone()) / points for _ in range(3))
    yield Row("overhead a point, one worker, kept on disk", f"{here:.1f} ms", "< 10 ms", here < 10)
    parent = statistics.median(1e3 * swept(workers=2) / points for _ in range(3))
    yield Row("the same of the process that has two workers", f"{parent:.1f} ms", "< 10 ms", parent < 10)


def memory(points: int) -> Iterator[Row]:
    """Of this process for each point of a sweep kept on disk: planned, and finished with its rows in the tables."""
    yield from _alone(_memory, points)


def many(points: int) -> Iterator[Row]:
    """A sweep of so many points that is only planned: time grows in proportion, and no object is held for a point."""
    yield from _alone(_many, points)


def _alone(function: Callable[..., list[Row]], *given: int) -> list[Row]:
    """In a fresh process, whose memory has no gaps from before."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def _memory(points: int) -> list[Row]:
    base = load(scenario(10))
    with tempfile.TemporaryDirectory() as folder:
        sweep(base, {"seed": range(10)}, out=Path(folder) / "first")  # imports
        before, began = resident(), time.process_time()
        plan = plan_sweep(base, {"seed": range(points)}, workers=2)
        planned = resident() - before
        sweep_plan(plan, out=Path(folder) / "s")
        each = 1e3 * (time.process_time() - began) / points
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return [
        Row(f"a planned point of {points:,}", f"{planned / points / 1e3:.2f} kB", "< 1 kB", planned / points < 1e3),
        Row("a finished point, at the highest", f"{peak / points / 1e3:.1f} kB", "< 12 kB", peak / points < 12e3),
        Row("processor time of the process that has two workers, a point", f"{each:.1f} ms", "< 10 ms", each < 10),
    ]


def _many(points: int) -> list[Row]:
    base, found = load(scenario(10)), []
    for count in (points // 4, points):
        objects, began = len(gc.get_objects()), time.process_time()
        plan = plan_sweep(base, {"seed": range(count)})
        spent = time.process_time() - began
        gc.collect()
        found.append((spent / count, len(gc.get_objects()) - objects))
        del plan
    (few, _), (each, held) = found
    return [
        Row(f"objects held for {points:,} planned points", f"{max(held, 0):,}", "< 1 for 10", held < points / 10),
        Row("time to plan one, of a quarter as many", f"{each / few:.2f} ×", "< 1.2 ×", each / few < 1.2),
        Row("time to plan one", f"{1e3 * each:.2f} ms"),
    ]


KEPT = ("response_mean", "response_p95", "wait_mean", "makespan", "energy_j")
"""Figures of a stand-in run."""


def stand_in(setup: Setup, scenario: Scenario, job: RunJob, meter: Any = None) -> RunOutcome:
    """What a run gives, without a run: numbers that follow from its seed and replication."""
    names = needed_for(KEPT)
    values = {name: float(job.seed * 7919 % 10007 + at) for at, name in enumerate(sorted(names - {""}))}
    return RunOutcome({**values, "replication": float(job.replication)}, reduced=True)


def segments(points: int, kills: int) -> Iterator[Row]:
    """A sweep of so many runs that take no time: planned, stored, resumed, and killed at random moments."""
    yield from _alone(_segments, points, kills)


def _segments(points: int, kills: int) -> list[Row]:
    work.outcome_of = stand_in  # what a process that is forked from this one calls
    over = {"seed": range(points // 1000), "workload.a.arrivals.rate": [f"{one + 1}/s" for one in range(1000)]}
    base = load(scenario(10))
    plan_sweep(base, {"seed": range(10)}, keep=KEPT)
    began = time.process_time()
    plan = plan_sweep(base, over, keep=KEPT)
    planned = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        stored = _forked(plan, whole)
        resumed = _forked(plan, whole)
        chance, there = random.Random(points), 0
        blocks = len(list(whole.glob("runs/*")))
        for enough in sorted(chance.randrange(blocks) for _ in range(kills)):
            there += _forked(plan, killed, enough, chance.uniform(0, 0.5)).status == -signal.SIGKILL
        _forked(plan, killed)
        same = _digest_of(whole) == _digest_of(killed)
        tables = {"table.parquet", "replications.parquet", "tables.json"}
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file() and path.name not in tables)
    each, bound = size / points, 200 + 8 * len(needed_for(KEPT) - {""})
    peak = max(stored.memory, resumed.memory)
    large = points >= 1_000_000
    return [
        Row(f"{points:,} points planned", f"{planned:.0f} s", "<= 120 s", planned <= 120 if large else None),
        Row("the same stored", f"{stored.seconds:.0f} s"),
        Row("the same resumed, with its tables", f"{resumed.seconds:.0f} s", "<= 60 s",
            resumed.seconds <= 60 if large else None),
        Row("memory at the highest", f"{peak / 1e6:.0f} MB", "<= 1 GB", peak <= 1e9),
        Row("on the disk besides tables, a point", f"{each:.0f} bytes", f"<= {bound}", each <= bound),
        Row(f"killed {there} times and finished", "same bytes" if same else "other bytes", "same bytes", same),
    ]  # fmt: skip


@dataclass
class Ended:
    """How a process ended: its status, seconds of processor time, and bytes at the highest."""

    status: int
    seconds: float
    memory: float


def _forked(plan: SweepPlan, folder: Path, blocks: int | None = None, seconds: float = 0.0) -> Ended:
    """Make the runs of a plan in a process that is forked from this one, and killed some seconds after so many blocks
    are there."""
    child = get_context("fork").Process(target=_make, args=(plan, folder))
    child.start()
    pid = child.pid
    assert pid is not None
    if blocks is not None:
        while len(list(folder.glob("runs/*.runs"))) < blocks:
            time.sleep(0.005)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    spent = used.ru_utime + used.ru_stime
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, spent, used.ru_maxrss * 1024)


def _make(plan: SweepPlan, folder: Path) -> None:
    sweep_plan(plan, folder)


def _digest_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): digest_of(path) for path in folder.rglob("*") if path.is_file()}


def resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def scaling(points: int, seconds: float) -> Iterator[Row]:
    """One worker and two: the same sweep, of runs of about `seconds` of processor time each."""
    base = load(scenario(tasks_for(seconds)))
    seeds = list(range(points))

    def swept(workers: int) -> tuple[float, float]:
        """Wall clock, and processor time of all processes."""
        before, began = processor(), time.perf_counter()
        sweep(base, {"seed": seeds}, workers=workers)
        return time.perf_counter() - began, processor() - before

    one_wall, one = swept(1)
    two_wall, two = swept(2)
    ratio = one / (two / 2)
    what = f"{points} runs of {one / points:.2f} s, two workers over one"
    holds = ratio >= 1.8 if points >= 100 else None  # a few runs do not make up for the start
    yield Row(what, f"{ratio:.2f} × by processor time", ">= 1.8 ×", holds)
    had = f"{two / two_wall:.2f} cores, load {os.getloadavg()[0]:.0f}"
    free = holds is not None and two / two_wall > 1.8  # otherwise it says nothing
    ratio = one_wall / two_wall
    yield Row("the same by wall clock", f"{ratio:.2f} × (they had {had})", ">= 1.8 ×", ratio >= 1.8 if free else None)


def tasks_for(seconds: float) -> int:
    """How many tasks make a run of so many seconds here: from the second guess on, of runs that are as long."""
    tasks = 2_000
    for _ in range(4):
        base = load(scenario(tasks))

        def once(seed: int, base: Scenario = base) -> float:
            began = time.process_time()
            outcome_of(Setup((base,)), base, RunJob(0, {}, seed, 0))
            return time.process_time() - began

        tasks = round(tasks * seconds / statistics.median(once(seed) for seed in range(3)))
    return tasks


def processor() -> float:
    """Seconds of this process and of those it waited for."""
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


FIGURES: dict[str, Callable[[bool], Iterator[Row]]] = {
    "overhead": lambda quick: overhead(8 if quick else 200),
    "memory": lambda quick: memory(100 if quick else 20_000),
    "many": lambda quick: many(500 if quick else 200_000),
    "segments": lambda quick: segments(*((2_000, 3) if quick else (1_000_000, 30))),
    "scaling": lambda quick: scaling(*((4, 0.05) if quick else (200, 0.5))),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("sweep", __doc__, FIGURES)
    options = parser.parse_args(arguments)
    figures = {name: partial(figure, options.quick) for name, figure in FIGURES.items()}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
