"""Kueue's admission by quota: flavors, preemption, cycles over heads of queues.

This file needs no engine: its inputs are queues, workloads and usage, its outputs decisions.  A cycle takes the head of
each queue, assigns flavors to it, orders the heads (those within their quota first, or by dominant share), and in turn
admits each head, preempts for it, or passes over it.
Reference: Kueue (kubernetes-sigs/kueue), `pkg/scheduler` and its `flavorassigner` and `preemption`.
Cost: O(flavors × depth) for a head that fits; else a pass over the running workloads of its cohort.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappush, heapreplace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hetsim.model.mode import Mode
from hetsim_policies.dynamic.common.cohorts import Cohort, Key, Quota

# How a flavor can be used, from worst to best; PREEMPT: within the queue, RECLAIM: only from other queues
NO_FIT, NO_CANDIDATES, PREEMPT, RECLAIM, FIT = range(5)
Fitness = tuple[int, int]  # one of these values, and the height of the subtree in which the queue borrows
Group = tuple[tuple[str, ...], tuple[str, ...]]  # resources that come in the same flavor, and the flavors in order
# Equal pods: total requests, and the suitable flavors (None: all)
Pods = tuple[Mapping[str, int], frozenset[str] | None]
Policy = Literal["never", "lower_priority", "lower_or_newer_equal_priority", "any"]
Strategy = Literal["final_share", "initial_share"]
STRATEGIES: tuple[Strategy, ...] = ("final_share", "initial_share")
Outcome = Literal["admitted", "preempting", "deferred", "skipped", "no candidates", "no fit"]


class Rules(BaseModel):
    """Rules by which a queue gets quota, with Kueue's names.

    strategy: under strict_fifo the head blocks the workloads behind it.
    within_cluster_queue: which of its own workloads the queue may preempt.
    reclaim_within_cohort: which workloads of other queues that borrow quota the queue may preempt.
    borrow_within_cohort: if lower_priority, a workload may be admitted with borrowed quota by preempting workloads of
        other queues that have a lower priority, of at most max_priority_threshold.
    when_can_borrow: if a resource flavor fits only with borrowed quota, use it, or try the next flavor first.
    when_can_preempt: if a resource flavor fits only after preemption, use it, or try the next flavor first.
    preference: if every flavor needs borrowing or preemption, which of the two is preferred.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: Literal["best_effort_fifo", "strict_fifo"] = "best_effort_fifo"
    within_cluster_queue: Policy = "never"
    reclaim_within_cohort: Policy = "never"
    borrow_within_cohort: Literal["never", "lower_priority"] = "never"
    max_priority_threshold: float = math.inf
    when_can_borrow: Literal["may_stop_search", "try_next_flavor"] = "may_stop_search"
    when_can_preempt: Literal["may_stop_search", "try_next_flavor"] = "try_next_flavor"
    preference: Literal["borrowing_over_preemption", "preemption_over_borrowing"] = "borrowing_over_preemption"


@dataclass(eq=False)
class Workload:
    """A workload (job of Kueue), waiting or admitted, and its task.

    order: tie-breaker between equal workloads.
    kind: demand and priority; if a workload cannot be admitted, workloads of equal kind in its queue are not tried.
    tried: position of the last flavor tried, by pod set and resource; -1: all tried.  gated: it must not preempt.
    """

    name: str
    queue: "Queue"
    pod_sets: Sequence[Pods]
    priority: float = 0.0
    created: float = 0.0
    order: str = ""
    usage: dict[Key, int] = field(default_factory=dict)
    since: float = math.inf
    evicted: bool = False
    kind: Hashable = None
    tried: Sequence[Mapping[str, int]] = ()
    task: Any = None
    modes: Sequence[Mode] = ()
    gated: bool = False


