"""Power down: idle accelerators sleep and wake on demand, or by forecast.

Decides when, and which accelerators sleep.  Tasks start in the order of arrival, on what is awake if they fit there;
else the accelerators of a sleeping node are woken for the first in line, which waits for them.  An accelerator that was
idle for `patience` goes to sleep unless the forecast wants it.  Tasks are never stopped.
Reference: with a patience of waking time × (busy or idle watts) / (idle - sleep watts), the time after which sleep
would have paid, this is the ski rental rule: at most twice the energy of knowing all arrivals (Karlin, Manasse,
Rudolph, Sleator, Competitive Snoopy Caching, 1988; for power Irani, Shukla, Gupta, Online Strategies for Dynamic Power
Management in Systems with Multiple Power-saving States, 2003).  None: that time, of each type.
The forecast: the rate at which devices are asked for is averaged over the last `memory` seconds (exponentially), and
what may be asked for while a device wakes, with `safety` standard deviations of a Poisson count, stays awake beyond
what is busy, if it comes to half a device at least: square-root staffing as in Gandhi, Harchol-Balter, Raghunathan,
Kozuch, AutoScale: Dynamic, Robust Capacity Management for Multi-Tier Data Centers (2012).  Cores stay awake: their
nodes' accelerators could not be fed.
Weakness: no forecast sees a burst come; a task for which devices wake waits for them even if others come free
before; devices that draw no less asleep than idle never sleep.
Cost: linear in the accelerators for each round in which something was idle or asleep.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from typing import Annotated

from pydantic import Field

from hetsim.model.cluster import Device, DeviceType
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.model.units import Seconds
from hetsim.policy import Counter, Decision, ListScheduler, PlacementRule, Scheduler, Set, Start, View, Wait, claims_of
from hetsim_policies.common import grouped
from hetsim_policies.orders import fcfs
from hetsim_policies.prediction import FadingSum


class PowerDown(ListScheduler):
    """First come, first served, with idle accelerators put to sleep.

    patience: idle seconds before sleep; none: after which sleep would have paid, by the watts of the type.
    safety: standard deviations of the demand while a device wakes that are kept awake; 0: only the mean of it.
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
        self._demand: dict[DeviceType, tuple[FadingSum, FadingSum]] = {}
        """By type: devices asked for, and their squares by task."""

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

    # Waking -----------------------------------------------------------------------------------------------------

    def _to_wake(self, task: Task, view: View) -> list[Device]:
        """The fewest sleeping accelerators of one node that a mode of the task lacks.

        Of a gang across nodes, and where cores or memory lack besides, all that is asleep of its type: a task must
        not wait for devices that would never be woken.
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

    # Sleeping ---------------------------------------------------------------------------------------------------

    def _put_to_sleep(self, view: View, waiting: bool) -> Generator[Decision, None, float]:
        """Put to sleep what has been idle long enough; returns when to look again."""
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

    # The forecast -----------------------------------------------------------------------------------------------

    def _ask(self, mode: Mode, now: float) -> None:
        devices, squares = self._demand.setdefault(mode.type, (FadingSum(self.memory), FadingSum(self.memory)))
        devices.add(now, mode.gpu_share)
        squares.add(now, mode.gpu_share**2)

    def wanted_awake(self, kind: DeviceType, now: float) -> int:
        """Idle devices to keep awake: one waking time's demand plus `safety` deviations.

        Rounded up, but less than half a device is none: where tasks are rare nothing stays awake for them.
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
