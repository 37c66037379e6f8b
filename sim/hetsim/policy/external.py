"""A scheduler in an external process: its command, and the exchange with it.

The command comes from the command line or from Python, never from a scenario, so that a scenario file cannot start a
program.
"""

import hashlib
import os
import select
import shlex
import shutil
import socket
import subprocess
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any

from hetsim.errors import UsageError

ENDPOINT = "{endpoint}"  # in a word of a command: the loopback address of ZeroMQ, in place of pipes
GRACE = 2.0  # seconds that a process has to exit by itself before it is killed
LONGEST = 64 << 20  # bytes of an answer
_WATCH = ("/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$0"')  # kills the process group when its input ends


@dataclass(frozen=True)
class ExternalProgram:
    """The command of an external scheduler, and a folder of logs to write or replay.

    scenario: name that distinguishes the logs of several scenarios.
    """

    command: tuple[str, ...]
    folder: str | None = None
    scenario: str = ""

    @classmethod
    def given(cls, command: str | Sequence[str] | None, folder: str | Path | None = None) -> "ExternalProgram | None":
        """Return the program (None if both options are None); UsageError: wrong options."""
        try:
            words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(map(str, command or ()))
        except (TypeError, ValueError) as error:
            text = f"external must be a command, a text or a list of its parts; got {command!r} ({error})"
            raise UsageError(text) from None
        if command is not None and not (words and shutil.which(words[0])):
            raise UsageError(f'external: there is no program "{"".join(words[:1])}" that can be run')
        if any(ENDPOINT in word for word in words) and find_spec("zmq") is None:
            raise UsageError(f'external: {ENDPOINT} in a command needs ZeroMQ: pip install "hetsim[zmq]"')
        return None if command is folder is None else cls(words, None if folder is None else str(folder))

    def inputs(self, unknown: str) -> dict[str, str]:
        """Return SHA-256 digests of the command and its files (in a replay: of its logs).

        If the command runs code outside these files, a key that begins with `unknown` is added.
        """
        first = shutil.which(self.command[0]) if self.command else None
        words = [first or "", *self.command[1:]] if self.command else [*Path(self.folder or "").glob("*.jsonl")]
        texts = {str(word): Path(word).read_bytes() for word in words if os.path.isfile(word)}
        texts["command"] = "\0".join(self.command).encode()
        digests = {f"external {name}": hashlib.sha256(text).hexdigest() for name, text in texts.items()}
        if self.command and (first is None or "-m" in words or any(map(os.path.isdir, words))):
            digests[f"{unknown}external"] = f"{shlex.join(self.command)} runs code that is not in its files"
        return digests


class Exchange:
    """Exchange of lines with a scheduler's process, or its replay from a log."""

    def __init__(self, program: ExternalProgram, name: str, timeout: float, wrong: Callable[[str], Exception]):
        """timeout: s to wait for an answer; wrong: creates the exception for a bad answer."""
        self._timeout, self._wrong, self.in_order = timeout, wrong, False
        self._path = Path(program.folder or "") / f"{name}.jsonl"
        self._log: Any = None
        self._process: Any = None
        self._zmq: Any = None
        try:
            if not program.command:
                if not self._path.exists():
                    raise wrong(f"cannot be replayed: {program.folder} has no log of this run")
                self._log = self._path.open("rb")
                return
            words, out = program.command, subprocess.PIPE
            if any(ENDPOINT in word for word in words):
                self._zmq, endpoint = _requester()
                words, out = tuple(word.replace(ENDPOINT, endpoint) for word in words), 2  # what it prints is no answer
            self._process = process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, bufsize=0,
                                                       start_new_session=True)  # fmt: skip
            watch = subprocess.Popen((*_WATCH, str(process.pid)), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     start_new_session=True)  # fmt: skip
            self._kill = weakref.finalize(self, _kill, process, watch)  # also if nothing closes the exchange
            if program.folder is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._log = self._path.with_name(f"{name}-{token_hex(4)}.part").open("wb")
        except (OSError, ValueError) as error:
            raise wrong(f"cannot be {'started' if program.command else 'replayed'}: {error}") from None
        if self._zmq is not None:
            return
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        self._writable, self._readable = select.poll(), select.poll()
        self._writable.register(self._to, select.POLLOUT)
        self._readable.register(self._from, select.POLLIN)

    def ask(self, message: str) -> bytes:
        """Send a line and return the answer; raise PolicyError if no answer comes."""
        line = message.encode() + b"\n"
        if self._process is None:
            if self._log.readline() != line:
                raise self._wrong(f"cannot be replayed: this run differs from the recorded exchange {self._path}")
            return bytes(self._log.readline())
        answer = self._talk(line) if self._zmq is None else self._request(line)
        if self._log is not None:
            self._log.write(line + answer)
        return answer

    def _talk(self, line: bytes) -> bytes:
        end, answer, unsent = monotonic() + self._timeout, bytearray(), memoryview(line)
        try:
            while unsent:
                self._wait(self._writable, end, len(unsent) < len(line))
                unsent = unsent[os.write(self._to, unsent) :]
            while not answer.endswith(b"\n"):
                self._wait(self._readable, end, len(answer) > 0)
                answer += (part := os.read(self._from, 1 << 20))
                if not part:
                    raise BrokenPipeError
                if len(answer) > LONGEST:
                    raise self._wrong(f"answered with a line of more than {LONGEST >> 20} MiB: {bytes(answer[:80])!r}")
        except BrokenPipeError:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
            raise self._wrong(f"closed its pipes (exit status {self._process.returncode})") from None
        if b"\n" in answer[:-1]:
            raise self._wrong(f"answered with more than one line: {bytes(answer[:80])!r}")
        return bytes(answer)

    def _request(self, line: bytes) -> bytes:
        end = monotonic() + self._timeout
        self._zmq.send(line[:-1])
        while not self._zmq.poll(20):
            if self._process.poll() is not None:
                raise self._wrong(f"has ended (exit status {self._process.returncode})")
            if monotonic() > end:
                raise self._wrong(f"did not answer within {self._timeout:g} s (`timeout`)")
        return bytes(self._zmq.recv()).replace(b"\n", b" ") + b"\n"

    def _wait(self, poll: select.poll, end: float, begun: bool) -> None:
        seconds = end - monotonic()  # an answer that arrived while hetsim was suspended counts
        if (begun and seconds < 0.0) or not poll.poll(max(0.0, seconds) * 1000):
            raise self._wrong(f"did not answer within {self._timeout:g} s (`timeout`)")

    def close(self) -> None:
        """End the process; the log keeps the ending `.part` unless the run ended normally."""
        if self._process is not None:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE * self.in_order)
            self._kill()
        if self._zmq is not None:
            self._zmq.close()
        if self._log is not None:
            self._log.close()
            if self.in_order and self._process is not None:
                os.replace(self._log.name, self._path)


def _requester() -> tuple[Any, str]:
    zmq = import_module("zmq")  # an extra
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    requester = zmq.Context.instance().socket(zmq.REQ)
    for option, value in ((zmq.LINGER, 0), (zmq.RECONNECT_IVL, 5), (zmq.MAXMSGSIZE, LONGEST)):
        requester.setsockopt(option, value)
    requester.connect(endpoint)
    return requester, endpoint


def _kill(process: subprocess.Popen[bytes], watch: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError), watch, process:
        watch.kill()
        os.killpg(process.pid, 9)
