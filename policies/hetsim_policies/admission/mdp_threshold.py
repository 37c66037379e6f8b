"""Optimal admission of several classes, by a Markov decision process.

Decides: with n_i tasks of each class there, a newcomer of class k is admitted if its reward is worth more than what its
presence costs from then on.  The model: Poisson arrivals, exponential times, c servers shared fairly by all tasks
present, `room` more than c may be there; long-run rewards less holding costs per second are to be greatest.
Solved by value iteration with values evaluated exactly after each sweep, so that a handful of sweeps reaches the
optimum (Puterman, Markov Decision Processes, 1994, sections 8.6 and 11.4).
Rates and times of each class are estimated online, and the table is solved again when one of them has moved by
`tolerance`; until they are known every task is admitted.
Reference: Lippman, Applying a New Device in the Optimization of Exponential Queueing Systems, Operations Research 23
(1975); Stidham, Optimal Control of Admission to a Queueing System, IEEE Transactions on Automatic Control 30 (1985).
Proven: optimal for the model; with one class it is Naor's social threshold, with several of equal times and no room
trunk reservation.  Weakness: the model knows neither deadlines nor orders of service, and grows as places^classes.
Cost: O(1) a decision; a solution, for two classes, 50 servers and as much room, some tenths of a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.task import Task
from hetsim.policy import Accept, PlanProblem, Reject, View
from hetsim_policies.admission.common.estimates import MIN_SEEN, AtStations, DeviceStation, servers
from hetsim_policies.admission.common.names import known_classes

YES = Accept()
MAX_STATES = 30_000
MIN_ROOM = 20
SWEEPS = 200
"""More than ever needed: each one improves the table, or it is the last."""
TOLERANCE = 1e-10
"""Part of the values' range below which a sweep has not improved an entry."""


class MdpThreshold(AtStations):
    """Rewards and holding costs by class.

    rewards: what an answer to a task of a class is worth; every class of the workload is to be named.
    holding: what each second of a task of a class in the system costs; 0 for those not named.
    room: places besides the servers; unless given as many as servers, at least 20.
    tolerance: part by which an estimate has to move before the table is solved again.
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
        self._no = Reject(reason="worth less than what it costs others")

    def check(self, problem: PlanProblem) -> None:
        known_classes(problem, self.rewards, "rewards")
        wrong = [name for name in self.holding if name not in self.rewards]
        if wrong:
            near = suggestion(wrong[0], self.classes)
            text = f'class "{wrong[0]}" has a holding cost and no reward{near or "; give it one"}'
            raise ScenarioError(Problem(text, key=f"policy.admission.holding.{wrong[0]}"))
        missing = [name for name in problem.tasks.classes if name not in self.rewards]
        if missing:
            text = f'class "{missing[0]}" has no reward; give every class of the workload one'
            raise ScenarioError(Problem(text, key="policy.admission.rewards"))
        self._not_too_large(problem)

    def _not_too_large(self, problem: PlanProblem) -> None:
        modes = dict.fromkeys(problem.tasks.modes)
        max_servers = max(servers(problem.cluster, mode) for mode in modes)
        places = max_servers + self._room(max_servers)
        count = math.comb(places + len(self.classes), places)
        if count > MAX_STATES:
            what = f"{len(self.classes)} classes on {max_servers:,} servers with room for {places - max_servers:,} more"
            text = f"{what} make {count:,} states, and {MAX_STATES:,} can be solved for in time"
            hint = "give less room, treat classes alike, or take trunk_reservation"
            raise ScenarioError(Problem(f"{text}; {hint}", key="policy.admission"))

    def _room(self, count: int) -> int:
        return max(MIN_ROOM, count) if self.room is None else self.room

    def admit(self, task: Task, view: View) -> Accept | Reject:
        stations = self.stations
        station, mode = stations.best(task)
        flow = stations.arrives(task, station)
        count = servers(view.cluster, mode) if station not in self._tables else 0
        table = self._table(station, count)
        class_ = self.position.get(task.class_)
        if class_ is not None and table is not None:
            present = tuple(of_class.present if (of_class := station.flows.get(name)) else 0 for name in self.classes)
            if not table.admits(present, class_):
                return self._no
        stations.joins(task, station, flow, mode.width)
        return YES

    def _table(self, station: DeviceStation, count: int) -> ThresholdTable | None:
        """The best decisions by the present estimates; None without any."""
        table = self._tables.get(station)
        if table is None:
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
    """Which classes to admit in every state of c servers and a number of places."""

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
        """By state and class the state with one more or less of it; -1 where none is."""
        neighbors = np.full(self.states.shape, -1, dtype=np.int64)
        for class_ in range(self.states.shape[1]):
            beside = self.states.copy()
            beside[:, class_] += step
            neighbors[:, class_] = [self.index.get(tuple(state), -1) for state in beside.tolist()]
        return neighbors

    def admits(self, present: tuple[int, ...], class_: int) -> bool:
        """Return True if a task of this class is admitted; never beyond the model."""
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
        """The table that earns most."""
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
        # States that are never reached have values too: this is the best wherever one is.
        self.accept = accept

    def _evaluate(
        self, accept: np.ndarray, arrive: np.ndarray, leave: np.ndarray, reward: np.ndarray, cost: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """Values relative to the empty system, and the gain per second, of a table."""
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
    """All numbers of each class, `places` at most in total; the empty system first."""
    if classes == 1:
        return np.arange(places + 1)[:, None]
    parts = []
    for first in range(places + 1):
        rest = _states(places - first, classes - 1)
        parts.append(np.column_stack([np.full(len(rest), first), rest]))
    return np.concatenate(parts)
