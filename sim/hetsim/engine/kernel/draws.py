"""Random numbers of one source, one by one, drawn in blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Draws:
    """Call it for the next number; `draw(random, count)` gives a block of them."""

    __slots__ = ("draw", "random", "block", "left")

    def __init__(self, draw: Callable[[np.random.Generator, int], np.ndarray], random: np.random.Generator, block: int):
        self.draw = draw
        self.random = random
        self.block = block
        self.left: list[float] = []
        """Unused numbers of the current block, the next one last."""

    def __call__(self) -> float:
        if not self.left:
            self.left = self.draw(self.random, self.block).tolist()[::-1]
        return self.left.pop()
