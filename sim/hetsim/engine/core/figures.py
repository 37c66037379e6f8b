"""NumPy columns: figures of the mode of each row, and steps of language models."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import Struct
from typing import Any

import numpy as np

from hetsim.model.record import COMPLETED
from hetsim.model.tasks import Mode, Tasks

STEPS = (
    "start", "end", "replica", "steps", "sequences", "prompt_tokens", "context", "free", "taken", "cached", "running",
    "waiting", "fresh",
)  # fmt: skip
"""A row of the steps of a language model that are one event: two times, and whole numbers."""
pack_steps = Struct("2d11q").pack


def step_columns(rows: bytearray) -> dict[str, np.ndarray]:
    """The columns of packed rows of steps."""
    kinds = [(name, "d" if name in ("start", "end") else "q") for name in STEPS]
    table = np.frombuffer(rows, dtype=kinds)
    return {name: table[name].copy() for name in STEPS}


def per_mode(tasks: Tasks, rows: np.ndarray, mode: np.ndarray, value: Callable[[Mode], float]) -> np.ndarray:
    """A number of each row's mode."""
    max_modes = max(len(shape.modes) for shape in tasks.shapes)
    table = np.zeros((len(tasks.shapes), max_modes))
    for shape in tasks.shapes:
        for position, its_mode in enumerate(shape.modes):
            table[shape.index, position] = value(its_mode)
    return table[tasks.shape[rows], mode[rows]]


def width(tasks: Tasks, rows: np.ndarray, mode: np.ndarray) -> np.ndarray:
    """Devices (GPUs or cores) busy while a row's task computes."""
    return per_mode(tasks, rows, mode, lambda m: m.width)


def watts(tasks: Tasks, rows: np.ndarray, mode: np.ndarray) -> np.ndarray:
    """Watts above idle of one such device."""
    return per_mode(tasks, rows, mode, lambda m: m.type.power.busy - m.type.power.idle)


def energies(
    tasks: Tasks, detail: dict[str, np.ndarray], status: np.ndarray, start: np.ndarray, finish: np.ndarray,
    mode: np.ndarray,
) -> np.ndarray | None:  # fmt: skip
    """Joules above idle of each task; None where none were asked for."""
    if "energy" not in detail:
        return None
    plain = np.flatnonzero((status == COMPLETED) & (detail["batch"] < 0) & (mode >= 0))
    if not len(plain):
        return detail["energy"]
    energy = detail["energy"].copy()
    energy[plain] = (finish - start)[plain] * width(tasks, plain, mode) * watts(tasks, plain, mode)
    return energy


def rows_of(kind: str, nothing: float, count: int) -> Any:
    """A column with a row for each task, faster to write row by row than an array."""
    return memoryview(array(kind, [nothing]) * count)
