"""Replicas of language models are launches: they hold devices, the view shows them, and they compete with others."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from llm_oracle import step_by_step
from test_llm import C, F, P, S, load_of, scenario
from test_llm_faults import stormy

from hetsim.engine.language.continuous_batching import Replica
from hetsim.engine.simulation import Simulation
from hetsim.errors import InvariantError, PolicyError, RunError, ScenarioError
from hetsim.model.faults import FaultEvent
from hetsim.model.plan import Placement
from hetsim.model.record import COMPLETED, EXPIRED, LAUNCH_COMPLETED, LAUNCH_STOPPED, REJECTED
from hetsim.policy import Accept, Admission, ListScheduler, Scheduler, Stop, Wait
from hetsim.results.one_run.steps import token_gaps
from hetsim.scenario.scenario import load
from hetsim.testing.audit import audit


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
        running = [task.index for task in view.running("start", held)]
        return where, others, launch.finish, view.free("gpu"), view.free_at(held), view.free_at(left), running

    entry = {"arrivals": {"process": "all_at_once", "count": 2}}
    during, after = looked([0.02, 0.2], look, entry=entry, gpus=2, horizon="1 s")
    end = F + 200 * P + sum(F + 2 * S + 2 * context * C for context in (101, 102, 103))
    assert during == (["n0/g0"], [0, 1], pytest.approx(end), 1.0, math.inf, 0.02, [0, 1])
    assert after == (None, [], math.inf, 1.0, math.inf, 0.2, [])


def test_one_of_the_requests_of_a_replica_cannot_be_stopped():
    with pytest.raises(PolicyError, match="stopped task 0, but replica 0 of chat serves it with other requests"):
        looked([0.02], lambda view, tasks: Stop(tasks[0]))


# Replicas on unlike devices -------------------------------------------------------------------------------------------

SLOW = {"fixed": "20 ms", "per_sequence": "3 ms", "per_prompt_token": "0.3 ms", "per_context_token": "0.02 ms"}
FAST = dict(zip(SLOW, ("10 ms", "1 ms", "0.1 ms", "0.01 ms"), strict=True))
UNLIKE = [
    {"gpus": {"type": "g", "count": 2, "memory": "1 GB", "power": {"idle": "50 W", "busy": "150 W"},
              "pcie": {"upload": "1 GB/s"}}},
    {"gpus": {"type": "h", "count": 1, "memory": "3 GB", "power": {"idle": "80 W", "busy": "380 W"},
              "pcie": {"upload": "2 GB/s"}}},
]  # fmt: skip


def unlike(arrival, prompt, output, service=None, **keys):
    """The record of a run with these requests on a slow and a fast type of device."""
    given = {"device": "h", "step": FAST, "also_on": [{"device": "g", "gpus": 2, "step": SLOW}], **(service or {})}
    entry = {"arrivals": {"process": "all_at_once", "count": len(arrival)}}
    run = load(scenario(given, entry, nodes=UNLIKE, **keys)).build()
    run.tasks.arrival = np.array(arrival, dtype=float)
    run.tasks.extra["prompt_tokens"], run.tasks.extra["output_tokens"] = np.array(prompt), np.array(output)
    record = Simulation(run, check=True).run()
    assert audit(record) == []
    return record


@pytest.mark.slow
def test_each_replica_steps_at_the_pace_of_its_devices():
    """Requests go to the two replicas in turns; each half is what one replica alone makes of it, step by step, with the
    step times of its type."""
    rng = np.random.default_rng(3)
    arrival, prompt, output = load_of(rng, 120, 4)
    record = unlike(arrival, prompt, output, {"routing": "round_robin"})
    for first, times in ((0, (0.01, 0.001, 0.0001, 0.00001)), (1, (0.02, 0.003, 0.0003, 0.00002))):
        mine = slice(first, None, 2)
        known = step_by_step(arrival[mine], prompt[mine], output[mine], times=times)
        assert np.allclose(record.first_token[mine], known.first, rtol=1e-9)
        assert np.allclose(record.finish[mine], known.finish, rtol=1e-9)
        gaps, weights = token_gaps(record)
        assert (record.mode[mine] == first).all()
    assert weights.sum() == sum(output) - len(output)
    assert gaps.min() > 0


def test_energy_and_slowdown_are_those_of_the_devices():
    """One request each: 300 W above idle on one device, 100 W on each of two; alone is what the faster type takes."""
    record = unlike([0, 0], [100, 100], [4, 4], {"routing": "round_robin"})
    fast = F + 100 * P + sum(F + S + (101 + k) * C for k in range(3))
    slow = 0.02 + 100 * 0.0003 + sum(0.02 + 0.003 + (101 + k) * 0.00002 for k in range(3))
    assert record.finish.tolist() == pytest.approx([fast, slow])
    assert record.energy.tolist() == pytest.approx([300 * fast, 200 * slow])
    assert record.launches["energy"].sum() == pytest.approx(300 * fast + 200 * slow)


def test_a_request_that_only_the_larger_devices_hold_goes_there():
    """3,000 blocks of 16 tokens fit into 3 GB, 2,000 into two devices of 1 GB; the last fits nowhere."""
    service = {"kv": {"per_token": "62.5 kB"}}
    record = unlike([0, 0, 0, 0], [40_000, 40_000, 100, 60_000], [4] * 4, service)
    assert record.status.tolist() == [COMPLETED] * 3 + [REJECTED]
    assert record.reasons[3] == "needs 3,751 KV blocks, a replica has 3,000"
    assert record.mode.tolist() == [0, 0, 1, -1]


def test_a_failed_replica_is_replaced_on_whichever_type_is_free():
    """The fast device fails in the first step; the model is loaded onto the slow ones, 0.5 GB each over 1 GB/s."""
    service = {"model": "1 GB", "also_on": [{"device": "g", "gpus": 2, "step": SLOW, "replicas": 0}]}
    fast = 4  # cores and two GPUs of the first node, cores and one GPU of the second
    given = {"device": "h", "step": FAST, **service}
    run = load(scenario(given, nodes=UNLIKE)).build()
    record = Simulation(replace(run, faults=[FaultEvent(0.005, fast, "down")]), check=True).run()
    slow = 0.02 + 100 * 0.0003 + sum(0.02 + 0.003 + (101 + k) * 0.00002 for k in range(3))
    assert record.finish[0] == pytest.approx(0.005 + 0.5 + slow)
    assert record.energy[0] == pytest.approx(200 * slow + 300 * 0.005)
    assert record.mode.tolist() == [1]


def test_prompts_are_read_on_one_type_and_answered_on_another():
    """From one device to two, each of which fetches half of the keys and values over the sender's link."""
    service = {
        "kv": {"per_token": "1 MB"}, "disaggregated": {"prefill": 1, "decode": 1, "decode_on": "g"},
    }  # fmt: skip
    record = unlike([0], [100], [4], service)
    read = F + 100 * P
    moved = 100 * 1e6 / 2e9  # both halves share the link of the sender, 2 GB/s
    slow = sum(0.02 + 0.003 + (101 + k) * 0.00002 for k in range(3))
    assert record.first_token[0] == pytest.approx(read)
    assert record.finish[0] == pytest.approx(read + moved + slow)
    assert record.energy[0] == pytest.approx(300 * read + 200 * slow)


