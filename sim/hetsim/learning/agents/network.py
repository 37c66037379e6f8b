"""A small network that scores actions, with its gradient and Adam, in NumPy.

Each action has a row of features (`hetsim.learning.observation.window.Layout.rows`), and the same layers score every
row.  So what is learned for one task applies to all, and a few thousand weights suffice.  The idea is from Mao,
Schwarzkopf et al., Learning Scheduling Algorithms for Data Processing Clusters (SIGCOMM 2019).
"""

from collections.abc import Sequence

import numpy as np

Arrays = list[np.ndarray]


class ScoreNetwork:
    """Network of tanh layers and a linear layer: one score per row of features.

    `arrays`: the weights and biases of each layer in turn, float32.
    """

    def __init__(self, arrays: Sequence[np.ndarray]):
        self.arrays = [np.asarray(array, np.float32) for array in arrays]
        self._kept: Arrays = []

    @classmethod
    def fresh(cls, inputs: int, hidden: Sequence[int], random: np.random.Generator) -> "ScoreNetwork":
        """Draw weights (Glorot and Bengio 2010); small last weights give similar scores."""
        arrays = []
        sizes = [inputs, *hidden, 1]
        for before, after in zip(sizes, sizes[1:], strict=False):
            spread = np.sqrt(2.0 / (before + after)) * (0.1 if after == 1 else 1.0)
            arrays += [spread * random.standard_normal((before, after)), np.zeros(after)]
        return cls(arrays)

    def copy(self) -> "ScoreNetwork":
        return ScoreNetwork([array.copy() for array in self.arrays])

    def scores(self, rows: np.ndarray) -> np.ndarray:
        return self._layers(rows)[1]

    def forward(self, rows: np.ndarray) -> np.ndarray:
        """Return the scores of rows, and store the values that `backward` needs."""
        self._kept, scores = self._layers(rows)
        return scores

    def _layers(self, rows: np.ndarray) -> tuple[Arrays, np.ndarray]:
        values = [rows]
        for weights, biases in zip(self.arrays[:-2:2], self.arrays[1:-2:2], strict=True):
            values.append(np.tanh(values[-1] @ weights + biases))
        return values, (values[-1] @ self.arrays[-2] + self.arrays[-1])[:, 0]

    def backward(self, slopes: np.ndarray) -> Arrays:
        """Return the loss's gradients by array; `slopes`: its derivative by each score."""
        gradients: Arrays = []
        back: np.ndarray = slopes.astype(np.float32)[:, None]
        for layer in reversed(range(len(self._kept))):
            into = self._kept[layer]
            gradients = [into.T @ back, back.sum(axis=0), *gradients]
            if layer:
                back = (back @ self.arrays[2 * layer].T) * (1.0 - into * into)
        return gradients


class Adam:
    """The optimizer Adam (Kingma and Ba, 2015), with gradient norms clipped to `most`."""

    def __init__(self, arrays: Arrays, rate: float, most: float = 1.0):
        self.arrays, self.rate, self.most = arrays, rate, most
        self.means = [np.zeros_like(array) for array in arrays]
        self.squares = [np.zeros_like(array) for array in arrays]
        self.steps = 0

    def step(self, gradients: Arrays, rate: float | None = None) -> None:
        norm = float(np.sqrt(sum(float((gradient * gradient).sum()) for gradient in gradients)))
        cut = min(1.0, self.most / norm) if norm > 0 else 1.0
        self.steps += 1
        size = (self.rate if rate is None else rate) * np.sqrt(1.0 - 0.999**self.steps) / (1.0 - 0.9**self.steps)
        for array, gradient, mean, square in zip(self.arrays, gradients, self.means, self.squares, strict=True):
            gradient = gradient * np.float32(cut)
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            array -= (size * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


# Scores of several decisions in a row ---------------------------------------------------------------------------


def shares(scores: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Softmax within each decision; `starts` has the first row of each decision."""
    owner = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(scores)))
    shifted = np.exp(scores - np.maximum.reduceat(scores, starts)[owner])
    return np.asarray(shifted / np.add.reduceat(shifted, starts)[owner])
