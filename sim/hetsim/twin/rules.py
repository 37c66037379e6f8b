"""Infers the rules of a site from Slurm's output: caps, weights, backfill cycle.

Caps     limits on GPUs or jobs by QOS, per user or in total.  REASON names a cap (QOSMaxGRESPerUser).  Present use and
         the requests of blocked jobs bound its value; within these bounds it is the largest amount ever used.  Without
         REASON, the largest amount of GPUs that a user ever used is a cap, if several users reached it and waited.
Weights  of age, fair share and size, and a constant for each partition and QOS: fitted by least squares to PRIORITY of
         one half of the waiting jobs, and used only if they predict the order of the other half.  Fair share is
         computed from the history, by Slurm's classic formula and by Fair Tree with equal shares; half-life and
         maximum age are those that fit best.
Cycle    of backfilling: the longest period, of those commonly configured (10 s to 10 min), at whose multiples jobs
         start without an arrival or an end.

Rules become parameters of `slurm_multifactor`.  Rules with little evidence are not used, and their evidence says so.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hetsim.workload.logs.history import DAY, JobHistory
from hetsim.workload.logs.recorded_log import SLACK
from hetsim.workload.readers.snapshot import SnapshotJob
from hetsim.workload.rows.job_times import MOMENT, HeldOverTime

NAME = "slurm_multifactor"
NONE = dict.fromkeys(("age", "fair_share", "size", "partition", "priority", "service"), 0.0)  # all weights 0
# parameters with which slurm_multifactor equals a policy (head and 100 jobs behind it)
SAME: dict[str, dict[str, Any]] = {"fcfs": {"bf_max_job_test": 0},
                                   "easy_backfill": {"bf_job_part_count_reserve": 1, "bf_max_job_test": 101},
                                   "conservative_backfill": {"bf_max_job_test": 101}}  # fmt: skip
# parameters of priority; if --policy sets one of them, no weights are inferred
PRIORITY = NONE.keys() | {"partitions", "usage", "accounts", "half_life", "max_age"}
# Minimum evidence: jobs (or users) blocked by a cap, jobs with a PRIORITY and their users, starts that show a cycle
MIN_CAPPED, MIN_RANKED, MIN_USERS, MIN_TIMED = 3, 12, 4, 20
# minimum share of pairs in the order of PRIORITY; maximum error of another form relative to the one before
MIN_ORDERED, BETTER = 0.9, 0.9
HALF_LIVES = tuple(DAY * 2.0 ** (k / 2) for k in range(-2, 13))
MAX_AGES = (7 * DAY, DAY, 14 * DAY, 30 * DAY)
PERIODS = (600, 300, 240, 180, 120, 90, 60, 45, 30, 20, 15, 10)
# REASON values, by the key of a QOS
CAPS = {"max_gpus_per_user": "QOSMaxGRESPerUser", "max_jobs_per_user": "QOSMaxJobsPerUserLimit",
        "max_gpus": "QOSGrpGRES", "max_jobs": "QOSGrpJobsLimit|QOSJobLimit"}  # fmt: skip
LIMIT = re.compile("Limit|Max|Grp|Licenses|^QOS|^Assoc")  # any limit in REASON

Positive = Annotated[float, Field(gt=0)]
Usage = Mapping[tuple[str, str], float]  # GPU seconds by account and user


@dataclass(frozen=True)
class Weights:
    """Slurm's priority weights (`size`: per GPU), with half-life and maximum age in s."""

    age: float
    fair: float
    size: float
    base: float
    half_life: Positive
    max_age: Positive
    tree: bool  # Fair Tree, not the classic formula
    labels: dict[str, float] = field(default_factory=dict)  # the amount of each "partition NAME" and "qos NAME"

    def constant(self, partition: str, qos: str, gpus: float) -> float:
        """Return the part of a job's priority that depends neither on age nor on usage."""
        named = self.labels.get(f"partition {partition}", 0.0) + self.labels.get(f"qos {qos}", 0.0)
        return self.base + named + self.size * gpus

    def of_waiting(self, jobs: Sequence[SnapshotJob], now: float, usage: Usage) -> list[float]:
        """Return waiting jobs' priorities (PRIORITY, else by weights) minus fair share."""
        shares = fair_shares(usage, self.tree)
        return [
            self.constant(job.partition, job.qos, job.gpus) + self.age * min(1.0, (now - job.submit) / self.max_age)
            if math.isnan(job.priority) else max(0.0, job.priority - self.fair * shares[job.account, job.user])
            for job in jobs
        ]  # fmt: skip

    def parameters(self, usage: Usage) -> dict[str, Any]:
        """Return the parameters of `slurm_multifactor` that depend on usage."""
        if self.tree:
            return {"accounts": {one[0]: {} for one in usage}, "usage": {"/".join(one): usage[one] for one in usage}}
        return {"usage": {user: sum(usage[one] for one in usage if one[1] == user) for _, user in usage}}


