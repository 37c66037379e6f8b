"""The life of a launch that does more than compute alone: preparation, upload, compute at a rate, download, stops.

The stages of DESIGN: a launch waits until its devices are ready (state being saved, waking, reconfiguring, items
being written back), uploads what is missing, restores what was saved, computes, downloads what is final.  Each
accelerator has three engines that serve launches in start order.  A launch's rate is set here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from sim.engine.capacity import Capacity, GpuState
from sim.engine.clock import FINISH, Clock, Timer
from sim.engine.launch import (
    BEFORE,
    COMPUTE,
    DOWNLOAD,
    OVER,
    QUEUED,
    RESTORE,
    UPLOAD,
    Engines,
    History,
    Launch,
    ShareGroup,
    Stages,
)
from sim.engine.links import Links
from sim.engine.places import Places, Way, host
from sim.engine.recorder import Recorder
from sim.model.cluster import WHOLE, Device
from sim.model.plan import Placement
from sim.model.record import LAUNCH_COMPLETED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_STOPPED
from sim.model.tasks import Task

Transfer = tuple[list[tuple[Way, int]], float, float, list[int]]
"""Hops, bytes, seconds given as a duration, items that arrive."""


class Launcher:
    """Carries launches through their stages; `on_complete(launch)` is told when one has ended well."""

    def __init__(
        self,
        clock: Clock,
        capacity: Capacity,
        links: Links,
        places: Places,
        recorder: Recorder,
        on_complete: Callable[[Launch], None],
    ):
        self.clock = clock
        self.capacity = capacity
        self.links = links
        self.places = places
        self.recorder = recorder
        self.on_complete = on_complete
        for state in capacity.of:
            if isinstance(state, GpuState):
                shares = state.device.type.sharing.kind in ("timeslice", "mps")
                state.engines = Engines(ShareGroup(self._group_due) if shares else None)

    # Memory of items ------------------------------------------------------------------------------------------

    def items_refusal(self, tasks: tuple[Task, ...], placement: Placement, private: int) -> str | None:
        """Why the items of these tasks find no room there once `private` bytes more are held; None if they do."""
        items = {item: None for task in tasks for item in (*task.reads, *task.writes)}
        if not items or placement.mode.on_cpu:
            return None
        for device in placement.devices:
            state = self.capacity.of[device.index]
            claim = self.places.claim(items, device) + private
            if claim > state.room:
                return f"{device} has room for {state.room:,} bytes and the task's data need {claim:,}"
        return None

    def fetch(self, item: int, device: Device, then: Callable[[], None]) -> str | None:
        """Bring a copy to an accelerator in its upload engine's turn; why not, or None."""
        if not 0 <= item < len(self.places.items):
            return "there is no such item"
        source = self.places.source(item, device)
        if source is None:
            return "nobody has written it yet"
        state = self.capacity.of[device.index]
        if not isinstance(state, GpuState):
            return "it is no accelerator"
        if self.places.present(item, device):
            return None
        if self.places.claim([item], device) > state.room:
            return f"it has room for {state.room:,} bytes only"
        Fetching(self, item, state, then).begin()
        return None

    # Beginning ----------------------------------------------------------------------------------------------

    def begin(self, launch: Launch) -> None:
        """The launch has taken its devices: start its first stage when they are ready."""
        stages = launch.stages = Stages()
        launch.stage = BEFORE
        launch.left = launch.total = launch.rate = 0.0
        launch.updated = self.clock._now
        states = [self.capacity.of[device.index] for device in launch.placement.devices]
        for state in states:
            if isinstance(state, GpuState) and state.relaid:
                state.relaid = False
                state.ready_at = max(state.ready_at, self.clock._now) + state.device.type.sharing.reconfigure
        ready_at = max(state.ready_at for state in states)
        for task in launch.tasks:
            if task._history is not None:
                ready_at = max(ready_at, task._history.saved_by)
        items = {item: None for task in launch.tasks for item in (*task.reads, *task.writes)}
        stages.items = tuple(items)
        for gpu in states:
            if isinstance(gpu, GpuState):
                if stages.items:
                    self.places.pin(stages.items, gpu)
                for item in self.places.evict(gpu):
                    stages.waiting += 1
                    way = self.places.hops(gpu.device.index, self._host_of(gpu.device))[0][0]
                    # Not among the launch's own flows: a stop must not lose the only copy.
                    done = partial(self._written_back, launch, item, gpu)
                    self.links.send(way, self.places.items[item].size, 0.0, done, launch)
        if ready_at > self.clock._now:
            stages.waiting += 1
            timer = Timer(lambda _: self._prepared(launch))
            stages.flows.append(timer)
            self.clock.at(ready_at, FINISH, timer)
        if not stages.waiting:
            self._upload(launch)

    def _host_of(self, device: Device) -> Device:
        return self.capacity.nodes[device.node].device

    def _written_back(self, launch: Launch, item: int, gpu: GpuState, flow: Any) -> None:
        self.places.written_back(item, gpu)
        self._prepared(launch)

    def _prepared(self, launch: Launch) -> None:
        assert launch.stages is not None
        launch.stages.waiting -= 1
        if not launch.stages.waiting and launch.stage == BEFORE:
            launch.stages.flows.clear()
            self._upload(launch)

    # Upload -------------------------------------------------------------------------------------------------

    def _upload(self, launch: Launch) -> None:
        stages = launch.stages
        assert stages is not None
        launch.stage = UPLOAD
        devices = launch.placement.devices
        needing = [device for device in devices if self._uploads(launch, device)]
        if not needing:
            self._restore(launch)
            return
        stages.waiting = len(needing)
        for device in needing:
            if device.type.kind == "cpu":
                self._upload_turn(launch, device)
            else:
                engine = self.capacity.of[device.index].engines.upload
                engine.request(launch, partial(self._upload_turn, launch, device))

    def _uploads(self, launch: Launch, device: Device) -> list[Transfer]:
        """What must still come to this device: by source, private data with what lies on its own host."""
        mode = launch.placement.mode
        on_host: list[int] = []
        others: dict[int, list[int]] = {}
        for item in self.places.missing(reads(launch.tasks), device):
            source = self.places.source(item, device)
            if source is None:
                continue  # written by nobody yet: nothing to bring
            if source == host(device.node):
                on_host.append(item)
            else:
                others.setdefault(source, []).append(item)
        size, seconds = 0.0, 0.0
        state: dict[int, float] = {}
        for task in launch.tasks:
            history = task._history
            if history is not None and task.done > 0:
                # Its input is part of what was saved; the state comes back instead.
                if history.saved_at is not None and history.saved_at != device.index:
                    saved = task.shape.stopping.state / len(launch.placement.devices)
                    if history.saved_at == host(device.node):
                        size += saved
                    elif saved:
                        state[history.saved_at] = state.get(history.saved_at, 0.0) + saved
            elif not mode.on_cpu:
                size += task.bytes_in / mode.gpus
                seconds += mode.upload.per_item
        if not mode.on_cpu and any(task.done == 0 for task in launch.tasks):
            seconds += mode.upload.fixed
        sizes = self.places.items
        transfers: list[Transfer] = []
        if mode.on_cpu:
            size = 0.0  # already in host memory
        size += sum(sizes[item].size for item in on_host)
        if size or seconds or on_host:
            transfers.append((self.places.hops(host(device.node), device), size, seconds, on_host))
        for source in {**others, **state}:
            items = others.get(source, [])
            total = sum(sizes[item].size for item in items) + state.get(source, 0.0)
            transfers.append((self.places.hops(source, device), total, 0.0, items))
        return transfers

    def _upload_turn(self, launch: Launch, device: Device) -> None:
        """The upload engine is ours: what is missing is looked up now, because it may have come meanwhile."""
        stages = launch.stages
        assert stages is not None
        transfers = self._uploads(launch, device)
        now = self.clock._now
        if transfers:
            if stages.start != stages.start:
                stages.start = now
            if stages.upload_start != stages.upload_start:
                stages.upload_start = now
        self._next_transfer(launch, device, transfers, 0, None)

    def _next_transfer(
        self, launch: Launch, device: Device, transfers: list[Transfer], hop: int, flow: Any
    ) -> None:
        """Hops of one transfer in turn, then the next transfer."""
        stages = launch.stages
        assert stages is not None
        if flow is not None:
            stages.flows.remove(flow)
            hops, _, _, items = transfers[0]
            for item in items:
                self.places.arrived(item, hops[hop - 1][1])
            if hop == len(hops):
                transfers, hop = transfers[1:], 0
        if not transfers:
            self._upload_part_done(launch, device)
            return
        hops, size, seconds, _ = transfers[0]
        if not hops:
            self._upload_part_done(launch, device)
            return
        done = partial(self._next_transfer, launch, device, transfers, hop + 1)
        stages.flows.append(self.links.send(hops[hop][0], size, seconds if hop == 0 else 0.0, done, launch))

    def _upload_part_done(self, launch: Launch, device: Device) -> None:
        stages = launch.stages
        assert stages is not None
        stages.waiting -= 1
        if not stages.waiting:
            stages.upload_end = self.clock._now if stages.upload_start == stages.upload_start else math.nan
        if device.type.kind != "cpu":
            self.capacity.of[device.index].engines.upload.release(launch)
        if not stages.waiting:
            self._restore(launch)

    def _restore(self, launch: Launch) -> None:
        """Seconds to restore what was saved, before computing goes on."""
        stages = launch.stages
        assert stages is not None
        seconds = sum(
            task.shape.stopping.restore
            for task in launch.tasks
            if task._history is not None and task.done > 0 and task._history.saved_at is not None
        )
        if not seconds:
            self._queue(launch)
            return
        launch.stage = RESTORE
        if stages.start != stages.start:
            stages.start = self.clock._now
        timer = Timer(lambda _: self._restored(launch))
        stages.flows.append(timer)
        self.clock.at(self.clock._now + seconds, FINISH, timer)

    def _restored(self, launch: Launch) -> None:
        assert launch.stages is not None
        launch.stages.flows.clear()
        self._queue(launch)

    # Compute ------------------------------------------------------------------------------------------------

    def _queue(self, launch: Launch) -> None:
        launch.stage = QUEUED
        if launch.placement.mode.on_cpu:
            self._compute(launch)
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
            for other in gpus:
                engines = other.engines
                sliced = other.device.type.sharing.kind == "timeslice"
                if engines.queue[0] is not launch or (not sliced and engines.share + share > WHOLE):
                    return
            for other in gpus:
                other.engines.queue.pop(0)
            self._compute(launch)

    def _compute(self, launch: Launch) -> None:
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

    def _leave(self, launch: Launch) -> None:
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
                part = mode.cpus / 1000
            else:
                part = mode.share / WHOLE
                engines = state.engines
                sharing = device.type.sharing
                if sharing.kind == "timeslice" and len(engines.computing) > 1:
                    portion = min(1.0, WHOLE / engines.share)
                    factor *= portion * (1.0 - sharing.switch_cost)
                    part *= portion
                elif sharing.kind == "mps":
                    factor /= 1.0 + sharing.interference * (engines.share - mode.share) / WHOLE
            busy += part
            watts += part * power * state.frequency**3
            rate = min(rate, factor)
        if len(placement.devices) > 1 and len({device.node for device in placement.devices}) > 1:
            rate *= mode.span_speed
        return rate, busy, watts

    def _rerate(self, launch: Launch) -> bool:
        """Bring the launch to its present rate; False, and nothing touched, if that is the one it has."""
        stages = launch.stages
        assert stages is not None
        rate, busy, watts = self._rates(launch)
        if rate == launch.rate and busy == stages.busy_rate and watts == stages.watts:
            return False
        self._settle(launch)
        stages.busy_rate, stages.watts = busy, watts
        if rate != launch.rate:
            launch.rate = rate
            launch.finish_at = launch.updated + launch.left / rate if rate > 0 else math.inf
            if stages.group is None:
                if launch.finish_at < math.inf:
                    launch.then = self._compute_done
                    self.clock.again(launch.finish_at, FINISH, launch)
                else:
                    self.clock.cancel(launch)
        return True

    def _settle(self, launch: Launch) -> None:
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
            self._compute_done(launch)

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
        launch.then = self._compute_done
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            if isinstance(state, GpuState):
                state.engines.computing.append(launch)
                state.engines.share += launch.placement.mode.share
        mode = launch.placement.mode
        power = mode.type.power
        stages.busy_rate = mode.gpu_share or mode.cpus / 1000
        stages.watts = stages.busy_rate * (power.busy - power.idle)

    def _compute_done(self, launch: Launch) -> None:
        stages = launch.stages
        assert stages is not None
        self._settle(launch)
        launch.left = 0.0
        launch.stage = DOWNLOAD
        stages.compute_end = self.clock._now
        self._leave(launch)
        lead = launch.placement.devices[0]
        for task in launch.tasks:
            for item in task.writes:
                self.places.written(item, host(lead.node) if lead.type.kind == "cpu" else lead.index)
        self._download(launch)

    # Download -----------------------------------------------------------------------------------------------

    def _download(self, launch: Launch) -> None:
        stages = launch.stages
        assert stages is not None
        devices = launch.placement.devices
        size, seconds, final = self._final_bytes(launch)
        if devices[0].type.kind == "cpu" or not (size or seconds):
            self._complete(launch)
            return
        stages.waiting = len(devices)
        for device in devices:
            engine = self.capacity.of[device.index].engines.download
            engine.request(launch, partial(self._download_turn, launch, device, size / len(devices), seconds))

    def _final_bytes(self, launch: Launch) -> tuple[float, float, list[int]]:
        """What goes to the host at the end: private output, and written items that nobody will read."""
        mode = launch.placement.mode
        final = [item for task in launch.tasks for item in task.writes if not self.places.readers[item]]
        size = sum(self.places.items[item].size for item in final) + sum(task.bytes_out for task in launch.tasks)
        return float(size), mode.download.fixed + mode.download.per_item * len(launch.tasks), final

    def _download_turn(self, launch: Launch, device: Device, size: float, seconds: float) -> None:
        stages = launch.stages
        assert stages is not None
        if stages.download_start != stages.download_start:
            stages.download_start = self.clock._now
        way = self.links.down(device)
        done = partial(self._download_part_done, launch, device)
        stages.flows.append(self.links.send(way, size, seconds, done, launch))

    def _download_part_done(self, launch: Launch, device: Device, flow: Any) -> None:
        stages = launch.stages
        assert stages is not None
        stages.flows.remove(flow)
        stages.waiting -= 1
        self.capacity.of[device.index].engines.download.release(launch)
        if not stages.waiting:
            self._complete(launch)

    # Ending -------------------------------------------------------------------------------------------------

    def _complete(self, launch: Launch) -> None:
        now = self.clock._now
        for task in launch.tasks:
            for item in task.writes:
                if not self.places.readers[item]:
                    self.places.written(item, host(launch.placement.devices[0].node))
        self._release(launch)
        self.recorder.launch(launch, LAUNCH_COMPLETED, now)
        self.account(launch, now, kept=1.0, complete=True)
        launch.stage = OVER
        self.on_complete(launch)
        launch.tasks = ()

    def _release(self, launch: Launch) -> None:
        stages = launch.stages
        assert stages is not None
        if stages.items:
            for device in launch.placement.devices:
                state = self.capacity.of[device.index]
                if isinstance(state, GpuState):
                    self.places.unpin(stages.items, state)
        self.capacity.give(launch.placement, launch, launch.cores)

    def account(self, launch: Launch, end: float, kept: float, complete: bool = False) -> None:
        """Add the launch's stage times to its tasks; `kept` is the part of its computing that counts."""
        stages = launch.stages
        assert stages is not None
        upload = _span(stages.upload_start, stages.upload_end)
        compute = _span(stages.compute_start, end if launch.stage == COMPUTE else stages.compute_end)
        download = _span(stages.download_start, end) if complete else 0.0
        detail = self.recorder.detail
        members = len(launch.tasks)
        for task in launch.tasks:
            row = task.index
            detail("batch")[row] = launch.number
            detail("energy")[row] += stages.energy / members
            if kept > 0:
                detail("upload")[row] += upload
                detail("compute")[row] += compute * kept
                detail("download")[row] += download
            else:
                detail("upload"), detail("compute"), detail("download")
        if members > 1:
            self.recorder.members[launch.number] = [task.index for task in launch.tasks]

    def stop(self, launch: Launch, keep: bool, outcome: int = LAUNCH_STOPPED, fault: bool = False) -> float:
        """End a launch before its time.  Returns the seconds during which its state is being saved.

        Transfers under way are lost; finished computing stays if `keep`, after a fault only up to the last
        checkpoint.
        """
        now = self.clock._now
        self.materialise(launch)
        stages = launch.stages
        assert stages is not None
        for flow in list(stages.flows):
            if hasattr(flow, "pipes"):
                self.links.cancel(flow)
            else:
                self.clock.cancel(flow)
        stages.flows.clear()
        stage = launch.stage
        progress = 0.0
        if stage == COMPUTE:
            self._settle(launch)
            progress = 1.0 - launch.left / launch.total if launch.total > 0 else 1.0
            stages.compute_end = now
        elif stage == DOWNLOAD:
            progress = 1.0
        kept = self._keep(launch, progress, keep, fault)
        saving = self._save_seconds(launch) if keep and not fault and any(t.done > 0 for t in launch.tasks) else 0.0
        launch.stage = OVER
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            if isinstance(state, GpuState):
                state.engines.upload.release(launch)
                state.engines.download.release(launch)
                if launch in state.engines.queue:
                    state.engines.queue.remove(launch)
        self._leave(launch)
        self._release(launch)
        if stages.upload_end != stages.upload_end and stages.upload_start == stages.upload_start:
            stages.upload_end = now
        launch.stage = stage
        if outcome == LAUNCH_STOPPED and (fault or not keep):
            outcome = LAUNCH_LOST
        self.recorder.launch(launch, outcome, now, lost=stages.busy * (1.0 - kept) if progress else 0.0)
        if progress == 0.0 or kept == 0.0:
            self.account(launch, now, kept=0.0)
        else:
            self.account(launch, now, kept)
        launch.stage = OVER
        name = "migrations" if outcome == LAUNCH_MOVED else "preemptions"
        for task in launch.tasks:
            self.recorder.detail(name)[task.index] += 1
        for task in launch.tasks if saving else ():
            task._history.saved_by = now + saving
        if saving:
            for device in launch.placement.devices:
                state = self.capacity.of[device.index]
                state.ready_at = max(state.ready_at, now) + saving
                state.normal = False
        return saving

    def _keep(self, launch: Launch, progress: float, keep: bool, fault: bool) -> float:
        """Set what stays done of each task; the fraction of this launch's computing that counts."""
        assert launch.stages is not None
        device = launch.placement.devices[0]
        computed = launch.total * progress
        kept_seconds = 0.0
        for task in launch.tasks:
            history = task._history
            if history is None:
                history = task._history = History()
            history.busy += launch.stages.busy / len(launch.tasks)
            before = task.done
            reached = before + (1.0 - before) * progress
            if keep and not fault:
                task.done = reached
                history.checkpoint = reached
            elif fault:
                task.done = max(history.checkpoint, self._last_checkpoint(launch, task, reached))
                history.checkpoint = task.done
            else:
                task.done = history.checkpoint = 0.0
            if task.done > before:
                kept_seconds += (task.done - before) / (1.0 - before) * launch.total / len(launch.tasks)
            if task.done > 0:
                history.saved_at = host(device.node)
            elif not keep:
                # Spoliation gives back all that earlier launches did as well.
                for name in ("upload", "compute", "download"):
                    self.recorder.detail(name)[task.index] = 0.0
        return kept_seconds / computed if computed > 0 else float(progress == 1.0 and keep)

    def _last_checkpoint(self, launch: Launch, task: Task, reached: float) -> float:
        interval = task.shape.stopping.interval
        full = launch.total / (1.0 - task.done) if task.done < 1 else launch.total
        if math.isinf(interval) or full <= 0:
            return 0.0
        return min(reached, math.floor(reached * full / interval * (1 + 1e-12)) * interval / full)

    def _save_seconds(self, launch: Launch) -> float:
        """Time to save: the fixed part, and state over the device's idle link."""
        device = launch.placement.devices[0]
        seconds = 0.0
        for task in launch.tasks:
            stopping = task.shape.stopping
            seconds += stopping.save
            if stopping.state and device.type.kind != "cpu":
                seconds += Links.alone(self.links.down(device), stopping.state / len(launch.placement.devices))
        return seconds


