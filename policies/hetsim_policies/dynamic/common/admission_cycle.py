"""Kueue's admission by quota: flavors, preemption, cycles over heads of queues.

No engine: queues, workloads and usage in, decisions out.  A cycle takes one head of each queue, assigns it flavors,
orders the heads (those within their quota first, or by dominant share), and admits, preempts for, or passes over each
in turn.
Reference: Kueue (kubernetes-sigs/kueue), `pkg/scheduler` and its `flavorassigner` and `preemption`.
Cost: a head that fits takes O(flavors × depth); one that does not looks at the running workloads of its cohort.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from hetsim_policies.dynamic.common.cohorts import Cohort, Key, Quota, Share

NO_FIT, NO_CANDIDATES, PREEMPT, RECLAIM, FIT = range(5)
"""How a flavor can be had, from worst to best; PREEMPT: within the queue, RECLAIM: from others alone."""
Fitness = tuple[int, int]
"""One of these, and the height of the subtree in which it borrows."""
Policy = Literal["never", "lower_priority", "lower_or_newer_equal_priority", "any"]
Strategy = Literal["final_share", "initial_share"]
Outcome = Literal["admitted", "preempting", "deferred", "skipped", "no candidates", "no fit"]


class Group(NamedTuple):
    """Resources that come in the same flavor, and the flavors in order."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]


