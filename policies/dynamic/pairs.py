"""Two jobs on one accelerator: who could be joined by whom, and in which modes (for `sharing` and `gandiva`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sim.model.cluster import WHOLE
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task
from sim.policy import View


class Pair(NamedTuple):
    """A running task, the fraction it has to move to (None: it may stay as it is), and the newcomer's place."""

    partner: Task
    moved: Placement | None
    place: Placement


def is_fraction(mode: Mode) -> bool:
    """A part of one accelerator."""
    return mode.gpus == 1 and not mode.whole


def alone_modes(task: Task) -> list[int]:
    """Modes that leave nothing to others on their devices, fastest first; where it has none, all."""
    positions = task.modes_by_speed()
    return [p for p in positions if not is_fraction(task.modes[p])] or list(positions)


def place_alone(task: Task, view: View) -> Placement | None:
    """The fastest mode that fits where nobody else is: fractions only on empty accelerators."""
    for position in task.modes_by_speed():
        mode = task.modes[position]
        if not is_fraction(mode):
            placement = view.first(mode)
            if placement is not None and view.holds(task, placement):
                return placement
            continue
        for option in view.options(task, mode):
            if not view.running_on(option.devices[0]):
                return option
    return None


def pairs(task: Task, view: View) -> Iterator[Pair]:
    """The accelerators on which one task runs that this one could join.  Cost: linear in the running tasks."""
    fractions = [task.modes[p] for p in task.modes_by_speed() if is_fraction(task.modes[p])]
    if not fractions:
        return
    for partner in view.running("start"):
        placement = view.placement_of(partner)
        assert placement is not None
        device = placement.devices[0]
        if placement.mode.gpus != 1 or len(view.running_on(device)) != 1:
            continue
        for mode in fractions:
            if mode.type is not device.type:
                continue
            place = Placement(mode, placement.devices)
            if placement.mode.share + mode.share <= WHOLE:
                if view.fits(mode, place) and view.holds(task, place):
                    yield Pair(partner, None, place)
            else:
                moved = _smaller(partner, placement, mode, view)
                if moved is not None and not (task.reads or task.writes):
                    yield Pair(partner, moved, place)


def _smaller(partner: Task, placement: Placement, newcomer: Mode, view: View) -> Placement | None:
    """The fastest fraction in which the partner leaves room for the newcomer where it runs."""
    now, kind = placement.mode, newcomer.type
    stays = kind.sharing.kind == "mig" or not partner.shape.preemptible or partner.reads or partner.writes
    if stays or view.stage_of(partner) != "compute":
        return None
    memory = float("inf") if kind.memory is None else kind.memory
    free = view.free_on(placement.devices[0].node, "cpu") * 1000
    for position in partner.modes_by_speed():
        mode = partner.modes[position]
        fits = is_fraction(mode) and mode.type is kind and mode.share + newcomer.share <= WHOLE
        if not fits or mode.gpu_memory + newcomer.gpu_memory > memory:
            continue
        on_host = mode.cpus <= now.cpus and mode.memory <= now.memory and mode.gpu_memory <= now.gpu_memory
        if on_host and newcomer.cpus <= free + now.cpus - mode.cpus:
            return Placement(mode, placement.devices)
    return None


def back_to(task: Task, view: View) -> Placement | None:
    """The fastest mode on the whole accelerator on which the task now has a fraction and nobody else runs."""
    placement = view.placement_of(task)
    if placement is None or not is_fraction(placement.mode) or not task.shape.preemptible:
        return None
    now, device = placement.mode, placement.devices[0]
    if len(view.running_on(device)) > 1 or view.stage_of(task) != "compute" or task.reads or task.writes:
        return None
    free = view.free_on(device.node, "cpu") * 1000
    for position in task.modes_by_speed():
        mode = task.modes[position]
        if mode.type is now.type and mode.gpus == 1 and mode.whole and now.type.sharing.kind != "mig":
            memory = device.type.memory
            room = memory is None or mode.gpu_memory <= memory
            if room and mode.cpus <= free + now.cpus and mode.memory <= now.memory:
                return Placement(mode, placement.devices)
    return None
