"""GPU time received by users or accounts, halved every half-life, while their tasks run at constant rates.

Brought up to date at `advance`: all amounts decay by what has passed since, and the time received since is added.
An owner's amount is computed when it is read, so that neither owners nor running tasks are visited: amounts are kept in
units that shrink as time decays, in which what is not used stays as it is.
Cost: O(1) an `advance`, a change of rate, and an amount that is asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)

SMALLEST_UNIT = 1e-100
"""At this size all amounts are written in units of 1 again."""


class _Account:
    """Service of one owner: `amount` units at time `reckoned`, `rate` a second since."""

    __slots__ = ("amount", "rate", "reckoned")

    def __init__(self, reckoned: float) -> None:
        self.amount = 0.0
        self.rate = 0
        """Millionths of a device, so that it is zero again once nothing runs."""
        self.reckoned = reckoned


class DecayedUsage(Generic[Owner]):
    """Usage by owner, as of the last `advance`."""

    def __init__(self, half_life: float):
        self.half_life = half_life
        self.as_of = 0.0
        self._unit = 1.0
        """The present weight of one unit."""
        self._clock = 0.0
        """The units that a rate of one device has received since the units were 1."""
        self._accounts: dict[Owner, _Account] = {}
        self._all = _Account(0.0)

    def open(self, owner: Owner) -> None:
        """From now on it counts as one of the owners."""
        if owner not in self._accounts:
            self._accounts[owner] = _Account(self._clock)

    def advance(self, now: float) -> None:
        """Let all amounts decay up to now, and add what was received since the last time."""
        passed = now - self.as_of
        if not passed:
            return
        self.as_of = now
        left = 0.5 ** (passed / self.half_life)
        if self._unit * left < SMALLEST_UNIT:
            for account in (*self._accounts.values(), self._all):
                account.amount = self._amount(account) * left + account.rate * 1e-6 * passed
                account.reckoned = 0.0
            self._unit, self._clock = 1.0, 0.0
            return
        self._unit *= left
        self._clock += passed / self._unit

    def _amount(self, account: _Account) -> float:
        if account.rate:
            account.amount += account.rate * 1e-6 * (self._clock - account.reckoned)
        account.reckoned = self._clock
        return account.amount * self._unit

    def change_rate(self, owner: Owner, millionths: int) -> None:
        """From the last `advance` on the owner receives more, or less, a second."""
        clock = self._clock
        for account in (self._accounts[owner], self._all):
            if account.rate:  # `_amount`, inline
                account.amount += account.rate * 1e-6 * (clock - account.reckoned)
            account.reckoned = clock
            account.rate += millionths

    def credit(self, owner: Owner, received: float) -> None:
        """Add what the rates do not tell of."""
        for account in (self._accounts[owner], self._all):
            account.amount += received / self._unit

    def __getitem__(self, owner: Owner) -> float:
        return self._amount(self._accounts[owner])

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._accounts)

    @property
    def total(self) -> float:
        return self._amount(self._all)
