"""What a policy sees of a service is true in every round, whether its requests come by the clock or one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.policy import ListScheduler, Start, Stop
from hetsim.policy.batching import Batching
from hetsim.policy.decisions import Take
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load


class Looks(ListScheduler):
    """Writes down what the view says of waiting and running requests, in every round."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def schedule(self, view):
        device = view.cluster.nodes[0].accelerators[0]
        waiting = view.waiting()
        running = view.running()
        assert view.num_waiting() == len(waiting) and view.waiting(1) == waiting[:1]
        assert view.num_waiting("gpu") == len(waiting)
        assert {task.index for task in view.running("start", device)} <= {task.index for task in running}
        for task in running:
            assert view.launch_of(task).stage is not None and task in view.launch_of(task).tasks
            assert view.now <= view.launch_of(task).finish < math.inf
        self.seen.append((view.now, [task.index for task in waiting], sorted(task.index for task in running),
                          round(view.backlog(), 9), sum(view.attained(task) for task in running)))  # fmt: skip
        yield from super().schedule(view)


class Greedy(Batching):
    """All that waits, at most sixteen."""

    def next_batch(self, queue, placement, view):
        return Take(min(len(queue), 16))


@pytest.fixture(autouse=True)
def registered(only_shipped_policies):
    hs.register("greedy_of_test", Greedy, kind="batching")
    for name, policy in (("looks", Looks), ("patient_of_test", Patient), ("interrupting_of_test", Interrupting),
                         ("in_order_of_test", InOrder)):
        hs.register(name, policy, kind="scheduler")


def scenario(asked, scheduler, gpus=1, **more):
    service = {
        "upload": {"per_item": "0.114 ms"}, "compute": {"per_item": "1.264 ms", "fixed": "13 ms"},
        "download": {"fixed": "0.05 ms"},
    }  # fmt: skip
    entry = {"name": "web", "arrivals": {"process": "poisson", "rate": "500/s"}, "service": service, "count": 400}
    cluster = {"nodes": [{"gpus": {"type": "g", "count": gpus, "streams": 2}, "pcie": {"upload": "5 GB/s"}}]}
    policy = {"scheduler": scheduler, "batching": "greedy_of_test"}
    if asked:  # so each comes by itself
        policy["admission"] = "accept_all"
    return {"name": "s", "cluster": cluster, "workload": [entry], "policy": policy, **more}


def run(described):
    inputs = load(described).build(1)
    return Result(Simulation(inputs, check=True).run()), inputs.scheduler


@pytest.mark.slow
def test_what_is_seen_is_the_same_however_requests_come_and_fits_the_records():
    result, sliced = run(scenario(False, "looks"))
    _, single = run(scenario(True, "looks"))
    assert sliced.seen == single.seen
    tasks = result.tasks
    for now, waiting, running, backlog, _ in sliced.seen:
        # A round comes after all that happens at its instant, and starts nothing before it has looked.
        assert waiting == tasks.index[(tasks["arrival"] <= now) & (tasks["start"] >= now)].tolist()
        decided = result.launches.set_index("launch")["decided"].reindex(tasks["batch"]).to_numpy()
        assert running == tasks.index[(decided < now) & (tasks["finish"] > now)].tolist()
        assert backlog >= len(waiting) * 0.001264
    assert max(len(waiting) for _, waiting, *_ in sliced.seen) > 5


def test_looking_changes_nothing():
    looked, _ = run(scenario(False, "looks"))
    plain, _ = run(scenario(False, "fcfs"))
    pd.testing.assert_frame_equal(looked.tasks, plain.tasks, check_exact=True)
    pd.testing.assert_frame_equal(looked.launches, plain.launches, check_exact=True)


class Patient(ListScheduler):
    """README's: what has waited longer than a patience goes first, alone."""

    def schedule(self, view):
        for task in list(view.waiting()):
            placement = view.fit(task)
            if placement and view.now - task.ready > 0.02:
                yield Start(task, placement)
        yield from super().schedule(view)


class Interrupting(ListScheduler):
    """Stops the batch that runs, once in a while."""

    def __init__(self):
        super().__init__()
        self.rounds = 0

    def schedule(self, view):
        self.rounds += 1
        running = view.running("start")
        if self.rounds % 7 == 0 and self.rounds < 200 and running:
            yield Stop(running[0], keep=self.rounds % 2 == 0)
        yield from super().schedule(view)


@pytest.mark.quick(1)
@pytest.mark.parametrize("scheduler", ["patient_of_test", "interrupting_of_test"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_single_requests_can_be_started_and_batches_stopped(scheduler, gpus):
    one, _ = run(scenario(False, scheduler, gpus))
    two, _ = run(scenario(True, scheduler, gpus))
    assert (one.tasks["status"] == "completed").all()
    pd.testing.assert_frame_equal(one.tasks, two.tasks, check_exact=True)
    alone = (one.launches["members"] == 1).sum() if "members" in one.launches else len(one.launches)
    assert alone > 5 if scheduler.startswith("patient") else one.tasks["preemptions"].sum() > 5


class InOrder(ListScheduler):
    """Sees requests in the order of their arrival, and the oldest first."""

    def schedule(self, view):
        for queue in {view.queue_of(task) for task in view.waiting()}:
            arrivals = [queue.arrival(position) for position in range(len(queue))]
            assert arrivals == sorted(arrivals) == [task.arrival for task in queue.tasks()]
        assert view.waiting(1) == view.waiting()[:1]
        yield from super().schedule(view)


def test_clients_that_think_longer_than_others_send_after_them():
    """A client's next request has the next row when it begins to think; what others send meanwhile is before it.  The
    requests of a service beside theirs come by the clock, and are ready when they come."""
    described = scenario(False, "in_order_of_test")
    described["cluster"]["nodes"][0]["gpus"]["streams"] = 1
    beside = described["workload"][0]
    closed = {"process": "closed", "clients": 12, "think": {"distribution": "exponential", "mean": "30 ms"}}
    described["workload"] = [beside | {"count": 40}, beside | {"name": "loop", "arrivals": closed, "count": 200}]
    result, _ = run(described)
    assert (result.tasks["ready"] == result.tasks["arrival"]).all()
    assert (result.tasks["wait"] >= 0).all()
    batches = result.tasks[result.tasks["class"] == "loop"].sort_values("arrival")
    assert batches["start"].is_monotonic_increasing
    assert not batches.index.is_monotonic_increasing


class Counts(ListScheduler):
    """Looks whether the first few that wait are the first of all that wait, in every round."""

    def __init__(self):
        super().__init__()
        self.wrong, self.most = [], 0

    def schedule(self, view):
        waiting = view.waiting()
        self.most = max(self.most, len(waiting))
        self.wrong += [view.now for count in (1, 2, 5) if view.waiting(count) != waiting[:count]]
        assert [task.ready for task in waiting] == sorted(task.ready for task in waiting)
        yield from super().schedule(view)


def test_requests_that_wait_for_others_first_stand_where_they_became_ready():
    """Every third waits for the one ten before it to be answered, so that those behind it are ready before it."""
    run = load(scenario(False, "fcfs")).build(1)
    run.tasks.predecessors = [(row - 10,) if row >= 10 and row % 3 == 0 else () for row in range(len(run.tasks))]
    scheduler = Counts()
    record = Simulation(replace(run, scheduler=scheduler)).run()
    assert scheduler.wrong == [] and scheduler.most > 5
    later = record.ready > record.input.tasks.arrival
    assert later.sum() > 20
