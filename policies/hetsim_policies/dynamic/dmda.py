"""Deque model data aware (`dmda` of StarPU): each task to the earliest worker.

Decides where.  As `eft`, but the time to bring what the task reads and is not there yet counts, from where copies
lie when the task becomes ready; so do `bytes_in` and `bytes_out`.  A worker is an accelerator, or the cores of a node;
its tasks start in the order in which they came.
Reference: Augonnet, Thibault, Namyst, Wacrenier, StarPU: A Unified Platform for Task Scheduling on Heterogeneous
Multicore Architectures (2011); Augonnet, Clet-Ortega, Thibault, Namyst, Data-Aware Task Scheduling on
Multi-Accelerator Based Platforms (2010).  There a core drives each GPU: `driver_cores: 1` of the nodes says so,
for every policy.
With `prefetch`, on as in StarPU, what the next task of each line reads moves while the one before computes.
Weakness: no ratio; links are taken for idle, and data that tasks before it in the line will bring for missing.
Cost: O(copies of what it reads + kinds of node × types + log devices) a task; linear in the devices of a type for
gangs, tasks of several cores and fractions.  Of data on many nodes those first found are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import Decision, Fetch, View
from hetsim_policies.dynamic.common.earliest import EarliestLine
from hetsim_policies.dynamic.common.lines import DeviceLine


class Dmda(EarliestLine):
    """Least expected completion, transfers included.

    prefetch: what the next task of a line reads is brought to its GPU while the one before computes.
    """

    with_data = True

    def __init__(self, prefetch: bool = True):
        super().__init__()
        self.prefetch = prefetch

    def expected(self, task: Task, placement: Placement, free: float, view: View) -> tuple[float, float]:
        """Begin and end, with uploads hidden by several streams or by `prefetch`."""
        stages = view.stages((task,), placement)
        kind = placement.mode.type
        bring = max(stages.ready, stages.write_back) + stages.upload
        hidden = kind.streams > 1 or (self.prefetch and not task.bytes_in and not placement.mode.on_cpu)
        uploaded = max(free, view.now + bring) if hidden else free + bring
        return free, uploaded + stages.restore + stages.compute + stages.download

    def after_starts(self, lines: Sequence[DeviceLine], view: View) -> Iterator[Decision]:
        if not self.prefetch:
            return
        for line in lines:
            job = line.head()
            if job is None or job.fetched or line.device is None or job.mode.on_cpu or len(job.lines) > 1:
                continue
            assert job.placement is not None
            if not line.up or not view.holds(job.task, job.placement):
                continue
            job.fetched = True
            for item in dict.fromkeys(job.task.reads):
                holders = view.holders(item)
                if holders and line.device not in holders:
                    yield Fetch(item, line.device)