@dataclass(frozen=True)
class Rules:
    """The rules of a site's scheduler, and sentences that state their evidence."""

    caps: dict[str, dict[str, float]] = field(default_factory=dict)  # by QOS its keys in `slurm_multifactor`
    weights: Weights | None = None
    cycle: Positive | None = None
    evidence: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)  # waiting jobs by the limit that keeps them and no rule has
    given: dict[str, dict[str, Any]] = field(default_factory=dict)  # QOS that --policy gives

    def __bool__(self) -> bool:
        return bool(self.caps or self.weights or self.cycle)

    def scheduler(self, base: dict[str, Any]) -> dict[str, Any]:
        """Return the scheduler `base` with these rules; keys in `base` have precedence."""
        own: dict[str, Any] = {"bf_max_job_test": 500}
        if self.weights is not None:
            own |= {**NONE, "age": self.weights.age, "fair_share": self.weights.fair,
                    "max_age": f"{self.weights.max_age} s", "half_life": f"{self.weights.half_life} s"}  # fmt: skip
        own |= {"bf_interval": f"{self.cycle} s"} if self.cycle else {}
        if self.caps and self.given == (base.get("qos") or {}):
            tiers = {**self.caps, **self.given}
            base = {**base, "qos": {name: {**self.caps.get(name, {}), **self.given.get(name, {})} for name in tiers}}
        return {**own, **base}

    def for_jobs(self, jobs: Sequence[SnapshotJob]) -> "Rules":
        """Return a copy with `limits`: numbers of jobs that each unmodeled limit blocks."""
        return replace(self, limits=dict(sorted(Counter(job.reason for job in jobs if self.is_beyond(job)).items())))

    def is_beyond(self, job: SnapshotJob) -> bool:
        """Return True if the job is blocked by a limit that no rule models."""
        caps = {**self.caps.get(job.qos, {}), **self.given.get(job.qos, {})}
        modeled = any(re.fullmatch(CAPS[key], job.reason) for key in CAPS if caps.get(key) is not None)
        return not job.runs and not modeled and LIMIT.search(job.reason) is not None


def learned(jobs: Sequence[SnapshotJob], now: float, history: JobHistory, earlier: Weights | None = None) -> Rules:
    """Infer a site's Slurm rules (caps, priority weights, backfill cycle) from jobs.

    now: time of the snapshot (s).  earlier: weights of an earlier forecast, used if this snapshot has little evidence.
    """
    past = history.take(np.flatnonzero(history.end <= now))
    caps, evidence = _caps(jobs, past)
    weights, text = _weights(jobs, now, past, earlier)
    cycle, more = _cycle(past)
    return Rules(caps, weights, cycle, evidence=[*evidence, *text, *more]).for_jobs(jobs)


def tiers_of(policy: Any) -> dict[str, dict[str, Any]]:
    """Return the QOS tiers in the parameters of a policy, by name."""
    scheduler = policy.get("scheduler", policy) if isinstance(policy, dict) else None
    qos = scheduler.get("qos") if isinstance(scheduler, dict) else None
    return {name: tier for name, tier in qos.items() if isinstance(tier, dict)} if isinstance(qos, dict) else {}


