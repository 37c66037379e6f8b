"""Kueue's published benchmarks, predicted with decision times fitted to the first alone.

    python -m benchmarks.kueue [baseline|large-scale|topology] [--per-start 0.02209] [--per-cycle 0]

The generators are those of test/performance/scheduler in kubernetes-sigs/kueue, and the published figures those of the
comments in their range specifications.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import hetsim as hs

PUBLISHED = {
    "baseline": {"wall": 351.1, "large": 16.5, "medium": 76.8, "small": 215.5},
    "large-scale": {"wall": 1179.4, "large": 105.6, "medium": 256.4, "small": 700.4},
    "topology": {"wall": 401.5, "large": 39.0, "medium": 106.6, "small": 243.6},
}
SETS = {
    "baseline": (5, 6, (("small", 350, 0.1, 0.2, 50, 1), ("medium", 100, 0.5, 0.5, 100, 5),
                        ("large", 50, 1.2, 1.0, 200, 20))),
    "large-scale": (10, 100, (("small", 35, 0.06, 0.15, 50, 1), ("medium", 11, 0.3, 0.35, 100, 5),
                              ("large", 4, 0.7, 0.7, 200, 20))),
}  # fmt: skip
SETS["topology"] = SETS["baseline"]
"""Cohorts, queues of each, and workloads of a queue: class, count, interval, run time, priority, cores."""


def scenario(name: str, per_start: float, per_cycle: float) -> dict[str, Any]:
    cohorts, queues, sets = SETS[name]
    names = [f"c{c}q{q}" for c in range(cohorts) for q in range(queues)]
    nodes: list[dict[str, Any]] = [{"name": "n", "count": 640, "cpus": 96}]
    if name == "topology":
        nodes = [{"name": f"r{rack}n", "count": 64, "cpus": 96, "rack": f"r{rack}"} for rack in range(10)]
    work = [
        {"name": f"{queue}{kind}", "class": kind, "user": queue, "priority": priority, "cpus": cores, "count": count,
         "cpu_time": f"{length} s", "arrivals": {"process": "deterministic", "rate": f"{1 / every}/s"}}
        for queue in names for kind, count, every, length, priority, cores in sets
    ]  # fmt: skip
    quotas = {"all": {"cores": {"nominal": 20, "borrowing": 100}}}
    rules = {"reclaim_within_cohort": "any", "within_cluster_queue": "lower_priority"}
    queued = {queue: {"cohort": queue.split("q")[0], "quotas": quotas, **rules} for queue in names}
    decisions = {"per_start": f"{per_start} s"} | ({"per_cycle": f"{per_cycle} s"} if per_cycle else {})
    return {
        "name": name,
        "cluster": {"nodes": nodes},
        "workload": work,
        "policy": {
            "scheduler": {"name": "kueue", "of": "user", "one_head": True, "queues": queued},
            "decisions": decisions,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--per-start", type=float, default=0.02209)
    parser.add_argument("--per-cycle", type=float, default=0.0)
    given = parser.parse_args()
    for name in given.names:
        began = time.process_time()
        tasks = hs.run(hs.load(scenario(name, given.per_start, given.per_cycle))).tasks
        figures = {"wall": tasks["finish"].max()}
        waits = (tasks["start"] - tasks["arrival"]).groupby(tasks["class"]).mean()
        figures |= {kind: waits[kind] for kind in ("large", "medium", "small")}
        text = ", ".join(f"{key} {value:.1f} s ({100 * (value / PUBLISHED[name][key] - 1):+.0f} %)"
                         for key, value in figures.items())  # fmt: skip
        print(f"{name}: {text}; {time.process_time() - began:.1f} s of processor time")


if __name__ == "__main__":
    main()
