"""Worker processes of a process, as /proc tells: on Linux they are children of a server that it started."""

from __future__ import annotations

from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the workers in /proc")


def workers_of(process: int) -> list[int]:
    """Process numbers of the workers that it has now."""
    servers = [one for one in _children(process) if b"multiprocessing.forkserver" in _command(one)]
    return [worker for server in servers for worker in _children(server)]


def _children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    try:
        return [int(one) for one in path.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