def with_policy(policy: Any, rules: Rules) -> tuple[dict[str, Any], Rules] | None:
    """Return a policy with these rules added, and the rules used; None if impossible.

    A rule is not added if the policy sets the same parameter itself.  First come, first served, EASY and conservative
    backfilling become equivalents under `slurm_multifactor`.
    """
    outer = policy if isinstance(policy, dict) and "scheduler" in policy else {"scheduler": policy}
    own = outer["scheduler"] if isinstance(outer["scheduler"], dict) else {"name": outer["scheduler"]}
    name = str(own.get("name"))
    if policy is None or (name in SAME and len(own) == 1):  # in the order of arrival unless weights are known
        alone = {} if rules.weights else {**NONE, "age": 1.0, "max_age": "10000 d"}
        own = {"name": NAME, **SAME.get(name, {}), **alone}
    if own.get("name") != NAME:
        return None
    given = tiers_of(own)
    caps = {tier: {key: cap for key, cap in one.items() if key not in given.get(tier, {})}
            for tier, one in rules.caps.items()}  # fmt: skip
    other = [_cap_name(key, tier) for tier, one in rules.caps.items() for key in one if key not in caps[tier]]
    ranked = bool(PRIORITY & own.keys()) or any("priority" in tier for tier in given.values())
    timed, instead = "bf_interval" in own, "not used: --policy sets it"
    other += ["weights of priority"] * ranked + ["cycle of backfilling"] * timed
    evidence = [next((f"{it} {instead}" for it in other if one.startswith(f"{it}:")), one) for one in rules.evidence]
    rules = replace(rules, caps={tier: one for tier, one in caps.items() if one}, evidence=evidence, given=given,
                    weights=None if ranked else rules.weights, cycle=None if timed else rules.cycle)  # fmt: skip
    return {**outer, "scheduler": own}, rules


def _caps(jobs: Sequence[SnapshotJob], past: JobHistory) -> tuple[dict[str, dict[str, float]], list[str]]:
    caps: dict[str, dict[str, float]] = {}
    evidence = []
    # A cap that REASON names may be why users held no more.
    others = {job.qos for job in jobs for key, pattern in CAPS.items()
              if key != "max_gpus_per_user" and not job.runs and re.fullmatch(pattern, job.reason)}  # fmt: skip
    for key, pattern in CAPS.items():
        named = [job for job in jobs if not job.runs and re.fullmatch(pattern, job.reason)]
        unnamed = set(past.labels["qos"].tolist()) - {""} - others if key == "max_gpus_per_user" else set()
        for qos in sorted({job.qos for job in named} | unnamed):
            capped = [job for job in named if job.qos == qos]
            value, text = _cap(key, qos, capped, jobs=jobs, past=past)
            if capped or value is not None:
                evidence.append(f"{_cap_name(key, qos)}{text} (REASON of {len(capped):,} jobs)")
            if value is not None:
                caps.setdefault(qos, {})[key] = value
    return caps, evidence


def _cap_name(key: str, qos: str) -> str:
    unit = key[4:].replace("_per_user", " of a user").replace("gpus", "GPUs")
    return f"cap of {unit} in QOS {qos or '(none)'}"


def _cap(
    key: str, qos: str, capped: list[SnapshotJob], jobs: Sequence[SnapshotJob], past: JobHistory
) -> tuple[float | None, str]:  # fmt: skip
    each, gpus = key.endswith("user"), "gpus" in key
    if not qos:
        return None, " not used: squeue has no column QOS (%q), by which caps are assigned"
    occupied = defaultdict[str, float](float)
    for job in jobs:
        if job.runs and job.qos == qos:
            occupied[job.user if each else ""] += job.gpus if gpus else 1.0
    above = min((occupied[job.user if each else ""] + (job.gpus if gpus else 1.0) for job in capped), default=math.inf)
    low, (ever, users) = max(occupied.values(), default=0.0), _ever_held(qos, each, gpus, jobs=jobs, past=past)
    if len(capped) < MIN_CAPPED:
        largest = max((job.gpus for job in jobs if job.qos == qos), default=0.0)  # it could never start under less
        if each and users >= MIN_CAPPED and max(low, largest) <= ever < above - SLACK:
            return ever, f": {ever:g}, never exceeded, and reached by {users:,} users whose next job waited"
        return None, f" not used: little evidence, {MIN_CAPPED} are needed"
    if not 0 < low < above - SLACK:
        return None, f" not used: {low:g} are occupied, and jobs wait to reach {above:g}: not one cap"
    value = ever if low <= ever < above - SLACK else low
    return value, f": {value:g}, {f'occupied now, though {ever:g} before' if ever > value else 'never exceeded'}"


