"""A second opinion on requests to language models, from the record.

The table of tasks says when a request came, had its first step and its last token; that of the steps how many requests
each replica had in it; that of the launches which devices replicas held.  Of a request that was preempted it is certain
that it waits or runs, of the others which of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.plan import Placement
from hetsim.model.record import COMPLETED, Record
from hetsim.model.service import LanguageService
from hetsim.model.task import Task
from hetsim.policy.contract import View
from hetsim.results.one_run.language import periods

CLOSE = 1e-6


def model_of(view: View, task: Task) -> LanguageService | None:
    """The language model that a task is a request to; None: it is none."""
    queue = view.queue_of(task)
    service: Any = None if queue is None else queue.service
    return service if isinstance(service, LanguageService) else None


def of_queues(view: View, waiting: list[Task]) -> Iterator[str]:
    """Compare the answers of language models' queues with the waiting requests."""
    queues = {queue: None for task in waiting if model_of(view, task) and (queue := view.queue_of(task)) is not None}
    for queue in queues:
        mine = [task for task in waiting if task.shape is queue.service.shape]
        if list(queue.tasks()) != mine or len(queue) != len(mine):
            yield f"the queue of {queue.service} has {len(queue)} requests, {list(queue.tasks())}, and {mine} wait"
            continue
        arrivals = [queue.arrival(position) for position in range(len(queue))]
        due = [task.arrival + queue.service.request_delay for task in mine]
        if arrivals != due or queue.head is not mine[0] or queue.oldest != mine[0].arrival:
            yield f"the queue of {queue.service} says that {queue.head} is the oldest, and that they came at {arrivals}"
        if not len(queue) <= queue.recent(math.inf) <= queue.arrived <= len(queue.service.rows):
            yield f"the queue of {queue.service} says that {queue.arrived} came, and {len(queue)} wait"


def of_own(view: View, waiting: list[Task], running: list[Task], replicas: Sequence[Placement]) -> Iterator[str]:
    """Answers without requests to language models, which fit nowhere by themselves.

    replicas: where they are.
    """
    own = [task for task in waiting if model_of(view, task) is None]
    if view.waiting(own=True) != own or view.num_waiting(own=True) != len(own) or view.waiting(1, own=True) != own[:1]:
        yield f"waiting(own=True) is {view.waiting(own=True)}, and {own} wait for devices"
    if view.running("start", own=True) != [task for task in running if model_of(view, task) is None]:
        yield f"running(own=True) is {view.running('start', own=True)} of {running}"
    requests = [task for task in (*waiting, *running) if model_of(view, task) is not None]
    seconds = math.fsum(map(view.remaining, requests))
    if not math.isclose(view.backlog() - view.backlog(own=True), seconds, rel_tol=CLOSE, abs_tol=CLOSE):
        yield f"backlog() has {view.backlog() - view.backlog(own=True):g} s of requests that have {seconds:g} s left"
    for task in [task for task in waiting if model_of(view, task) is not None][:3]:
        places: list[Any] = [view.fit(task), view.earliest_fit(task).placement, view.make_room(task, running)]
        options = [option for mode in task.modes for option in view.options(task, mode)]
        places += [view.together([task.index])]
        if any(places) or options or view.earliest_fit(task).time < math.inf:
            yield f"{task} is told to fit, at {places} or {options}, and waits for a replica"
        for place in [place for place in replicas if place.mode in task.modes]:
            seconds, stages = view.duration(task, place), view.stages((task,), place)
            remaining = view.remaining(task) / task.shortest_estimate * task.estimates[task.shape.position[place.mode]]
            there = math.isclose(stages.compute, remaining, rel_tol=CLOSE) or view.changes.steady is False
            if not (there and math.isclose(seconds, stages.total, rel_tol=CLOSE)) or not view.holds(task, place):
                claim = f"would take {seconds:g} s alone at {place}, its stages {stages.total:g} s"
                yield f"{task} {claim}, with {remaining:g} s left"


def held_by_replicas(view: View, services: Sequence[LanguageService]) -> list[Placement]:
    """Placements of replicas, from devices that `free_at` says never come free."""
    cluster: Cluster = view.cluster
    replicas: list[Placement] = []
    occupied = [device for device in cluster.devices if device.type.kind != "cpu" and view.free_at(device) == math.inf]
    for mode in [mode for service in services for mode in service.shape.modes]:
        for node in cluster.nodes:
            here = [device for device in occupied if device.node == node.index and device.type is mode.type]
            for first in range(0, len(here) - mode.gpus + 1, mode.gpus):
                devices = tuple(here[first : first + mode.gpus])
                replicas.append(Placement(mode, devices))
                occupied = [device for device in occupied if device not in devices]
    return replicas


