"""Services of language models: routing, aborting and recording of requests."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.launch import Resident
from hetsim.engine.flight.links import Flow, Links, Way
from hetsim.engine.kernel.clock import FINISH, Later
from hetsim.engine.language.generation import NAN, OVER, QUEUED, Generation
from hetsim.engine.queues.queue import OneByOne
from hetsim.engine.residents.holder import HolderType
from hetsim.engine.residents.replica_set import ReplicaSet
from hetsim.errors import RunError
from hetsim.model.mode import Shape
from hetsim.model.plan import Placement
from hetsim.model.record import ABORTED, COMPLETED, LAUNCH_COMPLETED, LAUNCH_LOST, LAUNCH_RUNNING, REJECTED, STOPS
from hetsim.model.service import LanguageService
from hetsim.model.step_times import StepTimes
from hetsim.model.task import RUNNING, Task
from hetsim.policy.iterating import Foreseen
from hetsim.policy.routing import OpenReplicas


@dataclass(eq=False)
class Fleet(ReplicaSet):
    """One language model service: its requests, router and replicas.

    Lower modules declare replicas (`continuous_batching.Replica`, which calls this class) as `Any`.
    """

    service: LanguageService
    checked: bool  # True if each step boundary is checked for inconsistencies (--check)

    def __post_init__(self) -> None:
        state, service = self.state, self.service
        self.recorder: Any = state.recorder  # a forecast has one that keeps nothing
        pairs = zip(service.shape.modes, service.kinds, strict=True)
        self.kinds = [HolderType(position, *pair) for position, pair in enumerate(pairs)]
        self.largest = _largest(service)  # KV blocks that a request may need at most
        extra = state.tasks.extra
        self.prompts, self.outputs = extra["prompt_tokens"], extra["output_tokens"]
        for kind in self.kinds if len(self.kinds) > 1 else ():
            kind.speed = _speed(kind.given.step, service, self.prompts[service.rows], self.outputs[service.rows])
        self.names = state.tasks.hash_ids if service.prefix_block else None
        details = (self.recorder.detail(name) for name in ("first_token", "batch", "compute", "energy"))
        self.first_tokens, self.batch, self.compute, self.energy = details
        several = state.input.calls is not None  # then results ask what each attempt took
        # device-seconds of finished requests, by row
        self.received: Any = self.recorder.detail("received") if several else array("d", bytes(8 * len(state.tasks)))
        self.answered: dict[int, Task] = {}  # requests with the last token on its way to the client
        self.coming = OneByOne(len(service.rows))  # requests that have come to the replicas, and those to come
        super().__post_init__()

    # Their way ----------------------------------------------------------------------------------------------

    def arrived(self, task: Task) -> None:
        row = task.index
        prompt, output = int(self.prompts.item(row)) or 1, int(self.outputs.item(row)) or 1
        names = () if self.names is None else tuple(self.names[row].tolist())
        announced = self.service.max_output
        longest = 0 if announced is None else announced or output
        request = Generation(task, prompt, output, longest=longest, hashes=names)
        service = self.service
        need = -(-(prompt + (longest if self.batching.reserves else output) - 1) // service.block)
        if need > self.largest:
            reason = f"needs {need:,} KV blocks, a replica has {self.largest:,}"
            self.signals.task_ended(task, REJECTED, reason)
            return
        request.need = need
        self.coming.join(self.clock._now)
        self.state.iterating += 1
        self.enter(row, request)

    def able(self, request: Generation, replicas: OpenReplicas) -> OpenReplicas:
        return OpenReplicas([replica for replica in replicas if replica.blocks >= request.need])

    def hand_over(self, request: Generation) -> None:
        self.batch[request.row] = request.source.stage.launch
        self.send(request, True)
        self.scale(request.row)

    def lost(self, orphans: dict[int, Generation], lost: Sequence[Any]) -> None:
        for row, request in self.requests.items():
            if request.source in lost and row in orphans:
                request.begin_anew(self.clock._now)  # its keys and values were on the lost replica
            elif request.source in lost:
                request.replica.lose_source(request)

    def resume(self, request: Generation) -> None:
        if request.leaves:
            self.cut_off(request, self.clock._now)
            request.state = OVER
            self.aborted(request.task)
        else:
            self.send(request, request.source is not None)

    # What becomes of them -----------------------------------------------------------------------------------

    def drops(self, request: Generation) -> bool:
        return self.signals.drops is not None and self.signals.drops(request.task)

    def joined(self, request: Generation, replica: Any) -> None:
        row, task = request.row, request.task
        if not request.started:
            request.started = True
            self.recorder.start[row] = self.clock._now
        task.state = RUNNING
        task._launch = replica.launch
        if request.kind is not replica.kind:
            self.recorder.mode[row] = replica.kind.position
            if request.kind is not None:  # it goes on with another type of device
                seconds, request.seconds = request.seconds, 0.0  # its seconds count by the watts of each type
                request.joules, request.earlier = request.energy(seconds), request.received(seconds)
            request.kind = replica.kind
        self.recorder.place[row] = self.recorder.place_code(replica.placement, 0)

    def first_token(self, request: Generation) -> None:
        self._shown(request.replica, self._show_first, request)

    def _shown(self, replica: Any, show: Callable[[Generation], None], request: Generation) -> None:
        """Call `show(request)` now, or after the replica's next step if async_scheduling."""
        if self.service.async_scheduling:
            replica.unseen.append((show, request))
        else:
            show(request)

    def _show_first(self, request: Generation) -> None:
        row = request.row
        if math.isnan(self.first_tokens[row]) and (row in self.requests or row in self.answered):
            self.first_tokens[row] = time = self.clock._now + self.service.response_delay
            if (scaler := self.scaler) is not None:
                scaler.first.note(self.clock._now, time - request.arrival)

    def gave_way(self, request: Generation, kind: str) -> None:
        self.recorder.detail(STOPS)[request.row] += 1
        self.recorder.detail(f"preemptions_{kind}")[request.row] += 1

    def looked_up(self, request: Generation, tokens: int) -> None:
        if not request.made:
            self.recorder.detail("cached_tokens")[request.row] = min(tokens, request.prompt)

    def finished(self, request: Generation, replica: Any) -> None:
        recorder, row, now = self.recorder, request.row, self.clock._now
        self.batch[row] = replica.stage.launch
        self.compute[row] = now - recorder.start[row] - request.paused
        self.energy[row], self.received[row] = request.energy(request.seconds), request.received(request.seconds)
        if request.leaves:
            self.aborted(request.task)
            return
        del self.requests[row]
        self.answered[row] = request.task  # its client may still abort it on its way
        self._shown(replica, self._show_last, request)

    def _show_last(self, request: Generation) -> None:
        row, now, back = request.row, self.clock._now, self.service.response_delay
        if row not in self.answered:
            return
        self._show_first(request)  # if it came from another replica, of which the next step has not ended
        if back:
            self.clock.at(now + back, FINISH, Later(self._delivered, request.task))
        else:
            self._delivered(request.task)
        if (scaler := self.scaler) is not None:
            if request.output > 1:
                scaler.further.note(now, (now + back - self.first_tokens[row]) / (request.output - 1))
            scaler.changed()

    def _delivered(self, task: Task) -> None:
        """Complete a request whose client has its last token, unless it was aborted."""
        row = task.index
        if row not in self.answered:
            return
        del self.answered[row]
        self.recorder.finish[row], self.recorder.status[row] = self.clock._now, COMPLETED
        self.state.iterating -= 1
        self.signals.generated(task)

    def abort(self, task: Task) -> None:
        """Abort an unfinished request; if it takes part in a step, it leaves afterwards."""
        row = task.index
        request = self.requests.get(row)
        if request is None:
            self.aborted(task)
            return
        replica, request.leaves = request.replica, True
        if replica is not None and replica.abort(request):
            return
        source = request.source
        if request.started:
            self.cut_off(request, self.clock._now)
        self.aborted(task)
        if source is not None and row in source.held:
            source.let_go(request)

    def aborted(self, task: Task) -> None:
        """End a request as aborted, after it has been removed from all replicas."""
        self.signals.task_ended(task, ABORTED, self.recorder.reasons[task.index])
        self.scale()

    def never(self) -> None:
        """Reduce the number of requests to come by one: a request will not arrive."""
        self.coming.total -= 1

    def gone(self, task: Task) -> bool:
        """Forget a request that ends early; return False, since no queue has it."""
        request = self.requests.pop(task.index, None)
        if request is None and self.answered.pop(task.index, None) is None:
            self.never()
            return False
        self.state.iterating -= 1
        if request is None:
            return False
        if self.lobby.pop(task.index, None) is None and request.state == QUEUED:
            request.replica.forget(request)
        if request.started and not request.leaves:  # the scheduler rejects one that waits again
            self.cut_off(request, self.clock._now)
            if request.source is not None:
                request.source.let_go(request)
        return False

    # Keys and values -------------------------------------------------------------------------------------------------

    def fetch(self, request: Generation, target: Any) -> None:
        """Send a request's keys and values to a replica, one part per pair of devices.

        When the last part arrives, the sender frees the request's blocks, and the receiver can decode the request.
        """
        (ways, size), send = self._ways(request, target), self.state.links.send
        request.flows = [send(way, size, 0.0, done=self._part_fetched, owner=(request, target)) for way in ways]

    def seconds_alone(self, request: Generation, target: Any) -> float:
        """Return the seconds of a request's transfer to a replica on idle links."""
        ways, size = self._ways(request, target)
        return max(Links.alone(way, size) for way in ways)

    def _ways(self, request: Generation, target: Any) -> tuple[list[Way], float]:
        """Return the path of each part of a request's KV data, and the bytes per part."""
        links, ways = self.state.links, list[Way]()
        senders, receivers = request.source.placement.devices, target.placement.devices
        parts = max(len(senders), len(receivers))
        for part in range(parts):
            sender, receiver = senders[part * len(senders) // parts], receivers[part * len(receivers) // parts]
            out, latency = links.down(sender)
            into, more = links.up(receiver)
            pipes = [*out, *into]
            latency += more
            if sender.node != receiver.node:
                between, network = links.between(sender.node, receiver.node)
                pipes = [*out, *between, *into]
                latency += network
            ways.append((tuple(dict.fromkeys(pipes)), latency))  # half duplex: both directions may be one pipe
        return ways, request.stored * self.service.token_bytes / parts

    def _part_fetched(self, flow: Flow) -> None:
        request, target = flow.owner
        request.flows.remove(flow)
        if not request.flows:
            request.source.let_go(request)
            target.fetched(request)

    def cancel_fetch(self, request: Generation) -> None:
        """Cancel the transfers of a request whose keys and values are not needed any more."""
        for flow in request.flows:
            self.state.links.cancel(flow)
        request.flows = []

    def copying(self, placement: Placement, tokens: int, up: bool) -> float:
        """Return the seconds to copy KV data from the host (`up`) or to it, on idle links."""
        size = tokens * self.service.token_bytes / len(placement.devices)
        links = self.state.links
        return max(Links.alone(links.up(device) if up else links.down(device), size) for device in placement.devices)

    # Rows ---------------------------------------------------------------------------------------------------

    def number_launch(self) -> int:
        self.state.last_launch += 1
        return self.state.last_launch

    def close(self, end: float) -> None:
        """Write the rows of replicas and requests that are unfinished at the run's end."""
        for replica in self.all:
            replica.close(end, LAUNCH_RUNNING if self.requests else LAUNCH_COMPLETED)
        for request in self.requests.values():
            if request.started:
                self.cut_off(request, end)
        for row in (*self.requests, *self.answered):
            if self.first_tokens[row] > end:  # the client did not receive the token
                self.first_tokens[row] = NAN

    def cut_off(self, request: Generation, end: float) -> None:
        """Record the partial work of a started request at an abort or the run's end."""
        request.task._launch = None
        replica, row = request.replica, request.row
        if replica is not None and replica.stage.launch >= 0:
            self.batch[row] = replica.stage.launch
        self.compute[row] = self.in_steps(request, end)
        seconds = request.seconds if replica is None else replica.sequences.part_of(request)
        self.energy[row], self.received[row] = request.energy(seconds), request.received(seconds)

    # What views and policies ask ----------------------------------------------------------------------------

    def foresee(self, replica: Any, newcomer: Generation | None) -> Foreseen:
        return self.signals.foresee(replica, newcomer)

    def in_steps(self, request: Generation | None, end: float) -> float:
        """Return how long (s) a request took part in steps by `end`; 0 if it never did."""
        if request is None or not request.started:
            return 0.0
        until = end if math.isnan(request.paused_at) else request.paused_at
        return max(0.0, until - self.recorder.start[request.row] - request.paused)

    def received_by(self, row: int) -> float:
        """Return the device-seconds of a request: its share of each step that it was in."""
        request = self.requests.get(row)
        if request is None or not request.started:
            return self.received[row]
        replica = request.replica
        return request.received(request.seconds if replica is None else replica.seconds_of(request))


class Serving:
    """All services of a run that have replicas; `fleets`: those of language models."""

    def __init__(self, state: RunState, rounds: Rounds, signals: Signals, checked: bool, replicas: Any):
        """`checked`: check step boundaries (--check); `replicas`: class of LLM replicas."""
        run = state.input
        self.state = state
        self._offered = -1  # releases of devices when these were offered last
        self.fleets: dict[Shape, Fleet] = {}
        for service, (batching, routing, scaling) in zip(run.language, run.iteration, strict=True):
            self.fleets[service.shape] = Fleet(
                state, rounds, signals, service=service, batching=batching, routing=routing, scaling=scaling,
                holder_type=replicas, checked=checked
            )  # fmt: skip
        self.sets: list[Any] = list(self.fleets.values())  # and those that form batches, in the order of services

    def lose(self, launches: list[Resident], outcome: int = LAUNCH_LOST) -> None:
        """Remove and replace replicas; `outcome`: LAUNCH_LOST (failed) or LAUNCH_STOPPED."""
        for one in self.sets:
            one.lose([launch.holder for launch in launches if launch.holder.fleet is one], outcome)

    def refill(self) -> None:
        """Start missing replicas of each service, since devices may be free or up again."""
        for one in self.sets:
            one.offered()
        self._offered = self.state.capacity.releases

    def offer(self) -> None:
        """At the begin of a round, start missing replicas if devices were released."""
        if self.state.capacity.releases != self._offered:
            self.refill()

    def waiting(self, row: int) -> Task | None:
        """Return the request of a row if it waits for its first step, else None."""
        requests = (fleet.requests.get(row) for fleet in self.fleets.values())
        return next((one.task for one in requests if one is not None and not one.started), None)

    def unanswered(self) -> RunError:
        """Return the error for requests that would wait for ever."""
        missing = sum(len(one.missing) for one in self.sets)
        lack = "of their replicas have failed or were not started, and no devices become free"
        why = f"; {missing} {lack}" if missing else ""
        count = sum(len(one.requests) for one in self.sets)
        return RunError(f"{count} requests wait for replicas, and no event is left that could serve them{why}")

    def defects(self) -> list[str]:
        return [text for one in self.sets for replica in one.all for text in replica.defects()]


def _speed(steps: StepTimes, service: LanguageService, prompt: np.ndarray, output: np.ndarray) -> float:
    """Return tokens per second in full batches of requests of these lengths."""
    decoding = float((output - 1.0).mean()) / service.max_sequences
    filled = float((prompt + output - 1.0).mean()) / (service.max_num_batched_tokens or math.inf)
    seconds = steps.demand(prompt, output, service.max_sequences)[2] + steps.fixed * max(decoding, filled)
    return float((prompt + output).mean()) / seconds if seconds > 0 else 1.0


def _largest(service: LanguageService) -> int:
    """Return the largest request (KV blocks) that both prefill and decode can serve."""
    sides = [[kind.blocks for kind in service.kinds if kind.replicas or service.scaling is not None]]
    if service.prefillers:
        sides.append([kind.blocks for kind in service.kinds if kind.prefillers])
    return min(max(side) for side in sides)
