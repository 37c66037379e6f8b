"""Run many cases on the engine and on the one before it, and compare every table byte by byte.

    python tests/oracle/compare.py [KIND ...] [--seeds N] [--only TEXT]

Kinds: scenarios (all that ship), systems (the conformance suite's), random (random systems under many policies),
chaos (random decisions, faults, frequencies, prefetches), services (batches of requests in many variants).
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from oracle.engine.simulation import Simulation as Oracle  # noqa: E402
from sim.engine.simulation import Simulation  # noqa: E402
from sim.errors import HetsimError  # noqa: E402
from sim.model.faults import FaultEvent  # noqa: E402
from sim.policy.contract import Drop, Fetch, Move, Scheduler, Set, Start, Stop, Wait  # noqa: E402
from sim.results.result import Result  # noqa: E402
from sim.scenario.policy_schema import PolicySpec  # noqa: E402
from sim.scenario.scenario import load  # noqa: E402
from sim.testing.generate import random_system  # noqa: E402
from sim.testing.systems import small_systems  # noqa: E402

FIRST = 0
TABLES = ("tasks", "launches", "devices", "timeline")
POLICIES = (
    "fcfs", "fcfs_skip", "sjf", "srtf", "las", "edf", "easy_backfill", "conservative_backfill",
    "heteroprio", "dmda", "drf", "round_robin", "processor_sharing", "heft", "dual_approximation", "min_min",
)  # fmt: skip

Case = tuple[str, Callable[[], Any]]


class Chaos(Scheduler):
    """Starts, stops, moves, sets, fetches and drops at random, and looks around."""

    undisturbed = False

    def __init__(self, seed: int, calm: float = 40.0):
        self.draw = np.random.default_rng(seed)
        self.calm = calm

    def schedule(self, view: Any) -> Iterator[Any]:
        draw = self.draw
        wild = view.now < self.calm
        for task in list(view.waiting()):
            placement = view.fit(task)
            if placement is not None and (not wild or draw.random() < 0.8):
                yield Start(task, placement)
        running = view.running("start")
        if wild and running and draw.random() < 0.3:
            task = running[int(draw.integers(len(running)))]
            if task.shape.preemptible:
                yield Stop(task, keep=bool(draw.random() < 0.7))
        running = view.running("start")
        if wild and running and draw.random() < 0.2:
            task = running[int(draw.integers(len(running)))]
            if task.shape.preemptible and len(view.launch_of(task).tasks) == 1:
                target = view.fit(task)
                if target is not None and not set(target.devices) & set(view.launch_of(task).placement.devices):
                    yield Move(task, target)
        if wild and draw.random() < 0.3:
            device = view.cluster.devices[int(draw.integers(len(view.cluster.devices)))]
            yield Set(device, float(draw.choice([0.5, 0.8, 1.0, 1.3])))
        if wild and view.items and draw.random() < 0.4:
            gpus = [device for node in view.cluster.nodes for device in node.accelerators]
            if gpus:
                gpu, item = gpus[int(draw.integers(len(gpus)))], int(draw.integers(len(view.items)))
                holders = view.holders(item)
                if gpu in holders and len(holders) > 1 and draw.random() < 0.5:
                    if not view.running("start", gpu):
                        yield Drop(item, gpu)
                elif holders and gpu not in holders and view.load(gpu) < 1:
                    yield Fetch(item, gpu)
        later = view.now + float(draw.exponential(0.7))
        yield Wait(later if wild and view.num_waiting() + len(view.running()) else float("inf"))


def scenarios() -> Iterator[Case]:
    from sim.scenario.shipped import shipped

    for one in shipped():
        yield one.name, lambda name=one.name: load(name).build(None, 0)


def systems() -> Iterator[Case]:
    for number, system in enumerate(small_systems()):
        for policy in POLICIES:
            yield (
                f"{system.name}, {policy}",
                lambda n=number, p=policy: small_systems()[n].run_input(PolicySpec("scheduler", p).make()),
            )


def random_systems(seeds: int) -> Iterator[Case]:
    for seed in range(FIRST, FIRST + seeds):
        for policy in POLICIES[seed % 3 :: 3]:
            yield (
                f"random {seed}, {policy}",
                lambda s=seed, p=policy: random_system(s, nodes=1 + s % 4).run_input(PolicySpec("scheduler", p).make()),
            )


def chaotic(seeds: int, faults: bool = True) -> Iterator[Case]:
    def build(seed: int) -> Any:
        system = random_system(seed, nodes=1 + seed % 3, tasks=20)
        run = system.run_input(Chaos(seed))
        if faults and seed % 2:
            draw = np.random.default_rng(seed)
            devices = run.cluster.devices
            for _ in range(4):
                device = int(draw.integers(len(devices)))
                begin = float(draw.exponential(8))
                kind = str(draw.choice(["fail", "slow"]))
                run.faults += fault_events(kind, device, begin, begin + float(draw.exponential(3)))
        return run

    for seed in range(FIRST, FIRST + seeds):
        yield f"chaos {seed}", lambda s=seed: build(s)


def fault_events(kind: str, device: int, begin: float, end: float) -> list[Any]:
    there, back = ("down", "up") if kind == "fail" else ("slow", "slow")
    return [FaultEvent(begin, device, there, 2.0), FaultEvent(end, device, back, 1.0)]


COSTS = {
    "upload": {"per_item": "0.114 ms", "fixed": "0.15 ms"},
    "compute": {"per_item": "1.264 ms", "fixed": "13 ms"},
    "download": {"fixed": "0.05 ms"},
}


def service(gpus: int = 1, rate: str = "400/s", horizon: str | None = "4 s", pcie: Any = None, policy: Any = None,
            streams: int = 2, more: Any = None, entry: Any = None, **details: Any) -> dict[str, Any]:  # fmt: skip
    described = {
        "name": "web", "arrivals": {"process": "poisson", "rate": rate}, "slo": "250 ms",
        "service": {**copy.deepcopy(COSTS), **details}, **(entry or {}),
    }  # fmt: skip
    node = {"cpus": 4, "gpus": {"type": "g", "count": gpus, "streams": streams}, "pcie": pcie or {"upload": "5 GB/s"}}
    found = {"name": "s", "cluster": {"nodes": node}, "workload": [described], "policy": policy or {}, **(more or {})}
    return found | ({"horizon": horizon} if horizon else {})


FAULT = {"on": "n0/g0", "every": {"distribution": "exponential", "mean": "1 s"}, "repair": "0.3 s"}
SERVICES: dict[str, dict[str, Any]] = {
    "plain": {}, "one stream": {"streams": 1}, "three streams": {"streams": 3, "rate": "600/s"},
    "three GPUs": {"gpus": 3, "rate": "1300/s"}, "noise": {"noise": "5%"},
    "async": {"policy": {"batching": "async_linear"}}, "async 3": {"gpus": 3, "rate": "1500/s", "policy": "sjf"},
    "network": {"network": {"request": "2 ms", "response": "3 ms"}},
    "network, drained": {"network": "2 ms", "horizon": None, "entry": {"count": 1000}},
    "bytes": {"pcie": {"upload": "5 GB/s", "download": "3 GB/s", "latency": "10 us"}},
    "half duplex": {"pcie": {"upload": "1 GB/s", "duplex": "half"}},
    "half duplex, 3 streams": {"pcie": {"upload": "1 GB/s", "duplex": "half"}, "streams": 3},
    "no limits": {"pcie": {"latency": "1 us"}}, "overload": {"rate": "1500/s", "horizon": "2 s"},
    "drawn sizes": {"compute": {"per_item": {"distribution": "exponential", "mean": "1 ms"}, "fixed": "13 ms"}},
    "admission": {"policy": {"admission": "accept_all"}},
    "queue limit": {"policy": {"admission": {"name": "queue_limit", "limit": 20}}, "rate": "900/s"},
    "patience": {"entry": {"patience": "60 ms"}, "rate": "800/s"},
    "edf": {"policy": {"scheduler": "edf"}},
    "faults": {"more": {"faults": [FAULT]}, "gpus": 2},
    "fixed": {"policy": {"batching": {"name": "fixed_size", "size": 16}}},
    "overhead": {"policy": {"batching": "serial_greedy"}, "streams": 1, "noise": "3%"},
}  # fmt: skip


def services() -> Iterator[Case]:
    for name, parts in SERVICES.items():
        for seed in (1, 2):
            yield f"service {name}, seed {seed}", lambda p=parts, s=seed: load(service(**copy.deepcopy(p))).build(s)


def run(kind: Any, build: Callable[[], Any], check: bool) -> tuple[Any, str, float]:
    """A result, or a sentence; and the seconds of processor time."""
    inputs = build()
    began = time.process_time()
    try:
        record = kind(inputs, check=check).run()
    except HetsimError as error:
        return None, f"{type(error).__name__}: {error}", time.process_time() - began
    spent = time.process_time() - began
    return Result(record), "", spent


def differences(one: Any, two: Any) -> list[str]:
    found = []
    for table in TABLES:
        a, b = (plain(getattr(result, table)) for result in (one, two))
        try:
            pd.testing.assert_frame_equal(a, b, check_exact=True)
        except AssertionError as error:
            lines = [line for line in str(error).splitlines() if line.strip()][:2]
            found.append(f"{table}: {' '.join(lines)[:150]}{worst(a, b)}")
    try:
        pd.testing.assert_series_equal(one.summary["value"], two.summary["value"], check_exact=True)
    except AssertionError as error:
        found.append("summary: " + str(error).splitlines()[0])
    return found


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """Texts instead of categories, whose order is that in which gangs were first written down."""
    kinds = {name: object for name, kind in table.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    return table.astype(kinds)


def worst(a: pd.DataFrame, b: pd.DataFrame) -> str:
    """The greatest relative difference of the numbers, where rows match."""
    if a.shape != b.shape:
        return f" (shapes {a.shape}, {b.shape})"
    text = []
    for name in a.columns:
        x, y = a[name], b[name]
        if pd.api.types.is_numeric_dtype(x) and pd.api.types.is_numeric_dtype(y):
            u, v = x.to_numpy(float), y.to_numpy(float)
            gap = np.nanmax(np.abs(u - v) / np.maximum(1e-300, np.maximum(np.abs(u), np.abs(v))), initial=0.0)
            nans = int((np.isnan(u) != np.isnan(v)).sum())
            if gap or nans:
                text.append(f"{name} {gap:.1e}" + (f" ({nans} NaN)" if nans else ""))
        elif not (x.astype(str) == y.astype(str)).all():
            text.append(f"{name} differs in {(x.astype(str) != y.astype(str)).sum()}")
    return " | " + ", ".join(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=["systems", "random", "chaos", "services", "scenarios"])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    options = parser.parse_args()
    global FIRST
    FIRST = options.first
    makers: dict[str, Callable[[], Iterator[Case]]] = {
        "scenarios": scenarios, "systems": systems, "random": lambda: random_systems(options.seeds),
        "chaos": lambda: chaotic(options.seeds), "services": services,
    }  # fmt: skip
    bad = count = 0
    for kind in options.kinds or makers:
        for name, build in makers[kind]():
            if options.only not in name or (options.skip and options.skip in name):
                continue
            count += 1
            check = not options.no_check and kind != "scenarios"
            try:
                old, said, before = run(Oracle, build, check)
                new, says, after = run(Simulation, build, check)
                if said or says:
                    problems = [] if said == says else [f"oracle: {said or 'ran'}", f"engine: {says or 'ran'}"]
                else:
                    problems = differences(old, new)
            except Exception as error:
                before = after = 0.0
                problems = [f"{type(error).__name__}: {error}"[:300]]
                if options.trace:
                    traceback.print_exc()
            if problems:
                bad += 1
                print(f"{name}:")
                for problem in problems:
                    print(f"    {problem[:400]}")
            elif kind == "scenarios":
                print(f"{name}: equal ({before:.2f} s, {after:.2f} s)")
            sys.stdout.flush()
    print(f"{count} cases, {bad} differ")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
