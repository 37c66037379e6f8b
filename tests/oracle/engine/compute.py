"""The compute engines: who computes, at what rate, and when it is done.

A launch's rate is set here and nowhere else: the least over its devices of frequency / slowdown x sharing, and of a
gang times the rate of what it spans (`Mode.span_rate`: island, switch, node, rack, cluster).
A change of rate moves the launch's one event; a change that leaves the rate equal touches nothing; launches that
share an accelerator have one event between them, the next finish.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable

from oracle.engine.capacity import Capacity
from oracle.engine.clock import FINISH, Clock
from oracle.engine.holdings import GpuState
from oracle.engine.launch import COMPUTE, QUEUED, Engines, Launch, ShareGroup, Stages
from sim.model.cluster import WHOLE, Device, Sharing


class Compute:
    """Compute engines of all devices; `done(launch)` is told when one has computed."""

    def __init__(self, clock: Clock, capacity: Capacity, done: Callable[[Launch], None]):
        self.clock = clock
        self.capacity = capacity
        self.done = done
        self.materialised: Callable[[Launch], None] | None = None
        self.slowed: Callable[[Launch], None] | None = None
        """Told of launches that only computed so far and may end later than they were to."""
        """Is told of launches that go through stages from now on, if anybody wants to know."""
        for state in capacity.of:
            if isinstance(state, GpuState):
                shares = state.device.type.sharing.kind in ("timeslice", "mps")
                state.engines = Engines(ShareGroup(self._group_due) if shares else None)

    def request(self, launch: Launch) -> None:
        """Compute as soon as all its engines are free for it."""
        launch.stage = QUEUED
        if launch.placement.mode.on_cpu:
            self._begin(launch)
            return
        gpus = [self.capacity.of[device.index] for device in launch.placement.devices]
        for gpu in gpus:
            queue = gpu.engines.queue
            queue.append(launch)
            if len(queue) > 1:
                queue.sort()
        self._admit(gpus[0])

    def _admit(self, gpu: GpuState) -> None:
        """Give the compute engine to launches at the head of its queue, in start order, while shares last."""
        while gpu.engines.queue:
            launch = gpu.engines.queue[0]
            share = launch.placement.mode.share
            gpus = [self.capacity.of[device.index] for device in launch.placement.devices]
            if not all(other.up and other.node.up for other in gpus):
                return
            for other in gpus:
                engines = other.engines
                sliced = other.device.type.sharing.kind == "timeslice"
                if engines.queue[0] is not launch or (not sliced and engines.share + share > WHOLE):
                    return
            for other in gpus:
                other.engines.queue.pop(0)
            self._begin(launch)

    def _begin(self, launch: Launch) -> None:
        stages = launch.stages
        assert stages is not None
        now = self.clock._now
        launch.stage = COMPUTE
        if stages.start != stages.start:
            stages.start = now
        stages.compute_start = now
        launch.total = launch.left = work(launch)
        launch.updated = now
        launch.rate = 0.0
        self._join(launch)

    def _join(self, launch: Launch) -> None:
        """Take part in the computing of its devices and get a rate."""
        stages = launch.stages
        assert stages is not None
        affected: list[ShareGroup] = []
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            if isinstance(state, GpuState):
                engines = state.engines
                engines.computing.append(launch)
                engines.share += launch.placement.mode.share
                if engines.group is not None:
                    engines.group.members.append(launch)
                    affected.append(engines.group)
                    if len(launch.placement.devices) == 1:
                        stages.group = engines.group
        self._rerate(launch)
        for group in affected:
            self._regroup(group)

    def leave(self, launch: Launch) -> None:
        """Take no part any more; whoever waited may."""
        self.clock.cancel(launch)
        gpus = [self.capacity.of[device.index] for device in launch.placement.devices]
        for gpu in gpus:
            if isinstance(gpu, GpuState) and launch in gpu.engines.computing:
                gpu.engines.computing.remove(launch)
                gpu.engines.share -= launch.placement.mode.share
                if gpu.engines.group is not None:
                    gpu.engines.group.members.remove(launch)
        for gpu in gpus:
            if isinstance(gpu, GpuState):
                if gpu.engines.group is not None:
                    self._regroup(gpu.engines.group)
                self._admit(gpu)

    # Rates --------------------------------------------------------------------------------------------------

    def _rates(self, launch: Launch) -> tuple[float, float, float]:
        """(rate, device-seconds computed per second, watts above idle) as things stand."""
        placement = launch.placement
        mode = placement.mode
        rate, busy, watts = math.inf, 0.0, 0.0
        for device in placement.devices:
            state = self.capacity.of[device.index]
            factor = state.frequency / state.slowdown
            power = device.type.power.busy - device.type.power.idle
            if mode.on_cpu:
                part = mode.millicores / 1000
            else:
                part = mode.share / WHOLE
                engines = state.engines
                sharing = device.type.sharing
                if sharing.kind == "timeslice" and len(engines.computing) > 1:
                    portion = min(1.0, WHOLE / engines.share)
                    measured = sharing.pairs and _measured(launch, engines.computing, sharing)
                    factor *= measured or portion * (1.0 - sharing.switch_cost)
                    part *= portion
                elif sharing.kind == "mps":
                    measured = sharing.pairs and _measured(launch, engines.computing, sharing)
                    if measured:
                        factor *= measured
                    else:
                        factor /= 1.0 + sharing.interference * (engines.share - mode.share) / WHOLE
            busy += part
            watts += part * power * state.frequency**3
            rate = min(rate, factor)
        if len(placement.devices) > 1:
            rate *= mode.span_rate(placement.devices)
        return rate, busy, watts

    def _rerate(self, launch: Launch) -> bool:
        """Bring the launch to its present rate; False, and nothing touched, if that is the one it has."""
        stages = launch.stages
        assert stages is not None
        rate, busy, watts = self._rates(launch)
        if rate == launch.rate and busy == stages.busy_rate and watts == stages.watts:
            return False
        self.settle(launch)
        stages.busy_rate, stages.watts = busy, watts
        if rate != launch.rate:
            launch.rate = rate
            launch.finish_at = launch.updated + launch.left / rate if rate > 0 else math.inf
            if stages.group is None:
                if launch.finish_at < math.inf:
                    launch.then = self.done
                    self.clock.again(launch.finish_at, FINISH, launch)
                else:
                    self.clock.cancel(launch)
        return True

    def settle(self, launch: Launch) -> None:
        """Bring what is left, busy time and energy to the present."""
        stages = launch.stages
        assert stages is not None
        now = self.clock._now
        elapsed = now - launch.updated
        if elapsed > 0:
            launch.left = max(0.0, launch.left - launch.rate * elapsed)
            stages.busy += stages.busy_rate * elapsed
            stages.energy += stages.watts * elapsed
        launch.updated = now

    def _regroup(self, group: ShareGroup) -> None:
        """New rates after someone joined or left, and the group's one next event."""
        soonest = math.inf
        for member in group.members:
            self._rerate(member)
            assert member.stages is not None
            if member.stages.group is group and member.finish_at < soonest:
                soonest = member.finish_at
        if soonest < math.inf:
            self.clock.again(soonest, FINISH, group)
        else:
            self.clock.cancel(group)

    def _group_due(self, group: ShareGroup) -> None:
        now = self.clock._now
        due = [m for m in group.members if m.finish_at <= now and m.stages is not None and m.stages.group is group]
        for launch in due:
            self.done(launch)

    def retime(self, device: Device, launches: list[Launch]) -> None:
        """The device's frequency or speed changed: what computes on it gets its new rate."""
        state = self.capacity.of[device.index]
        for launch in launches:
            if launch.stage == COMPUTE:
                self._rerate(launch)
        if isinstance(state, GpuState) and state.engines.group is not None:
            self._regroup(state.engines.group)

    def materialise(self, launch: Launch) -> None:
        """Give a launch that only computed so far its stages, as if it had gone through them."""
        if launch.stages is not None:
            return
        stages = launch.stages = Stages()
        stages.start = stages.compute_start = launch.decided
        launch.stage = COMPUTE
        launch.total = launch.left = work(launch)
        launch.updated = launch.decided
        launch.rate = 1.0
        launch.finish_at = launch.decided + launch.total
        launch.then = self.done
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            if isinstance(state, GpuState):
                state.engines.computing.append(launch)
                state.engines.share += launch.placement.mode.share
                insort(state.engines.staged, launch)
        mode = launch.placement.mode
        power = mode.type.power
        stages.busy_rate = mode.gpu_share or mode.millicores / 1000
        stages.watts = stages.busy_rate * (power.busy - power.idle)
        if self.materialised is not None:
            self.materialised(launch)
        if self.slowed is not None:
            self.slowed(launch)


def _measured(launch: Launch, computing: list[Launch], sharing: Sharing) -> float:
    """Speed beside the others on an accelerator where it was measured for their classes; 0 where it was not."""
    speed = 1.0
    for other in computing:
        if other is not launch:
            speed /= sharing.slower.get((launch.task.class_, other.task.class_), math.inf)
    return speed


def work(launch: Launch) -> float:
    """Compute seconds a launch has before it at rate 1: truth, less what is done."""
    mode = launch.placement.mode
    task = launch.task
    terms = launch.terms
    if terms is None and len(launch.tasks) == 1:
        return (mode.fixed + task._time[task.shape.position[mode]]) * (1.0 - task._done)
    times = [t._time[t.shape.position[mode]] * (1.0 - t._done) for t in launch.tasks]
    members = math.fsum(times)
    fixed = mode.fixed * max(1.0 - t._done for t in launch.tasks)
    return fixed + members if terms is None else (fixed + (members + terms.padding)) * terms.compute
