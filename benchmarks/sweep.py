"""What a sweep costs besides its runs, and what a second worker gains: `python -m benchmarks.sweep [--quick]`.

Overhead is processor time, so that a busy machine does not spoil it: a sweep of runs that are almost nothing, less the
same runs made one by one.  Two workers are set against one in two ways.  By wall clock it takes two free cores; the row
says how many the workers had.  By processor time it is what one process needs, over half of what all processes of a
sweep with two workers need, their start included: what two free cores would give.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, chosen, parser_of, print_table
from sim.experiment.sweep import sweep
from sim.experiment.work import Job, Setup, outcome_of
from sim.scenario.scenario import Scenario, load


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
            outcome_of(Setup((base,)), base, Job(0, {}, seed, 0))
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
            outcome_of(Setup((base,)), base, Job(0, {}, seed, 0))
            return time.process_time() - began

        tasks = round(tasks * seconds / statistics.median(once(seed) for seed in range(3)))
    return tasks


def processor() -> float:
    """Seconds of this process and of those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


FIGURES: dict[str, Callable[[bool], Iterator[Row]]] = {
    "overhead": lambda quick: overhead(20 if quick else 200),
    "scaling": lambda quick: scaling(*((6, 0.05) if quick else (200, 0.5))),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("sweep", __doc__, FIGURES)
    options = parser.parse_args(arguments)
    figures = {name: partial(figure, options.quick) for name, figure in FIGURES.items()}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
