"""Slices of a MIG GPU during a run: busy slices, the layout, reconfiguration."""

from collections import Counter
from copy import copy
from functools import lru_cache
from typing import Any

from hetsim.model.device_type import DeviceType, micro_share
from hetsim.model.mode import Mode
from hetsim.model.slices import Layout, Slice


@lru_cache(1 << 14)
def best_cut(
    kind: DeviceType, layout: Layout, busy: Layout, fixed: bool, share: int, memory: int, profile: str
) -> tuple[Layout, Slice] | None:
    """Return layout and slice for a launch next to the busy slices; None if none fits.

    Choose the layout whose smallest fitting slice is smallest; at ties the one that leaves most of the GPU free, then
    the present one, then the one with the largest remaining slices, then the one whose remaining slices have most
    memory.  `fixed`: only the present layout is possible.
    """
    admitted, ranked = kind.slices_for(share, memory, profile), []
    others = () if fixed or (busy and kind.sharing.recut != "idle") else kind.sharing.cuts
    for order, one in enumerate((layout, *others)):
        idle = list((Counter(one) - Counter(busy)).elements())
        fitting = [part for part in idle if part in admitted]
        if fitting and len(idle) + len(busy) == len(one):  # else it lacks a busy slice
            best = min(fitting, key=lambda part: (part.share, part.bytes_of(kind.memory)))
            idle.remove(best)  # the rest is what the layout leaves to others
            shares = sorted(-micro_share(part.share) for part in idle)
            free_share = sum(shares), order > 0, shares, -sum(part.bytes_of(kind.memory) for part in idle), order
            ranked.append((best.share, best.bytes_of(kind.memory), free_share, (one, best)))
    return min(ranked)[-1] if ranked else None


class GpuSlices:
    """The slices of one GPU, each with the time from which it is usable."""

    __slots__ = ("kind", "layout", "idle", "busy", "taken", "fixed", "real", "known")

    def __init__(self, kind: DeviceType):
        self.kind = kind
        self.layout = kind.sharing.cuts[0]
        self.idle = [(one, 0.0) for one in self.layout]
        self.busy: dict[Any, tuple[Slice, float]] = {}  # by launch; `taken` has the slices alone, in ascending order
        self.taken: Layout = ()
        self.fixed = False  # the layout was set by the policy, and stays until the policy says otherwise
        self.real = self  # in a what-if copy, the slices of the GPU itself
        self.known: dict[Any, tuple[Layout, Slice] | None] = {}

    def copy(self) -> "GpuSlices":
        other = copy(self)
        other.idle, other.busy = list(self.idle), dict(self.busy)
        return other

    def cut_for(self, mode: Mode) -> tuple[Layout, Slice] | None:
        """Return the MIG layout and slice that a launch would get now; None if none fits."""
        key = self.layout, self.taken, self.fixed, mode
        if key not in self.known:
            self.known[key] = best_cut(self.kind, *key[:3], mode.share, mode.gpu_memory, mode.slice)
        return self.known[key]

    def recut(self, layout: Layout, now: float) -> None:
        """Change how a GPU is divided; busy slices must be part of the new layout.

        Idle slices that both layouts have remain.
        """
        new, kept, begin = Counter(layout) - Counter(self.taken), [], now
        for one, ready in sorted(self.idle, key=lambda entry: entry[1]):
            if new[one]:
                new[one] -= 1
                kept.append((one, ready))  # it is ready, or still being created
            else:
                begin = max(begin, ready)  # slices still being created are recreated only after that
        self.idle = kept + [(one, begin + self.kind.sharing.reconfigure) for one in new.elements()]
        self.layout = layout

    def take(self, mode: Mode, launch: Any, now: float) -> float:
        """Assign a slice to a launch; return the time from which the slice is usable.

        If no slice that fits is free, which is possible on a what-if copy of a GPU, assign none and return `now`.
        """
        cut = self.real.cut_for(mode)
        # Trial launches on the copy may not fit that layout.
        if cut is None or (self.real is not self and Counter(self.taken) - Counter(cut[0])):
            return now
        if cut[0] != self.layout:
            self.recut(cut[0], now)
        # Among equal slices the one that is usable first.
        entry = min((entry for entry in self.idle if entry[0] == cut[1]), default=None)
        if entry is not None:
            self.idle.remove(entry)
            self.busy[launch] = entry
            self.taken = tuple(sorted([*self.taken, cut[1]]))
        return now if entry is None else entry[1]

    def give(self, launch: Any) -> None:
        if launch in self.busy:
            self.idle.append(self.busy.pop(launch))
            # Sorted: it is part of the key of `cut_for`.
            self.taken = tuple(sorted(one for one, _ in self.busy.values()))

    def named(self, layout: list[Any]) -> Layout | None:
        """Return the layout that a policy's list describes; None if it is not possible."""
        wanted, busy = sorted(str(x * 1.0 if isinstance(x, int) else x) for x in layout), Counter(self.taken)
        for one in (self.layout, *self.kind.sharing.cuts):
            same = wanted in (sorted(map(str, one)), sorted(str(part.profile or part.share) for part in one))
            if same and not busy - Counter(one):
                return one
        return None

    def agree(self, modes: dict[Any, Mode]) -> bool:
        """Return True if layout and busy slices match the GPU's launches, keys of `modes`."""
        there = tuple(sorted(one for one, _ in (*self.idle, *self.busy.values())))
        return there == self.layout and there in self.kind.sharing.cuts and self.busy.keys() == modes.keys() and all(
            self.busy[launch][0] in self.kind.slices_for(mode.share, mode.gpu_memory, mode.slice)
            for launch, mode in modes.items()
        )  # fmt: skip