@pytest.mark.parametrize(
    ("service", "words"),
    [
        ({"also_on": [{"device": "g"}]}, "also_on.0.step: the step time is missing; give step, or gpu"),
        ({"also_on": [{"device": "h", "step": SLOW}]}, "also_on: names a type of device twice"),
        ({"also_on": [{"device": "x", "step": SLOW}]}, "also_on.0.device: the cluster has no accelerator x"),
        ({"also_on": [{"device": "g", "gpus": 3, "step": SLOW}]}, "also_on.0.device: no node has 3 × g"),
        ({"also_on": [{"device": "g", "step": SLOW, "replicas": 3}]}, "no node has 1 × g free for replica 3 of "
                                                                      "3 of chat"),
        ({"kv": {"per_token": "1 kB"}, "disaggregated": {"prefill": 1, "decode": 1, "decode_on": "x"}},
         "disaggregated.decode_on: must be the service's device or one of also_on; got x"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_unlike_devices_is_said(service, words):
    with pytest.raises(ScenarioError, match=re.escape(words)):
        unlike([0], [100], [4], service)


# Competition ----------------------------------------------------------------------------------------------------------


class Packs(ListScheduler):
    """Has replicas start on the last devices, and not before a time; those of the start are where they would be."""

    def __init__(self, since):
        super().__init__()
        self.since, self.asked = since, []

    def replica(self, wanted, view):
        if not view.now:
            return super().replica(wanted, view)
        self.asked.append((view.now, wanted.service.name, wanted.requests))
        if view.now < self.since:
            return None
        free = [node for node in reversed(range(len(view.cluster.nodes))) if view.free("gpu", node)]
        return view.first(wanted.modes[0], node=free[0]) if free else None


JOBS = {"name": "jobs", "arrivals": {"process": "all_at_once", "count": 3}, "gpu_time": "2 s"}
TWO_NODES = [{"gpus": {"type": "g", "count": 1, "pcie": {"upload": "1 GB/s"}}, "count": 2}]


def competing(scheduler=None, faults=(), count=1, service=None, jobs=3):
    """A replica on the first of two GPUs, and jobs of 2 s, of which the first begins on the other one."""
    described = scenario({"model": "1 GB", **(service or {})}, {"arrivals": {"process": "all_at_once", "count": count}},
                         nodes=TWO_NODES)  # fmt: skip
    described["workload"].append({**JOBS, "arrivals": {"process": "all_at_once", "count": jobs}})
    run = replace(load(described).build(), faults=list(faults))
    if scheduler is not None:
        run = replace(run, scheduler=scheduler)
    record = Simulation(run, check=True).run()
    assert audit(record) == []
    return record


ALONE = F + 100 * P + sum(F + S + (101 + k) * C for k in range(3))
BREAKS = [FaultEvent(0.005, 1, "down")]


def test_a_gpu_that_a_job_gives_back_is_taken_by_the_replica_that_is_lacking():
    """Its GPU is down for good: the replica goes before the second job to the GPU that the first leaves at 2 s.  No
    request arrives then that would look for devices."""
    record = competing(faults=BREAKS, jobs=1)
    assert record.finish[0] == pytest.approx(2 + 1 + ALONE)
    assert record.finish[1] == pytest.approx(2)


def test_the_scheduler_says_where_and_when_a_replica_starts():
    """It is asked when the replica fails and when each of the two jobs ends that it lets go first."""
    scheduler = Packs(3.0)
    record = competing(scheduler, BREAKS, jobs=2)
    assert list(dict.fromkeys(scheduler.asked)) == [(0.005, "chat", 1), (2.0, "chat", 1), (4.0, "chat", 1)]
    assert record.finish.tolist() == pytest.approx([4 + 1 + ALONE, 2, 4])


def test_a_replica_that_the_scheduler_places_is_there():
    """Its GPU is back at 1 s, and the default takes it; this policy waits until both are free and takes the other."""
    places = []
    for scheduler in (None, Packs(1.5)):
        record = competing(scheduler, [*BREAKS, FaultEvent(1.0, 1, "up")], jobs=1)
        places.append(record.input.cluster.devices[record.places[record.place[0]][0][0]].name)
    assert places == ["n0/g0", "n1/g0"]


def test_a_gpu_that_a_replica_gives_back_is_taken_by_a_job():
    """Eight requests call for a second replica; jobs wait for the GPU that it has until it is given up."""
    service = {"scale": {"name": "target_requests", "max": 2, "target": 4}, "max_num_seqs": 1, "model": "10 MB"}
    record = competing(count=8, service=service, jobs=1)
    loads = record.launches["upload_start"] == record.launches["upload_start"]
    assert loads.sum() == 1
    given_up = record.launches["end"][loads].max()
    assert record.start[8] == pytest.approx(given_up)


def test_two_language_models_and_a_batch_service_share_what_is_there():
    """Two models that scale, and batches, on three GPUs: everything ends, and each has had the third GPU."""
    def model(name, seed):
        scale = {"name": "target_requests", "max": 2, "target": 3}
        service = {"kind": "llm", "step": FAST, "model": "100 MB", "scale": scale}
        return {"name": name, "service": service, "tokens": {"prompt": 200, "output": 40},
                "arrivals": {"process": "poisson", "rate": "3/s"}, "count": 40}  # fmt: skip

    batches = {"name": "web", "service": {"compute": {"per_item": "20 ms"}}, "count": 60,
               "arrivals": {"process": "poisson", "rate": "4/s"}}  # fmt: skip
    gpus = {"type": "g", "count": 3, "pcie": {"upload": "1 GB/s"}}
    workload = [model("a", 1), model("b", 2), batches]
    described = {"name": "shared", "seed": 2, "cluster": {"nodes": [{"gpus": gpus}]}, "workload": workload}
    record = Simulation(load(described).build(), check=True).run()
    assert (record.status == COMPLETED).all()
    assert audit(record) == []
    tasks = record.input.tasks
    places = np.array([record.places[code][0][0] for code in record.place.tolist()])
    shape = np.asarray(tasks.shape)
    third = {int(kind) for kind in shape[places == 3]}
    assert third == {0, 1, 2}


class Last(ListScheduler):
    """Has replicas start on the last node that is free, from a time on."""

    def __init__(self, since=0.0):
        super().__init__()
        self.since = since

    def replica(self, wanted, view):
        free = view.nodes.fitting(wanted.modes[0])
        return view.first(wanted.modes[0], node=free[-1]) if free and view.now >= self.since else None


def test_the_scheduler_says_where_the_first_replicas_are():
    """On the second node, where the model lies; the job is on the first."""
    record = competing(Last(), jobs=1)
    places = [record.places[code][0][0] for code in record.place.tolist()]
    assert [record.input.cluster.devices[place].name for place in places] == ["n1/g0", "n0/g0"]
    assert record.finish[0] == pytest.approx(ALONE)


def test_a_scheduler_that_keeps_the_devices_lets_jobs_go_first():
    """Two jobs of 2 s take both GPUs at 0 s; the replica starts at 2 s and loads the model."""
    record = competing(Last(1.0), jobs=2)
    assert record.start[1:].tolist() == [0, 0]
    assert record.finish[0] == pytest.approx(2 + 1 + ALONE)
    assert record.preemptions is None


def test_requests_that_no_replica_will_ever_serve_are_an_error_that_says_so():
    with pytest.raises(RunError, match="1 of their replicas have failed or were not started, and no devices "
                                       "become free"):
        competing(Last(10.0), jobs=1)


class Stops(ListScheduler):
    """Stops the replica on a device at some times, and starts what waits there before it starts anew."""

    def __init__(self, times, device=1):
        super().__init__()
        self.times, self.device = list(times), device

    def schedule(self, view):
        if self.times and view.now >= self.times[0]:
            self.times.pop(0)
            yield Stop(view.cluster.devices[self.device])
        for decision in super().schedule(view):
            wait = isinstance(decision, Wait)
            yield Wait(until=min(decision.until, *self.times[:1], math.inf)) if wait else decision


def test_a_replica_that_is_stopped_makes_room_for_a_job_and_comes_back_after_it():
    """At 25 ms the request has its first token; the second job of 2 s takes the GPU, then the model is loaded, 1 GB
    over 1 GB/s, and 100 + 1 tokens are read in one step that gives the second token."""
    record = competing(Stops([0.025]), jobs=2)
    assert record.start[1:].tolist() == [0, 0.025]
    again = F + 101 * P + sum(F + S + (102 + k) * C for k in range(2))
    assert record.finish[0] == pytest.approx(2 + 1 + again)  # on the other GPU, which is free 25 ms sooner
    assert record.first_token[0] == pytest.approx(0.02)
    assert record.preemptions.tolist() == [1, 0, 0]
    outcome = record.launches["outcome"][record.launches["task"] == 0]
    assert outcome.tolist() == [LAUNCH_STOPPED, LAUNCH_COMPLETED]


def test_requests_of_a_replica_that_is_stopped_go_to_another():
    record = competing(Stops([0.025]), count=2, service={"replicas": 2, "routing": "round_robin"}, jobs=1)
    assert record.preemptions.tolist() == [1, 0, 0]
    assert record.place[0] == record.place[1]


def test_a_replica_that_rests_and_one_that_loads_can_be_stopped():
    """It rests at 0.5 s, and starts anew where it was; it would load its model until 1.5 s, and is stopped at 1 s."""
    record = competing(Stops([0.5, 1.0]), jobs=1)
    loads = record.launches["upload_start"][record.launches["task"] == 0]
    assert loads[~np.isnan(loads)].tolist() == [1.0]
    assert record.launches["end"][record.launches["task"] == 0].tolist() == [pytest.approx(ALONE), 0.5, 1.0, 2.0]
    assert record.finish[0] == pytest.approx(ALONE)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (3, "stopped the replica on n1/g0, which no replica of a language model occupies"),
        (0, "stopped the replica on n0/cpu, which no replica of a language model occupies"),
        (1, "stopped replica 0 of chat, but it is not preemptible"),
    ],
)
def test_what_is_no_replica_or_is_to_stay_cannot_be_stopped_by_its_device(device, words):
    run = load(scenario({"model": "1 GB"}, nodes=TWO_NODES)).build()
    run.language[0].shape.preemptible = device != 1
    with pytest.raises(PolicyError, match=words):
        Simulation(replace(run, scheduler=Stops([0.01], device))).run()


class Harasses(ListScheduler):
    """Stops a replica every now and then, whatever it does."""

    def __init__(self, every):
        super().__init__()
        self.every, self.next, self.turn = every, every, 0

    def schedule(self, view):
        if view.now >= self.next:
            self.next, self.turn = view.now + self.every, self.turn + 1
            held = [d for d in view.cluster.devices if d.type.kind == "gpu" and view.load(d) == 1]
            if held:
                yield Stop(held[self.turn % len(held)])
        yield Wait(until=self.next)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["swap", "prefixes", "apart", "scaled"])
