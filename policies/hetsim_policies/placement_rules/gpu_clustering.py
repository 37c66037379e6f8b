"""GPU clustering: tasks that ask for the same share of GPUs go on the same nodes.

Reference: the grouping of jobs by their number of GPUs in Xiao et al., Gandiva: Introspective Cluster Scheduling for
Deep Learning (OSDI 2018); a yardstick of Weng et al., Beware of Fragmentation (USENIX ATC 2023).  What leaves makes
room for another of its kind.  Weakness: many kinds of request need many nodes before any is full.
Cost: linear in the nodes that fit; it keeps the running tasks it has placed, by node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetsim.model.cluster import WHOLE
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.model.tasks import Mode
from hetsim.policy import View
from hetsim_policies.placement_rules.common.choice import best_node
from hetsim_policies.placement_rules.common.published import PublishedGpuClustering, ScoredRule, Scores


class GpuClustering(ScoredRule):
    """Nodes with the least demand for other shares of GPUs, then most of the same.

    scores: "published": as the simulator of Weng et al., with whole scores by the kinds of tasks on a node, of which
    all fractions are one, ties by the drawn names of nodes.
    """

    published = PublishedGpuClustering

    def __init__(self, scores: Scores = "exact"):
        super().__init__(scores)
        self._placed: dict[int, list[Task]] = {}
        self._seen = -1
        self._held: dict[float, np.ndarray] = {}
        """By GPUs asked for: how many of them tasks of this demand hold on each node."""

    def exact(self, task: Task, view: View) -> Placement | None:
        self._forget(view)
        placement = best_node(task, view, lambda mode, nodes: self._keys(mode, nodes, view))
        if placement is not None:
            for node in dict.fromkeys(device.node for device in placement.devices):
                self._placed.setdefault(node, []).append(task)
        return placement

    def _forget(self, view: View) -> None:
        """Count again the demand of tasks placed here on nodes that changed."""
        view.nodes.refresh()
        single = view.nodes.accelerators
        changed = np.flatnonzero(single.stamp > self._seen).tolist()
        self._seen = single.look
        for node in changed:
            tasks = self._placed.get(node)
            if tasks is None:
                continue
            for usage in self._held.values():
                usage[node] = 0.0
            there = []
            for task in tasks:
                placement = view.launch_of(task).placement if task.state == RUNNING else None
                here = 0 if placement is None else sum(device.node == node for device in placement.devices)
                if placement is None or not here or task in there:
                    continue
                there.append(task)
                asked = placement.mode.gpu_share
                if asked not in self._held:
                    self._held[asked] = np.zeros(len(view.cluster.nodes))
                self._held[asked][node] += here * placement.mode.share / WHOLE
            if there:
                self._placed[node] = there
            else:
                del self._placed[node]

    def _keys(self, mode: Mode, nodes: np.ndarray, view: View) -> Sequence[np.ndarray]:
        none = np.zeros(len(nodes))
        same = self._held[mode.gpu_share][nodes] if mode.gpu_share in self._held else none
        others = sum((usage[nodes] for asked, usage in self._held.items() if asked != mode.gpu_share), none)
        free = sum((column[nodes] for column in view.nodes.gpus.values()), none)
        return np.round(others, 6), -np.round(same, 6), free
