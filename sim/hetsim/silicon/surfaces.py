"""Measured times of kernels on regular grids, by GPU and engine.

`surfaces.parquet` is distilled from the kernel tables of aiconfigurator-core (Apache-2.0; NOTICE names source and
changes) by `benchmarks/distil.py`.
"""

import io
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from hetsim.model.files import package_data

STEPS = 512.0
"""Steps of a stored value in a factor of two."""

ENGINES = ("vllm", "trtllm", "sglang")
Key = tuple[str, str, str, str, tuple[int, ...]]
Coordinate = float | np.ndarray


@dataclass(frozen=True)
class Surface:
    """Log2 of a kernel's nanoseconds on a grid, interpolated in log-log."""

    version: str
    axes: tuple[np.ndarray, ...]
    """Log2 of the points of each axis."""
    values: np.ndarray

    def at(self, *coordinates: Coordinate) -> np.ndarray:
        """Seconds at coordinates; constant before the grid, extrapolated after."""
        places, shares = [], []
        for points, coordinate in zip(self.axes, coordinates, strict=True):
            value = np.log2(np.maximum(np.asarray(coordinate, dtype=float), 1e-9))
            if len(points) == 1:
                places.append((np.zeros(value.shape, int),) * 2)
                shares.append((np.ones(value.shape), np.zeros(value.shape)))
                continue
            low = np.clip(np.searchsorted(points, value, side="right") - 1, 0, len(points) - 2)
            share = np.maximum(0.0, (value - points[low]) / (points[low + 1] - points[low]))
            places.append((low, low + 1))
            shares.append((1.0 - share, share))
        total: np.ndarray = np.zeros(())
        for corner in product((0, 1), repeat=len(self.axes)):
            weight: np.ndarray = np.ones(())
            for axis, side in enumerate(corner):
                weight = weight * shares[axis][side]
            total = total + weight * self.values[tuple(places[axis][side] for axis, side in enumerate(corner))]
        return np.asarray(np.exp2(total / STEPS) * 1e-9)


@cache
def surfaces() -> dict[Key, Surface]:
    """All shipped surfaces by GPU, engine, kernel, format and shape."""
    import pyarrow.parquet as pq

    made = {}
    for row in pq.read_table(io.BytesIO(package_data(__file__, "surfaces.parquet"))).to_pylist():
        axes = tuple(np.log2(points) for points in row["axes"])
        values = np.array(row["values"], dtype=np.int16).reshape([len(points) for points in axes])
        key = (row["gpu"], row["engine"], row["kernel"], row["format"], tuple(row["shape"]))
        made[key] = Surface(row["version"], axes, values)
    return made