def test_nothing_is_lost_where_replicas_are_stopped_all_the_time(name):
    run = replace(stormy(name, 4), faults=[], scheduler=Harasses(7.0))
    record = Simulation(run, check=True).run()
    assert audit(record) == []
    assert np.isin(record.status, (COMPLETED, REJECTED, EXPIRED)).all()
    assert (record.launches["outcome"] == LAUNCH_STOPPED).sum() >= 3 and record.preemptions.sum() > 3
    assert record.device_log == []


def test_routers_weigh_the_speed_of_replicas():
    """Steps of the slow type take twice to three times as long: of requests that come at once it has about a third; a
    request by itself goes to the fast one, wherever that stands."""
    count = 60
    for router in ("least_outstanding", {"name": "prefix_affinity", "slack": 1}):
        record = unlike([0] * count, [100] * count, [20] * count, {"routing": router})
        fast = int((record.mode == 0).sum())
        assert 36 <= fast <= 48, router
    record = unlike([0] * count, [100] * count, [20] * count, {"routing": "power_of_two"})
    assert 36 <= int((record.mode == 0).sum()) <= 48
    turned = {"device": "g", "gpus": 2, "step": SLOW, "also_on": [{"device": "h", "gpus": 1, "step": FAST}]}
    assert unlike([0], [100], [4], turned).mode.tolist() == [1]


