"""Slices of a MIG GPU, and NVIDIA's profiles with their possible positions.

A GPU of these families has seven compute slices and eight memory slices.  A profile takes a number of each, and begins
at one of several positions among the memory slices; two profiles on a GPU never overlap.  Reference: NVIDIA,
Multi-Instance GPU User Guide, "Supported MIG Profiles" and "MIG Device Placements" (`nvidia-smi mig -lgipp`).
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Slice(NamedTuple):
    """One slice of a GPU: the compute and memory available to a launch in it."""

    share: float
    memory: int = 0  # bytes; 0: in proportion to the share
    profile: str = ""  # NVIDIA's name of the profile, if it has one
    position: int = 0  # the profile's first memory slice

    def bytes_of(self, memory: int | None) -> int:
        """Return the slice's bytes on a GPU of `memory` bytes (None: no limit, 2**62)."""
        return self.memory or round((1 << 62 if memory is None else memory) * self.share)


Layout = tuple[Slice, ...]

_KINDS = (
    (1, 1, (0, 1, 2, 3, 4, 5, 6)), (1, 2, (0, 2, 4, 6)), (2, 2, (0, 2, 4)), (3, 4, (0, 4)), (4, 4, (0,)), (7, 8, (0,)),
)  # fmt: skip
GIGABYTES = {"A100-40": 5, "A100-80": 10, "H100-80": 10}  # by family: GB of one of the eight memory slices
# by family and name: number of compute slices, of memory slices, and possible positions
PROFILES = {family: {f"{kind[0]}g.{kind[1] * size}gb": kind for kind in _KINDS} for family, size in GIGABYTES.items()}


@lru_cache(None)
def arrangements(family: str) -> tuple[Layout, ...]:
    """Return the sets of slices that fit on a GPU together, fewest slices first."""

    def placed(start: int) -> Iterator[Layout]:
        if start == 8:
            yield ()
            return
        for name, (compute, memory, positions) in PROFILES[family].items():
            if start in positions:
                here = Slice(compute / 7, memory * GIGABYTES[family] * 10**9, name, start)
                yield from ((here, *rest) for rest in placed(start + memory))
        yield from placed(start + 1)

    return tuple(sorted(placed(0), key=len))


@lru_cache(None)
def full_layouts(family: str) -> tuple[Layout, ...]:
    every = arrangements(family)
    extended = {layout[:at] + layout[at + 1 :] for layout in every for at in range(len(layout))}
    return tuple(layout for layout in every if layout not in extended)
