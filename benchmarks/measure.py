"""What the benchmarks have in common: fair timing, the unit that everything is set against, one table, one command.

Machines differ and are shared, so what counts is a ratio inside one run.  What is compared runs in turns, and medians
of the repetitions are shown.  Times are processor time, which a neighbor's work changes least; only those of whole
processes are wall time.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simpy

ROOT = Path(__file__).parent.parent
SEED = 20240501


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    figure: str
    measured: str
    target: str = ""
    holds: bool | None = None


Step = Callable[[], Any]


def wall(step: Step) -> float:
    """Wall time of one step."""
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def in_turns(repetitions: int, **steps: Callable[[], float]) -> dict[str, list[float]]:
    """What each step returns, repetition by repetition; steps alternate, so that a busy minute hits all alike."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repetitions):
        for name, step in steps.items():
            found[name].append(step())
    return found


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios inside each repetition."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def per_second(count: float, spent: Sequence[float]) -> float:
    return count / statistics.median(spent)


def bare_callbacks(callbacks: int, pending: int = 1_000) -> float:
    """Seconds for so many timeouts, each of which arms the next through a callback, with `pending` in the heap.

    Nothing but SimPy's heap, its Timeout and one call: what any simulator on SimPy pays per event at least.
    Garbage collection is off, as in the engine's loop; the delays are random, so that the heap has work to do.
    """
    environment = simpy.Environment()
    stop = environment.event()
    delays = iter(np.random.default_rng(SEED).exponential(1.0, callbacks).tolist())
    timeout = environment.timeout

    def again(_: Any) -> None:
        for delay in delays:
            timeout(delay).callbacks.append(again)
            return
        if not stop.triggered:
            stop.succeed()

    for start in np.random.default_rng(SEED + 1).exponential(1.0, pending).tolist():
        timeout(start).callbacks.append(again)
    gc.collect()
    gc.disable()
    began = time.process_time()
    environment.run(until=stop)
    spent = time.process_time() - began
    gc.enable()
    return spent


def python(code: str, *arguments: str) -> str:
    """What a fresh Python prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{code} {arguments} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


# The command and its table -------------------------------------------------------------------------------------------


def parser_of(name: str, description: str | None, figures: Iterable[str] = ()) -> argparse.ArgumentParser:
    """The command line of `python -m benchmarks.NAME`, with what every benchmark has; `only` is one of figures."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not what it says")
    if names := ",".join(figures):
        parser.add_argument("--only", metavar="A,B", help=f"some of {names}")
    return parser


def chosen(parser: argparse.ArgumentParser, names: Iterable[str], only: str | None) -> list[str]:
    """The figures of `--only A,B`, or all."""
    known = list(names)
    wanted = only.split(",") if only else known
    for name in wanted:
        if name not in known:
            parser.error(f"no figure {name!r}; there are {', '.join(known)}")
    return wanted


def print_table(
    figures: Mapping[str, Callable[[], Iterable[Row | str]]], names: Sequence[str], quick: bool, head: Row | None = None
) -> None:
    """Print the chosen figures line by line, as they come; a string among them is printed as it is."""
    show(head or Row("figure", "measured", "target"))
    print("-" * 132)
    for name in names:
        for line in figures[name]():
            if isinstance(line, Row):
                show(line)
            else:
                print(line, flush=True)
    if quick:
        print("(small sizes: the targets are for the full ones)")


def show(row: Row) -> None:
    mark = {None: "", True: "reached", False: "MISSED"}[row.holds]
    print(f"{row.figure:<44}  {row.measured:<46}  {row.target:<30}  {mark}".rstrip(), flush=True)
