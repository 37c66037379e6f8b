"""Forecasts of what becomes of the requests of replicas: what really happens, where estimates are exact and nothing
else comes, and nothing of what no policy may know."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from llm_oracle import C, F, P, S
from test_llm import TIGHT, load_of, scenario
from test_llm_launches import Keeps, Looks

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError
from hetsim.policy import Routing, Scheduler, Set, Wait
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit
from hetsim_policies.batching.continuous import Continuous


def told(times, arrival, prompt, output, service=None, look=None, estimate=None, entry=None, **keys):
    """What the view says at these times of the ends of the requests in replicas, or what `look` says; and the record.

    `estimate`: by request, in place of the exact one.
    """
    entry = {"arrivals": {"process": "all_at_once", "count": len(arrival)}, **(entry or {})}
    run = load(scenario(service, entry, **keys)).build()
    run.tasks.arrival = np.array(arrival, dtype=float)
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.array(prompt), np.array(output)
    if estimate is not None:
        run.tasks.estimate = np.array(estimate, dtype=float).reshape(len(arrival), -1)

    def ends(view):
        running = view.running()
        found = {task.index: view.launch_of(task).finish for task in running}
        assert list(found.values()) == sorted(found.values())
        assert found == {task.index: view.launch_of(task).finish for task in running}
        return view.now, found

    admission = Keeps()
    scheduler = Looks(times, look or ends)
    record = Simulation(replace(run, scheduler=scheduler, admission=admission), check=True).run()
    assert audit(record) == []
    return scheduler.seen, record


def test_one_request_ends_as_it_would_alone():
    """100 tokens are read in 20 ms; the four tokens come with steps that see 101, 102 and 103 tokens."""
    end = F + 100 * P + 3 * (F + S) + (101 + 102 + 103) * C
    seen, _ = told([0.001, 0.0215, 0.04], [0], [100], [4], horizon="1 s")
    assert [found for _, found in seen] == [{0: pytest.approx(end, rel=1e-12)}] * 3


SERVICES = {
    "mixed": {},
    "chunks": {"max_num_batched_tokens": 64, "max_num_seqs": 8},
    "memory": {"max_num_batched_tokens": 64, "max_num_seqs": 64, **TIGHT},
    "swap": {"max_num_seqs": 20, **TIGHT, "preemption": "swap"},
    "prefill_first": {"max_num_batched_tokens": 300, "batching": {"name": "continuous", "phases": "prefill_first"}},
    "decode_first": {"max_num_batched_tokens": 300, "batching": {"name": "continuous", "phases": "decode_first"}},
    "peak": {"max_num_seqs": 16, "max_output_tokens": "exact", **TIGHT,
             "batching": {"name": "continuous", "reserve": "peak", "min_decode_steps": 3}},
    "clients": {"max_num_batched_tokens": 128, "max_num_seqs": 8, "batching": {"name": "continuous", "order": "vtc"}},
}  # fmt: skip


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SERVICES)
def test_what_is_foreseen_is_what_happens(name):
    """Forty requests in a second on one replica, then none; some wait, and some have to give way where memory is
    scarce.  From the last arrival on all that runs ends when it was said to, however often that is asked."""
    rng = np.random.default_rng(5)
    arrival, prompt, output = load_of(rng, 40, 30)
    entry = {"users": ["ann", "bob", "cy"]} if name == "clients" else None
    memory = "1.12 GB" if "kv" in SERVICES[name] else None
    seen, record = told(np.linspace(max(arrival) + 0.001, 6, 7), arrival, prompt, output, SERVICES[name], entry=entry,
                        memory=memory, horizon="200 s")  # fmt: skip
    told_of = 0
    for _, found in seen:
        assert np.allclose([record.finish[row] for row in found], list(found.values()), rtol=1e-9, atol=0)
        told_of += len(found)
    assert told_of >= 8
    assert (record.preemptions is not None) == (name in ("memory", "swap"))


def test_forecasts_are_of_tokens_and_not_of_when_clients_see_them():
    """With `async_scheduling`, clients see tokens a step later; the steps, and so the forecasts, are the same."""
    arrival, prompt, output = load_of(np.random.default_rng(5), 40, 30)
    looks = np.linspace(0.05, 6, 40)
    (sync, first), (late, second) = (
        told(looks, arrival, prompt, output, {"async_scheduling": flag}, horizon="200 s") for flag in (False, True)
    )
    assert sum(len(found) for _, found in sync) > 500
    for (now, found), (then, same) in zip(sync, late, strict=True):
        assert now == then and same == pytest.approx(found, rel=1e-9)
    delay = second.finish - first.finish
    assert delay.min() > -1e-9 and delay.max() > 0.01


ALONE = F + 100 * P + 9 * (F + S) + sum(range(101, 110)) * C
"""Seconds of a request of 100 and 10 tokens that has a replica to itself."""


def alone(output):
    return F + 100 * P + (output - 1) * (F + S) + sum(range(101, 100 + output)) * C


def test_a_forecast_knows_estimates_and_not_the_answer():
    """The estimate is that of 10 tokens, or a bit more than that, and the answer has 3, 10 or 40: until it ends, or
    proves to be longer, all look alike; a longer one is then expected to end with the step under way."""
    for factor in (1.0, 1.02):
        ends = []
        for output in (3, 10, 40):
            seen, record = told([0.021, 0.05, 0.3], [0], [100], [output], estimate=[factor * ALONE], horizon="2 s")
            ends.append([found.get(0) for _, found in seen])
            assert record.finish[0] == pytest.approx(alone(output))
        assert ends[0] == [pytest.approx(ALONE, rel=1e-12), None, None]
        assert ends[1][:2] == ends[2][:2] == [pytest.approx(ALONE, rel=1e-12)] * 2
        assert ends[1][2] is None
        under_way = next(alone(tokens) for tokens in range(11, 40) if alone(tokens) > 0.3)
        assert ends[2][2] == pytest.approx(under_way, rel=1e-12)


def test_requests_of_a_replica_end_one_by_one_beside_tasks():
    """Tasks and requests in the order of their ends: one task of 50 ms, and requests that end before and after it."""
    def look(view):
        running = view.running()
        return [(task.class_, round(view.launch_of(task).finish, 6)) for task in running], [
            task.class_ for task in view.running(own=True)
        ]

    described = scenario(None, {"class": "chat", "arrivals": {"process": "all_at_once", "count": 2}}, gpus=2)
    described["workload"].append({"name": "job", "class": "job", "gpu_time": "50 ms", "count": 1,
                                  "arrivals": {"process": "all_at_once", "count": 1}})  # fmt: skip
    described["horizon"] = "1 s"
    run = load(described).build()
    rows = run.language[0].rows
    run.tasks.extra["output_tokens"][rows] = [2, 10]

    class Both(Looks):
        def schedule(self, view):
            for task in view.waiting(own=True):
                yield hs.policy.Start(task, view.fit(task))
            yield from super().schedule(view)

    scheduler = Both([0.01], look)
    record = Simulation(replace(run, scheduler=scheduler), check=True).run()
    ((seen, own),) = scheduler.seen
    assert [name for name, _ in seen] == ["chat", "job", "chat"] and own == ["job"]
    first, second = rows.tolist()
    assert [end for _, end in seen] == [pytest.approx(record.finish[first], abs=1e-6), 0.05,
                                        pytest.approx(record.finish[second], abs=1e-6)]  # fmt: skip


def test_prefill_apart_ends_with_the_prompt_and_keys_and_values_come_at_their_rate():
    """A replica that reads a prompt is left when that is read; 100 tokens of 1 MB then take 100 ms and a byte's way."""
    service = {"disaggregated": {"prefill": 1, "decode": 1}, "kv": {"per_token": "1 MB"}}
    seen, record = told([0.001, 0.03, 0.14], [0], [100], [6], service, gpus=2, memory="32 GB", horizon="1 s")
    reads, moves, answers = (found[0] for _, found in seen)
    assert reads == pytest.approx(F + 100 * P, rel=1e-12)
    assert moves == pytest.approx(record.finish[0], rel=1e-9) == pytest.approx(answers, rel=1e-9)


