"""Loads of models: by hand, and random chains against an event loop of their own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import hetsim as hs
from hetsim import registry
from hetsim.engine.kernel.clock import FINISH, Later
from hetsim.engine.simulation import Simulation
from hetsim.errors import PolicyError, ScenarioError
from hetsim.results.one_run.explain import explain
from hetsim.scenario.scenario import load

STORE = [{"name": "store", "out": "10 GB/s"}]


def node(gpus=2, name="n", **keys):
    card = {"network": {"in": "5 GB/s"}, "pcie": {"upload": "20 GB/s"}}
    return {"name": name, "gpus": {"type": "g", "count": gpus}, **card, **keys}


def service(start, name="s", model="16 GB", **keys):
    entry = {"tokens": {"prompt": 1, "output": 1}, "arrivals": {"process": "all_at_once", "count": 1}}
    about = {"kind": "llm", "device": "g", "step": {"fixed": "1 s"}, "max_num_seqs": 1, "model": model, "start": start}
    return {"name": name, **entry, "service": about | keys}


class Fake(SimpleNamespace):
    """A replica, which keys of dictionaries can be."""

    __hash__ = object.__hash__


class Fleet:
    """A service of which replicas are begun and given up by hand; `ready` has when they had their model."""

    def __init__(self, run, number=0):
        self.service, self.replicas = run.language[number], self
        self.kind = SimpleNamespace(weights=self.service.kinds[0].weights)
        self.all, self.ready = [], {}

    def begin(self, loading, number, devices):
        replica = Fake(
            number=number, node=devices[0].node, placement=SimpleNamespace(devices=tuple(devices)), kind=self.kind,
            fleet=self, flows=[], load=None, timer=None, loaded=False,
        )  # fmt: skip
        self.all.append(replica)
        loading.begin(replica)
        return replica

    def loaded(self, replica):
        replica.loaded = True
        self.ready[replica.number] = replica.fleet.clock._now


class World:
    """Loads at given times on given devices, without requests."""

    def __init__(self, cluster, workload, policy="fcfs"):
        self.run = load({"cluster": cluster, "workload": workload, "policy": policy}).build()
        self.state = Simulation(self.run).parts.state
        self.state.sources.end_now()
        self.clock, self.loading = self.state.clock, self.state.loading
        self.loading.kept.clear()  # what the first replicas of the services left there
        self.loading._warm.clear()
        self.fleets = [Fleet(self.run, number) for number in range(len(self.run.language))]
        for fleet in self.fleets:
            fleet.clock = self.clock
        self.replicas = {}

    def at(self, time, what, *arguments):
        """Something to happen at a time, before what is due then."""
        self.clock.at(time, FINISH, Later(what, *arguments))

    def until_over(self):
        while self.clock.advance():
            self.clock.round_due = False
        return self.ready

    def begin(self, number, devices, fleet=0):
        devices = [self.run.cluster.by_name[name] for name in devices.split()]
        self.replicas[number] = self.fleets[fleet].begin(self.loading, number, devices)

    def stop(self, number):
        replica = self.replicas[number]
        replica.fleet.all.remove(replica)
        replica.loaded = False
        self.loading.stop(replica)

    @property
    def ready(self):
        return {number: time for fleet in self.fleets for number, time in fleet.ready.items()}


@pytest.mark.parametrize(
    ("nodes", "start", "seconds"),
    [
        ([node()], {"from": "store"}, 6.4),  # two loads share the card
        ([node(name="n", count=2)], {"from": "store"}, 3.2),  # the store has enough for two cards
        ([node()], {"from": "store", "share": True}, 3.2),
        ([node()], {"from": ["host", "store"], "share": True, "fixed": "8 s"}, 11.2),
        ([node()], {"from": "host"}, 0.8),
        ([node()], {}, 0.8),
        ([node(disk={"read": "8 GB/s"})], {"from": "disk"}, 4.0),
        ([node(disk={"read": "8 GB/s"})], {"from": ["host", "disk"], "share": True}, 2.0),
    ],
)
def test_two_replicas_at_once(nodes, start, seconds):
    """16 GB from a store of 10 GB/s, a card of 5 GB/s, PCIe of 20 GB/s: the slowest link of the chain governs."""
    several = "count" in nodes[0]
    world = World({"stores": STORE, "nodes": nodes}, [service(start)])
    world.begin(0, "n0/g0" if several else "n/g0")
    world.begin(1, "n1/g0" if several else "n/g1")
    assert world.until_over() == {0: pytest.approx(seconds, rel=1e-12), 1: pytest.approx(seconds, rel=1e-12)}


def test_one_replica_alone_and_what_it_leaves_behind():
    """3.2 s from the store; the host keeps the model: 0.8 s from there, after 2 s in place of 8 s on a warm node."""
    start = {"from": ["host", "store"], "fixed": "8 s", "warm": "2 s"}
    world = World({"stores": STORE, "nodes": [node()]}, [service(start)])
    world.begin(0, "n/g0")
    world.at(20.0, world.begin, 1, "n/g1")
    world.at(30.0, world.loading.lose_host, 0)  # a node that fails has nothing any more
    world.at(30.0, world.begin, 2, "n/g1")
    assert world.until_over() == pytest.approx({0: 11.2, 1: 22.8, 2: 41.2})
    assert world.loading.counts == {"starts_cold": 2, "starts_warm": 1, "loads_store": 2, "loads_host": 1}


@pytest.mark.parametrize(("lost", "ready"), [(False, {0: 3.2, 1: 3.2}), (True, {1: 2 + 3.2})])
def test_a_replica_joins_in_mid_load_which_begins_anew_if_the_first_is_lost(lost, ready):
    """It joins after 1 s of 3.2 s, and is ready with the first; that is lost after 2 s."""
    world = World({"stores": STORE, "nodes": [node()]}, [service({"from": "store", "share": True})])
    world.begin(0, "n/g0")
    world.at(1.0, world.begin, 1, "n/g1")
    if lost:
        world.at(2.0, world.stop, 0)
    assert world.until_over() == pytest.approx(ready)


def test_one_that_joins_late_copies_what_has_come_out_of_host_memory():
    """It joins 0.2 s before the end of a load, and its own copy of 16 GB over PCIe takes 0.8 s."""
    world = World({"stores": STORE, "nodes": [node()]}, [service({"from": "store", "share": True})])
    world.begin(0, "n/g0")
    world.at(3.0, world.begin, 1, "n/g1")
    world.at(3.1, world.begin, 2, "n/g1")
    world.at(3.15, world.stop, 2)
    assert world.until_over() == pytest.approx({0: 3.2, 1: 3.825})  # two copies for 50 ms


@pytest.mark.parametrize(("lost", "ready"), [(False, 1 + 0.16), (True, 1.1 + 0.8)])
def test_gpus_give_a_model_over_nvlink_until_their_replica_goes(lost, ready):
    """16 GB at 100 GB/s between GPUs; if the giver goes after 0.1 s, the load begins anew from host memory, 0.8 s."""
    world = World(
        {"stores": STORE, "nodes": [node(nvlink="100 GB/s")]}, [service({"from": ["host", "gpu", "store"]})]
    )
    world.begin(0, "n/g0")
    world.at(4.0, world.loading.kept.clear)
    world.at(4.0, world.begin, 1, "n/g1")
    if lost:
        world.at(4.1, world.loading._keep, "host", "s", 0, 16 * 10**9)
        world.at(4.1, world.stop, 0)
    assert world.until_over()[1] == pytest.approx(3 + ready)


class Newest(hs.policy.Eviction):
    """The model that came last gives way."""

    def victim(self, kept, now):
        return kept[-1]


class Wrong(hs.policy.Eviction):
    """Something else gives way."""

    def victim(self, kept, now):
        return hs.policy.KeptModel("another", 1, now, now)


@pytest.mark.parametrize(("policy", "left"), [("lru", ["c", "a"]), ("newest", ["a", "c"])])
def test_the_policy_says_which_model_gives_way(policy, left):
    """Room for two: a, b, a again, c; the least recently used is b, which was also the last to come."""
    hs.register("newest", Newest, "eviction")
    start, cluster = {"from": ["host", "store"]}, {"stores": STORE, "nodes": [node(keep="32 GB", gpus=3)]}
    world = World(cluster, [service(start, name) for name in "abc"], {"eviction": policy})
    for number, fleet in enumerate((0, 1, 0, 2)):
        world.at(10.0 * number, world.begin, number, "n/g0", fleet)
    world.until_over()
    assert sorted(world.loading.kept["host", 0]) == sorted(left)
    assert world.loading.kept["host", 0]["a"].uses == 1


def test_an_eviction_that_names_nothing_is_an_error():
    hs.register("wrong", Wrong, "eviction")
    start, cluster = {"from": ["host", "store"]}, {"stores": STORE, "nodes": [node(keep="16 GB")]}
    with pytest.raises(PolicyError, match="evicts .*another.*not one of the stored models"):
        World(cluster, [service(start, name) for name in "ab"], {"eviction": "wrong"})
    assert "lru" in registry.policies("eviction")


# Random chains against a loop of their own -----------------------------------------------------------------------


@dataclass(eq=False)
class Part:
    """Bytes on their way."""

    left: float
    pipes: tuple
    begins: float
    owner: object


@dataclass(eq=False)
class Copy:
    """One replica on its way: `shared` is the load that it began or joined, `parts` what it copies itself."""

    number: int
    fleet: int
    devices: list
    parts: list = field(default_factory=list)
    shared: object = None
    loaded: bool = False


@dataclass(eq=False)
class Chain:
    """A load from a source, and those that wait for it."""

    source: str
    giver: object
    copies: list
    parts: list = field(default_factory=list)


class Loop:
    """Max-min fair fluid chains, from event to event; rates are found anew at each."""

    def __init__(self, rates, latency, services, rooms):
        self.rates, self.latency, self.services, self.rooms = rates, latency, services, rooms
        self.now, self.parts, self.chains, self.ready = 0.0, [], [], {}
        self.timers, self.copies, self.kept, self.warm = [], {}, {}, set()

    def shares(self):
        flowing = [part for part in self.parts if part.begins <= self.now]
        free, rate = dict(self.rates), {}
        while len(rate) < len(flowing):
            users = {pipe: [p for p in flowing if pipe in p.pipes and p not in rate] for pipe in free}
            tight = min((pipe for pipe in users if users[pipe]), key=lambda pipe: free[pipe] / len(users[pipe]))
            share = free[tight] / len(users[tight])
            for part in users[tight]:
                rate[part] = share
                for pipe in part.pipes:
                    free[pipe] -= share
        return rate

    def run(self, events):
        events = sorted(events, key=lambda one: one[0])
        while events or self.timers or self.parts:
            rate = self.shares()
            ends = {part: self.now + part.left / rate[part] for part in rate}
            begins = [part.begins for part in self.parts if part.begins > self.now]
            times = [*(one[0] for one in (*events[:1], *self.timers)), *begins, *ends.values()]
            following = min(times)
            over = [part for part, end in ends.items() if end <= following * (1 + 1e-12)]
            for part in rate:
                part.left -= rate[part] * (following - self.now)
            self.now = following
            for part in over:
                self.ended(part)
            for timer in [one for one in self.timers if one[0] <= following]:
                self.timers.remove(timer)
                self.move(timer[1])
            while events and events[0][0] <= following:
                _, what, *rest = events.pop(0)
                getattr(self, what)(*rest)

    def begin(self, number, fleet, devices):
        copy = self.copies[number] = Copy(number, fleet, devices)
        about = self.services[fleet]
        seconds = about["warm"] if (fleet, devices[0][0]) in self.warm else about["fixed"]
        self.timers.append((self.now + seconds, copy))

    def stop(self, number):
        copy = self.copies.pop(number)
        self.timers = [one for one in self.timers if one[1] is not copy]
        again = []
        for chain in list(self.chains):
            if copy is chain.giver or copy is chain.copies[0]:
                self.chains.remove(chain)
                again += [one for one in chain.copies if one is not copy]
                for owner in (chain, *chain.copies):
                    self.drop(owner)
        if copy.shared is not None:
            copy.shared.copies.remove(copy)
            self.drop(copy)
        for one in again:
            self.move(one)

    def drop(self, owner):
        self.parts = [part for part in self.parts if part not in owner.parts]
        owner.parts = []

    def giver(self, copy):
        near = [one for one in self.copies.values() if one.loaded and one.fleet == copy.fleet]
        return next((one for one in near if one.devices[0][0] == copy.devices[0][0]), None)

    def move(self, copy):
        about, at = self.services[copy.fleet], copy.devices[0][0]

        def has(place):
            kept = self.kept.get((place, at), {})
            return self.giver(copy) is not None if place == "gpu" else copy.fleet in kept or place == about["from"][-1]

        source = next(place for place in about["from"] if has(place))
        if copy.fleet in self.kept.get((source, at), {}):
            self.kept[source, at][copy.fleet] = self.now
        own = Chain(source, self.giver(copy) if source == "gpu" else None, [copy])
        joins = [one for one in self.chains if one.source == source and one.copies[0].fleet == copy.fleet]
        joins = [one for one in joins if one.copies[0].devices[0][0] == at and about["share"]]
        if source in ("store", "disk") and joins:
            joins[0].copies.append(copy)
            copy.shared, owner, pipes, latency = joins[0], copy, (), 0.0
        else:
            self.chains.append(own)
            copy.shared = owner = own
            pipes = {"store": ("store", ("card", at)), "disk": (("disk", at),)}.get(source, ())
            latency = self.latency["card"] if source == "store" else 0.0
        for place, device in enumerate(copy.devices):
            way, after = (*pipes, ("pcie", device)), latency + self.latency["pcie"]
            if owner is own and own.giver is not None:
                way, after = (("out", own.giver.devices[place]), ("in", device)), self.latency["nvlink"]
            part = Part(about["size"] / len(copy.devices), way, self.now + after, owner)
            owner.parts.append(part)
            self.parts.append(part)

    def ended(self, part):
        self.parts.remove(part)
        owner = part.owner
        owner.parts.remove(part)
        if owner.parts:
            return
        if isinstance(owner, Chain):
            self.chains.remove(owner)
            over = [copy for copy in owner.copies if not copy.parts]
        else:
            over = [] if owner.shared in self.chains else [owner]
        for copy in over:
            source, about, at = copy.shared.source, self.services[copy.fleet], copy.devices[0][0]
            copy.shared, copy.loaded, self.ready[copy.number] = None, True, self.now
            self.warm.add((copy.fleet, at))
            before = about["from"][: about["from"].index(source)]
            for place in before if source != "gpu" else ():
                self.keep(place, copy.fleet, at)

    def keep(self, place, fleet, at):
        if place == "gpu" or fleet in (models := self.kept.setdefault((place, at), {})):
            return
        size = self.services[fleet]["size"]
        if size > self.rooms[place]:
            return
        while sum(self.services[one]["size"] for one in models) + size > self.rooms[place]:
            del models[min(models, key=models.get)]
        models[fleet] = self.now


NODES, GPUS = 2, 4
CHAINS = [["store"], ["host", "store"], ["host", "disk", "store"], ["gpu", "host", "store"], ["disk", "store"],
          ["gpu", "disk", "host", "store"]]  # fmt: skip


def random_case(rng):
    """A cluster and services as a scenario has them, the same for the loop, and what happens when."""
    pick = lambda low, high: round(float(rng.uniform(low, high)), 3)  # noqa: E731
    gb = {name: pick(*bounds) for name, bounds in
          {"store": (4, 12), "card": (2, 8), "pcie": (2, 20), "disk": (3, 9), "nvlink": (20, 60)}.items()}  # fmt: skip
    rooms = {"host": int(rng.integers(30, 60)), "disk": int(rng.integers(30, 90))}
    latency = {"card": 0.01 * int(rng.integers(0, 3)), "pcie": 0.003 * int(rng.integers(0, 2)), "nvlink": 0.0}
    services = [
        {"from": CHAINS[rng.integers(len(CHAINS))], "share": bool(rng.integers(2)), "size": int(rng.integers(4, 28)),
         "fixed": pick(0.1, 3), "warm": pick(0.05, 1)}
        for _ in range(4)
    ]  # fmt: skip
    nodes = {
        "name": "n", "count": NODES, "gpus": {"type": "g", "count": GPUS}, "nvlink": f"{gb['nvlink']} GB/s",
        "disk": {"read": f"{gb['disk']} GB/s", "size": f"{rooms['disk']} GB"}, "keep": f"{rooms['host']} GB",
        "network": {"in": f"{gb['card']} GB/s", "latency": f"{latency['card']} s"},
        "pcie": {"upload": f"{gb['pcie']} GB/s", "latency": f"{latency['pcie']} s"},
    }  # fmt: skip
    cluster = {"stores": [{"name": "store", "out": f"{gb['store']} GB/s"}], "nodes": nodes}
    workload = [
        service({"from": one["from"], "share": one["share"], "fixed": f"{one['fixed']} s", "warm": f"{one['warm']} s"},
                f"s{number}", f"{one['size']} GB")
        for number, one in enumerate(services)
    ]  # fmt: skip
    rates = {"store": gb["store"] * 1e9}
    for at in range(NODES):
        rates |= {("card", at): gb["card"] * 1e9, ("disk", at): gb["disk"] * 1e9}
        for gpu in range(GPUS):
            rates |= {("pcie", (at, gpu)): gb["pcie"] * 1e9}
            rates |= {(way, (at, gpu)): gb["nvlink"] * 1e9 for way in ("out", "in")}
    loop = Loop(rates, latency, [one | {"size": one["size"] * 10**9} for one in services],
                {place: room * 10**9 for place, room in rooms.items()})  # fmt: skip
    now, events = 0.0, []
    for number in range(40):
        now += float(rng.exponential(0.9))
        at, width, fleet = int(rng.integers(NODES)), 1, int(rng.integers(4))
        if fleet == 0:
            width = 2  # a gang
        first = int(rng.integers(GPUS - width + 1))
        events.append((now, "begin", number, fleet, [(at, first + more) for more in range(width)]))
        if rng.random() < 0.4:
            events.append((now + float(rng.exponential(3.0)), "stop", number))
    return cluster, workload, loop, sorted(events)


@pytest.mark.parametrize("seed", range(6))
def test_random_chains_of_loads_against_a_loop_of_their_own(seed):
    cluster, workload, loop, events = random_case(np.random.default_rng([41, seed]))
    world = World(cluster, workload)
    for time, what, number, *rest in events:
        if what == "begin":
            rest = [" ".join(f"n{at}/g{gpu}" for at, gpu in rest[1]), rest[0]]
        world.at(time, getattr(world, what), number, *rest)
    world.until_over()
    loop.run(events)
    assert len(loop.ready) > 20
    assert world.ready == pytest.approx(loop.ready, rel=1e-9)
    kept = {where: {int(name[1:]) for name in models} for where, models in world.loading.kept.items()}
    assert {where: models for where, models in kept.items() if models} == {
        where: set(models) for where, models in loop.kept.items() if models
    }


# In a run --------------------------------------------------------------------------------------------------------


def failing(start, **more):
    """A request a second to one replica, whose GPU fails after 10.5 s for 1 s; it loads the model again."""
    entry = service(start, **more) | {"arrivals": {"process": "deterministic", "rate": "1/s"}, "count": 25}
    entry["service"]["step"] = {"fixed": "0.1 s"}
    fault = {"on": "gpu", "name": "g", "every": "10.5 s", "repair": "1 s"}
    cluster = {"stores": STORE, "nodes": [node(gpus=1, cpus=1)]}
    return {"cluster": cluster, "workload": [entry], "faults": [fault], "horizon": "20 s"}


def test_a_run_says_why_requests_waited_and_where_models_came_from():
    """From 11.5 s on 2 s and 3.2 s: the request of 12 s waits for the load until 16.7 s, as the table says."""
    result = hs.run(failing({"from": "store", "fixed": "5 s", "warm": "2 s"}), check=True)
    assert result.tasks["start"][12] == pytest.approx(16.8)  # after that of 11 s
    why = explain(result, 12)
    assert why[["from", "to", "cause", "detail"]].iloc[0].tolist() == [
        12.0, pytest.approx(16.7), "transfer", "a replica loads the model"]  # fmt: skip
    loads = result.launches.dropna(subset="upload_end")
    assert loads[["upload_start", "upload_end"]].iloc[0].tolist() == [11.5, pytest.approx(16.7)]
    values = [result.metric(name) for name in ("starts_warm", "loads_store", "loads_host")]
    assert values == [1.0, 1.0, 0.0]
    assert math.isnan(hs.run(failing({})).metric("loads_host"))  # nothing is said: as before there was `start`


def test_a_fork_in_mid_load_goes_on_alike():
    run = load(failing({"from": ["host", "store"], "fixed": "5 s", "share": True})).build()
    simulation, whole = Simulation(run), Simulation(run).run()
    while simulation.parts.state.clock._now < 13.0:
        simulation.advance()
    assert simulation.parts.state.residents
    copy = simulation.fork()
    assert np.array_equal(copy.run().finish, whole.finish, equal_nan=True)


@pytest.mark.parametrize(
    ("start", "nodes", "said"),
    [
        ({"from": ["host", "hsot"]}, {}, 'no place "hsot"; did you mean "host"?'),
        ({"from": ["host", "host"]}, {}, "from must list each place once; got host twice"),
        ({"from": ["host", "store", "host"]}, {}, "from must list each place once; got host twice"),
        ({"from": ["store", "host"]}, {}, "store has every model, so places after it are never used"),
        ({"from": "gpu"}, {"nvlink": "100 GB/s"}, "gpu needs nvlink on a node, and a place after gpu"),
        ({"from": ["gpu", "store"]}, {}, "gpu needs nvlink on a node, and a place after gpu"),
        ({"from": ["disk", "store"]}, {}, "a node has no disk"),
        ({"from": "disk"}, {"disk": {"read": "1 GB/s", "size": "10 GB"}}, "10 GB of models, but s has 16 GB"),
        ({"from": ["disk", "store"]}, {"disk": {"read": "1 GB/s", "size": "10 GB"}}, "s has 16 GB"),
        ({"from": "host"}, {"keep": "10 GB"}, "host memory of a node has room for 10 GB of models, but s has 16 GB"),
        ({"from": []}, {}, "at least 1"),
        ({"from": "host"}, {"keep": "10 GB", "memory": "8 GB"}, "a node keeps 10 GB of models in 8 GB of memory"),
        ({"from": "host"}, {"disk": {"read": "0 GB/s"}}, "must be above 0"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, start, nodes, said):
    path = tmp_path / "fleet.yaml"
    document = {"name": "x", "cluster": {"stores": STORE, "nodes": [node(**nodes)]}, "workload": [service(start)]}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(ScenarioError) as caught:
        load(path).build()
    assert str(caught.value).count(said) == 1
    assert f"{path}:" in str(caught.value) or "fleet.yaml:" in str(caught.value)


def test_a_model_that_does_not_fit_hides_no_place():
    nodes = node() | {"gpus": {"type": "g", "memory": "8 GB"}}
    with pytest.raises(ScenarioError) as caught:
        load({"cluster": {"nodes": [nodes]}, "workload": [service({"from": "hsot"})]}).build()
    assert "needs 16 GB; one g has 8 GB" in str(caught.value) and "did you mean" in str(caught.value)


def test_more_models_than_fit_are_a_warning_or_an_error():
    cluster = {"stores": STORE, "nodes": [node(keep="40 GB")]}
    three = [service({"from": ["host", "store"]}, name, replicas=1) for name in "ab"]
    assert not load({"cluster": cluster, "workload": three}).build().warnings
    more = [*three, *(service({"from": ["host", "store"]}, name, gpus=1) for name in "cd")]
    nodes = {"stores": STORE, "nodes": [node(keep="40 GB", gpus=4)]}
    (warning,) = load({"cluster": nodes, "workload": more}).build().warnings
    assert warning == (
        "workload.3.service.start.from: host memory of a node has room for 40 GB of models, but the models of all "
        "services have 64 GB: they evict each other"
    )
    at_home = [service({}, name) for name in "abc"]
    with pytest.raises(ScenarioError, match="the models of all services have 48 GB"):
        load({"cluster": nodes, "workload": at_home}).build()
    with pytest.raises(ScenarioError, match="two stores have the same name"):
        load({"cluster": {"stores": STORE * 2, "nodes": [node()]}, "workload": three[:1]}).build()
    with pytest.raises(ScenarioError, match="host is a place of the nodes"):
        load({"cluster": {"stores": [{"name": "host", "out": "1 GB/s"}], "nodes": [node()]}, "workload": three[:1]})
    tasks = {"name": "t", "arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "1 s"}
    with pytest.raises(ScenarioError, match="eviction needs a service with replicas"):
        load({"cluster": {"nodes": [node()]}, "workload": [tasks], "policy": {"eviction": "lru"}}).build()


def test_loads_share_links_with_other_transfers():
    """A job's 20 GB over the switch that a load from host memory crosses, each at half of it until the load is over."""
    pcie = {"upload": "20 GB/s", "switch": {"size": 2, "upload": "20 GB/s"}}
    world = World({"stores": STORE, "nodes": [{**node(), "pcie": pcie}]}, [service({})])
    links, device = world.state.links, world.run.cluster.by_name["n/g1"]
    over = []
    links.send(links.up(device), 20e9, 0.0, done=lambda flow: over.append(world.clock._now))
    world.begin(0, "n/g0")
    assert world.until_over() == {0: pytest.approx(1.6)} and over == [pytest.approx(1.8)]


