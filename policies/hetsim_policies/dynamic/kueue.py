"""Kueue: quotas by flavor in cohorts, borrowing, preemption, fair sharing.

Decides when, on which nodes, and which jobs are preempted.  Each queue offers one head at a time.  A head gets the
first flavor (a set of nodes) for which its queue has, or can borrow from the cohort, enough quota; otherwise it may
preempt jobs of its own queue, or borrowers.  Heads within their quota come first, then order is by priority, then by
arrival; or, with `fair_sharing`, by the lowest dominant share of the queue.  A job with quota but without free nodes
keeps the quota and waits for nodes, as its pods do.
Reference: Kueue (kubernetes-sigs/kueue); its test tables are among the tests (tests/oracle/test_kueue_tables.py).
Weakness: quota ignores the location of free devices, so admitted jobs may wait for nodes and block quota; preempted
work is lost.  Not modeled: partial admission, admission checks, slices of topologies, preemption for a topology,
admission fair sharing.  Cost: that of a cycle (`hetsim_policies.dynamic.common.admission_cycle`) for each head of a
cohort tree in which a job has arrived or ended.  Kinds of jobs that do not fit are skipped until the next such event.
"""

import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from heapq import heappop
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from hetsim.errors import refusal
from hetsim.model.cluster import Node
from hetsim.model.device_type import MILLI, WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import Task
from hetsim.model.units import Seconds
from hetsim.policy import Scheduler, View
from hetsim.policy.contract import PlanProblem
from hetsim.policy.decisions import WAIT_FOR_CHANGE, WAIT_FOR_READY, Annotate, Decision, Reject, Start, Stop, Wait
from hetsim_policies.dynamic.common.admission_cycle import FIT, Admission, Entry, Queue, Rules, Strategy, Workload
from hetsim_policies.dynamic.common.cohorts import Cohort, Key, Quota
from hetsim_policies.dynamic.common.topology import Domain, Topology, place
from hetsim_policies.dynamic.users import Owners, owner_of, owners_of

Amount = Annotated[float, Field(ge=0)]
UNITS = {"gpus": WHOLE, "cores": 1000, "memory": 1}  # units of the engine per GPU, core and byte


class Limits(BaseModel):
    """A quota: the nominal amount, and the limits on borrowing and lending."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nominal: Amount = 0.0
    borrowing: Amount | None = None
    lending: Amount | None = None


# Amounts (a number: nominal) by flavor, in the order of attempts, and resource: GPUs, cores, bytes
Quotas = dict[str, dict[Literal["gpus", "cores", "memory"], Limits | Amount]]


class Flavor(BaseModel):
    """Nodes by type of GPU, name (with * and ?) and partition; all given must match.

    topology: "required" or "preferred" if jobs over several nodes should be placed within one rack (preferred: or else
        in the fewest racks); the column `topology` of a task overrides this.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    topology: Topology | None = None


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


