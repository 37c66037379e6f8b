"""Serial greedy: when the device is idle, everything that waits goes as one batch.

Decides only how many: all, at most `max_batch`.  One launch is in flight on a device at a time, so nothing is uploaded
while something computes.
Reference: the baseline of Zhang, Zha, Wan and Cheng, A GPU Inference System Scheduling Algorithm with Asynchronous
Data Transfer (IPDPSW 2019); as a queue it is greedy batch service, M/D^[1,b]/1 (Neuts, A General Class of Bulk Queues
with Poisson Input, 1967).
Weakness: the compute engine idles during every upload and download: with stages a·n + b its capacity is 1/Σa, that of
overlapped transfers 1/max a.
Cost: O(1) a batch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.policy import Batching, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import occupied


class SerialGreedy(Batching):
    """Take all that waits, as soon as nothing is in flight on the device.

    max_batch: largest batch (the mode's own limit holds besides).
    """

    queueing = "greedy batches"
    in_order = True

    def __init__(self, max_batch: Annotated[int, Field(ge=1)] | None = None):
        self.max_batch = max_batch

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        if occupied(queue, placement, view):
            return Delay()
        limit = placement.mode.batch_limit
        max_size = limit if self.max_batch is None else min(limit, self.max_batch)
        return Take(min(len(queue), max_size))
