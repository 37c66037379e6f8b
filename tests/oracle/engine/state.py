"""What the parts of a run share: its state by name, and how a policy is called and blamed.

The engine is one object, `Simulation`, in four files: arrivals, decisions, ends, and the loop over them.  Calls from
one part into another are methods of one object because they are the hottest there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oracle.engine.backlog import Backlog
from oracle.engine.capacity import Capacity
from oracle.engine.clock import Clock, Timer
from oracle.engine.complaints import raised
from oracle.engine.devices import Devices
from oracle.engine.fleet import Serving
from oracle.engine.launch import Launch
from oracle.engine.launcher import Launcher
from oracle.engine.limits import TimeLimits
from oracle.engine.links import Links
from oracle.engine.pipeline import Pipeline
from oracle.engine.places import Places
from oracle.engine.received import AttainedService
from oracle.engine.recorder import Recorder
from oracle.engine.sources import Graph, Patience, Sources
from sim.errors import HetsimError, PolicyError
from sim.model.record import RunInput
from sim.model.tasks import Task, Tasks
from sim.policy.contract import Scheduler

if TYPE_CHECKING:
    from oracle.engine.view import EngineView


class State:
    """The names under which arrivals, decisions and ends find each other's things; `Simulation` fills them in."""

    input: RunInput
    tasks: Tasks
    scheduler: Scheduler
    clock: Clock
    capacity: Capacity
    links: Links
    places: Places
    recorder: Recorder
    received: AttainedService
    launcher: Launcher
    devices: Devices
    view: EngineView
    sources: Sources
    running: dict[int, Launch]
    waiting: dict[int, Task]
    ended: int
    decisions: int
    last_launch: int
    deferred: int
    requests_left: int
    iterating: int
    graph: Graph | None
    patience: Patience | None
    limits: TimeLimits | None
    pipeline: Pipeline | None
    serving: Serving | None
    backlog: Backlog | None
    queues: list[Any]
    _queue_of: dict[Any, Any]
    _quick: frozenset[Any]
    _wake: Timer
    _wake_on: str
    _settled: int
    _linked: bool
    _held: dict[int, str]
    _refused: dict[int, str]
    _ready: Any
    _starts: Any
    _finishes: Any
    _modes: Any
    _place: Any
    _status: Any
    _place_code: Callable[..., int]
    _finish_quick_method: Any
    _ask: Any
    _on_ready: Any
    _on_finished: Any
    _admitted_finished: Any
    _admitted_gone: Any

    if TYPE_CHECKING:  # of the other parts

        def changed(self, cause: str) -> None: ...

        def end_task(self, task: Task, status: int, reason: str) -> None: ...

        def _make_ready(self, task: Task) -> None: ...

        def _travel(self, task: Task, seconds: float, then: Callable[[], None]) -> None: ...

        def _completed(self, task: Task) -> None: ...

        def _woken(self, _: Timer) -> None: ...

        def _look_for_loop(self) -> None: ...

        def _look_whether_drained(self) -> None: ...

        def _note_start(self, launch: Launch) -> None: ...

        def _forget(self, launch: Launch) -> None: ...

        def _place_of(self, task: Task, launch: Launch) -> None: ...

    def call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a policy's hook; what it raises becomes an error with an address."""
        try:
            return hook(*arguments)
        except HetsimError:
            raise
        except Exception as error:
            raise raised(self, error, getattr(hook, "__name__", "hook")) from error

    def illegal(self, what: str) -> PolicyError:
        return PolicyError(f'policy "{self.input.policy}" {what} (t = {self.clock._now:g} s)')
