"""How fast requests are served in batches: `python -m benchmarks.serving [--quick] [--only throughput,...]`.

What counts is a ratio inside one run (`benchmarks.measure`): requests per callback of bare SimPy.  A run goes from
arrays (arrivals and nothing else that differs between requests) to the table with a row for every request.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
    python,
)  # fmt: skip

UPLOAD, COMPUTE, DOWNLOAD = (0.15e-3, 0.1e-3), (6e-3, 0.5e-3), (0.05e-3, 0.0)
"""Seconds of a batch and of each of its requests."""

RATE = 1_020.0
"""Requests per second: serial_greedy then has batches of 16 on average."""


@dataclass(frozen=True)
class Sizes:
    """How much work the figures take."""

    repetitions: int = 5
    callbacks: int = 600_000
    requests: int = 1_000_000
    single_requests: int = 200_000
    many_requests: int = 10_000_000
    shared_requests: int = 100_000
    replicas: int = 1_000


QUICK = Sizes(2, 30_000, 10_000, 3_000, 30_000, 10_000, 16)


def served(requests: int, batching: str = "serial_greedy", streams: int = 1, admission: bool = False) -> Any:
    """The input of a run: one GPU, Poisson arrivals, stages linear in the batch size."""
    from hetsim.model.cluster import Cluster, NodeSpec
    from hetsim.model.demand import StageTime
    from hetsim.model.device_type import WHOLE, DeviceType
    from hetsim.model.mode import Mode, Shape
    from hetsim.model.record import RunInput
    from hetsim.model.service import Service
    from hetsim.model.tasks import Tasks
    from hetsim.scenario.schema.policy import PolicySpec
    from hetsim_policies.admission.limits import AcceptAll

    kind = DeviceType("gpu", streams=streams)
    mode = Mode(
        "gpu", kind, gpus=1, share=WHOLE, fixed=COMPUTE[0], upload=StageTime(*UPLOAD), download=StageTime(*DOWNLOAD),
        batch_limit=1 << 40,
    )  # fmt: skip
    shape = Shape([mode])
    times = np.broadcast_to(np.array([[COMPUTE[1]]]), (requests, 1))
    tasks = Tasks(
        arrival=np.cumsum(np.random.default_rng(SEED).exponential(1 / RATE, requests)),
        shape=np.zeros(requests, dtype=np.int32),
        shapes=[shape],
        time=times,
        estimate=times,
    )
    service = Service("requests", shape, np.arange(requests), (COMPUTE[1],))
    return RunInput(
        "serving",
        Cluster([NodeSpec(cpus=4, accelerators=((kind, 1),))]),
        tasks,
        PolicySpec("scheduler", "fcfs").make(),
        admission=AcceptAll() if admission else None,
        services=[service],
        batching=[PolicySpec("batching", batching).make()],
        policy=batching,
    )


class ServedRun:
    """One run from arrays to a Result with its table of requests."""

    def __init__(self, requests: int, **more: Any):
        from hetsim.engine.simulation import Simulation
        from hetsim.results.one_run.result import Result

        run = served(requests, **more)
        gc.collect()
        began = time.process_time()
        record = Simulation(run).run()
        ran = time.process_time()
        self.result = Result(record)
        assert len(self.result.tasks) == requests
        ended = time.process_time()
        assert record.launches is not None
        self.mean_batch = requests / len(record.launches["launch"])
        self.engine_seconds = ran - began
        self.table_seconds = ended - ran
        self.seconds = ended - began


def throughput_figures(sizes: Sizes) -> Iterator[Row]:
    """Requests of which none is an event, beside bare SimPy, and with a device that takes two launches."""
    yield from _rate(sizes, sizes.requests, "slices of arrivals", 1_000_000)
    yield from _rate(sizes, sizes.requests, "async_linear, 2 streams", None, batching="async_linear", streams=2)


def admission_figures(sizes: Sizes) -> Iterator[Row]:
    """Each request is asked for when it arrives, and is an object and an event."""
    yield from _rate(sizes, sizes.single_requests, "admission request by request", 150_000, admission=True)
    runs = {name: partial(_seconds, sizes.single_requests, name == "asked") for name in ("asked", "alone")}
    spent = in_turns(sizes.repetitions, **runs)
    ratio = median_ratio(spent["asked"], spent["alone"])
    yield Row("  time beside the same service without admission", f"{ratio:.2f} ×", "≤ 1.8 ×", ratio <= 1.8)


def _seconds(requests: int, admission: bool) -> float:
    return ServedRun(requests, admission=admission).seconds


def _rate(sizes: Sizes, requests: int, what: str, target: int | None, **more: Any) -> Iterator[Row]:
    runs: list[tuple[float, float, float]] = []

    def whole() -> float:
        run = ServedRun(requests, **more)
        runs.append((run.mean_batch, run.engine_seconds, run.table_seconds))
        return run.seconds

    ServedRun(1_000, **more)  # imports are not what is measured
    spent = in_turns(sizes.repetitions, bare=partial(bare_callbacks, sizes.callbacks), served=whole)
    rate = per_second(requests, spent["served"])
    per_event = median_ratio(spent["bare"], spent["served"]) * requests / sizes.callbacks
    wanted = "" if target is None else f"≥ {target:,}"
    yield Row(f"{requests:,} requests, {what}", f"{rate:,.0f} requests/s", wanted, target and rate >= target)
    yield Row("  requests per bare event", f"{per_event:.2f}, at {per_second(sizes.callbacks, spent['bare']):,.0f}/s")
    batch, engine, table = (statistics.median(column) for column in zip(*runs, strict=True))
    yield Row("  mean batch; time a batch", f"{batch:.1f}; {engine / requests * batch * 1e6:.1f} µs")
    yield Row("  engine and record / table", f"{engine:.2f} s / {table:.2f} s")


def shared(requests: int, services: int, gpus: int) -> Any:
    """The input of a run: several services alike on the GPUs of nodes of four, 480 requests/s for each GPU."""
    from benchmarks.features import COSTS
    from hetsim.scenario.scenario import load

    each = {"arrivals": {"process": "poisson", "rate": f"{480 * gpus / services}/s"}, "service": COSTS}
    entries = [{"name": f"s{number}", "count": requests // services, **each} for number in range(services)]
    node = {"count": max(1, gpus // 4), "gpus": {"type": "g", "count": min(4, gpus)}}
    return load({"name": "shared", "cluster": {"nodes": [node]}, "workload": entries}).build(SEED)


def services_figures(sizes: Sizes) -> Iterator[Row]:
    """Time a batch with many services and many GPUs against one service on one."""
    from hetsim.engine.simulation import Simulation

    def seconds(services: int, gpus: int) -> float:
        simulation = Simulation(shared(sizes.shared_requests, services, gpus))
        gc.collect()
        began = time.process_time()
        record = simulation.run()
        spent = time.process_time() - began
        assert record.launches is not None
        return spent / len(record.launches["launch"])

    cases = {(services, gpus): f"{services} on {gpus}" for services in (1, 10, 100) for gpus in (1, 10, 100)}
    spent = in_turns(sizes.repetitions, **{name: partial(seconds, *case) for case, name in cases.items()})
    for (services, gpus), name in cases.items():
        ratio = median_ratio(spent[name], spent[cases[1, 1]])
        batch = statistics.median(spent[name]) * 1e6
        what = f"{services} service{'s' if services > 1 else ''} on {gpus} GPU{'s' if gpus > 1 else ''}: time a batch"
        goal = ("", None) if services == gpus == 1 else ("≤ 2 ×", ratio <= 2)
        yield Row(what, f"{batch:.0f} µs, {ratio:.2f} ×", *goal)


def language_model(replicas: int, requests: int) -> Any:
    """The input of a run: replicas of one GPU, 20 requests/s for each, sent to the least loaded."""
    from hetsim.scenario.scenario import load

    node = {"count": -(-replicas // 8), "cpus": 16, "gpus": {"type": "h100", "count": min(8, replicas)}}
    service = {"kind": "llm", "model": "llama-3.1-8b", "gpu": "h100", "replicas": replicas}
    entry = {
        "name": "chat", "count": requests, "arrivals": {"process": "poisson", "rate": f"{20 * replicas}/s"},
        "tokens": {"prompt": 512, "output": 64}, "service": {**service, "routing": "least_outstanding"},
    }  # fmt: skip
    return load({"name": "chat", "cluster": {"nodes": [node]}, "workload": [entry]}).build(SEED)


def replicas_figures(sizes: Sizes) -> Iterator[Row]:
    """Requests to a language model on few and on many replicas, under the same load of each."""
    from hetsim.engine.simulation import Simulation
    from hetsim.results.one_run.result import Result

    requests = 30 * sizes.replicas

    def seconds(replicas: int) -> float:
        run = language_model(replicas, requests)
        gc.collect()
        began = time.process_time()
        assert len(Result(Simulation(run).run()).tasks) == requests
        return time.process_time() - began

    few, many = 8, sizes.replicas
    spent = in_turns(sizes.repetitions, few=partial(seconds, few), many=partial(seconds, many))
    for replicas, name, target in ((few, "few", None), (many, "many", 25_000)):
        rate = per_second(requests, spent[name])
        goal = ("", None) if target is None else (f"≥ {target:,}", rate >= target)
        yield Row(f"{requests:,} requests, {replicas:,} replicas of a language model", f"{rate:,.0f} requests/s", *goal)


def peak(requests: int, table: bool) -> None:
    """Print the peak memory (bytes) of a process that makes one run: called in a fresh one."""
    if table:
        ServedRun(requests)
    else:
        from hetsim.engine.simulation import Simulation

        Simulation(served(requests)).run()
    status = Path("/proc/self/status")
    if status.exists():  # not ru_maxrss, which on Linux a child inherits from the process that started it
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        print(int(line.split()[1]) * 1024)
    else:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def memory_figures(sizes: Sizes) -> Iterator[Row]:
    """Peak memory a request, libraries left out: of the run up to its record, and with the table of requests."""

    def peak_of(requests: int, table: bool) -> float:
        return float(python(f"from benchmarks.serving import peak; peak({requests}, {table})"))

    for table, what, target in ((False, "arrays and record", 200), (True, "  and the table of requests", 200)):
        each = (peak_of(sizes.many_requests, table) - peak_of(1_000, table)) / sizes.many_requests
        name = f"{what}, {sizes.many_requests:,} requests"
        yield Row(name, f"{each:.0f} bytes a request", f"≤ {target}", each <= target)


FIGURES: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "throughput": throughput_figures,
    "admission": admission_figures,
    "services": services_figures,
    "replicas": replicas_figures,
    "memory": memory_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("serving", __doc__, FIGURES)
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    figures = {name: partial(figure, sizes) for name, figure in FIGURES.items()}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
