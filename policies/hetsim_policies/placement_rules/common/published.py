"""Scores of the simulator of Weng et al., for placements with parameter `scores`.

A node where a task fits has an integer score of 0 to 100.  The node of highest score is chosen, at ties the one with
the smallest name; names are random in each run, as their simulator puts a random number before each name.  A fraction
of a GPU is placed on the node's fullest GPU with enough room (with `random` on any GPU with enough room, with `fgd` on
the first GPU of the best score); demands for whole GPUs get the first idle GPUs.  Integer scores make many nodes equal,
so the random names decide.

Reference: Weng, Yang, Yu, Wang, Tang, Yang, Zhang, Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent (USENIX ATC 2023), and its simulator (hkust-adsl/kubernetes-scheduler-simulator).
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.placement_rules.common.choice import (
    PlacedTasks,
    Totals,
    equally_fast,
    first_across,
    on_fullest,
    on_gpu,
)
from hetsim_policies.placement_rules.common.fragmentation import MinRises, Mix, NodeStates

TOP = 100  # maximum score of a node
TYPICAL = 0.95  # share of tasks in the typical mix of `fgd`: the most frequent requests
ROUNDING = 1e-9  # a score this little below an integer is rounded up to it


Scores = Literal["exact", "published"]


class Scored:
    """Chooses the node with the highest integer score, at ties in a random order."""

    _rank = np.zeros(0, np.int64)  # place of each node in the order of drawn names

    def __call__(self, task: Task, view: View) -> Placement | None:
        if not len(self._rank):
            self._rank = view.random.permutation(len(view.cluster.nodes))
            self.begin(view)
        self.look(task, view)
        for modes in equally_fast(task):
            if (placement := self._place(task, modes, view)) is not None:
                self.placed(task, placement)
                return placement
        return None

    def begin(self, view: View) -> None:
        """Hook before the first task is placed."""

    def look(self, task: Task, view: View) -> None:
        """Hook before each task is placed: bring the rule's state up to date."""

    def placed(self, task: Task, placement: Placement) -> None:
        """Hook before a placed task starts."""

    def score(self, mode: Mode, nodes: np.ndarray, owner: np.ndarray, modes: Sequence[Mode], view: View) -> np.ndarray:
        """Return scores of nodes on which a mode fits.

        nodes[i] is scored for mode `modes[owner[i]]`; these modes differ only in device type, and `mode` is the first.
        """
        raise NotImplementedError

    def gpu(self, task: Task, mode: Mode, node: int, view: View) -> Placement | None:
        """Choose one of the node's GPUs for a fraction; None if none fits."""
        return on_fullest(task, mode, node, view)

    def _place(self, task: Task, modes: Sequence[Mode], view: View) -> Placement | None:
        nodes, owner = _fitting(modes, view)
        if not len(nodes):
            return first_across(task, modes, view)
        score = self.score(modes[0], nodes, owner, modes=modes, view=view)
        rank = self._rank[nodes]
        best = np.flatnonzero(score == score.max())
        first = best[rank[best].argmin()]
        if (placement := self._on(task, modes[int(owner[first])], int(nodes[first]), view)) is not None:
            return placement
        for place in np.lexsort([rank, -score]).tolist():  # what the columns do not tell is in the way: data, say
            if (placement := self._on(task, modes[int(owner[place])], int(nodes[place]), view)) is not None:
                return placement
        return None

    def _on(self, task: Task, mode: Mode, node: int, view: View) -> Placement | None:
        if not mode.gpus or mode.whole_devices:
            return view.first(mode, task, node=node)
        return self.gpu(task, mode, node, view)


class ScoredRule:
    """Placement rule with exact scores, or with Weng et al.'s integer scores."""

    published: ClassVar[type[Scored]]

    def __init__(self, scores: Scores = "exact"):
        self._published = self.published() if scores == "published" else None

    def __call__(self, task: Task, view: View) -> Placement | None:
        return self.exact(task, view) if self._published is None else self._published(task, view)

    def exact(self, task: Task, view: View) -> Placement | None:
        """Place a task by scores that are not rounded, ties by room; None if nothing fits."""
        raise NotImplementedError


