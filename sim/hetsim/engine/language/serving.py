"""All language models of a run, as the rest of the engine sees them."""

from __future__ import annotations

from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.launch import Launch, Resident
from hetsim.engine.language.continuous_batching import Replica
from hetsim.engine.language.llm_service import Fleet
from hetsim.errors import RunError
from hetsim.model.task import Task
from hetsim.model.tasks import Shape


class Serving:
    """All language model services of a run."""

    def __init__(self, state: RunState, rounds: Rounds, signals: Signals, checked: bool):
        run = state.input
        self.state = state
        self._offered = -1
        """Releases of devices when these were offered last."""
        self.fleets: dict[Shape, Fleet] = {}
        for service, (batching, routing) in zip(run.language, run.iteration, strict=True):
            self.fleets[service.shape] = Fleet(
                state, rounds, signals, devices_free=self.refill, service=service, batching=batching, routing=routing,
                checked=checked
            )  # fmt: skip

    def begin(self) -> None:
        """Start the first replicas, service by service."""
        for fleet in self.fleets.values():
            fleet.replicas.begin()

    def waiting(self, row: int) -> Task | None:
        """The request of that row, if it waits for its first step."""
        for fleet in self.fleets.values():
            request = fleet.requests.get(row)
            if request is not None and not request.started:
                return request.task
        return None

    def unanswered(self) -> RunError:
        """Return the error for requests that wait for ever."""
        missing = sum(len(fleet.replicas.missing) for fleet in self.fleets.values())
        lack = "of their replicas have failed or were not started, and no devices come free"
        why = f"; {missing} {lack}" if missing else ""
        count = self.state.iterating
        return RunError(f"{count} requests to language models wait, and nothing will ever happen{why}")

    def close(self, end: float) -> None:
        for fleet in self.fleets.values():
            fleet.close(end)

    def lose(self, launches: list[Resident]) -> None:
        """Fail replicas that have lost devices, all before any is replaced."""
        for fleet in self.fleets.values():
            fleet.replicas.lose([launch.holder for launch in launches if launch.holder.fleet is fleet])

    def stop(self, launch: Resident) -> None:
        """Stop a replica, as the policy decided."""
        launch.holder.fleet.replicas.stop(launch.holder)

    def refill(self) -> None:
        """Start lacking replicas on devices that may be free or up again, by service."""
        for fleet in self.fleets.values():
            fleet.replicas.offered()
        self._offered = self.state.capacity.releases

    def offer(self) -> None:
        """Return True if a round with lacking replicas has something newly free."""
        if self.state.capacity.releases != self._offered:
            self.refill()

    def paced(self, launch: Launch) -> None:
        """Note that a replica's devices have changed their speed."""
        assert isinstance(launch, Resident)
        launch.holder.fleet.replicas.rerate(launch.holder)

    @property
    def replicas(self) -> list[Replica]:
        return [one for fleet in self.fleets.values() for one in fleet.replicas.all]

    def defects(self) -> list[str]:
        """Everything that is inconsistent, recounted (for --check)."""
        return [text for replica in self.replicas for text in replica.defects()]
