"""Scaling: how many replicas a service should have, decided from its counters.

The engine starts and drains replicas, and keeps the number from `min` to `max` of the service.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hetsim.model.service import LanguageService, ScaleBounds


class RoleSignals:
    """Counters of the replicas of one role: `replicas`, or `prefill` and `decode`.

    `replicas`: number of replicas that serve, load, or are missing after a failure; `ready`: number that accept
    requests.  A draining replica counts in neither.  `outstanding`: number of requests that the role has to serve;
    `waiting`: number of these that take part in no step yet.  Both include requests that no replica can accept yet, and
    are counted on access.
    """

    def __init__(self, there: Sequence[Any], missing: int, lobby: int):
        self._there, self._lobby = there, lobby
        self._kept = [replica for replica in there if not replica.draining]
        self._ready = [replica for replica in self._kept if replica.loaded]
        self.replicas, self.ready = len(self._kept) + missing, len(self._ready)

    @property
    def outstanding(self) -> int:
        return sum([replica.outstanding for replica in self._there]) + self._lobby

    @property
    def waiting(self) -> int:
        return sum([replica.waiting for replica in self._there]) + self._lobby

    @property
    def by_type(self) -> Mapping[str, int]:
        """Number of replicas that serve or load, by type of device."""
        return Counter([replica.kind.mode.type.name for replica in self._kept])

    @property
    def kv_used(self) -> float:
        """Mean fraction of KV blocks in use on ready replicas; 0 if none is ready."""
        return sum([replica.kv_used for replica in self._ready]) / max(1, self.ready)

    @property
    def idle_since(self) -> list[float]:
        """For each idle ready replica, the time since which it is idle; sorted."""
        return sorted([replica.idle_since for replica in self._ready if replica.idle])


class ServiceSignals(NamedTuple):
    """Counters of a service, by role and over the last window (`every`, or 60 s).

    `ttft`: mean time to first token in the window; `tpot`: mean time per further token of answers that ended in it; NaN
    without any.  `arrival_rate`: requests per second.  `changed_at`: time at which replicas were last started or
    drained, or -inf.
    """

    roles: Mapping[str, RoleSignals]
    bounds: ScaleBounds
    arrival_rate: float
    ttft: float
    tpot: float
    changed_at: float


class Scaling:
    """Base of scaling policies, which set replica numbers; one object per service."""

    policy_kind: ClassVar[str] = "scale"
    # True if it is asked when a replica falls idle, too; then the longest idle one drains first
    follows_idle: ClassVar[bool] = False
    measures: ClassVar[bool] = False  # True if it has to be asked at equal intervals, so that `every` must be given
    # When it is to be asked next at the latest, set by `wanted`; it counts if the answer changes anything, or asks for
    # no change
    again: float = math.inf

    def wanted(self, service: LanguageService, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        """Return the wanted number of replicas by role, or by type of device.

        Roles or types that are not named keep their number.
        """
        raise NotImplementedError
