"""What each feature costs a task or a request, against the plain case: `python -m benchmarks.features [--quick]`.

All cases run in turns inside one process; medians of the ratios inside each turn are shown.  Tasks: 64 GPUs at load
0.8 under fcfs.  Requests: one service on four GPUs with batches of about sixteen.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

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
)

GPUS, LOAD = 64, 0.8
MB = 10**6


def tasks_run(count: int, *, transfers: bool = False, streams: int = 1, sharing: str = "exclusive",
              duplex: str = "full", switch: int | None = None, one_byte: bool = False) -> Any:  # fmt: skip
    """Single-GPU tasks on nodes of 8, Poisson arrivals, exponential times of mean 1 s, transfers of some 0.1 s."""
    from hetsim.model.cluster import Cluster, NodeSpec
    from hetsim.model.device_type import WHOLE, DeviceType, Link, Sharing
    from hetsim.model.mode import Mode, Shape
    from hetsim.model.record import RunInput
    from hetsim.model.tasks import Tasks
    from hetsim.scenario.schema.policy import PolicySpec

    link = Link(1000 * MB, 1000 * MB, 1e-5, duplex) if transfers else Link()
    kind = DeviceType("gpu", streams=streams, link=link, sharing=Sharing(sharing))
    up = Link(2000 * MB, 2000 * MB) if switch else Link()
    node = NodeSpec(cpus=32, accelerators=((kind, 8),), count=GPUS // 8, switch_size=switch, switch=up)
    draw = np.random.default_rng(SEED)
    times = draw.exponential(1.0, (count, 1))
    columns: dict[str, Any] = {}
    if transfers:
        size = 1.0 if one_byte else 100 * MB
        columns = {"bytes_in": np.full(count, size), "bytes_out": np.full(count, size)}
    tasks = Tasks(
        arrival=np.cumsum(draw.exponential(1 / (LOAD * GPUS), count)), shape=np.zeros(count, dtype=np.int32),
        shapes=[Shape([Mode("gpu", kind, gpus=1, share=WHOLE)])], time=times, estimate=times, **columns,
    )  # fmt: skip
    return RunInput("tasks", Cluster([node]), tasks, PolicySpec("scheduler", "fcfs").make(), policy="fcfs")


TASKS: dict[str, tuple[dict[str, Any], str, float]] = {
    "plain": ({}, "", 0),
    "bytes_in: 1 B": ({"transfers": True, "one_byte": True}, "≥ 0.6", 0.6),
    "transfers, one stream": ({"transfers": True}, "≥ 0.6", 0.6),
    "transfers, two streams": ({"transfers": True, "streams": 2}, "≥ 0.6", 0.6),
    "half duplex, two streams": ({"transfers": True, "streams": 2, "duplex": "half"}, "≥ 0.25", 0.25),
    "switch of four, one stream": ({"transfers": True, "switch": 4}, "≥ 0.25", 0.25),
    "switch of four, two streams": ({"transfers": True, "switch": 4, "streams": 2}, "≥ 0.25", 0.25),
    "time slices": ({"streams": 2, "sharing": "timeslice"}, "≥ 0.3", 0.3),
    "MPS": ({"sharing": "mps"}, "≥ 0.3", 0.3),
}

COSTS = {
    "upload": {"per_item": "0.114 ms", "fixed": "0.15 ms"},
    "compute": {"per_item": "1.264 ms", "fixed": "13 ms"},
    "download": {"fixed": "0.05 ms"},
}


def service_run(count: int, *, streams: int = 2, duplex: str = "full", entry: Any = None, more: Any = None,
                policy: Any = None) -> Any:  # fmt: skip
    """Requests of one service on four GPUs under serial greedy batching."""
    from hetsim.scenario.scenario import load

    described = {
        "name": "web", "arrivals": {"process": "poisson", "rate": "1900/s"}, "count": count, "service": COSTS,
        **(entry or {}),
    }  # fmt: skip
    node = {"gpus": {"type": "g", "count": 4, "streams": streams}, "pcie": {"upload": "5 GB/s", "duplex": duplex}}
    return load({"name": "s", "cluster": {"nodes": [node]}, "workload": [described], "policy": policy or {},
                 **(more or {})}).build(SEED)  # fmt: skip


never = {"faults": [{"on": "gpu", "every": {"distribution": "exponential", "mean": "1e9 s"}, "repair": "1 s"}]}
SERVICES: dict[str, dict[str, Any]] = {
    "batches": {},
    "admission: accept_all": {"policy": {"admission": "accept_all"}},
    "patience": {"entry": {"patience": "1000 s"}},
    "a fault that never comes": {"more": never},
    "half duplex": {"duplex": "half"},
}


def seconds(make: Callable[[], Any]) -> float:
    """Processor time of one run, its tables included."""
    from hetsim.engine.simulation import Simulation
    from hetsim.results.one_run.result import Result

    run = make()
    gc.collect()
    began = time.process_time()
    result = Result(Simulation(run).run())
    assert len(result.tasks) == len(run.tasks)
    return time.process_time() - began


def task_figures(count: int, repetitions: int) -> Iterator[Row]:
    """Tasks with transfers, streams and sharing."""
    steps = {name: partial(seconds, partial(tasks_run, count, **case)) for name, (case, _, _) in TASKS.items()}
    spent = in_turns(repetitions, bare=partial(bare_callbacks, 300_000), **steps)
    for name, (_, target, least) in TASKS.items():
        rate = per_second(count, spent[name])
        per_event = median_ratio(spent["bare"], spent[name]) * count / 300_000
        part = median_ratio(spent["plain"], spent[name])
        text = f"{rate:,.0f} tasks/s, {per_event:.3f} a bare event, {part:.2f} of the plain rate"
        yield Row(name, text, target, part >= least if least else None)


def service_figures(count: int, repetitions: int) -> Iterator[Row]:
    """A service with what used to send its batches another way."""
    steps = {name: partial(seconds, partial(service_run, count, **case)) for name, case in SERVICES.items()}
    spent = in_turns(repetitions, **steps)
    for name in SERVICES:
        ratio = median_ratio(spent[name], spent["batches"])
        text = f"{per_second(count, spent[name]):,.0f} requests/s, {ratio:.2f} × the time"
        yield Row(name, text, "" if name == "batches" else "≤ 2 ×", None if name == "batches" else ratio <= 2)


FIGURES = {"tasks": task_figures, "services": service_figures}


def main() -> None:
    parser = parser_of("features", __doc__, FIGURES)
    options = parser.parse_args()
    count, repetitions = (6_000, 2) if options.quick else (60_000, 5)
    names = chosen(parser, FIGURES, options.only)
    print_table({name: partial(FIGURES[name], count, repetitions) for name in FIGURES}, names, options.quick)


if __name__ == "__main__":
    main()
