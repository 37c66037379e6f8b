"""Keys and values in transfer: between replicas, and to and from the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.engine.flight.links import Flow, Links, Pipe
from hetsim.engine.language.generation import Generation
from hetsim.model.cluster import Device
from hetsim.model.plan import Placement


@dataclass(eq=False)
class KVTransfers:
    """Transfers of keys and values of one service."""

    links: Links
    token_bytes: int

    def fetch(self, request: Generation, target: Any) -> None:
        """Move keys and values to a replica: each target device fetches its own part.

        Both are told at the end: the source lets go of the request, the target has fetched it.
        """
        ways, size = self._ways(request, target)
        for way in ways:
            request.flows.append(self.links.send(way, size, 0.0, done=self._part_fetched, owner=(request, target)))

    def alone(self, request: Generation, target: Any) -> float:
        """Seconds of the transfer over idle links."""
        ways, size = self._ways(request, target)
        return max(Links.alone(way, size) for way in ways)

    def _ways(self, request: Generation, target: Any) -> tuple[list[tuple[list[Pipe], float]], float]:
        """The ways of its parts, and the bytes of each."""
        source = request.source
        assert source is not None
        pairs = _pairs(source.placement.devices, target.placement.devices)
        links, ways = self.links, []
        for sender, receiver in pairs:
            out, latency = links.down(sender)
            into, more = links.up(receiver)
            pipes = [*out, *into]
            latency += more
            if sender.node != receiver.node:
                between, network = links.between(sender.node, receiver.node)
                pipes = [*out, *between, *into]
                latency += network
            ways.append((list(dict.fromkeys(pipes)), latency))  # half duplex: both directions may be one pipe
        return ways, request.stored * self.token_bytes / len(pairs)

    def _part_fetched(self, flow: Flow) -> None:
        request, target = flow.owner
        request.flows.remove(flow)
        if not request.flows:
            request.source.requests.let_go(request)
            target.requests.fetched(request)

    def give_up(self, request: Generation) -> None:
        """Cancel the transfer: the keys and values are no longer needed."""
        for flow in request.flows:
            self.links.cancel(flow)
        request.flows = []

    def copying(self, placement: Placement, tokens: int, up: bool) -> float:
        """Seconds to copy keys and values to or from the host on idle links."""
        size = tokens * self.token_bytes / len(placement.devices)
        links = self.links
        return max(Links.alone(links.up(device) if up else links.down(device), size) for device in placement.devices)


def _pairs(senders: Sequence[Device], receivers: Sequence[Device]) -> list[tuple[Device, Device]]:
    """Pairs of devices that send equal parts, for equal or multiple counts."""
    parts = max(len(senders), len(receivers))
    return [(senders[k * len(senders) // parts], receivers[k * len(receivers) // parts]) for k in range(parts)]
