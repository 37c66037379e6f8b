"""Rows of a log as columns that grow, in memory or in blocks on disk."""

import math
import pickle
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from hetsim.model.files import TEMPORARY

BLOCK = 2**17  # rows per block on disk


class RowBlock:
    """Rows stored as columns: 8 bytes per number, 4 bytes per text (a code), plus ids.

    `ids` is empty while no row has an id, an array while all ids are whole numbers, and otherwise a list of texts, in
    which the line number replaces a missing id.
    """

    def __init__(self) -> None:
        self.lines = array("q")
        self.arrival, self.duration = array("d"), array("d")
        self.ids: array | list[str] = array("q")
        self.numbers: dict[str, array] = {}
        # codes, and the code of each text; code 0 is ""; missing last rows are blank
        self.texts: dict[str, tuple[array, dict[str, int]]] = {}

    def __len__(self) -> int:
        return len(self.lines)

    def add(
        self, line: int, id_: Any, arrival: float, duration: float, columns: Mapping[str, float | str | None]
    ) -> None:
        before = len(self.lines)
        for name, value in columns.items():
            if value is None or value == "":
                continue
            if isinstance(value, str):
                codes, names = self.texts.get(name) or self.texts.setdefault(name, (array("i"), {"": 0}))
                if len(codes) < before:
                    codes.extend([0] * (before - len(codes)))
                codes.append(names.setdefault(value, len(names)))
            else:
                if (numbers := self.numbers.get(name)) is None:
                    numbers = self.numbers[name] = array("d")
                if len(numbers) < before:
                    numbers.extend([math.nan] * (before - len(numbers)))
                numbers.append(value)
        self.lines.append(line)
        self.arrival.append(arrival)
        self.duration.append(duration)
        if id_ is not None or self.ids:
            self._identify(id_)

    def _identify(self, id_: Any) -> None:
        ids, before = self.ids, len(self.lines) - 1
        if isinstance(ids, array):
            if type(id_) is int and len(ids) == before and -(2**63) <= id_ < 2**63:
                ids.append(id_)
                return
            ids = self.ids = self.names_of(before)
        ids.append(f"line {self.lines[-1]}" if id_ is None else str(id_))

    def names_of(self, count: int) -> list[str]:
        """Return the ids of the first `count` rows as texts."""
        return [*map(str, self.ids), *(f"line {line}" for line in self.lines[len(self.ids) : count])]

    def number(self, name: str) -> np.ndarray:
        """Return a column of numbers, NaN where missing; do not modify the result."""
        values = self.numbers.get(name)
        return _padded(array("d") if values is None else values, len(self), math.nan)

    def codes(self, name: str) -> np.ndarray:
        return _padded(self.texts[name][0], len(self), 0)


def _padded(values: array, count: int, filler: float) -> np.ndarray:
    padded = np.frombuffer(values, np.dtype(values.typecode)) if values else np.empty(0, np.dtype(values.typecode))
    if len(padded) == count:
        return padded
    return np.concatenate([padded, np.full(count - len(padded), filler, padded.dtype)])


class Blocks:
    """A log's rows in memory; with `folder`, full blocks are stored in a file there."""

    def __init__(self, folder: Path | None = None):
        self.current = RowBlock()
        self.most = math.inf if folder is None else BLOCK
        self._file: IO[bytes] | None = None
        self._places: list[int] = []
        # by row: final arrival, start and run time, known only when all rows are read
        self.patches: dict[int, tuple[float, float | None, float | None]] = {}
        if folder is not None:
            # Beside what is to be written, where there must be room: the system's own folder may lie in memory.
            self._file = tempfile.TemporaryFile(prefix=TEMPORARY, dir=folder)  # noqa: SIM115

    def __len__(self) -> int:
        return len(self._places) + bool(len(self.current))

    def next(self) -> RowBlock:
        """Store the current block, and return a new one."""
        assert self._file is not None
        self._places.append(self._file.tell())
        pickle.dump(self.current, self._file, protocol=5)
        self.current = RowBlock()
        return self.current

    def __iter__(self) -> Iterator[RowBlock]:
        begin = 0
        if self._file is not None:
            for place in self._places:
                self._file.seek(place)
                block = pickle.load(self._file)
                yield self._patched(block, begin)
                begin += len(block)
            self._file.seek(0, 2)
        if len(self.current):
            yield self._patched(self.current, begin)

    def _patched(self, block: RowBlock, begin: int) -> RowBlock:
        end = begin + len(block)
        for place, (arrival, start, took) in self.patches.items():
            if begin <= place < end:
                block.arrival[place - begin] = arrival
                block.duration[place - begin] = math.nan if took is None else took
                if start is not None and place - begin < len(block.numbers.get("start", ())):
                    block.numbers["start"][place - begin] = start
        return block

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
