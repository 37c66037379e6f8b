"""Queues whose arrivals, services or servers have phases, level by level.

A level is a number of customers in the system; at each level the chain has a state for each phase.  All levels with at
least as many customers as servers have the same rates (a quasi-birth-and-death process), and the stationary
distribution is matrix-geometric:  π(n + 1) = π(n) R.  R is computed by logarithmic reduction: ten steps are as accurate
as 1,000 steps of the plain iteration.
Reference: Neuts, Matrix-Geometric Solutions in Stochastic Models (1981); Latouche and Ramaswami, A Logarithmic
Reduction Algorithm for Quasi-Birth-Death Processes (1993).
"""

import math
from collections.abc import Sequence
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from hetsim.errors import UsageError
from hetsim.theory.prediction import Prediction, not_negative, positive, stable, steady, whole_number
from hetsim.theory.queues import stationary

Floats = np.ndarray
MAX_PHASES = 1_000  # states of a level, at most: 500 take about a second
MAX_WORK = 2_000_000  # servers × states² up to which a chain is solved within about a second
# maximum states per level for distributions: each point needs an exponential of a matrix of this size
MAX_TAIL_PHASES = 120


class Level(NamedTuple):
    """Transition rates out of the states of a level: upward, within it, and downward."""

    up: Floats
    within: Floats  # the diagonal is ignored
    down: Floats


class PhaseType(NamedTuple):
    """The time until a chain of phases ends; the first phase is i with P = `start[i]`."""

    start: Floats
    onward: Floats  # rates from phase to phase; the diagonal is ignored
    ends: Floats  # rates of absorption (the end), by phase

    @property
    def generator(self) -> Floats:
        """Rates between the phases; the diagonal is minus the total rate out of a phase."""
        return _generator(self.onward, self.ends)

    @property
    def mean(self) -> float:
        return float(self.start @ np.linalg.solve(-self.generator, np.ones(len(self.start))))


def phase_type(start: Sequence[float], onward: Sequence[Sequence[float]], ends: Sequence[float]) -> PhaseType:
    """A phase-type distribution: the time until a chain of phases ends.

    start   probabilities of the first phase
    onward  rates from phase i to phase j, one row per phase; 0 on the diagonal
    ends    rate of ending in each phase

    Erlang-2 with mean 1 is `phase_type([1, 0], [[0, 2], [0, 0]], [0, 2])`, a hyperexponential distribution
    `phase_type([0.3, 0.7], [[0, 0], [0, 0]], [0.5, 4])`.
    Raises: UsageError: the rates are not those of a chain, or it may never end.
    """
    first, moves, exits = (np.array(one, dtype=float) for one in (start, onward, ends))
    size = len(first)
    if moves.shape != (size, size) or exits.shape != (size,) or not size:
        raise UsageError(f"phases: {size} phases need a {size} x {size} matrix `onward` and {size} values of `ends`")
    if not all(np.isfinite(one).all() and (one >= 0).all() for one in (first, moves, exits)) or moves.diagonal().any():
        raise UsageError("phases: probabilities and rates must be at least 0, and the diagonal of onward must be 0")
    if not math.isclose(first.sum(), 1.0, rel_tol=1e-9):
        raise UsageError(f"phases: the probabilities of start must sum to 1; got {first.sum():g}")
    reaches = exits > 0
    for _ in range(size):
        reaches = reaches | ((moves > 0) & reaches).any(axis=1)
    if not reaches.all():
        phase = int(np.argmin(reaches)) + 1
        raise UsageError(f"phases: phase {phase} cannot reach the end; give it, or a phase after it, a rate in ends")
    return PhaseType(first, moves, exits)


def mphc(rate: float, service: PhaseType, servers: int) -> Prediction:
    """M/PH/c, first come first served: Poisson arrivals, phase-type service.

    Exact; a state of a level is the numbers of servers in each phase: C(c + m - 1, m - 1) states for m phases, at most
    1,000.  With up to 120 states distributions are available, too: P(W > t) = π(c) exp(Mt) (I - R)^-1 1 with M = λ
    (I - R^-1), because at each instant of a wait the number of customers ahead is matrix-geometric.
    Raises: UsageError: no steady state, or too many states.
    """
    positive(rate=rate)
    whole_number(1, servers=servers)
    return _map_phc(f"M/PH/{int(servers)}", np.zeros((1, 1)), np.full((1, 1), rate), service=service,
                    servers=int(servers))  # fmt: skip


