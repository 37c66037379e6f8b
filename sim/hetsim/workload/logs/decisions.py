"""Compares scheduling rules with a log at each instant of the recorded state.

At each arrival, start and end, the recorded state is the set of running jobs, with their nodes and start times, and the
waiting jobs.  A rule (an order and a discipline, with or without limits) selects the waiting jobs that it would start
then.  A job's predicted start is the first instant at which the rule selects it.  The job then leaves the rule's queue
even if the log starts it later; otherwise one wrong row of the log would affect all later decisions.  If the log starts
a job before the rule selects it, the predicted start is the recorded start of the first job that blocks it.

Cost: O(instants × rules), plus a scan of the first `DEPTH` waiting jobs at instants at which a job fits but the rule
may not start it.  If a log has more than `MAX_JUDGED` jobs, only this number is judged, in evenly spaced stretches.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.workload.logs.inferred import Limits, Order
from hetsim.workload.logs.recorded_log import SLACK, Jobs

DEPTH = 100  # jobs behind the first that backfilling scans, as in `easy_backfill` and `conservative_backfill`
# Bounds of the number of judged jobs; above FEW_NODES nodes the maximum falls in proportion
MAX_JUDGED, MIN_JUDGED, FEW_NODES = 20_000, 1_000, 16
STRETCHES = 5
DAY = 86400.0
# score of a node from its free amount and its number; the lowest wins
Prefer = Callable[[float, int], tuple[float, ...]]
Demand = tuple[int, float, int]  # where a job fits: bit mask of allowed nodes, amount on each node, number of nodes


@dataclass(frozen=True)
class Rule:
    """A scheduling rule: the order of waiting jobs, and which jobs may overtake."""

    order: str
    discipline: str
    limits: str = ""  # jobs blocked by a limit: `passed` (others overtake), `reserved` (they get a reservation)
    age: float = 0.0  # order by usage: weight of age (full after a week) next to 1 for fair share
    half_life: float = 7 * DAY  # of the usage, in s


@dataclass(eq=False, slots=True)
class LoggedJob:
    """A job of the log, with the attributes that rules use."""

    row: int
    arrival: float
    start: float
    end: float
    estimate: float
    user: int
    group: int  # code of the label that has limits
    rank: int  # rank of the job's class, if classes have priorities
    nodes: list[int]  # nodes that the job ran on
    demand: Demand

    @property
    def amount(self) -> float:
        return self.demand[1] * len(self.nodes)


# Sort keys that do not change while a job waits; ties by arrival.  `share` and `usage` change with the users' jobs
KEYS: dict[str, Callable[[LoggedJob], float]] = {
    "arrival": lambda job: 0.0,
    "latest first": lambda job: -job.arrival,
    "shortest first": lambda job: job.estimate,
    "longest first": lambda job: -job.estimate,
    "narrowest first": lambda job: job.amount,
    "widest first": lambda job: -job.amount,
    "class": lambda job: job.rank,
}


class RecordedState:
    """Free and used capacity per node, and usage per user and per group with a limit."""

    def __init__(self, sizes: list[float], max_of_group: dict[int, float], half_lives: Iterable[float], users: int):
        self.free = list(sizes)
        # by node and job: expected end and amount
        self.running: list[dict[int, tuple[float, float]]] = [{} for _ in sizes]
        self.max_of_group = max_of_group
        # by limited group and running job: expected end and amount
        self.of_group: dict[int, dict[int, tuple[float, float]]] = {group: {} for group in max_of_group}
        self.of_user = np.zeros(users + 1)
        # by half-life: each user's decayed usage
        self.usage = {half_life: np.zeros(users + 1) for half_life in half_lives}
        self.seen: set[int] = set()  # users that had jobs
        self._room: dict[Demand, list[int]] = {}
        self._as_of = 0.0

    def advance(self, now: float) -> None:
        for half_life, usage in self.usage.items():
            rate = math.log(2) / half_life
            kept = math.exp(-rate * (now - self._as_of))
            usage *= kept
            usage += self.of_user * ((1 - kept) / rate)
        self._as_of = now

    def change(self, job: LoggedJob, sign: int) -> None:
        """Start (sign 1) or end (sign -1) a job on its recorded nodes."""
        self._room.clear()
        holders = [(self.running[node], job.demand[1]) for node in job.nodes]
        if job.group in self.of_group:
            holders.append((self.of_group[job.group], job.amount))
        for running, amount in holders:
            if sign > 0:
                running[job.row] = job.start + job.estimate, amount
            else:
                del running[job.row]
        for node in job.nodes:
            self.free[node] -= sign * job.demand[1]
        self.of_user[job.user] += sign * job.amount

    def room(self, demand: Demand) -> list[int]:
        if demand not in self._room:
            self._room[demand] = fitting(self.free, demand)
        return self._room[demand]


def fitting(free: list[float], demand: Demand) -> list[int]:
    """Return the nodes with enough room for a job; empty if the job needs more nodes."""
    pool, need, count = demand
    need -= SLACK
    nodes = [node for node, amount in enumerate(free) if amount >= need and pool >> node & 1]
    return nodes if len(nodes) >= count else []


class Round:
    """A rule's decision at one instant: the recorded state, and the jobs it starts."""

    def __init__(self, state: RecordedState, now: float, coming: list[LoggedJob]):
        self.state, self.now = state, now
        self.free = state.free
        self.given: list[LoggedJob] = []
        for job in coming:
            self.give(job)

    def give(self, job: LoggedJob) -> None:
        if not self.given:
            self.free = list(self.free)
        for node in job.nodes:
            self.free[node] -= job.demand[1]
        self.given.append(job)

    def room(self, demand: Demand) -> list[int]:
        return fitting(self.free, demand) if self.given else self.state.room(demand)

    def within_limit(self, group: int) -> float:
        """Return the amount that a group may still use; inf without a limit."""
        if group not in self.state.max_of_group:
            return math.inf
        holds = sum(amount for _, amount in self.state.of_group[group].values())
        return self.state.max_of_group[group] - holds - sum(job.amount for job in self.given if job.group == group)

    def ends(self, node: int) -> list[tuple[float, float]]:
        """Return (expected end, GPUs or cores) of each job on a node; late ones end now."""
        entries = [(max(end, self.now), need) for end, need in self.state.running[node].values()]
        entries += [(self.now + job.estimate, job.demand[1]) for job in self.given if node in job.nodes]
        return sorted(entries)

    def ends_of_group(self, group: int) -> list[tuple[float, float]]:
        """Return (expected end, amount used) of jobs under a group's limit; overdue: now."""
        entries = [(max(end, self.now), need) for end, need in self.state.of_group[group].values()]
        return sorted(entries + [(self.now + job.estimate, job.amount) for job in self.given if job.group == group])

    def _when(self, free: float, need: float, ends: list[tuple[float, float]]) -> float:
        for when, amount in [(self.now, 0.0), *ends]:
            free += amount
            if free >= need - SLACK:
                return when
        return math.inf

    def shadow(self, head: LoggedJob, limited: bool) -> tuple[float, dict[int, float]]:
        """Return the earliest start of a blocked job, and the capacity left free then.

        The free capacity is by node, for the nodes that the job would use.  The key -1 has the amount that the limit of
        the job's group, if any, still allows.
        """
        pool, need, count = head.demand
        times = [(self._when(free, need, self.ends(node)), node)
                 for node, free in enumerate(self.free) if pool >> node & 1]  # fmt: skip
        chosen = sorted(times)[:count]
        at = chosen[-1][0] if len(chosen) == count else math.inf
        limited = limited and head.group in self.state.max_of_group
        if limited:
            room, ends = self.within_limit(head.group), self.ends_of_group(head.group)
            at = max(at, self._when(room, head.amount, ends))
        if math.isinf(at):
            return at, {}
        spare = {node: self.free[node] + sum(amount for end, amount in self.ends(node) if end <= at) - need
                for _, node in chosen}  # fmt: skip
        if limited:
            spare[-1] = room + sum(amount for end, amount in ends if end <= at) - head.amount
        return at, spare


