"""The lanes of a run: one for each accelerator, in which its launches are served."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hetsim.engine.flight.launch import Lane, ShareGroup
from hetsim.engine.flight.links import Links
from hetsim.engine.resources.capacity import Capacity
from hetsim.engine.resources.occupancy import GpuState
from hetsim.model.tasks import Mode


def give_lanes(
    capacity: Capacity, links: Links, modes: Sequence[Mode], group_due: Callable[[ShareGroup], None]
) -> None:  # fmt: skip
    """Give each accelerator its lane, as the modes of the run use it.

    `group_due` is called when the next launch of those that share an accelerator has computed.
    """
    modes = [mode for mode in modes if mode.gpus]
    tied = {mode.type for mode in modes if not mode.whole or (mode.gpus > 1 and mode.type.streams > 1)}
    ganged = {mode.type for mode in modes if mode.gpus > 1}
    for gpu in capacity.of:
        if isinstance(gpu, GpuState):
            kind = gpu.device.type
            group = ShareGroup(group_due) if kind.sharing.kind in ("timeslice", "mps") else None
            simple = group is None and kind not in tied
            up, down = links.up_lines[gpu.device.index], links.down_lines[gpu.device.index]
            direct = simple and kind.sharing.kind != "mig" and up.private == down.private
            sliced, regular = kind.sharing.kind == "timeslice", simple or kind not in ganged
            gpu.lane = Lane(up, down, group, sliced=sliced, simple=simple, regular=regular, direct=direct)
