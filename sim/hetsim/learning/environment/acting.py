"""Optional actions of an environment: node, mode, width, preemption, power.

    place     start task i on device type k, in its fastest mode that fits, on the first devices (always enabled)
    width     also choose the number of devices: an option is a device type and a number of devices that a mode uses
    mode      also choose the mode: an option is the position of a mode among those of the task
    node      also choose the node: each option exists once per node
    preempt   stop one of the first `window` running tasks (by start); how much progress is lost depends on its device
    power     put an idle accelerator of a node to sleep, or wake a sleeping one (`Set`)

Actions are numbered in this order: placements (task, then option, then node), preemptions, "off" of each node, "on" of
each node, and last waiting.  All action types except `place` are enabled by name.
Two rules prevent endless loops at one instant: a task that started at this instant is not preempted, and a node that
was put to sleep or woken at this instant is not put to sleep.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hetsim.errors import UnknownName, UsageError
from hetsim.learning.environment.rewards import Reward
from hetsim.learning.observation.window import SHORTEST, Layout, Window
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.contract import PlanProblem, View
from hetsim.policy.decisions import Decision, Set, Start, Stop

SWITCHES = ("width", "mode", "node", "preempt", "power")
ORDERS = ARRIVAL, SHORTEST_FIRST = ("arrival", "shortest")  # orders in which the tasks are shown
MAX_ACTIONS = 100_000
# a trained model: function of an observation and a mask that returns an action number
Choice = Callable[[Any, np.ndarray], Any]


def check_actions(actions: Iterable[str]) -> tuple[str, ...]:
    """Return the enabled actions in a fixed order; raise UnknownName or UsageError."""
    if isinstance(actions, str) or not isinstance(actions, Iterable):
        raise UsageError(f'actions must be a list of names, such as ["node", "preempt"]; got {actions!r}')
    named = list(actions)
    for name in named:
        if name not in SWITCHES:
            raise UnknownName("kind of action", str(name), SWITCHES, f"; there are {', '.join(SWITCHES)}")
    if "width" in named and "mode" in named:
        raise UsageError("actions name both width and mode; the choice of a mode includes its width: leave out width")
    return tuple(name for name in SWITCHES if name in named)


class Actions:
    """Mapping between action numbers and the scheduler's decisions, for one scenario."""

    def __init__(self, problem: PlanProblem, types: Sequence[str], window: int, switches: tuple[str, ...]):
        self.window, self.switches = window, switches
        shapes = problem.tasks.shapes
        self.options: list[tuple[str, Any]]
        if "mode" in switches:
            self.options = [("mode", position) for position in range(max(len(shape.modes) for shape in shapes))]
        elif "width" in switches:
            pairs = {(types.index(mode.type.name), mode.width) for shape in shapes for mode in shape.modes}
            self.options = [("width", (types[kind], width)) for kind, width in sorted(pairs)]
        else:
            self.options = [("type", name) for name in types]
        nodes = problem.cluster.nodes
        self.places: list[int | None] = list(range(len(nodes))) if "node" in switches else [None]
        self.preempt = window * len(self.options) * len(self.places)  # the number of the first preemption
        self.power = self.preempt + (window if "preempt" in switches else 0)
        self.nodes = [node.accelerators for node in nodes] if "power" in switches else []
        self.count = self.power + 2 * len(self.nodes) + 1
        if self.count > MAX_ACTIONS:
            raise UsageError(
                f"there must be at most {MAX_ACTIONS:,} actions; got {self.count:,}: show fewer tasks "
                "(window), or leave the choice of nodes to the simulator"
            )
        self.node_names = [node.name for node in nodes]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the actions: `task 0 on a100`, `preempt running 0`, `wait`."""
        labels = []
        for task in range(self.window):
            for kind, option in self.options:
                text = {"type": f"on {option}", "mode": f"in mode {option}"}.get(kind)
                text = text or f"on {option[1]:g} {option[0]}"
                labels += [
                    f"task {task} {text}" + ("" if place is None else f" on node {self.node_names[place]}")
                    for place in self.places
                ]
        labels += [f"preempt running {number}" for number in range(self.power - self.preempt)]
        labels += [f"{what} {self.node_names[number]}" for what in ("off", "on") for number in range(len(self.nodes))]
        return (*labels, "wait")

    def split(self, action: int) -> tuple[int, tuple[str, Any], int | None]:
        rest, place = divmod(action, len(self.places))
        task, option = divmod(rest, len(self.options))
        return task, self.options[option], self.places[place]


class Acting(Window):
    """The window of waiting tasks that an agent sees, with all its actions.

    The base class `Window` has only actions that start tasks; this class adds the optional actions in `switches`.
    Without them and with the observation "vector" it behaves as a plain `Window`.
    `choice`, if given, chooses the actions: this makes a trained model a scheduler of a run.
    """

    def __init__(
        self, window: int, scale: float, switches: tuple[str, ...] = (),
        observation: Callable[[PlanProblem, int, float], Any] | None = None,
        choice: Choice | None = None, order: str = ARRIVAL,
    ):  # fmt: skip
        super().__init__(window, scale)
        self.order = order
        self.switches, self._make, self._choice = switches, observation, choice
        self._started: dict[int, float] = {}  # when running tasks started
        self._set_at: dict[int, float] = {}  # when a node was last put to sleep or woken
        self._asleep: dict[int, None] = {}  # accelerators that were put to sleep, by their numbers
        self.ended: dict[int, bool] = {}  # rows of tasks that have ended, and whether they completed

    @property
    def sets_devices(self) -> bool:  # type: ignore[override]
        return "power" in self.switches

    def check(self, problem: PlanProblem) -> None:
        self.problem = problem
        types = Layout.for_cluster(problem.cluster, self.window, self.decides).types
        self.actions = Actions(problem, types, self.window, self.switches)
        self.observer = None if self._make is None else self._make(problem, self.window, self.scale)

    def begin(self, view: View) -> None:
        super().begin(view)
        if self.observer is not None:
            self.observer.begin(self)

    def choose(self, observation: np.ndarray, mask: np.ndarray) -> int:
        assert self._choice is not None
        chosen = np.asarray(self._choice(observation, mask))
        if chosen.size != 1 or not np.issubdtype(chosen.dtype, np.integer):
            raise UsageError(f"a trained model must return the number of an action; got {chosen!r}")
        action = int(chosen.reshape(()))
        if not 0 <= action < len(mask):
            raise UsageError(f"the trained model must return an action from 0 to {len(mask) - 1}; got {action}")
        if mask[action]:
            return action
        return len(mask) - 1 if mask[-1] else int(mask.argmax())

    # What happens -----------------------------------------------------------------------------------------------

    def ready(self, task: Task) -> None:
        self._started.pop(task.index, None)
        super().ready(task)

    def finished(self, task: Task) -> None:
        self._started.pop(task.index, None)
        self.ended[task.index] = True
        super().finished(task)

    def gone(self, task: Task) -> None:
        self._started.pop(task.index, None)
        self.ended[task.index] = False
        super().gone(task)

    # What is possible -------------------------------------------------------------------------------------------

    def shown(self, first: Task | None = None) -> list[Task]:
        tasks = super().shown(first)
        if self.order == SHORTEST_FIRST and first is None:
            shortest = self._shortest
            tasks.sort(key=lambda task: shortest[task.index])
        return tasks

    def anything(self) -> bool:
        if not self.switches:
            return super().anything()
        self._fade(self.view.now)
        self._possible = self._masked()
        return bool(self._possible[:-1].any())

    def observe(self, first: Task | None = None) -> tuple[Any, np.ndarray]:
        plain = self.observer is None or self.observer.uses_vector
        if plain or not self.switches:
            observation, mask = super().observe(first)
        if self.switches:
            mask = self._masked()
        if self.observer is not None:
            observation = self.observer.checked(self, observation if plain else None)
        return observation, mask

    def _masked(self) -> np.ndarray:
        actions, view = self.actions, self.view
        mask: Any = np.zeros(actions.count, np.bool_)
        tasks = self.shown()
        answers: dict[Any, Any] = {}
        size = len(actions.options) * len(actions.places)
        by_shape: dict[Any, np.ndarray] = {}
        single = self._singly(tasks)
        for number, task in enumerate(tasks):
            key = task if single else task.shape
            if key not in by_shape:
                by_shape[key] = self._where(task, answers, single)
            mask[number * size : (number + 1) * size] = by_shape[key]
        placeable = bool(mask.any())
        now = view.now
        if "preempt" in self.switches and tasks:
            for number, task in enumerate(self.preemptible()):
                mask[actions.preempt + number] = task.shape.preemptible and self._started[task.index] < now
        wakeable = False
        for number, devices in enumerate(actions.nodes):
            on = any(device.index in self._asleep for device in devices)
            mask[actions.power + len(actions.nodes) + number] = on
            wakeable |= on
            mask[actions.power + number] = self._set_at.get(number, -1.0) < now and bool(self._idle(number))
        # As in the plain window; and where all that could run is asleep, something has to be woken.
        mask[-1] = bool(self._kind_of) or not tasks or not (placeable or wakeable)
        return mask

    def _where(self, task: Task, known: dict[Any, bool], single: bool) -> np.ndarray:
        actions = self.actions
        fits: Any = np.zeros((len(actions.options), len(actions.places)), np.bool_)
        for number, option in enumerate(actions.options):
            for place, node in enumerate(actions.places):
                fits[number, place] = any(
                    self._placed(task, mode, node, known=known, single=single) for mode in self._modes_of(task, option)
                )
        return fits.ravel()

    def _placed(self, task: Task, mode: Mode, node: int | None, known: dict[Any, bool], single: bool) -> bool:
        if single:
            return self._at(task, mode, node) is not None
        key = mode, node
        if key not in known:
            known[key] = self.view.first(mode, node=node) is not None
        return known[key]

    def _at(self, task: Task, mode: Mode, node: int | None) -> Placement | None:
        if node is None:
            return self.view.first(mode, task)
        placement = self.view.first(mode, node=node)
        if placement is None or not self.view.items or self.view.holds(task, placement):
            return placement
        return self.view.first(mode, task, node=node)

    def _modes_of(self, task: Task, option: tuple[str, Any]) -> list[Mode]:
        kind, wanted = option
        allowed = task.allowed
        order = [position for position in task.modes_by_speed() if not allowed or position in allowed]
        if kind == "mode":
            return [task.modes[wanted]] if wanted in order else []
        modes = [task.modes[position] for position in order]
        if kind == "width":
            return [mode for mode in modes if (mode.type.name, mode.width) == wanted]
        return [mode for mode in modes if mode.type.name == wanted]

    def preemptible(self) -> list[Task]:
        """Return the running tasks to which preempt actions refer, by start time."""
        return self.view.running(by="start", own=True)[: self.window]

    def _idle(self, number: int) -> list[Any]:
        columns = self.view.nodes
        columns.refresh()
        share = columns.accelerators.share
        return [
            device for device in self.actions.nodes[number]
            if device.index not in self._asleep and share[device.node, device.local] > 0 and not self.view.load(device)
        ]  # fmt: skip

    # What is done -----------------------------------------------------------------------------------------------

    def decision(self, action: int) -> Decision | None:  # type: ignore[override]
        if not self.switches:
            if (start := super().decision(action)) is not None:
                self._began(start.tasks)
            return start
        actions, now = self.actions, self.view.now
        if action == actions.count - 1:
            return None
        if action < actions.preempt:
            number, option, node = actions.split(action)
            task = self.shown()[number]
            placements = (self._at(task, mode, node) for mode in self._modes_of(task, option))
            placement = next(one for one in placements if one is not None)
            self.follow(task, placement, now + max(self.view.duration(task, placement), SHORTEST))
            self._began(task)
            return Start(task, placement)
        if action < actions.power:
            return Stop(self.preemptible()[action - actions.preempt])
        what, number = divmod(action - actions.power, len(actions.nodes))
        self._set_at[number] = now
        if what == 0:
            device = self._idle(number)[0]
            self._asleep[device.index] = None
            if self._idle(number):
                del self._set_at[number]  # the next step may put the next one to sleep
            return Set(device, "off")
        device = next(device for device in actions.nodes[number] if device.index in self._asleep)
        del self._asleep[device.index]
        return Set(device, "on")

    def _began(self, task: Any) -> None:
        self._started[task.index] = self.view.now


class WatchedWindow(Acting):
    """An agent's window in an episode; it notifies the rewards of all events."""

    rewards: list[Reward]  # that of the agent, and if it gives rewards ahead the plain one

    def ready(self, task: Task) -> None:
        for reward in self.rewards:
            reward.arrived(task)
        super().ready(task)

    def finished(self, task: Task) -> None:
        for reward in self.rewards:
            reward.completed(task)
        super().finished(task)

    def gone(self, task: Task) -> None:
        for reward in self.rewards:
            reward.departed(task)
        super().gone(task)