class Queue(Cohort):
    """A cluster queue: its admitted and its waiting workloads.

    Unless the queue is strict, workloads with the demand and priority of one that could not be admitted are skipped
    until something in the cohort tree changes.
    """

    def __init__(
        self, name: str, parent: Cohort | None, quotas: Mapping[Key, Quota], groups: Sequence[Group],
        rules: Rules | None = None, weight: float = 1.0,
    ):  # fmt: skip
        super().__init__(name, parent, quotas, weight)
        self.group_of = {resource: group for group in reversed(groups) for resource in group[0]}
        self.rules = one = rules or Rules()
        alone = one.strategy == "best_effort_fifo" and one.borrow_within_cohort == "never" and len(self.path) < 3
        self.plain = alone and one.reclaim_within_cohort == "any"  # it reclaims only its quota, and withholds no other
        self.workloads: dict[Workload, None] = {}
        self.waiting: dict[Hashable, list[Any]] = {}
        self.aside: set[Hashable] = set()
        self._added = 0

    def put(self, workload: Workload) -> None:
        """Add an admitted workload and its usage."""
        self.workloads[workload] = None
        self.use(workload.usage)

    def take(self, workload: Workload) -> None:
        """Remove an admitted workload and its usage."""
        del self.workloads[workload]
        self.use(workload.usage, -1)

    def preemptible(self, preemptor: Workload, policy: Policy, keys: set[Key]) -> list[Workload]:
        """Return workloads that use quota of `keys` and that `preemptor` may preempt."""
        every, newer, priority = policy == "any", policy == "lower_or_newer_equal_priority", preemptor.priority
        return [
            one for one in (() if policy == "never" else self.workloads)
            if (every or one.priority < priority or (newer and satisfies(policy, preemptor, one)))
            and not keys.isdisjoint(one.usage)
        ]  # fmt: skip

    def nominal(self, key: Key) -> int:
        return self.quotas[key].nominal if key in self.quotas else 0

    def add(self, workload: Workload, first: bool = False) -> None:
        self._added += 1
        entry = (not first, -workload.priority, workload.created, self._added, workload)
        heappush(self.waiting.setdefault(workload.kind, []), entry)

    def remove(self, workload: Workload) -> None:
        self.waiting[workload.kind] = [one for one in self.waiting[workload.kind] if one[-1] is not workload]
        heapify(self.waiting[workload.kind])

    def first(self) -> list[Any]:
        """Return the heap with the next workload to try on top; empty if there is none."""
        heads = [heap for kind, heap in self.waiting.items() if heap and kind not in self.aside]
        return min(heads) if heads else []

    def set_aside(self, heap: list[Any]) -> None:
        """Skip workloads of one kind (demand and priority) until the cohort tree changes.

        heap: waiting workloads of this kind; the first is moved behind others of equal priority and creation time.
        """
        self._added += 1
        heapreplace(heap, (True, *heap[0][1:3], self._added, heap[0][-1]))
        self.aside.add(heap[0][-1].kind)

    def requeue(self, entry: "Entry") -> bool:
        """Put a head back into the queue; return True if it is worth another attempt."""
        workload, strict = entry.workload, self.rules.strategy == "strict_fifo"
        self.add(workload, first=entry.outcome in ("preempting", "deferred") and not strict)
        tries_on = any(position != -1 for one in workload.tried for position in one.values())
        if strict or entry.outcome not in ("no fit", "no candidates") or tries_on:
            return tries_on
        self.aside.add(workload.kind)
        return True


# (rank: 0 and 1 other queues, 2 own; workload; cohort in common with the preemptor; reason)
Candidate = tuple[int, Workload, Cohort, str]


@dataclass(eq=False)
class Entry:
    """The first workload of a queue in a cycle of Kueue's admission, and its outcome.

    flavors: assigned resource flavors, by pod set and resource.  keys: (flavor, resource) pairs that need preemption.
    """

    workload: Workload
    flavors: list[dict[str, str]] = field(default_factory=list)
    keys: set[Key] = field(default_factory=set)
    mode: int = FIT
    borrowing: int = 0
    usage: dict[Key, int] = field(default_factory=dict)
    tried: list[dict[str, int]] = field(default_factory=list)
    targets: dict[Workload, str] = field(default_factory=dict)
    outcome: Outcome = "no fit"


