"""`view.first(mode, by="tightest")` and "roomiest" against a look at every node, whatever happened before."""

from __future__ import annotations

import pytest
from cases import Chaos, chaotic
from tiers import spread

from hetsim.engine.simulation import Simulation
from hetsim.policy.lists import ListScheduler
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.policy import PolicySpec


def room(view, mode, node):
    """Free share of the accelerators of the mode's type and free cores of a node, as the columns say."""
    columns = view.nodes
    return (columns.gpus[mode.type.name][node.index] if mode.gpus else 0.0, columns.cores[node.index])


class Watched(Chaos):
    """Asks for both at every round."""

    asked = 0

    def schedule(self, view):
        view.nodes.refresh()
        for task in view.waiting():
            for mode in task.modes:
                if mode.gpus and mode.type.sharing.kind == "mig":
                    continue
                for by, sign in (("tightest", 1), ("roomiest", -1)):
                    self.compare(view, mode, by, sign)
        yield from super().schedule(view)

    def compare(self, view, mode, by, sign):
        nodes = [node for node in view.cluster.nodes if view.first(mode, node=node.index) is not None]
        placement = view.first(mode, by=by)
        if not nodes:
            assert placement is None
            return
        best = min(nodes, key=lambda node: (*(sign * amount for amount in room(view, mode, node)), node.index))
        assert placement == view.first(mode, node=best.index)
        Watched.asked += 1


REFUSED = ("chaos 3", "chaos 7", "chaos 11")
"""What is drawn there is no legal decision."""
CASES = [pytest.param(build, id=name) for name, build in chaotic(17) if name not in REFUSED]


@pytest.mark.quick(4)
@pytest.mark.parametrize("build", spread(CASES, 8))
def test_the_tightest_and_the_roomiest_node_are_those_of_a_look_at_each(build):
    run = build()
    Watched.asked = 0
    draw, run.scheduler = run.scheduler.draw, Watched(0)
    run.scheduler.draw = draw
    Simulation(run).run()
    assert Watched.asked > 20


class Compares(ListScheduler):
    """Compares both at every round, on nodes that fail."""

    down = 0

    def schedule(self, view):
        view.nodes.refresh()
        for task in view.waiting(2):
            for by, sign in (("tightest", 1), ("roomiest", -1)):
                Watched.compare(self, view, task.modes[0], by, sign)
        Compares.down += any(not node.up for node in view.nodes._capacity.nodes)
        yield from super().schedule(view)


def whole_gpus():
    """Jobs of whole GPUs and cores on nodes that fail: the index counts all that they need."""
    node = {"count": 3, "cpus": 12, "gpus": {"type": "g", "count": 4}}
    seconds = {"distribution": "exponential", "mean": "2 s"}
    jobs = [
        {"name": f"j{gpus}", "count": 150, "arrivals": {"process": "poisson", "rate": "0.5/s"}, "gpus": gpus,
         "cpus": cpus, "gpu_time": seconds} for gpus, cpus in ((1, 5), (2, 1), (3, 2), (4, 7))
    ]  # fmt: skip
    every = {"distribution": "exponential", "mean": "40 s"}
    faults = [{"on": "node", "every": every, "repair": {"distribution": "exponential", "mean": "9 s"}}]
    return load({"name": "n", "cluster": {"nodes": [node]}, "workload": jobs, "faults": faults}).build()


@pytest.mark.slow
def test_whole_gpus_and_cores_need_no_mask_of_the_mode():
    run = whole_gpus()
    run.scheduler = Compares(placement=PolicySpec("placement", "best_fit").make())
    Watched.asked = Compares.down = 0
    Simulation(run).run()
    assert Watched.asked > 100 and Compares.down > 10


def test_the_log_of_changes_is_shortened_if_only_the_index_reads_it():
    run = whole_gpus()
    run.scheduler = ListScheduler(placement=PolicySpec("placement", "best_fit").make())
    simulation = Simulation(run)
    simulation.run()
    capacity = simulation.parts.state.capacity
    assert capacity.log_generation > 0 and len(capacity.log) < 1_000
