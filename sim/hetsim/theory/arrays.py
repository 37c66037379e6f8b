"""Evaluates a model at many values of its arguments: arrays in, arrays out."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from hetsim.errors import UsageError

# annotations of model arguments that may be arrays
NUMBERS = (float, int, float | None, int | None, "float", "int", "float | None", "int | None")


def each(model: Callable[..., Any], *arguments: Any, **named: Any) -> dict[str, np.ndarray]:
    """Evaluate a model for arrays of its arguments, which are broadcast.

        theory.each(theory.mmc, np.linspace(1, 13, 100), 1.0, servers=16)["wait_mean"]

    Numeric arguments of the model may be arrays; other arguments, such as matrices, are the same for all elements.
    Returns: an array of the broadcast shape for each figure; NaN where the model does not know the figure.
    Raises: UsageError: the arrays cannot be broadcast, or the model rejects one of their values.
    """
    bound = inspect.signature(model).bind(*arguments, **named)
    numbers = {name for name, one in bound.signature.parameters.items() if one.annotation in NUMBERS}
    varied = {name: one for name, one in bound.arguments.items() if name in numbers and isinstance(one, np.ndarray)}
    try:
        shape = np.broadcast_shapes(*(one.shape for one in varied.values()))
    except ValueError:
        sizes = ", ".join(f"{name} {one.shape}" for name, one in varied.items())
        raise UsageError(f"arrays must broadcast; got the shapes {sizes}") from None
    rows = []
    for values in np.broadcast(*varied.values()) if varied else [()]:
        result = model(**bound.arguments | dict(zip(varied, (one.item() for one in values), strict=True)))
        names = [one.name for one in fields(result)] if is_dataclass(result) else []
        figures = {name: getattr(result, name) for name in names} or {"value": result}
        rows.append({name: one for name, one in figures.items() if isinstance(one, int | float)})
    return {name: np.array([row[name] for row in rows]).reshape(shape) for name in rows[0]}
