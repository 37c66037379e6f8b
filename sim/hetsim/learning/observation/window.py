"""The window: features of the first waiting tasks; actions: (task, device type).

The Gymnasium environments (`hetsim.learning`) and the policies that run trained networks (`hetsim_policies.learning`)
share this file, so that a policy observes in a run exactly what it observed in training.

An observation is a vector of fixed length, every entry within ± `LIMIT`:

    for each of the first `window` waiting tasks, by arrival:    TASK
    for each of these on each device type of the cluster:        PAIR
    for each device type:                                        DEVICE
    for the whole system:                                        WHOLE_SYSTEM
    for the new task, if admission is decided:                   ASKED

docs/learning.md explains each entry and its range.
Times enter as logarithms of their ratio to `scale`, the typical time of a task.  Action `i * types + k` places task i
on type k, in its fastest mode that fits there, on the first devices; the last action waits for the next change.
For admission (`hetsim.learning.observation.admission`), the new task is shown first, and there are two actions.  Times
are estimates, as for every policy.  Cost: about thirty NumPy operations and a check of every mode of the tasks shown,
whatever the length of the queue.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from operator import index
from struct import pack
from typing import Any, ClassVar

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.mode import Shape
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.contract import Scheduler, View
from hetsim.policy.decisions import Decision, Start

FEATURES_VERSION = 1  # Version of the observation's content; a policy learned on another version cannot be run

TASK = ("present", "waited", "shortest", "urgency", "due", "slack", "width", "rank")
PAIR = ("possible", "fits", "time", "penalty", "share")
DEVICE = ("free", "wanted", "backlog", "soonest")
WHOLE_SYSTEM = ("waiting", "beyond", "arrivals", "completions")
ASKED = ("value",)

SCHEDULING, ADMISSION = DECIDES = ("scheduling", "admission")  # what a policy can learn to decide

LIMIT = 10.0
MAX_WINDOW = 1000
MEMORY = 30.0  # window of averaged rates, in typical times
SHORTEST = 1e-9  # minimum time of a task in seconds, so that the logarithm is finite


@dataclass(frozen=True)
class Layout:
    """Sizes of an agent's observation and action set; window: number of visible tasks."""

    window: int
    types: tuple[str, ...]
    decides: str = SCHEDULING

    @classmethod
    def for_cluster(cls, cluster: Cluster, window: int, decides: str = SCHEDULING) -> "Layout":
        """Return the layout for `window` tasks and the device types that a cluster has."""
        return cls(window, tuple(kind.name for kind in cluster.types.values() if cluster.count(kind.name)), decides)

    @property
    def actions(self) -> int:
        return 2 if self.decides == ADMISSION else self.window * len(self.types) + 1

    @property
    def observation(self) -> int:
        kinds = len(self.types)
        asked = len(ASKED) if self.decides == ADMISSION else 0
        return self.window * (len(TASK) + kinds * len(PAIR)) + kinds * len(DEVICE) + len(WHOLE_SYSTEM) + asked

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries in order: `task 0: waited`, `a100: free`, and so on."""
        tasks = range(self.window)
        labels = [f"task {task}: {entry}" for task in tasks for entry in TASK]
        labels += [f"task {task} on {kind}: {entry}" for task in tasks for kind in self.types for entry in PAIR]
        labels += [f"{kind}: {entry}" for kind in self.types for entry in DEVICE]
        labels += [f"whole: {entry}" for entry in WHOLE_SYSTEM]
        return (*labels, *(f"task 0: {entry}" for entry in ASKED if self.decides == ADMISSION))

    @property
    def inputs(self) -> int:
        """Length of a row of `rows`: features of one action."""
        kinds = len(self.types)
        context = kinds * len(DEVICE) + len(WHOLE_SYSTEM) + 1
        if self.decides == ADMISSION:
            return len(TASK) + kinds * len(PAIR) + len(ASKED) + context
        return len(TASK) + len(PAIR) + len(DEVICE) + kinds + context

    @property
    def rows(self) -> np.ndarray:
        """Indexes of the inputs of the network that scores actions: one row per action.

        They are indexes into the observation with 0 and 1 appended.  A row has the features of the task, of the task on
        the device type, and of the type; a 1 at the place of the type among all types, and 0 for the others; the state
        of all types and of the system; and 1 if the action waits.  So one small network can score every action.  For
        admission, the row of "accept" has the new task on all types, the row of "reject" only the state.
        """
        return _rows(self)

    def select(self, observations: np.ndarray, which: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the feature row of `actions[i]` in observation `which[i]`, for each i."""
        padded = np.concatenate([observations, np.tile(_PADDING, (len(observations), 1))], axis=1)
        return padded[which[:, None], self.rows[actions]]

    def row(self, observation: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.concatenate([observation, _PADDING])[self.rows[actions]]


@lru_cache
def _rows(layout: Layout) -> np.ndarray:
    kinds, tasks = len(layout.types), layout.window
    zero, one = layout.observation, layout.observation + 1
    pairs = tasks * len(TASK)
    if layout.decides == ADMISSION:
        asked = layout.observation - len(ASKED)
        state = [*range(asked - len(WHOLE_SYSTEM) - kinds * len(DEVICE), asked)]
        own_task = [*range(len(TASK)), *range(pairs, pairs + kinds * len(PAIR)), *range(asked, layout.observation)]
        return np.array([[zero] * len(own_task) + [*state, one], [*own_task, *state, zero]])
    devices = pairs + tasks * kinds * len(PAIR)
    context = list(range(devices, layout.observation))
    rows = []
    for task in range(tasks):
        for kind in range(kinds):
            pair, device = pairs + (task * kinds + kind) * len(PAIR), devices + kind * len(DEVICE)
            row = [task * len(TASK) + n for n in range(len(TASK))]
            row += [pair + n for n in range(len(PAIR))] + [device + n for n in range(len(DEVICE))]
            rows.append([*row, *(one if other == kind else zero for other in range(kinds)), *context, zero])
    own = len(TASK) + len(PAIR) + len(DEVICE) + kinds
    return np.array([*rows, [zero] * own + context + [one]])


_PADDING = np.array([0.0, 1.0], np.float32)
_OWN = len(TASK)
_ARRIVAL, _DEADLINE, SHORTEST_COLUMN, _KIND, _WIDTH = range(_OWN, _OWN + 5)
# Number of constant features of a task, device types aside: observed ones, and inputs of changing ones
_STATIC = _OWN + 5


class Window(Scheduler):
    """Observes the first waiting tasks by arrival, and converts actions to decisions.

    Base of policies that choose an action in `choose`.  scale: seconds of a typical task.
    """

    decides: ClassVar[str] = SCHEDULING

    def __init__(self, window: int, scale: float):
        self.window, self.scale = window, scale
        self.running: list[dict[int, float]] = []  # expected ends of the running tasks, by type of device and row
        self._kind_of: dict[int, int] = {}
        self._waiting: dict[int, Task] = {}
        self._ordered = True
        self._visible: list[Task] | None = None  # what `shown` returns, until a task comes or goes
        self._facts: dict[int, bytes] = {}  # of each waiting task the features that are constant, as 64-bit numbers
        self._shortest: dict[int, float] = {}  # and one of them, by which tasks may be ordered
        self._dated = 0  # waiting tasks that have a deadline
        # shown tasks and where each fits, from `anything` until the next observation
        self._looked: tuple[list[Task], list[list[bool]]] | None = None
        self._rates = [0.0, 0.0]
        self._rated_at = 0.0

    def begin(self, view: View) -> None:
        self.view = view
        self.layout = Layout.for_cluster(view.cluster, self.window, self.decides)
        types = self.layout.types
        self._number = {name: number for number, name in enumerate(types)}
        self._capacity = [float(view.cluster.count(name)) for name in types]
        self._one_cpu_type = sum(kind.kind == "cpu" for kind in view.cluster.types.values()) == 1
        self.running = [{} for _ in types]
        self._row = f"{_STATIC + len(types) * len(PAIR)}d"
        self._modes: dict[Shape, list[list[int]]] = {}

    def choose(self, observation: np.ndarray, mask: np.ndarray) -> Any:  # a whole number, NumPy's too
        """Choose one of the actions that the mask allows."""
        raise NotImplementedError

    def schedule(self, view: View) -> Iterator[Decision]:
        while self.anything():
            decision = self.decision(index(self.choose(*self.observe())))
            if decision is None:
                break
            yield decision

    # What happens ---------------------------------------------------------------------------------------------

    def ready(self, task: Task) -> None:
        row, now = task.index, self.view.now
        if (kind := self._kind_of.pop(row, None)) is not None:  # it was stopped
            del self.running[kind][row]
        else:
            self._count(0, now)
        self._note_facts(task)
        self._dated += task.deadline < math.inf
        if self._waiting:
            last = next(reversed(self._waiting.values()))
            self._ordered = self._ordered and (last.arrival, last.index) < (task.arrival, row)
        self._waiting[row], self._visible = task, None

    def finished(self, task: Task) -> None:
        self._count(1, self.view.now)
        self._forget(task)

    def gone(self, task: Task) -> None:
        self._forget(task)

    def _forget(self, task: Task) -> None:
        row = task.index
        if (kind := self._kind_of.pop(row, None)) is not None:
            del self.running[kind][row]
        self._leave(row)

    def _leave(self, row: int) -> None:
        if (task := self._waiting.pop(row, None)) is not None:
            del self._facts[row], self._shortest[row]
            self._dated -= task.deadline < math.inf
            self._visible = None

    def _count(self, which: int, now: float) -> None:
        self._fade(now)
        self._rates[which] += 1.0

    def _fade(self, now: float) -> None:
        if now > self._rated_at:
            factor = math.exp((self._rated_at - now) / (MEMORY * self.scale))
            self._rates = [rate * factor for rate in self._rates]
            self._rated_at = now

    # What is seen ---------------------------------------------------------------------------------------------

    def shown(self, first: Task | None = None) -> list[Task]:
        """Return the first waiting tasks by arrival; `first` precedes all others."""
        if not self._ordered:
            self._waiting = dict(sorted(self._waiting.items(), key=lambda entry: (entry[1].arrival, entry[0])))
            self._ordered = True
        if first is None:
            return list(islice(self._waiting.values(), self.window))
        others = (task for task in self._waiting.values() if task is not first)
        return [first, *islice(others, self.window - 1)]

    def anything(self) -> bool:
        """Return True if any of the tasks shown could start now.

        If so, call `observe` before anything changes: it reuses the placements found here.
        """
        self._fade(self.view.now)
        tasks = self._now_shown()
        fits = self._fits(tasks) if tasks else []
        startable = any(True in there for there in fits)
        self._looked = (tasks, fits) if startable else None
        return startable

    def _now_shown(self) -> list[Task]:
        if self._visible is None:
            self._visible = self.shown()
        return self._visible

    def observe(self, first: Task | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the current observation, and the mask of possible actions.

        first: a task to show first.  Waiting is impossible if nothing runs and something may be placed: otherwise the
        run might never advance.
        """
        observations, masks = observe_together([self], first)
        return observations[0], masks[0]

    def take_look(self, first: Task | None) -> tuple[list[Task], list[list[bool]]]:
        looked, self._looked = self._looked, None
        if looked is None or first is not None:
            tasks = self._now_shown() if first is None else self.shown(first)
            return tasks, self._fits(tasks)
        return looked

    def context(self, work: list[float], wanted: list[int]) -> list[float]:
        """Features of the device types and of the whole system.

        work, wanted: by device type, device-seconds and number of the observed waiting tasks that are fastest on it.
        """
        now, scale, shown, row = self.view.now, self.scale, self.window, []
        self.view.nodes.refresh()
        for name, running, capacity, ahead, count in zip(
            self.layout.types, self.running, self._capacity, work, wanted, strict=True
        ):
            ends = running.values()
            ahead += sum([end - now for end in ends if end > now])
            row += [
                self._free(name) / capacity, count / shown, math.log1p(ahead / (capacity * scale)),
                math.log1p(max(0.0, min(ends) - now) / scale) if ends else 0.0,
            ]  # fmt: skip
        self._fade(now)
        waiting = len(self._waiting)
        row += [math.log1p(waiting / shown), max(0, waiting - shown) / max(waiting, 1)]
        return row + [math.log1p(rate / MEMORY) for rate in self._rates]

    def _free(self, name: str) -> float:
        column = self.view.nodes.gpus.get(name)
        if column is None and self._one_cpu_type:
            column = self.view.nodes.cores
        return self.view.free(name) if column is None else float(column[0] if len(column) == 1 else column.sum())

    def _note_facts(self, task: Task) -> None:
        """Store the row of a task's features that are constant while the task waits."""
        scale = self.scale
        modes, remaining, order = task.modes, 1.0 - task.done, task.modes_by_speed()
        shortest = max(task.shortest_remaining, SHORTEST)
        best = modes[order[0]]
        pairs = [0.0] * (len(self.layout.types) * len(PAIR))
        for position in reversed(order):
            mode = modes[position]
            if (kind := self._number.get(mode.type.name)) is not None:
                time = max(task.estimate_at(position) * remaining, SHORTEST)
                width = mode.width / self._capacity[kind]
                at = kind * len(PAIR)
                pairs[at : at + len(PAIR)] = 1.0, 0.0, math.log(time / scale), math.log(time / shortest), width
        kind, deadline = self._number.get(best.type.name, 0), task.deadline
        due = 1.0 if deadline < math.inf else 0.0
        width = best.width / self._capacity[kind]
        self._shortest[task.index] = shortest
        self._facts[task.index] = pack(
            self._row, 1.0, 0.0, math.log(shortest / scale), scale / (scale + shortest), due, 1.0, width, 0.0,
            task.arrival, deadline, shortest, kind, best.width, *pairs,
        )  # fmt: skip

    def _fits(self, tasks: list[Task]) -> list[list[bool]]:
        places: dict[Any, Placement | None] = {}
        if self._singly(tasks):
            return [self._fits_task(task, places) for task in tasks]
        first = self.view.first
        there = {
            shape: [any(first(shape.modes[one]) is not None for one in kind) for kind in self._positions(shape)]
            for shape in dict.fromkeys(task.shape for task in tasks)
        }
        return [there[task.shape] for task in tasks]

    def _singly(self, tasks: list[Task]) -> bool:
        return bool(self.view.items) or any(task.allowed is not None for task in tasks)

    def _fits_task(self, task: Task, known: dict[Any, Placement | None]) -> list[bool]:
        modes, allowed, items = task.shape.modes, task.allowed, bool(self.view.items)
        row = []
        for positions in self._positions(task.shape):
            fits = False
            for position in positions:
                if allowed and position not in allowed:
                    continue
                mode = modes[position]
                if mode not in known:
                    known[mode] = self.view.first(mode)
                placement = known[mode]
                if placement is not None and items:
                    key = mode, task.reads, task.writes
                    if key not in known:
                        known[key] = self.view.first(mode, task)
                    placement = known[key]
                if placement is not None:
                    fits = True
                    break
            row.append(fits)
        return row

    def _positions(self, shape: Shape) -> list[list[int]]:
        if (positions := self._modes.get(shape)) is None:
            names = [mode.type.name for mode in shape.modes]
            positions = self._modes[shape] = [
                [position for position, name in enumerate(names) if name == kind] for kind in self.layout.types
            ]
        return positions

    # What is done ---------------------------------------------------------------------------------------------

    def placement(self, task: Task, kind: int) -> Placement | None:
        """Return the placement of a task on a type now, in its fastest mode, or None."""
        name = self.layout.types[kind]
        for position in task.modes_by_speed():
            mode = task.modes[position]
            if mode.type.name == name and (placement := self.view.first(mode, task)) is not None:
                return placement
        return None

    def decision(self, action: int) -> Start | None:
        """Return the decision of an action that the mask allows; None for waiting."""
        if action == self.layout.actions - 1:
            return None
        position, kind = divmod(action, len(self.layout.types))
        task = self._now_shown()[position]
        placement = self.placement(task, kind)
        assert placement is not None, "the mask allows only tasks that fit"
        self.follow(task, placement, self.view.now + self.view.duration(task, placement))
        return Start(task, placement)

    def follow(self, task: Task, placement: Placement, end: float) -> None:
        """Record a start or move of a task, and when it should end."""
        row = task.index
        if (before := self._kind_of.get(row)) is not None:
            del self.running[before][row]
        self._leave(row)
        kind = self._kind_of[row] = self._number[placement.mode.type.name]
        self.running[kind][row] = end

    def expected_end(self, task: Task) -> float:
        """End time of a running task, as estimated at its start."""
        return self.running[self._kind_of[task.index]][task.index]


def observe_together(windows: Sequence[Window], first: Task | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return observations and masks, a row per window, for equal layouts and scales."""
    layout, scale, some = windows[0].layout, windows[0].scale, len(windows)
    shown, kinds = layout.window, len(layout.types)
    looks = [window.take_look(first) for window in windows]
    fits, counts = [there for _, rows in looks for there in rows], [len(tasks) for tasks, _ in looks]
    packed = [window._facts[task.index] for window, (tasks, _) in zip(windows, looks, strict=True) for task in tasks]
    facts: Any = np.frombuffer(bytearray().join(packed)).reshape(count := len(packed), _STATIC + kinds * len(PAIR))
    own: Any
    now: Any
    work: Any
    where: Any
    if some == 1:  # by far the usual case, and the positions of several take a third of the time
        own, now = 0, windows[0].view.now
        place, where = np.arange(count), (0, slice(count))
        order = facts[:, SHORTEST_COLUMN].argsort(kind="stable")
    else:
        own, now = np.repeat(np.arange(some), counts), np.repeat([window.view.now for window in windows], counts)
        place = np.arange(count) - np.repeat(np.cumsum(counts) - counts, counts)
        where, order = (own, place), np.lexsort((facts[:, SHORTEST_COLUMN], own))

    observations: Any = np.zeros((some, layout.observation), np.float32)
    masks: Any = np.zeros((some, layout.actions), np.bool_)
    shortest = facts[:, SHORTEST_COLUMN]
    of_tasks = facts[:, :_OWN]
    of_tasks[:, 1] = np.log1p((now - facts[:, _ARRIVAL]) / scale)
    if any(window._dated for window in windows):
        slack = (facts[:, _DEADLINE] - now) / (4.0 * np.maximum(shortest, SHORTEST)) - 1.0
        of_tasks[:, 5] = np.minimum(np.maximum(slack, -1.0), 1.0)
    of_tasks[order, 7] = place / shown
    end = shown * _OWN
    observations[:, :end].reshape(some, shown, _OWN)[where] = of_tasks

    start, end = end, end + shown * kinds * len(PAIR)
    of_pairs = facts[:, _STATIC:].reshape(count, kinds, len(PAIR))
    if count:
        of_pairs[:, :, 1] = fits
    observations[:, start:end].reshape(some, shown, kinds, len(PAIR))[where] = of_pairs

    best = own * kinds + facts[:, _KIND].astype(np.intp)
    work = np.bincount(best, shortest * facts[:, _WIDTH], some * kinds).reshape(some, kinds).tolist()
    wanted = np.bincount(best, minlength=some * kinds).reshape(some, kinds).tolist()
    stop = end + kinds * len(DEVICE) + len(WHOLE_SYSTEM)
    observations[:, end:stop] = [windows[i].context(work[i], wanted[i]) for i in range(some)]
    np.minimum(np.maximum(observations, -LIMIT, out=observations), LIMIT, out=observations)
    if layout.decides == ADMISSION:
        masks[:] = True
        return observations, masks
    masks[:, :-1].reshape(some, shown, kinds)[where] = of_pairs[:, :, 1]
    masks[:, -1] = np.logical_or([bool(window._kind_of) for window in windows], ~masks.any(axis=1))
    return observations, masks
