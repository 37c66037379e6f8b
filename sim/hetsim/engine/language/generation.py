"""A request to a language model, from its arrival to its last token."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetsim.model.task import Task

NAN = math.nan
QUEUED, LOADING, PREFILLING, DECODING, OVER = range(5)


@dataclass(slots=True, eq=False)
class Generation:
    """A request on its way through the replicas of a service."""

    task: Task
    prompt: int
    output: int
    longest: int
    """Tokens of the longest answer that it announces; 0: none."""
    hashes: Sequence[Hashable]
    row: int = -1
    arrival: float = NAN
    priority: float = 0.0
    client: str = ""
    weight: float = 1.0
    need: int = 0
    """KV blocks that it needs at most; told where there are replicas of unlike kinds."""
    state: int = QUEUED
    replica: Any = None
    """Which has it; a `hetsim.engine.language.continuous_batching.Replica`, which stands above."""
    made: int = 0
    """Tokens produced, as long as it does not decode."""
    offset: int = 0
    """While it decodes: tokens produced less the steps of its replica."""
    end: int = -1
    """While it decodes: the step of its replica after which it is complete."""
    to_prefill: int = 0
    cached: Sequence[Hashable] = ()
    """Names of its prefix's blocks that it uses and that others may use."""
    shared: int = 0
    """KV blocks behind these names."""
    source: Any = None
    """The replica that prefilled it and still has its keys and values."""
    swapped: bool = False
    started: bool = False
    paused: float = 0.0
    """Seconds since its start in which it was in no step: gave way, lost its replica, or was on its way."""
    paused_at: float = NAN
    seconds: float = 0.0
    """Its share of the seconds that its replicas computed, at the power of their nominal frequency."""
    seconds_from: float = 0.0
    period: int = -1
    flows: list[Any] = field(default_factory=list)
    """Its keys and values on their way to the devices of its replica; None for each in a forecast."""
    leaves: bool = False
    """Has its client aborted it?  It leaves at the end of the step under way."""
    token_at: float = NAN
    """When its last token came, while it does not decode."""
    kind: Any = None
    """Type of the replica that it joined last (`hetsim.engine.language.service_calls.ReplicaType`)."""
    joules: float = 0.0
    """Energy above idle on the kinds before."""
    earlier: float = 0.0
    """Device-seconds there."""
    expected: tuple[int, int] | None = None
    """A type of replica, by its position, and the tokens that its estimate stands for there."""

    def __post_init__(self) -> None:
        task = self.task
        self.row, self.arrival, self.priority = task.index, task.arrival, task.priority
        self.client, self.weight, self.to_prefill = task.user, task.weight, self.prompt

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
