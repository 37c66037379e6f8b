"""Size or timeout: launch a full batch, or one whose first request waited enough.

Decides when and how many; sizes may be padded up to one of a list, and requests that come while `max_enqueued_batches`
full batches already wait are rejected.
Reference: the batching of TensorFlow Serving (parameters max_batch_size, batch_timeout, allowed_batch_sizes,
max_enqueued_batches; a device's streams are its batch threads); Olston et al., TensorFlow-Serving: Flexible,
High-Performance ML Serving (2017).
Weakness: timeout and size are set by hand and fit one rate; below it every batch waits in vain for its timeout, above
it the queue alone decides.  Padding is computed in vain.
Cost: O(1) a batch; with max_enqueued_batches each request is an object, and O(1) for each.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Annotated

from pydantic import Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Placement
from hetsim.model.tasks import UNLIMITED_BATCH
from hetsim.model.units import Seconds
from hetsim.policy import Batching, Delay, Discard, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import limit


class SizeOrTimeout(Batching):
    """Full batches at once, others after a timeout.

    max_batch_size: requests of a full batch; unless given the largest of allowed_batch_sizes, else that of the service.
    batch_timeout: how long the first request of a batch waits for others while the device has room; 0: not at all.
    allowed_batch_sizes: increasing, the last being max_batch_size where that is given; a batch computes as if it had
        the next of them.
    max_enqueued_batches: when this many full batches wait, arrivals are rejected.  Rejections are noted when the device
    next has room.
    """

    def __init__(
        self,
        max_batch_size: Annotated[int, Field(ge=1)] | None = None,
        batch_timeout: Annotated[Seconds, Field(ge=0)] = 0.0,
        allowed_batch_sizes: list[Annotated[int, Field(ge=1)]] | None = None,
        max_enqueued_batches: Annotated[int, Field(ge=1)] | None = None,
    ):
        sizes = allowed_batch_sizes or []
        if any(one >= other for one, other in zip(sizes, sizes[1:], strict=False)):
            raise _refused(f"{sizes} is not increasing; give each size once, in ascending order")
        if sizes and max_batch_size is None:
            max_batch_size = sizes[-1]
        if sizes and sizes[-1] != max_batch_size:
            raise _refused(f"the last of {sizes} is not max_batch_size, which is {max_batch_size}; make them equal")
        self.max_batch = max_batch_size
        self.batch_timeout = batch_timeout
        self.sizes = sizes
        self.max_enqueued_batches = max_enqueued_batches
        self.capacity: int | None = None
        """Requests that may wait; those that arrive beyond it are rejected."""

    def begin(self, queue: RequestQueue, view: View) -> None:
        min_limit = min(mode.batch_limit for mode in queue.service.shape.modes)
        if self.sizes and self.sizes[0] > min_limit:
            text = f"service {queue.service.name} takes batches of at most {min_limit}; allow a smaller size too"
            raise _refused(text, queue.service.policy_key)
        if self.max_enqueued_batches is not None:
            limits = [mode.batch_limit for mode in queue.service.shape.modes]
            full = max(limits) if self.max_batch is None else self.max_batch
            if full >= UNLIMITED_BATCH:
                text = f"service {queue.service.name} sets no largest batch, so no number of them is full; "
                raise _refused(f"{text}give max_batch_size", queue.service.policy_key, "max_enqueued_batches")
            self.capacity = self.max_enqueued_batches * full

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        waiting = len(queue)
        if self.capacity is not None and waiting > self.capacity:
            # No request has left since the queue was full, so those that came since stand behind its last place.
            return Discard(queue.tasks()[self.capacity :], "the queue is full", expired=False)
        max_size = limit(placement, self.max_batch)
        if self.sizes and self.sizes[-1] > max_size:
            max_size = self.sizes[bisect_right(self.sizes, max_size) - 1]
        if waiting < max_size:
            until = queue.arrival(0) + self.batch_timeout
            if view.now < until:
                return Delay(until, max_size)
        count = min(waiting, max_size)
        return Take(count, self.sizes[bisect_left(self.sizes, count)] if self.sizes else None)


def _refused(what: str, policy: str = "policy.batching", key: str = "allowed_batch_sizes") -> ScenarioError:
    return ScenarioError(Problem(what, key=f"{policy}.{key}"))
