"""What a scaling policy is shown of the replicas of a service, and when it is asked."""

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hetsim.engine.core.policy_errors import call
from hetsim.engine.kernel.clock import TIMER, Later

WINDOW = 60.0
"""Seconds of the counters' window where a policy is not asked at equal intervals."""


@dataclass(eq=False)
class Role:
    """The replicas of one role, as `hetsim.policy.scaling.RoleSignals` says."""

    of: Any
    """The set of replicas."""
    prefills: bool

    @property
    def all(self) -> list[Any]:
        return self.of.prefillers if self.prefills else self.of.replicas

    @property
    def kept(self) -> list[Any]:
        return [replica for replica in self.all if not replica.draining]

    @property
    def replicas(self) -> int:
        return len(self.kept) + self.of.missing.count(self.prefills)

    @property
    def ready(self) -> int:
        return sum([replica.loaded for replica in self.kept])

    @property
    def by_type(self) -> Mapping[str, int]:
        return Counter(replica.kind.mode.type.name for replica in self.kept)

    @property
    def lobby(self) -> int:
        of = self.of
        if not of.service.prefillers:
            return len(of.lobby)
        return sum([(request.source is None) is self.prefills for request in of.lobby.values()])

    @property
    def outstanding(self) -> int:
        return sum([replica.outstanding for replica in self.all]) + self.lobby

    @property
    def waiting(self) -> int:
        return sum([replica.waiting for replica in self.all]) + self.lobby

    @property
    def running(self) -> int:
        return self.outstanding - self.waiting

    @property
    def kv_used(self) -> float:
        shares = [replica.kv_used for replica in self.kept if replica.loaded]
        return math.fsum(shares) / len(shares) if shares else 0.0

    @property
    def idle_since(self) -> list[float]:
        return sorted([replica.idle_since for replica in self.kept if replica.loaded and replica.idle])


@dataclass(eq=False)
class Counters:
    """The counters of a service, as `hetsim.policy.scaling.ServiceSignals` says."""

    fleet: Any
    roles: dict[str, Role]
    window: float
    changed_at: float = -math.inf
    first: deque[tuple[float, float]] = field(default_factory=deque)
    further: deque[tuple[float, float]] = field(default_factory=deque)
    """When first tokens came and answers ended, and the time to or for each token."""

    @property
    def arrival_rate(self) -> float:
        return float(self.fleet.coming.since(self.fleet.clock._now - self.window)) / self.window

    @property
    def ttft(self) -> float:
        return self._mean(self.first)

    @property
    def tpot(self) -> float:
        return self._mean(self.further)

    def note(self, values: deque[tuple[float, float]], value: float) -> None:
        """Add a value of now, and forget those before the window."""
        now = self.fleet.clock._now
        values.append((now, value))
        while values[0][0] <= now - self.window:
            values.popleft()

    def _mean(self, values: deque[tuple[float, float]]) -> float:
        since = self.fleet.clock._now - self.window
        recent = [value for time, value in values if time > since]
        return math.fsum(recent) / len(recent) if recent else math.nan


@dataclass(eq=False)
class Scaler:
    """Asks the scaling policy of a service and carries out what it wants."""

    fleet: Any
    of: Any
    """The set of replicas."""

    def __post_init__(self) -> None:
        service, self.policy = self.fleet.service, self.fleet.scaling
        self.bounds, self.clock = service.scaling, self.fleet.clock
        every, apart = self.bounds.every, service.prefillers
        names = [name for name in ("prefill", "decode") if name in self.bounds.roles] if apart else ["replicas"]
        roles = {name: Role(self.of, name == "prefill") for name in names}
        self.signals = Counters(self.fleet, roles, every if every < math.inf else WINDOW)
        self.timer, self.tick, self.due, self.ticks = Later(self.ask), Later(self._ticked), math.inf, 0

    def begin(self) -> None:
        """Begin to ask at equal intervals, if it is asked so."""
        if self.bounds.every < math.inf:
            self._rearm()

    def _rearm(self) -> None:
        self.ticks += 1
        self.fleet.state.ticking += 1
        self.clock.at(self.ticks * self.bounds.every, TIMER, self.tick)

    def _ticked(self) -> None:
        state = self.fleet.state
        state.ticking -= 1
        self.ask()
        # Where only such questions are left nothing will happen any more: a run without a horizon must find that out.
        if state.input.horizon < math.inf or self.clock.pending > state.ticking:
            self._rearm()

    def changed(self, idle: bool = False) -> None:
        """Ask as a request comes or ends, devices come free, or a replica falls idle."""
        if self.bounds.every == math.inf and (not idle or self.policy.follows_idle):
            self.ask()

    def ask(self) -> None:
        policy, now = self.policy, self.clock._now
        policy.again = math.inf
        wanted = self._checked(call(self.fleet.state, policy.wanted, self.fleet.service, self.signals, now))
        done = [change for name, number in wanted.items() if (change := self._bring(name, number)) is not None]
        if any(done):
            self.signals.changed_at = now
        if policy.again < math.inf and (not done or any(done)) and (self.timer.entry < 0 or policy.again < self.due):
            self.due = policy.again
            self.clock.again(policy.again, TIMER, self.timer)

    def _bring(self, name: str, number: int) -> bool | None:
        """Bring a role, or a type of device, to a number of replicas; see `ReplicaSet.bring`."""
        if (role := self.signals.roles.get(name)) is not None:
            return self.of.bring(name, role, self._within(number), None)
        kind = next(kind for kind in self.of.kinds if kind.mode.type.name == name)
        return self.of.bring(name, next(iter(self.signals.roles.values())), number, kind)

    def _within(self, number: int) -> int:
        return min(self.bounds.max_replicas, max(self.bounds.min_replicas, number))

    def _checked(self, wanted: Any) -> dict[str, int]:
        """The answer of the policy; PolicyError if it cannot be carried out."""
        roles, kinds = list(self.signals.roles), [kind.mode.type.name for kind in self.of.kinds]
        names = roles if self.fleet.service.prefillers else [*roles, *kinds]
        if not isinstance(wanted, Mapping):
            raise self.fleet.illegal(f"wants {wanted!r}; numbers of replicas by role or type were asked for")
        for name, number in wanted.items():
            if name not in names:
                raise self.fleet.illegal(f"wants replicas of {name!r}; those here are {', '.join(names)}")
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise self.fleet.illegal(f"wants {number!r} replicas of {name!r}; a number from 0 on was asked for")
        if by_type := [number for name, number in wanted.items() if name not in roles]:
            low, total, high = self.bounds.min_replicas, sum(by_type), self.bounds.max_replicas
            if len(by_type) < len(wanted) or not low <= total <= high:
                text = f"wants {dict(wanted)}; by type alone, and from {low} to {high} in all, was asked for"
                raise self.fleet.illegal(text)
        return dict(wanted)
