"""How often the intervals that are offered hold the truth: `python -m benchmarks.coverage [--quick] [--only A,B,...]`.

M/M/1 at load 0.9, nominal 95 %: exact mean wait 9 s, exact 95th percentile of the response 30.0 s (service of 1 s).
Every interval is made from runs of its own, by the code that `hetsim run` uses; coverage is the share of intervals
that hold the exact value, ± two standard errors.

engine        the waits of the recursions below are those of the simulator
bursty        5,000 sets of ten replications of about 1,700 customers, counted by time: gamma gaps, a server that breaks
              down, M/M/1; the estimate that `hetsim run` makes, and beside it Student's t of the replications' means
replications  Student's intervals over replications, with and without the warm-up cut automatically
percentile    the same for the 95th percentile of the response
precision     replications that go on until ± 10 % is reached
batch_means   one long run: how many intervals are refused, and the coverage of the others
naive         one run as if its waits were independent: why intervals from one run are refused
stationary    runs that begin in the steady state: means, percentiles, attainment, stopping at a precision
verbs         the same by `replicate` and `compare` on a scenario, with `warmup: auto`, and a difference
statements    how often `compare`, `tune` and `size` claim what is not so
overload      short runs of clients that come back, give up or hedge, against exact models
length        how many customers a precision takes at several loads, from the exact variance (Whitt 1989)

Waits come from Lindley's recursion as cumulated sums, 100,000 customers in a few milliseconds: what the engine gives
for one GPU under fcfs, to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.engine import fleet
from benchmarks.measure import SEED, Row, chosen, parser_of, print_table
from benchmarks.overload import overload_figures
from benchmarks.promises import statement_figures, stationary_figures, verb_figures
from hetsim.errors import UsageError
from hetsim.results.many_runs.warmup import PILOT, WarmupSeries
from hetsim.results.one_run.estimands import batch_interval, ratio_contributions
from hetsim.results.statistics import Interval, normal_quantile, student_interval
from hetsim.scenario.schema.whole import MIN_FOR_PRECISION
from hetsim.theory import gim1

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
    sets: int = 5_000


QUICK = Sizes(40, 20, (1_000,), (10_000,), (10,), 20)


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
    from hetsim.engine.simulation import Simulation

    customers = max(sizes.lengths)
    given = fleet(customers, 1, load=LOAD)
    tasks = given.tasks
    record = Simulation(given).run()
    for name, setting in BURSTY.items():
        off = _off_the_engine(setting)
        yield Row(f"engine and lockstep, {name}", f"waits differ by {off:.1g} s", "≤ 1e-6 s", off <= 1e-6)
    walk = np.concatenate([[0.0], np.cumsum(tasks.time[:-1, 0] - np.diff(tasks.arrival))])
    off = float(np.abs(record.start - tasks.arrival - (walk - np.minimum.accumulate(walk))).max())
    yield Row(f"engine and recursion, {customers:,} customers", f"waits differ by {off:.1g} s", "≤ 1e-6 s", off <= 1e-6)


@dataclass(frozen=True)
class Setting:
    """One server with exponential service of mean 1 s; gamma gaps, and faults after which a task begins again."""

    rate: float
    scv: float = 1.0
    between: float = math.inf
    lasting: float = 0.0
    exact: float | None = None

    def gaps(self, draw: np.random.Generator, size: int) -> np.ndarray:
        return draw.gamma(1 / self.scv, self.scv / self.rate, size)


def _gamma_wait(rate: float, scv: float) -> float:
    return gim1(rate, 1.0, lambda s: -math.expm1(-math.log1p(s * scv / rate) / scv)).wait_mean


BURSTY = {
    "gamma gaps, scv 4, load 0.8": Setting(0.8, 4.0, exact=_gamma_wait(0.8, 4.0)),
    "gamma gaps, scv 4, load 0.5": Setting(0.5, 4.0, exact=_gamma_wait(0.5, 4.0)),
    "M/M/1, load 0.8": Setting(0.8, exact=4.0),
    "faults every 100 s for 5 s, load 0.7": Setting(0.7, between=100.0, lasting=5.0),
}
CUSTOMERS, SETTLED, REPLICATIONS = 1_700, 2_000, 10
"""Customers of a run in the mean, and of its warm-up; runs of a set."""


class Lockstep:
    """Many runs of such a server at once, a customer of each at a time."""

    def __init__(self, setting: Setting, runs: int, draw: np.random.Generator):
        self.setting, self.draw, self.runs = setting, draw, runs
        self.arrival, self.free = np.zeros(runs), np.zeros(runs)
        self.fault, self.repair = np.full(runs, math.inf), np.full(runs, math.inf)
        self.faults: list[tuple[float, float]] = []
        if math.isfinite(setting.between):
            self._next_fault(np.zeros(runs), np.ones(runs, dtype=bool))

    def _next_fault(self, since: np.ndarray, which: np.ndarray) -> None:
        number = int(which.sum())
        self.fault[which] = since[which] + self.draw.exponential(self.setting.between, number)
        self.repair[which] = self.fault[which] + self.draw.exponential(self.setting.lasting, number)
        if self.runs == 1:
            self.faults.append((float(self.fault[0]), float(self.repair[0])))

    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Arrival, wait and service of the next customer of each run."""
        self.arrival = self.arrival + self.setting.gaps(self.draw, self.runs)
        service = self.draw.exponential(1.0, self.runs)
        begin = np.maximum(self.arrival, self.free)
        first = np.full(self.runs, math.nan)
        going = np.ones(self.runs, dtype=bool)
        while going.any():
            past = going & (self.repair <= begin)
            while past.any():
                self._next_fault(self.repair.copy(), past)
                past = going & (self.repair <= begin)
            begin = np.where(going & (self.fault <= begin), self.repair, begin)
            first = np.where(np.isnan(first) & ~(self.fault <= begin), begin, first)
            going &= (self.fault <= begin) | (self.fault < begin + service)
            begin = np.where(going, self.repair, begin)
        self.free = begin + service
        return self.arrival, first - self.arrival, service


