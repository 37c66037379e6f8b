"""Rounds that realize time fractions: the base of policies that compute fractions.

Decides when, in which mode and where.  A subclass computes the fraction of time that each job should run in each of its
modes.  At the beginning of each round the pairs of job and mode that are most behind their fractions get the devices;
other running jobs are stopped, without loss of work.  With rule `ratio` the most urgent pair has the largest ratio of
the time due to it to the time that it received, as in Narayanan et al., Heterogeneity-Aware Cluster Scheduling Policies
for Deep Learning Workloads (Gavel, OSDI 2020); both times are summed over the job's life, so that no history is lost
when fractions change.  With rule `deficit` it has the largest difference of the two times.
Bounds: for jobs of equal width on one type, with `deficit`, each of n jobs is at most 1 + ln n rounds behind its
fractions at any time (Adler, Berenbrink, Friedetzky, Goldberg, Goldberg, Paterson, A Proportionate Fair Scheduling Rule
with Good Worst-case Performance, SPAA 2003, show ln n up to a constant).  No such bound is known for gangs, for several
types (no job runs on two types at a time), and for `ratio`.
Within a round, waiting jobs start on free devices in the same order, in any of their modes that fits, unless the policy
keeps devices idle.  With `mid_round: false`, as in the simulators of Gavel and Shockwave, free devices are idle until
the round ends, and new jobs wait for the next round; a round ends early if no job runs.
Weakness: every switch costs a save and a restore, so a round should be long compared with these; a job that has
computed for less than half a round since its start is not stopped.  Estimates are trusted.
Cost: once a round, a sort of all jobs, a pass over the nodes for each switched job, and the subclass's program; within
a round linear in the waiting jobs after each release.
"""

import math
from collections.abc import Collection, Iterator
from operator import itemgetter
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from hetsim.model.cluster import Cluster, Node
from hetsim.model.device import Device
from hetsim.model.device_type import WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Decision, PlanProblem, Scheduler, Start, Stop, View, Wait, WantedReplica
from hetsim_policies.dynamic.common.fractions import ModeOffers

RoundLength = Annotated[Seconds, Field(gt=0)]
Rule = Literal["ratio", "deficit"]

NOTHING = 1e-6  # a smaller fraction is rounding of the program
SHORTEST = 1e-9  # seconds that a task of no length is taken to last
# Seconds per waiting job at an instant with arrivals or ends, with rounds of 6 minutes (docs/speed.md)
ROUND_COST = 3e-6

TURN = 0.5  # a job that has computed for less than this part of a round since its start is not stopped


class RoundJob:
    __slots__ = (
        "task", "target", "due", "received", "mode", "way", "since", "attained", "share", "alone", "placement", "rows",
    )  # fmt: skip

    def __init__(self, task: Task):
        self.task = task
        count = len(task.modes)
        self.target = [0.0] * count  # fraction of the time
        self.due = [0.0] * count  # seconds that its fractions gave it so far
        self.received = [0.0] * count  # seconds for which it ran
        self.mode = -1  # position of the mode in which it runs; -1 while it waits
        self.way = -1  # the way that this is
        self.since = 0.0
        self.attained = 0.0  # device-seconds it had received when it started
        self.share = 0.0  # its progress, jobs per second, on an equal share
        self.alone = 0.0  # the part of it that would be done by now on an equal share since its arrival
        self.placement: Placement | None = None  # where it runs, or ran last
        # (type, devices, seconds, position) of each mode that can be offered, once computed
        self.rows: list[tuple[int, float, float, int]] = []

    def positions(self) -> range | tuple[int, ...]:
        return self.task.allowed or range(len(self.task.modes))

    def seconds(self, position: int) -> float:
        return max(SHORTEST, self.task.estimate_at(position))

    def remaining(self, view: View) -> float:
        """Estimated remaining fraction of a job, at least 0.01 even if it overruns."""
        part = 1.0 - self.task.done
        if self.mode >= 0 and self.task.state == RUNNING:
            part = view.remaining(self.task) / self.seconds(self.mode)
        return min(1.0, max(0.01, part))


