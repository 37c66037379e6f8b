"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

TEMPORARY = ".hetsim-"
"""How the names of files begin that are being written."""


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Have `write` make a file under another name, with the same suffix, then put it in its place: it is never there in
    part, and nothing is left where that fails."""
    handle, name = tempfile.mkstemp(prefix=TEMPORARY, suffix=path.suffix, dir=path.absolute().parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o666 & ~umask())  # mkstemp makes it private; a result is as readable as any other file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@cache
def umask() -> int:
    """Of this process; it can only be asked for by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
