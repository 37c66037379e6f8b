"""Multi-resource packing: the task best aligned to the free resources goes first.

Decides when and where.  The alignment of a task with a node is the dot product of its demand and what is free there,
over cores, host memory and GPUs, each as a fraction of the largest node.  Of all waiting tasks that fit, the one with
the greatest alignment, on its best node, less `shortness` times its remaining work starts next, until none fits.  Work
is estimated time × demand; it counts in units of the mean alignment over the mean work of the tasks that fit.
Reference: Grandl, Ananthanarayanan, Kandula, Rao, Akella, Multi-Resource Packing for Cluster Schedulers (SIGCOMM 2014):
Tetris.  With `shortness` 0 it is the packer with which Mao et al., Resource Management with Deep Reinforcement Learning
(HotNets 2016) compare.
Weakness: no bound is known; the packer lets short tasks wait behind large ones, and its slowdown grows with the load.
Cost: for each start, a few NumPy operations over the nodes for every demand that waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    Decision,
    Demand,
    ListScheduler,
    Start,
    TaskQueue,
    View,
    demand_of,
)
from hetsim_policies.placement_rules.common.choice import Totals, best_node, demand


class Tetris(ListScheduler):
    """Of the tasks that fit, the one that packs best, short work preferred.

    shortness: weight of the remaining work; 0 packs only.
    """

    def __init__(self, shortness: Annotated[float, Field(ge=0)] = 1.0):
        super().__init__(discipline="skip")
        self.shortness = shortness
        self._totals: Totals | None = None
        self._scale = np.ones(0)
        self._lines: dict[Demand, TaskQueue] = {}

    def ready(self, task: Task) -> None:
        line = self._lines.get(demand_of(task))
        if line is None:
            line = self._lines[demand_of(task)] = TaskQueue()
        line.push(task.shortest_estimate if self.shortness else task.arrival, task)

    def _schedule_tasks(self, view: View) -> Iterator[Decision]:
        if self._totals is None:
            self._totals = Totals(view.cluster)
            largest = self._totals.all(np.arange(len(self._totals.cores))).max(axis=1)
            self._scale = np.where(largest > 0, largest, 1.0)
        heads = {key: task for key, line in self._lines.items() if (task := line.head()) is not None}
        if not heads:
            yield WAIT_FOR_READY
            return
        while True:
            fitting: list[tuple[Demand, Task, Placement, float, float]] = []
            for key, task in list(heads.items()):
                placement = best_node(task, view, lambda mode, nodes: (-self._alignment(mode, nodes, view),))
                if placement is None:
                    del heads[key]  # starts free nothing: not again in this round
                    continue
                mode = placement.mode
                fits = self._alignment(mode, np.array([placement.devices[0].node]), view)[0]
                work = task.shortest_estimate * float((demand(mode) / self._scale).sum())
                fitting.append((key, task, placement, float(fits), work))
            if not fitting:
                yield WAIT_FOR_CHANGE
                return
            total = sum(work for *_, work in fitting)
            price = self.shortness * sum(fits for *_, fits, _ in fitting) / total if total else 0.0
            best = max(fitting, key=lambda one: (one[3] - price * one[4], -one[1].arrival, -one[1].index))
            key, task, placement = best[:3]
            self._lines[key].pop()
            yield Start(task, placement)
            following = self._lines[key].head()
            if following is None:
                del heads[key]
            else:
                heads[key] = following

    def _alignment(self, mode: Mode, nodes: np.ndarray, view: View) -> np.ndarray:
        """Dot product of a mode's demand and what is free on nodes."""
        assert self._totals is not None
        free = self._totals.free(nodes, view)
        product: np.ndarray = np.round((demand(mode) / self._scale) @ (free / self._scale[:, None]), 12)
        return product
