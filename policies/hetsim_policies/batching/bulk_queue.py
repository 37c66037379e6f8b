"""Batch sizes from a model of the queue: Poisson arrivals, served in bulk."""

import math
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from scipy.special import gammainc, gammaln, xlogy

from hetsim.model.plan import Placement
from hetsim.model.units import PerSecond, Seconds
from hetsim.policy import Batching, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import ArrivalRate, limit, occupied

RATIO = 1.1  # rates are rounded to powers of this ratio, so that few have to be solved

MAX_ARRIVALS = 512  # maximum batch of these models: their cost grows with the third power of the states
MODELED = 64  # Largest modeled batch by default; a decision of that size takes all waiting requests


def rounded(rate: float) -> float:
    """Round a rate to the nearest power of `RATIO`."""
    return float(RATIO ** round(math.log(rate) / math.log(RATIO)))


def batch_times(queue: RequestQueue, placement: Placement, most: int | None) -> np.ndarray:
    """Return the estimated seconds of batches of 1, 2, ... requests, over all stages.

    The largest size is `most` (None: 64), or less if the mode has a lower limit.
    """
    sizes = range(1, limit(placement, most or MODELED) + 1)
    return np.array([queue.stages(size, placement).total for size in sizes])


def arrivals_during(rate: float, times: np.ndarray, most: int) -> np.ndarray:
    """Probabilities of 0, 1, ..., `most` or more arrivals; one row per time."""
    mean = rate * times[:, None]
    count = np.arange(most)
    table = np.empty((len(times), most + 1))
    table[:, :most] = np.exp(xlogy(count, mean) - mean - gammaln(count + 1))
    table[:, most] = gammainc(most, mean[:, 0]) if most else 1.0  # P(N >= most)
    return table


class BulkQueue:
    """A server that takes Poisson arrivals in batches; the analytic policies' model.

    The time of a batch depends only on its size.  A state is the number of requests in the system; the last state,
    `states`, represents all larger numbers.  Time passes during services (`time[s]` for a batch of s) and while waiting
    for the next arrival.
    """

    def __init__(self, rate: float, times: np.ndarray, states: int):
        self.rate = rate
        self.times = times
        self.states = states
        self.arrivals = arrivals_during(rate, times, states)

    @property
    def stable(self) -> bool:
        """Return True if full batches keep up with the arrivals."""
        return bool(self.rate * self.times[-1] < len(self.times))

    def after(self, present: int, size: int) -> np.ndarray:
        """Return the distribution of the state after a batch of `size` requests.

        present: number of requests in the system when the batch starts.
        """
        rest, states = present - size, self.states
        row = np.zeros(states + 1)
        row[rest:states] = self.arrivals[size - 1][: states - rest]
        row[states] = max(0.0, 1.0 - row[:states].sum())
        return row

    def request_seconds(self, present: int, size: int) -> float:
        """Expected request-seconds in the system during a batch, from `present` requests."""
        time = float(self.times[size - 1])
        return present * time + self.rate * time * time / 2

    def beyond(self, size: int) -> np.ndarray:
        """Return the expected number of arrivals during a batch that find the queue full.

        One value for each number of requests that remain in the queue when the batch starts.
        """
        room = self.states - np.arange(self.states)
        filled = np.cumsum(np.cumsum(self.arrivals[size - 1]))  # [k - 1]: expected room left of k
        return np.maximum(0.0, self.rate * self.times[size - 1] - room + filled[room - 1])


PATIENCE = 2.0  # A batch is launched below the threshold after this multiple of the expected wait for it


