"""Infers which scheduler made a log: the rules that explain its recorded starts.

Limits, the order of classes, the cycle of decisions, half-lives and the order of nodes are inferred from one half of
the log (`half_of`); the fraction of starts that each rule explains is measured on the other half.  A rule is reported
as equal to the best rule if it does not explain significantly fewer starts (McNemar's exact test, 1 %).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush

import numpy as np

from hetsim.workload.logs.decisions import DAY, KEYS, LoggedJob, Prefer, RecordedState, Rule, examine, logged_jobs
from hetsim.workload.logs.recorded_log import FULL, SLACK, HeldOverTime, Jobs, rank_correlation
from hetsim.workload.logs.waits import Explained, explain
from hetsim.workload.traces import TaskTable

LONGEST_CYCLE = 600.0  # seconds; longer waits are not due to the cycle of decisions
FEW = 20
SURE = 0.01
# by placement: factor of a node's free amount in its score; lowest wins
PLACES = {"first_fit": 0.0, "best_fit": 1.0, "worst_fit": -1.0}


@dataclass(kw_only=True)
class Score:
    """Score of a rule or placement on the half of a log that was not used to fit it."""

    right: np.ndarray = field(repr=False)  # by judged job: True if it is as recorded
    alike: bool = False  # not significantly worse than the best explanation

    @property
    def explained(self) -> float:
        return float(self.right.mean())


@dataclass(kw_only=True)
class RuleScore(Score):
    """Score of a scheduling rule as an explanation of the recorded starts."""

    rule: Rule
    early: float  # fraction of the jobs that the rule would start earlier than recorded
    of_waiting: float  # explained fraction of jobs that waited longer than a cycle; NaN if no job did
    rank_correlation: float  # of predicted and recorded waits

    @property
    def late(self) -> float:
        """Fraction of the jobs that the rule would start later than recorded."""
        return max(0.0, 1.0 - self.explained - self.early)


@dataclass(kw_only=True)
class PlaceScore(Score):
    """How well a placement rule explains on which nodes a log's jobs ran."""

    name: str
    prefer: Prefer = field(repr=False)


@dataclass
class Identified:
    """The rules and placements that explain a log, from best to worst."""

    half: Explained  # inferred from the half that rules are fitted to
    cycle: float
    rules: list[RuleScore]
    places: list[PlaceScore]  # empty if the log does not name the nodes of all jobs, or if no job had a choice
    by_chance: float = 0.0  # fraction of the nodes that a random choice would explain
    assumed: str | None = None  # log without node names: the placement with which rules explain most starts


