"""Random numbers of one source, one by one, drawn in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True, eq=False)
class Draws:
    """Call it for the next number; `draw(random, count)` gives a block of them."""

    draw: Callable[[np.random.Generator, int], np.ndarray]
    random: np.random.Generator
    block: int
    unused: list[float] = field(default_factory=list)
    """Numbers of the current block, the next one last."""

    def __call__(self) -> float:
        if not self.unused:
            self.unused = self.draw(self.random, self.block).tolist()[::-1]
        return self.unused.pop()
