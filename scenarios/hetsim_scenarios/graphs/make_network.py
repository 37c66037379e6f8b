"""Writes the graph of an image network, kernel by kernel.

    python scenarios/hetsim_scenarios/graphs/make_network.py

network.csv     ResNet-18 (He et al., 2016) on a batch of eight images of 224 × 224, in single precision: 68 kernels,
                their operations, the bytes that each reads and writes in device memory, and the bytes of its result

A convolution of c channels into k with a window of w × w does 2 c k w² operations for each value that comes out;
everything else one to five a value.  A kernel reads what the kernels before it wrote and its weights, and writes its
result.  The weights are there already; the images are uploaded (`bytes_in`), results stay on the device (`bytes_out`)
until their last reader has ended.
Convolutions are assumed to reach 60 % of a device's best rates, other kernels 90 %.
"""

from __future__ import annotations

import csv
from pathlib import Path

BATCH = 8
VALUE = 4
STAGES = ((64, 56), (128, 28), (256, 14), (512, 7))
"""Channels, and pixels along a side."""
COLUMNS = ("id", "class", "flops", "bytes", "efficiency", "bytes_in", "bytes_out", "predecessors")


class Network:
    """Kernels in order, each with its predecessors."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []
        self.size: dict[str, int] = {"": BATCH * 3 * 224 * 224 * VALUE}

    def add(self, name: str, kind: str, before: tuple[str, ...], values: int, each: float, weights: int = 0) -> str:
        """A kernel that computes so many values, with so many operations each."""
        self.size[name] = out = values * VALUE
        uploaded = 0 if before else self.size[""]
        moved = sum(self.size[one] for one in before or ("",)) + weights * VALUE + out
        share = 0.6 if kind == "conv" else 0.9
        self.rows.append((name, kind, int(values * each), moved, share, uploaded, out, ";".join(before)))
        return name

    def conv(self, name: str, before: tuple[str, ...], inner: int, outer: int, window: int, side: int) -> str:
        """A convolution and its normalization."""
        values = BATCH * outer * side * side
        self.add(f"{name}-conv", "conv", before, values, 2 * inner * window**2, inner * outer * window**2)
        return self.add(f"{name}-norm", "norm", (f"{name}-conv",), values, 4, 4 * outer)


def network() -> list[tuple[object, ...]]:
    made = Network()
    here = made.conv("stem", (), 3, 64, 7, 112)
    here = made.add("stem-act", "act", (here,), BATCH * 64 * 112 * 112, 1)
    here = made.add("stem-pool", "pool", (here,), BATCH * 64 * 56 * 56, 9)
    inner = 64
    for stage, (outer, side) in enumerate(STAGES, start=1):
        values = BATCH * outer * side * side
        for block in ("a", "b"):
            name = f"{stage}{block}"
            first = made.conv(f"{name}1", (here,), inner, outer, 3, side)
            first = made.add(f"{name}1-act", "act", (first,), values, 1)
            second = made.conv(f"{name}2", (first,), outer, outer, 3, side)
            if inner != outer:  # the way round the block needs a convolution too
                here = made.conv(f"{name}-short", (here,), inner, outer, 1, side)
            here = made.add(f"{name}-add", "add", (second, here), values, 1)
            here = made.add(f"{name}2-act", "act", (here,), values, 1)
            inner = outer
    here = made.add("pool", "pool", (here,), BATCH * 512, 49)
    made.add("classes", "matmul", (here,), BATCH * 1000, 2 * 512, 512 * 1000)
    return made.rows


def main() -> None:
    with (Path(__file__).parent / "network.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(network())


if __name__ == "__main__":
    main()
