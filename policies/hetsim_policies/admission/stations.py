"""Admission policies with a queueing model of the devices of a type."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.mode import Mode
from hetsim.model.task import Task
from hetsim.model.units import Fraction, PerSecond, Seconds
from hetsim.policy import Accept, PlanProblem, Reject, View
from hetsim_policies.admission.common.estimates import (
    MIN_SEEN,
    AtStations,
    DeviceStation,
    Memory,
    known_classes,
    servers,
)

YES = Accept()
UNBOUNDED = 10**6  # a batch limit of this size is none
ROUNDING = 1e-9


class TrunkReservation(AtStations):
    """Trunk reservation: a class is admitted only if enough servers remain for others.

    Decides: the number of servers of a device type is the number of launches of a mode that fit simultaneously (if
    requests are batched, multiplied by the largest batch), and servers not occupied by admitted tasks are free.  A task
    whose class has the value r in `reserve` needs r + 1 free servers at its best device type.  No task waits, since a
    task is admitted only to a free server; the parameter `servers` replaces the number of servers.
    Reference: Miller, A Queueing Reward System with Several Customer Classes, Management Science 16 (1969); Key,
    Optimal Control and Trunk Reservation in Loss Networks, Probability in the Engineering and Informational Sciences 4
    (1990).  Proven: the best policy for classes with rewards and equal mean times at one group of servers without
    waiting (Miller); the number in service is then a birth-and-death chain.
    Weakness: `mdp_threshold` is better for tasks of different widths or times.  If tasks may also use other device
    types than the best one, there are more servers than are counted.  Cost: O(1).

    reserve: by class, the number of servers that it must leave free for others; 0 for classes not named.
    servers: total number of servers; default: the servers of the device type of a task's best mode.
    """

    queueing = "trunk reservation"

    def __init__(
        self, reserve: dict[str, Annotated[int, Field(ge=0)]], servers: Annotated[int, Field(ge=1)] | None = None
    ):
        self.reserve = reserve
        self.servers = servers

    def check(self, problem: PlanProblem) -> None:
        known_classes(problem, self.reserve, "reserve")
        modes = problem.tasks.modes
        if self.servers is None and any(mode.batch_limit >= UNBOUNDED for mode in modes):
            text = "servers is needed for a service without max_batch; give the service max_batch, or servers here"
            raise ScenarioError(Problem(text, key="policy.admission.servers"))

    def admit(self, task: Task, view: View) -> Accept | Reject:
        stations = self.stations
        station, mode = stations.best(task)
        width = mode.width / mode.batch_limit
        if self.servers is not None:
            free = float(self.servers - station.present)
        else:
            free = (station.capacity - station.occupied) / width if width > 0 else 1.0
        kept = self.reserve.get(task.class_, 0)
        if free + ROUNDING < kept + 1:
            return Reject(reason="no server free" if not kept else f"{kept} servers are reserved for other classes")
        stations.joins(task, station, station.flow(""), width)
        return YES


class ErlangWait(AtStations):
    """Erlang wait: refuse if the wait exceeds a target with probability above p.

    Decides: with c busy servers and n waiting tasks, a new task waits for n + 1 departures, which occur at the rate c/S
    (S: the mean service time, estimated online).  Its wait has Erlang's distribution of n + 1 stages with mean (n +
    1)·S/c.  The task is admitted if P(wait > max_wait) is at most p, and always if a server is free.
    Reference: Erlang, Solution of Some Problems in the Theory of Probabilities of Significance in Automatic Telephone
    Exchanges (1917); the rule by the present queue: Whitt, Improving Service by Informing Customers about Anticipated
    Delays, Management Science 45 (1999).  Proven: for exponential service in order of arrival, once S is known, each
    admitted task waits longer than max_wait with probability at most p, whatever the arrivals (with Poisson arrivals
    the system is M/M/c/K).  Weakness: it ignores estimates of single tasks (`predicted_wait` uses them); with heavy
    tails Erlang's distribution is too optimistic.  Cost: O(1).

    max_wait: the wait that few tasks should exceed.  p: maximum probability that an admitted task waits longer.
    memory: arrivals over which the service time is estimated.
    """

    def __init__(self, max_wait: Seconds, p: Annotated[Fraction, Field(gt=0, lt=1)] = 0.05, memory: Memory = 500):
        self.max_wait = max_wait
        self.p = p
        self.memory = memory
        self._no = Reject(reason=f"would wait too long with a probability above {p:.3g}")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        stations = self.stations
        station, mode = stations.best(task)
        flow = stations.arrives(task, station)
        if (time := flow.service_time) is not None:
            count = servers(view.cluster, mode)
            # Departures until it starts, but for rounding; the backlog is counted in tasks as wide as this one.
            stages = station.occupied / (mode.width or 1.0) - count + 1
            if stages > 1e-9 and wait_tail(stages, count / time, self.max_wait) > self.p:
                return self._no
        stations.joins(task, station, flow, mode.width)
        return YES


def wait_tail(stages: float, rate: float, time: float) -> float:
    """Probability that `stages` departures at a rate take longer than a time, in s."""
    from scipy.special import gammaincc  # half a second that other policies need not wait for

    return float(gammaincc(stages, rate * time))


MOVED = 0.02  # relative change of a rate or time after which thresholds are computed again

Objective = Literal["individual", "social", "revenue"]


class Naor(AtStations):
    """Naor's thresholds: individually, socially or revenue-optimal limits on queues.

    Decides: a task is admitted while the number of tasks in the system is below a threshold.  With reward R for an
    answer and cost C per second in the system, the individual threshold is the last position in the queue at which the
    expected time in the system costs at most R; the social threshold maximizes λ(1 − P_block)·R − C·L (λ: arrival rate,
    L: mean number in the system); the revenue threshold maximizes price times admission rate, where the price equals
    the surplus of a task at the last position.  Social and revenue thresholds need λ and the mean service time, both
    estimated online.
    Reference: Naor, The Regulation of Queue Size by Levying Tolls, Econometrica 37 (1969); on c servers Knudsen,
    Individual and Social Optimization in a Multiserver Queue, Econometrica 40 (1972).
    Proven: optimal for M/M/c in order of arrival with equal tasks; revenue ≤ social ≤ individual (Naor).  Weakness: it
    ignores classes (`mdp_threshold` has them) and deadlines.  Cost: O(1), and O(threshold) when an estimate has moved.

    reward: value of an answer.  cost: cost of each second in the system, in the same unit.
    objective: which threshold (individual, social or revenue).
    memory: arrivals over which rates are estimated.
    arrival_rate, service_time: constant values to use instead of estimates.
    """

    queueing = "optimal pricing"

    def __init__(
        self,
        reward: Annotated[float, Field(gt=0)],
        cost: Annotated[float, Field(gt=0)],
        objective: Objective = "social",
        memory: Memory = 500,
        arrival_rate: Annotated[PerSecond, Field(gt=0)] | None = None,
        service_time: Annotated[Seconds, Field(gt=0)] | None = None,
    ):
        self.worth = reward / cost
        self.objective: Objective = objective
        self.memory = memory
        self.arrival_rate = arrival_rate
        self.service_time = service_time
        self._solved: dict[DeviceStation, tuple[float, float, int]] = {}
        self._no = Reject(reason="its waiting cost would exceed its reward")

    def admit(self, task: Task, view: View) -> Accept | Reject:
        stations = self.stations
        station, mode = stations.best(task)
        flow = stations.arrives(task, station)
        rate = self.arrival_rate or flow.rate
        time = self.service_time or flow.service_time
        if rate is not None and time is not None and station.present >= self._threshold(station, mode, rate, time):
            return self._no
        stations.joins(task, station, flow, mode.width)
        return YES

    def _threshold(self, station: DeviceStation, mode: Mode, rate: float, time: float) -> int:
        used_rate, used_time, limit = self._solved.get(station, (0.0, 0.0, 0))
        if abs(rate - used_rate) > MOVED * used_rate or abs(time - used_time) > MOVED * used_time:
            count = servers(self.stations.view.cluster, mode)
            limit = threshold(self.objective, count, rate, time=time, worth=self.worth)
            self._solved[station] = rate, time, limit
        return limit


def threshold(objective: Objective, servers: int, rate: float, time: float, worth: float) -> int:
    """Return the number of tasks in an M/M/c at which a new task is refused.

    worth: reward of a served task divided by the cost of a task in the system per second, in seconds.
    """
    worth *= 1.0 + ROUNDING
    if worth < time:
        return 0
    individual = math.floor(servers * worth / time)  # a task that finds n ≥ c − 1 stays (n + 1)·time/c
    if objective == "individual":
        return individual
    # Both gains are unimodal in the threshold (Naor; Knudsen): the first fall is the end.  Blocking and mean number
    # follow from those with a place less, so nothing overflows.
    blocked, inside, best, chosen = 1.0, 0.0, 0.0, 0
    offered = rate * time
    for places in range(1, individual + 1):
        last = offered * blocked
        blocked = last / (min(places, servers) + last)
        inside = (1.0 - blocked) * inside + blocked * places
        joining = rate * (1.0 - blocked)
        if objective == "social":
            gain = joining * worth - inside
        else:
            gain = joining * (worth - max(1.0, places / servers) * time)
        if gain <= best:
            break
        best, chosen = gain, places
    return chosen


MAX_STATES = 30_000
MIN_ROOM = 20
SWEEPS = 200  # maximum number of sweeps, more than ever needed: each improves the table or is the last
TOLERANCE = 1e-10  # fraction of the values' range below which a change is no improvement


class MdpThreshold(AtStations):
    """Optimal admission of several classes, by a Markov decision process.

    Decides: with n_i tasks of each class i in the system, a task of class k is admitted if its reward exceeds the
    future cost of its presence.  The model has Poisson arrivals, exponential times, c servers shared fairly by all
    tasks present, and at most c + `room` tasks; the objective is maximum long-run reward less holding cost per second.
    It is solved by value iteration with values evaluated exactly after each sweep, so that a handful of sweeps reaches
    the optimum (Puterman, Markov Decision Processes, 1994, sections 8.6 and 11.4).  Rates and times of each class are
    estimated online, and the table is solved again when one of them has moved by `tolerance`; until they are known,
    every task is admitted.
    Reference: Lippman, Applying a New Device in the Optimization of Exponential Queueing Systems, Operations Research
    23 (1975); Stidham, Optimal Control of Admission to a Queueing System, IEEE Transactions on Automatic Control 30
    (1985).  Proven: optimal for the model; with one class the policy is Naor's social threshold, with several classes
    of equal times and no room it is trunk reservation.  Weakness: the model has no deadlines and no order of service,
    and its number of states grows as places^classes.
    Cost: O(1) per decision; a solution for two classes, 50 servers and 50 more places takes some tenths of a second.

    rewards: value of an answer by class; every class of the workload must be named.
    holding: cost per second of a task in the system by class; 0 for classes not named.
    room: places in addition to the servers; default: the number of servers, at least 20.
    tolerance: relative change of an estimate after which the table is solved again.
    memory: arrivals over which rates are estimated.
    """

    classed = True

    def __init__(
        self,
        rewards: dict[str, float],
        holding: dict[str, Annotated[float, Field(ge=0)]] | None = None,
        room: Annotated[int, Field(ge=0)] | None = None,
        tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.2,
        memory: Annotated[int, Field(ge=MIN_SEEN)] = 1000,
    ):
        self.rewards = rewards
        self.holding: Mapping[str, float] = holding or {}
        self.room = room
        self.tolerance = tolerance
        self.memory = memory
        self.classes = list(rewards)
        self.position = {name: number for number, name in enumerate(self.classes)}
        self._tables: dict[DeviceStation, ThresholdTable] = {}
        self._no = Reject(reason="its reward is below the cost to other tasks")

    def check(self, problem: PlanProblem) -> None:
        known_classes(problem, self.rewards, "rewards")
        if wrong := [name for name in self.holding if name not in self.rewards]:
            near = suggestion(wrong[0], self.classes)
            text = f'class "{wrong[0]}" has a holding cost but no reward{near or "; give it one"}'
            raise ScenarioError(Problem(text, key=f"policy.admission.holding.{wrong[0]}"))
        if missing := [name for name in problem.tasks.classes if name not in self.rewards]:
            text = f'class "{missing[0]}" has no reward; give every class of the workload one'
            raise ScenarioError(Problem(text, key="policy.admission.rewards"))
        modes = dict.fromkeys(problem.tasks.modes)
        max_servers = max(servers(problem.cluster, mode) for mode in modes)
        places = max_servers + self._room(max_servers)
        count = math.comb(places + len(self.classes), places)
        if count > MAX_STATES:
            what = f"{len(self.classes)} classes on {max_servers:,} servers with room for {places - max_servers:,} more"
            text = f"{what} have {count:,} states; at most {MAX_STATES:,} can be solved"
            hint = "give less room, merge classes, or use trunk_reservation"
            raise ScenarioError(Problem(f"{text}; {hint}", key="policy.admission"))

    def _room(self, count: int) -> int:
        return max(MIN_ROOM, count) if self.room is None else self.room

    def admit(self, task: Task, view: View) -> Accept | Reject:
        stations = self.stations
        station, mode = stations.best(task)
        flow = stations.arrives(task, station)
        count = servers(view.cluster, mode) if station not in self._tables else 0
        table = self._table(station, count)
        if (class_ := self.position.get(task.class_)) is not None and table is not None:
            present = tuple(of_class.present if (of_class := station.flows.get(name)) else 0 for name in self.classes)
            if not table.admits(present, class_):
                return self._no
        stations.joins(task, station, flow, mode.width)
        return YES

    def _table(self, station: DeviceStation, count: int) -> "ThresholdTable | None":
        """Return a device type's thresholds for the present estimates; None without any."""
        if (table := self._tables.get(station)) is None:
            table = self._tables[station] = ThresholdTable(count, count + self._room(count), len(self.classes))
        rates, times = [], []
        for name in self.classes:
            flow = station.flows.get(name)
            rate = None if flow is None else flow.rate
            time = None if flow is None else flow.service_time
            # A class that has hardly come is not part of the model yet.
            rates.append(0.0 if rate is None or time is None else rate)
            times.append(1.0 if rate is None or time is None else time)
        if not any(rates):
            return None
        if table.moved(rates, times, self.tolerance):
            rewards = [self.rewards[name] for name in self.classes]
            table.solve(rates, times, rewards, [self.holding.get(name, 0.0) for name in self.classes])
        return table


