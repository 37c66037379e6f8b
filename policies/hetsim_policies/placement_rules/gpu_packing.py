"""GPU packing: fractions on used GPUs, then idle GPUs of used nodes, idle nodes.

Reference: the packing of Weng et al., MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous
GPU Clusters (NSDI 2022); a yardstick of Weng et al., Beware of Fragmentation (USENIX ATC 2023).  Keeps whole GPUs
and whole nodes for those that need them.  Weakness: blind to which remainders the workload can use.
Cost: NumPy operations over the GPUs of the nodes that fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.model.cluster import WHOLE
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import View
from hetsim_policies.placement_rules.common.choice import best_node, on_fullest, taking
from hetsim_policies.placement_rules.common.published import PublishedGpuPacking, ScoredRule

IN_USE, IDLE_GPU, IDLE_NODE = 0, 1, 2


class GpuPacking(ScoredRule):
    """GPUs in use before idle GPUs, these before idle nodes; among equals the fullest.

    scores: "published": as the simulator of Weng et al., with whole scores, ties by the drawn names of nodes, where a
    task without a GPU has the same score everywhere.
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
    if mode.gpus and not mode.whole:
        fullest = np.where(taking(mode, nodes, view), share, 2 * WHOLE).min(axis=1)
        class_ = np.where(fullest < WHOLE, IN_USE, class_)
        return class_, fullest, free
    return class_, free
