"""A request to a language model, from its arrival to its last token."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

NAN = math.nan
QUEUED, LOADING, PREFILLING, DECODING, OVER = range(5)


@dataclass(slots=True, eq=False)
class Generation:
    """A request to a language model service, and its progress on the replicas."""

    task: Any  # a `Task`; in a forecast, what only names it
    prompt: int
    output: int
    longest: int  # maximum number of answer tokens that the request announces; 0: it announces none
    hashes: Sequence[Hashable]
    row: int = -1
    arrival: float = NAN
    priority: float = 0.0
    client: str = ""
    weight: float = 1.0
    need: int = 0  # maximum number of KV blocks that it needs
    state: int = QUEUED
    replica: Any = None  # the `continuous_batching.Replica` that has the request
    made: int = 0  # number of tokens generated; not updated while the request decodes (see `produced`)
    offset: int = 0  # while the request decodes: generated tokens minus decoding steps of its replica
    end: int = -1  # while it decodes: number of the replica's decoding step that generates the last token
    to_prefill: int = 0
    cached: Sequence[Hashable] = ()  # names of the prefix blocks that it shares with other requests
    shared: int = 0  # number of KV blocks that store these prefixes
    source: Any = None  # the prefill replica that still stores the request's keys and values
    swapped: bool = False
    started: bool = False
    paused: float = 0.0  # seconds since the start without a step: preempted, without a replica, or in transfer
    paused_at: float = NAN
    seconds: float = 0.0  # its share of the seconds that replicas computed, weighted by power (nominal: 1)
    seconds_from: float = 0.0
    period: int = -1
    flows: list[Any] = field(default_factory=list)  # transfers of its keys and values; None in a forecast
    leaves: bool = False  # True if the client has aborted it; it leaves its replica after the current step
    token_at: float = NAN  # time of the request's last token; not updated while it decodes
    kind: Any = None  # type of the replica that it joined last (`HolderType`)
    joules: float = 0.0  # energy above idle, in joules, on replica types before the present one
    earlier: float = 0.0  # device-seconds on replica types before the present one
    expected: tuple[int, int] | None = None  # position of a replica type, and the estimated answer tokens on it

    def __post_init__(self) -> None:
        task = self.task
        self.row, self.arrival, self.priority = task.index, task.arrival, task.priority
        self.client, self.weight, self.to_prefill = task.user, task.weight, self.prompt

    def energy(self, seconds: float) -> float:
        """Return the energy above idle (J), including `seconds` on its current replica."""
        return self.joules + seconds * self.kind.width * self.kind.watts

    def received(self, seconds: float) -> float:
        """Return attained device-seconds; `seconds`: so far on the present replica type."""
        return self.earlier + seconds * self.kind.width

    def begin_anew(self, now: float) -> None:
        """Reset a request whose state on a replica was lost: it must be prefilled again."""
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
        """Number of tokens with stored keys and values: all except the last generated one."""
        return self.prompt + max(self.made - 1, 0)

    @property
    def context_tokens(self) -> int:
        """Number of prompt tokens plus tokens generated so far."""
        return self.prompt + self.produced

    def __repr__(self) -> str:
        return repr(self.task)
