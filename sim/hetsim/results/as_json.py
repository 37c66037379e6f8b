"""Numbers as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as JSON can hold them."""
    return {name: json_number(value) for name, value in values.items()}


def json_number(value: Any) -> Any:
    """NaN as null, infinities as the text "Infinity" (which float() reads), whole numbers as integers."""
    if isinstance(value, int | np.integer):
        return int(value)
    if math.isnan(value):
        return None
    return ("Infinity" if value > 0 else "-Infinity") if math.isinf(value) else float(value)