def satisfies(policy: Policy, preemptor: Workload, candidate: Workload) -> bool:
    if policy == "any" or (policy != "never" and preemptor.priority > candidate.priority):
        return True
    equal = preemptor.priority == candidate.priority and preemptor.created < candidate.created
    return policy == "lower_or_newer_equal_priority" and equal


def preference(queue: Queue, one: Workload) -> tuple[bool, bool, float, float, str]:
    """Sort key of running workloads; the workload with the lowest is preempted first.

    The order is: evicted workloads, workloads of other queues, lower priority, later admission.  queue: the
    preemptor's.
    """
    return not one.evicted, one.queue is queue, one.priority, -one.since, one.order


def goodness(fitness: Fitness, rules: Rules) -> tuple[int, ...]:
    """Return a sort key of a flavor's fitness for a workload; a larger key is better."""
    mode, borrowing = fitness
    if mode == NO_FIT:
        return (NO_FIT,)
    pair = (-borrowing, mode) if rules.preference == "preemption_over_borrowing" else (mode, -borrowing)
    return min(mode, PREEMPT), *pair


class Admission:
    """The rules by which heads of queues get quota.

    fair: heads are ordered by dominant share, and preemption balances the shares, by `strategies`.
    recompute: if earlier heads preempt some of a head's victims, choose again for this head; False: skip the head.
    """

    def __init__(self, fair: bool = False, strategies: Sequence[Strategy] = STRATEGIES, recompute: bool = True):
        self.fair, self.strategies, self.recompute = fair, strategies, recompute
        # Results for single amounts of the head that is considered
        self._found: dict[tuple[Key, int], dict[Workload, str]] = {}

    def hopeless(self, workload: Workload) -> bool:
        """Return True if a quick test shows that the workload cannot be admitted now.

        True: there is too little free quota, also with preemption.  False: only the full admission cycle can decide.
        """
        queue, (requests, suits) = workload.queue, workload.pod_sets[0]
        if self.fair or not queue.plain or len(requests) != 1:
            return False
        ((name, amount),) = requests.items()
        flavor, *others = queue.group_of[name][1]
        key = flavor, name
        if (others or not (suits is None or flavor in suits) or not queue.borrows(key, amount)
                or not (free := queue.available(key)) < amount <= queue.potential(key)):  # fmt: skip
            return False
        freed = sum(one.usage[key] for one in queue.preemptible(workload, queue.rules.within_cluster_queue, {key}))
        reclaims = queue.nominal(key) > queue.usage.get(key, 0) and not queue.borrows(key, amount - freed)
        return free + freed < amount and not reclaims

    def nominate(self, workload: Workload, pinned: Sequence[Mapping[str, str]] = ()) -> Entry:
        """Choose flavors (only those in `pinned`, if any), and the workloads to preempt."""
        made, self._found = Entry(workload), {}
        for number, (requests, _) in enumerate(workload.pod_sets):
            chosen: dict[str, tuple[str, int, int, int]] = {}
            for resource in sorted(requests):
                if resource not in chosen and (requests[resource] or resource in workload.queue.group_of):
                    if not (gained := self._flavors_for(workload, number, resource, used=made.usage, pinned=pinned)):
                        chosen = {}
                        break
                    chosen |= gained
            made.flavors.append({resource: one[0] for resource, one in chosen.items()})
            made.tried.append({resource: one[3] for resource, one in chosen.items()})
            for resource, (flavor, mode, borrow, _) in chosen.items():
                key, made.mode, made.borrowing = (flavor, resource), min(made.mode, mode), max(made.borrowing, borrow)
                made.usage[key] = made.usage.get(key, 0) + requests[resource]
                made.keys |= set() if mode == FIT else {key}
            if any(requests.values()) and not chosen:
                made.mode = NO_FIT
                return made
        if made.mode < FIT:
            before = self._found.get(next(iter(made.usage.items()))) if len(made.usage) == 1 else None
            made.targets = self.targets(workload, made.usage, made.keys) if before is None else before
        return made

    def _flavors_for(
        self, workload: Workload, number: int, resource: str, *, used: Mapping[Key, int],
        pinned: Sequence[Mapping[str, str]],
    ) -> dict[str, tuple[str, int, int, int]]:  # fmt: skip
        """Choose a flavor for a resource of a pod set and for the others of its group.

        number: number of the pod set; used: amounts that were given to the workload's other pod sets; pinned: flavors
        by pod set and resource, the only ones allowed.  Return, by resource of the group, flavor, fitness, borrowing,
        and the position of the last flavor tried (-1: all); empty if no flavor fits.
        """
        queue, rules, (requests, suits) = workload.queue, workload.queue.rules, workload.pod_sets[number]
        best, goal, position = dict[str, Fitness](), (NO_FIT, 0), -1
        resources, flavors = queue.group_of.get(resource, ((), ()))
        first = workload.tried[number].get(resource, -1) + 1 if number < len(workload.tried) else 0
        names = sorted(requests.keys() & set(resources)) if resources[1:] else resources
        for position in range(first, len(flavors)):
            flavor = flavors[position]
            if (suits is not None and flavor not in suits) or (pinned and pinned[number].get(resource) != flavor):
                continue
            chosen: dict[str, Fitness] = {}
            for name in names:
                key = flavor, name
                chosen[name] = self._fitness(workload, key, used.get(key, 0) + requests[name])
                if chosen[name][0] == NO_FIT:
                    break
            worst = chosen[name] if len(chosen) == 1 else min(chosen.values(), key=partial(goodness, rules=rules))
            passes = worst[1] > 0 and rules.when_can_borrow == "try_next_flavor"
            passes |= PREEMPT <= worst[0] <= RECLAIM and rules.when_can_preempt == "try_next_flavor"
            stays = worst[0] > NO_CANDIDATES and not passes
            if stays or goodness(worst, rules) > goodness(goal, rules):
                best, goal, taken = chosen, worst, flavor
            if stays:
                break
        last = -1 if position == len(flavors) - 1 else position
        return {name: (taken, *fitness, last) for name, fitness in best.items()}

    def _fitness(self, workload: Workload, key: Key, amount: int) -> Fitness:
        """Return how a workload can get this quota: freely, by preemption, or not at all."""
        queue, rules = workload.queue, workload.queue.rules
        if amount > queue.potential(key):
            return NO_FIT, 0
        borrow, in_part = queue.lowest_fit(key, amount)
        if amount <= max(0, queue.available(key)):
            return FIT, borrow
        may_borrow = (self.fair and rules.reclaim_within_cohort != "never") or rules.borrow_within_cohort != "never"
        if queue.nominal(key) >= amount or in_part or may_borrow:
            return self.simulate(workload, key, amount)
        return NO_FIT, borrow

    def simulate(self, workload: Workload, key: Key, amount: int) -> Fitness:
        """Return how well a workload would fit after preemption for one resource.

        Returns PREEMPT (victims include workloads of its own queue), RECLAIM (victims are all in other queues) or
        NO_CANDIDATES, and the height in the tree of cohorts up to which quota is borrowed.
        """
        queue, targets = workload.queue, self.targets(workload, {key: amount}, {key})
        self._found[key, amount] = targets
        _use(targets, -1)
        borrow = queue.lowest_fit(key, amount)[0]
        _use(targets)
        mode = PREEMPT if any(one.queue is queue for one in targets) else RECLAIM
        return mode if targets else NO_CANDIDATES, borrow

    def targets(self, workload: Workload, usage: Mapping[Key, int], keys: set[Key]) -> dict[Workload, str]:
        """Return the workloads to preempt, with reasons; empty if preemption cannot help.

        keys: flavor and resource pairs with too little quota.
        """
        queue, borrows = workload.queue, workload.queue.rules.borrow_within_cohort != "never"
        own = queue.preemptible(workload, queue.rules.within_cluster_queue, keys)
        below = all(queue.nominal(key) > queue.usage.get(key, 0) for key in keys)
        within = below and not any(
            queue.borrows(key, usage[key] - sum(one.usage.get(key, 0) for one in own)) for key in keys)  # fmt: skip
        listed = list[Candidate]((2, one, queue, "in queue") for one in own)
        listed += self._of_others(workload, usage, keys, borrows or within)
        if any(queue.available(key) + sum(one[1].usage.get(key, 0) for one in listed) < usage[key] for key in keys):
            return {}  # not even all of them suffice
        listed.sort(key=lambda one: (not one[1].evicted, 0 if self.fair else one[0], preference(queue, one[1])))
        if self.fair:
            return _search(queue, usage, True, self._by_strategies(queue, [one[1] for one in listed], keys))
        attempts, ranks = [True, False], {one[0] for one in listed}
        if ranks <= {2} or not (borrows or below):
            attempts = [True]
        elif not borrows and 0 not in ranks:
            attempts = [False, True]
        gained = (_search(queue, usage, borrow, _by_rank(listed, borrow, keys)) for borrow in attempts)
        return next(filter(None, gained), {})

    def _of_others(
        self, workload: Workload, usage: Mapping[Key, int], keys: set[Key], all_levels: bool
    ) -> Iterator[Candidate]:
        """Yield candidates for preemption in other queues that use borrowed quota.

        Nearest cohort first.  all_levels: False leaves out cohorts in which the queue itself would have to borrow.
        """
        queue, rules, rest = workload.queue, workload.queue.rules, dict(usage)
        advantage = False
        levels = queue.path[1:] if rules.reclaim_within_cohort != "never" else ()
        for node, above in zip(queue.path, levels, strict=False):
            advantage |= all(not node.borrows(key, amount) for key, amount in rest.items())
            rest = {key: max(0, amount - node.unused(key)) for key, amount in rest.items()}
            for other in _borrowers(above, node, keys, self.fair) if self.fair or advantage or all_levels else ():
                for one in other.preemptible(workload, rules.reclaim_within_cohort, keys):
                    low = one.priority < workload.priority and one.priority <= rules.max_priority_threshold
                    while_borrowing = rules.borrow_within_cohort != "never" and low and not advantage
                    yield 1 - advantage, one, above, "while borrowing" if while_borrowing else "reclamation"

    def _by_strategies(
        self, queue: Queue, candidates: list[Workload], keys: set[Key]
    ) -> Iterator[tuple[Workload, str]]:
        """Yield workloads, with reasons, in the order in which fair sharing preempts them.

        `queue`: the preemptor's queue; its usage includes the preemptor.  While this queue is within its quota, it may
        preempt workloads of any queue that borrows.
        """
        nominal = not any(queue.borrows(key) for key in keys)
        for number, strategy in enumerate(self.strategies):
            remaining: dict[Queue, list[Workload]] = {}
            for one in candidates:
                remaining.setdefault(one.queue, []).append(one)
            candidates = []
            while (other := _next_turn(queue.root, queue, remaining)) is not None:
                if other is queue or nominal:
                    yield remaining[other].pop(0), "in queue" if other is queue else "reclamation"
                    continue
                above = next(node for node in other.path if node in queue.path)
                mine, theirs = above.child(queue).share()[0], above.child(other).share()[0]
                while remaining[other]:
                    one = remaining[other].pop(0)
                    if strategy == "final_share":
                        other.use(one.usage, -1)
                        theirs = above.child(other).share()[0]
                        other.use(one.usage)
                    if mine < theirs or (mine == theirs and strategy == "final_share"):
                        yield one, "fair sharing"
                        break
                    candidates.append(one)
                if number:
                    remaining[other].clear()

    def cycle(self, heads: Iterable[Workload]) -> Iterator[Entry]:
        """Decide on each queue's head, in order; add admitted heads to the queues' usage.

        Each entry is yielded before its usage counts; the caller may change its outcome to "no fit".
        """
        preempted: dict[Workload, str] = {}
        reserved: list[tuple[Queue, Mapping[Key, int]]] = []
        entries = [self.nominate(head) for head in heads]
        for entry in _by_share(entries) if self.fair else sorted(entries, key=_turn):
            workload, queue, deferred = entry.workload, entry.workload.queue, False
            if self.recompute and not preempted.keys().isdisjoint(entry.targets):  # look what others leave
                for one in preempted:
                    one.queue.take(one)
                workload.tried = ()
                entry = self.nominate(workload, entry.flavors)  # noqa: PLW2901
                for one in preempted:
                    one.queue.put(one)
                deferred = entry.mode == FIT
            entry.outcome = _outcome(entry, preempted, deferred)
            preempted |= entry.targets if entry.outcome == "preempting" else {}
            workload.tried = entry.tried if entry.outcome in ("no fit", "no candidates", "skipped") else ()
            yield entry
            usage = dict(entry.usage)
            if entry.outcome == "admitted":
                workload.usage = usage
                queue.put(workload)
            elif entry.outcome in ("preempting", "deferred", "no candidates"):
                if entry.outcome == "no candidates":  # others in the cohort must not take what it waits for
                    usage = {} if queue.rules.reclaim_within_cohort == "any" else reserved_for(entry)
                queue.use(usage)
                reserved.append((queue, usage))
        for queue, kept in reserved:
            queue.use(kept, -1)


