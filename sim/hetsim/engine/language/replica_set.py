"""The replicas of one service: their number, their devices, and failures.

A replica takes its devices at the start of the run, or when load calls for it, and keeps them until it is given up,
one of them fails or the policy stops it.  In its place another starts and loads the model, as soon as devices are free:
they are looked for when one fails, when a device comes up or is released, and when a request arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.flight.links import Flow
from hetsim.engine.kernel.clock import TIMER, Later
from hetsim.engine.language.continuous_batching import Replica
from hetsim.engine.language.generation import Generation
from hetsim.engine.language.kinds import ReplicaType
from hetsim.engine.language.service_calls import ServiceCalls
from hetsim.errors import Problem, ScenarioError
from hetsim.model.plan import Placement
from hetsim.model.record import LAUNCH_COMPLETED, LAUNCH_LOST, LAUNCH_STOPPED
from hetsim.policy.iterating import OpenReplicas, WantedReplica


class ReplicaSet:
    """The replicas of a service: a fixed number, or as the load requires."""

    def __init__(
        self, fleet: ServiceCalls, state: RunState, rounds: Rounds, signals: Signals, devices_free: Callable[[], None]
    ):  # fmt: skip
        """`devices_free`: called when a replica gives devices back."""
        self.fleet = fleet
        self.state = state
        self.capacity = state.capacity
        self.clock = state.clock
        self.rounds = rounds
        self.signals = signals
        self.devices_free = devices_free
        self.service = fleet.service
        self.kinds: list[ReplicaType] = fleet.kinds
        self.numbered = 0
        self.replicas: list[Replica] = []
        """Replicas with devices, in the order of their start; if prefill is separate, only those that decode."""
        self.prefillers: list[Replica] = []
        self._open: dict[bool, OpenReplicas] = {}
        """Replicas that take requests, by whether to decode only; emptied when one changes."""
        self.missing: list[bool] = []
        """Failed replicas that are not replaced yet: True for those that only prefill."""
        self.unmet = 0
        """Replicas that the load calls for besides, and for which there were no devices."""
        self.changed_at = -math.inf
        self.timer = Later(self.scale)

    @property
    def all(self) -> list[Replica]:
        return [*self.prefillers, *self.replicas]

    def open_to(self, prefilled: bool) -> OpenReplicas:
        """Replicas that take requests: those that prefill, or those that decode."""
        apart = bool(self.service.prefillers) and not prefilled
        if apart not in self._open:
            replicas = self.prefillers if apart else self.replicas
            takes = OpenReplicas([replica for replica in replicas if replica.loaded and not replica.draining])
            for place, replica in enumerate(takes):
                replica.requests.loads, replica.requests.place = takes.loads, place
            self._open[apart] = takes
        return self._open[apart]

    # Starts -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first replicas, model loaded, where the policy places them."""
        service = self.service
        for kind in self.kinds:
            for number in range(kind.prefillers):
                self._first(kind, number, "disaggregated.prefill", True)
        key = "replicas" if service.autoscale is None else "autoscale.min"
        key = "disaggregated.decode" if service.prefillers else key
        for kind in self.kinds:
            for number in range(kind.replicas):
                self._first(kind, number, key, False)
        self._note_lack()

    def _first(self, kind: ReplicaType, number: int, key: str, prefills_only: bool) -> None:
        # Those that scale are on whichever kind is free, the others on the one that is given for them.
        modes = tuple(one.mode for one in (self.kinds if self.service.autoscale is not None else [kind]))
        placement = self.signals.place(WantedReplica(self.service, modes, prefills_only, 0))
        if placement is not None:
            self._add(self._new(placement, prefills_only))
            return
        if any(self.capacity.first(mode) is not None for mode in modes):
            self.missing.append(prefills_only)  # the policy keeps these devices; it will load the model when it starts
            return
        count = kind.prefillers if prefills_only else kind.replicas
        gpus = f"{kind.mode.gpus:g} × {kind.mode.type.name}"
        text = f"replica {number + 1} of {count} of {self.service} finds no node with {gpus} free"
        others = self.state.input.language
        taken = "; services that stand before it take theirs first" if self.service is not others[0] else ""
        hint = "give the cluster more devices, or this service fewer replicas"
        raise ScenarioError(Problem(f"{text}{taken}; {hint}", key=f"{self.service.key}.{key}"))

    def _new(self, placement: Placement, prefills_only: bool) -> Replica:
        kind = next(kind for kind in self.kinds if kind.mode is placement.mode)
        replica = Replica(self.fleet, self.numbered, kind, placement=placement, prefills_only=prefills_only)
        self.numbered += 1
        launch = replica.launch  # which keeps the devices
        launch.cores = self.capacity.take(launch.placement, launch)
        self.state.residents[launch.number] = launch
        self.rerate(replica)
        return replica

    def _add(self, replica: Replica) -> None:
        (self.prefillers if replica.prefills_only else self.replicas).append(replica)
        self._open.clear()

    def _start(self, prefills_only: bool = False) -> bool:
        """Add a replica: keep one that was to be given up, or load the model on another."""
        replicas = self.prefillers if prefills_only else self.replicas
        for replica in replicas:
            if replica.draining:
                replica.draining = False
                self._open.clear()
                return True
        apart = self.service.prefillers
        kinds = [kind for kind in self.kinds if (kind.prefillers if prefills_only else kind.replicas)]
        modes = tuple(kind.mode for kind in (kinds if apart else self.kinds))
        placement = self.signals.place(WantedReplica(self.service, modes, prefills_only, len(self.fleet.requests)))
        if placement is None:
            return False
        new = self._new(placement, prefills_only)
        new.loaded = False
        self._add(new)
        new.loading_from = self.clock._now
        devices = new.placement.devices
        links = self.state.links
        for device in devices:
            size = new.kind.weights / len(devices)
            new.flows.append(links.send(links.up(device), size, 0.0, done=self._part_loaded, owner=new))
        return True

    def _part_loaded(self, flow: Flow) -> None:
        replica = flow.owner
        replica.flows.remove(flow)
        if not replica.flows:
            replica.loaded = True
            self._open.clear()
            replica.periods.load = (replica.loading_from, self.clock._now)
            self.fleet.send_waiting()
            self.rested(replica)

    def refill(self) -> None:
        """Replace failed replicas as far as devices are free."""
        while self.missing and self._start(self.missing[0]):
            self.missing.pop(0)
        self._note_lack()

    def offered(self) -> None:
        """Note that devices may have become free for missing replicas."""
        if self.missing:
            self.refill()
        if self.unmet:
            self.scale()

    def _note_lack(self) -> None:
        """Ask the policy in every round where to start replicas that are lacking."""
        lacking, wanting = len(self.missing) + self.unmet, self.state.wanting
        if lacking:
            wanting[self.service.name] = lacking
            self.state.wake_on = "change"
        else:
            wanting.pop(self.service.name, None)

    def _release(self, replica: Replica) -> None:
        launch = replica.launch
        del self.state.residents[launch.number]
        self.capacity.give(launch.placement, launch, launch.cores)

    # Changes ------------------------------------------------------------------------------------------------

    def rerate(self, replica: Replica) -> None:
        """Bring a replica to the speed and the power of its devices."""
        replica.foreseen = None
        rate, power = math.inf, 0.0
        devices = replica.placement.devices
        for device in devices:
            state = self.capacity.of[device.index]
            slowdown = state.slowdown / (1.0 + device.type.preemption.overhead)
            rate = min(rate, state.frequency / slowdown)
            power += state.frequency**3
        power /= len(devices)
        if (rate, power) != (replica.stage.rate, replica.stage.power):
            replica.split()
            replica.stage.run_at(rate, power)

    def lose(self, failed: list[Replica]) -> None:
        """Handle failed devices: all that their replicas had is lost."""
        self._give_up(failed, LAUNCH_LOST)

    def stop(self, replica: Replica) -> None:
        """Stop a replica; its policy gets the devices first, others in rounds."""
        self._give_up([replica], LAUNCH_STOPPED)
        self._note_lack()

    def _give_up(self, lost: list[Replica], outcome: int) -> None:
        lost = [replica for replica in self.all if replica in lost]  # the order of services, not of devices
        if not lost:
            return
        self._open.clear()
        for replica in lost:
            (self.prefillers if replica.prefills_only else self.replicas).remove(replica)
            if not replica.draining:
                self.missing.append(replica.prefills_only)
        orphans: dict[int, Generation] = {}
        for replica in lost:
            orphans.update((request.row, request) for request in replica.give_up(outcome))
            self._release(replica)
        self.fleet.orphaned(orphans, lost, refill=outcome == LAUNCH_LOST)

    def scale(self) -> None:
        """Scale to the load, with at most one change per cooldown."""
        scaling, now = self.service.autoscale, self.clock._now
        if scaling is None:
            return
        kept = [replica for replica in self.replicas if not replica.draining]
        outstanding = sum(replica.outstanding for replica in self.replicas) + len(self.fleet.lobby)
        wanted = min(scaling.max_replicas, max(scaling.min_replicas, math.ceil(outstanding / scaling.target)))
        have = len(kept) + len(self.missing)
        if wanted <= have and self.unmet:
            self.unmet = 0
            self._note_lack()
        if wanted == have:
            return
        if now < self.changed_at + scaling.cooldown:
            if self.timer.entry < 0:
                self.clock.at(self.changed_at + scaling.cooldown, TIMER, self.timer)
            return
        if wanted > have:
            changed = [self._start() for _ in range(wanted - have)]
            self.unmet = changed.count(False)
            self._note_lack()
        elif self.missing:
            changed = [not self.missing.pop()]
            self._note_lack()
        else:
            changed = [self._drain(kept)]
        if any(changed):
            self.changed_at = now
            if wanted < have - 1 and self.timer.entry < 0:
                self.clock.at(now + scaling.cooldown, TIMER, self.timer)  # one at a time, the next after a cooldown

    def _drain(self, kept: list[Replica]) -> bool:
        """Drain the replica with the fewest requests (the newest of equals).

        It releases its devices when it is idle.  False, with no change, if fewer than two have loaded their model.
        """
        loaded = [replica for replica in kept if replica.loaded]
        if len(loaded) < 2:
            return False
        replica = min(reversed(loaded), key=lambda replica: replica.outstanding)
        replica.draining = True
        self._open.clear()
        self.rested(replica)
        return True

    def rested(self, replica: Replica) -> None:
        """Give back the devices of a closing replica that has nothing left to do."""
        if not replica.draining:
            return
        resting = replica.loaded and replica.requests.idle and not replica.periods.busy
        if resting and replica in self.replicas:
            replica.close(self.clock._now, LAUNCH_COMPLETED)
            self.replicas.remove(replica)
            self._release(replica)
            self.devices_free()
            self.rounds.changed("release")
