"""Rows of `benchmarks.coverage`: how often what is said is right, against exact values, where nothing else is wrong.

stationary   ten runs that begin in the steady state (from Lindley's recursion), so that only the interval is judged
verbs        `replicate` (also until a precision, and with `warmup: auto`) and `compare` on a scenario, by the engine
statements   Holm's correction, `compare`, `tune` and `size` where every claim of a difference, or of a target, is wrong
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.integrate import quad

import hetsim as hs
from benchmarks.measure import SEED, Row
from hetsim.results.one_run.estimands import ratio_contributions
from hetsim.results.statistics import Interval, paired_differences, student_interval
from hetsim.scenario.schema.whole import MIN_FOR_PRECISION
from hetsim.search.targets import MET, MISSED
from hetsim.theory import mmc

RUNS = 10
AT_MOST = 60
"""Runs of a set that go on until a precision is reached."""
CHUNK = 4_000_000
"""Customers that are drawn at a time."""
PERCENT = 0.95
BAR = (0.94, 0.965)

Streams = tuple[np.ndarray, np.ndarray, np.ndarray]


def draws(name: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *name.encode()])


def held(share: float, sets: int, more: str = "") -> tuple[str, str, bool]:
    """The text of a coverage with its standard error, the bar, and whether it is reached."""
    text = f"{100 * share:.1f} ± {100 * error_of(share, sets):.1f} %{more}"
    return text, "94 to 96.5 %", BAR[0] <= share <= BAR[1]


def error_of(share: float, sets: int) -> float:
    """Standard error of a share of independent sets."""
    return math.sqrt(max(share * (1 - share), 1e-9) / sets)


def covering(found: Sequence[Interval], exact: float) -> tuple[float, str]:
    """Share that holds the exact value, and which end is missed how often."""
    above = sum(one.low > exact for one in found) / len(found)
    below = sum(one.high < exact for one in found) / len(found)
    return 1 - above - below, f" (above {100 * above:.1f}, below {100 * below:.1f})"


# From the recursion -------------------------------------------------------------------------------------------------


def steady(load: float, customers: int, runs: int, draw: np.random.Generator) -> Streams:
    """Waits, responses and which customers come in time, of M/M/1 runs that begin in the steady state."""
    most = int(customers + 6 * math.sqrt(customers)) + 2
    gap, service = draw.exponential(1 / load, (runs, most)), draw.exponential(1.0, (runs, most))
    work = np.where(draw.random(runs) < load, draw.exponential(1 / (1 - load), runs), 0.0)
    walk = np.concatenate([(work - gap[:, 0])[:, None], service[:, :-1] - gap[:, 1:]], axis=1)
    np.cumsum(walk, axis=1, out=walk)
    wait = walk - np.minimum(np.minimum.accumulate(walk, axis=1), 0.0)
    return wait, wait + service, np.cumsum(gap, axis=1) < customers / load


Measures = dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]]


def figures_of(load: float, customers: int, runs: int, draw: np.random.Generator, measures: Measures) -> dict[str, Any]:
    """Of each run the number of customers, under "", and each measure."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("", *measures)}
    for begin in range(0, runs, step := max(1, CHUNK // customers)):
        wait, response, inside = steady(load, customers, min(step, runs - begin), draw)
        found[""].append(inside.sum(axis=1).astype(float))
        for name, measure in measures.items():
            found[name].append(measure(wait, response, inside))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def mean_wait(wait: np.ndarray, response: np.ndarray, inside: np.ndarray) -> np.ndarray:
    return (wait * inside).sum(axis=1) / inside.sum(axis=1)


def percentile(wait: np.ndarray, response: np.ndarray, inside: np.ndarray) -> np.ndarray:
    return np.array([np.quantile(row[: int(one.sum())], PERCENT) for row, one in zip(response, inside, strict=True)])


def met(bound: float) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    return lambda wait, response, inside: ((response <= bound) & inside).sum(axis=1) / inside.sum(axis=1)


SETTINGS = ((0.5, 500, (3.0, 6.0, 10.0)), (0.8, 2_000, (5.0, 10.0, 20.0)))
"""Loads, customers of a run, and deadlines in seconds: the last is missed by every 148th and every 55th customer."""


def stationary_figures(sets: int) -> Iterator[Row]:
    """Means, percentiles and attainment of ten runs, and runs until a precision is reached."""
    for load, customers, bounds in SETTINGS:
        where = f"load {load:g}, runs of {customers:,}"
        measures: Measures = {"wait_mean": mean_wait, "response_p95": percentile}
        measures |= {f"slo_attainment {bound:g}": met(bound) for bound in bounds}
        found = figures_of(load, customers, sets * RUNS, draws(f"stationary {load}"), measures)
        counts = found.pop("").reshape(sets, RUNS)
        exact = {"wait_mean": load / (1 - load), "response_p95": -math.log(1 - PERCENT) / (1 - load)}
        exact |= {f"slo_attainment {bound:g}": -math.expm1(-(1 - load) * bound) for bound in bounds}
        for name, values in found.items():
            metric, _, bound = name.partition(" ")
            own = values.reshape(sets, RUNS)
            given = own if metric == "response_p95" else ratio_contributions(own, counts)
            share, ends = covering([student_interval(row, metric=metric) for row in given], exact[name])
            plain = covering([student_interval(row) for row in given], exact[name])[0]
            ends += f", bias {100 * (own.mean() / exact[name] - 1):+.1f} %; Student {100 * plain:.1f}"
            title = f"{metric}{f' ≤ {bound} s' if bound else ''}, {where}"
            yield Row(title, *held(share, sets, ends))
    yield from _until_precise(sets)


def _until_precise(sets: int, load: float = 0.5, customers: int = 500, precision: float = 0.1) -> Iterator[Row]:
    draw = draws("stationary precision")
    found: list[Interval] = []
    for _ in range(sets):
        made = figures_of(load, customers, AT_MOST, draw, {"wait_mean": mean_wait})
        for number in range(MIN_FOR_PRECISION, AT_MOST + 1):
            given = ratio_contributions(made["wait_mean"][:number], made[""][:number])
            interval = student_interval(given, metric="wait_mean")
            if interval.half_width <= precision * interval.mean:
                break
        found.append(interval)
    share, ends = covering(found, load / (1 - load))
    ends += f", {np.mean([one.n for one in found]):.0f} runs"
    yield Row(f"wait_mean to ± 10 %, load {load:g}, runs of {customers}", *held(share, sets, ends))
    for spread in (0.2, 0.35):
        values = 1 + spread * draw.standard_normal((sets, 120))
        count = np.arange(1, 121)
        kept = []
        for row in values:
            mean = np.cumsum(row) / count
            error = np.sqrt(np.maximum(np.cumsum(row**2) - count * mean**2, 0.0) / np.maximum(count - 1, 1) / count)
            near = np.flatnonzero((count >= MIN_FOR_PRECISION) & (1.9 * error <= precision * mean))
            for number in near + 1:
                interval = student_interval(row[:number])
                if interval.half_width <= precision * interval.mean:
                    break
            kept.append(interval)
        share, ends = covering(kept, 1.0)
        yield Row(f"normal values (sd {100 * spread:g} %) to ± 10 %", *held(share, sets, ends))


# By the engine ------------------------------------------------------------------------------------------------------

LOAD, DEADLINE = 0.5, 6.0
SERVER: dict[str, Any] = {
    "name": "one server", "horizon": "900 s", "warmup": "100 s",
    "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "g", "count": 1}}]},
    "workload": [
        {"name": "jobs", "arrivals": {"process": "poisson", "rate": f"{LOAD}/s"}, "until": "700 s",
         "gpu_time": {"distribution": "exponential", "mean": "1 s"}, "slo": f"{DEADLINE:g} s"},
    ],
    "policy": "fcfs",
}  # fmt: skip
EXACT = {
    "wait_mean": LOAD / (1 - LOAD), "response_mean": 1 / (1 - LOAD),
    "response_p95": -math.log(1 - PERCENT) / (1 - LOAD), "slo_attainment": -math.expm1(-(1 - LOAD) * DEADLINE),
}  # fmt: skip


def _shortest_first(load: float) -> float:
    """Mean wait of M/M/1 under shortest job first: ∫ λE[S²]/2 / (1 - ρ(x))² dF(x) (Phipps 1956)."""
    return quad(lambda x: load * math.exp(-x) / (1 - load * (1 - (1 + x) * math.exp(-x))) ** 2, 0, math.inf)[0]


def _intervals(scenario: dict[str, Any], runs: Any, seed: int, metrics: Iterable[str]) -> list[Interval]:
    made = hs.replicate(scenario, replications=runs, seed=seed, workers=1)
    return [made.interval(metric) for metric in metrics]


def verb_figures(sets: int) -> Iterator[Row]:
    """Each set is one call, with a seed of its own: 1, 2, 3 and so on."""
    seeds = range(1, sets + 1)
    given = [_intervals(SERVER, RUNS, seed, EXACT) for seed in seeds]
    for number, (metric, exact) in enumerate(EXACT.items()):
        share, ends = covering([row[number] for row in given], exact)
        yield Row(f"replicate: {metric}", *held(share, sets, ends))
    wanted = {"precision": "10%", "metric": "wait_mean"}
    found = [_intervals(SERVER, wanted, seed, ["wait_mean"])[0] for seed in seeds]
    share, ends = covering(found, EXACT["wait_mean"])
    ends += f", {np.mean([one.n for one in found]):.0f} runs"
    yield Row("replicate to ± 10 %: wait_mean", *held(share, sets, ends))
    cut = {**SERVER, "warmup": "auto"}
    share, ends = covering([_intervals(cut, RUNS, seed, EXACT)[1] for seed in seeds], EXACT["response_mean"])
    yield Row("warmup: auto: response_mean", *held(share, sets, ends))
    exact = _shortest_first(LOAD) - EXACT["wait_mean"]
    found = []
    for seed in seeds:
        told = hs.compare(SERVER, ["sjf", "fcfs"], replications=RUNS, metrics=["wait_mean"], seed=seed, workers=1).pairs
        mean, half = float(told["difference"][0]), float(told["half_width"][0])
        found.append(Interval("wait_mean", mean, mean - half, mean + half, 0.95, RUNS))
    share, ends = covering(found, exact)
    yield Row("compare: wait_mean of sjf - fcfs", *held(share, sets, ends))


# Wrong statements ---------------------------------------------------------------------------------------------------


def statement_figures(sets: int) -> Iterator[Row]:
    """Orders that know no sizes have the same mean wait in M/M/1 (Kingman 1962): every difference told is wrong."""
    draw = draws("holm")
    wrong = 0
    for _ in range(sets):
        means = draw.gamma(10.0, 0.1, (RUNS, 4))
        pairs = [means[:, i] - means[:, j] for i in range(4) for j in range(i)]
        wrong += any(one.significant for one in paired_differences(pairs))
    yield Row("Holm, 6 pairs of 4 equal (gamma values)", *_wrong(wrong, sets, 0.05))
    few = max(sets // 5, 1)
    orders = ["fcfs", "lcfs", "random"]
    wrong = 0
    for seed in range(1, few + 1):
        told = hs.compare(SERVER, orders, replications=RUNS, metrics=["wait_mean"], seed=seed, workers=1)
        wrong += bool(told.pairs["significant"].any())
    yield Row("compare: any of 3 equal orders is told apart", *_wrong(wrong, few, 0.05))
    wrong, found = 0, []
    for seed in range(1, few + 1):
        best = hs.tune(SERVER, over={"policy.scheduler": orders[1:]}, metric="wait_mean", seed=seed, workers=1)
        wrong += best.difference.significant
        found.append(best.interval)
    yield Row("tune: one of 3 equal orders gains", *_wrong(wrong, few, 0.05))
    share, ends = covering(found, EXACT["wait_mean"])
    yield Row("tune: wait_mean of the winner", *held(share, few, ends))
    yield from _size_figures(few)


def _size_figures(sets: int) -> Iterator[Row]:
    """The target is 2 % beyond what two servers give: that these meet it is wrong, and that three miss it."""
    rate, key = 1.2, "cluster.nodes.0.count"
    arrivals = {"process": "poisson", "rate": f"{rate}/s"}
    scenario = {**SERVER, "workload": [{**SERVER["workload"][0], "arrivals": arrivals, "until": "500 s"}]}
    late = _late(rate, DEADLINE)
    targets = {"wait_mean": f"wait_mean < {0.98 * mmc(rate, 1.0, 2).wait_mean:.6f} s",
               "slo_attainment": f"slo_attainment > {1 - 0.98 * late:.6f}"}  # fmt: skip
    for metric, target in targets.items():
        wrong = 0
        for seed in range(1, sets + 1):
            told = hs.size(scenario, target, key, least=2, most=4, seed=seed, workers=1)
            said = [one for one in told.trials if one.verdict in (MET, MISSED)]
            wrong += any((one.verdict == MET) != (one.size > 2) for one in said)
        yield Row(f"size: a wrong verdict on {metric}", *_wrong(wrong, sets, 0.05))


def _late(rate: float, bound: float) -> float:
    """P(response > bound) of M/M/2 with service of mean 1 s: a wait of 0 or exponential, plus a service."""
    drain = 2 - rate
    waits = rate**2 / 2 / (1 - rate / 2) / (1 + rate + rate**2 / 2 / (1 - rate / 2))
    delayed = (drain * math.exp(-bound) - math.exp(-drain * bound)) / (drain - 1)
    return (1 - waits) * math.exp(-bound) + waits * delayed


def _wrong(count: int, sets: int, promised: float) -> tuple[str, str, bool]:
    """Reached where the rate is not above what is promised by more than two standard errors."""
    share, slack = count / sets, 2 * error_of(promised, sets)
    text = f"{100 * share:.1f} ± {100 * error_of(share, sets):.1f} % wrong"
    return text, f"≤ {100 * promised:g} %", share <= promised + slack
