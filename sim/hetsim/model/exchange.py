"""Traffic among the nodes of one job, and the time of its step on given nodes.

A training step computes, waits in a pipeline's bubble, and has phases of communication.  On given nodes a phase takes
as long as the slowest link that it crosses: the nodes' own links, and the uplinks of racks.  Results are cached by set
of nodes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hetsim.model.cluster import Cluster
from hetsim.model.device import Device

KNOWN = 20_000  # maximum number of sets of nodes whose profile is cached

ROUNDING = 1e-12  # relative tolerance for sums of the same seconds


def link_names(cluster: Cluster) -> list[str]:
    """Return the names of all links by number: nodes' links, then racks' uplinks."""
    return [f"{node.name}/network" for node in cluster.nodes] + [f"{rack}/uplink" for rack in cluster.fabric.uplinks]


def link_rates(cluster: Cluster) -> list[float]:
    """Return the bytes/s of all links: nodes' (slower direction), then racks' uplinks."""
    own = [min(node.spec.network.upload, node.spec.network.download) for node in cluster.nodes]
    return own + list(cluster.fabric.uplinks.values())


@dataclass(frozen=True)
class Phase:
    """One communication phase of a training step, among the nodes of a job.

    ring: in each group of `group` consecutive nodes, each node sends to the next one, so the data cross a rack's uplink
    once.  all_to_all: each node sends to all other nodes of such a group.  chain: node i and node i + `group` send to
    each other; with `loop`, also the last `group` nodes and the first ones.
    """

    shape: Literal["ring", "all_to_all", "chain"]
    group: int
    bytes: float  # bytes that a node sends to other nodes in a step
    fixed: float = 0.0  # additional seconds: latencies, and transfers within nodes before or after
    hidden: float = 0.0  # seconds that overlap with computing
    cards: int = 1  # network cards of a node that it uses
    loop: bool = False
    waits: float = 0.0  # seconds by which a pipeline's bubble grows with each second of the phase
    # seconds that links within nodes need at the same time: the slowest hop of a ring sets its pace
    inside: float = 0.0

    def over(self, card: float, cards: int) -> float:
        """Return the phase's seconds without latencies; `card`: bytes/s of a network card."""
        return max(self.inside, self.bytes / (card * min(self.cards, cards)))


@dataclass(frozen=True)
class Load:
    """The use of one link by one communication phase of a training step.

    `seconds`: duration of the transfer; `busy`: duration if it used the link's full rate; `alone`: True if no other job
    can delay the phase on the link.
    """

    link: int
    seconds: float
    busy: float
    alone: bool = False


# a phase's use of a link: seconds at full rate, seconds undelayed, seconds of delay that computing hides
Use = tuple[float, float, float]


@dataclass(frozen=True)
class StepPipeline:
    """Pipeline of a training step: how its micro-batches pass through the stages."""

    schedule: Literal["gpipe", "1f1b", "interleaved"]
    stages: int
    micro_batches: int
    chunks: int
    forward: float  # compute seconds of the forward passes, over all chunks
    backward: float
    head: float  # additional compute seconds of the last stage, a third of them forward
    update: float  # seconds of the optimizer at the end of the step
    phases: tuple[str, ...]  # names of the step's phases, in order: tensor, pipeline, experts, data
    ahead: float  # share of the tensor-parallel communication that belongs to forward passes


@dataclass(frozen=True)
class TrafficProfile:
    """Seconds of a training step on given nodes, and its communication phases."""

    compute: float
    filling: float  # seconds of the bubble without communication
    phases: tuple[tuple[Phase, tuple[Load, ...]], ...]  # each phase, and its use of links
    bytes: float  # bytes that its nodes send to other nodes
    across: float  # the part of `bytes` that crosses racks

    def step(self, slow: dict[int, float] | None = None) -> tuple[float, float, dict[int, list[Use]]]:
        """Return seconds of communication and pipeline bubble, and uses of shared links.

        slow: slowdown factor by link number, for links that are slower than nominal.
        """
        spent: dict[int, list[Use]] = {}
        total, bubble = 0.0, self.filling
        for phase, loads in self.phases:
            each = [one.seconds * slow.get(one.link, 1.0) if slow and one.seconds else one.seconds for one in loads]
            longest = max([phase.inside, *each])
            for load, seconds in zip(loads, each, strict=True):
                if not load.alone and seconds:
                    slack = max(0.0, phase.hidden - phase.fixed - longest)
                    spent.setdefault(load.link, []).append((seconds, longest, slack))
            exposed = max(0.0, phase.fixed + longest - phase.hidden)
            total += exposed
            if phase.waits:  # a link may be down, and 0 × inf is NaN
                bubble += phase.waits * exposed
        return total, bubble, spent

    def exposed(self) -> list[float]:
        """Return the seconds of each phase that do not overlap with computing."""
        longest = [max([phase.inside, *(load.seconds for load in loads)]) for phase, loads in self.phases]
        return [max(0.0, one.fixed + over - one.hidden) for (one, _), over in zip(self.phases, longest, strict=True)]

    @cached_property
    def parts(self) -> tuple[float, float]:
        """Seconds of communication, and of the pipeline bubble."""
        return self.step()[:2]

    @cached_property
    def seconds(self) -> float:
        return self.compute + sum(self.parts)

    @cached_property
    def busy(self) -> dict[int, float]:
        """By link number: seconds per step for which the link is busy at its full rate."""
        busy_seconds: dict[int, float] = {}
        for _, loads in self.phases:
            for load in loads:
                if load.busy:
                    busy_seconds[load.link] = busy_seconds.get(load.link, 0.0) + load.busy
        return busy_seconds


