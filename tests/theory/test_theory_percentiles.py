"""Percentiles of `hetsim.theory` up to a load of 0.9999, against tails computed with 60 digits and more.

A percentile x of share p is right to 1e-9 if the exact tail crosses 1 - p between x (1 - 1e-9) and x (1 + 1e-9).  The
exact tails are written in `decimal` from the models' definitions, of the very floating-point numbers that are given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiers import spread

from hetsim import theory
from hetsim.cli import main as hetsim

Tail = Callable[[Decimal], Decimal]
D = Decimal

SHARES = (0.13, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
ACCURACY = D("1e-9")


@pytest.fixture(autouse=True)
def sixty_digits():
    with localcontext() as context:
        context.prec = 60
        yield


def right(found: float, share: float, tail: Tail) -> bool:
    """Does the exact tail cross 1 - share where the percentile says?"""
    wanted = 1 - D(share)
    if found == 0:
        return tail(D(0)) <= wanted
    return tail(D(found) * (1 - ACCURACY)) >= wanted >= tail(D(found) * (1 + ACCURACY))


def checked(prediction: theory.Prediction | theory.Network, *, wait: Tail | None = None, response: Tail | None = None):
    """Every percentile of the waits and of the responses."""
    for share in SHARES:
        if wait is not None:
            found = prediction.wait_percentile(share)
            assert right(found, share, wait), f"wait p{100 * share:g}: {found!r}"
        if response is not None:
            found = prediction.response_percentile(share)
            assert right(found, share, response), f"response p{100 * share:g}: {found!r}"


def crossing(function: Callable[[Decimal], Decimal], low: Decimal, high: Decimal) -> Decimal:
    """The root of a function that is negative at `low` and positive at `high`, to 50 digits."""
    for _ in range(170):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return low


def exponential_wait(delayed: Decimal, drain: Decimal) -> Tail:
    return lambda t: delayed * (-drain * t).exp()


def exponential_service(delayed: Decimal, drain: Decimal, own: Decimal) -> Tail:
    """Response of a wait that is 0 or exponential, and an exponential service of another rate."""
    if own == drain:
        return lambda t: (1 + delayed * own * t) * (-own * t).exp()
    part = delayed * own / (own - drain)
    return lambda t: (1 - part) * (-own * t).exp() + part * (-drain * t).exp()


def delay_probability(load: Decimal, servers: int) -> Decimal:
    """Erlang's C from its definition."""
    term = total = D(1)
    for k in range(1, servers):
        term *= load / k
        total += term
    last = term * load / servers * servers / (servers - load)
    return last / (total + last)


@pytest.mark.parametrize("load", [0.3, 0.9, 0.99, 0.995, 0.999, 0.9999])
@pytest.mark.parametrize("servers", [1, 2, 16, 200])
@pytest.mark.parametrize("service", [1.0, 0.013])
def test_mmc(load: float, servers: int, service: float):
    rate = load * servers / service
    offered, mu = D(rate) * D(service), 1 / D(service)
    delayed, drain = delay_probability(offered, servers), (servers - offered) * mu
    response = exponential_service(delayed, drain, mu)
    if servers == 1:
        response = exponential_wait(D(1), drain)
    checked(theory.mmc(rate, service, servers), wait=exponential_wait(delayed, drain), response=response)


def test_mm1_that_overflowed():
    """The own service of some hundred means: exp() of the positive exponent was taken before it was divided out."""
    assert theory.mm1(0.995, 1).response_percentile(0.95) == pytest.approx(math.log(20) / 0.005, rel=1e-12)
    assert theory.mm1(0.99, 1).response_percentile(0.99) == pytest.approx(math.log(100) / 0.01, rel=1e-12)


@pytest.mark.parametrize(
    ("load", "servers", "room"), [(0.9999, 1, 150), (0.9999, 4, 60), (0.5, 3, 40), (1.0, 2, 30), (1.7, 1, 20)]
)
def test_mmck(load: float, servers: int, room: int):
    mean = 0.7
    rate = load * servers / mean
    offered = D(rate) * D(mean)
    weights = [D(1)]
    for k in range(1, room):  # who is turned away does not wait
        weights.append(weights[-1] * offered / min(k, servers))
    total = sum(weights)

    def tail(t: Decimal) -> Decimal:
        phase = chance = (-servers / D(mean) * t).exp()
        above = D(0)  # with k there: that fewer than k - c + 1 of the exits have come by t
        for ahead, weight in enumerate(weights[servers:]):
            above += weight * chance
            phase *= servers / D(mean) * t / (ahead + 1)
            chance += phase
        return above / total

    checked(theory.mmck(rate, mean, servers, room), wait=tail)


