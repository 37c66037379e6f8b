"""The rules of a site as Slurm prints them: caps, weights of priority, the backfill cycle.

Caps     of GPUs or jobs, by QOS: of each user, or in all.  REASON names them (QOSMaxGRESPerUser); what users hold and
         what the jobs so named ask for bounds them, and the largest amount ever held decides in between.
Weights  of age, fair share and size, and an amount by partition and QOS: least squares on one half of the PRIORITY of
         waiting jobs, taken if it orders the other half.  Fair share is computed from the history, by Slurm's classic
         formula and by Fair Tree with equal shares; half-life and maximum age are those that fit best.
Cycle    of backfilling: the longest usual period at whose multiples jobs start that no arrival and no end lets start.

Rules become parameters of `slurm_multifactor`.  One with thin evidence is not taken, and the sentences say so.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from hetsim.workload.logs.history import DAY, JobHistory
from hetsim.workload.logs.recorded_log import SLACK
from hetsim.workload.readers.snapshot import SnapshotJob
from hetsim.workload.rows.held import HeldOverTime

NAME = "slurm_multifactor"
NONE = dict.fromkeys(("age", "fair_share", "size", "partition", "priority", "service"), 0.0)
"""Its weights."""
SAME: dict[str, dict[str, Any]] = {
    "fcfs": {"bf_max_job_test": 0}, "easy_backfill": {"bf_job_part_count_reserve": 1}, "conservative_backfill": {},
}  # fmt: skip
"""By policy the parameters under which it decides as that does."""
MIN_CAPPED, MIN_RANKED, MIN_USERS, MIN_TIMED = 3, 20, 4, 20
"""Evidence, at least: jobs kept by a cap, jobs with a PRIORITY and their users, starts that show a cycle."""
MIN_ORDERED, BETTER = 0.9, 0.9
"""Pairs in the order of PRIORITY, at least; the error of another form relative to the one before, at most."""
HALF_LIVES = tuple(DAY * 2.0 ** (k / 2) for k in range(-2, 13))
MAX_AGES = (7 * DAY, DAY, 14 * DAY, 30 * DAY)
PERIODS = (600, 300, 240, 180, 120, 90, 60, 45, 30, 20, 15, 10)
CAPS = {
    "max_gpus_per_user": "QOSMaxGRESPerUser", "max_jobs_per_user": "QOSMaxJobsPerUserLimit", "max_gpus": "QOSGrpGRES",
    "max_jobs": "QOSGrpJobsLimit|QOSJobLimit",
}  # fmt: skip
"""By key of a QOS the values of REASON that say it."""
LIMIT = re.compile("Limit|Max|Grp|Licenses|^QOS|^Assoc")
"""Any limit in REASON."""

Usage = Mapping[tuple[str, str], float]
"""GPU seconds by account and user."""


@dataclass(frozen=True)
class Weights:
    """Slurm's multifactor priority in its units; `size` is that of a GPU."""

    age: float
    fair: float
    size: float
    base: float
    half_life: float
    max_age: float
    tree: bool
    """Fair Tree, not the classic formula."""
    labels: dict[str, float] = field(default_factory=dict)
    """The amount of each "partition NAME" and "qos NAME"."""

    def constant(self, partition: str, qos: str, gpus: float) -> float:
        """The part of a job's priority that neither age nor usage changes."""
        named = self.labels.get(f"partition {partition}", 0.0) + self.labels.get(f"qos {qos}", 0.0)
        return self.base + named + self.size * gpus

    def of_waiting(self, jobs: Sequence[SnapshotJob], now: float, usage: Usage) -> list[float]:
        """The priority of waiting jobs but for fair share, from PRIORITY where it is known."""
        shares = fair_shares(usage, self.tree)
        return [
            self.constant(job.partition, job.qos, job.gpus) + self.age * min(1.0, (now - job.submit) / self.max_age)
            if math.isnan(job.priority) else max(0.0, job.priority - self.fair * shares[job.account, job.user])
            for job in jobs
        ]  # fmt: skip

    def parameters(self, usage: Usage) -> dict[str, Any]:
        """The parameters of `slurm_multifactor` that hold usage."""
        if self.tree:
            return {"accounts": {one[0]: {} for one in usage}, "usage": {"/".join(one): usage[one] for one in usage}}
        users = dict.fromkeys((user for _, user in usage), 0.0)
        for (_, user), amount in usage.items():
            users[user] += amount
        return {"usage": users}


