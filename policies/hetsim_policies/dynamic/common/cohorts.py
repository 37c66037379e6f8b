"""Quotas in a tree of cohorts: lent, borrowed and free amounts; dominant shares.

A queue has quotas by flavor and resource.  It lends unused quota to its cohort, up to its lending limit, and borrows
from the cohort, up to its borrowing limit; in the same way, a cohort lends to the cohort above it, and borrows from it.
Reference: Kueue (kubernetes-sigs/kueue), `pkg/cache/scheduler`; Ghodsi et al., Dominant Resource Fairness (2011).
Cost: O(depth) for available amounts, and for a change of usage.
"""

from collections.abc import Mapping
from typing import NamedTuple

Key = tuple[str, str]  # (flavor, resource)
Share = tuple[tuple[int, float], tuple[Key, ...]]  # dominant share: its sort key in thousandths, and the borrowed keys


class Quota(NamedTuple):
    """The quota of one resource in one flavor; a limit of None means unlimited."""

    nominal: int = 0
    borrowing: int | None = None
    lending: int | None = None


class Cohort:
    """A cohort or queue of Kueue's quota tree; call the complete tree's `root.settle`."""

    def __init__(
        self, name: str, parent: "Cohort | None" = None, quotas: Mapping[Key, Quota] | None = None, weight: float = 1.0
    ):
        self.name, self.parent, self.quotas, self.weight = name, parent, dict(quotas or {}), weight
        self.children: list[Cohort] = []
        # This node, and the cohorts above it, nearest first
        self.path: list[Cohort] = [self, *(parent.path if parent else ())]
        self.root, self.height = self.path[-1], 0
        self.usage: dict[Key, int] = {}  # of a cohort: usage of its children beyond their guaranteed amounts
        if parent is not None:
            parent.children.append(self)

    def settle(self) -> None:
        """Compute the quotas of this subtree, and how much of each is never lent."""
        self.subtree = {key: quota.nominal for key, quota in self.quotas.items()}
        self._potential: dict[Key, int] = {}
        self._lendable: dict[str, int] = {}
        for child in self.children:
            child.settle()
            self.height = max(self.height, child.height + 1)
            for key, amount in child.subtree.items():
                self.subtree[key] = self.subtree.get(key, 0) + amount - child.guaranteed.get(key, 0)
        self.guaranteed: dict[Key, int] = {
            key: max(0, self.subtree[key] - quota.lending)
            for key, quota in self.quotas.items() if quota.lending is not None
        }  # fmt: skip

    def child(self, below: "Cohort") -> "Cohort":
        """Return the child of this node on the path to a node below it."""
        return below.path[below.path.index(self) - 1]

    def unused(self, key: Key) -> int:
        """Return the amount of guaranteed quota that is not in use."""
        return max(0, self.guaranteed.get(key, 0) - self.usage.get(key, 0))

    def available(self, key: Key, empty: bool = False) -> int:
        """Return the amount still available, borrowing included; below 0 in debt.

        empty: True to assume that nothing is in use.
        """
        has, usage = self.subtree.get(key, 0), 0 if empty else self.usage.get(key, 0)
        if self.parent is None:
            return has - usage
        above, keeps, quota = self.parent.available(key, empty), self.guaranteed.get(key, 0), self.quotas.get(key)
        if quota is not None and quota.borrowing is not None:
            above = min(has - max(usage, keeps) + quota.borrowing, above)
        return max(0, keeps - usage) + above

    def potential(self, key: Key) -> int:
        """Return the amount that would be available if nothing were in use."""
        if key not in self._potential:
            self._potential[key] = self.available(key, empty=True)
        return self._potential[key]

    def use(self, usage: Mapping[Key, int], sign: int = 1) -> None:
        """Add usage (sign -1: subtract it) to this node of the tree.

        Usage beyond the guaranteed amount of this node is also added to the cohort above it.
        """
        for key, amount in usage.items():
            for node in self.path:
                before, keeps = node.usage.get(key, 0), node.guaranteed.get(key, 0)
                node.usage[key] = after = before + sign * amount
                if not (amount := abs(max(0, after - keeps) - max(0, before - keeps))):
                    break

    def borrows(self, key: Key, more: int = 0) -> bool:
        """Return True if the cohort would borrow quota if its usage grew by `more`."""
        return self.subtree.get(key, 0) < self.usage.get(key, 0) + more

    def lowest_fit(self, key: Key, amount: int) -> tuple[int, bool]:
        """Return how far up the tree of cohorts this amount must be borrowed from.

        The first value is a height: 0 if the queue need not borrow, else that of the lowest subtree with room (of the
        root, if none has room).  The second one is True if that subtree is not the whole tree.
        """
        for node in self.path:
            if not node.borrows(key, amount):
                break
            amount -= node.unused(key)
        return node.height, node.parent is not None

    def share(self) -> Share:
        """Return the dominant share, as a sort key, and which quotas are borrowed.

        The share is the maximum over resources of 1000 × borrowed amount / amount that the parent cohort could lend,
        divided by the weight.  Borrowed quotas are pairs (resource flavor, resource).
        """
        over = {key: used - self.subtree[key] for key, used in self.usage.items() if used > self.subtree.get(key, used)}
        if self.parent is None or not over:
            return (0, 0.0), ()
        amounts, lendable = dict[str, int](), self.parent.lendable()
        for key, amount in over.items():
            amounts[key[1]] = amounts.get(key[1], 0) + amount
        parts = (1000 * amount / lendable[name] for name, amount in amounts.items() if lendable.get(name))
        ratio = max(parts, default=0.0)
        return ((1, ratio) if ratio and not self.weight else (0, ratio and ratio / self.weight)), tuple(over)

    def lendable(self) -> dict[str, int]:
        """Return the total quota per resource, borrowing included, when nothing is in use."""
        if not self._lendable:
            for key in self.root.subtree:
                self._lendable[key[1]] = self._lendable.get(key[1], 0) + self.potential(key)
        return self._lendable