def _turn(entry: Entry) -> tuple[int, float, float]:
    return entry.borrowing, -entry.workload.priority, entry.workload.created


def reserved_for(entry: Entry) -> dict[Key, int]:
    """Return the quota to reserve for a workload that found no workloads to preempt."""
    queue, kept = entry.workload.queue, dict[Key, int]()
    for key, amount in entry.usage.items():
        limit = queue.quotas.get(key, Quota()).borrowing if entry.borrowing else 0
        free = math.inf if limit is None else queue.nominal(key) + limit - queue.usage.get(key, 0)
        kept[key] = int(min(amount, free if entry.borrowing else max(0, free)))
    return kept


def _outcome(entry: Entry, preempted: Mapping[Workload, str], deferred: bool) -> Outcome:
    """Return what happens to a queue's first workload in this cycle of admission.

    preempted: the workloads that earlier entries preempt.  deferred: the workload waits until these have ended.
    """
    if entry.mode == NO_FIT or (entry.targets and entry.workload.gated):
        return "no fit"
    if deferred or (entry.mode < FIT and not entry.targets):
        return "deferred" if deferred else "no candidates"
    gone = {**preempted, **entry.targets}
    _use(gone, -1)
    fits = all(amount <= max(0, entry.workload.queue.available(key)) for key, amount in entry.usage.items())
    _use(gone)
    if not fits or not preempted.keys().isdisjoint(entry.targets):
        return "skipped"
    return "admitted" if entry.mode == FIT else "preempting"