@dataclass(frozen=True)
class Rules:
    """What a site's scheduler is taken to do, and the evidence in sentences."""

    caps: dict[str, dict[str, float]] = field(default_factory=dict)
    """By QOS its keys in `slurm_multifactor`."""
    weights: Weights | None = None
    cycle: float | None = None
    evidence: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    """Waiting jobs by the limit that keeps them, where no rule has it."""

    def __bool__(self) -> bool:
        return bool(self.caps or self.weights or self.cycle)

    def scheduler(self, base: dict[str, Any]) -> dict[str, Any]:
        """A scheduler with the rules; what `base` gives stays."""
        own: dict[str, Any] = {"bf_max_job_test": 500}
        if self.weights is not None:
            own |= {**NONE, "age": self.weights.age, "fair_share": self.weights.fair,
                    "max_age": f"{self.weights.max_age} s", "half_life": f"{self.weights.half_life} s"}  # fmt: skip
        own |= {"bf_interval": f"{self.cycle} s"} if self.cycle else {}
        return {**own, **({"qos": self.caps} if self.caps else {}), **base}


def learned(jobs: Sequence[SnapshotJob], now: float, history: JobHistory) -> Rules:
    """The rules that a snapshot and the history show, from nothing later than `now`."""
    past = history.take(np.flatnonzero(history.end <= now))
    limits = Counter(job.reason for job in jobs if not job.runs and LIMIT.search(job.reason))
    caps, evidence = _caps(jobs, past)
    weights, text = _weights(jobs, now, past)
    cycle, more = _cycle(past)
    others = {reason: count for reason, count in sorted(limits.items())
              if not any(re.fullmatch(pattern, reason) for pattern in CAPS.values())}  # fmt: skip
    return Rules(caps, weights, cycle, evidence=[*evidence, *text, *more], limits=others)


def with_policy(policy: Any, rules: Rules) -> tuple[dict[str, Any], Rules] | None:
    """A policy that takes the rules, and those that it does not give itself; None if it takes none.

    First come, first served, EASY and conservative backfilling become the same under `slurm_multifactor`.
    """
    given = policy if isinstance(policy, dict) and "scheduler" in policy else {"scheduler": policy or NAME}
    own = given["scheduler"] if isinstance(given["scheduler"], dict) else {"name": given["scheduler"]}
    if policy is None or (own["name"] in SAME and len(own) == 1):  # in the order of arrival unless weights are known
        same = SAME.get(own["name"], {})
        own = {"name": NAME, **same, **({} if rules.weights else {**NONE, "age": 1.0, "max_age": "10000 d"})}
    if own["name"] != NAME:
        return None
    if rules.weights and {"age", "fair_share", "priority", "usage", "accounts", "half_life", "max_age"} & own.keys():
        texts = [text for text in rules.evidence if not text.startswith("weights")]
        texts.append("weights of priority not taken: --policy gives its own")
        rules = replace(rules, weights=None, evidence=texts)
    return {**given, "scheduler": own}, rules


# Caps -----------------------------------------------------------------------------------------------------------


def _caps(jobs: Sequence[SnapshotJob], past: JobHistory) -> tuple[dict[str, dict[str, float]], list[str]]:
    caps: dict[str, dict[str, float]] = {}
    evidence = []
    for key, pattern in CAPS.items():
        named = [job for job in jobs if not job.runs and re.fullmatch(pattern, job.reason)]
        for qos in sorted({job.qos for job in named}):
            unit = f"{'GPUs' if 'gpus' in key else 'jobs'}{' of a user' if key.endswith('user') else ''}"
            capped = [job for job in named if job.qos == qos]
            value, text = _cap(key, qos, capped, jobs=jobs, past=past)
            evidence.append(f"cap of {unit} in QOS {qos or '(none)'}{text} (REASON of {len(capped):,} jobs)")
            if value is not None:
                caps.setdefault(qos, {})[key] = value
    return caps, evidence