class Slows(Scheduler):
    """Halves the frequency of the device of the replica in mid-run, and looks before and after."""

    def __init__(self):
        self.seen, self.times = [], [0.03, 0.05, 0.06]

    def schedule(self, view):
        if self.times and view.now >= self.times[0]:
            self.times.pop(0)
            if len(self.times) == 1:
                yield Set(view.cluster.nodes[0].accelerators[0], 0.5)
            self.seen += [view.launch_of(task).finish for task in view.running()]
        if self.times:
            yield Wait(until=self.times[0])


def test_a_forecast_goes_by_present_speeds():
    scheduler = Slows()
    run = replace(load(scenario(None, {"tokens": {"prompt": 100, "output": 10}}, horizon="1 s")).build(),
                  scheduler=scheduler)  # fmt: skip
    record = Simulation(run, check=True).run()
    before, at_once, later = scheduler.seen
    assert before == pytest.approx(ALONE, rel=1e-12)
    assert at_once == pytest.approx(0.05 + 2 * (ALONE - 0.05), rel=1e-12)
    assert at_once == later == pytest.approx(record.finish[0], rel=1e-9)


class Asks(Routing):
    """Sends each request where it gives its first token first, and remembers what it was told."""

    def __init__(self):
        self.told = {}
        self.rests = []

    def choose(self, request, replicas, random):
        found = [(replica.foresee(request), replica) for replica in replicas]
        best, chosen = min(found, key=lambda one: one[0].first_tokens[request.row])
        self.rests.append([replica.foresee().rests for replica in replicas])
        self.told[request.row] = best.starts[request.row], best.first_tokens[request.row], best.ends[request.row]
        assert request.row not in chosen.foresee().ends
        return chosen


