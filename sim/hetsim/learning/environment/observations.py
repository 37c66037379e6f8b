"""Observations of environments by name, and how to write a custom observation.

vector    the vector of `hetsim.learning.observation.window`, the input of hetsim's own neural network (the default)
dict      arrays: nodes with free resources, waiting tasks, their modes with all demands, the whole system
graph     the same, and the task graph (tasks, links, critical paths) and data locations

A custom observation is a class derived from `Observation`, or a function of an `Acting` object (what an agent sees:
`view`, `shown()`, `problem`, ...) that returns an array; `hetsim.register(name, item, kind="observation")` registers
it.  ScenarioError is raised if the shape changes from one step to another, or a value is not a number.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hetsim import registry
from hetsim.errors import HetsimError, ScenarioError, UnknownName, UsageError
from hetsim.learning.environment.acting import Acting
from hetsim.learning.environment.rewards import raised
from hetsim.learning.observation.window import LIMIT, SHORTEST, Layout
from hetsim.model.device_type import WHOLE
from hetsim.model.task import Task
from hetsim.policy.contract import PlanProblem

HUGE = 1e6  # entries of `dict` and `graph` are limited to this value
MAX_GRAPH = 4096  # maximum number of tasks of a graph that are shown
GIGA = 1e9


class Observation:
    """Base of observations: arrays with the shapes of `shapes`, made at each decision.

    problem: tasks and cluster of the run, with the estimates that policies see.  Do not show a task before it arrives.
    """

    uses_vector: ClassVar[bool] = False  # True if `observe` gets the window's vector, as `vector`
    name = "observation"
    shapes: Any  # shape of the array, or a mapping of names to shapes

    def __init__(self, problem: PlanProblem, window: int, scale: float):
        self.problem, self.window, self.scale = problem, window, scale

    def begin(self, acting: Acting) -> None:
        """Prepare for a new run."""

    def keep(self, first: "Observation") -> None:
        """Take the array shapes of the observation of the first load (`first`).

        Raise ScenarioError if this observation has other shapes: an agent needs the same on all loads.
        """
        if self.shapes is None:
            self.shapes = first.shapes
        if self.shapes != first.shapes:
            raise ScenarioError(
                f"observation {self.name} has the shape {self.shapes} on this load and {first.shapes} on the first; "
                "the shape must be the same on all loads"
            )

    def observe(self, acting: Acting, vector: np.ndarray | None) -> Any:
        """Return the current observation: an array, or a mapping of names to arrays.

        vector: the window's vector if `uses_vector`, else None.
        """
        raise NotImplementedError

    def checked(self, acting: Acting, vector: np.ndarray | None) -> Any:
        """Return the observation as float32; ScenarioError if its shape is not `shapes`."""
        observed, now = self._observed(acting, vector), acting.view.now
        if not isinstance(self.shapes, Mapping):
            return self._array(observed, self.shapes, "", now)
        if not isinstance(observed, Mapping) or set(observed) != set(self.shapes):
            given = ", ".join(map(str, observed)) if isinstance(observed, Mapping) else type(observed).__name__
            raise ScenarioError(
                f"observation {self.name} returned {given or 'nothing'} at t = {now:g} s; its entries must be "
                f"{', '.join(self.shapes)}"
            )
        return {key: self._array(observed[key], shape, f" in {key}", now) for key, shape in self.shapes.items()}

    def _observed(self, acting: Acting, vector: np.ndarray | None) -> Any:
        try:
            return self.observe(acting, vector)
        except HetsimError:
            raise
        except Exception as error:
            raise raised("observation", self.name, acting.view.now, error) from error

    def _array(self, value: Any, shape: tuple[int, ...], where: str, now: float) -> np.ndarray:
        try:
            with np.errstate(over="ignore"):  # what is too large is infinite, and said below
                array = np.asarray(value, np.float32)
        except (TypeError, ValueError):
            text = f"returned {value!r:.60}{where} at t = {now:g} s, which is not an array of numbers"
            raise ScenarioError(f"observation {self.name} {text}") from None
        if array.shape != tuple(shape):
            raise ScenarioError(
                f"observation {self.name} returned the shape {array.shape}{where} at t = {now:g} s; it must be "
                f"{tuple(shape)} each time"
            )
        if not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))[0].tolist()
            raise ScenarioError(
                f"observation {self.name} returned {float(array[tuple(at)])}{where} at {at}, t = {now:g} s; "
                "entries must be finite numbers"
            )
        return array


class _Called(Observation):
    """A function as an observation; its first result determines the shape."""

    shapes: Any = None

    def __init__(self, function: Callable[[Any], Any], *given: Any):
        super().__init__(*given)
        self.function = function
        self.name = getattr(function, "__name__", "of a function")

    def observe(self, acting: Acting, vector: np.ndarray | None) -> Any:
        result = self.function(acting)
        if self.shapes is None:
            now = acting.view.now
            if isinstance(result, Mapping):
                for key in result:
                    if not isinstance(key, str):
                        raise ScenarioError(f"observation {self.name} returned an entry {key!r}; names must be texts")
                self.shapes = {key: self._shape(value, f" in {key}", now) for key, value in result.items()}
            else:
                self.shapes = self._shape(result, "", now)
        return result

    def _shape(self, value: Any, where: str, now: float) -> tuple[int, ...]:
        try:
            return np.shape(value)
        except ValueError:  # rows of different lengths
            text = f"returned {value!r:.60}{where} at t = {now:g} s, which is not an array of numbers"
            raise ScenarioError(f"observation {self.name} {text}") from None

    def checked(self, acting: Acting, vector: np.ndarray | None) -> Any:
        if self.shapes is None:
            self._observed(acting, vector)
        return super().checked(acting, vector)


class Arrays(Observation):
    """Observation `dict`: nodes, the tasks shown, and their modes as arrays.

    nodes  (nodes, 5 + 3 for each GPU type): cores free and in total, GB of memory free and in total, accelerators
           asleep; by type: GPUs free (fractions included) and in total, free GB of GPU memory.
    tasks  (window, 12): 1 if there is a task (else all 0), log(1 + (time since arrival) / scale), log(shortest time /
           scale), weight, priority, 1 if it has a deadline, (time to the deadline) / scale, fraction done, number of
           predecessors, class and user (numbers from 1), GB of items that it reads or writes.
    modes  (window, modes, 10): 1 if there is a mode, type of device (number from 1), cores, GPUs, fraction of each GPU,
           GB of memory, GB of memory of each GPU, 1 if it may span nodes, 1 if it fits now, log(time / scale).
    whole  (3,): log(1 + waiting tasks), running tasks, log(1 + now / scale).
    Cores, GPUs and GB are not scaled, but limited to 1e6.  `scale`: seconds of a typical task.
    """

    name = "dict"
    NODE, TASK, MODE = 5, 12, 10

    def __init__(self, problem: PlanProblem, window: int, scale: float):
        super().__init__(problem, window, scale)
        cluster = problem.cluster
        self.types = Layout.for_cluster(cluster, window).types
        self.gpus = [kind.name for kind in cluster.types.values() if kind.kind != "cpu" and cluster.count(kind.name)]
        self.modes = max((len(shape.modes) for shape in problem.tasks.shapes), default=1)
        self.shapes = {
            "nodes": (len(cluster.nodes), self.NODE + 3 * len(self.gpus)), "tasks": (window, self.TASK),
            "modes": (window, self.modes, self.MODE), "whole": (3,),
        }  # fmt: skip
        tasks = problem.tasks
        self._class = {name: number for number, name in enumerate(tasks.classes, 1)}
        self._user = {name: number for number, name in enumerate(tasks.users, 1)}
        self._static = np.zeros(self.shapes["nodes"], np.float32)
        for node in cluster.nodes:
            row = self._static[node.index]
            row[1], row[3] = node.cpus, (node.memory or 0) / GIGA
            for device in node.accelerators:
                row[self.NODE + 3 * self.gpus.index(device.type.name) + 1] += 1
        self._limited = np.array([node.memory is not None for node in cluster.nodes])

    def keep(self, first: Observation) -> None:
        assert isinstance(first, Arrays)
        fixed = self.types == first.types and self.modes <= first.modes
        if not fixed or self.shapes["nodes"] != first.shapes["nodes"]:
            super().keep(first)
        self.modes, self.shapes = first.modes, first.shapes

    def observe(self, acting: Acting, vector: np.ndarray | None) -> dict[str, np.ndarray]:
        view, shown = acting.view, acting.shown()
        arrays = {key: np.zeros(shape, np.float32) for key, shape in self.shapes.items()}
        self._nodes(acting, arrays["nodes"])
        fits: dict[Any, bool] = {}
        for number, task in enumerate(shown):
            arrays["tasks"][number] = self._task(task, view.now)
            self._modes(acting, task, arrays["modes"][number], fits)
        waiting, running = len(acting._waiting), len(acting._kind_of)
        arrays["whole"][:] = math.log1p(waiting), running, math.log1p(view.now / self.scale)
        for array in arrays.values():
            np.clip(array, -HUGE, HUGE, out=array)
        return arrays

    def _nodes(self, acting: Acting, rows: np.ndarray) -> None:
        columns = acting.view.nodes
        single = columns.accelerators
        columns.refresh()
        rows[:] = self._static
        rows[:, 0] = columns.cores
        rows[:, 2] = np.where(self._limited, columns.memory / GIGA, 0.0)
        for index in acting._asleep:
            rows[self.problem.cluster.devices[index].node, 4] += 1
        for number, name in enumerate(self.gpus):
            at = self.NODE + 3 * number
            rows[:, at] = columns.gpus[name]
            rows[:, at + 2] = (single.room * (single.kind == single.types.index(name))).sum(axis=1) / GIGA

    def _task(self, task: Task, now: float) -> tuple[float, ...]:
        due = task.deadline < math.inf
        table = self.problem.tasks
        before = table.predecessors
        items = {*task.reads, *task.writes}
        size = sum(table.items[item].size for item in items) + task.bytes_in + task.bytes_out
        return (
            1.0, math.log1p((now - task.arrival) / self.scale),
            math.log(max(task.shortest_remaining, SHORTEST) / self.scale), task.weight, task.priority, float(due),
            (task.deadline - now) / self.scale if due else 0.0, task.done,
            len(before[task.index]) if before is not None else 0.0, self._class.get(task.class_, 0),
            self._user.get(task.user, 0), size / GIGA,
        )  # fmt: skip

    def _modes(self, acting: Acting, task: Task, rows: np.ndarray, known: dict[Any, bool]) -> None:
        single = acting._singly([task])
        remaining = 1.0 - task.done
        for position, mode in enumerate(task.modes):
            fits = acting._placed(task, mode, None, known=known, single=single) and not (
                task.allowed and position not in task.allowed
            )
            time = max(task.estimate_at(position) * remaining, SHORTEST)
            kind = self.types.index(mode.type.name) + 1 if mode.type.name in self.types else 0
            rows[position] = (
                1.0, kind, mode.cpus, mode.gpus, mode.share / WHOLE, mode.memory / GIGA, mode.gpu_memory / GIGA,
                float(mode.span_any), float(fits), max(-LIMIT, min(LIMIT, math.log(time / self.scale))),
            )  # fmt: skip


class GraphObservation(Arrays):
    """Observation `graph`: the arrays of `Arrays`, plus task graph and data locations.

    `Arrays` is observation `dict`.  Tasks shown: the first `window` waiting tasks.  `scale`: seconds of a typical task.
    graph   (tasks, 8): a row for each task that has arrived and not ended.  Columns: 1 (0 in an empty row); 1 if the
                task waits for predecessors; 1 if it waits for a device; 1 if it runs; log(shortest time / scale);
                length of the critical path from its start to the end of the graph, in shortest estimated times / scale;
                number of unfinished predecessors; number of successors.
    links   (links, 2): for each edge, the rows in `graph` of predecessor and successor; -1: no edge.
    shown   (window,): the row in `graph` of each task shown; -1: no row.
    data    (items, 1 + nodes): GB of each item; by node, 1 for a valid copy in host memory, 2 for one on a GPU.
    needs   (window, items): 1 if the task shown reads the item, 2 if it writes it.
    The first 4,096 tasks in workload order have a row.  The workload with which the environment was created sets all
    sizes; without a task graph, `graph` has about twice as many rows as that workload has tasks.
    """

    name = "graph"
    ROW = 8

    def __init__(self, problem: PlanProblem, window: int, scale: float):
        super().__init__(problem, window, scale)
        tasks = problem.tasks
        before = tasks.predecessors or [()] * len(tasks)
        self._after: list[list[int]] = [[] for _ in range(len(tasks))]
        for row, earlier in enumerate(before):
            for one in earlier:
                self._after[one].append(row)
        self._before = before
        self._least = tasks.computing(tasks.estimate).min(axis=1)
        self._path = self._critical(len(tasks))
        size = min(MAX_GRAPH, len(tasks) if tasks.predecessors is not None else 2 * len(tasks) + window)
        self.limits = rows, edges, items = size, max(1, sum(map(len, before))), max(1, len(tasks.items))
        self.shapes |= {
            "graph": (rows, self.ROW), "links": (edges, 2), "shown": (window,),
            "data": (items, 1 + len(problem.cluster.nodes)), "needs": (window, items),
        }  # fmt: skip

    def keep(self, first: Observation) -> None:
        assert isinstance(first, GraphObservation)
        super().keep(first)
        self.limits = first.limits

    def _critical(self, count: int) -> np.ndarray:
        """Length of the critical path from each task's start to the end of the graph."""
        path, successors = self._least.copy(), [len(after) for after in self._after]
        ready = [row for row in range(count) if not successors[row]]
        while ready:
            row = ready.pop()
            for one in self._before[row]:
                path[one] = max(path[one], self._least[one] + path[row])
                successors[one] -= 1
                if not successors[one]:
                    ready.append(one)
        return path

    def observe(self, acting: Acting, vector: np.ndarray | None) -> dict[str, np.ndarray]:
        observed = super().observe(acting, vector)
        view, now = acting.view, acting.view.now
        tasks, ended = self.problem.tasks, acting.ended
        rows, edges, items = self.limits
        place: dict[int, int] = {}
        links = observed["links"]
        links[:] = observed["shown"][:] = -1
        at = 0
        for row in range(len(tasks)):
            if len(place) == rows:
                break
            if tasks.arrival[row] > now or row in ended:
                continue
            place[row] = number = len(place)
            before = [one for one in self._before[row] if one not in ended]
            runs, waits = row in acting._kind_of, row in acting._waiting
            observed["graph"][number] = (
                1.0, float(not runs and not waits), float(waits), float(runs),
                math.log(max(self._least[row], SHORTEST) / self.scale), self._path[row] / self.scale, len(before),
                len(self._after[row]),
            )  # fmt: skip
            for one in before:
                if one in place and at < edges:
                    links[at] = place[one], number
                    at += 1
        needs, data = observed["needs"], observed["data"]
        for number, task in enumerate(acting.shown()):
            observed["shown"][number] = place.get(task.index, -1)
            for mark, wanted in ((1.0, task.reads), (2.0, task.writes)):
                for item in wanted:
                    if item < items:
                        needs[number, item] = mark
        for item in range(min(items, len(tasks.items))):
            data[item, 0] = tasks.items[item].size / GIGA
            for holder in view.holders(item):
                node, mark = (holder, 1.0) if isinstance(holder, int) else (holder.node, 2.0)
                data[item, 1 + node] = max(data[item, 1 + node], mark)
        return observed