class RoundScheduler(Scheduler):
    """Base of the policies that give jobs fractions of time in rounds.

    round_length: seconds of a round.
    rule: the most urgent job has the largest time due / time received (ratio), or the largest difference (deficit).
    mid_round: jobs may start within a round, when they arrive or devices become free.
    """

    rejects = False

    spare = True  # true if jobs may run beyond their fractions on devices that would else stand idle

    moving = False  # True if the fractions depend on more than the jobs and devices and are recomputed every round

    def __init__(self, round_length: RoundLength = 360.0, rule: Rule = "ratio", mid_round: bool = True):
        if not round_length > 0:
            raise ValueError(f"round_length must be above 0; got {round_length:g} s")
        self.round_length = round_length
        self.rule = rule
        self.mid_round = mid_round
        self.jobs: dict[int, RoundJob] = {}
        self._down: set[int] = set()
        self._held: dict[int, None] = {}  # accelerators that replicas of language models keep
        self._with_replicas: bool | None = None  # None: not known yet
        self._counts: tuple[Any, np.ndarray] = (None, np.zeros(0))  # devices by type, and what they were counted for
        self._kinds: dict[str, int] = {}
        self._next = -math.inf
        self._counted = 0.0
        self._stale = True
        self._tried = -1  # releases when waiting jobs were last tried; -1: others have come since

    def fractions(self, offers: ModeOffers, jobs: list[RoundJob], view: View) -> np.ndarray:
        """Return the fraction of time for which each offered (job, mode) should run."""
        raise NotImplementedError

    def job_of(self, task: Task) -> RoundJob:
        return RoundJob(task)

    def round_cost(self, problem: PlanProblem) -> float:
        return ROUND_COST

    def ready(self, task: Task) -> None:
        if (job := self.jobs.get(task.index)) is None:
            self.jobs[task.index] = self.job_of(task)
            self._stale = True
        else:  # it was stopped, by this policy or because a device failed
            job.mode = -1
        self._tried = -1

    def finished(self, task: Task) -> None:
        self._stale |= self.jobs.pop(task.index, None) is not None

    def gone(self, task: Task) -> None:
        self.finished(task)

    def device(self, device: Device, up: bool) -> None:
        (self._down.discard if up else self._down.add)(device.index)
        self._stale = True

    def replica(self, wanted: WantedReplica, view: View) -> Placement | None:
        self._with_replicas = True
        return super().replica(wanted, view)

    def schedule(self, view: View) -> Iterator[Decision]:
        if not self.jobs:
            return
        ended_early = not self.mid_round and all(job.mode < 0 for job in self.jobs.values())
        begins = view.now >= self._next or ended_early
        if begins:
            self._next = view.now + self.round_length
            self._account(view)
            if self._stale or (self.moving and not self._content()):
                self._set_targets(view)
            if not (self.spare and self._content()):
                yield from self._change_hands(view)
        if self.spare and (begins or self.mid_round):
            yield from self._fill(view)
        yield Wait(until=self._next)

    def _account(self, view: View) -> None:
        now, counted = view.now, self._counted
        seconds = now - counted
        for job in self.jobs.values():
            due = job.due
            for position, target in enumerate(job.target):
                if target:
                    due[position] += target * seconds
            job.alone += job.share * seconds
            if job.mode >= 0:
                since = job.since
                job.received[job.way] += now - (counted if counted > since else since)
        self._counted = now

    def _set_targets(self, view: View) -> None:
        jobs = list(self.jobs.values())
        self._held = self._held_by_replicas(view)
        offers, ways = self.offers(jobs, view.cluster)
        fraction = self.fractions(offers, jobs, view)
        for job, share in zip(jobs, offers.fair_progress.tolist(), strict=True):
            job.target = [0.0] * len(job.target)
            job.share = share
        for number, way, part in zip(offers.job.tolist(), ways, fraction.tolist(), strict=True):
            jobs[number].target[way] = part if part > NOTHING else 0.0
        self._stale = False

    def offers(self, jobs: list[RoundJob], cluster: Cluster) -> tuple[ModeOffers, list[int]]:
        """Return all offers (a job in one of its modes), as columns of a linear program.

        Modes on types with too few devices up are left out.  The list has, for each offer, the position of its mode in
        the job's list of modes.
        """
        if not self._kinds:
            self._kinds = {name: number for number, name in enumerate(cluster.types)}
        capacity = self._capacity(cluster)
        room = capacity.tolist()
        rows: list[tuple[int, float, float, int]] = []
        numbers: list[int] = []
        for number, job in enumerate(jobs):
            for row in job.rows or self._rows(job):
                if row[1] <= room[row[0]]:
                    rows.append(row)
                    numbers.append(number)
        kinds, widths, seconds, positions = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [])
        weight = np.array([job.task.weight for job in jobs])
        offers = ModeOffers(
            np.array(numbers, dtype=int), np.array(kinds, dtype=int), np.maximum(np.array(widths, dtype=float), 1e-3),
            time=np.array(seconds, dtype=float), capacity=capacity, weight=np.maximum(weight, 1e-9),
        )  # fmt: skip
        return offers, positions

    def _rows(self, job: RoundJob) -> list[tuple[int, float, float, int]]:
        modes = [(job.task.modes[position], job.seconds(position), position) for position in job.positions()]
        job.rows = [(self._kinds[m.type.name], m.width, seconds, p) for m, seconds, p in modes if seconds < math.inf]
        return job.rows

    def _held_by_replicas(self, view: View) -> dict[int, None]:
        if self._with_replicas is False:
            return {}
        own = {
            device.index for job in self.jobs.values() if job.mode >= 0 and job.placement is not None
            for device in job.placement.devices
        }  # fmt: skip
        kept_busy: dict[int, None] = {
            device.index: None for node in view.cluster.nodes for device in node.accelerators
            if device.index not in own and view.load(device) > 0 and view.free_at(device) == math.inf
        }  # fmt: skip
        self._with_replicas = bool(self._with_replicas or kept_busy)
        return kept_busy

    def _capacity(self, cluster: Cluster) -> np.ndarray:
        """Number of devices that are up and without replicas, by type (of CPUs: cores)."""
        counted_for = frozenset(self._down), tuple(self._held)
        if self._counts[0] == counted_for:
            return self._counts[1].copy()
        capacity = np.zeros(len(self._kinds))
        for node in cluster.nodes:
            if node.cpu.index in self._down:
                continue
            capacity[self._kinds[node.cpu.type.name]] += node.cpus
            for device in node.accelerators:
                if device.index not in self._down and device.index not in self._held:
                    capacity[self._kinds[device.type.name]] += 1
        self._counts = counted_for, capacity
        return capacity.copy()

    def urgency(self, job: RoundJob, way: int) -> tuple[float, float]:
        """Return how much a mode of the job is behind its fair time, and its fair time.

        way: number of the mode.  Fair time: seconds due to the mode by the end of this round.  First value: with rule
        `deficit`, fair time minus received time; with rule `ratio`, fair time / received time.
        """
        due = job.due[way] + job.target[way] * self.round_length
        received = job.received[way]
        if self.rule == "deficit":
            return due - received, due
        return (due / received if received > 0 else math.inf if due > 0 else 0.0), due

    def _change_hands(self, view: View) -> Iterator[Decision]:
        """Choose the jobs of this round, stop the others, and start the chosen ones."""
        self._held = self._held_by_replicas(view)
        free = dict(zip(self._kinds, self._capacity(view.cluster).tolist(), strict=True))
        running = [job for job in self.jobs.values() if job.mode >= 0]
        stays = {job.task.index: job for job in running if not self._may_stop(job, view)}
        for job in stays.values():
            mode = job.task.modes[job.mode]
            free[mode.type.name] -= mode.width
        chosen = self._choose(free, stays)
        if all(job.mode == position for job, position in chosen) and (
            self.spare or len(running) == len(stays) + len(chosen)
        ):
            return  # all go on where they are
        room = RoundRoom(view.cluster, self._down | self._held.keys())
        for job in stays.values():
            room.keep(job)
        room.expect(chosen)
        places: dict[int, Placement] = {}
        # The widest first: on nodes of equal size gangs of 1, 2, 4, 8 then always fit together.
        for job, position in sorted(chosen, key=lambda pair: -pair[0].task.modes[pair[1]].width):
            if job.mode == position and room.keep(job):
                continue
            if (placement := room.place(job.task.modes[position])) is not None:
                places[job.task.index] = placement
        for job in self._running_by_urgency():  # one that is to run elsewhere, or has lost its devices, must go
            row = job.task.index
            if row in places or not (row in room.kept or (self.spare and room.keep(job))):
                yield Stop(job.task)
        for index, placement in places.items():
            if view.fits(placement.mode, placement) and view.holds(self.jobs[index].task, placement):
                yield self._start(self.jobs[index], placement, view)

    def _content(self) -> bool:
        """Return True if all jobs run in their fastest modes, so changes cannot help."""
        jobs = self.jobs.values()
        return all(job.mode >= 0 and job.seconds(job.mode) <= min(map(job.seconds, job.positions())) for job in jobs)

    def _may_stop(self, job: RoundJob, view: View, part: float = 1.0) -> bool:
        """Return True if the job has computed long enough since its start to be stopped.

        part: 0.5 if it shares its devices, which halves the required time.
        """
        task = job.task
        if not task.shape.preemptible or view.launch_of(task).stage != "compute":
            return False
        computed = view.attained(task) - job.attained
        return computed >= part * TURN * self.round_length * task.modes[job.mode].width * (1 - 1e-9)

    def _choose(self, free: dict[str, float], kept: Collection[int]) -> list[tuple[RoundJob, int]]:
        wanted = [
            (self.urgency(job, position), job, position)
            for job in self.jobs.values()
            if job.task.index not in kept
            for position, target in enumerate(job.target)
            if target > 0 and (self.spare or self._lags(job, position))
        ]
        wanted.sort(key=itemgetter(0), reverse=True)  # stable: ties by arrival
        chosen: dict[int, tuple[RoundJob, int]] = {}
        for _, job, position in wanted:
            mode = job.task.modes[position]
            if job.task.index not in chosen and mode.width <= free[mode.type.name] + 1e-9:
                free[mode.type.name] -= mode.width
                chosen[job.task.index] = (job, position)
        return list(chosen.values())

    def _lags(self, job: RoundJob, way: int) -> bool:
        due = job.due[way] + job.target[way] * self.round_length
        return due - job.received[way] >= (0.5 - 1e-9) * self.round_length

    def _running_by_urgency(self) -> list[RoundJob]:
        running = [job for job in self.jobs.values() if job.mode >= 0]
        return sorted(running, key=lambda job: self.urgency(job, job.way), reverse=True)

    def _fill(self, view: View) -> Iterator[Decision]:
        if self._tried == view.changes.releases:
            return
        blocked: dict[Mode, None] = {}
        waiting = [job for job in self.jobs.values() if job.mode < 0]
        modes = {job.task.modes[position]: None for job in waiting for position in job.positions()}
        if not any(self.first(mode, view) for mode in modes):
            waiting.clear()
        waiting.sort(key=lambda job: max(self.urgency(job, p) for p in job.positions()), reverse=True)
        for job in waiting:
            for position in sorted(job.positions(), key=lambda p: (-job.target[p], job.seconds(p))):
                mode = job.task.modes[position]
                if mode in blocked:
                    continue
                if (placement := self.first(mode, view)) is None:
                    blocked[mode] = None
                elif view.holds(job.task, placement):
                    yield self._start(job, placement, view)
                    break
        self._tried = view.changes.releases

    def first(self, mode: Mode, view: View) -> Placement | None:
        """Return the place of a job that starts within a round; None if it does not fit."""
        return view.first(mode)

    def _start(self, job: RoundJob, placement: Placement, view: View) -> Start:
        job.mode = job.way = job.task.shape.position[placement.mode]
        job.since, job.placement = view.now, placement
        job.attained = view.attained(job.task)
        return Start(job.task, placement)


