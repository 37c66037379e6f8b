"""All replicas of a run, of whatever services, for the rest of the engine."""

from __future__ import annotations

from hetsim.engine.core.state import RunState
from hetsim.engine.flight.launch import Launch, Resident
from hetsim.engine.residents.replica_set import ReplicaSet
from hetsim.model.record import LAUNCH_LOST


class Residents:
    """The replicas of all services, in the order of these."""

    def __init__(self, state: RunState):
        self.state = state
        self.sets: list[ReplicaSet] = []
        self._offered = -1
        """Releases of devices when these were offered last."""

    def begin(self) -> None:
        """Start the first replicas, service by service."""
        for one in self.sets:
            one.begin()

    def lose(self, launches: list[Resident], outcome: int = LAUNCH_LOST) -> None:
        """Give up replicas, as failed or stopped: a service's before any is replaced."""
        for one in self.sets:
            one.lose([launch.holder for launch in launches if launch.holder.fleet is one.fleet], outcome)

    def refill(self) -> None:
        """Start lacking replicas on devices that may be free or up again, by service."""
        for one in self.sets:
            one.offered()
        self._offered = self.state.capacity.releases

    def offer(self) -> None:
        """Start lacking replicas where devices are newly free, as a round begins."""
        if self.state.capacity.releases != self._offered:
            self.refill()

    def paced(self, launch: Launch) -> None:
        """Note that a replica's devices have changed their speed."""
        assert isinstance(launch, Resident)
        launch.holder.fleet.replicas.rerate(launch.holder)