def run_sums(setting: Setting, runs: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Of each run the sum of the waits, and the number, of the customers that arrive in its window."""
    served = Lockstep(setting, runs, draw)
    begin, end = SETTLED / setting.rate, (SETTLED + CUSTOMERS) / setting.rate
    sums, numbers = np.zeros(runs), np.zeros(runs)
    while served.arrival.min() < end:
        arrival, wait, _ = served.step()
        inside = (arrival >= begin) & (arrival < end)
        sums += np.where(inside, wait, 0.0)
        numbers += inside
    return sums, numbers


def _off_the_engine(setting: Setting, customers: int = 2_000) -> float:
    """By how much waits differ where the engine has the same arrivals, services and faults."""
    from hetsim.engine.simulation import Simulation
    from hetsim.model.faults import FaultEvent

    given = fleet(customers, 1)
    served = Lockstep(setting, 1, streams("engine", customers))
    told = np.array([[float(one[0]) for one in served.step()] for _ in range(customers)])
    given.tasks.arrival[:], given.tasks.time[:, 0] = told[:, 0], told[:, 2]
    gpu = next(number for number, device in enumerate(given.cluster.devices) if device.type.kind != "cpu")
    for fault, repair in served.faults:
        given.faults += [FaultEvent(fault, gpu, "down"), FaultEvent(repair, gpu, "up")]
    record = Simulation(given).run()
    return float(np.abs(record.start - given.tasks.arrival - told[:, 1]).max())


def bursty_figures(sizes: Sizes) -> Iterator[Row]:
    """Intervals for the mean wait over customers, whose number differs from run to run."""
    for name, setting in BURSTY.items():
        sums, numbers = run_sums(setting, sizes.sets * REPLICATIONS, streams("bursty", *name.encode()))
        exact = setting.exact or float(sums.sum() / numbers.sum())  # of 40,000 runs: good to 0.2 %
        values, counts = (column.reshape(-1, REPLICATIONS) for column in (sums / numbers, numbers))
        given = ratio_contributions(values, counts)
        share, text = coverage([student_interval(row, NOMINAL, "wait_mean") for row in given], exact)
        yield Row(name, text, "94 to 96.5 %", 0.94 <= share <= 0.965)
        plain = coverage([student_interval(row, NOMINAL) for row in values], exact)[1]
        bias = 100 * (values.mean() / exact - 1)
        yield Row("  means of replications, Student's t", f"{plain}, bias {bias:+.1f} %")


def replication_figures(sizes: Sizes) -> Iterator[Row]:
    """Replications, by their number and length."""
    for customers in sizes.lengths:
        for number in sizes.numbers:
            plain, cut = [], []
            for repeat in range(sizes.intervals if customers < 100_000 else sizes.long_intervals):
                draw = streams("replications", customers, number, repeat)
                runs = [run(customers, draw) for _ in range(number)]
                plain.append(student_interval([wait.mean() for _, wait, _ in runs], NOMINAL, "wait_mean"))
                cut.append(student_interval(_cut_means(runs), NOMINAL, "wait_mean"))
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
            values = [np.quantile(wait + service, 0.95) for _, wait, service in runs]
            found.append(student_interval(values, NOMINAL, "response_p95"))
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
                if len(means) >= MIN_FOR_PRECISION:
                    interval = student_interval(means, NOMINAL, "wait_mean")
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
    "bursty": bursty_figures,
    "replications": replication_figures,
    "percentile": percentile_figures,
    "precision": precision_figures,
    "batch_means": batch_figures,
    "naive": naive_figures,
    "stationary": lambda sizes: stationary_figures(sizes.sets),
    "verbs": lambda sizes: verb_figures(sizes.sets),
    "statements": lambda sizes: statement_figures(sizes.sets),
    "overload": lambda sizes: overload_figures(sizes.sets),
    "length": length_figures,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("coverage", __doc__, FIGURES)
    parser.add_argument("--sets", type=int, help="sets of runs for a row of bursty, stationary, verbs and statements")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    if options.sets is not None:
        sizes = replace(sizes, sets=options.sets)
    figures = {name: partial(figure, sizes) for name, figure in FIGURES.items()}
    head = Row("intervals of M/M/1 at load 0.9", "coverage (nominal 95 %)", "target")
    print_table(figures, chosen(parser, figures, options.only), options.quick, head)


if __name__ == "__main__":
    main()
