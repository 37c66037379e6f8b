"""Approximations of queueing theory and the errors that they state, against exact M/PH/c and M/D/c."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import hetsim as hs
from hetsim import theory
from hetsim.queueing.facts import Law, law_of, mixed
from hetsim.queueing.matching import match
from hetsim.theory import levels


def two_phases(scv, third=None):
    """Mean 1: chance to begin in the first phase, rates of the phases, chance that the first ends the service."""
    if third is not None:  # hyperexponential with a given third central moment
        second, cube = (1 + scv) / 2, (third + 3 * scv + 1) / 6
        total = (cube - second) / (second - 1)
        apart = math.sqrt(total**2 - 4 * (total - second))
        short, long = (total - apart) / 2, (total + apart) / 2
        return (long - 1) / apart, 1 / short, 1 / long, 1.0
    if scv >= 1:  # hyperexponential, balanced means
        share = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
        return share, 2 * share, 2 * (1 - share), 1.0
    assert scv == 0.5  # Erlang of two stages
    return 1.0, 2.0, 2.0, 0.0


def exact_wait(load, servers, scv, third=None):
    """Mean wait of M/PH/c: a quasi-birth-and-death chain over (number, servers in the first phase), by logarithmic
    reduction (Latouche and Ramaswami, 1993); the levels below c by elimination."""
    share, first, second, out = two_phases(scv, third)
    rate, size = load * servers, servers + 1

    def ups(n):
        return rate * (share * np.eye(n + 1, n + 2, 1) + (1 - share) * np.eye(n + 1, n + 2))

    def downs(n):
        one, other = first * out * np.arange(n + 1), second * np.arange(n, -1, -1)
        return np.diag(one)[:, 1:] + np.diag(other)[:, :-1]

    def local(n):
        inside = np.diag(first * (1 - out) * np.arange(1, n + 1), -1)
        leaving = rate + first * np.arange(n + 1) + second * np.arange(n, -1, -1)
        return inside - np.diag(leaving)

    up = rate * np.eye(size)
    down = downs(servers) @ (share * np.eye(servers, size, 1) + (1 - share) * np.eye(servers, size))
    here = local(servers)
    inverse = np.linalg.inv(-here)
    high, low = inverse @ up, inverse @ down
    reach, pathway = low.copy(), high.copy()
    for _ in range(40):
        back = np.linalg.inv(np.eye(size) - high @ low - low @ high)
        high, low = back @ high @ high, back @ low @ low
        reach, pathway = reach + pathway @ low, pathway @ high
        if np.abs(pathway).max() < 1e-16 or abs(1 - reach.sum(1)).max() < 1e-15:
            break
    ratio = up @ np.linalg.inv(-(here + up @ reach))
    steps, diagonal = [], local(0)
    for n in range(servers):
        steps.append(downs(n + 1) @ np.linalg.inv(-diagonal))
        diagonal = (here + ratio @ down if n + 1 == servers else local(n + 1)) + steps[-1] @ ups(n)
    level = np.linalg.svd(diagonal.T)[2][-1]
    level /= level.sum()
    above = np.linalg.inv(np.eye(size) - ratio)
    total, below = (level @ above).sum(), level
    for step in reversed(steps):
        below = below @ step
        total += below.sum()
    return float((level @ ratio @ above @ above).sum() / total / rate)


def constant_wait(load, servers):
    """Mean wait of M/D/c by Crommelin's chain: what is there a service later is what could not start, and arrivals."""
    rate, places = load * servers, int(8 * servers + 40 / (1 - load))
    numbers = np.arange(places)
    chances = np.exp(numbers * math.log(rate) - rate - np.array([math.lgamma(n + 1) for n in numbers]))
    there = np.eye(1, places)[0]
    for _ in range(20_000):
        waiting = np.append(np.r_[there[: servers + 1].sum(), there[servers + 1 :]], np.zeros(servers))
        new = np.convolve(waiting, chances)[:places]
        if np.abs(new - there).max() < 1e-13:
            break
        there = new / new.sum()
    return float((numbers @ there - rate) / rate)


