"""Scaling: how many replicas a service should have, asked by the engine.

The numbers that a policy is shown are those of an operator's counters.  The engine starts and drains replicas and
keeps to `min` and `max` of the service.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

from hetsim.model.service import LanguageService


class RoleSignals(Protocol):
    """The replicas of one role: `replicas`, or apart `prefill` and `decode`."""

    replicas: int
    """Replicas that serve, load or are missing for a failure, without those that drain."""
    ready: int
    """Those of them that take requests."""
    by_type: Mapping[str, int]
    """Of those that serve or load the number on each type of device."""
    outstanding: int
    """Requests that the role has to serve, those that no replica can take yet included."""
    waiting: int
    """Those of them that no replica has taken into its steps yet."""
    running: int
    """Those in the steps of a replica."""
    kv_used: float
    """Share of the KV blocks of the ready replicas that is taken; 0 without any."""
    idle_since: Sequence[float]
    """For each ready replica with nothing to do, since when, the first ones first."""


class ServiceSignals(Protocol):
    """Counters of a service, now or of the last window.

    The window is the time between two questions (`every`), or 60 s.
    """

    roles: Mapping[str, RoleSignals]
    """The roles that scale, by name."""
    arrival_rate: float
    """Requests per second that have come in the window."""
    ttft: float
    """Mean time to the first token of those that came in the window; NaN without any."""
    tpot: float
    """Mean time per further token of the answers that ended in the window; NaN without any."""
    changed_at: float
    """When replicas were started or drained last; minus infinity before."""


class Scaling:
    """Base of scaling policies: the number of replicas; one object a service."""

    policy_kind: ClassVar[str] = "scale"

    follows_idle: ClassVar[bool] = False
    """True if it is also asked when a replica falls idle."""

    longest_idle_first: ClassVar[bool] = False
    """True if of idle replicas the one that is idle for longest drains first; the newest otherwise."""

    measures: ClassVar[bool] = False
    """True if it has to be asked at equal intervals, so that `every` must be given."""

    again: float = math.inf
    """When it is to be asked next at the latest.  `wanted` sets it; what it says counts if its answer was carried out
    at least in part, or changes nothing."""

    def wanted(self, service: LanguageService, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        """Return the wanted number of replicas by role, or by type of device.

        What is not named stays as it is.
        """
        raise NotImplementedError
