"""Servers that fail and are repaired, and servers that sleep when idle.

Servers fail independently, busy or idle, an exponential time after the last repair.
Reference: White and Christie, Queuing with Preemptive Priorities or with Breakdown (1958); Gaver, A Waiting Line with
Interrupted Service, Including Priorities (1962); Mitrany and Avi-Itzhak, A Many-Server Queue with Service Interruptions
(1968); Fuhrmann and Cooper, Stochastic Decompositions in the M/G/1 Queue with Generalized Vacations (1985).
"""

import math

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.levels import Level, PhaseType, _bounded, _inside, _map_levels, is_quick, mphc
from hetsim.theory.prediction import Prediction, not_negative, positive, stable, steady, whole_number

MAX_STAGES = 8  # of a constant set-up, at most
CLOSE = 1e-4  # relative error of a mean wait below which no more stages are tried, and none is stated


def mg1_breakdowns(
    rate: float, service: PhaseType | float, uptime_mean: float, repair_mean: float, repair_scv: float = 1.0
) -> Prediction:
    """M/G/1 with a server that fails; a failure loses the work of the current service.

    service   phases of the service time, or seconds if constant; after a failure a customer restarts the same service
    First come, first served.  `wait_mean` counts until the first start; `utilization` includes the lost work.
    From the first two moments of the completion time C (failures and repairs included), the repair time R, and ξ = 1 /
    uptime: E[T] = E[C] + λ E[C²] / (2 (1 - λ E[C])) + ξ E[R²] / (2 (1 + ξ E[R])).  Exact, means only.
    Raises: UsageError: no steady state, or services so long that E[C²] is infinite.
    """
    positive(rate=rate)
    mean, second = completion(service, uptime_mean, repair_mean, repair_scv)
    fails, square = 1 / uptime_mean, repair_mean**2 * (1 + repair_scv)
    working = mean / (1 + fails * repair_mean)
    stable(rate * mean, 1, "M/G/1 with breakdowns")
    down = fails * square / 2 / (1 + fails * repair_mean)
    wait = rate * second / 2 / (1 - rate * mean) + down
    return Prediction(
        model="M/G/1 with breakdowns, work is lost", load=rate * mean, utilization=rate * working, wait_mean=wait,
        response_mean=wait + mean, queue_length_mean=rate * wait, jobs_in_system_mean=rate * (wait + mean),
        throughput=rate,
    )  # fmt: skip


def completion(
    service: PhaseType | float, uptime_mean: float, repair_mean: float, repair_scv: float = 1.0
) -> tuple[float, float]:
    """First two moments of a service's time from start to end, with failures, repairs.

    Raises: UsageError: services so long that the second moment is infinite.
    """
    positive(uptime_mean=uptime_mean, repair_mean=repair_mean)
    not_negative(repair_scv=repair_scv)
    fails, square = 1 / uptime_mean, repair_mean**2 * (1 + repair_scv)
    if not isinstance(service, PhaseType):
        positive(service_mean=service)
    elif 2 * fails >= _slowest(service):
        raise UsageError("M/G/1 with lost work: the server fails before long services end, so that the mean response "
                         "is infinite; longer uptimes or checkpoints are needed")  # fmt: skip

    def moment(*powers: int) -> float:
        return _divided(service, [power * fails for power in powers])

    working, both = moment(0, 1), moment(0, 1, 2)  # E[(exp(ξS) - 1) / ξ], and half the mean of its square
    second = 2 * moment(1, 1, 2) + 2 * repair_mean * fails * (4 * both - moment(0, 1, 1))
    second += fails * square * working + 4 * (fails * repair_mean) ** 2 * both
    return working * (1 + fails * repair_mean), second


def varies_finitely(service: PhaseType | float, uptime_mean: float) -> bool:
    """Return True if the variance of waits is finite: E[completion time³] is finite."""
    return not isinstance(service, PhaseType) or 3 / uptime_mean < _slowest(service)


def _slowest(service: PhaseType) -> float:
    """Return the rate at which the tail of a service decays."""
    return float(-np.linalg.eigvals(service.generator).real.max())


def _divided(service: PhaseType | float, points: list[float]) -> float:
    """Return the mean divided difference of the function exp(θs) of θ at `points`.

    The mean is over the service time s.  For the points 0 and ξ, the divided difference is (exp(ξs) - 1) / ξ.  To avoid
    cancellation it is computed by linear systems (phases) or by a matrix exponential (constant service; Opitz).
    """
    from scipy.linalg import expm

    if not isinstance(service, PhaseType):
        return float(expm((np.diag(points) + np.eye(len(points), k=1)) * service)[0, -1])
    vector = service.ends
    for point in points:
        vector = np.linalg.solve(-service.generator - point * np.eye(len(vector)), vector)
    return float(service.start @ vector)


