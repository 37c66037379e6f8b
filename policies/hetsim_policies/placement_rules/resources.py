"""Placements that weigh all resources of a node: `dot_product`, `pack`, `spread`.

Cores, host memory and GPUs have equal weight, each as a fraction; memory without a limit does not count.
Cost: a few NumPy operations over the nodes that fit.
"""

from collections.abc import Sequence

import numpy as np

from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.placement_rules.common.choice import (
    Pick,
    PlacedTasks,
    Totals,
    best_node,
    demand,
    on_fullest,
    on_gpu,
    taking,
)
from hetsim_policies.placement_rules.common.published import (
    PublishedDotProduct,
    PublishedGpuClustering,
    PublishedGpuPacking,
    ScoredRule,
    Scores,
)


class _Weighing:
    pick: Pick | None = None

    _totals: Totals | None = None

    def __call__(self, task: Task, view: View) -> Placement | None:
        if self._totals is None:
            self._totals = Totals(view.cluster)
        totals = self._totals
        return best_node(task, view, lambda mode, nodes: self.keys(mode, nodes, totals, view), self.pick)

    def keys(self, mode: Mode, nodes: np.ndarray, totals: Totals, view: View) -> Sequence[np.ndarray]:
        raise NotImplementedError


class DotProduct(ScoredRule, _Weighing):
    """The node with the largest dot product of free resources and the task's demand.

    smallest: use the smallest dot product instead, which prefers nodes on which the demanded resources are scarce.
    scores: "published" is the rule of the simulator of Weng et al.: the smallest dot product of cores and GPUs, as an
        integer score; random names of nodes break ties.

    Reference: Panigrahy, Talwar, Uyeda, Wieder, Heuristics for Vector Bin Packing (2011); Grandl et al.,
    Multi-Resource Packing for Cluster Schedulers (Tetris, SIGCOMM 2014).  Demand and free resources are fractions of
    the largest node.  Weakness: it prefers empty nodes, as worst_fit does.  It does not choose among the GPUs of a
    node: a task that needs a fraction of a GPU gets the fullest GPU that fits.
    """

    published = PublishedDotProduct

    def __init__(self, smallest: bool = False, scores: Scores = "exact"):
        if smallest and scores == "published":
            raise ValueError("smallest has no effect with scores: published, which use the smallest anyway; remove it")
        super().__init__(scores)
        self.smallest = smallest

    def exact(self, task: Task, view: View) -> Placement | None:
        return _Weighing.__call__(self, task, view)

    def keys(self, mode: Mode, nodes: np.ndarray, totals: Totals, view: View) -> Sequence[np.ndarray]:
        largest = totals.all(np.arange(len(totals.cores))).max(axis=1)
        scale = np.where(largest > 0, largest, 1.0)
        product = (demand(mode) / scale) @ (totals.free(nodes, view) / scale[:, None])
        return (np.round(product if self.smallest else -product, 12),)


class Pack(_Weighing):
    """The node that would be fullest, by the mean of cores, memory and GPUs in use.

    Reference: `MostAllocated` of the Kubernetes scheduler.  It keeps whole nodes free, for gangs or to be switched off.
    Weakness: a node with all cores but no GPUs in use counts as half full, although its GPUs cannot be used.
    """

    def keys(self, mode: Mode, nodes: np.ndarray, totals: Totals, view: View) -> Sequence[np.ndarray]:
        return (-_allocated(mode, nodes, totals, view),)


class Spread(_Weighing):
    """The node that would be emptiest; a fraction is placed on its emptiest GPU.

    Reference: `LeastAllocated` of the Kubernetes scheduler.  It minimizes interference, and the work lost when a node
    fails.  Weakness: no node remains entirely free, so wide gangs wait.
    """

    @staticmethod
    def pick(task: Task, mode: Mode, node: int, view: View) -> Placement | None:
        if not mode.gpus or mode.whole_devices:
            return view.first(mode, task, node=node)
        return on_gpu(
            task, mode, node, view=view, order=np.argsort(-view.nodes.accelerators.share[node], kind="stable")
        )

    def keys(self, mode: Mode, nodes: np.ndarray, totals: Totals, view: View) -> Sequence[np.ndarray]:
        return (_allocated(mode, nodes, totals, view),)


