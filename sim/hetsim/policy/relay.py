"""A scheduler that wraps another: base of policies that observe or control one."""

from collections.abc import Sequence

from hetsim.model.device import Device
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy.batching import Counter
from hetsim.policy.contract import Scheduler, View
from hetsim.policy.routing import WantedReplica


class Relay(Scheduler):
    """A scheduler that wraps another and forwards every hook except planning."""

    def __init__(self, inner: Scheduler):
        self.inner = inner

    def begin(self, view: View) -> None:
        self.inner.begin(view)

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        self.inner.serve(counters, alone)

    def ready(self, task: Task) -> None:
        self.inner.ready(task)

    def finished(self, task: Task) -> None:
        self.inner.finished(task)

    def gone(self, task: Task) -> None:
        self.inner.gone(task)

    def device(self, device: Device, up: bool) -> None:
        self.inner.device(device, up)

    def announced(self, device: Device, start: float, end: float) -> None:
        self.inner.announced(device, start, end)

    def run_ended(self, time: float | None) -> None:
        self.inner.run_ended(time)

    def replica(self, wanted: WantedReplica, view: View) -> Placement | None:
        return self.inner.replica(wanted, view)
