"""Transfers over shared ways: what nothing looks at takes fewer events, and its times are the same to the last bit."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from tiers import spread

from hetsim.engine.flight.links import Links
from hetsim.engine.kernel.clock import Clock
from hetsim.engine.simulation import Simulation
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.device_type import WHOLE, DeviceType, Link
from hetsim.model.mode import Mode, Shape
from hetsim.model.record import RunInput
from hetsim.model.tasks import Tasks
from hetsim.results.one_run.result import Result
from hetsim.scenario.schema.policy import PolicySpec


def system(seed: int) -> RunInput:
    """A few accelerators on half-duplex links or behind switches; every third in whole seconds, so that much happens at
    one instant."""
    draw = np.random.default_rng(seed)
    whole, count = seed % 3 == 0, 60
    rate, delay = float(draw.choice([1, 2, 5])), float(draw.choice([0, 1e-5, 0.05]))
    duplex = ("half", "full")[seed % 2]
    kind = DeviceType("gpu", streams=int(draw.integers(1, 4)), link=Link(rate, rate, delay, duplex))
    behind = Link(*[float(draw.choice([1, 2, 3]))] * 2) if duplex == "full" or draw.random() < 0.5 else Link()
    node = NodeSpec(cpus=8, accelerators=((kind, 4),), switch_size=int(draw.choice([2, 4])), switch=behind)
    arrival = np.cumsum(draw.exponential(1 / (draw.choice([0.4, 0.7, 1.0]) * 4), count))
    time, into, out = (draw.exponential(mean, count) for mean in (1.0, 0.3, 0.3))
    into, out = into * draw.choice([0, 1, 1, 1], count), out * draw.choice([0, 1, 1], count)
    if whole:
        arrival, time, into, out = np.floor(3 * arrival), np.ceil(3 * time), np.ceil(3 * into), np.ceil(3 * out)
    name = ("fcfs", "fcfs", "sjf", "srtf")[seed % 4]
    shape = Shape([Mode("gpu", kind, gpus=1, share=WHOLE)])
    tasks = Tasks(
        arrival=arrival, shape=np.zeros(count, dtype=np.int32), shapes=[shape], time=time[:, None],
        estimate=time[:, None], bytes_in=into, bytes_out=out,
    )  # fmt: skip
    return RunInput("tasks", Cluster([node]), tasks, PolicySpec("scheduler", name).make(), policy=name)


def same(one: Result, two: Result) -> None:
    for table in ("tasks", "launches", "devices", "timeline"):
        pd.testing.assert_frame_equal(getattr(one, table), getattr(two, table), check_exact=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", spread(range(18), 6))
def test_looking_changes_nothing(seed):
    """Where the invariants are checked, every timetable is looked at, and each transfer goes its way by events."""
    same(Result(Simulation(system(seed)).run()), Result(Simulation(system(seed), check=True).run()))


@pytest.mark.parametrize("seed", spread(range(18, 24), 3))
def test_a_fork_takes_its_bookings_along(seed):
    whole = Result(Simulation(system(seed)).run())
    forked = Simulation(system(seed))
    for _ in range(20 + seed):
        assert forked.advance()
        for decision in forked.state.scheduler.schedule(forked.parts.view):
            forked.apply(decision)
    copy = forked.fork()
    same(whole, Result(copy.run()))
    same(whole, Result(forked.run()))


class Told:
    """Notes what it is told of transfers."""

    def __init__(self):
        self.clock = Clock()
        link = Link(10.0, 10.0, 0.0, "half")
        node = NodeSpec(cpus=1, accelerators=((DeviceType("gpu", link=link), 1),))
        cluster = Cluster([node])
        self.links = Links(cluster, self.clock)
        self.way = self.links.up(cluster.nodes[0].accelerators[0])
        self.links.unsure = self.unsure
        self.heard = []

    def note(self, what, flow):
        self.heard.append((self.clock._now, what, flow.owner, flow.until))

    def unsure(self, flow):
        self.note("unsure", flow)

    def done(self, flow):
        self.note("done", flow)

    def book(self, size, owner):
        return self.links.book(self.way, size, 0.0, self.done, owner, math.inf)


def test_a_booking_holds_until_another_transfer_comes():
    told = Told()
    first = told.book(40.0, "first")
    assert first.until == 4.0 and not told.clock.pending
    told.clock._now = 1.0
    second = told.book(50.0, "second")  # they share ten bytes a second: the first still has 30
    assert first.until == second.until == math.inf
    told.clock.advance()  # 20 bytes of the second are left after six seconds
    assert told.heard == [
        (1.0, "unsure", "first", math.inf), (7.0, "done", "first", math.inf), (9.0, "done", "second", math.inf)
    ]  # fmt: skip


def test_a_booking_that_is_over_delays_no_other():
    told = Told()
    told.book(40.0, "first")
    told.clock._now = 4.0
    assert told.book(10.0, "second").until == 5.0
    assert not told.heard