class FreeLevels:
    """Free capacity over time, by node and by limited group, for reservations of jobs."""

    def __init__(self, here: Round, limited: bool):
        ends = [(end, node, amount) for node in range(len(here.free)) for end, amount in here.ends(node)]
        self.columns = {group: len(here.free) + place for place, group in enumerate(here.state.max_of_group) if limited}
        for group, column in self.columns.items():
            ends += [(end, column, amount) for end, amount in here.ends_of_group(group)]
        self.times = sorted({here.now, *(end for end, _, _ in ends)})
        change = np.zeros((len(self.times), len(here.free) + len(self.columns)))
        change[0] = [*here.free, *map(here.within_limit, self.columns)]
        for end, node, amount in ends:
            change[bisect_left(self.times, end), node] += amount
        self.free = change.cumsum(axis=0)

    def reserve(self, job: LoggedJob) -> float:
        """Reserve capacity for a job as early as possible; return its start (inf: never)."""
        pool, need, count = job.demand
        nodes = np.array([node for node in range(self.free.shape[1]) if pool >> node & 1])
        room = self.free[:, nodes] >= need - SLACK
        if (column := self.columns.get(job.group)) is not None:
            room &= self.free[:, column, None] >= job.amount - SLACK
        rows = np.arange(len(self.times))
        # By row and node: the row from which on there is no room.
        blocked = np.minimum.accumulate(np.where(room, len(rows), rows[:, None])[::-1], axis=0)[::-1]
        times = np.array(self.times)
        last = np.maximum(np.searchsorted(times, times + (job.estimate - SLACK)), rows + 1)
        suits = blocked >= last[:, None]
        for row in np.flatnonzero(suits.sum(axis=1) >= count)[:1].tolist():
            places, end, until = nodes[suits[row]][:count], self.times[row] + job.estimate, int(last[row])
            if until == len(rows) or self.times[until] != end:
                self.times.insert(until, end)
                self.free = np.insert(self.free, until, self.free[until - 1], axis=0)
            self.free[row:until, places] -= need
            if column is not None:
                self.free[row:until, column] -= job.amount
            return self.times[row]
        return math.inf