class Fetching:
    """A prefetch: holds the item's room while its copy is under way, then leaves it there, evictable."""

    def __init__(self, launcher: Launcher, item: int, gpu: GpuState, then: Callable[[], None]):
        self.launcher = launcher
        self.item = item
        self.gpu = gpu
        self.then = then
        self.number = 0  # before every launch in the engine's order
        self.hops: list[tuple[Way, int]] = []

    def begin(self) -> None:
        places = self.launcher.places
        places.pin([self.item], self.gpu)
        for item in places.evict(self.gpu):
            way = places.hops(self.gpu.device.index, self.launcher._host_of(self.gpu.device))[0][0]
            self.launcher.links.send(way, places.items[item].size, 0.0, partial(self._written_back, item))
        self.gpu.engines.upload.request(self, self._turn)

    def _written_back(self, item: int, flow: Any) -> None:
        self.launcher.places.written_back(item, self.gpu)

    def _turn(self) -> None:
        places = self.launcher.places
        source = places.source(self.item, self.gpu.device)
        present = places.present(self.item, self.gpu.device)
        self.hops = [] if source is None or present else places.hops(source, self.gpu.device)
        self._hop(None)

    def _hop(self, flow: Any) -> None:
        places = self.launcher.places
        if flow is not None:
            places.arrived(self.item, self.hops.pop(0)[1])
        if self.hops:
            self.launcher.links.send(self.hops[0][0], places.items[self.item].size, 0.0, self._hop)
            return
        places.unpin([self.item], self.gpu)
        self.gpu.engines.upload.release(self)
        self.then()


def reads(tasks: tuple[Task, ...]) -> list[int]:
    """Items that a launch reads, each once, in order."""
    if len(tasks) == 1:
        return list(tasks[0].reads)
    return list(dict.fromkeys(item for task in tasks for item in task.reads))


def work(launch: Launch) -> float:
    """Compute seconds a launch has before it at rate 1: truth, less what is done."""
    mode = launch.placement.mode
    task = launch.task
    if len(launch.tasks) == 1:
        return (mode.fixed + task._time[task.shape.position[mode]]) * (1.0 - task.done)
    return mode.fixed + sum(t._time[t.shape.position[mode]] * (1.0 - t.done) for t in launch.tasks)


def _span(start: float, end: float) -> float:
    return end - start if start == start and end == end else 0.0
