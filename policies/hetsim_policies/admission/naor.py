"""Naor's thresholds: individual, social or revenue-maximizing limits on queues.

Decides: a task is admitted while fewer than a threshold are there.  With reward R for an answer and cost C for each
second in the system: the individual threshold is the last place with an expected stay that costs no more than R; the
social one maximizes λ(1 − P_block)·R − C·L; the revenue one the price times the rate of tasks that pay it, where the
price leaves the last task to join no surplus.  Social and revenue thresholds need λ and the mean service time, both
estimated online.
Reference: Naor, The Regulation of Queue Size by Levying Tolls, Econometrica 37 (1969); on c servers Knudsen,
Individual and Social Optimization in a Multiserver Queue, Econometrica 40 (1972).
Proven: optimal for M/M/c in order of arrival, all alike; revenue ≤ social ≤ individual (Naor).  Weakness: says nothing
about classes (`mdp_threshold` does) or deadlines.
Cost: O(1), and O(threshold) when an estimate has moved.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.model.units import PerSecond, Seconds
from hetsim.policy import Accept, Reject, View
from hetsim_policies.admission.common.estimates import AtStations, DeviceStation, Memory, servers

YES = Accept()
MOVED = 0.02
"""Part by which a rate or time has to move before thresholds are computed again."""
ROUNDING = 1e-9

Objective = Literal["individual", "social", "revenue"]


class Naor(AtStations):
    """Thresholds on the number in the system.

    reward: what an answer is worth.  cost: what each second in the system costs, in the same money.
    objective: the gain to maximize.
    memory: arrivals over which rates are estimated.
    arrival_rate, service_time: where they are not to be estimated.
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
        self._no = Reject(reason="would cost more than it is worth")

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
    """The number in an M/M/c from which on no task joins; `worth` is R/C in seconds."""
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
