"""Forecasts of `hetsim twin` on made-up Slurm sites: coverage, width and error, against a twin told the true rules.

    python -m benchmarks.twin_sites [--sites 0 1 2 3] [--seeds] [--snapshots 40] [--samples 20] [--rules learned true]

Each site has three partitions, fair share, a cap of GPUs per user in each QOS, and time limits of 1.1 to 12 times the
run time.  `slurm_multifactor` runs it for 24 days; from day 10 on it is stopped every few hours, and what Slurm would
print then (squeue with REASON and PRIORITY, sacct, scontrol) is what the twin reads.  Forecasts go 24 h ahead; a start
that lies beyond counts as 24 h.  Intervals are widened by the errors of the site's earlier forecasts that are known.
Rules are learned, true or none; with `floor` the twin is told the true rules and draws run times from the distribution
that made them, given all that is known of a job and of those submitted with it; with `told` it knows run times as well.
"""

from __future__ import annotations

import argparse
import itertools
import math
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

import hetsim as hs
from hetsim.twin.command import _history as history_and_table
from hetsim.twin.command import _snapshot as nodes_and_jobs
from hetsim.twin.forecast import SnapshotCluster, Twin
from hetsim.twin.rules import Rules, Weights, learned, with_policy
from hetsim.twin.shadow import ShadowLog
from hetsim.twin.widening import SHARES, widening

HOUR, DAY = 3600.0, 86400.0
OPEN = 4
"""Forecasts of a site before any has come true."""
EPOCH = datetime(2026, 3, 2, tzinfo=UTC).timestamp()
SQUEUE = ("JOBID|PARTITION|USER|ACCOUNT|QOS|STATE|SUBMIT_TIME|START_TIME|TIME_LIMIT|CPUS|TRES_PER_NODE|NODES|NODELIST|"
          "REASON|PRIORITY")  # fmt: skip
SACCT = "JobID|User|Account|Partition|Submit|Start|End|State|Timelimit|AllocTRES|NodeList|QOS"


@dataclass(frozen=True)
class Kind:
    """What differs between sites."""

    nodes: tuple[tuple[str, int, tuple[str, ...]], ...]
    """By group of nodes of eight GPUs: its name, its number, its partitions."""
    weights: dict[str, float]
    half_life: float = 7 * DAY
    caps: dict[str, float] = field(default_factory=lambda: {"normal": 12.0})
    bf_interval: float = 30.0
    users: int = 12
    load: float = 0.8
    seed: int = 1


SITES = (
    Kind((("s", 1, ("short",)), ("b", 3, ("batch",)), ("l", 2, ("long",))),
         {"age": 1000.0, "fair_share": 5000.0}, seed=1),
    Kind((("s", 1, ("short",)), ("b", 4, ("batch",)), ("l", 1, ("long",))),
         {"age": 2000.0, "fair_share": 10000.0, "size": 500.0}, 2 * DAY, {"normal": 8.0}, 60.0, 10, 0.75, 2),
    Kind((("s", 1, ("short", "batch")), ("b", 3, ("batch",)), ("l", 2, ("batch", "long"))),
         {"age": 3000.0, "fair_share": 3000.0, "partition": 1000.0}, 14 * DAY, {"normal": 10.0, "high": 6.0}, 120.0, 16,
         0.85, 3),
    Kind((("s", 1, ("short",)), ("b", 3, ("batch",)), ("l", 3, ("long",))),
         {"age": 500.0, "fair_share": 8000.0}, 3 * DAY, {"normal": 10.0}, 300.0, 20, 0.85, 4),
)  # fmt: skip
PARTITIONS = {"short": 1.0, "batch": 0.5, "long": 0.2}
"""The factor of each partition."""


