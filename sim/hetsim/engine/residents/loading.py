"""Loading of models into replicas from stores, disks, host memory or GPUs.

A load sends the model in chunks over a chain of links, all of which are busy at the same time, at the rate that the
slowest link allows; each device of a replica receives its own part.  The disk and host memory on the path keep a copy
until a policy evicts it.  If another replica on the same node joins a load, it copies the model from host memory at the
same time; it is loaded when both the load and its copy are complete.  If the first replica of a load, or the replica
from whose GPUs it copies, is given up, the other replicas of the load begin again.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from hetsim.engine.core.policy_errors import call, illegal
from hetsim.engine.flight.data_locations import Way
from hetsim.engine.flight.links import Flow, Pipe
from hetsim.engine.kernel.clock import FINISH, Later
from hetsim.engine.residents.holder import Holder
from hetsim.model.cluster import PLACES
from hetsim.model.service import ReplicaStart
from hetsim.policy.routing import KeptModel


@dataclass(eq=False)
class Load:
    """Transfer of a model to a node, for one replica and others that joined it later."""

    source: str
    giver: Holder | None  # the replica from whose GPUs the model is copied, if any
    replicas: list[Holder] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)


class Loading:
    """The loads in progress, and the models that disks and host memory keep."""

    def __init__(self, state: Any):
        self.state = state
        # Loads under way, and replicas of services that scale which have fallen idle.
        self.loads, self.idle = list[Load](), dict[Holder, None]()
        # Models by place (`disk` or `host`) and node, in the order in which they were loaded.
        self.kept: dict[tuple[str, int], dict[str, KeptModel]] = {}
        # Starts on warm nodes and others, and loads that are over by source, of services that say how they start.
        self.counts: dict[str, int] = {}
        services = *state.input.language, *state.input.services
        self._counted = {one.name for one in services if one.start != ReplicaStart()}
        self._warm: set[tuple[str, int]] = set()  # services and nodes where they have had a replica
        self._pipes: dict[tuple[str, int], Pipe] = {}

    def begin(self, replica: Holder) -> None:
        """Begin to load a replica: first its fixed start time, then its weights."""
        start, clock = replica.fleet.service.start, self.state.clock
        warm = (replica.fleet.service.name, replica.node) in self._warm
        self._count(replica, "starts_warm" if warm else "starts_cold")
        if seconds := start.fixed if start.warm is None or not warm else start.warm:
            replica.timer = Later(self._move, replica)
            clock.at(clock._now + seconds, FINISH, replica.timer)
        else:
            self._move(replica)

    def there(self, replica: Holder, source: str) -> None:
        """Record that a replica's weights came from `source`.

        The disk and host memory of the node keep a copy if they come before `source` in the service's list of sources.
        """
        service, node = replica.fleet.service, replica.node
        self._warm.add((service.name, node))
        for place in service.start.sources[: service.start.sources.index(source)]:
            if "gpu" not in (place, source):
                self._keep(place, service.name, node, replica.kind.weights)

    def _move(self, replica: Holder) -> None:
        """Begin the transfer of a replica's weights, or join a load that is under way."""
        fleet, node = replica.fleet, replica.node
        replica.timer, start = None, fleet.service.start
        places = start.sources
        source = places[0] if len(places) == 1 else next(place for place in places if self._has(place, replica))
        if (kept := self.kept.get((source, node), {}).get(fleet.service.name)) is not None:
            kept.used, kept.uses = self.state.clock._now, kept.uses + 1
        joined = start.share and source not in ("gpu", "host")
        others = ((one, one.replicas[0]) for one in self.loads if joined and one.source == source)
        load = next((one for one, first in others if first.fleet is fleet and first.node == node), None)
        owner: Any = replica
        if load is None:
            owner = load = Load(source, self._giver(replica) if source == "gpu" else None)
            self.loads.append(load)
        load.replicas.append(replica)
        replica.load = load
        ways = self._ways(replica, "host" if owner is replica else source, load.giver)
        size, send = replica.kind.weights / len(ways), self.state.links.send
        owner.flows += [send(way, size, 0.0, done=self._arrived, owner=owner) for way in ways]

    def _arrived(self, flow: Flow) -> None:
        """Handle the end of a transfer of weights; open replicas that now have them all."""
        owner = flow.owner
        owner.flows.remove(flow)
        if owner.flows:
            return
        ready = [owner] if owner not in self.loads and owner.load not in self.loads else []
        if isinstance(owner, Load):
            self.loads.remove(owner)
            ready = [replica for replica in owner.replicas if not replica.flows]
        for replica in ready:
            source = replica.load.source
            self._count(replica, f"loads_{source if source in PLACES else 'store'}")
            self.there(replica, source)
            replica.load = None
            replica.fleet.loaded(replica)

    def stop(self, replica: Holder) -> None:
        """Cancel the load of a replica that is given up; loads that depend on it restart."""
        again: list[Holder] = []
        self.idle.pop(replica, None)
        if replica.timer is not None:
            self.state.clock.cancel(replica.timer)
        for load in [one for one in self.loads if replica in (one.giver, one.replicas[0])]:
            self.loads.remove(load)
            self._cancel(load, *load.replicas)
            again += [one for one in load.replicas if one is not replica]
        if replica.load is not None:
            self._cancel(replica)
            replica.load.replicas.remove(replica)
        for one in again:
            self._move(one)

    def _cancel(self, *owners: Any) -> None:
        for owner in owners:
            for flow in owner.flows:
                self.state.links.cancel(flow)
            owner.flows = []

    # Places and ways from there -------------------------------------------------------------------------------

    def _ways(self, replica: Holder, source: str, giver: Holder | None) -> list[Way]:
        """Return the path to each device: from the source, or from the GPUs of `giver`."""
        cluster, links, devices = self.state.input.cluster, self.state.links, replica.placement.devices
        spec = cluster.nodes[replica.node].spec
        way: Way = (), 0.0
        if giver is not None:
            rate, pairs = spec.nvlink.upload, zip(giver.placement.devices, devices, strict=True)
            return [
                ((self._pipe("out", one.index, rate), self._pipe("in", other.index, rate)), spec.nvlink.latency)
                for one, other in pairs
            ]  # fmt: skip
        if source == "disk":
            way = (self._pipe("disk", replica.node, spec.disk.read),), 0.0
        elif source in (stores := list(cluster.fabric.stores)):
            way = links.between(len(cluster.nodes) + stores.index(source), replica.node)
        ends = [links.up(device) for device in devices]
        return [((*way[0], *pipes), way[1] + latency) for pipes, latency in ends] if way[0] else ends

    def _pipe(self, name: str, number: int, rate: float) -> Pipe:
        return self._pipes.setdefault((name, number), Pipe(name, rate))

    def _has(self, place: str, replica: Holder) -> bool:
        if place == "gpu":
            return self._giver(replica) is not None
        service = replica.fleet.service
        return place == service.start.sources[-1] or service.name in self.kept.get((place, replica.node), ())

    def _giver(self, replica: Holder) -> Holder | None:
        """Return a loaded replica that NVLink connects with this one; or None."""
        if self.state.input.cluster.nodes[replica.node].spec.nvlink.upload == math.inf:
            return None
        island = {device.island for device in replica.placement.devices}
        near = (one for one in replica.fleet.all
                if one.loaded and one.node == replica.node and one.kind is replica.kind)  # fmt: skip
        return next((one for one in near if {device.island for device in one.placement.devices} == island), None)

    def _keep(self, place: str, name: str, node: int, size: int) -> None:
        """Store a model on a node's disk or host memory; evict as the policy chooses."""
        state, now = self.state, self.state.clock._now
        room, models = state.input.cluster.nodes[node].spec.room(place), self.kept.setdefault((place, node), {})
        if name in models or size > room:
            return
        while sum(one.size for one in models.values()) + size > room:
            gone = call(state, state.input.eviction.victim, tuple(models.values()), now)
            if gone not in models.values():
                raise illegal(state, f"evicts {gone!r}, which is not one of the stored models")
            del models[gone.name]
        models[name] = KeptModel(name, size, loaded=now, used=now)

    def lose_host(self, node: int) -> None:
        """Delete the models in the host memory of a node that fails."""
        self.kept.pop(("host", node), None)
        self._warm = {one for one in self._warm if one[1] != node}

    def _count(self, replica: Holder, what: str) -> None:
        if replica.fleet.service.name in self._counted:
            self.counts[what] = self.counts.get(what, 0) + 1