def mmc_breakdowns(
    rate: float, service_mean: float, servers: int, uptime_mean: float, repair_mean: float
) -> Prediction:
    """M/M/c with servers that fail; a customer resumes its service on any server.

    Repairs are exponential and in parallel.  `wait_mean` is the response minus the service, interruptions included.
    Exact, means only; the states of the Markov chain are the numbers of customers and of servers that are up.
    Raises: UsageError: no steady state.
    """
    positive(rate=rate, service_mean=service_mean, uptime_mean=uptime_mean, repair_mean=repair_mean)
    whole_number(1, servers=servers)
    servers, name = int(servers), f"M/M/{int(servers)} with breakdowns"
    _bounded(name, servers + 1)
    stable(rate * service_mean * (1 + repair_mean / uptime_mean), servers, name)
    up = np.arange(servers + 1)
    within = np.diag(up[1:] / uptime_mean, -1) + np.diag((servers - up[:-1]) / repair_mean, 1)
    levels = [Level(rate * np.eye(servers + 1), within, np.diag(np.minimum(up, number) / service_mean))
              for number in range(servers + 1)]  # fmt: skip
    inside, _ = _inside(levels, levels[-1])
    return steady(name, rate, service_mean, servers=servers, wait=inside / rate - service_mean)


def mg1_setup(
    rate: float, service_mean: float, service_scv: float, setup_mean: float, setup_scv: float = 0.0,
    sleep_after: float = 0.0,
) -> Prediction:  # fmt: skip
    """M/G/1 with a server that sleeps when idle, and needs a set-up to wake.

    The server sleeps after `sleep_after` idle seconds, and an arrival wakes it.  First come, first served; the set-up
    counts as waiting.  The mean wait exceeds that of M/G/1 by p (E[U] + λ E[U²] / 2) / (1 + λ p E[U]), where U is the
    set-up time, and p = exp(-λ `sleep_after`) is the probability that the first customer after an idle time finds the
    server asleep.  Exact, means only.
    Reference: Levy and Kleinrock, A Queue with Starter and a Queue with Vacations (1986).
    """
    from hetsim.theory.general import mg1

    not_negative(setup_mean=setup_mean, setup_scv=setup_scv, sleep_after=sleep_after)
    asleep, plain = math.exp(-rate * sleep_after), mg1(rate, service_mean, service_scv)
    more = asleep * (setup_mean + rate * setup_mean**2 * (1 + setup_scv) / 2) / (1 + rate * asleep * setup_mean)
    return steady("M/G/1 with set-up", rate, service_mean, servers=1, wait=plain.wait_mean + more)


def mphc_setup(rate: float, service: PhaseType, servers: int, setup: PhaseType | float) -> Prediction:
    """M/PH/c with servers that sleep when idle, and need a set-up to wake.

    setup   phases of the set-up time, or seconds if it is constant

    An arrival that finds a server asleep wakes this server and waits for it, even if another server becomes free
    earlier; so no set-up is aborted.  If no server is asleep the arrival waits for the first free server, without a
    set-up.  First come, first served; the set-up counts as waiting.
    The model is an M/PH/c in which a service begins with the set-up, unless the customer waited for a busy
    server.  Exact if the set-up has phases, means only.  A constant set-up is replaced by 1, 2, ... equal stages, and
    the results are extrapolated by a polynomial in 1 / stages; `error`: sum of the last two changes / wait.
    Raises: UsageError: no steady state, or too many states.
    Reference: Welch, On a Generalized M/G/1 Queuing Process in Which the First Customer of Each Busy Period Receives
    Exceptional Service (1964), for one server; here the chain is solved.
    """
    positive(rate=rate)
    whole_number(1, servers=servers)
    servers, name, error = int(servers), f"M/PH/{int(servers)} with set-up", 0.0
    stable(rate * service.mean, servers, name)
    if isinstance(setup, PhaseType):
        wait = _wait_with_setup(rate, service, servers, setup)
    else:
        not_negative(setup=setup)
        wait, error = (_wait_with_constant_setup(rate, service, servers, setup) if setup
                       else (mphc(rate, service, servers).wait_mean, 0.0))  # fmt: skip
    return steady(name, rate, service.mean, servers=servers, wait=wait, error=error)


def _wait_with_setup(rate: float, service: PhaseType, servers: int, setup: PhaseType) -> float:
    before, after, one = np.zeros(len(setup.start)), np.zeros(len(service.start)), np.eye(1)
    onward = np.block([[setup.onward, np.outer(setup.ends, service.start)], [np.outer(after, before), service.onward]])
    both = PhaseType(np.r_[setup.start, after], onward, np.r_[before, service.ends])
    levels, alike = _map_levels(f"M/PH/{servers} with set-up", 0 * one, rate * one, service=both, servers=servers,
                                waited=np.r_[before, service.start])  # fmt: skip
    return _inside(levels, alike)[0] / rate - service.mean


def _wait_with_constant_setup(rate: float, service: PhaseType, servers: int, setup: float) -> tuple[float, float]:
    row: list[float] = []
    step = error = math.inf
    for stages in range(1, MAX_STAGES + 1):
        if error == CLOSE or (stages > 2 and not quick_setup(service, servers, stages)):
            break
        first, pace = np.eye(stages)[0], stages / setup
        parts = PhaseType(first, np.diag(np.full(stages - 1, pace), 1), pace * first[::-1])
        better = [_wait_with_setup(rate, service, servers, parts)]
        for order, coarse in enumerate(row, 1):
            better.append(better[-1] + (better[-1] - coarse) * (stages - order) / order)
        before, step = (step, abs(better[-1] - row[-1])) if row else (0.0, 0.0)
        row, error = better, max(CLOSE, (before + step) / better[-1]) if row else math.inf
    return row[-1], error


def quick_setup(service: PhaseType, servers: int, stages: int = 2) -> bool:
    """Return True if `mphc_setup` with `stages` set-up phases takes at most about 1 s."""
    return is_quick(math.comb(servers + stages + len(service.start) - 1, servers), servers)
