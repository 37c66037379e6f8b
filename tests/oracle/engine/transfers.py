"""Bytes on their way to and from a launch: uploads of what is missing, downloads of what is final, prefetches.

The same functions that move data also tell a policy what moving would cost (`upload_seconds` and its sisters), so
an estimate and the run cannot drift apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from oracle.engine.capacity import Capacity
from oracle.engine.clock import Clock
from oracle.engine.holdings import GpuState
from oracle.engine.launch import UPLOAD, Launch, Terms
from oracle.engine.links import Links
from oracle.engine.places import Places, Way, host
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task

Transfer = tuple[list[tuple[Way, int]], float, float, list[tuple[int, int]]]
"""Hops, bytes, seconds given as a duration, items (with their versions) that arrive."""


class Transfers:
    """The upload and download stages; `uploaded` and `downloaded` are told when a launch's stage is over."""

    def __init__(
        self,
        clock: Clock,
        capacity: Capacity,
        links: Links,
        places: Places,
        uploaded: Callable[[Launch], None],
        downloaded: Callable[[Launch], None],
    ):
        self.clock = clock
        self.capacity = capacity
        self.links = links
        self.places = places
        self.uploaded = uploaded
        self.downloaded = downloaded

    # Memory of items ------------------------------------------------------------------------------------------

    def items_refusal(self, tasks: Sequence[Task], placement: Placement, private: int) -> str | None:
        """Why the items of these tasks find no room there once `private` bytes more are held; None if they do."""
        if placement.mode.on_cpu:
            return None
        items = items_of(tasks)
        if not items:
            return None
        for device in placement.devices:
            state = self.capacity.of[device.index]
            claim = self.places.claim(items, device) + private
            if claim > state.room:
                return f"{device} has room for {state.room:,} bytes and the task's data need {claim:,}"
        return None

    def make_room(self, gpu: GpuState, then: Callable[[], None]) -> int:
        """Evict what must go and let `then` be called as often as the returned number says, once the bytes are
        really gone: items whose only copy it was are written back first, and nobody can stop that."""
        here = self.places.on(gpu.device)
        for item in self.places.evict(gpu):
            eviction = here.leave(item, self.places.items[item].size, self.places.version[item])
            done = partial(self._written_back, item, gpu, eviction)
            self.links.send(self.links.down(gpu.device), self.places.items[item].size, 0.0, done)
        if not here.leaving or gpu.room - here.unpinned - here.leaving_bytes >= 0:
            return 0
        for eviction in here.leaving:
            eviction.waiters.append(then)
        return len(here.leaving)

    def _written_back(self, item: int, gpu: GpuState, eviction: Any, flow: Any) -> None:
        self.places.on(gpu.device).gone(eviction)
        self.places.written_back(item, gpu, eviction.version)
        for then in eviction.waiters:
            then()

    # Upload -----------------------------------------------------------------------------------------------

    def upload(self, launch: Launch) -> None:
        """Bring what is missing to every device of the launch."""
        stages = launch.stages
        assert stages is not None
        launch.stage = UPLOAD
        mode, devices, terms = launch.placement.mode, launch.placement.devices, launch.terms
        needing = [(device, parts) for device in devices if (parts := self.parts(launch.tasks, mode, device, terms))]
        if not needing:
            self.uploaded(launch)
            return
        stages.upload_estimate = max(self._alone(parts) for _, parts in needing)
        if launch.terms is not None:  # an estimate does not know the noise
            stages.upload_estimate = self.upload_seconds(launch.tasks, launch.placement, launch.terms)
        stages.waiting = len(needing)
        now = self.clock._now
        for device, parts in needing:
            if device.type.kind == "cpu":
                self._upload_turn(launch, device, parts, now)
            else:
                engine = self.capacity.of[device.index].engines.upload
                engine.request(launch, partial(self._upload_turn, launch, device, parts, now))

    def parts(
        self, tasks: Sequence[Task], mode: Mode, device: Device, terms: Terms | None = None, true: bool = True
    ) -> list[Transfer]:
        """What must still come to a device, by source; private data come with what lies on the device's host.

        A task that was stopped needs its input again, and its saved state from where that was saved; one that
        had computed everything needs, on another device, only its output.
        """
        places = self.places
        size, seconds = 0.0, 0.0
        sources: dict[int, tuple[float, list[tuple[int, int]]]] = {}
        fresh = 0
        for task in tasks:
            if task._done == 1.0:
                output = self._stranded_output(task, device) / max(1, mode.gpus)
                if output:
                    self._add(sources, task._history.saved_at, output)
                continue
            fresh += 1
            if not mode.on_cpu:
                size += task.bytes_in / mode.gpus
            history = task._history
            saved = history is not None and history.saved_at is not None and task._done > 0
            if saved and task.shape.stopping.state and not kept_there(task, device):
                self._add(sources, history.saved_at, task.shape.stopping.state / max(1, mode.gpus))
        if fresh and not mode.on_cpu:
            seconds = mode.upload.of(fresh)
            if terms is not None:
                seconds = mode.upload.of(fresh + terms.extra) * (terms.up if true else 1.0)
        for item in places.missing(reads(tasks), device) if fresh else ():
            source = places.source(item, device)
            if source is not None:  # else nobody has written it yet: nothing to bring
                self._add(sources, source, places.items[item].size, (item, places.version[item]))
        here, items_here = sources.pop(host(device.node), (0.0, []))
        if device.type.kind == "cpu":
            here = 0.0  # already in host memory
        transfers: list[Transfer] = []
        if size or here or seconds or items_here:
            transfers.append((places.hops(host(device.node), device), size + here, seconds, items_here))
        for source, (total, items) in sources.items():
            transfers.append((places.hops(source, device), total, 0.0, items))
        return [transfer for transfer in transfers if transfer[0]]

    @staticmethod
    def _add(
        sources: dict[int, tuple[float, list[tuple[int, int]]]],
        source: int,
        size: float,
        item: tuple[int, int] | None = None,
    ) -> None:
        total, items = sources.get(source, (0.0, []))
        sources[source] = (total + size, items if item is None else [*items, item])

    def _stranded_output(self, task: Task, device: Device) -> float:
        """Bytes of finished results that lie with the saved state and not on this device."""
        history = task._history
        if history is None or history.saved_at is None or history.last_device == device.index:
            return 0.0
        return float(task.bytes_out + sum(self.places.items[item].size for item in task.writes))

    def _alone(self, parts: list[Transfer]) -> float:
        """Seconds of some transfers on idle links, one after the other."""
        total = 0.0
        for hops, size, seconds, _ in parts:
            total += seconds
            for way, _ in hops:
                total += Links.alone(way, size) if size else 0.0
        return total

    def upload_seconds(self, tasks: Sequence[Task], placement: Placement, terms: Terms | None = None) -> float:
        """The upload stage as it would be on idle links and engines."""
        mode = placement.mode
        return max(self._alone(self.parts(tasks, mode, device, terms, False)) for device in placement.devices)

    def _upload_turn(self, launch: Launch, device: Device, parts: list[Transfer], asked: float) -> None:
        """The upload engine is ours.  What is missing is looked up again: it may have come meanwhile."""
        stages = launch.stages
        assert stages is not None
        now = self.clock._now
        parts = self.parts(launch.tasks, launch.placement.mode, device, launch.terms)
        if parts:
            if stages.start != stages.start:
                stages.start = now
            if stages.upload_start != stages.upload_start:
                stages.upload_start = now
        self._next_transfer(launch, device, parts, 0, None)

    def _next_transfer(self, launch: Launch, device: Device, parts: list[Transfer], hop: int, flow: Any) -> None:
        """Hops of one transfer in turn, then the next transfer."""
        stages = launch.stages
        assert stages is not None
        if flow is not None:
            stages.flows.remove(flow)
            hops, _, _, items = parts[0]
            for item, version in items:
                self.places.arrived(item, hops[hop - 1][1], version)
            if hop == len(hops):
                parts, hop = parts[1:], 0
        if not parts:
            self._upload_part_done(launch, device)
            return
        hops, size, seconds, _ = parts[0]
        done = partial(self._next_transfer, launch, device, parts, hop + 1)
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
            self.uploaded(launch)

    # Download ---------------------------------------------------------------------------------------------

    def download(self, launch: Launch) -> None:
        """Bring the private output and final items of the launch to its host."""
        stages = launch.stages
        assert stages is not None
        devices = launch.placement.devices
        size, seconds = self.final_bytes(launch.tasks, launch.placement.mode, launch.terms)
        if devices[0].type.kind == "cpu" or not (size or seconds):
            self.downloaded(launch)
            return
        stages.waiting = len(devices)
        for device in devices:
            engine = self.capacity.of[device.index].engines.download
            engine.request(launch, partial(self._download_turn, launch, device, size / len(devices), seconds))

    def final_bytes(
        self, tasks: Sequence[Task], mode: Mode, terms: Terms | None = None, true: bool = True
    ) -> tuple[float, float]:
        """What goes to the host at the end: private output and final items (bytes), and the stage's seconds."""
        size = 0.0
        for task in tasks:
            size += task.bytes_out
            size += sum(self.places.items[item].size for item in task.writes if self.places.final(item, tasks))
        if terms is None:
            return size, mode.download.of(len(tasks))
        return size, mode.download.of(len(tasks) + terms.extra) * (terms.down if true else 1.0)

    def download_seconds(self, tasks: Sequence[Task], placement: Placement, terms: Terms | None = None) -> float:
        """The download stage as it would be on idle links and engines."""
        if placement.mode.on_cpu:
            return 0.0
        size, seconds = self.final_bytes(tasks, placement.mode, terms, False)
        devices = placement.devices
        if size:
            seconds += max(Links.alone(self.links.down(device), size / len(devices)) for device in devices)
        return seconds

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
            self.downloaded(launch)

    # Prefetch ---------------------------------------------------------------------------------------------

    def fetch(self, item: int, device: Device, number: int, then: Callable[[], None]) -> str | None:
        """Bring a copy to an accelerator in its upload engine's turn (`number` orders it among launches);
        why not, or None."""
        if not 0 <= item < len(self.places.items):
            return "there is no such item"
        state = self.capacity.of[device.index]
        if not isinstance(state, GpuState):
            return "it is no accelerator"
        if not state.up or state.asleep or not state.node.up:
            return f"it is {'asleep' if state.asleep else 'down'}"
        if self.places.source(item, device) is None:
            return "nobody has written it yet"
        if self.places.present(item, device):
            return None
        if self.places.claim([item], device) > state.room:
            return f"it has room for {state.room:,} bytes only"
        Fetching(self, item, state, number, then).begin()
        return None