def _by_share(entries: list[Entry]) -> Iterator[Entry]:
    """Yield the entries of a cycle in the order of fair sharing.

    Each wins a tournament in its tree of cohorts: on each level those that borrow nothing win, then the lowest share.
    """
    remaining: dict[Cohort, Entry] = {entry.workload.queue: entry for entry in entries}
    while remaining:
        winner = _winner(next(iter(remaining)).root, remaining)
        assert winner is not None
        yield remaining.pop(winner.workload.queue)


def _winner(cohort: Cohort, remaining: Mapping[Cohort, Entry]) -> Entry | None:
    """Return the entry of a cohort that fair sharing admits first; None without one."""
    if isinstance(cohort, Queue):
        return remaining.get(cohort)
    ranked = list[tuple[bool, tuple[int, float], float, float, int, Entry]]()
    for child in sorted(cohort.children, key=lambda child: isinstance(child, Queue)):
        if (entry := _winner(child, remaining)) is not None:
            entry.workload.queue.use(entry.usage)
            share, borrowed = child.share()
            entry.workload.queue.use(entry.usage, -1)
            borrows = any(entry.usage.get(key, 0) > 0 for key in borrowed)
            one = entry.workload
            ranked.append((borrows, share, -one.priority, one.created, len(ranked), entry))
    return min(ranked)[-1] if ranked else None


