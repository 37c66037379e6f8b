"""Shared parts of scoring placements: candidates, best node by keys, best GPU.

The fastest modes are tried first; equally fast modes are compared with one another, so that a task that may run on
several GPU types is placed where the rule's score is best, and not on the first type named.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.policy import View

# From a mode, and nodes where it fits, to columns to minimize in lexicographic order
Keys = Callable[[Mode, np.ndarray], Sequence[np.ndarray]]

Pick = Callable[[Task, Mode, int, View], Placement | None]  # function that returns the devices for a mode on a node


def equally_fast(task: Task) -> Iterator[list[Mode]]:
    """Yield modes of a task, fastest first, in groups that differ only in device type.

    Modes of a group have equal estimated time, and equal number and share of accelerators.
    """
    if len(task.modes) == 1:
        yield [task.modes[0]]
        return
    group: list[Mode] = []
    last = None
    for position in task.modes_by_speed():
        mode = task.modes[position]
        what = (task.estimate_at(position), mode.gpus, mode.share)
        if group and what != last:
            yield group
            group = []
        group.append(mode)
        last = what
    yield group


def best_node(task: Task, view: View, keys: Keys, pick: Pick | None = None) -> Placement | None:
    """Place the fastest mode that fits, on the node of lowest key; None if none fits.

    At ties the first node is chosen.  A gang that fits on no node is placed across nodes if it may span them.
    """
    pick = pick or on_node
    for modes in equally_fast(task):
        for mode, node in ranked(modes, view, keys):
            if (placement := pick(task, mode, node, view)) is not None:
                return placement
        if (across := first_across(task, modes, view)) is not None:
            return across
    return None


def ranked(modes: Sequence[Mode], view: View, keys: Keys) -> Iterator[tuple[Mode, int]]:
    """Yield (mode, node index) pairs that fit, by ascending `keys`; sort lazily."""
    columns: list[Sequence[np.ndarray]] = []
    nodes: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    for number, mode in enumerate(modes):
        fitting = view.nodes.candidates(mode)
        if len(fitting):
            nodes.append(fitting)
            owners.append(np.full(len(fitting), number))
            columns.append(keys(mode, fitting))
    if not nodes:
        return
    node, owner = np.concatenate(nodes), np.concatenate(owners)
    together = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    best = np.arange(len(node))
    for column in [*together, node]:
        best = best[column[best] == column[best].min()]
    yield modes[owner[best[0]]], int(node[best[0]])
    order = np.lexsort([owner, node, *reversed(together)])
    for place in order[order != best[0]].tolist():
        yield modes[owner[place]], int(node[place])


def on_node(task: Task, mode: Mode, node: int, view: View) -> Placement | None:
    """Return the first devices of a node with room for a mode; None if there are none.

    For a fraction of a GPU it is the fullest GPU with enough room.
    """
    return view.first(mode, task, node=node)


def first_across(task: Task, modes: Sequence[Mode], view: View) -> Placement | None:
    """Place a gang that may span nodes on the first free devices; None if none fits."""
    for mode in modes:
        if mode.span_any and (placement := view.first(mode)) is not None and view.holds(task, placement):
            return placement
    return None


def taking(mode: Mode, nodes: np.ndarray, view: View) -> np.ndarray:
    """Return a mask of accelerators with the share and memory that a mode needs.

    Rows are `nodes`, columns are positions of accelerators.  The mask ignores slices of a GPU; the final check is the
    engine's (`view.fits`).
    """
    single = view.nodes.accelerators
    of_type = single.kind[nodes] == single.types.index(mode.type.name)
    usable: np.ndarray = of_type & (single.share[nodes] >= mode.share)
    if mode.gpu_memory:
        usable &= single.room[nodes] >= mode.gpu_memory
    return usable


def on_gpu(task: Task, mode: Mode, node: int, view: View, order: np.ndarray | None = None) -> Placement | None:
    """Place a one-GPU mode on a node's first GPU with room; None if no GPU has room.

    order: positions of the GPUs in the order in which they are tried; default: all.
    """
    accelerators = view.cluster.nodes[node].accelerators
    positions = range(len(accelerators)) if order is None else order.tolist()
    for position in positions:
        if position < len(accelerators) and accelerators[position].type is mode.type:
            placement = Placement(mode, (accelerators[position],))
            if view.fits(mode, placement, (task,)):
                return placement
    return None


def on_fullest(task: Task, mode: Mode, node: int, view: View) -> Placement | None:
    """Place on a node's first devices, a fraction on its fullest GPU, or return None."""
    if not mode.gpus or mode.whole_devices:
        return view.first(mode, task, node=node)
    return on_gpu(task, mode, node, view=view, order=np.argsort(view.nodes.accelerators.share[node], kind="stable"))


