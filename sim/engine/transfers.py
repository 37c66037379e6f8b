"""Bytes on their way to and from a launch: uploads of what is missing, downloads of what is final, prefetches."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from sim.engine.capacity import Capacity, GpuState
from sim.engine.clock import Clock
from sim.engine.launch import UPLOAD, Launch
from sim.engine.links import Links
from sim.engine.places import Places, Way, host
from sim.model.cluster import Device
from sim.model.plan import Placement
from sim.model.tasks import Task

Transfer = tuple[list[tuple[Way, int]], float, float, list[int]]
"""Hops, bytes, seconds given as a duration, items that arrive."""


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

    def write_back(self, item: int, gpu: GpuState, then: Callable[[], None]) -> None:
        """Save an evicted only copy to its host.  Nobody can stop it: it is the only copy."""
        way = self.links.down(gpu.device)
        self.links.send(way, self.places.items[item].size, 0.0, partial(self._written_back, item, gpu, then))

    def _written_back(self, item: int, gpu: GpuState, then: Callable[[], None], flow: Any) -> None:
        self.places.written_back(item, gpu)
        then()

    # Upload -----------------------------------------------------------------------------------------------

    def upload(self, launch: Launch) -> None:
        """Bring what is missing to every device of the launch."""
        stages = launch.stages
        assert stages is not None
        launch.stage = UPLOAD
        devices = launch.placement.devices
        needing = [device for device in devices if self._uploads(launch, device)]
        if not needing:
            self.uploaded(launch)
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
            self.uploaded(launch)

    # Download ---------------------------------------------------------------------------------------------

    def download(self, launch: Launch) -> None:
        """Bring the private output and final items of the launch to its host."""
        stages = launch.stages
        assert stages is not None
        devices = launch.placement.devices
        size, seconds, final = self._final_bytes(launch)
        if devices[0].type.kind == "cpu" or not (size or seconds):
            self.downloaded(launch)
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
            self.downloaded(launch)


class Fetching:
    """A prefetch: holds the item's room while its copy is under way, then leaves it there, evictable."""

    def __init__(self, transfers: Transfers, item: int, gpu: GpuState, then: Callable[[], None]):
        self.transfers = transfers
        self.item = item
        self.gpu = gpu
        self.then = then
        self.number = 0  # before every launch in the engine's order
        self.hops: list[tuple[Way, int]] = []

    def begin(self) -> None:
        places = self.transfers.places
        places.pin([self.item], self.gpu)
        for item in places.evict(self.gpu):
            self.transfers.write_back(item, self.gpu, lambda: None)
        self.gpu.engines.upload.request(self, self._turn)

    def _turn(self) -> None:
        places = self.transfers.places
        source = places.source(self.item, self.gpu.device)
        present = places.present(self.item, self.gpu.device)
        self.hops = [] if source is None or present else places.hops(source, self.gpu.device)
        self._hop(None)

    def _hop(self, flow: Any) -> None:
        places = self.transfers.places
        if flow is not None:
            places.arrived(self.item, self.hops.pop(0)[1])
        if self.hops:
            self.transfers.links.send(self.hops[0][0], places.items[self.item].size, 0.0, self._hop)
            return
        places.unpin([self.item], self.gpu)
        self.gpu.engines.upload.release(self)
        self.then()


def reads(tasks: tuple[Task, ...]) -> list[int]:
    """Items that a launch reads, each once, in order."""
    if len(tasks) == 1:
        return list(tasks[0].reads)
    return list(dict.fromkeys(item for task in tasks for item in task.reads))
