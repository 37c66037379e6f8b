"""Input files, which are recorded when opened, and output files."""

import gzip
import hashlib
import io
import os
import platform
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, TextIO, cast

from hetsim.build import package_data
from hetsim.errors import Problem, ScenarioError

TEMPORARY = ".hetsim-"  # prefix of the names of files being written; a digest of the machine and the process id follow
DAY = 86_400.0


# Inputs -----------------------------------------------------------------------------------------------------------


@dataclass
class InputFiles:
    """Files that were recorded as inputs of a computation."""

    paths: dict[Path, None] = field(default_factory=dict)
    opened: dict[Path, None] = field(default_factory=dict)
    seen: dict[Path, None] = field(default_factory=dict)
    named: dict[tuple[str, str], Path] = field(default_factory=dict)


_recording: ContextVar[tuple[InputFiles, ...]] = ContextVar("recording", default=())


@contextmanager
def recorded_inputs() -> Iterator[InputFiles]:
    """Record input files that a scenario names or this thread opens in a `with` block."""
    record = InputFiles()
    before = _recording.set((*_recording.get(), record))
    try:
        yield record
    finally:
        _recording.reset(before)


def record_input(path: Path, key: str | None = None, text: Any = None) -> Path:
    """Record an input file or folder; `key`, `text`: scenario key and value naming it."""
    for one in _recording.get():
        one.paths[path] = None
        if key is not None:
            one.named[key, str(text)] = path
    return path


def open_input(path: Path) -> io.BufferedReader:
    """Open an input file and record it; libraries must read this stream, not the path."""
    for one in _recording.get():
        one.opened[path] = None
    return path.open("rb")


def open_text(path: Path, errors: str = "strict", newline: str | None = "") -> TextIO:
    """Open and record an input of UTF-8 text; line ends are kept by default."""
    return io.TextIOWrapper(open_input(path), "utf-8-sig", errors, newline)


watching: set[str] = set()  # reasons why this process records all files that it opens; the hook cannot be removed


