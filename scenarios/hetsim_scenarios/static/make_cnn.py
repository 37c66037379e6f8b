"""Writes the operator graph of a residual network that infers several images, and its twin without sharing.

    python scenarios/hetsim_scenarios/static/make_cnn.py

cnn-operators.csv     the graph: ResNet-18 (He, Zhang, Ren, Sun, Deep Residual Learning, 2016) on images of 224 × 224,
                      eight requests of one image each, 21 operators a request
cnn-alone.csv         the same operators as independent tasks, each with inputs and outputs of its own on the host

The weights, as lines for `data:` of a scenario, are printed.

An operator is a convolution with what follows it point by point (normalization, ReLU, the addition of the shortcut;
after the first the pooling too), or the last pooling with the fully connected layer.  All is in single precision.
Times are those of a roofline, launch overhead + max(operations / peak, bytes / bandwidth), of which half is reached.
A GPU is a GTX 1080 Ti (11.34 TFLOP/s, 484 GB/s, 5 µs a launch), a core has 96 GFLOP/s and 12 GB/s: the figures of
`hetsim.workload.costs.roofline`.  Assumed is that an operator reads its inputs and weights and writes its output once,
that nothing stays in caches, that no operator uses a faster algorithm than the direct one, and that at the start all
weights lie on the host: that is the first use of a model, not a warm server.
The weights of an operator are one item that all requests read.  An activation is the result (`bytes_out`) of the
operator that makes it and lies where it was made.  The first operator of a request brings its image from the host.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

REQUESTS = 8
IMAGES = 1
FLOAT = 4
GPU = {"flops": 11.34e12, "bandwidth": 484e9, "overhead": 5e-6}
CORE = {"flops": 96e9, "bandwidth": 12e9, "overhead": 0.0}
EFFICIENCY = 0.5


@dataclass(frozen=True)
class Operator:
    """One layer: its inputs by name, and its work for one request."""

    name: str
    inputs: tuple[str, ...]
    weights: int
    """Bytes."""
    output: int
    """Bytes for a request."""
    flops: float

    def bytes(self, sizes: dict[str, int]) -> int:
        """What it moves to and from the memory of its device."""
        return self.weights + self.output + sum(sizes[name] for name in self.inputs)


def convolution(name: str, inputs: tuple[str, ...], cin: int, cout: int, side: int, kernel: int) -> Operator:
    """`cout` maps of side × side from `cin`; two operations a multiplication with addition."""
    weights = kernel * kernel * cin * cout
    pixels = IMAGES * side * side
    return Operator(name, inputs, FLOAT * weights, FLOAT * pixels * cout, 2.0 * weights * pixels)


def network() -> list[Operator]:
    """ResNet-18 in an order in which it can run.  The pooling after the first layer is taken with it."""
    first = convolution("conv1", ("images",), 3, 64, 112, 7)
    layers = [Operator("conv1", first.inputs, first.weights, FLOAT * IMAGES * 56 * 56 * 64, first.flops)]
    before, channels = "conv1", 64
    for stage, (side, width) in enumerate([(56, 64), (28, 128), (14, 256), (7, 512)], start=2):
        for block in "ab":
            name = f"conv{stage}{block}"
            shortcut = before
            layers.append(convolution(f"{name}1", (before,), channels, width, side, 3))
            if channels != width:
                shortcut = f"short{stage}"
                layers.append(convolution(shortcut, (before,), channels, width, side, 1))
            layers.append(convolution(f"{name}2", (f"{name}1", shortcut), width, width, side, 3))
            before, channels = f"{name}2", width
    weights = channels * 1000
    layers.append(Operator("fc", (before,), FLOAT * weights, FLOAT * IMAGES * 1000, 2.0 * weights * IMAGES))
    return layers


IMAGE_BYTES = FLOAT * IMAGES * 3 * 224 * 224


def seconds(operator: Operator, sizes: dict[str, int], device: dict[str, float]) -> float:
    """The roofline."""
    reached = operator.flops / device["flops"], operator.bytes(sizes) / device["bandwidth"]
    return device["overhead"] + max(reached) / EFFICIENCY


def rows(alone: bool) -> list[list[object]]:
    layers = network()
    sizes = {"images": IMAGE_BYTES, **{layer.name: layer.output for layer in layers}}
    table = []
    for request in range(REQUESTS):
        for layer in layers:
            times = [f"{seconds(layer, sizes, device):.9f}" for device in (CORE, GPU)]
            row: list[object] = [f"{layer.name}-{request}", layer.name, *times]
            if alone:
                row += [sum(sizes[name] for name in layer.inputs), layer.output]
            else:
                brought = IMAGE_BYTES if "images" in layer.inputs else 0
                before = ";".join(f"{name}-{request}" for name in layer.inputs if name != "images")
                row += [brought, layer.output, f"w-{layer.name}", before]
            table.append(row)
    return table


def write(folder: Path) -> None:
    """Both files."""
    for name, alone in (("cnn-operators.csv", False), ("cnn-alone.csv", True)):
        with open(folder / name, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            more = [] if alone else ["reads", "predecessors"]
            table.writerow(["id", "class", "cpu_time", "gpu_time", "bytes_in", "bytes_out", *more])
            table.writerows(rows(alone))


def items() -> str:
    """The weights as lines for `data:`."""
    return "\n".join(f"  - {{name: w-{layer.name}, size: {layer.weights} B}}" for layer in network())


if __name__ == "__main__":
    write(Path(__file__).parent)
    print(items())
