"""Files that tell when they were changed: JSON with a checksum of its own, and digests of the files next to it.

Every file of JSON that a run or a study writes for hetsim to read again has the keys `format` and `sha256`.  The
digests of the other files of a directory are in its mark (`run.json`, `tables.json`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.errors import DamagedFile, UsageError

FORMAT = 2
"""Of every file that is written.  1 had no checksums; it is read as it is."""


def sealed(value: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON with `format` and `sha256`, a checksum of all the rest."""
    whole = {"format": FORMAT, **value}
    return json.dumps({**whole, "sha256": _checksum(whole)}, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def unsealed(path: Path, older: bool = True) -> dict[str, Any]:
    """What `sealed` was given; DamagedFile if the file is not what it wrote, OSError if it cannot be read.

    Of format 1, which has no checksum, what is there; where that cannot be (`older` False), it is damaged.
    """
    text = path.read_bytes()
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError
    except ValueError:
        raise DamagedFile(path, "it is no JSON object") from None
    if older and "sha256" not in found and "format" not in found:
        return found
    check_format(found, path)
    stated = found.pop("sha256", None)
    if stated != _checksum(found) or text.decode() not in (sealed(found), sealed(found, 1)):
        raise DamagedFile(path, "its checksum does not fit")
    del found["format"]
    return found


def check_format(found: Mapping[str, Any], path: Path) -> None:
    """UsageError for a file of a later hetsim."""
    number = found.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise UsageError(f"{path} has format {number}, and this hetsim reads up to {FORMAT}: update hetsim")


def _checksum(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False, allow_nan=False).encode()).hexdigest()


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Of files in a folder, by name."""
    return {name: digest_of(folder / name) for name in names}


def verify(path: Path, digest: str | None) -> Path:
    """The path; DamagedFile if the file is missing or is not the one with this digest (None: not known)."""
    if digest is None:
        return path
    try:
        found = digest_of(path)
    except FileNotFoundError:
        raise DamagedFile(path, "it is missing") from None
    if found != digest:
        raise DamagedFile(path, "its checksum does not fit")
    return path
