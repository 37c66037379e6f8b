"""Files that may be gzipped, under one limit on their decompressed size."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path
from typing import IO, cast

from hetsim.errors import Problem, ScenarioError
from hetsim.model.files import open_input

MAX_RATIO = 50
"""How many times its own size a compressed file may hold; published logs hold 3 to 15 times theirs."""
ALWAYS = 32_000_000
"""Bytes that any file may hold, however small it is compressed."""

_BUFFER = 1 << 17


def is_gzip(path: Path) -> bool:
    """Does the file begin as gzip's do?  Its name is not asked."""
    with open_input(path) as stream:
        return stream.read(2) == b"\x1f\x8b"


def opened(path: Path) -> IO[bytes]:
    """The bytes of a file, decompressed where it is compressed with gzip.

    ScenarioError where it holds more than the limit, at once if it says so itself and else where reading comes to it:
    so a small file cannot fill the memory.  ScenarioError as well where the compressed data are damaged.
    """
    if not is_gzip(path):
        return open_input(path)
    size = path.stat().st_size
    with open_input(path) as stream:
        stream.seek(-min(size, 4), os.SEEK_END)
        stated = int.from_bytes(stream.read(), "little")  # how much it holds, to 32 bits, unless it is damaged
    if stated > limit_of(size):
        check(path)
    return _limited(path)


def check(path: Path) -> None:
    """Raise ScenarioError where a file holds more than the limit."""
    if is_gzip(path):
        with _limited(path) as stream:
            while stream.read(1 << 20):
                pass


def _limited(path: Path) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(_Limited(path, path.stat().st_size), _BUFFER))


def limit_of(size: int) -> int:
    """Bytes that a compressed file of this size may hold."""
    return max(ALWAYS, MAX_RATIO * size)


class _Limited(io.RawIOBase):
    """The contents of a compressed file, up to its limit."""

    def __init__(self, path: Path, size: int):
        self._path, self._size = path, size
        self._file = open_input(path)
        self._stream = gzip.GzipFile(fileobj=self._file)
        self._left = limit_of(size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        try:
            count = self._stream.readinto1(buffer)
        except EOFError:
            raise self._problem("is damaged: the compressed data end too early") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self._problem(f"is damaged: it cannot be decompressed ({error})") from None
        self._left -= count
        if self._left < 0:
            limit, size = limit_of(self._size) / 1e6, self._size / 1e6
            raise self._problem(
                f"decompresses to more than {limit:,.0f} MB, the most that is read of a compressed file of {size:,.3g} "
                "MB; if that is what it should hold, decompress it first"
            )
        return count

    def close(self) -> None:
        self._stream.close()
        self._file.close()
        super().close()

    def _problem(self, message: str) -> ScenarioError:
        return ScenarioError(Problem(message, file=str(self._path)))
