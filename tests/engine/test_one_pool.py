"""Random fleets on one pool against a stepper without the engine: language models, services that form batches, jobs.

The language models serve one request at a time, a step of fixed time for each token; GPUs fail, one to a node; what a
replica does not keep is for jobs, first come, first served.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest

from hetsim.engine.simulation import Simulation
from hetsim.model.faults import FaultEvent
from hetsim.results.one_run.result import Result
from hetsim.scenario.scenario import load

LOAD = 0.5
"""Seconds that a model of 500 MB is on its way to a GPU."""
STEP = 0.01


class Server:
    """A replica on a GPU; `batch`: the rows that it serves since `since`."""

    def __init__(self, service, number, gpu, is_open):
        self.service, self.number, self.gpu, self.open = service, number, gpu, is_open
        self.line, self.batch, self.since = [], [], 0.0


class Service:
    def __init__(self, number, routing, fixed, item, most, tokens=None):
        self.number, self.routing, self.fixed, self.item, self.most = number, routing, fixed, item, most
        self.tokens = tokens  # by row what is left to write, of a language model
        self.servers, self.lobby, self.missing, self.last, self.made = [], [], 0, -1, 0

    def seconds(self, rows):
        if self.tokens is not None:
            return self.tokens[rows[0]] * STEP
        return self.fixed + self.item * len(rows)


class Stepper:
    """A pool of GPUs: what each holds, and what happens next."""

    def __init__(self, gpus, services, counts, arrivals, jobs, faults):
        self.holds, self.down, self.services = [None] * gpus, set(), services
        self.events, self.entries = [], 0
        self.waiting, self.seconds = [], dict(jobs)
        self.start, self.end, self.where = {}, {}, {}
        for row, (at, service) in arrivals.items():
            self.at(at, 2, self.job if service is None else self.request, row, service)
        for at, gpu, up in faults:
            self.at(at, 1, self.up if up else self.fails, gpu)
        for service, count in zip(services, counts, strict=True):
            for _ in range(count):
                self.begin(service, 0.0)
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                *_, what, arguments = heapq.heappop(self.events)
                what(now, *arguments)
            self.settle(now)

    def at(self, time, order, what, *arguments):
        self.entries += 1
        heapq.heappush(self.events, (time, order, self.entries, what, arguments))

    def free(self):
        return next((k for k, one in enumerate(self.holds) if one is None and k not in self.down), None)

    def begin(self, service, open_at):
        if (gpu := self.free()) is None:
            return False
        server = self.holds[gpu] = Server(service, service.made, gpu, open_at == 0.0)
        service.servers.append(server)
        service.made += 1
        if open_at:
            self.at(open_at, 0, self.opens, server)
        return True

    def refill(self, service, now):
        while service.missing and self.begin(service, now + LOAD):
            service.missing -= 1

    def settle(self, now):
        """Batches and requests begin; then lacking replicas and waiting jobs get the GPUs that are free."""
        for service in self.services:
            for server in service.servers:
                if server.open and server.line and not server.batch:
                    server.batch, server.line = server.line[: service.most], server.line[service.most :]
                    server.since = now
                    for row in server.batch:
                        self.start.setdefault(row, now)
                    self.at(now + service.seconds(server.batch), 0, self.done, server, server.batch)
        for service in self.services:
            self.refill(service, now)
        while self.waiting and (gpu := self.free()) is not None:
            row = self.waiting.pop(0)
            self.holds[gpu] = row
            self.start.setdefault(row, now)
            self.at(now + self.seconds[row], 0, self.over, row, gpu, now)
            self.where[row] = gpu, now

    def request(self, now, row, service):
        self.refill(service, now)
        self.send(service, row)

    def send(self, service, row):
        takes = [one for one in service.servers if one.open]
        if not takes:
            service.lobby.append(row)
            return
        chosen = min(takes, key=lambda one: len(one.line + one.batch))
        if service.routing == "round_robin" and len(takes) > 1:
            chosen = next((one for one in takes if one.number > service.last), takes[0])
            service.last = chosen.number
        chosen.line = sorted([*chosen.line, row])

    def job(self, now, row, _):
        self.waiting = sorted([*self.waiting, row])

    def over(self, now, row, gpu, since):
        if self.holds[gpu] == row and self.where[row] == (gpu, since):
            self.holds[gpu] = None
            self.end[row] = now

    def done(self, now, server, batch):
        if server.batch is batch and self.holds[server.gpu] is server:
            for row in batch:
                self.end[row], self.where[row] = now, (server.gpu, server.since)
            server.batch = []

    def opens(self, now, server):
        if self.holds[server.gpu] is server:
            server.open = True
            waiting, server.service.lobby = server.service.lobby, []
            for row in waiting:
                self.send(server.service, row)

    def fails(self, now, gpu):
        held, self.holds[gpu] = self.holds[gpu], None
        self.down.add(gpu)
        if isinstance(held, int):
            self.job(now, held, None)
        elif held is not None:
            service = held.service
            service.servers.remove(held)
            service.missing += 1
            if service.tokens is not None and held.batch:  # whole steps stay: it has these tokens
                service.tokens[held.batch[0]] -= int((now - held.since) / STEP)
            rows, service.lobby = sorted([*held.batch, *held.line, *service.lobby]), []
            self.refill(service, now)
            for row in rows:
                self.send(service, row)

    def up(self, now, gpu):
        self.down.discard(gpu)
        for service in self.services:
            self.refill(service, now)


def described(rng, gpus, counts, routings):
    fixed, item, most = rng.uniform(0.01, 0.05), rng.uniform(0.001, 0.01), int(rng.integers(1, 8))
    chat = {"kind": "llm", "model": "500 MB", "step": {"fixed": "10 ms"}, "max_num_seqs": 1}
    web = {"compute": {"fixed": f"{fixed!r} s", "per_item": f"{item!r} s"}, "max_batch": most, "model": "500 MB"}
    more = [{"replicas": count, "routing": routing} for count, routing in zip(counts, routings, strict=True)]
    rates = [rng.uniform(*between) for between in ((5, 20), (20, 90), (1, 4))]
    poisson = [{"process": "poisson", "rate": f"{rate!r}/s"} for rate in rates]
    entries = [
        {"name": "chat", "service": chat | more[0],
         "tokens": {"prompt": 9, "output": {"distribution": "uniform", "low": 2, "high": 20}}},
        {"name": "web", "service": web | more[1]},
        {"name": "jobs", "gpu_time": {"distribution": "exponential", "mean": f"{rng.uniform(0.1, 0.8)!r} s"}},
    ]  # fmt: skip
    workload = [{**one, "arrivals": how, "until": "4 s"} for one, how in zip(entries, poisson, strict=True)]
    node = {"count": gpus, "gpus": {"type": "a", "memory": "16 GB"}, "pcie": {"upload": "1 GB/s"}}
    return {"name": "pool", "cluster": {"nodes": node}, "workload": workload}, (fixed, item, most)


@pytest.mark.parametrize("seed", range(8))
def test_one_pool_start_by_start(seed):
    rng = np.random.default_rng(seed)
    gpus = int(rng.integers(3, 8))
    counts = [1, int(rng.integers(1, max(2, gpus - 2)))]
    routings = [["round_robin", "least_outstanding"][int(rng.integers(2))] for _ in range(2)]
    document, (fixed, item, most) = described(rng, gpus, counts, routings)
    built = load(document).build(seed)
    faults, events = [], []
    for gpu, node in enumerate(built.cluster.nodes):
        at = 0.0
        while (at := at + rng.exponential(2.0)) < 4.0:
            until = at + rng.exponential(0.6)
            faults += [(at, gpu, False), (until, gpu, True)]
            index = node.accelerators[0].index
            events += [FaultEvent(at, index, "down"), FaultEvent(until, index, "up")]
            at = until
    tasks = Result(Simulation(replace(built, faults=events), check=True).run()).tasks
    table = built.tasks
    rows = {name: np.flatnonzero(tasks["class"] == name).tolist() for name in ("chat", "web", "jobs")}
    tokens = {row: int(table.extra["output_tokens"][row]) for row in rows["chat"]}
    chat = Service(0, routings[0], 0, 0, 1, tokens)
    web = Service(1, routings[1], fixed, item, most)
    arrivals = {row: (float(table.arrival[row]), service)
                for name, service in zip(rows, (chat, web, None), strict=True) for row in rows[name]}  # fmt: skip
    jobs = {row: float(table.time[row, 0]) for row in rows["jobs"]}
    stepper = Stepper(gpus, [chat, web], counts, arrivals, jobs, faults)
    assert (tasks["status"] == "completed").all() and tasks["preemptions"].sum() > 0
    np.testing.assert_allclose(tasks["start"], [stepper.start[row] for row in range(len(tasks))], rtol=0, atol=1e-9)
    np.testing.assert_allclose(tasks["finish"], [stepper.end[row] for row in range(len(tasks))], rtol=0, atol=1e-9)
    assert [f"n{stepper.where[row][0]}/g0" for row in range(len(tasks))] == tasks["device"].tolist()