def erlangs_sum(load: Decimal) -> Callable[[Decimal], Decimal]:
    """P(V > x) of M/D/1 by Erlang's alternating sum, with as many digits as it loses."""

    def tail(x: Decimal) -> Decimal:
        if x < 0:
            return D(1)
        with localcontext() as context:
            context.prec = 60 + int(D("0.5") * x)
            power, step = (load * x).exp(), (-load).exp()
            total, factorial = D(0), D(1)
            for k in range(int(x) + 1):
                total += ((load * (k - x)) ** k if k else 1) / factorial * power
                power *= step
                factorial *= k + 1
            return 1 - (1 - load) * total

    return tail


@pytest.mark.parametrize("load", [0.003, 0.2, 0.6, 0.9, 0.97])
def test_md1_by_erlangs_sum(load: float):
    mean = 3.0
    offered = D(load / mean) * D(mean)
    tail = erlangs_sum(offered)
    found = theory.md1(load / mean, mean)
    checked(found, wait=lambda t: tail(t / D(mean)), response=lambda t: tail(t / D(mean) - 1))


@pytest.mark.parametrize("load", [0.99, 0.999, 0.9999])
def test_md1_near_a_load_of_one(load: float):
    """Erlang's sum up to some thousand services, and beyond the exponential that is all that is left there.

    The two agree to 40 digits where both can be had, so that the exponential is checked too.
    """
    offered = D(load)
    tail = erlangs_sum(offered)
    decay = crossing(lambda z: offered * (z.exp() - 1) - z, (1 - offered) / 2, D(2))
    factor = (1 - offered) / (decay + offered - 1)
    assert abs(tail(D(60)) - factor * (-decay * 60).exp()) < D("1e-40")

    def either(t: Decimal) -> Decimal:
        return tail(t) if t < 300 else factor * (-decay * t).exp()

    checked(theory.md1(load, 1.0), wait=either, response=lambda t: either(t - 1))


