"""Rows of different lengths in two arrays, without an object for each row."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of unequal length: row k is `values[starts[k]:starts[k + 1]]`."""

    values: np.ndarray
    starts: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]]) -> "Ragged":
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
        return cls(np.array([value for row in rows for value in row], dtype=np.int64), starts)

    @classmethod
    def empty(cls, count: int) -> "Ragged":
        return cls(np.zeros(0, np.int64), np.zeros(count + 1, np.int64))

    @classmethod
    def joined(cls, parts: "Iterable[Ragged]") -> "Ragged":
        listed = list(parts)
        sizes = np.concatenate([[0], *(np.diff(part.starts) for part in listed)])
        return cls(np.concatenate([part.values for part in listed]), np.cumsum(sizes, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.values[self.starts[row] : self.starts[row + 1]]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def take(self, rows: np.ndarray) -> "Ragged":
        lengths = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        # Position of each value: the beginning of its row plus its offset.
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        return Ragged(self.values[np.repeat(self.starts[:-1][rows], lengths) + within], starts)
