"""The rows `overload` of `benchmarks.coverage`: clients that come back, give up or hedge, against exact models.

A set is a few short runs of the engine with seeds of their own, and the 95 % interval of their ratio of sums, as
`hetsim run` makes it.  The models, an equal number of sets each:

retrials, 1 and 2       M/M/c where a call that finds no server free comes back after an exponential time: mean response
Erlang-A                M/M/2 whose customers give up after exponential times: the share that does
Erlang-A with retrials  the same, but those that give up come back after an exponential time: mean response
redundancy, 2 and 4     copies of each call at two of 2 or 4 servers, the first to end counts: mean response
hedging                 lognormal times, servers enough that no call waits, and a hedge: the share answered in time
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import hetsim as hs
from benchmarks.measure import Row
from benchmarks.promises import covering, held
from hetsim import theory
from hetsim.engine.simulation import Simulation
from hetsim.model.record import EXPIRED, Record
from hetsim.results.one_run.calls import call_rows
from hetsim.results.one_run.estimands import ratio_contributions
from hetsim.results.statistics import Interval, student_interval

RUNS = 6
"""Runs of a set."""
CV, AFTER, WITHIN = 2.0, 1.0, 2.0
"""Of hedged calls: the coefficient of variation, and the seconds until a hedge and until an answer is late."""
Values = Callable[[Record], tuple[np.ndarray, np.ndarray, str]]
"""Of a run the arrivals of calls, a value of each, and the metric as which its mean is estimated."""


class Setting(NamedTuple):
    """A scenario, from when on calls count, their values, and the exact mean of these."""

    scenario: hs.Scenario
    since: float
    values: Values
    exact: float


def settings() -> dict[str, Setting]:
    """By name, what is run and what is right."""
    wait = {"first": "2 s", "factor": 1, "jitter": "exponential"}
    back = {"clients": {"retry": {"times": 80, "on": ["rejected"], "wait": wait}}}
    refuses = {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 0}}
    impatient = {"patience": {"distribution": "exponential", "mean": "2 s"}}
    returns = {
        "timeout": impatient["patience"],
        "at_timeout": "stay",
        "retry": {"times": 60, "on": ["timeout"], "wait": wait},
    }
    copies = {"clients": {"at_timeout": "cancel", "hedge": {"after": "0 s", "size": "new"}}}
    some = {"clients": {"at_timeout": "cancel", "hedge": {"after": "0 s", "size": "new", "apart": True}}}
    hedged = {"clients": {"hedge": {"after": f"{AFTER} s", "size": "new"}}}
    long = {"distribution": "lognormal", "mean": "1 s", "cv": CV}
    one, two = theory.retrials(0.3, 1, 1, 2), theory.retrials(0.8, 1, 2, 2)
    left, first = theory.mmc_abandonment(2.5, 1.0, 2, 2.0), theory.redundancy(0.8, 1.0, 2, 2)
    again, drawn = theory.retrials(1.3, 1, 2, 2, 2), theory.redundancy(1.6, 1.0, 4, 2)
    in_time = 1 - tail(WITHIN) * tail(WITHIN - AFTER)
    return {
        "retrials, 1 server": _setting(1, 0.3, 240, _responses, one.response_mean, policy=refuses, **back),
        "retrials, 2 servers": _setting(2, 0.8, 100, _responses, two.response_mean, policy=refuses, **back),
        "Erlang-A, 2 servers": _setting(2, 2.5, 40, _left, left.loss, **impatient),
        "Erlang-A with retrials": _setting(2, 1.3, 80, _responses, again.response_mean, clients=returns),
        "redundancy, both servers": _setting(2, 0.8, 160, _responses, first.response_mean, **copies),
        "redundancy, two of 4": _setting(4, 1.6, 80, _responses, drawn.response_mean, policy="fcfs_skip", **some),
        "hedging, lognormal": _setting(100, 10.0, 8, _in_time, in_time, cpu_time=long, **hedged),
    }


def tail(seconds: float) -> float:
    """P(X > seconds) of the times of hedged calls, lognormal with a mean of 1 s."""
    spread = math.log1p(CV * CV)
    return 0.5 * math.erfc((math.log(seconds) + spread / 2) / math.sqrt(2 * spread))


def _setting(
    cpus: int, rate: float, seconds: float, values: Values, exact: float, policy: Any = "fcfs", **entry: Any
) -> Setting:
    """Poisson arrivals for some seconds after a quarter that does not count, and time for the last calls to end.

    The servers are cores, or where copies are apart GPUs, each a type of its own.
    """
    types = policy == "fcfs_skip"
    nodes: Any = [{"gpus": {"type": kind}} for kind in "abcd"[:cpus]] if types else {"cpus": cpus}
    arrivals = {"process": "poisson", "rate": f"{rate}/s"}
    law = {"distribution": "exponential", "mean": "1 s"}
    workload = {"name": "calls", "arrivals": arrivals, "until": f"{1.25 * seconds} s",
                "gpu_time" if types else "cpu_time": law, **entry}  # fmt: skip
    given = {"name": "overload", "horizon": f"{1.25 * seconds + 1000} s", "policy": policy,
             "cluster": {"nodes": nodes}, "workload": [workload]}  # fmt: skip
    return Setting(hs.load(given), seconds / 4, values, exact)


def _responses(record: Record) -> tuple[np.ndarray, np.ndarray, str]:
    calls = call_rows(record)
    assert calls is not None
    return record.input.tasks.arrival[calls.first], calls.response, "response_mean"


def _in_time(record: Record) -> tuple[np.ndarray, np.ndarray, str]:
    arrival, response, _ = _responses(record)
    return arrival, response <= WITHIN, "slo_attainment"


def _left(record: Record) -> tuple[np.ndarray, np.ndarray, str]:
    return record.input.tasks.arrival, record.status == EXPIRED, ""


def interval(setting: Setting, seeds: range) -> Interval:
    """Of the ratio of sums over runs with these seeds."""
    means, counts, metric = [], [], ""
    for seed in seeds:
        arrival, values, metric = setting.values(Simulation(setting.scenario.build(seed)).run())
        counted = values[arrival >= setting.since]
        means.append(float(counted.mean()))
        counts.append(float(len(counted)))
    return student_interval(ratio_contributions(np.array(means), np.array(counts)), metric=metric)


def intervals(sets: int) -> Iterator[tuple[str, float, list[Interval]]]:
    """By model its exact value and its part of the intervals."""
    models = settings()
    for place, (name, setting) in enumerate(models.items()):
        own = sets * (place + 1) // len(models) - sets * place // len(models)
        seeds = (range(1 + RUNS * k, 1 + RUNS * (k + 1)) for k in range(own))
        yield name, setting.exact, [interval(setting, some) for some in seeds]


def overload_figures(sets: int) -> Iterator[Row]:
    """Coverage by model, and of all: sets are divided among the models."""
    shares: list[float] = []
    for name, exact, found in intervals(sets):
        share, ends = covering(found, exact)
        shares.append(share)
        yield Row(name, held(share, len(found), ends)[0])
    yield Row("all of them", *held(float(np.mean(shares)), sets))
