"""Kueue: quotas by flavor in cohorts, borrowing, preemption, fair sharing.

Decides when, on which nodes, and which jobs are preempted.  Each queue offers one head at a time.  A head gets the
first flavor (a set of nodes) with quota for it, its queue's own or borrowed from the cohort; else it may preempt jobs
of its own queue, or borrowers.  Heads within their quota go first, then by priority, then by arrival; or, with
`fair_sharing`, those of the queue with the least dominant share.  A job with quota that finds no nodes keeps the quota
and waits for nodes, as its pods do.
Reference: Kueue (kubernetes-sigs/kueue); its test tables are among the tests (tests/oracle/test_kueue_tables.py).
Weakness: quota says nothing of where it lies, so that admitted jobs wait for nodes and block quota; preempted work is
lost.  Not modeled: partial admission, admission checks, slices of topologies, preemption for a topology, admission fair
sharing.
Cost: that of a cycle (`hetsim_policies.dynamic.common.admission_cycle`) for each head of a tree in which a job has come
or gone.  Kinds of jobs that do not fit are set aside until then.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import WHOLE, DeviceType
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import (
    WAIT_FOR_CHANGE,
    WAIT_FOR_READY,
    Annotate,
    Decision,
    Reject,
    Scheduler,
    Start,
    Stop,
    View,
    Wait,
)
from hetsim.policy.contract import PlanProblem
from hetsim_policies.dynamic.common.admission_cycle import (
    FIT,
    Admission,
    Entry,
    Group,
    Line,
    PodSet,
    Queue,
    Rules,
    Strategy,
    Workload,
)
from hetsim_policies.dynamic.common.cohorts import Cohort, Quota
from hetsim_policies.dynamic.users import Owners, owner_of, owners_of

Amount = Annotated[float, Field(ge=0)]
UNITS = {"gpus": WHOLE, "cores": 1000, "memory": 1}
"""What the engine counts in one GPU, one core and one byte."""
REQUEUE = 1.0
"""Seconds after which a preempted job queues again, its pods having ended; else preemption could go in circles."""


class Limits(BaseModel):
    """A quota: what it has, and the most that it borrows and lends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nominal: Amount = 0.0
    borrowing: Amount | None = None
    lending: Amount | None = None


Quotas = dict[str, dict[Literal["gpus", "cores", "memory"], Limits | Amount]]
"""By flavor, in the order in which they are tried, and resource: GPUs, cores, bytes; a number is nominal."""


class Flavor(BaseModel):
    """Nodes by type of GPU, name (with * and ?) and partition; all given must match.

    topology: jobs over several nodes lie within one rack: required, or preferred; their label `topology` goes first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    topology: Literal["required", "preferred"] | None = None


class CohortOf(BaseModel):
    """A cohort: its own quotas, its weight in fair sharing, and its parent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    parent: str | None = None
    weight: Amount = 1.0
    quotas: Quotas = {}


class QueueOf(Rules):
    """A queue: its cohort, its quotas by flavor, its weight, and its rules."""

    cohort: str | None = None
    weight: Amount = 1.0
    quotas: Quotas = {}


@dataclass(eq=False)
class Job(Workload):
    """A task as a workload, and the modes in which it may run."""

    task: Task | None = None
    modes: Sequence[Mode] = ()


