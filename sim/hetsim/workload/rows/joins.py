"""Joins with a second table by key, for logs too large for a dictionary.

A key takes 16 bytes (a hash of its text that no two texts share), a number 8 and a text that comes again 4; half as
much again while rows are added.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import unpack
from typing import Any, Literal

import numpy as np

MIN_ROWS = 2**16
"""Rows that are added before the first of them are merged."""

Merge = Literal["last", "least", "most"]


class Texts:
    """Texts as numbers, each text once."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self._texts: list[str] = []

    def code(self, text: str) -> int:
        number = self.codes.get(text)
        if number is None:
            number = self.codes[text] = len(self._texts)
            self._texts.append(text)
        return number

    def __getitem__(self, code: float) -> str:
        return self._texts[int(code)]


class Keyed:
    """Rows of numbers by key; equal keys merge, column by column, as `merge` says.

    `last`: the one added last; `least` and `most` of them.  Columns are of array's types `d` or `i`.
    """

    def __init__(self, **columns: tuple[Literal["d", "i"], Merge]):
        self.columns = columns
        self._rows: list[np.ndarray] = [np.empty(0, kind) for kind in ("q", "q", *self._kinds())]
        """The two halves of the keys, by which they are sorted, then the columns."""
        self._most = MIN_ROWS
        self._start()

    def __len__(self) -> int:
        """Different keys."""
        self._merge()
        return len(self._rows[0])

    def add(self, key: str, *values: float) -> None:
        self._keys += blake2b(key.encode(), digest_size=16).digest()
        for column, value in zip(self._added, values, strict=True):
            column.append(value)
        if len(self._keys) >= 16 * self._most:
            self._merge()

    def find(self, key: str) -> tuple[float, ...] | None:
        """The columns of a key."""
        if self._keys:
            self._merge()
        high, low = unpack("=qq", blake2b(key.encode(), digest_size=16).digest())
        first, second, *columns = self._rows
        row = int(first.searchsorted(high))
        while row < len(first) and first.item(row) == high:
            if second.item(row) == low:
                return tuple([column.item(row) for column in columns])
            row += 1
        return None

    def _kinds(self) -> list[Literal["d", "i"]]:
        return [kind for kind, _ in self.columns.values()]

    def _start(self) -> None:
        self._keys = bytearray()
        self._added: list[array[Any]] = [array(kind) for kind in self._kinds()]

    def _merge(self) -> None:
        """Sort what was added into the rest, one column after the other."""
        if not self._keys:
            return
        keys, added = np.frombuffer(self._keys, "q").reshape(-1, 2), self._added
        self._start()
        halves = [np.concatenate([self._rows[n], keys[:, n]]) for n in (0, 1)]
        del keys
        order = np.lexsort((halves[1], halves[0]))  # which leaves equal ones as they came
        halves = [half[order] for half in halves]
        new = np.ones(len(order), dtype=bool)
        new[1:] = (halves[0][1:] != halves[0][:-1]) | (halves[1][1:] != halves[1][:-1])
        begins = np.flatnonzero(new)
        self._rows[:2] = [half[new] for half in halves]
        del halves
        self._most = max(MIN_ROWS, len(begins) // 2)
        ends = np.append(begins[1:], len(order)) - 1
        for n, (kind, merge) in enumerate(self.columns.values(), start=2):
            values = np.concatenate([self._rows[n], np.frombuffer(added[n - 2], kind)])[order]
            if merge == "last":
                self._rows[n] = values[ends]
            else:
                self._rows[n] = (np.minimum if merge == "least" else np.maximum).reduceat(values, begins)
