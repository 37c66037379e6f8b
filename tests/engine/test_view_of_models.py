"""What a policy sees of requests to language models: where they wait and run, and what they have received."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import tiers
from test_llm import C, F, P, S, scenario
from test_llm_faults import SERVICES, stormy
from test_llm_launches import looked
from tiers import spread
from witness import BETWEEN_ROUNDS

from hetsim.engine.language.llm_service import Fleet
from hetsim.engine.simulation import Simulation
from hetsim.engine.views.backlog import Backlog
from hetsim.engine.views.forecast import Forecast
from hetsim.engine.views.generated import Generated, WaitingRequests
from hetsim.engine.views.view import RequestSeen
from hetsim.errors import PolicyError
from hetsim.model.plan import Placement
from hetsim.model.record import COMPLETED, REJECTED
from hetsim.policy import ListScheduler, Reject, Scheduler, Start, Wait
from hetsim.scenario.scenario import load
from hetsim.testing import examine
from hetsim.testing.audit import audit
from hetsim.testing.conformance import fingerprint, watch
from hetsim.testing.systems import served_systems

SYSTEMS = [system for system in served_systems() if "language" in system.name]


def lies(run, every=BETWEEN_ROUNDS):
    """What the verbs said in a run, in all rounds and between them, and was not so; and the record."""
    watched = watch(run.scheduler)
    watched.uncountable = bool(run.faults)
    record = watched.looked_at(replace(run, scheduler=watched), every)
    return list(watched.witness.lies(record)), record, watched.witness.looks


@pytest.mark.quick(0)
@pytest.mark.parametrize("name", spread(list(SERVICES), 1))
def test_every_verb_tells_the_truth_while_replicas_fail_and_requests_give_way(name):
    run = stormy(name, 3) if tiers.whole else replace(stormy(name, 3), horizon=40.0)  # half of the time
    found, record, looks = lies(run, 1.1)
    assert found == []
    assert record.preemptions.sum() > 5
    waiting = {row for look in looks for row in look.waiting}
    running = {row for look in looks for row in look.running}
    assert len(waiting) > 20 and len(running) > 50


@pytest.mark.quick(1)
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_looking_changes_nothing(system):
    _, seen, _ = lies(system.run_input(ListScheduler()))
    assert fingerprint(seen) == fingerprint(Simulation(system.run_input(ListScheduler())).run())


def less(function):
    return lambda *arguments: function(*arguments)[1:]


def more(function):
    return lambda *arguments: function(*arguments) + 1


def backward(function):
    return lambda *arguments: function(*arguments)[::-1]


LIES = [
    (WaitingRequests, "tasks", less), (WaitingRequests, "tasks", backward), (WaitingRequests, "__len__", more),
    (WaitingRequests, "arrival", more), (Backlog, "count", more), (Backlog, "seconds", more),
    (Generated, "remaining", more), (Generated, "attained_by", more),
    (Fleet, "in_steps", more), (Forecast, "duration", more), (Forecast, "_left", more),
]  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize(("of", "verb", "lie"), spread(LIES, 6), ids=lambda one: getattr(one, "__name__", one))
def test_the_suite_finds_a_verb_that_lies_about_requests_to_language_models(of, verb, lie, monkeypatch):
    monkeypatch.setattr(of, verb, lie(getattr(of, verb)))
    assert {breach.rule for breach in examine(lambda _: ListScheduler(), SYSTEMS[2])} == {"view"}


@pytest.mark.slow
def test_the_suite_finds_a_wrong_stage(monkeypatch):
    monkeypatch.setattr(RequestSeen, "stage", "download")
    assert {breach.rule for breach in examine(lambda _: ListScheduler(), SYSTEMS[0])} == {"view"}


# By hand ------------------------------------------------------------------------------------------------------------


def test_a_request_waits_until_its_first_step_and_has_had_its_part_of_the_steps():
    """The second comes in the first step, which reads the prompt of the first (20 ms); the next reads its own (20 ms
    and 1 ms and 1.01 ms for the token of the first)."""

    def look(view, tasks):
        one, other = tasks
        names = [[task.index for task in found] for found in (view.waiting(), view.running())]
        return (*names, view.num_waiting("g"), *(round(view.attained(task), 9) for task in tasks),
                round(view.remaining(one), 9), view.remaining(other), view.launch_of(other).stage)  # fmt: skip

    whole = F + 100 * P + sum(F + S + (101 + k) * C for k in range(3))
    entry = {"arrivals": {"process": "deterministic", "interval": "15 ms"}, "count": 2}
    waits, runs, over = looked([0.017, 0.03, 0.5], look, entry=entry, horizon="1 s")
    assert waits == ([1], [0], 1, 0.017, 0.0, round(whole - 0.017, 9), pytest.approx(whole), None)
    assert runs == ([], [0, 1], 0, 0.025, 0.005, round(whole - 0.03, 9), pytest.approx(whole - 0.01), "compute")
    both = sum(over[3:5])
    assert over[:3] == ([], [], 0) and over[5:] == (pytest.approx(whole), pytest.approx(whole), None)
    assert 0.06 < both < 2 * whole


def test_a_request_that_gives_way_waits_again():
    """Room for 20 tokens and no more: two of 8 + 8 tokens do not get through together."""
    states = {}

    def look(view, tasks):
        for task in tasks:
            waits, runs = task in view.waiting(), task in view.running()
            assert not (waits and runs)
            if waits or runs:
                states.setdefault(task.index, []).append("waits" if waits else "runs")
        assert view.queue_of(tasks[0]).service.name == "chat"

    service = {"kv": {"tokens": 20, "block": 1}}
    entry = {"arrivals": {"process": "all_at_once", "count": 2}, "tokens": {"prompt": 8, "output": 8}}
    looked([0.005 + 0.01 * k for k in range(30)], look, service, entry, horizon="1 s")
    changes = {row: [name for name, _ in itertools.groupby(names)] for row, names in states.items()}
    assert changes == {0: ["runs"], 1: ["runs", "waits", "runs"]}


class Decides(Scheduler):
    """Decides one thing at a time."""

    def __init__(self, time, decide):
        self.time, self.decide = time, decide

    def schedule(self, view):
        if view.now < self.time:
            yield Wait(until=self.time)
        elif self.decide is not None:
            decide, self.decide = self.decide, None
            yield decide(view)


def decided(time, decide, service=None, entry=None, **keys):
    run = load(scenario(service, entry, **keys)).build()
    record = Simulation(replace(run, scheduler=Decides(time, decide)), check=True).run()
    assert audit(record) == []
    return record


TWO = {"arrivals": {"process": "all_at_once", "count": 2}, "tokens": {"prompt": 8, "output": 8}}


def test_a_request_that_waits_can_be_rejected_before_its_first_step_and_after_it_has_given_way():
    record = decided(0.005, lambda view: Reject(view.waiting()[0], "enough"), {"max_num_seqs": 1}, TWO)
    assert record.status.tolist() == [COMPLETED, REJECTED] and math.isnan(record.start[1])
    record = decided(0.065, lambda view: Reject(view.waiting()[0], "enough"), {"kv": {"tokens": 20, "block": 1}}, TWO)
    assert record.status.tolist() == [COMPLETED, REJECTED]
    assert record.preemptions.tolist() == [0, 1] and record.finish[1] == 0.065 and 0 < record.compute[1] < 0.065


def test_a_request_that_waits_for_a_replica_that_answers_can_be_rejected():
    """The second is read and waits, as the replica that answers takes one; what it has read is given up."""
    service = {"kv": {"per_token": "1 MB"}, "disaggregated": {"prefill": 1, "decode": 1}, "max_num_seqs": 1}
    entry = {"arrivals": {"process": "all_at_once", "count": 3}, "tokens": {"prompt": 8, "output": 30}}
    record = decided(0.1, lambda view: Reject(view.waiting()[0], "enough"), service, entry, gpus=2)
    assert record.status.tolist() == [COMPLETED, REJECTED, COMPLETED]


@pytest.mark.parametrize(
    ("decide", "words"),
    [
        (lambda view: Start(view.waiting()[0], Placement(view.waiting()[0].modes[0], (view.cluster.devices[2],))),
         "it is a request to chat, a language model, whose replicas admit requests themselves"),
        (lambda view: Start(view.queue_of(view.waiting()[0]).first(1), None),
         "forms batches of chat, a language model"),
        (lambda view: view.queue_of(view.waiting()[0]).want(3), "forms batches of chat"),
        (lambda view: view.queue_of(view.waiting()[0]).stages(1, None), "forms batches of chat"),
    ],
)  # fmt: skip
def test_what_can_only_be_done_with_batches_is_refused_with_a_sentence(decide, words):
    with pytest.raises(PolicyError, match=words):
        decided(0.005, decide, {"max_num_seqs": 1}, TWO, gpus=2)


def test_the_queue_of_a_model_counts_what_has_come():
    def look(view, tasks):
        queue = view.queue_of(tasks[0])
        return queue.arrived, queue.over, queue.recent(0.01), len(queue), queue.oldest if len(queue) else None

    entry = {"arrivals": {"process": "deterministic", "interval": "15 ms"}, "count": 3}
    found = looked([0.005, 0.017, 0.037, 0.5], look, {"max_num_seqs": 1}, entry, horizon="1 s")
    assert found == [(1, False, 1, 0, None), (2, False, 1, 1, 0.015), (3, True, 1, 2, 0.015), (3, True, 0, 0, None)]


def test_a_request_on_the_way_to_the_replica_that_answers_is_uploaded_there():
    """8 tokens of 100 MB over 1 GB/s: it is loaded until the first step there."""
    seen = []

    def look(view, tasks):
        launch = view.launch_of(tasks[0])
        devices = [] if launch.placement is None else [device.index for device in launch.placement.devices]
        seen.append((launch.stage, devices, tasks[0] in view.running()))

    service = {"kv": {"per_token": "100 MB"}, "disaggregated": {"prefill": 1, "decode": 1}}
    looked([0.005, 0.4, 0.85, 2.0], look, service, {"tokens": {"prompt": 8, "output": 8}}, gpus=2, horizon="3 s")
    assert seen == [("compute", [1], True), ("upload", [2], True), ("compute", [2], True), (None, [], False)]


# Admission ----------------------------------------------------------------------------------------------------------

CROWD = {**TWO, "arrivals": {"process": "deterministic", "interval": "10 ms"}, "count": 60}


def admitted(admission, service=None, **keys):
    """60 requests, one each 10 ms, to a replica that has one at a time and takes some 85 ms for it."""
    run = load(scenario({"max_num_seqs": 1, **(service or {})}, CROWD, policy={"admission": admission}, **keys)).build()
    record = Simulation(run, check=True).run()
    assert audit(record) == []
    served = record.status == COMPLETED
    return served, record.start[served] - record.ready[served], record.finish[served] - record.ready[served]


def test_a_limit_of_the_queue_counts_requests_in_the_replicas():
    served, wait, response = admitted({"name": "queue_limit", "limit": 3})
    assert 9 < served.sum() < 14 and wait.max() < 4 * (response - wait).max()
    assert admitted({"name": "queue_limit", "per_class": {"chat": 3}})[0].tolist() == served.tolist()
    assert admitted({"name": "queue_limit", "per_device": {"g": 3}})[0].tolist() == served.tolist()
    assert admitted({"name": "queue_limit", "limit": 0})[0].sum() == 0


def test_a_predicted_wait_is_that_of_the_head_of_the_line():
    """Until one has waited for 200 ms all are admitted; then some of those that come as soon as another is the head."""
    served, wait, _ = admitted({"name": "predicted_wait", "max_wait": "200 ms"})
    late = [row for row in range(60) if not served[row]]
    assert served[:20].all() and len(late) > 15
    assert admitted("accept_all")[1].max() > wait.max() > 0.2


def test_the_first_token_is_to_come_in_time():
    """11 ms of the 100 ms go into reading the prompt: at 110 ms the head of the line has waited for 90 ms."""
    service = {"slo": {"ttft": "100 ms"}}
    served, _, _ = admitted("slo_feasible", service)
    assert served[:11].all() and not served[11:18].any()
    assert admitted("predicted_wait", service)[0].tolist() == served.tolist()
    assert admitted("redirect", service)[0].tolist() == served.tolist()
    described = scenario({"max_num_seqs": 1, **service}, CROWD, policy={"admission": "slo_feasible"}, gpus=2)
    described["workload"].append({"name": "job", "gpu_time": "50 ms", "count": 1,
                                  "arrivals": {"process": "all_at_once", "count": 1}})  # fmt: skip
    run = load(described).build()  # the job has no tokens, so the column has floats
    record = Simulation(run, check=True).run()
    assert (record.status[run.language[0].rows] == COMPLETED).tolist() == served.tolist()


def test_controlled_delay_goes_by_the_age_of_the_head():
    served, wait, _ = admitted({"name": "codel", "target": "50 ms", "interval": "100 ms"})
    assert 2 < 60 - served.sum() < 50
    assert admitted("accept_all")[1].max() > wait.max()