class Nowhere(ListScheduler):
    """Has replicas start where they cannot."""

    def replica(self, wanted, view):
        return Placement(wanted.modes[0], (view.cluster.devices[1],))


def test_a_place_where_a_replica_cannot_be_is_an_error_that_names_it():
    words = "starts a replica on chat on n0/g0, but n0/g0 is down"
    with pytest.raises(PolicyError, match=words):
        competing(Nowhere(), BREAKS, jobs=1)


class Counts(ListScheduler):
    """Counts how often it is asked."""

    rounds = 0

    def schedule(self, view):
        self.rounds += 1
        yield from super().schedule(view)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["swap", "scaled"])
def test_looking_at_every_boundary_changes_nothing(name):
    """Where devices fail and replicas are lacking all the time: --check has the policy asked no more often."""
    counts, records = [], []
    for check in (True, False):
        scheduler = Counts()
        records.append(Simulation(replace(stormy(name, 1), scheduler=scheduler), check=check).run())
        counts.append(scheduler.rounds)
    first, second = records
    assert counts[0] == counts[1]
    assert first.finish.tobytes() == second.finish.tobytes()
    assert first.place.tobytes() == second.place.tobytes()


def test_a_replica_that_does_not_add_up_is_found_at_its_next_boundary(monkeypatch):
    """With --check, although the policy is not asked while a replica takes its steps."""
    defects = Replica.defects
    monkeypatch.setattr(Replica, "defects", lambda one: [*defects(one), *(["lost"] if one.clock._now > 0.02 else [])])
    with pytest.raises(InvariantError, match=r"^t = 0\.05606 s: lost"):
        Simulation(load(scenario()).build(), check=True).run()