class Kueue(Scheduler):
    """Kueue's admission by quota.

    queues: queues by name; if none is given, each value of the attribute `of` has a queue without limits.  cohorts:
        cohorts by name; a cohort that only queues mention needs no entry.  flavors: flavors by name; a flavor that only
        quotas mention has all nodes.
    of: the attribute that names the queue of a task: user, account, vc, partition or class.
    fair_sharing: order heads by dominant shares, and preempt by these strategies.
    preempt_mode: preempted jobs begin again (requeue), or keep their work (suspend).
    ending: seconds that pods of a preempted job take to end; Kueue queues the job again only then.
    requeue: seconds after a release of quota until jobs that did not fit are considered again; Kueue's are 1 s.
    one_head: a round is one cycle over one head of each queue, for `policy.decisions`; otherwise cycles repeat while
        they admit.
    recompute: if other heads preempt a head's victims, choose others; if false, the head waits (Kueue before 0.18.5).
    levels: for each level of the topology above the racks: by name of a domain, the names of its nodes.
    Columns of tasks: flavors (the suitable ones, separated by commas), topology (with a level, such as "required
        block"; default: rack), preemption (gated: never preempts).
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
        ending: Annotated[Seconds, Field(gt=0)] = 1.0,
        requeue: Seconds = 0.0,
        one_head: bool = False,
        recompute: bool = True,
        levels: dict[str, dict[str, tuple[str, ...]]] | None = None,
    ):
        self.of, self.ending, self.requeue, self.one_head = of, ending, requeue, one_head
        self.given, self.flavors, self.preempt_mode = queues or {}, flavors or {}, preempt_mode
        self.admission, self.levels = Admission(fair_sharing, strategies, recompute), levels or {}
        self._cohorts: dict[str, Cohort] = {}
        self._queues: dict[str, Queue] = {}
        self._trees: dict[Cohort, dict[Queue, None]] = {}
        self._woken: dict[Cohort, float] = {}  # trees with released quota, and when jobs set aside are considered again
        for name in cohorts or {}:
            self._cohort(name, cohorts or {}, ())
        for name, one in self.given.items():
            self._queue(name, one, None if one.cohort is None else self._cohort(one.cohort, cohorts or {}, ()))
        for root in {queue.root: None for queue in self._queues.values()}:
            root.settle()
        self._blocked: dict[Cohort, None] = {}  # trees with a job that only a rack is missing for
        self._live: dict[Queue, Any] = {}  # queues with heads to consider
        self._jobs: dict[int, Workload] = {}
        # Jobs with quota but without nodes, and their flavors
        self._unplaced: dict[Workload, Sequence[Mapping[str, str]]] = {}
        self._again: dict[Workload, float] = {}  # preempted jobs, and when they are queued again
        self._short: set[int] = set()  # jobs that were reported as waiting for quota
        self._releases = -1

    def _cohort(self, name: str, given: Mapping[str, CohortOf], below: tuple[str, ...]) -> Cohort:
        if name in below:
            raise ValueError(f"the parents of cohorts form a cycle: {' → '.join([*below, name])}")
        if name not in self._cohorts:
            one = given.get(name, CohortOf())
            above = None if one.parent is None else self._cohort(one.parent, given, (*below, name))
            self._cohorts[name] = Cohort(name, above, _quotas(one.quotas), one.weight)
        return self._cohorts[name]

    def _queue(self, name: str, given: QueueOf, cohort: Cohort | None) -> Queue:
        groups: dict[tuple[str, ...], list[str]] = {}
        for flavor, quotas in given.quotas.items():
            groups.setdefault(tuple(quotas), []).append(flavor)
        made = [(resources, tuple(flavors)) for resources, flavors in groups.items()]
        queue = Queue(name, cohort, _quotas(given.quotas), groups=made, rules=given, weight=given.weight)
        self._trees.setdefault(queue.root, {})[queue] = None
        return self._queues.setdefault(name, queue)

    def check(self, problem: PlanProblem) -> None:
        owners = owners_of(problem.tasks, self.of) if self.given else []
        if unknown := [owner for owner in owners if owner not in self.given]:
            text = f'the {self.of} "{unknown[0]}" of a task has no queue'
            raise refusal(f"{text}; the queues are {', '.join(self.given)}")
        kinds_of_topology = get_args(Topology)
        leveled = [f"{one} {level}" for level in self.levels for one in kinds_of_topology]
        for column, words in (("topology", (*kinds_of_topology, *leveled)), ("preemption", ("gated",))):
            labels = {str(cell) for cell in problem.tasks.extra.get(column, ()) if cell is not None and cell == cell}
            if unknown := sorted(labels - {"", *words}):
                text = f"the column `{column}` of a task must be {'one of ' if words[1:] else ''}{', '.join(words)}"
                raise refusal(f'{text}; got "{unknown[0]}"')
        kinds: dict[str, Collection[str]] = {"types": problem.cluster.types, "partitions": problem.cluster.partitions}
        for name, flavor in self.flavors.items():
            for kind, there in kinds.items():
                if gone := [one for one in getattr(flavor, kind) if one not in there]:
                    text = f'flavor {name} names the {kind[:-1]} "{gone[0]}"'
                    raise refusal(f"{text}; the cluster has {', '.join(there) or 'none'}")

    def begin(self, view: View) -> None:
        nodes = view.cluster.nodes
        self._domain: dict[str, list[str]] = {"": [node.spec.rack or "" for node in nodes]}  # of each node, by level
        for level, domains in self.levels.items():
            names = {name: domain for domain, inside in domains.items() for name in inside}
            self._domain[level] = [names.get(node.name, "") for node in nodes]
        self._racks: dict[str, dict[str, int]] = {level: {} for level in self._domain}  # masks of nodes, by level
        for level, index, name in ((level, *one) for level, own in self._domain.items() for one in enumerate(own)):
            if name:
                self._racks[level][name] = self._racks[level].get(name, 0) | 1 << index
        self._types = {kind: sum(1 << node.index for node in nodes if kind in _types(node))
                       for kind in view.cluster.types}  # fmt: skip
        self._masks = {
            name: sum(
                1 << node.index for node in nodes
                if (not one.types or not _types(node).isdisjoint(one.types))
                and (not one.nodes or any(fnmatchcase(node.name, pattern) for pattern in one.nodes))
                and (not one.partitions or not set(one.partitions).isdisjoint(node.spec.partitions))
            )
            for name, one in self.flavors.items()
        }  # fmt: skip

    # Jobs -----------------------------------------------------------------------------------------------------

    def ready(self, task: Task) -> None:
        self._release(task)
        if (job := self._jobs.get(task.index)) is None:
            name = owner_of(task, self.of)
            if name not in self._queues:  # without queues each owner has one
                self._queue(name, QueueOf(), None).settle()
            job = self._jobs[task.index] = self._job(task, self._queues[name])
        if job not in self._again:
            self._wait_in_queue(job)

    def _wait_in_queue(self, job: Workload) -> None:
        job.queue.add(job)
        self._live[job.queue] = None

    def _job(self, task: Task, queue: Queue) -> Workload:
        modes = [task.modes[position] for position in task.modes_by_speed()]
        requests = {name: amount for name, amount in _requests(modes[0]).items() if amount and name in queue.group_of}
        modes = [mode for mode in modes if _requests(mode) == _requests(modes[0])]
        nodes = 0
        for mode in modes:
            nodes |= self._types[mode.type.name] & (-1 if mode.nodes is None else mode.nodes)
        named = task.label("flavors")
        usable = frozenset(
            flavor for group in queue.group_of.values() for flavor in group[1]
            if nodes & self._masks.get(flavor, -1) and (not named or flavor in named.split(","))
        )  # fmt: skip
        gated = task.label("preemption") == "gated"
        kind = (task.shape, task.allowed, task.priority, usable, task.label("topology"), gated)
        return Workload(str(task.id), queue, [(requests, usable)], priority=task.priority, created=task.arrival,
                        order=f"{task.index:09}", kind=kind, task=task, modes=modes, gated=gated)  # fmt: skip

    def finished(self, task: Task) -> None:
        self._release(task)
        self._jobs.pop(task.index, None)

    def gone(self, task: Task) -> None:
        job = self._jobs.get(task.index)
        if job is not None and self._again.pop(job, None) is None and job not in job.queue.workloads:
            job.queue.remove(job)
        self.finished(task)

    def _release(self, task: Task) -> None:
        """Release a task's quota, if it has any, and reconsider all queues of its tree."""
        job = self._jobs.get(task.index)
        if job is not None and job in job.queue.workloads:
            job.queue.take(job)
            self._unplaced.pop(job, None)
            self._live.update(self._trees[job.queue.root])
            self._woken.setdefault(job.queue.root, math.inf)  # the next round adds the time
            self._wake(-math.inf if self.requeue else math.inf)

    def _wake(self, now: float) -> None:
        """For each tree of cohorts that is due, reconsider the jobs that were set aside."""
        for root in [root for root, due in self._woken.items() if due <= now]:
            del self._woken[root]
            self._live.update(self._trees[root])
            for queue in self._trees[root]:
                queue.aside.clear()

    # Rounds ---------------------------------------------------------------------------------------------------

    def schedule(self, view: View) -> Iterator[Decision]:
        if (releases := view.changes.releases) != self._releases:
            self._woken = dict.fromkeys(self._blocked, math.inf if self.requeue else -math.inf) | self._woken
            self._blocked.clear()
            for job, flavors in list(self._unplaced.items()):
                if (placement := self._place(job, flavors, view)) is not None:
                    del self._unplaced[job]
                    yield Start(job.task, placement)
            self._releases = releases
        self._wake(view.now)
        for job in [job for job, due in self._again.items() if due <= view.now]:
            del self._again[job]
            self._wait_in_queue(job)
        while self._live:
            yield from self._cycle(view)
            if self.one_head:
                break
        if self._live or self._again or self._woken:
            self._woken = {root: min(due, view.now + self.requeue) for root, due in self._woken.items()}
            due, soon = (self._again | self._woken).values(), math.nextafter(view.now, math.inf)
            yield Wait(soon if self._live else max(soon, min(due)))
        else:
            yield WAIT_FOR_CHANGE if view.num_waiting(own=True) else WAIT_FOR_READY

    def _cycle(self, view: View) -> Iterator[Decision]:
        moved, victims, heads = dict[Cohort, bool](), dict[Workload, str](), list[Workload]()
        self._live = {queue: heap for queue in self._live if (heap := queue.first())}
        for queue, heap in self._live.items():
            if not self.admission.hopeless(job := heap[0][-1]):
                heads.append(heappop(heap)[-1])
                continue
            queue.set_aside(heap)
            moved[queue.root] = True
            if job.task.index not in self._short:
                self._short.add(job.task.index)
                yield Annotate(job.task, "quota")
        for entry in (cycle := self.admission.cycle(heads)):
            moves = entry.outcome == "preempting"
            victims |= entry.targets if moves else {}
            try:
                moves |= (yield from self._admit(entry, view)) or (yield from self._wait(entry))
            except GeneratorExit:  # the cycle ends with this start (`policy.decisions.max_starts`)
                for rest in cycle:
                    rest.outcome = "skipped"
                    rest.workload.queue.requeue(rest)
                raise
            moved[entry.workload.queue.root] = moves or moved.get(entry.workload.queue.root, False)
        for one in victims:
            self._again[one] = view.now + self.ending
            if one in self._unplaced:  # it has nothing to stop
                self._release(one.task)
            else:
                yield Stop(one.task, keep=self.preempt_mode == "suspend")
        self._live = {queue: None for queue in self._live if moved.get(queue.root, True)}

    def _admit(self, entry: Entry, view: View) -> Generator[Decision, None, bool]:
        """Start an admitted job or let it wait for nodes; False: it must be queued again."""
        if entry.outcome != "admitted":
            return False
        job = entry.workload
        job.since = view.now
        self._short.discard(job.task.index)
        if (placement := self._place(job, entry.flavors, view)) is not None:
            yield Start(job.task, placement)
            entry.outcome = "admitted" if job.task.index in self._jobs else "no fit"  # admission may drop it here
        elif (topology := self._topology(job, entry.flavors))[0]:
            entry.outcome = "no fit"
            if topology[0] == "required" and all(self._is_wider(mode, topology[1], view) for mode in job.modes):
                yield Reject(job.task, f"no {topology[1] or 'rack'} has as many devices as the job needs")
                return True
            self._blocked[job.queue.root] = None
            yield Annotate(job.task, "topology")
            return False
        else:
            self._unplaced[job] = entry.flavors
        return True

    def _wait(self, entry: Entry) -> Generator[Decision, None, bool]:
        job, queue, (requests, usable) = entry.workload, entry.workload.queue, entry.workload.pod_sets[0]
        if entry.mode != FIT and job.task.index not in self._short:
            for name in requests:
                resources, flavors = queue.group_of[name]
                keys = [[(flavor, one) for one in resources] for flavor in flavors if flavor in (usable or ())]
                if not any(all(queue.potential(key) >= requests.get(key[1], 0) for key in among) for among in keys):
                    text = "exceeds the quota" if keys else "suits no flavor"
                    yield Reject(job.task, f"the request {text} of queue {queue.name} for {name}")
                    return True
            self._short.add(job.task.index)
            yield Annotate(job.task, "quota")
        return queue.requeue(entry)

    def _topology(self, job: Workload, flavors: Sequence[Mapping[str, str]]) -> tuple[str, str]:
        """Return kind and level ("": rack) of a job's topology; kind "" if it has none."""
        if all(mode.node_count == 1 and not mode.span_any for mode in job.modes):
            return "", ""
        given = (self.flavors[flavor].topology for one in flavors for flavor in one.values() if flavor in self.flavors)
        kind, _, level = (job.task.label("topology") or next(filter(None, given), "")).partition(" ")
        return kind, level

    def _is_wider(self, mode: Mode, level: str, view: View) -> bool:
        """Return True if no domain of a topology level has enough devices, even if idle."""
        rooms = dict.fromkeys([*self._racks[level], ""], 0)
        for node, domain in zip(view.cluster.nodes, self._domain[level], strict=True):
            there = sum(device.type is mode.type for device in node.accelerators) if mode.gpus else node.cpus
            rooms[domain] += there if domain else 0
        return max(rooms.values()) < (mode.gpus or mode.millicores // MILLI)

    def _place(self, job: Workload, flavors: Sequence[Mapping[str, str]], view: View) -> Placement | None:
        """Return a job's placement on nodes of its flavors; None if it does not fit now.

        A topology's domains are tried one by one, fullest first; if it is only preferred, then several, then all nodes.
        """
        nodes, (topology, level) = -1, self._topology(job, flavors)
        domain, masks = self._domain[level], self._racks[level]
        for flavor in {flavor: None for one in flavors for flavor in one.values()}:
            nodes &= self._masks.get(flavor, -1)
        for mode in job.modes:
            named = masks.items() if topology in ("required", "preferred") else ()
            racks = {name: Domain((name,), 0) for name, rack in named if rack & nodes}
            need, equal = mode.gpus or mode.millicores // MILLI, mode.node_count > 1
            fitting = view.nodes.fitting(mode.unit or mode) if equal else range(len(view.cluster.nodes))
            for node in fitting if racks else ():
                if nodes >> node & 1 and (rack := racks.get(domain[node])):
                    rack.room += need // mode.node_count if equal else int(view.free(mode.type.name, node))
            tries = [[one] for one in sorted(racks.values(), key=lambda one: one.room)]
            if topology != "required":
                tries += [[*(place([[*racks.values()]], need, 0, "preferred") or ())], []] if racks else [[]]
            for chosen in tries:
                among = sum(masks[one.names[0]] for one in chosen) & nodes if chosen else nodes
                placement = view.first(mode, job.task, among=None if among == -1 else among)
                if placement is not None and view.holds(job.task, placement):
                    return placement
        return None


def _types(node: Node) -> set[str]:
    return {node.cpu.type.name, *(device.type.name for device in node.accelerators)}


def _quotas(quotas: Quotas) -> dict[Key, Quota]:
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