def test_the_second_opinion_is_exact_where_there_is_a_formula():
    assert exact_wait(0.8, 1, 4.0) == pytest.approx(theory.mg1(0.8, 1, 4).wait_mean, rel=1e-9)
    assert exact_wait(0.8, 1, 0.5) == pytest.approx(theory.mg1(0.8, 1, 0.5).wait_mean, rel=1e-9)
    assert exact_wait(0.7, 5, 1.0 + 1e-12) == pytest.approx(theory.mmc(3.5, 1, 5).wait_mean, rel=1e-4)
    assert constant_wait(0.5, 1) == pytest.approx(theory.md1(0.5, 1).wait_mean, rel=1e-6)


def stated(load, servers, scv, third=math.inf):
    figures = {"arrival_scv": 1, "service_scv": scv, "service_third": third}
    return theory.allen_cunneen(load * servers, 1, servers, **figures)


LOADS = (0.35, 0.5, 0.6, 0.75, 0.9, 0.97)


@pytest.mark.quick(4)
@pytest.mark.parametrize("servers", [2, 4, 8, 16])
@pytest.mark.parametrize("scv", [1.2, 2.0, 4.0, 9.0, 20.0])
def test_exact_waits_are_within_the_stated_error(servers, scv):
    """Hyperexponential service of balanced means, and with third moments from the smallest that there is."""
    smallest = 1.5 * (1 + scv) ** 2 - 3 * scv - 1
    share = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2
    balanced = 0.75 * (1 / share**2 + 1 / (1 - share) ** 2) - 3 * scv - 1
    assert two_phases(scv, balanced) == pytest.approx(two_phases(scv))
    for load in LOADS:
        for third in (balanced, *(smallest * factor for factor in (1.01, 1.5, 3, 10, 50))):
            found, exact = stated(load, servers, scv, third), exact_wait(load, servers, scv, third)
            error = abs(found.wait_mean / exact - 1)
            assert error <= found.error <= stated(load, servers, scv).error, (load, third, error)


@pytest.mark.quick(1)
@pytest.mark.parametrize("servers", [2, 4, 8, 16])
def test_waits_of_regular_services_are_within_the_stated_error(servers):
    """Constant service; Erlang's of two stages; constant or none at all, which waits as constant service does.

    Of the last the arrivals that need something are Poisson, and all wait as they do (scv 3: one in four)."""
    for load in LOADS[:-1]:
        waits = {(0.0, 0.0): constant_wait(load, servers), (0.5, 0.5): exact_wait(load, servers, 0.5)}
        waits[3.0, 6.0] = 4 * waits[0.0, 0.0]  # the chain of the service 4, which a quarter needs
        for (scv, third), exact in waits.items():
            found = stated(load, servers, scv, third)
            assert abs(found.wait_mean / exact - 1) <= found.error, (load, scv)
        constant = stated(load, servers, 0.0, 0.0)
        assert constant.error <= 1.5 * abs(constant.wait_mean / waits[0.0, 0.0] - 1) + 0.002


