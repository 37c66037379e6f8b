"""Faults in a run: devices fail, are repaired, slow down, or undergo maintenance.

At one instant, faults come after completions and before arrivals.  Each device and link has a list of reasons for which
it is down or slow.  A device or link is up if no reason is a failure; the slowdown factors of all reasons are
multiplied.  Faults do not prolong a run or its makespan: the run ends when no task waits, runs or is to arrive, even if
faults are scheduled.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hetsim.engine.control.devices import Devices
from hetsim.engine.core.policy_errors import call, deadlock
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState
from hetsim.engine.kernel.clock import FAULT, Draws, Later
from hetsim.model.exchange import link_names
from hetsim.model.faults import FaultEvent, FaultProcess, Faults, Maintenance

BLOCK = 16  # random times drawn at once; small, since faults are rare

IDLE_LIMIT = 10_000  # faults in a row with no other event possible; more are reported as a deadlock


Reason = tuple[int | str, float]  # the source of the fault, and its slowdown factor; inf: the device or link is down


@dataclass(eq=False)
class Ailing:
    """A device or link with a fault process and its own random stream."""

    process: FaultProcess
    source: int
    index: int
    random: np.random.Generator

    def __post_init__(self) -> None:
        process = self.process
        self.reason: Reason = self.source, math.inf if process.factor is None else process.factor
        self.between = Draws(process.between, self.random, BLOCK)
        self.lasting = Draws(process.lasting, self.random, BLOCK)


@dataclass(eq=False)
class FaultInjector:
    """Schedules and applies the faults of a run."""

    run: RunState
    rounds: Rounds
    devices: Devices
    faults: Sequence[Faults]
    _reasons: dict[int, list[Reason]] = field(default_factory=dict)  # why a device or a link is down or slow, by index
    _idle: int = 0

    def __post_init__(self) -> None:
        for source, fault in enumerate(self.faults):
            if isinstance(fault, FaultProcess):
                self._begin(fault, source)
            elif isinstance(fault, FaultEvent):
                self._at(fault.time, self._event, fault)
            else:
                self._at(fault.announced, self._announce, fault)
                self._at(fault.start, self._turn, fault, [], [(source, math.inf)])
                self._at(fault.end, self._turn, fault, [(source, math.inf)], [])

    def _at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        # A fault with a time in the past happens now.
        self.run.clock.at(max(time, self.run.clock._now), FAULT, Later(self._fire, action, arguments))

    def _fire(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        run = self.run
        serving = bool(run.iterating and run.residents)
        self._idle = 0 if run.running or serving or self._more_to_come() else self._idle + 1
        if self._idle > IDLE_LIMIT:  # a policy that starts nothing would let faults go on for ever
            if run.iterating:
                raise self.run.serving.unanswered()
            raise deadlock(run)
        action(*arguments)

    def _more_to_come(self) -> bool:
        run = self.run
        if not (run.sources.to_come or run.deferred or run.requests_left):
            return False
        if any(queue.column is not None and not queue.over for queue in run.queues):
            return True
        return not run.clock.only(FAULT)  # other events may still let something happen

    # Processes ------------------------------------------------------------------------------------------------

    def _begin(self, process: FaultProcess, source: int) -> None:
        cluster = self.run.input.cluster
        devices, count = cluster.devices, len(cluster.devices)
        links = link_names(cluster) if max(process.devices, default=0) >= count else []
        for index in process.devices:
            name = devices[index].name if index < count else links[index - count]
            random = self.run.input.random.stream("faults", process.name, name)
            self._next(Ailing(process, source, index, random))  # by device name: others do not shift its numbers

    def _next(self, ailing: Ailing) -> None:
        self._at(self.run.clock._now + ailing.between(), self._strike, ailing)

    def _strike(self, ailing: Ailing) -> None:
        process = ailing.process
        end = self.run.clock._now + ailing.lasting()  # drawn first: the order of draws is part of the results
        struck = [ailing.index]
        if process.together and process.groups is not None:
            struck += [other for other in process.groups[ailing.index] if ailing.random.random() < process.together]
        for one in struck:
            self._change(one, [], [ailing.reason])
        self._at(end, self._recover, ailing, struck)  # the devices that it struck, not those near it then

    def _recover(self, ailing: Ailing, struck: list[int]) -> None:
        for one in struck:
            self._change(one, [ailing.reason], [])
        self._next(ailing)  # the time between faults runs from the repair

    # Single events --------------------------------------------------------------------------------------------

    def _event(self, event: FaultEvent) -> None:
        down = event.source, math.inf
        if event.what == "slow":
            slower = [one for one in self._reasons.get(event.device, ()) if one[0] == event.source and one != down]
            self._change(event.device, slower, [(event.source, event.factor)] if event.factor != 1.0 else [])
        elif event.what == "down":
            self._change(event.device, [], [down])
        else:
            self._change(event.device, [down], [])

    def _announce(self, window: Maintenance) -> None:
        devices = self.run.input.cluster.devices
        for index in window.devices:
            call(self.run, self.run.scheduler.announced, devices[index], window.start, window.end)
            if window.drain:
                self.devices.close(devices[index], True)
        self.rounds.changed("change")

    def _turn(self, window: Maintenance, ended: list[Reason], begun: list[Reason]) -> None:
        for index in window.devices:
            if ended and window.drain:
                self.devices.close(self.run.input.cluster.devices[index], False)
            self._change(index, ended, begun)

    # What is in effect ----------------------------------------------------------------------------------------

    def _change(self, index: int, ended: list[Reason], begun: list[Reason]) -> None:
        reasons = self._reasons.setdefault(index, [])
        was_up, before = _in_effect(reasons)  # read before the list, which is the same object, changes
        for reason in ended:
            if reason in reasons:
                reasons.remove(reason)  # one of them: the same source may have struck it twice
        reasons += begun  # in place: the list is the device's own
        up, slowdown = _in_effect(reasons)
        devices, network = self.run.input.cluster.devices, self.run.network
        if index >= len(devices):
            if network is not None and (up, slowdown) != (was_up, before):
                network.slow_down(index - len(devices), slowdown if up else math.inf)
            return
        if slowdown != before:
            self.devices.set_slowdown(devices[index], slowdown)
        if up != was_up:
            self.devices.set_up(devices[index], up)


def _in_effect(reasons: list[Reason]) -> tuple[bool, float]:
    """Return whether a device with these fault reasons is up, and its slowdown."""
    factors = [factor for _, factor in reasons if factor < math.inf]
    # From the list each time: factors that end leave no rounding behind.
    return len(factors) == len(reasons), math.prod(factors, start=1.0)
