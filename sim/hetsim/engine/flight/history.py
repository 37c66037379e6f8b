"""The history of a task: what it keeps from launches that were stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hetsim.engine.flight.data_locations import host
from hetsim.model.cluster import Device
from hetsim.model.plan import Placement
from hetsim.model.tasks import Stopping


@dataclass(slots=True, eq=False)
class History:
    """State and output that a task keeps from its former launches."""

    rows: list[int] = field(default_factory=list)
    """Rows (hetsim.engine.core.recorder) of stopped launches, as far as their work is kept."""
    devices: Sequence[Device] = ()
    """The devices on which it last computed.  Each has an equal part of the state, and of the output."""
    state_saved: bool = False
    """Return True if the host of each device has its part of the state."""
    input_saved: bool = False
    """True if the task's input is part of that state."""
    intact: bool = False
    """Is what it left in the memory of these devices still there?  Not after a failure."""
    saved_by: float = 0.0
    """The time from which that state is there."""
    checkpoint: float = 0.0
    """The finished fraction that is safe."""

    def save(self, devices: Sequence[Device], stopping: Stopping, fault: bool = False) -> None:
        """Note what a launch leaves: by a stop that keeps its work, or in checkpoints."""
        self.devices, self.intact = devices, not fault
        # What was drained or flushed left no state behind: its other blocks start from its input.
        self.state_saved = fault or devices[0].type.preemption.kind == "context_switch"
        self.input_saved = self.state_saved and not fault and stopping.input_saved

    def lose(self, all_work: bool) -> None:
        """Note a failure or a lossy stop; `all_work`: what was saved before is lost too."""
        self.intact = self.input_saved = False
        self.state_saved = self.state_saved and not all_work

    def in_memory(self, device: Device) -> bool:
        """Return True if the state is saved in the device's own memory (at a `rate`)."""
        return self.intact and device.type.preemption.rate is not None and device in self.devices

    def is_near(self, device: Device) -> bool:
        """Return True if a part of the state is on the device's own host."""
        return any(one.node == device.node for one in self.devices)

    def source(self, placement: Placement, device: Device) -> int:
        """The place from which a device gets the state: its own host if a part is there."""
        devices = self.devices
        if self.is_near(device):
            return host(device.node)
        place = placement.devices.index(device) * len(devices) // len(placement.devices)
        return host(devices[place].node)