@dataclass
class Site:
    """A site that ran: columns of its jobs by arrival, and what it is made of."""

    kind: Kind
    user: np.ndarray
    partition: np.ndarray
    qos: np.ndarray
    gpus: np.ndarray
    arrival: np.ndarray
    runtime: np.ndarray
    limit: np.ndarray
    start: np.ndarray
    node: np.ndarray
    campaign: np.ndarray
    usual: np.ndarray
    """The median of the distribution from which the usual run time of each campaign was drawn, in hours."""
    longest: np.ndarray
    """The longest limit of the job's partition, in hours."""

    @property
    def end(self) -> np.ndarray:
        return self.start + self.runtime


def policy_of(kind: Kind) -> dict[str, Any]:
    """The site's scheduler."""
    weights = {"age": 0.0, "fair_share": 0.0, "size": 0.0, "partition": 0.0, "priority": 0.0, "service": 0.0}
    return {"name": "slurm_multifactor", **weights, **kind.weights, "half_life": f"{kind.half_life} s",
            "partitions": PARTITIONS, "qos": {name: {"max_gpus_per_user": cap} for name, cap in kind.caps.items()},
            "bf_interval": f"{kind.bf_interval} s", "bf_max_job_test": 500}  # fmt: skip


def nodes_of(kind: Kind) -> list[dict[str, Any]]:
    """Its nodes."""
    return [{"name": f"{name}{number}", "cpus": 64, "gpus": {"type": "a100", "count": 8}, "partitions": list(inside)}
            for name, count, inside in kind.nodes for number in range(count)]  # fmt: skip


