"""Scaling: how many replicas a service should have, by an operator's counters.

The engine starts and drains replicas, and keeps to `min` and `max` of the service.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from hetsim.model.service import LanguageService, ScaleBounds


class RoleSignals(NamedTuple):
    """Counters of a role's replicas: of `replicas`, or of `prefill` and `decode`.

    `replicas` counts those that serve, load or are missing after a failure, `ready` those that take requests; one that
    drains is neither.  `outstanding` requests are those that the role has to serve, `waiting` those of them in no
    replica's steps yet; both include what no replica can take yet.  `kv_used` is the share of KV blocks in use of the
    ready replicas, `idle_since` since when each of them has had nothing to do, where that is so, sorted.
    """

    replicas: int
    ready: int
    by_type: Mapping[str, int]
    outstanding: int
    waiting: int
    kv_used: float
    idle_since: Sequence[float]


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

    follows_idle: ClassVar[bool] = False
    """True if it is asked when a replica falls idle; then the longest idle one drains first."""

    measures: ClassVar[bool] = False
    """True if it has to be asked at equal intervals, so that `every` must be given."""

    again: float = math.inf
    """When it is to be asked next at the latest, set by `wanted`.

    It counts if the answer changes anything, or asks for no change."""

    def wanted(self, service: LanguageService, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        """Return the wanted numbers of replicas by role, or by type of device.

        What is not named stays as it is.
        """
        raise NotImplementedError
