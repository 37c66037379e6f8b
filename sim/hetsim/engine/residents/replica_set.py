"""The replicas of one service: number, devices, routing, scaling and failures.

A replica occupies its devices until it is given up, one of them fails, or the policy stops it.  Some replicas start
with the run, others when the load rises.  A failed or stopped replica is replaced by a new one, which loads the model
as soon as devices are free.  Free devices are sought when a device fails, comes up or is released, and when a request
arrives.  Requests that no replica accepts yet wait in the `lobby`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.engine.core.policy_errors import call, fitting_without, illegal
from hetsim.engine.core.rounds import Rounds
from hetsim.engine.core.state import RunState, Signals
from hetsim.engine.residents.holder import Holder, HolderType
from hetsim.engine.residents.scaling import Scaler
from hetsim.engine.residents.sight import Sight
from hetsim.errors import PolicyError, Problem, ScenarioError
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.record import LAUNCH_COMPLETED, LAUNCH_LOST
from hetsim.policy.routing import KeptModel, OpenReplicas, WantedReplica


@dataclass(eq=False)
class ReplicaSet:
    """A service with replicas: a fixed number, or a number that a policy scales."""

    state: RunState
    rounds: Rounds
    signals: Signals
    service: Any
    batching: Any
    routing: Any
    scaling: Any  # its policy, where the number of replicas is not fixed
    holder_type: Any  # the class of its replicas
    kinds: Sequence[Any] = field(init=False)
    """`HolderType` of each device type on which its replicas may be, the preferred ones first; set by subclasses."""

    def __post_init__(self) -> None:
        self.clock = self.state.clock
        self.random = self.state.input.random.stream("routing", self.service.name)
        self.requests: dict[int, Any] = {}  # requests that have come and not ended, by row
        self.numbered, self.apart = 0, bool(self.service.prefillers)
        self.replicas: list[Any] = []  # with devices, in order of start; without `prefillers`
        self.prefillers: list[Any] = []
        self._open: dict[Any, Any] = {}
        """Cache of `open_to` (key True: prefill replicas) and of `kept` (by role); each change clears the cache."""
        self.missing: list[bool] = []  # failed replicas that are not replaced yet: True for those that only prefill
        self.unmet: dict[str, int] = {}  # by role or type, replicas wanted besides, for which there were no devices
        self.lobby: dict[int, Any] = {}  # requests that no replica can take yet, by row
        routing = self.routing
        self.sight = Sight(self, routing) if routing.refresh or routing.delay else None
        self.scaler = None if self.service.scaling is None else Scaler(self)
        self.arriving = -1  # row of the request on whose arrival the scaling policy is being queried

    @property
    def all(self) -> list[Any]:
        return [*self.prefillers, *self.replicas]

    def illegal(self, what: str) -> PolicyError:
        return PolicyError(f"{self.service}: its policy {what} (t = {self.clock._now:g} s)")

    def able(self, request: Any, replicas: OpenReplicas) -> OpenReplicas:
        """Return the replicas, among these, whose type can serve a request."""
        return replicas

    def lost(self, orphans: dict[int, Any], lost: Sequence[Any]) -> None:
        """Reset requests after replicas are lost; `orphans`: requests to route again."""

    def close(self, end: float) -> None:
        """Complete the record of all replicas that exist at the end of the run."""
        for replica in self.all:
            replica.close(end)

    def resume(self, request: Any) -> None:
        """Route a request that has no replica, or has lost its replica."""
        self.send(request, False)

    def open_to(self, prefilled: bool) -> OpenReplicas:
        """Return the replicas that accept new or, with `prefilled`, prefilled requests."""
        if (apart := self.apart and not prefilled) not in self._open:
            replicas = self.prefillers if apart else self.replicas
            takes = OpenReplicas([replica for replica in replicas if replica.loaded and not replica.draining])
            for place, replica in enumerate(takes):
                replica.loads, replica.place = takes.loads, place
            self._open[apart] = takes if self.sight is None else self.sight.open_to(takes)
        open_: OpenReplicas = self._open[apart]
        return open_

    def kept(self, prefills: bool) -> int:
        """Count replicas that do not drain: prefill replicas if `prefills`, else others."""
        if (number := self._open.get(role := "prefill" if prefills else "decode")) is None:
            side = self.prefillers if prefills else self.replicas
            number = self._open[role] = sum([not replica.draining for replica in side])
        return int(number)

    def send(self, request: Any, prefilled: bool) -> None:
        """Send a (`prefilled`) request to a replica; if none accepts it, it must wait."""
        open_, sight = self.open_to(prefilled), self.sight
        if sight is not None:
            sight.look(open_)
        if len(self.kinds) > 1:
            open_ = self.able(request, open_)
        if not open_:
            self.lobby[request.row] = request
            return
        chosen = open_[0] if len(open_) == 1 else call(self.state, self.routing.choose, request, open_, self.random)
        if chosen not in open_:
            raise self.illegal(f"sends {request} to {chosen!r}, which is not one of the replicas")
        if sight is not None:
            chosen = chosen.replica
            sight.await_reading()
        chosen.enqueue(request)

    def enter(self, row: int, request: Any) -> None:
        """Route a request that has just arrived."""
        self.requests[row] = request
        if self.missing:
            self.refill()
        self.send(request, False)
        self.scale(row)

    def waiting_for(self, prefills: bool) -> int:
        """Number of requests that no replica can accept yet (`prefills`: to prefill them)."""
        there = self.lobby.values()
        return sum([(one.source is None) is prefills for one in there]) if self.apart else len(there)

    # Starts -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the initial replicas with loaded models, on devices the policy chooses."""
        service = self.service
        for kind in self.kinds:
            for number in range(kind.given.prefillers):
                self._first(kind, number, "disaggregated.prefill", True)
        key = "replicas" if service.scaling is None else "scale.min"
        key = "disaggregated.decode" if service.prefillers else key
        for kind in self.kinds:
            for number in range(kind.given.replicas):
                self._first(kind, number, key, False)
        self._note_lack()
        if self.scaler is not None:
            self.scaler.await_tick()

    def _first(self, kind: HolderType, number: int, key: str, prefills_only: bool) -> None:
        # Those that scale are on whichever kind is free, the others on the one that is given for them.
        anywhere = self.service.scaling is not None and not self.apart
        modes = tuple(one.mode for one in (self.kinds if anywhere else [kind]))
        if (placement := self.signals.place(WantedReplica(self.service, modes, prefills_only, 0))) is not None:
            replica = self._new(placement, prefills_only)
            replica.start(math.nan)
            self.state.loading.idle[replica] = None  # from the beginning
            self.state.loading.there(replica, self.service.start.sources[-1])
            return
        if any(self.state.capacity.first(mode) is not None for mode in modes):
            self.missing.append(prefills_only)  # the policy keeps these devices; it will load the model when it starts
            return
        count = kind.given.prefillers if prefills_only else kind.given.replicas
        gpus = f"{kind.mode.gpus:g} × {kind.mode.type.name}"
        text = f"no node has {gpus} free for replica {number + 1} of {count} of {self.service}"
        others = any(one.holder.fleet is not self for one in self.state.residents.values())
        taken = "; services listed before it are placed first" if others else ""
        hint = "give the cluster more devices, or this service fewer replicas"
        raise ScenarioError(Problem(f"{text}{taken}; {hint}", key=f"{self.service.key}.{key}"))

    def _new(self, placement: Placement, prefills_only: bool) -> Holder:
        kind = next(kind for kind in self.kinds if kind.mode is placement.mode)
        replica: Holder = self.holder_type(
            self, self.numbered, kind, placement=placement, prefills_only=prefills_only
        )
        self.numbered += 1
        launch = replica.launch  # which keeps the devices
        launch.cores = self.state.capacity.take(launch.placement, launch)
        self.state.residents[launch.number] = launch
        self.rerate(replica)
        (self.prefillers if prefills_only else self.replicas).append(replica)
        self._open.clear()
        return replica

    def _start(self, prefills_only: bool, only: HolderType | None = None) -> bool:
        """Start a replica (`only`: of this type) or reopen a draining one; False: no room."""
        for replica in self.prefillers if prefills_only else self.replicas:
            if replica.draining and only in (None, replica.kind):
                replica.start(math.nan)
                self._open.clear()
                return True
        kinds = [kind for kind in self.kinds if (kind.given.prefillers if prefills_only else kind.given.replicas)]
        modes = tuple(kind.mode for kind in ([only] if only is not None else kinds if self.apart else self.kinds))
        wanted = WantedReplica(self.service, modes, prefills_only, len(self.requests))
        placement = self.signals.place(wanted)
        if placement is None and wanted.requests and self._make_room(modes):
            placement = self.signals.place(wanted)
        if placement is None:
            return False
        new = self._new(placement, prefills_only)
        new.loading_from = self.clock._now
        self.state.loading.begin(new)
        cold = self.state.recorder.detail("cold_start")
        rows = [self.arriving] if self.arriving >= 0 else self.lobby
        for row in [one for one in rows if not cold[one]][:1]:
            cold[row] = 1
        return True

    def _make_room(self, modes: tuple[Mode, ...]) -> bool:
        """Evict idle replicas of other services until a mode fits; False if none can."""
        state, nodes, kept = self.state, dict[int, list[Holder]](), dict[KeptModel, Holder]()
        state.loading.idle = {one: None for one in state.loading.idle if one.idle}
        spare = [one for one in state.loading.idle if one.fleet.surplus(one) > 0 and one.fleet is not self]
        # One that has served nothing since its load stays, unless requests have no replica: else two services could
        # evict each other's new replicas without end.
        spare = [one for one in spare if self.lobby or one.idle_since != one.loaded_at]
        if not spare or fitting_without(state, (), modes):
            return False  # nothing is idle, or the scheduler keeps these devices
        for one in sorted(spare, key=lambda one: one.idle_since):
            here = nodes.setdefault(one.node, [])
            alike = sum([(it.fleet, it.prefills_only) == (one.fleet, one.prefills_only) for it in here])
            here += [one] if alike < one.fleet.surplus(one) else []
        for here in nodes.values():
            for one in here if fitting_without(state, [one.launch for one in here], modes) else ():
                kept[KeptModel(one.fleet.service.name, one.kind.weights, one.launch.decided, one.idle_since)] = one
        while kept and not fitting_without(state, (), modes):
            gone = call(state, state.input.eviction.victim, tuple(kept), self.clock._now)
            if gone not in kept:
                raise illegal(state, f"evicts {gone!r}, which is not an idle replica there")
            one = kept.pop(gone)
            kept = {model: other for model, other in kept.items() if other.node == one.node}
            one.fleet.end(one)
            one.fleet.scaler.signals.changed_at = -math.inf  # not its policy's change: no cooldown
            self.rounds.changed("release")  # for tasks, if more devices are released than are used
        return bool(fitting_without(state, (), modes))

    def surplus(self, replica: Holder) -> int:
        """Return how many replicas of its role can be given up; 0 if it is not idle."""
        prefills, scales = replica.prefills_only, self.scaler.roles.values() if self.scaler is not None else ()
        ready = replica.loaded and replica.idle and not replica.draining and prefills in scales
        return self.kept(prefills) - self.service.scaling.min_replicas if ready else 0

    def loaded(self, replica: Holder) -> None:
        """Open a replica whose model has been loaded, and route waiting requests."""
        replica.loaded_at = self.clock._now
        replica.start(replica.loading_from)
        self._open.clear()
        waiting, self.lobby = self.lobby, {}  # taken first: one that still finds no place comes back
        for request in waiting.values():
            self.resume(request)
        self.rested(replica)

    def refill(self) -> None:
        """Replace lost replicas while devices are found for them."""
        while self.missing and self._start(self.missing[0]):
            self.missing.pop(0)
        self._note_lack()

    def offered(self) -> None:
        """Try to start missing replicas, since devices may have become free."""
        if self.missing:
            self.refill()
        if any(self.unmet.values()) and self.scaler is not None:
            self.scaler.changed()

    def _note_lack(self) -> None:
        """Record how many replicas are missing, so that each round tries to place them."""
        lacking, wanting = len(self.missing) + sum(self.unmet.values()), self.state.wanting
        if lacking:
            wanting[self.service.name] = lacking
            self.state.wake_on = "change"
        else:
            wanting.pop(self.service.name, None)

    def _release(self, replica: Holder) -> None:
        launch, replica.loaded = replica.launch, False  # nothing wakes it any more
        self.clock.cancel(launch)
        self.state.loading.stop(replica)
        del self.state.residents[launch.number]
        self.state.capacity.give(launch.placement, launch, launch.cores)

    # Changes ------------------------------------------------------------------------------------------------

    def rerate(self, replica: Holder) -> None:
        """Update the speed and power of a replica from the present state of its devices."""
        rate, power = math.inf, 0.0
        devices = replica.placement.devices
        for device in devices:
            state = self.state.capacity.of[device.index]
            slowdown = state.slowdown / (1.0 + device.type.preemption.overhead)
            rate = min(rate, state.frequency / slowdown)
            power += state.frequency**3  # watts grow so with the frequency
        replica.run_at(rate, power / len(devices))

    def lose(self, lost: list[Holder], outcome: int) -> None:
        """Remove failed or stopped replicas; replace failed ones if devices are free.

        The scheduler may first use the devices of a stopped replica; replicas get them in later rounds.
        """
        lost = [replica for replica in self.all if replica in lost]  # the order of services, not of devices
        if not lost:
            return
        self._open.clear()
        for replica in lost:
            (self.prefillers if replica.prefills_only else self.replicas).remove(replica)
            if not replica.draining:
                self.missing.append(replica.prefills_only)  # one that drains is not replaced
        orphans: dict[int, Any] = {}
        for replica in lost:
            orphans.update((request.row, request) for request in replica.give_up(outcome))
            self._release(replica)
        orphans.update(self.lobby)
        self.lobby.clear()  # they are routed again below, in the order of rows
        self.lost(orphans, lost)
        if outcome == LAUNCH_LOST:
            self.refill()
        for row in sorted(orphans):
            self.resume(orphans[row])
        self._note_lack()

    def scale(self, arrived: int = -1) -> None:
        """Query the scaling policy; `arrived`: row of the request that arrived, else -1."""
        if self.scaler is not None:
            self.arriving = arrived
            self.scaler.changed()
            self.arriving = -1

    def bring(self, name: str, prefills: bool, wanted: int, only: HolderType | None) -> bool | None:
        """Start or drain replicas to reach `wanted`; return True if any replica changed.

        Return None if there are already `wanted` replicas, and False if none could be changed.  `name`: the scaling
        policy's key for this number (a role or a device type); `prefills`: True for replicas that only prefill; `only`:
        the device type, None for any.
        """
        missing = self.missing.count(prefills) if only is None or only is self.kinds[0] else 0
        kept, have = self.prefillers if prefills else self.replicas, missing + self.kept(prefills)
        if only is not None:
            kept = [one for one in kept if one.kind is only]
            have = missing + sum([not one.draining for one in kept])
        if wanted <= have and self.unmet.pop(name, 0):
            self._note_lack()
        if wanted == have:
            return None
        if wanted > have:
            changed = [self._start(prefills, only) for _ in range(wanted - have)]
            self.unmet[name] = changed.count(False)
        else:
            for _ in range(gone := min(missing, have - wanted)):
                self.missing.remove(prefills)
            drained = [self._drain(kept, wanted) for _ in range(have - wanted - gone)]
            changed = [gone > 0, *drained]
        self._note_lack()
        return any(changed)

    def _drain(self, kept: list[Holder], wanted: int) -> bool:
        """Drain the replica of `kept` with the fewest requests; False if none may drain."""
        loaded = [replica for replica in kept if replica.loaded and not replica.draining]
        if len(loaded) < (2 if wanted else 1):
            return False
        longest = self.scaling.follows_idle
        replica = min(reversed(loaded), key=lambda one: (one.outstanding, one.idle_since if longest else 0.0))
        replica.drain()
        self._open.clear()
        self.rested(replica)
        return True

    def rested(self, replica: Holder) -> None:
        """Handle an idle replica: release its devices if it drains, else query the policy."""
        if self.scaler is not None and not replica.draining and replica.idle:
            replica.idle_since, self.state.loading.idle[replica] = self.clock._now, None
            self.scaler.changed(idle=True)
            if self.state.wanting.keys() - {self.service.name} and self.surplus(replica) > 0:
                self.state.serving.refill()  # another service may need its devices
        side = self.prefillers if replica.prefills_only else self.replicas
        if replica.draining and replica.idle and replica in side:
            self.end(replica)
            self.state.serving.refill()  # others may lack a replica
            self.rounds.changed("release")

    def end(self, replica: Holder) -> None:
        """Give up an idle replica and release its devices."""
        self._open.clear()
        (self.prefillers if replica.prefills_only else self.replicas).remove(replica)
        replica.give_up(LAUNCH_COMPLETED)
        self._release(replica)