def package_table(module: str, name: str) -> dict[str, Any]:
    """Return the mapping in a YAML file next to a module."""
    import yaml

    return yaml.load(package_data(module, name), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def watch_opens(reason: str = "code") -> None:
    """Record each non-code file read until `reason` is removed from `watching`."""
    _add_hook()
    watching.add(reason)


@cache
def _add_hook() -> None:
    from zoneinfo import TZPATH

    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    installed = {*map(os.path.abspath, (*libraries, *TZPATH)), "/proc", "/dev", "/sys"}

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and watching and _recording.get() and isinstance(given[0], str | bytes | os.PathLike):
            path = Path(os.path.abspath(os.fsdecode(given[0])))
            reads = not isinstance(given[2], int) or not given[2] & (os.O_WRONLY | os.O_RDWR)
            code = path.suffix in (".py", ".pyc", ".so") or path.parent.suffix in (".dist-info", ".egg-info")
            code |= not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
            # The event precedes the opening, also of missing files, such as candidates on sys.path.
            if reads and not code and installed.isdisjoint(map(str, path.parents)) and os.path.exists(path):
                for one in _recording.get():
                    one.seen[path] = None

    sys.addaudithook(watch)


# Outputs ----------------------------------------------------------------------------------------------------------


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make OSErrors raised in a `with` block name `path` instead of a temporary file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and not Path(os.fsdecode(error.filename)).name.startswith(TEMPORARY):
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, reason, str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, with unchanged line ends."""
    with naming(path):
        path.write_text(text, encoding="utf-8", newline="")


def write_whole(path: Path, write: Callable[[Path], Any], *, durable: bool = False) -> None:
    """Write a file atomically: `write` fills a temporary file, which then replaces it.

    durable: when this returns, the file is on the disk and survives a power failure.
    """
    with naming(path):
        _tidy(path.absolute().parent)
        prefix = f"{TEMPORARY}{host_digest()}-{os.getpid()}-"
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=path.suffix, dir=path.absolute().parent)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            temporary.chmod(0o666 & ~umask())  # mkstemp makes it private; results get the usual permissions
            if durable:
                flush(temporary)
            temporary.replace(path)
            if durable:
                flush(path.absolute().parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def temporary_folder(target: Path, what: str) -> Path:
    """Create a temporary folder next to `target`; remove folders of dead processes.

    `what`: "new" or "old", a part of the folder's name.
    """
    pattern = re.compile(rf"{re.escape(TEMPORARY)}\w{{8}}-\d+-({re.escape(target.name)}-{what}|.+-new)-\w+")
    for leaving in target.parent.glob(f"{TEMPORARY}*"):
        if pattern.fullmatch(leaving.name) and is_left(leaving):
            shutil.rmtree(leaving, ignore_errors=True)
    prefix = f"{TEMPORARY}{host_digest()}-{os.getpid()}-{target.name}-{what}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))


def remove_left(folder: Path, pattern: str) -> None:
    """Remove temporary files of dead processes from a folder; `pattern`: their names."""
    for leaving in folder.glob(f"{pattern}{TEMPORARY}*"):
        if leaving.is_file() and is_left(leaving):
            leaving.unlink(missing_ok=True)


@cache
def _tidy(folder: Path) -> None:
    with suppress(OSError):
        remove_left(folder, "")


@cache
def host_digest() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def is_left(path: Path) -> bool:
    """Return True if no live process writes this temporary file any more.

    A file of another machine is considered abandoned when it is a day old.
    """
    match = re.match(rf"{re.escape(TEMPORARY)}([0-9a-f]{{8}})-(\d+)-", path.name)
    try:
        if match is None:
            return True
        if match[1] != host_digest():
            return time.time() - path.stat().st_mtime > DAY
        os.kill(int(match[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def flush(path: Path) -> None:
    """Force a file, or a folder's entries, from the system's cache to the disk."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@cache
def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# Files that may be gzipped, under one limit on their decompressed size.


MAX_RATIO = 50  # maximum decompressed size over compressed size; published logs have a ratio of 3 to 15
ALWAYS = 32_000_000  # decompressed bytes that are allowed for any file, however small it is

_BUFFER = 1 << 17


def is_gzip(path: Path) -> bool:
    """Return True if the file's content begins as gzip data, whatever its name."""
    with open_input(path) as stream:
        return stream.read(2) == b"\x1f\x8b"


def opened(path: Path) -> IO[bytes]:
    """Open a file, decompressing gzip.

    ScenarioError is raised for damaged data, and if the file decompresses to more than the limit (`limit_of`):
    immediately if its header states this size, otherwise when reading reaches the limit.  So a small file cannot fill
    the memory.
    """
    if not is_gzip(path):
        return open_input(path)
    size = path.stat().st_size
    with open_input(path) as stream:
        stream.seek(-min(size, 4), os.SEEK_END)
        stated = int.from_bytes(stream.read(), "little")  # its decompressed size modulo 2**32, unless it is damaged
    if stated > limit_of(size):
        check(path)
    return _limited(path)


def check(path: Path) -> None:
    """Raise ScenarioError if a file decompresses to more than the limit (`limit_of`)."""
    if is_gzip(path):
        with _limited(path) as stream:
            while stream.read(1 << 20):
                pass


def _limited(path: Path) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(_Limited(path, path.stat().st_size), _BUFFER))


def limit_of(size: int) -> int:
    """Return the maximum decompressed bytes allowed for `size` compressed bytes."""
    return max(ALWAYS, MAX_RATIO * size)


class _Limited(io.RawIOBase):
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
                f"decompresses to more than {limit:,.0f} MB, too much for a compressed file of {size:,.3g} MB; "
                "if this size is right, decompress the file first"
            )
        return count

    def close(self) -> None:
        self._stream.close()
        self._file.close()
        super().close()

    def _problem(self, message: str) -> ScenarioError:
        return ScenarioError(Problem(message, file=str(self._path)))
