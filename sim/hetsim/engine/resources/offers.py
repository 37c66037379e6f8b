"""The accelerator with most free capacity for a service's next batch, cached."""

from heapq import heapify, heappop, heappush

from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import GpuState
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.policy.dispatch import EMPTY

Offer = tuple[int, int]  # a device, and its number of changes: equal offers are the same device in the same state


class Offers:
    """Accelerators by type and free capacity; cost: O(log n) a change, O(1) a query."""

    def __init__(self, capacity: Capacity):
        self.capacity = capacity
        self._moved = [state for state in capacity.of if isinstance(state, GpuState)]  # at first all
        capacity.moved = self._moved
        self._changes = [0] * len(capacity.of)
        # entries (-free, device) by type number; some are outdated
        self._heaps: list[list[tuple[int, int]]] = [[] for _ in capacity.types]
        self._limit = 4 * len(self._moved) + 64
        self._heap_of: dict[Mode, list[tuple[int, int]]] = {}

    @staticmethod
    def serves(mode: Mode) -> bool:
        """Return True if `offer_of` supports a mode: one whole accelerator without MIG."""
        return mode.gpus == 1 and mode.whole_devices and mode.type.sharing.kind != "mig"

    def offer_of(self, mode: Mode) -> tuple[Placement, Offer] | None:
        """Return the emptiest accelerator with room for a mode (first of equals), or None."""
        if self._moved:
            self._note()
        states, heap = self.capacity.of, self._heap_of.get(mode)
        if heap is None:
            heap = self._heap_of[mode] = self._heaps[self.capacity.types[mode.type]]
        while heap:
            free, index = heap[0]
            state = states[index]
            if -free != state.free:  # outdated: a newer entry exists if it has free capacity
                heappop(heap)
                continue
            if state.free < mode.share:  # the emptiest has too little, so all others have too
                return None
            node = state.node
            if (  # as `GpuState.takes`, of a mode that `serves`
                state.up and not state.asleep and mode.gpu_memory <= state.room and mode.millicores <= node.cpu_free
                and mode.memory <= node.mem_free and node.up and mode.nodes is None
            ):  # fmt: skip
                return self._offer(mode, state)
            return self.by_looking(mode)  # memory or host do not fit there; a fuller accelerator may fit
        return None

    def _note(self) -> None:
        changes, heaps, limit = self._changes, self._heaps, self._limit
        for state in self._moved:
            index, kind = state.device.index, state.kind
            changes[index] += 1  # distinguishes unchanged offers from changed ones
            free, heap = state.free, heaps[kind]
            if free <= 0:
                continue  # no free capacity before the next release
            heappush(heap, (-free, index))  # older entries of it are skipped when they come up
            if len(heap) > limit:
                # In place, as `_heap_of` has the same list; one entry a device.
                heap[:] = {entry[1]: (-self.capacity.of[entry[1]].free, entry[1]) for entry in heap}.values()
                heapify(heap)
        self._moved.clear()

    def by_looking(self, mode: Mode) -> tuple[Placement, Offer] | None:
        """Return the result of `offer_of`, the emptiest accelerator, by a linear search."""
        best, max_free = None, 0
        for number in self.capacity.nodes_in(self.capacity.mask(mode)):
            gpu = self.capacity.best_gpu(mode, self.capacity.nodes[number])
            if gpu is not None and gpu.free > max_free:
                best, max_free = gpu, gpu.free
        return None if best is None else self._offer(mode, best)

    def _offer(self, mode: Mode, state: GpuState) -> tuple[Placement, Offer]:
        placement = state.placements.get(mode) or state.placement(mode)
        if state.free == state.device.type.streams * WHOLE:
            return placement, EMPTY  # all empty accelerators are equivalent
        index = state.device.index
        return placement, (index, self._changes[index])

    def there(self, mode: Mode, device: Device) -> Placement:
        placement: Placement = self.capacity.of[device.index].placement(mode)
        return placement