# Who waits for devices that replicas keep ---------------------------------------------------------------------------


def stranded(entry, **keys):
    """The error of a run in which two replicas hold both GPUs, beside a workload."""
    described = scenario({"replicas": 2}, {"class": "chat"}, **{"gpus": 2, **keys})
    described["workload"].append({"name": "other", "arrivals": {"process": "all_at_once", "count": 3}, **entry})
    with pytest.raises(RunError) as error:
        Simulation(load(described).build()).run()
    return error.value


@pytest.mark.parametrize(
    "entry",
    [{"gpu_time": "50 ms"}, {"service": {"compute": {"per_item": "1 ms"}}}],
)
def test_replicas_that_hold_all_devices_are_named_and_not_the_policy(entry):
    error = stranded(entry)
    assert not isinstance(error, PolicyError)
    text = str(error)
    assert "3 tasks wait for devices that replicas of language models occupy: " in text
    assert "replicas of chat occupy 2 of 2 g" in text
    assert "task 1: waiting since t = 0 s, would fit if replicas did not occupy the devices" in text
    assert "fewer replicas (`replicas:`)" in text and "another type of device" in text and "partition" in text
    assert "policy" not in text


def test_a_stage_of_a_graph_that_waits_for_a_device_of_replicas_is_told_of(tmp_path):
    """The first task runs on a core; the second, behind it, needs a GPU."""
    table = tmp_path / "graph.csv"
    table.write_text("id,arrival,cpu_time,gpu_time,predecessors\na,0,1,,\nb,0,,1,a\n")
    described = scenario({"replicas": 2}, nodes=[{"cpus": 4, "gpus": {"type": "g", "count": 2}}])
    described["workload"].append({"name": "graph", "trace": {"format": "tasks", "path": str(table)}})
    with pytest.raises(RunError, match="1 task waits for devices .* replicas of chat occupy 2 of 2 g") as error:
        Simulation(load(described).build()).run()
    assert not isinstance(error.value, PolicyError) and "waiting since t = 1 s" in str(error.value)


