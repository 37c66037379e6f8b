"""Sets of replicas that know nothing of tokens: servers of one request at a time, by hand and against an event loop."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from test_llm import scenario

from hetsim.engine.kernel.clock import ARRIVAL, FINISH, Later
from hetsim.engine.residents.holder import Holder, HolderType
from hetsim.engine.residents.replica_set import ReplicaSet
from hetsim.engine.simulation import Simulation
from hetsim.model.record import LAUNCH_COMPLETED, LAUNCH_LOST
from hetsim.scenario.scenario import load
from hetsim_policies.routing.routers import LeastOutstanding, RoundRobinRouting


class Server(Holder):
    """First come, first served, one at a time."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.line = []

    def enqueue(self, request):
        self.line.append(request)
        self.add(1)
        if len(self.line) == 1:
            self._begin()

    def _begin(self):
        head = self.line[0]
        head.starts.append((self.clock._now, self.number))
        self.clock.at(self.clock._now + head.seconds, FINISH, self.launch)

    def _fired(self, timer):
        head = self.line.pop(0)
        self.add(-1)
        head.end = self.clock._now
        if self.line:
            self._begin()
        self.fleet.ended(head, self)

    def give_up(self, outcome):
        self.clock.cancel(self.launch)
        self.fleet.given_up.append((self.clock._now, self.number, outcome))
        line, self.line = self.line, []
        return line


class Service(ReplicaSet):
    """Requests of given seconds, sent to servers."""

    def __init__(self, routing, arrivals, seconds, gpus=8, **keys):
        run = load(scenario(keys, gpus=gpus)).build()
        self.parts = Simulation(run).parts
        self.state = state = self.parts.state
        state.sources.end_now()  # the service of the scenario has replicas of its own, and no requests
        self.given_up, self.coming = [], SimpleNamespace(since=lambda time: 0)
        service, self.residents = run.language[0], self.parts.serving
        self.kinds = [HolderType(0, service.shape.modes[0], service.kinds[0])]
        super().__init__(
            state, self.parts.rounds, self.parts.signals, service=service, batching=None,
            routing=routing, scaling=run.iteration[0][2], holder_type=Server
        )  # fmt: skip
        self.random, self.residents.sets = np.random.default_rng(7), [self]
        self.sent = [
            SimpleNamespace(row=row, arrival=at, seconds=needs, starts=[], end=None)
            for row, (at, needs) in enumerate(zip(arrivals, seconds, strict=True))
        ]
        for request in self.sent:
            self.clock.at(request.arrival, ARRIVAL, Later(self.arrived, request))
        self.begin()

    def arrived(self, request):
        self.requests[request.row] = request
        self.send(request, False)
        self.scale()

    def ended(self, request, server):
        del self.requests[request.row]
        self.scale()
        self.rested(server)

    def resume(self, request):
        self.send(request, False)

    def run(self):
        while self.clock.advance():
            self.clock.round_due = False
            self.residents.offer()
        return [request.starts for request in self.sent]


def by_hand(arrivals, seconds, servers, choose):
    """Starts of requests on servers that are chosen at arrival, by their numbers of requests; ends come first."""
    ends: list[list[float]] = [[] for _ in range(servers)]
    starts = []
    for at, needs in zip(arrivals, seconds, strict=True):
        chosen = choose([sum(end > at for end in own) for own in ends])
        begin = max([at, *ends[chosen]])
        ends[chosen].append(begin + needs)
        starts.append([(begin, chosen)])
    return starts


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("servers", [1, 2, 4])
def test_the_shortest_queue_start_by_start(seed, servers):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / (0.8 * servers), 400)).tolist()
    seconds = rng.exponential(1.0, 400).tolist()
    service = Service(LeastOutstanding(), arrivals, seconds, replicas=servers)
    assert service.run() == by_hand(arrivals, seconds, servers, lambda counts: counts.index(min(counts)))


