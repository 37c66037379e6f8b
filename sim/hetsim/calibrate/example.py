"""A small NumPy network to try calibration: hetsim.calibrate.example:network."""

import numpy as np

from hetsim.calibrate.measure import HostDevice

LAYERS = (3072, 512, 512, 10)  # layer widths: inputs of a CIFAR-10 image, two hidden layers, ten classes


def network() -> HostDevice:
    """Return this CPU as a device to measure: it computes a three-layer perceptron."""
    random = np.random.default_rng(0)
    weights = [
        random.standard_normal((before, after), dtype=np.float32) / np.float32(np.sqrt(before))
        for before, after in zip(LAYERS[:-1], LAYERS[1:], strict=True)
    ]
    images = np.zeros((0, LAYERS[0]), np.float32)

    def run(n: int) -> np.ndarray:
        nonlocal images
        if len(images) < n:
            images = random.standard_normal((n, LAYERS[0]), dtype=np.float32)
        values = images[:n]
        for layer in weights[:-1]:
            values = np.maximum(values @ layer, 0)
        return values @ weights[-1]

    return HostDevice(run, "CPU, three layers in NumPy", 4 * LAYERS[0], 4 * LAYERS[-1])