def mmpp_mc(
    rates: Sequence[float], switching: Sequence[Sequence[float]], service_mean: float, servers: int
) -> Prediction:
    """MMPP/M/c: arrivals at `rates[state]`, exponential service.

    switching   transition rates from state i to state j, one row per state; 0 on the diagonal
    First come, first served.  Figures are averages over customers: `delayed` is the share of arrivals, most of which
    arrive while the rate is high.
    Exact, distributions included: P(W > t) = π(c) (I - R)^-1 exp(-cμ (I - R) t) a, where R is the rate matrix and π(c)
    the vector of probabilities of c customers (by state), μ = 1 / service_mean, and a contains each state's arrival
    rate divided by the mean rate.
    Raises: UsageError: no steady state, or a chain that is not irreducible.
    Reference: Fischer and Meier-Hellstern, The Markov-modulated Poisson Process (MMPP) Cookbook (1993).
    """
    positive(service_mean=service_mean)
    whole_number(1, servers=servers)
    arrive, switch, servers = np.array(rates, dtype=float), np.array(switching, dtype=float), int(servers)
    not_negative(**{f"rate_{number + 1}": float(one) for number, one in enumerate(arrive)})
    if switch.shape != (len(arrive), len(arrive)):
        raise UsageError(f"switching must be a {len(arrive)} x {len(arrive)} matrix, as rates has {len(arrive)} values")
    service = phase_type([1], [[0]], [1 / service_mean])
    return _map_phc(f"MMPP/M/{servers}", switch, np.diag(arrive), service=service, servers=servers)


def map_phc(
    switching: Sequence[Sequence[float]] | Floats, arriving: Sequence[Sequence[float]] | Floats, service: PhaseType,
    servers: int,
) -> Prediction:  # fmt: skip
    """MAP/PH/c: a Markovian arrival process, phase-type service.

    switching   transition rates from state i to j without an arrival; the diagonal is ignored
    arriving    transition rates from state i to j with an arrival, including j = i

    For independent gaps between arrivals with the distribution `gaps` (a `PhaseType`), use `switching=gaps.onward,
    arriving=outer(gaps.ends, gaps.start)`.
    First come, first served.  Averages are over customers; `delayed` is the share of customers that wait.
    Exact; means only, unless service is exponential.  The state of the arrivals and the numbers of servers in each
    service phase may have at most 1,000 combinations.
    Raises: UsageError: no steady state, too many states, or a chain that is not irreducible.
    Reference: Lucantoni, New Results on the Single Server Queue with a Batch Markovian Arrival Process (1991).
    """
    whole_number(1, servers=servers)
    switch, arrive = np.array(switching, dtype=float), np.array(arriving, dtype=float)
    if switch.ndim != 2 or switch.shape != arrive.shape or switch.shape[0] != switch.shape[1]:
        raise UsageError("a Markovian arrival process must be two square matrices of the same size")
    switch = switch - np.diag(switch.diagonal())
    if not all(np.isfinite(one).all() and (one >= 0).all() for one in (switch, arrive)):
        raise UsageError("rates of a Markovian arrival process must be at least 0")
    return _map_phc(f"MAP/PH/{int(servers)}", switch, arrive, service=service, servers=int(servers))


