"""Rounds with pairs: two jobs on the same devices, as a linear program decides.

This adds to `rounds` what Gavel calls space sharing.  In a mode a job may run alone, or share its devices with a
partner, at the speed measured for the two classes (`sharing: pairs` of the device type, as read from `gavel_gpus`).
Gangs may share devices with gangs of equal width.  The program decides the fraction of time of each possibility: a pair
occupies its devices once, and the fractions of a job sum to at most 1.  Jobs of one class in equal modes have the same
label, on which a partner's speed depends.  So the time that a job has received is counted separately for running alone
and for each label of its partner.  In a round, combinations of job, mode and partner label are served in the order of
urgency.  A job with a partner label is placed together with the most urgent job of that label that wants a partner of
the first job's label.  A job whose partner ends within a round continues alone; waiting jobs start within a round only
on empty devices.
Reference: Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads (Gavel, OSDI
2020), section 3.1.  Gavel's program has a column per pair of jobs; this one has fewer columns and the same optimum (see
`ties`).
Bounds: if every job always runs alone or always with the same partner, on one type with equal widths, the bound of
`rounds` holds with `deficit`.  Otherwise there is no bound, since the program ignores some constraints on pairs (see
`ties`) and combinations are chosen greedily.  In samples of eight jobs on two types that always run in pairs, each job
made at least 0.8 of its promised progress, in half of the samples more than 0.97.
Weakness: progress is not guaranteed, not even that of an equal share.  The program ignores that the jobs of a pair need
host memory and cores simultaneously: if these do not suffice, only one of the two runs.  Only whole devices are shared,
by time slices (`streams: 2`).  Cost: programs of jobs × labels columns (128 jobs of 26 classes on three types:  7,000;
0.02 s if jobs of a class are equal, 0.2 s if all differ), and a sort of all combinations with a fraction, per round.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from hetsim.errors import refusal
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import WHOLE, DeviceType
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.policy import Decision, PlanProblem, Stop, View
from hetsim_policies.common import grouped
from hetsim_policies.dynamic.common.fractions import ModeOffers
from hetsim_policies.dynamic.common.pairs import is_shared
from hetsim_policies.dynamic.common.rounds import RoundJob, RoundLength, RoundRoom, RoundScheduler, Rule

Threshold = Annotated[float, Field(ge=1)]


class PairedJob(RoundJob):
    """A job that may share its devices with a partner.

    A way to run it is a mode (its position) and the label of a partner; label -1: it runs alone.
    """

    __slots__ = ("labels", "ways", "partner", "_numbers")

    def __init__(self, task: Task, labels: list[int]):
        super().__init__(task)
        self.labels = labels  # its own label by position; -1: it shares with no job there
        self.ways = [(position, -1) for position in range(len(task.modes))]
        self.partner: PairedJob | None = None  # the job that runs on the same devices
        self._numbers = {way: number for number, way in enumerate(self.ways)}

    def way_of(self, position: int, label: int) -> int:
        """Return the index in `ways` of (mode, partner's label), added if new; -1: alone."""
        way = (position, label)
        if (number := self._numbers.get(way)) is None:
            number = self._numbers[way] = len(self.ways)
            self.ways.append(way)
            for times in (self.target, self.due, self.received):
                times.append(0.0)
        return number


def paired(job: RoundJob) -> PairedJob:
    assert isinstance(job, PairedJob)
    return job


class SeatedJob(NamedTuple):
    """A job that runs in this round, in mode number `position` of its task."""

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
    """Return the job `one` and the first of `others` that may join it; () if none may.

    taken: rows of jobs already chosen.  stays: rows of jobs that must stay where they run; two of them never pair.
    """
    for other in others:
        if other.row in taken or other.job is one.job:
            continue
        if other.row not in stays or (one.row not in stays and other.position == other.job.mode):
            return one, other
    return ()


class PairRoom(RoundRoom):
    """Free devices of a scheduling round; two jobs may share one device."""

    def __init__(self, cluster: Cluster, down: Collection[int]):
        super().__init__(cluster, down)
        for node in self.nodes:
            for device in node.accelerators:
                if takes_pairs(device.type) and device.index in self.room:
                    self.room[device.index] = WHOLE
        # Jobs to run in this round; others may continue if no job needs their devices
        self.chosen: dict[int, None] = {}
        self.places: dict[int, Placement] = {}  # jobs to start, and where
        self.beside: dict[int, PairedJob] = {}  # the partners on the same devices, of the jobs that start

    def stay(self, job: PairedJob, view: View) -> bool:
        """Keep a running job where it is, in this round's count of free devices.

        True: devices are reserved for it alone.  False: they are not free; if its partner has them, both share them.
        """
        if self.keep(job):
            return True
        if job.partner is not None:
            self.stay_beside(job, view)
        return False

    def stay_beside(self, job: PairedJob, view: View) -> bool:
        """Reserve a job's devices next to its partner; return False if this is impossible."""
        if (placement := view.launch_of(job.task).placement) is None or not self.join(placement):
            return False
        self.kept[job.task.index] = None
        return True

    def seat(self, some: Sequence[SeatedJob], view: View) -> None:
        """Place a job or a pair, if possible on devices on which one of the jobs runs."""
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
        for one in sorted(some, key=lambda one: one.row not in self.kept):
            if one.job.mode == one.position and (one.row in self.kept or self.keep(one.job)):
                return one
        return None

    def join(self, placement: Placement) -> bool:
        """Occupy cores and memory for a job that joins another's GPUs; False: no room."""
        mode, parts = placement.mode, self.parts(placement)
        if not all(self.host_holds(node, mode, part) for node, part in parts.items()):
            return False
        for node, part in parts.items():
            self.take_host(node, mode, part)
        return True


class SideBySideScheduler(RoundScheduler):
    """Base of policies of time fractions, with or without pairs of jobs.

    pairs: two jobs may share devices if their slowdowns were measured; they do not share otherwise.
    threshold: two jobs may be a pair if the sum of their speeds, each relative to running alone, exceeds this.
    """

    def __init__(
        self, round_length: RoundLength = 360.0, rule: Rule = "ratio", pairs: bool = False, threshold: Threshold = 1.0,
        mid_round: bool = True,
    ):  # fmt: skip
        super().__init__(round_length, rule, mid_round)
        self.pairs = pairs
        self.labels = Labels(threshold)
        self._parted: list[PairedJob] = []

    def check(self, problem: PlanProblem) -> None:
        if self.pairs and not any(takes_pairs(kind) for kind in problem.cluster.types.values()):
            raise refusal(
                "pairs: true needs a GPU type with measured pairs; give one streams: 2 and sharing: {kind: "
                "timeslice, pairs: {...}}, or read the nodes from a table of throughputs (gavel_gpus)"
            )

    def job_of(self, task: Task) -> RoundJob:
        return PairedJob(task, self.labels.of_task(task)) if self.pairs else RoundJob(task)

    def ready(self, task: Task) -> None:
        self._part(task)
        super().ready(task)

    def finished(self, task: Task) -> None:
        self._part(task)
        super().finished(task)

    def _part(self, task: Task) -> None:
        job = self.jobs.get(task.index)
        if isinstance(job, PairedJob) and job.partner is not None:
            partner, job.partner = job.partner, None
            if partner.partner is job:
                partner.partner = None
                self._parted.append(partner)

    def schedule(self, view: View) -> Iterator[Decision]:
        self._settle_parted(view)
        yield from super().schedule(view)

    def _settle_parted(self, view: View) -> None:
        parted, self._parted = self._parted, []
        for job in parted:
            if job.mode >= 0 and job.partner is None:
                self._turn(job, job.mode, view)

    def _turn(self, job: PairedJob, way: int, view: View) -> None:
        """Add the job's time to its present way (mode and partner's label); begin `way`."""
        job.received[job.way] += view.now - max(self._counted, job.since)
        job.way, job.since = way, view.now

    def _meet(self, one: PairedJob, other: PairedJob, view: View) -> None:
        for job, partner in ((one, other), (other, one)):
            job.partner = partner
            self._turn(job, job.way_of(job.mode, partner.labels[partner.mode]), view)

    def offers(self, jobs: list[RoundJob], cluster: Cluster) -> tuple[ModeOffers, list[int]]:
        offers, ways = super().offers(jobs, cluster)
        if not self.pairs:
            return offers, ways
        mine = offers.job.tolist()
        labels = [paired(jobs[number]).labels[way] for number, way in zip(mine, ways, strict=True)]
        there = Counter(label for label in labels if label >= 0)
        partners = {label: list(self.labels.beside(label, there)) for label in there}
        source, beside, speed = list(range(len(mine))), [-1] * len(mine), [1.0] * len(mine)
        for row, label in enumerate(labels):
            for other, fast in partners.get(label, ()):
                source.append(row)
                beside.append(other)
                speed.append(fast)
                ways.append(paired(jobs[mine[row]]).way_of(ways[row], other))
        mates = np.array(beside, dtype=int)
        widths = offers.width[source] * np.where(mates < 0, 1.0, 0.5)
        return ModeOffers(
            offers.job[source], offers.kind[source], widths, time=offers.time[source] / np.array(speed),
            capacity=offers.capacity,
            weight=offers.weight, own=np.array(labels, dtype=int)[source], partner=mates,
        ), ways  # fmt: skip

    def _content(self) -> bool:
        return super()._content() and not any(isinstance(job, PairedJob) and job.partner for job in self.jobs.values())

    def _may_stop(self, job: RoundJob, view: View, part: float = 1.0) -> bool:
        # Of a shared device each has half, so what it attained says little about how long it computed.
        shared = isinstance(job, PairedJob) and job.labels[job.mode] >= 0
        return super()._may_stop(job, view, part=0.5 if shared else part)

    def _change_hands(self, view: View) -> Iterator[Decision]:
        if not self.pairs:
            yield from super()._change_hands(view)
            return
        room = PairRoom(view.cluster, self._down)
        free = dict(zip(self._kinds, self._capacity(view.cluster).tolist(), strict=True))
        stays: dict[int, PairedJob] = {}
        for job in map(paired, self.jobs.values()):
            if job.mode >= 0 and not self._may_stop(job, view):
                stays[job.task.index] = job
                if room.stay(job, view):
                    mode = job.task.modes[job.mode]
                    free[mode.type.name] -= mode.width
        chosen = self._choose_ways(free, stays)
        room.expect([(one.job, one.position) for some in chosen for one in some])
        for some in sorted(chosen, key=lambda some: -some[0].mode.width):
            room.seat(some, view)
        stopped = [job for job in map(paired, self._running_by_urgency()) if self._has_to_go(job, room, view)]
        for job in stopped:
            yield Stop(job.task)
        for index, placement in room.places.items():
            job, partner = paired(self.jobs[index]), room.beside.get(index)
            if view.fits(placement.mode, placement) and view.holds(job.task, placement):
                yield self._start(job, placement, view)
                if partner is not None and partner.mode >= 0:
                    self._meet(job, partner, view)
        self._settle_parted(view)

    def _choose_ways(self, free: dict[str, float], stays: dict[int, PairedJob]) -> list[tuple[SeatedJob, ...]]:
        """Choose the jobs of a round, alone or in pairs, by urgency; each job once.

        free: devices by type; stays: jobs that must stay where they run, by row.
        """
        wanted = [
            (self.urgency(job, way), SeatedJob(job, job.ways[way][0]), job.ways[way][1])
            for job in map(paired, self.jobs.values())
            for way, target in enumerate(job.target)
            if target > 0 and (self.spare or self._lags(job, way))
        ]
        wanted.sort(key=lambda entry: entry[0], reverse=True)  # stable: ties by arrival
        meeting = grouped(((one.job.labels[one.position], label), one) for _, one, label in wanted if label >= 0)
        taken = {index for index, job in stays.items() if job.partner is not None and job.partner.task.index in stays}
        chosen: list[tuple[SeatedJob, ...]] = []
        for _, one, label in wanted:
            if one.row in taken or (one.row in stays and one.position != one.job.mode):
                continue
            some: tuple[SeatedJob, ...] = (one,)
            if label >= 0:
                some = with_partner(one, meeting.get((label, one.job.labels[one.position]), []), taken, stays)
            needed = 0.0 if any(one.row in stays for one in some) else one.mode.width
            if some and needed <= free[one.mode.type.name] + 1e-9:
                free[one.mode.type.name] -= needed
                taken.update(one.row for one in some)
                chosen.append(some)
        return chosen

    def _has_to_go(self, job: PairedJob, room: PairRoom, view: View) -> bool:
        index, partner = job.task.index, job.partner
        if index in room.places:
            return True
        if index in room.kept or (self.spare and room.keep(job)):
            return False
        # Two jobs that were not chosen go on together as long as no job needs their devices.
        idle = partner is not None and partner.task.index in room.kept and partner.task.index not in room.chosen
        return not (self.spare and idle and room.stay_beside(job, view))

    def first(self, mode: Mode, view: View) -> Placement | None:
        return first_apart(mode, view) if self.pairs else super().first(mode, view)


def first_apart(mode: Mode, view: View) -> Placement | None:
    """Return the first devices on which a mode fits without sharing a GPU, if any."""
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


# Labels of jobs that share devices, and speeds of two labels next to each other.  A mode can share if it has whole
# accelerators with time slices (`streams: 2`) and measured pairs of classes (`sharing: pairs`).  The label is all that
# matters to a partner: class, type and number of devices, memory, allowed nodes.  Gangs pair with gangs of equal width.


def takes_pairs(kind: DeviceType) -> bool:
    """Return True if slowdowns of pairs on this type were measured."""
    return kind.streams > 1 and kind.sharing.kind == "timeslice" and bool(kind.sharing.pairs)


class Labels:
    """Numbers (labels) of the kinds of jobs so far, and which may share devices.

    Jobs of one class in equal modes have the same label.
    threshold: two labels may share if the sum of both speeds, each relative to running alone, is greater.  With 1, all
        useful pairs may: jobs whose speeds sum to less run at least as fast if they take turns.
    """

    def __init__(self, threshold: float = 1.0):
        self.threshold = threshold
        self._numbers: dict[tuple, int] = {}
        self._members: list[tuple[str, Mode]] = []
        self._speeds: dict[tuple[int, int], tuple[float, float] | None] = {}

    def of_task(self, task: Task) -> list[int]:
        """Return a label for each mode of a task, by position; -1: it shares no devices.

        Jobs of one class with equal demands share a label.  Among modes with equal demands only the fastest has one.
        """
        labels = [-1] * len(task.modes)
        for position in task.modes_by_speed():
            mode = task.modes[position]
            if not is_shared(mode) or not takes_pairs(mode.type):
                continue
            key = (task.class_, mode.type.name, mode.gpus, mode.gpu_memory, mode.nodes, mode.span_any)
            if (number := self._numbers.setdefault(key, len(self._numbers))) == len(self._members):
                self._members.append((task.class_, mode))
            # A job with two variants of one width could else be its own partner.
            if not any(label >= 0 and self._same_devices(label, number) for label in labels):
                labels[position] = number
        return labels

    def beside(self, label: int, others: dict[int, int]) -> Iterator[tuple[int, float]]:
        """Yield (other label, speed) for jobs that can share devices with jobs of `label`.

        speed: relative speed of a job of `label` next to such a job.  others: number of jobs by label.
        """
        for other, count in others.items():
            if (other != label or count > 1) and (pair := self.speeds(label, other)) is not None:
                yield other, pair[0]

    def speeds(self, one: int, other: int) -> tuple[float, float] | None:
        """Return relative speeds of two labels' jobs on shared devices; None: do not pair."""
        if (one, other) not in self._speeds:
            self._speeds[one, other] = self._measured(one, other)
        return self._speeds[one, other]

    def _measured(self, one: int, other: int) -> tuple[float, float] | None:
        (first, mode), (second, its) = self._members[one], self._members[other]
        memory = mode.type.memory
        if not self._same_devices(one, other) or mode.nodes != its.nodes or mode.span_any != its.span_any:
            return None
        if memory is not None and mode.gpu_memory + its.gpu_memory > memory:
            return None
        sharing = mode.type.sharing
        slices = 0.5 * (1.0 - sharing.switch_cost)  # what the engine gives pairs that were not measured
        slower = sharing.slower.get((first, second)), sharing.slower.get((second, first))
        if math.inf in slower:
            return None
        speeds = tuple(slices if times is None else 1.0 / times for times in slower)
        return (speeds[0], speeds[1]) if sum(speeds) > self.threshold * (1 + 1e-9) else None

    def _same_devices(self, one: int, other: int) -> bool:
        mode, its = self._members[one][1], self._members[other][1]
        return mode.type is its.type and mode.gpus == its.gpus
