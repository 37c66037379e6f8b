"""Fair Tree: users in the order of what they are owed, level by level of a tree of accounts.

Siblings are ranked by their level fair share, their part of the siblings' shares over their part of the siblings'
usage; the tree is walked depth first in that order and users are numbered as they are met.  So no user of an account
that is owed more stands behind one of an account that is owed less.  Siblings owed the same are walked as one.
Reference: Slurm Workload Manager: Fair Tree Fairshare Algorithm (SchedMD; Cox and Morrison, Brigham Young University).
Cost: a sort of the users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Member = tuple[str, str]
"""An account and a user of it."""


class Account(BaseModel):
    """One account: its shares among its siblings, and the account above it (None: the root)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shares: Annotated[float, Field(gt=0)] = 1.0
    parent: str | None = None


class FairTree:
    """A tree of accounts with users as leaves; accounts that it does not name hang on the root with one share."""

    def __init__(self, accounts: dict[str, Account], shares: Mapping[str, float]):
        self.accounts = accounts
        self.shares = shares
        for name, account in accounts.items():
            if account.parent is not None and account.parent not in accounts:
                raise ValueError(f'account {name} has the parent "{account.parent}", which is none of the accounts')
            above, seen = account.parent, [name]
            while above is not None:
                if above in seen:
                    raise ValueError(f"accounts are their own parents: {' → '.join([*seen, above])}")
                seen.append(above)
                above = accounts[above].parent

    def factors(self, usage: Mapping[Member, float]) -> dict[Member, float]:
        """From 1 for the user that is owed most down to 1 / users."""
        below, used = self._tree(usage)
        count, met = max(1, len(usage)), 0
        found: dict[Member, float] = {}
        level: list[list[Member]] = [[("", "")]]
        while level:  # depth first: the last group is walked next
            group = level.pop()
            leaves = [node for node in group if node[1]]
            for leaf in leaves:
                found[leaf] = 1.0 - met / count
            met += len(leaves)
            children = self._ranked([child for node in group for child in below.get(node, ())], below, used)
            level += reversed(children)
        return found

    def _tree(self, usage: Mapping[Member, float]) -> tuple[dict[Member, list[Member]], dict[Member, float]]:
        """Children of each account, written (name, ""), and what each node and all below it has used."""
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
        """Nodes that are owed most first; those owed the same, and of one kind, in one group."""
        owed: dict[Member, float] = {}
        for siblings in below.values():
            mine = [node for node in siblings if node in nodes]
            if not mine:
                continue
            shares, usage = math.fsum(map(self._share, siblings)), math.fsum(used[node] for node in siblings)
            for node in mine:
                part = used[node] / usage if usage > 0 else 0.0
                owed[node] = self._share(node) / shares / part if part > 0 else math.inf
        groups: dict[tuple[float, bool], list[Member]] = {}
        for node in sorted(nodes, key=lambda node: (-owed[node], not node[1], node)):
            groups.setdefault((owed[node], bool(node[1])), []).append(node)
        return list(groups.values())
