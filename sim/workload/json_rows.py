"""Large JSON files read element by element: the members of a list, in memory that one of them takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import Problem, ScenarioError
from sim.workload.text_rows import pieces

LARGEST = 64_000_000
"""Characters of one member; more is a sign of damage."""

_SPACE = re.compile(r"[\s,]*")


def members(path: Path, key: str | None = None) -> Iterator[tuple[int, Any]]:
    """Line (from 1) and value of each member of the list that the file is, or that stands in it under `key`.

    ScenarioError with the line where it is no JSON, or ends too early.
    """
    reader = _Reader(path)
    reader.enter(key)
    while reader.more():
        yield reader.line, reader.value()


def first_sign(path: Path) -> str:
    """The first character of a file that is no space; empty for a blank file."""
    for piece in pieces(path):
        text = piece.lstrip("\ufeff \t\r\n")
        if text:
            return text[0]
    return ""


class _Reader:
    """A position in the text of a file, of which no more is held than a member needs."""

    def __init__(self, path: Path):
        self.path = path
        self.line = 1
        self._pieces = pieces(path)
        self._text = ""
        self._at = 0
        self._decoder = json.JSONDecoder(parse_constant=lambda name: float("nan"))

    def enter(self, key: str | None) -> None:
        """Go behind the bracket that opens the list."""
        opening = re.compile(r"\s*\[" if key is None else rf'\s*\{{.*?"{key}"\s*:\s*\[', re.DOTALL)
        while not (found := opening.match(self._text)):
            whole = re.match(r"\s*\[" if key is not None else r"\s*\{", self._text)
            if whole or len(self._text) > LARGEST or not self._refill():
                wanted = "a list" if key is None else f'an object with a list "{key}"'
                raise self._problem(f"expected is JSON: {wanted}" if self._text.strip() else "is empty")
        self._go(found.end())

    def more(self) -> bool:
        """Is there another member?  Moves to where it begins."""
        while True:
            self._go(_SPACE.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at] != "]"
            if not self._refill():
                raise self._problem("ends in the middle of its list")

    def value(self) -> Any:
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                held = len(self._text) - self._at
                if held > LARGEST or not self._refill(max(1, held)):
                    self._go(min(error.pos, len(self._text)))
                    raise self._problem(f"is not JSON ({error.msg})") from None
            except (RecursionError, ValueError):
                raise self._problem("is not JSON that can be read (too deep or too long)") from None
            else:
                # A number at the end of what is held may go on in the next piece.
                if end < len(self._text) or isinstance(found, dict | list | str) or not self._refill():
                    self._go(end)
                    return found

    def _go(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def _refill(self, least: int = 1) -> bool:
        """Read on, at least so many characters if there are as many; what lies behind is forgotten."""
        parts, count = [self._text[self._at :]], 0
        for piece in self._pieces:
            parts.append(piece)
            count += len(piece)
            if count >= least:
                break
        self._text, self._at = "".join(parts), 0
        return count > 0

    def _problem(self, message: str) -> ScenarioError:
        return ScenarioError(Problem(message, file=str(self.path), line=self.line))