class Examined:
    """A scheduling rule replayed on a log, and its predicted starts (NaN: not judged)."""

    def __init__(self, rule: Rule, count: int, cycle: float, prefer: Prefer | None):
        self.rule, self.cycle, self.prefer = rule, cycle, prefer
        self.key = KEYS.get(rule.order, KEYS["arrival"])
        self.predicted = np.full(count, math.nan)
        self.begin(())

    def begin(self, waiting: Iterable[LoggedJob]) -> None:
        """Begin a part of the log that is judged; `waiting`: the jobs that wait then."""
        self.queue = sorted(self._entry(job) for job in waiting if math.isnan(self.predicted[job.row]))
        self.coming: list[LoggedJob] = []  # jobs that it has started and the record will within a cycle

    def _entry(self, job: LoggedJob) -> tuple[float, float, int, LoggedJob]:
        return self.key(job), job.arrival, job.row, job

    def push(self, came: list[LoggedJob]) -> None:
        for job in came:
            insort(self.queue, self._entry(job))

    def remove(self, job: LoggedJob) -> None:
        del self.queue[bisect_left(self.queue, self._entry(job))]

    def decide(self, state: RecordedState, now: float, starts: list[LoggedJob], hopeless: bool) -> None:
        """Record the jobs that the examined rule starts now; compare them with the log.

        `starts`: the jobs that start now in the log.  `hopeless`: no waiting job fits on any node.
        """
        if self.coming:
            self.coming = [job for job in self.coming if job.start > now or job in starts]
        heads: list[LoggedJob] = []
        here = Round(state, now, self.coming)
        for job in () if hopeless else self._started(here, heads):
            self.predicted[job.row] = now
            self.remove(job)
            if job.start <= now + self.cycle:  # else the record holds it back, for reasons that the rule does not know
                here.give(job)
                self.coming.append(job)
        for job in starts:
            if math.isnan(self.predicted[job.row]):
                first = next((head for head in heads if head.demand[0] & job.demand[0]), job)
                self.predicted[job.row] = max(first.start, now + self.cycle + 1.0)
                self.remove(job)

    def _order(self, here: Round, heads: list[LoggedJob]) -> Iterator[LoggedJob]:
        waiting = [entry[3] for entry in self.queue]
        if self.rule.order == "share":
            return self._turns(here, heads, waiting)
        if self.rule.order == "usage":
            usage = here.state.usage[self.rule.half_life]
            owed = (2.0 ** (-usage * (len(here.state.seen) / max(float(usage.sum()), SLACK)))).tolist()
            full, slope = self.rule.age, self.rule.age / (7 * DAY)
            waiting.sort(key=lambda job: -owed[job.user] - min(full, slope * (here.now - job.arrival)))
        return iter(waiting)

    @staticmethod
    def _turns(here: Round, heads: list[LoggedJob], waiting: list[LoggedJob]) -> Iterator[LoggedJob]:
        """Yield waiting jobs: always the next one of the user with the least usage now."""
        lines: dict[int, list[LoggedJob]] = {}
        for job in reversed(waiting):
            lines.setdefault(job.user, []).append(job)
        holds = here.state.of_user.tolist()
        for job in here.given:
            holds[job.user] += job.amount
        while lines:
            user = min(lines, key=lambda user: (holds[user], lines[user][-1].arrival))
            job = lines[user].pop()
            before = len(here.given)
            yield job
            holds[user] += job.amount * (len(here.given) > before)
            if not lines[user] or heads and heads[-1] is job:
                del lines[user]

    def _started(self, here: Round, heads: list[LoggedJob]) -> Iterator[LoggedJob]:
        """Yield the jobs that the rule starts now; add jobs that cannot start to `heads`."""
        discipline, everywhere = self.rule.discipline, (1 << len(here.free)) - 1
        closed, behind = 0, []
        for job in self._order(here, heads):
            kept = self.rule.limits and here.within_limit(job.group) < job.amount - SLACK
            if kept and self.rule.limits == "passed":
                continue
            if closed & job.demand[0]:
                behind.append(job)
                if len(behind) >= DEPTH:
                    break
            elif not kept and here.room(job.demand):
                yield job
            else:
                heads.append(job)
                behind.append(job)
                closed |= 0 if discipline == "skip" else job.demand[0]
                if discipline == "block" and closed == everywhere:
                    return
        if discipline == "easy":
            yield from self._around(here, heads, behind)
        elif discipline == "conservative":
            yield from self._reserved(here, behind)

    def _fits(self, here: Round, job: LoggedJob) -> list[int]:
        places = here.room(job.demand)
        return places if not self.rule.limits or here.within_limit(job.group) >= job.amount - SLACK else []

    def _around(self, here: Round, heads: list[LoggedJob], behind: list[LoggedJob]) -> Iterator[LoggedJob]:
        shadows: dict[int, tuple[float, dict[int, float]]] = {}
        for job in behind:
            pool, need, count = job.demand
            if not (places := self._fits(here, job)):
                continue
            late: list[tuple[LoggedJob, dict[int, float]]] = []
            for head in heads:
                if head.demand[0] & pool:
                    if head.row not in shadows:
                        shadows[head.row] = here.shadow(head, self.rule.limits == "reserved")
                    if here.now + job.estimate > shadows[head.row][0] + SLACK:
                        late.append((head, shadows[head.row][1]))
            if (prefer := self.prefer) is not None:  # a placement names one place, which may be the wrong one
                places = [node for _, node in sorted((prefer(here.free[node], node), node) for node in places)[:count]]
            places = [node for node in places if all(spare.get(node, need) >= need - SLACK for _, spare in late)]
            same = [spare for head, spare in late if head.group == job.group and -1 in spare]
            if len(places) >= count and all(spare[-1] >= job.amount - SLACK for spare in same):
                for spare in same:
                    spare[-1] -= job.amount
                for node in job.nodes if set(job.nodes) <= set(places) else places[:count]:
                    for _, spare in late:
                        spare[node] = spare.get(node, math.inf) - need
                yield job

    def _reserved(self, here: Round, behind: list[LoggedJob]) -> Iterator[LoggedJob]:
        last = max((place for place, job in enumerate(behind) if self._fits(here, job)), default=-1)
        levels = FreeLevels(here, self.rule.limits == "reserved") if last >= 0 else None
        for job in behind[: last + 1]:
            if levels is not None and levels.reserve(job) <= here.now and self._fits(here, job):
                yield job