class Rules(BaseModel):
    """Rules by which a queue gets quota, in Kueue's words.

    strategy: under strict_fifo the head blocks those behind it.  within_cluster_queue, reclaim_within_cohort: which of
    its own workloads, and which of those that borrow, it preempts.  borrow_within_cohort: it may borrow while it
    preempts those of lower priority, of at most max_priority_threshold.  when_can_borrow, when_can_preempt: take the
    flavor, or try the next.  preference: of flavors that all need either.
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


class PodSet(NamedTuple):
    """Equal pods: their requests together, and the flavors that suit (None: all)."""

    requests: Mapping[str, int]
    flavors: frozenset[str] | None = None


@dataclass(eq=False)
class Workload:
    """A workload that waits, or that has quota."""

    name: str
    queue: "Queue"
    pod_sets: Sequence[PodSet]
    priority: float = 0.0
    created: float = 0.0
    order: str = ""
    """Decides between workloads that are equal otherwise."""
    usage: dict[Key, int] = field(default_factory=dict)
    since: float = math.inf
    """When it got quota."""
    evicted: bool = False
    kind: Hashable = None
    """Workloads of a queue with the same kind fit or wait alike."""
    tried: Sequence[Mapping[str, int]] = ()
    """By pod set and resource, the flavor that was tried last; -1: all were."""


class Queue(Cohort):
    """A cluster queue and the workloads that have quota in it."""

    def __init__(
        self, name: str, parent: Cohort | None, quotas: Mapping[Key, Quota], groups: Sequence[Group],
        rules: Rules | None = None, weight: float = 1.0,
    ):  # fmt: skip
        super().__init__(name, parent, quotas, weight)
        self.group_of = {resource: group for group in reversed(groups) for resource in group.resources}
        self.rules = rules or Rules()
        self.workloads: dict[Workload, None] = {}

    def put(self, workload: Workload) -> None:
        """Give a workload its quota."""
        self.workloads[workload] = None
        self.use(workload.usage)

    def take(self, workload: Workload) -> None:
        """Take its quota back."""
        del self.workloads[workload]
        self.use(workload.usage, -1)


Ranked = tuple[Workload, Cohort | None, str]
"""A candidate, the lowest cohort that it has in common with the preemptor, and the reason."""


@dataclass
class Assignment:
    """Flavors of a workload, by pod set and resource, and what that needs."""

    flavors: list[dict[str, str]] = field(default_factory=list)
    fitness: dict[Key, int] = field(default_factory=dict)
    mode: int = FIT
    borrowing: int = 0
    usage: dict[Key, int] = field(default_factory=dict)
    tried: list[dict[str, int]] = field(default_factory=list)

    @property
    def keys(self) -> set[Key]:
        """The flavors and resources that have to be preempted for."""
        return {key for key, mode in self.fitness.items() if mode not in (NO_FIT, FIT)}


@dataclass(eq=False)
class Entry:
    """A head in a cycle, and what comes of it."""

    workload: Workload
    assignment: Assignment
    targets: dict[Workload, str]
    outcome: Outcome = "no fit"


def satisfies(policy: Policy, preemptor: Workload, candidate: Workload) -> bool:
    """Return True if a policy lets one workload preempt the other."""
    if policy == "any" or (policy != "never" and preemptor.priority > candidate.priority):
        return True
    equal = preemptor.priority == candidate.priority and preemptor.created < candidate.created
    return policy == "lower_or_newer_equal_priority" and equal


def by_preference(queue: Queue) -> Callable[[Workload], tuple[bool, bool, float, float, str]]:
    """The order in which `queue` preempts: evicted, of others, low, late ones first."""
    return lambda one: (not one.evicted, one.queue is queue, one.priority, -one.since, one.order)


def preferred(one: Fitness, other: Fitness, rules: Rules) -> bool:
    """Return True if a flavor of one fitness is better than one of the other."""
    if NO_FIT in (one[0], other[0]):
        return one[0] != NO_FIT
    if (one[0] == NO_CANDIDATES) != (other[0] == NO_CANDIDATES):
        return other[0] == NO_CANDIDATES
    keys = [(fitness[0], -fitness[1]) for fitness in (one, other)]
    return keys[0][::-1] > keys[1][::-1] if rules.preference == "preemption_over_borrowing" else keys[0] > keys[1]


class Admission:
    """The rules by which heads of queues get quota.

    fair: heads go by dominant share, and preemption evens it out, by `strategies`.
    """

    def __init__(self, fair: bool = False, strategies: Sequence[Strategy] = ("final_share", "initial_share")):
        self.fair, self.strategies = fair, strategies

    # Flavors --------------------------------------------------------------------------------------------------

    def assign(self, workload: Workload, pinned: Sequence[Mapping[str, str]] = ()) -> Assignment:
        """Choose flavors, in their order; `pinned`: these alone."""
        made = Assignment()
        for number, pods in enumerate(workload.pod_sets):
            chosen: dict[str, tuple[str, int, int, int]] = {}
            for resource in sorted(pods.requests):
                if resource in chosen or not (pods.requests[resource] or resource in workload.queue.group_of):
                    continue
                only = pinned[number] if pinned else None
                if not (flavors := self._flavors_for(workload, number, resource, used=made.usage, only=only)):
                    chosen = {}
                    break
                chosen |= flavors
            made.flavors.append({resource: one[0] for resource, one in chosen.items()})
            made.tried.append({resource: one[3] for resource, one in chosen.items()})
            for resource, (flavor, mode, borrow, _) in chosen.items():
                key, made.borrowing = (flavor, resource), max(made.borrowing, borrow)
                made.usage[key] = made.usage.get(key, 0) + pods.requests[resource]
                made.mode = min(made.mode, mode)
                made.fitness[key] = min(made.fitness.get(key, FIT), mode)
            if any(pods.requests.values()) and not chosen:
                made.mode = NO_FIT
                break
        return made

    def _flavors_for(
        self, workload: Workload, number: int, resource: str, used: Mapping[Key, int], only: Mapping[str, str] | None
    ) -> dict[str, tuple[str, int, int, int]]:
        """Flavor, fitness, borrowing, position by resource; empty if none fits."""
        queue, pods = workload.queue, workload.pod_sets[number]
        rules, best, best_fitness, position = queue.rules, dict[str, tuple[str, int, int]](), (NO_FIT, 0), -1
        if (group := queue.group_of.get(resource)) is None:
            return {}
        first = workload.tried[number].get(resource, -1) + 1 if number < len(workload.tried) else 0
        for position in range(first, len(group.flavors)):
            flavor, worst = group.flavors[position], (FIT, 0)
            if (pods.flavors is not None and flavor not in pods.flavors) or (only and only.get(resource) != flavor):
                continue
            chosen: dict[str, tuple[str, int, int]] = {}
            for name in sorted(set(pods.requests) & set(group.resources)):
                fitness = self._fitness(workload, (flavor, name), used.get((flavor, name), 0) + pods.requests[name])
                worst = fitness if preferred(worst, fitness, rules) else worst
                if worst[0] == NO_FIT:
                    break
                chosen[name] = (flavor, *fitness)
            passes = worst[1] > 0 and rules.when_can_borrow == "try_next_flavor"
            passes |= PREEMPT <= worst[0] <= RECLAIM and rules.when_can_preempt == "try_next_flavor"
            stays = worst[0] > NO_CANDIDATES and not passes
            if stays or preferred(worst, best_fitness, rules):
                best, best_fitness = chosen, worst
            if stays:
                break
        last = -1 if position == len(group.flavors) - 1 else position
        return {name: (*one, last) for name, one in best.items()}

    def _fitness(self, workload: Workload, key: Key, amount: int) -> Fitness:
        """How a queue can have an amount of one resource in one flavor."""
        queue, rules = workload.queue, workload.queue.rules
        if amount > queue.potential(key):
            return NO_FIT, 0
        borrow, in_part = queue.lowest_fit(key, amount)
        if amount <= max(0, queue.available(key)):
            return FIT, borrow
        may_borrow = (self.fair and rules.reclaim_within_cohort != "never") or rules.borrow_within_cohort != "never"
        if queue.quotas.get(key, Quota()).nominal >= amount or in_part or may_borrow:
            return self.simulate(workload, key, amount)
        return NO_FIT, borrow

    def simulate(self, workload: Workload, key: Key, amount: int) -> Fitness:
        """The fitness that preemption for one resource would achieve."""
        queue, targets = workload.queue, self.targets(workload, {key: amount}, {key})
        with_others = [one for one in targets if one.queue is not queue]
        _use(targets, -1)
        borrow = queue.lowest_fit(key, amount)[0]
        _use(targets)
        mode = NO_CANDIDATES if not targets else RECLAIM if len(with_others) == len(targets) else PREEMPT
        return mode, borrow

    # Preemption -----------------------------------------------------------------------------------------------

    def targets(self, workload: Workload, usage: Mapping[Key, int], keys: set[Key]) -> dict[Workload, str]:
        """The workloads to preempt, each with the reason; empty if that does not suffice.

        keys: what there is too little of.
        """
        return self._fair(workload, usage, keys) if self.fair else self._classical(workload, usage, keys)

    def _classical(self, workload: Workload, usage: Mapping[Key, int], keys: set[Key]) -> dict[Workload, str]:
        queue, rules = workload.queue, workload.queue.rules
        own = _candidates(queue, workload, rules.within_cluster_queue, keys)
        borrows = rules.borrow_within_cohort != "never"
        below = all(queue.quotas.get(key, Quota()).nominal > queue.usage.get(key, 0) for key in keys)
        hierarchy, others = _candidates_above(workload, usage, keys, borrows or below)
        candidates = [*own, *(item[0] for item in (*hierarchy, *others))]
        if any(queue.available(key) + sum(one.usage.get(key, 0) for one in candidates) < usage[key] for key in keys):
            return {}  # not even all of them suffice
        order = by_preference(queue)
        ranked, mine = list[Ranked](), list[Ranked]((one, None, "in queue") for one in own)
        for group in (hierarchy, others, mine):
            ranked += sorted(group, key=lambda item: order(item[0]))
        ranked.sort(key=lambda item: not item[0].evicted)
        attempts = (True, False)
        if not (hierarchy or others) or not (borrows or below):
            attempts = (True,)  # type: ignore[assignment]
        elif not borrows and not hierarchy:
            attempts = (False, True)
        for borrow in attempts:
            taken: dict[Workload, str] = {}
            for one, common, reason in ranked:
                if one.queue is not queue and ((borrow and reason == "reclaim") or _within(one.queue, common, keys)):
                    continue
                one.queue.take(one)
                taken[one] = "reclamation" if reason == "reclaim" else reason
                if _fits(queue, usage, borrow):
                    return _restore(_filled_back(taken, partial(_fits, queue, usage, borrow)))
            _restore(taken)
        return {}

    def _fair(self, workload: Workload, usage: Mapping[Key, int], keys: set[Key]) -> dict[Workload, str]:
        queue, rules = workload.queue, workload.queue.rules
        candidates = _candidates(queue, workload, rules.within_cluster_queue, keys)
        if queue.parent is not None and rules.reclaim_within_cohort != "never":
            for other in _queues(queue.root):
                if other is not queue and any(other.borrows(key) for key in keys):
                    candidates += _candidates(other, workload, rules.reclaim_within_cohort, keys)
        candidates.sort(key=by_preference(queue))

        def fits() -> bool:
            queue.use(usage, -1)
            enough = _fits(queue, usage, True)
            queue.use(usage)
            return enough

        queue.use(usage)  # shares are those with the workload
        taken, again = dict[Workload, str](), list[Workload]()
        nominal = not any(queue.borrows(key) for key in keys)
        done = self._first_strategy(queue, candidates, nominal, taken=taken, again=again, fits=fits)
        if not done and len(self.strategies) > 1:
            turns = Turns(queue, again)
            while not done and (turn := turns.next()) is not None:
                mine, theirs = turns.shares(turn)
                one = turns.pop(turn)
                if mine.key < theirs.key:
                    done = _preempt(one, "fair sharing", taken, fits)
                turns.drop(turn)
        queue.use(usage, -1)
        if done:
            _filled_back(taken, partial(_fits, queue, usage, True))
        _restore(taken)
        return taken if done else {}

    def _first_strategy(
        self, queue: Queue, candidates: list[Workload], nominal: bool, taken: dict[Workload, str],
        again: list[Workload], fits: Callable[[], bool],
    ) -> bool:  # fmt: skip
        """Preempt by the first strategy; True once the workload fits.

        nominal: the queue keeps within its quota, and then may take from any borrower.
        """
        turns = Turns(queue, candidates)
        while (other := turns.next()) is not None:
            if other is queue or nominal:
                if _preempt(turns.pop(other), "in queue" if other is queue else "reclamation", taken, fits):
                    return True
                continue
            mine, theirs = turns.shares(other)
            while turns.left.get(other):
                one, against = turns.pop(other), theirs
                if self.strategies[0] == "final_share":
                    other.use(one.usage, -1)
                    against = turns.shares(other)[1]
                    other.use(one.usage)
                passes = mine.key <= against.key if self.strategies[0] == "final_share" else mine.key < against.key
                if passes:
                    if _preempt(one, "fair sharing", taken, fits):
                        return True
                    break
                again.append(one)
        return False

    # Cycles ---------------------------------------------------------------------------------------------------

    def nominate(self, workload: Workload, pinned: Sequence[Mapping[str, str]] = ()) -> Entry:
        """Flavors for a workload, and the workloads that it would preempt."""
        assignment, targets = self.assign(workload, pinned), dict[Workload, str]()
        if NO_FIT < assignment.mode < FIT:
            targets = self.targets(workload, assignment.usage, assignment.keys)
        return Entry(workload, assignment, targets)

    def cycle(self, heads: Iterable[Workload]) -> Iterator[Entry]:
        """Decide on one head of each queue, in order; admitted ones get their usage.

        Each is yielded before its usage counts; the caller may change its outcome to "no fit".
        """
        preempted: dict[Workload, str] = {}
        reserved: list[tuple[Queue, Mapping[Key, int]]] = []
        entries = [self.nominate(head) for head in heads]
        for entry in self._by_share(entries) if self.fair else sorted(entries, key=_turn):
            workload = entry.workload
            entry.outcome = self._decided(entry, preempted, reserved)
            usage = entry.assignment.usage
            going_on = entry.outcome in ("no fit", "no candidates", "skipped")
            workload.tried = entry.assignment.tried if going_on else ()
            yield entry
            if entry.outcome == "admitted":
                workload.usage = dict(usage)
                workload.queue.put(workload)
            elif entry.outcome in ("preempting", "deferred"):
                workload.queue.use(usage)
                reserved.append((workload.queue, usage))
        for queue, kept in reversed(reserved):
            queue.use(kept, -1)

    def _decided(
        self, entry: Entry, preempted: dict[Workload, str], reserved: list[tuple[Queue, Mapping[Key, int]]]
    ) -> Outcome:
        """The outcome of an entry, given those before it in the cycle."""
        queue, deferred = entry.workload.queue, False
        if not preempted.keys().isdisjoint(entry.targets):  # others preempt them already: look what is left
            for one in preempted:
                one.queue.take(one)
            entry.workload.tried = ()
            fresh = self.nominate(entry.workload, entry.assignment.flavors)
            entry.assignment, entry.targets = fresh.assignment, fresh.targets
            _restore(preempted)
            deferred = entry.assignment.mode == FIT
        assignment = entry.assignment
        if assignment.mode == NO_FIT:
            return "no fit"
        if assignment.mode < FIT and not entry.targets:
            if queue.rules.reclaim_within_cohort != "any":  # others in the cohort must not take what it waits for
                usage = {key: _reserved(queue, key, amount, assignment.borrowing)
                         for key, amount in assignment.usage.items()}  # fmt: skip
                queue.use(usage)
                reserved.append((queue, usage))
            return "no candidates"
        if deferred:
            return "deferred"
        gone = preempted | entry.targets
        _use(gone, -1)
        fits = _fits(queue, assignment.usage, True)
        _use(gone)
        if not fits or not preempted.keys().isdisjoint(entry.targets):
            return "skipped"
        preempted |= entry.targets
        return "admitted" if assignment.mode == FIT else "preempting"

    def _by_share(self, entries: list[Entry]) -> Iterator[Entry]:
        """Entries by a tournament in each tree: the least share with the workload wins."""
        entered: dict[Cohort, Entry] = {entry.workload.queue: entry for entry in entries}
        while entered:
            queue = next(iter(entered))
            if queue.parent is not None:
                shares: dict[tuple[Cohort, Entry], Share] = {}
                for other, entry in entered.items():
                    if other.root is queue.root:
                        other.use(entry.assignment.usage)
                        node = other
                        for above in other.path():
                            shares[above, entry] = node.share()
                            node = above
                        other.use(entry.assignment.usage, -1)
                winner = _winner(queue.root, entered, shares)
                assert winner is not None
                queue = winner.workload.queue
            yield entered.pop(queue)


class Line:
    """The workloads that wait in a queue, by priority and age.

    In a queue that is not strict, kinds that could not be admitted are set aside until `wake`.
    """

    def __init__(self, queue: Queue):
        self.queue = queue
        self._waiting: dict[Hashable, list[tuple[bool, float, float, int, Workload]]] = {}
        self._aside: set[Hashable] = set()
        self._added = 0

    def add(self, workload: Workload, first: bool = False) -> None:
        """Let it wait; `first`: before all others."""
        self._added += 1
        entry = (not first, -workload.priority, workload.created, self._added, workload)
        heappush(self._waiting.setdefault(workload.kind, []), entry)

    def remove(self, workload: Workload) -> None:
        """It waits no longer."""
        others = [entry for entry in self._waiting.pop(workload.kind, ()) if entry[-1] is not workload]
        if others:
            heapify(others)
            self._waiting[workload.kind] = others

    def pop(self) -> Workload | None:
        """The next head; None if nothing is to be looked at."""
        heads = [heap for kind, heap in self._waiting.items() if kind not in self._aside]
        if not heads:
            return None
        workload = heappop(min(heads))[-1]
        if not self._waiting[workload.kind]:
            del self._waiting[workload.kind]
        return workload

    def requeue(self, entry: Entry) -> bool:
        """Let a head that was not admitted wait again; True if the next look differs."""
        workload, strict = entry.workload, self.queue.rules.strategy == "strict_fifo"
        self.add(workload, first=entry.outcome in ("preempting", "deferred") and not strict)
        tries_on = any(position != -1 for one in workload.tried for position in one.values())
        if strict or entry.outcome not in ("no fit", "no candidates") or tries_on:
            return tries_on
        self._aside.add(workload.kind)
        return True

    def wake(self) -> None:
        """Look at all again: something in the tree has changed."""
        self._aside.clear()

    def waiting(self, aside: bool) -> list[Workload]:
        """Those that are set aside, or those that are not."""
        return [entry[-1] for kind, heap in self._waiting.items() if (kind in self._aside) == aside for entry in heap]


class Turns:
    """Queues in the order in which fair sharing preempts: the greatest share first."""

    def __init__(self, queue: Queue, candidates: Iterable[Workload]):
        self.queue = queue
        self.left: dict[Queue, list[Workload]] = {}
        for one in candidates:
            self.left.setdefault(one.queue, []).append(one)
        self._pruned: set[Cohort] = set()
        self._above = set(queue.path())
        self._order = by_preference(queue)

    def next(self) -> Queue | None:
        """The queue that gives next; None: there is none left."""
        root = self.queue.root
        if root is self.queue:
            return self.queue if self.left.get(self.queue) and self.queue not in self._pruned else None
        while root not in self._pruned:
            if (turn := self._below(root)) is not None:
                return turn
        return None

    def pop(self, queue: Queue) -> Workload:
        """Its next candidate."""
        return self.left[queue].pop(0)

    def drop(self, queue: Queue) -> None:
        """Look at the queue no more."""
        self._pruned.add(queue)

    def shares(self, other: Queue) -> tuple[Share, Share]:
        """Shares of the preemptor's and the other's branch below their common cohort."""
        common = next(node for node in other.path() if node in self._above)
        return _branch(self.queue, common).share(), _branch(other, common).share()

    def _below(self, cohort: Cohort) -> Queue | None:
        best: tuple[tuple[int, float], bool, Cohort] | None = None
        for child in cohort.children:
            if child in self._pruned:
                continue
            share, is_queue = child.share(), isinstance(child, Queue)
            keeps = child is self.queue or child in self._above
            if not (share.borrowed or keeps) or (isinstance(child, Queue) and not self.left.get(child)):
                self._pruned.add(child)
                continue
            rank = (share.key, not is_queue)
            tied = best is not None and rank == best[:2]
            if best is None or rank > best[:2] or (tied and (not is_queue or self._earlier(child, best[2]))):
                best = (*rank, child)
        if best is None:
            self._pruned.add(cohort)
            return None
        return best[2] if isinstance(best[2], Queue) else self._below(best[2])

    def _earlier(self, one: Cohort, other: Cohort) -> bool:
        assert isinstance(one, Queue) and isinstance(other, Queue)
        return self._order(self.left[one][0]) < self._order(self.left[other][0])


def _winner(cohort: Cohort, left: Mapping[Cohort, Entry], shares: Mapping[tuple[Cohort, Entry], Share]) -> Entry | None:
    """The entry that goes first below a cohort."""
    rounds = [left.get(child) if isinstance(child, Queue) else _winner(child, left, shares)
              for child in sorted(cohort.children, key=lambda child: isinstance(child, Queue))]  # fmt: skip

    def rank(entry: Entry) -> tuple[bool, tuple[int, float], float, float]:
        share, wanted = shares[cohort, entry], entry.assignment.usage
        borrows = any(wanted.get(key, 0) > 0 for key in share.borrowed)
        return borrows, share.key, -entry.workload.priority, entry.workload.created

    return min((entry for entry in rounds if entry is not None), key=rank, default=None)


def _turn(entry: Entry) -> tuple[int, float, float]:
    return entry.assignment.borrowing, -entry.workload.priority, entry.workload.created


def _reserved(queue: Queue, key: Key, amount: int, borrowing: int) -> int:
    """The amount that a workload without candidates keeps from others."""
    quota, used = queue.quotas.get(key, Quota()), queue.usage.get(key, 0)
    if borrowing:
        return amount if quota.borrowing is None else min(amount, quota.nominal + quota.borrowing - used)
    return max(0, min(amount, quota.nominal - used))


def _candidates_above(
    workload: Workload, usage: Mapping[Key, int], keys: set[Key], all_levels: bool
) -> tuple[list[Ranked], list[Ranked]]:
    """Workloads of other queues: those that use nearer quota, and the rest.

    all_levels: false where the queue would have to borrow, for which it may not preempt the rest.
    """
    queue, rules, rest = workload.queue, workload.queue.rules, dict(usage)
    nearer, others = list[Ranked](), list[Ranked]()
    advantage, node = False, queue
    for above in queue.path() if rules.reclaim_within_cohort != "never" else ():
        advantage |= all(not node.borrows(key, amount) for key, amount in rest.items())
        rest = {key: max(0, amount - node.unused(key)) for key, amount in rest.items()}
        for other in _queues(above, node, keys) if advantage or all_levels else ():
            for one in _candidates(other, workload, rules.reclaim_within_cohort, keys) if other is not queue else ():
                low = one.priority < workload.priority and one.priority <= rules.max_priority_threshold
                while_borrowing = "while borrowing" if rules.borrow_within_cohort != "never" and low else "reclaim"
                (nearer if advantage else others).append((one, above, "reclamation" if advantage else while_borrowing))
        node = above  # type: ignore[assignment]
    return nearer, others


def _queues(cohort: Cohort, skip: Cohort | None = None, over: Iterable[Key] = ()) -> Iterator[Queue]:
    """The queues below a cohort; `over`: where all on the way borrow one of these."""
    for child in cohort.children:
        if child is skip or (over and not any(child.borrows(key) for key in over)):
            continue
        if isinstance(child, Queue):
            yield child
        else:
            yield from _queues(child, None, over)


def _branch(queue: Queue, common: Cohort) -> Cohort:
    return next(node for node in (queue, *queue.path()) if node.parent is common)


def _within(queue: Queue, common: Cohort | None, keys: set[Key]) -> bool:
    """Return True if the queue, or a cohort below `common`, borrows no more."""
    for node in (queue, *queue.path()):
        if node is common:
            break
        if not any(node.borrows(key) for key in keys):
            return True
    return False


def _candidates(queue: Queue, preemptor: Workload, policy: Policy, keys: set[Key]) -> list[Workload]:
    """Its workloads that use one of these and that the policy lets one preempt."""
    return [one for one in queue.workloads if not keys.isdisjoint(one.usage) and satisfies(policy, preemptor, one)]


def _fits(queue: Queue, usage: Mapping[Key, int], borrow: bool) -> bool:
    return all(
        amount <= max(0, queue.available(key)) and (borrow or not queue.borrows(key, amount))
        for key, amount in usage.items()
    )


def _use(workloads: Iterable[Workload], sign: int = 1) -> None:
    for one in workloads:
        one.queue.use(one.usage, sign)


def _preempt(one: Workload, reason: str, taken: dict[Workload, str], fits: Callable[[], bool]) -> bool:
    one.queue.take(one)
    taken[one] = reason
    return fits()


def _filled_back(taken: dict[Workload, str], fits: Callable[[], bool]) -> dict[Workload, str]:
    """Keep only those that are needed, the last one always."""
    for one in list(taken)[-2::-1]:
        one.queue.put(one)
        if fits():
            del taken[one]
        else:
            one.queue.take(one)
    return taken


def _restore(taken: dict[Workload, str]) -> dict[Workload, str]:
    for one in taken:
        one.queue.put(one)
    return taken
