"""Scaling: how many replicas a service should have, by an operator's counters.

The engine starts and drains replicas, and keeps to `min` and `max` of the service.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from hetsim.model.service import LanguageService, ScaleBounds


class RoleSignals:
    """Counters of a role's replicas: of `replicas`, or of `prefill` and `decode`.

    `replicas` is the number of those that serve, load or are missing after a failure, `ready` of those that take
    requests; one that drains is neither.  `outstanding` requests are those that the role has to serve, `waiting` those
    of them in no replica's steps yet; both include what no replica can take yet.  All are counted when looked at.
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
        """Replicas that serve or load, by type of device."""
        return Counter([replica.kind.mode.type.name for replica in self._kept])

    @property
    def kv_used(self) -> float:
        """Share of the KV blocks of the ready replicas that is in use; 0 without any."""
        return sum([replica.kv_used for replica in self._ready]) / max(1, self.ready)

    @property
    def idle_since(self) -> list[float]:
        """Since when each ready replica has been idle, of those that are, sorted."""
        return sorted([replica.idle_since for replica in self._ready if replica.idle])


class ServiceSignals(NamedTuple):
    """Counters of a service, by role and of the last window: `every`, or 60 s.

    `ttft` and `tpot` are means of first tokens that came and of answers that ended in the window, NaN without any;
    `arrival_rate` is in requests per second.  `changed_at`: when replicas were started or drained last, or -inf.
    """

    roles: Mapping[str, RoleSignals]
    bounds: ScaleBounds
    arrival_rate: float
    ttft: float
    tpot: float
    changed_at: float


class Scaling:
    """Base of scaling policies: the number of replicas; one object a service."""

    policy_kind: ClassVar[str] = "scale"
    # True if it is asked when a replica falls idle, too; then the longest idle one drains first
    follows_idle: ClassVar[bool] = False
    measures: ClassVar[bool] = False  # True if it has to be asked at equal intervals, so that `every` must be given
    # When it is to be asked next at the latest, set by `wanted`; it counts if the answer changes anything, or asks for
    # no change
    again: float = math.inf

    def wanted(self, service: LanguageService, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        """Return the wanted numbers of replicas by role, or by type of device.

        What is not named stays as it is.
        """
        raise NotImplementedError
