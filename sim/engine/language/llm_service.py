"""The replicas of the language models of a run: routing of requests, number of replicas, and records.

A replica takes its devices at the start of the run, or when the load requires it, and keeps them until it is removed or
one of them fails.  A failed replica is replaced by another, which loads the model, as soon as devices are free: the
engine looks for them at the failure, when a device comes up, when a replica is removed and when a request arrives.
Requests that find no replica wait in the lobby of their service.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sim.engine.core.rounds import Rounds
from sim.engine.core.signals import Signals
from sim.engine.core.state import RunState
from sim.engine.flight.links import Flow
from sim.engine.kernel.clock import FINISH, TIMER, Later, Timer
from sim.engine.language.clients import Clients
from sim.engine.language.continuous_batching import Replica
from sim.engine.language.generation import OVER, QUEUED, Generation
from sim.engine.language.service_calls import ServiceCalls
from sim.errors import Problem, ScenarioError
from sim.model.cluster import Device
from sim.model.record import ABORTED, COMPLETED, LAUNCH_COMPLETED, LAUNCH_RUNNING, REJECTED
from sim.model.service import LanguageService
from sim.model.tasks import RUNNING, Task

NAN = math.nan


class Fleet(ServiceCalls):
    """One service: its replicas, their router, and the scaling of their number with the load."""

    def __init__(
        self, state: RunState, rounds: Rounds, signals: Signals, devices_free: Callable[[], None],
        service: LanguageService, batching: Any, routing: Any, checked: bool,
    ):  # fmt: skip
        """`devices_free`: called when a replica releases devices; `checked`: is there a round at each boundary?"""
        self.state = state
        self.rounds = rounds
        self.signals = signals
        self.devices_free = devices_free
        self.checked = checked
        self.service = service
        self.batching = batching
        self.routing = routing
        self.clock = state.clock
        self.links = state.links
        self.recorder = state.recorder
        self.random = state.input.random.stream("routing", service.name)
        self.mode = service.shape.modes[0]
        self.watts = self.mode.type.power.busy - self.mode.type.power.idle
        extra = state.tasks.extra
        self.prompts, self.outputs = extra["prompt_tokens"], extra["output_tokens"]
        self.names = state.tasks.hash_ids if service.prefix_block else None
        recorder = self.recorder
        self.first_tokens = recorder.first_tokens()
        self.batch, self.compute, self.energy = (recorder.detail(name) for name in ("batch", "compute", "energy"))
        self.numbered = 0
        self.replicas: list[Replica] = []
        """Replicas with devices, in the order of their start; if prefill is separate, only those that decode."""
        self.prefillers: list[Replica] = []
        self.requests: dict[int, Generation] = {}
        """Requests without their last token, by row."""
        self.answered: dict[int, None] = {}
        """Rows of requests with the last token on its way to the client."""
        self.lobby: dict[int, Generation] = {}
        """Requests that no replica can take yet, by row."""
        self.missing: list[bool] = []
        """Replicas that failed and are not replaced yet: do they only prefill?"""
        self.changed_at = -math.inf
        self.timer = Timer(self._scale_again)
        self.clients = Clients(self) if service.timeout < math.inf else None
        for number in range(service.prefillers):
            self.prefillers.append(self._first(number, service.prefillers, "disaggregated.prefill", True))
        key = "replicas" if service.scaling is None else "autoscale.min"
        key = "disaggregated.decode" if service.prefillers else key
        for number in range(service.replicas):
            self.replicas.append(self._first(number, service.replicas, key, False))

    def _first(self, number: int, count: int, key: str, prefills_only: bool) -> Replica:
        """A replica at the start of the run, with its model already loaded."""
        replica = self._new(prefills_only)
        if replica is None:
            gpus = f"{self.mode.gpus:g} × {self.mode.type.name}"
            text = f"replica {number + 1} of {count} of {self.service} finds no node with {gpus} free"
            others = self.state.input.language
            taken = "; services that stand before it take theirs first" if self.service is not others[0] else ""
            hint = "give the cluster more devices, or this service fewer replicas"
            raise ScenarioError(Problem(f"{text}{taken}; {hint}", key=f"{self.service.key}.{key}"))
        return replica

    def _new(self, prefills_only: bool = False) -> Replica | None:
        capacity = self.state.capacity
        placement = capacity.first(self.mode)
        if placement is None:
            return None
        replica = Replica(self, self.numbered, placement, prefills_only)
        self.numbered += 1
        capacity.take(placement, replica)
        self.rerate(replica)
        return replica

    def rerate(self, replica: Replica) -> None:
        """Bring a replica to the speed and the power of its devices."""
        rate, power = math.inf, 0.0
        devices = replica.placement.devices
        for device in devices:
            state = self.state.capacity.of[device.index]
            slowdown = state.slowdown / (1.0 + device.type.preemption.overhead)
            rate = min(rate, state.frequency / slowdown)
            power += state.frequency**3
        replica.run_at(rate, power / len(devices))

    # Requests -------------------------------------------------------------------------------------------------

    def arrived(self, task: Task) -> None:
        row = task.index
        prompt, output = max(1, int(self.prompts[row])), max(1, int(self.outputs[row]))
        names = () if self.names is None else tuple(self.names[row].tolist())
        announced = self.service.max_output
        longest = 0 if announced is None else announced or output
        request = Generation(task, prompt, output, longest, names)
        request.priority = task.priority
        service = self.service
        need = -(-(prompt + (longest if self.batching.reserves else output) - 1) // service.block)
        if need > service.blocks:
            reason = f"needs {need:,} KV blocks, a replica has {service.blocks:,}"
            self.signals.task_ended(task, REJECTED, reason)
            return
        self.requests[row] = request
        self.state.iterating += 1
        if self.clients is not None:
            self.clients.watch(request)
        self.refill()
        self._send(request)
        if service.scaling is not None:
            self._scale()

    def _send(self, request: Generation) -> None:
        """Send a request to a replica that prefills it, or, once it is prefilled elsewhere, to one that decodes it."""
        replicas = self.prefillers if self.service.prefillers and request.source is None else self.replicas
        open_ = [replica for replica in replicas if replica.loaded and not replica.draining]
        if not open_:
            self.lobby[request.row] = request
            return
        chosen = open_[0] if len(open_) == 1 else self.call(self.routing.choose, request, open_, self.random)
        if chosen not in open_:
            raise self.illegal(f"sends {request} to {chosen!r}, which is none of the replicas")
        chosen.enqueue(request)

    def hand_over(self, request: Generation) -> None:
        """Send a prefilled request to a replica that decodes it."""
        assert request.source is not None
        self.batch[request.row] = request.source.launch
        self._send(request)

    def fetch(self, request: Generation, target: Replica) -> None:
        """Move its keys and values: each device of the target fetches its part from one of the source's."""
        source = request.source
        assert source is not None
        pairs = list(zip(source.placement.devices, target.placement.devices, strict=True))
        size = (request.prompt + max(request.made - 1, 0)) * self.service.token_bytes / len(pairs)
        links = self.links
        for sender, receiver in pairs:
            out, latency = links.down(sender)
            into, more = links.up(receiver)
            pipes = [*out, *into]
            latency += more
            if sender.node != receiver.node:
                between, network = links.between(sender.node, receiver.node)
                pipes = [*out, *between, *into]
                latency += network
            way = list(dict.fromkeys(pipes)), latency
            request.flows.append(links.send(way, size, 0.0, self._part_fetched, (request, target)))

    def _part_fetched(self, flow: Flow) -> None:
        request, target = flow.owner
        request.flows.remove(flow)
        if not request.flows:
            request.source.let_go(request)
            target.fetched(request)

    def joined(self, request: Generation, replica: Replica) -> None:
        """A request has joined a replica: the first time, that is its start."""
        row, task = request.row, request.task
        if not request.started:
            request.started = True
            task.state = RUNNING
            self.recorder.start[row] = self.clock._now
            self.recorder.mode[row] = 0
        self.recorder.place[row] = self.recorder.place_code(replica.placement, 0)

    def first_token(self, request: Generation) -> None:
        self.first_tokens[request.row] = self.clock._now + self.service.response_delay

    def gave_way(self, request: Generation, kind: str) -> None:
        self.recorder.detail("preemptions")[request.row] += 1
        self.recorder.detail(f"preemptions_{kind}")[request.row] += 1

    def looked_up(self, request: Generation, tokens: int) -> None:
        """Record how many tokens of its prompt were in the prefix cache when it joined."""
        if not request.made:
            self.recorder.detail("cached_tokens")[request.row] = min(tokens, request.prompt)

    def finished(self, request: Generation, replica: Replica) -> None:
        """A request has ended: it has its last token, or its client has aborted it."""
        recorder, row, now = self.recorder, request.row, self.clock._now
        self.batch[row] = replica.launch
        self.compute[row] = now - recorder.start[row] - request.paused
        self.energy[row] = request.seconds * replica.width * self.watts
        if request.leaves:
            self.aborted(request.task)
            return
        del self.requests[row]
        back = self.service.response_delay
        if back:
            self.answered[row] = None
            self.clock.at(now + back, FINISH, Later(self._delivered, request.task))
        else:
            recorder.finish[row], recorder.status[row] = now, COMPLETED
            self.state.iterating -= 1
            self.signals.generated(request.task)
        if self.service.scaling is not None:
            self._scale()

    def _delivered(self, task: Task) -> None:
        """The client has the last token, unless it has aborted the request meanwhile."""
        row = task.index
        if row not in self.answered:
            return
        del self.answered[row]
        self.recorder.finish[row], self.recorder.status[row] = self.clock._now, COMPLETED
        self.state.iterating -= 1
        self.signals.generated(task)

    def aborted(self, task: Task) -> None:
        """The client has aborted a request that no replica holds any longer."""
        self._unseen(task.index, task.arrival + self.service.timeout)  # a replica notices later than the client left
        self.signals.task_ended(task, ABORTED, f"aborted by its client after {self.service.timeout:g} s")
        if self.service.scaling is not None:
            self._scale()

    def _unseen(self, row: int, end: float) -> None:
        """A first token that is on its way to the client at that time does not arrive there."""
        if self.first_tokens[row] > end:
            self.first_tokens[row] = NAN

    def gone(self, task: Task) -> None:
        """A request ends without its last token: it has lost patience, or its client has aborted it."""
        if task.index in self.answered:
            del self.answered[task.index]
            self.state.iterating -= 1
        request = self.requests.pop(task.index, None)
        if request is not None:
            self.state.iterating -= 1
            if self.lobby.pop(task.index, None) is None and request.state == QUEUED:
                assert request.replica is not None
                request.replica.forget(request)

    # Replicas -------------------------------------------------------------------------------------------------

    def _scale_again(self, _: Timer) -> None:
        self._scale()

    def _scale(self) -> None:
        """Adjust the number of replicas to the load, with at most one change per cooldown."""
        scaling, now = self.service.scaling, self.clock._now
        assert scaling is not None
        kept = [replica for replica in self.replicas if not replica.draining]
        outstanding = sum(replica.outstanding for replica in self.replicas) + len(self.lobby)
        wanted = min(scaling.most, max(scaling.least, math.ceil(outstanding / scaling.target)))
        have = len(kept) + len(self.missing)
        if wanted == have:
            return
        if now < self.changed_at + scaling.cooldown:
            if self.timer.entry < 0:
                self.clock.at(self.changed_at + scaling.cooldown, TIMER, self.timer)
            return
        if wanted > have:
            changed = [self._start() for _ in range(wanted - have)]
        elif self.missing:
            changed = [not self.missing.pop()]
        else:
            changed = [self._drain(kept)]
        if any(changed):
            self.changed_at = now
            if wanted < have - 1 and self.timer.entry < 0:
                self.clock.at(now + scaling.cooldown, TIMER, self.timer)  # one at a time, the next after a cooldown

    def _start(self, prefills_only: bool = False) -> bool:
        """Add a replica: keep one that is draining, or start a new one, which loads the model first."""
        replicas = self.prefillers if prefills_only else self.replicas
        for replica in replicas:
            if replica.draining:
                replica.draining = False
                return True
        new = self._new(prefills_only)
        if new is None:
            return False
        replicas.append(new)
        new.loaded = False
        new.loading_from = self.clock._now
        devices = new.placement.devices
        for device in devices:
            size = self.service.weights / len(devices)
            new.flows.append(self.links.send(self.links.up(device), size, 0.0, self._part_loaded, new))
        return True

    def refill(self) -> None:
        """Replace replicas that failed, as far as there are devices for them."""
        while self.missing and self._start(self.missing[0]):
            self.missing.pop(0)

    def lose(self, devices: list[Device]) -> None:
        """Remove the replicas on failed devices, with all that they held."""
        failed = [replica for replica in [*self.prefillers, *self.replicas]
                  if any(device in devices for device in replica.placement.devices)]  # fmt: skip
        if not failed:
            return
        orphans = dict(self.lobby)
        self.lobby.clear()
        for replica in failed:
            (self.prefillers if replica.prefills_only else self.replicas).remove(replica)
            if not replica.draining:
                self.missing.append(replica.prefills_only)
        for replica in failed:
            orphans.update((request.row, request) for request in replica.fail())
            self.state.capacity.give(replica.placement, replica)
        for row, request in self.requests.items():
            if request.source in failed and row in orphans:
                request.begin_anew(self.clock._now)
            elif request.source in failed:
                assert request.replica is not None
                request.replica.lose_source(request)
        self.refill()
        for row in sorted(orphans):
            if orphans[row].leaves:
                self.cut_off(orphans[row], self.clock._now)
                orphans[row].state = OVER
                self.aborted(orphans[row].task)
            else:
                self._send(orphans[row])

    def _part_loaded(self, flow: Flow) -> None:
        replica = flow.owner
        replica.flows.remove(flow)
        if not replica.flows:
            replica.loaded = True
            replica.load = (replica.loading_from, self.clock._now)
            waiting = list(self.lobby.values())
            self.lobby.clear()
            for request in waiting:
                self._send(request)
            self.rested(replica)

    def _drain(self, kept: list[Replica]) -> bool:
        """Start to remove a replica: the one with the fewest requests (of ties, the newest) gets no new ones.

        Only replicas that have loaded their model count; False, with no change, if there are fewer than two.
        """
        loaded = [replica for replica in kept if replica.loaded]
        if len(loaded) < 2:
            return False
        replica = min(reversed(loaded), key=lambda replica: replica.outstanding)
        replica.draining = True
        self.rested(replica)
        return True

    def rested(self, replica: Replica) -> None:
        """Release the devices of a draining replica once it has finished its requests."""
        resting = replica.loaded and replica.idle and math.isnan(replica.busy_from)
        if replica.draining and resting and replica in self.replicas:
            replica.close(self.clock._now, LAUNCH_COMPLETED)
            self.replicas.remove(replica)
            self.state.capacity.give(replica.placement, replica)
            self.devices_free()
            self.rounds.changed("release")

    # Rows -----------------------------------------------------------------------------------------------------

    def number_launch(self) -> int:
        self.state.last_launch += 1
        return self.state.last_launch

    def write(
        self, replica: Replica, number: int, row: int, served: int, outcome: int, times: tuple[float, ...], busy: float,
        powered: float,
    ) -> None:  # fmt: skip
        """A row of the launches table; one that served no request names the service's first request.

        busy, powered: device-seconds, as they passed and as they would draw as much at nominal power.
        """
        task = row if row >= 0 else int(self.service.rows[0])
        place = self.recorder.place_code(replica.placement, 0)
        self.recorder.period(number, task, served, place, outcome, times, busy, powered * self.watts)

    def close(self, end: float) -> None:
        """Record what is in progress at the end of the run."""
        for replica in [*self.prefillers, *self.replicas]:
            replica.close(end, LAUNCH_RUNNING if self.requests else LAUNCH_COMPLETED)
        for request in self.requests.values():
            if request.started:
                self.cut_off(request, end)
        for row in (*self.requests, *self.answered):
            self._unseen(row, end)

    def cut_off(self, request: Generation, end: float) -> None:
        """Account for a request that has begun and is cut off by the end of the run."""
        replica, row = request.replica, request.row
        if replica is not None and replica.launch >= 0:
            self.batch[row] = replica.launch
        paused = request.paused + (0.0 if math.isnan(request.paused_at) else end - request.paused_at)
        self.compute[row] = max(0.0, end - self.recorder.start[row] - paused)
        seconds = request.seconds if replica is None else replica.part_of(request)
        self.energy[row] = seconds * self.mode.width * self.watts

    def boundary(self) -> None:
        if self.checked:
            self.clock.round_due = True
