"""Fixed size: a batch is launched when it is full, or at the end of the stream.

Decides only when: the size is a parameter.  Batches overlap as far as the device has streams.
Reference: bulk service with a fixed batch, M/D^[b]/1; Bailey, On Queueing Processes with Bulk Service (1954).
Weakness: at low rates a request waits for (b - 1) others, on average (b - 1)/2 gaps, without any bound; in a closed
loop with fewer clients than the size nothing ever starts.
Cost: O(1) a batch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.policy import Batching, Delay, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import limit


class FixedSize(Batching):
    """Batches of exactly one size.

    size: requests of a batch (less where the mode's own limit is less).
    """

    in_order = True

    def __init__(self, size: Annotated[int, Field(ge=1)] = 8):
        self.max_batch: int = size

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Delay:
        size, waiting = limit(placement, self.max_batch), len(queue)
        if waiting >= size or queue.over:
            return Take(min(waiting, size))
        return Delay(count=size)
