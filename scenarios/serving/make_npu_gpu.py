"""Writes the layers of VGG-16 on an NPU and a GPU, and requests that stream through a split of them.

    python scenarios/serving/make_npu_gpu.py

npu-gpu-layers.csv     the 16 layers in half precision, one image: bytes passed on, weights, seconds on either device
npu-gpu-split.csv      600 requests at random, 110/s: the first stage on the NPU, the second on the GPU
npu-gpu-alone.csv      the same requests with all layers on the GPU

Times are those of a roofline, max(operations / peak, bytes of weights and activations / bandwidth).  The NPU reaches
6.5 TFLOP/s and 34 GB/s, the GPU 4.4 TFLOP/s and 192 GB/s: the convolutions suit the NPU, the last three layers, which
read 247 MB of weights, the GPU.  The split is that of `hetsim partition` (see npu-and-gpu.yaml).
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from sim.theory.partition import Group, unlike_partition
from sim.workload.readers.layer_profiles import read_profile

HERE = Path(__file__).parent
RATES = {"npu": (6.5e12, 34e9), "gpu": (4.4e12, 192e9)}
HALF = 2
CONVOLUTIONS = [  # width of the image, channels in and out, whether a pooling follows
    (224, 3, 64, False), (224, 64, 64, True), (112, 64, 128, False), (112, 128, 128, True),
    (56, 128, 256, False), (56, 256, 256, False), (56, 256, 256, True), (28, 256, 512, False),
    (28, 512, 512, False), (28, 512, 512, True), (14, 512, 512, False), (14, 512, 512, False), (14, 512, 512, True),
]  # fmt: skip
CONNECTED = [(25088, 4096), (4096, 4096), (4096, 1000)]
IMAGE = 224 * 224 * 3 * HALF
REQUESTS, RATE, DEADLINE = 600, 110.0, 0.03


def layers() -> list[dict[str, object]]:
    """Rows of the table of layers."""
    rows = []
    for number, (width, channels, filters, pooled) in enumerate(CONVOLUTIONS, 1):
        flops = 2 * 9 * width**2 * channels * filters
        made = width**2 * filters * HALF
        moved = width**2 * channels * HALF + made
        rows.append((f"conv{number}", flops, made // 4 if pooled else made, 9 * channels * filters * HALF, moved))
    for number, (width, wide) in enumerate(CONNECTED, 1):
        rows.append((f"fc{number}", 2 * width * wide, wide * HALF, width * wide * HALF, (width + wide) * HALF))
    return [
        {
            "layer": name, "activations": sent, "weights": weights,
            **{f"seconds.{device}": f"{max(flops / peak, (weights + moved) / rate):.9f}"
               for device, (peak, rate) in RATES.items()},
        }
        for name, flops, sent, weights, moved in rows
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(folder: Path = HERE) -> None:
    write(folder / "npu-gpu-layers.csv", layers())
    cuts = read_profile(folder / "npu-gpu-layers.csv")
    groups = [Group("npu", link=4e9), Group("gpu", link=12e9)]
    first, second = unlike_partition(cuts, groups, inference=True).stages
    times = [
        sum((one.on or {})[stage.device] for one in cuts.between(stage.first, stage.last)) for stage in (first, second)
    ]
    arrivals = np.random.default_rng(1).exponential(1 / RATE, REQUESTS).cumsum()
    on = {"npu": "gpu_time.npu", "gpu": "gpu_time.gpu"}
    split: list[dict[str, object]] = []
    for number, arrival in enumerate(arrivals):
        blank = {"deadline": "", "gpu_time.npu": "", "gpu_time.gpu": "", "predecessors": ""}
        common = {"id": "", "class": "", "arrival": f"{arrival:.6f}", **blank}
        split.append(
            {**common, "id": f"a{number}", "class": "first", on[first.device]: f"{times[0]:.9f}", "bytes_in": IMAGE,
             "bytes_out": int(cuts.crossing[first.last])}
        )  # fmt: skip
        split.append(
            {**common, "id": f"b{number}", "class": "request", "deadline": f"{arrival + DEADLINE:.6f}",
             on[second.device]: f"{times[1]:.9f}", "predecessors": f"a{number}", "bytes_in": 0,
             "bytes_out": int(cuts.crossing[-1])}
        )  # fmt: skip
    write(folder / "npu-gpu-split.csv", split)
    whole = sum((one.on or {})["gpu"] for one in cuts.layers)
    alone: list[dict[str, object]] = [
        {"id": f"b{number}", "class": "request", "arrival": f"{arrival:.6f}", "deadline": f"{arrival + DEADLINE:.6f}",
         "gpu_time.gpu": f"{whole:.9f}", "bytes_in": IMAGE, "bytes_out": int(cuts.crossing[-1])}
        for number, arrival in enumerate(arrivals)
    ]  # fmt: skip
    write(folder / "npu-gpu-alone.csv", alone)


if __name__ == "__main__":
    main()
