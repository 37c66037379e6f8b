"""GPU packing: fractions first on GPUs in use, then on idle GPUs of nodes in use, and idle nodes last.

Reference: the packing of Weng et al., MLaaS in the Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous
GPU Clusters (NSDI 2022); a yardstick of Weng et al., Beware of Fragmentation (USENIX ATC 2023).  Keeps whole GPUs
and whole nodes for those that need them.  Weakness: blind to which remainders the workload can use.
Cost: NumPy operations over the GPUs of the nodes that fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.placement_rules.common.choice import best_node, on_gpu, taking
from sim.model.cluster import WHOLE
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task
from sim.policy import View

IN_USE, IDLE_GPU, IDLE_NODE = 0, 1, 2


def gpu_packing(task: Task, view: View) -> Placement | None:
    """GPUs in use before idle GPUs, these before idle nodes; among equals the fullest."""
    return best_node(task, view, lambda mode, nodes: _keys(mode, nodes, view), _fullest)


def _keys(mode: Mode, nodes: np.ndarray, view: View) -> Sequence[np.ndarray]:
    single = view.nodes.accelerators
    share, there = single.share[nodes], single.kind[nodes] >= 0
    idle = (~there | (share == WHOLE)).all(axis=1)
    class_ = np.where(idle, IDLE_NODE, IDLE_GPU)
    free = np.where(there, share, 0).sum(axis=1)
    if mode.gpus and not mode.whole:
        least = np.where(taking(mode, nodes, view), share, 2 * WHOLE).min(axis=1)
        class_ = np.where(least < WHOLE, IN_USE, class_)
        return class_, least, free
    return class_, free


def _fullest(task: Task, mode: Mode, node: int, view: View) -> Placement | None:
    if not mode.gpus or mode.whole:
        return view.first(mode, task, node=node)
    return on_gpu(task, mode, node, view, np.argsort(view.nodes.accelerators.share[node], kind="stable"))
