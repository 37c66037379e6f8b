"""Scaling: how many replicas a service should have, decided from its counters.

The engine starts and drains replicas, and keeps their number between `min` and `max` of the service.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hetsim.model.service import LanguageService, ScaleBounds, Service


class RoleSignals:
    """Counters of the replicas of one role: `replicas`, or `prefill` and `decode`.

    `replicas`: number of replicas that serve, load, or are missing after a failure; `ready`: number of replicas that
    accept requests; neither counts draining replicas.  `outstanding`: number of unfinished requests of the role.
    `waiting`: those of them that have not joined the batch of a replica yet.  All counters are computed when read.
    """

    def __init__(self, replicas: Any, prefills: bool):
        self._set, self._prefills = replicas, prefills

    @property
    def _all(self) -> list[Any]:
        replicas: list[Any] = self._set.prefillers if self._prefills else self._set.replicas
        return replicas

    @property
    def replicas(self) -> int:
        return int(self._set.kept(self._prefills) + self._set.missing.count(self._prefills))

    @property
    def _ready(self) -> list[Any]:
        return [replica for replica in self._all if replica.loaded and not replica.draining]

    @property
    def ready(self) -> int:
        return len(self._ready)

    @property
    def outstanding(self) -> int:
        if not self._set.apart:
            return len(self._set.requests)
        return sum([replica.outstanding for replica in self._all]) + self._set.waiting_for(self._prefills)

    @property
    def waiting(self) -> int:
        return sum([replica.waiting for replica in self._all]) + self._set.waiting_for(self._prefills)

    @property
    def by_type(self) -> Mapping[str, int]:
        """Number of replicas that serve or load, by type of device."""
        return Counter([replica.kind.mode.type.name for replica in self._all if not replica.draining])

    @property
    def kv_used(self) -> float:
        """Mean share of KV blocks in use of ready replicas; NaN without language model."""
        ready = self._ready
        return sum([replica.kv_used for replica in ready]) / max(1, len(ready))

    @property
    def idle_since(self) -> list[float]:
        """Times at which the ready replicas that are idle became idle, sorted."""
        return sorted([replica.idle_since for replica in self._ready if replica.idle])


@dataclass
class ServiceSignals:
    """Counters of a service, by role and for a window of the last `every` (or 60) s.

    `ttft`: mean time to first token in the window; `tpot`: mean time per further token of the answers that ended in the
    window; NaN if there are none.  `arrival_rate`: requests per second.  `changed_at`: time at which replicas were last
    started or drained, or -inf.
    """

    roles: Mapping[str, RoleSignals]
    bounds: ScaleBounds
    changed_at: float = -math.inf
    source: Any = None  # whose `rates()` are requests per second, and mean seconds, of the window

    @property
    def arrival_rate(self) -> float:
        return self.source.rates()[0]

    @property
    def ttft(self) -> float:
        return self.source.rates()[1]

    @property
    def tpot(self) -> float:
        return self.source.rates()[2]


class Scaling:
    """Base of scaling policies, which set replica numbers; one object per service."""

    policy_kind: ClassVar[str] = "scale"
    # True if it is asked when a replica falls idle, too; then the longest idle one drains first
    follows_idle: ClassVar[bool] = False
    measures: ClassVar[bool] = False  # True if it has to be asked at equal intervals, so that `every` must be given
    signals: tuple[str, ...] = ()  # `kv` if it looks at KV blocks, which services that form batches do not have
    # When it is to be asked next at the latest, set by `wanted`; it counts if the answer changes anything, or asks for
    # no change
    again: float = math.inf

    def wanted(self, service: LanguageService | Service, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        """Return the wanted numbers of replicas by role, or by type of device.

        Roles or types that are not in the answer keep their number.
        """
        raise NotImplementedError