def made(kind: Kind, days: float = 24.0, site: dict[str, Any] | None = None) -> Site:
    """Draw the jobs of a site and run it.  site: further keys of its partitions."""
    random = np.random.default_rng(kind.seed)
    rows: list[tuple[float, int, str, int, float, float, int, float, float]] = []
    campaign = 0
    home: dict[str, list[float]] = {name: [0.0] for name in PARTITIONS}
    for _, count, inside in kind.nodes:
        for name in inside:
            home[name][0] += 8.0 * count / len(inside)
    share = 1.0 / np.arange(1, kind.users + 1) ** 0.6
    share /= share.sum()
    mean = random.uniform(0.6, 1.6, kind.users)
    for name, (gpus_there,) in home.items():
        typical, longest = {"short": (1.5, 6.0), "batch": (4.0, 24.0), "long": (9.0, 48.0)}[name]
        work = 0.0
        while work < kind.load * gpus_there * days * 24.0:
            user = int(random.choice(kind.users, p=share))
            day = random.integers(0, int(days))
            at = day * DAY + float(np.clip(random.normal(14.0, 4.0), 0, 24)) * HOUR
            width = int(random.choice([1, 2, 4], p=[0.6, 0.25, 0.15]))
            usual = typical * mean[user] * random.lognormal(0.0, 0.4)
            factor = random.uniform(1.1, 12.0)
            campaign += 1
            for _ in range(int(random.geometric(0.25))):
                took = float(np.clip(usual * random.lognormal(0.0, 0.6), 1 / 60, longest / 1.1))
                limit = min(longest, math.ceil(max(took * 1.1, usual * factor) * 4) / 4)
                at += float(random.exponential(120.0))
                of = campaign, typical * mean[user], longest
                rows.append((at, user, name, width, round(took * HOUR), limit * HOUR, *of))
                work += width * took
    rows.sort()
    arrival = np.floor([row[0] for row in rows])
    names = [f"u{row[1]:02d}" for row in rows]
    qos = np.array(["high" if "high" in kind.caps and row[1] % 5 == 4 else "normal" for row in rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        lines = ["id,arrival,user,partition,qos,gpu_time,gpu_time_estimate,gpus"]
        lines += [f"{k},{arrival[k]},{names[k]},{row[2]},{qos[k]},{row[4]},{row[5]},{row[3]}"
                  for k, row in enumerate(rows)]  # fmt: skip
        path.write_text("\n".join(lines) + "\n")
        workload = [{"trace": {"format": "tasks", "path": str(path)}}]
        scenario = {"cluster": {"nodes": nodes_of(kind)}, "policy": policy_of(kind), "workload": workload}
        tasks = hs.run(scenario | ({"site": site} if site else {})).tasks
    return Site(
        kind, np.array(names), np.array([row[2] for row in rows]), qos, np.array([row[3] for row in rows], dtype=float),
        arrival, np.array([row[4] for row in rows]), np.array([row[5] for row in rows]),
        tasks["start"].to_numpy(), tasks["node"].to_numpy(), *(np.array([row[k] for row in rows]) for k in (6, 7, 8)),
    )  # fmt: skip


def usage_of(site: Site, now: float) -> dict[str, float]:
    """GPU seconds by user, halved every half-life, of users who had submitted a job by then."""
    rows = np.flatnonzero(site.arrival <= now)
    used = dict.fromkeys(sorted(set(site.user[rows].tolist())), 0.0)
    rate = math.log(2.0) / site.kind.half_life
    for row in rows[site.start[rows] < now].tolist():
        first, last = now - site.start[row], now - min(site.end[row], now)
        used[str(site.user[row])] += site.gpus[row] * (math.exp(-rate * last) - math.exp(-rate * first)) / rate
    return used


def priorities(site: Site, now: float, rows: np.ndarray) -> np.ndarray:
    """What Slurm prints as PRIORITY."""
    used = usage_of(site, now)
    total, weights = sum(used.values()), site.kind.weights
    all_gpus = 8.0 * sum(count for _, count, _ in site.kind.nodes)
    fair = np.array([2.0 ** (-used[str(site.user[row])] / total * len(used)) for row in rows])
    return np.floor(
        weights.get("age", 0.0) * np.minimum((now - site.arrival[rows]) / (7 * DAY), 1.0)
        + weights.get("fair_share", 0.0) * fair + weights.get("size", 0.0) * site.gpus[rows] / all_gpus
        + weights.get("partition", 0.0) * np.array([PARTITIONS[name] for name in site.partition[rows]])
    )  # fmt: skip


def date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(EPOCH + seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def span(seconds: float) -> str:
    days, rest = divmod(int(seconds), 86400)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def printed(site: Site, now: float, folder: Path, reason: str = "QOSMaxGRESPerUser") -> Path:
    """Write squeue, sacct and nodes of an instant into a folder."""
    here = np.flatnonzero((site.arrival <= now) & (site.end > now))
    running = here[site.start[here] <= now]
    waiting = here[site.start[here] > now]
    held: dict[tuple[str, str], float] = {}
    text = [SQUEUE]
    for row in running.tolist():
        key = str(site.qos[row]), str(site.user[row])
        held[key] = held.get(key, 0.0) + site.gpus[row]
        begun = f"{date(site.arrival[row])}|{date(site.start[row])}|{_size(site, row)}"
        text.append(f"{_job(site, row)}|RUNNING|{begun}|{site.node[row]}|None|1")
    for row, rank in zip(waiting.tolist(), priorities(site, now, waiting).tolist(), strict=True):
        key = str(site.qos[row]), str(site.user[row])
        why = reason if held.get(key, 0.0) + site.gpus[row] > site.kind.caps[key[0]] else "Priority"
        text.append(f"{_job(site, row)}|PENDING|{date(site.arrival[row])}|N/A|{_size(site, row)}||{why}|{rank:.0f}")
    (folder / "squeue").write_text("\n".join(text) + "\n")
    ended = np.flatnonzero(site.end <= now)
    text = [SACCT]
    for row in ended.tolist():
        times = "|".join(map(date, (site.arrival[row], site.start[row], site.end[row])))
        text.append(f"{row + 1}|{site.user[row]}|lab|{site.partition[row]}|{times}|COMPLETED|{span(site.limit[row])}|"
                    f"cpu={site.gpus[row]:.0f},gres/gpu={site.gpus[row]:.0f}|{site.node[row]}|{site.qos[row]}")
    (folder / "sacct").write_text("\n".join(text) + "\n")
    (folder / "nodes").write_text("".join(
        f"NodeName={node['name']} CPUTot=64 Gres=gpu:a100:8 State=MIXED Partitions={','.join(node['partitions'])}\n"
        for node in nodes_of(site.kind)
    ))  # fmt: skip
    return folder


def _size(site: Site, row: int) -> str:
    return f"{span(site.limit[row])}|{site.gpus[row]:.0f}|gres/gpu:{site.gpus[row]:.0f}|1"


def _job(site: Site, row: int) -> str:
    return f"{row + 1}|{site.partition[row]}|{site.user[row]}|lab|{site.qos[row]}"


# Forecasts ----------------------------------------------------------------------------------------------------------


def true_rules(site: Site) -> Rules:
    """The rules of the site as they are."""
    kind = site.kind
    labels = {f"partition {name}": kind.weights.get("partition", 0.0) * one for name, one in PARTITIONS.items()}
    all_gpus = 8.0 * sum(count for _, count, _ in kind.nodes)
    weights = Weights(
        kind.weights["age"], kind.weights["fair_share"], kind.weights.get("size", 0.0) / all_gpus, base=0.0,
        half_life=kind.half_life, max_age=7 * DAY, tree=False, labels=labels,
    )  # fmt: skip
    return Rules({name: {"max_gpus_per_user": cap} for name, cap in kind.caps.items()}, weights, kind.bf_interval)


def run_times(site: Site, now: float, count: int) -> dict[int, np.ndarray]:
    """By job present: run times in seconds from the distribution that made them, given all that is known by now.

    The usual time of a campaign is weighted by its limits and by what its jobs took or have run so far (importance
    sampling); sample k of all jobs of a campaign is of one usual time.
    """
    random, found = np.random.default_rng(int(now)), dict[int, np.ndarray]()
    here = np.flatnonzero((site.arrival <= now) & (site.end > now))
    for campaign in sorted(set(site.campaign[here].tolist())):
        jobs = np.flatnonzero((site.campaign == campaign) & (site.arrival <= now))
        limit, longest = site.limit[jobs] / HOUR, site.longest[jobs[0]]
        took, ran = site.runtime[jobs] / HOUR, np.maximum(now - site.start[jobs], 0.0) / HOUR
        usual = site.usual[jobs[0]] * random.lognormal(0.0, 0.4, 3000)
        # The least limit is that of the factor, of which all values are as likely, rounded up to quarters of an hour.
        highest = np.inf if limit.min() >= longest else limit.min()
        share = np.clip(highest / usual, 1.1, 12.0) - np.clip((limit.min() - 0.25) / usual, 1.1, 12.0)
        weight = np.log(np.maximum(share, 1e-12))
        for row, job in enumerate(jobs.tolist()):
            done = site.end[job] <= now
            scaled = (np.log(max(took[row] if done else ran[row], 1 / 60)) - np.log(usual)) / 0.6
            weight += norm.logpdf(scaled) if done else norm.logsf(scaled) if ran[row] else 0.0
        chance = np.exp(weight - weight.max())
        drawn = np.log(random.choice(usual, count, p=chance / chance.sum()))
        for row, job in enumerate(jobs.tolist()):
            high = limit[row] / 1.1
            low = min(high, max(ran[row], high - 0.25 / 1.1 if limit[row] > limit.min() else 1 / 60))
            place = random.uniform(*norm.cdf((np.log([low, high])[:, None] - drawn) / 0.6))
            found[job] = np.clip(np.exp(drawn + 0.6 * norm.ppf(np.clip(place, 1e-9, 1 - 1e-9))), low, high) * HOUR
    return found


@dataclass
class Judged:
    """Forecasts of one instant: quantiles by job (told and as drawn), and what came, in seconds from it."""

    now: float
    told: np.ndarray
    drawn: np.ndarray
    actual: np.ndarray
    groups: list[str]
    rules: list[str]


def forecasts(site: Site, instants: Iterable[float], samples: int, rules: str, folder: Path) -> Iterator[Judged]:
    """Forecasts at instants as `hetsim twin --shadow` makes them; the log of forecasts lies in the folder."""
    for now in instants:
        with tempfile.TemporaryDirectory() as there:
            files = printed(site, now, Path(there))
            log, *_ = history_and_table(str(files / "sacct"))
            listed, snapshot = nodes_and_jobs(files / "squeue", str(files / "nodes"))
        past = ShadowLog(folder)
        starts = np.where(site.start <= now, EPOCH + site.start, math.inf).tolist()
        past.learn({str(row + 1): start for row, start in enumerate(starts)}, EPOCH + now)
        given = Rules()
        if rules in ("true", "floor", "told"):
            given = true_rules(site)
        elif rules == "learned":
            given = learned(snapshot.jobs, EPOCH + now, log, past.weights(EPOCH + now))
        policy, ruled = with_policy(None, given) if given.caps or given.weights else ("easy_backfill", Rules())
        cluster = SnapshotCluster(listed)
        twin = Twin(snapshot.jobs, EPOCH + now, log, cluster, policy=policy, rules=ruled)
        if rules in ("floor", "told"):
            times = run_times(site, now, samples) if rules == "floor" else dict(enumerate(site.runtime[:, None]))
            turns = {job: itertools.cycle(values.tolist()) for job, values in times.items()}
            twin._drawn = lambda job, random, elapsed=0.0, turns=turns: next(turns[int(job.id) - 1])  # type: ignore[method-assign]
        told = twin.forecast(samples, int(now))
        told.widening = widening(past.pasts(DAY), EPOCH + now)
        past.keep(told, EPOCH + now)
        jobs = range(len(told.jobs))
        quantiles, drawn = (np.array([one(job, SHARES) for job in jobs]).reshape(-1, len(SHARES))
                            for one in (told.quantiles, told.drawn))  # fmt: skip
        actual = np.array([site.start[int(job.id) - 1] - now for job in told.jobs])
        yield Judged(now, np.minimum(quantiles, DAY), np.minimum(drawn, DAY), np.minimum(actual, DAY),
                     groups=[told.group(job) for job in jobs], rules=given.evidence)  # fmt: skip


def instants_of(first: int, last: int) -> list[float]:
    """Instants by number, 7.2 h apart; those from 0 to 3 come before any forecast has come true."""
    return [(10.0 + 0.3 * number) * DAY for number in range(first, last)]


def row_of(name: str, judged: Iterable[Judged]) -> str:
    """A line of the table."""
    done = list(judged)
    told, drawn, actual = (np.concatenate([getattr(one, name) for one in done]) for name in ("told", "drawn", "actual"))
    cells = []
    for low, high in (told[:, [0, 4]].T, drawn[:, [0, 4]].T):
        inside = 100.0 * ((low <= actual) & (actual <= high)).mean()
        cells += [f"{inside:5.1f} %", f"{(high - low).mean() / HOUR:5.1f} h"]
    return f"{name:14} {len(actual):6,} {'  '.join(cells)}  {np.abs(told[:, 2] - actual).mean() / HOUR:5.2f} h"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="*", default=range(len(SITES)))
    parser.add_argument("--seeds", type=int, default=0, help="added to the seed of each site: others of its kind")
    parser.add_argument("--snapshots", type=int, default=40)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--rules", nargs="*", default=("learned", "true", "none"))
    asked = parser.parse_args()
    print(f"{'':14} starts  in 90 %    width  (drawn)    width    error")
    for number in asked.sites:
        site = made(replace(SITES[number], seed=SITES[number].seed + asked.seeds))
        for rules in asked.rules:
            with tempfile.TemporaryDirectory() as folder:
                instants = instants_of(0, asked.snapshots + OPEN)
                done = list(forecasts(site, instants, asked.samples, rules, folder=Path(folder)))
            print(row_of(f"{number + 1} {rules}", done[OPEN:]), flush=True)


if __name__ == "__main__":
    main()
