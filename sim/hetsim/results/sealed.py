"""Files that show changes: JSON with a checksum, and digests of neighboring files.

Every file of JSON that a run or a study writes for hetsim to read again has the keys `format` and `sha256`.  The
digests of the other files of a directory are in its mark (`run.json`, `tables.json`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hetsim.errors import DamagedFile, UsageError
from hetsim.model.units import shown
from hetsim.results.stored_files import open_stored, parse_json, read_stored

FORMAT = 2
"""Of every file that is written, and of those that are read.  The record of a run has a `saved_classes.VERSION`."""


_SEAL = ', "sha256": "{}"}}\n'
"""The end of a file that is not indented."""


def sealed(value: Mapping[str, Any], indent: int | None = None) -> str:
    """JSON with `format` and `sha256`, a checksum of all the rest."""
    value = {"format": FORMAT, **value}
    text = _dumps(value)
    digest = hashlib.sha256(text.encode()).hexdigest()
    if indent is None:
        return text[:-1] + _SEAL.format(digest)
    return _dumps({**value, "sha256": digest}, indent) + "\n"


def unsealed(path: Path) -> dict[str, Any]:
    """The contents that `sealed` was given; OSError if the file cannot be read.

    DamagedFile if it is not what `sealed` wrote, UsageError if it has the format of another hetsim.
    """
    return unsealed_text(path, read_stored(path))


def unsealed_text(path: Path, text: bytes) -> dict[str, Any]:
    """The same of a text that was read from the file."""
    try:
        found = parse_json(path, text)
        if not isinstance(found, dict):
            raise ValueError
    except ValueError:
        raise DamagedFile(path, "it is not a JSON object") from None
    number, stated = found.get("format"), found.pop("sha256", None)
    other = f"it has format {number}, and this hetsim reads format {FORMAT}" if number != FORMAT else ""
    seal = _SEAL.format(stated).encode()
    compact = text.endswith(seal)  # then the text itself is what was digested
    digest = hashlib.sha256(memoryview(text)[: -len(seal)] if compact else _dumps(found).encode())
    digest.update(b"}" if compact else b"")
    if stated != digest.hexdigest() or not (compact or text.decode() == sealed(found, 1)):
        raise DamagedFile(path, f"its checksum does not fit{other and f' ({other})'}")
    if other:
        raise UsageError(f"{path} cannot be read: {other}")
    del found["format"]
    return found


def _dumps(value: Mapping[str, Any], indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with open_stored(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Of files in a folder, by name."""
    return {name: digest_of(folder / name) for name in names}


def check_names(mark: Path, names: Collection[Any]) -> None:
    """Raise DamagedFile unless all names in a mark are inside the folder.

    A folder can come from a stranger: a name that leads out of it, by its text or by a link, would be read, and
    written where the run is saved again.
    """
    folder = os.path.realpath(mark.parent)
    for name in names:
        parts = PurePosixPath(name).parts if isinstance(name, str) else ()
        if not parts or name != "/".join(parts) or {"..", "/"} & set(parts) or set("\\:\0") & set(name):
            raise DamagedFile(mark, f"it names the file {shown(name)}, which cannot be in its folder")
        if any("/".join(parts[:depth]) in names for depth in range(1, len(parts))):
            raise DamagedFile(mark, f"it names the file {shown(name)}, and a part of that as a file too")
        if not Path(os.path.realpath(mark.parent / name)).is_relative_to(folder):
            raise DamagedFile(mark, f"the file {shown(name)} that it names is a link out of its folder")


def verify(path: Path, digest: str | None) -> Path:
    """The path; DamagedFile if the file is missing or has another digest."""
    if digest is None:
        return path
    try:
        found = digest_of(path)
    except FileNotFoundError:
        raise DamagedFile(path, "it is missing") from None
    if found != digest:
        raise DamagedFile(path, "its checksum does not fit")
    return path
