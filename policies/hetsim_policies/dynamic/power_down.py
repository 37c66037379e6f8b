"""Power down: idle accelerators sleep and are woken on demand, or by forecast.

Decides when tasks start, and which accelerators sleep.  Tasks start in the order of arrival, on awake devices if
possible; otherwise accelerators of a node are woken for the first waiting task, which waits for these accelerators.  An
accelerator that was idle for `patience` seconds is put to sleep unless the forecast needs it.  By default the patience
is the break-even time of sleep: waking time × (busy or idle watts) / (idle - sleep watts) of the type.  Tasks are never
stopped.
Reference: with the default patience the policy is the ski rental rule, which uses at most twice the energy of a policy
that knows all arrivals (Karlin, Manasse, Rudolph, Sleator, Competitive Snoopy Caching, 1988; for power Irani, Shukla,
Gupta, Online Strategies for Dynamic Power Management in Systems with Multiple Power-saving States, 2003).  The forecast
is the rate at which devices are requested, an exponentially weighted average over the last `memory` seconds.  In
addition to busy devices, some idle devices remain awake: as many as are expected to be requested while a device wakes,
plus `safety` standard deviations of a Poisson count; none if this is less than half a device.  This is square-root
staffing as in Gandhi, Harchol-Balter, Raghunathan, Kozuch, AutoScale: Dynamic, Robust Capacity Management for
Multi-Tier Data Centers (2012).  Cores are never put to sleep, since their node's accelerators need them.
Weakness: no forecast predicts a burst; a task for which devices wake waits for these devices even if other devices
become free earlier; devices that draw as much power asleep as idle never sleep.
Cost: linear in the accelerators for each round in which something was idle or asleep.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Annotated

from pydantic import Field

from hetsim.model.device import Device
from hetsim.model.device_type import DeviceType
from hetsim.model.mode import Mode
from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Counter, Decision, ListScheduler, PlacementRule, Scheduler, Set, Start, View, Wait, claims_of
from hetsim_policies.common import grouped
from hetsim_policies.orders import fcfs
from hetsim_policies.prediction import FadingSum


class PowerDown(ListScheduler):
    """First come, first served, with idle accelerators put to sleep.

    patience: idle seconds before sleep; None: the break-even time of sleep and wake-up, from the type's watts.
    safety: devices stay awake for the mean demand during a wake-up plus this number of standard deviations.
    memory: seconds over which the demand is averaged.
    """

    sets_devices = True
    queueing = "order of arrival, asleep when idle"

    def __init__(
        self,
        placement: PlacementRule | None = None,
        patience: Annotated[Seconds, Field(ge=0)] | None = None,
        safety: Annotated[float, Field(ge=0)] = 1.0,
        memory: Annotated[Seconds, Field(gt=0)] = 3600.0,
    ):
        super().__init__(fcfs, placement)
        self.patience = patience
        self.safety = safety
        self.memory = memory
        self.idle_since: dict[int, float] = {}
        self.asleep: dict[int, Device] = {}  # put to sleep by this policy
        self._down: set[int] = set()
        self._sleepers: list[Device] = []
        # By type: requested devices, and their squares by task
        self._demand: dict[DeviceType, tuple[FadingSum, FadingSum]] = {}

    def serve(self, counters: Sequence[Counter], alone: bool) -> None:
        Scheduler.serve(self, counters, alone)  # it does not: devices would sleep while requests wait

    def begin(self, view: View) -> None:
        self._sleepers = [
            device for device in view.cluster.devices if device.local >= 0 and saves(device.type)
        ]  # cores stay awake

    def ready(self, task: Task) -> None:
        super().ready(task)
        if task.done == 0:
            mode = task.fastest_modes()[0]
            if not mode.on_cpu:
                self._ask(mode, task.ready)

    def device(self, device: Device, up: bool) -> None:
        if device.index not in self.asleep and device.local >= 0:  # else it is this policy's own doing
            (self._down.discard if up else self._down.add)(device.index)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self._sleepers:
            yield from super().schedule(view)
            return
        closed = 0
        while (head := (yield from self.start_in_order(view, closed))) is not None:
            woken = self._to_wake(head, view)
            for device in woken:
                self.asleep.pop(device.index)
                self.idle_since.pop(device.index, None)
                yield Set(device, "on")
            placement = self.place(head, view) if woken else None
            if placement is None:
                closed |= claims_of(head)
                continue
            yield Start(head, placement)
        until = yield from self._put_to_sleep(view, waiting=bool(closed))
        yield Wait(until=until)

    def _to_wake(self, task: Task, view: View) -> list[Device]:
        """Return the accelerators to wake for a waiting task.

        They are the smallest sufficient set on one node.  If no node has enough, cores or memory included, or if the
        task is a gang across nodes, they are all sleeping accelerators of the type, so that no task waits in vain.
        """
        if not self.asleep:
            return []
        asleep = [self.asleep[index] for index in sorted(self.asleep)]
        for mode in task.fastest_modes():
            sleeping = grouped((one.node, one) for one in asleep if one.type is mode.type and mode.allows(one.node))
            best: list[Device] | None = None
            for node, devices in sleeping.items():
                out = self._down | self.asleep.keys()
                here = [d for d in view.cluster.nodes[node].accelerators if d.type is mode.type and d.index not in out]
                lacking = max(1, mode.gpus - sum(view.load(device) == 0 for device in here))
                enough = lacking <= len(devices) and view.free("cpu", node) * 1000 >= mode.millicores
                if enough and (best is None or lacking < len(best)):
                    best = devices[:lacking]
            if best is not None:
                return best
            if sleeping and mode.span_any:
                return [device for devices in sleeping.values() for device in devices]
        return []

    def _put_to_sleep(self, view: View, waiting: bool) -> Generator[Decision, None, float]:
        """Put long-idle devices to sleep, unless tasks wait; return the next check's time."""
        now, soonest = view.now, math.inf
        idle: dict[DeviceType, list[Device]] = {}
        for device in self._sleepers:
            if device.index in self.asleep or device.index in self._down or view.load(device) > 0:
                self.idle_since.pop(device.index, None)
            else:
                self.idle_since.setdefault(device.index, now)
                idle.setdefault(device.type, []).append(device)
        for kind, devices in idle.items():
            patience = break_even(kind) if self.patience is None else self.patience
            # The last ones sleep: tasks go to the first devices that fit.
            for device in devices[self.wanted_awake(kind, now) :] if not waiting else ():
                due = self.idle_since[device.index] + patience
                if due <= now:
                    self.asleep[device.index] = device
                    self.idle_since.pop(device.index)
                    yield Set(device, "off")
                else:
                    soonest = min(soonest, due)
            if devices and self.wanted_awake(kind, now) and not waiting:
                soonest = min(soonest, now + self.memory / 4)  # the forecast falls while no task comes
        return soonest

    def _ask(self, mode: Mode, now: float) -> None:
        devices, squares = self._demand.setdefault(mode.type, (FadingSum(self.memory), FadingSum(self.memory)))
        devices.add(now, mode.gpu_share)
        squares.add(now, mode.gpu_share**2)

    def wanted_awake(self, kind: DeviceType, now: float) -> int:
        """Idle devices to keep awake: demand during a wake-up plus `safety` deviations.

        The number is rounded up, but less than half a device counts as none: rare tasks keep no device awake.
        """
        if (demand := self._demand.get(kind)) is None:
            return 0
        devices, squares = (part.at(now) * kind.power.wake / self.memory for part in demand)
        wanted = devices + self.safety * math.sqrt(squares)
        return 0 if wanted < 0.5 else math.ceil(wanted - 0.05)


def saves(kind: DeviceType) -> bool:
    """Return True if the type uses less power when asleep."""
    return kind.power.sleep < kind.power.idle


def break_even(kind: DeviceType) -> float:
    """Idle seconds after which sleeping saves more than waking costs."""
    power = kind.power
    return power.wake * power.idle / (power.idle - power.sleep)