def _cap(
    key: str, qos: str, capped: list[SnapshotJob], jobs: Sequence[SnapshotJob], past: JobHistory
) -> tuple[float | None, str]:  # fmt: skip
    """The cap that jobs kept by it show, or None, and a text."""
    each, gpus = key.endswith("user"), "gpus" in key
    if len(capped) < MIN_CAPPED:
        return None, f" not taken: thin evidence, {MIN_CAPPED} are enough"
    occupied = Counter[str]()
    for job in jobs:
        if job.runs and job.qos == qos:
            occupied[job.user if each else ""] += job.gpus if gpus else 1.0  # type: ignore[assignment]
    above = min(occupied[job.user if each else ""] + (job.gpus if gpus else 1.0) for job in capped)
    low = float(max(occupied.values(), default=0))
    if not 0 < low < above - SLACK:
        return None, f" not taken: {low:g} are held now, and with jobs that wait for it {above:g}; so it is not one cap"
    rows = [np.flatnonzero((past.labels["qos"] == qos) & (not each or past.labels["user"] == user))
            for user in (sorted(set(past.labels["user"].tolist())) if each else [""])]  # fmt: skip
    amount = past.gpus if gpus else np.ones(len(past))
    ever = max((HeldOverTime(past.start[own], past.end[own], amount[own]).peak() for own in rows), default=0.0)
    value = ever if low <= ever < above - SLACK else low
    return value, f": {value:g}, {f'held now, though {ever:g} before' if ever > value else 'never more held'}"


# Weights --------------------------------------------------------------------------------------------------------


def usage_of(jobs: Sequence[SnapshotJob], now: float, past: JobHistory, half_life: float) -> Usage:
    """Usage up to now, halved every `half_life`; users with none too."""
    usage: dict[tuple[str, str], float] = {}
    gpus = past.gpus if past.gpus.any() else past.cpus
    decayed = _decayed(now - past.start, now - np.minimum(past.end, now), half_life) * gpus
    for account, user, amount in zip(past.labels["account"], past.labels["user"], decayed.tolist(), strict=True):
        usage[account, user] = usage.get((account, user), 0.0) + amount
    for job in jobs:
        amount = _decayed(now - job.start, 0.0, half_life) * job.gpus if job.runs else 0.0
        usage[job.account, job.user] = usage.get((job.account, job.user), 0.0) + float(amount)
    return dict(sorted(usage.items()))


def _decayed(first: Any, last: Any, half_life: float) -> Any:
    """A time from `first` to `last` seconds ago, at its present weight."""
    rate = math.log(2.0) / half_life
    return (np.exp(-rate * last) - np.exp(-rate * first)) / rate


def fair_shares(usage: Usage, tree: bool) -> dict[tuple[str, str], float]:
    """The factor of fair share of each user, of equal shares."""
    if tree:
        of_account = Counter[str]()
        for (account, _), amount in usage.items():
            of_account[account] += amount  # type: ignore[assignment]
        order = sorted(usage, key=lambda one: (of_account[one[0]], one[0], usage[one]))
        return {one: 1.0 - rank / len(order) for rank, one in enumerate(order)}
    by_user = Counter[str]()
    for (_, user), amount in usage.items():
        by_user[user] += amount  # type: ignore[assignment]
    total = sum(by_user.values()) or 1.0
    return {one: 2.0 ** (-by_user[one[1]] / total * len(by_user)) for one in usage}


