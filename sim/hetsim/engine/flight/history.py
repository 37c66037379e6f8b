"""The history of a task: state and output that it retains from stopped launches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from hetsim.engine.flight.data_locations import host
from hetsim.model.demand import Stopping
from hetsim.model.device import Device
from hetsim.model.plan import Placement


@dataclass(slots=True, eq=False)
class History:
    """State and output that a task retains from its earlier launches."""

    # rows of stopped launches whose work counts (`hetsim.engine.core.recorder`)
    rows: list[int] = field(default_factory=list)
    # devices on which it last computed; each has an equal part of the state and of the output
    devices: Sequence[Device] = ()
    state_saved: bool = False  # True if the host of each device has its part of the state
    input_saved: bool = False  # True if the task's input is part of that state
    intact: bool = False  # True while its data are still in the memory of these devices; a failure loses them
    left_at: float = 0.0  # time at which it last stopped on these devices
    saved_by: float = 0.0  # time at which the saved state becomes available
    # finished fraction that is safe; of a task that is not running, the whole finished fraction
    checkpoint: float = 0.0
    _parts: tuple[Placement, dict[Device, list[tuple[int, float]]]] | None = None

    def save(self, devices: Sequence[Device], stopping: Stopping, now: float, fault: bool = False) -> None:
        """Record what a stopped launch saved; after a `fault`, only its last checkpoint."""
        self.devices, self.intact, self.left_at, self._parts = devices, not fault, now, None
        # Draining and flushing save no state: the remaining blocks start from the input.
        self.state_saved = fault or devices[0].type.preemption.kind == "context_switch"
        self.input_saved = self.state_saved and not fault and stopping.input_saved

    def lose(self, all_work: bool) -> None:
        """Record that data in device memory are lost; all_work: the saved state is, too."""
        self.intact = self.input_saved = False  # data in device memory are lost with the launch
        self.state_saved = self.state_saved and not all_work  # with all work gone there is no state either

    def look(self, states: Sequence[Any]) -> None:
        """Record which data of the task failures destroyed; `states`: devices by index."""
        if self.intact and any(states[device.index].failed_at > self.left_at for device in self.devices):
            self.intact = False
            self.input_saved = self.input_saved and self.devices[0].type.preemption.rate is None

    @property
    def in_memory(self) -> bool:
        """True if the devices on which the task last ran still have its state or output."""
        saves = self.state_saved and self.devices[0].type.preemption.rate is not None
        return self.intact and (self.checkpoint == 1.0 or saves)

    def parts(self, placement: Placement) -> dict[Device, list[tuple[int, float]]]:
        """Return what each new device must fetch of state or output: (source, fraction).

        A device of both placements keeps the data that belong to its part of the new layout; the old devices send the
        rest, first to devices of the same node.
        """
        if self._parts is None or self._parts[0] is not placement:
            old, new = self.devices, placement.devices
            # In units of 1 / (old × new), so that all parts are whole numbers.
            spare = {one: len(new) - len(old) * (one in new) for one in old}
            needs = {one: len(old) - len(new) * (one in old) for one in new}
            parts: dict[Device, list[tuple[int, float]]] = {one: [] for one in new}
            for near, one, other in product((True, False), old, new):  # pairs on the same node first
                if (size := min(spare[one], needs[other])) > 0 and (one.node == other.node or not near):
                    spare[one] -= size
                    needs[other] -= size
                    location = host(one.node) if one.type.kind == "cpu" else one.index
                    parts[other].append((location, size / (len(old) * len(new))))
            self._parts = placement, parts  # cached: every device of the placement needs it
        return self._parts[1]

    def gives(self, device: Device, placement: Placement) -> bool:
        """Return True if a new placement must fetch data from this device's memory."""
        return self.in_memory and any(device.index == at for some in self.parts(placement).values() for at, _ in some)

    def source(self, placement: Placement, device: Device) -> int:
        """Return the host from which a device copies a task's state: its own if possible."""
        devices = self.devices
        if any(one.node == device.node for one in devices):
            return host(device.node)
        place = placement.devices.index(device) * len(devices) // len(placement.devices)
        return host(devices[place].node)
