"""Gang backfilling: gangs of whole nodes have reservations, others fill in.

Decides when and where.  Tasks are looked at in the order of arrival.  One that needs every accelerator of a node (or
spans nodes) is given the earliest time at which whole nodes come free, and keeps it; a smaller one starts only if it
fits now and delays no such reservation, and is promised nothing.
Reference: Feitelson and Jette, Improved Utilization and Responsiveness with Gang Scheduling (1997), for gangs on whole
nodes; reservations as in Mu'alem and Feitelson (2001).  Without them wide gangs starve, since smaller tasks keep
taking what comes free on each node.
Weakness: small tasks may be passed by others as small; devices stand idle before each wide gang.
Cost: as `conservative_backfill` for the gangs; a walk over the window after every release.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.dynamic.common.backfilling import Reserving


class GangBackfill(Reserving):
    """Reservations for gangs of whole nodes.

    depth: how many tasks behind the head are looked at, of each partition; None: all.
    """

    def __init__(self, depth: Annotated[int, Field(ge=0)] | None = 100):
        super().__init__(None, depth)
        self._widest: dict[str, int] = {}
        """By accelerator type: the most on any node."""

    def begin(self, view: View) -> None:
        super().begin(view)
        for node in view.cluster.nodes:
            counts: dict[str, int] = {}
            for device in node.accelerators:
                counts[device.type.name] = counts.get(device.type.name, 0) + 1
            for name, count in counts.items():
                self._widest[name] = max(count, self._widest.get(name, 0))

    def promises(self, task: Task) -> bool:
        return all(mode.whole_devices and mode.gpus >= self._widest.get(mode.type.name, 1) for mode in task.modes)
