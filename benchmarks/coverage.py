"""How often the intervals that are offered hold the truth: `python -m benchmarks.coverage [--quick] [--only A,B,...]`.

M/M/1 at load 0.9, nominal 95 %: exact mean wait 9 s, exact 95th percentile of the response 30.0 s (service of 1 s).
Every interval is made from runs of its own, by the code that `hetsim run` uses; coverage is the share of intervals
that hold the exact value, ± two standard errors.

engine        the waits of the recursion below are those of the simulator
replications  Student's intervals over replications, with and without the warm-up cut automatically
percentile    the same for the 95th percentile of the response
precision     replications that go on until ± 10 % is reached
batch_means   one long run: how many intervals are refused, and the coverage of the others
naive         one run as if its waits were independent: why intervals from one run are refused
length        how many customers a precision takes at several loads, from the exact variance (Whitt 1989)

Waits come from Lindley's recursion as cumulated sums, 100,000 customers in a few milliseconds: what the engine gives
for one GPU under fcfs, to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.engine import fleet
from benchmarks.measure import SEED, Row, chosen, parser_of, print_table
from sim.errors import UsageError
from sim.results.batch_means import batch_interval
from sim.results.statistics import Interval, normal_quantile, student_interval
from sim.results.warmup import PILOT, WarmupSeries
from sim.scenario.schema import LEAST_FOR_PRECISION

LOAD = 0.9
WAIT = LOAD / (1 - LOAD)
P95 = -math.log(0.05) / (1 - LOAD)
NOMINAL = 0.95


@dataclass(frozen=True)
class Sizes:
    """How many intervals, and of which runs."""

    intervals: int = 1_000
    long_intervals: int = 400
    lengths: tuple[int, ...] = (1_000, 10_000, 100_000)
    one_run: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    numbers: tuple[int, ...] = (5, 10, 30)


QUICK = Sizes(40, 20, (1_000,), (10_000,), (10,))


def run(customers: int, draw: np.random.Generator, load: float = LOAD) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrivals, waits and services of an M/M/1 queue that starts empty.

    The wait is the cumulated service less gaps, above its lowest value so far.
    """
    gap = draw.exponential(1 / load, customers)
    service = draw.exponential(1.0, customers)
    walk = np.zeros(customers)
    np.cumsum(service[:-1] - gap[1:], out=walk[1:])
    return np.cumsum(gap), walk - np.minimum.accumulate(walk), service


def streams(name: str, *path: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *name.encode(), *path])


def coverage(found: Sequence[Interval], exact: float) -> tuple[float, str]:
    """Share of intervals that hold the exact value, and the text: with two standard errors and the half-widths."""
    if not found:
        return math.nan, "none granted"
    share = sum(one.covers(exact) for one in found) / len(found)
    error = 2 * math.sqrt(max(share * (1 - share), 1e-9) / len(found))
    half = float(np.mean([one.half_width for one in found])) / exact
    return share, f"{100 * share:.1f} ± {100 * error:.1f} %, half-width {100 * half:.1f} %"


# Figures ---------------------------------------------------------------------------------------------------------


def engine_figures(sizes: Sizes) -> Iterator[Row]:
    """The recursion against the engine, on the same arrivals and services."""
    from sim.engine.simulation import Simulation

    customers = max(sizes.lengths)
    given = fleet(customers, 1, load=LOAD)
    tasks = given.tasks
    record = Simulation(given).run()
    walk = np.concatenate([[0.0], np.cumsum(tasks.time[:-1, 0] - np.diff(tasks.arrival))])
    off = float(np.abs(record.start - tasks.arrival - (walk - np.minimum.accumulate(walk))).max())
    yield Row(f"engine and recursion, {customers:,} customers", f"waits differ by {off:.1g} s", "≤ 1e-6 s", off <= 1e-6)


def replication_figures(sizes: Sizes) -> Iterator[Row]:
    """Replications, by their number and length."""
    for customers in sizes.lengths:
        for number in sizes.numbers:
            plain, cut = [], []
            for repeat in range(sizes.intervals if customers < 100_000 else sizes.long_intervals):
                draw = streams("replications", customers, number, repeat)
                runs = [run(customers, draw) for _ in range(number)]
                plain.append(student_interval([wait.mean() for _, wait, _ in runs], NOMINAL))
                cut.append(student_interval(_cut_means(runs), NOMINAL))
            for name, found in (("", plain), (", warm-up auto", cut)):
                share, text = coverage(found, WAIT)
                wanted = customers >= 100_000
                figure = f"{number} replications of {customers:,}{name}"
                yield Row(figure, text, "≥ 92 %" if wanted else "", share >= 0.92 if wanted else None)


