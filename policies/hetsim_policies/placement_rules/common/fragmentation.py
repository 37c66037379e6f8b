"""The expected fragmentation of a node's GPUs, and its increase by a task.

The fragmentation of a node is its free GPU share that a random request cannot use, in GPUs: the mean Σ_m p_m F_n(m)
over request types m of probability p_m.  F_n(m) is what request m cannot use on node n.  If m does not fit on the node,
or needs no GPU, this is all free GPU share of the node.  Otherwise it is the free share of those GPUs that have less
than the share that m needs of a GPU.  This is the definition in the paper; the metric `fragmentation` of results
differs in one point: for a request without GPU that fits, F_n(m) is 0.  The request of a task is the demand of its
first accelerator mode; all accelerator types for which the task has a mode of equal demand can serve it.  Without
accelerator modes it is the demand of the first mode.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode, Shape
from hetsim.policy import View
from hetsim_policies.common import grouped

TOGETHER = 256  # states scored at once: enough to hide the cost of a call, few enough for the cache


@dataclass
class NodeClass:
    """Free resources of equal nodes: cores, memory, and GPUs sorted by type."""

    cores: int
    memory: float
    kinds: tuple[str, ...]
    share: np.ndarray
    room: np.ndarray
    mix: "Mix | None" = None  # mix for which `before`, the expected fragmentation, is valid
    before: float = 0.0


class NodeStates:
    """Distinct states of nodes so far; `number[node]` is the number of a node's state.

    A state is a node's free resources (`NodeClass`); nodes with equal free resources share a state.
    memory: True if free host memory is part of a state; if False, host memory counts as unlimited.
    """

    def __init__(self, view: View, memory: bool = True):
        self._memory = memory
        self.states: list[NodeClass] = []
        self.number = np.zeros(len(view.cluster.nodes), np.int64)
        self._known: dict[tuple[object, ...], int] = {}
        self._seen = -1

    @property
    def count(self) -> int:
        return len(self.states)

    def refresh(self, view: View) -> None:
        columns = view.nodes
        columns.refresh()
        single = columns.accelerators
        for node in np.flatnonzero(single.stamp > self._seen).tolist():
            there = single.kind[node] >= 0
            kind, share, room = (part[node][there] for part in (single.kind, single.share, single.room))
            order = np.lexsort([room, share, kind])
            kind, share, room = kind[order], share[order], room[order]
            cores = round(float(columns.cores[node]) * 1000)
            memory = float(columns.memory[node]) if self._memory else math.inf
            key = (cores, memory, kind.tobytes(), share.tobytes(), room.tobytes())
            if (number := self._known.get(key)) is None:
                number = self._known[key] = len(self.states)
                names = tuple(single.types[k] for k in kind.tolist())
                self.states.append(NodeClass(cores, memory, names, share=share, room=room))
            self.number[node] = number
        self._seen = single.look


class Mix:
    """A mix of requests with frequencies, against which fragmentation is measured.

    typical: use only the most frequent requests, up to this share of all requests.
    memory: True if requests include host memory.
    """

    def __init__(self, count: Mapping[Shape, int], typical: float = 1.0, memory: bool = True):
        requests: dict[tuple[Any, ...], float] = {}
        for shape, number in count.items():
            first = next((mode for mode in shape.modes if mode.gpus), shape.modes[0])
            ways = [mode for mode in shape.modes if mode.gpus and _demand(mode) == _demand(first)] or [first]
            key = tuple(
                (m.type.name, m.millicores, m.gpus, m.share, m.memory if memory else 0, m.gpu_memory) for m in ways
            )
            requests[key] = requests.get(key, 0.0) + number
        if typical < 1:
            requests = _frequent(requests, typical)
        self.part = np.array(list(requests.values())) / sum(requests.values())
        self._requests = list(requests)
        self._tables: dict[tuple[str, ...], _Table] = {}

    def fragmentation(self, state: NodeClass) -> float:
        """Expected fragmentation of a node, in GPUs."""
        lost = self._table(state.kinds).lost(state.share[None, :], state.room[None, :], *_host([state]))
        return float(lost[0] / WHOLE)

    def rises(self, state: NodeClass, mode: Mode) -> dict[int, float]:
        """Return the rise of a node's fragmentation (GPUs) if a task starts in this mode.

        For a fraction of a GPU there is a value for each GPU on which the task may start; the key is the GPU's free
        share in millionths.  For any other mode there is one value, of key 0.
        """
        rows, after = self._after([state], mode)
        gpus = [gpu for _, gpu in rows] if mode.gpus and not mode.whole_devices else []
        before = self.fragmentation(state)
        where = [int(state.share[gpu]) for gpu in gpus] or [0]
        return dict(zip(where, (after - before).tolist(), strict=False)) or {0: 0.0}

    def min_rises(self, states: Sequence[NodeClass], mode: Mode) -> np.ndarray:
        """Return each node state's minimum rise of fragmentation if the mode starts there."""
        rises = np.zeros(len(states))
        for state in states:
            if state.mix is not self:
                state.mix, state.before = self, self.fragmentation(state)
        before = np.array([state.before for state in states])
        for numbers in grouped((state.kinds, number) for number, state in enumerate(states)).values():
            for first in range(0, len(numbers), TOGETHER):
                part = np.array(numbers[first : first + TOGETHER])
                rows, after = self._after([states[number] for number in part.tolist()], mode)
                if not len(after):
                    continue  # slices of a GPU: the engine knows how they fit, shares do not tell
                owner = part[[row for row, _ in rows]]
                rises[owner] = np.inf
                np.minimum.at(rises, owner, after - before[owner])
        return rises

    def _after(self, states: Sequence[NodeClass], mode: Mode) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Return (state, GPU) pairs on which a mode can start, and the fragmentation then.

        The states must have GPUs of the same types.  A fraction may start on any GPU; for other modes the GPU is 0, and
        the first GPUs with room are used.
        """
        kinds = states[0].kinds
        share = np.stack([state.share for state in states])
        room = np.stack([state.room for state in states])
        of_type = np.array([name == mode.type.name for name in kinds], dtype=bool)
        takes = of_type & (share >= mode.share) & (room >= mode.gpu_memory)
        if mode.gpus and not mode.whole_devices:
            row, gpu = np.nonzero(takes)
            chosen = np.zeros((len(row), len(kinds)), dtype=bool)
            chosen[np.arange(len(row)), gpu] = True
        else:
            row, gpu = np.arange(len(states)), np.zeros(len(states), np.int64)
            chosen = takes & (np.cumsum(takes, axis=1) <= mode.gpus)
        if not len(row):
            return [], np.zeros(0)
        cores, memory = _host(states)
        share, room = share[row] - chosen * mode.share, room[row] - chosen * mode.gpu_memory
        lost = self._table(kinds).lost(share, room, cores[row] - mode.millicores, memory[row] - mode.memory)
        return list(zip(row.tolist(), gpu.tolist(), strict=True)), lost / WHOLE

    def _table(self, kinds: tuple[str, ...]) -> "_Table":
        if (table := self._tables.get(kinds)) is None:
            table = self._tables[kinds] = _Table(kinds, self._requests, self.part)
        return table


class MinRises:
    def __init__(self, mix: Mix, states: NodeStates):
        self._mix, self._states = mix, states
        self._known: dict[Mode, np.ndarray] = {}  # by mode and state: the minimum increase, NaN if not computed yet

    def by_share(self, mode: Mode, node: int) -> dict[int, float]:
        """Return the rise of a node's fragmentation by free share of a GPU (`Mix.rises`)."""
        return self._mix.rises(self._states.states[int(self._states.number[node])], mode)

    def __call__(self, mode: Mode, states: np.ndarray) -> np.ndarray:
        """Return the minimum rise of fragmentation on nodes in these states, cached."""
        cached = self._known.get(mode)
        if cached is None or len(cached) < self._states.count:
            longer = np.full(max(64, 2 * self._states.count), np.nan)
            if cached is not None:
                longer[: len(cached)] = cached
            cached = self._known[mode] = longer
        missing = np.unique(states[np.isnan(cached[states])])
        if len(missing):
            cached[missing] = self._mix.min_rises([self._states.states[row] for row in missing.tolist()], mode)
        return cached[states]


