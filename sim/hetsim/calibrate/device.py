"""Devices to measure: one with a model, and a plain function on the host."""

import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class MeasuredDevice(Protocol):
    """A device with a model; each stage returns the seconds that it took.

    `kind` is `cpu` (nothing is uploaded: `upload` and `download` are never called) or `gpu`.  `bytes_in` and
    `bytes_out` are those of one item.  `memories` are the kinds of host memory that transfers can start from, the
    first being what a server would use.
    """

    name: str
    kind: str
    bytes_in: int
    bytes_out: int
    memories: tuple[str, ...]

    def upload(self, n: int, memory: str) -> float: ...

    def compute(self, n: int) -> float: ...

    def download(self, n: int, memory: str) -> float: ...


@runtime_checkable
class Overlapping(Protocol):
    """A device that can upload one batch while it computes another."""

    def overlapped(self, n: int) -> float:
        """Return seconds a batch of n when each is uploaded while another computes."""
        ...

    def submit(self, n: int) -> Callable[[], bool]:
        """Start a batch of n behind those submitted; return a test for its end."""
        ...


class HostDevice:
    """A function on the machine's own CPU: `run(n)` computes a batch of n."""

    kind = "cpu"
    memories: tuple[str, ...] = ()

    def __init__(self, run: Callable[[int], object], name: str, bytes_in: int = 0, bytes_out: int = 0):
        self.run = run
        self.name = name
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out

    def upload(self, n: int, memory: str) -> float:
        return 0.0

    def compute(self, n: int) -> float:
        begin = time.perf_counter()
        self.run(n)
        return time.perf_counter() - begin

    def download(self, n: int, memory: str) -> float:
        return 0.0
