"""Clients that give up their calls, retry them, or hedge them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hetsim.errors import KeyProblem

if TYPE_CHECKING:
    from hetsim.model.units import Count, Fraction, Positive, Seconds

Cause = Literal["timeout", "rejected", "failed"]  # why an attempt failed

MAX_TOKENS = 10.0  # maximum number of retries and hedges that a budget saves up, as in gRPC's retry throttling

MAX_HEDGES = 20  # maximum number of hedges of an attempt: each call has rows for all its attempts

MAX_CLIENTS = 2**31 - 1  # maximum number of clients of an entry: their numbers are stored in 32 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWait:
    """The wait before a retry: `first`, then `factor` times as long for each retry."""

    first: Seconds = 0.0
    """Wait before the first retry."""
    factor: Positive = 2.0
    """Each further wait is this many times as long as the one before."""
    longest: Seconds = field(default=math.inf, metadata={"alias": "max"})
    """Maximum wait."""
    jitter: Literal["full", "exponential", "none"] = "none"
    """full: drawn uniformly between 0 and the wait; exponential: drawn with the wait as mean; none: the wait itself."""

    def check(self) -> None:
        if self.factor < 1:
            raise KeyProblem("factor", f"factor must be at least 1 (waits never become shorter); got {self.factor:g}")

    def seconds(self, retry: int, drawn: float) -> float:
        """Return the wait before retry number `retry` (from 0), times the factor `drawn`."""
        try:
            return min(self.longest, self.first * self.factor**retry) * drawn
        except OverflowError:
            return self.longest * drawn if self.first > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Retries: a call whose attempt failed is sent again, at most `times` times."""

    times: Count
    """Maximum number of retries of a call."""
    on: list[Cause] = field(default_factory=lambda: ["timeout", "rejected", "failed"])
    """Causes of a retry: an attempt that timed out, was rejected (or expired), or failed."""
    wait: RetryWait = RetryWait()
    """Wait before each retry."""
    size: Literal["same", "new"] = "same"
    """same: an attempt takes as long as the first; new: as long as a random call of its class."""
    budget: Fraction | None = None
    """Maximum number of retries and hedges, as a fraction of the calls so far; at most 10 unused ones are saved.
    Default: no limit."""

    def check(self) -> None:
        if not self.on:
            raise KeyProblem("on", "these retries have no cause; give at least one of timeout, rejected and failed")
        if self.times > 100:
            raise KeyProblem("times", f"a call must have at most 100 retries; got {self.times}")
        if self.budget is not None and not 0 < self.budget <= 1:
            raise KeyProblem("budget", f"budget must be a share of calls above 0 and up to 100%; got {self.budget:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge:
    """Hedges: another attempt of a call is sent while an earlier one is unanswered."""

    after: Seconds
    """Time from each attempt to the next one; with 0 s all are sent at the same time."""
    times: Count = 1
    """Maximum number of hedges of the first attempt, and of each retry."""
    size: Literal["same", "new"] = "same"
    """same: a hedge takes as long as the attempt; new: as long as a random call of its class."""
    apart: bool = False
    """True: the attempts of a call run in different modes (device types), which are drawn at random."""

    def check(self) -> None:
        if self.times > MAX_HEDGES:
            raise KeyProblem("times", f"an attempt must have at most {MAX_HEDGES} hedges; got {self.times}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Clients that send each call as one or more attempts until one is answered."""

    timeout: Any = math.inf
    """Maximum time of an attempt, waiting and running; from a distribution, a time is drawn for each attempt."""
    at_timeout: Literal["leave", "cancel", "stay"] = "leave"
    """leave: the server is not notified and continues; cancel: the server stops the attempt, and all other attempts of
    a call once one is answered; stay: like cancel, but if the attempt already runs, the client waits until it ends.
    """
    give_up_after: Seconds = math.inf
    """Time after which the client gives up the call with all its attempts."""
    retry: Retry | None = None
    """Retries of failed attempts. Default: none."""
    hedge: Hedge | None = None
    """Hedges: duplicate attempts, sent while the call has no answer. Default: none."""
    count: Count | None = None
    """Number of clients, each with its own retry budget; a random client makes each call. Default: one."""

    @classmethod
    def given(cls, timeout: Any = math.inf, **keys: Any) -> Clients:
        """Return the clients of a scenario entry; `timeout`: seconds or a distribution."""
        return cls(timeout=timeout.mean if getattr(timeout, "scv", 1) == 0 else timeout, **keys)

    @property
    def is_drawn(self) -> bool:
        """True if the timeout is a distribution, from which each attempt's is drawn."""
        return not isinstance(self.timeout, int | float)

    def check(self) -> None:
        longest = math.inf if self.is_drawn else self.timeout
        for key, value in (("timeout", longest), ("give_up_after", self.give_up_after)):
            if value <= 0:
                raise KeyProblem(key, "the time must be above 0; leave the key out if clients wait without limit")
        if self.retry is None and self.hedge is None and self.timeout == math.inf and math.isinf(self.give_up_after):
            raise KeyProblem("timeout", "clients must have at least one of timeout, give_up_after, retry and hedge")
        if self.hedge is not None and self.hedge.after >= (limit := min(longest, self.give_up_after)):
            text = f"the time must be below the {limit:g} s after which the client leaves"
            raise KeyProblem("hedge", text, "after")
        if self.count is not None and self.count > MAX_CLIENTS:
            raise KeyProblem("count", f"count must be at most {MAX_CLIENTS:,} clients; got {self.count:,}")
        if self.count is not None and (self.retry is None or self.retry.budget is None):
            raise KeyProblem("count", "count has an effect only with retry.budget, which each client has; leave it out")

    @property
    def copies(self) -> int:
        """Maximum number of simultaneous attempts of a call."""
        return 1 if self.hedge is None else 1 + self.hedge.times

    @property
    def attempts(self) -> int:
        """Maximum number of attempts of a call, retries and all hedges included."""
        return self.copies * (1 if self.retry is None else 1 + self.retry.times)


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """Columns about the attempts of client calls: first tries, retries and hedges.

    Each attempt is a task with its own row; retries and hedges arrive when the client sends them.  `whose`: index in
    `clients`, -1 for a task that is not an attempt; `attempt_of`: row of the first attempt of the same call, -1 for a
    task that is not an attempt; `following`: row of the call's next attempt, -1 if there is none (a try's hedges come
    before the next retry); `number`: number of earlier attempts of the call; `bucket`: number of the retry budget of
    the call; `drawn`: random factor (jitter) of the wait before this attempt; `timeout`: drawn seconds, None if
    timeouts are not drawn.

    In a chain of services an attempt makes a call of the next stage: `child` is the first row of this call (-1: none);
    `parent`, by the first row of a call, is the attempt that makes the call (-1: an outside client).  Both are None
    without chains. `root` is the first row of the outside call, equal to `attempt_of` without chains.
    """

    clients: list[Clients]
    whose: np.ndarray
    attempt_of: np.ndarray
    following: np.ndarray
    number: np.ndarray
    bucket: np.ndarray
    drawn: np.ndarray
    root: np.ndarray
    parent: np.ndarray | None = None
    child: np.ndarray | None = None
    timeout: np.ndarray | None = None
