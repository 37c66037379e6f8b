"""Queries of a service's scaling policy, and the counters that the policy sees."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetsim.engine.core.policy_errors import call
from hetsim.engine.kernel.clock import TIMER, Later
from hetsim.policy.decisions import as_number
from hetsim.policy.scaling import RoleSignals, ServiceSignals

WINDOW = 60.0  # seconds of the counters' window where a policy is not asked at equal intervals


class Noted:
    """Values with their times; computes the mean of the values since a time."""

    def __init__(self) -> None:
        self.times, self.sums = array("d"), array("d", [0.0])

    def note(self, time: float, value: float) -> None:
        self.times.append(time)
        self.sums.append(self.sums[-1] + value)

    def mean(self, since: float) -> float:
        first, count = bisect_right(self.times, since), len(self.times)
        return (self.sums[-1] - self.sums[first]) / (count - first) if count > first else math.nan


@dataclass(eq=False)
class Scaler:
    """Queries the scaling policy of a service, and starts or drains replicas."""

    owner: Any  # the service (`ReplicaSet`)

    def __post_init__(self) -> None:
        self.state, self.clock, self.policy = self.owner.state, self.owner.clock, self.owner.scaling
        self.bounds, self.ticks, self.due = self.owner.service.scaling, 0, math.inf
        self.apart = bool(self.owner.service.prefillers)
        self.roles = {role: role == "prefill" for role in (self.bounds.roles if self.apart else ("replicas",))}
        self.kinds = {} if self.apart else {kind.mode.type.name: kind for kind in self.owner.kinds}
        self.first, self.further = Noted(), Noted()  # times to first tokens, and for further ones
        roles = {role: RoleSignals(self.owner, prefills) for role, prefills in self.roles.items()}
        self.signals = ServiceSignals(roles, self.bounds, source=self)
        self.timer, self.tick = Later(self.ask), Later(self._ticked)

    def await_tick(self) -> None:
        """Schedule the next query of the scaling policy, if it is queried periodically."""
        if self.bounds.every < math.inf:
            self.ticks += 1
            self.state.ticking += 1
            self.clock.at(self.ticks * self.bounds.every, TIMER, self.tick)

    def _ticked(self) -> None:
        self.state.ticking -= 1
        self.ask()
        # Where only such questions are left nothing will happen any more: a run without a horizon must find that out.
        if self.state.input.horizon < math.inf or self.clock.pending > self.state.ticking:
            self.await_tick()

    def changed(self, idle: bool = False) -> None:
        """Query the policy because a request arrived or ended, or a replica became idle."""
        if self.bounds.every == math.inf and (not idle or self.policy.follows_idle):
            self.ask()

    def ask(self) -> None:
        """Query the policy now, and start or drain replicas as it wants."""
        policy, now, bounds = self.policy, self.clock._now, self.bounds
        policy.again = math.inf
        wanted = self._checked(call(self.state, policy.wanted, self.owner.service, self.signals, now))
        changes = []
        for name, number in wanted.items():
            kind = self.kinds.get(name)
            number = bounds.within(number) if kind is None else number
            changes.append(self.owner.bring(name, self.roles.get(name, False), number, kind))
        if changed := True in changes:
            self.signals.changed_at = now
        if policy.again < (math.inf if self.timer.entry < 0 else self.due) and (changed or False not in changes):
            self.due = policy.again
            self.clock.again(policy.again, TIMER, self.timer)

    def rates(self) -> tuple[float, float, float]:
        """Return request rate, mean TTFT, TPOT of the last `every` s (or `WINDOW` if inf)."""
        window = self.bounds.every if self.bounds.every < math.inf else WINDOW
        since = self.clock._now - window
        return self.owner.coming.since(since) / window, self.first.mean(since), self.further.mean(since)

    def _checked(self, wanted: Any) -> dict[str, int]:
        """Return the policy's numbers of replicas; PolicyError if they cannot be had."""
        numbers: dict[str, int] = {}
        for name, given in wanted.items() if isinstance(wanted, (dict, Mapping)) else [("", wanted)]:
            number = None if isinstance(given, bool) else as_number(given, int)
            if number is None or number < 0 or (name not in self.roles and name not in self.kinds):
                names = ", ".join([*self.roles, *self.kinds])
                raise self.owner.illegal(f"must map some of {names} to numbers of replicas; got {wanted!r}")
            numbers[name] = number
        if self.kinds.keys() & numbers.keys():
            total, low, high = sum(numbers.values()), self.bounds.min_replicas, self.bounds.max_replicas
            if not low <= total <= high:
                raise self.owner.illegal(f"must return from {low} to {high} replicas, all types together; got {total}")
        return numbers
