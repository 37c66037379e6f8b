"""Readers of measured times from files that scenarios and commands name."""

from collections.abc import Callable
from typing import Any

from hetsim.registry import load_object

MEASUREMENTS = {
    "latencies": "hetsim.workload.mapped.picked_columns:read",
    "layers": "hetsim.workload.readers.layer_profiles:read_profile",
}


def reader(kind: str) -> Callable[..., Any]:
    """Return a reader by kind: `latencies` (of batches) or `layers` (of a network)."""
    return load_object(MEASUREMENTS[kind])
