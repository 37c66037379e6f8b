"""Readers of measured times that scenarios and commands name by a file."""

from collections.abc import Callable
from typing import Any

from hetsim.registry import load_object

MEASUREMENTS = {
    "latencies": "hetsim.workload.mapped.picked_columns:read",
    "layers": "hetsim.workload.readers.layer_profiles:read_profile",
}


def reader(kind: str) -> Callable[..., Any]:
    """The reader of tables of batch latencies, or of profiles of layers."""
    return load_object(MEASUREMENTS[kind])
