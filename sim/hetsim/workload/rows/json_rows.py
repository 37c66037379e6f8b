"""Reads large JSON files one list member at a time, in little memory."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetsim.errors import Problem, ScenarioError
from hetsim.workload.rows.text_rows import pieces

LARGEST = 64_000_000  # maximum characters of one member; more is a sign of damage

LONGEST_TAIL = 16  # characters needed behind a number to be sure that it ends there: more than `e-308`

_BLANK = re.compile(r"[ \t\r\n]*")


class Opened:
    """A token of the parser: the beginning of a list."""


OPENED = Opened()


def parts(path: Path, wanted: set[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (keys, value) for the wanted paths of keys in a JSON file, in file order.

    For a list, the value OPENED is yielded first and then each member, all with the keys of the list; any other value
    is yielded whole.  Other parts of the file are skipped.  ScenarioError with the line if the file is not JSON, or
    ends too early.
    """
    reader = _Reader(path)
    if not reader.sign():
        raise reader.problem("is empty")
    yield from reader.below(wanted, ())
    if reader.sign():
        raise reader.problem("is not JSON (Extra data)")


def members(path: Path, key: str | None = None) -> Iterator[tuple[int, Any]]:
    """Yield line and value of each member of the file's list, or of the list at `key`.

    ScenarioError with the line if the file is not JSON (before, in or behind the list), or ends too early.
    """
    reader = _Reader(path)
    wanted = () if key is None else (key,)
    meant = "a list" if key is None else f'an object with a list "{key}"'
    if reader.sign() != ("[" if key is None else "{"):
        raise reader.problem(f"must be JSON: {meant}" if reader.sign() else "is empty")
    opened = False
    for _, one in reader.below({wanted}, ()):
        if one is OPENED:
            opened = True
        elif opened:
            yield reader.began, one
        else:
            raise reader.problem(f"must be JSON: {meant}")
    if reader.sign():
        raise reader.problem("is not JSON (Extra data)")
    if not opened:
        raise reader.problem(f"must be JSON: {meant}")


def first_sign(path: Path) -> str:
    """Return the first character that is not whitespace; "" for an empty file."""
    for piece in pieces(path):
        if text := piece.lstrip("\ufeff \t\r\n"):
            return text[0]
    return ""


class _Reader:
    """Cursor in the text of a JSON file; only the value being read is in memory."""

    def __init__(self, path: Path):
        self.path = path
        self.line = 1
        self.began = 1  # where the last value began
        self._pieces = pieces(path)
        self._text = ""
        self._at = 0
        self._decoder = json.JSONDecoder(parse_constant=lambda name: float("nan"))

    def value(self) -> Any:
        self.began = self.line
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unread, ahead = len(self._text) - self._at, error.pos - self._at
                if unread > LARGEST or not self._refill(max(1, unread)):
                    self._go(min(self._at + ahead, len(self._text)))
                    raise self.problem(f"is not JSON ({error.msg})") from None
            except (RecursionError, ValueError):
                raise self.problem("is not JSON that can be read (too deep or too long)") from None
            else:
                # A number near the end of what is held may go on in the next piece: 12, 12.5 and 12.5e-3 begin alike.
                length, behind = end - self._at, len(self._text) - end
                if behind > LONGEST_TAIL or isinstance(value, dict | list | str) or not self._refill():
                    self._go(self._at + length)
                    return value

    def sign(self) -> str:
        while True:
            self._go(_BLANK.match(self._text, self._at).end())  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._refill():
                return ""

    def below(self, wanted: set[tuple[str, ...]], here: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        sign = self.sign()
        if here in wanted and sign == "[":
            yield here, OPENED
            for _ in self._entries("]"):
                yield here, self.value()
        elif sign == "{" and any(keys[: len(here)] == here != keys for keys in wanted):
            for _ in self._entries("}"):
                if self.sign() != '"':
                    raise self.problem("is not JSON (Expecting property name enclosed in double quotes)")
                key = self.value()
                if self.sign() != ":":
                    raise self.problem("is not JSON (Expecting ':' delimiter)")
                self._go(self._at + 1)
                yield from self.below(wanted, (*here, key))
        else:
            value = self.value()
            if here in wanted:
                yield here, value

    def _entries(self, closing: str) -> Iterator[None]:
        """Yield before each entry of a list or object; consume the commas and `closing`."""
        self._go(self._at + 1)
        more = self.sign() != closing
        if not more:
            self._go(self._at + 1)
        while more:
            yield
            if not (sign := self.sign()):
                raise self.problem(f"is not JSON (ends in the middle of its {'list' if closing == ']' else 'object'})")
            if sign not in (",", closing):
                raise self.problem("is not JSON (Expecting ',' delimiter)")
            more = sign == ","
            self._go(self._at + 1)
            self.sign()

    def _go(self, end: int) -> None:
        self.line += self._text.count("\n", self._at, end)
        self._at = end

    def _refill(self, least: int = 1) -> bool:
        parts, count = [self._text[self._at :]], 0
        for piece in self._pieces:
            parts.append(piece)
            count += len(piece)
            if count >= least:
                break
        self._text, self._at = "".join(parts), 0
        return count > 0

    def problem(self, message: str) -> ScenarioError:
        return ScenarioError(Problem(message, file=str(self.path), line=self.line))
