"""Forecasts of a cluster with Kueue, judged on a history of 5,000 workloads.

    python -m benchmarks.kueue_twin [--instants 10] [--samples 20] [--seed 1]

An invented cluster of 64 GPUs with three queues that borrow from each other is simulated.  At instants in the second
half of the history its objects are written as kubectl prints them, `hetsim twin --kueue` forecasts the waiting
workloads, and the forecast starts are compared with the later ones.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import hetsim as hs
from hetsim.twin.kueue import KueueCluster

QUEUES = {"a": (24, 90), "b": (24, 60), "c": (16, 40)}
"""GPUs of the quota, and minutes of the mean run time."""
COUNT, HOURS, EPOCH = 5000, 24.0, 1_780_000_000.0
GPU = "nvidia.com/gpu"


def history(seed: int) -> Any:
    """The workloads: Poisson arrivals at a load of 0.9, of one, two, four and eight GPUs."""
    rates = {name: 0.9 * 60 * nominal / (15 * minutes) for name, (nominal, minutes) in QUEUES.items()}
    work = [
        {"name": f"{queue}{gpus}", "class": queue, "gpus": gpus, "cpus": 1,
         "count": round(COUNT / 4 * rates[queue] / sum(rates.values())),
         "gpu_time": {"distribution": "lognormal", "mean": f"{minutes} min", "cv": 1.2},
         "arrivals": {"process": "poisson", "rate": f"{rates[queue]}/h"}}
        for queue, (_, minutes) in QUEUES.items() for gpus in (1, 2, 4, 8)
    ]  # fmt: skip
    queues = {name: {"cohort": "all", "quotas": {"any": {"gpus": one[0]}}} for name, one in QUEUES.items()}
    nodes = [{"name": "n", "count": 8, "cpus": 64, "gpus": {"type": "a100", "count": 8}}]
    policy = {"scheduler": {"name": "kueue", "queues": queues}}
    return hs.run(hs.load({"name": "k", "seed": seed, "cluster": {"nodes": nodes}, "workload": work, "policy": policy}))


def objects(tasks: Any, now: float) -> list[dict[str, Any]]:
    """The objects at an instant: nothing later is in them."""

    def date(seconds: float) -> str:
        return datetime.fromtimestamp(EPOCH + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    made: list[dict[str, Any]] = [{"kind": "ResourceFlavor", "metadata": {"name": "any"}, "spec": {}}]
    for name, (nominal, _) in QUEUES.items():
        flavors = [{"name": "any", "resources": [{"name": GPU, "nominalQuota": str(nominal)}]}]
        made.append({"kind": "ClusterQueue", "metadata": {"name": name}, "spec": {
            "cohortName": "all", "resourceGroups": [{"flavors": flavors}]}})  # fmt: skip
        made.append({"kind": "LocalQueue", "metadata": {"namespace": name, "name": "main"},
                     "spec": {"clusterQueue": name}})  # fmt: skip
    for row in tasks[tasks["arrival"] <= now].to_dict("records"):
        times = {"QuotaReserved": row["start"], "Finished": row["finish"]}
        rows = [{"type": kind, "status": "True", "lastTransitionTime": date(time)}
                for kind, time in times.items() if time <= now]  # fmt: skip
        requests = {"cpu": "1", GPU: str(row["device"].count("/g"))}
        pods = {"count": 1, "template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}}
        status: dict[str, Any] = {"conditions": rows} | ({"admission": {"clusterQueue": row["class"]}} if rows else {})
        meta = {"namespace": row["class"], "name": str(row["id"]), "creationTimestamp": date(row["arrival"])}
        made.append({"kind": "Workload", "metadata": meta, "spec": {"queueName": "main", "podSets": [pods]},
                     "status": status})  # fmt: skip
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instants", type=int, default=10)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tasks = history(given.seed).tasks
    starts = {f"{row['class']}/{row['id']}": row["start"] for row in tasks.to_dict("records")}
    nodes = [{"metadata": {"name": f"n{k}", "labels": {}},
              "status": {"allocatable": {"cpu": "64", GPU: "8"}}} for k in range(8)]  # fmt: skip
    inside, widths, errors, beyond = list[bool](), list[float](), list[float](), 0
    for now in np.linspace(0.5, 0.95, given.instants) * tasks["arrival"].max():
        now = float(int(now))
        with tempfile.TemporaryDirectory() as folder:
            k, n = Path(folder) / "k.json", Path(folder) / "n.json"
            k.write_text(json.dumps({"kind": "List", "items": objects(tasks, now)}), encoding="utf-8")
            n.write_text(json.dumps({"kind": "List", "items": nodes}), encoding="utf-8")
            cluster = KueueCluster(k, n, EPOCH + now, False)
            told = cluster.forecast(cluster.policy, HOURS, given.samples, given.seed)
        for place, job in enumerate(told.jobs):
            first, *_, last = told.ends(place)
            middle, actual = (min(one, HOURS * 3600) for one in (told.drawn(place, [0.5])[0], starts[job.id] - now))
            inside.append(first <= actual + 1 and (actual <= last + 1 or last >= HOURS * 3600))
            widths.append((min(last, HOURS * 3600) - min(first, HOURS * 3600)) / 3600)
            errors.append(abs(actual - middle) / 3600)
            beyond += actual >= HOURS * 3600
        print(f"{now / 3600:.0f} h: {len(told.jobs)} wait; so far {np.mean(inside):.1%} of {len(inside)} starts are in "
              f"the 90 % intervals, {np.mean(widths):.1f} h wide; mean error {np.mean(errors):.2f} h; {beyond} starts "
              f"after {HOURS:g} h", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
