"""Bytes on links: a fluid model in which transfers share every link they cross max-min fairly.

A transfer waits its latency, then flows over its pipes at one rate.  Transfers that are coupled through shared
pipes form a group; a group keeps one pending event, its next completion.  A pipe used by one transfer alone
never recomputes anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sim.engine.kernel.clock import FINISH, Clock, Timer
from sim.model.cluster import Cluster, Device, DeviceType
from sim.model.tasks import Tasks


class LinkPath(NamedTuple):
    """The way between an accelerator and its host, in one direction."""

    rate: float
    latency: float
    private: bool
    """Can nothing else be on it while the accelerator's copy engine serves a launch?"""


class Pipe:
    """One direction of one link (or both, with half duplex): a rate in bytes per second, shared fairly."""

    __slots__ = ("name", "rate", "group")

    def __init__(self, name: str, rate: float):
        self.name = name
        self.rate = rate
        self.group: FlowGroup | None = None


class Flow(Timer):
    """A transfer under way; `done(flow)` is called when its last byte has arrived."""

    __slots__ = ("pipes", "left", "rate", "done", "owner", "group", "ended")

    def __init__(self, pipes: Sequence[Pipe], size: float, done: Callable[[Flow], None], owner: Any):
        self.entry = -1
        self.then = None
        self.pipes = pipes
        self.left = size
        self.rate = 0.0
        self.done = done
        self.owner = owner
        self.group: FlowGroup | None = None
        self.ended = False


class FlowGroup(Timer):
    """Coupled flows and their one pending event."""

    __slots__ = ("flows", "updated", "next")

    def __init__(self, then: Callable[[Any], None], now: float):
        self.entry = -1
        self.then = then
        self.flows: list[Flow] = []
        self.updated = now
        self.next: list[Flow] = []