def simulated_wait(draw, load, servers, steps, runs=1000):
    """Mean wait and the half-width of four standard errors: Kiefer and Wolfowitz's vectors, many runs side by side."""
    rng = np.random.default_rng(11)
    backlog, total = np.zeros((runs, servers)), np.zeros(runs)
    for step in range(-steps // 2, steps):
        if step >= 0:
            total += backlog[:, 0]
        backlog[:, 0] += draw(rng, runs)
        backlog -= rng.exponential(1 / (load * servers), (runs, 1))
        np.maximum(backlog, 0, out=backlog)
        backlog.sort(axis=1)
    return total.mean() / steps, 4 * total.std() / steps / math.sqrt(runs)


def family(name, scv):
    """A way to draw services of mean 1, and their third central moment."""
    two = {"rare": 8 * scv + 4, "even": scv**2 - scv / 2}  # of two constant values
    if name in two:
        skewness = two[name] / scv**1.5
        often = (1 + skewness / math.sqrt(4 + skewness**2)) / 2
        odds, spread = math.sqrt((1 - often) / often), math.sqrt(scv)
        return lambda rng, n: np.where(rng.random(n) < often, 1 - spread * odds, 1 + spread / odds), two[name]
    given = {"lognormal": {"mean": "1 s", "cv": math.sqrt(scv)}, "gamma": {"mean": "1 s", "cv": math.sqrt(scv)},
             "weibull": {"mean": "1 s", "shape": 0.6 if scv > 1 else 1.4},
             "pareto": {"low": "0.1 s", "high": "10 s" if scv < 3 else "100 s", "shape": 1.1}}  # fmt: skip
    service = {"distribution": name, **given[name]}
    arrivals = {"process": "poisson", "rate": "1/s"}
    times = busy(0.5, 2, workload={"arrivals": arrivals, "gpu_time": service}).model.workload[0].gpu_time
    return lambda rng, n: times.sample(rng, n) / times.mean, law_of(times)


def law_and_draw(name, scv):
    draw, third = family(name, scv)
    return draw, *((third.scv, third.third) if isinstance(third, Law) else (scv, third))


def check_the_stated_error(name, scv, load, servers, steps):
    draw, scv, third = law_and_draw(name, scv)
    found = stated(load, servers, scv, third)
    mean, width = simulated_wait(draw, load, servers, steps)
    assert abs(found.wait_mean - mean) - width <= found.error * mean, (found.wait_mean / mean - 1, found.error)
    return found.wait_mean / mean - 1, found.error


@pytest.mark.slow
def test_the_third_moment_decides_how_far_the_formula_is_off():
    """Lognormal service with an scv of 9 on 8 servers at a load of 0.7: 80 % too long; gamma-distributed: 10 %."""
    error, bound = check_the_stated_error("lognormal", 9.0, 0.7, 8, 600)
    assert 0.6 < error < bound
    error, bound = check_the_stated_error("gamma", 9.0, 0.7, 8, 600)
    assert error < 0.25 and bound < 0.8


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["rare", "even", "lognormal", "gamma", "weibull", "pareto"])
@pytest.mark.parametrize("scv", [0.5, 2.0, 9.0])
def test_simulated_waits_are_within_the_stated_error(name, scv):
    for servers in (2, 8):
        for load in (0.5, 0.7, 0.8):
            check_the_stated_error(name, scv, load, servers, 4000)


@pytest.mark.slow
def test_the_third_moments_of_services_are_those_of_what_is_drawn():
    rng = np.random.default_rng(5)
    for name, scv in (("lognormal", 0.3), ("gamma", 0.7), ("weibull", 0.5), ("weibull", 2.0), ("pareto", 2.0)):
        draw, scv, third = law_and_draw(name, scv)
        values = draw(rng, 4_000_000) - 1
        assert (values**2).mean() == pytest.approx(scv, rel=0.02)
        assert (values**3).mean() == pytest.approx(third, rel=0.08), name
    constant, exponential = Law(2.0, 0.0, "constant"), Law(2.0, 1.0, "exponential", 2.0)
    erlang = exponential.times(3).plus(exponential.times(3)).plus(constant)
    assert (erlang.mean, erlang.scv, erlang.third) == pytest.approx((14, 72 / 14**2, 2 * 2 * 6**3 / 14**3))
    branches = mixed([(3, exponential), (1, exponential.times(5)), (0, constant)])
    direct = [sum(w * math.factorial(k) * m**k for w, m in ((0.75, 2), (0.25, 10))) for k in (1, 2, 3)]
    central = direct[2] - 3 * direct[0] * direct[1] + 2 * direct[0] ** 3
    assert (branches.mean, branches.third) == pytest.approx((direct[0], central / direct[0] ** 3))
    unknown = Law(1.0, 2.0, "general", math.inf)
    assert unknown.plus(constant).third == mixed([(1, unknown), (1, constant)]).third == math.inf


def busy(load, scv, **changes):
    times = {"distribution": "hyperexponential", "mean": "1 s", "cv": math.sqrt(scv)}
    return hs.load({
        "name": "eight", "horizon": "1 h", "warmup": "5 min",
        "cluster": {"nodes": [{"gpus": {"type": "g", "count": 8}}]},
        "workload": {"arrivals": {"process": "poisson", "rate": f"{8 * load}/s"}, "gpu_time": times},
    } | changes)  # fmt: skip


