"""Base class of replicas, for all kinds of services."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetsim.engine.flight.launch import Resident
from hetsim.engine.flight.links import Flow
from hetsim.engine.kernel.clock import Timer
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement


class HolderType:
    """Common properties of a service's replicas on one type of device."""

    __slots__ = ("position", "mode", "given", "weights", "width", "watts", "speed")

    def __init__(self, position: int, mode: Mode, given: Any):
        self.position = position  # position of its mode in the shape of the service's requests
        self.mode = mode
        self.given = given  # as the service describes them
        self.weights: int = given.weights
        self.width = mode.width
        self.watts = mode.type.power.busy - mode.type.power.idle
        self.speed = 1.0  # work that it does in a second; only the ratios of unlike types count


class Holder:
    """A replica, which occupies its devices until it is given up.

    `ReplicaSet` uses `outstanding`, `idle`, `start`, `drain`, `give_up`, `enqueue` (a request) and `run_at`.
    """

    def __init__(self, fleet: Any, number: int, kind: HolderType, placement: Placement, prefills_only: bool):
        state = fleet.state
        self.fleet = fleet  # its `ReplicaSet`
        self.service, self.clock = fleet.service, fleet.clock
        self.number = number
        self.outstanding = 0  # requests sent here that have not ended; `loads` follows it
        self.kind = kind
        self.speed = kind.speed
        self.placement = placement
        self.node = placement.devices[0].node
        self.prefills_only = prefills_only
        state.last_resident -= 1  # downward: their numbers never meet those of launches
        self.launch = Resident(self._fired, state.last_resident, placement, now=state.clock._now, holder=self)
        self.loaded = self.draining = False  # `draining`: it takes no further requests
        self.loading_from = self.loaded_at = math.nan
        self.timer: Timer | None = None  # of the time before its model loads
        self.load: Any = None  # that brings the model, itself or with others
        self.idle_since = state.clock._now  # where replicas scale, when it fell idle last
        self.flows: list[Flow] = []  # its copies of a load that another replica began
        self.loads: Any = np.empty(1)  # the loads of all open replicas, with its own at `place`
        self.place: Any = 0

    def __repr__(self) -> str:
        return f"replica {self.number} of {self.fleet.service}"

    @property
    def taken_in(self) -> Sequence[Any]:
        """Requests that the replica serves in its own steps, not in launches."""
        return ()

    @property
    def waiting(self) -> int:
        """Number of those of them that are not served yet."""
        return 0

    @property
    def kv_used(self) -> float:
        """Share of its memory for requests that is taken."""
        return 0.0

    @property
    def idle(self) -> bool:
        return not self.outstanding

    def add(self, change: int) -> None:
        self.outstanding += change
        self.loads[self.place] = (self.outstanding + 1) / self.speed

    def start(self, after: float) -> None:
        """Begin to accept requests; `after`: when loading began, NaN if it did not load."""
        self.loaded, self.draining = True, False

    def drain(self) -> None:
        self.draining = True

    def give_up(self, outcome: int) -> Sequence[Any]:
        """End a replica with a launch outcome; return the requests to serve elsewhere."""
        raise NotImplementedError

    def run_at(self, rate: float, power: float) -> None:
        """Continue at the speed of the slowest device, with the devices' mean power."""

    def _fired(self, timer: Timer) -> None:
        """Handle the firing of the replica's timer; each subclass defines what happens."""
