"""Bytes on links: fluid transfers share every link they cross, max-min fairly.

A transfer waits for its latency, then its bytes flow over its pipes (link directions) at one rate.  Transfers that are
coupled by shared pipes form a group; a group has one pending event, its next completion.  A transfer alone on its pipes
may be booked (`Links.book`): its end is known and needs no event until another transfer uses one of its pipes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappush
from typing import Any, NamedTuple

from hetsim.engine.kernel.clock import FINISH, Clock, Timer
from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.mode import Mode


@dataclass(slots=True, eq=False)
class Pipe:
    """One direction of a link (half duplex: both), whose bytes/s are shared fairly."""

    name: str
    rate: float
    group: "FlowGroup | None" = None
    booked: "Flow | None" = None  # last transfer booked on the pipe; it is over if its end has passed

    @staticmethod
    def fill_copies(pipes: "list[Pipe]", copies: "list[Pipe]", all_of: Callable[[list[Any]], list[Any]]) -> None:
        """Fill a fork's empty pipes `copies` from `pipes`; `all_of` copies a list."""
        groups, booked = all_of([pipe.group for pipe in pipes]), all_of([pipe.booked for pipe in pipes])
        for old, new, group, flow in zip(pipes, copies, groups, booked, strict=True):
            new.name, new.rate, new.group, new.booked = old.name, old.rate, group, flow


Way = tuple[tuple[Pipe, ...], float]  # a path: its link directions, and its latency


class Flow(Timer):
    """A transfer in progress; `done(flow)` is called when its last byte has arrived."""

    __slots__ = (
        "pipes", "left", "rate", "most", "done", "owner", "group", "ended", "since", "until", "turn", "called",
    )  # fmt: skip

    def __init__(self, pipes: tuple[Pipe, ...], size: float, done: "Callable[[Flow], None]", owner: Any):
        self.entry = -1
        self.then = None
        self.pipes = pipes
        self.left = size
        self.rate = 0.0
        rate = math.inf
        for pipe in pipes:
            if pipe.rate < rate:
                rate = pipe.rate
        self.most = rate  # its rate if it is alone on its pipes
        self.done = done
        self.owner = owner
        self.group: FlowGroup | None = None
        self.ended = False
        self.since = 0.0  # when it begins to flow, if it is booked
        # order of its begin among the events of that instant; `called`: when that was decided
        self.turn = self.called = math.inf
        self.until = math.inf  # end of a booked flow, unless another flow uses its pipes before

    def there(self, now: float, called: float) -> bool:
        """Return True if this booked transfer is still under way when another one begins.

        A booked transfer has a known end, and no event for it.  `called`: time of the decision to begin the other
        transfer.  A transfer that ends exactly `now` is still under way only if it began after `called`: if both had
        events, the other transfer would begin before this one ends.
        """
        return self.until > now or (self.until == now and called < self.since and self.owner is not None)


class FlowGroup(Timer):
    """Transfers coupled by shared pipes, and their one pending event."""

    __slots__ = ("flows", "updated", "next")

    def __init__(self, then: Callable[[Any], None], now: float):
        self.entry = -1
        self.then = then
        self.flows: list[Flow] = []
        self.updated = now
        self.next: list[Flow] = []


def fair_rates(flows: list[Flow]) -> None:
    """Set max-min fair rates by progressive filling, the tightest pipe first.

    Reference: Bertsekas, Gallager, Data Networks (1992), ch. 6.5.2.  Cost: O(pipes × flows).
    """
    if len(flows) == 2:
        one, two = flows
        joint_rate = 2.0 * (one.most if one.most > two.most else two.most)
        for pipe in one.pipes:
            if pipe.rate < joint_rate and pipe in two.pipes:
                break
        else:  # half of each shared pipe is enough for each flow, so neither delays the other
            one.rate, two.rate = one.most, two.most
            return
    users: dict[Pipe, list[Flow]] = {}
    for flow in flows:
        flow.rate = -1.0
        for pipe in flow.pipes:
            users.setdefault(pipe, []).append(flow)
    free_rate = {pipe: pipe.rate for pipe in users}  # rate left by the flows that have their rate
    count = {pipe: len(on) for pipe, on in users.items()}  # flows without a rate yet, by pipe
    todo = len(flows)
    while todo:
        tightest, share = None, math.inf
        for pipe, number in count.items():
            if number and free_rate[pipe] / number < share:  # among equally tight pipes the first
                tightest, share = pipe, free_rate[pipe] / number
        assert tightest is not None
        # Its flows without a rate get equal shares, which are subtracted from their other pipes.
        for flow in users[tightest]:
            if flow.rate < 0:
                flow.rate = share
                todo -= 1
                for pipe in flow.pipes:
                    rest = free_rate[pipe] - share
                    free_rate[pipe] = rest if rest > 0.0 else 0.0  # rounding may go below 0
                    count[pipe] -= 1


