"""Priority queues: one server, or several with exponential service."""

from collections.abc import Sequence
from typing import NamedTuple

from hetsim.errors import UsageError
from hetsim.theory.erlang import erlang_c
from hetsim.theory.prediction import Prediction, not_negative, positive, stable, steady, whole_number


class Class(NamedTuple):
    """Poisson arrivals of one priority: rate per second, mean service, and its scv."""

    rate: float
    service_mean: float
    service_scv: float = 1.0


def nonpreemptive(classes: Sequence[Class | tuple[float, ...]], servers: int = 1) -> tuple[Prediction, ...]:
    """Non-preemptive priorities, the highest first.

    E[W_k] = W_0 / ((1 - σ_{k-1}) (1 - σ_k)). σ_k is the load of classes 1 to k, and W_0 = Σ λ_i E[S_i²] / 2 the mean
    remaining service that an arrival finds.  With c servers and one exponential service (rate μ) common to all classes,
    W_0 = C(c, a) / (cμ), where C is the Erlang C probability of waiting at load a; for two classes with different
    services, their Markov chain is solved.  Exact, means only.
    Reference: Cobham, Priority Assignment in Waiting Line Problems (1954).
    """
    given = _checked(classes, servers)
    if servers > 1 and given[0].service_mean != given[-1].service_mean:
        return _of_chain("non-preemptive", given, servers)
    total = sum(one.rate * one.service_mean for one in given)
    if servers == 1:
        residual = sum(one.rate * one.service_mean**2 * (1 + one.service_scv) / 2 for one in given)
    else:
        residual = erlang_c(total, servers) * given[0].service_mean / servers
    predictions, above = [], 0.0
    for number, one in enumerate(given, 1):
        here = above + one.rate * one.service_mean / servers
        wait = residual / ((1 - above) * (1 - here))
        predictions.append(_of_class("non-preemptive", number, one, servers=servers, wait=wait))
        above = here
    return tuple(predictions)


def preemptive_resume(classes: Sequence[Class | tuple[float, ...]], servers: int = 1) -> tuple[Prediction, ...]:
    """Preemptive-resume priorities, the highest first; preemption costs no time.

    With one server and σ_k the load of classes 1 to k, E[T_k] = E[S_k] / (1 - σ_{k-1}) + Σ_{i ≤ k} λ_i E[S_i²] / 2 /
    ((1 - σ_{k-1}) (1 - σ_k)).  With several servers and one exponential service common to all, classes 1 to k together
    are an M/M/c; for two classes with different services, their Markov chain is solved.  Exact, means only; `wait_mean`
    is response minus service, suspended time included (the simulator's wait ends at the first start).
    Reference: White and Christie, Queuing with Preemptive Priorities or with Breakdown (1958); Buzen and Bondi, The
    Response Times of Priority Classes under Preemptive Resume in M/M/m Queues (1983).
    """
    given = _checked(classes, servers)
    if servers > 1 and given[0].service_mean != given[-1].service_mean:
        return _of_chain("preemptive-resume", given, servers)
    predictions = []
    above = residual = rates = inside = 0.0
    for number, one in enumerate(given, 1):
        here = above + one.rate * one.service_mean / servers
        if servers == 1:
            residual += one.rate * one.service_mean**2 * (1 + one.service_scv) / 2
            response = one.service_mean / (1 - above) + residual / ((1 - above) * (1 - here))
        else:
            rates += one.rate
            load = rates * one.service_mean
            before, inside = inside, load + erlang_c(load, servers) * load / (servers - load)
            response = (inside - before) / one.rate
        predictions.append(
            _of_class("preemptive-resume", number, one, servers=servers, wait=response - one.service_mean)
        )
        above = here
    return tuple(predictions)


def _of_chain(kind: str, given: list[Class], servers: int) -> tuple[Prediction, ...]:
    from hetsim.theory.levels import two_priorities

    waits = two_priorities(given, servers, preemptive=kind == "preemptive-resume")
    both = enumerate(zip(given, waits, strict=True), 1)
    return tuple(_of_class(kind, number, one, servers=servers, wait=wait) for number, (one, wait) in both)


def _of_class(kind: str, number: int, one: Class, servers: int, wait: float) -> Prediction:
    letters = "M/G/1" if servers == 1 else f"M/M/{servers}"
    return steady(f"{letters} {kind}, class {number}", one.rate, one.service_mean, servers=servers, wait=wait)


def _checked(classes: Sequence[Class | tuple[float, ...]], servers: int) -> list[Class]:
    whole_number(1, servers=servers)
    given = [Class(*one) for one in classes]
    if not given:
        raise UsageError("priorities need at least one class (rate, service_mean, service_scv), the highest first")
    for one in given:
        positive(rate=one.rate, service_mean=one.service_mean)
        not_negative(service_scv=one.service_scv)
    alike = len(given) == 2 or all(one.service_mean == given[0].service_mean for one in given)
    if servers > 1 and not (alike and all(one.service_scv == 1 for one in given)):
        raise UsageError(
            "priorities at several servers are exact only for exponential services and two classes or equal means; "
            "give every class service_scv 1, and either two classes or the same service_mean; or use one server"
        )
    load = 0.0
    for number, one in enumerate(given, 1):
        load += one.rate * one.service_mean
        stable(load, servers, f"class {number}, with all above it,")
    return given
