"""`view.first(mode, by="tightest")` and "roomiest" against a look at every node, whatever happened before."""

from __future__ import annotations

import pytest
from cases import Chaos, chaotic
from tiers import spread

from hetsim.engine.simulation import Simulation


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
