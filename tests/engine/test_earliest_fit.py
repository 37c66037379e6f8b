"""The shadow of a task, tested through EASY backfilling: with exact estimates no head is later than its shadow."""

from __future__ import annotations

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, simulate
from tiers import spread

import hetsim as hs
from hetsim.model.cluster import NodeSpec
from hetsim.model.device_type import DeviceType, Link
from hetsim.policy import WAIT_FOR_CHANGE, ListScheduler, Start


class Easy(ListScheduler):
    """First come first served, but a task may pass the head if it cannot delay it; notes each head's first shadow."""

    def __init__(self):
        super().__init__()
        self.shadows: dict[int, float] = {}

    def schedule(self, view):
        head = yield from self.start_in_order(view)
        if head is None:
            return
        shadow = view.earliest_fit(head)
        self.shadows.setdefault(head.index, shadow.time)
        for task in self.behind(head):
            placement = view.fit(task)
            if placement and shadow.survives(task, placement):
                self.queue.remove(task)
                yield Start(task, placement)
        yield WAIT_FOR_CHANGE


def load(rng: np.random.Generator, kind: DeviceType, gangs: list[int], count: int = 150, **more) -> list[Job]:
    cpu = DeviceType("cpu", kind="cpu")
    jobs = []
    for time in np.cumsum(rng.exponential(1.0, count)):
        gang = int(rng.choice(gangs))
        modes = [gpu_mode(kind, gang, millicores=1000 * int(rng.integers(0, 3)), **more)]
        times = [float(rng.exponential(6.0 / gang**0.5))]
        if gang == 1 and rng.random() < 0.3:
            modes.append(cpu_mode(cpu, 2))
            times.append(times[0] * 3)
        size = int(rng.integers(0, 40)) if kind.link.upload < float("inf") else 0
        jobs.append(Job(modes, times, arrival=float(time), bytes_in=size, bytes_out=size // 2))
    return jobs


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", spread(range(4), 2))
@pytest.mark.parametrize("case", ["gangs", "across nodes", "transfers"])
def test_no_head_starts_later_than_its_shadow(seed, case):
    link = Link(upload=10.0, download=10.0) if case == "transfers" else Link()
    kind = DeviceType("g", link=link)
    gangs = [1, 1, 2, 4, 8] + ([12] if case == "across nodes" else [])
    more = {"span_any": True, "span_speed": 0.5} if case == "across nodes" else {}
    nodes = NodeSpec(cpus=8, accelerators=((kind, 8),), count=2)
    policy = Easy()
    jobs = load(np.random.default_rng(seed), kind, gangs, **more)
    record = simulate(nodes, jobs, policy)
    assert len(policy.shadows) > 10
    for row, shadow in policy.shadows.items():
        assert record.start[row] <= shadow + 1e-9, row


def test_backfilling_helps():
    kind = DeviceType("g")
    nodes = NodeSpec(cpus=8, accelerators=((kind, 8),), count=2)
    jobs = load(np.random.default_rng(1), kind, [1, 1, 2, 4, 8])
    strict, easy = simulate(nodes, jobs), simulate(nodes, jobs, Easy())
    assert (easy.finish - easy.ready).mean() < (strict.finish - strict.ready).mean()


@pytest.mark.parametrize("seed", spread(range(6), 3))
def test_gangs_across_nodes_by_counting_and_by_walking(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Counting accelerators wherever they are gives the starts that trying it out on copies of the nodes gives."""
    from hetsim.engine.views.node_availability import Profile

    scenario = {
        "name": "spanning",
        "seed": seed,
        "cluster": {"nodes": [{"count": 5, "cpus": 2, "gpus": {"type": "g", "count": 3}}]},
        "workload": [
            {
                "name": "gangs", "count": 150, "arrivals": {"process": "poisson", "rate": "0.21/s"},
                "classes": [
                    {"class": f"g{gpus}", "weight": weight, "gpus": gpus, "span": "any",
                     "gpu_time": {"distribution": "exponential", "mean": "20 s"},
                     "estimates": {"error": {"distribution": "lognormal", "cv": 0.5}} if seed % 2 else None}
                    for gpus, weight in ((1, 5), (2, 2), (5, 1), (11, 1))
                ],
            }
        ],
        "policy": "easy_backfill",
    }  # fmt: skip
    for part in scenario["workload"][0]["classes"]:  # type: ignore[index]
        if part["estimates"] is None:
            del part["estimates"]
    asked: list[bool] = []
    covers = Profile.covers

    def counted(self, modes):
        asked.append(self.pooled and covers(self, modes))
        return asked[-1]

    monkeypatch.setattr(Profile, "covers", counted)
    one = hs.run(scenario, check=True)
    assert any(asked) and all(asked)
    monkeypatch.setattr(Profile, "covers", lambda self, modes: False)
    other = hs.run(scenario, check=True)
    assert one.tasks["start"].tolist() == other.tasks["start"].tolist()
    assert (one.tasks["wait"] > 0).mean() > 0.3