OBSERVATIONS: dict[str, type[Observation]] = {"dict": Arrays, "graph": GraphObservation}
VECTOR = "vector"
ObservationLike = str | type[Observation] | Callable[[Any], Any]


def _made(kind: type[Observation], problem: PlanProblem, window: int, scale: float) -> Observation:
    observation = kind(problem, window, scale)
    shapes = getattr(observation, "shapes", None)
    named = shapes if isinstance(shapes, Mapping) else {"": shapes}
    sizes = [size for shape in named.values() for size in (shape if isinstance(shape, tuple) else (None,))]
    are_whole = all(isinstance(size, int | np.integer) and size >= 0 for size in sizes)
    if not named or not are_whole or not all(isinstance(name, str) for name in named):
        raise UsageError(
            f"`shapes` of observation {kind.__name__} must be a tuple of whole numbers, or a mapping of names to "
            f"such tuples; got {shapes!r}"
        )
    return observation


def make_observation(given: ObservationLike) -> Callable[[PlanProblem, int, float], Observation] | None:
    """Return a function of (problem, window, scale) that creates a run's observation.

    Return None for "vector", which is built in; raise UnknownName or UsageError for an unknown or unsuitable `given`.
    """
    item: Any = given
    if isinstance(given, str):
        classes = {**OBSERVATIONS, **registry.registered("observation")}
        if given == VECTOR and given not in classes:
            return None
        if given not in classes:
            names = [VECTOR, *classes]
            raise UnknownName("observation", given, names, f"; the observations are {', '.join(names)}")
        item = classes[given]
    if isinstance(item, type) and issubclass(item, Observation):
        return partial(_made, item)
    if callable(item) and not isinstance(item, type):
        return partial(_Called, item)
    raise UsageError(
        "observation must be a name, a class derived from hetsim.learning.environment.observations.Observation, or a "
        "function of the window "
        f"that returns an array; got {given!r}"
    )
