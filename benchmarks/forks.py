"""How long a fork of a run in mid-flight takes: `python -m benchmarks.forks [--quick]`.

One GPU for each running task, and as many tasks that wait; `fork` copies the run, `view.fork` makes of the
copy what its policy knows, and tells another scheduler of what waits.  What counts is the ratio to callbacks of bare
SimPy in the same process.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import SEED, Row, bare_callbacks, chosen, in_turns, median_ratio, parser_of, print_table

CALLBACKS = 100_000
MB = 10**6


def in_flight(gpus: int, tasks: int, streams: int = 1, transfers: bool = False) -> Any:
    """A run under fcfs at 2 s, when all tasks have come and none has ended."""
    from hetsim.engine.simulation import Simulation
    from hetsim.model.cluster import Cluster, NodeSpec
    from hetsim.model.device_type import WHOLE, DeviceType, Link
    from hetsim.model.mode import Mode, Shape
    from hetsim.model.record import RunInput
    from hetsim.model.tasks import Tasks
    from hetsim.scenario.schema.policy import PolicySpec

    link = Link(1000 * MB, 1000 * MB, 1e-5) if transfers else Link()
    kind = DeviceType("gpu", streams=streams, link=link)
    draw = np.random.default_rng(SEED)
    times = 10 + draw.exponential(1.0, (tasks, 1))
    sizes: dict[str, Any] = {"bytes_in": np.full(tasks, 100 * MB)} if transfers else {}
    load = Tasks(
        arrival=np.sort(draw.random(tasks)), shape=np.zeros(tasks, dtype=np.int32),
        shapes=[Shape([Mode("gpu", kind, gpus=1, share=WHOLE)])], time=times, estimate=1.1 * times, **sizes,
    )  # fmt: skip
    cluster = Cluster([NodeSpec(cpus=32, accelerators=((kind, 8),), count=gpus // 8)])
    run = Simulation(RunInput("forks", cluster, load, PolicySpec("scheduler", "fcfs").make(), policy="fcfs"))
    while run.state.clock._now < 2 and run.advance():
        for decision in run.input.scheduler.schedule(run.view):
            run.apply(decision)
    return run


def seconds(fork: Callable[[], Any]) -> float:
    """Processor time of one fork, without garbage collection, as in the engine's loop."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    copy = fork()
    spent = time.process_time() - began
    del copy
    gc.enable()
    return spent


def policy_fork(run: Any) -> Any:
    """A policy's fork, for another scheduler."""
    from hetsim.scenario.schema.policy import PolicySpec

    return run.view.fork(PolicySpec("scheduler", "fcfs").make())


def figures(running: int, repetitions: int) -> Iterator[Row]:
    """Forks of tasks that only compute, and of tasks with transfers on two streams."""
    from hetsim.build import BUILD

    waiting = running
    plain = in_flight(running, running + waiting)
    moving = in_flight(running // 2, running + waiting, 2, True)
    cases = {
        "fork": plain.fork, "view.fork": partial(policy_fork, plain),
        "fork, with transfers": moving.fork, "view.fork, with transfers": partial(policy_fork, moving),
    }  # fmt: skip
    steps = {name: partial(seconds, fork) for name, fork in cases.items()}
    spent = in_turns(repetitions, bare=partial(bare_callbacks, CALLBACKS), **steps)
    goals = {"fork": 5 if BUILD == "compiled" else 10, "view.fork": 10}
    for name in cases:
        events = CALLBACKS / median_ratio(spent["bare"], spent[name])
        took = sorted(spent[name])[len(spent[name]) // 2]
        text = f"{1000 * took:.1f} ms, {events:,.0f} bare events ({running:,} running, {waiting:,} waiting)"
        goal = goals.get(name)
        yield Row(name, text, "" if goal is None else f"≤ {goal} ms", None if goal is None else 1000 * took <= goal)


FIGURES = {"forks": figures}


def main() -> None:
    parser = parser_of("forks", __doc__, FIGURES)
    options = parser.parse_args()
    running, repetitions = (80, 2) if options.quick else (1000, 9)
    names = chosen(parser, FIGURES, options.only)
    print_table({name: partial(FIGURES[name], running, repetitions) for name in FIGURES}, names, options.quick)


if __name__ == "__main__":
    main()