def _map_phc(name: str, switch: Floats, arrive: Floats, service: PhaseType, servers: int) -> Prediction:
    levels, alike = _map_levels(name, switch, arrive, service=service, servers=servers)
    shares = stationary(switch + arrive)
    if not shares.all():
        raise UsageError(f"{name}: state {int(np.argmin(shares)) + 1} is transient; leave it out")
    rate = float((shares @ arrive).sum())
    positive(mean_rate=rate)
    stable(rate * service.mean, servers, name)
    chances, powers = _solved(levels, alike)
    drain = -servers / service.mean * (np.eye(len(powers)) - powers) if len(service.start) == 1 else None
    if drain is None and len(arrive) == 1:  # λ (I - R^-1), without an inverse
        drain = _generator(alike.within, alike.down.sum(axis=1)) + powers @ alike.down
    arrivals = np.kron(arrive.sum(axis=1), np.ones(len(powers) // len(arrive))) / rate
    return _waits(name, rate, service, servers=servers, first=chances[-1], powers=powers, drain=drain,
                  arrivals=arrivals)  # fmt: skip


def _map_levels(
    name: str, switch: Floats, arrive: Floats, service: PhaseType, servers: int, waited: Floats | None = None
) -> tuple[list, Level]:
    """Return levels for 0 to `servers` customers, and a level for all larger numbers.

    `waited`: probabilities of the first phase for customers that had to wait, if they differ from `service.start`.
    """
    phases, still = len(service.start), np.eye(len(arrive))
    _bounded(name, len(arrive) * states_of(service, servers))
    states = [_occupancies(busy, phases) for busy in range(servers + 1)]
    idle = np.zeros((phases + 1, phases + 1))
    begins, goes_on, ends, taken_up = idle.copy(), idle.copy(), idle.copy(), idle.copy()
    begins[-1, :-1], goes_on[:-1, :-1], ends[:-1, -1] = service.start, service.onward, service.ends
    next_start = service.start if waited is None else waited
    taken_up[:-1, :-1] = np.outer(service.ends, next_start)  # where customers wait, an end begins the next service

    def level(up: Floats, within: Floats, down: Floats) -> Level:
        here = np.eye(len(within))
        return Level(np.kron(arrive, up), np.kron(still, within) + np.kron(switch, here), np.kron(still, down))

    last = states[-1]
    levels = [level(_moves(here, above, begins), _moves(here, here, goes_on), _moves(here, below, ends))
              for below, here, above in zip([states[0], *states], states, states[1:], strict=False)]  # fmt: skip
    busy = _moves(last, last, goes_on)
    first = level(np.eye(len(last)), busy, _moves(last, states[-2], ends))
    return [*levels, first], level(np.eye(len(last)), busy, _moves(last, last, taken_up))


def unlike_servers(rate: float, kinds: Sequence[tuple[float, int]]) -> Prediction:
    """M/M/c of unlike servers: customers start on the first kind with a free server.

    kinds   mean service and number of servers of each kind, in order of preference, for example fastest first

    First come, first served; a customer remains on its server.  Exact; a state is the numbers of busy servers by kind.
    Raises: UsageError: no steady state, or too many states.
    Reference: Gumbel, Waiting Lines with Heterogeneous Servers (1960); Singh, Two-Server Markovian Queues with
    Balking: Heterogeneous vs. Homogeneous Servers (1970).
    """
    positive(rate=rate)
    if not kinds:
        raise UsageError("servers must have at least one type, as (mean service, number)")
    for mean, count in kinds:
        positive(service_mean=mean)
        whole_number(1, servers=count)
    means, counts = np.array([mean for mean, _ in kinds], dtype=float), tuple(int(count) for _, count in kinds)
    servers, capacity = sum(counts), float((counts / means).sum())
    name = f"M/M/{servers} of unlike servers"
    stable(rate / capacity * servers, servers, name)
    states: list[dict[tuple[int, ...], int]] = [{} for _ in range(servers + 1)]
    for state in product(*(range(count + 1) for count in counts)):
        states[sum(state)][state] = len(states[sum(state)])
    _bounded(name, max(map(len, states)))
    levels = []
    for below, here, above in zip([{}, *states], states, [*states[1:], {}], strict=False):
        level = Level(*(np.zeros((len(here), len(there))) for there in (above or here, here, below)))
        for state, number in here.items():
            for kind, busy in enumerate(state):
                if busy:
                    level.down[number, below[_with(state, kind, busy - 1)]] = busy / means[kind]
            if above:
                kind = next(kind for kind, count in enumerate(counts) if state[kind] < count)
                level.up[number, above[_with(state, kind, state[kind] + 1)]] = rate
        levels.append(level)
    alike = Level(np.full((1, 1), rate), np.zeros((1, 1)), np.full((1, 1), capacity))
    chances, powers = _solved([*levels[:-1], levels[-1]._replace(up=alike.up)], alike)
    ratio, delayed = float(powers[0, 0]), float(chances[-1][0]) / (1 - float(powers[0, 0]))
    busy_mean = delayed * servers + sum(n * float(chance.sum()) for n, chance in enumerate(chances[:-1]))
    waiting, drain = delayed * ratio / (1 - ratio), capacity - rate
    return Prediction(
        model=name, load=rate / capacity, utilization=busy_mean / servers, wait_mean=waiting / rate,
        response_mean=(waiting + busy_mean) / rate, queue_length_mean=waiting, jobs_in_system_mean=waiting + busy_mean,
        throughput=rate, delayed=delayed, wait_above=lambda t: delayed * math.exp(-drain * t),
    )  # fmt: skip


def two_priorities(classes: Sequence[Sequence[float]], servers: int, preemptive: bool) -> list[float]:
    """Return the mean waits of two priority classes with exponential service.

    classes: (arrival rate, mean service) of the higher class, then of the lower class.

    A level is the number of lower-class customers in the system, or, without preemption, the number of these that wait.
    The queue of the higher class is cut off at a length with a probability below 1e-14.
    """
    longest, edge = _longest(classes[0], servers), 1.0
    while edge > 1e-14:
        _bounded(f"two priorities at {servers} servers", longest if preemptive else (servers + 1) * longest)
        waits, edge = (_preempting if preemptive else _waiting)(classes, servers, longest)
        longest += longest // 4
    return waits


def _longest(higher: Sequence[float], servers: int) -> int:
    return servers + math.ceil(-34 / math.log(higher[0] * higher[1] / servers))


def are_quick(classes: Sequence[Sequence[float]], servers: int, preemptive: bool) -> bool:
    """Return True if `two_priorities` takes at most about a second."""
    longest = _longest(classes[0], servers)
    return is_quick(longest if preemptive else (servers + 1) * longest, servers)


def _preempting(classes: Sequence[Sequence[float]], servers: int, longest: int) -> tuple[list[float], float]:
    """Return mean waits, and the probability of `longest` higher-class customers."""
    (high, first), (low, second) = (one[:2] for one in classes)
    number = np.arange(longest + 1)
    within = np.diag(np.full(longest, high), 1) + np.diag(np.minimum(number[1:], servers) / first, -1)
    free = servers - np.minimum(number, servers)
    levels = [Level(low * np.eye(longest + 1), within, np.diag(np.minimum(free, served) / second))
              for served in range(servers + 1)]  # fmt: skip
    inside, by_state = _inside(levels, levels[-1])
    return [float(by_state @ number) / high - first, inside / low - second], by_state[-1]


def _waiting(classes: Sequence[Sequence[float]], servers: int, longest: int) -> tuple[list[float], float]:
    """Return mean waits by class, and P(higher-class queue is at its cap `longest`)."""
    (high, first), (low, second) = (one[:2] for one in classes)
    full = {(busy, line): n for n, (busy, line) in enumerate(product(range(servers + 1), range(longest + 1)))}
    idle = {(i, j): len(full) + n for n, (i, j) in enumerate(
        (i, j) for i, j in product(range(servers), repeat=2) if i + j < servers)}  # fmt: skip
    size, total = len(full), len(full) + len(idle)
    within, down, ground = np.zeros((size, size)), np.zeros((size, size)), np.zeros((total, total))
    for (busy, line), here in full.items():
        if line < longest:
            within[here, full[busy, line + 1]] = high
        for gone, rate in ((1, busy / first), (0, (servers - busy) / second)):
            if rate and line:  # the first of the higher class is next
                within[here, full[busy - gone + 1, line - 1]] += rate
            elif rate:  # one of the lower class is, or a server stays free
                down[here, full[busy - gone, 0]] += rate
                ground[here, idle[busy - gone, servers - busy - 1 + gone]] += rate
    for (i, j), here in idle.items():
        for more, rate in (((i + 1, j), high), ((i, j + 1), low)):
            ground[here, idle[more] if sum(more) < servers else full[more[0], 0]] += rate
        for less, rate in (((i - 1, j), i / first), ((i, j - 1), j / second)):
            ground[here, idle.get(less, here)] += rate  # no service of none ends
    ground[:size, :size] = within
    enter = np.vstack([low * np.eye(size), np.zeros((len(idle), size))])
    alike = Level(low * np.eye(size), within, down)
    to_ground = np.hstack([down, np.zeros((size, len(idle)))])
    inside, by_state = _inside([Level(enter, ground, np.zeros((total, 1))), alike._replace(down=to_ground)], alike)
    lines = np.array([line for _, line in full])
    return [float(by_state[:size] @ lines) / high, inside / low], by_state[:size][lines == longest].sum()


def _with(state: tuple[int, ...], kind: int, busy: int) -> tuple[int, ...]:
    return (*state[:kind], busy, *state[kind + 1 :])


def states_of(service: PhaseType, servers: int) -> int:
    """Return the number of ways in which busy servers can be in phases of `service`."""
    return math.comb(servers + len(service.start) - 1, servers)


def is_quick(states: int, servers: int) -> bool:
    """Return True if a chain of this size can be solved in at most about a second."""
    return servers * states**2 <= MAX_WORK


def modulation(rates: Sequence[float], switching: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the excess dispersion of modulated arrivals, and their relaxation time.

    rates: arrival rate in each state of a Markov chain; switching: rates from state to state.  The first result is the
    long-run index of dispersion of counts, minus 1 (that of Poisson arrivals); the second is the states' longest
    relaxation time.
    """
    arrive, switch = np.array(rates, dtype=float), np.array(switching, dtype=float)
    shares, generator = stationary(switch), _generator(switch, np.zeros(len(switch)))
    rate = shares @ arrive
    deviation = np.linalg.inv(np.outer(np.ones(len(switch)), shares) - generator)
    more = 2 * (shares * arrive @ deviation @ arrive - rate**2) / rate
    return max(0.0, float(more)), float(1 / -np.sort(np.linalg.eigvals(generator).real)[-2])


def _bounded(name: str, states: int) -> None:
    if states > MAX_PHASES:
        raise UsageError(f"{name} must have at most {MAX_PHASES:,} states per level; got {states:,}")


def _generator(within: Floats, leaving: Floats) -> Floats:
    return within - np.diag(within.sum(axis=1) + leaving)


def _occupancies(busy: int, phases: int) -> Floats:
    bars = np.array(list(combinations(range(busy + phases - 1), phases - 1)), dtype=int)
    ends = np.full((len(bars), 1), -1)
    return np.diff(np.hstack([ends, bars, ends + busy + phases]), axis=1) - 1


def _moves(states: Floats, to: Floats, rates: Floats) -> Floats:
    """Return rates from the states of one level (rows) to those of another (columns).

    A state is the number of servers in each phase.  A server moves from phase i to j at `rates[i, j]`; the last row and
    column of `rates` are for idle servers.
    """
    flows, phases = np.zeros((len(states), len(to))), states.shape[1]
    place = {tuple(state): number for number, state in enumerate(to.tolist())}
    one, busy = np.eye(phases + 1, phases, dtype=int), np.hstack([states, np.ones((len(states), 1), dtype=int)])
    for i, j in zip(*np.nonzero(rates), strict=True):
        can = np.flatnonzero(busy[:, i])
        reached = (states[can] - one[i] + one[j]).tolist()
        flows[can, [place[tuple(state)] for state in reached]] += busy[can, i] * rates[i, j]
    return flows


def _solved(levels: list[Level], alike: Level) -> tuple[list[Floats], Floats]:
    """Return π of each of `levels`, and the matrix R of all levels above.

    alike: transition rates of every level above; `alike.down` leads to the next level below.  In `levels`, π(n + 1) =
    π(n) R(n), with R(n) computed downward; π(0) is stationary for the chain that is observed only while on level 0.
    """
    powers = alike.up @ np.linalg.inv(-_generator(alike.within, alike.up.sum(axis=1) + alike.down.sum(axis=1))
                                      - alike.up @ _first_passage(alike))  # fmt: skip
    returns, steps = powers @ alike.down, []
    for below, level in zip(levels[-2::-1], levels[:0:-1], strict=True):
        leaving = level.up.sum(axis=1) + level.down.sum(axis=1)
        step = below.up @ np.linalg.inv(-_generator(level.within, leaving) - returns)
        steps.append(step)
        returns = step @ level.down
    chances = [stationary(np.maximum(levels[0].within + returns, 0)) if len(levels[0].within) > 1 else np.ones(1)]
    for step in reversed(steps):
        chances.append(chances[-1] @ step)
    beyond = chances[-1] @ powers @ np.linalg.inv(np.eye(len(powers)) - powers)
    total = math.fsum(float(one.sum()) for one in (*chances, beyond))
    return [one / total for one in chances], powers


def _inside(levels: list[Level], alike: Level) -> tuple[float, Floats]:
    chances, powers = _solved(levels, alike)
    apart, last = np.eye(len(powers)) - powers, len(levels) - 1
    beyond = np.linalg.solve(apart.T, powers.T @ chances[-1])  # all above the last level
    more = float(np.linalg.solve(apart.T, beyond).sum())  # how far above it
    mean = sum(number * float(one.sum()) for number, one in enumerate(chances)) + last * float(beyond.sum()) + more
    by_state = np.zeros(max(map(len, [*chances, beyond])))
    for one in [*chances, beyond]:
        by_state[: len(one)] += one
    return mean, by_state


def _first_passage(alike: Level) -> Floats:
    """Return matrix G: P(first state reached in the level below), by present state."""
    one = np.eye(len(alike.within))
    stay = -_generator(alike.within, alike.up.sum(axis=1) + alike.down.sum(axis=1))
    up, down = _both(stay, alike.up, alike.down)
    passage, climbed = down, up
    for _ in range(64):
        both = one - up @ down - down @ up
        up, down = _both(both, up @ up, down @ down)
        more = climbed @ down
        passage, climbed = passage + more, climbed @ up
        if more.max() < 1e-9:  # what is left is about its square
            break
    return passage


def _both(matrix: Floats, first: Floats, second: Floats) -> list[Floats]:
    return np.hsplit(np.linalg.solve(matrix, np.hstack([first, second])), 2)


def _waits(
    name: str, rate: float, service: PhaseType, servers: int, first: Floats, powers: Floats, drain: Floats | None,
    arrivals: Floats,
) -> Prediction:  # fmt: skip
    """Return steady-state metrics of the queue, from its matrix-geometric solution.

    P(W > t) = π(c) exp(`drain` t) (I - R)^-1 `arrivals`.  `first`: π(c).  `powers`: R.  `arrivals`: arrival rate of
    each state divided by the mean rate.  If `drain` is None, only means are returned.
    """
    from scipy.linalg import expm

    size = len(powers)
    apart = np.eye(size) - powers
    beyond = np.linalg.solve(apart, arrivals)
    length = float((first @ powers @ np.linalg.solve(apart, np.linalg.solve(apart, np.ones(size)))).sum())
    tails = {}
    if drain is not None and size <= MAX_TAIL_PHASES:
        # The wait, then the own service: one exponential of both gives ∫ P(W > t - u) dP(S <= u).
        begin, both = np.outer(beyond, service.start), np.zeros((len(service.start), size))
        chain = np.block([[drain, begin], [both, service.generator]])

        def wait_above(t: float) -> float:
            return float(first @ expm(drain * t) @ beyond)

        def response_above(t: float) -> float:
            moved = expm(chain * t)
            served = moved[size:, size:].sum(axis=1)
            return float(service.start @ served + first @ moved[:size, size:] @ service.ends)

        tails = {"wait_above": wait_above, "response_above": response_above}
    return steady(name, rate, service.mean, servers=servers, wait=length / rate, delayed=float(first @ beyond), **tails)