def _ever_held(qos: str, by_user: bool, gpus: bool, jobs: Sequence[SnapshotJob], past: JobHistory) -> tuple[float, int]:
    """Return the highest use (GPUs or jobs), and the number of users waiting at it."""
    peaks, running = [(0.0, False)], [job for job in jobs if job.runs and job.qos == qos]
    ended = past.take(np.flatnonzero(past.labels["qos"] == qos))
    for user in sorted({*ended.labels["user"].tolist(), *(job.user for job in running)}) if by_user else [""]:
        log = ended.take(np.flatnonzero(ended.labels["user"] == user)) if by_user else ended
        own = [job for job in running if not by_user or job.user == user]
        start = np.append(log.start, [job.start for job in own])
        amount = np.append(log.gpus, [job.gpus for job in own]) if gpus else np.ones(len(start))
        usage = HeldOverTime(start, np.append(log.end, np.full(len(own), math.inf)), amount)
        peak, late = usage.peak(), log.start - log.submit > MOMENT
        peaks.append((peak, bool((late & (usage.at(log.submit) + amount[: len(log)] > peak + SLACK)).any())))
    ever = max(peak for peak, _ in peaks)
    return ever, sum(pressed and peak > ever - SLACK for peak, pressed in peaks)


def usage_of(jobs: Sequence[SnapshotJob], now: float, past: JobHistory, half_life: float) -> Usage:
    """Return each user's usage (or 0); usage decays by half every `half_life` seconds."""
    usage, rate = defaultdict[tuple[str, str], float](float), math.log(2.0) / half_life
    gpus = np.where(past.gpus > 0, past.gpus, past.cpus)
    decayed = (np.exp(rate * (past.end - now)) - np.exp(rate * (past.start - now))) / rate * gpus
    for account, user, amount in zip(past.labels["account"], past.labels["user"], decayed.tolist(), strict=True):
        usage[account, user] += amount
    for job in jobs:
        seconds = -math.expm1(rate * (job.start - now)) / rate if job.runs else 0.0
        usage[job.account, job.user] += seconds * (job.gpus or job.cpus)
    return dict(sorted(usage.items()))


def fair_shares(usage: Usage, tree: bool) -> dict[tuple[str, str], float]:
    """Return each user's fair-share factor if all shares are equal; `tree`: Fair Tree."""
    totals = defaultdict[str, float](float)
    for one, amount in usage.items():
        totals[one[0 if tree else 1]] += amount
    if tree:
        order = sorted(usage, key=lambda one: (totals[one[0]], one[0], usage[one]))
        return {one: 1.0 - rank / len(order) for rank, one in enumerate(order)}
    every = sum(totals.values()) or 1.0
    return {one: 2.0 ** (-totals[one[1]] / every * len(totals)) for one in usage}