def _cut_means(runs: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> list[float]:
    """Mean waits after the warm-up that MSER-5 finds on the mean across these runs."""
    series = WarmupSeries()
    for arrival, wait, service in runs[:PILOT]:
        series.add(arrival, wait + service)
    time = series.cut.time
    return [float(wait[np.searchsorted(arrival, time):].mean()) for arrival, wait, _ in runs]


def percentile_figures(sizes: Sizes) -> Iterator[Row]:
    """The 95th percentile of the response."""
    for customers in sizes.lengths:
        found = []
        for repeat in range(sizes.intervals if customers < 100_000 else sizes.long_intervals):
            draw = streams("percentile", customers, repeat)
            runs = [run(customers, draw) for _ in range(10)]
            found.append(student_interval([np.quantile(wait + service, 0.95) for _, wait, service in runs], NOMINAL))
        yield Row(f"p95, 10 replications of {customers:,}", coverage(found, P95)[1])


def precision_figures(sizes: Sizes) -> Iterator[Row]:
    """Stopping at a precision: the number of replications is random, and stops early by luck now and then."""
    for customers in sizes.lengths:
        found = []
        for repeat in range(sizes.intervals // 2 if customers < 100_000 else sizes.long_intervals // 2):
            draw = streams("precision", customers, repeat)
            means: list[float] = []
            while True:
                means.append(float(run(customers, draw)[1].mean()))
                if len(means) >= LEAST_FOR_PRECISION:
                    interval = student_interval(means, NOMINAL)
                    if interval.half_width <= 0.1 * interval.mean:
                        break
            found.append(interval)
        runs = np.mean([one.n for one in found])
        yield Row(f"precision 10 %, runs of {customers:,}", f"{coverage(found, WAIT)[1]}, {runs:.0f} runs")


def batch_figures(sizes: Sizes) -> Iterator[Row]:
    """Twenty batch means of one run, the first tenth left out."""
    for customers in sizes.one_run:
        found, refused = [], 0
        repeats = sizes.intervals if customers < 1_000_000 else sizes.long_intervals
        for repeat in range(repeats):
            wait = run(customers, streams("batches", customers, repeat))[1]
            try:
                found.append(batch_interval(wait[customers // 10 :], "wait_mean", confidence=NOMINAL))
            except UsageError:
                refused += 1
        text = f"{coverage(found, WAIT)[1]}, {100 * refused / repeats:.0f} % refused"
        yield Row(f"20 batch means, one run of {customers:,}", text)


def naive_figures(sizes: Sizes) -> Iterator[Row]:
    """What no command offers: the tasks of one run taken for independent."""
    for customers in sizes.one_run[:2]:
        waits = [run(customers, streams("naive", customers, repeat))[1] for repeat in range(sizes.long_intervals)]
        text = coverage([student_interval(wait, NOMINAL) for wait in waits], WAIT)[1]
        yield Row(f"tasks as if independent, {customers:,} (not offered)", text)


def length_figures(sizes: Sizes) -> Iterator[Row]:
    """Customers for ± 10, 5 and 1 % of the mean wait: (z / ε)² (2 + 5ρ - 4ρ² + ρ³) / (ρ (1 - ρ)²)."""
    for load in (0.5, 0.8, 0.9, 0.95):
        texts = [f"± {100 * part:g} %: {customers_for(load, part):,.0f}" for part in (0.1, 0.05, 0.01)]
        yield Row(f"customers in all at load {load:g}", ", ".join(texts))


def customers_for(load: float, precision: float, confidence: float = NOMINAL) -> float:
    """To two figures."""
    spread = (2 + 5 * load - 4 * load**2 + load**3) / (load * (1 - load) ** 2)
    return float(f"{(normal_quantile(0.5 + confidence / 2) / precision) ** 2 * spread:.2g}")


FIGURES: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "engine": engine_figures,
    "replications": replication_figures,
    "percentile": percentile_figures,
    "precision": precision_figures,
    "batch_means": batch_figures,
    "naive": naive_figures,
    "length": length_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("coverage", __doc__, FIGURES)
    options = parser.parse_args(arguments)
    figures = {name: partial(figure, QUICK if options.quick else Sizes()) for name, figure in FIGURES.items()}
    head = Row("intervals of M/M/1 at load 0.9", "coverage (nominal 95 %)", "target")
    print_table(figures, chosen(parser, figures, options.only), options.quick, head)


if __name__ == "__main__":
    main()
