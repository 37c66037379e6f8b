"""Jobs over several nodes: a number of nodes with equal parts, and cores of any nodes."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiers import spread

import hetsim as hs
from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit

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
            jobs.append((clock, took, guess, 0, rng.randint(9, 30)))  # more than a node: fewer stay on one
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


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", spread(range(8), 4))
def test_easy_backfilling_of_jobs_over_nodes_starts_as_by_brute_force(tmp_path: Path, seed: int) -> None:
    jobs, sizes = drawn(seed, wrong=seed % 2 == 1)
    jobs = list(dict.fromkeys(jobs))
    result = hs.run(scenario(tmp_path, jobs, sizes), check=True)
    assert not audit(result.record)
    found = dict(zip(result.tasks["id"].str.partition("/")[2], result.tasks["start"], strict=True))
    order = sorted(range(len(jobs)), key=lambda n: (jobs[n][0], jobs[n][3] == 0, n))
    expected = dict(zip(order, easy([jobs[n] for n in order], sizes), strict=True))
    assert {n: float(found[f"j{n}"]) for n in expected} == expected


def test_cores_of_a_recorded_job_stay_on_one_node_where_they_fit(tmp_path: Path) -> None:
    """The second job waits for a node of its own, though six cores are free; the third is wider than any node."""
    jobs = [(0.0, 10.0, 10.0, 0, 5), (1.0, 10.0, 10.0, 0, 5), (2.0, 10.0, 10.0, 0, 12)]
    run = scenario(tmp_path, jobs, [8, 8], scheduler="fcfs")
    run["workload"] = run["workload"][1:]
    run["cluster"]["nodes"][1]["cpus"] = 4
    assert hs.run(run, check=True).tasks["start"].tolist() == [0, 10, 20]
    assert hs.run(run, check=True).tasks["hosts"].tolist() == [1, 1, 2]


def over_nodes(count: int = 3, wanted: int = 2, cpus: int = 32, **more: Any) -> dict[str, Any]:
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": count}, "cpu_time": "100 s", "nodes": wanted}
    nodes = [{"name": "n", "count": 2, "cpus": 32, "rack": "a"}, {"name": "m", "count": 2, "cpus": 32, "rack": "b"}]
    return {"cluster": {"nodes": nodes}, "workload": [job | {"cpus": cpus} | more], "policy": {"scheduler": "fcfs"}}


def test_three_jobs_of_two_nodes_on_four_nodes() -> None:
    result = hs.run(over_nodes(), check=True)
    assert result.tasks["finish"].tolist() == [100, 100, 200]
    assert result.tasks["hosts"].tolist() == [2, 2, 2] and result.tasks["racks"].tolist() == [1, 1, 1]
    assert result.tasks["node"].tolist() == ["n0+n1", "m0+m1", "n0+n1"]
    assert not audit(result.record)


def test_what_jobs_over_nodes_hold_is_counted_on_their_nodes() -> None:
    job = {"cpus": 40, "span": "any", "nodes": None, "memory": "10 GB"}
    result = hs.run(over_nodes(count=2, **{k: v for k, v in job.items() if k != "cpus"}, cpus=40), check=True)
    devices = result.devices.set_index("device")
    assert result.tasks["hosts"].tolist() == [2, 2] and result.tasks["racks"].tolist() == [1, 2]
    assert devices["busy"].tolist() == pytest.approx([3200, 3200, 1600, 0])  # 32 + 8, then 24 + 16 cores
    assert not audit(result.record)


def test_gpus_and_cores_of_each_node() -> None:
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 3}, "gpu_time": "10 s", "gpus": 2, "nodes": 2}
    nodes = {"name": "n", "count": 3, "cpus": 8, "memory": "64 GB", "gpus": {"type": "g", "count": 4}}
    system = {"cluster": {"nodes": [nodes]}, "workload": [job | {"cpus": 3, "memory": "20 GB"}], "policy": "fcfs"}
    result = hs.run(system, check=True)
    assert result.tasks["start"].tolist() == [0, 0, 10]  # two of three nodes are full: the third job waits
    assert result.tasks["node"].tolist() == ["n0+n1", "n0+n1", "n0+n1"]
    assert not audit(result.record)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"nodes": 5}, "5 nodes with 32 cores each exceed the 4 of the cluster"),
        ({"span": "node"}, "and span: node both state the number of nodes; leave one out"),
        ({"cpus": 1.5}, "cpus: a gang over 2 nodes must use whole cores; got 1.5 on each"),
        ({"nodes": 0}, "nodes: must be at least 1; got 0"),
        ({"nodes": None, "span": "any", "cpus": 129}, "129 cores exceed the 128 of the cluster"),
        ({"nodes": None, "cpus": 64}, "(nodes: N or span: any would use several nodes)"),
    ],
)
def test_what_cannot_be_is_said(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScenarioError) as error:
        hs.run(over_nodes(**({"wanted": keys.pop("nodes")} if "nodes" in keys else {}), **keys))
    assert sentence in str(error.value)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", spread(["cholesky-8", "jobs-of-a-site", "gangs-and-small-jobs", "shared-switch"], 2))
def test_without_communication_nothing_changes(name: str) -> None:
    """One node for each job and racks with narrow uplinks give the same bytes as neither: launches, waits, links."""
    before = hs.run(name)
    entries = len(hs.load(name).model.workload)
    one_node = {f"workload.{number}.nodes": 1 for number in range(entries)}
    racks = {"cluster.racks": {"nodes": 1, "uplink": "1 MB/s"}, "cluster.contention": "aligned"}
    for change in (one_node, racks):
        after = hs.run(name, overrides=change)
        pd.testing.assert_frame_equal(after.launches, before.launches, check_exact=True)
        shared = list(before.tasks.columns)
        pd.testing.assert_frame_equal(after.tasks[shared], before.tasks, check_exact=True)


SWF = """; MaxProcs: 32
1 0 -1 10 8 -1 -1 8 20 -1 1 1 1 -1 1 -1 -1 -1
2 0 -1 10 24 -1 -1 24 20 -1 1 1 1 -1 1 -1 -1 -1
3 1 -1 10 13 -1 -1 13 20 -1 1 1 1 -1 1 -1 -1 -1
"""


def test_an_swf_log_replays_on_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "log.swf").write_text(SWF)
    log = {"path": str(tmp_path / "log.swf"), "cores_per_node": 8}
    system = {
        "cluster": {"trace": {"format": "swf_header", **log}},
        "workload": [{"name": "jobs", "trace": {"format": "swf", **log}}],
        "policy": "fcfs",
    }
    result = hs.run(system, check=True)
    assert result.tasks["hosts"].tolist() == [1, 3, 2]
    assert result.tasks["start"].tolist() == [0, 0, 10]
    assert result.tasks["device_type"].tolist() == ["cpu"] * 3


SACCT = """JobID|Submit|Start|End|State|AllocTRES|NodeList
1|2026-01-01T00:00:00|2026-01-01T00:00:05|2026-01-01T00:01:05|COMPLETED|cpu=16,mem=32G,node=2|n[2-3]
2|2026-01-01T00:00:00|2026-01-01T00:00:00|2026-01-01T00:01:00|COMPLETED|cpu=8,mem=8G,node=1|n1
3|2026-01-01T00:00:10|2026-01-01T00:01:05|2026-01-01T00:02:05|COMPLETED|cpu=15,mem=8G,node=2|n[1,3]
"""


def test_a_slurm_log_replays_on_the_nodes_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(SACCT)
    log = {"path": str(tmp_path / "log.txt"), "node_counts": True, "format": "slurm"}
    system = {
        "cluster": {"nodes": [{"name": f"n{number}", "cpus": 8, "memory": "64 GB"} for number in range(4)]},
        "workload": [{"name": "jobs", "trace": log, "span": "any"}],
        "policy": "as_recorded",
    }
    result = hs.run(system, check=True)
    assert result.tasks["node"].tolist() == ["n2+n3", "n1", "n1+n3"]
    assert result.tasks["start"].tolist() == result.tasks["recorded_start"].tolist()


@pytest.mark.slow
def test_the_figures_of_the_shipped_scenario() -> None:
    for policy, hours, slowdown in ((None, 4.91, 247), ("fcfs", 57.9, 5740)):
        tasks = hs.run("hpc-log-on-nodes", policy=policy).tasks
        assert len(tasks) == 1500 and tasks["hosts"].max() == 16
        assert tasks["wait"].mean() / 3600 == pytest.approx(hours, rel=1e-3)
        assert tasks["bounded_slowdown_10s"].mean() == pytest.approx(slowdown, rel=1e-3)


NEED_A_FILE = "as_recorded", "external", "learned", "replay"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_only_ways_that_work_are_proposed_to_a_job_too_large_for_a_node(kind: str) -> None:
    """`span: any` and `nodes: N` are each proposed if and only if the scheduler then runs the job."""
    arrivals = {"process": "deterministic", "interval": "1 s"}
    job = {"name": "job", "count": 2, f"{kind}s": 4, f"{kind}_time": "1 s", "arrivals": arrivals}
    nodes = [{"cpus": 2, "gpus": {"type": "g", "count": 2}, "count": 2}]
    scenario = {"cluster": {"nodes": nodes}, "seed": 1}
    if kind == "cpu":  # one group, so that `hierarchical` takes what its inner policy takes
        groups = {"hierarchical": {"name": "hierarchical", "groups": 2}}
        ways = {"span: any": {"span": "any"}, "nodes: N": {"nodes": 2, "cpus": 2}}
    else:  # a job with `nodes` is another job there: that many GPUs on each node
        groups, ways = {}, {"span: any": {"span": "any"}}
    run = {way: [] for way in ways}
    proposed = {way: [] for way in ways}
    names = [name for name in registry.policies("scheduler") if name not in NEED_A_FILE]
    for name in names:
        policy = groups.get(name, name)
        with pytest.raises(ScenarioError, match="exceed the 2 of any node") as refusal:
            load({**scenario, "workload": [job], "policy": policy}).build()
        for way, keys in ways.items():
            if way in str(refusal.value):
                proposed[way].append(name)
            try:
                hs.run({**scenario, "workload": [{**job, **keys}], "policy": policy})
            except ScenarioError as error:
                assert re.search("parallel|single devices|of one node", str(error)), error
            else:
                run[way].append(name)
    assert proposed == run
    assert {"fcfs", "heft" if kind == "gpu" else "graham"} <= set(run["span: any"])
    assert all({"cpop", "local_search", "dual_approximation"}.isdisjoint(works) for works in run.values())
