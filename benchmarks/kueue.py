"""Kueue's published benchmarks, predicted with one number that is fitted to the wall time of the first.

    python -m benchmarks.kueue [baseline|large-scale|topology] [--per-start 0.018] [--requeue 1]

The generators are those of test/performance/scheduler in kubernetes-sigs/kueue, and the published figures those of the
comments in their range specifications.  The fitted number is the time of a start, 18 ms.  As in Kueue, admissions take
effect one after another while the next cycles go on, workloads that did not fit are considered again a second after a
release of quota, and the generator creates at most 1,000 workloads a second.  The topology set has the baseline's
workloads, each in one pod, on ten racks.  Figures, and their difference from those published:

    baseline       wall 350.3 s (-0 %), large 26.2 s (+59 %), medium 109.8 s (+43 %), small 237.2 s (+10 %)
    large-scale    wall 1225.6 s (+4 %), large 110.5 s (+5 %), medium 283.8 s (+11 %), small 805.4 s (+15 %)
    topology       wall 350.3 s (-13 %), large 26.2 s (-33 %), medium 109.8 s (+3 %), small 237.2 s (-3 %)
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from pathlib import Path
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
CREATED, BURST = 1000, 2000
"""Workloads that the generator creates a second, and at once."""


def rows(name: str) -> list[str]:
    """The workloads as they are created: each set of a queue waits for its interval, then for the generator's limit."""
    cohorts, queues, sets = SETS[name]
    names = [f"c{c}q{q}" for c in range(cohorts) for q in range(queues)]
    asked = [(one[2], index, count, one) for index, (count, one) in
             enumerate((queue, one) for queue in names for one in sets)]  # fmt: skip
    heapq.heapify(asked)
    made, lines, next_token = dict[int, int](), list[str](), -BURST / CREATED
    while asked:
        at, index, queue, (kind, count, every, length, priority, cores) = heapq.heappop(asked)
        next_token = max(next_token, at - BURST / CREATED)
        at = max(at, next_token)
        next_token += 1 / CREATED
        made[index] = made.get(index, 0) + 1
        lines.append(f"{len(lines)},{at:.6f},{kind},{queue},{priority},{cores},{length}")
        if made[index] < count:
            heapq.heappush(asked, (at + every, index, queue, (kind, count, every, length, priority, cores)))
    return ["id,arrival,class,user,priority,cpus,cpu_time", *lines]


def scenario(name: str, decisions: dict[str, Any], folder: str, **rules: Any) -> dict[str, Any]:
    cohorts, queues, _ = SETS[name]
    nodes: list[dict[str, Any]] = [{"name": "n", "count": 640, "cpus": 96}]
    if name == "topology":
        nodes = [{"name": f"r{rack}n", "count": 64, "cpus": 96, "rack": f"r{rack}"} for rack in range(10)]
    file = Path(folder) / f"{name}.csv"
    file.write_text("\n".join(rows(name)) + "\n", encoding="utf-8")
    queued = {
        f"c{c}q{q}": {"cohort": f"c{c}", "quotas": {"all": {"cores": {"nominal": 20, "borrowing": 100}}},
                      "reclaim_within_cohort": "any", "within_cluster_queue": "lower_priority"}
        for c in range(cohorts) for q in range(queues)
    }  # fmt: skip
    kueue = {"name": "kueue", "of": "user", "one_head": True, "queues": queued, **rules}
    return {
        "name": name,
        "cluster": {"nodes": nodes},
        "workload": {"trace": {"format": "tasks", "path": str(file)}},
        "policy": {"scheduler": kueue, "decisions": decisions},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--per-start", type=float, default=0.018)
    parser.add_argument("--requeue", type=float, default=1.0)
    given = parser.parse_args()
    decisions, rules = {"per_start": f"{given.per_start} s", "overlap": True}, {"requeue": f"{given.requeue} s"}
    if unknown := [name for name in given.names if name not in PUBLISHED]:
        parser.error(f'there is no set "{unknown[0]}"; there are {", ".join(PUBLISHED)}')
    for name in given.names:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            tasks = hs.run(hs.load(scenario(name, decisions, folder, **rules))).tasks
        figures = {"wall": tasks["finish"].max()}
        waits = (tasks["start"] - tasks["arrival"]).groupby(tasks["class"]).mean()
        figures |= {kind: waits[kind] for kind in ("large", "medium", "small")}
        text = ", ".join(f"{key} {value:.1f} s ({100 * (value / PUBLISHED[name][key] - 1):+.0f} %)"
                         for key, value in figures.items())  # fmt: skip
        print(f"{name}: {text}; {time.process_time() - began:.1f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