@dataclass(eq=False)
class Exchange:
    """A training step of a mode: compute time and traffic between its GPUs.

    `nominal`: seconds of the step if nothing slows the GPUs or the network.
    """

    cluster: Cluster
    compute: float
    filling: float
    phases: tuple[Phase, ...]
    nominal: float
    at_peak: float = math.nan  # seconds of the model's operations at the GPUs' peak rate, without recomputation
    largest: float = 1.0  # share of the sent bytes that belongs to the largest tensor
    pipeline: StepPipeline | None = None  # the passage of micro-batches through stages, if there are several

    @cached_property
    def _profiles(self) -> dict[tuple[int, ...], TrafficProfile]:
        return {}

    @cached_property
    def _rates(self) -> list[float]:
        return link_rates(self.cluster)

    @cached_property
    def _uplink(self) -> list[int | None]:
        first = len(self.cluster.nodes)
        numbers = {rack: first + place for place, rack in enumerate(self.cluster.fabric.uplinks)}
        return [numbers.get(node.spec.rack) for node in self.cluster.nodes]  # type: ignore[arg-type]

    def rate(self, devices: Sequence[Device]) -> float:
        """Return the training speed on these devices without link sharing (1: nominal)."""
        seconds = self.profile_of(devices).seconds
        if abs(seconds - self.nominal) <= ROUNDING * self.nominal:
            return 1.0
        return self.nominal / seconds

    def profile_of(self, devices: Sequence[Device]) -> TrafficProfile:
        nodes: list[int] = []
        for device in devices:
            if not nodes or nodes[-1] != device.node:
                nodes.append(device.node)
        if len(self._rates) > len(self.cluster.nodes):  # ranks are ordered rack by rack
            nodes.sort(key=lambda node: (self._uplink[node] or 0, node))
        return self.on(tuple(nodes))

    def on(self, nodes: tuple[int, ...]) -> TrafficProfile:
        """Return the traffic of a training step on these nodes, in the order of the ranks."""
        if (profile := self._profiles.get(nodes)) is None:
            if len(self._profiles) > KNOWN:
                self._profiles.clear()
            profile = self._profiles[nodes] = self._profile(nodes)
        return profile

    def _profile(self, nodes: tuple[int, ...]) -> TrafficProfile:
        phases, sent, across = [], 0.0, 0.0
        for phase in self.phases:
            loads: list[Load] = []
            if phase.bytes and len(nodes) > 1:
                sent += phase.bytes * len(nodes)
                for node in nodes:
                    rate, cards = self._rates[node], self.cluster.nodes[node].spec.cards
                    used = min(phase.cards, cards)
                    seconds = phase.bytes * cards / (used * rate)
                    loads.append(Load(node, seconds, phase.bytes / rate, used < cards or rate == math.inf))
                for link, (needed, moved) in self._crossing(phase, nodes).items():
                    across += moved
                    rate = self._rates[link]
                    loads.append(Load(link, needed / rate, moved / rate, rate == math.inf))
            phases.append((phase, tuple(loads)))
        return TrafficProfile(self.compute, self.filling, tuple(phases), bytes=sent, across=across)

    def _crossing(self, phase: Phase, nodes: tuple[int, ...]) -> dict[int, tuple[float, float]]:
        """Return by rack uplink the bytes that set a phase's duration, and all bytes sent."""
        uplinks = [self._uplink[node] for node in nodes]
        if len(set(uplinks)) == 1:
            return {}
        sent: dict[int, tuple[float, float]] = {}

        def add(link: int | None, needed: float, moved: float) -> None:
            if link is not None:
                before = sent.get(link, (0.0, 0.0))
                sent[link] = before[0] + needed, before[1] + moved

        if phase.shape == "chain":
            ahead: dict[int, float] = {}
            back: dict[int, float] = {}
            for place, link in enumerate(uplinks):
                other = place + phase.group
                if other >= len(nodes) and not phase.loop:
                    break
                peer = uplinks[other % len(nodes)]
                if link != peer:
                    for ways, one in ((ahead, link), (back, peer)):
                        if one is not None:
                            ways[one] = ways.get(one, 0.0) + phase.bytes / 2
            for one in sorted(ahead.keys() | back.keys()):
                there, here = ahead.get(one, 0.0), back.get(one, 0.0)
                add(one, 2 * max(there, here), there + here)
            return sent
        for first in range(0, len(nodes), phase.group):
            group = uplinks[first : first + phase.group]
            used = dict.fromkeys(group)
            if len(used) < 2:
                continue
            for link in used:
                if phase.shape == "ring":
                    add(link, phase.bytes, phase.bytes)
                else:
                    inside = group.count(link)
                    out = phase.bytes * inside * (len(group) - inside) / (len(group) - 1)
                    add(link, out, out)
        return sent