class LinkPath(NamedTuple):
    """The path between an accelerator and its host, in one direction."""

    rate: float
    latency: float
    private: bool  # True if nothing else can use it while the accelerator's copy engine serves a launch


class Links:
    """All links of a cluster, one `Pipe` per direction, and the transfers on them."""

    def __init__(self, cluster: Cluster, clock: Clock, modes: Sequence[Mode] = (), items: bool = True):
        self.clock = clock
        self.moved = 0.0  # bytes sent over links so far
        # Bound once: an event a transfer would otherwise make a method object each.
        self._then_unbook: Any = self.unbook
        self._then_join: Any = self._join
        self._then_complete: Any = self._complete
        self.unsure: Any = None  # called with a booked flow when its end is no longer known
        self.up_lines: dict[int, LinkPath] = {}
        self.down_lines: dict[int, LinkPath] = {}
        parted = {mode.type for mode in modes if mode.gpus and not mode.whole_devices}
        unique: dict[Way, Way] = {}
        self._up: dict[int, Way] = {}
        self._down: dict[int, Way] = {}
        self._out: list[Pipe] = []
        self._in: list[Pipe] = []
        self._network_latency = [node.spec.network.latency for node in cluster.nodes]
        for node in cluster.nodes:
            up, down = self._pair(node.name, node.spec.network)
            self._out.append(up)
            self._in.append(down)
            switches: dict[int, tuple[Pipe, Pipe]] = {}
            for device in node.accelerators:
                kind, latency = device.type, device.type.link.latency
                pairs = [self._pair(device.name, kind.link)]
                if (switch := device.switch) is not None:
                    if switch not in switches:
                        switches[switch] = self._pair(f"{node.name}/switch{switch}", node.spec.switch)
                    pairs.append(switches[switch])
                    latency += node.spec.switch.latency
                # Items use the download path at the same time as downloads, and both directions of a half-duplex link
                # are in use at once where several launches are in flight.
                one_way = pairs[0][0] is pairs[0][1] and pairs[0][0].rate < math.inf
                crowded = one_way and (kind.streams > 1 or kind in parted or items)
                sides = (self._up, self.up_lines, True), (self._down, self.down_lines, not items)
                for (ways, lines, free), pipes in zip(sides, zip(*pairs, strict=True), strict=True):
                    finite = tuple(pipe for pipe in pipes if pipe.rate < math.inf)  # others delay no transfer
                    way = finite, latency
                    ways[device.index] = unique.setdefault(way, way)  # equal ones are one object
                    private = not finite or (free and not crowded and finite == pipes[:1])
                    rate = min([pipe.rate for pipe in finite], default=math.inf)
                    lines[device.index] = LinkPath(rate, latency, private)

        for name, rate in cluster.fabric.stores.items():  # behind the nodes, as some that only send
            self._out.append(Pipe(name, rate))
            self._network_latency.append(0.0)

    @staticmethod
    def _pair(name: str, link: Any) -> tuple[Pipe, Pipe]:
        up = Pipe(f"{name}:up", link.upload)
        return (up, up) if link.duplex == "half" else (up, Pipe(f"{name}:down", link.download))

    def up(self, device: Device) -> Way:
        """Return the link directions and the latency of the path from host to device."""
        return self._up[device.index]

    def down(self, device: Device) -> Way:
        return self._down[device.index]

    def between(self, source: int, target: int) -> Way:
        """Return pipes and latency of the path from a node or store to a node's memory."""
        pipes = tuple([pipe for pipe in (self._out[source], self._in[target]) if pipe.rate < math.inf])
        return pipes, self._network_latency[source] + self._network_latency[target]

    @staticmethod
    def alone(way: Way, size: float) -> float:
        """Return the seconds for `size` bytes on an idle path; 0 for 0 bytes."""
        pipes, latency = way
        if not size:
            return 0.0
        return latency + (size / min(pipe.rate for pipe in pipes) if pipes else 0.0)

    # Flows ------------------------------------------------------------------------------------------------

    def send(
        self, way: Way, size: float, seconds: float, done: Callable[[Flow], None],
        owner: Any = None, called: float = math.inf,
    ) -> Flow:  # fmt: skip
        """Send bytes along a path; `done` is called when the last byte has arrived.

        `size`: bytes; `seconds`: further bytes, given as their duration on the idle path.  The latency is included
        once. `called`: time at which this transfer was decided (to order events of one instant).  Return the transfer.
        """
        pipes, latency = way
        self.moved += size
        delay = latency if size else 0.0
        if seconds:
            # A stage given as a duration counts as duration × rate bytes on a link; without a finite
            # rate nothing can be shared, and it is a plain delay.
            if pipes:
                size += seconds * min(pipe.rate for pipe in pipes)
            else:
                delay += seconds
        flow = Flow(pipes, size if pipes else 0.0, done, owner)
        if delay:
            flow.then = self._then_join
            self.clock.at(self.clock._now + delay, FINISH, flow)
            flow.turn = float(flow.entry)  # by which `unbook` orders two of one instant
            flow.called = self.clock._now
        else:
            flow.called = called
            self._join(flow)
        return flow

    def book(
        self, way: Way, size: float, seconds: float, done: Callable[[Flow], None], owner: Any,
        called: float,
    ) -> Flow:  # fmt: skip
        """Send like `send`; if the path is idle, compute the end now, without an event.

        The end is `Flow.until`, and `done` is not called.  If another transfer uses one of the pipes before this end,
        `unsure` is called, and the transfer continues with events, as after `send`.  `called`: time of the decision to
        begin the transfer (see `Flow.there`).
        """
        pipes, latency = way
        now = self.clock._now
        for pipe in pipes:
            other = pipe.booked
            if pipe.group is not None or (other is not None and other.until >= now and other.there(now, called)):
                return self.send(way, size, seconds, done=done, owner=owner, called=called)
        self.moved += size
        flow = Flow(pipes, size, done, owner)
        flow.called, flow.turn = called, -1.0  # it begins now, before all other flows of this instant
        if size and latency:
            flow.called, flow.turn = now, float(self.clock.number())  # the number that the entry of `send` would have
        flow.since = now + latency if size else now
        flow.rate = rate = flow.most
        if seconds:
            flow.left = size = size + seconds * rate
        flow.until = flow.since + size / rate  # the sum that `_join` makes: sent or booked, equal floats
        flow.then = self._then_unbook
        for pipe in pipes:
            pipe.booked = flow  # until it is over, or another flow uses the pipe
        return flow

    def unbook(self, flow: Flow, turn: float = math.inf, called: float = math.inf, joined: bool = False) -> None:
        """Replace a transfer's known end by events, because another one uses its links.

        `turn`: number of the other transfer in the order of events at this instant; `called`: time at which the other
        transfer was decided; `joined`: True if the caller schedules the completion event.
        """
        for pipe in flow.pipes:
            if pipe.booked is flow:
                pipe.booked = None
        clock = self.clock
        now = clock._now
        if not flow.there(now, called):
            return
        if flow.since > now or (flow.since == now and flow.turn > turn):
            flow.then = self._then_join
            flow.entry = int(flow.turn)  # the number it would have had: the same order at that instant
            heappush(clock._heap, (flow.since, FINISH, flow.entry, flow))
        else:
            # As if it had flowed with an event since then: the next `_settle` accounts for the past.
            group = self._begin(flow, flow.since)
            if not joined:  # else the caller reschedules the group
                clock.at(flow.until, FINISH, group)
        flow.until = math.inf  # unknown from now on
        self.unsure(flow)

    def cancel(self, flow: Flow) -> None:
        """Cancel a transfer; the bytes that it has moved are lost."""
        if flow.ended:
            return
        flow.ended = True
        self.clock.cancel(flow)  # its latency may still be running
        if flow.group is not None:
            self._remove(flow.group, [flow])

    def _join(self, flow: Flow) -> None:
        if not flow.left:  # no bytes: it ends now, after the events already due
            flow.then = self._complete_empty
            self.clock.at(self.clock._now, FINISH, flow)
            return
        groups: list[FlowGroup] = []
        for pipe in flow.pipes:
            if pipe.booked is not None:
                self.unbook(pipe.booked, flow.turn, flow.called, True)
            if pipe.group is not None and pipe.group not in groups:
                groups.append(pipe.group)
        if not groups:  # no other flow uses its pipes
            now = self.clock._now
            flow.rate = flow.most
            self.clock.at(now + flow.left / flow.rate, FINISH, self._begin(flow, now))
            return
        group = groups[0]
        for other in groups:
            self._settle(other)
        # A flow over pipes of several groups merges them: their rates depend on each other from now on.
        for other in groups[1:]:
            self.clock.cancel(other)  # its flows end with the event of the first group
            for moved in other.flows:
                moved.group = group
                for pipe in moved.pipes:
                    pipe.group = group
            group.flows += other.flows
            other.flows = []
        group.flows.append(flow)
        flow.group = group
        for pipe in flow.pipes:
            pipe.group = group
        self._reschedule(group)

    def _begin(self, flow: Flow, since: float) -> FlowGroup:
        flow.group = group = FlowGroup(self._then_complete, since)
        for pipe in flow.pipes:
            pipe.group = group
        group.flows.append(flow)
        group.next.append(flow)  # alone, it is the next to end
        return group

    def _remove(self, group: FlowGroup, gone: list[Flow]) -> None:
        if len(group.flows) == len(gone):
            group.flows = []
            for flow in gone:
                flow.group, flow.ended = None, True
                for pipe in flow.pipes:
                    pipe.group = None
            self.clock.cancel(group)
            return
        self._settle(group)
        group.flows = [flow for flow in group.flows if flow not in gone]  # by identity: a flow equals only itself
        # A group is never split: rates stay right if its flows no longer share a pipe, they only cost more.
        for flow in gone:
            flow.group, flow.ended = None, True
            for pipe in flow.pipes:
                for other in group.flows:
                    if pipe in other.pipes:
                        break
                else:
                    pipe.group = None
        self._reschedule(group)

    def _complete_empty(self, flow: Flow) -> None:
        flow.ended = True
        flow.done(flow)

    def _settle(self, group: FlowGroup) -> None:
        now = self.clock._now
        if (elapsed := now - group.updated) > 0:
            for flow in group.flows:
                flow.left -= flow.rate * elapsed
        group.updated = now  # the invariant of a group: `left` of its flows holds at `updated`

    def _reschedule(self, group: FlowGroup) -> None:
        flows = group.flows
        if len(flows) == 1:
            flow = flows[0]
            flow.rate = rate = flow.most
            group.next = [flow]
            self.clock.again(self.clock._now + (flow.left if flow.left > 0.0 else 0.0) / rate, FINISH, group)
            return
        fair_rates(flows)
        remaining = [max(0.0, flow.left) / flow.rate for flow in flows]
        soonest = min(remaining)
        limit = soonest * (1 + 1e-12)  # flows that end within rounding of the first one end with it
        group.next = [flows[at] for at, time in enumerate(remaining) if time <= limit]
        self.clock.again(self.clock._now + soonest, FINISH, group)

    def _complete(self, group: FlowGroup) -> None:
        finished = group.next  # rounding may leave a remainder of them, which has arrived
        self._remove(group, finished)
        # Callbacks come last, since they may send new flows over the same pipes.
        for flow in finished:
            flow.done(flow)