def test_a_policy_that_starts_nothing_is_still_the_one_that_is_named():
    """A third GPU is free, and a scheduler that starts nothing leaves it so."""
    described = scenario({"replicas": 2}, gpus=3)
    described["workload"].append({"name": "job", "gpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": 1}})
    run = replace(load(described).build(), scheduler=Scheduler())
    with pytest.raises(PolicyError, match="starts nothing") as error:
        Simulation(run).run()
    assert "would fit now in mode" in str(error.value) and "replicas" not in str(error.value)


def test_gpus_that_replicas_hold_are_told_of_beside_what_the_policy_leaves_lying():
    """Jobs on the free GPU are the policy's fault; those that need two wait for the replicas."""
    described = scenario({"replicas": 2}, gpus=3)
    for name, gpus in (("narrow", 1), ("wide", 2)):
        described["workload"].append({"name": name, "class": name, "gpus": gpus, "gpu_time": "1 s",
                                      "arrivals": {"process": "all_at_once", "count": 1}})  # fmt: skip
    run = replace(load(described).build(), scheduler=Scheduler())
    with pytest.raises(PolicyError, match=r"2 tasks wait \(replicas of chat occupy 2 of 3 g\)") as error:
        Simulation(run).run()
    assert "task 1: waiting since t = 0 s, would fit now" in str(error.value)
    assert "task 2: waiting since t = 0 s, would fit if replicas did not occupy the devices" in str(error.value)
