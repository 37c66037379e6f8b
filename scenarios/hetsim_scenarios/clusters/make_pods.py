"""Writes a small log in the format of Alibaba's GPU trace of 2023: nodes, and pods of four days with fractions of GPUs.

    python scenarios/hetsim_scenarios/clusters/make_pods.py

pods-nodes.csv   9 nodes, 32 GPUs of three types
pods.csv         1,850 pods: a dozen in the first 60 days, the others in four days after day 100; a third of those on
                 GPUs takes a part of one, a tenth several, a quarter names the types it can run on, some never started

Nothing in it is taken from the real trace but the columns.  Durations are lognormal, median 20 min, as long as several
hours in the tail; submissions are Poisson with a day that is three times as busy at noon as at midnight.
"""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

DAY = 86_400
QUIET, BUSY = 60 * DAY, 100 * DAY
NODES = [("T4", 4, 64_000, 262_144, 2), ("V100", 2, 96_000, 393_216, 4), ("A10", 2, 128_000, 786_432, 8)]
COUNT = 1_838
SPECS = ["T4", "V100", "T4|A10", "V100|A10"]


def nodes() -> list[list[object]]:
    rows: list[list[object]] = []
    for model, count, cpu, memory, gpus in NODES:
        rows += [[f"node-{len(rows) + k:02d}", cpu, memory, gpus, model] for k in range(count)]
    return [*rows, [f"node-{len(rows):02d}", 96_000, 786_432, 0, ""]]


def submissions(rng: random.Random) -> list[int]:
    """A dozen long before, then a day's rhythm by thinning."""
    found = sorted(rng.randrange(QUIET) for _ in range(12))
    busy: list[int] = []
    while len(busy) < COUNT:
        when = rng.uniform(0, 4 * DAY)
        if rng.random() < (2 - math.cos(2 * math.pi * when / DAY)) / 3:
            busy.append(BUSY + int(when))
    return found + sorted(busy)


def pod(number: int, when: int, rng: random.Random) -> list[object]:
    kind = rng.random()
    if kind < 0.12:
        gpus, milli = 0, 0
    elif kind < 0.42:
        gpus, milli = 1, rng.choice([100, 250, 330, 500, 500, 700])
    elif kind < 0.91:
        gpus, milli = 1, 1000
    else:
        gpus, milli = rng.choice([2, 2, 4]), 1000
    spec = rng.choice(SPECS) if gpus and gpus < 3 and rng.random() < 0.25 else ""
    cores = 1000 * max(1, round(4 * gpus * milli / 1000)) if gpus else rng.choice([1000, 2000, 8000])
    took = max(5, int(rng.lognormvariate(math.log(1200), 1.9)))
    took = min(took, 2 * DAY)
    phase, begin = "Succeeded", when + rng.choice([0, 0, 1, 5])
    row = [f"pod-{number:04d}", cores, 2 * cores, gpus, milli, spec, rng.choice(["LS", "BE"])]
    if rng.random() < 0.05:
        return [*row, "Pending", when, when + took, ""]
    return [*row, phase, when, begin + took, begin]


def write(folder: Path) -> None:
    rng = random.Random(1)
    header = "name cpu_milli memory_mib num_gpu gpu_milli gpu_spec qos pod_phase"
    times = "creation_time deletion_time scheduled_time"
    files = {
        "pods-nodes.csv": ("sn cpu_milli memory_mib gpu model", nodes()),
        "pods.csv": (f"{header} {times}", [pod(number, when, rng) for number, when in enumerate(submissions(rng))]),
    }
    for name, (columns, rows) in files.items():
        with (folder / name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows([columns.split(), *rows])


if __name__ == "__main__":
    write(Path(__file__).parent)