class RoundRoom:
    """Free devices in the next scheduling round, if only jobs in `kept` continue."""

    def __init__(self, cluster: Cluster, down: Collection[int]):
        self.cluster = cluster
        self.nodes = [node for node in cluster.nodes if node.cpu.index not in down]
        self.room = {d.index: d.type.streams * WHOLE for node in self.nodes for d in node.accelerators
                     if d.index not in down}  # fmt: skip
        self.cores = [node.cpus * 1000 for node in cluster.nodes]
        self.memory = [math.inf if node.memory is None else node.memory for node in cluster.nodes]
        self.having: dict[Mode, list[Node]] = {}
        # By node: free devices for each mode queried since the node last changed
        self._free: list[dict[Mode, list[Device]]] = [{} for _ in cluster.nodes]
        self.kept: dict[int, None] = {}
        self.expected: dict[int, float] = {}  # devices of a node that jobs hope to keep

    def keep(self, job: RoundJob) -> bool:
        """Reserve a job's present devices for it; return False if they are not free."""
        placement = job.placement
        if placement is None or not self._is_free(placement):
            return False
        self.kept[job.task.index] = None
        self._take(placement)
        return True

    def expect(self, chosen: list[tuple[RoundJob, int]]) -> None:
        for job, position in chosen:
            placement = job.placement if job.mode == position else None
            for device in placement.devices if placement is not None else ():
                self.expected[device.node] = self.expected.get(device.node, 0.0) + 1

    def place(self, mode: Mode) -> Placement | None:
        """Return devices on the node where the fewest jobs must move, or across nodes.

        None if too few devices are free.
        """
        best: tuple[tuple[float, int], list[Device]] | None = None
        nodes = self._with(mode) if mode.node_count == 1 else []
        free, expected, on_cpu, min_devices = self._free, self.expected, mode.on_cpu, max(1, mode.gpus)
        full = 0
        for node in nodes:
            number = node.index
            devices = free[number].get(mode)  # as `_free_on`, which would be one call more for each node
            if devices is None:
                devices = self._free_on(node, mode)
            if len(devices) < min_devices:
                full += not devices
                continue
            key = expected.get(number, 0.0), self.cores[number] if on_cpu else len(devices)
            if (best is None or key < best[0]) and self.host_holds(node, mode, 1.0):
                best = (key, devices)
                if not on_cpu and key == (0.0, min_devices):
                    break  # no other node can be better
        if 2 * full > len(nodes) and mode.unit is None:  # nothing becomes free here: they are not looked at again
            self.having[mode] = nodes = [node for node in nodes if self._free_on(node, mode)]
        placement: Placement | None = None
        if best is not None:
            placement = Placement(mode, tuple(best[1][:min_devices]))
        elif mode.unit is not None:
            placement = self._gang(mode, mode.unit)
        elif mode.span_any and mode.gpus:
            across = [device for node in nodes for device in self._free_on(node, mode)]
            placement = Placement(mode, tuple(across[: mode.gpus])) if len(across) >= mode.gpus else None
        if placement is None or not self._is_free(placement):
            return None
        self._take(placement)
        return placement

    def _gang(self, mode: Mode, unit: Mode) -> Placement | None:
        devices: list[Device] = []
        parts: list[int] = []
        rest = mode.node_count if mode.node_count > 1 else mode.millicores
        for node in self._with(mode):
            here = self._free_on(node, unit)[: max(1, unit.gpus)]
            if not rest or len(here) < max(1, unit.gpus) or not self.host_holds(node, unit, 1.0):
                continue
            part = 1
            if mode.node_count == 1:
                part = min(rest, self.cores[node.index] // 1000 * 1000)
                if unit.memory:
                    part = min(part, int(self.memory[node.index] // unit.memory) * 1000)
                parts.append(part)
            devices += here
            rest -= part
        return None if rest else Placement(mode, tuple(devices), parts=tuple(parts) if len(parts) > 1 else None)

    def _with(self, mode: Mode) -> list[Node]:
        if mode not in self.having:
            name = mode.type.name
            self.having[mode] = [
                node for node in self.nodes
                if (node.cpu.type.name == name if mode.on_cpu else any(d.type.name == name for d in node.accelerators))
                and mode.allows(node.index)
            ]  # fmt: skip
        return self.having[mode]

    def _free_on(self, node: Node, mode: Mode) -> list[Device]:
        cached = self._free[node.index]
        if (devices := cached.get(mode)) is None:
            devices = cached[mode] = self._look_on(node, mode)
        return devices

    def _look_on(self, node: Node, mode: Mode) -> list[Device]:
        if mode.on_cpu:
            return [node.cpu] if self.cores[node.index] >= mode.millicores else []
        room, kind = self.room, mode.type
        devices = [d for d in node.accelerators if d.type is kind and room.get(d.index, 0) >= mode.share]
        if not mode.whole_devices:
            devices.sort(key=lambda device: room[device.index])  # the fullest that takes it
        elif kind.streams > 1:
            devices.sort(key=lambda device: -room[device.index])
        return devices

    def host_holds(self, node: Node, mode: Mode, part: float) -> bool:
        return mode.millicores * part <= self.cores[node.index] and mode.memory * part <= self.memory[node.index]

    def parts(self, placement: Placement) -> dict[Node, float]:
        parts: dict[Node, float] = {}
        for device in placement.devices:
            node = self.cluster.nodes[device.node]
            parts[node] = parts.get(node, 0.0) + 1 / len(placement.devices)
        return parts

    def _is_free(self, placement: Placement) -> bool:
        mode = placement.mode
        for device in placement.devices if not mode.on_cpu else ():
            if self.room.get(device.index, -1) < mode.share:
                return False
        for node, cores, memory in placement.hosts():  # noqa: SIM110 (loops: asked for every job in every round)
            if cores > self.cores[node] or memory > self.memory[node]:
                return False
        return True

    def _take(self, placement: Placement) -> None:
        mode = placement.mode
        for device in placement.devices if not mode.on_cpu else ():
            self.room[device.index] -= mode.share
        for number, cores, memory in placement.hosts():
            self.cores[number] -= cores
            self.memory[number] -= memory
            self._free[number].clear()

    def take_host(self, node: Node, mode: Mode, part: float) -> None:
        """Occupy `part` (0 to 1) of the mode's cores and memory on a node."""
        self.cores[node.index] -= math.ceil(mode.millicores * part)
        self._free[node.index].clear()
        self.memory[node.index] -= mode.memory * part