def by_room(task: Task, modes: Sequence[Mode], view: View, tightest: bool) -> Placement | None:
    """Place on the node with the fewest free GPUs, then cores; None if none fits.

    tightest: False for the node with the most instead.  A fraction is placed on the fullest (or emptiest) GPU.
    """
    sign = 1.0 if tightest else -1.0
    if modes[0].gpus and not modes[0].whole_devices:
        return _gpu_by_room(task, modes, view, sign)
    columns = view.nodes

    def room(mode: Mode, nodes: np.ndarray) -> Sequence[np.ndarray]:
        cores = sign * columns.cores[nodes]
        return (sign * columns.gpus[mode.type.name][nodes], cores) if mode.gpus else (cores,)

    for mode, node in ranked(modes, view, room):
        if (placement := on_node(task, mode, node, view)) is not None:
            return placement
    return None


def _gpu_by_room(task: Task, modes: Sequence[Mode], view: View, sign: float) -> Placement | None:
    if any(mode.type.streams > 1 or mode.type.sharing.kind == "mig" for mode in modes):
        options = [option for mode in modes for option in view.options(task, mode)]
        return min(options, key=lambda option: -sign * view.load(option.devices[0]), default=None)
    rows = []
    for number, mode in enumerate(modes):
        nodes = view.nodes.candidates(mode)
        row, position = np.nonzero(taking(mode, nodes, view))
        free = view.nodes.accelerators.share[nodes[row], position]
        rows.append((sign * free, nodes[row], position, np.full(len(row), number)))
    free, node, position, owner = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    if not len(free):
        return None
    best = np.flatnonzero(free == free.min())
    best = best[node[best] == node[best].min()]
    first = best[position[best].argmin()]
    placement = on_gpu(task, modes[owner[first]], int(node[first]), view=view, order=position[first : first + 1])
    if placement is not None:
        return placement
    for place in np.lexsort([position, node, free]).tolist():
        placement = on_gpu(task, modes[owner[place]], int(node[place]), view=view, order=position[place : place + 1])
        if placement is not None:
            return placement
    return None


class PlacedTasks:
    """Running tasks that a placement rule placed, and the GPUs that they occupy.

    GPUs are counted by node and by group of tasks.  key: returns the group of a task's mode; None: it is not counted.
    """

    def __init__(self, key: Callable[[Mode], float | None]):
        self._key = key
        self.usage: dict[float, np.ndarray] = {}  # by key: the GPUs held on each node, as of the last `refresh`
        self._tasks: dict[int, list[Task]] = {}
        self._seen = -1

    def add(self, task: Task, placement: Placement) -> None:
        if self._key(placement.mode) is not None:
            for node in dict.fromkeys(device.node for device in placement.devices):
                self._tasks.setdefault(node, []).append(task)

    def refresh(self, view: View) -> None:
        view.nodes.refresh()
        single = view.nodes.accelerators
        changed = np.flatnonzero(single.stamp > self._seen).tolist()
        self._seen = single.look
        for node in changed:
            if (tasks := self._tasks.pop(node, None)) is None:
                continue
            for usage in self.usage.values():
                usage[node] = 0.0
            there = []
            for task in tasks:
                placement = view.launch_of(task).placement if task.state == RUNNING else None
                here = 0 if placement is None else sum(device.node == node for device in placement.devices)
                if placement is None or not here or task in there:
                    continue
                there.append(task)
                if (key := self._key(placement.mode)) is not None:
                    empty = np.zeros(len(view.cluster.nodes))
                    self.usage.setdefault(key, empty)[node] += here * placement.mode.share / WHOLE
            if there:
                self._tasks[node] = there


class Totals:
    """Total resources of nodes, as columns; unlimited memory counts as 0."""

    def __init__(self, cluster: Cluster):
        self.cores = np.array([node.cpus for node in cluster.nodes], dtype=float)
        self.memory = np.array([node.memory or 0 for node in cluster.nodes], dtype=float)
        self.gpus = np.array([len(node.accelerators) for node in cluster.nodes], dtype=float)

    def free(self, nodes: np.ndarray, view: View) -> np.ndarray:
        """Return the free cores, memory and GPUs of nodes, one row each."""
        columns = view.nodes
        gpus = sum((column[nodes] for column in columns.gpus.values()), np.zeros(len(nodes)))
        memory = np.minimum(columns.memory[nodes], self.memory[nodes])
        return np.stack([columns.cores[nodes], memory, gpus])

    def all(self, nodes: np.ndarray) -> np.ndarray:
        return np.stack([self.cores[nodes], self.memory[nodes], self.gpus[nodes]])


def demand(mode: Mode) -> np.ndarray:
    """Return cores, memory and GPUs of a mode, in the order of `Totals`."""
    return np.array([mode.millicores / 1000, mode.memory, mode.gpus * mode.share / WHOLE])