class Kueue(Scheduler):
    """Kueue's admission by quota.

    queues: by name; without any, each owner has a queue without limits.  cohorts: by name; those that only queues name
    need not stand there.  flavors: by name; one that only quotas name is all nodes.
    of: what names the queue of a task: user, account, vc, partition or class.
    fair_sharing: by dominant shares, with preemption by these strategies.
    preempt_mode: what becomes of preempted jobs: requeue, they begin again; suspend, they keep their work.
    one_head: a round is one cycle over one head of each queue, for `policy.decisions`; else cycles go on while they
    admit.
    """

    def __init__(
        self,
        queues: dict[str, QueueOf] | None = None,
        cohorts: dict[str, CohortOf] | None = None,
        flavors: dict[str, Flavor] | None = None,
        of: Owners = "class",
        fair_sharing: bool = False,
        strategies: tuple[Strategy, ...] = ("final_share", "initial_share"),
        preempt_mode: Literal["requeue", "suspend"] = "requeue",
        one_head: bool = False,
    ):
        self.of, self.preempt_mode, self.one_head = of, preempt_mode, one_head
        self.queues, self.flavors = queues or {}, flavors or {}
        self.admission = Admission(fair_sharing, strategies)
        given = cohorts or {}
        self._cohorts: dict[str, Cohort] = {}
        for name in [*given, *(one.cohort for one in self.queues.values() if one.cohort is not None)]:
            self._add_cohort(name, given, ())
        self._lines: dict[str, Line] = {}
        for name, one in self.queues.items():
            self._lines[name] = Line(_queue(name, one, self._cohorts.get(one.cohort or "")))
        for line in self._lines.values():
            line.queue.root.settle()
        self._live: dict[Line, None] = {}
        """Queues with heads to look at."""
        self._jobs: dict[int, Job] = {}
        self._unplaced: dict[Job, Sequence[Mapping[str, str]]] = {}
        """Jobs that have quota and no nodes, and their flavors."""
        self._again: dict[Job, float] = {}
        """Preempted jobs, and when they queue again."""
        self._causes: dict[int, str] = {}
        self._releases = -1

    def _add_cohort(self, name: str, given: Mapping[str, CohortOf], below: tuple[str, ...]) -> Cohort:
        if name in below:
            raise ValueError(f"cohorts are their own parents: {' → '.join([*below, name])}")
        if name not in self._cohorts:
            one = given.get(name, CohortOf())
            above = None if one.parent is None else self._add_cohort(one.parent, given, (*below, name))
            self._cohorts[name] = Cohort(name, above, _quotas(one.quotas), one.weight)
        return self._cohorts[name]

    def check(self, problem: PlanProblem) -> None:
        if not self.queues:
            return
        owners, types = owners_of(problem.tasks, self.of), problem.cluster.types
        if unknown := [owner for owner in owners if owner not in self.queues]:
            names = ", ".join(self.queues)
            text = f'no queue is named "{unknown[0]}", as the {self.of} of a task is; there are {names}'
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        for name, flavor in self.flavors.items():
            partitions = problem.cluster.partitions
            for key, named, there in (("type", flavor.types, types), ("partition", flavor.partitions, partitions)):
                if gone := [one for one in named if one not in there]:
                    text = f'flavor {name} names the {key} "{gone[0]}"; the cluster has {", ".join(there) or "none"}'
                    raise ScenarioError(Problem(text, key="policy.scheduler"))

    def begin(self, view: View) -> None:
        self._view = view
        nodes = view.cluster.nodes
        self._types: dict[DeviceType, int] = {}
        self._racks: dict[str, int] = {}
        for node in nodes:
            for kind in {node.cpu.type: None, **{device.type: None for device in node.accelerators}}:
                self._types[kind] = self._types.get(kind, 0) | 1 << node.index
            if node.spec.rack is not None:
                self._racks[node.spec.rack] = self._racks.get(node.spec.rack, 0) | 1 << node.index
        self._masks = {
            name: sum(
                1 << node.index for node in nodes
                if (not one.types or any(device.type.name in one.types for device in node.accelerators))
                and (not one.nodes or any(fnmatchcase(node.name, pattern) for pattern in one.nodes))
                and (not one.partitions or not set(one.partitions).isdisjoint(node.spec.partitions))
            )
            for name, one in self.flavors.items()
        }  # fmt: skip

    # Jobs -----------------------------------------------------------------------------------------------------

    def ready(self, task: Task) -> None:
        self._release(task)
        name = owner_of(task, self.of)
        if name not in self._lines:  # without queues each owner has one
            self._lines[name] = Line(_queue(name, QueueOf(), None))
        line = self._lines[name]
        job = self._jobs.get(task.index)
        if job is None:
            job = self._jobs[task.index] = self._job(task, line.queue)
        if job not in self._again:
            line.add(job)
            self._live[line] = None

    def _job(self, task: Task, queue: Queue) -> Job:
        """A task as a workload that requests what its fastest mode needs."""
        modes = [task.modes[position] for position in task.modes_by_speed()]
        requests = {name: amount for name, amount in _requests(modes[0]).items() if amount and name in queue.group_of}
        modes = [mode for mode in modes if _requests(mode) == _requests(modes[0])]
        nodes = 0
        for mode in modes:
            nodes |= self._types.get(mode.type, 0) & (-1 if mode.nodes is None else mode.nodes)
        named = task.label("flavors")
        usable = frozenset(
            flavor for group in queue.group_of.values() for flavor in group.flavors
            if nodes & self._masks.get(flavor, -1) and (not named or flavor in named.split(","))
        )  # fmt: skip
        kind = (task.shape, task.allowed, task.priority, usable, task.label("topology"))
        return Job(str(task.id), queue, [PodSet(requests, usable)], priority=task.priority, created=task.arrival,
                   order=f"{task.index:09}", kind=kind, task=task, modes=modes)  # fmt: skip

    def finished(self, task: Task) -> None:
        self._release(task)
        self._jobs.pop(task.index, None)

    def gone(self, task: Task) -> None:
        job = self._jobs.get(task.index)
        if job is not None and self._again.pop(job, None) is None and job not in job.queue.workloads:
            self._lines[job.queue.name].remove(job)
        self.finished(task)

    def _release(self, task: Task) -> None:
        """Take its quota back, if it has any; then all of its tree are looked at again."""
        job = self._jobs.get(task.index)
        if job is not None and job in job.queue.workloads:
            job.queue.take(job)
            self._unplaced.pop(job, None)
            root = job.queue.root
            for line in self._lines.values():
                if line.queue.root is root:
                    line.wake()
                    self._live[line] = None

    # Rounds ---------------------------------------------------------------------------------------------------

    def schedule(self, view: View) -> Iterator[Decision]:
        if view.changes.releases != self._releases:
            self._releases = view.changes.releases
            for job, flavors in list(self._unplaced.items()):
                if (placement := self._place(job, flavors, view)) is not None:
                    del self._unplaced[job]
                    yield Start(job.task, placement)  # type: ignore[arg-type]
        for job in [job for job, due in self._again.items() if due <= view.now]:
            del self._again[job]
            self._lines[job.queue.name].add(job)
            self._live[self._lines[job.queue.name]] = None
        while self._live:
            yield from self._cycle(view)
            if self.one_head:
                break
        if self._live:
            yield Wait(math.nextafter(view.now, math.inf))
        elif self._again:
            yield Wait(min(self._again.values()))
        else:
            yield WAIT_FOR_CHANGE if view.num_waiting(own=True) else WAIT_FOR_READY

    def _cycle(self, view: View) -> Iterator[Decision]:
        """Run one cycle over the heads of all queues; drop those in which nothing moves."""
        heads, moved, victims = list[Workload](), dict[Cohort, bool](), dict[Workload, None]()
        for line in list(self._live):
            if (head := line.pop()) is None:
                del self._live[line]
            else:
                heads.append(head)
        for entry in self.admission.cycle(heads):
            job = entry.workload
            moves = False
            if entry.outcome == "admitted":
                moves = yield from self._admit(entry, view)
            victims |= dict.fromkeys(entry.targets) if entry.outcome == "preempting" else {}
            if not moves:
                moves = yield from self._wait(entry)
            root = job.queue.root
            moved[root] = moved.get(root, False) or moves or entry.outcome == "preempting"
        for one in victims:
            assert isinstance(one, Job) and one.task is not None
            self._again[one] = view.now + REQUEUE
            if one in self._unplaced:  # it has nothing to stop
                self._release(one.task)
            else:
                yield Stop(one.task, keep=self.preempt_mode == "suspend")
        for line in list(self._live):
            if not moved.get(line.queue.root, True):
                del self._live[line]

    def _admit(self, entry: Entry, view: View) -> Generator[Decision, None, bool]:
        """Start a job that has quota, or let it wait for nodes; False: not admitted."""
        job, flavors = entry.workload, entry.assignment.flavors
        assert isinstance(job, Job) and job.task is not None
        self._causes.pop(job.task.index, None)
        job.since = view.now
        if (placement := self._place(job, flavors, view)) is not None:
            yield Start(job.task, placement)
        elif self._topology(job, flavors):
            entry.outcome = "no fit"
            return False
        else:
            self._unplaced[job] = flavors
        return True

    def _wait(self, entry: Entry) -> Generator[Decision, None, bool]:
        """Let a job wait, or reject it if its queue can never have enough."""
        job, queue = entry.workload, entry.workload.queue
        assert isinstance(job, Job) and job.task is not None
        pods = job.pod_sets[0]
        for name, amount in pods.requests.items():
            usable = [flavor for flavor in queue.group_of[name].flavors if flavor in (pods.flavors or ())]
            if not any(queue.potential((flavor, name)) >= amount for flavor in usable):
                yield Reject(job.task, f"queue {queue.name} can never have so many {name}")
                return True
        if entry.assignment.mode != FIT and self._causes.get(job.task.index) != "quota":
            self._causes[job.task.index] = "quota"
            yield Annotate(job.task, "quota")
        return self._lines[queue.name].requeue(entry)

    def _topology(self, job: Job, flavors: Sequence[Mapping[str, str]]) -> str | None:
        """Whether a job lies in one rack: required, preferred, or None."""
        if all(mode.node_count == 1 and not mode.span_any for mode in job.modes):
            return None
        given = (self.flavors[flavor].topology for one in flavors for flavor in one.values() if flavor in self.flavors)
        return job.task.label("topology") or next(filter(None, given), None)  # type: ignore[union-attr]

    def _place(self, job: Job, flavors: Sequence[Mapping[str, str]], view: View) -> Placement | None:
        """The first nodes of its flavors; of racks the fullest with room."""
        nodes, topology, task = -1, self._topology(job, flavors), job.task
        for flavor in {flavor: None for one in flavors for flavor in one.values()}:
            nodes &= self._masks.get(flavor, -1)
        for mode in job.modes:
            racks = [rack & nodes for rack in self._racks.values() if rack & nodes] if topology else []
            if len(racks) > 1:
                free = view.nodes.fitting(mode.unit or mode)
                racks.sort(key=lambda rack: sum(rack >> node & 1 for node in free))  # noqa: B023
            for among in racks if topology == "required" else [*racks, nodes]:
                placement = view.first(mode, task, among=None if among == -1 else among)
                if placement is not None and view.holds(task, placement):  # type: ignore[arg-type]
                    return placement
        return None


def _queue(name: str, given: QueueOf, cohort: Cohort | None) -> Queue:
    groups: dict[tuple[str, ...], list[str]] = {}
    for flavor, quotas in given.quotas.items():
        groups.setdefault(tuple(quotas), []).append(flavor)
    made = [Group(resources, tuple(flavors)) for resources, flavors in groups.items()]
    return Queue(name, cohort, _quotas(given.quotas), groups=made, rules=given, weight=given.weight)


def _quotas(quotas: Quotas) -> dict[tuple[str, str], Quota]:
    made = {}
    for flavor, by_resource in quotas.items():
        for name, given in by_resource.items():
            limits = given if isinstance(given, Limits) else Limits(nominal=given)
            amounts = (limits.nominal, limits.borrowing, limits.lending)
            nominal, *rest = [None if one is None else round(one * UNITS[name]) for one in amounts]
            made[flavor, str(name)] = Quota(nominal or 0, *rest)
    return made


def _requests(mode: Mode) -> dict[str, int]:
    return {"gpus": mode.gpus * mode.share, "cores": mode.millicores, "memory": mode.memory}