class Modeled(Batching):
    """Base of batching policies that solve a queueing model of one device."""

    rejects = False

    def __init__(
        self,
        max_batch: Annotated[int, Field(ge=1, le=MAX_ARRIVALS)] | None = None,
        states: Annotated[int, Field(ge=2, le=4 * MAX_ARRIVALS)] | None = None,
        window: Annotated[Seconds, Field(gt=0)] = 1.0,
        rate: Annotated[PerSecond, Field(gt=0)] | None = None,
    ):
        self.max_batch = max_batch
        self.states = states
        self.rate = rate
        self.estimate = ArrivalRate(window)
        self.solved: dict[tuple[Placement, float], Any] = {}

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        if occupied(queue, placement, view):
            return Delay()
        rate = self.rate or self.estimate.rate(queue, view.now)
        if rate is None or queue.over:
            return self._all(queue, placement)
        return self.decide(queue, placement, self.rate or rounded(rate), view)

    def _all(self, queue: RequestQueue, placement: Placement) -> Take:
        return Take(min(len(queue), limit(placement, self.max_batch)))

    def solution(self, queue: RequestQueue, placement: Placement, rate: float) -> Any:
        """Return the queueing model's solution for placement and arrival rate (cached)."""
        key = (placement, rate)
        if key not in self.solved:
            times = batch_times(queue, placement, self.max_batch)
            states = 4 * len(times) if self.states is None else max(self.states, 2 * len(times))
            self.solved[key] = self.solve(BulkQueue(rate, times, states), queue, placement)
        return self.solved[key]

    def decide(self, queue: RequestQueue, placement: Placement, rate: float, view: View) -> Take | Delay:
        raise NotImplementedError

    def solve(self, model: BulkQueue, queue: RequestQueue, placement: Placement) -> Any:
        """Solve the model and return the result from which batch sizes are chosen."""
        raise NotImplementedError


class BatOpt(Modeled):
    """BatOpt: launch a batch when enough requests wait, by a model of the queue.

    Decides when: a batch starts once at least A requests wait, and has at most B requests.  The threshold A minimizes
    the mean response in the queue M/D(A, B)/1/N, where N is the number of states of the model.  Batch times are
    estimates by size; the arrival rate is that of the last `window` seconds, rounded to the nearest power of 1.1.
    Batches do not overlap.  The model is the exact Markov chain of the number of requests after each batch; the mean
    response follows from Little's law.
    Reference: Zhang, Luo, Wang, Kui and Ren, BatOpt: Optimizing GPU-Based Deep Learning Inference Using Dynamic Batch
    Processing (IEEE Transactions on Cloud Computing 2024), where the model M/G(A, B)/1/N also includes GPU memory (here
    only the bound B); Neuts, A General Class of Bulk Queues with Poisson Input (1967).
    Weakness: it assumes Poisson arrivals.  With linear batch times a threshold gains little compared with
    `serial_greedy`.  After the rate has fallen, requests wait for requests that do not arrive, until twice the expected
    time has passed or their SLO is near.
    Cost: O(1) per batch; for each new rate up to 20 linear systems of N unknowns (0.2 s at N = 256).

    max_batch: B, the largest batch; default: the service's limit.  The model covers sizes up to 64.
    states: N, at least 2 B; default: 4 B.
    window: seconds over which the rate is estimated.  rate: requests per second, instead of an estimate.
    """

    def decide(self, queue: RequestQueue, placement: Placement, rate: float, view: View) -> Take | Delay:
        waiting, threshold = len(queue), self.solution(queue, placement, rate)
        if waiting < threshold:
            called = queue.deadline(0) - queue.stages(waiting, placement).total
            if (until := min(queue.arrival(0) + PATIENCE * threshold / rate, called)) > view.now:
                return Delay(until, threshold)
        return self._all(queue, placement)

    def solve(self, model: BulkQueue, queue: RequestQueue, placement: Placement) -> int:
        return best_threshold(model)


def best_threshold(model: BulkQueue) -> int:
    """Return the threshold of minimum mean response; 1 if the queue is unstable.

    Above 8, only thresholds of a geometric sequence are tried.
    """
    if not model.stable:
        return 1
    max_size = len(model.times)
    tried = sorted({min(max_size, round(1.25**power)) for power in range(1 + math.ceil(math.log(max_size + 1, 1.25)))})
    return tried[int(np.argmin(mean_responses(model, tried)))]


def mean_responses(model: BulkQueue, thresholds: list[int]) -> list[float]:
    states, max_size, rate = model.states, len(model.times), model.rate
    starts = np.arange(1, states + 1)
    sizes = np.minimum(starts, max_size)
    pairs = list(zip(starts.tolist(), sizes.tolist(), strict=True))
    rows = np.vstack([model.after(*pair) for pair in pairs])
    request_seconds = np.array([model.request_seconds(*pair) for pair in pairs])
    present = np.arange(states + 1)
    means = []
    for threshold in thresholds:
        begins = np.maximum(present, threshold) - 1  # by what the last batch left: the row of the next one's start
        share = stationary(rows[begins])
        missing = np.maximum(threshold - present, 0)
        waited = (present * missing + missing * (missing - 1) / 2) / rate  # request-seconds until the threshold is met
        of_cycle = share @ (waited + request_seconds[begins])
        means.append(float(of_cycle / (share @ sizes[begins])))
    return means