def logged_jobs(jobs: Jobs, limits: Limits | None, order: Order | None) -> list[LoggedJob]:
    parts, count = jobs.nodes, len(jobs)
    nodes: list[list[int]] = [[0]] * count
    if parts is not None:
        nodes = [[] for _ in range(count)]
        for job, node in zip(parts.job.tolist(), parts.node.tolist(), strict=True):
            nodes[job].append(node)
    pools = _pools(jobs, nodes)
    nothing = np.full(count, -1)
    user, group = jobs.labels.get("user", nothing), nothing if limits is None else jobs.labels[limits.kind]
    rank = np.zeros(count, dtype=int)
    if order is not None:
        ranks = ranks_of(order)
        by_code = [ranks.get(name, len(ranks)) for name in jobs.names[order.kind]]
        rank = np.array([*by_code, len(ranks)])[jobs.labels[order.kind]]  # jobs of no class (-1) go last
    columns = (jobs.arrival, jobs.start, jobs.end, jobs.estimate, user, group, rank)
    demands = [(pool, amount / len(used), len(used))
               for pool, amount, used in zip(pools, jobs.amount.tolist(), nodes, strict=True)]  # fmt: skip
    return list(map(LoggedJob, range(count), *(column.tolist() for column in columns), nodes, demands))