class PublishedRandom(Scored):
    """Any node on which the task fits, and any of its GPUs, with equal probability."""

    def score(self, mode: Mode, nodes: np.ndarray, owner: np.ndarray, modes: Sequence[Mode], view: View) -> np.ndarray:
        scores = np.zeros(len(nodes), dtype=np.int64)
        scores[view.random.integers(len(nodes))] = TOP
        return scores

    def gpu(self, task: Task, mode: Mode, node: int, view: View) -> Placement | None:
        return on_gpu(
            task, mode, node, view=view, order=view.random.permutation(view.nodes.accelerators.share.shape[1])
        )


class _Weighing(Scored):
    """Base of rules that score free cores and GPUs relative to the largest node."""

    def begin(self, view: View) -> None:
        totals = Totals(view.cluster)
        self._cores, self._gpus = max(float(totals.cores.max()), 1.0), max(float(totals.gpus.max()), 1.0)

    def free(self, nodes: np.ndarray, view: View) -> tuple[np.ndarray, np.ndarray]:
        return view.nodes.cores[nodes], view.nodes.accelerators.share[nodes].sum(axis=1) / WHOLE


class PublishedDotProduct(_Weighing):
    """Choose the node with the smallest dot product of demand and free resources.

    Cores and GPUs count equally, as fractions of the largest node; the score is 100 (1 - dot product / 2).
    """

    def score(self, mode: Mode, nodes: np.ndarray, owner: np.ndarray, modes: Sequence[Mode], view: View) -> np.ndarray:
        cores, gpus = self.free(nodes, view)
        asked_cores, asked_gpus = mode.cpus / self._cores, mode.gpu_share / self._gpus
        return whole_score(TOP * (1 - (cores / self._cores * asked_cores + gpus / self._gpus * asked_gpus) / 2))


class PublishedBestFit(_Weighing):
    """The node with the least free cores and GPUs (equally weighted) after the task."""

    def score(self, mode: Mode, nodes: np.ndarray, owner: np.ndarray, modes: Sequence[Mode], view: View) -> np.ndarray:
        cores, gpus = self.free(nodes, view)
        rest = (cores - mode.cpus) / self._cores + (gpus - mode.gpu_share) / self._gpus
        return whole_score(TOP * (1 - rest / 2))


