"""Replicas of services that form batches: as a service on one device, by hand, and against loops of their own."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_scaling import seen_count, serverless

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, ScenarioError
from hetsim.model.faults import FaultEvent
from hetsim.model.plan import Placement
from hetsim.policy import Start, Stop, Wait
from hetsim.queueing.matching import match
from hetsim.results.one_run.explain import explain
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load
from hetsim_policies import CATALOGUE

TABLES = ("tasks", "launches", "devices", "timeline")
COSTS = {"upload": {"per_item": "0.114 ms", "fixed": "0.15 ms"}, "download": {"fixed": "0.05 ms"},
         "compute": {"per_item": "1.264 ms", "fixed": "13 ms"}}  # fmt: skip


def run(described, **changes):
    return Result(Simulation(replace(load(described).build(1), **changes), check=True).run())


HELD = {"allocated", "allocation", "allocated_gpus", "gpu_allocation"}


def same(first, second, but=frozenset()):
    for table in TABLES:
        one, other = (getattr(result, table) for result in (first, second))
        names = [name for name in one if name not in but]
        pd.testing.assert_frame_equal(one[names], other[names], check_exact=True)
    rows = [name for name in first.summary.index if name not in but]
    pd.testing.assert_frame_equal(first.summary.loc[rows], second.summary.loc[rows], check_exact=True)


def same_but_kept(alone, kept):
    """The same of a service and of its one replica, which keeps its device also when it idles."""
    same(alone, kept, HELD)
    gpu = kept.devices["kind"] == "gpu"
    assert (kept.devices["allocated"][gpu] == kept.devices["up"][gpu]).all()


# One replica ------------------------------------------------------------------------------------------------------


def one_device(streams, rate, batching, **more):
    service = {**COSTS, "noise": "5%", "batching": batching, **more}
    return {
        "name": "s", "horizon": "0.6 s",
        "cluster": {"nodes": {"gpus": {"type": "g", "streams": streams}, "pcie": {"upload": "5 GB/s"}}},
        "workload": [{"name": "web", "arrivals": {"process": "poisson", "rate": rate}, "slo": "250 ms",
                      "patience": "400 ms", "service": service}],
    }  # fmt: skip


BATCHING = [name for name in CATALOGUE["batching"] if not getattr(registry.policy("batching", name), "iterates", False)]


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("name", BATCHING)
def test_one_replica_is_the_service_on_its_device(name, streams):
    described = one_device(streams, "500/s", name)
    alone = run(described)
    described["workload"][0]["service"]["replicas"] = 1
    same_but_kept(alone, run(described))
    assert (alone.launches["members"] > 1).any()


def test_one_replica_with_a_cache_delays_and_retries_is_the_service_on_its_device():
    described = one_device(2, "700/s", "serial_greedy", cache={"size": 20, "inputs": 100}, network="3 ms")
    del described["workload"][0]["patience"]
    described["workload"][0] |= {"clients": {"timeout": "60 ms", "retry": {"times": 2, "wait": {"first": "10 ms"}}}}
    alone = run(described)
    described["workload"][0]["service"]["replicas"] = 1
    same_but_kept(alone, run(described))
    assert (alone.tasks["status"] == "aborted").any() and (alone.tasks["batch"] == "").sum() >= 0


# Several -----------------------------------------------------------------------------------------------------------

SPEEDS = {"a": 1.0, "b": 2.5}
LOAD = 0.5
"""Seconds that a model of 500 MB is on its way to a GPU."""
SCALE = {"name": "target_requests", "max": 2, "target": 2}


class Loop:
    """Replicas that serve batch by batch, on one GPU of each node, by events of its own: rows start and end."""

    def __init__(self, arrivals, gpus, counts, routing, faults, fixed=0.02, item=0.004, most=6):
        self.arrivals, self.gpus, self.routing, self.times = arrivals, gpus, routing, (fixed, item, most)
        self.events = [(at, 2, "arrives", row) for row, at in enumerate(arrivals)]
        self.events += [(at, 1, what, gpu) for at, gpu, what in faults]
        self.replicas, self.down, self.lobby, self.missing, self.last = [], set(), [], 0, -1
        self.start, self.end, self.gpu, self.numbered = {}, {}, {}, 0
        for kind in dict.fromkeys(gpus):
            for _ in range(counts[kind]):
                self.begin(next(k for k, one in enumerate(gpus) if one == kind and self.on(k) is None), 0.0)
        heapq.heapify(self.events)
        while self.events:
            now, _, what, of = heapq.heappop(self.events)
            getattr(self, what)(of, now)
            for one in self.replicas:
                self.serve(one, now)

    def on(self, gpu):
        return next((one for one in self.replicas if one["gpu"] == gpu), None)

    def begin(self, gpu, open_at):
        self.replicas.append({"gpu": gpu, "number": self.numbered, "open": open_at == 0.0, "queue": [], "batch": []})
        self.numbered += 1
        if open_at:
            heapq.heappush(self.events, (open_at, 0, "opens", self.replicas[-1]["number"]))

    def serve(self, one, now):
        fixed, item, most = self.times
        if one["open"] and not one["batch"] and one["queue"]:
            one["batch"], one["queue"] = one["queue"][:most], one["queue"][most:]
            seconds = (fixed + item * len(one["batch"])) / SPEEDS[self.gpus[one["gpu"]]]
            heapq.heappush(self.events, (now + seconds, 0, "done", one["number"]))
            for row in one["batch"]:
                self.start.setdefault(row, now)

    def send(self, row):
        takes = [one for one in self.replicas if one["open"]]
        if not takes:
            self.lobby.append(row)
            return
        if self.routing == "round_robin":
            chosen = min([one for one in takes if one["number"] > self.last] or takes, key=lambda one: one["number"])
            self.last = chosen["number"] if len(takes) > 1 else self.last
        else:
            load = [(len(one["queue"] + one["batch"]) + 1) / SPEEDS[self.gpus[one["gpu"]]] for one in takes]
            chosen = takes[load.index(min(load))]
        chosen["queue"] = sorted([*chosen["queue"], row])

    def arrives(self, row, now):
        self.send(row)

    def done(self, number, now):
        for one in self.replicas:
            if one["number"] == number:
                for row in one["batch"]:
                    self.end[row], self.gpu[row] = now, one["gpu"]
                one["batch"] = []

    def opens(self, number, now):
        for one in self.replicas:
            if one["number"] == number:
                one["open"] = True
                waiting, self.lobby = self.lobby, []
                for row in waiting:
                    self.send(row)

    def refill(self, now):
        for kind in dict.fromkeys(self.gpus):  # the preferred type first
            for gpu, one in enumerate(self.gpus):
                if self.missing and one == kind and gpu not in self.down and self.on(gpu) is None:
                    self.missing -= 1
                    self.begin(gpu, now + LOAD)

    def down_(self, gpu, now):
        self.down.add(gpu)
        if (one := self.on(gpu)) is not None:
            self.replicas.remove(one)
            self.missing += 1
            orphans = sorted([*one["batch"], *one["queue"], *self.lobby])
            self.lobby = []
            self.refill(now)
            for row in orphans:
                self.send(row)

    def up_(self, gpu, now):
        self.down.discard(gpu)
        self.refill(now)


def fleet(gpus, counts, routing, rate, horizon="30 s", **service):
    """A node for each GPU, so that no two models come over one link."""
    times = {kind: {"fixed": f"{20 / SPEEDS[kind]} ms", "per_item": f"{4 / SPEEDS[kind]} ms"} for kind in SPEEDS}
    kinds = dict.fromkeys(gpus)
    variants = [{"name": f"on {kind}", "device": kind, "compute": times[kind], "max_batch": 6} for kind in kinds]
    keys = {"variants": variants, "model": "500 MB", "replicas": counts, "routing": routing, **service}
    return {
        "name": "fleet", "horizon": horizon,
        "cluster": {"nodes": [
            {"cpus": 4, "gpus": {"type": kind, "memory": "16 GB"}, "pcie": {"upload": "1 GB/s"}} for kind in gpus]},
        "workload": [
            {"name": "web", "arrivals": {"process": "poisson", "rate": rate}, "until": "4 s", "service": keys}],
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_replicas_that_fail_start_by_start(seed):
    """Requests of a lost replica begin again on others; another starts, and loads, as soon as a device is free."""
    rng = np.random.default_rng(seed)
    kinds = ["a", "b"] if seed % 2 else ["a"]
    gpus = [kind for kind in kinds for _ in range(int(rng.integers(2, 4)))]
    counts = {kind: int(rng.integers(1, gpus.count(kind) + 1)) for kind in kinds}
    routing = ["round_robin", "least_outstanding"][int(rng.integers(2))]
    described = fleet(gpus, counts, routing, f"{int(rng.integers(40, 300))}/s")
    built = load(described).build(seed)
    devices = [node.accelerators[0].index for node in built.cluster.nodes]
    faults, events = [], []
    for gpu, index in enumerate(devices):
        at = 0.0
        while (at := at + rng.exponential(1.5)) < 4.0:
            until = at + rng.exponential(0.7)
            faults += [(at, gpu, "down_"), (until, gpu, "up_")]
            events += [FaultEvent(at, index, "down"), FaultEvent(until, index, "up")]
            at = until
    result = Result(Simulation(replace(built, faults=events), check=True).run())
    tasks = result.tasks
    loop = Loop(tasks["arrival"].tolist(), gpus, counts, routing, faults)
    done = tasks[tasks["status"] == "completed"]
    assert (tasks["preemptions"] > 0).any() or not faults
    assert sorted(loop.end) == done.index.tolist() == tasks.index.tolist()
    np.testing.assert_allclose(done["start"], [loop.start[row] for row in done.index], rtol=0, atol=1e-9)
    np.testing.assert_allclose(done["finish"], [loop.end[row] for row in done.index], rtol=0, atol=1e-9)
    assert [built.cluster.devices[devices[loop.gpu[row]]].name for row in done.index] == done["device"].tolist()


def test_a_service_grows_with_its_load_and_shrinks_after_it():
    """Requests every 10 ms, 20 ms each, one at a time; at most two for a replica.  When three are there a second
    replica is called for, whose 500 MB come over 1 GB/s in 0.5 s: until then one serves all, afterwards they go where
    fewer are.  With the last ones the newest replica is given up, and its GPU goes to the job that waits."""
    described = fleet(["a", "a"], {}, "least_outstanding", "1/s", max_batch=1)
    web = described["workload"][0]
    web["service"] = {"compute": {"fixed": "20 ms"}, "max_batch": 1, "model": "500 MB",
                      "scale": SCALE}  # fmt: skip
    web["arrivals"], web["count"] = {"process": "deterministic", "rate": "100/s"}, 60
    del web["until"], described["horizon"]
    job = {"name": "job", "arrivals": {"process": "deterministic", "rate": "10/s", "first": "100 ms"}, "count": 1}
    described["workload"].append({**job, "gpu_time": "1 s"})
    result = run(described)
    tasks = result.tasks
    web, job = tasks[tasks["class"] == "web"], tasks[tasks["class"] == "job"].iloc[0]
    arrival = web["arrival"].to_numpy()
    opened = None
    ends: dict[int, list[float]] = {0: [], 1: []}
    for at in arrival:
        counts = {k: sum(end > at for end in own) for k, own in ends.items()}
        if opened is None and counts[0] + 1 > 2:
            opened = at + 0.5
        takes = [0] if opened is None or at < opened else [0, 1]
        k = min(takes, key=counts.get)
        ends[k].append(max([at, opened if k else 0.0, *ends[k]]) + 0.02)
    expected = sorted([*ends[0], *ends[1]])
    np.testing.assert_allclose(np.sort(web["finish"]), expected, rtol=0, atol=1e-9)
    assert web["device"].nunique() == 2 and opened == pytest.approx(arrival[3] + 0.5, abs=1e-12)
    assert job["device"] == "n1/g0" and max(ends[1]) <= job["start"] <= max(expected)


def one_stream(gpus, rate, count, compute, **service):
    """Requests on GPUs of one node over PCIe of 1 GB/s, and when they came and what each computes."""
    keys = {"compute": compute, "max_batch": 1, **service}
    described = {
        "name": "s",
        "cluster": {"nodes": {"gpus": {"type": "g", "count": gpus}, "pcie": {"upload": "1 GB/s"}}},
        "workload": [
            {"name": "web", "arrivals": {"process": "poisson", "rate": rate}, "count": count, "service": keys}],
    }  # fmt: skip
    built = load(described).build(1)
    record = Simulation(built, check=True).run()
    return record, record.input.tasks.arrival, record.input.tasks.time[:, 0]


def test_keep_alive_of_batches_start_by_start():
    """A service without a replica until a request comes: the same loop as of a language model, 5 GB over 1 GB/s."""
    scale = {"name": "keep_alive", "min": 0, "max": 1, "keep": "10 s"}
    more = {"max_batch": 1000, "model": "5 GB", "scale": scale}
    record, arrival, _ = one_stream(1, "0.1/s", 80, {"fixed": "1e-12 s"}, **more)
    starts, loads = serverless(arrival, 10.0, 5.0)
    assert record.start == pytest.approx(starts, abs=1e-9) and loads > 15


@pytest.mark.parametrize(("refresh", "delay"), [(0.7, 0), (0.7, 0.2), (0, 0.4)])
def test_the_shortest_queue_of_batches_with_an_age_start_by_start(refresh, delay):
    """Batches of one, of exponential length, to the first of three with the fewest requests as they are seen."""
    routing = {"name": "least_outstanding", "refresh": f"{refresh} s", "delay": f"{delay} s"}
    compute = {"per_item": {"distribution": "exponential", "mean": "1 s"}}
    record, arrival, seconds = one_stream(3, "2.5/s", 200, compute, replicas=3, routing=routing)
    lines = [[], [], []]
    starts = []
    for at, own in zip(arrival.tolist(), seconds.tolist(), strict=True):
        counts = [seen_count(line, at, refresh, delay) for line in lines]
        line = lines[counts.index(min(counts))]
        starts.append(max(at, line[-1][1] if line else at))
        line.append((at, starts[-1] + own))
    assert record.start == pytest.approx(starts, abs=1e-9)


@pytest.mark.parametrize(("share", "opened"), [(False, 14.4), (True, 11.2)])
def test_batch_replicas_load_over_links_by_hand(share, opened):
    """Two replicas of one node start for 8 s, then bring 16 GB each from a store over a card of 5 GB/s: together 6.4 s
    longer, or one load of 3.2 s for both.  The first that is there takes both requests that wait."""
    card = {"network": {"in": "5 GB/s"}, "pcie": {"upload": "20 GB/s"}}
    nodes = {"gpus": {"type": "g", "count": 2}, **card}
    service = {
        "compute": {"fixed": "1 s"}, "max_batch": 1, "model": "16 GB",
        "scale": {"name": "target_requests", "min": 0, "max": 2, "target": 1},
        "start": {"from": ["host", "store"], "fixed": "8 s", "share": share},
    }  # fmt: skip
    web = {"name": "web", "arrivals": {"process": "all_at_once", "count": 2}, "service": service}
    stores = [{"name": "store", "out": "10 GB/s"}]
    result = run({"name": "s", "cluster": {"nodes": [nodes | {"keep": "40 GB"}], "stores": stores}, "workload": [web]})
    assert result.tasks["start"].tolist() == pytest.approx([opened, opened + 1.0], abs=1e-9)
    assert result.record.input.services[0].start.share is share


@pytest.mark.parametrize("at_timeout", ["", "leave", "cancel"])
def test_requests_that_wait_for_a_cold_start_time_out(at_timeout):
    """The one replica fails 0.3 s after the second request and comes back 0.05 s after the fourth, when its 500 MB are
    on their way for 0.5 s.  A request each second: the third and fourth find no replica.  Their clients leave after 400
    ms, and they are served in vain or, canceled, never; without time-outs they are served, together."""
    described = fleet(["a"], {"a": 1}, "round_robin", "1/s")
    web = described["workload"][0]
    web["arrivals"], web["count"] = {"process": "deterministic", "rate": "1/s"}, 5
    del web["until"]
    if at_timeout:
        web["clients"] = {"timeout": "400 ms", "at_timeout": at_timeout}
    built = load(described).build()
    web = built.tasks.arrival
    gpu = built.cluster.nodes[0].accelerators[0].index
    at = web[1] + 0.3, web[3] + 0.05
    built = replace(built, faults=[FaultEvent(at[0], gpu, "down"), FaultEvent(at[1], gpu, "up")])
    tasks = Result(Simulation(built, check=True).run()).tasks
    back = at[1] + 0.5
    expected = ["completed"] * 2 + ["aborted" if at_timeout else "completed"] * 2 + ["completed"]
    assert tasks["status"].tolist() == expected
    start, finish = ([np.nan] * 2, web[2:4] + 0.4) if at_timeout == "cancel" else ([back] * 2, [back + 0.028] * 2)
    np.testing.assert_allclose(tasks["start"].iloc[2:4], start, rtol=0, atol=1e-9)
    np.testing.assert_allclose(tasks["finish"].iloc[2:4], finish, rtol=0, atol=1e-9)


class Impatient(hs.policy.Scheduler):
    """Stops the first replica at 50 ms, and touches what is not its own where it is told to."""

    def __init__(self, touches: str = ""):
        self.touches, self.stopped = touches, False

    def schedule(self, view):
        if self.touches == "start" and (waiting := [one for one in view.waiting() if view.queue_of(one) is not None]):
            queue = view.queue_of(waiting[0])
            yield Start(queue.first(1), Placement(queue.service.shape.modes[0], (view.cluster.devices[1],)))
        if self.touches == "stop" and (running := view.running()):
            yield Stop(running[0])
        if not self.stopped and view.now >= 0.05:
            self.stopped = True
            yield Stop(view.cluster.devices[1])
        yield Wait(until=0.05 if view.now < 0.05 else float("inf"))


def test_requests_of_a_stopped_replica_begin_again_elsewhere():
    """GPU 0 has requests in a batch and in its queue at 50 ms: all of them are served by GPU 1, and none is lost."""
    described = fleet(["a", "a"], {"a": 2}, "round_robin", "150/s")
    described["workload"][0]["until"] = "200 ms"
    tasks = run(described, scheduler=Impatient()).tasks
    assert (tasks["status"] == "completed").all() and tasks["preemptions"].sum() > 0
    late = tasks[tasks["finish"] > 0.05]
    assert set(late[late["arrival"] < 0.05]["device"]) == {"n1/g0"}


@pytest.mark.parametrize(
    ("touches", "says"),
    [("start", "replicas form batches themselves"), ("stop", r"Stop\(device\) stops a replica")],
)
def test_no_scheduler_touches_batches_of_replicas(touches, says):
    described = fleet(["a"], {"a": 1}, "round_robin", "200/s")
    described["workload"].append({"name": "job", "arrivals": {"process": "deterministic", "rate": "100/s"}, "count": 9,
                                  "cpu_time": "1 ms"})  # fmt: skip
    with pytest.raises(PolicyError, match=says):
        run(described, scheduler=Impatient(touches))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"replicas": {"b": 1}}, r"service.replicas.b: b is neither a variant .* nor a type of device"),
        ({"replicas": 3}, r"service.replicas: no node has 1 × a free for replica 3 of 3 of web"),
        ({"replicas": 0}, r"service.replicas"), ({"replicas": "two"}, r"service.replicas"),
        ({"routing": "round_robin"}, r"service.routing: this key is for replicas, but the service has none"),
        ({"replicas": 1, "scale": SCALE}, r"service.replicas: scale defines the number"),
        ({"scale": {**SCALE, "roles": ["prefill"]}}, r"service.scale.roles: roles are for disaggregated"),
        ({"scale": {"name": "queue_kv", "max": 2}}, r"service.scale: queue_kv uses KV blocks, which only replicas"),
        ({"replicas": 1, "routing": "scored"}, r"service.routing: scored uses KV blocks and cached prefixes"),
        ({"replicas": 1, "routing": "foresight"}, r"service.routing: foresight uses forecasts, which"),
        ({"replicas": 1, "routing": {"name": "least_outstanding", "delay": "1 s"}, "start": {"from": "bucket"}},
         r'service.start.from: no place "bucket"'),
        ({"scale": {"name": "predicted", "max": 2, "rate": 5}}, r"service.scale: predicted measures at intervals"),
        ({"start": {"fixed": "1 s"}}, r"service.start: this key is for replicas, but the service has none"),
        ({"replicas": 1, "gpus": 0.5}, r"service.replicas: no replica can start: a is no accelerator"),
        ({"replicas": 1, "device": "cpu"}, r"service.replicas: no replica can start: .* is no accelerator"),
        ({"replicas": 1, "gpus": 2}, r"service.replicas: no replica can start: 2 × a exceed the 1 of any node"),
        ({"replicas": 1, "cpus": 99}, r"service.replicas: no replica can start: no node with 1 × a has 99 cores"),
        ({"replicas": 1, "model": "90 GB"}, r"service.model: the model and its batches need 90 GB"),
        ({"replicas": 1, "batching": "continuous"}, r"service.batching: continuous needs a language model"),
    ],
)
def test_what_replicas_cannot_be(changes, says):
    described = fleet(["a", "a"], {}, "round_robin", "10/s")
    described["workload"][0]["service"] = {"compute": {"fixed": "20 ms"}, "max_batch": 1, **changes}
    with pytest.raises(ScenarioError, match=says):
        Simulation(load(described).build())


# Copies, plans and models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["async_linear", "triton_dynamic", "clockwork"])
def test_a_fork_in_mid_run_ends_with_the_same_bytes(batching):
    """Of two replicas that scale, with batches in flight and requests that wait; a copy shares nothing with the run."""
    described = one_device(2, "900/s", batching, model="100 MB", scale={**SCALE, "target": 3})
    described["cluster"]["nodes"]["gpus"]["count"] = 2
    job = {"name": "job", "arrivals": {"process": "poisson", "rate": "40/s"}, "cpu_time": "9 ms"}
    described["workload"].append(job)
    described["cluster"]["nodes"]["cpus"] = 2
    simulation = Simulation(load(described).build(1), check=True)
    copies = []
    while simulation.advance():
        for decision in simulation.schedule(simulation.view):
            simulation.apply(decision)
        if simulation.state.lent and len(copies) < 3 and simulation.view.now > 0.1 * (len(copies) + 1):
            copies.append(simulation.fork())
    ended = Result(simulation.finish())
    assert len(copies) == 3 and ended.tasks["device"].nunique() > 2
    for copy in copies:
        same(ended, Result(copy.run()))


class Curious(hs.policy.ListScheduler):
    """Plays the run on from its third round."""

    def __init__(self):
        super().__init__()
        self.rounds, self.seen = 0, None

    def schedule(self, view):
        self.rounds += 1
        if self.rounds == 3:
            self.seen = view.fork(self).run()
        yield from super().schedule(view)


def test_what_a_policy_forks_serves_the_requests_that_have_come():
    """All requests and jobs are there at 0, estimates are true: what it foresees is what comes."""
    described = fleet(["a", "a", "a"], {"a": 2}, "round_robin", "1/s")
    described["workload"][0] |= {"arrivals": {"process": "all_at_once", "count": 40}, "until": None}
    job = {"name": "job", "arrivals": {"process": "all_at_once", "count": 9}, "gpu_time": "50 ms"}
    described["workload"].append(job)
    scheduler = Curious()
    tasks = run(described, scheduler=scheduler).tasks
    np.testing.assert_allclose(scheduler.seen.finish, tasks["finish"], rtol=0, atol=1e-9)


def test_plans_and_models_that_do_not_know_replicas_say_so():
    described = fleet(["a", "a"], {"a": 2}, "round_robin", "10/s")
    failed = {one.text for one in match(load(described)).failed}
    assert {"not recognized: service.replicas", "not recognized: service.routing"} <= failed
    described["policy"] = "heft"
    with pytest.raises(ScenarioError, match="heft plans all tasks in advance, and requests to replicas cannot"):
        Simulation(load(described).build())


# What a replica keeps while it is idle ----------------------------------------------------------------------------


def test_an_idle_replica_is_no_free_device(tmp_path):
    """A replica loads from 2 to 7 s, serves for 1 s, keeps its GPU for 10 s and gives it back at 18 s.  A task of 3 s
    has waited since 4 s, as long as no GPU is free.  The GPU is held for 16 + 3 s, 15 of them and the end idle."""
    scale = {"name": "keep_alive", "min": 0, "max": 1, "keep": "10 s"}
    service = {"compute": {"fixed": "1 s"}, "max_batch": 4, "model": "5 GB", "scale": scale}
    once = {"process": "piecewise_poisson", "rate": [["0 s", "1/s"]]}
    data = {
        "name": "s", "horizon": "25 s",
        "cluster": {"nodes": {"gpus": {"type": "g"}, "pcie": {"upload": "1 GB/s"}}, "prices": {"g": "1/s"}},
        "workload": [{"name": "web", "arrivals": once, "count": 1, "service": service},
                     {"name": "job", "arrivals": once, "count": 1, "gpu_time": "3 s"}],
    }  # fmt: skip
    built = load(data).build(1)
    built.tasks.arrival = np.where(built.tasks.shape == built.services[0].shape.index, 2.0, 4.0)
    result = Result(Simulation(built, check=True).run())
    again = Result.load(result.save(tmp_path / "run"))
    for one in (result, again):
        assert one.tasks.set_index("class")["start"].to_dict() == {"web": 7.0, "job": 18.0}
        allocated = one.devices.set_index("kind")["allocated"]
        assert allocated["gpu"] == 16.0 + 3.0 and one.metric("cost_held_idle") == 16.0 - 1.0
        timeline = one.timeline.set_index("time")["allocated_gpus"]
        assert timeline[[2.0, 8.0, 18.0, 21.0]].tolist() == [1, 1, 1, 0]
        causes = {kind: explain(one, row)[["from", "to", "cause"]].to_numpy().tolist()
                  for row, kind in enumerate(one.tasks["class"])}  # fmt: skip
        assert causes == {"web": [[2.0, 7.0, "transfer"]], "job": [[4.0, 18.0, "no_capacity"]]}
    assert result.metric("cold_start_fraction") == 1.0


def test_a_job_next_to_batches_computes_all_the_time():
    """Two requests in one batch of 1 s on one GPU, and jobs of 5 s on the others."""
    service = {"compute": {"fixed": "1 s"}, "max_batch": 2, "device": "g"}
    once = {"arrivals": {"process": "all_at_once", "count": 2}}
    entries = [{"name": "q", **once, "service": service}, {"name": "job", **once, "gpu_time": "5 s"}]
    cluster = {"nodes": {"gpus": {"type": "g", "count": 3}}}
    tasks = hs.run({"name": "x", "cluster": cluster, "workload": entries, "policy": "fcfs"}).tasks
    assert tasks["compute"].tolist() == [1.0, 1.0, 5.0, 5.0] and not tasks["overhead"].any()
