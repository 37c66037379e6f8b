"""A request to a language model, from its arrival to its last token."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

from hetsim.engine.flight.links import Flow
from hetsim.model.task import Task

NAN = math.nan
QUEUED, LOADING, PREFILLING, DECODING, OVER = range(5)


class Generation:
    """A request on its way through the replicas of a service."""

    __slots__ = (
        "task", "row", "arrival", "priority", "client", "weight", "prompt", "output", "longest", "hashes", "state",
        "replica", "made", "offset", "end", "to_prefill", "cached", "shared", "source", "swapped", "started", "paused",
        "paused_at", "seconds", "seconds_from", "period", "flows", "leaves", "token_at", "need", "kind", "joules",
        "earlier", "expected",
    )  # fmt: skip
    need: int
    """KV blocks that it needs at most; told where there are replicas of unlike kinds."""

    def __init__(self, task: Task, prompt: int, output: int, longest: int, hashes: Sequence[Hashable]):
        self.task = task
        self.row = task.index
        self.arrival = task.arrival
        self.priority = task.priority
        self.client = task.user
        self.weight = task.weight
        self.prompt = prompt
        self.output = output
        self.longest = longest
        """Tokens of the longest answer that it announces; 0: none."""
        self.hashes = hashes
        self.state = QUEUED
        self.replica: Any = None
        """Which has it; a `hetsim.engine.language.continuous_batching.Replica`, which stands above."""
        self.made = 0
        """Tokens produced, as long as it does not decode."""
        self.offset = 0
        """While it decodes: tokens produced less the steps of its replica."""
        self.end = -1
        """While it decodes: the step of its replica after which it is complete."""
        self.to_prefill = prompt
        self.cached: Sequence[Hashable] = ()
        """Names of its prefix's blocks that it uses and that others may use."""
        self.shared = 0
        """KV blocks behind these names."""
        self.source: Any = None
        """The replica that prefilled it and still has its keys and values."""
        self.swapped = False
        self.started = False
        self.paused = 0.0
        """Seconds since its start in which it was in no step: gave way, lost its replica, or was on its way."""
        self.paused_at = NAN
        self.seconds = 0.0
        """Its share of the seconds that its replicas computed, at the power of their nominal frequency."""
        self.seconds_from = 0.0
        self.period = -1
        self.flows: list[Flow] = []
        """Its keys and values on their way to the devices of its replica."""
        self.leaves = False
        """Has its client aborted it?  It leaves at the end of the step under way."""
        self.token_at = NAN
        """When its last token came, while it does not decode."""
        self.kind: Any = None
        """Type of the replica that it joined last (`hetsim.engine.language.kinds.ReplicaType`)."""
        self.joules = 0.0
        """Energy above idle on the kinds before."""
        self.earlier = 0.0
        """Device-seconds there."""
        self.expected: tuple[int, int] | None = None
        """A type of replica, by its position, and the tokens that its estimate stands for there."""

    def energy(self, seconds: float) -> float:
        """Joules above idle, after these seconds on its present type of replica."""
        return self.joules + seconds * self.kind.width * self.kind.watts

    def received(self, seconds: float) -> float:
        """Device-seconds, after these seconds on its present type of replica."""
        return self.earlier + seconds * self.kind.width

    def begin_anew(self, now: float) -> None:
        """Begin again: the replica's state is lost, all tokens are read again."""
        self.state, self.replica, self.source = QUEUED, None, None
        self.to_prefill = self.prompt + self.made
        self.cached, self.shared, self.swapped, self.period = (), 0, False, -1
        self.flows = []
        if self.started and math.isnan(self.paused_at):
            self.paused_at = now

    @property
    def produced(self) -> int:
        if self.state == DECODING:
            steps: int = self.replica.steps
            return steps + self.offset
        return self.made

    @property
    def stored(self) -> int:
        """Tokens with keys and values between decoding: all but the last."""
        return self.prompt + max(self.made - 1, 0)

    @property
    def context_tokens(self) -> int:
        """Number of tokens of the prompt and those produced so far."""
        return self.prompt + self.produced

    def __repr__(self) -> str:
        return repr(self.task)