class LanguageLives:
    """The requests of language models as the record has them."""

    def __init__(self, record: Record):
        self.record = record
        self.name = record.input.tasks.name
        self.certain = record.input.admission is None
        self.services = record.input.language
        self.alone = len(self.services) == 1 and len(self.services[0].rows) == len(record.status)
        launches: Any = record.launches
        self.held: list[tuple[float, float, tuple[int, ...]]] = []
        """From when to when a replica held which devices."""
        if self.services and launches is not None:
            for at in np.flatnonzero(periods(record, launches["task"])).tolist():
                devices = tuple(record.places[int(launches["place"][at])][0])
                self.held.append((float(launches["decided"][at]), float(launches["end"][at]), devices))
        self.steps: list[tuple[float, float, tuple[int, ...], int]] = []
        """From when to when the replica on which devices had how many requests in it."""
        if record.steps is not None and len(record.steps["start"]):
            columns = [record.steps[name].tolist() for name in ("start", "end", "replica", "running")]
            for start, end, code, count in zip(*columns, strict=True):
                self.steps.append((start, end, tuple(record.places[record.replicas[code][3]][0]), count))

    def compare(self, look: Any) -> Iterator[str]:
        """Everything that was said of requests in one look and was not so."""
        waiting, running = set(look.waiting), set(look.running)
        for service in self.services:
            for row in service.rows.tolist():
                if self.record.status[row] == COMPLETED:
                    yield from self._of(service, row, look, waits=row in waiting, runs=row in running)
        if self.services and not self.record.device_log:
            yield from self._of_replicas(look)

    def _of(self, service: LanguageService, row: int, look: Any, waits: bool, runs: bool) -> Iterator[str]:
        record, now, name = self.record, look.now, self.name(row)
        came = float(record.ready[row]) + service.request_delay
        start, end = float(record.start[row]), float(record.finish[row]) - service.response_delay
        there = came < now < end and (self.certain or now > start)
        if there and waits == runs:
            yield f"request {name} {'waits and runs' if waits else 'neither waits nor runs'}"
        if (now < came or now > end) and (waits or runs):
            yield f"request {name} is shown, which was there from {came:g} to {end:g} s"
        if now < start and runs:
            yield f"request {name} is among running() before its first step at {start:g} s"
        paused = record.preemptions is not None and record.preemptions[row] > 0 or service.prefillers
        if paused or not start < now < end:
            return
        if not runs:
            yield f"request {name} is in steps from {start:g} to {end:g} s, and not among running()"
            return
        devices = record.places[int(record.place[row])][0]
        if look.devices.get(row) != tuple(devices) or look.stage.get(row) != "compute":
            yield f"request {name} ran on {devices}, launch_of says {look.devices.get(row)}, {look.stage.get(row)}"
        beside = {one for one in look.running if look.devices.get(one) == look.devices.get(row)}
        if set(look.batch.get(row, ())) != beside:
            yield f"request {name} ran with {beside}, launch_of says {look.batch.get(row)}"
        foreseen = look.finish[row]
        if not now <= foreseen < math.inf:
            yield f"request {name} is in a replica at {now:g} s, launch_of says that it finishes at {foreseen:g} s"
        if self._foreseeable(service, now) and not math.isclose(foreseen, end, rel_tol=CLOSE):
            yield f"request {name} finished at {end:g} s as expected, launch_of said {foreseen:g} s"
        remaining = max(0.0, float(record.input.tasks.estimate[row, record.mode[row]]) - (now - start))
        if not math.isclose(look.remaining[row], remaining, rel_tol=CLOSE, abs_tol=CLOSE):
            yield f"remaining() of request {name} is {look.remaining[row]:g} s and should be {remaining:g} s"

    def _foreseeable(self, service: LanguageService, now: float) -> bool:
        """Return True if all that comes to a service is known from a time on."""
        record, rows = self.record, service.rows
        if record.input.tasks.estimate is not record.input.tasks.time or record.device_log or service.scaling:
            return False
        if record.attempt_of is not None or (record.status[rows] != COMPLETED).any() or record.preemptions is not None:
            return False
        return bool((record.ready[rows] + service.request_delay < now).all())

    def _of_replicas(self, look: Any) -> Iterator[str]:
        """Requests in each replica, what it holds, and what all requests have received."""
        now, counts = look.now, dict.fromkeys((devices for *_, devices in self.held), 0)
        if any(now in (start, end) for start, end, *_ in self.steps) or any(now in one[:2] for one in self.held):
            return
        for start, end, devices, count in self.steps:
            if start < now < end:
                counts[devices] = count
        for devices, count in counts.items():
            matches = sum(look.devices.get(row) == devices and row in look.requests for row in look.running)
            if matches != count and not any(service.prefillers for service in self.services):
                yield f"{matches} requests run on the replica on devices {devices}, which has {count} in it"
        occupied = {device for since, until, devices in self.held if since < now < until for device in devices}
        if look.now < self.record.end and occupied != look.occupied:
            yield f"free_at says that replicas hold devices {look.occupied}; these held {occupied}"
        if not self.alone or self.services[0].swap:
            return
        seconds = math.fsum(
            max(0.0, min(end, now) - start) * len(devices) for start, end, devices, _ in self.steps if start < now
        )
        if not math.isclose(look.received, seconds, rel_tol=CLOSE, abs_tol=CLOSE):
            yield f"requests have received {seconds:g} s on devices, attained says {look.received:g} s"


def device_indexes(placements: list[Placement]) -> set[int]:
    """The devices of some placements."""
    devices: list[Device] = [device for placement in placements for device in placement.devices]
    return {device.index for device in devices}
