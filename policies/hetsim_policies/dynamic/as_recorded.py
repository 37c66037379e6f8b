"""As recorded: each task starts when and where its trace says that it started.

Decides when and, if the trace names nodes, where.  It validates a model of a cluster against a log of the cluster: if
the cluster, the demands and the durations are right, every start is met.  A task that does not fit at its recorded
start waits until it fits, before tasks recorded later; `late_starts`, `mean_lateness` and `max_lateness` report number
and duration of these delays.  A task without a recorded start starts as soon as it fits, after the tasks that are due.
Tasks need the column `recorded_start` (the readers of clusters' logs write it), and may have `recorded_node`; tasks
with recorded nodes that the cluster lacks are counted in `unknown_nodes`; if the cluster has none of a task's nodes,
the task starts wherever it fits.  A job over several nodes uses only the recorded nodes; its mode determines the
devices on each node.  Reference: the replay of recorded schedules by which trace-driven simulators are validated, e.g.
Frachtenberg and Feitelson, Pitfalls in Parallel Job Scheduling Evaluation (2005).
Weakness: it is not a policy, since its decisions were made by another policy for another load.
Cost: O(log n) per task, and one check per round of each late task.
"""

import math
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import numpy as np

from hetsim.errors import refusal
from hetsim.model.plan import Placement
from hetsim.model.task import WAITING, Task
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, View, Wait


class AsRecorded(Scheduler):
    """Replays the recorded starts and nodes of a log.

    nodes: True to use recorded nodes; otherwise tasks start on time, on the first devices that fit.
    """

    at_own_times = True

    def __init__(self, nodes: bool = True):
        self.nodes = nodes
        self._due: list[tuple[float, int, Task]] = []  # waiting tasks by recorded start
        self._begun: list[float] = []  # how late each recorded start was
        self._unknown = 0

    def check(self, problem: PlanProblem) -> None:
        if "recorded_start" not in problem.tasks.extra:
            raise refusal("as_recorded needs a trace with the starts of tasks (column recorded_start)")

    def prepare(self, problem: PlanProblem) -> None:
        extra = problem.tasks.extra
        start = np.asarray(extra.get("recorded_start", np.full(len(problem.tasks), math.nan)), dtype=float)
        self._start = np.where(np.isnan(start), math.inf, start)
        self._nodes: list[list[int]] | None = None
        names = extra.get("recorded_node")
        if self.nodes and names is not None:
            index = {node.name: node.index for node in problem.cluster.nodes}
            cells = (cell.split("|") if isinstance(cell, str) else () for cell in names.tolist())
            named = [[name for name in cell if name] for cell in cells]
            self._nodes = [[index[name] for name in cell if name in index] for cell in named]
            self._unknown = sum(len(nodes) < len(cell) for nodes, cell in zip(self._nodes, named, strict=True))

    @property
    def notes(self) -> dict[str, Any]:  # type: ignore[override]
        """Counts and times that measure how well the record could be followed."""
        late = [wait for wait in self._begun if wait > 0]
        return {
            "late_starts": len(late),
            "mean_lateness": math.fsum(self._begun) / len(self._begun) if self._begun else 0.0,
            "max_lateness": max(late, default=0.0),
            "unknown_nodes": self._unknown,
        }

    def ready(self, task: Task) -> None:
        heappush(self._due, (self._start[task.index], task.index, task))

    def schedule(self, view: View) -> Iterator[Decision]:
        passed: list[tuple[float, int, Task]] = []
        while self._due:
            start, _, task = self._due[0]
            if view.now < start < math.inf:
                break
            entry = heappop(self._due)
            placement = self._placement(task, view) if task.state == WAITING else None
            if placement is not None:
                if math.isfinite(start):
                    self._begun.append(max(0.0, view.now - start))
                    self._start[task.index] = -math.inf  # one that is stopped goes on as soon as it can
                yield Start(task, placement)
            elif task.state == WAITING:
                passed.append(entry)
        until = self._due[0][0] if self._due else math.inf
        for entry in passed:
            heappush(self._due, entry)
        yield Wait(until=until)

    def _placement(self, task: Task, view: View) -> Placement | None:
        nodes = [] if self._nodes is None else self._nodes[task.index]
        modes = task.fastest_modes()
        if len(nodes) == 1 and not any(mode.node_count > 1 for mode in modes):
            options = (view.first(mode, task, node=nodes[0]) for mode in modes)
        elif nodes and all(mode.span_any and mode.node_count <= len(nodes) for mode in modes):
            among = sum(1 << node for node in nodes)
            options = (view.first(mode, task, among=among) for mode in modes)
        else:
            return view.fit(task)
        return next((placement for placement in options if placement is not None), None)