def test_round_robin_is_as_many_services_with_every_nth_request():
    rng = np.random.default_rng(5)
    arrivals, seconds = np.cumsum(rng.exponential(0.5, 200)).tolist(), rng.exponential(0.8, 200).tolist()
    starts = Service(RoundRobinRouting(), arrivals, seconds, replicas=2).run()
    for number in range(2):
        alone = Service(RoundRobinRouting(), arrivals[number::2], seconds[number::2], replicas=1).run()
        assert [[(time, 0) for time, _ in own] for own in starts[number::2]] == alone
        assert {own[0][1] for own in starts[number::2]} == {number}


def test_a_cold_start_and_the_way_back_by_hand():
    """At 1 s a second request is there, and a second replica is wanted; 2 GB over 1 GB/s are loaded at 3 s, so that
    request queues at the first replica until 10 s, and the third one, at 4 s, starts at once on the second.  At 10 s
    one request is left: the second replica is idle and gives its GPU back."""
    scale = {"model": "2 GB", "scale": {"name": "target_requests", "min": 1, "max": 2, "target": 1}}
    service = Service(LeastOutstanding(), [0.0, 1.0, 4.0], [10.0, 2.0, 1.0], **scale)
    residents = len(service.state.residents)
    assert service.run() == [[(0.0, 0)], [(10.0, 0)], [(4.0, 1)]]
    assert service.given_up == [(10.0, 1, LAUNCH_COMPLETED)]
    assert [one.number for one in service.replicas] == [0] and len(service.state.residents) == residents


def test_a_drained_replica_that_is_wanted_again_needs_no_load():
    """Three requests want two replicas (two requests each), the second from 2 s on.  At 10 s two are left, one on each:
    the newer replica drains.  The one at 11 s goes to the other, and wants two again: the replica that drains takes the
    next one, at 11.5 s, which starts there when the request of 3 s ends at 12 s.  At 13 s it is idle, and goes."""
    scale = {"model": "2 GB", "scale": {"name": "target_requests", "min": 1, "max": 2, "target": 2}}
    service = Service(LeastOutstanding(), [0.0, 0.0, 0.0, 3.0, 11.0, 11.5], [5.0, 5.0, 5.0, 9.0, 1.0, 1.0], **scale)
    starts = [own[0] for own in service.run()]
    assert starts == [(0.0, 0), (5.0, 0), (10.0, 0), (3.0, 1), (15.0, 0), (12.0, 1)]
    assert service.given_up == [(13.0, 1, LAUNCH_COMPLETED)] and service.numbered == 2


def test_a_failed_replica_gives_its_requests_up_to_the_next():
    """The one replica fails at 1 s with two requests; another GPU has loaded the model at 3 s, and both begin there
    again, in order."""
    service = Service(LeastOutstanding(), [0.0, 0.5], [4.0, 1.0], model="2 GB", replicas=1)

    def fail():
        service.residents.lose([server.launch for server in service.all])
        assert list(service.lobby) == [0, 1] and not service.missing

    service.clock.at(1.0, ARRIVAL, Later(fail))
    assert service.run() == [[(0.0, 0), (3.0, 1)], [(7.0, 1)]]
    assert service.given_up == [(1.0, 0, LAUNCH_LOST)] and service.sent[1].end == 8.0


def test_a_failed_replica_on_a_full_cluster():
    """All 14 GPUs are held, half of them by the scenario's own service: the replacement takes the GPU that the failed
    replica gives back, and its request goes to another replica at once, where it begins again."""
    service = Service(LeastOutstanding(), [0.0], [30.0], model="2 GB", replicas=7, gpus=7 + 7)
    state = service.state
    assert state.capacity.first(service.kinds[0].mode) is None

    def fail():
        service.residents.lose([service.all[0].launch])
        assert len(service.missing) == 0 and service.all[-1].number == 7

    service.clock.at(1.0, ARRIVAL, Later(fail))
    assert service.run() == [[(0.0, 0), (1.0, 1)]]
