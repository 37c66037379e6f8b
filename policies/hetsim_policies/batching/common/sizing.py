"""Shared parts of batching policies: batch limits, batch ends, arrival rates."""

from collections.abc import Callable
from typing import NamedTuple

from hetsim.model.plan import Placement
from hetsim.policy import RequestQueue, View

MIN_SEEN = 8  # minimum number of arrivals for an estimated rate


def limit(placement: Placement, most: int | None = None) -> int:
    """Return the largest allowed batch: the mode's limit, or `most` if it is lower."""
    own = placement.mode.batch_limit
    return own if most is None else min(own, most)


def occupied(queue: RequestQueue, placement: Placement, view: View) -> bool:
    """Return True if a policy that serves batch by batch must wait for the device.

    If launches share the device (a fraction of a GPU, or time slices), the policy waits only for a batch of the service
    itself; on any other device it waits for every launch in flight.  With MIG it never waits: each slice is a device.
    """
    device, mode = placement.devices[0], placement.mode
    if view.load(device) <= 0 or mode.type.sharing.kind == "mig":
        return False
    if mode.on_cpu or (mode.whole_devices and mode.type.sharing.kind != "timeslice"):
        return True
    return any(task.shape is queue.service.shape for task in view.running("start", device))


def largest(most: int, holds: Callable[[int], bool]) -> int:
    """Return the largest size up to `most` for which `holds` (monotone) is True, or 0."""
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
    """Times when a device's engines become free, to predict the end of a batch.

    The times are exact if estimates are exact and no other task starts on the device or shares its links.  `loading`:
    additional seconds of the upload if the device lacks the model.
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
    """Return when a new batch could upload, compute and download on this placement."""
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
    """Arrival rate (1/s) over the last `window` s, or longer if few requests arrive.

    The window is doubled while it contains fewer than MIN_SEEN arrivals.  `rate` returns None at its first call, and
    until MIN_SEEN requests have arrived.  Cost: O(log n) for each doubling, with n requests that have arrived.
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
