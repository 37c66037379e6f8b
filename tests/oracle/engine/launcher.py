"""The life of a launch that does more than compute alone: preparation, upload, compute, download, stops.

A launch waits until its devices are ready (state being saved, waking, reconfiguring, items being written back),
uploads what is missing, restores what was saved, computes, and downloads what is final.  Each accelerator has
three engines that serve launches in start order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from oracle.engine.capacity import Capacity
from oracle.engine.clock import FINISH, Clock, Timer
from oracle.engine.compute import Compute
from oracle.engine.holdings import GpuState, available_at
from oracle.engine.launch import BEFORE, COMPUTE, DOWNLOAD, OVER, RESTORE, History, Launch, Stages
from oracle.engine.links import Links
from oracle.engine.places import Places, host
from oracle.engine.recorder import Recorder
from oracle.engine.transfers import Transfers, items_of, kept_there
from sim.model.record import LAUNCH_COMPLETED, LAUNCH_LOST, LAUNCH_MOVED, LAUNCH_STOPPED
from sim.model.tasks import Task

BETWEEN = 1e-9
"""Part of a block by which rounding may miss a point between two."""


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
        on_received: Callable[[Task, float], None],
    ):
        self.clock = clock
        self.capacity = capacity
        self.links = links
        self.places = places
        self.recorder = recorder
        self.on_complete = on_complete
        self.on_received = on_received
        self.transfers = Transfers(clock, capacity, links, places, self._uploaded, self._complete)
        self.compute = Compute(clock, capacity, self._computed)

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
        now = self.clock._now
        ready_at = max(available_at(state, now, state.left) for state in states)
        for task in launch.tasks:
            if task._history is not None:
                ready_at = max(ready_at, task._history.saved_by)
        stages.items = items_of(launch.tasks) if self.places.items else ()
        for gpu in states:
            if isinstance(gpu, GpuState):
                gpu.engines.staged.append(launch)
                if self.places.items:
                    self.places.pin(stages.items, gpu)
                    stages.waiting += self.transfers.make_room(gpu, partial(self._prepared, launch))
        if ready_at > now:
            stages.waiting += 1
            timer = Timer(lambda _: self._prepared(launch))
            stages.flows.append(timer)
            self.clock.at(ready_at, FINISH, timer)
        if not stages.waiting:
            self.transfers.upload(launch)

    def _prepared(self, launch: Launch) -> None:
        assert launch.stages is not None
        launch.stages.waiting -= 1
        if not launch.stages.waiting and launch.stage == BEFORE:
            launch.stages.flows.clear()
            self.transfers.upload(launch)

    def _uploaded(self, launch: Launch) -> None:
        """Seconds to restore what was saved, before computing goes on."""
        stages = launch.stages
        assert stages is not None
        device = launch.placement.devices[0]
        seconds = 0.0
        for task in launch.tasks:
            if task._history is not None and task._done > 0 and task._history.saved_at is not None:
                seconds += task.shape.stopping.restore
                if kept_there(task, device):
                    seconds += task.shape.stopping.state / (device.type.preemption.rate or math.inf)
        if not seconds:
            self.compute.request(launch)
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
        self.compute.request(launch)

    def _computed(self, launch: Launch) -> None:
        stages = launch.stages
        assert stages is not None
        self.compute.settle(launch)
        launch.left = 0.0
        launch.stage = DOWNLOAD
        stages.compute_end = self.clock._now
        self.compute.leave(launch)
        lead = launch.placement.devices[0]
        for task in launch.tasks:
            for item in task.writes:
                self.places.written(item, host(lead.node) if lead.type.kind == "cpu" else lead.index)
        self.transfers.download(launch)

    # Ending -------------------------------------------------------------------------------------------------

    def _complete(self, launch: Launch) -> None:
        now = self.clock._now
        for task in launch.tasks:
            for item in task.writes:
                if self.places.final(item, launch.tasks):
                    self.places.brought_home(item, host(launch.placement.devices[0].node))
        self._release(launch)
        self.recorder.launch(launch, LAUNCH_COMPLETED, now)
        self.account(launch, now, kept=1.0, complete=True)
        launch.stage = OVER
        self.on_complete(launch)
        launch.tasks = ()

    def _release(self, launch: Launch) -> None:
        stages = launch.stages
        assert stages is not None
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            if isinstance(state, GpuState):
                if launch in state.engines.staged:
                    state.engines.staged.remove(launch)
                if stages.items:
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
            self.on_received(task, stages.busy / members)
            detail("energy")[row] += stages.energy / members
            if kept > 0:
                detail("upload")[row] += upload
                detail("compute")[row] += compute * kept
                detail("download")[row] += download
            else:
                detail("upload"), detail("compute"), detail("download")

    def stop(
        self, launch: Launch, keep: bool, outcome: int = LAUNCH_STOPPED, fault: bool = False, killed: bool = False
    ) -> float:
        """End a launch before its time.  Returns the seconds during which its state is being saved.

        `killed`: its tasks end with it, which is no preemption.

        Transfers under way are lost; finished computing stays if `keep`, after a fault only up to the last
        checkpoint.
        """
        now = self.clock._now
        self.compute.materialise(launch)
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
        residual = flushed = 0.0
        if stage == COMPUTE:
            self.compute.settle(launch)
            done = launch.total - launch.left
            if keep and not fault:
                residual = self._to_the_end_of_the_block(launch)
                if launch.total - launch.left < done:
                    flushed = (done - (launch.total - launch.left)) / done
            progress = 1.0 - launch.left / launch.total if launch.total > 0 else 1.0
            stages.compute_end = now + residual
        elif stage == DOWNLOAD:
            progress = 1.0
        kept = self._keep(launch, progress, keep, fault) * (1.0 - flushed)
        # Only what this launch computed is new; what was saved before is saved still.
        saving = self._save_seconds(launch, residual) if keep and not fault and progress > 0 else 0.0
        launch.stage = OVER
        for device in launch.placement.devices:
            state = self.capacity.of[device.index]
            if isinstance(state, GpuState):
                state.engines.upload.release(launch)
                state.engines.download.release(launch)
                if launch in state.engines.queue:
                    state.engines.queue.remove(launch)
        self.compute.leave(launch)
        self._release(launch)
        if stages.upload_end != stages.upload_end and stages.upload_start == stages.upload_start:
            stages.upload_end = now
        launch.stage = stage
        if outcome == LAUNCH_STOPPED and (fault or not keep):
            outcome = LAUNCH_LOST
        end = now + residual
        lost = stages.busy * (1.0 - kept) if progress or flushed else 0.0
        row = self.recorder.launch(launch, outcome, end, lost=lost)
        for task in launch.tasks:
            if task._done == 0.0:
                self.recorder.lose(task._history.rows)  # with all that earlier launches did
                task._history.rows = []
            else:
                task._history.rows.append(row)
        self.account(launch, end, kept if progress else 0.0)
        launch.stage = OVER
        name = "migrations" if outcome == LAUNCH_MOVED else "preemptions"
        for task in () if killed else launch.tasks:
            self.recorder.detail(name)[task.index] += 1
        for task in launch.tasks if saving else ():
            task._history.saved_by = now + saving
        if saving:
            mode = launch.placement.mode
            for device in launch.placement.devices:
                state = self.capacity.of[device.index]
                state.saving.append((now + saving, mode.share or mode.millicores))
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
            before, seen = task._done, task.done
            reached = before + (1.0 - before) * progress
            reached_by_estimate = seen + (1.0 - seen) * self._progress_by_estimate(launch, computed)
            if keep and not fault:
                task._done = reached
                history.checkpoint = reached
            elif fault:
                task._done = max(history.checkpoint, self._last_checkpoint(launch, task, reached))
                history.checkpoint = task._done
            else:
                task._done = history.checkpoint = 0.0
            task.done = min(1.0, reached_by_estimate * task._done / reached) if reached > 0 else 0.0
            if task._done > before:
                kept_seconds += (task._done - before) / (1.0 - before) * launch.total / len(launch.tasks)
            if task._done > before:
                # What was drained or flushed left no state behind: its other blocks start from its input.
                stateless = keep and not fault and device.type.preemption.kind != "context_switch"
                history.saved_at = None if stateless else host(device.node)
                history.last_device = device.index
            elif task._done == 0 and before > 0:
                # Spoliation gives back all that earlier launches did as well.
                for name in ("upload", "compute", "download"):
                    self.recorder.detail(name)[task.index] = 0.0
        return kept_seconds / computed if computed > 0 else float(progress == 1.0 and keep)

    @staticmethod
    def _progress_by_estimate(launch: Launch, computed: float) -> float:
        """The part of its work that a launch has done as far as estimates tell: at most all of it."""
        mode = launch.placement.mode
        works = [task.estimates[task.shape.position[mode]] * (1.0 - task.done) for task in launch.tasks]
        planned = mode.fixed * max(1.0 - task.done for task in launch.tasks) + math.fsum(works)
        return min(1.0, computed / planned) if planned > 0 else 1.0

    def _last_checkpoint(self, launch: Launch, task: Task, reached: float) -> float:
        interval = task.shape.stopping.interval
        full = launch.total / (1.0 - task._done) if task._done < 1 else launch.total
        if math.isinf(interval) or full <= 0:
            return 0.0
        return min(reached, math.floor(reached * full / interval * (1 + 1e-12)) * interval / full)

    def _to_the_end_of_the_block(self, launch: Launch) -> float:
        """Seconds until a launch that is stopped leaves the compute engine: where devices drain, those to the end of
        the block, which are computed; a flush of idempotent kernels takes none and gives back what the block had."""
        kind = launch.placement.devices[0].type.preemption.kind
        block = max(task.shape.stopping.block for task in launch.tasks)
        if kind == "context_switch" or not block or launch.placement.mode.on_cpu:
            return 0.0
        stages = launch.stages
        assert stages is not None
        done = launch.total - launch.left
        earlier = launch.task._done  # blocks are counted from the start of the task, not of this launch
        before = launch.total * earlier / (1.0 - earlier)
        blocks = (before + done) / block
        if kind == "flush" and all(task.shape.stopping.idempotent for task in launch.tasks):
            kept = max(0.0, math.floor(blocks + BETWEEN) * block - before)
            launch.left = min(launch.total, launch.total - min(kept, done))
            return 0.0
        more = min(launch.left, max(0.0, math.ceil(blocks - BETWEEN) * block - before - done))
        seconds = more / launch.rate if launch.rate > 0 else 0.0
        launch.left -= more
        stages.busy += stages.busy_rate * seconds
        stages.energy += stages.watts * seconds
        return seconds

    def _save_seconds(self, launch: Launch, residual: float) -> float:
        """Time until a stopped launch has left: the rest of its block, the fixed part of saving, and its state over
        the device's idle link or at the rate of its context switch.  What drains or is flushed saves nothing."""
        device = launch.placement.devices[0]
        preemption = device.type.preemption
        if preemption.kind != "context_switch":
            return residual
        seconds = 0.0
        for task in launch.tasks:
            stopping = task.shape.stopping
            seconds += stopping.save
            if stopping.state and preemption.rate is not None:
                seconds += stopping.state / preemption.rate
            elif stopping.state and device.type.kind != "cpu":
                seconds += Links.alone(self.links.down(device), stopping.state / len(launch.placement.devices))
        return seconds


def _span(start: float, end: float) -> float:
    return end - start if start == start and end == end else 0.0
