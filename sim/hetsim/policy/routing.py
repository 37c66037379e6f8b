"""Contracts for routing requests, placing replicas, and evicting models.

Nothing here depends on the type of service; replicas and requests of language models have further attributes
(`hetsim.policy.iterating`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hetsim.model.mode import Mode
from hetsim.model.service import LanguageService
from hetsim.model.units import Seconds


class RoutedRequest(Protocol):
    """A request as a router sees it."""

    row: int
    arrival: float
    priority: float
    weight: float
    client: str
    """Name of the client that sent the request: the task's `user`."""


class RoutedReplica(Protocol):
    """A replica as a router sees it."""

    number: int

    speed: float
    """Work served per second (language models: tokens per second of full batches), estimated from devices and
    requests of the service.  Only ratios between replicas matter.
    """

    @property
    def outstanding(self) -> int:
        """Number of requests sent to this replica that have not ended."""


class WantedReplica(NamedTuple):
    """A missing replica: at the start, after a failure or stop, or because load grows."""

    service: LanguageService
    modes: tuple[Mode, ...]
    """Possible modes, in order of preference: one for each type of device that the service names."""
    prefills_only: bool
    requests: int
    """Number of requests to the service that have arrived and have not ended."""


class OpenReplicas(Sequence[Any]):
    """Replicas that accept requests, in the order of their starts, with their loads."""

    __slots__ = ("replicas", "members", "loads")

    def __init__(self, replicas: list[Any]):
        self.replicas, self.members = replicas, set(replicas)
        self.loads = np.array([(replica.outstanding + 1) / replica.speed for replica in replicas])
        """(Outstanding requests + 1) / speed of each replica, updated with every request."""

    def __len__(self) -> int:
        return len(self.replicas)

    def __getitem__(self, place: Any) -> Any:
        return self.replicas[place]

    def __contains__(self, replica: Any) -> bool:
        return isinstance(replica, Hashable) and replica in self.members

    def least_loaded(self) -> Any:
        """The replica with the smallest load; the first of several equal ones."""
        return self.replicas[int(self.loads.argmin())]


class Routing:
    """Base of routing policies, which choose a replica; one object per service."""

    policy_kind: ClassVar[str] = "routing"
    COMMON: ClassVar[tuple[str, ...]] = ("refresh", "delay")  # parameters of every router, set after it is made
    refresh: Seconds = 0.0  # signals are read at multiples of this and seen until the next reading; 0: always current
    delay: Seconds = 0.0  # how much later a reading is seen
    # What it looks at: of `queue` (numbers of requests), `waiting`, `kv`, `prefix` and `forecast`; empty: it does not
    # say.  Without `refresh` only the queue can be delayed, and forecasts have no age.
    signals: tuple[str, ...] = ()
    queueing: ClassVar[str] = ""
    """Name of a model in `hetsim.queueing` for the replicas under this policy; empty: there is no such model."""

    def choose(self, request: Any, replicas: OpenReplicas, random: np.random.Generator) -> RoutedReplica:
        """Choose a replica for a request at its arrival, and between prefill and decode.

        request: a `RoutedRequest`; for language models a `Generation`.
        """
        raise NotImplementedError


@dataclass(eq=False)
class KeptModel:
    """The model of the service `name` in host memory, on a disk or in idle GPUs.

    `loaded`: time at which the model was stored there (in GPUs: at which the replica started).  `used`: time of the
    last load from there, or `loaded` if there was none (in GPUs: time since which the replica is idle).  `uses`: number
    of loads from there.
    """

    name: str
    size: int
    loaded: float
    used: float
    uses: int = 0


class Eviction:
    """Base of eviction policies: choose a model or idle replica that makes room."""

    policy_kind: ClassVar[str] = "eviction"

    def victim(self, kept: Sequence[KeptModel], now: float) -> KeptModel:
        """Return the model to evict; called again until the new model fits.

        kept: the candidates.  In host memory or on a disk: the models in the order in which they were stored; in GPUs:
        the models of idle replicas, node by node, the longest idle first.
        """
        raise NotImplementedError