def _next_turn(cohort: Cohort, queue: Queue, remaining: Mapping[Queue, list[Workload]]) -> Queue | None:
    """Return the queue to preempt from next: on each level, follow the largest share."""
    if isinstance(cohort, Queue):
        return cohort if remaining.get(cohort) else None
    ways = list[tuple[tuple[int, float], bool, list[tuple[bool, bool, float, float, str]], Cohort]]()
    for child in cohort.children:
        share, borrowed = child.share()
        if borrowed or child in queue.path:
            first = [preference(queue, one) for one in remaining.get(child, ())[:1]] if isinstance(child, Queue) else []
            ways.append(((-share[0], -share[1]), isinstance(child, Queue), first, child))
    ways.reverse()
    ways.sort(key=lambda way: way[:3])
    return next(filter(None, (_next_turn(way[-1], queue, remaining) for way in ways)), None)


def _borrowers(cohort: Cohort, skip: Cohort | None, keys: set[Key], fair: bool) -> Iterator[Queue]:
    """Yield the queues below a cohort, if they borrow quota of one of `keys`.

    keys: pairs of flavor and resource.  Cohorts between this cohort and a queue must borrow, too, except with fair
    sharing (`fair`).  skip: child of the cohort to leave out.
    """
    for child in cohort.children:
        leaf = isinstance(child, Queue)
        if child is not skip and ((fair and not leaf) or any(child.borrows(key) for key in keys)):
            yield from [child] if isinstance(child, Queue) else _borrowers(child, None, keys, fair)