def test_a_router_foresees_what_a_request_would_get(only_shipped_policies):
    """Of each replica's last request all comes as it was told; asking changes nothing."""
    hs.register("asks", Asks, kind="routing")
    rng = np.random.default_rng(2)
    arrival, prompt, output = load_of(rng, 30, 10)
    service = {"replicas": 2, "routing": "asks", "max_num_batched_tokens": 128, "max_num_seqs": 4}
    entry = {"arrivals": {"process": "all_at_once", "count": 30}}
    run = load(scenario(service, entry, gpus=2)).build()
    run.tasks.arrival = np.array(arrival)
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.array(prompt), np.array(output)
    record = Simulation(run, check=True).run()
    (_, routing, _), = run.iteration
    last = {}
    for row in range(30):
        last[int(record.place[row])] = row
    assert len(last) == 2
    for row in last.values():
        happened = record.start[row], record.first_token[row], record.finish[row]
        assert routing.told[row] == pytest.approx(happened, rel=1e-9)
    assert routing.rests[0] == [arrival[0]] * 2 and min(map(max, routing.rests[1:])) > 0
    for row, (start, first, end) in routing.told.items():
        assert arrival[row] <= start <= first <= end < math.inf


class AsksAtBoundaries(Continuous):
    def step(self, replica):
        replica.foresee()
        return super().step(replica)


def test_a_policy_that_asks_at_its_own_boundary_is_told_that_this_goes_in_a_circle(only_shipped_policies):
    hs.register("asks_itself", AsksAtBoundaries, kind="batching")
    with pytest.raises(PolicyError, match="chat: its policy asks a replica at its own boundary what it foresees"):
        hs.run(scenario({"batching": "asks_itself"}))


def test_nothing_is_there_and_nothing_can_be_told_of_a_replica_that_loads_its_model():
    """A replica without requests rests now; one that loads its model says nothing."""
    run = load(scenario({"replicas": 2}, gpus=2, horizon="1 s")).build()
    simulation = Simulation(run)
    simulation.advance()
    first, second = simulation.parts.serving.sets[0].all
    assert second.foresee() == ({}, {}, {}, 0.0) and first.foresee().rests > 0
    second.loaded = False
    assert second.foresee().rests == 0.0  # kept, as nothing has happened
    second.foreseen = None
    assert second.foresee().rests == math.inf
