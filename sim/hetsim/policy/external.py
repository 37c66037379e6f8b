"""A scheduler in a process of its own: its command, the exchange with it, and the log that replays this.

The command comes from the command line or from Python, and never from a scenario: the file of a stranger starts nothing.
"""

from __future__ import annotations

import hashlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from hetsim.errors import UsageError, several

GRACE = 2.0
"""Seconds that a process has to exit by itself before it is killed."""


@dataclass(frozen=True)
class ExternalProgram:
    """The command of an external scheduler, and the folder of exchanges; without a command these are replayed."""

    command: tuple[str, ...]
    folder: str | None = None

    @classmethod
    def given(cls, command: str | Sequence[str] | None, folder: str | Path | None = None) -> ExternalProgram | None:
        """The program that two options name, None if neither is given; UsageError if it is not there."""
        if command is None:
            if folder is not None and not os.path.isdir(folder):
                raise UsageError(f'there is no folder "{folder}" of exchanges to replay; external says what to run')
            return None if folder is None else cls((), str(folder))
        try:
            parts = shlex.split(command) if isinstance(command, str) else several(command, "external", "a command")
        except ValueError as error:
            raise UsageError(f"external: {error}, in {command!r}") from None
        words = tuple(map(str, parts))
        if not words or shutil.which(words[0]) is None:
            raise UsageError(f'external: there is no program "{"".join(words[:1])}" that can be run')
        return cls(words, None if folder is None else str(folder))

    def inputs(self) -> tuple[dict[str, str], str]:
        """Digests of the executable and of files among the arguments, by name; and why they say too little, if so."""
        if not self.command:
            paths = sorted(Path(self.folder or "").glob("*.jsonl"))
            return {f"exchange {path.name}": _digest(path) for path in paths}, ""
        words = [shutil.which(self.command[0]) or "", *self.command[1:]]
        digests = {"external": hashlib.sha256("\0".join(self.command).encode()).hexdigest()}
        digests |= {f"external {word}": _digest(Path(word)) for word in words if os.path.isfile(word)}
        known = os.path.isfile(words[0]) and not any(word == "-m" or os.path.isdir(word) for word in words)
        return digests, "" if known else f"{shlex.join(self.command)} runs code that is in none of these files"


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class ExchangeError(Exception):
    """There is no answer; the text ends a sentence that begins with the scheduler."""


class Exchange:
    """The exchange of lines in one run, with a process or with a log."""

    def __init__(self, program: ExternalProgram, name: str, timeout: float):
        """`name`: of the log, which tells this run from all others; `timeout`: wall-clock seconds for an answer."""
        self._timeout = timeout
        self._path = Path(program.folder or "") / f"{name}.jsonl"
        self._log: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        if not program.command:
            if not self._path.is_file():
                raise ExchangeError(f"cannot be replayed: {program.folder} has no exchange of this run ({name}.jsonl)")
            self._log = self._path.open("rb")
            return
        try:
            self._process = subprocess.Popen(
                program.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise ExchangeError(f"cannot be started: {error}") from None
        self._kill = weakref.finalize(self, _kill, self._process)  # also if nobody closes the exchange
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()  # type: ignore[union-attr]
        os.set_blocking(self._to, False)
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self._to, select.POLLOUT)
        self._readable.register(self._from, select.POLLIN)
        if program.folder is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._log = self._path.with_suffix(".part").open("wb")

    def ask(self, message: str) -> bytes:
        """Send a line and return the answer; ExchangeError if there is none."""
        line = message.encode() + b"\n"
        if self._process is None:
            if self._log.readline() != line:
                raise ExchangeError(f"cannot be replayed: the exchange {self._path} goes on in another way")
            return bytes(self._log.readline())
        answer = self._talk(line)
        if self._log is not None:
            self._log.write(line + answer)
        return answer

    def _talk(self, line: bytes) -> bytes:
        end, answer = monotonic() + self._timeout, b""
        try:
            while line:
                self._wait(self._writable, end)
                line = line[os.write(self._to, line) :]
            while not answer.endswith(b"\n"):
                self._wait(self._readable, end)
                if not (part := os.read(self._from, 1 << 20)):
                    raise BrokenPipeError
                answer += part
        except BrokenPipeError:
            raise ExchangeError(f"ended ({self._exit()})") from None
        if b"\n" in answer[:-1]:
            raise ExchangeError("answered with more than one line")
        return answer

    def _wait(self, poll: select.poll, end: float) -> None:
        if not poll.poll(max(0.0, end - monotonic()) * 1000):
            raise ExchangeError(f"did not answer within {self._timeout:g} s (`timeout`)")

    def _exit(self) -> str:
        """Wait for the exit of the process, for a time, and describe it."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            return f"exit status {self._process.wait(GRACE)}"
        return "it closed its pipes and goes on"

    def close(self, in_order: bool) -> None:
        """End the process; the log is kept as `.part` unless the run ended in order."""
        if self._process is not None:
            if in_order:
                self._process.stdin.close()  # type: ignore[union-attr]
                self._exit()
            self._kill()
        if self._log is not None:
            self._log.close()
            if in_order and self._process is not None:
                os.replace(self._log.name, self._path)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        pipe.close()  # type: ignore[union-attr]
