"""Writes a small log in the Standard Workload Format: 1,500 jobs of a machine of 128 processors.

    python scenarios/hetsim_scenarios/clusters/make_swf.py

Sizes, run times and the gaps between submissions are those of the model of Lublin and Feitelson, The Workload on
Parallel Supercomputers: Modeling the Characteristics of Rigid Jobs (J. Parallel and Distributed Computing 2003), with
its published parameters for all jobs together:
sizes     a quarter of the jobs is serial; else the logarithm of the size is uniform in two stages, and in most jobs a
          whole number
run times their logarithm is gamma, of two kinds; the larger a job, the more likely the longer one
gaps      their logarithm is gamma, in a time that runs faster by day than by night
The times asked for are not of that model.  They are round numbers from 15 min to 72 h, up to ten times as long as the
job takes, and one job in eight asks for less than it takes: wrong in both directions.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from pathlib import Path

COUNT, PROCESSORS = 1_500, 128
SERIAL, POWERS_OF_TWO = 0.244, 0.576
LEAST, MIDDLE, MOST, BELOW_MIDDLE = 0.8, 4.5, 7.0, 0.86
SHORT, LONG = (4.2, 0.94), (312.0, 0.03)
SHORT_BY_SIZE, SHORT_OF_NONE = -0.0054, 0.78
GAPS, DAY_SHAPE = (10.2303 * 1.0225, 0.4871), (8.1737, 3.9631)
LONGEST, LONGEST_GAP = 12.0, 13.0
"""Logarithms of seconds; longer ones are drawn anew."""
HALF_HOUR, BEGINNING = 1800, 11
"""The day is cut into 48 pieces, of which the density counts from the eleventh on."""
LIMITS = [900 * n for n in (1, 2, 4, 8, 16, 32, 48, 72, 96, 144, 192, 288)]
UNDERESTIMATED = 1 / 8


def size(rng: random.Random) -> int:
    kind = rng.random()
    if kind < SERIAL:
        return 1
    low, high = (LEAST, MIDDLE) if rng.random() < BELOW_MIDDLE else (MIDDLE, MOST)
    power = rng.uniform(low, high)
    return round(2 ** (round(power) if kind < SERIAL + POWERS_OF_TWO else power))


def run_time(processors: int, rng: random.Random) -> int:
    short = min(1.0, max(0.0, SHORT_BY_SIZE * processors + SHORT_OF_NONE))
    while True:
        found = rng.gammavariate(*(SHORT if rng.random() < short else LONG))
        if found <= LONGEST:
            return max(1, int(math.exp(found)))


def clock() -> list[float]:
    """How much of the day's submissions have come at the end of each half hour, in half hours of a mean day."""
    shape, scale = DAY_SHAPE
    density = [0.0] * 48
    for piece in range(BEGINNING, BEGINNING + 48):
        density[(piece - 1) % 48] = piece ** (shape - 1) * math.exp(-piece / scale)
    found, total = [], 0.0
    for part in density:
        total += 48 * part / sum(density)
        found.append(total)
    return found


def submissions(rng: random.Random) -> list[int]:
    """Gaps in a time of equal days, read off a clock that goes as the day does."""
    marks, found, passed = clock(), [], 0.0
    while len(found) < COUNT:
        gap = rng.gammavariate(*GAPS)
        if gap > LONGEST_GAP:
            continue
        passed += math.exp(gap) / HALF_HOUR
        day, part = divmod(passed, 48)
        piece = min(47, bisect(marks, part))
        before = marks[piece - 1] if piece else 0.0
        found.append(int(HALF_HOUR * (48 * day + piece + (part - before) / (marks[piece] - before))))
    return found


def asked(took: int, rng: random.Random) -> int:
    """The time that the user asks for."""
    if rng.random() < UNDERESTIMATED:
        guess = took * rng.uniform(0.3, 1.0)
        return max([limit for limit in LIMITS if limit <= guess], default=max(1, int(guess)))
    guess = took * math.exp(rng.uniform(0.0, math.log(10.0)))
    return min([limit for limit in LIMITS if limit >= guess], default=max(LIMITS[-1], took))


def write(folder: Path) -> None:
    rng = random.Random(4)
    lines = [
        "; Version: 2.2",
        "; Computer: none, drawn from the model of Lublin and Feitelson by make_swf.py",
        f"; MaxJobs: {COUNT}",
        f"; MaxNodes: {PROCESSORS}",
        f"; MaxProcs: {PROCESSORS}",
    ]
    for number, when in enumerate(submissions(rng), start=1):
        wide = size(rng)
        took = run_time(wide, rng)
        limit, user = asked(took, rng), 1 + rng.randrange(20)
        fields = [number, when, -1, took, wide, -1, -1, wide, limit, -1, 1, user, 1, -1, 1, -1, -1, -1]
        lines.append(" ".join(map(str, fields)))
    (folder / "jobs.swf").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
