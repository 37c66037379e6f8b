"""Run many cases on the engine and on the one before it, and compare every table byte by byte.

    python tests/oracle/compare.py [KIND ...] [--seeds N] [--only TEXT]

Kinds: scenarios (all that ship), systems (the conformance suite's), random (random systems under many policies),
chaos (random decisions, faults, frequencies, prefetches), services (batches of requests in many variants).
"""

from __future__ import annotations

import argparse
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

from cases import Case, chaotic, services  # noqa: E402

from oracle.engine.simulation import Simulation as Oracle  # noqa: E402
from sim.engine.simulation import Simulation  # noqa: E402
from sim.errors import HetsimError  # noqa: E402
from sim.results.one_run.result import Result  # noqa: E402
from sim.scenario.scenario import load  # noqa: E402
from sim.scenario.schema.policy import PolicySpec  # noqa: E402
from sim.testing.generate import random_system  # noqa: E402
from sim.testing.systems import small_systems  # noqa: E402

FIRST = 0
TABLES = ("tasks", "launches", "devices", "timeline")
POLICIES = (
    "fcfs", "fcfs_skip", "sjf", "srtf", "las", "edf", "easy_backfill", "conservative_backfill",
    "heteroprio", "dmda", "drf", "round_robin", "processor_sharing", "heft", "dual_approximation", "min_min",
)  # fmt: skip

def scenarios() -> Iterator[Case]:
    from sim.scenario.file.shipped import shipped

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
        "chaos": lambda: chaotic(options.seeds, FIRST), "services": services,
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
