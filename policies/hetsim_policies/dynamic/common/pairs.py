"""Two jobs on one accelerator: possible pairs and modes (`sharing`, `gandiva`).

Either both take fractions of it, or it has `streams: 2` and shares by time slices: then each may run there as if it
were alone, and how they slow each other down is measured (`pairs` of its sharing) or left to the slices.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from hetsim.model.cluster import WHOLE, Device
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import View


class Pair(NamedTuple):
    """A running task, the fraction it moves to (None: stays), the newcomer's place."""

    partner: Task
    moved: Placement | None
    place: Placement


def is_fraction(mode: Mode) -> bool:
    """Return True for a mode on part of one accelerator."""
    return mode.gpus == 1 and not mode.whole_devices


def is_shared(mode: Mode) -> bool:
    """Return True for a mode on whole accelerators that others may share."""
    return mode.whole_devices and not mode.on_cpu and mode.type.streams > 1


def alone_modes(task: Task) -> list[int]:
    """Modes that leave no room on their devices, fastest first; else all."""
    positions = task.modes_by_speed()
    return [p for p in positions if not is_fraction(task.modes[p])] or list(positions)


def place_alone(task: Task, view: View) -> Placement | None:
    """The fastest mode that fits unshared; fractions on empty accelerators only."""
    for position in task.modes_by_speed():
        mode = task.modes[position]
        if is_shared(mode):
            if (placement := _on_empty(task, mode, view)) is not None:
                return placement
            continue
        if not is_fraction(mode):
            placement = view.first(mode)
            if placement is not None and view.holds(task, placement):
                return placement
            continue
        for option in view.options(task, mode):
            if not view.running("start", option.devices[0]):
                return option
    return None


def _on_empty(task: Task, mode: Mode, view: View) -> Placement | None:
    """Devices of one node that no other task uses."""
    for node in view.nodes.fitting(mode):
        here = view.cluster.nodes[node].accelerators
        empty = [device for device in here if device.type is mode.type and not view.running("start", device)]
        placement = Placement(mode, tuple(empty[: mode.gpus]))
        if len(empty) >= mode.gpus and view.fits(mode, placement) and view.holds(task, placement):
            return placement
    return None


def empty_at(mode: Mode, view: View) -> float:
    """Estimated time when a node will have enough empty devices for a mode."""
    ends: dict[Device, float] = {}
    for task in view.running("start", own=True):
        placement = view.launch_of(task).placement
        assert placement is not None
        for device in placement.devices:
            ends[device] = max(ends.get(device, 0.0), view.launch_of(task).finish)
    best = math.inf
    for node in view.cluster.nodes:
        free = sorted(ends.get(d, view.now) for d in node.accelerators if d.type is mode.type)
        if len(free) >= mode.gpus:
            best = min(best, free[mode.gpus - 1])
    return best


def pairs(task: Task, view: View) -> Iterator[Pair]:
    """Accelerators with one task that this one could join.

    Cost: linear in the running tasks.
    """
    modes = [task.modes[p] for p in task.modes_by_speed()]
    fractions = [mode for mode in modes if is_fraction(mode)]
    shared = [mode for mode in modes if is_shared(mode) and mode.gpus == 1]
    if not fractions and not shared:
        return
    for partner in view.running("start", own=True):
        placement = view.launch_of(partner).placement
        assert placement is not None
        device = placement.devices[0]
        if placement.mode.gpus != 1 or len(view.running("start", device)) != 1:
            continue
        for mode in (*shared, *fractions):
            if mode.type is not device.type:
                continue
            place = Placement(mode, placement.devices)
            if is_fraction(mode) and placement.mode.share + mode.share > WHOLE:
                moved = _smaller(partner, placement, mode, view)
                if moved is not None and not (task.reads or task.writes):
                    yield Pair(partner, moved, place)
            elif view.fits(mode, place) and view.holds(task, place):
                yield Pair(partner, None, place)


def _smaller(partner: Task, placement: Placement, newcomer: Mode, view: View) -> Placement | None:
    """The fastest fraction of the partner that leaves room for the newcomer."""
    now, kind = placement.mode, newcomer.type
    stays = kind.sharing.kind == "mig" or not partner.shape.preemptible or partner.reads or partner.writes
    if stays or view.launch_of(partner).stage != "compute":
        return None
    memory = float("inf") if kind.memory is None else kind.memory
    free = view.free("cpu", placement.devices[0].node) * 1000
    for position in partner.modes_by_speed():
        mode = partner.modes[position]
        fits = is_fraction(mode) and mode.type is kind and mode.share + newcomer.share <= WHOLE
        if not fits or mode.gpu_memory + newcomer.gpu_memory > memory:
            continue
        on_host = mode.millicores <= now.millicores and mode.memory <= now.memory and mode.gpu_memory <= now.gpu_memory
        if on_host and newcomer.millicores <= free + now.millicores - mode.millicores:
            return Placement(mode, placement.devices)
    return None


def back_to(task: Task, view: View) -> Placement | None:
    """The fastest mode on the whole accelerator that the task now has alone.

    The task has a fraction of it.
    """
    placement = view.launch_of(task).placement
    if placement is None or not is_fraction(placement.mode) or not task.shape.preemptible:
        return None
    now, device = placement.mode, placement.devices[0]
    if len(view.running("start", device)) > 1 or view.launch_of(task).stage != "compute" or task.reads or task.writes:
        return None
    free = view.free("cpu", device.node) * 1000
    for position in task.modes_by_speed():
        mode = task.modes[position]
        if mode.type is now.type and mode.gpus == 1 and mode.whole_devices and now.type.sharing.kind != "mig":
            memory = device.type.memory
            room = memory is None or mode.gpu_memory <= memory
            if room and mode.millicores <= free + now.millicores and mode.memory <= now.memory:
                return Placement(mode, placement.devices)
    return None
