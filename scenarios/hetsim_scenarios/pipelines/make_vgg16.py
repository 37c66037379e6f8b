"""Writes tables of the layers of VGG-16, with the times of a roofline.

    python scenarios/hetsim_scenarios/pipelines/make_vgg16.py

vgg16-npu-gpu.csv      inference of one image in half precision on an NPU and a GPU
vgg16-generations.csv  training on 32 images in single precision on GPUs of two generations, V100 and K80

A layer takes max(operations / peak, bytes of weights and activations / bandwidth).  The NPU reaches 6.5 TFLOP/s and
34 GB/s, the GPU 4.4 TFLOP/s and 192 GB/s: the convolutions suit the NPU, the last three layers, which read 247 MB of
weights, the GPU.  A V100 reaches 9.4 TFLOP/s and 630 GB/s, half of a K80 1.7 TFLOP/s and 168 GB/s.
"""

from __future__ import annotations

import csv
from pathlib import Path

HERE = Path(__file__).parent
INFERENCE = {"npu": (6.5e12, 34e9), "gpu": (4.4e12, 192e9)}
TRAINING = {"v100": (9.4e12, 630e9), "k80": (1.7e12, 168e9)}
IMAGES = 32
CONVOLUTIONS = [  # width of the image, channels in and out, whether a pooling follows
    (224, 3, 64, False), (224, 64, 64, True), (112, 64, 128, False), (112, 128, 128, True),
    (56, 128, 256, False), (56, 256, 256, False), (56, 256, 256, True), (28, 256, 512, False),
    (28, 512, 512, False), (28, 512, 512, True), (14, 512, 512, False), (14, 512, 512, False), (14, 512, 512, True),
]  # fmt: skip
CONNECTED = [(25088, 4096), (4096, 4096), (4096, 1000)]


def layers(rates: dict[str, tuple[float, float]], images: int, size: int, passes: int) -> list[dict[str, object]]:
    """Rows of the table of layers: numbers of `size` bytes; `passes` as long as forward alone (3 with backward)."""
    rows = []
    for number, (width, channels, filters, pooled) in enumerate(CONVOLUTIONS, 1):
        flops = 2 * 9 * width**2 * channels * filters * images
        made = width**2 * filters * size * images
        moved = width**2 * channels * size * images + made
        rows.append((f"conv{number}", flops, made // 4 if pooled else made, 9 * channels * filters * size, moved))
    for number, (width, wide) in enumerate(CONNECTED, 1):
        numbers = (width + wide) * size * images
        rows.append((f"fc{number}", 2 * width * wide * images, wide * size * images, width * wide * size, numbers))
    return [
        {
            "layer": name, "activations": sent, "weights": weights,
            **{f"seconds.{device}": f"{passes * max(flops / peak, (weights + moved) / rate):.9f}"
               for device, (peak, rate) in rates.items()},
        }
        for name, flops, sent, weights, moved in rows
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(folder: Path = HERE) -> None:
    write(folder / "vgg16-npu-gpu.csv", layers(INFERENCE, 1, 2, 1))
    write(folder / "vgg16-generations.csv", layers(TRAINING, IMAGES, 4, 3))


if __name__ == "__main__":
    main()