def kept_there(task: Task, device: Device) -> bool:
    """Was the task's state saved into the device's own memory, as context switches at a rate of their own do?"""
    history = task._history
    return history is not None and history.last_device == device.index and device.type.preemption.rate is not None


class Fetching:
    """A prefetch: holds the item's room while its copy is under way, then leaves it there, evictable."""

    def __init__(self, transfers: Transfers, item: int, gpu: GpuState, number: int, then: Callable[[], None]):
        self.transfers = transfers
        self.item = item
        self.gpu = gpu
        self.number = number
        self.then = then
        self.hops: list[tuple[Way, int]] = []
        self.version = -1
        self.waiting = 0

    def begin(self) -> None:
        self.transfers.places.pin([self.item], self.gpu)
        self.transfers.capacity.changed(self.gpu)  # its room
        self.gpu.engines.fetching += 1
        self.waiting = self.transfers.make_room(self.gpu, self._room_made)
        if not self.waiting:
            self.gpu.engines.upload.request(self, self._turn)

    def _room_made(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self.gpu.engines.upload.request(self, self._turn)

    def _turn(self) -> None:
        places = self.transfers.places
        source = places.source(self.item, self.gpu.device)
        present = places.present(self.item, self.gpu.device)
        self.version = places.version[self.item]
        self.hops = [] if source is None or present else places.hops(source, self.gpu.device)
        self._hop(None)

    def _hop(self, flow: Any) -> None:
        places = self.transfers.places
        if flow is not None:
            location = self.hops.pop(0)[1]
            if location < 0 or self.gpu.up:
                places.arrived(self.item, location, self.version)
        if self.hops and self.gpu.up:
            self.transfers.links.send(self.hops[0][0], places.items[self.item].size, 0.0, self._hop)
            return
        places.unpin([self.item], self.gpu)
        self.transfers.capacity.changed(self.gpu)
        self.gpu.engines.fetching -= 1
        self.gpu.engines.upload.release(self)
        self.then()


def items_of(tasks: Sequence[Task]) -> tuple[int, ...]:
    """Items that some tasks read or write, each once, in order."""
    return tuple({item: None for task in tasks for item in (*task.reads, *task.writes)})


def reads(tasks: Sequence[Task]) -> list[int]:
    """Items that a launch reads, each once, in order."""
    if len(tasks) == 1:
        return list(tasks[0].reads)
    return list(dict.fromkeys(item for task in tasks for item in task.reads))
