"""Transfers of keys and values between replicas, and to and from host memory."""

from typing import Any

from hetsim.engine.flight.links import Flow, Links, Way
from hetsim.engine.language.generation import Generation
from hetsim.engine.residents.replica_set import ReplicaSet
from hetsim.model.plan import Placement


class KVTransfers(ReplicaSet):
    """Base of an LLM service whose replicas send each other requests' keys and values."""

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