def _by_rank(listed: list[Candidate], borrow: bool, keys: set[Key]) -> Iterator[tuple[Workload, str]]:
    """Yield, in order, the candidates for preemption whose queues still borrow quota.

    A candidate's queue, and each cohort between it and the cohort shared with the preemptor, must borrow quota of one
    of `keys` (flavor and resource); candidates in the preemptor's own queue need not.  borrow: True if the preemptor
    may borrow; then candidates of rank 1 are not preempted to reclaim quota.
    """
    for rank, one, common, reason in listed:
        below = one.queue.path[: one.queue.path.index(common)]
        if not (borrow and rank == 1 and reason == "reclamation") and all(
            any(node.borrows(key) for key in keys) for node in below
        ):
            yield one, reason


def _search(
    queue: Queue, usage: Mapping[Key, int], borrow: bool, order: Iterator[tuple[Workload, str]]
) -> dict[Workload, str]:
    """Return workloads of `order` to preempt (with reason) so that usage fits, or {}."""

    def fits() -> bool:
        return all(
            not amount or (queue.available(key) >= 0 and (borrow or not queue.borrows(key)))
            for key, amount in usage.items()
        )

    taken, enough = dict[Workload, str](), False
    queue.use(usage)
    for one, reason in order:
        one.queue.use(one.usage, -1)
        taken[one] = reason
        if enough := fits():
            break
    for one in list(taken)[-2::-1] if enough else ():  # keep only those that are needed, the last one always
        one.queue.use(one.usage)
        if fits():
            del taken[one]
        else:
            one.queue.use(one.usage, -1)
    _use(taken)
    queue.use(usage, -1)
    return taken if enough else {}


def _use(workloads: Iterable[Workload], sign: int = 1) -> None:
    for one in workloads:
        one.queue.use(one.usage, sign)
