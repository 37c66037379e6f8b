"""Rounds with pairs: two jobs on the same devices at once, where the program says so.

Adds to `rounds` what Gavel calls space sharing.  Besides alone, a job may run in a mode beside a partner, at the speed
that was measured for their classes (`sharing: pairs` of the type of device, as `gavel_gpus` reads them); equally
wide gangs count as pairs of jobs do.  The program chooses among both.  A pair counts once against the devices, each
job runs for at most all the time, alone or not, and two that cannot share have no fraction.
A job's time is accounted for alone and beside each label by itself, as its speed depends on that alone; so no history
is lost when partners come and go.  In a round the most urgent way goes first; if it is beside a label, the partner is
the most urgent job of that label that is to be beside this one's, and both are placed at once.  A job that is left
alone within a round computes on alone until its end, and waiting jobs are started in between only on empty devices.
Reference: Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads (Gavel, OSDI
2020), section 3.1.  Theirs is one fraction for each two jobs; the same optimum from fewer columns: see `ties`.
Strays: where every job is always alone or always beside one other, on one type, with equal widths, a pair takes turns
as one job does, and under `deficit` no job lags by more than 1 + ln n rounds (see `rounds`).  Else there is no bound:
the program does not see all that keeps jobs from meeting (see `ties`), and ways are chosen greedily.  Of eight jobs on
two types, with all their time in pairs, each made at least 0.8 of the progress that was promised, in half of the draws
more than 0.97; a job that finds no partner runs alone meanwhile.
Weakness: as no progress is certain, neither is an equal share.  What a host has to hold for two jobs at once is not in
the program: of such a pair one job runs.  Only whole devices by time slices (`streams: 2`) are shared.
Cost: programs of jobs × labels columns (128 jobs of 26 classes on three types: 7,000; 0.02 s where jobs of a class
are alike, 0.2 s where no two are), and a sort of all ways with a fraction, a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from policies.dynamic.common.fractions import ModeOffers
from policies.dynamic.common.labels import Labels, takes_pairs
from policies.dynamic.common.pair_seats import PairedJob, PairRoom, SeatedJob, first_apart, paired, with_partner
from policies.dynamic.common.rounds import TURN, RoundJob, RoundLength, RoundScheduler, Rule
from sim.errors import Problem, ScenarioError
from sim.model.cluster import Cluster
from sim.model.plan import Placement
from sim.model.tasks import Mode, Task
from sim.policy import Decision, PlanProblem, Stop, View

Threshold = Annotated[float, Field(ge=1)]


class SideBySideScheduler(RoundScheduler):
    """Base of the policies that are fractions of time, of jobs alone and, if asked for, in pairs.

    pairs: may two jobs share devices where that was measured?  Then no job shares them otherwise.
    threshold: pairs count only where the sum of both speeds, each against alone, is greater.
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
            text = (
                "pairs: true, and no type of GPU here has measured pairs; give one streams: 2 and sharing: {kind: "
                "timeslice, pairs: {...}}, or take the nodes from a table of throughputs (gavel_gpus)"
            )
            raise ScenarioError(Problem(text, key="policy.scheduler"))

    def job_of(self, task: Task) -> RoundJob:
        return PairedJob(task, self.labels.of(task)) if self.pairs else RoundJob(task)

    # Hooks ------------------------------------------------------------------------------------------------------

    def ready(self, task: Task) -> None:
        self._part(task)
        super().ready(task)

    def finished(self, task: Task) -> None:
        self._part(task)
        super().finished(task)

    def _part(self, task: Task) -> None:
        """It runs no more: a partner goes on alone."""
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
        """From now on a running job runs in another way."""
        job.received[job.way] += view.now - max(self._counted, job.since)
        job.way, job.since = way, view.now

    def _meet(self, one: PairedJob, other: PairedJob, view: View) -> None:
        """Two run on the same devices from now on."""
        for job, partner in ((one, other), (other, one)):
            job.partner = partner
            self._turn(job, job.way_of(job.mode, partner.labels[partner.mode]), view)

    # Fractions --------------------------------------------------------------------------------------------------

    def offers(self, jobs: list[RoundJob], cluster: Cluster) -> tuple[ModeOffers, list[int]]:
        offers, ways = super().offers(jobs, cluster)
        if not self.pairs:
            return offers, ways
        mine = offers.job.tolist()
        labels = [paired(jobs[number]).labels[way] for number, way in zip(mine, ways, strict=True)]
        there: dict[int, int] = {}
        for label in labels:
            if label >= 0:
                there[label] = there.get(label, 0) + 1
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
            offers.job[source], offers.kind[source], widths, offers.time[source] / np.array(speed), offers.capacity,
            offers.weight, np.array(labels, dtype=int)[source], mates,
        ), ways  # fmt: skip

    # Rounds -----------------------------------------------------------------------------------------------------

    def _content(self) -> bool:
        return super()._content() and not any(isinstance(job, PairedJob) and job.partner for job in self.jobs.values())

    def _may_stop(self, job: RoundJob, view: View) -> bool:
        if not isinstance(job, PairedJob) or job.labels[job.mode] < 0:
            return super()._may_stop(job, view)
        # Of a shared device each has half, so what it attained says little about how long it computed.
        task = job.task
        if not task.shape.preemptible or view.launch_of(task).stage != "compute":
            return False
        computed = view.attained(task) - job.attained
        return computed >= 0.5 * TURN * self.round_length * task.modes[job.mode].width * (1 - 1e-9)

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
        room.expect([(one.job, one.position) for some in chosen for one in some], view)
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
        """Jobs, alone or two by two, by urgency of their ways, as many as there are devices for; each job once.

        A job that stays where it runs, as it may not be stopped, needs no further devices, alone or with a partner.
        """
        wanted = [
            (self.urgency(job, way), SeatedJob(job, job.ways[way][0]), job.ways[way][1])
            for job in map(paired, self.jobs.values())
            for way, target in enumerate(job.target)
            if target > 0 and (self.spare or self._lags(job, way))
        ]
        wanted.sort(key=lambda entry: entry[0], reverse=True)  # stable: ties by arrival
        meeting: dict[tuple[int, int], list[SeatedJob]] = {}
        for _, one, label in wanted:
            if label >= 0:
                meeting.setdefault((one.job.labels[one.position], label), []).append(one)
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
        """Is it to run elsewhere, or do others get its devices?"""
        index, partner = job.task.index, job.partner
        if index in room.places:
            return True
        if index in room.kept or (self.spare and room.keep(job, view)):
            return False
        # Two jobs that were not chosen go on together as long as no job needs their devices.
        idle = partner is not None and partner.task.index in room.kept and partner.task.index not in room.chosen
        return not (self.spare and idle and room.stay_beside(job, view))

    def first(self, mode: Mode, view: View) -> Placement | None:
        return first_apart(mode, view) if self.pairs else super().first(mode, view)
