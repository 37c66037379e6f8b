"""SMDP: a table from queue length to batch size, for weighted response and power.

Decides when and how many: with s requests waiting on an idle device, wait for the next arrival or launch a batch of
1 to s.  A semi-Markov decision process with Poisson arrivals and fixed batch times; its cost is the mean response plus
`power_weight` times the mean power of batches ((busy − idle) watts while computing).  The state space is cut off at
`states`; requests beyond it are counted there, and cost as if they were answered after that number of full batches.
Solved by sweeps of value iteration, after each of which the values of the greedy table are evaluated exactly, so that a
handful of sweeps reaches the optimum (Puterman, Markov Decision Processes, 1994, section 11.4).
Reference: Xu, Sun, Zhou and Niu, SMDP-Based Dynamic Batching for Efficient Inference on GPU-Based Platforms (ICC 2023),
where relative values are iterated and the overflow state is charged likewise.
Proven: optimal for the model.  Weakness: the model knows neither deadlines nor any other arrivals than Poisson's; the
rate is that of the last `window` seconds, rounded to a power of 1.1.  Batches do not overlap.
Cost: O(1) a batch; of each new rate some sweeps of O(states² · sizes) and linear systems (0.03 s at 256 states).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.units import PerSecond, Seconds
from hetsim.policy import Batching, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.bulk_queue import (
    MAX_ARRIVALS,
    MODELED,
    BulkQueue,
    batch_times,
    rounded,
    states_for,
)
from hetsim_policies.batching.common.sizing import ArrivalRate, limit, occupied

SWEEPS = 200
"""More than ever needed: each one improves the table, or it is the last."""
TOLERANCE = 1e-10
"""Part of the values' range below which a sweep has not improved an entry."""
PATIENCE = 2.0
"""Times the expected wait after which the rate is looked at again."""


class Smdp(Batching):
    """Batch sizes from a table, solved for the rate.

    power_weight: seconds of mean response that a watt of mean power is worth.
    max_batch: largest batch; that of the service unless given.  Then the table has sizes up to 64, and where it says 64
        a batch takes all waiting requests that the service allows.
    states: queue lengths that are told apart, at least twice the largest size of the table; four times it unless given.
    window: how far back the rate looks.  rate: requests per second, where it is not to be estimated.
    """

    def __init__(
        self,
        power_weight: Annotated[Seconds, Field(ge=0)] = 0.0,
        max_batch: Annotated[int, Field(ge=1, le=MAX_ARRIVALS)] | None = None,
        states: Annotated[int, Field(ge=2, le=4 * MAX_ARRIVALS)] | None = None,
        window: Annotated[Seconds, Field(gt=0)] = 1.0,
        rate: Annotated[PerSecond, Field(gt=0)] | None = None,
    ):
        self.power_weight = power_weight
        self.max_batch = max_batch
        self.states = states
        self.rate = rate
        self.estimate = ArrivalRate(window)
        self.tables: dict[tuple[Placement, float], list[int]] = {}

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        if occupied(queue, placement, view):
            return Delay()
        waiting = len(queue)
        rate = self.rate or self.estimate.rate(queue, view.now)
        if rate is None or queue.over:
            return Take(min(waiting, limit(placement, self.max_batch)))
        rate = self.rate or rounded(rate)
        table = self.table(queue, placement, rate)
        size = table[min(waiting, len(table) - 1)]
        if size:
            modeled = limit(placement, self.max_batch or MODELED)
            return Take(size if size < modeled else min(waiting, limit(placement, self.max_batch)))
        wanted = waiting + 1
        while not table[wanted]:
            wanted += 1
        return Delay(view.now + PATIENCE * (wanted - waiting) / rate, wanted)

    def table(self, queue: RequestQueue, placement: Placement, rate: float) -> list[int]:
        """Batch size (0: wait) by the number of waiting requests, at an arrival rate."""
        key = (placement, rate)
        if key not in self.tables:
            times = batch_times(queue, placement, self.max_batch)
            power = placement.mode.type.power
            compute = [queue.stages(size, placement).compute for size in range(1, len(times) + 1)]
            energy = (power.busy - power.idle) * placement.mode.gpus * np.array(compute)
            model = BulkQueue(rate, times, states_for(len(times), self.states))
            process = DecisionProcess(model, self.power_weight * energy)
            self.tables[key] = process.solve()[0]
        return self.tables[key]


class DecisionProcess:
    """Costs, durations and transition probabilities of every action in every state.

    Action 0 waits for the next arrival; action b launches a batch of b.  The objective is the minimum average cost per
    unit of time: requests in the system / arrival rate (the mean response, by Little's law) plus the batch costs.
    """

    def __init__(self, model: BulkQueue, batch_costs: np.ndarray):
        self.model = model
        states, sizes, rate = model.states, len(model.times), model.rate
        self.time = np.concatenate(([1 / rate], model.times))
        present, request_seconds = np.arange(states + 1)[:, None], rate * self.time**2 / 2
        request_seconds[0] = 0.0  # the next arrival ends the wait
        self.cost = (present * self.time + request_seconds) / rate + np.concatenate(([0.0], batch_costs))
        answered = states * model.times[-1]  # arrivals that find no room: without a price, overload would be free
        for size in range(1, sizes + 1):
            self.cost[size:, size] += answered / rate * model.beyond(size)[: states + 1 - size]
        action = np.arange(sizes + 1)
        self.allowed = (action <= present) & ((action > 0) | (present < states))

    def expected(self, values: np.ndarray) -> np.ndarray:
        """The expected value after each action in each state."""
        states, sizes = self.model.states, len(self.model.times)
        beyond = np.concatenate((values, np.full(states, values[-1])))
        windows = np.lib.stride_tricks.sliding_window_view(beyond, states + 1)  # [left behind, arrivals]
        by_left = windows @ self.model.arrivals.T
        cost = np.full((states + 1, sizes + 1), np.inf)
        cost[:states, 0] = values[1:]
        for size in range(1, sizes + 1):
            cost[size:, size] = by_left[: states + 1 - size, size - 1]
        return cost

    def evaluate(self, table: np.ndarray) -> tuple[np.ndarray, float]:
        """Relative values of the states under a table, and its average cost."""
        states = self.model.states
        chances = np.zeros((states + 1, states + 1))
        for state, size in enumerate(table.tolist()):
            if size:
                chances[state] = self.model.after(state, size)
            else:
                chances[state, state + 1] = 1.0
        rows = np.arange(states + 1)
        system = np.eye(states + 1) - chances
        system[:, 0] = self.time[table]  # values are relative to state 0; in its place the average is unknown
        values = np.linalg.solve(system, self.cost[rows, table])
        average = float(values[0])
        values[0] = 0.0
        return values, average

    def solve(self) -> tuple[list[int], float]:
        """The best table and its average cost."""
        rows = np.arange(self.model.states + 1)
        table = np.minimum(rows, len(self.model.times))
        for _ in range(SWEEPS):
            values, average = self.evaluate(table)
            future = np.where(self.allowed, self.expected(values), np.inf)
            future += self.cost - average * self.time
            best, present = future.argmin(axis=1), future[rows, table]
            better = future[rows, best] < present - TOLERANCE * np.abs(values).max()
            if not better.any():
                break
            table = np.where(better, best, table)
        return table.tolist(), average