@pytest.mark.parametrize("load", [0.2, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("gaps", ["constant", "gamma", "hyperexponential"])
def test_gim1(load: float, gaps: str):
    rate, exact = load, D(load)
    scv = 4.0 if gaps == "gamma" else 3.0
    share = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
    complement, transform = {
        "constant": (lambda s: -math.expm1(-s / rate), lambda s: (-s / exact).exp()),
        "gamma": (
            lambda s: -math.expm1(-math.log1p(s * scv / rate) / scv),
            lambda s: (1 + s * D(scv) / exact) ** (-1 / D(scv)),
        ),
        "hyperexponential": (
            lambda s: sum(p * s / (2 * p * rate + s) for p in (share, 1 - share)),
            lambda s: sum(D(p) * (1 - s / (2 * D(p) * exact + s)) for p in (share, 1 - share)),
        ),
    }[gaps]  # fmt: skip
    free = crossing(lambda free: transform(free) - 1 + free, (1 - exact) / 100, D(1))
    wait, response = exponential_wait(1 - free, free), exponential_wait(D(1), free)
    checked(theory.gim1(rate, 1.0, complement), wait=wait, response=response)


@pytest.mark.parametrize("load", [0.3, 0.9, 0.9999])
@pytest.mark.parametrize("most", [1, 5, 64])
def test_bulk_service(load: float, most: int):
    mean = 0.25
    rate = load * most / mean
    offered, mu = D(rate) * D(mean), 1 / D(mean)
    gap = crossing(lambda g: offered - (1 - (1 - g) ** most) * (1 - g) / g, (1 - D(load)) / 1000, D(1) - D("1e-20"))
    delayed, drain = 1 / (1 / offered + 1 / gap) / gap, (1 - (1 - gap) ** most) * mu
    response = exponential_service(delayed, drain, mu)
    checked(theory.bulk_service(rate, mean, most), wait=exponential_wait(delayed, drain), response=response)


@pytest.mark.parametrize(
    ("rate", "means"),
    [(0.5, (1, 0.5, 0.3)), (0.9999, (1, 0.3)), (0.9999, (1e-3, 1, 1e-5)), (0.9999, (1, 0.9999999, 0.5))],
)
@pytest.mark.slow
def test_tandem(rate: float, means: tuple[float, ...]):
    rates = [1 / D(mean) - D(rate) for mean in means]
    parts = [math.prod((b / (b - a) for b in rates if b != a), start=D(1)) for a in rates]
    tail = lambda t: sum(part * (-a * t).exp() for part, a in zip(parts, rates, strict=True))  # noqa: E731
    checked(theory.tandem(rate, [(mean,) for mean in means]), response=tail)


@pytest.mark.parametrize("load", [0.4, 0.9999, 1.0, 1.8])
@pytest.mark.parametrize("limit", [0.5, 20.0, 200.0])
def test_workload_limit(load: float, limit: float):
    rate, slope = D(load), 1 - D(load)

    def mass(x: Decimal) -> Decimal:
        return rate * x if slope == 0 else rate * (1 - (-slope * x).exp()) / slope

    end = D(limit)
    admitted = 1 + mass(end)

    def wait(t: Decimal) -> Decimal:
        return (mass(end) - mass(min(t, end))) / admitted

    def response(t: Decimal) -> Decimal:
        inner = min(t, end)
        own = (-t).exp() * (1 + (rate * inner).exp() - 1)
        return (own + mass(end) - mass(inner)) / admitted

    checked(theory.workload_limit(load, 1.0, limit), wait=wait, response=response)


@pytest.mark.quick(0)
@pytest.mark.parametrize(
    ("rate", "per_item", "fixed"), spread([(9.0, 0.1, 0.05), (40.0, 0.005, 0.1), (0.5, 0.5, 1.0)], 1)
)
def test_greedy_batches(rate: float, per_item: float, fixed: float):
    """The chain by an elimination without subtractions, and the tails summed up one batch size at a time."""
    size = 700
    times = [per_item * max(n, 1) + fixed for n in range(size)]
    rows = []
    for time in times:
        row = [math.exp(-rate * time)]
        for n in range(1, size):
            row.append(row[-1] * rate * time / n)
        rows.append(row)
    chance = theory.stationary(np.array(rows))
    weights = [D(float(one)) * (max(n, 1)) for n, one in enumerate(chance)]
    sizes = {n: D(float(one)) for n, one in enumerate(chance) if one > 1e-20}
    sizes[1] = sizes[1] + sizes.pop(0)
    served = sum(weights)

    def wait(t: Decimal) -> Decimal:
        own = {n: D(per_item) * n + D(fixed) for n in sizes}
        return sum(one * D(rate) * max(D(0), own[n] - t) for n, one in sizes.items()) / served

    checked(theory.greedy_batches(rate, per_item, fixed), wait=wait)


SCENARIO = """\
name: near a load of one
horizon: 1 h
cluster: {{nodes: [{{cpus: 0, gpus: {{type: a, count: {servers}}}}}]}}
workload:
  - name: tasks
    arrivals: {{process: poisson, rate: {rate}/s}}
    gpu_time: {{distribution: exponential, mean: 1 s}}
"""


@pytest.mark.parametrize(("rate", "servers"), [(0.995, 1), (0.9999, 1), (15.99, 16)])
def test_the_command_answers_near_a_load_of_one(rate: float, servers: int, tmp_path: Path):
    file = tmp_path / "near.yaml"
    file.write_text(SCENARIO.format(rate=rate, servers=servers))
    done = CliRunner().invoke(hetsim, ["theory", str(file), "--json", "--predict-only"])
    assert done.exit_code == 0, done.output
    figures = {one["metric"]: one["predicted"] for one in json.loads(done.stdout)["figures"]}
    expected = theory.mmc(rate, 1, servers)
    assert figures["response_p95"] == expected.response_percentile(0.95)
    assert figures["wait_p95"] == expected.wait_percentile(0.95)
