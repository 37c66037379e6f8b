"""Two jobs on one accelerator: possible pairs and modes (`sharing`, `gandiva`).

Either both jobs occupy fractions of the accelerator, or the accelerator has `streams: 2` and time slices.  With time
slices each job may use the whole accelerator; the slowdowns of both jobs are measured (`pairs` of the accelerator's
`sharing`) or follow from the slices.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import View
from hetsim_policies.common import place_of


class Pair(NamedTuple):
    """Placement of a new task on a GPU shared with a running task (the partner)."""

    partner: Task
    moved: Placement | None  # fraction of the GPU that the partner moves to; None: it stays
    place: Placement  # placement of the new task


def is_fraction(mode: Mode) -> bool:
    """Return True for a mode on part of one accelerator."""
    return mode.gpus == 1 and not mode.whole_devices


def is_shared(mode: Mode) -> bool:
    """Return True for a mode on whole accelerators that other tasks may share."""
    return mode.whole_devices and not mode.on_cpu and mode.type.streams > 1


def alone_modes(task: Task) -> Sequence[Mode]:
    """Return modes without GPU fractions, fastest first; all modes if there are none."""
    modes = task.fastest_modes()
    return [mode for mode in modes if not is_fraction(mode)] or modes


def place_alone(task: Task, view: View) -> Placement | None:
    """Return the task's fastest placement on unshared devices; None if none fits."""
    for mode in task.fastest_modes():
        if is_shared(mode):
            placement = _on_empty(task, mode, view)
        elif is_fraction(mode):
            empty = (option for option in view.options(task, mode) if not view.running("start", option.devices[0]))
            placement = next(empty, None)
        elif (placement := view.first(mode)) is not None and not view.holds(task, placement):
            placement = None
        if placement is not None:
            return placement
    return None


def _on_empty(task: Task, mode: Mode, view: View) -> Placement | None:
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
        for device in place_of(task, view).devices:
            ends[device] = max(ends.get(device, 0.0), view.launch_of(task).finish)
    free = [sorted(ends.get(d, view.now) for d in n.accelerators if d.type is mode.type) for n in view.cluster.nodes]
    return min((times[mode.gpus - 1] for times in free if len(times) >= mode.gpus), default=math.inf)


def pairs(task: Task, view: View) -> Iterator[Pair]:
    """Yield accelerators with one task that this task could join; O(running tasks)."""
    modes = task.fastest_modes()
    fractions = [mode for mode in modes if is_fraction(mode)]
    shared = [mode for mode in modes if is_shared(mode) and mode.gpus == 1]
    if not fractions and not shared:
        return
    for partner in view.running("start", own=True):
        placement = place_of(partner, view)
        device = placement.devices[0]
        if placement.mode.gpus != 1 or len(view.running("start", device)) != 1:
            continue
        for mode in (*shared, *fractions):
            if mode.type is not device.type:
                continue
            place = Placement(mode, placement.devices)
            if is_fraction(mode) and placement.mode.share + mode.share > WHOLE:
                if (moved := _smaller(partner, mode, view)) is not None and not (task.reads or task.writes):
                    yield Pair(partner, moved, place)
            elif view.fits(mode, place) and view.holds(task, place):
                yield Pair(partner, None, place)


def _smaller(partner: Task, newcomer: Mode, view: View) -> Placement | None:
    def leaves_room(mode: Mode, now: Mode, memory: float, free: float) -> bool:
        fits = is_fraction(mode) and mode.share + newcomer.share <= WHOLE and mode.gpu_memory <= now.gpu_memory
        on_host = mode.millicores <= now.millicores and newcomer.millicores <= free - mode.millicores
        return fits and on_host and mode.gpu_memory + newcomer.gpu_memory <= memory

    return _in_another_mode(partner, view, leaves_room)


def _in_another_mode(task: Task, view: View, suits: Callable[[Mode, Mode, float, float], bool]) -> Placement | None:
    """Return a placement of a running task on its present devices in another mode.

    It is the fastest mode for which `suits` is True; None if there is none.  suits: function of a mode, the present
    mode, the accelerator's bytes, and the host's free cores (thousandths) without the task.
    """
    launch = view.launch_of(task)
    movable = task.shape.preemptible and not task.reads and not task.writes and launch.stage == "compute"
    if launch.placement is None or not movable or launch.placement.mode.type.sharing.kind == "mig":
        return None
    now, devices = launch.placement.mode, launch.placement.devices
    memory, free = devices[0].type.memory, view.free("cpu", devices[0].node) * 1000 + now.millicores
    modes = [mode for mode in task.fastest_modes() if mode.type is now.type and mode.memory <= now.memory]
    suitable = (mode for mode in modes if suits(mode, now, math.inf if memory is None else memory, free))
    return next((Placement(mode, devices) for mode in suitable), None)


def back_to(task: Task, view: View) -> Placement | None:
    """Return a whole-GPU placement for a task alone on a part of its GPU, or None."""
    placement = view.launch_of(task).placement
    if placement is None or not is_fraction(placement.mode):
        return None
    if len(view.running("start", placement.devices[0])) > 1:
        return None

    def is_whole(mode: Mode, now: Mode, memory: float, free: float) -> bool:
        return mode.gpus == 1 and mode.whole_devices and mode.gpu_memory <= memory and mode.millicores <= free

    return _in_another_mode(task, view, is_whole)
