"""Shared parts of batching policies: batch limits, batch ends, arrival rates."""

from collections.abc import Callable
from typing import NamedTuple

from hetsim.model.plan import Placement
from hetsim.policy import RequestQueue, View

MIN_SEEN = 8
"""Arrivals from which on a rate is believed."""


def limit(placement: Placement, most: int | None = None) -> int:
    """The largest batch allowed: the mode's limit, and the policy's."""
    own = placement.mode.batch_limit
    return own if most is None else min(own, most)


def occupied(queue: RequestQueue, placement: Placement, view: View) -> bool:
    """Return True if a policy that serves batch by batch must wait.

    Where a device is divided, in space or in time, only for the service's own batch; else for all that is in flight
    there.  A MIG slice that is idle is a device of its own.
    """
    device, mode = placement.devices[0], placement.mode
    if view.load(device) <= 0 or mode.type.sharing.kind == "mig":
        return False
    if mode.on_cpu or (mode.whole_devices and mode.type.sharing.kind != "timeslice"):
        return True
    return any(task.shape is queue.service.shape for task in view.running("start", device))


def largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest size from 1 to `most` for which a monotone condition holds, or 0.

    Doubling first, so that the cost is logarithmic in the answer.
    """
    if most < 1 or not holds(1):
        return 0
    low = 1
    while low < most and holds(min(2 * low, most)):
        low = min(2 * low, most)
    high = min(2 * low, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


class Outlook(NamedTuple):
    """Times at which a device's engines are free, and at which a new batch would end.

    Exact where estimates are and nothing else starts there or shares its links.  `loading` are the seconds that the
    upload is longer by, because the device lacks the model.
    """

    now: float
    upload: float
    compute: float
    download: float
    loading: float = 0.0

    def end(self, queue: RequestQueue, size: int, placement: Placement) -> float:
        """Time at which a batch of this size would end at a placement."""
        times = queue.stages(size, placement)
        at = self.now
        if times.upload or self.loading:
            at = max(at, self.upload) + self.loading + times.upload
        at = max(at, self.compute) + times.compute
        return max(at, self.download) + times.download if times.download else at


def outlook(queue: RequestQueue, placement: Placement, view: View) -> Outlook:
    """The outlook of the placement's device; of several devices, the first."""
    device, now = placement.devices[0], view.now
    loading = 0.0
    if view.items:
        head = queue.head
        missing = any(device not in view.holders(item) for item in head.reads)
        if missing and not any(task.shape is head.shape for task in view.running("start", device)):  # none loads them
            loading = max(0.0, float(view.stages((head,), placement).upload) - queue.stages(1, placement).upload)
    if view.load(device) <= 0:
        return Outlook(now, now, now, download=now, loading=loading)
    free = view.free_at
    return Outlook(
        now, free(device, "upload"), free(device, "compute"), download=free(device, "download"), loading=loading
    )


class ArrivalRate:
    """Requests per second over the last `window` seconds, or longer if these are few.

    None until a few have come.  Cost: O(log n), of a slow stream times the doublings.
    """

    def __init__(self, window: float):
        self.window = window
        self.since: float | None = None  # when it was asked first: arrivals before are too few to count

    def rate(self, queue: RequestQueue, now: float) -> float | None:
        if self.since is None:
            self.since = now
        if (passed := now - self.since) <= 0 or queue.arrived < MIN_SEEN:
            return None
        seconds = min(self.window, passed)
        while (count := queue.recent(seconds)) < MIN_SEEN and seconds < passed:
            seconds = min(2 * seconds, passed)
        return count / seconds if count else None