def _allocated(mode: Mode, nodes: np.ndarray, totals: Totals, view: View) -> np.ndarray:
    there = totals.all(nodes)
    has = there > 0
    rest = np.maximum(totals.free(nodes, view) - demand(mode)[:, None], 0.0)
    part = np.where(has, 1.0 - rest / np.where(has, there, 1.0), 0.0)
    return np.round(part.sum(axis=0) / np.maximum(has.sum(axis=0), 1), 12)


IN_USE, IDLE_GPU, IDLE_NODE = 0, 1, 2


class GpuPacking(ScoredRule):
    """GPU packing: fractions on used GPUs, then idle GPUs of used nodes.

    Reference: the packing of Weng et al., MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale
    Heterogeneous GPU Clusters (NSDI 2022); a baseline of Weng et al., Beware of Fragmentation (USENIX ATC 2023).
    It keeps whole GPUs and whole nodes for tasks that need them.  Weakness: it ignores whether later tasks can use the
    fractions of GPUs that remain free.  Cost: NumPy operations over the GPUs of the nodes that fit.

    scores: "exact" (the default), or "published", the rule of the simulator of Weng et al.: integer scores, the same
        score everywhere for a task without a GPU; random names of nodes break ties.
    """

    published = PublishedGpuPacking

    def exact(self, task: Task, view: View) -> Placement | None:
        return best_node(task, view, lambda mode, nodes: _keys(mode, nodes, view), on_fullest)


def _keys(mode: Mode, nodes: np.ndarray, view: View) -> Sequence[np.ndarray]:
    single = view.nodes.accelerators
    share, there = single.share[nodes], single.kind[nodes] >= 0
    idle = (~there | (share == WHOLE)).all(axis=1)
    class_ = np.where(idle, IDLE_NODE, IDLE_GPU)
    free = np.where(there, share, 0).sum(axis=1)
    if mode.gpus and not mode.whole_devices:
        fullest = np.where(taking(mode, nodes, view), share, 2 * WHOLE).min(axis=1)
        class_ = np.where(fullest < WHOLE, IN_USE, class_)
        return class_, fullest, free
    return class_, free


class GpuClustering(ScoredRule):
    """GPU clustering: tasks with equal GPU demands are placed on the same nodes.

    Reference: the grouping of jobs by their number of GPUs in Xiao et al., Gandiva: Introspective Cluster Scheduling
    for Deep Learning (OSDI 2018); a baseline of Weng et al., Beware of Fragmentation (USENIX ATC 2023).  A task that
    ends makes room for another task of equal demand.  Weakness: if there are many different demands, many nodes are in
    use before any is full.  Cost: linear in the nodes that fit; it stores the running tasks it has placed, by node.

    scores: "published" is the rule of the simulator of Weng et al.: integer scores by the kinds of tasks on a node (all
        fractions are one kind); random names of nodes break ties.
    """

    published = PublishedGpuClustering

    def __init__(self, scores: Scores = "exact"):
        super().__init__(scores)
        self._running = PlacedTasks(lambda mode: mode.gpu_share)

    def exact(self, task: Task, view: View) -> Placement | None:
        self._running.refresh(view)
        if (placement := best_node(task, view, lambda mode, nodes: self._keys(mode, nodes, view))) is not None:
            self._running.add(task, placement)
        return placement

    def _keys(self, mode: Mode, nodes: np.ndarray, view: View) -> Sequence[np.ndarray]:
        none = np.zeros(len(nodes))
        usage = self._running.usage
        same = usage[mode.gpu_share][nodes] if mode.gpu_share in usage else none
        others = sum((gpus[nodes] for asked, gpus in usage.items() if asked != mode.gpu_share), none)
        free = sum((column[nodes] for column in view.nodes.gpus.values()), none)
        return np.round(others, 6), -np.round(same, 6), free
