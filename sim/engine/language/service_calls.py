"""What the replicas and clients of a language model tell the service they belong to: their calls upward.

`sim.engine.language.llm_service.Fleet` is it.  A replica is `Any` to what stands below it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sim.engine.core.policy_errors import raised
from sim.engine.core.recorder import Recorder
from sim.engine.core.state import RunState
from sim.engine.flight.links import Links
from sim.engine.kernel.clock import Clock
from sim.engine.language.generation import Generation
from sim.errors import HetsimError, PolicyError
from sim.model.service import LanguageService
from sim.model.tasks import Task


class ServiceCalls(Protocol):
    """One service, as its replicas and clients see it."""

    state: RunState
    service: LanguageService
    batching: Any
    clock: Clock
    links: Links
    recorder: Recorder
    requests: dict[int, Generation]
    """Requests without their last token, by row."""
    answered: dict[int, None]
    """Rows of requests with the last token on its way to the client."""

    def call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a policy's hook, as `sim.engine.core.policy_errors.call` does: this is often."""
        try:
            return hook(*arguments)
        except HetsimError:
            raise
        except Exception as error:
            raise raised(self.state, error, getattr(hook, "__name__", "hook")) from error

    def illegal(self, what: str) -> PolicyError:
        """The error that says what the policy of the service may not do."""
        return PolicyError(f"{self.service}: its policy {what} (t = {self.clock._now:g} s)")

    def joined(self, request: Generation, replica: Any) -> None: ...

    def fetch(self, request: Generation, target: Any) -> None: ...

    def looked_up(self, request: Generation, tokens: int) -> None: ...

    def first_token(self, request: Generation) -> None: ...

    def hand_over(self, request: Generation) -> None: ...

    def gave_way(self, request: Generation, kind: str) -> None: ...

    def finished(self, request: Generation, replica: Any) -> None: ...

    def aborted(self, task: Task) -> None: ...

    def cut_off(self, request: Generation, end: float) -> None: ...

    def rested(self, replica: Any) -> None: ...

    def boundary(self) -> None: ...

    def number_launch(self) -> int: ...

    def write(
        self, replica: Any, number: int, row: int, served: int, outcome: int, times: tuple[float, ...], busy: float,
        powered: float,
    ) -> None: ...  # fmt: skip
