"""`hetsim.theory.sizes`: orders by size in M/G/1 against other formulas, and against queues played job by job."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from hetsim import theory
from hetsim.errors import UsageError

close = pytest.approx
LAWS = [stats.expon(), stats.gamma(4, scale=0.25), stats.gamma(0.3, scale=3), stats.lognorm(1.2, scale=0.4),
        stats.weibull_min(0.5, scale=0.5), stats.uniform(0.4, 1.1), stats.gamma(400, scale=1 / 400)]  # fmt: skip


def by_quadrature(order, load, law, x):
    """E[T(x)] of a law, by adaptive quadrature of its partial moments."""
    rate = load / law.mean()

    def partial(power, upto):
        points = [q for q in law.ppf([0.01, 0.1, 0.5, 0.9, 0.99]) if q < upto]
        return integrate.quad(lambda t: t**power * law.pdf(t), law.support()[0], upto, points=points or None,
                              limit=400, epsabs=1e-13, epsrel=1e-12)[0]  # fmt: skip

    free = 1 - rate * partial(1, x)
    if order == "sjf":
        return rate * law.moment(2) / 2 / free**2 + x
    if order == "psjf":
        return rate * partial(2, x) / 2 / free**2 + x / free
    cut = partial(2, x) + x * x * law.sf(x)
    if order == "las":
        free -= rate * x * law.sf(x)
        return rate * cut / 2 / free**2 + x / free
    inside = integrate.quad(lambda t: 1 / (1 - rate * partial(1, t)), 0, x, limit=400, epsabs=1e-11, epsrel=1e-10)[0]
    return rate * cut / 2 / free**2 + inside


@pytest.mark.quick(3)
@pytest.mark.parametrize(("law", "order"), [
    pytest.param(law, order, marks=[pytest.mark.slow] * (order == "srpt" and law is not LAWS[1]))  # seconds each
    for law in (LAWS[1], LAWS[3], LAWS[5]) for order in ("srpt", "sjf", "psjf", "las")
])  # fmt: skip
def test_response_by_size_is_the_formula(order, law):
    sizes = law.ppf([0.2, 0.7, 0.99])
    found = getattr(theory, order)(0.8 / law.mean(), law, law.support(), at=sizes)
    assert found.response_by_size == close([by_quadrature(order, 0.8, law, x) for x in sizes], rel=1e-9)


@pytest.mark.quick(1)
@pytest.mark.parametrize("law", LAWS)
def test_orders_rank_and_conserve(law):
    """SRPT is best; at two loads the means lie as Harchol-Balter's chapters 31 to 33 prove."""
    for load in (0.3, 0.9):
        rate = load / law.mean()
        orders = (theory.srpt, theory.psjf, theory.sjf, theory.las)
        srpt, psjf, sjf, las = (order(rate, law, law.support()).response_mean for order in orders)
        scv = law.var() / law.mean() ** 2
        assert srpt <= psjf and srpt <= sjf * (1 + 1e-12) and srpt <= las
        assert sjf <= theory.mg1(rate, law.mean(), scv).response_mean
        assert psjf <= law.mean() / (1 - load) and srpt <= law.mean() / (1 - load)


def test_exponential_sizes_by_closed_forms():
    """Least attained service is as good as sharing where sizes have no memory, whatever the queues."""
    for load in (0.3, 0.8, 0.99):
        for thresholds in ([], [0.5], [0.1, 1, 4, 1e6]):
            found = theory.las(load / 2, stats.expon(scale=2), thresholds=np.array(thresholds))
            assert found.response_mean == close(2 / (1 - load), rel=1e-11)
    one = theory.las(0.4, stats.expon(scale=2), thresholds=[1e9])
    assert one.wait_mean == close(theory.mm1(0.4, 2).wait_mean, rel=1e-12)


def test_classes_of_nearly_one_size_are_priorities():
    """Sizes near 1, 2 and 5: preemptive and plain priorities by class, to what their spread leaves."""
    given = [(0.3, 1.0), (0.1, 2.0), (0.06, 5.0)]
    width = 1e-4
    laws = [stats.uniform(mean - width / 2, width) for _, mean in given]
    rate = sum(one for one, _ in given)

    def density(x):
        return sum(one / rate * law.pdf(x) for (one, _), law in zip(given, laws, strict=True))

    edges = [end for law in laws for end in law.support()]
    classes = [theory.Class(one, mean, 0.0) for one, mean in given]
    for name, solve in (("sjf", theory.nonpreemptive), ("psjf", theory.preemptive_resume)):
        found = getattr(theory, name)(rate, density, edges)
        wanted = solve(classes)
        for law, one in zip(laws, wanted, strict=True):
            low, middle, high = getattr(theory, name)(rate, density, edges, at=law.ppf([0, 0.5, 1])).response_by_size
            assert low < one.response_mean < high
            assert found.response_of(law) == close(middle, rel=0.3)


def played(order, rate, law, thresholds=(), jobs=60_000, seed=1):
    """Mean response and mean slowdown of a queue played event by event."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, jobs))
    sizes = law.rvs(jobs, random_state=rng)
    edges = [*sorted(thresholds), math.inf]
    done, ends, inside, now = np.zeros(jobs), np.zeros(jobs), [], 0.0
    key = {
        "srpt": lambda j: (sizes[j] - done[j], j),
        "psjf": lambda j: (sizes[j], j),
        "las": lambda j: (sum(done[j] >= edge - 1e-12 for edge in edges), j),
    }[order]
    following = 0
    while following < jobs or inside:
        if not inside:
            now, inside, following = arrivals[following], [following], following + 1
        job = min(inside, key=key)
        stop = min([sizes[job], *(edge for edge in edges[:-1] if edge > done[job] + 1e-12)]) - done[job]
        until = arrivals[following] - now if following < jobs else math.inf
        step = min(stop, until)
        done[job] += step
        now += step
        if done[job] >= sizes[job] - 1e-12:
            ends[job] = now
            inside.remove(job)
        if step == until:
            inside.append(following)
            following += 1
    response = ends - arrivals
    parts = np.array([part.mean() for part in np.array_split(response[jobs // 20 :], 30)])
    return parts.mean(), parts.std(ddof=1) / math.sqrt(30)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("order", "more"), [("srpt", {}), ("psjf", {}), ("las", {"thresholds": (0.5, 2.0)})])
def test_a_queue_played_by_hand(order, more):
    law = stats.lognorm(1.0, scale=math.exp(-0.5))
    mean, error = played(order, 0.6, law, **more)
    assert abs(getattr(theory, order)(0.6, law, **more).response_mean - mean) < 4 * error


def test_what_cannot_be_integrated_is_refused():
    for call, said in (
        (lambda: theory.srpt(1.2, stats.expon()), "no steady state"),
        (lambda: theory.sjf(0.5, lambda x: 0.5 * np.exp(-x)), "the density of sizes must have the integral 1; got"),
        (lambda: theory.las(0.5, stats.expon(), thresholds=[0.0]), "above 0"),
        (lambda: theory.psjf(-1, stats.expon()), "rate"),
    ):
        with pytest.raises(UsageError, match=said):
            call()
    assert math.isnan(theory.sjf(0.5, stats.expon()).slowdown_mean)
    assert 1 < theory.srpt(0.5, stats.expon()).slowdown_mean < 2
