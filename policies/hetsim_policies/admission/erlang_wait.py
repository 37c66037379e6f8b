"""Erlang wait: a newcomer waits longer than a target with probability p at most.

Decides: the wait of a newcomer is the backlog over the servers plus the time until the next server is free.  On c busy
servers with n tasks waiting that is n + 1 departures, which come at the rate c/S (S: the mean service time, estimated
online): a wait with Erlang's distribution of n + 1 stages, and a mean of n·S/c for the backlog and S/c for the rest.
The task is admitted if P(wait > max_wait) is at most p; always, if a server is free for it.
Reference: Erlang, Solution of Some Problems in the Theory of Probabilities of Significance in Automatic Telephone
Exchanges (1917); the rule from the queue that is there: Whitt, Improving Service by Informing Customers about
Anticipated Delays, Management Science 45 (1999).
Proven: for exponential service in order of arrival, once S is right, each admitted task waits longer than max_wait with
probability at most p, whatever the arrivals (Poisson ones see M/M/c/K).  Weakness: blind to estimates of single tasks
(`predicted_wait` goes by them); with heavy tails Erlang's distribution promises too much.
Cost: O(1).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.model.units import Fraction, Seconds
from hetsim.policy import Accept, Reject, View
from hetsim_policies.admission.common.estimates import AtStations, Memory, servers

YES = Accept()


class ErlangWait(AtStations):
    """A bound on the tail of the wait.

    max_wait: the wait that few are to exceed.  p: the share that may.
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
        time = flow.service_time
        if time is not None:
            count = servers(view.cluster, mode)
            # Departures until it starts, but for rounding; the backlog is counted in tasks as wide as this one.
            stages = station.occupied / (mode.width or 1.0) - count + 1
            if stages > 1e-9 and wait_tail(stages, count / time, self.max_wait) > self.p:
                return self._no
        stations.joins(task, station, flow, mode.width)
        return YES


def wait_tail(stages: float, rate: float, time: float) -> float:
    """P(stages departures take longer than a time), where they come at a rate."""
    from scipy.special import gammaincc  # half a second that other policies need not wait for

    return float(gammaincc(stages, rate * time))