def _pools(jobs: Jobs, nodes: list[list[int]]) -> list[int]:
    kinds = [jobs.labels[kind].tolist() for kind in ("partition", "devices") if kind in jobs.labels]
    keys = list(zip(*kinds, strict=True)) or [()] * len(nodes)
    entries: dict[Any, int] = {}
    for key, used in zip(keys, nodes, strict=True):
        for node in used:
            entries[key] = entries.get(key, 0) | 1 << node
    return [entries[key] for key in keys]


def ranks_of(order: Order) -> dict[str, int]:
    """Return each class's rank: the length of the longest chain of classes above it."""
    ranks = {name: 0 for first, second, *_ in order.pairs for name in (first, second)}
    for _ in ranks:  # a circle ends there
        for first, second, *_ in order.pairs:
            ranks[second] = max(ranks[second], min(ranks[first] + 1, len(ranks)))
    return ranks


def examine(
    jobs: list[LoggedJob], sizes: list[float], max_of_group: dict[int, float], rules: list[Rule], cycle: float,
    prefer: Prefer | None = None,
) -> list[Examined]:  # fmt: skip
    """Apply scheduling rules at every instant of a log; return their predicted starts.

    sizes: GPUs (or cores) by node; max_of_group: limit by group of jobs; cycle: seconds between decisions; prefer:
    score of a node by its free amount; the lowest is chosen (None: nodes by number).  Starts outside the judged parts
    (`stretches_of`) are NaN.
    """  # fmt: skip
    half_lives = {rule.half_life for rule in rules if rule.order == "usage"}
    state = RecordedState(sizes, max_of_group, half_lives, max(job.user for job in jobs) + 1)
    examined = [Examined(rule, len(jobs), cycle, prefer) for rule in rules]
    stretches = stretches_of(jobs, len(sizes))
    waiting: dict[int, LoggedJob] = {}
    demands: Counter[Demand] = Counter()
    stretch, active = 0, False
    for now, ended, came, starts in _instants(jobs):
        state.advance(now)
        for job in ended:
            state.change(job, -1)
        for job in came:
            waiting[job.row] = job
            demands[job.demand] += 1
            state.seen.add(job.user)
        if active and now > stretches[stretch][1]:
            active, stretch = False, stretch + 1
        begins = not active and stretch < len(stretches) and now >= stretches[stretch][0]
        active = active or begins
        if active and waiting:
            hopeless = not any(state.room(demand) for demand, count in demands.items() if count)
            for one in examined:
                if begins:
                    one.begin(waiting.values())
                else:
                    one.push(came)
                one.decide(state, now, starts, hopeless)
        for job in starts:
            del waiting[job.row]
            demands[job.demand] -= 1
            if job.end > job.start:
                state.change(job, 1)
    outside = np.ones(len(jobs), dtype=bool)
    for begin, end in stretches:
        outside &= np.array([job.arrival < begin or job.start > end for job in jobs])
    for one in examined:
        one.predicted[outside] = math.nan
    return examined


def _instants(jobs: list[LoggedJob]) -> Iterator[tuple[float, list[LoggedJob], list[LoggedJob], list[LoggedJob]]]:
    """Yield (time, ended, arrived, started jobs); jobs of 0 s never count as ended."""
    entries: dict[float, tuple[list[LoggedJob], list[LoggedJob], list[LoggedJob]]] = {}
    for job in jobs:
        for kind, time in enumerate((job.end, job.arrival, job.start)):
            if kind or job.end > job.start:
                entries.setdefault(time, ([], [], []))[kind].append(job)
    for now in sorted(entries):
        yield now, *entries[now]


def stretches_of(jobs: list[LoggedJob], nodes: int) -> list[tuple[float, float]]:
    """Return the intervals to judge rules in: the whole log, or parts of a long log."""
    judged = max(MIN_JUDGED, MAX_JUDGED * FEW_NODES // max(FEW_NODES, nodes))
    if len(jobs) <= judged:
        return [(jobs[0].arrival, max(job.start for job in jobs))]
    size = judged // STRETCHES
    firsts = np.linspace(0, len(jobs) - size, STRETCHES).astype(int).tolist()
    return [(jobs[first].arrival, jobs[first + size - 1].arrival) for first in firsts]