class Links:
    """All pipes of a cluster and the flows on them."""

    def __init__(self, cluster: Cluster, clock: Clock, tasks: Tasks | None = None):
        self.clock = clock
        self.moved = 0.0
        """Bytes that began their way over a link so far."""
        self.up_lines: dict[int, LinkPath] = {}
        self.down_lines: dict[int, LinkPath] = {}
        modes = [] if tasks is None else [mode for shape in tasks.shapes for mode in shape.modes]
        parted = {mode.type for mode in modes if mode.gpus and not mode.whole}
        items = tasks is None or bool(tasks.items)
        self._up: dict[int, Sequence[Pipe]] = {}
        self._down: dict[int, Sequence[Pipe]] = {}
        self._latency: dict[int, float] = {}
        self._out: list[Pipe] = []
        self._in: list[Pipe] = []
        self._network_latency = [node.spec.network.latency for node in cluster.nodes]
        for node in cluster.nodes:
            up, down = self._pair(node.name, node.spec.network)
            self._out.append(up)
            self._in.append(down)
            switches: dict[int, tuple[Pipe, Pipe]] = {}
            for device in node.accelerators:
                link = device.type.link
                up, down = self._pair(device.name, link)
                ways_up, ways_down, latency = [up], [down], link.latency
                if device.switch is not None:
                    if device.switch not in switches:
                        switches[device.switch] = self._pair(f"{node.name}/switch{device.switch}", node.spec.switch)
                    ways_up.append(switches[device.switch][0])
                    ways_down.append(switches[device.switch][1])
                    latency += node.spec.switch.latency
                # A pipe of infinite rate delays no transfer.
                self._up[device.index] = tuple(pipe for pipe in ways_up if pipe.rate < math.inf)
                self._down[device.index] = tuple(pipe for pipe in ways_down if pipe.rate < math.inf)
                self._latency[device.index] = latency
                self._add_lines(device, ways_up, ways_down, items, parted)

    def _add_lines(
        self, device: Device, ways_up: list[Pipe], ways_down: list[Pipe], items: bool, parted: set[DeviceType]
    ) -> None:
        """Items go over the way down besides what launches download, and both directions of a half-duplex link are
        in use at once where several launches are in flight."""
        kind = device.type
        one_way = ways_up[0] is ways_down[0] and ways_up[0].rate < math.inf
        crowded = one_way and (kind.streams > 1 or kind in parted or items)
        for lines, pipes, free in ((self.up_lines, ways_up, True), (self.down_lines, ways_down, not items)):
            finite = [pipe.rate for pipe in pipes if pipe.rate < math.inf]
            behind_switch = any(pipe.rate < math.inf for pipe in pipes[1:])
            private = not finite or (free and not crowded and not behind_switch)
            lines[device.index] = LinkPath(min(finite, default=math.inf), self._latency[device.index], private)

    @staticmethod
    def _pair(name: str, link: Any) -> tuple[Pipe, Pipe]:
        up = Pipe(f"{name}:up", link.upload)
        return (up, up) if link.duplex == "half" else (up, Pipe(f"{name}:down", link.download))

    def up(self, device: Device) -> tuple[Sequence[Pipe], float]:
        """Pipes and latency from host memory to a device."""
        return self._up[device.index], self._latency[device.index]

    def down(self, device: Device) -> tuple[Sequence[Pipe], float]:
        return self._down[device.index], self._latency[device.index]

    def between(self, source: int, target: int) -> tuple[Sequence[Pipe], float]:
        """Pipes and latency from one node's host memory to another's."""
        pipes = [pipe for pipe in (self._out[source], self._in[target]) if pipe.rate < math.inf]
        return pipes, self._network_latency[source] + self._network_latency[target]

    @staticmethod
    def alone(way: tuple[Sequence[Pipe], float], size: float) -> float:
        """Seconds for `size` bytes on an idle way."""
        pipes, latency = way
        return latency + (size / min(pipe.rate for pipe in pipes) if pipes else 0.0)

    # Flows ------------------------------------------------------------------------------------------------

    def send(
        self,
        way: tuple[Sequence[Pipe], float],
        size: float,
        seconds: float,
        done: Callable[[Flow], None],
        owner: Any = None,
    ) -> Flow:
        """Move `size` bytes plus what takes `seconds` alone on the way (its latency included once)."""
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
            flow.then = self._join
            self.clock.at(self.clock._now + delay, FINISH, flow)
        else:
            self._join(flow)
        return flow

    def cancel(self, flow: Flow) -> None:
        """Forget a transfer; what it moved so far is lost."""
        if flow.ended:
            return
        flow.ended = True
        self.clock.cancel(flow)
        group = flow.group
        if group is not None:
            self._settle(group)
            self._free(group, [flow])
            self._reschedule(group)

    def _join(self, flow: Flow) -> None:
        if not flow.left:
            flow.then = self._complete_empty
            self.clock.at(self.clock._now, FINISH, flow)
            return
        groups: list[FlowGroup] = []
        rate = math.inf
        for pipe in flow.pipes:
            if pipe.rate < rate:
                rate = pipe.rate
            if pipe.group is not None and pipe.group not in groups:
                groups.append(pipe.group)
        if not groups:  # alone on its way
            now = self.clock._now
            flow.group = group = FlowGroup(self._complete, now)
            for pipe in flow.pipes:
                pipe.group = group
            group.flows.append(flow)
            group.next.append(flow)
            flow.rate = rate
            self.clock.at(now + flow.left / rate, FINISH, group)
            return
        group = groups[0]
        for other in groups:
            self._settle(other)
        # A flow over pipes of several groups merges them: their rates depend on each other from now on.
        for other in groups[1:]:
            self.clock.cancel(other)
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

    def _free(self, group: FlowGroup, gone: list[Flow]) -> None:
        """Take flows out of their group, and with them the pipes that no other flow in it uses."""
        if len(group.flows) == len(gone):
            group.flows = []
            for flow in gone:
                flow.group = None
                for pipe in flow.pipes:
                    pipe.group = None
            return
        group.flows = [flow for flow in group.flows if flow not in gone]
        # A group is never split: rates stay right if its flows no longer share a pipe, they only cost more.
        used = {pipe for flow in group.flows for pipe in flow.pipes}
        for flow in gone:
            flow.group = None
            for pipe in flow.pipes:
                if pipe not in used:
                    pipe.group = None

    def _complete_empty(self, flow: Flow) -> None:
        flow.ended = True
        flow.done(flow)

    def _settle(self, group: FlowGroup) -> None:
        """Bring what is left of each flow to the present."""
        now = self.clock._now
        elapsed = now - group.updated
        if elapsed > 0:
            for flow in group.flows:
                flow.left -= flow.rate * elapsed
        group.updated = now

    def _reschedule(self, group: FlowGroup) -> None:
        """New rates and the group's next completion."""
        flows = group.flows
        if not flows:
            self.clock.cancel(group)
            return
        if len(flows) == 1:
            flow = flows[0]
            pipes = flow.pipes
            flow.rate = rate = pipes[0].rate if len(pipes) == 1 else min([pipe.rate for pipe in pipes])
            group.next = [flow]
            left = flow.left
            self.clock.again(self.clock._now + (left if left > 0.0 else 0.0) / rate, FINISH, group)
            return
        fair_rates(flows)
        remaining = [max(0.0, flow.left) / flow.rate for flow in flows]
        soonest = min(remaining)
        limit = soonest * (1 + 1e-12)  # flows that end within rounding of the first one end with it
        group.next = [flow for flow, time in zip(flows, remaining, strict=True) if time <= limit]
        self.clock.again(self.clock._now + soonest, FINISH, group)

    def _complete(self, group: FlowGroup) -> None:
        finished = group.next
        if len(group.flows) > len(finished):
            self._settle(group)
        for flow in finished:
            flow.ended = True
            flow.left = 0.0
        self._free(group, finished)
        if group.flows:
            self._reschedule(group)
        # Callbacks come last, since they may send new flows over the same pipes.
        for flow in finished:
            flow.done(flow)


def fair_rates(flows: Sequence[Flow]) -> None:
    """Max-min fair rates by progressive filling: again and again the tightest pipe fixes its flows' rates.

    Reference: Bertsekas, Gallager, Data Networks (1992), ch. 6.5.2.  Cost: O(pipes × flows).
    """
    users: dict[Pipe, list[Flow]] = {}
    for flow in flows:
        flow.rate = -1.0
        for pipe in flow.pipes:
            if pipe in users:
                users[pipe].append(flow)
            else:
                users[pipe] = [flow]
    if len(users) == 1:
        ((pipe, _),) = users.items()
        share = pipe.rate / len(flows)
        for flow in flows:
            flow.rate = share
        return
    left = {pipe: pipe.rate for pipe in users}
    count = {pipe: len(on) for pipe, on in users.items()}
    todo = len(flows)
    while todo:
        tightest, share = None, math.inf
        for pipe, number in count.items():
            if number and left[pipe] / number < share:
                tightest, share = pipe, left[pipe] / number
        assert tightest is not None
        # Its flows that have no rate yet get equal shares, and take these from the other pipes on their way.
        for flow in users[tightest]:
            if flow.rate < 0:
                flow.rate = share
                todo -= 1
                for pipe in flow.pipes:
                    rest = left[pipe] - share
                    left[pipe] = rest if rest > 0.0 else 0.0
                    count[pipe] -= 1
