"""Erlang wait: by Erlang's formula, at most a share p waits longer than a target.

Decides: arrival rate and mean service time are fitted online (`policies.admission.common.estimates`).  The largest
rate λ* of M/M/c for which P(W > max_wait) = C(c, λ*/μ) · exp(−(cμ − λ*) · max_wait) is at most p is what may come in;
while more comes each task is admitted with probability λ*/λ, by the policy's own random numbers, so that what is left
of Poisson arrivals is Poisson again and the formula holds.
Reference: Erlang, Solution of Some Problems in the Theory of Probabilities of Significance in Automatic Telephone
Exchanges (1917); thinning: Kingman, Poisson Processes (1993).
Proven: for M/M/c, once the estimates are right.  Weakness: blind to the number of waiting tasks right now: refuses
before idle devices and admits to long queues, both with the same probability; with heavy tails the formula promises too
much.
Cost: O(1), and some tens of Erlang formulas when the service time has moved by 2 %.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from policies.admission.common.estimates import DeviceStation, Memory, Stations, servers
from sim.model.tasks import Mode, Task
from sim.model.units import Fraction, Seconds
from sim.policy import Accept, Admission, Reject, View

YES = Accept()
MOVED = 0.02
"""Part by which a service time has to move before the rate is solved for again."""


class ErlangWait(Admission):
    """A bound on the tail of the wait.

    max_wait: the wait that few are to exceed.  p: how few.
    memory: arrivals over which rates are fitted.
    """

    def __init__(self, max_wait: Seconds, p: Annotated[Fraction, Field(gt=0, lt=1)] = 0.05, memory: Memory = 500):
        self.max_wait = max_wait
        self.p = p
        self.memory = memory
        self._solved: dict[DeviceStation, tuple[float, float]] = {}
        self._no = Reject(reason=f"more than {p:.3g} would wait too long")

    def begin(self, view: View) -> None:
        self.stations = Stations(view, self.memory)

    def admit(self, task: Task, view: View) -> Accept | Reject:
        stations = self.stations
        station, mode = stations.best(task)
        flow = stations.arrives(task, station)
        rate, service_time = flow.rate, flow.service_time
        if rate is not None and service_time is not None:
            most = self._most(station, mode, service_time)
            if rate > most and view.random.random() * rate >= most:
                return self._no
        stations.joins(task, station, flow, mode.width)
        return YES

    def _most(self, station: DeviceStation, mode: Mode, service_time: float) -> float:
        """The rate that may come in."""
        solved, offered = self._solved.get(station, (0.0, 0.0))
        if abs(service_time - solved) > MOVED * solved:
            count = servers(self.stations.view.cluster, mode)
            offered = greatest_load(count, self.max_wait / service_time, self.p)
            self._solved[station] = service_time, offered
        return offered / service_time

    def finished(self, task: Task) -> None:
        self.stations.leaves(task, True)

    def gone(self, task: Task) -> None:
        self.stations.leaves(task, False)


def wait_tail(servers: int, offered: float, time: float) -> float:
    """P(W > time) of M/M/c; time in mean service times, offered load in Erlangs below c."""
    from scipy.special import gammaincc, gammaln  # half a second that other policies need not wait for

    # Erlang B as the Poisson probability of c over that of at most c: no sum, so as quick for 10,000 servers.
    none = float(np.exp(servers * np.log(offered) - offered - gammaln(servers + 1)) / gammaincc(servers + 1, offered))
    waits = none / (1.0 - offered / servers * (1.0 - none))
    return float(waits * np.exp(-(servers - offered) * time))


def greatest_load(servers: int, time: float, p: float) -> float:
    """The offered load for which P(W > time) is p, by bisection: the tail grows with the load."""
    low, high = 0.0, float(servers)
    while high - low > 1e-9 * servers:
        middle = (low + high) / 2
        if wait_tail(servers, middle, time) <= p:
            low = middle
        else:
            high = middle
    return low
