"""Trunk reservation: a class needs more free servers than are kept for others.

Decides: of the servers of a task's best device type (launches of its mode that fit at once, times the largest batch
for requests) those not taken by admitted tasks are free; a task of a class that has r in `reserve` needs r + 1 of
them.  No task waits where each is admitted to a server of its own; `servers` says another number of places.
Reference: Miller, A Queueing Reward System with Several Customer Classes, Management Science 16 (1969); Key, Optimal
Control and Trunk Reservation in Loss Networks, Probability in the Engineering and Informational Sciences 4 (1990).
Proven: the best policy for classes with rewards and equal mean times at one group of servers without waiting (Miller);
the number in service is then a birth-and-death chain.
Weakness: of tasks of different widths or times other rules are better (`mdp_threshold`), and where tasks may use more
devices than those of the best type (a fallback) there are more servers than are counted.
Cost: O(1).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.task import Task
from hetsim.policy import Accept, PlanProblem, Reject, View
from hetsim_policies.admission.common.estimates import AtStations
from hetsim_policies.admission.common.names import known_classes

YES = Accept()
UNBOUNDED = 10**6
"""A batch limit from which on it is none."""
ROUNDING = 1e-9


class TrunkReservation(AtStations):
    """Servers kept free, by class.

    reserve: of each class named, how many servers it must leave free for others; 0 for the rest.
    servers: places that are counted in all; unless given, what the device type of a task's best mode holds.
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
            text = "a service without max_batch has no number of places; give it max_batch, or give servers here"
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
            return Reject(reason="no server free" if not kept else f"{kept} servers are kept for others")
        stations.joins(task, station, station.flow(""), width)
        return YES
