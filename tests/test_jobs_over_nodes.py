"""Jobs over several nodes: a number of nodes with equal parts, and cores of any nodes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.errors import ScenarioError
from sim.testing.audit import audit

Job = tuple[float, float, float, int, int]
"""Arrival, time, estimate, nodes (0: cores of any nodes), cores on each."""


def easy(jobs: list[Job], sizes: list[int]) -> list[float]:
    """EASY backfilling by brute force: everything is found anew whenever something happens; the start of each job."""
    free, start = list(sizes), [-1.0] * len(jobs)
    held: dict[int, dict[int, int]] = {}

    def place(job: int, room: list[int], among: set[int] | None = None) -> dict[int, int] | None:
        _, _, _, nodes, cores = jobs[job]
        able = [n for n in range(len(room)) if among is None or n in among]
        one = next((n for n in able if room[n] >= cores), None)
        if nodes == 1 or (nodes == 0 and one is not None):
            return None if one is None else {one: cores}
        if nodes:
            found = [n for n in able if room[n] >= cores][:nodes]
            return dict.fromkeys(found, cores) if len(found) == nodes else None
        taken: dict[int, int] = {}
        for n in able:
            part = min(room[n], cores - sum(taken.values()))
            if part:
                taken[n] = part
        return taken if sum(taken.values()) == cores else None

    def shadow(job: int, now: float) -> tuple[float, list[int], set[int] | None]:
        """When the head could start, what is free then, and its node if it needs but one."""
        room, found, home = list(free), -1.0, None
        for one in sorted(held, key=lambda one: start[one] + jobs[one][2]):
            end = max(now, start[one] + jobs[one][2])
            if 0 <= found < end:
                break
            for n, part in held[one].items():
                room[n] += part
            if found < 0 and place(job, room) is not None:
                found = end
                if jobs[job][3] == 1:
                    home = {next(n for n in held[one] if room[n] >= jobs[job][4])}
        return found, room, home

    def begin(job: int, where: dict[int, int], now: float) -> None:
        held[job], start[job] = where, now
        for n, part in where.items():
            free[n] -= part

    waiting: list[int] = []
    times = {job[0] for job in jobs}
    while times:
        now = min(times)
        times.remove(now)
        for one in [one for one in held if start[one] + jobs[one][1] == now]:
            for n, part in held.pop(one).items():
                free[n] += part
        waiting += [job for job in range(len(jobs)) if jobs[job][0] == now]
        before = set(held)
        while waiting and (where := place(waiting[0], free)) is not None:
            begin(waiting.pop(0), where, now)
        if waiting:
            time, room, home = shadow(waiting[0], now)
            for job in list(waiting[1:]):
                where = place(job, free)
                if where is None:
                    continue
                if now + jobs[job][2] > time:
                    mine = place(waiting[0], room, home)
                    assert mine is not None
                    left = [amount - where.get(n, 0) for n, amount in enumerate(room)]
                    if place(waiting[0], left, home) is None:
                        cores = jobs[job][4]  # on another node, if one node will do
                        others = [n for n in range(len(free)) if n not in mine and free[n] >= cores]
                        if not others or jobs[job][3] > 1:
                            continue
                        where = {others[0]: cores}
                        left = [amount - where.get(n, 0) for n, amount in enumerate(room)]
                    room = left
                waiting.remove(job)
                begin(job, where, now)
        times |= {start[one] + jobs[one][1] for one in held if one not in before}
    return start


def drawn(seed: int, wrong: bool) -> tuple[list[Job], list[int]]:
    rng = random.Random(seed)
    sizes = [rng.choice([4, 8]) for _ in range(6)] + [8, 8]
    jobs: list[Job] = []
    clock = 0.0
    for _ in range(60):
        clock += rng.choice([0, rng.uniform(1, 9)])
        took = rng.uniform(1, 40)
        guess = took * rng.choice([0.5, 1, 1, 2, 5]) if wrong else took
        kind = rng.random()
        if kind < 0.4:
            jobs.append((clock, took, guess, 1, rng.randint(1, 8)))
        elif kind < 0.75:
            jobs.append((clock, took, guess, rng.randint(2, 4), rng.randint(1, 6)))
        else:
            jobs.append((clock, took, guess, 0, rng.randint(2, 30)))
    return jobs, sizes


def scenario(tmp_path: Path, jobs: list[Job], sizes: list[int], **policy: Any) -> dict[str, Any]:
    """The same as a scenario, its jobs in two tables: span is a key of an entry."""
    entries = []
    for name, chosen in (("fixed", [j for j in jobs if j[3]]), ("free", [j for j in jobs if not j[3]])):
        lines = ["arrival,cpu_time,cpu_time_estimate,cpus,nodes,id"]
        lines += [f"{a},{t},{g},{c},{n or ''},j{jobs.index((a, t, g, n, c))}" for a, t, g, n, c in chosen]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
        entry: dict[str, Any] = {"name": name, "trace": {"format": "tasks", "path": str(tmp_path / f"{name}.csv")}}
        entries.append(entry | ({"span": "any"} if name == "free" else {}))
    nodes = [{"name": f"n{number}", "cpus": size} for number, size in enumerate(sizes)]
    return {"cluster": {"nodes": nodes}, "workload": entries, "policy": policy or {"scheduler": "easy_backfill"}}


@pytest.mark.parametrize("seed", range(8))
def test_easy_backfilling_of_jobs_over_nodes_starts_as_by_brute_force(tmp_path: Path, seed: int) -> None:
    jobs, sizes = drawn(seed, wrong=seed % 2 == 1)
    jobs = list(dict.fromkeys(jobs))
    result = sim.run(scenario(tmp_path, jobs, sizes), check=True)
    assert not audit(result.record)
    found = {name.partition("/")[2]: start for name, start in zip(result.tasks["id"], result.tasks["start"], strict=True)}
    order = sorted(range(len(jobs)), key=lambda n: (jobs[n][0], jobs[n][3] == 0, n))
    expected = dict(zip(order, easy([jobs[n] for n in order], sizes), strict=True))
    assert {n: float(found[f"j{n}"]) for n in expected} == expected
