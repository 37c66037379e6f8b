"""HEFT in a few lines, for graphs without transfers: what `heft` is compared with, task by task and lane by lane."""

from __future__ import annotations

import math
from pathlib import Path


def read(path: Path) -> list[tuple[int, list[float], list[int]]]:
    """Rows of a file of heterogeneous task graphs: id, times by type (inf: not there), predecessors."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = line.split()
        if cells:
            before = [int(one) for one in cells[3].split(",")] if len(cells) > 3 else []
            rows.append((int(cells[0]), [float(one) if float(one) >= 0 else math.inf for one in cells[1:3]], before))
    return rows


def length(rows: list[tuple[int, list[float], list[int]]], counts: tuple[int, int]) -> float:
    """Length of HEFT's schedule on so many cores and GPUs, in the unit of the times."""
    times = {one: row for one, row, _ in rows}
    before = {one: list(dict.fromkeys(found)) for one, _, found in rows}
    after: dict[int, list[int]] = {one: [] for one in times}
    for one, found in before.items():
        for other in found:
            after[other].append(one)
    mean = {}
    for one, row in times.items():
        able = [(time, count) for time, count in zip(row, counts, strict=True) if time < math.inf and count]
        mean[one] = sum(time * count for time, count in able) / sum(count for _, count in able)
    rank: dict[int, float] = {}

    def upward(one: int) -> float:
        if one not in rank:
            rank[one] = mean[one] + max((upward(other) for other in after[one]), default=0.0)
        return rank[one]

    lanes: list[tuple[int, list[tuple[float, float]]]] = [(kind, []) for kind in (0, 1) for _ in range(counts[kind])]
    finish: dict[int, float] = {}
    place = {one: number for number, one in enumerate(times)}
    for one in sorted(times, key=lambda one: (-upward(one), place[one])):
        ready = max((finish[other] for other in before[one]), default=0.0)
        best = (math.inf, 0.0, -1)
        for number, (kind, taken) in enumerate(lanes):
            time = times[one][kind]
            if time == math.inf:
                continue
            start = ready
            for low, high in taken:  # the first gap that is long enough
                if start + time <= low:
                    break
                start = max(start, high)
            if start + time < best[0]:
                best = (start + time, start, number)
        finish[one] = best[0]
        taken = lanes[best[2]][1]
        taken.append((best[1], best[0]))
        taken.sort()
    return max(finish.values())
