"""A run whose events are over while a launch still computes is a defect, and says so."""

from __future__ import annotations

import pytest

import hetsim as hs
from hetsim.engine.kernel.clock import Clock
from hetsim.engine.simulation import Simulation
from hetsim.errors import InvariantError

LONE = {"cluster": {"nodes": {"gpus": {"type": "a", "count": 1}}},
        "workload": {"arrivals": {"process": "all_at_once", "count": 2}, "gpu_time": "1 s"}}  # fmt: skip


def test_a_launch_without_an_event_is_named(monkeypatch: pytest.MonkeyPatch):
    run = Simulation(hs.load(LONE).build(1))
    rounds = iter([True, False])
    advance = run.parts.rounds.advance
    monkeypatch.setattr(run.parts.rounds, "advance", lambda: next(rounds) and advance())
    monkeypatch.setattr(Clock, "pending", property(lambda clock: 0))
    with pytest.raises(InvariantError, match=r"t = 0 s: no event is left, and launch 1 on \S+ has not ended \(1 run\)"):
        run.run()