def _frequent(requests: dict[tuple[Any, ...], float], share: float) -> dict[tuple[Any, ...], float]:
    wanted, covered = share * sum(requests.values()), 0.0
    kept = {}
    for request, number in sorted(requests.items(), key=lambda item: -item[1]):
        if covered >= wanted:
            break
        kept[request] = number
        covered += number
    return kept


def _host(states: Sequence[NodeClass]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([state.cores for state in states]), np.array([state.memory for state in states])


def _demand(mode: Mode) -> tuple[float, ...]:
    return mode.millicores, mode.gpus, mode.share, mode.memory, mode.gpu_memory


class _Table:
    """The requests of a mix that GPUs of given types can serve, as arrays.

    There is one row per usable mode of a request.  `part` is each request's share of the mix.
    """

    def __init__(self, kinds: tuple[str, ...], requests: list[tuple[Any, ...]], part: np.ndarray):
        rows, owner = [], []
        self.never = 0.0  # the part of requests that no way fits here, however free the node is
        served: list[float] = []
        for request, share in zip(requests, part.tolist(), strict=True):
            ways = [way for way in request if not way[2] or way[0] in kinds]
            if not ways:
                self.never += share
                continue
            rows += ways
            owner += [len(served)] * len(ways)
            served.append(share)
        self.part = np.array(served)
        self.single = len(rows) == len(served)
        self.owner = np.array(owner, dtype=np.int64)
        self.cpus = np.array([way[1] for way in rows], dtype=np.int64)
        self.gpus = np.array([way[2] for way in rows], dtype=np.int64)
        self.share = np.array([way[3] for way in rows], dtype=np.int64)
        self.memory = np.array([way[4] for way in rows], dtype=float)
        gpu_memory = np.array([way[5] for way in rows], dtype=float)
        self.gpu_memory = gpu_memory if gpu_memory.any() else None
        names = [way[0] if way[2] else None for way in rows]
        of_type = np.array([[name is None or name == kind for kind in kinds] for name in names], dtype=bool)
        self.of_type = of_type.reshape(len(rows), len(kinds))
        self.of_type[self.gpus == 0] = False  # a task that asks for no GPU can use none
        self.mixed = not self.of_type.all()

    def lost(self, share: np.ndarray, room: np.ndarray, cores: np.ndarray, memory: np.ndarray) -> np.ndarray:
        """Return the fragmentation of nodes (millionths of a GPU) by free resources.

        share, room: free share and memory of each GPU; cores, memory: free on the host.  A row per node.
        """
        free = share.sum(axis=1)
        if not len(self.part):
            return self.never * free
        good = share[:, None, :] >= self.share[None, :, None]
        if self.mixed:
            good &= self.of_type
        if self.gpu_memory is not None:
            good &= room[:, None, :] >= self.gpu_memory[None, :, None]
        host = (self.cpus <= cores[:, None]) & (self.memory <= memory[:, None])
        fits = host & (good.sum(axis=2) >= self.gpus)
        if not self.single:  # any of the modes of a request may fit or use the GPUs
            starts = np.flatnonzero(np.diff(self.owner, prepend=-1))
            fits, good = (np.logical_or.reduceat(any_mode, starts, axis=1) for any_mode in (fits, good))
        usable = np.matmul(good, share[:, :, None])[:, :, 0]
        return np.where(fits, free[:, None] - usable, free[:, None]) @ self.part + self.never * free
