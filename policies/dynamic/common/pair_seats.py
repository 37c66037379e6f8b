"""Which jobs share devices in a round, and which devices: jobs chosen in pairs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from policies.dynamic.common.labels import takes_pairs
from policies.dynamic.common.rounds import RoundJob, RoundRoom
from sim.model.cluster import WHOLE, Cluster
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task
from sim.policy import View


class PairedJob(RoundJob):
    """A job with ways beside others: after its modes, by (position, the partner's label)."""

    __slots__ = ("labels", "ways", "partner", "_numbers")

    def __init__(self, task: Task, labels: list[int]):
        super().__init__(task)
        self.labels = labels
        """Its own label by position; -1: it shares with no job there."""
        self.ways = [(position, -1) for position in range(len(task.modes))]
        self.partner: PairedJob | None = None
        """The job that runs on the same devices."""
        self._numbers = {way: number for number, way in enumerate(self.ways)}

    def way_of(self, position: int, label: int) -> int:
        """The number of a way, alone (-1) or beside a label; a new one has received nothing."""
        way = (position, label)
        number = self._numbers.get(way)
        if number is None:
            number = self._numbers[way] = len(self.ways)
            self.ways.append(way)
            for times in (self.target, self.due, self.received):
                times.append(0.0)
        return number


def paired(job: RoundJob) -> PairedJob:
    """A job of a scheduler that forms pairs."""
    assert isinstance(job, PairedJob)
    return job


class SeatedJob(NamedTuple):
    """A job that is to run in this round, in the mode of this position."""

    job: PairedJob
    position: int

    @property
    def row(self) -> int:
        return self.job.task.index

    @property
    def mode(self) -> Mode:
        return self.job.task.modes[self.position]


def with_partner(
    one: SeatedJob, others: Sequence[SeatedJob], taken: Collection[int], stays: Collection[int]
) -> tuple[SeatedJob, ...]:
    """The job and the first of the others that may join it; empty if there is none.

    Of the jobs that stay where they run, in their mode, a pair can have one.
    """
    for other in others:
        if other.row in taken or other.job is one.job:
            continue
        if other.row not in stays or (one.row not in stays and other.position == other.job.mode):
            return one, other
    return ()


class PairRoom(RoundRoom):
    """Room in which a device that takes pairs counts as one, and two may be joined on it."""

    def __init__(self, cluster: Cluster, down: dict[int, None]):
        super().__init__(cluster, down)
        for node in self.nodes:
            for device in node.accelerators:
                if takes_pairs(device.type) and device.index in self.left:
                    self.left[device.index] = WHOLE
        self.chosen: dict[int, None] = {}
        """Jobs to run in this round; others may go on where no job needs their devices."""
        self.places: dict[int, Placement] = {}
        """Jobs to start, and where."""
        self.beside: dict[int, PairedJob] = {}
        """The partners on the same devices, of the jobs that start."""

    def stay(self, job: PairedJob, view: View) -> bool:
        """The job goes on where it runs, and needs devices of its own; False: beside its partner, or nowhere."""
        if self.keep(job, view):
            return True
        if job.partner is not None:
            self.stay_beside(job, view)
        return False

    def stay_beside(self, job: PairedJob, view: View) -> bool:
        """The job goes on beside a partner that has the devices."""
        placement = view.launch_of(job.task).placement
        if placement is None or not self.join(placement):
            return False
        self.kept[job.task.index] = None
        return True

    def seat(self, some: Sequence[SeatedJob], view: View) -> None:
        """A job or a pair, if possible where one of them runs."""
        first = self._at_home(some, view)
        placement = view.launch_of(first.job.task).placement if first is not None else self.place(some[0].mode)
        if placement is None:
            return
        if first is None:
            first = some[0]
            self.places[first.row] = placement
        self.chosen[first.row] = None
        for other in some:
            there = Placement(other.mode, placement.devices)
            if other is first or not self.join(there):
                continue
            self.chosen[other.row] = None
            if other.job.partner is first.job and first.row in self.kept and other.position == other.job.mode:
                self.kept[other.row] = None
            else:
                self.places[other.row] = there
                self.beside[other.row] = first.job

    def _at_home(self, some: Sequence[SeatedJob], view: View) -> SeatedJob | None:
        """The one that may go on where it runs; those that have to stay are tried first."""
        for one in sorted(some, key=lambda one: one.row not in self.kept):
            if one.job.mode == one.position and (one.row in self.kept or self.keep(one.job, view)):
                return one
        return None

    def join(self, placement: Placement) -> bool:
        """Its part of the host for a job beside a partner that has these devices."""
        mode, parts = placement.mode, self.parts(placement)
        if not all(self.host_holds(node, mode, part) for node, part in parts.items()):
            return False
        for node, part in parts.items():
            self.take_host(node, mode, part)
        return True


def first_apart(mode: Mode, view: View) -> Placement | None:
    """The first devices where a mode fits without a partner: of one that takes pairs no more than one is used."""
    if mode.on_cpu or not takes_pairs(mode.type):
        return view.first(mode)
    for node in view.nodes.fitting(mode):
        devices = [
            device for device in view.cluster.nodes[node].accelerators
            if device.type is mode.type and view.load(device) + mode.share / WHOLE <= 1.0
        ]  # fmt: skip
        placement = Placement(mode, tuple(devices[: mode.gpus]))
        if len(devices) >= mode.gpus and view.fits(mode, placement):
            return placement
    return None
