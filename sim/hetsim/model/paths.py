"""Paths in scenario files: relative to the file, or else the working directory.

The latter is for what is named on a command line; a scenario that ships has no folder of the user's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema

from hetsim.model.files import record_input
from hetsim.model.units import shown


def _existing(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("expected a file name")
    given = path = Path(value)
    if not path.is_absolute():
        path = Path((info.context or {}).get("base", ".")) / path
    try:
        if not path.exists() and given.is_file():
            path = given.absolute()
        found, folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        found = folder = False
    if folder:
        raise ValueError(f"{shown(str(value))} is a folder, not a file")
    if not found:
        looked = "" if str(path) == str(value) or len(str(path)) > 500 else f" (looked for {path})"
        raise ValueError(f"no file {shown(str(value))}{looked}")
    return record_input(path, info.field_name, value)


def _existing_folder(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("expected the name of a folder")
    path = Path(value)
    inside = path if path.is_absolute() else Path((info.context or {}).get("base", ".")) / path
    try:
        found = next((one.absolute() for one in (inside, path) if one.is_dir()), None)
        file = inside.is_file()
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        found, file = None, False
    if found is None:
        what = "is a file, not a folder" if file else f"is no folder (looked for {str(inside)[:500]})"
        raise ValueError(f"{shown(str(value))} {what}")
    return record_input(found, info.field_name, value)


ExistingFolder = Annotated[Path, BeforeValidator(_existing_folder), WithJsonSchema({"type": "string"})]
"""A folder that exists, looked for as an `ExistingFile` is."""

ExistingFile = Annotated[Path, BeforeValidator(_existing), WithJsonSchema({"type": "string"})]
"""A file that exists; the validation context's `base` is the folder of the scenario file, which is looked at first."""
