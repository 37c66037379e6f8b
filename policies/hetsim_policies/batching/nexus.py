"""Nexus: the largest batch of which two fit into the SLO, with early drops.

Decides how many: all that wait, up to the largest b with 2·τ(b) within the SLO (a request that just misses a batch
waits for all of it and then computes in the next); and which requests not to serve.  A window of b requests moves from
the head of the queue to the first request with a deadline late enough for the whole window to compute; those before are
dropped: expired where even alone they could not make it any more, rejected where they could.  Batches do not overlap.
Reference: Shen, Chen, Jin, Zhao, Kong, Philipose, Krishnamurthy and Sundaram, Nexus: A GPU Cluster Engine for
Accelerating DNN-Based Video Analysis (SOSP 2019), sections 4.2 and 6.3; packing sessions onto GPUs is not part of it.
Weakness: early drop refuses requests that alone would have made it, to keep batches large; at low load batches are as
small as the queue.  Assumes that requests come in the order of their deadlines.
Cost: O(log n) a batch.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.policy import Batching, Delay, Discard, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import largest, limit, occupied

ROUNDING = 1e-9
"""Seconds by which a batch has to end before a deadline, lest rounding decide."""


class Nexus(Batching):
    """Half the SLO a batch, with early drop.

    drop: "early": drop requests that cannot wait for a whole window; "lazy": drop only those that would be late even
    alone, and then launch no more than the oldest can wait for.
    max_batch: largest batch (the mode's own limit holds besides).
    """

    def __init__(self, drop: Literal["early", "lazy"] = "early", max_batch: Annotated[int, Field(ge=1)] | None = None):
        self.drop = drop
        self.max_batch = max_batch
        self.targets: dict[Placement, int] = {}

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        if occupied(queue, placement, view):
            return Delay()
        waiting, target = len(queue), self._target(queue, placement)
        ending = view.now + ROUNDING

        def makes_it(position: int, size: int) -> bool:
            return ending + queue.stages(size, placement).total <= queue.deadline(position)

        window = target if self.drop == "early" else 1
        if not makes_it(0, min(window, waiting)):
            hopeless = largest(waiting, lambda count: not makes_it(count - 1, 1))
            if hopeless:
                return Discard(hopeless, "too late")
            late = largest(waiting, lambda count: not makes_it(count - 1, min(window, waiting - count + 1)))
            return Discard(late, "too late for a batch", expired=False)
        count = min(waiting, target)
        return Take(count if window > 1 else max(1, largest(count, lambda size: makes_it(0, size))))

    def _target(self, queue: RequestQueue, placement: Placement) -> int:
        """The largest batch of which two fit into the SLO, at least one request."""
        target = self.targets.get(placement)
        if target is None:
            target, slo = limit(placement, self.max_batch), queue.service.slo
            if slo < math.inf:
                target = max(1, largest(target, lambda size: 2 * queue.stages(size, placement).total <= slo))
            self.targets[placement] = target
        return target
