"""Batch sizes by deadlines: no larger than the batch that ends in time."""

import math
from typing import Annotated, Literal

from pydantic import Field

from hetsim.model.plan import Placement
from hetsim.model.units import Seconds
from hetsim.policy import Batching, Delay, Discard, RequestQueue, Take, View
from hetsim_policies.batching.common.sizing import Outlook, largest, limit, occupied, outlook

ROUNDING = 1e-9  # margin in seconds between a batch's end and a deadline, against rounding errors


class Nexus(Batching):
    """Nexus: the largest batch that takes at most half the SLO, with early drops.

    Decides how many requests: all waiting, up to the largest b with 2·τ(b) within the SLO (τ: batch time; a request
    that just misses a batch waits for it and then computes in the next); and which requests are not served.  The first
    b requests form a window.  While its first request would be late in a batch of the whole window, this request is
    dropped and the window moves on by one.  Dropped requests are expired if they would be late even alone, otherwise
    rejected.  Batches do not overlap.
    Reference: Shen, Chen, Jin, Zhao, Kong, Philipose, Krishnamurthy and Sundaram, Nexus: A GPU Cluster Engine for
    Accelerating DNN-Based Video Analysis (SOSP 2019), sections 4.2 and 6.3; its packing of sessions onto GPUs is not
    included.  Weakness: to keep batches large, early drop refuses requests that would have been in time alone; at low
    load batches are as small as the queue.  It assumes that requests arrive in the order of their deadlines.
    Cost: O(log n) per batch.

    drop: "early": drop requests that would be late in a batch of the whole window; "lazy": drop only requests that
        would be late even alone, and launch the largest batch that is in time for the oldest request.
    max_batch: largest batch (the mode's own limit applies too).
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
            if hopeless := largest(waiting, lambda count: not makes_it(count - 1, 1)):
                return Discard(hopeless, "too late")
            late = largest(waiting, lambda count: not makes_it(count - 1, min(window, waiting - count + 1)))
            return Discard(late, "too late for a batch", expired=False)
        count = min(waiting, target)
        return Take(count if window > 1 else max(1, largest(count, lambda size: makes_it(0, size))))

    def _target(self, queue: RequestQueue, placement: Placement) -> int:
        """Return the largest batch (at least 1) that takes at most half of the SLO."""
        if (target := self.targets.get(placement)) is None:
            target, slo = limit(placement, self.max_batch), queue.service.slo
            if slo < math.inf:
                target = max(1, largest(target, lambda size: 2 * queue.stages(size, placement).total <= slo))
            self.targets[placement] = target
        return target


class Clockwork(Batching):
    """Clockwork: launch no batch that would miss its SLO; most urgent first.

    Decides how many requests: the largest batch size with enough requests that would be in time in such a batch.  Older
    requests that would be late in that batch are rejected; requests that would be late even if started alone and
    immediately, on any of the service's devices, expire.  Decides when: transfers of the next batch overlap the
    computing batch, but a batch is closed as late as possible, so that it can grow: its upload time plus `ahead`
    seconds before the device is free.  If several services have a batch, the batch with the earliest latest start
    (deadline minus batch time) is next.
    Reference: Gujarati, Karimi, Alzayat, Hao, Kaufmann, Vigfusson and Mace, Serving DNNs like Clockwork: Performance
    Predictability from the Bottom Up (OSDI 2020); the choice among sizes is that of the published scheduler, which uses
    batches of 1, 2, 4, 8 and 16 requests.  A model that the device lacks is loaded with the batch that needs it, as
    part of the batch's time, and replaces the least recently used models; none is loaded ahead of demand.  Proven:
    where stage times are exact and a device's links are its own, no request that is launched misses its deadline.
    Weakness: a model that takes longer to load than the SLO is never loaded at all.  It trusts estimates: with noise it
    launches batches that are slightly late.  It is greedy: a large batch of one service can make the next batch of
    another impossible; it uses the least loaded device, which the engine offers.
    Cost: O(log b · log n + devices) per batch of b of n waiting requests and O(1) per dropped request.  If deadlines
    are not in the order of arrival, a batch costs O(b), and always has the oldest requests.

    ahead: seconds before the device is free at which a batch is closed, in addition to its upload.
    max_batch: largest batch (the mode's own limit applies too).
    """

    def __init__(
        self, ahead: Annotated[Seconds, Field(ge=0)] = 0.005, max_batch: Annotated[int, Field(ge=1)] | None = None
    ):
        self.ahead = ahead
        self.max_batch = max_batch
        self.places: list[Placement] = []  # all devices on which the service could run, where its modes take one

    def begin(self, queue: RequestQueue, view: View) -> None:
        devices = (view.cluster if queue.holder is None else queue.holder.placement).devices
        self.places = [
            Placement(mode, (device,)) for mode in queue.service.shape.modes for device in devices
            if device.type is mode.type and (mode.gpus == 1 or mode.on_cpu)
        ]  # fmt: skip

    def next_batch(self, queue: RequestQueue, placement: Placement, view: View) -> Take | Discard | Delay:
        ahead = outlook(queue, placement, view)
        late, size = self._choose(queue, placement, ahead)
        if not size:
            hopeless = self._hopeless(queue, ahead.end(queue, 1, placement), placement, view)
            return Discard(hopeless, "too late") if hopeless else Delay()  # elsewhere they may make it
        wanted = ahead.compute - ahead.loading - queue.stages(size, placement).upload - self.ahead
        if wanted > view.now:
            return Delay(wanted, released=True)
        if not late:
            return Take(size)
        if (hopeless := min(late, self._hopeless(queue, ahead.end(queue, 1, placement), placement, view))):
            return Discard(hopeless, "too late")
        return Discard(late, "too late for a larger batch", expired=False)

    def urgency(self, queue: RequestQueue, placement: Placement, view: View) -> float:
        """Return the latest start of the batch that this policy would launch."""
        ahead = outlook(queue, placement, view)
        late, size = self._choose(queue, placement, ahead)
        if not size:
            return -math.inf  # those that are late leave at once
        return queue.deadline(late) - (ahead.end(queue, size, placement) - view.now)

    def _choose(self, queue: RequestQueue, placement: Placement, ahead: Outlook) -> tuple[int, int]:
        """Return how many oldest requests to skip, and the size of the batch after them."""
        waiting = len(queue)
        max_size = min(waiting, limit(placement, self.max_batch))

        def late(size: int) -> int:
            end = ahead.end(queue, size, placement) + ROUNDING
            return largest(waiting, lambda count: queue.deadline(count - 1) < end)

        if queue.service.slo < math.inf:  # deadlines come in the order of arrivals
            size = largest(max_size, lambda size: waiting - late(size) >= size)
            return late(size) if size else 0, size
        return 0, self._in_order(queue, placement, ahead, max_size)

    def _in_order(self, queue: RequestQueue, placement: Placement, ahead: Outlook, most: int) -> int:
        """Return how many of the oldest requests can form a batch without a late request.

        It tests every request of the batch, as deadlines need not be in the order of arrival.
        """
        deadline = queue.deadline(0) - ROUNDING
        size = largest(most, lambda count: ahead.end(queue, count, placement) <= deadline)
        for position in range(1, size):
            deadline = min(deadline, queue.deadline(position) - ROUNDING)
            if ahead.end(queue, position + 1, placement) > deadline:
                return position
        return size

    def _hopeless(self, queue: RequestQueue, here: float, placement: Placement, view: View) -> int:
        """Count the oldest requests that would be late even if started alone, now.

        here: end of a batch of one request at `placement`; all other placements of the service are tried, too.
        """
        soonest = here
        for place in self.places:
            if place != placement:
                soonest = min(soonest, outlook(queue, place, view).end(queue, 1, place))
        late, waiting = 0, len(queue)
        while late < waiting and queue.deadline(late) - ROUNDING < soonest:
            late += 1
        return late