@pytest.mark.parametrize(
    ("load", "scv", "near"),
    [(0.5, 9, False), (0.8, 9, False), (0.8, 1.5, False), (0.95, 2, True), (0.6, 2, False)],
)
def test_nearly_is_said_of_errors_up_to_a_tenth_only(load, scv, near, monkeypatch):
    exact = exact_wait(load, 8, scv)
    error = stated(load, 8, scv).wait_mean / exact - 1
    assert next(row.value for row in match(busy(load, scv)).rows) == pytest.approx(exact, rel=1e-9)
    monkeypatch.setattr(levels, "MAX_WORK", 600)  # as if the exact chain were too large
    found = match(busy(load, scv))
    assert found.model == "M/G/8 (Allen and Cunneen)" and found.rows
    assert (found.verdict == "nearly") == near and error <= found.formula_error


def test_nearly_is_not_said_where_the_third_moment_is_not_known():
    """Services drawn from a table have no third moment here; the same two moments of a known family are near."""
    values = {"distribution": "empirical", "values": ["0.5 s", "0.5 s", "0.5 s", "2.5 s"]}
    table = match(busy(0.95, 2, workload={"arrivals": {"process": "poisson", "rate": "7.6/s"}, "gpu_time": values}))
    gamma = {"distribution": "gamma", "mean": "1 s", "cv": math.sqrt(0.75)}
    known = match(busy(0.95, 2, workload={"arrivals": {"process": "poisson", "rate": "7.6/s"}, "gpu_time": gamma}))
    assert (table.verdict, known.verdict) == ("approximation", "nearly")
    assert table.formula_error == pytest.approx(0.75)


def test_an_error_that_is_not_known_is_not_near():
    """An exponential formula for a general service, and arrivals that are not Poisson."""
    limit = {"policy": {"scheduler": "fcfs", "admission": {"name": "queue_limit", "limit": 3}}}
    bursts = {"workload": {"arrivals": {"process": "renewal", "rate": "7/s", "scv": 2}, "gpu_time": "1 s"}}
    for changes in (limit, bursts):
        found = match(busy(0.9, 2, **changes))
        assert (found.verdict, found.error) == ("approximation", math.inf) and found.rows


def test_a_transient_is_as_large_as_is_stated():
    """M/M/1 from empty at load 0.5, the mean number over time by uniformization; the stated error is no smaller."""
    from hetsim.queueing.facts import Facts

    chain = np.diag(np.full(60, 0.5), 1) + np.diag(np.full(60, 1.0), -1)
    chain += np.diag(1.5 - chain.sum(1))
    state, numbers, mean = np.eye(1, 61)[0], np.arange(61), []
    for _ in range(300):
        mean.append(numbers @ state)
        state = state @ chain / 1.5
    relaxation = 1 / (1 - math.sqrt(0.5)) ** 2
    for warm, lasts in ((0, 100), (10, 60), (20, 200)):
        steps = [round(1.5 * end) for end in (warm, lasts)]
        exact = 1 - np.mean(mean[slice(*steps)])
        one = {"workload": {"arrivals": {"process": "poisson", "rate": "0.5/s"}, "gpu_time": "1 s"},
               "warmup": f"{warm} s", "horizon": f"{lasts} s"}  # fmt: skip
        assert exact <= Facts(busy(0.5, 2, **one)).transient(relaxation) * 1.02


@pytest.mark.slow
def test_the_table_of_the_documentation_is_what_comes_out():
    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) \|((?: [+−]?\d+ % \|){6})", page, re.MULTILINE)
    assert len(rows) == 18
    for scv, servers, cells in ((float(scv), int(servers), cells) for scv, servers, cells in rows):
        for load, cell in zip((0.3, 0.5, 0.7, 0.8, 0.9, 0.95), re.findall(r"[+−]?\d+", cells), strict=True):
            exact = exact_wait(load, servers, scv) if scv else constant_wait(load, servers)
            error = theory.allen_cunneen(load * servers, 1, servers, 1, scv).wait_mean / exact - 1
            assert float(cell.replace("−", "-")) == pytest.approx(100 * error, abs=0.51), (scv, servers, load)


@pytest.mark.slow
def test_the_square_root_rule_is_as_near_as_it_says():
    loads, shares = np.geomspace(0.5, 5000, 60), (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.95)
    every = [theory.halfin_whitt(load, 1, share) for load in loads for share in shares]
    away = np.array([abs(one.servers - one.exact_servers) for one in every])
    assert away.max() == 2 and (away <= 1).mean() == pytest.approx(0.87, abs=0.005)