class ThresholdTable:
    """Admission decisions by state (tasks per class in the system) and arriving class."""

    def __init__(self, servers: int, places: int, classes: int):
        self.servers = servers
        self.places = places
        self.states = _states(places, classes)
        self.index = {state: number for number, state in enumerate(map(tuple, self.states.tolist()))}
        self.up, self.down = self._neighbors(1), self._neighbors(-1)
        self.total = self.states.sum(axis=1)
        self.accept = self.up >= 0
        self.gain = 0.0
        self._used: list[float] = []

    def _neighbors(self, step: int) -> np.ndarray:
        """Return the number of the state with `step` (1 or -1) more tasks of each class.

        A row per state, a column per class; -1 if there is no such state.
        """
        neighbors = np.full(self.states.shape, -1, dtype=np.int64)
        for class_ in range(self.states.shape[1]):
            beside = self.states.copy()
            beside[:, class_] += step
            neighbors[:, class_] = [self.index.get(tuple(state), -1) for state in beside.tolist()]
        return neighbors

    def admits(self, present: tuple[int, ...], class_: int) -> bool:
        """Return True if the class is admitted; False in states beyond the table."""
        state = self.index.get(present)
        return state is not None and bool(self.accept[state, class_])

    def moved(self, rates: Sequence[float], times: Sequence[float], tolerance: float) -> bool:
        now = [*rates, *times]
        if not self._used:
            return True
        return any(abs(new - old) > tolerance * old for new, old in zip(now, self._used, strict=True))

    def solve(
        self, rates: Sequence[float], times: Sequence[float], rewards: Sequence[float], holding: Sequence[float]
    ) -> None:
        """Compute the table with the highest long-run reward, by policy iteration."""
        self._used = [*rates, *times]
        leave = self.states / np.array(times)
        leave *= np.minimum(1.0, self.servers / np.maximum(1, self.total))[:, None]
        cost = self.states @ np.array(holding)
        arrive, reward = np.array(rates), np.array(rewards)
        accept = self.up >= 0
        for _ in range(SWEEPS):
            values, self.gain = self._evaluate(accept, arrive, leave, reward=reward, cost=cost)
            worth = np.where(self.up >= 0, reward + values[self.up] - values[:, None], -np.inf)
            margin = TOLERANCE * np.abs(values).max()
            better = np.where(accept, worth > -margin, worth > margin)
            if (better == accept).all():
                break
            accept = better
        self.accept = accept  # States that are never reached have values too: this is the best wherever one is.

    def _evaluate(
        self, accept: np.ndarray, arrive: np.ndarray, leave: np.ndarray, reward: np.ndarray, cost: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Evaluate the decisions `accept`: return all state values, and gain per second.

        The value of a state is its long-run advantage over the empty system.  arrive: arrivals/s by class; leave:
        departures/s by state and class; cost: holding cost/s by state.
        """
        from scipy.sparse import csc_matrix
        from scipy.sparse.linalg import splu

        count, classes = self.states.shape
        rows, columns, entries = [], [], []
        out = np.zeros(count)
        for class_ in range(classes):
            for target, rate in (
                (self.up[:, class_], np.where(accept[:, class_], arrive[class_], 0.0)),
                (self.down[:, class_], leave[:, class_]),
            ):
                there = np.flatnonzero((target >= 0) & (rate > 0))
                rows.append(there)
                columns.append(target[there])
                entries.append(rate[there])
                out[there] += rate[there]
        every = np.arange(count)
        row = np.concatenate([*rows, every])
        column = np.concatenate([*columns, every])
        entry = np.concatenate([*entries, -out])
        kept = column != 0  # the empty system's value is 0; the gain takes its place
        row, column, entry = (
            np.concatenate([row[kept], every]),
            np.concatenate([column[kept], np.zeros(count, dtype=np.int64)]),
            np.concatenate([entry[kept], np.full(count, -1.0)]),
        )
        earned = (accept * arrive * reward).sum(axis=1) - cost
        solution = splu(csc_matrix((entry, (row, column)), shape=(count, count))).solve(-earned)
        gain = float(solution[0])
        solution[0] = 0.0
        return solution, gain


def _states(places: int, classes: int) -> np.ndarray:
    """Return all vectors of task counts by class with sum at most `places`; 0 first."""
    if classes == 1:
        return np.arange(places + 1)[:, None]
    parts = []
    for first in range(places + 1):
        rest = _states(places - first, classes - 1)
        parts.append(np.column_stack([np.full(len(rest), first), rest]))
    return np.concatenate(parts)
