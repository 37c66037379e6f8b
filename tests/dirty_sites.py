"""Sites whose truth is known: a scheduler is simulated, and its log written in some format with planted dirt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

import hetsim as hs

ZONE = ZoneInfo("Europe/Berlin")
BEGIN = datetime(2026, 10, 22, tzinfo=UTC).timestamp()
"""Three days before clocks go back."""
PER_NODE = 8


@dataclass
class Site:
    """What a site has and what its jobs did; and the dirt in its log by kind, with ids."""

    nodes: int
    policy: str
    jobs: list[dict[str, Any]]
    full: float
    """The share of the time in which all GPUs are held."""
    planted: dict[str, list[str]] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return self.nodes * PER_NODE

    def cluster(self) -> dict[str, Any]:
        gpu = {"type": "gpu", "count": PER_NODE}
        return {"nodes": [{"name": "n", "count": self.nodes, "cpus": 64, "gpus": gpu}]}


def site(seed: int, folder: Path, load: float = 0.88, days: float = 7.0) -> Site:
    """A week of a site under a policy that its seed chooses."""
    random = np.random.default_rng(seed)
    nodes, policy = int(random.integers(3, 7)), str(random.choice(["fcfs", "easy_backfill", "sjf"]))
    gpus, jobs, at, work = nodes * PER_NODE, [], 0.0, 0.0
    sizes = np.array([1, 2, 4, 8])
    while work < load * gpus * days * 86400:
        size = int(random.choice(sizes, p=[0.5, 0.25, 0.15, 0.1]))
        took = int(np.clip(random.lognormal(8, 1.2), 60, 60000))
        jobs.append({"id": str(1000 + len(jobs)), "gpus": size, "took": took, "user": f"u{random.integers(9)}"})
        work += size * took
    gaps = random.exponential(1.0, len(jobs))
    for job, at in zip(jobs, np.floor(np.cumsum(gaps) * days * 86400 / gaps.sum()).tolist(), strict=True):
        job["at"] = int(at)
        job["limit"] = 60 * int(job["took"] * 1.5 / 60 + 1)
    found = Site(nodes, policy, jobs, 0.0)
    path = folder / "truth.csv"
    rows = [f"{job['id']},{job['at']},{job['took']},{job['gpus']},{job['limit']}" for job in jobs]
    path.write_text("id,arrival,gpu_time,gpus,gpu_time_estimate\n" + "\n".join(rows) + "\n")
    trace = {"format": "tasks", "path": str(path)}
    run = hs.run({"cluster": found.cluster(), "workload": {"trace": trace}, "policy": policy})
    tasks = run.tasks.set_index(run.tasks["id"].astype(str))
    for job in jobs:
        job["start"], job["end"] = int(tasks.loc[job["id"], "start"]), int(tasks.loc[job["id"], "finish"])
        job["node"] = str(tasks.loc[job["id"], "node"])
    events = sorted([(job["start"], job["gpus"]) for job in jobs] + [(job["end"], -job["gpus"]) for job in jobs])
    level, before, full = 0, 0, 0
    for when, change in events:
        full += (when - before) * (level == gpus)
        level, before = level + change, when
    found.full = full / before
    return found


def local(second: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(BEGIN + second, ZONE).strftime(form)


def chosen(
    found: Site, random: np.random.Generator, kind: str, share: float, fits: Callable[[dict[str, Any]], bool]
) -> list[int]:
    """Jobs for some dirt, of those that it can befall and that have none."""
    taken = {one for ids in found.planted.values() for one in ids}
    rows = [row for row, job in enumerate(found.jobs) if fits(job) and job["id"] not in taken]
    rows = sorted(random.permutation(rows)[: max(1, int(share * len(found.jobs)))].tolist())
    found.planted[kind] = [found.jobs[row]["id"] for row in rows]
    return rows


def write_csv(found: Site, path: Path, seed: int) -> dict[str, Any]:
    """Local times over the change of clocks, jumps, negative waits, repetitions, unfinished jobs, a renamed node."""
    random = np.random.default_rng(seed)
    rows = [dict(job) for job in found.jobs]
    for row in chosen(found, random, "jump", 0.005, lambda job: job["took"] > 60):
        rows[row]["end"] -= int(random.integers(rows[row]["took"] + 1, rows[row]["took"] + 4000))
    change = range(3 * 86400 - 7200, 3 * 86400 + 10800)  # there an early start may be a time that clocks show twice
    for row in chosen(found, random, "early", 0.005, lambda job: job["start"] not in change):
        rows[row]["at"] = rows[row]["start"] + int(random.integers(10, 600))
    again = chosen(found, random, "repeated", 0.005, lambda job: True)
    middle = float(np.median([job["start"] for job in rows]))
    for job in rows:
        job["node"] = "gpu-new" if job["node"] == "n0" and job["start"] > middle else job["node"]
    for row in chosen(found, random, "unfinished", 0.0, lambda job: job["end"] >= max(one["end"] for one in rows)):
        rows[row]["end"] = rows[row]["took"] = None
    lines = []
    for job in rows:
        cells = ["" if job[key] is None else local(job[key]) for key in ("at", "start", "end")]
        cells += ["" if job["took"] is None else str(job["took"]), str(job["limit"]), job["id"], str(job["gpus"])]
        lines.append(",".join([*cells, job["node"]]))
    lines += [lines[row] for row in again]
    path.write_text("at,start,end,took,limit,id,gpus,node\n" + "\n".join(lines) + "\n")
    columns = {"id": "id", "arrival": "at", "start": "start", "end": "end", "duration": "took",
               "time_limit": "limit", "gpus": "gpus", "recorded_node": "node"}  # fmt: skip
    return {"format": "csv", "path": str(path), "columns": columns, "zone": "Europe/Berlin", "units": {"duration": "s"},
            "missing": {"end": "drop", "duration": "drop"}}  # fmt: skip


def write_pbs(found: Site, path: Path, seed: int) -> dict[str, Any]:
    """Records in the order of their dates: arrays, repetitions, jobs that never started or never ended."""
    random = np.random.default_rng(seed)
    arrays = set(chosen(found, random, "array", 0.01, lambda job: True))
    again = set(chosen(found, random, "repeated", 0.005, lambda job: True))
    records: list[tuple[int, str]] = []
    for row, job in enumerate(found.jobs):
        name = f"{job['id']}[{row}].pbs" if row in arrays else f"{job['id']}.pbs"
        at = f"ctime={BEGIN + job['at']:.0f} start={BEGIN + job['start']:.0f}"
        held = f"exec_host={job['node']}/0 exec_vnode=({job['node']}:ncpus=1:ngpus={job['gpus']})"
        records.append((job["start"], f"S;{name};user={job['user']} {at}"))
        limit = f"Resource_List.walltime={job['limit'] // 3600}:{job['limit'] // 60 % 60:02}:00"
        end = f"E;{name};user={job['user']} {at} {held} {limit} end={BEGIN + job['end']:.0f}"
        records += [(job["end"], end)] * (1 + (row in again))
    found.planted["never started"] = ["x1", "x2"]
    records += [(500, "Q;x1.pbs;queue=q"), (600, "D;x1.pbs;requestor=r"), (700, "Q;x2.pbs;queue=q")]
    found.planted["no end"] = ["y1"]
    records.append((max(job["end"] for job in found.jobs) - 5, "S;y1.pbs;user=u ctime=0 start=0"))
    lines = [f"{local(at, '%m/%d/%Y %H:%M:%S')};{text}" for at, text in sorted(records, key=lambda one: one[0])]
    path.write_text("\n".join(lines) + "\n")
    return {"format": "pbs", "path": str(path)}


def write_pods(found: Site, path: Path, seed: int) -> dict[str, Any]:
    """Pods in JSON lines: restarts, gangs of one pod a GPU, pods that never started."""
    random = np.random.default_rng(seed)
    restarted = set(chosen(found, random, "restart", 0.01, lambda job: job["gpus"] == 1 and job["took"] > 300))
    gangs = set(chosen(found, random, "gang", 0.01, lambda job: job["gpus"] > 1))

    def at(second: float) -> str:
        return f"{datetime.fromtimestamp(BEGIN + second, UTC):%Y-%m-%dT%H:%M:%SZ}"

    pods = []
    for row, job in enumerate(found.jobs):
        parts = job["gpus"] if row in gangs else 1
        for part in range(parts):
            begun = job["end"] - 120 if row in restarted else job["start"]
            ended = {"startedAt": at(begun), "finishedAt": at(job["end"]), "exitCode": 0}
            asked = {"nvidia.com/gpu": str(job["gpus"] // parts)}
            state = {"restartCount": 2 * (row in restarted), "state": {"terminated": ended}}
            meta = {"name": f"{job['id']}-{part}" if parts > 1 else job["id"], "creationTimestamp": at(job["at"])}
            if parts > 1:
                meta |= {"labels": {"training.kubeflow.org/job-name": job["id"]}}
            spec: dict[str, Any] = {"activeDeadlineSeconds": job["limit"]}
            spec |= {"nodeName": job["node"], "containers": [{"resources": {"requests": asked}}]}
            status = {"phase": "Succeeded", "startTime": at(job["start"]), "containerStatuses": [state]}
            pods.append({"kind": "Pod", "metadata": meta, "spec": spec, "status": status})
    found.planted["never started"] = ["p"]
    pods.append({"kind": "Pod", "metadata": {"name": "p", "creationTimestamp": at(5)}, "spec": {"containers": []},
                 "status": {"phase": "Pending"}})  # fmt: skip
    path.write_text("".join(json.dumps(pod) + "\n" for pod in pods))
    return {"format": "kubernetes", "path": str(path)}


def write_slurm(found: Site, path: Path, seed: int) -> dict[str, Any]:
    """sacct -D: repetitions, elements of arrays, steps, jobs that never started; a job that was requeued."""
    random = np.random.default_rng(seed)
    again = chosen(found, random, "repeated", 0.005, lambda job: True)
    arrays = set(chosen(found, random, "array", 0.01, lambda job: True))
    lines = []
    for row, job in enumerate(found.jobs):
        instants = [datetime.fromtimestamp(BEGIN + job[key], UTC) for key in ("at", "start", "end")]
        times = [f"{instant:%Y-%m-%dT%H:%M:%S}" for instant in instants]
        name = f"{job['id']}_{row}" if row in arrays else job["id"]
        tres = f"cpu=1,gres/gpu={job['gpus']},node=1"
        lines.append("|".join([name, *times, "COMPLETED", f"{job['limit'] // 60}", tres, job["node"], job["user"]]))
        if row % 50 == 0:
            lines.append("|".join([f"{name}.batch", *times, "COMPLETED", "", "cpu=1", job["node"], ""]))
    again_ids = {found.jobs[row]["id"] for row in again}
    lines += [text for text in lines if text.split("|")[0] in again_ids]
    found.planted["never started"] = ["9"]
    lines.append("9|2026-10-22T00:00:05|Unknown|2026-10-22T00:10:00|CANCELLED by 0|10|||u")
    path.write_text("JobID|Submit|Start|End|State|Timelimit|AllocTRES|NodeList|User\n" + "\n".join(lines) + "\n")
    return {"format": "slurm", "path": str(path)}


WRITERS = (write_csv, write_pbs, write_pods, write_slurm)
