"""The figures that the compiled engine has to reach: `python -m benchmarks.compiled [--quick]`.

Run it with the compiled package on PYTHONPATH, and once more with the source for the row of batches, whose target is a
ratio of the two.  Other ratios are medians over turns inside one process.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks import cluster, engine, features, forks
from benchmarks.measure import SEED, Row, bare_callbacks, chosen, in_turns, median_ratio, parser_of, print_table

CALLBACKS = 100_000


def _seconds(make: Callable[[], Any]) -> float:
    """Return the processor time of one run with its table of tasks; making its input does not count."""
    from hetsim.engine.simulation import Simulation
    from hetsim.results.one_run.result import Result

    run = make()
    gc.collect()
    began = time.process_time()
    assert len(Result(Simulation(run).run()).tasks) == len(run.tasks)
    return time.process_time() - began


def task_figures(count: int, turns: int) -> Iterator[Row]:
    """Plain tasks per bare event, and the bare events of a task under other schedulers and behind a switch."""
    plain = {1_000: 0.22, 16: 0.27}
    jobs = count // 4
    others: dict[str, tuple[Callable[[], float], int, float]] = {
        "easy_backfill": (partial(cluster.seconds, jobs, "easy_backfill", 64, 0.95), jobs, 11),
        "srtf": (partial(cluster.seconds, jobs, "srtf", 64, 0.95), jobs, 22),
        "switch of four, one stream": (
            partial(_seconds, partial(features.tasks_run, jobs, transfers=True, switch=4)), jobs, 9),
    }  # fmt: skip
    steps = {str(gpus): partial(_seconds, partial(engine.fleet, count, gpus)) for gpus in plain}
    steps |= {name: run for name, (run, _, _) in others.items()}
    spent = in_turns(turns, bare=partial(bare_callbacks, CALLBACKS), **steps)
    for gpus, bar in plain.items():
        rate = median_ratio(spent["bare"], spent[str(gpus)]) * count / CALLBACKS
        yield Row(f"{count:,} plain tasks, {gpus:,} GPUs: tasks per bare event", f"{rate:.3f}", f"≥ {bar}", rate >= bar)
    for name, (_, tasks, bar) in others.items():
        events = median_ratio(spent[name], spent["bare"]) * CALLBACKS / tasks
        yield Row(f"{tasks:,} tasks, {name}: bare events a task", f"{events:.1f}", f"≤ {bar}", events <= bar)


def peer_figures(count: int, turns: int) -> Iterator[Row]:
    """M/M/16 as in `benchmarks.engine`, beside SimPy's Resource and Ciw."""
    makers = {"hetsim": engine.waits_of_hetsim, "SimPy's Resource": engine.waits_of_simpy, "Ciw": engine.waits_of_ciw}

    def timed(make: Callable[[int, int], Any]) -> float:
        gc.collect()
        began = time.process_time()
        make(count, SEED)
        return time.process_time() - began

    makers["hetsim"](1_000, 0)
    spent = in_turns(turns, **{name: partial(timed, make) for name, make in makers.items()})
    for name, bar in (("SimPy's Resource", 2.5), ("Ciw", 6.0)):
        ratio = median_ratio(spent[name], spent["hetsim"])
        yield Row(f"M/M/16, {count:,} customers: {name}", f"{ratio:.1f} × its time", f"≥ {bar} ×", ratio >= bar)


def batch_figures(count: int, turns: int) -> Iterator[Row]:
    """One service on four GPUs with batches of about sixteen."""
    spent = in_turns(turns, batches=partial(_seconds, partial(features.service_run, count)))["batches"]
    yield Row(f"{count:,} requests in batches", f"{sorted(spent)[len(spent) // 2]:.3f} s", "≤ interpreted / 1.4")


def fork_figures(count: int, turns: int) -> Iterator[Row]:
    """A fork of 1,000 running and 1,000 waiting tasks."""
    simulation = forks.in_flight(1_000, 2_000)
    spent = in_turns(turns, fork=partial(forks.seconds, simulation.fork))["fork"]
    took = 1000 * sorted(spent)[len(spent) // 2]
    yield Row("fork, 1,000 running and 1,000 waiting", f"{took:.1f} ms", "≤ 5 ms", took <= 5)


FIGURES = {"tasks": task_figures, "peers": peer_figures, "batches": batch_figures, "forks": fork_figures}


def main() -> None:
    parser = parser_of("compiled", __doc__, FIGURES)
    options = parser.parse_args()
    count, turns = (2_000, 2) if options.quick else (60_000, 5)
    names = chosen(parser, FIGURES, options.only)
    print_table({name: partial(FIGURES[name], count, turns) for name in FIGURES}, names, options.quick)


if __name__ == "__main__":
    main()
