"""Prefetches: copies of items sent to an accelerator before they are needed."""

from collections.abc import Callable
from typing import Any

from hetsim.engine.flight.launch import INF
from hetsim.engine.flight.part import Part, insert_part
from hetsim.engine.flight.transfers import Transfers
from hetsim.engine.kernel.clock import FINISH, Timer
from hetsim.engine.resources.occupancy import GpuState
from hetsim.model.device import Device
from hetsim.policy.decisions import as_number


def fetch(transfers: Transfers, item: Any, device: Device, number: int, then: Callable[[], None]) -> str | None:
    """Copy an item to an accelerator through its upload engine.

    `number` is the position of the copy among launches at the engine; `then` is called at its end.  Return why the copy
    is impossible, or None.
    """
    if (item := as_number(item, int)) is None or not 0 <= item < len(transfers.places.items):
        return "the item does not exist"
    state = transfers.capacity.of[device.index]
    if not isinstance(state, GpuState):
        return "it is not an accelerator"
    if not state.up or state.asleep or not state.node.up:
        return f"it is {'asleep' if state.asleep else 'down'}"
    if transfers.places.source(item, device) is None:
        return "no task has written the item yet"
    if transfers.places.present(item, device):
        return None
    if transfers.places.claim([item], device) > state.room:
        return f"it has only {state.room:,} bytes free"
    Fetching(transfers, item, state, number=number, done=then).begin()
    return None


class Fetching(Timer):
    """A prefetch: reserves memory for an item, then stores a copy that can be evicted."""

    __slots__ = ("transfers", "item", "gpu", "number", "done", "waiting", "part", "armed")

    def __init__(self, transfers: Transfers, item: int, gpu: GpuState, number: int, done: Callable[[], None]):
        super().__init__(self._turn)
        self.transfers = transfers
        self.item = item
        self.gpu = gpu
        self.number = number
        self.done = done
        self.waiting = 1  # evictions that must end before it may begin, and `begin` itself
        self.part = Part(self, gpu.lane, gpu.device)
        self.armed = INF

    def begin(self) -> None:
        self.transfers.places.pin([self.item], self.gpu)  # its memory is reserved from now on
        self.transfers.capacity.changed(self.gpu)  # the free memory has changed
        self.gpu.lane.fetching += 1
        self.waiting += self.transfers.make_room(self.gpu, self)
        self.gpu.note_memory(self.transfers.places.on(self.gpu.device).unpinned)
        self.cleared()

    def cleared(self) -> None:
        self.waiting -= 1
        if not self.waiting:
            self.part.ask = self.transfers.clock._now
            insert_part(self.gpu.lane.uploads, self.part)
            self.transfers.asked((self.gpu.lane,))

    def arm(self) -> None:
        part, clock = self.part, self.transfers.clock
        if part.begun or part.at == self.armed:  # equal floats: its turn has not moved
            return
        self.armed = part.at  # like `Boundaries.arm`: an unchanged entry keeps its order
        if part.at <= clock._now:
            clock.cancel(self)
            self._turn(self)
        elif part.at < INF:
            clock.again(part.at, FINISH, self)
        else:
            clock.cancel(self)

    def _turn(self, _: Timer) -> None:
        part, places, device = self.part, self.transfers.places, self.gpu.device
        part.begun = True  # set first, so that it gets no second turn
        source = places.source(self.item, device)
        if source is not None and not places.present(self.item, device):
            # Copies that arrive after another write are outdated.
            size, items = places.items[self.item].size, [(self.item, places.version[self.item])]
            part.legs = [(way, size, 0.0, items, location, -1) for way, location in places.hops(source, device)]
        self.transfers.go_on(part)

    def over(self) -> None:
        self.transfers.places.unpin([self.item], self.gpu)
        self.transfers.capacity.changed(self.gpu)
        self.gpu.lane.fetching -= 1
        self.gpu.lane.uploads.remove(self.part)  # the engine is free for the next one
        self.transfers.asked((self.gpu.lane,))
        self.done()
