"""Replicas of language models are launches: they hold devices, the view shows them, and they compete with others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from test_llm import scenario

from sim.engine.simulation import Simulation
from sim.errors import PolicyError
from sim.policy import Accept, Admission, Scheduler, Stop, Wait
from sim.scenario.scenario import load
from sim.testing.audit import audit


class Keeps(Admission):
    """Keeps every request that it has been asked about."""

    def __init__(self):
        self.tasks = []

    def admit(self, task, view):
        self.tasks.append(task)
        return Accept()


class Looks(Scheduler):
    """Looks at the view at some times, and does something there."""

    def __init__(self, times, look):
        self.times, self.look, self.seen = list(times), look, []

    def schedule(self, view):
        if self.times and view.now >= self.times[0]:
            self.times.pop(0)
            found = self.look(view)
            if isinstance(found, Stop):
                yield found
            else:
                self.seen.append(found)
        if self.times:
            yield Wait(until=self.times[0])


def looked(times, look, service=None, entry=None, **keys):
    """What `look(view, tasks)` found at these times."""
    admission = Keeps()
    scheduler = Looks(times, lambda view: look(view, admission.tasks))
    run = replace(load(scenario(service, entry, **keys)).build(), scheduler=scheduler, admission=admission)
    record = Simulation(run, check=True).run()
    assert audit(record) == []
    return scheduler.seen


def test_the_view_shows_where_a_request_runs_and_that_a_replica_keeps_its_devices():
    """Two requests of 100 tokens are read until 30 ms and answer until 67 ms; the replica is on one GPU of two."""

    def look(view, tasks):
        held, left = view.cluster.devices[1:]
        launch = view.launch_of(tasks[0])
        where = None if launch.placement is None else [device.name for device in launch.placement.devices]
        others = [task.index for task in launch.tasks]
        return where, others, launch.finish, view.free("gpu"), view.free_at(held), view.free_at(left), view.running()

    entry = {"arrivals": {"process": "all_at_once", "count": 2}}
    during, after = looked([0.02, 0.2], look, entry=entry, gpus=2, horizon="1 s")
    assert during == (["n0/g0"], [0, 1], math.inf, 1.0, math.inf, 0.02, [])
    assert after == (None, [], math.inf, 1.0, math.inf, 0.2, [])


def test_one_of_the_requests_of_a_replica_cannot_be_stopped():
    with pytest.raises(PolicyError, match="stopped task 0, but replica 0 of chat serves it among others"):
        looked([0.02], lambda view, tasks: Stop(tasks[0]))