class PublishedGpuPacking(Scored):
    """Prefer GPUs in use, then idle GPUs of used nodes, then idle nodes.

    A task without a GPU scores 0 everywhere.
    """

    def score(self, mode: Mode, nodes: np.ndarray, owner: np.ndarray, modes: Sequence[Mode], view: View) -> np.ndarray:
        if not mode.gpus:
            return np.zeros(len(nodes), dtype=np.int64)
        single = view.nodes.accelerators
        share, there = single.share[nodes], single.kind[nodes] >= 0
        count, idle = there.sum(axis=1), (there & (share == WHOLE)).sum(axis=1)
        idle_node = np.maximum(TOP // 3 - idle, idle)
        if mode.whole_devices:
            return np.where(idle == count, idle_node, max(TOP // 2 - mode.gpus, TOP // 3))
        types = np.array([single.types.index(one.type.name) for one in modes])
        takes = (single.kind[nodes] == types[owner][:, np.newaxis]) & (share >= mode.share)
        fullest = np.where(takes, share, 2 * WHOLE).min(axis=1)
        in_use = np.maximum(TOP - fullest * 100 // WHOLE // 10, TOP // 2)
        used_node = np.where(fullest < WHOLE, in_use, max(TOP // 2 - 1, TOP // 3))
        return np.where(idle == count, idle_node, used_node)


class PublishedGpuClustering(Scored):
    """Prefer nodes with only tasks of the same kind, then with some, then idle ones.

    All fractions of a GPU are one kind, each number of whole GPUs another.  A task without a GPU scores 0 everywhere.
    """

    def begin(self, view: View) -> None:
        self._running = PlacedTasks(_kind)
        self._largest = max((len(node.accelerators) for node in view.cluster.nodes), default=1) or 1

    def look(self, task: Task, view: View) -> None:
        self._running.refresh(view)

    def placed(self, task: Task, placement: Placement) -> None:
        self._running.add(task, placement)

    def score(self, mode: Mode, nodes: np.ndarray, owner: np.ndarray, modes: Sequence[Mode], view: View) -> np.ndarray:
        none = np.zeros(len(nodes), dtype=np.int64)
        if (kind := _kind(mode)) is None:
            return none
        usage = self._running.usage
        same = usage[kind][nodes] > 0 if kind in usage else none > 0
        kinds = sum(((gpus[nodes] > 0).astype(np.int64) for gpus in usage.values()), none)
        max_share = self._largest * WHOLE
        fullness = TOP // 4 * (max_share - view.nodes.accelerators.share[nodes].sum(axis=1)) // max_share
        return fullness + TOP // 4 * np.where(same, np.where(kinds == 1, 3, 2), np.where(kinds == 0, 1, 0))


class PublishedFgd(Scored):
    """Minimum increase of fragmentation; integer score 100 / (1 + exp(increase)).

    Fragmentation is computed for a mix of requests.  As in the paper, this is the mix of the whole workload, known
    beforehand, without the rarest requests: the others together make 95 % of the tasks.  Host memory is ignored.
    """

    def begin(self, view: View) -> None:
        self._states = NodeStates(view, memory=False)
        self._rises = MinRises(Mix(view.request_mix(), TYPICAL, memory=False), self._states)

    def look(self, task: Task, view: View) -> None:
        self._states.refresh(view)

    def score(self, mode: Mode, nodes: np.ndarray, owner: np.ndarray, modes: Sequence[Mode], view: View) -> np.ndarray:
        scores = np.zeros(len(nodes), dtype=np.int64)
        for number, one in enumerate(modes):
            rows = owner == number
            scores[rows] = _points(self._rises(one, self._states.number[nodes[rows]]))
        return scores

    def gpu(self, task: Task, mode: Mode, node: int, view: View) -> Placement | None:
        rises = self._rises.by_share(mode, node)
        points = {free: int(_points(np.array([rise]))[0]) for free, rise in rises.items()}
        score = np.array([points.get(int(free), -1) for free in view.nodes.accelerators.share[node].tolist()])
        return on_gpu(task, mode, node, view=view, order=np.argsort(-score, kind="stable"))


def _fitting(modes: Sequence[Mode], view: View) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes on which one of these modes fits, and the mode's index by node."""
    first = modes[0]
    if not all(mode.gpus and mode.type.streams == 1 and mode.type.sharing.kind != "mig" and mode.nodes is None
               for mode in modes):  # fmt: skip
        fitting = [view.nodes.candidates(mode) for mode in modes]
        return np.concatenate(fitting), np.repeat(np.arange(len(modes)), [len(some) for some in fitting])
    columns = view.nodes
    columns.refresh()
    single = columns.accelerators
    mode_of = np.full(len(single.types) + 1, -1)  # the last is for places without an accelerator
    for number, mode in enumerate(modes):
        mode_of[single.types.index(mode.type.name)] = number
    host = (columns.cores * 1000 >= first.millicores - 0.5) & (columns.memory >= first.memory)
    nodes = np.flatnonzero(host)
    owners = mode_of[single.kind[nodes]]
    takes = (owners >= 0) & (single.share[nodes] >= first.share)
    if first.gpu_memory:
        takes &= single.room[nodes] >= first.gpu_memory
    fits = takes.sum(axis=1) >= first.gpus
    owner = np.take_along_axis(owners, takes.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
    return nodes[fits], owner[fits]


def whole_score(score: np.ndarray) -> np.ndarray:
    return np.floor(score + ROUNDING).astype(np.int64)


def _points(rise: np.ndarray) -> np.ndarray:
    return whole_score(TOP / (1 + np.exp(rise)))


def _kind(mode: Mode) -> int | None:
    """Return the number of whole GPUs, 0 for a fraction of a GPU, None without GPUs."""
    if not mode.gpus:
        return None
    return mode.gpus if mode.whole_devices else 0
