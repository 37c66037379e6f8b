"""All language models of a run, as the rest of the engine sees them."""

from __future__ import annotations

from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.language.llm_service import Fleet
from hetsim.engine.residents.residents import Residents
from hetsim.errors import RunError
from hetsim.model.task import Task
from hetsim.model.tasks import Shape


class Serving(Residents):
    """All language model services of a run."""

    def __init__(self, state: RunState, rounds: Rounds, signals: Signals, checked: bool):
        run = state.input
        super().__init__(state)
        self.fleets: dict[Shape, Fleet] = {}
        for service, (batching, routing) in zip(run.language, run.iteration, strict=True):
            self.fleets[service.shape] = Fleet(
                state, rounds, signals, devices_free=self.refill, service=service, batching=batching, routing=routing,
                checked=checked
            )  # fmt: skip
        self.sets = [fleet.replicas for fleet in self.fleets.values()]

    def waiting(self, row: int) -> Task | None:
        """The request of that row, if it waits for its first step."""
        requests = (fleet.requests.get(row) for fleet in self.fleets.values())
        return next((one.task for one in requests if one is not None and not one.started), None)

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

    def defects(self) -> list[str]:
        """Everything that is inconsistent, recounted (for --check)."""
        return [text for one in self.sets for replica in one.all for text in replica.defects()]
