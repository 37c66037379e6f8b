"""Fair Tree: users ranked by fair share, level by level of an account tree.

Siblings are ranked by their level fair share: their fraction of the siblings' total shares divided by their fraction of
the siblings' total usage.  The tree is traversed depth first in this ranking, and users are numbered as they are
reached.  So every user of an underserved account ranks before all users of a better served account.  Siblings with
equal values are traversed together.
Reference: Slurm Workload Manager: Fair Tree Fairshare Algorithm (SchedMD; Cox and Morrison, Brigham Young University).
Cost: a sort of the users.
"""

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from hetsim_policies.common import grouped

Member = tuple[str, str]  # (account, user)
Owner = TypeVar("Owner", bound=Hashable)

SMALLEST_UNIT = 1e-100  # below this unit, all amounts are rescaled to units of 1


class Account(BaseModel):
    """An account: its shares among siblings, and its parent (None for the root)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shares: Annotated[float, Field(gt=0)] = 1.0
    parent: str | None = None


class FairTree:
    """A tree of accounts with users as leaves.

    Accounts that it does not name are children of the root with one share.
    """

    def __init__(self, accounts: dict[str, Account], shares: Mapping[str, float]):
        self.accounts = accounts
        self.shares = shares
        for name, account in accounts.items():
            if account.parent is not None and account.parent not in accounts:
                raise ValueError(f'the parent of account {name} must be one of the accounts; got "{account.parent}"')
            above, seen = account.parent, [name]
            while above is not None:
                if above in seen:
                    raise ValueError(f"the parents of accounts form a cycle: {' → '.join([*seen, above])}")
                seen.append(above)
                above = accounts[above].parent

    def factors(self, usage: Mapping[Member, float]) -> dict[Member, float]:
        """Return factors of users: from 1 for the most underserved, down to 1 / users."""
        below, used = self._tree(usage)
        count, met = max(1, len(usage)), 0
        factors: dict[Member, float] = {}
        level: list[list[Member]] = [[("", "")]]
        while level:  # depth first: the last group is walked next
            group = level.pop()
            leaves = [node for node in group if node[1]]
            for leaf in leaves:
                factors[leaf] = 1.0 - met / count
            met += len(leaves)
            children = self._ranked([child for node in group for child in below.get(node, ())], below, used)
            level += reversed(children)
        return factors

    def _tree(self, usage: Mapping[Member, float]) -> tuple[dict[Member, list[Member]], dict[Member, float]]:
        """Return the children of each account, and the usage of each subtree."""
        below: dict[Member, list[Member]] = {}
        used: dict[Member, float] = {}
        for leaf, amount in usage.items():
            used[leaf] = used.get(leaf, 0.0) + amount
            child: Member = leaf
            name: str | None = leaf[0]
            while True:
                parent: Member = (name or "", "")
                siblings = below.setdefault(parent, [])
                if child not in siblings:
                    siblings.append(child)
                used[parent] = used.get(parent, 0.0) + amount
                if not name:
                    break
                child = parent
                account = self.accounts.get(name)
                name = None if account is None else account.parent
        return below, used

    def _share(self, node: Member) -> float:
        if node[1]:
            return self.shares.get(node[1], 1.0)
        account = self.accounts.get(node[0])
        return 1.0 if account is None else account.shares

    def _ranked(
        self, nodes: list[Member], below: Mapping[Member, list[Member]], used: Mapping[Member, float]
    ) -> list[list[Member]]:
        """Return groups of equal fair share, highest first; none mixes users and accounts."""
        owed: dict[Member, float] = {}
        for siblings in below.values():
            mine = [node for node in siblings if node in nodes]
            if not mine:
                continue
            shares, usage = math.fsum(map(self._share, siblings)), math.fsum(used[node] for node in siblings)
            for node in mine:
                part = used[node] / usage if usage > 0 else 0.0
                owed[node] = self._share(node) / shares / part if part > 0 else math.inf
        ranked = sorted(nodes, key=lambda node: (-owed[node], not node[1], node))
        return list(grouped(((owed[node], bool(node[1])), node) for node in ranked).values())


# GPU time of users or accounts, halved every half-life, while tasks run at constant rates.  Amounts are stored in units
# that shrink with time, and are computed when read, so that neither owners nor tasks are visited.  Cost: O(1) per call.


class _Account:
    """Usage of an owner: `amount` up to the time `reckoned`, then growing by `rate`."""

    __slots__ = ("amount", "rate", "reckoned")

    def __init__(self, reckoned: float) -> None:
        self.amount = 0.0
        self.rate = 0  # millionths of a device, so that it is zero again once nothing runs
        self.reckoned = reckoned


class DecayedUsage(Generic[Owner]):
    """Exponentially decaying usage by owner, up to the last call of `advance`."""

    def __init__(self, half_life: float):
        self.half_life = half_life
        self.as_of = 0.0
        self._unit = 1.0  # the present weight of one unit
        self._clock = 0.0  # the units that a rate of one device has received since the units were 1
        self._accounts: dict[Owner, _Account] = {}

    def open(self, owner: Owner) -> None:
        self._accounts.setdefault(owner, _Account(self._clock))

    def advance(self, now: float) -> None:
        """Decay all amounts up to `now`, and add the usage since the last call."""
        if not (passed := now - self.as_of):
            return
        self.as_of = now
        factor = 0.5 ** (passed / self.half_life)
        if self._unit * factor < SMALLEST_UNIT:
            for account in self._accounts.values():
                account.amount = self._amount(account) * factor + account.rate * 1e-6 * passed
                account.reckoned = 0.0
            self._unit, self._clock = 1.0, 0.0
            return
        self._unit *= factor
        self._clock += passed / self._unit

    def _amount(self, account: _Account) -> float:
        if account.rate:
            account.amount += account.rate * 1e-6 * (self._clock - account.reckoned)
        account.reckoned = self._clock
        return account.amount * self._unit

    def change_rate(self, owner: Owner, millionths: int, received: float = 0.0) -> None:
        """Add `millionths` of a device to an owner's rate, and `received` device-seconds."""
        account, clock = self._accounts[owner], self._clock
        if account.rate:  # `_amount`, inline
            account.amount += account.rate * 1e-6 * (clock - account.reckoned)
        account.reckoned = clock
        account.rate += millionths
        account.amount += received / self._unit

    def __getitem__(self, owner: Owner) -> float:
        return self._amount(self._accounts[owner])

    def __iter__(self) -> Iterator[Owner]:
        return iter(self._accounts)

    @property
    def total(self) -> float:
        return sum(map(self._amount, self._accounts.values()))