def _weights(jobs: Sequence[SnapshotJob], now: float, past: JobHistory) -> tuple[Weights | None, list[str]]:
    ranked = sorted((job for job in jobs if not job.runs and job.priority > 0), key=lambda job: job.id)
    users, partitions = {(job.account, job.user) for job in ranked}, {job.partition for job in ranked}
    what = f"PRIORITY of {len(ranked):,} jobs of {len(users):,} users"
    enough = max(MIN_USERS, len(partitions) + 1)
    if len(ranked) < MIN_RANKED or len(users) < enough:
        thin = f"which is thin evidence ({MIN_RANKED} jobs of {enough} users are enough)"
        return None, [f"weights of priority not taken: {what}, {thin}"] if ranked else []
    priority = np.array([job.priority for job in ranked])
    marks = [(f"partition {job.partition}", f"qos {job.qos}") for job in ranked]
    labels = sorted({name for pair in marks for name in pair})
    columns = np.array([[job.gpus, 1.0, *(name in pair for name in labels)]
                        for job, pair in zip(ranked, marks, strict=True)], dtype=float)  # fmt: skip
    fit, judge = np.arange(len(ranked)) % 2 == 0, np.arange(len(ranked)) % 2 == 1
    best: tuple[float, float, Weights] | None = None
    for width, tree, half_life in product((2, 2 + len(labels)), (False, True), HALF_LIVES):
        factors = fair_shares(usage_of(jobs, now, past, half_life), tree)
        fair = np.array([factors[job.account, job.user] for job in ranked])
        for max_age in MAX_AGES:
            age = np.minimum([(now - job.submit) / max_age for job in ranked], 1.0)
            table = np.column_stack([age, fair, columns[:, :width]])
            predicted = table[judge] @ _fitted(table[fit], priority[fit])
            error = float(np.sqrt(((predicted - priority[judge]) ** 2).mean()))
            if best is None or error < BETTER * best[0]:
                amounts = _fitted(table, priority).tolist()
                weights = Weights(*amounts[:4], half_life=half_life, max_age=max_age, tree=tree,
                                  labels=dict(zip(labels, amounts[4:], strict=False)))  # fmt: skip
                best = error, _ordered(predicted, priority[judge]), weights
    assert best is not None
    _, ordered, weights = best
    if ordered < MIN_ORDERED:
        text = f"they order {100 * ordered:.0f} % of the pairs of one half, learned from the other"
        return None, [f"weights of priority not taken: {what}; {text} ({100 * MIN_ORDERED:.0f} % are enough)"]
    kind = f"{'Fair Tree' if weights.tree else 'classic'}, half-life {weights.half_life / DAY:.2g} d"
    text = f"age {weights.age:.4g} at {weights.max_age / DAY:g} d, fair share {weights.fair:.4g} ({kind})"
    more = {"a GPU": weights.size, **weights.labels}
    text += "".join(f", {name} {amount:.4g}" for name, amount in more.items() if amount >= 1)
    return weights, [f"weights of priority: {text} ({what}; {100 * ordered:.0f} % of the pairs of one half in order, "
                     "learned from the other)"]  # fmt: skip


def _fitted(table: np.ndarray, priority: np.ndarray) -> np.ndarray:
    """Weights of at least 0 by least squares."""
    from scipy.optimize import nnls

    amounts: np.ndarray = nnls(table, priority)[0]
    return amounts


def _ordered(predicted: np.ndarray, priority: np.ndarray) -> float:
    """The share of pairs of unlike priority that are predicted in their order."""
    one, other = np.triu_indices(len(priority), 1)
    unlike = priority[one] != priority[other]
    right = (predicted[one] - predicted[other]) * (priority[one] - priority[other]) > 0
    return float(right[unlike].mean()) if unlike.any() else 0.0


# Cycle ----------------------------------------------------------------------------------------------------------


def _cycle(past: JobHistory) -> tuple[float | None, list[str]]:
    """The period of backfilling, and a sentence."""
    events = np.sort(np.concatenate([past.submit, past.end]))
    start = np.unique(past.start)
    before = start - events[np.maximum(np.searchsorted(events, start, side="right") - 1, 0)]
    late = start[(before > 1.0) & (before <= PERIODS[0])]
    if len(late) < MIN_TIMED:
        return None, []
    for period in PERIODS:
        phase = np.sort(late % period)
        window = np.searchsorted(np.append(phase, phase + period), phase + 2.0 + SLACK) - np.arange(len(phase))
        share = float(window.max()) / len(phase)
        if share >= MIN_ORDERED and share > 2.0 * 3.0 / period:
            text = f"{100 * share:.0f} % of {len(late):,} starts that follow no arrival and no end"
            return float(period), [f"backfilling every {period} s ({text})"]
    return None, [f"the cycle of backfilling not taken: {len(late):,} starts show no period"]