def _weights(
    jobs: Sequence[SnapshotJob], now: float, past: JobHistory, earlier: Weights | None
) -> tuple[Weights | None, list[str]]:  # fmt: skip
    from scipy.optimize import nnls

    ranked = sorted((job for job in jobs if not job.runs and job.priority > 0), key=lambda job: job.id)
    users, partitions = {(job.account, job.user) for job in ranked}, {job.partition for job in ranked}
    what = f"PRIORITY of {len(ranked):,} jobs of {len(users):,} users"
    enough = max(MIN_USERS, len(partitions) + 1)
    if len(ranked) < MIN_RANKED or len(users) < enough:
        thin = f"little evidence, {MIN_RANKED} jobs of {enough} users are needed"
        if earlier is not None:
            return earlier, [f"weights of priority: those of an earlier forecast; now {thin} ({what})"]
        return None, [f"weights of priority not used: {thin} ({what})"] if ranked else []
    priority = np.array([job.priority for job in ranked])
    marks = [(f"partition {job.partition}", f"qos {job.qos}") for job in ranked]
    labels = sorted({name for pair in marks for name in pair})
    columns = np.array([[job.gpus, 1.0, *(name in pair for name in labels)]
                        for job, pair in zip(ranked, marks, strict=True)], dtype=float)  # fmt: skip
    best, ordered, weights = math.inf, 0.0, None
    for width, tree, half_life in product((2, 2 + len(labels)), (False, True), HALF_LIVES):
        factors = fair_shares(usage_of(jobs, now, past, half_life), tree)
        fair = np.array([factors[job.account, job.user] for job in ranked])
        for max_age in MAX_AGES:
            age = np.minimum([(now - job.submit) / max_age for job in ranked], 1.0)
            table = np.column_stack([age, fair, columns[:, :width]])
            predicted = table[1::2] @ nnls(table[::2], priority[::2])[0]
            error = float(np.sqrt(((predicted - priority[1::2]) ** 2).mean()))
            if error < BETTER * best:
                best, ordered, amounts = error, _ordered(predicted, priority[1::2]), nnls(table, priority)[0].tolist()
                weights = Weights(amounts[0], amounts[1], amounts[2], amounts[3], half_life=half_life, max_age=max_age,
                                  tree=tree, labels=dict(zip(labels, amounts[4:], strict=False)))  # fmt: skip
    share = f"{100 * ordered:.0f} % of the pairs of one half are in the order predicted from the other"
    if weights is None or ordered < MIN_ORDERED:
        return None, [f"weights of priority not used: {share}, {100 * MIN_ORDERED:.0f} % are needed ({what})"]
    kind = f"{'Fair Tree' if weights.tree else 'classic'}, half-life {weights.half_life / DAY:.2g} d"
    text = f"age {weights.age:.4g} at {weights.max_age / DAY:g} d, fair share {weights.fair:.4g} ({kind})"
    more = {"a GPU": weights.size, **weights.labels}
    text += "".join(f", {name} {amount:.4g}" for name, amount in more.items() if amount >= 1)
    return weights, [f"weights of priority: {text} ({what}; {share})"]


def _ordered(predicted: np.ndarray, priority: np.ndarray) -> float:
    """Return the fraction of pairs of unequal priority whose order is predicted right."""
    one, other = np.triu_indices(len(priority), 1)
    unlike = priority[one] != priority[other]
    right = (predicted[one] - predicted[other]) * (priority[one] - priority[other]) > 0
    return float(right[unlike].mean()) if unlike.any() else 0.0


def _cycle(past: JobHistory) -> tuple[float | None, list[str]]:
    events = np.sort(np.concatenate([past.submit, past.end]))
    start = np.unique(past.start)
    before = start - events[np.maximum(np.searchsorted(events, start, side="right") - 1, 0)]
    late = start[(before > 1.0) & (before <= PERIODS[0])]
    for period in PERIODS if len(late) >= MIN_TIMED else ():
        phase = np.sort(late % period)
        within = np.searchsorted(np.append(phase, phase + period), phase + 2.0 + SLACK) - np.arange(len(phase))
        share = float(within.max()) / len(phase)
        if share >= MIN_ORDERED and share > 6.0 / period:
            text = f"{100 * share:.0f} % of {len(late):,} starts not after an arrival or an end"
            return float(period), [f"cycle of backfilling: every {period} s ({text})"]
    text = f"little evidence, {len(late):,} starts not after an arrival or an end" if len(late) < MIN_TIMED else ""
    return None, [f"cycle of backfilling not used: {text or 'starts show no period'}"]
