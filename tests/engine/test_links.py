"""Transfers on shared links: max-min fairness, and groups that couple and come apart."""

from __future__ import annotations

import numpy as np
import pytest

from hetsim.engine.flight.links import Flow, Links, Pipe, fair_rates
from hetsim.engine.kernel.clock import Clock
from hetsim.engine.kernel.environment import environment_of
from hetsim.model.cluster import Cluster, NodeSpec


class Wires:
    """Some pipes, and a log of what arrived when."""

    def __init__(self, **rates: float):
        self.clock = Clock()
        self.links = Links(Cluster([NodeSpec()]), self.clock)
        self.pipes = {name: Pipe(name, rate) for name, rate in rates.items()}
        self.arrived: list[tuple[str, float]] = []

    def send(self, name: str, pipes: str, size: float) -> Flow:
        way = ([self.pipes[pipe] for pipe in pipes], 0.0)
        return self.links.send(way, size, 0.0, lambda _: self.arrived.append((name, round(self.clock._now, 6))))


def test_rates_are_max_min_fair():
    """Pipe p (rate 3) is shared by a, b, c; c also crosses q (rate 0.5): c gets 0.5, a and b 1.25 each."""
    p, q = Pipe("p", 3.0), Pipe("q", 0.5)
    flows = [Flow([p], 1, print, None), Flow([p], 1, print, None), Flow([p, q], 1, print, None)]
    fair_rates(flows)
    assert [flow.rate for flow in flows] == pytest.approx([1.25, 1.25, 0.5])


def test_a_canceled_transfer_leaves_no_trace():
    """B on p, C on r, D on both, E on q alone; an A on p and q that was canceled must not matter."""
    logs = []
    for canceled in (False, True):
        wires = Wires(p=1.0, q=1.0, r=1.0)
        if canceled:
            wires.links.cancel(wires.send("A", "pq", 10))
        for name, pipes, size in (("B", "p", 10), ("C", "r", 10), ("D", "rp", 10), ("E", "q", 30)):
            wires.send(name, pipes, size)
        wires.clock.advance()
        logs.append(sorted(wires.arrived))
    assert logs[0] == logs[1] == [("B", 20.0), ("C", 20.0), ("D", 20.0), ("E", 30.0)]


@pytest.mark.parametrize("seed", range(30))
def test_random_transfers_against_a_fluid_model_in_small_steps(seed):
    """Arrivals, cancellations and sizes at random: the same completion times as a recomputation at every event."""
    rng = np.random.default_rng(seed)
    names = "pqrs"
    rates = {name: float(rng.integers(1, 4)) for name in names}
    wires = Wires(**rates)
    plan = []
    for number in range(12):
        pipes = "".join(rng.choice(list(names), size=rng.integers(1, 4), replace=False))
        plan.append((float(rng.integers(0, 20)), number, pipes, float(rng.integers(1, 20)), float(rng.integers(1, 30))))
    gone = {number: start + after for start, number, _, _, after in plan if rng.random() < 0.4}
    flows: dict[int, Flow] = {}
    environment = environment_of(wires.clock)

    def process():
        steps = sorted([(start, 0, n, pipes, size) for start, n, pipes, size, _ in plan]
                       + [(time, 1, n, "", 0.0) for n, time in gone.items()])  # fmt: skip
        for time, kind, number, pipes, size in steps:
            yield environment.timeout(time - environment.now)
            if kind == 0:
                flows[number] = wires.send(str(number), pipes, size)
            else:
                wires.links.cancel(flows[number])

    environment.process(process())
    wires.clock.advance()
    assert dict(wires.arrived) == pytest.approx(_reference(plan, gone, rates), abs=1e-5)
    assert len(wires.arrived) == len(dict(wires.arrived))


def _reference(plan, gone, rates) -> dict[str, float]:
    """All active transfers' rates anew after every change; no groups, no events."""
    left = {number: size for _, number, _, size, _ in plan}
    pipes = {number: used for _, number, used, _, _ in plan}
    starts = {number: start for start, number, *_ in plan}
    done: dict[str, float] = {}
    now = 0.0
    while True:
        active = [n for n in left if starts[n] <= now and str(n) not in done and now < gone.get(n, np.inf)]
        wires = {name: Pipe(name, rate) for name, rate in rates.items()}
        flows = {n: Flow([wires[p] for p in pipes[n]], left[n], print, None) for n in active}
        if flows:
            fair_rates(list(flows.values()))
        changes = [time for time in (*starts.values(), *gone.values()) if time > now]
        ends = [now + left[n] / flow.rate for n, flow in flows.items()]
        following = min([*changes, *ends], default=None)
        if following is None:
            return done
        for n, flow in flows.items():
            left[n] -= flow.rate * (following - now)
            if left[n] <= 1e-9:
                done[str(n)] = following
        now = following