def identify(
    table: TaskTable, capacity: float | None = None, sizes: dict[str, float] | None = None, cut: bool = False
) -> Identified | None:
    """Find the scheduling rules and placements that explain a log, from best to worst.

    None without recorded starts or waits, or with too few jobs.  `capacity`: GPUs (or cores) of the cluster, if known;
    `sizes`: of each node, by name.  `cut`: the log also has all jobs that ran or waited when it begins.
    """
    if (half := explain(table, capacity, cut, part=0)) is None:
        return None
    jobs, limits = half.jobs, half.limits
    names = ["all"] if jobs.nodes is None else jobs.nodes.names
    site = half.site
    # A capacity that is only "at least" may be more: no recorded start shall be impossible for all rules.
    pool = site.amount if site.stated or site.full >= FULL else HeldOverTime(jobs.start, jobs.end, jobs.amount).peak()
    shown_sizes = site.by_node if jobs.nodes is not None else {"all": pool}
    stated = {} if capacity is None or sizes is None else sizes
    amounts = [float(stated.get(name, shown_sizes.get(name, 0.0))) for name in names]
    logged = logged_jobs(jobs, limits, half.order)
    cycle = cycle_of(jobs, half)
    codes = {} if limits is None else {
        code: limits.max_held[name] for code, name in enumerate(jobs.names[limits.kind]) if name in limits.max_held
    }  # fmt: skip
    places, chance = place_scores(jobs, logged, amounts, half.warm_end)
    prefer = places[0].prefer if places and places[0].name != "first_fit" else None
    rules = list(candidates(half))
    examined = examine(logged, amounts, codes, rules=rules, cycle=cycle, prefer=prefer)
    predicted = np.array([one.predicted for one in examined])
    judged = np.isfinite(predicted).all(axis=0) & (jobs.arrival >= half.warm_end)
    fit, judge = judged & jobs.evidence, judged & ~jobs.evidence
    if judge.sum() < FEW or fit.sum() < FEW:
        return None
    right = (predicted <= jobs.start + SLACK) & (predicted >= jobs.start - cycle - SLACK)
    assumed = None
    key = KEYS.get(rules[int(right[:, fit].mean(axis=1).argmax())].order, KEYS["arrival"])
    for name, factor in PLACES.items() if jobs.nodes is None and sizes else ():
        placed = on_nodes(logged, list(sizes.values()), factor, key) if sizes else None
        if placed is None:
            break
        prefer = None if name == "first_fit" else partial(_preference, factor, [0.0] * len(placed[1]))
        others = examine(*placed, codes, rules=rules, cycle=cycle, prefer=prefer)
        starts = np.array([one.predicted for one in others])
        found_right = (starts <= jobs.start + SLACK) & (starts >= jobs.start - cycle - SLACK)
        if found_right[:, fit].mean(axis=1).max() > right[:, fit].mean(axis=1).max():
            assumed, examined, predicted, right = name, others, starts, found_right
    best: dict[tuple[str, str], int] = {}
    for number, one in enumerate(examined):
        family = one.rule.order, one.rule.discipline
        if family not in best or right[number, fit].mean() > right[best[family], fit].mean():
            best[family] = number
    waited = judge & (jobs.wait > cycle)
    scores = [
        RuleScore(
            rule=examined[number].rule, right=right[number, judge],
            early=float((predicted[number] < jobs.start - cycle)[judge].mean()),
            of_waiting=float(right[number, waited].mean()) if waited.any() else np.nan,
            rank_correlation=rank_correlation(jobs.wait[judge], (predicted[number] - jobs.arrival)[judge]),
        )
        for number in best.values()
    ]  # fmt: skip
    scores.sort(key=lambda one: -one.explained)
    if not places:  # of jobs that start together the order is that of the best rule
        key = KEYS.get(scores[0].rule.order, KEYS["arrival"])
        places, chance = place_scores(jobs, logged, amounts, half.warm_end, key=key)
    for group in (scores, places):
        for score in group:
            score.alike = not _worse(score.right, group[0].right)
    return Identified(half, cycle, scores, places=places, by_chance=chance, assumed=assumed)


def candidates(half: Explained) -> Iterator[Rule]:
    """Yield scheduling rules to try, given the limits and order that half a log shows."""
    rules = [Rule("arrival", discipline) for discipline in ("block", "skip", "easy", "conservative")]
    static = [order for order in KEYS if order not in ("arrival", "class")]
    rules += [Rule(order, discipline) for order in static for discipline in ("block", "skip")]
    if half.order is not None:
        rules += [Rule("class", discipline) for discipline in ("block", "conservative")]
    if len(half.jobs.names.get("user", ())) > 1:
        rules += [Rule("share", discipline) for discipline in ("block", "skip")]
        rules += [Rule("usage", discipline, age=age, half_life=days * DAY) for discipline in ("block", "conservative")
                  for age in (0.0, 0.5) for days in (1.0, 7.0)]  # fmt: skip
    for rule in rules:
        yield rule
        if half.limits is not None:
            yield replace(rule, limits="passed")
            if rule.order == "arrival" and rule.discipline in ("easy", "conservative"):
                yield replace(rule, limits="reserved")


def cycle_of(jobs: Jobs, half: Explained) -> float:
    """Return the seconds between a site's decisions (at least 1), inferred from waits.

    Only jobs that fit and arrive while no other job waits are used.  Such a job waits only for the next decision, so
    that its wait is uniform between 0 and the cycle.  The 90 % quantile of the waits divided by 0.9 estimates the
    cycle; waits above 1.2 times this estimate have other causes.  The longest of the other waits is returned.
    """
    before = np.searchsorted(np.sort(jobs.start), jobs.arrival, side="right")
    alone = np.searchsorted(jobs.arrival, jobs.arrival, side="left") <= before
    free = half.capacity - HeldOverTime(jobs.start, jobs.end, jobs.amount).at(jobs.arrival - SLACK) >= jobs.amount
    waits = jobs.wait[alone & free & jobs.evidence & (jobs.wait <= LONGEST_CYCLE)]
    return 1.0 if len(waits) < FEW else max(1.0, float(waits[waits <= 1.2 * np.quantile(waits, 0.9) / 0.9].max()))


def _worse(right: np.ndarray, best: np.ndarray) -> bool:
    from scipy.stats import binomtest

    won, lost = int((best & ~right).sum()), int((right & ~best).sum())
    return won > lost and float(binomtest(won, won + lost, alternative="greater").pvalue) < SURE