def stationary(chain: np.ndarray) -> np.ndarray:
    system = np.eye(len(chain)) - chain.T
    system[-1] = 1.0
    right = np.zeros(len(chain))
    right[-1] = 1.0
    return np.linalg.solve(system, right)


SWEEPS = 200  # maximum number of sweeps, more than ever needed: each improves the table or is the last
TOLERANCE = 1e-10  # fraction of the values' range below which a change is no improvement


class Smdp(Modeled):
    """SMDP: a table from queue length to batch size, for weighted response and power.

    Decides when and how many: with s requests waiting on an idle device, wait for the next arrival or launch a batch of
    1 to s.  The model is a semi-Markov decision process with Poisson arrivals, in which the time of a batch depends
    only on its size; its cost is the mean response plus `power_weight` times the mean power of batches ((busy − idle)
    watts while computing).  The last state represents all queue lengths from `states` on; an arrival in this state adds
    the cost of its wait for the full batches before it.  It is solved by sweeps of value iteration; after each sweep
    the values of the greedy table are evaluated exactly, so that a few sweeps reach the optimum (Puterman, Markov
    Decision Processes, 1994, section 11.4).  Reference: Xu, Sun, Zhou and Niu, SMDP-Based Dynamic Batching for
    Efficient Inference on GPU-Based Platforms (ICC 2023), which uses relative value iteration and the same kind of
    overflow cost.
    Proven: optimal for the model.  Weakness: the model has no deadlines and assumes Poisson arrivals; the rate is that
    of the last `window` seconds, rounded to a power of 1.1.  Batches do not overlap.
    Cost: O(1) per batch; for each new rate some sweeps of O(states² · sizes) and linear systems (0.03 s at 256 states).

    power_weight: seconds of mean response that a watt of mean power is worth.
    max_batch: largest batch; default: the service's limit.  Without it the table has sizes up to 64 only, and its
        decision for size 64 launches all waiting requests, up to the service's limit.
    states: number of distinct queue lengths, at least twice the largest size of the table (default: four times).
    window: seconds over which the rate is estimated.  rate: requests per second, instead of an estimate.
    """

    def __init__(
        self,
        power_weight: Annotated[Seconds, Field(ge=0)] = 0.0,
        max_batch: Annotated[int, Field(ge=1, le=MAX_ARRIVALS)] | None = None,
        states: Annotated[int, Field(ge=2, le=4 * MAX_ARRIVALS)] | None = None,
        window: Annotated[Seconds, Field(gt=0)] = 1.0,
        rate: Annotated[PerSecond, Field(gt=0)] | None = None,
    ):
        super().__init__(max_batch, states, window, rate)
        self.power_weight = power_weight

    def decide(self, queue: RequestQueue, placement: Placement, rate: float, view: View) -> Take | Delay:
        waiting, table = len(queue), self.solution(queue, placement, rate)
        if size := table[min(waiting, len(table) - 1)]:
            return Take(size) if size < limit(placement, self.max_batch or MODELED) else self._all(queue, placement)
        wanted = waiting + 1
        while not table[wanted]:
            wanted += 1
        return Delay(view.now + PATIENCE * (wanted - waiting) / rate, wanted)

    def solve(self, model: BulkQueue, queue: RequestQueue, placement: Placement) -> list[int]:
        """Return the batch size (0: wait) by number of waiting requests."""
        power = placement.mode.type.power
        compute = [queue.stages(size, placement).compute for size in range(1, len(model.times) + 1)]
        energy = (power.busy - power.idle) * placement.mode.gpus * np.array(compute)
        return DecisionProcess(model, self.power_weight * energy).solve()[0]


class DecisionProcess:
    """Semi-Markov decision process: costs, durations, transitions by action and state.

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
        """Expected value after each action in each state."""
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
        """Return each state's relative value under a table of actions, and average cost."""
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
        """Return the optimal batch size for each number of requests, and its average cost."""
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
