"""What a sweep costs besides its runs, and what a second worker gains: `python -m benchmarks.sweep [--quick]`.

Overhead is processor time, so that a busy machine does not spoil it: a sweep of runs that are almost nothing, less the
same runs made one by one.  Two workers are set against one in two ways.  By wall clock it takes two free cores; the row
says how many the workers had.  By processor time it is what one process needs, over half of what all processes of a
sweep with two workers need, their start included: what two free cores would give.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine import Row, show
from sim.experiment.jobs import Case, outcome_of
from sim.experiment.sweep import sweep
from sim.scenario.scenario import load


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
            outcome_of(Case("", base, seed), 0, False, [], False)
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
    tasks = 2_000
    base = load(scenario(tasks))
    outcome_of(Case("", base, 0), 0, False, [], False)
    began = time.process_time()
    outcome_of(Case("", base, 1), 0, False, [], False)
    base = load(scenario(round(tasks * seconds / (time.process_time() - began))))
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


def processor() -> float:
    """Seconds of this process and of those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast it is")
    parser.add_argument("--only", choices=["overhead", "scaling"], help="one of the figures")
    given = parser.parse_args(arguments)
    if given.only != "scaling":
        for row in overhead(20 if given.quick else 200):
            show(row)
    if given.only != "overhead":
        for row in scaling(*((6, 0.05) if given.quick else (200, 0.5))):
            show(row)


if __name__ == "__main__":
    main()
