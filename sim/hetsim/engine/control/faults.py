"""Faults in a run: devices fail, are repaired, slow down, go into maintenance.

They happen in the order of FAULT: after what finishes at the same instant, before what arrives.  A device that is
down for two reasons comes up when both have passed.  Faults neither prolong a run nor stretch its makespan: when
nothing waits, runs or is to come the run ends, whatever is still to break.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sim.engine.control.devices import Devices
from sim.engine.core.policy_errors import call, deadlock
from sim.engine.core.rounds import Rounds
from sim.engine.core.state import RunState
from sim.engine.kernel.clock import FAULT, Later
from sim.engine.kernel.draws import Draws
from sim.engine.language.serving import Serving
from sim.model.exchange import link_names
from sim.model.faults import FaultEvent, FaultProcess, Faults, Maintenance

BLOCK = 16
"""Times drawn at once: devices fail rarely."""

IDLE_LIMIT = 10_000
"""Faults while nothing runs and nothing else is to come, after which what waits waits for ever."""


class Ailing:
    """A device under a process of faults: its own random times."""

    __slots__ = ("process", "index", "between", "lasting", "random")

    def __init__(self, process: FaultProcess, index: int, random: np.random.Generator):
        self.process = process
        self.index = index
        self.random = random
        self.between = Draws(process.between, random, BLOCK)
        self.lasting = Draws(process.lasting, random, BLOCK)


class FaultInjector:
    """Brings the faults of a run about."""

    def __init__(
        self, state: RunState, rounds: Rounds, devices: Devices, serving: Serving | None, faults: list[Faults]
    ):  # fmt: skip
        self.run = state
        self.rounds = rounds
        self.devices = devices
        self.serving = serving
        self._ailments: dict[int, int] = {}
        """How many reasons a device has to be down, by index."""
        self._idle = 0
        for fault in faults:
            if isinstance(fault, FaultProcess):
                self._begin(fault)
            elif isinstance(fault, FaultEvent):
                self._at(fault.time, self._event, fault)
            else:
                self._maintain(fault)

    def _at(self, time: float, action: Callable[..., None], *arguments: Any) -> None:
        self.run.clock.at(max(time, self.run.clock._now), FAULT, Later(self._fire, action, arguments))

    def _fire(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._look_whether_hopeless()
        action(*arguments)

    def _look_whether_hopeless(self) -> None:
        """A policy that starts nothing would let faults go on for ever."""
        run = self.run
        serving = bool(run.iterating and run.residents)
        if run.running or serving or self._more_to_come():
            self._idle = 0
            return
        self._idle += 1
        if self._idle > IDLE_LIMIT:
            if run.iterating and self.serving is not None:
                raise self.serving.unanswered()
            raise deadlock(run)

    def _more_to_come(self) -> bool:
        """Will anything else than faults happen?  Not where all clients wait for answers before they send more."""
        run = self.run
        if not (run.sources.to_come or run.deferred or run.requests_left):
            return False
        if any(queue.column is not None and not queue.over for queue in run.queues):
            return True
        return not run.clock.only(FAULT)

    # Processes ------------------------------------------------------------------------------------------------

    def _begin(self, process: FaultProcess) -> None:
        cluster = self.run.input.cluster
        devices, count = cluster.devices, len(cluster.devices)
        links = link_names(cluster) if max(process.devices, default=0) >= count else []
        for index in process.devices:
            name = devices[index].name if index < count else links[index - count]
            random = self.run.input.random.stream("faults", process.name, name)
            self._next(Ailing(process, index, random))

    def _next(self, ailing: Ailing) -> None:
        self._at(self.run.clock._now + ailing.between(), self._strike, ailing)

    def _strike(self, ailing: Ailing) -> None:
        process = ailing.process
        end = self.run.clock._now + ailing.lasting()
        struck = [ailing.index]
        if process.together and process.groups is not None:
            others = process.groups[ailing.index]
            struck += [other for other in others if ailing.random.random() < process.together]
        for one in struck:
            self._ail(one, process.factor)
        self._at(end, self._recover, ailing, struck)

    def _recover(self, ailing: Ailing, struck: list[int]) -> None:
        for one in struck:
            self._heal(one, ailing.process.factor)
        self._next(ailing)

    # Single events --------------------------------------------------------------------------------------------

    def _event(self, event: FaultEvent) -> None:
        if event.what == "slow":
            self._slow_down(event.device, event.factor)
        elif event.what == "down":
            self._ail(event.device, None)
        else:
            self._heal(event.device, None)

    def _maintain(self, window: Maintenance) -> None:
        self._at(window.announced, self._announce, window)
        self._at(window.start, self._begin_maintenance, window)
        self._at(window.end, self._end_maintenance, window)

    def _announce(self, window: Maintenance) -> None:
        devices = self.run.input.cluster.devices
        for index in window.devices:
            call(self.run, self.run.scheduler.announced, devices[index], window.start, window.end)
            if window.drain:
                self.devices.close(devices[index], True)
        self.rounds.changed("change")

    def _begin_maintenance(self, window: Maintenance) -> None:
        for index in window.devices:
            self._ail(index, None)

    def _end_maintenance(self, window: Maintenance) -> None:
        for index in window.devices:
            if window.drain:
                self.devices.close(self.run.input.cluster.devices[index], False)
            self._heal(index, None)

    def _slow_down(self, index: int, factor: float) -> None:
        """A device, or a link between nodes, is so many times slower than it should be; inf: the link is down."""
        devices, network = self.run.input.cluster.devices, self.run.network
        if index < len(devices):
            self.devices.set_slowdown(devices[index], factor)
        elif network is not None:
            network.slow_down(index - len(devices), factor)

    def _set_up(self, index: int, up: bool) -> None:
        devices = self.run.input.cluster.devices
        if index < len(devices):
            self.devices.set_up(devices[index], up)
        else:
            self._slow_down(index, 1.0 if up else math.inf)

    def _ail(self, index: int, factor: float | None) -> None:
        if factor is not None:
            self._slow_down(index, factor)
            return
        reasons = self._ailments[index] = self._ailments.get(index, 0) + 1
        if reasons == 1:
            self._set_up(index, False)

    def _heal(self, index: int, factor: float | None) -> None:
        if factor is not None:
            self._slow_down(index, 1.0)
            return
        reasons = self._ailments[index] = max(0, self._ailments.get(index, 0) - 1)
        if not reasons:
            self._set_up(index, True)
