"""Fragmentation gradient descent: a task goes where it adds least fragmentation.

The fragmentation of a node is its free GPU share that a task drawn from the workload cannot use: all of it if the task
does not fit on the node or needs no GPU; otherwise the free share of the GPUs on which less is free than the task needs
on one GPU.  The rule tries the task on every node and GPU where it fits and chooses the place that increases the
expected fragmentation least (or reduces it most); at ties the place with the smallest free GPU share, then the first.

Reference: Weng, Yang, Yu, Wang, Tang, Yang, Zhang, Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
Fragmentation Gradient Descent (USENIX ATC 2023).
Weakness: greedy, and no bound is known; it needs the mix of requests, which is estimated from the requests seen so far.
Cost: nodes in the same state are scored once per request, so a decision costs a NumPy lookup over the nodes that
fit and the scoring of new states.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from hetsim.model.mode import Mode, Shape
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.placement_rules.common.choice import equally_fast, first_across, on_gpu
from hetsim_policies.placement_rules.common.fragmentation import MinRises, Mix, NodeStates
from hetsim_policies.placement_rules.common.published import PublishedFgd, ScoredRule, Scores

Growth = Annotated[float, Field(gt=1, le=10)]
GROWTH = 1.25

ROUNDING = 1e-9  # fragmentations that differ by less are equal


class Fgd(ScoredRule):
    """Choose the place that increases expected fragmentation least.

    growth: the mix of requests is updated when the number of tasks seen has grown by this factor.
    scores: "published" is the rule of the simulator of Weng et al.: integer scores of 100 / (1 + exp(increase)), the
        mix of the whole workload without its rarest requests, and no host memory; random names of nodes break ties.
    """

    published = PublishedFgd

    def __init__(self, growth: Growth = GROWTH, scores: Scores = "exact"):
        if growth != GROWTH and scores == "published":
            raise ValueError("growth has no effect with scores: published, which use the mix of all tasks; remove it")
        super().__init__(scores)
        self.growth = growth
        self._count: Counter[Shape] = Counter()
        self._asked: set[int] = set()  # tasks that are counted and were not placed yet: they will be asked about again
        self._seen = 0
        self._next = 1
        self._states: NodeStates | None = None
        self._rises: MinRises | None = None

    def exact(self, task: Task, view: View) -> Placement | None:
        if self._states is None:
            self._states = NodeStates(view)
        rises = self._learn(task, self._states)
        self._states.refresh(view)
        for modes in equally_fast(task):
            if (placement := self._place(task, modes, self._states, min_rises=rises, view=view)) is not None:
                self._asked.discard(task.index)
                return placement
        return None

    def _learn(self, task: Task, states: NodeStates) -> MinRises:
        if task.index not in self._asked:
            self._asked.add(task.index)
            self._seen += 1
            self._count[task.shape] += 1
        if self._rises is None or self._seen >= self._next:
            self._rises = MinRises(Mix(self._count), states)
            self._next = max(self._seen + 1, int(self._seen * self.growth))
        return self._rises

    def _place(
        self, task: Task, modes: Sequence[Mode], states: NodeStates, min_rises: MinRises, view: View
    ) -> Placement | None:
        rises, free, nodes, owners = [], [], [], []
        for number, mode in enumerate(modes):
            fitting = view.nodes.candidates(mode)
            if len(fitting):
                rises.append(min_rises(mode, states.number[fitting]))
                free.append(view.nodes.accelerators.share[fitting].sum(axis=1))
                nodes.append(fitting)
                owners.append(np.full(len(fitting), number))
        if nodes:
            columns = [np.concatenate(parts) for parts in (rises, free, nodes, owners)]
            for best in self._order(columns):
                mode, node = modes[int(columns[3][best])], int(columns[2][best])
                if (placement := self._on(task, mode, node, min_rises=min_rises, view=view)) is not None:
                    return placement
        return first_across(task, modes, view)

    @staticmethod
    def _order(columns: Sequence[np.ndarray]) -> Iterator[int]:
        """Yield row numbers by rise of fragmentation, then free share, then node; lazily."""
        rise, free, node, owner = columns
        best = np.flatnonzero(rise <= rise.min() + ROUNDING)
        best = best[free[best] == free[best].min()]
        first = int(best[node[best].argmin()])
        yield first
        order = np.lexsort([owner, node, free, np.round(rise, 9)])
        yield from order[order != first].tolist()

    @staticmethod
    def _on(task: Task, mode: Mode, node: int, min_rises: MinRises, view: View) -> Placement | None:
        if not mode.gpus or mode.whole_devices:
            return view.first(mode, task, node=node)
        rises = min_rises.by_share(mode, node)
        share = view.nodes.accelerators.share[node]
        best = sorted(rises, key=lambda free: (round(rises[free], 9), free))
        order = np.concatenate([np.flatnonzero(share == free) for free in best])
        return on_gpu(task, mode, node, view=view, order=order)
