"""Faults in a run: devices fail, are repaired, slow down, go into maintenance.

They happen in the order of FAULT: after what finishes at the same instant, before what arrives.  A device that is
down for two reasons comes up when both have passed.  Faults neither prolong a run nor stretch its makespan: when
nothing waits, runs or is to come the run ends, whatever is still to break.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from oracle.engine.clock import FAULT, Timer
from oracle.engine.complaints import deadlock
from sim.model.faults import Draw, FaultEvent, FaultProcess, Faults, Maintenance

if TYPE_CHECKING:
    from oracle.engine.simulation import Simulation

BLOCK = 16
"""Times drawn at once: devices fail rarely."""

IDLE_LIMIT = 10_000
"""Faults while nothing runs and nothing is to come, after which what waits waits for ever."""


class FaultInjector:
    """Brings the faults of a run about."""

    def __init__(self, run: Simulation, faults: list[Faults]):
        self.run = run
        self._ailments: dict[int, int] = {}
        """How many reasons a device has to be down, by index."""
        self._idle = 0
        for fault in faults:
            if isinstance(fault, FaultProcess):
                self._begin(fault)
            elif isinstance(fault, FaultEvent):
                self._at(fault.time, lambda event=fault: self._event(event))
            else:
                self._maintain(fault)

    def _at(self, time: float, action: object) -> None:
        def fire(_: Timer) -> None:
            self._look_whether_hopeless()
            action()  # type: ignore[operator]

        self.run.clock.at(max(time, self.run.clock._now), FAULT, Timer(fire))

    def _look_whether_hopeless(self) -> None:
        """A policy that starts nothing would let faults go on for ever."""
        run = self.run
        if run.running or run.sources.to_come or run.deferred or run.requests_left:
            self._idle = 0
            return
        self._idle += 1
        if self._idle > IDLE_LIMIT:
            raise deadlock(run)

    # Processes ------------------------------------------------------------------------------------------------

    def _begin(self, process: FaultProcess) -> None:
        devices = self.run.input.cluster.devices
        for index in process.devices:
            random = self.run.input.random.stream("faults", process.name, devices[index].name)
            between, lasting = _times(process.between, random), _times(process.lasting, random)
            self._next(process, index, between, lasting, random)

    def _next(
        self, process: FaultProcess, index: int, between: Iterator[float], lasting: Iterator[float],
        random: np.random.Generator,
    ) -> None:  # fmt: skip
        begin = self.run.clock._now + next(between)

        def strike() -> None:
            end = self.run.clock._now + next(lasting)
            struck = [index]
            if process.together and process.groups is not None:
                others = process.groups[index]
                struck += [other for other in others if random.random() < process.together]
            for one in struck:
                self._ail(one, process.factor)

            def recover() -> None:
                for one in struck:
                    self._heal(one, process.factor)
                self._next(process, index, between, lasting, random)

            self._at(end, recover)

        self._at(begin, strike)

    # Single events --------------------------------------------------------------------------------------------

    def _event(self, event: FaultEvent) -> None:
        if event.what == "slow":
            self.run.devices.set_slowdown(self.run.input.cluster.devices[event.device], event.factor)
        elif event.what == "down":
            self._ail(event.device, None)
        else:
            self._heal(event.device, None)

    def _maintain(self, window: Maintenance) -> None:
        devices = [self.run.input.cluster.devices[index] for index in window.devices]

        def announce() -> None:
            for device in devices:
                self.run.call(self.run.scheduler.announced, device, window.start, window.end)
                if window.drain:
                    self.run.devices.close(device, True)
            self.run.changed("change")

        def begin() -> None:
            for device in devices:
                self._ail(device.index, None)

        def end() -> None:
            for device in devices:
                if window.drain:
                    self.run.devices.close(device, False)
                self._heal(device.index, None)

        for time, action in ((window.announced, announce), (window.start, begin), (window.end, end)):
            self._at(time, action)

    def _ail(self, index: int, factor: float | None) -> None:
        device = self.run.input.cluster.devices[index]
        if factor is not None:
            self.run.devices.set_slowdown(device, factor)
            return
        reasons = self._ailments[index] = self._ailments.get(index, 0) + 1
        if reasons == 1:
            self.run.devices.set_up(device, False)

    def _heal(self, index: int, factor: float | None) -> None:
        device = self.run.input.cluster.devices[index]
        if factor is not None:
            self.run.devices.set_slowdown(device, 1.0)
            return
        reasons = self._ailments[index] = max(0, self._ailments.get(index, 0) - 1)
        if not reasons:
            self.run.devices.set_up(device, True)


def _times(draw: Draw, random: np.random.Generator) -> Iterator[float]:
    while True:
        yield from draw(random, BLOCK).tolist()