def place_scores(
    jobs: Jobs, logged: list[LoggedJob], sizes: list[float], warm: float,
    key: Callable[[LoggedJob], float] | None = None,
) -> tuple[list[PlaceScore], float]:  # fmt: skip
    """Return scores of all placement rules, best first, and that of a random choice.

    A placement rule explains a job if it chooses the job's recorded nodes.  Among nodes that it ranks equally, it
    chooses the node that was used in most of such ties, in the half of the log from which rules are inferred.
    `sizes`: GPUs (or cores) by node; `warm`: earlier jobs are ignored; `key`: order of jobs that start at one instant
    (None: skip such jobs).
    """
    if jobs.nodes is None or len(sizes) < 2:
        return [], 0.0
    evidence = jobs.evidence
    choices = [one for one in _choices(logged, sizes, key) if one[0].arrival >= warm]
    judge = [one for one in choices if not evidence[one[0].row]]
    if len(judge) < FEW:
        return [], 0.0
    scores = []
    for name, factor in PLACES.items():
        tied, taken = np.zeros(len(sizes)), np.zeros(len(sizes))
        for job, nodes, free in choices:
            if evidence[job.row]:
                values = factor * np.array([free[node] for node in nodes])
                last = np.sort(values)[len(job.nodes) - 1]
                tied[[node for node, value in zip(nodes, values, strict=True) if value == last]] += 1
                taken[job.nodes] += 1
        prefer = partial(_preference, factor, (taken / np.maximum(tied, 1)).tolist())
        right = [
            set(sorted(nodes, key=lambda node: prefer(free[node], node))[: len(job.nodes)]) == set(job.nodes)
            for job, nodes, free in judge
        ]  # fmt: skip
        scores.append(PlaceScore(name=name, right=np.array(right), prefer=prefer))
    scores.sort(key=lambda one: -one.explained)
    return scores, float(np.mean([len(job.nodes) / len(nodes) for job, nodes, _ in judge]))


def on_nodes(
    logged: list[LoggedJob], sizes: list[float], factor: float, key: Callable[[LoggedJob], float]
) -> tuple[list[LoggedJob], list[float]] | None:
    """Assign the jobs of a log to nodes, as a placement rule would at their starts.

    factor 1: the node with the least sufficient room; -1: the node with the most room; 0: the first node with room.
    key: order of jobs that start at one instant.  A job that fits nowhere overfills the node with the most room.
    sizes: GPUs or cores of each node.  Return the jobs with their nodes, and `sizes`; None if there is only one node,
    or a job is larger than any node.
    """
    if len(sizes) < 2 or any(job.amount > max(sizes) for job in logged):
        return None
    free, ends, placed = np.array(sizes), list[tuple[float, int, float]](), {}
    for job in sorted(logged, key=lambda job: (job.start, key(job), job.arrival)):
        while ends and ends[0][0] <= job.start:
            _, node, amount = heappop(ends)
            free[node] += amount
        room = free >= job.amount - SLACK
        node = int(np.argmin(np.where(room, factor * free, np.inf)) if room.any() else np.argmax(free))
        if job.end > job.start:
            free[node] -= job.amount
            heappush(ends, (job.end, node, job.amount))
        placed[job.row] = replace(job, nodes=[node], demand=((1 << len(sizes)) - 1, job.amount, 1))
    return [placed[row] for row in range(len(logged))], sizes


def _preference(factor: float, rate: list[float], free: float, node: int) -> tuple[float, ...]:
    return factor * free, -rate[node], node


def _choices(
    logged: list[LoggedJob], sizes: list[float], key: Callable[[LoggedJob], float] | None
) -> Iterator[tuple[LoggedJob, list[int], list[float]]]:
    """Yield (job, nodes where it fits, free GPUs or cores by node) if it had a choice."""
    state = RecordedState(sizes, {}, (), max(job.user for job in logged) + 1)
    together = Counter(job.start for job in logged)
    ends = sorted(logged, key=lambda job: job.end)
    ended = 0
    for job in sorted(logged, key=lambda job: (job.start, key(job) if key else 0.0, job.arrival)):
        while ends[ended].end <= job.start and ends[ended].end < job.end:
            if ends[ended].end > ends[ended].start:
                state.change(ends[ended], -1)
            ended += 1
        nodes = state.room(job.demand)
        if (key or together[job.start] == 1) and len(nodes) > len(job.nodes) and set(job.nodes) <= set(nodes):
            yield job, nodes, list(state.free)
        if job.end > job.start:
            state.change(job, 1)
